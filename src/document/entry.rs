//! The form of the fleet's configuration in its store: a TOML document, and beside it what servers
//! alone can read.
//!
//! An operator writes a document as a part of a configuration file. What is secret in it is taken
//! out and sealed: keys that sign streams, headers for origins, and URLs with credentials. All
//! secrets are one text, under a key that is made for it, and that key is sealed to each server, so
//! that a hundred streams and a hundred servers are not ten thousand boxes. The text is bound to
//! the rest of the document: nobody can take it over into one that sends the headers elsewhere.
//!
//! What comes from the store is checked as if an enemy had written it. It names no file of a
//! server, because a stream would publish it, or a header tell it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::nesting;
use super::sealing::{self, KEY_BYTES, PrivateKey};
use crate::admission::keys::{KeySet, SET_BYTES_MAX};
use crate::cluster::beat::{Name, SealingKey};
use crate::integrity::signing::SigningKey;

/// The longest document, in bytes.
pub(super) const DOCUMENT_BYTES_MAX: usize = 192 << 10;
/// The longest entry of the store, in bytes: below the longest message that NATS takes unless it is
/// told otherwise, 1 MiB.
pub(super) const ENTRY_BYTES_MAX: usize = 960 << 10;
/// The form that this version writes, and the only one that it reads.
const FORM: u32 = 1;
/// What boxes are sealed for, and for nothing else.
const INFO: &[u8] = b"ncserverd fleet configuration 1";

/// A revision's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    form: u32,
    /// The document without its secrets.
    document: String,
    /// The JSON Web Key Set that admission takes, if the document had it in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<Sealed>,
    /// The revision that was taken up again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) repeats: Option<u64>,
}

/// Secrets that were sealed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Sealed {
    /// What they are, and the public half of a key.
    names: BTreeMap<String, String>,
    /// The text, in base 64.
    text: String,
    /// The text's key for each server.
    copies: BTreeMap<Name, Copy>,
}

/// The text's key for one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Copy {
    /// The server's key.
    to: SealingKey,
    /// The box, in base 64.
    sealed: String,
}

/// The secrets of a document.
#[derive(Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Secrets {
    /// `admission.keys`, if it is a URL with credentials.
    keys_url: Option<String>,
    /// The key set, if keys in it are secret.
    keys: Option<String>,
    streams: BTreeMap<String, StreamSecrets>,
}

#[derive(Default, PartialEq, Serialize, Deserialize)]
struct StreamSecrets {
    origin: Option<String>,
    headers: BTreeMap<String, String>,
    signing_key: Option<String>,
}

/// Why an entry is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error("it has {0} bytes, at most {ENTRY_BYTES_MAX}")]
    Long(usize),
    #[error("a document has at most {DOCUMENT_BYTES_MAX} bytes, this one {0}")]
    LongDocument(usize),
    #[error("not of the form that `ncserverd cluster apply` writes: {0}")]
    Form(String),
    #[error("it is of form {0}, and this version reads form {FORM}")]
    Version(u32),
    #[error(
        "it is nested more deeply than a configuration is, or a string or bracket is not closed"
    )]
    Deep,
    #[error("`{}` {}", .0.escape_debug(), .1)]
    Key(String, &'static str),
    #[error("the secrets are not sealed to this server: apply the configuration again")]
    NoCopy,
    #[error("the secrets were sealed to another key of this server: apply the configuration again")]
    OtherKey,
    #[error("the secrets cannot be opened: they were sealed for another document")]
    Shut,
}

/// A document as a server takes it.
#[derive(Debug)]
pub(super) struct Opened {
    /// Its TOML, with secrets, and with the paths of the files.
    pub(super) text: String,
    /// Files that it needs, by their names.
    pub(super) files: Vec<(String, Vec<u8>)>,
}

impl Entry {
    /// An entry without sealed secrets: the document that is `table`, where nothing is secret.
    pub(super) fn new(table: &Table, keys: Option<String>) -> Self {
        Self {
            form: FORM,
            document: table.to_string(),
            keys,
            sealed: None,
            repeats: None,
        }
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, Unfit> {
        let bytes = serde_json::to_vec(self).expect("an entry is texts and numbers");
        match bytes.len() {
            long if long > ENTRY_BYTES_MAX => Err(Unfit::Long(long)),
            _ => Ok(bytes),
        }
    }

    /// Reads and checks what came from the store.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, Unfit> {
        if bytes.len() > ENTRY_BYTES_MAX {
            return Err(Unfit::Long(bytes.len()));
        }
        let form = |error: serde_json::Error| Unfit::Form(error.to_string());
        #[derive(Deserialize)]
        struct Head {
            form: u32,
        }
        let head: Head = serde_json::from_slice(bytes).map_err(form)?;
        if head.form != FORM {
            return Err(Unfit::Version(head.form));
        }
        let entry: Self = serde_json::from_slice(bytes).map_err(form)?;
        let table = entry.table()?;
        check(&table, Written::InStore)?;
        for (name, public) in entry.sealed.iter().flat_map(|sealed| &sealed.names) {
            if !is_sealed_name(&table, name, public) {
                return Err(Unfit::Form("`sealed.names` names no secret".to_owned()));
            }
        }
        if let Some(keys) = &entry.keys {
            KeySet::parse(keys.as_bytes())
                .map_err(|error| Unfit::Form(format!("`admission.keys`: {error}")))?;
        }
        Ok(entry)
    }

    /// The document without its secrets.
    pub(super) fn table(&self) -> Result<Table, Unfit> {
        parse(&self.document)
    }

    /// The document as an operator may read it: secrets have words instead.
    pub(super) fn shown(&self) -> Result<Table, Unfit> {
        let mut table = self.table()?;
        if self.keys.is_some() {
            set(&mut table, &["admission", "keys"], SHOWN_KEYS);
        }
        for (name, public) in self.sealed.iter().flat_map(|sealed| &sealed.names) {
            let shown = match public.as_str() {
                "" => "[sealed]".to_owned(),
                public => format!("[sealed: {public}]"),
            };
            if let Some(key) = words(name) {
                set(&mut table, &key, &shown);
            }
        }
        Ok(table)
    }

    /// The key set in it.
    pub(super) fn keys(&self) -> Option<&str> {
        self.keys.as_deref()
    }

    /// The servers that its secrets are sealed to, and their keys; `None` if it has none.
    pub(super) fn recipients(&self) -> Option<BTreeMap<&Name, &SealingKey>> {
        let copies = &self.sealed.as_ref()?.copies;
        Some(copies.iter().map(|(name, copy)| (name, &copy.to)).collect())
    }

    /// Seals secrets to these servers. `random` gives 32 bytes that nobody can guess.
    pub(super) fn seal(
        &mut self,
        secrets: &Secrets,
        servers: &BTreeMap<Name, SealingKey>,
        mut random: impl FnMut() -> [u8; KEY_BYTES],
    ) {
        if *secrets == Secrets::default() {
            self.sealed = None;
            return;
        }
        let key = random();
        let copy = |(name, to): (&Name, &SealingKey)| {
            let sealed = sealing::seal_to(to, random(), &info(name), &key)?;
            let (to, sealed) = (to.clone(), STANDARD.encode(sealed));
            Some((name.clone(), Copy { to, sealed }))
        };
        let copies = servers.iter().filter_map(copy).collect();
        let names = secrets.names();
        let text = serde_json::to_vec(secrets).expect("secrets are texts");
        let text = sealing::seal_once(&key, &self.bound_to(&names), &text);
        self.sealed = Some(Sealed {
            names,
            text: STANDARD.encode(text),
            copies,
        });
    }

    /// The document for this server. `folder` is where its files are going to be.
    pub(super) fn open(
        &self,
        own: &Name,
        key: &PrivateKey,
        folder: &std::path::Path,
    ) -> Result<Opened, Unfit> {
        let mut table = self.table()?;
        let secrets = self.secrets(own, key)?;
        let mut files = Vec::new();
        let mut keep = |end: &str, bytes: &[u8]| {
            // The name says what is in it, so that another content is another key's value.
            let name = format!("{}.{end}", &blake3::hash(bytes).to_hex()[..32]);
            let path = folder.join(&name).display().to_string();
            files.push((name, bytes.to_vec()));
            path
        };
        if let Some(keys) = self.keys.as_ref().or(secrets.keys.as_ref()) {
            let path = keep("json", keys.as_bytes());
            set(&mut table, &["admission", "keys"], &path);
        }
        if let Some(url) = &secrets.keys_url {
            if !is_url(url) {
                return Err(Unfit::Key("admission.keys".to_owned(), NO_KEYS_URL));
            }
            set(&mut table, &["admission", "keys"], url);
        }
        let mut streams = table.get_mut("stream").and_then(Value::as_table_mut);
        for (name, secrets) in &secrets.streams {
            let stream = streams.as_mut().and_then(|streams| streams.get_mut(name));
            let Some(Value::Table(stream)) = stream else {
                return Err(Unfit::Shut);
            };
            if let Some(origin) = &secrets.origin {
                if !is_url(origin) {
                    let why = "is not the URL of an origin";
                    return Err(Unfit::Key(format!("stream.{name}.origin"), why));
                }
                stream.insert("origin".to_owned(), origin.as_str().into());
            }
            if let Some(pem) = &secrets.signing_key {
                let path = keep("pem", pem.as_bytes());
                stream.insert("signing_key".to_owned(), path.into());
            }
            if !secrets.headers.is_empty() {
                let headers = secrets.headers.iter();
                let headers: Table = headers
                    .map(|(header, text)| (header.clone(), text.as_str().into()))
                    .collect();
                stream.insert("headers".to_owned(), headers.into());
            }
        }
        // Sealed is what anybody has sealed: a server's public key is no secret.
        check(&table, Written::Opened)?;
        let text = table.to_string();
        Ok(Opened { text, files })
    }

    fn secrets(&self, own: &Name, key: &PrivateKey) -> Result<Secrets, Unfit> {
        let Some(sealed) = &self.sealed else {
            return Ok(Secrets::default());
        };
        let copy = sealed.copies.get(own).ok_or(Unfit::NoCopy)?;
        if copy.to != key.public() {
            return Err(Unfit::OtherKey);
        }
        let decode = |text: &str| STANDARD.decode(text).map_err(|_| Unfit::Shut);
        let text_key = key.open(&info(own), &decode(&copy.sealed)?);
        let text_key = text_key.and_then(|key| <[u8; KEY_BYTES]>::try_from(key).ok());
        let text_key = text_key.ok_or(Unfit::Shut)?;
        let bound_to = self.bound_to(&sealed.names);
        let text = sealing::open_once(&text_key, &bound_to, &decode(&sealed.text)?);
        let text = text.ok_or(Unfit::Shut)?;
        serde_json::from_slice(&text).map_err(|_| Unfit::Shut)
    }

    /// What the secrets belong to.
    fn bound_to(&self, names: &BTreeMap<String, String>) -> [u8; 32] {
        let whole = (&self.document, &self.keys, names);
        let whole = serde_json::to_vec(&whole).expect("these are texts");
        *blake3::hash(&whole).as_bytes()
    }
}

/// The box of one server is not taken for that of another.
fn info(server: &Name) -> Vec<u8> {
    [INFO, b" ", server.as_str().as_bytes()].concat()
}

impl Secrets {
    /// `admission.keys`, a URL with credentials.
    pub(super) fn set_keys_url(&mut self, url: &str) {
        self.keys_url = Some(url.to_owned());
    }

    /// The key set of admission, with keys that are secret.
    pub(super) fn set_keys(&mut self, set: &str) {
        self.keys = Some(set.to_owned());
    }

    /// The URL of a stream's origin, with credentials.
    pub(super) fn set_origin(&mut self, stream: &str, url: &str) {
        self.stream(stream).origin = Some(url.to_owned());
    }

    /// A header for the origin of a stream.
    pub(super) fn set_header(&mut self, stream: &str, header: &str, text: &str) {
        let headers = &mut self.stream(stream).headers;
        headers.insert(header.to_owned(), text.to_owned());
    }

    /// The key that signs a stream, in PEM.
    pub(super) fn set_signing_key(&mut self, stream: &str, pem: &str) {
        self.stream(stream).signing_key = Some(pem.to_owned());
    }

    fn stream(&mut self, stream: &str) -> &mut StreamSecrets {
        self.streams.entry(stream.to_owned()).or_default()
    }

    /// What may be known of them.
    fn names(&self) -> BTreeMap<String, String> {
        let mut names = BTreeMap::new();
        if self.keys.is_some() || self.keys_url.is_some() {
            names.insert("admission.keys".to_owned(), String::new());
        }
        for (stream, secrets) in &self.streams {
            let mut add = |key: &str, public: String| {
                names.insert(format!("stream.{stream}.{key}"), public);
            };
            if secrets.origin.is_some() {
                add("origin", String::new());
            }
            let headers = secrets.headers.keys();
            headers.for_each(|header| add(&format!("headers.{header}"), String::new()));
            if let Some(pem) = &secrets.signing_key {
                let public = SigningKey::from_pem(pem.as_bytes());
                add(
                    "signing_key",
                    public.map_or_else(|_| String::new(), |key| key.public().to_string()),
                );
            }
        }
        names
    }
}

/// Who has written a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// An operator, on the machine where it is applied.
    ByOperator,
    /// Whoever may write to the store.
    InStore,
    /// The same, with what was sealed, and the paths of files that this server has written.
    Opened,
}

/// Parses a document.
pub(super) fn parse(text: &str) -> Result<Table, Unfit> {
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(Unfit::LongDocument(text.len()));
    }
    if !nesting::is_flat(text) {
        return Err(Unfit::Deep);
    }
    // The whole message would quote the line, which may hold a secret.
    toml::from_str(text).map_err(|error| Unfit::Form(error.message().to_owned()))
}

/// Refuses what is a server's own.
pub(super) fn check(table: &Table, written: Written) -> Result<(), Unfit> {
    let refuse = |key: String, why: &'static str| Err(Unfit::Key(key, why));
    for (section, value) in table {
        match (section.as_str(), value) {
            ("stream" | "admission", Value::Table(_)) => {}
            ("stream" | "admission", _) => return refuse(section.clone(), "must be a table"),
            _ => return refuse(section.clone(), NOT_SHARED),
        }
    }
    let section = |name: &str| table.get(name).and_then(Value::as_table);
    for (key, value) in section("admission").into_iter().flatten() {
        let name = || format!("admission.{key}");
        if !ADMISSION.contains(&key.as_str()) {
            return refuse(name(), NOT_SHARED);
        }
        let is_text_url = || value.as_str().is_some_and(is_url);
        if key == "keys" && written == Written::InStore && !is_text_url() {
            return refuse(name(), NO_KEYS_URL);
        }
    }
    for (stream, value) in section("stream").into_iter().flatten() {
        let Value::Table(keys) = value else {
            return refuse(format!("stream.{stream}"), "must be a table");
        };
        if keys.contains_key("directory") {
            let why = "cannot be shared, because a folder is a server's own: set it in the file of \
                       each server";
            return refuse(format!("stream.{stream}.directory"), why);
        }
        let sealed = SEALED.iter().find(|key| keys.contains_key(**key));
        if let (Some(key), Written::InStore) = (sealed, written) {
            return refuse(format!("stream.{stream}.{key}"), "has to be sealed");
        }
    }
    Ok(())
}

fn is_url(text: &str) -> bool {
    let url = url::Url::parse(text);
    url.is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

/// The parts of a key that `Secrets::names` writes; `None` if it writes no such key. The name of a
/// header may have dots in it.
fn words(key: &str) -> Option<Vec<&str>> {
    if key == "admission.keys" {
        return Some(vec!["admission", "keys"]);
    }
    let (stream, rest) = key.strip_prefix("stream.")?.split_once('.')?;
    match rest {
        "origin" | "signing_key" => Some(vec!["stream", stream, rest]),
        _ => {
            let header = rest.strip_prefix("headers.")?;
            let is_name = header.len() <= HEADER_NAME_MAX
                && reqwest::header::HeaderName::from_bytes(header.as_bytes()).is_ok();
            is_name.then(|| vec!["stream", stream, "headers", header])
        }
    }
}

/// Whether `Secrets::names` writes this of secrets of this document.
fn is_sealed_name(table: &Table, name: &str, public: &str) -> bool {
    let Some(key) = words(name) else {
        return false;
    };
    let is_there = match key.as_slice() {
        ["stream", stream, ..] => table
            .get("stream")
            .and_then(|streams| streams.get(stream))
            .is_some(),
        _ => true,
    };
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_key = || public.len() == 64 && public.bytes().all(is_hex);
    is_there && (public.is_empty() || (key.last() == Some(&"signing_key") && is_key()))
}

/// Sets a key, with the tables that it is in.
fn set(table: &mut Table, key: &[&str], value: &str) {
    let Some((last, tables)) = key.split_last() else {
        return;
    };
    let mut table = table;
    for name in tables {
        let next = table.entry(*name).or_insert_with(|| Table::new().into());
        let Value::Table(next) = next else { return };
        table = next;
    }
    table.insert((*last).to_owned(), value.into());
}

const NO_KEYS_URL: &str = "is not the URL of a key set";
/// A set has room in an entry.
const _: () = assert!(SET_BYTES_MAX < ENTRY_BYTES_MAX);
const NOT_SHARED: &str = "cannot be shared: it needs a restart, or is a server's own; set it in \
                          the file of each server";
/// What servers may share of admission. Whether everybody is admitted is a server's own decision.
const ADMISSION: [&str; 9] = [
    "address_bytes_per_second",
    "address_connections_max",
    "audience",
    "grace",
    "keys",
    "leeway",
    "refresh",
    "token_bytes_per_second",
    "token_connections_max",
];
/// What of a stream is secret.
const SEALED: [&str; 2] = ["headers", "signing_key"];
/// Far above the name of any header.
const HEADER_NAME_MAX: usize = 256;
const SHOWN_KEYS: &str = "[a key set in the store]";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const STREAM: &str = "[stream.live]\norigin = \"https://origin.example/\"\n";

    fn sealed_to(servers: &[(&str, &PrivateKey)]) -> Entry {
        let mut entry = Entry::new(&parse(STREAM).unwrap(), None);
        let mut secrets = Secrets::default();
        secrets.set_header("live", "authorization", "Bearer hidden");
        let servers = servers.iter();
        let servers = servers
            .map(|(name, key)| (name.parse().unwrap(), key.public()))
            .collect();
        let mut next = 100;
        entry.seal(&secrets, &servers, || {
            next += 1;
            [next; KEY_BYTES]
        });
        entry
    }

    #[test]
    fn an_entry_opens_for_those_that_it_is_sealed_to() {
        let [one, two] = [1, 2].map(|byte| PrivateKey::of([byte; KEY_BYTES]));
        let entry = sealed_to(&[("one", &one)]);
        let bytes = entry.to_bytes().unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("hidden"));
        let read = Entry::from_bytes(&bytes).unwrap();
        assert_eq!(read, entry);
        let name = |text: &str| text.parse::<Name>().unwrap();
        let opened = read.open(&name("one"), &one, Path::new("/x")).unwrap();
        assert!(opened.text.contains("Bearer hidden"), "{}", opened.text);
        let refused = |own: &str, key| read.open(&name(own), key, Path::new("/x")).unwrap_err();
        assert_eq!(refused("two", &two), Unfit::NoCopy);
        assert_eq!(refused("one", &two), Unfit::OtherKey);
        let shown = read.shown().unwrap().to_string();
        assert!(shown.contains("authorization = \"[sealed]\""), "{shown}");
    }

    /// Who may write to the store cannot have a server send its headers elsewhere.
    #[test]
    fn secrets_belong_to_their_document() {
        let one = PrivateKey::of([1; KEY_BYTES]);
        let entry = sealed_to(&[("one", &one)]);
        let mut bent = entry.clone();
        bent.document = bent.document.replace("origin.example", "evil.example");
        let open = |entry: &Entry| entry.open(&"one".parse().unwrap(), &one, Path::new("/x"));
        assert_eq!(open(&bent).unwrap_err(), Unfit::Shut);
        bent = entry.clone();
        bent.keys = Some("{}".to_owned());
        assert_eq!(open(&bent).unwrap_err(), Unfit::Shut);
        // A revision that is taken up again is the same document.
        bent = entry;
        bent.repeats = Some(3);
        assert!(open(&bent).is_ok());
    }

    /// Anybody may seal something to a server.
    #[test]
    fn what_was_sealed_is_checked_too() {
        let one = PrivateKey::of([1; KEY_BYTES]);
        let open = |secrets: &Secrets| {
            let mut entry = Entry::new(&parse(STREAM).unwrap(), None);
            let servers = BTreeMap::from([("one".parse().unwrap(), one.public())]);
            entry.seal(secrets, &servers, || [7; KEY_BYTES]);
            entry.open(&"one".parse().unwrap(), &one, Path::new("/x"))
        };
        let keys = |url: &str| {
            let mut secrets = Secrets::default();
            secrets.set_keys_url(url);
            open(&secrets)
        };
        let origin = |url: &str| {
            let mut secrets = Secrets::default();
            secrets.set_origin("live", url);
            open(&secrets)
        };
        assert!(keys("https://a:b@keys.example/").is_ok());
        assert!(origin("http://a:b@origin.example/").is_ok());
        for text in ["/etc/passwd", "file:///etc/passwd", "etc", ""] {
            for opened in [keys(text), origin(text)] {
                assert!(matches!(opened, Err(Unfit::Key(..))), "{text}");
            }
        }
    }

    #[test]
    fn keys_are_put_into_files_that_are_named_after_them() {
        let one = PrivateKey::of([1; KEY_BYTES]);
        let open = |pem: &str| {
            let mut entry = Entry::new(&parse(STREAM).unwrap(), None);
            let mut secrets = Secrets::default();
            secrets.set_signing_key("live", pem);
            let servers = BTreeMap::from([("one".parse().unwrap(), one.public())]);
            entry.seal(&secrets, &servers, || [7; KEY_BYTES]);
            entry
                .open(&"one".parse().unwrap(), &one, Path::new("/keys"))
                .unwrap()
        };
        let (opened, other) = (open("a key"), open("another key"));
        let [(name, bytes)] = opened.files.as_slice() else {
            panic!("{opened:?}");
        };
        assert_eq!(bytes, b"a key");
        assert!(
            opened.text.contains(&format!("\"/keys/{name}\"")),
            "{}",
            opened.text
        );
        assert_ne!(other.files[0].0, *name);
    }

    #[test]
    fn what_is_a_servers_own_is_refused() {
        for (text, key) in [
            ("[server]\ndrain_timeout = \"1s\"", "server"),
            ("[endpoint]\nlisten = \"[::]:1\"", "endpoint"),
            ("[cluster]\nengine = \"none\"", "cluster"),
            ("[tls]", "tls"),
            ("[admission]\ninsecure = true", "admission.insecure"),
            ("[admission]\nrequired = false", "admission.required"),
            ("[admission]\nclients_ca = \"/a\"", "admission.clients_ca"),
            ("[stream.a]\ndirectory = \"/etc\"", "stream.a.directory"),
            ("[stream]\na = 1", "stream.a"),
            ("stream = 1", "stream"),
            ("[[stream]]", "stream"),
        ] {
            for written in [Written::ByOperator, Written::InStore] {
                let refused = check(&parse(text).unwrap(), written).unwrap_err();
                assert!(
                    matches!(&refused, Unfit::Key(found, _) if found == key),
                    "{refused}"
                );
            }
        }
        for text in [
            "[admission]\nkeys = \"/etc/passwd\"",
            "[stream.a]\nsigning_key = \"/a\"",
            "[stream.a.headers]\nx = { file = \"/etc/passwd\" }",
            "[stream.a]\nheaders = 1",
        ] {
            let table = parse(text).unwrap();
            assert_eq!(check(&table, Written::ByOperator), Ok(()), "{text}");
            assert!(check(&table, Written::InStore).is_err(), "{text}");
        }
        let table = parse("[admission]\nkeys = \"https://keys.example/\"").unwrap();
        assert_eq!(check(&table, Written::InStore), Ok(()));
    }

    #[test]
    fn names_that_nobody_writes_are_refused() {
        let one = PrivateKey::of([1; KEY_BYTES]);
        let read = |name: &str, public: &str| {
            let mut entry = sealed_to(&[("one", &one)]);
            let names = &mut entry.sealed.as_mut().unwrap().names;
            names.insert(name.to_owned(), public.to_owned());
            let read = Entry::from_bytes(&entry.to_bytes().unwrap());
            read.map(|entry| entry.shown().unwrap().to_string())
        };
        let key = "a1".repeat(32);
        for (name, public) in [
            ("admission.keys", ""),
            ("stream.live.origin", ""),
            ("stream.live.signing_key", ""),
            ("stream.live.signing_key", key.as_str()),
        ] {
            assert!(read(name, public).is_ok(), "{name}");
        }
        let shown = read("stream.live.headers.x.y", "").unwrap();
        assert!(shown.contains("\"x.y\" = \"[sealed]\""), "{shown}");
        for (name, public) in [
            (".".repeat(400_000).as_str(), ""),
            (
                format!("stream.live.headers.{}", "x".repeat(400_000)).as_str(),
                "",
            ),
            ("", ""),
            ("stream", ""),
            ("stream.live", ""),
            ("stream.live.headers", ""),
            ("stream.live.headers.", ""),
            ("stream.live.directory", ""),
            ("stream.live.origin.more", ""),
            ("stream.other.origin", ""),
            ("cluster.name", ""),
            ("admission.keys", "public"),
            ("stream.live.origin", key.as_str()),
            ("stream.live.signing_key", "words"),
        ] {
            assert!(
                matches!(read(name, public), Err(Unfit::Form(_))),
                "{name:.40}"
            );
        }
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        let entry = |document: &str| {
            let json = serde_json::json!({ "form": 1, "document": document });
            Entry::from_bytes(json.to_string().as_bytes())
        };
        assert!(entry("").is_ok());
        for document in ["[", "[cluster]", "[stream.a]\ndirectory = \"/\""] {
            assert!(entry(document).is_err(), "{document}");
        }
        let deep = format!("a={}1{}", "{a.a.a.a=".repeat(70), "}".repeat(70));
        assert_eq!(entry(&deep), Err(Unfit::Deep));
        let long = format!("#{}", "x".repeat(DOCUMENT_BYTES_MAX));
        assert_eq!(entry(&long), Err(Unfit::LongDocument(long.len())));
        for bytes in [
            &b""[..],
            b"{}",
            b"[1]",
            b"\xff",
            b"{\"form\":1}",
            &[b'['; 10_000],
        ] {
            assert!(matches!(Entry::from_bytes(bytes), Err(Unfit::Form(_))));
        }
        let newer = b"{\"form\":2,\"documents\":[]}";
        assert_eq!(Entry::from_bytes(newer), Err(Unfit::Version(2)));
        let long = vec![b' '; ENTRY_BYTES_MAX + 1];
        assert_eq!(Entry::from_bytes(&long), Err(Unfit::Long(long.len())));
        let keys = b"{\"form\":1,\"document\":\"\",\"keys\":\"{}\"}";
        assert!(Entry::from_bytes(keys).is_err());
    }
}
