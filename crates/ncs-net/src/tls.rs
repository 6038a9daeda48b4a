//! Certificates: loaded, made, pinned and swapped.
//!
//! The server has one certificate and its key, always as one pair: both come from the configured files, or both were made here
//! on the first start and are kept. [`ServerIdentity`] holds the pair that new handshakes use. A reload reads and checks a whole
//! new pair before it replaces the old one in a single step, so no handshake sees the certificate of one and the key of the
//! other, and a bad pair changes nothing. Connections that stand keep what they agreed on.
//!
//! 0-RTT stays off: its data can be replayed, and a request costs the server blocks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::CipherSuite;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};

use ncs_proto::wire::ALPN;
use reset::ResetKey;

mod fingerprint;
mod metrics;
mod pair;
mod pin;
mod reset;
mod signatures;
mod validity;

pub use fingerprint::{Fingerprint, ParseFingerprintError};
pub use metrics::Metrics;
pub use pair::ClientPair;
pub use pin::{Trust, client_config};
pub use signatures::Signatures;
pub use validity::{Standing, Validity};
pub use validity::{date, now};

/// Where the certificate comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Certificate chain in PEM, the server's own first.
    pub cert: Option<PathBuf>,
    /// Private key of the first certificate, in PEM.
    pub key: Option<PathBuf>,
    /// Where a generated pair is kept, if no files are given, and the key of stateless resets.
    pub directory: Option<PathBuf>,
    /// Names and addresses in a generated certificate, besides those of this machine's loopback.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub names: Vec<String>,
}

impl Config {
    /// Makes paths final: they stay what they are when the working directory changes, and a generated pair has a place.
    ///
    /// `variable` looks up an environment variable: systemd names the state directory of a service in one.
    pub fn resolve<'a>(&mut self, variable: impl Fn(&str) -> Option<&'a str>) {
        for path in [&mut self.cert, &mut self.key, &mut self.directory].into_iter().flatten() {
            *path = crate::units::absolute(path);
        }
        if self.directory.is_none() {
            let state = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            let service = state("STATE_DIRECTORY").map(|path| path.join("tls"));
            let user = || state("XDG_STATE_HOME").map(|path| path.join("ncserverd/tls"));
            let home = || state("HOME").map(|path| path.join(".local/state/ncserverd/tls"));
            let directory = service.or_else(user).or_else(home).unwrap_or_else(|| PathBuf::from("ncserverd-state/tls"));
            self.directory = Some(crate::units::absolute(&directory));
        }
    }

    /// Where a generated pair is kept, whether there is one or not.
    pub fn kept(&self) -> PathBuf {
        self.directory.clone().unwrap_or_default().join(pair::FILE_NAME)
    }

    /// The directory of what is made here, and the files that are secret in it. The key of stateless resets is made beside a
    /// configured certificate, too.
    pub fn made(&self) -> [PathBuf; 3] {
        let directory = self.directory.clone().unwrap_or_default();
        let reset = directory.join(reset::FILE_NAME);
        [directory, self.kept(), reset]
    }
}

/// The certificate that this server shows, and can change while it runs. Clones show the same one.
#[derive(Debug, Clone)]
pub struct ServerIdentity {
    current: Arc<Current>,
    reset: ResetKey,
    /// Who judges the certificates of clients; without it none is asked for.
    door: Option<Arc<dyn ClientCertVerifier>>,
}

/// A pair that has been read and checked, and is not in use yet.
#[derive(Debug)]
pub struct Replacement(pair::Pair);

/// Where the pair in use came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The configured files.
    Files,
    /// A pair made by an earlier start.
    Kept(PathBuf),
    /// A pair made just now.
    Generated(PathBuf),
    /// A pair made just now and kept nowhere.
    Ephemeral,
}

#[derive(Debug)]
struct Current(ArcSwap<pair::Pair>);

impl ServerIdentity {
    /// Loads the pair, or makes one and keeps it.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let current = Arc::new(Current(ArcSwap::from_pointee(pair::open(config)?)));
        let reset = config.directory.as_deref().map_or_else(ResetKey::ephemeral, ResetKey::kept_in);
        Ok(Self { current, reset, door: None })
    }

    /// The same to look at the pair alone: the key of stateless resets is neither read nor made.
    pub fn inspect(config: &Config) -> Result<Self, Error> {
        let current = Arc::new(Current(ArcSwap::from_pointee(pair::open(config)?)));
        Ok(Self { current, reset: ResetKey::ephemeral(), door: None })
    }

    /// Makes a pair that ends with this process: for a demonstration or a test.
    pub fn ephemeral() -> Result<Self, Error> {
        let current = Arc::new(Current(ArcSwap::from_pointee(pair::ephemeral()?)));
        Ok(Self { current, reset: ResetKey::ephemeral(), door: None })
    }

    /// The key with which an endpoint at this address tells peers that it knows nothing of their connections.
    pub fn reset_key(&self, address: SocketAddr) -> ring::hmac::Key {
        self.reset.of(address)
    }

    /// The same certificate, shown at a door where clients may be asked for theirs.
    pub fn with_door(self, door: Arc<dyn ClientCertVerifier>) -> Self {
        Self { door: Some(door), ..self }
    }

    /// Reads the pair again and checks it, for [`ServerIdentity::replace`]. A pair that cannot be used is refused whole.
    pub fn read(&self, config: &Config) -> Result<Replacement, Error> {
        Ok(Replacement(pair::open(config)?))
    }

    /// Shows another pair from now on. Returns whether the certificate changed.
    pub fn replace(&self, replacement: Replacement) -> bool {
        let before = self.current.0.swap(Arc::new(replacement.0));
        before.fingerprint != self.fingerprint()
    }

    /// SHA-256 of the certificate in use: what a peer pins.
    pub fn fingerprint(&self) -> Fingerprint {
        self.current.0.load().fingerprint
    }

    /// From when until when the certificate in use counts; `None` if its dates cannot be read.
    pub fn validity(&self) -> Option<Validity> {
        Validity::of_chain(&self.current.0.load().certified.cert)
    }

    /// Where the pair in use came from.
    pub fn origin(&self) -> Origin {
        self.current.0.load().origin.clone()
    }

    /// The TLS half of the configuration of a QUIC endpoint. Later reloads need no new one.
    pub fn quic(&self) -> Result<QuicServerConfig, Error> {
        let provider = provider();
        let door = self.door.clone().unwrap_or_else(WebPkiClientVerifier::no_client_auth);
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| Error::Setup(error.to_string()))?
            .with_client_cert_verifier(door)
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
#[non_exhaustive]
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
    #[error("{} and {} are not a matching certificate and key: {reason}", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Only one of certificate and key is configured.
    #[error("give a certificate and its key together, or neither")]
    Half,
    /// A generated pair cannot be made or kept.
    #[error("cannot store a certificate in {}: {reason}; set `tls.directory` to another directory", directory.display())]
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
    #[error("cannot set up TLS: {0}")]
    Setup(String),
}

/// The algorithms of both sides, AES-128 before AES-256: it takes 10 rounds and not 14, and AES is a tenth of what a busy server does.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair};
    use tempfile::TempDir;

    use super::*;

    /// Writes a fresh pair in PEM and returns its configuration.
    fn files(directory: &Path, name: &str) -> Config {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.into()]).unwrap().self_signed(&key).unwrap();
        let (cert_file, key_file) = (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
        std::fs::write(&cert_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        Config { cert: Some(cert_file), key: Some(key_file), ..Config::default() }
    }

    #[test]
    fn a_generated_pair_is_kept_for_the_next_start() {
        let place = TempDir::new().unwrap();
        let config =
            Config { directory: Some(place.path().join("a/tls")), names: vec!["media.example".into()], ..Config::default() };
        let first = ServerIdentity::open(&config).unwrap();
        let Origin::Generated(file) = first.origin() else { panic!("{:?}", first.origin()) };
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            std::fs::read_dir(file.parent().unwrap()).unwrap().count(),
            2,
            "the pair and the key of resets: no draft stays"
        );
        let second = ServerIdentity::open(&config).unwrap();
        assert_eq!(second.origin(), Origin::Kept(file));
        assert_eq!(second.fingerprint(), first.fingerprint());
        assert!(second.quic().is_ok());
    }

    #[test]
    fn a_reload_swaps_both_halves_or_nothing() {
        let place = TempDir::new().unwrap();
        let (old, new) = (files(place.path(), "old"), files(place.path(), "new"));
        let identity = ServerIdentity::open(&old).unwrap();
        let clone = identity.clone();
        let before = identity.fingerprint();
        let mixed = Config { cert: new.cert.clone(), ..old.clone() };
        for bad in [mixed, Config { key: None, ..new.clone() }, Config { cert: Some("/nonexistent".into()), ..new.clone() }] {
            assert!(identity.read(&bad).is_err(), "{bad:?}");
            assert_eq!(identity.fingerprint(), before);
        }
        assert!(!identity.replace(identity.read(&old).unwrap()), "the same pair again");
        assert!(identity.replace(identity.read(&new).unwrap()));
        assert_ne!(clone.fingerprint(), before, "every clone shows the new one");
    }

    #[test]
    fn files_that_are_no_pair_say_so() {
        let place = TempDir::new().unwrap();
        let (one, other) = (files(place.path(), "one"), files(place.path(), "other"));
        let text = |config: &Config| ServerIdentity::open(config).unwrap_err().to_string();
        let mixed = Config { key: other.key.clone(), ..one.clone() };
        assert!(text(&mixed).contains("are not a matching certificate and key"), "{}", text(&mixed));
        let swapped = Config { cert: one.key.clone(), key: one.cert.clone(), ..Config::default() };
        assert!(text(&swapped).contains("contains no certificate"), "{}", text(&swapped));
        let directory = Config { cert: Some(place.path().into()), ..one };
        assert!(text(&directory).contains("not a file"), "{}", text(&directory));
    }

    #[test]
    fn names_that_no_certificate_can_carry_are_refused() {
        let place = TempDir::new().unwrap();
        let config = Config { directory: Some(place.path().into()), names: vec!["näme".into()], ..Config::default() };
        assert!(matches!(ServerIdentity::open(&config), Err(Error::Name(_))));
    }

    #[test]
    fn a_generated_pair_has_a_place() {
        let resolved = |variables: &[(&str, &'static str)]| {
            let mut config = Config::default();
            config.resolve(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value));
            config.directory.unwrap()
        };
        assert_eq!(
            resolved(&[("STATE_DIRECTORY", "/var/lib/ncserverd"), ("HOME", "/root")]),
            Path::new("/var/lib/ncserverd/tls")
        );
        assert_eq!(resolved(&[("XDG_STATE_HOME", "/s"), ("HOME", "/root")]), Path::new("/s/ncserverd/tls"));
        assert_eq!(resolved(&[("XDG_STATE_HOME", ""), ("HOME", "/root")]), Path::new("/root/.local/state/ncserverd/tls"));
        assert!(resolved(&[]).is_absolute());
    }
}
