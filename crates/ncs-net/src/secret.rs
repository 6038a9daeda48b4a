//! Secrets of the configuration, which are never shown.
//!
//! [`Secret`] shows [`HIDDEN`] through `Debug`, `Display` and `Serialize`. [`SecretUrl`] is a URL
//! as written; it shows only parts that the URL parser does not consider user, password, query
//! value or fragment. [`Setting`] is a secret text in the configuration, in a file or in an
//! environment variable. [`redacted`] does the same for texts from elsewhere, such as errors and
//! composed URLs.
//!
//! A printed configuration contains [`HIDDEN`] in place of its secrets, and is refused when loaded.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::{Position, Url};

use crate::files;
use crate::units;

/// Shown in place of a secret.
pub const HIDDEN: &str = "[hidden]";

/// A value that is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Hides a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, for its one use.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl<T> Serialize for Secret<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

/// A URL or a path as written; shown without user, password, query values and fragment.
///
/// If it is not a valid URL, or has an `@` after its host, only the scheme is shown: an unencoded
/// `/`, `?` or `#` in a password ends the host early, and the rest of the password follows.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// The URL as written, for connecting.
    pub fn expose(&self) -> &str {
        &self.0
    }

    fn shown(&self) -> String {
        let Self(text) = self;
        let is_path = text.starts_with('/') && !text.starts_with("//") && !text.contains("://");
        if is_path || !text.contains(['@', '?', '#']) {
            return text.clone();
        }
        match Url::parse(text) {
            Ok(url) if is_http(&url) && !url[Position::BeforePath..].contains('@') => {
                shown_url(&url)
            }
            _ => {
                let is = |scheme: &str| {
                    text.get(..scheme.len())
                        .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
                };
                let scheme = ["https://", "http://"]
                    .into_iter()
                    .find(|scheme| is(scheme))
                    .unwrap_or_default();
                format!("{scheme}{HIDDEN}")
            }
        }
    }
}

/// Whether a URL has the scheme http or https.
pub fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

fn shown_url(url: &Url) -> String {
    let mut shown = format!("{}://", url.scheme());
    if !url.username().is_empty() || url.password().is_some() {
        shown.push_str(HIDDEN);
        shown.push('@');
    }
    shown.push_str(&url[Position::BeforeHost..Position::AfterPath]);
    let pairs = url.query().into_iter().flat_map(|query| query.split('&'));
    for (number, pair) in pairs.enumerate() {
        shown.push(if number == 0 { '?' } else { '&' });
        if let Some((name, _)) = pair.split_once('=') {
            shown.push_str(name);
            shown.push('=');
        }
        shown.push_str(HIDDEN);
    }
    if url.fragment().is_some() {
        shown.push('#');
        shown.push_str(HIDDEN);
    }
    shown
}

impl From<String> for SecretUrl {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for SecretUrl {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown(), f)
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.shown())
    }
}

impl<'de> Deserialize<'de> for SecretUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer).map(|text| Self(text.0))
    }
}

/// A secret text: written in the configuration, or `{ file = "PATH" }`, or `{ env = "NAME" }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    place: Place,
    value: Secret<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Here,
    File(PathBuf),
    Environment(String),
}

impl Setting {
    /// Reads the text from its file or environment variable. `variable` looks up the latter.
    pub fn resolve<'a>(
        &mut self,
        variable: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<(), String> {
        self.value = match &mut self.place {
            Place::Here => return Ok(()),
            Place::File(path) => {
                *path = units::absolute(path);
                read(path)?
            }
            Place::Environment(name) => match variable(name).filter(|text| !text.is_empty()) {
                Some(text) => Secret::new(text.to_owned()),
                None => return Err(format!("the environment variable {name} is not set")),
            },
        };
        Ok(())
    }

    /// The text.
    pub const fn value(&self) -> &Secret<String> {
        &self.value
    }

    /// The file of the text, if it is in one.
    pub fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::File(path) => Some(path),
            Place::Here | Place::Environment(_) => None,
        }
    }
}

/// The text of a file, without the end of its line. Errors name the file, and quote nothing of it.
pub(crate) fn read(path: &Path) -> Result<Secret<String>, String> {
    let fail = |reason: String| format!("{}: {reason}", path.display());
    let bytes = files::read(path, FILE_BYTES_MAX).map_err(|error| fail(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| fail("not UTF-8".into()))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(fail("it is empty".into()));
    }
    Ok(Secret::new(text.to_owned()))
}

impl From<String> for Setting {
    fn from(text: String) -> Self {
        Self {
            place: Place::Here,
            value: Secret::new(text),
        }
    }
}

impl From<&str> for Setting {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (key, text) = match &self.place {
            Place::Here => return self.value.serialize(serializer),
            Place::File(path) => ("file", path.display().to_string()),
            Place::Environment(name) => ("env", name.clone()),
        };
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(key, &text)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SettingVisitor)
    }
}

/// Its errors do not quote the value, which may be the secret.
struct SettingVisitor;

impl<'de> Visitor<'de> for SettingVisitor {
    type Value = Setting;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SETTING)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Setting, E> {
        TextVisitor.visit_str(text).map(|text| text.0.into())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Setting, E> {
        Ok(number.to_string().into())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Setting, E> {
        Ok(number.to_string().into())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Setting, E> {
        Ok(value.to_string().into())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, _: A) -> Result<Setting, A::Error> {
        Err(de::Error::custom(format_args!("a list is not {SETTING}")))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Setting, A::Error> {
        let fail = || {
            de::Error::custom(format_args!(
                "a table must have either `file` or `env`: {SETTING}"
            ))
        };
        let mut place = None;
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value::<Text>()?.0;
            let next = match key.as_str() {
                "file" => Place::File(value.into()),
                "env" => Place::Environment(value),
                _ => return Err(fail()),
            };
            if place.replace(next).is_some() {
                return Err(fail());
            }
        }
        Ok(Setting {
            place: place.ok_or_else(fail)?,
            value: Secret::default(),
        })
    }
}

/// A text without [`HIDDEN`].
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        if text.contains(HIDDEN) {
            return Err(E::custom(format_args!(
                "replace {HIDDEN} with the secret: it was printed in its place"
            )));
        }
        Ok(Text(text.to_owned()))
    }
}

/// A text with the secrets in its URLs hidden: everything before the `@`, and every query value
/// that may be a token.
pub fn redacted(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>'))
            .unwrap_or(after.len());
        let (url, behind) = after.split_at(end);
        // A password may contain characters that end an authority; an unencoded one ends at the
        // last `@`.
        let authority = url.find(['?', '#']).unwrap_or(url.len());
        let first_slash = url.find('/').unwrap_or(authority).min(authority);
        let user_end = url[..first_slash].rfind('@').or_else(|| {
            let is_user = !url.starts_with('[')
                && url[..first_slash]
                    .split_once(':')
                    .is_some_and(|(_, port)| port.parse::<u16>().is_err());
            if is_user { url.rfind('@') } else { None }
        });
        let url = match user_end {
            Some(at) => {
                shown.push_str(HIDDEN);
                &url[at..]
            }
            None => url,
        };
        push_without_tokens(url, &mut shown);
        rest = behind;
    }
    shown.push_str(rest);
    shown
}

/// The path and query of an object, without values that may be tokens.
pub fn redacted_path(path: &str) -> String {
    let mut shown = String::with_capacity(path.len());
    push_without_tokens(path, &mut shown);
    shown
}

fn push_without_tokens(url: &str, shown: &mut String) {
    let Some((path, query)) = url.split_once('?') else {
        return shown.push_str(url);
    };
    shown.push_str(path);
    shown.push('?');
    for pair in query.split_inclusive(['&', ';', '#']) {
        let (pair, end) = match pair.char_indices().next_back() {
            Some((last, '&' | ';' | '#')) => pair.split_at(last),
            _ => (pair, ""),
        };
        match pair.split_once('=') {
            Some((name, value)) if !may_be_token(name, value) => {
                shown.push_str(name);
                shown.push('=');
                shown.push_str(value);
            }
            Some((name, _)) => {
                shown.push_str(name);
                shown.push('=');
                shown.push_str(HIDDEN);
            }
            None if pair.len() > SHORT => shown.push_str(HIDDEN),
            None => shown.push_str(pair),
        }
        shown.push_str(end);
    }
}

fn may_be_token(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    value.len() > SHORT || TOKEN_NAMES.iter().any(|part| name.contains(part))
}

/// Query values up to this length are shown, such as segment numbers, unless their name suggests a
/// token.
const SHORT: usize = 12;

/// Parts of the names of tokens.
const TOKEN_NAMES: [&str; 12] = [
    "token", "key", "sig", "pass", "pwd", "auth", "secret", "cred", "jwt", "hmac", "policy",
    "session",
];

const SETTING: &str = "a text, { file = \"PATH\" } or { env = \"NAME\" }";

/// Far above any header.
const FILE_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_shown() {
        let secret = Secret::new("hunter2".to_owned());
        for shown in [
            format!("{secret:?}"),
            format!("{secret:#?}"),
            secret.to_string(),
            serde_json::to_string(&secret).unwrap(),
        ] {
            assert!(
                shown.contains(HIDDEN) && !shown.contains("hunter2"),
                "{shown}"
            );
        }
        let setting = Setting::from("hunter2");
        for shown in [
            format!("{setting:?}"),
            serde_json::to_string(&setting).unwrap(),
            toml::Value::try_from(&setting).unwrap().to_string(),
        ] {
            assert!(
                shown.contains(HIDDEN) && !shown.contains("hunter2"),
                "{shown}"
            );
        }
        assert_eq!(setting.value().expose(), "hunter2");
    }

    #[test]
    fn texts_are_shown_without_the_credentials_of_their_urls() {
        for (text, shown) in [
            ("http://o.test/a/", "http://o.test/a/"),
            ("http://o.test:80/a/@b", "http://o.test:80/a/@b"),
            (
                "https://me:pw@o.test:8443/a",
                "https://[hidden]@o.test:8443/a",
            ),
            ("https://me@o.test", "https://[hidden]@o.test"),
            ("https://me:p/w@o.test/x", "https://[hidden]@o.test/x"),
            ("https://me:p@w@o.test/x", "https://[hidden]@o.test/x"),
            ("https://me:p#w@o.test/x", "https://[hidden]@o.test/x"),
            ("https://me:p?w@o.test/x", "https://[hidden]@o.test/x"),
            ("https://[::1]:81/x", "https://[::1]:81/x"),
            (
                "http://o/x?_HLS_msn=12&token=ab&b",
                "http://o/x?_HLS_msn=12&token=[hidden]&b",
            ),
            ("http://o/x?e=abcdefghijklmnop#f", "http://o/x?e=[hidden]#f"),
            ("http://o/x?abcdefghijklmnop", "http://o/x?[hidden]"),
            (
                "no (http://a:b@c/) \"ncs://d:e@f\" there",
                "no (http://[hidden]@c/) \"ncs://[hidden]@f\" there",
            ),
            ("/etc/keys.json", "/etc/keys.json"),
            ("http://me:pässwört@ö/", "http://[hidden]@ö/"),
            ("://", "://"),
            ("", ""),
        ] {
            assert_eq!(redacted(text), shown);
        }
        assert_eq!(
            redacted_path("a/b.ts?token=x&n=1"),
            "a/b.ts?token=[hidden]&n=1"
        );
    }

    #[test]
    fn a_url_is_shown_as_its_parser_reads_it() {
        for (url, shown) in [
            ("http://o.test:80/a", "http://o.test:80/a"),
            ("https://[::1]:81/x", "https://[::1]:81/x"),
            (
                "/run/credentials/ncserverd@live.service/keys.json",
                "/run/credentials/ncserverd@live.service/keys.json",
            ),
            (
                "https://me:pw@o.test:8443/a",
                "https://[hidden]@o.test:8443/a",
            ),
            ("https://me@o.test", "https://[hidden]@o.test/"),
            ("https://me:p@w@o.test/x", "https://[hidden]@o.test/x"),
            ("http:me:pw@o.test/", "http://[hidden]@o.test/"),
            ("http:/me:pw@o.test/", "http://[hidden]@o.test/"),
            (" HT\ttp:\\\\me:pw@o.test/", "http://[hidden]@o.test/"),
            (
                "https://o.test/jwks?pin=pw&a=&me#pw",
                "https://o.test/jwks?pin=[hidden]&a=[hidden]&[hidden]#[hidden]",
            ),
            // Characters that end the host may be inside of a password.
            ("https://me:p/w@o.test/x", "https://[hidden]"),
            ("https://me:p?w@o.test/x", "https://[hidden]"),
            ("https://me:p#w@o.test/x", "https://[hidden]"),
            ("HTTPS://me:12/pw@o.test/x", "https://[hidden]"),
            ("https://me:12?pw@o.test/x", "https://[hidden]"),
            ("https://me:12#pw@o.test/x", "https://[hidden]"),
            ("ftp://me:pw@o.test/", "[hidden]"),
            ("me:pw@o.test", "[hidden]"),
            ("//me:pw@o.test", "[hidden]"),
            ("/a/http://me:pw@o.test", "[hidden]"),
            ("", ""),
        ] {
            let secret = SecretUrl::from(url);
            let expected = format!("{shown:?}");
            assert_eq!(
                (secret.to_string(), format!("{secret:?}")),
                (shown.to_owned(), expected.clone()),
                "{url}"
            );
            assert_eq!(serde_json::to_string(&secret).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn a_setting_is_read_from_where_it_stands() {
        #[derive(Deserialize)]
        struct Held {
            value: Setting,
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth");
        std::fs::write(&file, "Bearer abc\r\n").unwrap();
        let read = |text: &str| {
            let mut setting = toml::from_str::<Held>(text)
                .map_err(|error| error.to_string())?
                .value;
            setting.resolve(|name| (name == "KEY").then_some("from there"))?;
            Ok::<_, String>(setting.value().expose().clone())
        };
        assert_eq!(read("value = \"here\"").unwrap(), "here");
        assert_eq!(read("value = 5").unwrap(), "5");
        assert_eq!(
            read(&format!("value = {{ file = {file:?} }}")).unwrap(),
            "Bearer abc"
        );
        assert_eq!(read("value = { env = \"KEY\" }").unwrap(), "from there");
        assert!(
            read("value = { env = \"NONE\" }")
                .unwrap_err()
                .contains("NONE")
        );
        std::fs::write(&file, "\n").unwrap();
        for text in [
            "value = [\"hunter2\"]".to_owned(),
            "value = { fil = \"hunter2\" }".to_owned(),
            "value = { env = \"hunter2\", file = \"hunter2\" }".to_owned(),
            "value = {}".to_owned(),
            format!("value = \"http://{HIDDEN}@o\""),
            format!("value = {{ file = {file:?} }}"),
            format!("value = {{ file = {:?} }}", folder.path()),
        ] {
            let error = read(&text).unwrap_err();
            assert!(
                !error.lines().last().unwrap_or_default().contains("hunter2"),
                "{text}: {error}"
            );
        }
    }
}
