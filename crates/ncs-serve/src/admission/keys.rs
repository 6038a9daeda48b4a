//! Keys that verify tokens, read from a JSON Web Key Set (RFC 7517).
//!
//! A key has one algorithm, which depends on its type and on nothing in a token: `oct` keys verify
//! only HS256, `OKP` keys on Ed25519 only EdDSA. So a public key can never serve as an HMAC secret,
//! and no key has the algorithm `none`. Keys of other types are ignored, because the sets of
//! identity providers contain some.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{hmac, signature};
use serde::Deserialize;

/// The maximum size of a set.
pub const SET_BYTES_MAX: usize = 256 * 1024;
/// The maximum number of keys in a set.
const KEYS_MAX: usize = 256;
/// RFC 7518, section 3.2: a key is at least as long as the hash.
const SECRET_BYTES_MIN: usize = 32;

/// The signature algorithm of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// Ed25519.
    EdDsa,
}

/// The keys of a set that can verify tokens.
#[derive(Debug)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    material: Material,
}

enum Material {
    Secret(hmac::Key),
    Public(signature::UnparsedPublicKey<Vec<u8>>),
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Secret(_)) {
            "Secret"
        } else {
            "Public"
        })
    }
}

/// Why a text is not a set of keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeySetError {
    /// It exceeds [`SET_BYTES_MAX`] or the number of keys.
    #[error("more than {SET_BYTES_MAX} bytes or {KEYS_MAX} keys")]
    TooLarge,
    /// It is not JSON, or has no `keys`.
    #[error("not a JSON Web Key Set: {0}")]
    Syntax(String),
    /// A key is invalid.
    #[error("key {0}: {1}")]
    Key(String, &'static str),
    /// Two keys have the same name.
    #[error("two keys of the same algorithm have the `kid` \"{0}\"")]
    Doubled(String),
    /// No key can verify tokens.
    #[error("the set has no key of type `oct` (HS256) or `OKP` on Ed25519 (EdDSA)")]
    Empty,
}

/// One key as written. Fields of other key types are ignored.
#[derive(Deserialize)]
struct Written {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    k: Option<String>,
    x: Option<String>,
}

#[derive(Deserialize)]
struct WrittenSet {
    keys: Vec<Written>,
}

impl KeySet {
    /// Parses a set. An invalid key for tokens makes the whole set invalid, because half a set
    /// would refuse half of the viewers.
    pub fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        if text.len() > SET_BYTES_MAX {
            return Err(KeySetError::TooLarge);
        }
        let set: WrittenSet =
            serde_json::from_slice(text).map_err(|error| KeySetError::Syntax(place(&error)))?;
        if set.keys.len() > KEYS_MAX {
            return Err(KeySetError::TooLarge);
        }
        let mut keys: Vec<Key> = Vec::new();
        for (index, written) in set.keys.into_iter().enumerate() {
            let name = written
                .kid
                .clone()
                .unwrap_or_else(|| format!("number {}", index + 1));
            let Some(material) = written
                .material()
                .map_err(|fault| KeySetError::Key(name, fault))?
            else {
                continue;
            };
            let key = Key {
                id: written.kid,
                material,
            };
            if let Some(id) = &key.id
                && keys.iter().any(|other| {
                    other.id == key.id && other.material.algorithm() == key.material.algorithm()
                })
            {
                return Err(KeySetError::Doubled(id.clone()));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            Err(KeySetError::Empty)
        } else {
            Ok(Self { keys })
        }
    }

    /// An empty set, for use until the first one arrives.
    pub const fn none() -> Self {
        Self { keys: Vec::new() }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key of this algorithm with this name; without a name, the only key of the algorithm.
    pub(super) fn find(&self, algorithm: Algorithm, id: Option<&str>) -> Option<Verifier<'_>> {
        let mut fitting = self
            .keys
            .iter()
            .filter(|key| key.material.algorithm() == algorithm);
        let key = match id {
            Some(id) => fitting.find(|key| key.id.as_deref() == Some(id))?,
            None => fitting.next().filter(|_| fitting.next().is_none())?,
        };
        Some(Verifier(&key.material))
    }
}

/// A key found for a token.
pub(super) struct Verifier<'a>(&'a Material);

impl Verifier<'_> {
    /// Verifies a signature; the time does not depend on where a wrong one differs.
    pub(super) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match self.0 {
            Material::Secret(secret) => hmac::verify(secret, message, signature).is_ok(),
            Material::Public(public) => public.verify(message, signature).is_ok(),
        }
    }
}

impl Material {
    const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Secret(_) => Algorithm::Hs256,
            Self::Public(_) => Algorithm::EdDsa,
        }
    }
}

impl Written {
    /// The key, if its type is supported.
    fn material(&self) -> Result<Option<Material>, &'static str> {
        let is_for = |algorithm: &str| self.alg.as_deref().is_none_or(|alg| alg == algorithm);
        let verifies = |ops: &Vec<String>| ops.iter().any(|op| op == "verify" || op == "sign");
        if self
            .purpose
            .as_deref()
            .is_some_and(|purpose| purpose != "sig")
            || self.key_ops.as_ref().is_some_and(|ops| !verifies(ops))
        {
            return Ok(None);
        }
        match (self.kty.as_str(), self.crv.as_deref()) {
            ("oct", _) if is_for("HS256") => {
                let bytes = decoded(self.k.as_deref())?;
                if bytes.len() < SECRET_BYTES_MIN {
                    return Err("`k` has fewer than 32 bytes");
                }
                Ok(Some(Material::Secret(hmac::Key::new(
                    hmac::HMAC_SHA256,
                    &bytes,
                ))))
            }
            ("OKP", Some("Ed25519")) if is_for("EdDSA") || is_for("Ed25519") => {
                let bytes = decoded(self.x.as_deref())?;
                if bytes.len() != signature::ED25519_PUBLIC_KEY_LEN {
                    return Err("`x` does not have 32 bytes");
                }
                Ok(Some(Material::Public(signature::UnparsedPublicKey::new(
                    &signature::ED25519,
                    bytes,
                ))))
            }
            _ => Ok(None),
        }
    }
}

/// The position of the fault, without the text, which may be a key.
fn place(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Data => "a value is missing or of the wrong type",
        serde_json::error::Category::Eof => "the text ends early",
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => "no JSON",
    };
    format!("{what}, line {} column {}", error.line(), error.column())
}

fn decoded(text: Option<&str>) -> Result<Vec<u8>, &'static str> {
    let text = text.ok_or("`k` or `x` is missing")?;
    URL_SAFE_NO_PAD
        .decode(text)
        .map_err(|_| "`k` or `x` is not base64url without padding")
}

/// Signing for tests of this module.
#[cfg(test)]
pub(super) mod testing {
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    pub(in crate::admission) fn base64url(bytes: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    pub(in crate::admission) const SECRET: [u8; 32] = [7; 32];

    pub(in crate::admission) fn pair() -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap()
    }

    pub(in crate::admission) fn oct(id: &str, secret: &[u8]) -> serde_json::Value {
        serde_json::json!({ "kty": "oct", "kid": id, "alg": "HS256", "k": base64url(secret) })
    }

    pub(in crate::admission) fn okp(id: &str) -> serde_json::Value {
        let x = base64url(pair().public_key().as_ref());
        serde_json::json!({
            "kty": "OKP", "crv": "Ed25519", "kid": id, "alg": "EdDSA", "use": "sig", "x": x,
        })
    }

    pub(in crate::admission) fn set(keys: &[serde_json::Value]) -> Result<KeySet, KeySetError> {
        KeySet::parse(serde_json::json!({ "keys": keys }).to_string().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::testing::{SECRET, base64url, oct, okp, set};
    use super::*;

    #[test]
    fn sets_have_keys_of_ours_and_pass_over_others() {
        let rsa = json!({ "kty": "RSA", "kid": "r", "n": "AQAB", "e": "AQAB", "alg": "RS256" });
        let p256 = json!({ "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA" });
        let x25519 = json!({ "kty": "OKP", "crv": "X25519", "x": "AA" });
        let encryption = json!({ "kty": "oct", "use": "enc", "k": base64url(&SECRET) });
        let wrapping = json!({ "kty": "oct", "key_ops": ["wrapKey"], "k": base64url(&SECRET) });
        let hs512 = json!({ "kty": "oct", "alg": "HS512", "k": base64url(&SECRET) });
        let others = [rsa, p256, x25519, encryption, wrapping, hs512];
        assert_eq!(set(&others).unwrap_err(), KeySetError::Empty);
        let keys = set(&[&others[..], &[oct("a", &SECRET), okp("b")]].concat()).unwrap();
        assert_eq!(keys.len(), 2);
        assert!(
            keys.find(Algorithm::Hs256, Some("a")).is_some()
                && keys.find(Algorithm::EdDsa, Some("b")).is_some()
        );
        assert!(
            keys.find(Algorithm::Hs256, Some("b")).is_none(),
            "a public key is no secret"
        );
        assert!(
            keys.find(Algorithm::EdDsa, Some("a")).is_none(),
            "a secret is no public key"
        );
    }

    #[test]
    fn a_token_without_a_key_id_gets_the_only_key() {
        let two = set(&[oct("a", &SECRET), oct("b", &[8; 32]), okp("c")]).unwrap();
        assert!(two.find(Algorithm::Hs256, None).is_none());
        assert!(two.find(Algorithm::EdDsa, None).is_some());
        assert!(two.find(Algorithm::EdDsa, Some("x")).is_none());
        assert!(KeySet::none().find(Algorithm::Hs256, None).is_none());
    }

    #[test]
    fn faulty_sets_are_refused_whole() {
        let refused = |keys: &[serde_json::Value]| set(keys).unwrap_err();
        assert_eq!(refused(&[]), KeySetError::Empty);
        assert_eq!(
            refused(&[oct("a", &SECRET), oct("a", &[8; 32])]),
            KeySetError::Doubled("a".into())
        );
        assert!(
            set(&[oct("a", &SECRET), okp("a")]).is_ok(),
            "keys of two algorithms are told apart by it"
        );
        assert!(matches!(
            refused(&[okp("b"), oct("a", &[7; 31])]),
            KeySetError::Key(name, _) if name == "a",
        ));
        for wrong in [
            json!({ "kty": "oct" }),
            json!({ "kty": "oct", "k": "a+b/" }),
            json!({ "kty": "oct", "k": format!("{}=", base64url(&SECRET)) }),
            json!({ "kty": "OKP", "crv": "Ed25519", "x": base64url(&[1; 31]) }),
        ] {
            assert!(
                matches!(
                    refused(std::slice::from_ref(&wrong)),
                    KeySetError::Key(name, _) if name == "number 1",
                ),
                "{wrong}"
            );
        }
        let quoting = KeySet::parse(b"{\"keys\":[{\"kty\":\"oct\",\"key_ops\":\"hunter2\"}]}")
            .unwrap_err()
            .to_string();
        assert!(
            quoting.contains("line 1") && !quoting.contains("hunter2"),
            "{quoting}"
        );
        for text in ["", "{}", "[]", "{\"keys\":[{}]}", "{\"keys\":{}}"] {
            assert!(
                matches!(KeySet::parse(text.as_bytes()), Err(KeySetError::Syntax(_))),
                "{text}"
            );
        }
        assert_eq!(
            KeySet::parse(&vec![b' '; SET_BYTES_MAX + 1]).unwrap_err(),
            KeySetError::TooLarge
        );
        assert_eq!(
            refused(&vec![okp("b"); KEYS_MAX + 1]),
            KeySetError::TooLarge
        );
    }
}
