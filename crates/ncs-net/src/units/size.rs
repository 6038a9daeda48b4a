//! Sizes as texts such as `512KiB` or `1GiB`, for `#[serde(with = "crate::units::size")]`.
//!
//! `bytesize` prints one decimal, which loses precision. A printed configuration must load to the
//! same values, so here a size is written in the largest unit that divides it.

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// A size as exact text.
pub fn exact(size: ByteSize) -> String {
    let bytes = size.as_u64();
    let (divisor, unit) = UNITS
        .into_iter()
        .find(|(divisor, _)| bytes != 0 && bytes.is_multiple_of(*divisor))
        .unwrap_or((1, "B"));
    format!("{}{unit}", bytes / divisor)
}

/// Writes a size exactly.
pub fn serialize<S: Serializer>(size: &ByteSize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&exact(*size))
}

/// Reads a size from text; a bare number is bytes.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Bytes(u64),
        Text(String),
    }
    match Given::deserialize(deserializer)? {
        Given::Bytes(bytes) => Ok(ByteSize(bytes)),
        Given::Text(text) => text.parse().map_err(|_| {
            D::Error::custom(format!(
                "`{text}` is not a size such as \"512KiB\" or \"2GiB\""
            ))
        }),
    }
}

/// The same for an optional size, for `#[serde(with = "crate::units::size::optional")]`.
pub mod optional {
    use bytesize::ByteSize;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes a size exactly.
    pub fn serialize<S: Serializer>(
        size: &Option<ByteSize>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match size {
            Some(size) => super::serialize(size, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a size from text; a bare number is bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<ByteSize>, D::Error> {
        #[derive(Deserialize)]
        struct Given(#[serde(with = "super")] ByteSize);
        Ok(Option::<Given>::deserialize(deserializer)?.map(|given| given.0))
    }
}

const UNITS: [(u64, &str); 4] = [
    (1 << 40, "TiB"),
    (1 << 30, "GiB"),
    (1 << 20, "MiB"),
    (1 << 10, "KiB"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;

    #[derive(Serialize, Deserialize)]
    struct Held {
        #[serde(with = "super")]
        size: ByteSize,
    }

    #[test]
    fn a_size_survives_printing() {
        for (bytes, text) in [
            (0, "0B"),
            (1, "1B"),
            (1500, "1500B"),
            (1536, "1536B"),
            (512 << 10, "512KiB"),
            (3 << 30, "3GiB"),
        ] {
            let written = serde_json::to_value(Held {
                size: ByteSize(bytes),
            })
            .unwrap();
            assert_eq!(written["size"], text);
            assert_eq!(
                serde_json::from_value::<Held>(written).unwrap().size,
                ByteSize(bytes)
            );
        }
    }

    #[test]
    fn other_texts_are_refused_with_an_example() {
        let error = serde_json::from_str::<Held>(r#"{"size": "big"}"#)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("`big` is not a size such as \"512KiB\""),
            "{error}"
        );
    }
}
