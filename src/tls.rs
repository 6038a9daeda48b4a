//! Certificates: loaded, made, pinned and swapped.
//!
//! The server has one certificate and its key, always as one pair: both come from the configured files, or both were made here
//! on the first start and are kept. [`ServerIdentity`] holds the pair that new handshakes use. A reload reads and checks a whole
//! new pair before it replaces the old one in a single step, so no handshake sees the certificate of one and the key of the
//! other, and a bad pair changes nothing. Connections that stand keep what they agreed on.
//!
//! 0-RTT stays off: its data can be replayed, and a request costs the server blocks.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};

mod fingerprint;
mod pair;

pub use fingerprint::{Fingerprint, ParseFingerprintError};

/// The application protocol that both sides must speak.
pub const ALPN: &[u8] = b"ncs/1";

/// Where the certificate comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Certificate chain in PEM, the server's own first.
    pub cert: Option<PathBuf>,
    /// Private key of the first certificate, in PEM.
    pub key: Option<PathBuf>,
    /// Where a generated pair is kept, if no files are given.
    pub directory: Option<PathBuf>,
    /// Names and addresses in a generated certificate, besides those of this machine's loopback.
    #[serde(deserialize_with = "crate::config::one_or_many")]
    pub names: Vec<String>,
}

impl Config {
    /// Makes paths final: they stay what they are when the working directory changes, and a generated pair has a place.
    ///
    /// `variable` looks up an environment variable: systemd names the state directory of a service in one.
    pub fn resolve<'a>(&mut self, variable: impl Fn(&str) -> Option<&'a str>) {
        for path in [&mut self.cert, &mut self.key, &mut self.directory].into_iter().flatten() {
            *path = crate::config::absolute(path);
        }
        if self.directory.is_none() {
            let state = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            let service = state("STATE_DIRECTORY").map(|path| path.join("tls"));
            let user = || state("XDG_STATE_HOME").map(|path| path.join("ncserverd/tls"));
            let home = || state("HOME").map(|path| path.join(".local/state/ncserverd/tls"));
            let directory = service.or_else(user).or_else(home).unwrap_or_else(|| PathBuf::from("ncserverd-state/tls"));
            self.directory = Some(crate::config::absolute(&directory));
        }
    }
}

/// The certificate that this server shows, and can change while it runs. Clones show the same one.
#[derive(Debug, Clone)]
pub struct ServerIdentity {
    current: Arc<Current>,
}

/// Where the pair in use came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The configured files.
    Files,
    /// A pair made by an earlier start.
    Kept(PathBuf),
    /// A pair made just now.
    Generated(PathBuf),
}

#[derive(Debug)]
struct Current(ArcSwap<pair::Pair>);

impl ServerIdentity {
    /// Loads the pair, or makes one and keeps it.
    pub fn open(config: &Config) -> Result<Self, Error> {
        Ok(Self { current: Arc::new(Current(ArcSwap::from_pointee(pair::open(config)?))) })
    }

    /// Reads the pair again. A pair that cannot be used is refused whole, and the one in use stays. Returns whether the
    /// certificate changed.
    pub fn reload(&self, config: &Config) -> Result<bool, Error> {
        let next = pair::open(config)?;
        let before = self.current.0.swap(Arc::new(next));
        Ok(before.fingerprint != self.fingerprint())
    }

    /// SHA-256 of the certificate in use: what a peer pins.
    pub fn fingerprint(&self) -> Fingerprint {
        self.current.0.load().fingerprint
    }

    /// Where the pair in use came from.
    pub fn origin(&self) -> Origin {
        self.current.0.load().origin.clone()
    }

    /// The TLS half of the configuration of a QUIC endpoint. Later reloads need no new one.
    pub fn quic(&self) -> Result<QuicServerConfig, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| Error::Setup(error.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(self.current.clone());
        tls.alpn_protocols = vec![ALPN.to_vec()];
        tls.max_early_data_size = 0;
        QuicServerConfig::try_from(tls).map_err(|error| Error::Setup(error.to_string()))
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load().certified.clone())
    }
}

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The files are readable and still no pair.
    #[error("{} and {} are not a pair: {reason}", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Only one of certificate and key is configured.
    #[error("a certificate and its key are given together or not at all")]
    Half,
    /// A generated pair cannot be made or kept.
    #[error("cannot keep a certificate in {}: {reason}; `tls.directory` names another place", directory.display())]
    Keep {
        /// The directory.
        directory: PathBuf,
        /// Why.
        reason: String,
    },
    /// A name that no certificate can carry.
    #[error("`tls.names`: {0}")]
    Name(String),
    /// The TLS library refuses its own set-up.
    #[error("cannot set up tls: {0}")]
    Setup(String),
}
