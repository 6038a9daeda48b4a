//! The Ed25519 key of a stream: its signatures, and how they are verified (RFC 8032).

mod pkcs8;

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, Verifier as _, VerifyingKey};
use rand::CryptoRng;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;

use crate::hex;
use crate::wire::message::{
    Checks, Delivery, GetChecks, Meta, STREAM_NAME_MAX, Signature, Ticket, is_stream_name,
};

/// The public key of a stream, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamKey([u8; 32]);

/// Something that knows the keys of streams.
pub trait StreamKeys: fmt::Debug + Send + Sync {
    /// The key of the stream with this name, if it is known.
    fn key_of(&self, stream: &str) -> Option<StreamKey>;
}

/// Text that is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a stream's key must be 64 hexadecimal digits")]
pub struct NoKey;

impl StreamKey {
    /// A key that was received.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key that `meta` names, if it has signed it.
    pub fn of(meta: &Meta) -> Option<Self> {
        let signature = meta.signature.as_ref()?;
        let key = Self(signature.key);
        key.has_signed(
            &meta.signed_part(signature.issued_ms, &signature.blocks),
            &signature.bytes,
        )
        .then_some(key)
    }

    /// Whether it has signed this answer to `asked`.
    pub fn vouches_for(&self, asked: &GetChecks, answer: &Checks) -> bool {
        answer
            .signature
            .is_some_and(|signature| self.has_signed(&answer.signed_part(asked), &signature))
    }

    /// Whether `signature` is a signature of this key over `message`.
    pub fn has_signed(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(&self.0) else {
            return false;
        };
        key.verify(message, &ed25519_dalek::Signature::from_bytes(signature))
            .is_ok()
    }
}

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for StreamKey {
    type Err = NoKey;

    fn from_str(text: &str) -> Result<Self, NoKey> {
        hex::bytes(text).map(Self).ok_or(NoKey)
    }
}

/// The private key of a stream.
pub struct SigningKey(ed25519_dalek::SigningKey);

/// A file without a signing key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an Ed25519 private key in PEM (PKCS #8), as `openssl genpkey -algorithm ed25519` writes it"
)]
pub struct NoSigningKey;

impl SigningKey {
    /// Reads a key from PEM.
    pub fn from_pem(pem: &[u8]) -> Result<Self, NoSigningKey> {
        let Ok(PrivateKeyDer::Pkcs8(der)) = PrivateKeyDer::from_pem_slice(pem) else {
            return Err(NoSigningKey);
        };
        let (secret, public) = pkcs8::read(der.secret_pkcs8_der()).ok_or(NoSigningKey)?;
        let key = Self(ed25519_dalek::SigningKey::from_bytes(&secret));
        if public.is_some_and(|public| public != *key.public().as_bytes()) {
            Err(NoSigningKey)
        } else {
            Ok(key)
        }
    }

    /// A new key, as PEM: the private half alone (PKCS #8 version 1, RFC 8410), as OpenSSL writes
    /// it. OpenSSL 3.0 cannot read version 2, which contains the public half as well.
    pub fn generate(random: &mut impl CryptoRng) -> String {
        let mut secret = [0; 32];
        random.fill_bytes(&mut secret);
        // 48 bytes, which are one line of 64 characters.
        let line = STANDARD.encode(pkcs8::written(&secret));
        format!("-----BEGIN PRIVATE KEY-----\n{line}\n-----END PRIVATE KEY-----\n")
    }

    /// Its public half.
    pub fn public(&self) -> StreamKey {
        StreamKey(self.0.verifying_key().to_bytes())
    }

    /// Signs `message`.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }

    /// Signs `meta`. `issued_ms`: when the origin's answer came that it describes, since 1970;
    /// `blocks`: the [digest](super::hashes::BlockHashes::digest) of a coded segment's block
    /// hashes.
    pub fn sign_meta(&self, meta: &mut Meta, issued_ms: u64, blocks: Option<[u8; 32]>) {
        debug_assert_eq!(
            blocks.is_some(),
            matches!(meta.delivery, Delivery::Coded(_)),
            "what is coded has block hashes"
        );
        let blocks = blocks.unwrap_or_default();
        let bytes = self.sign(&meta.signed_part(issued_ms, &blocks));
        meta.signature = Some(Signature {
            key: *self.public().as_bytes(),
            issued_ms,
            blocks,
            bytes,
        });
    }

    /// A ticket that entitles its bearer to the stream, at the peer with this identity, until this
    /// many milliseconds after 1970. `nonce`: random, so that two tickets can be told apart.
    pub fn ticket(
        &self,
        stream: &str,
        until_ms: u64,
        identity: [u8; 32],
        nonce: [u8; 8],
    ) -> Ticket {
        debug_assert!(
            is_stream_name(stream),
            "not the name of a stream: {stream:?}"
        );
        let mut bytes = vec![TICKET_VERSION];
        bytes.extend(until_ms.to_be_bytes());
        bytes.extend(identity);
        bytes.extend(nonce);
        bytes.push(u8::try_from(stream.len()).unwrap_or(u8::MAX));
        bytes.extend(stream.as_bytes());
        let signature = self.sign(&[TICKET_CONTEXT, &bytes].concat());
        bytes.extend(signature);
        Ticket(bytes.into())
    }

    /// Signs an answer to `asked`.
    pub fn sign_checks(&self, asked: &GetChecks, answer: &mut Checks) {
        answer.signature = Some(self.sign(&answer.signed_part(asked)));
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}

const TICKET_VERSION: u8 = 1;
const TICKET_CONTEXT: &[u8] = b"ncs/1 ticket\0";

/// The content of a ticket, once its signature is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Its stream.
    pub stream: String,
    /// When it ends, in milliseconds since 1970.
    pub until_ms: u64,
    /// SHA-256 of the certificate of the peer that accepts it.
    pub identity: [u8; 32],
    /// Tells tickets apart.
    pub nonce: [u8; 8],
}

impl Admitted {
    /// Reads a ticket, and verifies the signature of its stream's key; `key_of` knows the keys. The
    /// caller checks its end, and its peer.
    pub fn by(ticket: &Ticket, key_of: impl FnOnce(&str) -> Option<StreamKey>) -> Option<Self> {
        let (content, signature) = ticket.0.split_last_chunk::<64>()?;
        let rest = content.strip_prefix(&[TICKET_VERSION])?;
        let (until, rest) = rest.split_first_chunk::<8>()?;
        let (identity, rest) = rest.split_first_chunk::<32>()?;
        let (nonce, rest) = rest.split_first_chunk::<8>()?;
        let (length, name) = rest.split_first()?;
        let stream = std::str::from_utf8(name)
            .ok()
            .filter(|name| name.len() == usize::from(*length) && is_stream_name(name))?;
        let signed = [TICKET_CONTEXT, content].concat();
        key_of(stream)?
            .has_signed(&signed, signature)
            .then(|| Self {
                stream: stream.to_owned(),
                until_ms: u64::from_be_bytes(*until),
                identity: *identity,
                nonce: *nonce,
            })
    }
}

// Its length is one byte.
const _: () = assert!(STREAM_NAME_MAX <= u8::MAX as usize);

#[cfg(test)]
mod tests {
    use ring::signature::{Ed25519KeyPair, KeyPair as _};

    use super::*;
    use crate::object::{SegmentId, Shape};
    use crate::wire::message::Meant;

    fn meta() -> Meta {
        Meta {
            request: 1,
            path: "/live/1.ts".into(),
            id: SegmentId::of(b"x"),
            offset: 0,
            length: 150,
            object_length: None,
            version: 7,
            max_age_ms: 1000,
            content_type: "video/mp2t".into(),
            delivery: Delivery::Coded(Shape::new(150, 64, 4).unwrap()),
            signature: None,
            tree: None,
        }
    }

    fn key() -> SigningKey {
        SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap()
    }

    #[test]
    fn a_signature_covers_everything_but_the_request_and_the_age() {
        let key = key();
        let mut signed = meta();
        key.sign_meta(&mut signed, 5, Some([3; 32]));
        assert_eq!(StreamKey::of(&signed), Some(key.public()));
        assert_eq!(StreamKey::of(&meta()), None);

        let free: [fn(&mut Meta); 2] = [|meta| meta.request = 9, |meta| meta.max_age_ms = 0];
        for change in free {
            let mut changed = signed.clone();
            change(&mut changed);
            assert_eq!(StreamKey::of(&changed), Some(key.public()));
        }
        let covered: [fn(&mut Meta); 12] = [
            |meta| meta.path.push('x'),
            |meta| meta.id = SegmentId::of(b"y"),
            |meta| meta.offset = 1,
            |meta| {
                meta.length = 151;
                meta.delivery = Delivery::Coded(Shape::new(151, 64, 4).unwrap());
            },
            |meta| meta.object_length = Some(150),
            |meta| meta.version = 8,
            |meta| meta.content_type.clear(),
            |meta| meta.delivery = Delivery::Coded(Shape::new(150, 64, 3).unwrap()),
            |meta| meta.delivery = Delivery::Stream,
            |meta| meta.signature.as_mut().unwrap().issued_ms = 6,
            |meta| meta.signature.as_mut().unwrap().blocks[31] ^= 1,
            |meta| meta.signature.as_mut().unwrap().key = *self::key().public().as_bytes(),
        ];
        for (number, change) in covered.into_iter().enumerate() {
            let mut changed = signed.clone();
            change(&mut changed);
            assert_eq!(StreamKey::of(&changed), None, "change {number}");
        }
    }

    #[test]
    fn an_answer_counts_for_its_question_alone() {
        let key = key();
        let asked = GetChecks {
            request: 1,
            segment: SegmentId::of(b"x"),
            generation: 2,
            nonce: [4; 32],
            meant: Meant::LastNamed,
        };
        let mut answer = Checks {
            request: 1,
            seed: [5; 32],
            columns: 2,
            projections: vec![0; 8].into(),
            signature: None,
        };
        assert!(!key.public().vouches_for(&asked, &answer));
        key.sign_checks(&asked, &mut answer);
        assert!(key.public().vouches_for(&asked, &answer));
        assert!(!self::key().public().vouches_for(&asked, &answer));
        assert!(!key.public().vouches_for(
            &GetChecks {
                nonce: [6; 32],
                ..asked.clone()
            },
            &answer
        ));
        assert!(!key.public().vouches_for(
            &GetChecks {
                generation: 3,
                ..asked.clone()
            },
            &answer
        ));
        assert!(!key.public().vouches_for(
            &asked,
            &Checks {
                projections: vec![1; 8].into(),
                ..answer
            }
        ));
    }

    #[test]
    fn a_ticket_says_what_was_signed_and_nothing_else() {
        let key = key();
        let ticket = key.ticket("live", 1000, [1; 32], [2; 8]);
        let says = Admitted {
            stream: "live".into(),
            until_ms: 1000,
            identity: [1; 32],
            nonce: [2; 8],
        };
        let by = |ticket: &Ticket| {
            Admitted::by(ticket, |stream| (stream == "live").then_some(key.public()))
        };
        assert_eq!(by(&ticket), Some(says));
        assert_eq!(by(&self::key().ticket("live", 1000, [1; 32], [2; 8])), None);
        assert_eq!(by(&key.ticket("vod", 1000, [1; 32], [2; 8])), None);
        for index in 0..ticket.0.len() {
            let mut bytes = ticket.0.to_vec();
            assert_eq!(by(&Ticket(bytes[..index].to_vec().into())), None);
            bytes[index] ^= 1;
            assert_eq!(by(&Ticket(bytes.into())), None, "byte {index}");
        }
    }

    /// OpenSSL 3.0 reads no other version.
    #[test]
    fn a_new_key_is_written_with_its_private_half_alone() {
        let text: String = SigningKey::generate(&mut rand::rng())
            .lines()
            .filter(|line| !line.starts_with('-'))
            .collect();
        let der = STANDARD.decode(text).unwrap();
        // RFC 8410, section 7: version 0, id-Ed25519, and an octet string of 32 bytes in another.
        // Nothing follows it.
        let head = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
        assert_eq!((der.len(), &der[..16]), (48, &head[..]));
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let key = key().public();
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(format!("{key}0").parse::<StreamKey>(), Err(NoKey));
        assert_eq!("é".repeat(32).parse::<StreamKey>(), Err(NoKey));
        assert_eq!(SigningKey::from_pem(b"nothing").unwrap_err(), NoSigningKey);
        // The format of `openssl genpkey -algorithm ed25519`; the key of RFC 8032, section 7.1,
        // test 1.
        let pem = "-----BEGIN PRIVATE KEY-----\n\
                   MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
                   -----END PRIVATE KEY-----\n";
        let key = SigningKey::from_pem(pem.as_bytes()).unwrap();
        assert_eq!(
            key.public().to_string(),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
        assert!(key.public().has_signed(b"", &key.sign(b"")));
        // The same with the public half (version 2), as older servers wrote it.
        let pem = "-----BEGIN PRIVATE KEY-----\n\
                   MFMCAQEwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
                   oSMDIQDXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==\n\
                   -----END PRIVATE KEY-----\n";
        assert_eq!(
            SigningKey::from_pem(pem.as_bytes()).unwrap().public(),
            key.public()
        );
    }

    /// `ring` is the former implementation of servers and peers.
    #[test]
    fn another_implementation_makes_and_takes_the_same_signatures() {
        let pem = SigningKey::generate(&mut rand::rng());
        let (key, text) = (
            SigningKey::from_pem(pem.as_bytes()).unwrap(),
            pem.lines().nth(1).unwrap(),
        );
        let other =
            Ed25519KeyPair::from_pkcs8_maybe_unchecked(&STANDARD.decode(text).unwrap()).unwrap();
        assert_eq!(other.public_key().as_ref(), key.public().as_bytes());
        for message in [&b""[..], b"a", &[7; 1000]] {
            let signature = key.sign(message);
            assert_eq!(signature, other.sign(message).as_ref());
            assert!(key.public().has_signed(message, &signature));
            for bit in 0..512 {
                let mut changed = signature;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(!key.public().has_signed(message, &changed), "bit {bit}");
            }
            assert!(!key.public().has_signed(b"other", &signature));
        }
    }
}
