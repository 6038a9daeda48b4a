//! Keys, tokens and certificates, as an operator or a forger would make them.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ncs_net::tls::ClientPair;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use ring::{hmac, signature};
use serde_json::{Value, json};

/// The secret of the key `h`.
pub const SECRET: [u8; 32] = [7; 32];

/// The bytes in base64 for URLs, without padding.
pub fn base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn pair() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap()
}

/// The public part of the key `e`.
pub fn public_key() -> Vec<u8> {
    pair().public_key().as_ref().to_vec()
}

/// A secret as a key of a key set.
pub fn secret_key(id: &str, secret: &[u8]) -> Value {
    json!({ "kty": "oct", "kid": id, "alg": "HS256", "k": base64url(secret) })
}

/// The initial key set of servers here: a secret `h`, and a public key `e`.
pub fn keys() -> Value {
    let x = base64url(&public_key());
    let e = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "e", "alg": "EdDSA", "x": x });
    json!({ "keys": [secret_key("h", &SECRET), e] })
}

/// Claims for these paths that expire in this many seconds, or have expired if negative.
pub fn claims(paths: &[&str], seconds: i64) -> Value {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs_f64();
    json!({ "exp": now + seconds as f64, "ncs": { "paths": paths } })
}

fn message(header: &Value, claims: &Value) -> String {
    format!(
        "{}.{}",
        base64url(header.to_string().as_bytes()),
        base64url(claims.to_string().as_bytes())
    )
}

/// A token with these claims and an HMAC.
pub fn hs256(kid: &str, secret: &[u8], claims: &Value) -> String {
    let message = message(&json!({ "alg": "HS256", "kid": kid, "typ": "JWT" }), claims);
    let tag = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, secret),
        message.as_bytes(),
    );
    format!("{message}.{}", base64url(tag.as_ref()))
}

/// A token with these claims and a signature of the key `e`.
pub fn eddsa(claims: &Value) -> String {
    let message = message(&json!({ "alg": "EdDSA", "kid": "e" }), claims);
    let signed: signature::Signature = pair().sign(message.as_bytes());
    format!("{message}.{}", base64url(signed.as_ref()))
}

/// A token with these claims, without a signature.
pub fn unsigned(claims: &Value) -> String {
    format!(
        "{}.",
        message(&json!({ "alg": "none", "kid": "h" }), claims)
    )
}

/// A token made with the initial key of servers here.
pub fn token(paths: &[&str], seconds: i64) -> String {
    hs256("h", &SECRET, &claims(paths, seconds))
}

/// An authority for certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Makes an authority of this name, with a key of its own.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes a certificate for `localhost` and its key to `server.crt` and `server.key` in
    /// `directory`.
    pub fn server(&self, directory: &std::path::Path) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(directory.join("server.crt"), certificate.pem()).unwrap();
        std::fs::write(directory.join("server.key"), key.serialize_pem()).unwrap();
    }

    /// Writes a certificate of hosts that connect to each other, and its key, to `NAME.crt` and
    /// `NAME.key` in `directory`.
    pub fn hosts(&self, directory: &std::path::Path, name: &str, hosts: &[String]) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(directory.join(format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// A client's certificate and key, also written to files in `directory`.
    pub fn client(&self, directory: &std::path::Path) -> ClientPair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["viewer.example".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let (cert_file, key_file) = (directory.join("client.crt"), directory.join("client.key"));
        std::fs::write(&cert_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        ClientPair::read(&cert_file, &key_file).unwrap()
    }
}
