//! What a server tells the others of its fleet, every two seconds.
//!
//! A beat is a JSON object, which an operator can read with any client of the engine. Its sender
//! may be of another version: members that this version does not know are skipped, and those that
//! it does know are checked, because names become labels of metrics and words of logs.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use ncs_proto::hex;
use ncs_proto::wire::message::{Alternate, SERVER_ADDRESS_MAX, is_server_address};
use ncs_serve::fleet;
use ncs_serve::headroom::Usage;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::tls::Fingerprint;

/// The longest beat that is read, in bytes.
pub const BYTES_MAX: usize = 4096;
/// Most addresses in a beat.
pub const ADDRESSES_MAX: usize = 8;
/// The longest wait, in seconds.
const WAIT_MAX_S: f64 = 3600.0;
/// The latest time of an answer that is told: the last moment of the year 9999, in milliseconds
/// since 1970.
const TIME_MAX_MS: u64 = 253_402_300_799_999;
/// The longest name and version, in bytes.
const NAME_MAX: usize = 64;
/// Digits of the hash of a configuration, and of that of streams.
const HASH_DIGITS: usize = 16;
/// Most streams whose marks a beat has, and the digits of each.
pub const MARKS_MAX: usize = 128;
const MARK_DIGITS: usize = 8;

/// A server's state as it tells it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// The server's name, unique in the fleet.
    pub server: Name,
    /// When its process started, in milliseconds since 1970, by its own clock. Of two processes
    /// with one name, the later one counts.
    pub started_ms: u64,
    /// Rises with each beat of the process.
    pub sequence: u64,
    /// Where peers reach it.
    pub addresses: Vec<Address>,
    /// The certificate that it shows to peers, as 64 hexadecimal digits in lower case.
    #[serde(serialize_with = "write_digits", deserialize_with = "read_digits")]
    pub fingerprint: Fingerprint,
    /// What it is for web pages; nothing if it serves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<Pages>,
    /// The part of the network that it is in.
    pub zone: Name,
    /// Its streams; nothing if an older version does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamsHash>,
    /// The marks of its streams; nothing if an older version does not say, or there are more than
    /// [`MARKS_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_marks: Option<StreamMarks>,
    /// Its version of the program.
    pub version: Version,
    /// What it does for viewers now.
    pub load: Load,
    /// The time with which it issues answers now, in milliseconds since 1970; nothing if it has
    /// issued none. Who has issued none either goes by that of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<u64>,
    /// Whether it takes no newcomers because it is going to end.
    #[serde(default)]
    pub is_draining: bool,
    /// Whether this is its last beat.
    #[serde(default)]
    pub is_last: bool,
    /// Whether it takes messages from other servers, and so counts with them.
    #[serde(default)]
    pub takes_messages: bool,
    /// The revision of the fleet's configuration that is in force there, 0 if none is; nothing if
    /// it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<u64>,
    /// The hash of that revision: numbers begin anew with a store that was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<ConfigHash>,
    /// The key to which secrets of that configuration are sealed for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealing_key: Option<SealingKey>,
}

/// How web pages reach a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// The certificate that it shows to pages, if no authority has signed it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "write_some_digits",
        deserialize_with = "read_some_digits"
    )]
    pub fingerprint: Option<Fingerprint>,
}

/// The part of a server's state that changes from beat to beat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// Its load.
    pub load: Load,
    /// The names of its streams.
    pub streams: Vec<String>,
    /// The time with which it issues answers, in milliseconds since 1970; nothing if it has issued
    /// none.
    pub time_ms: Option<u64>,
}

impl State {
    /// The time as it is told, which is in a calendar.
    pub(super) fn told_time_ms(&self) -> Option<u64> {
        self.time_ms.map(|time_ms| time_ms.min(TIME_MAX_MS))
    }
}

/// How much of a server is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Viewers that are connected to it.
    pub viewers: u32,
    /// Connections that it takes at most.
    pub viewers_max: u32,
    /// The busy share of its threads' time, 0 to 1.
    pub busy: f64,
    /// Seconds that requested blocks wait until they can be sent.
    pub wait_s: f64,
    /// Whether it takes no newcomers: it has no place, or blocks wait for too long.
    pub is_full: bool,
}

impl Load {
    /// The load of a server that has so many viewers, and takes so many. `is_full`: all its places
    /// are taken.
    pub fn of(usage: Usage, viewers: u32, viewers_max: u32, is_full: bool) -> Self {
        Self {
            viewers,
            viewers_max,
            busy: usage.busy.clamp(0.0, 1.0),
            wait_s: usage.wait_s.clamp(0.0, WAIT_MAX_S),
            is_full: usage.is_short || is_full,
        }
    }
}

/// Why bytes are no beat.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Too many bytes.
    #[error("{0} bytes, at most {BYTES_MAX}")]
    Long(usize),
    /// No JSON of this form.
    #[error("{0}")]
    Form(String),
}

impl Beat {
    /// The beat as JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a beat is texts and finite numbers")
    }

    /// Reads a beat.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unfit> {
        if bytes.len() > BYTES_MAX {
            return Err(Unfit::Long(bytes.len()));
        }
        let beat: Self =
            serde_json::from_slice(bytes).map_err(|error| Unfit::Form(error.to_string()))?;
        let Load { busy, wait_s, .. } = beat.load;
        if !(0.0..=1.0).contains(&busy) || !(0.0..=WAIT_MAX_S).contains(&wait_s) {
            return Err(Unfit::Form("a share or a time is out of range".to_owned()));
        }
        if beat.time_ms.is_some_and(|time_ms| time_ms > TIME_MAX_MS) {
            return Err(Unfit::Form(
                "it issues answers after the year 9999".to_owned(),
            ));
        }
        if beat.addresses.len() > ADDRESSES_MAX {
            let count = beat.addresses.len();
            let reason = format!("{count} addresses, at most {ADDRESSES_MAX}");
            return Err(Unfit::Form(reason));
        }
        Ok(beat)
    }

    /// The server as sessions know it, if this came at `heard_at`; `None` if viewers cannot reach
    /// it.
    pub fn member(&self, heard_at: Instant) -> Option<fleet::Member> {
        let address = self.addresses.first()?;
        let server = |fingerprint: Option<Fingerprint>| Alternate {
            address: address.to_string(),
            identity: fingerprint.map(|fingerprint| *fingerprint.as_bytes()),
        };
        Some(fleet::Member {
            name: self.server.to_string(),
            zone: self.zone.to_string(),
            streams: self.streams.as_ref().map(ToString::to_string),
            marks: self.stream_marks.as_ref().map(StreamMarks::numbers),
            server: server(Some(self.fingerprint)),
            page_server: self.pages.as_ref().map(|pages| server(pages.fingerprint)),
            viewers: self.load.viewers,
            viewers_max: self.load.viewers_max,
            is_open: !self.is_draining && !self.load.is_full,
            is_leaving: self.is_draining,
            beat: (self.started_ms, self.sequence),
            time: self.time_ms.map(|time_ms| (heard_at, time_ms)),
        })
    }
}

fn write_digits<S: Serializer>(
    fingerprint: &Fingerprint,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(fingerprint)
}

fn write_some_digits<S: Serializer>(
    fingerprint: &Option<Fingerprint>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match fingerprint {
        Some(fingerprint) => write_digits(fingerprint, serializer),
        None => serializer.serialize_none(),
    }
}

fn read_some_digits<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Fingerprint>, D::Error> {
    read_digits(deserializer).map(Some)
}

/// Reads a fingerprint in the form in which it is written, and in no other.
fn read_digits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fingerprint, D::Error> {
    let text = String::deserialize(deserializer)?;
    let fingerprint = text.parse::<Fingerprint>().map_err(D::Error::custom)?;
    if fingerprint.to_string() == text {
        Ok(fingerprint)
    } else {
        Err(D::Error::custom(
            "a fingerprint has 64 hexadecimal digits in lower case",
        ))
    }
}

/// A text of one kind, checked where it comes from.
macro_rules! text {
    ($(#[$meta:meta])* $name:ident, $check:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $check(text).map(|()| Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                $check(&text).map(|()| Self(text))
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text!(
    /// The name of a server or a zone: 1 to 64 letters, digits, `-` and `_`, so that it is one word
    /// of a subject, a label and a log.
    Name,
    check_name
);
text!(
    /// Where peers reach a server: a host name or an address, and a port, as in `ncs://`.
    Address,
    check_address
);
text!(
    /// A version of the program.
    Version,
    check_version
);
text!(
    /// The public half of a key that secrets are sealed to (X25519): 64 hexadecimal digits in lower
    /// case.
    SealingKey,
    check_sealing_key
);

text!(
    /// What tells a revision of the fleet's configuration from all others: the first bytes of the
    /// BLAKE3 of what is stored, as 16 hexadecimal digits in lower case.
    ConfigHash,
    check_hash
);

text!(
    /// Identifies a set of streams: the first bytes of the BLAKE3 of their names, as 16 hexadecimal
    /// digits in lower case.
    StreamsHash,
    check_hash
);

impl StreamsHash {
    /// The hash of streams of these names, whose order does not matter.
    pub fn of(names: &[String]) -> Self {
        let mut hasher = blake3::Hasher::new();
        // A name is one part of a path.
        for name in names.iter().collect::<BTreeSet<_>>() {
            hasher.update(name.as_bytes()).update(b"/");
        }
        Self(hasher.finalize().to_hex()[..HASH_DIGITS].to_owned())
    }
}

impl ConfigHash {
    /// The hash of a revision as it is stored.
    pub fn of(bytes: &[u8]) -> Self {
        let digits = blake3::hash(bytes).to_hex();
        Self(digits[..HASH_DIGITS].to_owned())
    }

    /// Its first six bytes as a number, which a metric holds exactly.
    pub fn number(&self) -> i64 {
        i64::from_str_radix(&self.0[..12], 16).expect("it was checked")
    }
}

impl SealingKey {
    /// The key of these bytes.
    pub fn of(bytes: &[u8; 32]) -> Self {
        Self(hex::text(bytes))
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; 32] {
        hex::bytes(&self.0).expect("it was checked")
    }
}

text!(
    /// The marks of streams ([`fleet::mark`]), each as 8 hexadecimal digits in lower case, in
    /// rising order.
    StreamMarks,
    check_marks
);

impl StreamMarks {
    /// Those of streams of these names; nothing if there are more than [`MARKS_MAX`].
    pub fn of(names: &[String]) -> Option<Self> {
        let marks: BTreeSet<u32> = names.iter().map(|name| fleet::mark(name)).collect();
        (marks.len() <= MARKS_MAX).then(|| {
            let digits = marks.iter().map(|mark| format!("{mark:08x}"));
            Self(digits.collect())
        })
    }

    /// The marks as numbers.
    fn numbers(&self) -> Vec<u32> {
        let digits = self.0.as_bytes().chunks(MARK_DIGITS);
        let number = |digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        digits.filter_map(number).collect()
    }
}

fn check_marks(text: &str) -> Result<(), String> {
    let expected = || format!("marks of streams are {MARK_DIGITS} digits each, in rising order");
    let count = text.len() / MARK_DIGITS;
    if count > MARKS_MAX {
        return Err(format!("{count} marks of streams, at most {MARKS_MAX}"));
    }
    check_digits(text, count * MARK_DIGITS).map_err(|_| expected())?;
    let marks = text.as_bytes().chunks(MARK_DIGITS);
    // All have as many digits, so they are in the order of their numbers.
    marks
        .is_sorted_by(|a, b| a < b)
        .then_some(())
        .ok_or_else(expected)
}

fn check_name(text: &str) -> Result<(), String> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(is_fit) {
        Ok(())
    } else {
        let shown: String = text.chars().take(NAME_MAX).collect();
        Err(format!(
            "`{}` is no name: 1 to {NAME_MAX} letters, digits, `-` and `_`",
            shown.escape_debug()
        ))
    }
}

fn check_address(text: &str) -> Result<(), String> {
    if is_server_address(text) {
        return Ok(());
    }
    let shown: String = text.chars().take(SERVER_ADDRESS_MAX).collect();
    let shown = shown.escape_debug();
    Err(format!(
        "`{shown}` is no address such as media.example:4443"
    ))
}

fn check_version(text: &str) -> Result<(), String> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
    if (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(is_fit) {
        Ok(())
    } else {
        Err("a version has letters, digits, `.`, `+` and `-`".to_owned())
    }
}

fn check_sealing_key(text: &str) -> Result<(), String> {
    check_digits(text, 64).map_err(|digits| format!("a key has {digits}"))
}

fn check_hash(text: &str) -> Result<(), String> {
    check_digits(text, HASH_DIGITS).map_err(|digits| format!("a hash has {digits}"))
}

fn check_digits(text: &str, count: usize) -> Result<(), String> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() == count && text.bytes().all(is_digit) {
        Ok(())
    } else {
        Err(format!("{count} hexadecimal digits in lower case"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The first beat of an idle server of this name.
    pub(crate) fn beat(server: &str) -> Beat {
        Beat {
            server: server.parse().unwrap(),
            started_ms: 1_800_000_000_000,
            sequence: 0,
            addresses: vec![format!("{server}.example:4443").parse().unwrap()],
            fingerprint: "0f".repeat(32).parse().unwrap(),
            pages: None,
            zone: "east".parse().unwrap(),
            streams: None,
            stream_marks: None,
            version: "0.1.0".parse().unwrap(),
            load: Load {
                viewers_max: 1000,
                ..Load::default()
            },
            time_ms: None,
            is_draining: false,
            is_last: false,
            config: None,
            config_hash: None,
            sealing_key: None,
            takes_messages: false,
        }
    }

    #[test]
    fn a_beat_is_read_as_it_was_written() {
        let beat = Beat {
            load: Load {
                viewers: 34_999,
                viewers_max: 35_000,
                busy: 0.75,
                wait_s: 0.002,
                is_full: true,
            },
            time_ms: Some(TIME_MAX_MS),
            is_draining: true,
            takes_messages: true,
            ..beat("a-1")
        };
        let fingerprint = "f0".repeat(32).parse().unwrap();
        for pages in [None, Some(None), Some(Some(fingerprint))] {
            let pages = pages.map(|fingerprint| Pages { fingerprint });
            let beat = Beat {
                pages,
                ..beat.clone()
            };
            let bytes = beat.to_bytes();
            assert!(bytes.len() < 600, "{}", bytes.len());
            assert_eq!(Beat::from_bytes(&bytes), Ok(beat));
        }
        let key: SealingKey = "0a".repeat(32).parse().unwrap();
        assert_eq!(
            (key.bytes(), SealingKey::of(&[10; 32])),
            ([10; 32], key.clone())
        );
        let configured = Beat {
            config: Some(7),
            config_hash: Some(ConfigHash::of(b"a document")),
            sealing_key: Some(key),
            streams: Some(StreamsHash::of(&["live".to_owned()])),
            stream_marks: StreamMarks::of(&["live".to_owned()]),
            ..beat
        };
        let bytes = configured.to_bytes();
        assert!(bytes.len() < 730, "{}", bytes.len());
        assert_eq!(Beat::from_bytes(&bytes), Ok(configured));
        // As b3sum has it.
        let hash = ConfigHash::of(b"");
        assert_eq!(hash.as_str(), "af1349b9f5f9a1a6");
        assert_eq!(hash.number(), 0xaf13_49b9_f5f9);
    }

    #[test]
    fn streams_are_told_from_others() {
        let hash = |names: &[&str]| {
            StreamsHash::of(&names.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(hash(&["a", "b"]), hash(&["b", "a"]));
        for other in [&["a"][..], &["b"], &["ab"], &["a", "b", "c"], &[]] {
            assert_ne!(hash(&["a", "b"]), hash(other), "{other:?}");
        }
    }

    #[test]
    fn marks_of_streams_are_told() {
        let names = |count: usize| (0..count).map(|n| format!("s{n}")).collect::<Vec<_>>();
        let marks = StreamMarks::of(&names(MARKS_MAX)).unwrap();
        let mut expected: Vec<u32> = names(MARKS_MAX)
            .iter()
            .map(|name| fleet::mark(name))
            .collect();
        expected.sort_unstable();
        assert_eq!(marks.numbers(), expected);
        assert_eq!(marks.to_string().parse(), Ok(marks));
        assert_eq!(StreamMarks::of(&names(MARKS_MAX + 1)), None);
        assert_eq!(StreamMarks::of(&[]).unwrap().numbers(), [0; 0]);
        // Other versions have to find the same.
        assert_eq!(
            StreamMarks::of(&["live".to_owned()]).unwrap().as_str(),
            LIVE
        );
        let most = Beat {
            addresses: vec![format!("{}:65535", "a".repeat(250)).parse().unwrap(); ADDRESSES_MAX],
            zone: "z".repeat(NAME_MAX).parse().unwrap(),
            version: "1".repeat(NAME_MAX).parse().unwrap(),
            streams: Some(StreamsHash::of(&names(1))),
            stream_marks: StreamMarks::of(&names(MARKS_MAX)),
            time_ms: Some(TIME_MAX_MS),
            config: Some(u64::MAX),
            config_hash: Some(ConfigHash::of(b"")),
            sealing_key: Some("0a".repeat(32).parse().unwrap()),
            ..beat(&"b".repeat(NAME_MAX))
        };
        let bytes = most.to_bytes();
        assert_eq!(Beat::from_bytes(&bytes), Ok(most), "{}", bytes.len());
    }

    const LIVE: &str = "6bc25b46";

    /// A newer version may tell more, and an older one less.
    #[test]
    fn other_versions_are_understood() {
        let mut json: serde_json::Value = serde_json::from_slice(&beat("a").to_bytes()).unwrap();
        let fields = json.as_object_mut().unwrap();
        fields.insert("colour".to_owned(), "green".into());
        fields.remove("is_draining");
        fields.remove("is_last");
        fields.remove("takes_messages");
        let bytes = serde_json::to_vec(&json).unwrap();
        assert_eq!(Beat::from_bytes(&bytes), Ok(beat("a")));
    }

    #[test]
    fn what_is_no_beat_is_refused() {
        let with = |key: &str, value: serde_json::Value| {
            let mut json: serde_json::Value =
                serde_json::from_slice(&beat("a").to_bytes()).unwrap();
            json[key] = value;
            Beat::from_bytes(&serde_json::to_vec(&json).unwrap())
        };
        assert!(with("sequence", 1.into()).is_ok());
        let many = vec!["a:1"; ADDRESSES_MAX + 1];
        let too_many: String = (0..=MARKS_MAX).map(|mark| format!("{mark:08x}")).collect();
        let load = |busy: f64| {
            serde_json::json!({
                "viewers": 0, "viewers_max": 0, "busy": busy, "wait_s": 0.0, "is_full": false,
            })
        };
        for (key, value) in [
            ("server", "a b".into()),
            ("server", "a.b".into()),
            ("server", "".into()),
            ("server", "a".repeat(65).into()),
            ("zone", "\u{1b}[2J".into()),
            ("fingerprint", "0F".repeat(32).into()),
            ("fingerprint", "0f".into()),
            ("pages", serde_json::json!({"fingerprint": "0f"})),
            ("pages", serde_json::json!({"fingerprint": "0F".repeat(32)})),
            ("version", "1 0".into()),
            ("addresses", serde_json::json!(["a.example"])),
            ("addresses", serde_json::json!(["user@a.example:4443"])),
            ("addresses", serde_json::json!(["a.example:4443/x"])),
            ("addresses", serde_json::json!(["a.example:4443/"])),
            ("addresses", serde_json::json!(["a.example:0"])),
            ("addresses", serde_json::json!(["\u{1b}c.example:4443"])),
            ("addresses", serde_json::json!(["a.exa\nmple:4443"])),
            ("addresses", serde_json::json!(["a.example:4443 "])),
            ("addresses", serde_json::json!(many)),
            ("sequence", (-1).into()),
            ("config", (-1).into()),
            ("config_hash", "0A".repeat(8).into()),
            ("config_hash", "0a".repeat(7).into()),
            ("streams", "0a".repeat(9).into()),
            ("stream_marks", "0000000".into()),
            ("stream_marks", "0000000g".into()),
            ("stream_marks", "0000000100000001".into()),
            ("stream_marks", "0000000200000001".into()),
            ("stream_marks", "é000000".into()),
            ("stream_marks", too_many.into()),
            ("config_hash", "éé23456789abcd".into()),
            ("sealing_key", "0A".repeat(32).into()),
            ("sealing_key", "0a".into()),
            ("time_ms", (TIME_MAX_MS + 1).into()),
            ("time_ms", (-1).into()),
            ("load", load(-0.5)),
            ("load", load(1e300)),
        ] {
            assert!(with(key, value.clone()).is_err(), "{key}: {value}");
        }
        assert!(Beat::from_bytes(b"").is_err());
        let long = vec![b' '; BYTES_MAX + 1];
        assert_eq!(Beat::from_bytes(&long), Err(Unfit::Long(BYTES_MAX + 1)));
    }

    #[test]
    fn addresses_are_host_and_port() {
        for address in ["media.example:4443", "192.0.2.1:443", "[2001:db8::1]:4443"] {
            assert_eq!(address.parse::<Address>().unwrap().as_str(), address);
        }
    }
}
