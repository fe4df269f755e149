//! TLS 1.3 with certificates on both ends: the role is checked inside the handshake.
//!
//! ALPN carries the protocol version. Besides its version each end offers [`FALLBACK`]: when it is
//! all two ends have in common, they tell each other what they speak and part, so that both can
//! print it.

use super::credentials::{Credentials, date, role_of};
use super::error::{MARK, QuicError};
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
/// What we offer, best first.
pub(super) const PROTOCOLS: &[&str] = &[VERSION, FALLBACK];

/// What an end that dials shows and demands.
pub(super) fn client(
    credentials: &Credentials,
    protocols: &[&str],
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
    config.alpn_protocols = protocols.iter().map(|&protocol| protocol.into()).collect();
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
    protocols: &[&str],
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
    config.alpn_protocols = protocols.iter().map(|&protocol| protocol.into()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    let crypto =
        QuicServerConfig::try_from(config).map_err(|error| QuicError::Setup(error.to_string()))?;
    Ok(quinn::ServerConfig::with_crypto(Arc::new(crypto)))
}

/// A refusal in our own words. The TLS library prints the `Debug` form, so that is the sentence.
struct Told(String);

impl Told {
    fn error(words: String) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(Self(words)))))
    }

    fn role(seen: Option<Role>, admitted: &str) -> Error {
        let seen = seen.map_or("no role of slackline", Role::as_str);
        Self::error(format!("its role is {seen}, admitted is {admitted}"))
    }

    /// Puts a refusal because of dates into words; any other stays as it is.
    fn dates(error: Error) -> Error {
        use CertificateError::{ExpiredContext, NotValidYetContext};
        match error {
            Error::InvalidCertificate(ExpiredContext { not_after, .. }) => {
                let on = date(not_after);
                Self::error(format!("it expired on {on}; renew it with `slackline certs`"))
            }
            Error::InvalidCertificate(NotValidYetContext { not_before, .. }) => {
                let from = date(not_before);
                Self::error(format!("it is valid only from {from}; check the clocks of both ends"))
            }
            error => error,
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{}", self.0)
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Told {}

/// The standard check of a listener's certificate; a wrong role or date is told in our words.
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
                return Told::dates(error);
            };
            let expected = Role::from_dns_name(&name.to_str()).map_or("another", Role::as_str);
            Told::role(role_of(end_entity), expected)
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

/// The standard check of a caller's certificate, then of its role; dates are told in our words.
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
        let verified =
            self.inner.verify_client_cert(end_entity, intermediates, now).map_err(Told::dates)?;
        let seen = role_of(end_entity);
        if seen.is_some_and(|role| self.allowed.contains(&role)) {
            return Ok(verified);
        }
        let admitted: Vec<&str> = self.allowed.iter().map(|role| role.as_str()).collect();
        Err(Told::role(seen, &admitted.join(" or ")))
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
