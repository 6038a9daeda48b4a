//! The capacity of the ring.

use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use ncs_net::units::size;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `ring.bytes`: a size, or `"auto"` for a size by connections and memory.
///
/// The server replaces `Auto` by a size when it starts ([`crate::sizes`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Capacity {
    /// As much as the connections may need and the machine's memory allows.
    #[default]
    Auto,
    /// This much.
    Bytes(ByteSize),
}

impl Capacity {
    /// The smallest size that `Auto` stands for, on any machine.
    pub const AUTO_MIN: ByteSize = ByteSize::mib(64);

    /// The size, [`Self::AUTO_MIN`] if the machine was not asked.
    pub fn size(self) -> ByteSize {
        match self {
            Self::Auto => Self::AUTO_MIN,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(bytes) => f.write_str(&size::exact(*bytes)),
        }
    }
}

impl FromStr for Capacity {
    type Err = NotCapacity;

    fn from_str(text: &str) -> Result<Self, NotCapacity> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text
                .parse()
                .map(Self::Bytes)
                .map_err(|_| NotCapacity(text.to_owned())),
        }
    }
}

/// A text that is not a capacity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size such as \"512KiB\" or \"2GiB\", and not \"auto\"")]
pub struct NotCapacity(String);

impl Serialize for Capacity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Capacity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a size such as \"2GiB\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Capacity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Capacity, E> {
                Ok(Capacity::Bytes(ByteSize(bytes)))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Capacity, E> {
                u64::try_from(bytes)
                    .map_err(|_| E::custom("a size is not negative"))
                    .and_then(|bytes| self.visit_u64(bytes))
            }
        }
        deserializer.deserialize_any(Text)
    }
}
