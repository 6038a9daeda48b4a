//! Lists that may be given as one text, for
//! `#[serde(deserialize_with = "crate::units::one_or_many")]`.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de::Error};

/// Reads `["a", "b"]`, and also `"a"` or `"a,b"`, because environment variables and flags can only
/// be texts.
pub fn one_or_many<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        One(String),
        Many(Vec<String>),
    }
    let texts = match Given::deserialize(deserializer)? {
        Given::One(text) => text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect(),
        Given::Many(texts) => texts,
    };
    texts
        .iter()
        .map(|text| {
            text.parse()
                .map_err(|error| D::Error::custom(format!("`{text}`: {error}")))
        })
        .collect()
}
