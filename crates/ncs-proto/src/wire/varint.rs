//! QUIC's variable-length integers (RFC 9000 section 16), in their shortest form only.
//!
//! One value has one encoding, so that a message has one too and hex examples can be compared.

/// The largest integer that fits.
pub(crate) const MAX: u64 = (1 << 62) - 1;

/// Appends `value`. One above [`MAX`] is sent as [`MAX`], which every field of that size reads as
/// "very many".
pub(crate) fn write(value: u64, out: &mut Vec<u8>) {
    let value = value.min(MAX);
    let length = length(value);
    let prefix = u64::from(length.trailing_zeros()) << (length * 8 - 2);
    out.extend_from_slice(&(value | prefix).to_be_bytes()[8 - length..]);
}

/// Reads the integer at the start of `input`: its value and its length. `Ok(None)` where `input`
/// ends too early.
pub(crate) fn read(input: &[u8]) -> Result<Option<(u64, usize)>, NotMinimal> {
    let Some(first) = input.first() else {
        return Ok(None);
    };
    let wanted = 1 << (first >> 6);
    let Some(bytes) = input.get(..wanted) else {
        return Ok(None);
    };
    let value = bytes[1..]
        .iter()
        .fold(u64::from(first & 0x3f), |value, byte| {
            value << 8 | u64::from(*byte)
        });
    if length(value) != wanted {
        return Err(NotMinimal);
    }
    Ok(Some((value, wanted)))
}

/// An integer that took more bytes than it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotMinimal;

const fn length(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        write(value, &mut out);
        out
    }

    /// The examples of RFC 9000 appendix A.1.
    #[test]
    fn the_examples_of_the_rfc() {
        for (value, bytes) in [
            (
                151_288_809_941_952_652,
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..],
            ),
            (494_878_333, &[0x9d, 0x7f, 0x3e, 0x7d]),
            (15_293, &[0x7b, 0xbd]),
            (37, &[0x25]),
        ] {
            assert_eq!(written(value), bytes);
            assert_eq!(read(bytes), Ok(Some((value, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), Ok(None));
            }
        }
    }

    #[test]
    fn borders_round_trip_and_long_forms_are_refused() {
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX] {
            assert_eq!(
                read(&written(value)),
                Ok(Some((value, written(value).len())))
            );
        }
        assert_eq!(written(u64::MAX), written(MAX));
        assert_eq!(read(&[0x40, 37]), Err(NotMinimal));
        assert_eq!(read(&[0x80, 0, 0x3f, 0xff]), Err(NotMinimal));
        assert_eq!(
            read(&[0xc0, 0, 0, 0, 0x3f, 0xff, 0xff, 0xff]),
            Err(NotMinimal)
        );
    }
}
