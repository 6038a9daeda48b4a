//! The origins of pages (RFC 6454).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::Url;
use web_transport_proto::http::HeaderValue;

/// The origins whose pages may connect: `https://video.example`, or `*` for all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Texts", into = "Vec<String>")]
pub struct Origins(Vec<Origin>);

/// One text, or a list of them.
#[derive(Deserialize)]
#[serde(transparent)]
struct Texts(#[serde(deserialize_with = "crate::units::one_or_many")] Vec<String>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Any,
    /// As browsers write it.
    One(String),
}

/// A text that is no origin.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an origin such as https://video.example or http://127.0.0.1:8080, or *")]
pub struct NotAnOrigin(String);

impl Origins {
    /// These origins.
    pub fn of(texts: &[String]) -> Result<Self, NotAnOrigin> {
        texts
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Adds others.
    pub fn extend(&mut self, Self(others): Self) {
        self.0.extend(others);
    }

    /// Whether no page may connect.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether pages of every origin may connect.
    pub fn is_any(&self) -> bool {
        self.0.contains(&Origin::Any)
    }

    /// Whether a request with this `Origin` header may connect. A browser sends one; a request
    /// without it is from a program, which could send whatever it likes.
    pub fn allow(&self, header: Option<&HeaderValue>) -> bool {
        let Some(header) = header else {
            return !self.is_empty();
        };
        self.0.iter().any(|origin| match origin {
            Origin::Any => true,
            Origin::One(origin) => origin.as_bytes() == header.as_bytes(),
        })
    }
}

impl FromStr for Origin {
    type Err = NotAnOrigin;

    fn from_str(text: &str) -> Result<Self, NotAnOrigin> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let no = || NotAnOrigin(text.to_owned());
        let url = Url::parse(text).map_err(|_| no())?;
        let has_pattern = url.host_str().is_some_and(|host| host.contains('*'));
        let is_bare = matches!(url.path(), "" | "/")
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        let origin = url.origin();
        if has_pattern
            || !is_bare
            || !origin.is_tuple()
            || !matches!(url.scheme(), "http" | "https")
        {
            return Err(no());
        }
        Ok(Self::One(origin.ascii_serialization()))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "*",
            Self::One(origin) => origin,
        })
    }
}

impl TryFrom<Texts> for Origins {
    type Error = NotAnOrigin;

    fn try_from(Texts(texts): Texts) -> Result<Self, NotAnOrigin> {
        Self::of(&texts)
    }
}

impl From<Origins> for Vec<String> {
    fn from(Origins(origins): Origins) -> Self {
        origins.iter().map(Origin::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(text: &str) -> Result<Origins, toml::de::Error> {
        #[derive(Deserialize)]
        struct Config {
            origins: Origins,
        }
        toml::from_str::<Config>(&format!("origins = {text}")).map(|config| config.origins)
    }

    fn allows(origins: &Origins, header: Option<&str>) -> bool {
        origins.allow(
            header
                .map(|header| HeaderValue::from_str(header).unwrap())
                .as_ref(),
        )
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let some = origins(r#"["https://Video.example:443/", "http://127.0.0.1:8080"]"#).unwrap();
        for (header, may) in [
            (Some("https://video.example"), true),
            (Some("http://127.0.0.1:8080"), true),
            (None, true),
            (Some("http://video.example"), false),
            (Some("https://video.example:8443"), false),
            (Some("https://video.example.attacker.example"), false),
            (Some("null"), false),
            (Some(""), false),
        ] {
            assert_eq!(allows(&some, header), may, "{header:?}");
        }
        assert!(allows(&origins(r#""*""#).unwrap(), Some("null")));
        assert!(!allows(&Origins::default(), None));
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for text in [
            "video.example",
            "https://video.example/app",
            "https://user@video.example",
            "ftp://video.example",
            "https://*.video.example",
            "*.video.example",
        ] {
            let refused = origins(&format!("\"{text}\""));
            assert!(refused.is_err(), "{text}: {refused:?}");
        }
    }

    #[test]
    fn origins_are_written_as_browsers_write_them() {
        let written = Vec::from(origins(r#"["HTTPS://VIDEO.example:443", "*"]"#).unwrap());
        assert_eq!(written, ["https://video.example", "*"]);
    }
}
