//! Who of the servers owns what: the one with the highest weight for it. All servers have to agree
//! on weights.

use super::beat::Name;

/// The part of a weight that is of the server.
pub(super) fn hash(name: &Name) -> u64 {
    let hash = blake3::hash(name.as_str().as_bytes());
    let (first, _) = hash.as_bytes().split_at(8);
    u64::from_le_bytes(first.try_into().expect("it has 32 bytes"))
}

/// The weight of a server for a thing. The factors are those of SplitMix64, the second shift is
/// not.
pub(super) fn weight(server: u64, thing: u128) -> u64 {
    let half = |part| u64::try_from(part & u128::from(u64::MAX)).expect("it is masked");
    let [low, high] = [thing, thing >> 64].map(half);
    let mut mixed = server ^ low ^ high.rotate_left(32);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
    }
    mixed ^ (mixed >> 31)
}
