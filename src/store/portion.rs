//! A part of a memory whose size is unknown when the configuration is written.

use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::size;

/// `store.device_bytes`: a percentage such as `"80%"`, or a size such as `"8GiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Portion {
    /// A percentage, from 1 to 100.
    Percent(u8),
    /// A number of bytes.
    Bytes(ByteSize),
}

impl Portion {
    /// The portion of `total` in bytes, at most `total`.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Self::Percent(percent) => {
                total / 100 * u64::from(percent) + total % 100 * u64::from(percent) / 100
            }
            Self::Bytes(bytes) => bytes.as_u64().min(total),
        }
    }
}

impl fmt::Display for Portion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => f.write_str(&size::exact(*bytes)),
        }
    }
}

impl FromStr for Portion {
    type Err = NoPortion;

    fn from_str(text: &str) -> Result<Self, NoPortion> {
        let fail = || NoPortion(text.to_owned());
        match text.trim().strip_suffix('%') {
            Some(number) => {
                let percent = number
                    .trim_end()
                    .parse()
                    .ok()
                    .filter(|percent| (1..=100).contains(percent));
                percent.map(Self::Percent).ok_or_else(fail)
            }
            None => text.parse().map(Self::Bytes).map_err(|_| fail()),
        }
    }
}

/// A text that is neither a percentage nor a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a percentage from 1% to 100% or a size such as \"8GiB\"")]
pub struct NoPortion(String);

impl Serialize for Portion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Portion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Portion;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a percentage such as \"80%\" or a size such as \"8GiB\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Portion, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Portion, E> {
                Ok(Portion::Bytes(ByteSize(bytes)))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Portion, E> {
                u64::try_from(bytes)
                    .map_err(|_| E::custom("a size is not negative"))
                    .and_then(|bytes| self.visit_u64(bytes))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_of_what_there_is() {
        let of = |text: &str, total| text.parse::<Portion>().unwrap().of(total);
        assert_eq!(
            (of("80%", 1000), of("1%", 99), of("33%", 199), of("100%", 7)),
            (800, 0, 65, 7)
        );
        assert_eq!(
            of("99%", u64::MAX),
            u64::MAX / 100 * 99 + u64::MAX % 100 * 99 / 100
        );
        assert_eq!(
            (of("8GiB", 1 << 40), of("8GiB", 5), of("4096", 1 << 20)),
            (8 << 30, 5, 4096)
        );
    }

    #[test]
    fn a_portion_survives_printing() {
        for (text, printed) in [
            ("80%", "80%"),
            (" 7 %", "7%"),
            ("8GiB", "8GiB"),
            ("1500", "1500B"),
            ("1536KiB", "1536KiB"),
        ] {
            let portion: Portion = text.parse().unwrap();
            assert_eq!(portion.to_string(), printed);
            let written = serde_json::to_value(portion).unwrap();
            assert_eq!(serde_json::from_value::<Portion>(written).unwrap(), portion);
        }
        assert_eq!(
            serde_json::from_str::<Portion>("4096").unwrap(),
            Portion::Bytes(ByteSize(4096))
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "%", "0%", "101%", "-1%", "1.5%", "most", "80 percent"] {
            let error = text.parse::<Portion>().unwrap_err().to_string();
            assert!(error.contains("is not a percentage"), "{text}: {error}");
        }
        assert!(serde_json::from_str::<Portion>("-1").is_err());
    }
}
