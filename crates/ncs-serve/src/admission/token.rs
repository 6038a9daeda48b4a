//! Tokens: JSON Web Tokens (RFC 7519) in their compact form, signed with HS256 or EdDSA.
//!
//! Nothing in a token is read before its signature is verified, except `alg` and `kid`, which
//! choose the key. `ring` does the cryptography. The claim `ncs` holds the rights. Unknown claims
//! are ignored outside of `ncs`, and refused inside, where they might be limits.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::keys::{Algorithm, KeySet};
use super::scope::Scope;
pub use ncs_proto::admission::Holder;

/// A server's requirements for tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation {
    /// The required audience; `None` refuses tokens with an audience.
    pub audience: Option<String>,
    /// The tolerated difference of clocks.
    pub leeway: Duration,
}

/// The content of a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// The paths it covers.
    pub scope: Scope,
    /// Its end, since 1970, including the leeway.
    pub until: Duration,
    /// Bytes per second, for all connections of the holder.
    pub rate: Option<u64>,
    /// The maximum number of these.
    pub connections: Option<u32>,
    /// The account it counts for.
    pub holder: Holder,
}

/// Why a token is refused. The peer is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It does not have three parts, or has an unknown algorithm.
    #[error("malformed")]
    Malformed,
    /// No key has this name and algorithm.
    #[error("signed with an unknown key")]
    UnknownKey,
    /// The signature is invalid.
    #[error("invalid signature")]
    Forged,
    /// It has expired.
    #[error("expired")]
    Expired,
    /// It is not valid yet.
    #[error("not valid yet")]
    Early,
    /// It is for another audience.
    #[error("meant for another audience")]
    Audience,
    /// It does not state its rights, or states some that this version does not know.
    #[error("required claims are missing, or unknown ones are present")]
    Claims,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Written {
    exp: f64,
    nbf: Option<f64>,
    aud: Option<Audience>,
    iss: Option<String>,
    sub: Option<String>,
    ncs: Allowed,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowed {
    paths: Vec<String>,
    rate: Option<u64>,
    connections: Option<u32>,
}

/// The claims of a token that is valid at `now`, since 1970.
pub fn verify(
    token: &str,
    keys: &KeySet,
    expected: &Expectation,
    now: Duration,
) -> Result<Claims, TokenError> {
    let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
    let (header, payload) = message.split_once('.').ok_or(TokenError::Malformed)?;
    let decode = |part: &str| {
        URL_SAFE_NO_PAD
            .decode(part)
            .map_err(|_| TokenError::Malformed)
    };
    let (header, payload, signature) = (decode(header)?, decode(payload)?, decode(signature)?);
    let header: Header = serde_json::from_slice(&header).map_err(|_| TokenError::Malformed)?;
    let algorithm = match header.alg.as_str() {
        "HS256" => Algorithm::Hs256,
        "EdDSA" | "Ed25519" => Algorithm::EdDsa,
        _ => return Err(TokenError::Malformed),
    };
    // A required extension, none of which is supported (RFC 7515, section 4.1.11).
    if header.crit.is_some() {
        return Err(TokenError::Malformed);
    }
    let key = keys
        .find(algorithm, header.kid.as_deref())
        .ok_or(TokenError::UnknownKey)?;
    if !key.verify(message.as_bytes(), &signature) {
        return Err(TokenError::Forged);
    }
    let written: Written = serde_json::from_slice(&payload).map_err(|_| TokenError::Claims)?;
    written.claims(token, expected, now)
}

impl Written {
    fn claims(
        self,
        token: &str,
        expected: &Expectation,
        now: Duration,
    ) -> Result<Claims, TokenError> {
        let until = time(self.exp)?.saturating_add(expected.leeway);
        if until <= now {
            return Err(TokenError::Expired);
        }
        if self
            .nbf
            .map(time)
            .transpose()?
            .is_some_and(|from| from > now.saturating_add(expected.leeway))
        {
            return Err(TokenError::Early);
        }
        let is_meant = match (&self.aud, &expected.audience) {
            (None, None) => true,
            (Some(Audience::One(one)), Some(audience)) => one == audience,
            (Some(Audience::Several(several)), Some(audience)) => several.contains(audience),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !is_meant {
            return Err(TokenError::Audience);
        }
        let Allowed {
            paths,
            rate,
            connections,
        } = self.ncs;
        let scope = Scope::parse(&paths).map_err(|_| TokenError::Claims)?;
        if rate == Some(0) || connections == Some(0) {
            return Err(TokenError::Claims);
        }
        let holder = match &self.sub {
            Some(subject) => Holder::of(
                "subject",
                &[self.iss.unwrap_or_default().as_bytes(), subject.as_bytes()],
            ),
            None => Holder::of("token", &[token.as_bytes()]),
        };
        Ok(Claims {
            scope,
            until,
            rate,
            connections,
            holder,
        })
    }
}

/// A NumericDate: seconds since 1970, possibly with a fraction.
fn time(seconds: f64) -> Result<Duration, TokenError> {
    Duration::try_from_secs_f64(seconds).map_err(|_| TokenError::Claims)
}

#[cfg(test)]
mod tests {
    use ring::hmac;
    use ring::signature::KeyPair;
    use serde_json::{Value, json};

    use super::super::keys::testing::{SECRET, base64url, oct, okp, pair, set};
    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn hs256(header: &Value, claims: &Value, secret: &[u8]) -> String {
        let message = format!(
            "{}.{}",
            base64url(header.to_string().as_bytes()),
            base64url(claims.to_string().as_bytes())
        );
        let tag = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, secret),
            message.as_bytes(),
        );
        format!("{message}.{}", base64url(tag.as_ref()))
    }

    fn eddsa(header: &Value, claims: &Value) -> String {
        let message = format!(
            "{}.{}",
            base64url(header.to_string().as_bytes()),
            base64url(claims.to_string().as_bytes())
        );
        format!(
            "{message}.{}",
            base64url(pair().sign(message.as_bytes()).as_ref())
        )
    }

    fn claims() -> Value {
        json!({ "exp": NOW.as_secs() + 60, "ncs": { "paths": ["/live/*"] } })
    }

    /// The claims with one replaced.
    fn with(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        claims
    }

    fn judge(token: &str, audience: Option<&str>) -> Result<Claims, TokenError> {
        let keys = set(&[oct("h", &SECRET), okp("e")]).unwrap();
        let expected = Expectation {
            audience: audience.map(Into::into),
            leeway: Duration::from_secs(5),
        };
        verify(token, &keys, &expected, NOW)
    }

    /// Signed correctly.
    fn judge_claims(claims: &Value) -> Result<Claims, TokenError> {
        judge(
            &hs256(&json!({ "alg": "HS256", "kid": "h" }), claims, &SECRET),
            None,
        )
    }

    #[test]
    fn good_tokens_of_both_algorithms_say_what_they_allow() {
        let full = json!({
            "exp": NOW.as_secs() + 60, "nbf": NOW.as_secs() - 60, "iat": 1,
            "sub": "ann", "iss": "us", "jti": "7",
            "ncs": { "paths": ["/live/*", "/files/a"], "rate": 2_000_000, "connections": 3 } });
        let tokens = [
            hs256(
                &json!({ "alg": "HS256", "kid": "h", "typ": "JWT" }),
                &full,
                &SECRET,
            ),
            eddsa(&json!({ "alg": "EdDSA", "kid": "e" }), &full),
            hs256(&json!({ "alg": "HS256" }), &full, &SECRET),
        ];
        for token in tokens {
            let claims = judge(&token, None).unwrap();
            assert_eq!(
                claims.scope,
                Scope::parse(&["/live/*", "/files/a"]).unwrap()
            );
            assert_eq!(
                (claims.rate, claims.connections),
                (Some(2_000_000), Some(3))
            );
            assert_eq!(claims.until, NOW + Duration::from_secs(65));
            assert_eq!(
                claims.holder,
                Holder::of("subject", &[b"us", b"ann"]),
                "a renewed token counts with the one before"
            );
        }
        let (one, other) = (
            judge_claims(&claims()).unwrap(),
            judge_claims(&with("jti", json!("x"))).unwrap(),
        );
        assert_ne!(
            one.holder, other.holder,
            "without a subject every token counts by itself"
        );
    }

    #[test]
    fn no_algorithm_stands_in_for_another() {
        let public = pair().public_key().as_ref().to_vec();
        let message = |header: Value| {
            format!(
                "{}.{}",
                base64url(header.to_string().as_bytes()),
                base64url(claims().to_string().as_bytes())
            )
        };
        let unsigned = |alg: &str| format!("{}.", message(json!({ "alg": alg, "kid": "h" })));
        for alg in [
            "none", "None", "NONE", "", "HS384", "HS512", "RS256", "ES256", "hs256",
        ] {
            assert_eq!(
                judge(&unsigned(alg), None),
                Err(TokenError::Malformed),
                "{alg}"
            );
        }
        assert_eq!(
            judge(&unsigned("HS256"), None),
            Err(TokenError::Forged),
            "an empty signature"
        );
        // The public key as an HMAC secret, under its own name and under that of a secret.
        for kid in ["e", "h"] {
            let confused = hs256(&json!({ "alg": "HS256", "kid": kid }), &claims(), &public);
            let expected = if kid == "e" {
                TokenError::UnknownKey
            } else {
                TokenError::Forged
            };
            assert_eq!(judge(&confused, None), Err(expected));
        }
        let only_public = set(&[okp("e")]).unwrap();
        let expected = Expectation {
            audience: None,
            leeway: Duration::ZERO,
        };
        for header in [
            json!({ "alg": "HS256" }),
            json!({ "alg": "HS256", "kid": "e" }),
        ] {
            let confused = hs256(&header, &claims(), &public);
            assert_eq!(
                verify(&confused, &only_public, &expected, NOW),
                Err(TokenError::UnknownKey)
            );
        }
        // An HMAC presented as a signature.
        let tag = hs256(&json!({ "alg": "EdDSA", "kid": "e" }), &claims(), &SECRET);
        assert_eq!(judge(&tag, None), Err(TokenError::Forged));
        let critical = hs256(
            &json!({ "alg": "HS256", "kid": "h", "crit": ["b64"], "b64": false }),
            &claims(),
            &SECRET,
        );
        assert_eq!(judge(&critical, None), Err(TokenError::Malformed));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let token = eddsa(&json!({ "alg": "EdDSA", "kid": "e" }), &claims());
        assert!(judge(&token, None).is_ok());
        for at in 0..token.len() {
            for other in [b'A', b'B', b'.', b'='] {
                let mut changed = token.clone().into_bytes();
                if std::mem::replace(&mut changed[at], other) == other {
                    continue;
                }
                assert!(
                    judge(&String::from_utf8(changed).unwrap(), None).is_err(),
                    "byte {at} as {}",
                    char::from(other)
                );
            }
            assert!(judge(&token[..at], None).is_err(), "cut at {at}");
        }
        assert!(
            judge(&format!("{token}."), None).is_err()
                && judge(&format!("{token}A"), None).is_err()
        );
        assert_eq!(judge("", None), Err(TokenError::Malformed));
        let other = hs256(&json!({ "alg": "HS256", "kid": "h" }), &claims(), &[8; 32]);
        assert_eq!(judge(&other, None), Err(TokenError::Forged));
        let unknown = hs256(&json!({ "alg": "HS256", "kid": "x" }), &claims(), &SECRET);
        assert_eq!(judge(&unknown, None), Err(TokenError::UnknownKey));
    }

    #[test]
    fn times_count_with_a_leeway_and_not_beyond() {
        let now = NOW.as_secs();
        assert!(judge_claims(&with("exp", json!(now - 4))).is_ok());
        assert_eq!(
            judge_claims(&with("exp", json!(now - 5))),
            Err(TokenError::Expired)
        );
        assert!(judge_claims(&with("exp", json!(now as f64 + 0.5))).is_ok());
        assert!(judge_claims(&with("nbf", json!(now + 5))).is_ok());
        assert_eq!(
            judge_claims(&with("nbf", json!(now + 6))),
            Err(TokenError::Early)
        );
        for wrong in [
            json!(-1),
            json!("1800000100"),
            json!(null),
            json!(1e300),
            json!([]),
        ] {
            assert_eq!(
                judge_claims(&with("exp", wrong.clone())),
                Err(TokenError::Claims),
                "exp {wrong}"
            );
        }
        assert_eq!(
            judge_claims(&with("nbf", json!("x"))),
            Err(TokenError::Claims)
        );
        let mut eternal = claims();
        eternal.as_object_mut().unwrap().remove("exp");
        assert_eq!(
            judge_claims(&eternal),
            Err(TokenError::Claims),
            "a token without an end"
        );
    }

    #[test]
    fn tokens_are_for_their_audience() {
        let token = |claims: &Value| hs256(&json!({ "alg": "HS256", "kid": "h" }), claims, &SECRET);
        let (plain, one, several) = (
            token(&claims()),
            token(&with("aud", json!("us"))),
            token(&with("aud", json!(["them", "us"]))),
        );
        assert!(
            judge(&plain, None).is_ok()
                && judge(&one, Some("us")).is_ok()
                && judge(&several, Some("us")).is_ok()
        );
        for (token, audience) in [
            (&plain, Some("us")),
            (&one, None),
            (&one, Some("them")),
            (&several, Some("others")),
        ] {
            assert_eq!(judge(token, audience), Err(TokenError::Audience));
        }
    }

    #[test]
    fn what_is_not_understood_allows_nothing() {
        for allowed in [
            json!({}),
            json!({ "paths": [] }),
            json!({ "paths": "/live/*" }),
            json!({ "paths": ["live"] }),
            json!({ "path": ["/live/*"] }),
            json!({ "paths": ["/live/*"], "rates": 5 }),
            json!({ "paths": ["/live/*"], "rate": 0 }),
            json!({ "paths": ["/live/*"], "rate": -5 }),
            json!({ "paths": ["/live/*"], "connections": 0 }),
            json!(null),
        ] {
            assert_eq!(
                judge_claims(&with("ncs", allowed.clone())),
                Err(TokenError::Claims),
                "{allowed}"
            );
        }
        let twice = base64url(b"{\"exp\":1,\"exp\":9999999999,\"ncs\":{\"paths\":[\"/*\"]}}");
        let message = format!(
            "{}.{twice}",
            base64url(b"{\"alg\":\"HS256\",\"kid\":\"h\"}")
        );
        let tag = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, &SECRET),
            message.as_bytes(),
        );
        assert_eq!(
            judge(&format!("{message}.{}", base64url(tag.as_ref())), None),
            Err(TokenError::Claims),
            "a claim twice"
        );
    }
}
