//! A list of members as the engine: each server draws the beats of the others by QUIC.
//!
//! The list ([`list`]) and the secret ([`secrets`]) are read again and again; what is bad or
//! missing changes nothing, and is complained of. A task keeps both and a [`link`] to each other
//! member, which connects to the member's ordinary UDP port by the protocol [`FLEET_ALPN`]. There
//! the [`publisher`] answers: it takes the secret, and tells the server's own beats.
//!
//! The protocol is this. The client opens a bidirectional stream, sends the secret, and, if it is a
//! member, a line feed and its name, and ends its side. The server sends frames: each is its length
//! in two bytes, big-endian, and as many bytes. Those that begin with `{` are a beat. Others are a
//! message to the member that the client has named: a zero, the number of a topic, and bytes.
//! A beat is taken only from the member that it names, which has shown its certificate, and a
//! message is from that member, too.
//!
//! [`FLEET_ALPN`]: crate::tls::FLEET_ALPN

mod link;
mod list;
mod publisher;
mod secrets;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use ncs_serve::source::{Document, Named, Source, Version};
use quinn::VarInt;
use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::beat::{Beat, Name};
use super::engine::Heard;
use crate::secret::SecretUrl;
use link::{Dialer, Link};
use list::Member;
pub use publisher::Publisher;
use secrets::Secrets;

/// Where the members of a fleet are listed, and how they know each other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The list of members: a TOML file, or its URL: https, or http on loopback.
    pub members: Option<SecretUrl>,
    /// The file of the secret that all members have.
    pub secret_file: Option<PathBuf>,
}

/// Why the engine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list has no usable place.
    #[error("`cluster.static.members`: {0}")]
    Members(String),
    /// There is no usable secret.
    #[error("`cluster.static.secret_file`: {0}")]
    Secret(String),
    /// No socket can be opened.
    #[error("cannot open a UDP socket: {0}")]
    Socket(#[from] std::io::Error),
}

impl Config {
    /// Why the list cannot be where `members` says, before anything is read.
    pub fn check(&self) -> Result<(), String> {
        self.place().map(drop)
    }

    fn place(&self) -> Result<Option<Named>, String> {
        let named = self
            .members
            .as_ref()
            .map(|text| Named::parse(text.expose()));
        let named = named.transpose()?;
        if named.as_ref().is_some_and(Named::is_open_to_the_network) {
            return Err(
                "off loopback whoever is on the path could replace it: use https".to_owned(),
            );
        }
        Ok(named)
    }

    /// The place of the list, and how it is shown.
    fn source(&self) -> Result<(Source, String), Error> {
        let named = self.place().map_err(Error::Members)?;
        let named = named.ok_or_else(|| Error::Members("no list is named".to_owned()))?;
        let source = Source::new(named, list::BYTES_MAX).map_err(Error::Members)?;
        let shown = self.members.as_ref().map(ToString::to_string);
        Ok((source, shown.unwrap_or_default()))
    }

    fn secret_file(&self) -> Result<&Path, Error> {
        let unset = || Error::Secret("no file is named".to_owned());
        self.secret_file.as_deref().ok_or_else(unset)
    }

    /// Reads the secret and the list once. Returns the number of members.
    pub async fn inspect(&self) -> Result<usize, Error> {
        Secrets::read(self.secret_file()?).map_err(Error::Secret)?;
        let (source, place) = self.source()?;
        let read = source.fetch().await.and_then(|bytes| list::parse(&bytes));
        let members = read.map_err(|reason| Error::Members(format!("{place}: {reason}")))?;
        Ok(members.len())
    }
}

/// A fleet by its list.
#[derive(Debug)]
pub struct Members {
    publisher: Publisher,
    heard: mpsc::Receiver<Heard>,
    /// Whether a list was read, or why not.
    reached: watch::Receiver<Result<(), String>>,
    keeper: Task,
}

impl Members {
    /// Begins to read the list, and to hear its members. `member` is what this server tells them,
    /// and its name; without it this process only listens.
    pub(super) fn open(
        config: &Config,
        member: Option<(&Publisher, &Name)>,
    ) -> Result<Self, Error> {
        let secret_file = config.secret_file()?.to_owned();
        let secrets = Secrets::read(&secret_file).map_err(Error::Secret)?;
        let (publisher, own) = match member {
            Some((publisher, name)) => (publisher.clone(), Some(name.clone())),
            None => (Publisher::default(), None),
        };
        publisher.set_secrets(Arc::new(secrets));
        let (sender, heard) = mpsc::channel(HEARD_MAX);
        let (said, reached) = watch::channel(Err("the list was not read yet".to_owned()));
        let (source, place) = config.source()?;
        let keeper = Keeper {
            source,
            place,
            secret_file,
            own,
            publisher: publisher.clone(),
            dialer: Dialer::open()?,
            heard: sender,
            said,
            list: List::default(),
            secret_fault: None,
            links: HashMap::new(),
        };
        Ok(Self {
            publisher,
            heard,
            reached,
            keeper: Task(tokio::spawn(keeper.run())),
        })
    }

    pub(super) fn reached(&self) -> Result<(), String> {
        if self.keeper.0.is_finished() {
            return Err("the task that keeps the list has ended".to_owned());
        }
        self.reached.borrow().clone()
    }

    /// Another process is this server from now on.
    pub(super) fn hang_up(&self) {
        self.publisher.hang_up();
    }

    /// Sends a message to a member that has connected. Whether it has, and keeps up.
    pub(super) fn send(&self, to: &Name, content: &[u8]) -> bool {
        self.publisher.send(to, content)
    }

    /// Tells a beat to those that have connected. Whether it was told.
    pub(super) async fn tell(&self, beat: &Beat) -> bool {
        self.publisher.tell(beat).await
    }

    pub(super) async fn hear(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            None => std::future::pending().await,
        }
    }
}

/// A task that ends with this value.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps the list, the secret, and a link to each member.
struct Keeper {
    source: Source,
    /// How its place is shown.
    place: String,
    secret_file: PathBuf,
    /// This server's name. It is not among those that it connects to.
    own: Option<Name>,
    publisher: Publisher,
    dialer: Dialer,
    heard: mpsc::Sender<Heard>,
    said: watch::Sender<Result<(), String>>,
    list: List,
    /// Why the latest secret is none.
    secret_fault: Option<String>,
    links: HashMap<Name, (Member, Task)>,
}

/// The last good list, and what is wrong with the latest.
#[derive(Default)]
struct List {
    /// None until one was good.
    members: Option<Vec<Member>>,
    /// The latest document, good or bad, and its version.
    document: Option<Vec<u8>>,
    version: Option<Version>,
    /// Why the latest document is no list, and why none came at the last attempt.
    unfit: Option<String>,
    missing: Option<String>,
}

impl List {
    fn fault(&self) -> Option<&String> {
        self.missing.as_ref().or(self.unfit.as_ref())
    }

    /// Takes what was read; nothing if the document is the same. Whether there is a new list.
    fn take(&mut self, read: Result<Option<Document>, String>) -> bool {
        let Document { bytes, version } = match read {
            Ok(read) => {
                self.missing = None;
                let Some(read) = read else { return false };
                read
            }
            Err(reason) => {
                self.missing = Some(reason);
                return false;
            }
        };
        self.version = version;
        if self.document.as_ref() == Some(&bytes) {
            return false;
        }
        let parsed = list::parse(&bytes);
        self.document = Some(bytes);
        match parsed {
            Ok(members) => {
                self.unfit = None;
                let is_new = self.members.as_ref() != Some(&members);
                self.members = Some(members);
                is_new
            }
            Err(reason) => {
                self.unfit = Some(reason);
                false
            }
        }
    }
}

impl Keeper {
    async fn run(mut self) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut fetch_at = Instant::now();
        loop {
            tick.tick().await;
            self.secret_fault = self.read_secret().await.err();
            if !self.source.is_remote() || fetch_at <= Instant::now() {
                self.read_list().await;
                // The first list is waited for.
                let pause = match self.list.members {
                    None => LOOK_EVERY,
                    Some(_) => FETCH_EVERY,
                };
                fetch_at = Instant::now() + pause;
            }
            self.keep_links();
            self.complain();
        }
    }

    /// Says what is wrong. It is said again until it heals.
    fn complain(&self) {
        let list = self.fault().filter(|_| self.list.members.is_some());
        let secret = self.secret_fault.as_ref();
        let complaint = list.or_else(|| secret.map(|reason| format!("the secret: {reason}")));
        if let Some(complaint) = complaint {
            let _ = self.heard.try_send(Heard::Complaint(complaint));
        }
    }

    /// What is wrong with the latest list, in words.
    fn fault(&self) -> Option<String> {
        let fault = self.list.fault();
        fault.map(|fault| format!("the list of members: {}: {fault}", self.place))
    }

    async fn read_secret(&self) -> Result<(), String> {
        let file = self.secret_file.clone();
        let read = tokio::task::spawn_blocking(move || Secrets::read(&file)).await;
        let secrets = read.map_err(|error| error.to_string())??;
        let is_same = |old: Arc<Secrets>| *old == secrets;
        if !self.publisher.secrets().is_some_and(is_same) {
            tracing::info!("the secret of the fleet was replaced");
            self.publisher.set_secrets(Arc::new(secrets));
        }
        Ok(())
    }

    /// Reads the latest list. It may take its time, and what is wrong is said meanwhile.
    async fn fetch(&self) -> Result<Option<Document>, String> {
        let mut fetch = pin!(self.source.fetch_unless(self.list.version.as_ref()));
        loop {
            tokio::select! {
                read = &mut fetch => return read,
                () = tokio::time::sleep(LOOK_EVERY) => self.complain(),
            }
        }
    }

    async fn read_list(&mut self) {
        let read = self.fetch().await;
        if self.list.take(read)
            && let Some(members) = &self.list.members
        {
            let count = members.len();
            let is_listed = |own: &Name| members.iter().any(|member| member.name == *own);
            tracing::info!(members = count, "the list of members was read");
            if let Some(own) = self.own.as_ref().filter(|own| !is_listed(own)) {
                tracing::warn!(
                    server = %own,
                    "this server is not in the list of members: no other server connects to it",
                );
            }
        }
        let reached = match (&self.list.members, self.fault()) {
            (None, Some(fault)) => Err(fault),
            (None, None) => return,
            (Some(_), _) => Ok(()),
        };
        let has_changed = self.said.send_if_modified(|said| {
            let has_changed = *said != reached;
            *said = reached;
            has_changed
        });
        if has_changed {
            let _ = self.heard.try_send(Heard::News);
        }
    }

    /// Connects to new members, and disconnects from those that are not listed any more.
    fn keep_links(&mut self) {
        let Some(members) = &self.list.members else {
            return;
        };
        let listed: HashMap<&Name, &Member> = members
            .iter()
            .filter(|member| Some(&member.name) != self.own.as_ref())
            .map(|member| (&member.name, member))
            .collect();
        self.links.retain(|name, (member, task)| {
            listed.get(name) == Some(&&*member) && !task.0.is_finished()
        });
        // Many handshakes at once would hold up viewers.
        let spread = APART.saturating_mul(u32::try_from(listed.len()).unwrap_or(u32::MAX));
        for (name, member) in listed {
            let Self {
                dialer,
                publisher,
                heard,
                ..
            } = &*self;
            if self.links.contains_key(name) {
                continue;
            }
            let link = Link {
                own: self.own.clone(),
                member: member.clone(),
                dialer: dialer.clone(),
                publisher: publisher.clone(),
                heard: heard.clone(),
            };
            let delay = spread.mul_f64(rand::rng().random_range(0.0..1.0));
            let task = Task(tokio::spawn(link.run(delay)));
            self.links.insert(name.clone(), (member.clone(), task));
        }
    }
}

/// Why a server does not tell its beats on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("it has another secret")]
    Secret,
    #[error("no secret came")]
    Greeting,
    #[error("it has no place for one more connection")]
    Full,
}

impl Refusal {
    const ALL: [Self; 3] = [Self::Secret, Self::Greeting, Self::Full];

    /// The code with which the connection is closed.
    fn code(self) -> VarInt {
        VarInt::from_u32(match self {
            Self::Secret => 1,
            Self::Greeting => 2,
            Self::Full => 3,
        })
    }
}

/// Bytes as they travel: their length and they. None if they are too long, which no beat is.
fn frame(parts: [&[u8]; 2]) -> Option<Bytes> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = BytesMut::with_capacity(2 + length);
    frame.put_u16(u16::try_from(length).ok()?);
    parts.iter().for_each(|part| frame.put_slice(part));
    Some(frame.freeze())
}

/// What the frame of a message begins with. No JSON does.
const MESSAGE: u8 = 0;

/// The code with which a connection ends after the last beat.
const DONE: VarInt = VarInt::from_u32(0);
/// The interval of looks at files. They are read whole: they are small, and neither a time nor a
/// size says for sure that a file is the same.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The interval at which a URL is fetched.
const FETCH_EVERY: Duration = Duration::from_secs(30);
/// What was heard and not taken yet. Further beats wait on their connections.
const HEARD_MAX: usize = 64;
/// The time between two first handshakes, on average.
const APART: Duration = Duration::from_millis(2);
/// How long the other side may take to acknowledge the last beat.
const LAST_TIMEOUT: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn document(names: &[&str]) -> Vec<u8> {
        let member = |name: &&str| {
            format!("[[member]]\nname = \"{name}\"\naddress = \"{name}.example:4443\"\n")
        };
        names.iter().map(member).collect::<String>().into_bytes()
    }

    fn names(list: &List) -> Vec<&str> {
        let members = list.members.iter().flatten();
        members.map(|member| member.name.as_str()).collect()
    }

    #[test]
    fn the_last_good_list_stays() {
        let read = |bytes| {
            Ok(Some(Document {
                bytes,
                version: None,
            }))
        };
        let mut list = List::default();
        assert!(!list.take(Err("status 503".to_owned())));
        assert_eq!(list.fault().unwrap(), "status 503");
        assert!(list.take(read(document(&["a", "b"]))));
        assert_eq!((names(&list), list.fault()), (vec!["a", "b"], None));
        assert!(!list.take(read(document(&["a", "b"]))), "the same");
        for bad in [b"member = 1".to_vec(), document(&["a", "a"]), Vec::new()] {
            assert!(!list.take(read(bad)));
            assert!(list.fault().is_some());
            // The server still has the bad one, and then does not answer.
            assert!(!list.take(Ok(None)));
            assert!(list.fault().is_some());
            assert!(!list.take(Err("status 503".to_owned())));
            assert_eq!(list.fault().unwrap(), "status 503");
            assert_eq!(names(&list), ["a", "b"]);
        }
        // The good one from before is no news.
        assert!(!list.take(read(document(&["a", "b"]))));
        assert_eq!(list.fault(), None);
        assert!(list.take(read(document(&["b"]))));
        assert_eq!(names(&list), ["b"]);
    }

    #[test]
    fn a_list_off_loopback_needs_https() {
        for (place, is_fit) in [
            ("/etc/ncserverd/members.toml", true),
            ("https://config.example/members.toml", true),
            ("http://127.0.0.1:8080/members.toml", true),
            ("http://config.example/members.toml", false),
            ("ftp://config.example/members.toml", false),
        ] {
            let config = Config {
                members: Some(place.into()),
                ..Config::default()
            };
            assert_eq!(config.check().is_ok(), is_fit, "{place}");
        }
    }

    #[test]
    fn a_frame_has_its_length_before_it() {
        assert_eq!(frame([b"a", b"b"]).unwrap(), b"\0\x02ab".as_slice());
        assert_eq!(frame([b"", &vec![0; 65_536]]), None);
    }

    /// The other side knows a refusal by its code.
    #[test]
    fn refusals_have_codes_of_their_own() {
        let mut codes: Vec<_> = Refusal::ALL.map(|refusal| refusal.code()).into();
        codes.push(DONE);
        codes.sort();
        codes.dedup();
        assert_eq!(codes.len(), Refusal::ALL.len() + 1);
    }
}
