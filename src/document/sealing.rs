//! Secrets that one server alone can read: HPKE (RFC 9180) in its base mode, with X25519,
//! HKDF-SHA256 and ChaCha20-Poly1305.
//!
//! ring has all of it but X25519 with a key that is kept, for which the curve is the one that signs
//! streams. A box is the sender's public key of this one use, 32 bytes, and the bytes that are
//! sealed with what the two keys have in common. It says nothing about who has sealed it.

use std::fmt;

use curve25519_dalek::montgomery::MontgomeryPoint;
use ring::{aead, hkdf, hmac};

use crate::cluster::beat::SealingKey;

/// The private half of a server's key.
#[derive(Clone)]
pub(super) struct PrivateKey([u8; KEY_BYTES]);

impl PrivateKey {
    pub(super) const fn of(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    pub(super) fn public(&self) -> SealingKey {
        SealingKey::of(&public(self.0))
    }

    /// What was sealed to this key with the same `info`. `None` if it was not.
    pub(super) fn open(&self, info: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (sent, text) = sealed.split_first_chunk::<KEY_BYTES>()?;
        let common = shared(self.0, sent)?;
        let (key, nonce) = schedule(&common, sent, &public(self.0), info);
        open(&key, nonce, &[], text)
    }
}

/// Shows nothing.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey([hidden])")
    }
}

/// Seals a text to a key. `once` is random, and of no other use. `None` if the key is none that
/// anybody has the private half of.
pub(super) fn seal_to(
    to: &SealingKey,
    once: [u8; KEY_BYTES],
    info: &[u8],
    text: &[u8],
) -> Option<Vec<u8>> {
    let (to, sent) = (to.bytes(), public(once));
    let common = shared(once, &to)?;
    let (key, nonce) = schedule(&common, &sent, &to, info);
    Some([&sent[..], &seal(&key, nonce, &[], text)].concat())
}

/// Seals a text with a key that seals no other, for whoever knows the key and `beside`.
pub(super) fn seal_once(key: &[u8; KEY_BYTES], beside: &[u8], text: &[u8]) -> Vec<u8> {
    seal(key, [0; NONCE_BYTES], beside, text)
}

/// The reverse.
pub(super) fn open_once(key: &[u8; KEY_BYTES], beside: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    open(key, [0; NONCE_BYTES], beside, sealed)
}

fn seal(key: &[u8; KEY_BYTES], nonce: [u8; NONCE_BYTES], beside: &[u8], text: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    let nonce = aead::Nonce::assume_unique_for_key(nonce);
    cipher(key)
        .seal_in_place_append_tag(nonce, aead::Aad::from(beside), &mut bytes)
        .expect("the text is far shorter than 256 GiB");
    bytes
}

fn open(
    key: &[u8; KEY_BYTES],
    nonce: [u8; NONCE_BYTES],
    beside: &[u8],
    sealed: &[u8],
) -> Option<Vec<u8>> {
    let mut bytes = sealed.to_vec();
    let nonce = aead::Nonce::assume_unique_for_key(nonce);
    let text = cipher(key).open_in_place(nonce, aead::Aad::from(beside), &mut bytes);
    text.ok().map(|text| text.to_vec())
}

fn cipher(key: &[u8; KEY_BYTES]) -> aead::LessSafeKey {
    let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, key);
    aead::LessSafeKey::new(key.expect("a key of this cipher has 32 bytes"))
}

/// The public half.
fn public(private: [u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
    MontgomeryPoint::mul_base_clamped(private).to_bytes()
}

/// What two keys have in common. `None` if the public one is of low order, so that it would be zero
/// for everybody.
fn shared(private: [u8; KEY_BYTES], public: &[u8; KEY_BYTES]) -> Option<[u8; KEY_BYTES]> {
    let common = MontgomeryPoint(*public).mul_clamped(private).to_bytes();
    (common != [0; KEY_BYTES]).then_some(common)
}

/// The key and the nonce of a box: ExtractAndExpand of section 4.1, then KeySchedule of section 5.1
/// without a pre-shared key.
fn schedule(
    common: &[u8; KEY_BYTES],
    sent: &[u8; KEY_BYTES],
    to: &[u8; KEY_BYTES],
    info: &[u8],
) -> ([u8; KEY_BYTES], [u8; NONCE_BYTES]) {
    let extracted = extract(KEM, &[], b"eae_prk", common);
    let context = [&sent[..], to].concat();
    let secret: [u8; KEY_BYTES] = expand(KEM, &extracted, b"shared_secret", &context);
    let context = [
        &[BASE_MODE][..],
        &extract(SUITE, &[], b"psk_id_hash", &[]),
        &extract(SUITE, &[], b"info_hash", info),
    ]
    .concat();
    let extracted = extract(SUITE, &secret, b"secret", &[]);
    (
        expand(SUITE, &extracted, b"key", &context),
        expand(SUITE, &extracted, b"base_nonce", &context),
    )
}

/// LabeledExtract, which is one HMAC.
fn extract(suite: &[u8], salt: &[u8], label: &[u8], text: &[u8]) -> [u8; KEY_BYTES] {
    let salt = hmac::Key::new(hmac::HMAC_SHA256, salt);
    let text = [VERSION, suite, label, text].concat();
    let tag = hmac::sign(&salt, &text);
    tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// LabeledExpand.
fn expand<const N: usize>(
    suite: &[u8],
    key: &[u8; KEY_BYTES],
    label: &[u8],
    context: &[u8],
) -> [u8; N] {
    let length = u16::try_from(N).expect("it is short").to_be_bytes();
    let info: [&[u8]; 5] = [&length, VERSION, suite, label, context];
    let key = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, key);
    let mut bytes = [0; N];
    key.expand(&info, Length(N))
        .and_then(|expanded| expanded.fill(&mut bytes))
        .expect("HKDF gives up to 255 hashes");
    bytes
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

pub(super) const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
const VERSION: &[u8] = b"HPKE-v1";
/// DHKEM(X25519, HKDF-SHA256).
const KEM: &[u8] = b"KEM\x00\x20";
/// The same with HKDF-SHA256 and ChaCha20-Poly1305.
const SUITE: &[u8] = b"HPKE\x00\x20\x00\x01\x00\x03";
const BASE_MODE: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(digits: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(digit).collect()
    }

    fn key(digits: &str) -> [u8; KEY_BYTES] {
        bytes(digits).try_into().unwrap()
    }

    /// RFC 9180, appendix A.2.1.
    #[test]
    fn the_numbers_of_the_rfc_come_out() {
        let once = key("f4ec9b33b792c372c1d2c2063507b684ef925b8c75a42dbcbf57d63ccd381600");
        let own = PrivateKey::of(key(
            "8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb",
        ));
        let to = "4310ee97d88cc1f088a5576c77ab0cf5c3ac797f3d95139c6c84b5429c59662a";
        assert_eq!(own.public().as_str(), to);
        let sent = public(once);
        assert_eq!(
            sent,
            key("1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a")
        );
        let info = bytes("4f6465206f6e2061204772656369616e2055726e");
        let common = shared(once, &key(to)).unwrap();
        assert_eq!(shared(own.0, &sent), Some(common));
        let (sealing, nonce) = schedule(&common, &sent, &key(to), &info);
        assert_eq!(
            sealing,
            key("ad2744de8e17f4ebba575b3f5f5a8fa1f69c2a07f6e7500bc60ca6e3e3ec1c91")
        );
        assert_eq!(nonce[..], bytes("5c4d98150661b848853b547f"));
        let text = bytes("4265617574792069732074727574682c20747275746820626561757479");
        assert_eq!(
            seal(&sealing, nonce, &bytes("436f756e742d30"), &text),
            bytes(
                "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4db\
                 21993c62ce81883d2dd1b51a28"
            )
        );
    }

    #[test]
    fn a_box_opens_for_its_owner_alone() {
        let [own, other] = [1, 2].map(|byte| PrivateKey::of([byte; KEY_BYTES]));
        let sealed = seal_to(&own.public(), [3; KEY_BYTES], b"one", b"text").unwrap();
        assert_eq!(own.open(b"one", &sealed).as_deref(), Some(&b"text"[..]));
        assert_eq!(own.open(b"two", &sealed), None);
        assert_eq!(other.open(b"one", &sealed), None);
        for at in 0..sealed.len() {
            let mut bent = sealed.clone();
            bent[at] ^= 1;
            assert_eq!(own.open(b"one", &bent), None, "{at}");
            assert_eq!(own.open(b"one", &sealed[..at]), None, "{at}");
        }
        let nobody = SealingKey::of(&[0; KEY_BYTES]);
        assert_eq!(seal_to(&nobody, [3; KEY_BYTES], b"one", b"text"), None);
    }
}
