//! Certificates: loading, generating, pinning and replacing them.
//!
//! The server has one certificate and its key, always as a pair: either both come from the
//! configured files, or both were generated at the first start and kept. [`ServerIdentity`] holds
//! the pair for new handshakes. A reload reads and checks a new pair before it replaces the old one
//! in a single step. So no handshake mixes two pairs, and a bad pair changes nothing. Existing
//! connections are not affected.
//!
//! 0-RTT stays off: its data can be replayed, and each request costs the server blocks.

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
#[cfg(feature = "http")]
mod https;
mod metrics;
mod pair;
mod pin;
mod reset;
mod rotated;
mod signatures;
mod validity;

pub use fingerprint::{Fingerprint, ParseFingerprintError};
#[cfg(feature = "http")]
pub use https::Https;
pub use metrics::Metrics;
pub use pair::ClientPair;
pub use pin::{
    NotPinned, Rejection, Trust, client_config, client_config_noting, fleet_client_config,
};
pub use rotated::Rotated;
pub use signatures::Signatures;
pub use validity::{Standing, Validity};
pub use validity::{date, now};

/// The ALPN of HTTP/3, by which web pages are known.
pub const WEB_ALPN: &[u8] = b"h3";

/// The ALPN of the servers of a fleet, by which they draw each other's beats.
pub const FLEET_ALPN: &[u8] = b"ncs-fleet/1";

/// The protocol that a handshake has chosen.
pub fn alpn(connection: &quinn::Connection) -> Option<Vec<u8>> {
    let data = connection.handshake_data()?;
    let data = data.downcast::<quinn::crypto::rustls::HandshakeData>();
    data.ok()?.protocol
}

/// The source of the certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Certificate chain in PEM, the server's own first.
    pub cert: Option<PathBuf>,
    /// Private key of the first certificate, in PEM.
    pub key: Option<PathBuf>,
    /// Directory for a generated pair, if no files are given, and for the key of stateless resets.
    pub directory: Option<PathBuf>,
    /// Names and addresses in a generated certificate, in addition to loopback.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub names: Vec<String>,
}

impl Config {
    /// Makes paths absolute, so that they survive changes of the working directory, and chooses a
    /// directory for a generated pair.
    ///
    /// `variable` looks up an environment variable: systemd gives the state directory of a service
    /// in one.
    pub fn resolve<'a>(&mut self, variable: impl Fn(&str) -> Option<&'a str>) {
        for path in [&mut self.cert, &mut self.key, &mut self.directory]
            .into_iter()
            .flatten()
        {
            *path = crate::units::absolute(path);
        }
        if self.directory.is_none() {
            let state = |name: &str| {
                variable(name)
                    .filter(|value| !value.is_empty())
                    .map(PathBuf::from)
            };
            let service = state("STATE_DIRECTORY").map(|path| path.join("tls"));
            let user = || state("XDG_STATE_HOME").map(|path| path.join("ncserverd/tls"));
            let home = || state("HOME").map(|path| path.join(".local/state/ncserverd/tls"));
            let directory = service
                .or_else(user)
                .or_else(home)
                .unwrap_or_else(|| PathBuf::from("ncserverd-state/tls"));
            self.directory = Some(crate::units::absolute(&directory));
        }
    }

    /// The path of a generated pair, whether it exists or not.
    pub fn kept(&self) -> PathBuf {
        self.directory
            .clone()
            .unwrap_or_default()
            .join(pair::FILE_NAME)
    }

    /// The directory of generated files, and the secret files in it. The key of stateless resets is
    /// generated even with a configured certificate.
    pub fn made(&self) -> [PathBuf; 3] {
        let directory = self.directory.clone().unwrap_or_default();
        let reset = directory.join(reset::FILE_NAME);
        [directory, self.kept(), reset]
    }
}

/// The server's certificate, which can be replaced at run time. Clones share it.
#[derive(Debug, Clone)]
pub struct ServerIdentity {
    current: Arc<Current>,
    reset: ResetKey,
    /// The verifier of client certificates; without it none is requested.
    door: Option<Arc<dyn ClientCertVerifier>>,
    /// Whether web pages may connect, and what they see.
    web: Option<ForPages>,
    /// Whether other servers of a fleet may connect.
    fleet: bool,
}

/// The certificate that web pages see.
#[derive(Debug, Clone)]
pub enum ForPages {
    /// The same as all others.
    Same,
    /// One of these.
    Rotated(Arc<Rotated>),
}

/// A pair that was read and checked, but is not in use.
#[derive(Debug)]
pub struct Replacement(pair::Pair);

/// The origin of the pair in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The configured files.
    Files,
    /// A pair generated by an earlier start.
    Kept(PathBuf),
    /// A pair generated by this start.
    Generated(PathBuf),
    /// A pair generated by this start, and not kept.
    Ephemeral,
}

#[derive(Debug)]
struct Current(ArcSwap<pair::Pair>);

impl ServerIdentity {
    /// Loads the pair, or generates and keeps one.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let current = Arc::new(Current(ArcSwap::from_pointee(pair::open(config)?)));
        let reset = config
            .directory
            .as_deref()
            .map_or_else(ResetKey::ephemeral, ResetKey::kept_in);
        Ok(Self {
            current,
            reset,
            door: None,
            web: None,
            fleet: false,
        })
    }

    /// The same for inspecting the pair: the key of stateless resets is neither read nor generated.
    pub fn inspect(config: &Config) -> Result<Self, Error> {
        let current = Arc::new(Current(ArcSwap::from_pointee(pair::open(config)?)));
        Ok(Self {
            current,
            reset: ResetKey::ephemeral(),
            door: None,
            web: None,
            fleet: false,
        })
    }

    /// Generates a pair for this process only: for a demonstration or a test.
    pub fn ephemeral() -> Result<Self, Error> {
        let current = Arc::new(Current(ArcSwap::from_pointee(pair::ephemeral(
            &[],
            pair::always(),
        )?)));
        Ok(Self {
            current,
            reset: ResetKey::ephemeral(),
            door: None,
            web: None,
            fleet: false,
        })
    }

    /// The key of stateless resets for an endpoint at this address.
    pub fn reset_key(&self, address: SocketAddr) -> ring::hmac::Key {
        self.reset.of(address)
    }

    /// The key of Retry tokens and of tokens for later connections, for all addresses.
    pub fn token_key(&self) -> ring::hkdf::Prk {
        self.reset.of_tokens()
    }

    /// The same certificate, with a verifier of client certificates.
    pub fn with_door(self, door: Arc<dyn ClientCertVerifier>) -> Self {
        Self {
            door: Some(door),
            ..self
        }
    }

    /// The same certificate, and this one for web pages, which connect by HTTP/3.
    pub fn with_web(self, web: ForPages) -> Self {
        Self {
            web: Some(web),
            ..self
        }
    }

    /// The same certificate, also for other servers of a fleet.
    pub fn with_fleet(self) -> Self {
        Self {
            fleet: true,
            ..self
        }
    }

    /// The certificates that web pages know by their hashes.
    pub fn rotated(&self) -> Option<Arc<Rotated>> {
        match &self.web {
            Some(ForPages::Rotated(rotated)) => Some(Arc::clone(rotated)),
            _ => None,
        }
    }

    /// Whether web pages may connect.
    pub fn speaks_web(&self) -> bool {
        self.web.is_some()
    }

    /// Reads and checks the pair again, for [`ServerIdentity::replace`]. An unusable one is refused
    /// as a whole.
    pub fn read(&self, config: &Config) -> Result<Replacement, Error> {
        Ok(Replacement(pair::open(config)?))
    }

    /// Replaces the pair. Returns whether the certificate changed.
    pub fn replace(&self, replacement: Replacement) -> bool {
        let before = self.current.0.swap(Arc::new(replacement.0));
        before.fingerprint != self.fingerprint()
    }

    /// SHA-256 of the certificate in use, for pinning.
    pub fn fingerprint(&self) -> Fingerprint {
        self.current.0.load().fingerprint
    }

    /// The validity of the certificate in use; `None` if its dates cannot be read.
    pub fn validity(&self) -> Option<Validity> {
        Validity::of_chain(&self.current.0.load().certified.cert)
    }

    /// The origin of the pair in use.
    pub fn origin(&self) -> Origin {
        self.current.0.load().origin.clone()
    }

    /// The TLS part of a QUIC endpoint's configuration. Reloads do not need a new one.
    pub fn quic(&self) -> Result<QuicServerConfig, Error> {
        let provider = provider();
        let door = self
            .door
            .clone()
            .unwrap_or_else(WebPkiClientVerifier::no_client_auth);
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| Error::Setup(error.to_string()))?
            .with_client_cert_verifier(door)
            .with_cert_resolver(Arc::new(Resolver {
                current: Arc::clone(&self.current),
                web: self.web.clone(),
            }));
        tls.alpn_protocols = vec![ALPN.to_vec()];
        if self.web.is_some() {
            tls.alpn_protocols.push(WEB_ALPN.to_vec());
        }
        if self.fleet {
            tls.alpn_protocols.push(FLEET_ALPN.to_vec());
        }
        tls.max_early_data_size = 0;
        QuicServerConfig::try_from(tls).map_err(|error| Error::Setup(error.to_string()))
    }
}

/// Shows pages the certificate that is for them. They are known by the protocol that they offer.
#[derive(Debug)]
struct Resolver {
    current: Arc<Current>,
    web: Option<ForPages>,
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let offers = |alpn: &[u8]| {
            hello
                .alpn()
                .is_some_and(|mut all| all.any(|one| one == alpn))
        };
        match &self.web {
            Some(ForPages::Rotated(rotated)) if offers(WEB_ALPN) && !offers(ALPN) => {
                Some(rotated.certified())
            }
            _ => Some(self.current.0.load().certified.clone()),
        }
    }
}

/// Why there is no usable certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The files are readable, but not a pair.
    #[error(
        "{} and {} are not a matching certificate and key: {reason}",
        cert.display(),
        key.display(),
    )]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Only one of certificate and key is configured.
    #[error("give a certificate and its key together, or neither")]
    Half,
    /// A generated pair cannot be kept.
    #[error(
        "cannot store a certificate in {}: {reason}; set `tls.directory` to another directory",
        directory.display(),
    )]
    Keep {
        /// The directory.
        directory: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A name is not allowed in certificates.
    #[error("`tls.names`: {0}")]
    Name(String),
    /// The TLS library rejects the configuration.
    #[error("cannot set up TLS: {0}")]
    Setup(String),
}

/// The algorithms of both sides. AES-128 comes before AES-256: it takes 10 rounds instead of 14,
/// and AES is a tenth of a busy server's work.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair};
    use tempfile::TempDir;

    use super::*;

    /// Writes a new pair in PEM, and returns its configuration.
    fn files(directory: &Path, name: &str) -> Config {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.into()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let (cert_file, key_file) = (
            directory.join(format!("{name}.crt")),
            directory.join(format!("{name}.key")),
        );
        std::fs::write(&cert_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        Config {
            cert: Some(cert_file),
            key: Some(key_file),
            ..Config::default()
        }
    }

    #[test]
    fn a_generated_pair_is_kept_for_the_next_start() {
        let place = TempDir::new().unwrap();
        let config = Config {
            directory: Some(place.path().join("a/tls")),
            names: vec!["media.example".into()],
            ..Config::default()
        };
        let first = ServerIdentity::open(&config).unwrap();
        let Origin::Generated(file) = first.origin() else {
            panic!("{:?}", first.origin())
        };
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
        let mixed = Config {
            cert: new.cert.clone(),
            ..old.clone()
        };
        for bad in [
            mixed,
            Config {
                key: None,
                ..new.clone()
            },
            Config {
                cert: Some("/nonexistent".into()),
                ..new.clone()
            },
        ] {
            assert!(identity.read(&bad).is_err(), "{bad:?}");
            assert_eq!(identity.fingerprint(), before);
        }
        assert!(
            !identity.replace(identity.read(&old).unwrap()),
            "the same pair again"
        );
        assert!(identity.replace(identity.read(&new).unwrap()));
        assert_ne!(clone.fingerprint(), before, "every clone shows the new one");
    }

    #[test]
    fn files_that_are_no_pair_say_so() {
        let place = TempDir::new().unwrap();
        let (one, other) = (files(place.path(), "one"), files(place.path(), "other"));
        let text = |config: &Config| ServerIdentity::open(config).unwrap_err().to_string();
        let mixed = Config {
            key: other.key.clone(),
            ..one.clone()
        };
        assert!(
            text(&mixed).contains("are not a matching certificate and key"),
            "{}",
            text(&mixed)
        );
        let swapped = Config {
            cert: one.key.clone(),
            key: one.cert.clone(),
            ..Config::default()
        };
        assert!(
            text(&swapped).contains("contains no certificate"),
            "{}",
            text(&swapped)
        );
        let directory = Config {
            cert: Some(place.path().into()),
            ..one
        };
        assert!(
            text(&directory).contains("not a file"),
            "{}",
            text(&directory)
        );
    }

    #[test]
    fn names_that_no_certificate_can_carry_are_refused() {
        let place = TempDir::new().unwrap();
        let config = Config {
            directory: Some(place.path().into()),
            names: vec!["näme".into()],
            ..Config::default()
        };
        assert!(matches!(ServerIdentity::open(&config), Err(Error::Name(_))));
    }

    #[test]
    fn a_generated_pair_has_a_place() {
        let resolved = |variables: &[(&str, &'static str)]| {
            let mut config = Config::default();
            config.resolve(|name| {
                variables
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| *value)
            });
            config.directory.unwrap()
        };
        assert_eq!(
            resolved(&[("STATE_DIRECTORY", "/var/lib/ncserverd"), ("HOME", "/root")]),
            Path::new("/var/lib/ncserverd/tls")
        );
        assert_eq!(
            resolved(&[("XDG_STATE_HOME", "/s"), ("HOME", "/root")]),
            Path::new("/s/ncserverd/tls")
        );
        assert_eq!(
            resolved(&[("XDG_STATE_HOME", ""), ("HOME", "/root")]),
            Path::new("/root/.local/state/ncserverd/tls")
        );
        assert!(resolved(&[]).is_absolute());
    }
}
