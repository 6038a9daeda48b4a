//! Client certificates, signed by authorities that are read from a file and can be replaced at run
//! time.

use std::sync::Arc;
use std::time::Duration;

use ncs_net::tls::Signatures;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use super::Inner;

/// The authorities of client certificates.
#[derive(Debug)]
pub(super) struct Authorities {
    /// The content of the file, to detect changes.
    pub(super) text: Vec<u8>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Authorities {
    /// Parses certificates in PEM.
    pub(super) fn parse(text: Vec<u8>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|error| format!("not PEM: {error}"))?;
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("the file contains no certificate".to_owned());
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::new(rustls::crypto::ring::default_provider()),
        );
        Ok(Self {
            text,
            verifier: verifier.build().map_err(|error| error.to_string())?,
        })
    }

    /// Verifies this chain, the peer's own certificate first, at `now`, since 1970.
    pub(super) fn vouch_for(
        &self,
        chain: &[CertificateDer<'_>],
        now: Duration,
    ) -> Result<(), rustls::Error> {
        let (own, others) = chain
            .split_first()
            .ok_or(rustls::Error::NoCertificatesPresented)?;
        self.verifier
            .verify_client_cert(own, others, UnixTime::since_unix_epoch(now))
            .map(drop)
    }
}

/// The verifier of client certificates for TLS: uses the authorities at the time of each handshake.
#[derive(Debug)]
pub(super) struct Door {
    inner: Arc<Inner>,
    signatures: Signatures,
}

impl Door {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self {
            inner,
            signatures: Signatures::default(),
        }
    }
}

impl ClientCertVerifier for Door {
    fn offer_client_auth(&self) -> bool {
        self.inner.rules.load().authorities.is_some()
    }

    /// Clients that may use a token or nothing instead are let through.
    fn client_auth_mandatory(&self) -> bool {
        let rules = self.inner.rules.load();
        rules.authorities.is_some() && rules.config.required && rules.config.keys.is_none()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match &self.inner.rules.load().authorities {
            Some(authorities) => {
                authorities
                    .verifier
                    .verify_client_cert(end_entity, intermediates, now)
            }
            None => Err(rustls::Error::General(
                "the server no longer accepts client certificates".to_owned(),
            )),
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
