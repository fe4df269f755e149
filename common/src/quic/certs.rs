//! A private certificate authority and the certificates of nodes.
//!
//! One authority per cluster. A node's certificate says its role in a DNS name (`worker.slackline`)
//! and its own name as common name. What a node does with them → [`super::credentials`].

use crate::limits::CONFIG_BYTES_MAX;
use crate::role::Role;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use webpki::EndEntityCert;

/// Days a node's certificate is valid unless somebody says otherwise.
pub const NODE_DAYS_DEFAULT: u32 = 30;
/// Most days a certificate may be valid, and what the authority's own has: ten years.
pub const DAYS_MAX: u32 = 3650;
/// A certificate is valid from this long before it was made: clocks of cloud machines differ.
const BACKDATE: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const ADVICE: &str = "make certificates with `slackline certs`";

/// What is wrong with a certificate or a key. Always found before any network is used.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// A file is not there.
    #[error("{what} {} does not exist: {ADVICE}", path.display())]
    Missing {
        /// Which of the files.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("{what} {} cannot be read: {source}", path.display())]
    Unreadable {
        /// Which of the files.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has no PEM section of the right kind.
    #[error("{what} {} is not PEM: {detail}", path.display())]
    NotPem {
        /// Which of the files.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// What the parser saw.
        detail: String,
    },
    /// A file is PEM, but what it holds is not usable.
    #[error("{what} {} is not usable: {detail}", path.display())]
    Malformed {
        /// Which of the files.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// What the parser saw.
        detail: String,
    },
    /// The private key is another certificate's.
    #[error("key {} does not belong to certificate {}", key.display(), cert.display())]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
    },
    /// The certificate is too old.
    #[error("certificate {} expired on {expired}: {ADVICE}", path.display())]
    Expired {
        /// The certificate's file.
        path: PathBuf,
        /// Its last moment, UTC.
        expired: String,
    },
    /// The certificate is too young, or this machine's clock is wrong.
    #[error("certificate {} is valid only from {from}: check this machine's clock", path.display())]
    NotYetValid {
        /// The certificate's file.
        path: PathBuf,
        /// Its first moment, UTC.
        from: String,
    },
    /// Another authority signed the certificate.
    #[error("certificate {} is not signed by the CA in {}", cert.display(), ca.display())]
    WrongAuthority {
        /// The certificate's file.
        cert: PathBuf,
        /// The authority's file.
        ca: PathBuf,
    },
    /// The certificate's role is not what this process is.
    #[error("certificate {} is a {seen}'s, a {expected}'s is needed", path.display())]
    Role {
        /// The certificate's file.
        path: PathBuf,
        /// The role it has.
        seen: Role,
        /// The role it must have.
        expected: Role,
    },
    /// The certificate has no role, or several.
    #[error("certificate {} does not name one role as `<role>.slackline`: {ADVICE}", path.display())]
    NoRole {
        /// The certificate's file.
        path: PathBuf,
    },
    /// A validity that makes no sense.
    #[error("a certificate may be valid for 1 to {DAYS_MAX} days, not {got}")]
    Days {
        /// What was asked for.
        got: u32,
    },
    /// An authority would be overwritten, and with it every certificate it signed.
    #[error("{} exists: a new CA would lock out every node of the old; move it away first", path.display())]
    Exists {
        /// The file in the way.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error("make certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

/// A certificate authority: signs the certificates of nodes and nothing else.
pub struct Authority {
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new authority, valid for ten years. `name` becomes its common name.
    ///
    /// # Errors
    /// [`CertError::Generate`] when the machine has no randomness.
    pub fn create(name: &str) -> Result<Self, CertError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = validity(DAYS_MAX);
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // Even a stolen authority cannot speak for another name.
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName("slackline".to_owned())],
            excluded_subtrees: Vec::new(),
        });
        let ca_pem = params.self_signed(&key)?.pem();
        Ok(Self { ca_pem, issuer: Issuer::new(params, key) })
    }

    /// Reads `ca.pem` and `ca.key` from a folder.
    ///
    /// # Errors
    /// [`CertError`] with the file that is missing, unreadable or not an authority's.
    pub fn load(dir: &Path) -> Result<Self, CertError> {
        let (cert_path, key_path) = (dir.join("ca.pem"), dir.join("ca.key"));
        let ca_pem = text(read("CA certificate", &cert_path)?, "CA certificate", &cert_path)?;
        let key_pem = text(read("CA key", &key_path)?, "CA key", &key_path)?;
        let certificate = certificates(ca_pem.as_bytes(), "CA certificate", &cert_path)?.remove(0);
        let key = KeyPair::from_pem(&key_pem).map_err(|error| CertError::NotPem {
            what: "CA key",
            path: key_path.clone(),
            detail: error.to_string(),
        })?;
        let public = rcgen::PublicKeyData::subject_public_key_info(&key);
        let malformed = |detail: String| CertError::Malformed {
            what: "CA certificate",
            path: cert_path.clone(),
            detail,
        };
        let parsed = EndEntityCert::try_from(&certificate).map_err(|e| malformed(e.to_string()))?;
        if parsed.subject_public_key_info().as_ref() != public {
            return Err(CertError::KeyMismatch { key: key_path, cert: cert_path });
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|error| malformed(error.to_string()))?;
        Ok(Self { ca_pem, issuer })
    }

    /// The authority's certificate: every node needs it.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Makes a certificate and its key for a node, valid from an hour ago for `days`.
    ///
    /// # Errors
    /// [`CertError::Days`] outside `1..=`[`DAYS_MAX`]; [`CertError::Generate`].
    pub fn issue(&self, role: Role, node_name: &str, days: u32) -> Result<Identity, CertError> {
        if !(1..=DAYS_MAX).contains(&days) {
            return Err(CertError::Days { got: days });
        }
        let (not_before, not_after) = validity(days);
        self.sign(role, node_name, not_before, not_after)
    }

    /// As [`Authority::issue`], with both ends of the validity given.
    ///
    /// # Errors
    /// [`CertError::Generate`].
    pub fn issue_between(
        &self,
        role: Role,
        node_name: &str,
        not_before: SystemTime,
        not_after: SystemTime,
    ) -> Result<Identity, CertError> {
        self.sign(role, node_name, not_before.into(), not_after.into())
    }

    fn sign(
        &self,
        role: Role,
        node_name: &str,
        not_before: OffsetDateTime,
        not_after: OffsetDateTime,
    ) -> Result<Identity, CertError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (not_before, not_after);
        params.distinguished_name = common_name(node_name);
        params.subject_alt_names = vec![SanType::DnsName(role.dns_name().try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let cert_pem = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { role, cert_pem, key_pem: key.serialize_pem() })
    }

    /// Writes `ca.pem` and `ca.key` (mode 0600) into a folder, which is made if need be.
    ///
    /// # Errors
    /// [`CertError::Exists`] when a `ca.key` is there; [`CertError::Write`].
    pub fn write(&self, dir: &Path) -> Result<(), CertError> {
        let key_path = dir.join("ca.key");
        if key_path.exists() {
            return Err(CertError::Exists { path: key_path });
        }
        self.write_public(dir)?;
        write_file(&key_path, &self.issuer.key().serialize_pem(), true)
    }

    /// Writes `ca.pem` alone: what a node's folder needs. The key stays where the authority is.
    ///
    /// # Errors
    /// [`CertError::Write`].
    pub fn write_public(&self, dir: &Path) -> Result<(), CertError> {
        write_file(&dir.join("ca.pem"), &self.ca_pem, false)
    }
}

/// A node's certificate and private key.
#[derive(Clone)]
pub struct Identity {
    /// The role in the certificate.
    pub role: Role,
    /// The certificate, PEM.
    pub cert_pem: String,
    /// The private key, PEM (PKCS#8). A secret.
    pub key_pem: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("role", &self.role).finish_non_exhaustive()
    }
}

impl Identity {
    /// Writes `<role>.pem` and `<role>.key` (mode 0600) into a folder, in place of older ones.
    ///
    /// # Errors
    /// [`CertError::Write`].
    pub fn write(&self, dir: &Path) -> Result<(), CertError> {
        write_file(&dir.join(format!("{}.pem", self.role)), &self.cert_pem, false)?;
        write_file(&dir.join(format!("{}.key", self.role)), &self.key_pem, true)
    }
}

#[expect(clippy::disallowed_methods, reason = "quic/ is the impure room: validity is wall time")]
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}

fn validity(days: u32) -> (OffsetDateTime, OffsetDateTime) {
    let now = now();
    ((now - BACKDATE).into(), (now + DAY * days).into())
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

pub(super) fn certificates(
    pem: &[u8],
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CertError> {
    let not_pem = |detail| CertError::NotPem { what, path: path.to_owned(), detail };
    let found = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| not_pem(error.to_string()))?;
    if found.is_empty() {
        return Err(not_pem("no CERTIFICATE section".to_owned()));
    }
    Ok(found)
}

fn text(bytes: Vec<u8>, what: &'static str, path: &Path) -> Result<String, CertError> {
    String::from_utf8(bytes).map_err(|error| {
        let (path, detail) = (path.to_owned(), error.to_string());
        CertError::NotPem { what, path, detail }
    })
}

pub(super) fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, CertError> {
    let unreadable = |source: io::Error| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => CertError::Missing { what, path },
            _ => CertError::Unreadable { what, path, source },
        }
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(CONFIG_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Writes beside and renames, so that nobody ever reads half a file or a key with a wider mode.
fn write_file(path: &Path, contents: &str, secret: bool) -> Result<(), CertError> {
    let attempt = || -> io::Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.part", std::process::id()));
        let beside = PathBuf::from(beside);
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, if secret { 0o600 } else { 0o644 });
        let mut file = options.open(&beside)?;
        file.write_all(contents.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path).inspect_err(|_| drop(std::fs::remove_file(&beside)))
    };
    attempt().map_err(|source| CertError::Write { path: path.to_owned(), source })
}
