//! TLS 1.3 with certificates on both ends: the role is checked inside the handshake.
//!
//! ALPN carries the protocol version. Besides its version each end offers [`FALLBACK`]: when it is
//! all two ends have in common, they tell each other what they speak and part, so that both can
//! print it.

use super::certs::{Credentials, role_of};
use super::error::{QuicError, ROLE_MARK};
use crate::role::Role;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use std::fmt;
use std::sync::Arc;

/// The protocol this build speaks.
pub(super) const VERSION: &str = "slackline/1";
/// Spoken by every version, only to tell each other the versions.
pub(super) const FALLBACK: &str = "slackline/version";

/// What an end that dials shows and demands.
pub(super) fn client(
    credentials: &Credentials,
    version: &str,
) -> Result<quinn::ClientConfig, QuicError> {
    let setup = |error: Error| QuicError::Setup(error.to_string());
    let provider = Arc::clone(&credentials.provider);
    let roots = Arc::clone(&credentials.roots);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .build()
        .map_err(|error| QuicError::Setup(error.to_string()))?;
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(setup)?
        .dangerous() // only stricter: the standard verifier decides first
        .with_custom_certificate_verifier(Arc::new(ServerIs(verifier)))
        .with_client_cert_resolver(Arc::clone(&credentials.identity) as _);
    config.alpn_protocols = vec![version.into(), FALLBACK.into()];
    // Every connection shows its certificate anew: a ticket would outlive an expired one.
    config.resumption = Resumption::disabled();
    let crypto =
        QuicClientConfig::try_from(config).map_err(|error| QuicError::Setup(error.to_string()))?;
    Ok(quinn::ClientConfig::new(Arc::new(crypto)))
}

/// What an end that listens shows and demands.
pub(super) fn server(
    credentials: &Credentials,
    allowed: &'static [Role],
    version: &str,
) -> Result<quinn::ServerConfig, QuicError> {
    let provider = Arc::clone(&credentials.provider);
    let roots = Arc::clone(&credentials.roots);
    let inner = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .build()
        .map_err(|error| QuicError::Setup(error.to_string()))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| QuicError::Setup(error.to_string()))?
        .with_client_cert_verifier(Arc::new(ClientIsOneOf { inner, allowed }))
        .with_cert_resolver(Arc::clone(&credentials.identity) as _);
    config.alpn_protocols = vec![version.into(), FALLBACK.into()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    let crypto =
        QuicServerConfig::try_from(config).map_err(|error| QuicError::Setup(error.to_string()))?;
    Ok(quinn::ServerConfig::with_crypto(Arc::new(crypto)))
}

/// A role that is not admitted. The TLS library prints the `Debug` form, so that is the sentence.
struct RoleRefused {
    seen: Option<Role>,
    admitted: String,
}

impl RoleRefused {
    fn error(seen: Option<Role>, admitted: String) -> Error {
        let why = Self { seen, admitted };
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
    }
}

impl fmt::Display for RoleRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.seen.map_or("no role of slackline", Role::as_str);
        write!(f, "{ROLE_MARK}it says {seen}, admitted is {}", self.admitted)
    }
}

impl fmt::Debug for RoleRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for RoleRefused {}

/// The standard check of a listener's certificate; a wrong role is told in our words.
#[derive(Debug)]
struct ServerIs(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for ServerIs {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        self.0.verify_server_cert(end_entity, intermediates, name, ocsp, now).map_err(|error| {
            let Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) = error
            else {
                return error;
            };
            let expected = Role::from_dns_name(&name.to_str()).map_or("another", Role::as_str);
            RoleRefused::error(role_of(end_entity), expected.to_owned())
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The standard check of a caller's certificate, and its role.
#[derive(Debug)]
struct ClientIsOneOf {
    inner: Arc<dyn ClientCertVerifier>,
    allowed: &'static [Role],
}

impl ClientCertVerifier for ClientIsOneOf {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let seen = role_of(end_entity);
        if seen.is_some_and(|role| self.allowed.contains(&role)) {
            return Ok(verified);
        }
        let admitted: Vec<&str> = self.allowed.iter().map(|role| role.as_str()).collect();
        Err(RoleRefused::error(seen, admitted.join(" or ")))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
