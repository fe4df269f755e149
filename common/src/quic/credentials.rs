//! A node's certificate, key and trusted authority, checked in full when they are loaded, so that a
//! wrong file is found at start and not at the first handshake.

use super::certs::{CertError, Identity, certificates, now, read};
use crate::ids::Fingerprint;
use crate::role::Role;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, RootCertStore};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use time::OffsetDateTime;
use webpki::{EndEntityCert, KeyUsage};

/// A node's checked certificate and key, and the authority it trusts.
#[derive(Clone)]
pub struct Credentials {
    role: Role,
    ca_fingerprint: Fingerprint,
    pub(super) roots: Arc<RootCertStore>,
    pub(super) identity: Arc<SingleCertAndKey>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("role", &self.role)
            .field("ca_fingerprint", &self.ca_fingerprint)
            .finish_non_exhaustive()
    }
}

/// Bytes and where they came from: errors name the file.
struct Source<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
}

impl Credentials {
    /// Reads and checks the three files of a node.
    ///
    /// # Errors
    /// [`CertError`] that names the file: missing, unreadable, not PEM, a key of another
    /// certificate, signed by another authority, expired, or not of the `expected` role.
    pub fn load(ca: &Path, cert: &Path, key: &Path, expected: Role) -> Result<Self, CertError> {
        let source = |what, path| read(what, path).map(|bytes| Source { path, bytes });
        Self::check(
            &source("CA certificate", ca)?,
            &source("certificate", cert)?,
            &source("key", key)?,
            expected,
            now(),
        )
    }

    /// As [`Credentials::load`] for `ca.pem`, `<role>.pem` and `<role>.key` of one folder.
    ///
    /// # Errors
    /// As [`Credentials::load`].
    pub fn load_from(dir: &Path, role: Role) -> Result<Self, CertError> {
        let (cert, key) = (dir.join(format!("{role}.pem")), dir.join(format!("{role}.key")));
        Self::load(&dir.join("ca.pem"), &cert, &key, role)
    }

    /// As [`Credentials::load`] for what is in memory already.
    ///
    /// # Errors
    /// As [`Credentials::load`].
    pub fn from_identity(ca_pem: &str, identity: &Identity) -> Result<Self, CertError> {
        let source = |path, pem: &str| Source { path: Path::new(path), bytes: pem.into() };
        Self::check(
            &source("(ca in memory)", ca_pem),
            &source("(certificate in memory)", &identity.cert_pem),
            &source("(key in memory)", &identity.key_pem),
            identity.role,
            now(),
        )
    }

    /// As [`Credentials::from_identity`] at another time, to take what has expired since.
    #[cfg(test)]
    pub(super) fn from_identity_at(ca_pem: &str, identity: &Identity, now: SystemTime) -> Self {
        let source = |pem: &str| Source { path: Path::new("memory"), bytes: pem.into() };
        let (ca, cert) = (source(ca_pem), source(&identity.cert_pem));
        Self::check(&ca, &cert, &source(&identity.key_pem), identity.role, now).unwrap()
    }

    fn check(
        ca: &Source<'_>,
        cert: &Source<'_>,
        key: &Source<'_>,
        expected: Role,
        now: SystemTime,
    ) -> Result<Self, CertError> {
        let authority = certificates(&ca.bytes, "CA certificate", ca.path)?.remove(0);
        let chain = certificates(&cert.bytes, "certificate", cert.path)?;
        let key_der = PrivateKeyDer::from_pem_slice(&key.bytes).map_err(|error| {
            let (what, path) = ("key", key.path.to_owned());
            CertError::NotPem { what, path, detail: error.to_string() }
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(|error| CertError::Malformed {
            what: "CA certificate",
            path: ca.path.to_owned(),
            detail: error.to_string(),
        })?;
        check_chain(&roots, &chain[0], ca.path, cert.path, now)?;
        match role_of(&chain[0]) {
            Some(seen) if seen == expected => {}
            Some(seen) => {
                return Err(CertError::Role { path: cert.path.to_owned(), seen, expected });
            }
            None => return Err(CertError::NoRole { path: cert.path.to_owned() }),
        }
        let provider = Arc::new(provider());
        let identity = CertifiedKey::from_der(chain, key_der, &provider).map_err(|error| {
            let (path, detail) = (key.path.to_owned(), error.to_string());
            match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    CertError::KeyMismatch { key: path, cert: cert.path.to_owned() }
                }
                _ => CertError::Malformed { what: "key", path, detail },
            }
        })?;
        Ok(Self {
            role: expected,
            ca_fingerprint: Fingerprint::of(&authority),
            roots: Arc::new(roots),
            identity: Arc::new(identity.into()),
            provider,
        })
    }

    /// The role in the certificate.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Names the authority: two nodes with different ones can never talk.
    pub const fn ca_fingerprint(&self) -> Fingerprint {
        self.ca_fingerprint
    }
}

/// The role a certificate carries, when it carries exactly one.
pub(super) fn role_of(certificate: &CertificateDer<'_>) -> Option<Role> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let mut roles = parsed.valid_dns_names().filter_map(Role::from_dns_name);
    let role = roles.next()?;
    roles.next().is_none().then_some(role)
}

/// AES-128 first: it is the fastest here and as safe as we need; nothing older than TLS 1.3.
fn provider() -> CryptoProvider {
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    CryptoProvider { cipher_suites, ..default_provider() }
}

/// Checks signature, validity and purposes, as a peer would.
fn check_chain(
    roots: &RootCertStore,
    certificate: &CertificateDer<'_>,
    ca: &Path,
    cert: &Path,
    now: SystemTime,
) -> Result<(), CertError> {
    let path = cert.to_owned();
    let now =
        UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let verified = EndEntityCert::try_from(certificate).and_then(|parsed| {
        [KeyUsage::client_auth(), KeyUsage::server_auth()].into_iter().try_for_each(|usage| {
            let algorithms = webpki::ALL_VERIFICATION_ALGS;
            parsed
                .verify_for_usage(algorithms, &roots.roots, &[], now, usage, None, None)
                .map(|_path| ())
        })
    });
    verified.map_err(|error| match error {
        webpki::Error::CertExpired { not_after, .. } => {
            CertError::Expired { path, expired: date(not_after) }
        }
        webpki::Error::CertNotValidYet { not_before, .. } => {
            CertError::NotYetValid { path, from: date(not_before) }
        }
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            CertError::WrongAuthority { cert: path, ca: ca.to_owned() }
        }
        other => CertError::Malformed { what: "certificate", path, detail: other.to_string() },
    })
}

/// `2026-11-30 12:00:00 UTC`.
pub(super) fn date(moment: UnixTime) -> String {
    let seconds = i64::try_from(moment.as_secs()).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).map_or_else(
        |_| format!("second {seconds} of the Unix clock"),
        |at| {
            let (month, (hour, minute, second)) = (u8::from(at.month()), at.to_hms());
            let (year, day) = (at.year(), at.day());
            format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
        },
    )
}

#[cfg(test)]
#[path = "certs_tests.rs"]
mod tests;
