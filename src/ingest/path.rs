//! Names of objects within a stream, in one canonical form.
//!
//! A path comes from a peer or a playlist. It is refused if any origin could read it as something
//! outside the stream: dot components, empty components, backslashes, NUL and other control
//! characters, even behind one or more rounds of percent-encoding, or before a `;`. All spellings
//! of a path become one value, so that they share one fetch. The query is kept as it is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::Url;

use crate::secret::redacted;

/// Path and query of an object, relative to its stream; never empty, never outside.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectPath {
    text: Arc<str>,
    /// The length of `text` before the query.
    path_length: usize,
}

/// Query parameters that select another object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parameters {
    /// Every query is a separate name.
    All,
    /// Only these parameters, by name.
    Listed(Arc<[String]>),
}

impl Parameters {
    /// The listed names; `*` stands for all.
    pub fn new(names: &[String]) -> Self {
        if names.iter().any(|name| name == "*") {
            Self::All
        } else {
            Self::Listed(names.into())
        }
    }
}

/// Why a text is not a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The path, or a component, is empty (`//`, or `/` at the end).
    #[error("the path has an empty component")]
    Empty,
    /// It has more than [`ObjectPath::BYTES_MAX`] bytes.
    #[error("the path is too long")]
    TooLong,
    /// It has a control character, backslash or fragment.
    #[error("the path contains a forbidden character")]
    Character,
    /// It has invalid percent-encoding, or is not UTF-8.
    #[error("the path is not percent-encoded correctly")]
    Encoding,
    /// It has `.`, `..` or an encoded separator.
    #[error("the path leads out of the stream")]
    Escape,
}

impl ObjectPath {
    /// The maximum length, including the query.
    pub const BYTES_MAX: usize = 2048;

    /// Parses `text`, the part of a path after the name of the stream and its `/`.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.len() > Self::BYTES_MAX {
            return Err(PathError::TooLong);
        }
        let (path, query) = match text.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (text, None),
        };
        let mut canonical = String::with_capacity(text.len());
        for component in path.split('/') {
            if !canonical.is_empty() {
                canonical.push('/');
            }
            canonical.extend(utf8_percent_encode(&decode(component)?, ENCODED));
        }
        let path_length = canonical.len();
        if let Some(query) = query {
            if !query
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'#')
            {
                return Err(PathError::Character);
            }
            canonical.push('?');
            canonical.push_str(query);
        }
        if canonical.len() > Self::BYTES_MAX {
            return Err(PathError::TooLong);
        }
        Ok(Self {
            text: canonical.into(),
            path_length,
        })
    }

    /// Path and query, percent-encoded, without a leading `/`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The path alone, percent-encoded.
    pub fn path(&self) -> &str {
        &self.text[..self.path_length]
    }

    /// The query without its `?`, if there is one.
    pub fn query(&self) -> Option<&str> {
        self.text.get(self.path_length + 1..)
    }

    /// The same path without its query.
    pub fn without_query(&self) -> Self {
        match self.query() {
            Some(_) => Self {
                text: self.path().into(),
                path_length: self.path_length,
            },
            None => self.clone(),
        }
    }

    /// The object's name if only these parameters of its query count: each once, in the order of
    /// the list.
    pub fn with_parameters(&self, parameters: &Parameters) -> Self {
        let (Parameters::Listed(names), Some(query)) = (parameters, self.query()) else {
            return self.clone();
        };
        let named = |name: &&String| {
            query
                .split('&')
                .find(|parameter| parameter.split('=').next() == Some(name.as_str()))
                .map(ToOwned::to_owned)
        };
        let kept: Vec<String> = names.iter().filter_map(|name| named(&name)).collect();
        let mut text = self.path().to_owned();
        if !kept.is_empty() {
            text.push('?');
            text.push_str(&kept.join("&"));
        }
        Self {
            text: text.into(),
            path_length: self.path_length,
        }
    }

    /// The components before the last `/`, percent-encoded; empty at the top of the stream.
    pub fn parent(&self) -> &str {
        self.path()
            .rsplit_once('/')
            .map_or("", |(parent, _)| parent)
    }

    /// The extension of the name, in lower case; empty if there is none.
    pub fn extension(&self) -> String {
        let name = self.path().rsplit('/').next().unwrap_or_default();
        name.rsplit_once('.')
            .map_or_else(String::new, |(_, extension)| extension.to_ascii_lowercase())
    }

    /// The path as a relative file name, decoded: plain components only.
    pub fn to_file(&self) -> PathBuf {
        self.path()
            .split('/')
            .map(|component| {
                percent_decode_str(component)
                    .decode_utf8_lossy()
                    .into_owned()
            })
            .collect()
    }

    /// The object's URL below `base`, which ends with `/`. Does not resolve relative references, by
    /// which `https:x/y` would be a URL of its own.
    pub fn to_url(&self, base: &Url) -> Option<Url> {
        let url = Url::parse(&format!("{base}{self}")).ok()?;
        let is_below = url.origin() == base.origin()
            && url
                .path()
                .strip_prefix(base.path())
                .is_some_and(|rest| !rest.is_empty());
        is_below.then_some(url)
    }

    /// The request for this object at an origin, as shown in logs.
    pub(crate) fn request(&self, base: &Url) -> String {
        format!(
            "GET {}",
            redacted(self.to_url(base).as_ref().unwrap_or(base).as_str())
        )
    }

    /// The object of a file below a folder, if its name is valid.
    pub fn from_file(file: &std::path::Path) -> Option<Self> {
        let mut text = String::new();
        for component in file.components() {
            let std::path::Component::Normal(name) = component else {
                return None;
            };
            if !text.is_empty() {
                text.push('/');
            }
            text.extend(utf8_percent_encode(name.to_str()?, ENCODED));
        }
        Self::parse(&text).ok()
    }
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

/// Decodes a component. Refuses one that changes its meaning with further rounds of decoding,
/// because some proxies decode twice.
fn decode(component: &str) -> Result<String, PathError> {
    if component.is_empty() {
        return Err(PathError::Empty);
    }
    if !is_well_encoded(component) {
        return Err(PathError::Encoding);
    }
    if component.contains('#') {
        return Err(PathError::Character);
    }
    check(component)?;
    let decoded = decode_once(component)?;
    let mut deeper = decoded.clone();
    check(&deeper)?;
    for _ in 0..DECODE_ROUNDS {
        if !deeper.contains('%') {
            return Ok(decoded);
        }
        let next = percent_decode_str(&deeper).decode_utf8_lossy().into_owned();
        check(&next)?;
        if next == deeper {
            return Ok(decoded);
        }
        deeper = next;
    }
    Err(PathError::Encoding)
}

fn decode_once(component: &str) -> Result<String, PathError> {
    percent_decode_str(component)
        .decode_utf8()
        .map(Into::into)
        .map_err(|_| PathError::Encoding)
}

fn check(component: &str) -> Result<(), PathError> {
    if component.chars().any(|c| c.is_control() || c == '\\') {
        return Err(PathError::Character);
    }
    // Servlet containers remove `;parameters` from a component first.
    let bare = component.split(';').next().unwrap_or_default();
    if component.contains('/') || bare == "." || bare == ".." {
        return Err(PathError::Escape);
    }
    Ok(())
}

fn is_well_encoded(component: &str) -> bool {
    let mut rest = component.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        match rest.get(at + 1..at + 3) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => rest = &rest[at + 3..],
            _ => return false,
        }
    }
    true
}

const DECODE_ROUNDS: usize = 4;

/// Everything except RFC 3986's `pchar`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_of_one_path_are_one_value() {
        let path = ObjectPath::parse("bunny/v0/seg%2d%31 a.ts?token=a/../b&x=%2e").unwrap();
        assert_eq!(path.as_str(), "bunny/v0/seg-1%20a.ts?token=a/../b&x=%2e");
        assert_eq!(
            path,
            ObjectPath::parse(
                "bunny/%7630/seg-1%20a.ts?token=a/../b&x=%2e"
                    .replace("%7630", "v0")
                    .as_str()
            )
            .unwrap()
        );
        assert_eq!(path.query(), Some("token=a/../b&x=%2e"));
        assert_eq!(path.path(), "bunny/v0/seg-1%20a.ts");
        assert_eq!(path.parent(), "bunny/v0");
        assert_eq!(path.extension(), "ts");
        assert_eq!(path.to_file(), PathBuf::from("bunny/v0/seg-1 a.ts"));
        assert_eq!(path.without_query().as_str(), "bunny/v0/seg-1%20a.ts");
        assert_eq!(
            ObjectPath::from_file(&path.to_file()),
            Some(path.without_query())
        );
    }

    #[test]
    fn parameters_that_do_not_count_are_no_part_of_a_name() {
        let listed = |names: &[&str]| {
            Parameters::new(
                &names
                    .iter()
                    .map(|name| (*name).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        let name = |text: &str, names: &[&str]| {
            ObjectPath::parse(text)
                .unwrap()
                .with_parameters(&listed(names))
                .to_string()
        };
        assert_eq!(name("a.ts?x=1&y", &["*"]), "a.ts?x=1&y");
        assert_eq!(name("a.ts?x=1&y", &[]), "a.ts");
        assert_eq!(
            name("a.ts?x=1&y=2&x=3&z", &["y", "x"]),
            "a.ts?y=2&x=1",
            "each once, in the order of the list"
        );
        assert_eq!(name("a.ts?xx=1&=x&&x", &["x"]), "a.ts?x");
        assert_eq!(name("a.ts?7", &["x"]), "a.ts");
        assert_eq!(
            ObjectPath::parse("a.ts?y")
                .unwrap()
                .with_parameters(&listed(&["x"]))
                .query(),
            None
        );
    }

    #[test]
    fn paths_out_of_the_stream_are_refused() {
        for text in [
            "..",
            ".",
            "../x",
            "a/../b",
            "a/./b",
            "%2e%2e/x",
            "a/%2E%2e/b",
            ".%2e/x",
            "a/..%2fb",
            "a%2f..%2fb",
            "a%2fb",
            "%252e%252e/x",
            "a/%25252e%25252e",
            "..%00",
            "..;/x",
            "..;a=b/x",
            "a/%2e%2e;x/b",
            "a%255c..",
            "%252f",
        ] {
            assert!(ObjectPath::parse(text).is_err(), "{text}");
        }
        for (text, error) in [
            ("", PathError::Empty),
            ("/a", PathError::Empty),
            ("a//b", PathError::Empty),
            ("a/", PathError::Empty),
            ("a\\b", PathError::Character),
            ("a%5cb", PathError::Character),
            ("a%00.ts", PathError::Character),
            ("a\0", PathError::Character),
            ("a\r\nHost: x", PathError::Character),
            ("a%0d%0a", PathError::Character),
            ("a#b", PathError::Character),
            ("a?b#c", PathError::Character),
            ("a?b c", PathError::Character),
            ("a%", PathError::Encoding),
            ("a%2", PathError::Encoding),
            ("a%zz", PathError::Encoding),
            ("a%ff", PathError::Encoding),
            ("a%25252525252525252525", PathError::Encoding),
        ] {
            assert_eq!(ObjectPath::parse(text), Err(error), "{text:?}");
        }
        assert_eq!(
            ObjectPath::parse(&"a".repeat(2049)),
            Err(PathError::TooLong)
        );
        assert_eq!(
            ObjectPath::parse(&"ü".repeat(1000)),
            Err(PathError::TooLong)
        );
    }

    #[test]
    fn odd_but_harmless_names_stay() {
        for text in [
            "...",
            "a..b",
            "..a",
            ".well-known",
            "100%25.ts",
            "a;v=1/b",
            "seg(1),x=y@z:w",
            "%C3%BC.ts",
        ] {
            assert_eq!(
                ObjectPath::parse(text).map(|path| path.as_str().to_owned()),
                Ok(text.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn no_path_leads_to_another_host() {
        let base = Url::parse("http://origin.test/base/").unwrap();
        for text in [
            "x/y.ts?q",
            "https:evil.test/x",
            "evil:x",
            "@evil.test/x",
            "a@b:80/c",
            "mailto:x",
        ] {
            let url = ObjectPath::parse(text).unwrap().to_url(&base).unwrap();
            assert_eq!(url.as_str(), format!("http://origin.test/base/{text}"));
        }
    }

    proptest! {
        #[test]
        fn what_is_accepted_stays_inside(text in "[a./%25eEfF\\\\;?#x0-9]{0,24}") {
            if let Ok(path) = ObjectPath::parse(&text) {
                let base = Url::parse("http://origin.test/base/").unwrap();
                prop_assert!(path.to_url(&base).is_some());
                prop_assert!(
                    path.to_file()
                        .components()
                        .all(|part| matches!(part, std::path::Component::Normal(_)))
                );
                prop_assert_eq!(ObjectPath::parse(path.as_str()), Ok(path));
            }
        }
    }
}
