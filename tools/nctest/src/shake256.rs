//! SHAKE-256 (FIPS 202), from which the vectors' data and digests are made.

use shake::Shake256;
use shake::digest::{ExtendableOutput, Update, XofReader};

/// The first `length` bytes for `message`.
pub fn shake256(message: &[u8], length: usize) -> Vec<u8> {
    let (mut hasher, mut out) = (Shake256::default(), vec![0; length]);
    hasher.update(message);
    hasher.finalize_xof().read(&mut out);
    out
}
