//! Which answers are believed: one key for each stream, and no version older than the newest.
//!
//! The first source that the program names is *trusted*: its certificate was checked, and it names
//! the key of each stream for which the program has given none. Other sources are believed if that
//! key has signed what they send, or if it proves itself.

use super::ids::SourceId;
use crate::cache::Cache;
use crate::integrity::signing::StreamKey;
use crate::object::SegmentId;
use crate::sorted::SortedMap;
use crate::wire::message::{Delivery, Meta, stream_of};

/// The source that the program has named first. It is trusted.
pub(super) const FIRST: SourceId = SourceId(0);
/// Places whose newest version is remembered.
const PLACES_MAX: u64 = 8192;

/// Keys of streams that are known from the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// The key of every stream without one of its own here.
    pub any: Option<StreamKey>,
    /// Keys by name of the stream.
    pub streams: SortedMap<String, StreamKey>,
}

/// What a signed META proves besides the segment's id: who vouches for it, and its source blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The key of the stream.
    pub key: StreamKey,
    /// BLAKE3 of the hashes of all source blocks.
    pub blocks: [u8; 32],
}

impl Proof {
    /// The proof that `meta` carries, if it is signed and its delivery coded.
    pub fn of(meta: &Meta) -> Option<Self> {
        let signature = meta
            .signature
            .as_ref()
            .filter(|_| matches!(meta.delivery, Delivery::Coded(_)))?;
        Some(Self {
            key: StreamKey::from_bytes(signature.key),
            blocks: signature.blocks,
        })
    }
}

/// The verdict on a META.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is as good as its sender, or proved.
    Taken,
    /// It proves nothing; another source may have one that does.
    Refused(&'static str),
    /// Its signature is false: its sender lies.
    Forged,
}

/// Pinned keys, and the newest version of each place.
#[derive(Debug)]
pub(super) struct Keyring {
    any: Option<StreamKey>,
    pins: SortedMap<String, StreamKey>,
    newest: Cache<(String, u64), (SegmentId, u64)>,
}

impl Keyring {
    pub(super) fn new(keys: Keys) -> Self {
        Self {
            any: keys.any,
            pins: keys.streams,
            newest: Cache::new(PLACES_MAX),
        }
    }

    /// Pins the key of a stream, or of every stream that has none of its own.
    pub(super) fn pin(&mut self, stream: Option<String>, key: StreamKey) {
        match stream {
            Some(stream) => drop(self.pins.insert(stream, key)),
            None => self.any = Some(key),
        }
    }

    /// Forgets the key of a stream: the trusted source names the next one.
    pub(super) fn unpin(&mut self, stream: &str) {
        self.pins.remove(stream);
    }

    /// The key of a path's stream.
    pub(super) fn key(&self, path: &str) -> Option<StreamKey> {
        self.pins.get(stream_of(path)).copied().or(self.any)
    }

    /// Judges the answer of a source for `path`. News of a stream have no path.
    pub(super) fn judge(&mut self, source: SourceId, path: Option<&str>, meta: &Meta) -> Verdict {
        let pinned = self.key(path.unwrap_or(&meta.path));
        let Some(signature) = &meta.signature else {
            if matches!(&meta.delivery, Delivery::Coded(shape) if shape.codec().is_gfq()) {
                return Verdict::Refused("the hashes of its blocks are not signed");
            }
            return match path {
                _ if pinned.is_some() => Verdict::Refused("the answer is not signed"),
                Some(path) if path != meta.path => {
                    Verdict::Refused("the answer is about another path")
                }
                _ => Verdict::Taken,
            };
        };
        let named = StreamKey::from_bytes(signature.key);
        if pinned.is_some_and(|pinned| pinned != named) {
            return Verdict::Refused("the answer is signed by another key than the stream's");
        }
        if StreamKey::of(meta).is_none() {
            return Verdict::Forged;
        }
        if path.is_some_and(|path| path != meta.path) {
            return Verdict::Refused("the answer is about another path");
        }
        if pinned.is_none() {
            if source != FIRST {
                return Verdict::Taken;
            }
            self.pins.insert(stream_of(&meta.path).to_owned(), named);
        }
        let place = (meta.path.clone(), meta.offset);
        if let Some((id, issued_ms)) = self.newest.get(&place).copied()
            && signature.issued_ms < issued_ms
        {
            return if id == meta.id {
                Verdict::Taken
            } else {
                Verdict::Refused("the answer is older than one before")
            };
        }
        self.newest.insert(place, (meta.id, signature.issued_ms), 1);
        Verdict::Taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::integrity::signing::SigningKey;
    use crate::object::{Codec, HashGroup, Shape};

    const OTHER: SourceId = SourceId(1);

    fn key() -> SigningKey {
        SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap()
    }

    fn meta(path: &str, bytes: &'static [u8]) -> Meta {
        Meta {
            request: 1,
            path: path.to_owned(),
            id: SegmentId::of(bytes),
            offset: 0,
            length: bytes.len() as u64,
            object_length: Some(bytes.len() as u64),
            version: 1,
            max_age_ms: 0,
            content_type: String::new(),
            delivery: Delivery::Inline(bytes.into()),
            signature: None,
            tree: None,
        }
    }

    fn signed(key: &SigningKey, path: &str, bytes: &'static [u8], issued_ms: u64) -> Meta {
        let mut meta = meta(path, bytes);
        key.sign_meta(&mut meta, issued_ms, None);
        meta
    }

    fn is_refused(verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Refused(_))
    }

    #[test]
    fn the_first_source_names_the_key_and_nobody_else() {
        let (right, wrong) = (key(), key());
        let mut ring = Keyring::new(Keys::default());
        assert_eq!(
            ring.judge(OTHER, Some("/a/b"), &signed(&wrong, "/a/b", b"x", 1)),
            Verdict::Taken
        );
        assert_eq!(
            ring.judge(OTHER, Some("/a/b"), &meta("/a/b", b"x")),
            Verdict::Taken
        );
        assert_eq!(ring.key("/a/b"), None);
        assert_eq!(
            ring.judge(FIRST, Some("/a/b"), &signed(&right, "/a/b", b"x", 1)),
            Verdict::Taken
        );
        assert_eq!(
            (ring.key("/a/c?d"), ring.key("/b/b")),
            (Some(right.public()), None)
        );
        for source in [FIRST, OTHER] {
            assert!(is_refused(ring.judge(
                source,
                Some("/a/b"),
                &signed(&wrong, "/a/b", b"x", 1)
            )));
            assert!(is_refused(ring.judge(
                source,
                Some("/a/b"),
                &meta("/a/b", b"x")
            )));
            assert!(
                is_refused(ring.judge(source, Some("/a/b"), &signed(&right, "/a/c", b"x", 1))),
                "of another path"
            );
            assert_eq!(
                ring.judge(source, Some("/b/b"), &meta("/b/b", b"x")),
                Verdict::Taken
            );
        }
    }

    #[test]
    fn an_answer_about_another_path_is_refused_signed_or_not() {
        let key = key();
        for source in [FIRST, OTHER] {
            let mut ring = Keyring::new(Keys::default());
            assert!(is_refused(ring.judge(
                source,
                Some("/a/b"),
                &meta("/a/c", b"x")
            )));
            assert!(is_refused(ring.judge(
                source,
                Some("/a/b"),
                &signed(&key, "/a/c", b"x", 1)
            )));
            assert_eq!(ring.key("/a/b"), None, "and names no key");
        }
    }

    #[test]
    fn a_signature_that_is_none_is_a_forgery() {
        let key = key();
        for keys in [
            Keys::default(),
            Keys {
                any: Some(key.public()),
                ..Keys::default()
            },
        ] {
            let mut ring = Keyring::new(keys);
            let forged = Meta {
                version: 2,
                ..signed(&key, "/a/b", b"x", 1)
            };
            assert_eq!(ring.judge(OTHER, Some("/a/b"), &forged), Verdict::Forged);
            assert_eq!(ring.judge(FIRST, Some("/a/b"), &forged), Verdict::Forged);
        }
    }

    #[test]
    fn a_given_key_counts_from_the_beginning() {
        let (right, wrong) = (key(), key());
        let streams = SortedMap::from([("a".to_owned(), right.public())]);
        let mut ring = Keyring::new(Keys {
            any: Some(wrong.public()),
            streams,
        });
        assert!(is_refused(ring.judge(
            FIRST,
            Some("/a/b"),
            &signed(&wrong, "/a/b", b"x", 1)
        )));
        assert_eq!(
            ring.judge(OTHER, Some("/a/b"), &signed(&right, "/a/b", b"x", 1)),
            Verdict::Taken
        );
        assert_eq!(
            ring.judge(OTHER, Some("/c"), &signed(&wrong, "/c", b"x", 1)),
            Verdict::Taken
        );
    }

    #[test]
    fn blocks_over_the_prime_field_need_a_signature() {
        let (key, codec) = (
            key(),
            Codec::RlncQ {
                group: HashGroup::P1024,
            },
        );
        let shape = Shape::new(1, 64, 1).unwrap().coded_with(codec).unwrap();
        let unsigned = Meta {
            delivery: Delivery::Coded(shape),
            ..meta("/a/b", b"x")
        };
        let mut signed = unsigned.clone();
        key.sign_meta(&mut signed, 1, Some([1; 32]));
        for source in [FIRST, OTHER] {
            assert!(is_refused(Keyring::new(Keys::default()).judge(
                source,
                Some("/a/b"),
                &unsigned
            )));
            assert_eq!(
                Keyring::new(Keys::default()).judge(source, Some("/a/b"), &signed),
                Verdict::Taken
            );
        }
    }

    #[test]
    fn what_is_older_is_not_taken() {
        let key = key();
        let mut ring = Keyring::new(Keys {
            any: Some(key.public()),
            ..Keys::default()
        });
        let mut judge =
            |bytes, issued_ms| ring.judge(OTHER, None, &signed(&key, "/a/b", bytes, issued_ms));
        assert_eq!(judge(b"new", 5), Verdict::Taken);
        assert!(is_refused(judge(b"old", 4)));
        assert_eq!(
            judge(b"new", 3),
            Verdict::Taken,
            "the same, asked for earlier"
        );
        assert!(is_refused(judge(b"old", 4)));
        assert_eq!(judge(b"newer", 6), Verdict::Taken);
        assert!(is_refused(judge(b"new", 5)));
    }
}
