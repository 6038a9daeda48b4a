//! Parts of HTTP that every server handles alike: byte ranges (RFC 9110, section 14) and media
//! types by name.

use std::ops::Range;

pub use ncs_proto::media::media_type;

/// One byte range of a client, before the length of the object is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// From one byte to another, inclusive, or to the end.
    From(u64, Option<u64>),
    /// The last bytes, this many.
    Suffix(u64),
}

impl ByteRange {
    /// Parses a `Range` header.
    ///
    /// `None` means that the header has to be ignored: another unit, a malformed range, or several
    /// ranges, which a server may answer with the whole object.
    pub fn parse(header: &str) -> Option<Self> {
        let (unit, range) = header.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (first, last) = range.trim().split_once('-')?;
        if first.is_empty() {
            return number(last).map(Self::Suffix);
        }
        let first = number(first)?;
        if last.is_empty() {
            return Some(Self::From(first, None));
        }
        let last = number(last)?;
        (first <= last).then_some(Self::From(first, Some(last)))
    }

    /// The range in an object of `length` bytes, `None` if it is outside.
    pub fn resolve(self, length: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::From(first, None) => first..length,
            Self::From(first, Some(last)) => first..last.saturating_add(1).min(length),
            Self::Suffix(count) => length.saturating_sub(count)..length,
        };
        (range.start < range.end).then_some(range)
    }
}

/// Only digits: `u64::from_str` would accept a sign too. Overlong numbers become the maximum.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(header: &str, length: u64) -> Option<Option<Range<u64>>> {
        ByteRange::parse(header).map(|range| range.resolve(length))
    }

    #[test]
    fn ranges_are_cut_to_the_object() {
        assert_eq!(range("bytes=0-0", 10), Some(Some(0..1)));
        assert_eq!(range("bytes=3-", 10), Some(Some(3..10)));
        assert_eq!(range("bytes=3-99", 10), Some(Some(3..10)));
        assert_eq!(range("bytes=-4", 10), Some(Some(6..10)));
        assert_eq!(range("bytes=-40", 10), Some(Some(0..10)));
        assert_eq!(range("Bytes = 1-2", 10), Some(Some(1..3)));
        for last in [
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999999",
        ] {
            assert_eq!(range(&format!("bytes=0-{last}"), 10), Some(Some(0..10)));
            assert_eq!(range(&format!("bytes=-{last}"), 10), Some(Some(0..10)));
        }
    }

    #[test]
    fn ranges_beyond_the_object_cannot_be_satisfied() {
        assert_eq!(range("bytes=10-", 10), Some(None));
        assert_eq!(range("bytes=10-12", 10), Some(None));
        assert_eq!(range("bytes=-0", 10), Some(None));
        assert_eq!(range("bytes=0-", 0), Some(None));
        assert_eq!(range("bytes=99999999999999999999-", 10), Some(None));
    }

    #[test]
    fn other_headers_are_ignored() {
        for header in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-3",
            "bytes=a-b",
            "bytes=+1-2",
            "items=0-1",
            "bytes=0-1,4-5",
        ] {
            assert_eq!(ByteRange::parse(header), None, "{header}");
        }
    }
}
