//! A certificate and its key, read or generated together.
//!
//! A generated pair is a single file with key and certificate, so that neither exists alone: it is
//! written under a temporary name, then linked to its final name. If two servers start at once on
//! the same directory, the first link wins, and the other uses that file. The validity is fixed and
//! long: a pinned certificate is trusted for its bytes, and a machine with a wrong clock must be
//! able to start.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;

use super::{Config, Error, Fingerprint, Origin};
use crate::files;

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) certified: Arc<CertifiedKey>,
    pub(super) fingerprint: Fingerprint,
    pub(super) origin: Origin,
}

pub(super) fn open(config: &Config) -> Result<Pair, Error> {
    match (&config.cert, &config.key) {
        (Some(cert), Some(key)) => load(cert, key, Origin::Files),
        (None, None) => kept_or_new(
            &config.directory.clone().unwrap_or_default(),
            &config.kept(),
            &config.names,
            always(),
        ),
        _ => Err(Error::Half),
    }
}

/// The certificate of a client, and its key.
#[derive(Debug, Clone)]
pub struct ClientPair(pub(super) Arc<CertifiedKey>);

impl ClientPair {
    /// Reads a chain, the client's own certificate first, and the key of that one, both in PEM.
    pub fn read(cert: &Path, key: &Path) -> Result<Self, Error> {
        load(cert, key, Origin::Files).map(|pair| Self(pair.certified))
    }
}

/// Generates a pair for this process only.
pub(super) fn ephemeral(names: &[String], valid: Valid) -> Result<Pair, Error> {
    let pem = generate(names, valid)?;
    parse(pem.as_bytes(), pem.as_bytes(), Origin::Ephemeral).map_err(Error::Setup)
}

fn load(cert: &Path, key: &Path, origin: Origin) -> Result<Pair, Error> {
    let (cert_pem, key_pem) = (read(cert)?, read(key)?);
    parse(&cert_pem, &key_pem, origin).map_err(|reason| Error::Pair {
        cert: cert.to_owned(),
        key: key.to_owned(),
        reason,
    })
}

fn parse(cert_pem: &[u8], key_pem: &[u8], origin: Origin) -> Result<Pair, String> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(cert_pem)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("the certificate is not PEM: {error}"))?;
    let fingerprint = chain
        .first()
        .map(Fingerprint::of)
        .ok_or("the certificate file contains no certificate")?;
    let key = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|error| format!("the key is not PEM: {error}"))?;
    let certified = CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())
        .map_err(|error| error.to_string())?;
    Ok(Pair {
        certified: Arc::new(certified),
        fingerprint,
        origin,
    })
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |reason: String| Error::Read {
        path: path.to_owned(),
        reason,
    };
    let metadata = fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(failed(format!(
            "not a file of at most {FILE_BYTES_MAX} bytes"
        )));
    }
    fs::read(path).map_err(|error| failed(error.to_string()))
}

/// Reads the pair at `path`, or generates one and keeps it there.
pub(super) fn kept_or_new(
    directory: &Path,
    path: &Path,
    names: &[String],
    valid: Valid,
) -> Result<Pair, Error> {
    if path.exists() {
        return load(path, path, Origin::Kept(path.to_owned()));
    }
    let pem = generate(names, valid)?;
    match write(directory, path, pem.as_bytes()) {
        Ok(()) => load(path, path, Origin::Generated(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            load(path, path, Origin::Kept(path.to_owned()))
        }
        Err(error) => Err(Error::Keep {
            directory: directory.to_owned(),
            reason: error.to_string(),
        }),
    }
}

/// The first and the last second of a generated certificate.
pub(super) type Valid = (OffsetDateTime, OffsetDateTime);

/// That of a pinned one.
pub(super) fn always() -> Valid {
    (date_time_ymd(2020, 1, 1), date_time_ymd(2049, 12, 31))
}

fn generate(names: &[String], valid: Valid) -> Result<String, Error> {
    let mut all: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(String::from).to_vec();
    all.extend(
        names
            .iter()
            .filter(|name| !["localhost", "127.0.0.1", "::1"].contains(&name.as_str()))
            .cloned(),
    );
    let refused = |error: rcgen::Error| Error::Name(error.to_string());
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .map_err(|error| Error::Setup(error.to_string()))?;
    let mut params = CertificateParams::new(all).map_err(refused)?;
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "ncserverd");
    (params.not_before, params.not_after) = valid;
    let certificate = params.self_signed(&key).map_err(refused)?;
    Ok(certificate.pem() + &key.serialize_pem())
}

/// Creates a file that only the owner may read, as a whole or not at all; an existing one stays.
pub(super) fn write(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // In containers, all servers of a directory may have one number.
    let draft: PathBuf = directory.join(format!(".{name}.{:016x}", rand::random::<u64>()));
    files::create_private(&draft, path, bytes)
}

pub(super) const FILE_NAME: &str = "ncserverd.pem";
/// Far above any chain, and still harmless.
const FILE_BYTES_MAX: u64 = 1 << 20;
