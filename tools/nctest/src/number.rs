//! Numbers as QUIC writes them, apart from the code that is tested.

/// A number in QUIC's encoding (RFC 9000, section 16), which has room for 62 bits.
pub fn varint(value: u64) -> Vec<u8> {
    let (length, prefix) = match value {
        0..=0x3f => (1, 0),
        0x40..=0x3fff => (2, 1),
        0x4000..=0x3fff_ffff => (4, 2),
        _ => (8, 3_u64),
    };
    (value | prefix << (8 * length - 2)).to_be_bytes()[8 - length..].to_vec()
}
