//! The servers that a client trusts: their certificates, or the system's roots.

use std::sync::{Arc, Mutex, PoisonError};

use ncs_proto::wire::ALPN;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

use super::signatures::Signatures;
use super::{ClientPair, Error, FLEET_ALPN, Fingerprint};

/// Which server certificates are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Only this one, whatever its names and dates.
    Fingerprint(Fingerprint),
    /// Certificates signed by the system's roots.
    System,
}

/// The client's TLS configuration: TLS 1.3, no 0-RTT, and its own certificate, if any, for servers
/// that request one.
pub fn client_config(trust: &Trust, own: Option<&ClientPair>) -> Result<QuicClientConfig, Error> {
    client_config_noting(trust, own, Arc::default())
}

/// The same, and tells why the pin has rejected a certificate: QUIC keeps only a text of it.
pub fn client_config_noting(
    trust: &Trust,
    own: Option<&ClientPair>,
    rejection: Arc<Rejection>,
) -> Result<QuicClientConfig, Error> {
    let pins = match trust {
        Trust::Fingerprint(pin) => vec![*pin],
        Trust::System => Vec::new(),
    };
    quic(tls(pins, own, rejection)?, ALPN)
}

/// The TLS configuration of a server that connects to another one of its fleet: that one shows one
/// of these certificates, or, without any, a certificate signed by the system's roots. The
/// certificate is checked for each connection: none is resumed.
pub fn fleet_client_config(pins: Vec<Fingerprint>) -> Result<QuicClientConfig, Error> {
    let mut tls = tls(pins, None, Arc::default())?;
    tls.resumption = Resumption::disabled();
    quic(tls, FLEET_ALPN)
}

fn quic(mut tls: ClientConfig, alpn: &[u8]) -> Result<QuicClientConfig, Error> {
    tls.alpn_protocols = vec![alpn.to_vec()];
    QuicClientConfig::try_from(tls).map_err(|error| Error::Setup(error.to_string()))
}

/// Accepts the certificates with these fingerprints, or those signed by the system's roots if there
/// is none.
fn tls(
    pins: Vec<Fingerprint>,
    own: Option<&ClientPair>,
    rejection: Arc<Rejection>,
) -> Result<ClientConfig, Error> {
    let setup = |error: rustls::Error| Error::Setup(error.to_string());
    let provider = super::provider();
    let verifier: Arc<dyn ServerCertVerifier> = match pins.first() {
        Some(&first) => Arc::new(Pinned {
            first,
            pins,
            signatures: Signatures::default(),
            rejection,
        }),
        None => Arc::new(rustls_platform_verifier::Verifier::new(provider.clone()).map_err(setup)?),
    };
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(setup)?;
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    Ok(match own {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(Shown(pair.0.clone()))),
        None => builder.with_no_client_auth(),
    })
}

/// A server has another certificate than the pinned one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server's certificate is not the pinned one: pinned {pinned}, got {got}")]
pub struct NotPinned {
    /// The certificate that the client accepts.
    pub pinned: Fingerprint,
    /// The certificate that the server has shown.
    pub got: Fingerprint,
}

/// The verdict of a pin on the last certificate that it has seen.
#[derive(Debug, Default)]
pub struct Rejection(Mutex<Option<NotPinned>>);

impl Rejection {
    /// Why the last certificate was rejected, if it was.
    pub fn last(&self) -> Option<NotPinned> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, verdict: Option<NotPinned>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = verdict;
    }
}

/// Sends one certificate to any server that requests one.
#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesClientCert for Shown {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Accepts a few certificates.
#[derive(Debug)]
struct Pinned {
    pins: Vec<Fingerprint>,
    /// The first of them, for errors.
    first: Fingerprint,
    signatures: Signatures,
    rejection: Arc<Rejection>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let (pinned, got) = (self.first, Fingerprint::of(end_entity));
        let verdict = (!self.pins.contains(&got)).then_some(NotPinned { pinned, got });
        self.rejection.note(verdict);
        match verdict {
            None => Ok(ServerCertVerified::assertion()),
            Some(not_pinned) => Err(rustls::Error::General(not_pinned.to_string())),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Signatures::verify_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signatures.verify_tls13(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.schemes()
    }
}
