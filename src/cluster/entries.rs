//! What the messages of all topics have in common: they end with entries, one after the other.

/// Bytes that are no message of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no message of this version")]
pub struct Unfit;

impl From<bytes::TryGetError> for Unfit {
    fn from(_: bytes::TryGetError) -> Self {
        Self
    }
}

/// Reads entries up to the end.
pub(super) fn all<T>(
    bytes: &mut &[u8],
    read: impl Fn(&mut &[u8]) -> Result<T, Unfit>,
) -> Result<Vec<T>, Unfit> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        entries.push(read(bytes)?);
    }
    Ok(entries)
}

/// Reads messages that are cut short or changed at random: what can be read is written again as it
/// was.
#[cfg(test)]
pub(super) fn assert_no_bytes_do_harm<M>(
    samples: impl IntoIterator<Item = Vec<u8>>,
    read: impl Fn(&[u8]) -> Result<M, Unfit>,
    write: impl Fn(M) -> Vec<u8>,
) {
    use rand::{RngExt as _, SeedableRng as _};

    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    for bytes in samples {
        for length in 0..bytes.len() {
            let _ = read(&bytes[..length]);
        }
        for _ in 0..20_000 {
            let mut bytes = bytes.clone();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            if let Ok(message) = read(&bytes) {
                assert_eq!(write(message), bytes);
            }
        }
    }
    assert!(matches!(read(&[]), Err(Unfit)));
}
