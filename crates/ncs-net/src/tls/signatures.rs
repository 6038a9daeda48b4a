//! Verification of handshake signatures, the same for both sides.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::CertificateDer;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// The algorithms in use.
#[derive(Debug, Clone, Copy)]
pub struct Signatures(WebPkiSupportedAlgorithms);

impl Default for Signatures {
    /// Those that `ring` verifies.
    fn default() -> Self {
        Self(rustls::crypto::ring::default_provider().signature_verification_algorithms)
    }
}

impl Signatures {
    /// QUIC has no TLS 1.2.
    pub fn verify_tls12() -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("QUIC has no TLS 1.2".to_owned()))
    }

    /// Verifies the signature of a handshake of TLS 1.3.
    pub fn verify_tls13(
        self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    /// The names of the algorithms.
    pub fn schemes(self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
