//! The certificate of an HTTP listener, which a reload may replace.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::{ClientPair, Error, provider};

/// The certificate and key of an HTTP listener. Clones share them.
#[derive(Debug, Clone)]
pub struct Https(Arc<Resolver>);

impl Https {
    /// Reads a chain, the listener's own certificate first, and the key of that one, both in PEM.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let pair = ClientPair::read(certificate, key)?;
        Ok(Self(Arc::new(Resolver(ArcSwap::new(pair.0)))))
    }

    /// Reads both again, for handshakes from now on. An unusable pair changes nothing.
    pub fn reload(&self, certificate: &Path, key: &Path) -> Result<(), Error> {
        self.0.0.store(ClientPair::read(certificate, key)?.0);
        Ok(())
    }

    /// The configuration of a listener for HTTP/1.1.
    pub fn config(&self) -> Result<Arc<rustls::ServerConfig>, Error> {
        let resolver: Arc<dyn ResolvesServerCert> = self.0.clone();
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Setup(error.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

#[derive(Debug)]
struct Resolver(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}
