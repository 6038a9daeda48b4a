//! The limit on connections.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `endpoint.connections_max`: a number, or `"auto"` for a limit by the machine's cores and memory.
///
/// The server replaces `Auto` by a number when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connections {
    /// As many as cores and memory allow.
    #[default]
    Auto,
    /// This many.
    Count(NonZeroU32),
}

impl Connections {
    /// The largest number that `Auto` stands for, on any machine.
    pub const AUTO_MAX: u32 = 100_000;

    /// At most `count`, and at least one.
    pub fn at_most(count: u32) -> Self {
        Self::Count(NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN))
    }

    /// The limit, [`Self::AUTO_MAX`] if the machine was not asked.
    pub fn limit(self) -> u32 {
        match self {
            Self::Auto => Self::AUTO_MAX,
            Self::Count(count) => count.get(),
        }
    }
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for Connections {
    type Err = NotConnections;

    fn from_str(text: &str) -> Result<Self, NotConnections> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().map(Self::Count).map_err(|_| NotConnections),
        }
    }
}

/// A text that is not a number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected \"auto\" or a number of connections from 1 to {}", u32::MAX)]
pub struct NotConnections;

impl Serialize for Connections {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => serializer.serialize_u32(count.get()),
        }
    }
}

impl<'de> Deserialize<'de> for Connections {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Connections;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"auto\" or a number of connections")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Connections, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Connections, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Connections, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Text)
    }
}
