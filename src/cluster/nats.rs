//! NATS as the engine: beats are messages of its core, which it keeps nowhere.
//!
//! A beat has the subject `SUBJECT.beat.SERVER`, and a message from one server to another
//! `SUBJECT.tell.FROM.TO`. Rights on subjects say who may speak for whom.
//!
//! The client reconnects by itself, after pauses that grow ([`pause`]). It connects to
//! the servers that are configured and to no others. What NATS says of further ones comes before
//! TLS, so whoever sits on the path could name one that takes the password.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, ServerAddr, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use url::Url;

use super::beat::{BYTES_MAX, Beat, Name, Unfit};
use super::engine::{Heard, Message, pause};
use super::pace::{Pace, SENDERS_MAX, Verdict};

/// How NATS is reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// URLs of its servers: `tls://HOST:PORT`, or `nats://HOST:PORT` on loopback.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub urls: Vec<String>,
    /// The first word of all subjects. Fleets that share an engine have different ones.
    pub subject: Name,
    /// The name that this server shows, and the file that holds its password.
    pub user: Option<String>,
    /// See `user`.
    pub password_file: Option<PathBuf>,
    /// PEM certificates of the authorities that have signed those of NATS. By default the system's
    /// authorities count.
    pub ca: Option<PathBuf>,
    /// PEM certificate that this server shows, and its key.
    pub cert: Option<PathBuf>,
    /// See `cert`.
    pub key: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            subject: "ncserverd".parse().expect("it is a name"),
            user: None,
            password_file: None,
            ca: None,
            cert: None,
            key: None,
        }
    }
}

/// Why the engine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A URL cannot be used.
    #[error("`{0}`: {1}")]
    Url(String, String),
    /// A file cannot be read.
    #[error("{}: {error}", .file.display())]
    File {
        /// It.
        file: PathBuf,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// The client cannot be made.
    #[error(transparent)]
    Options(#[from] async_nats::ConnectError),
    /// Subjects cannot be subscribed to.
    #[error(transparent)]
    Subscribe(#[from] async_nats::SubscribeError),
}

/// A client of NATS.
#[derive(Debug)]
pub struct Nats {
    client: Client,
    subject: Name,
    beats: mpsc::Receiver<Letter>,
    /// Messages to this server, which has this name. None if this process only listens.
    messages: Option<(Name, mpsc::Receiver<Letter>)>,
    /// Tasks that sift both, and end with this value.
    _sifting: JoinSet<()>,
    /// What they complain about.
    complaints: mpsc::Receiver<String>,
    events: mpsc::Receiver<Event>,
    /// The last reason why it is not connected.
    fault: String,
}

/// The part of an engine's message that is read. Only this part waits in queues.
struct Letter {
    subject: Subject,
    payload: Bytes,
}

/// The address that a URL names, and whether it is reached by TLS. Without TLS an engine is on this
/// machine: who reads beats knows the fleet, and who writes them rules it.
pub fn address(text: &str) -> Result<(ServerAddr, bool), Error> {
    let fault = |what: &str| Error::Url(text.to_owned(), what.to_owned());
    // What a URL with a password looks like is not shown.
    if text.contains('@') {
        let what = "set `cluster.nats.user` and `cluster.nats.password_file` instead";
        return Err(Error::Url(
            "a URL with a password".to_owned(),
            what.to_owned(),
        ));
    }
    let url = Url::parse(text).map_err(|error| fault(&error.to_string()))?;
    // For schemes that it does not know, the parser leaves addresses as they are written.
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_here = match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) if host.is_empty() => return Err(fault("it names no host")),
        Err(_) => host == "localhost",
    };
    let is_tls = match url.scheme() {
        "tls" => true,
        "nats" if is_here => false,
        "nats" => return Err(fault("off loopback the engine needs TLS: tls://…")),
        _ => return Err(fault("it begins with tls:// or nats://")),
    };
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return Err(fault("nothing may follow the port"));
    }
    let address = ServerAddr::from_url(url).map_err(|error| fault(&error.to_string()))?;
    Ok((address, is_tls))
}

impl Config {
    /// What cannot work.
    pub fn check(&self) -> Result<(), Error> {
        self.addresses().map(drop)
    }

    fn addresses(&self) -> Result<(Vec<ServerAddr>, bool), Error> {
        let all = self.urls.iter().map(|url| address(url));
        let all: Vec<_> = all.collect::<Result<_, _>>()?;
        let needs_tls = all.iter().any(|(_, is_tls)| *is_tls);
        if let Some(at) = all.iter().position(|(_, is_tls)| *is_tls != needs_tls) {
            let what = "some URLs have TLS, and this one has none".to_owned();
            return Err(Error::Url(self.urls[at].clone(), what));
        }
        Ok((
            all.into_iter().map(|(address, _)| address).collect(),
            needs_tls,
        ))
    }
}

impl Nats {
    /// A client that goes on trying to connect. `name` is what NATS calls it, `own` the server that
    /// it is.
    pub(super) async fn open(
        config: &Config,
        name: &str,
        own: Option<&Name>,
    ) -> Result<Self, Error> {
        let (addresses, needs_tls) = config.addresses()?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let mut options = ConnectOptions::new()
            .name(name)
            .require_tls(needs_tls)
            .retry_on_initial_connect()
            .connection_timeout(TIMEOUT)
            .ping_interval(PING)
            .ignore_discovered_servers()
            .subscription_capacity(WAITING_MAX)
            .reconnect_delay_callback(pause)
            .event_callback(move |event| {
                // Of too many at once, the last are lost: the state is asked for with each beat.
                let _ = sender.try_send(event);
                std::future::ready(())
            });
        if let (Some(user), Some(file)) = (&config.user, &config.password_file) {
            let password = read(file).await?;
            options = options.user_and_password(user.clone(), password.trim_end().to_owned());
        }
        // Its client would say only that TLS has failed.
        for file in [&config.ca, &config.cert, &config.key]
            .into_iter()
            .flatten()
        {
            read(file).await?;
        }
        if let Some(ca) = &config.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let (Some(cert), Some(key)) = (&config.cert, &config.key) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        let client = options.connect(addresses).await?;
        let mut sifting = JoinSet::new();
        let (complain, complaints) = mpsc::channel(COMPLAINTS_MAX);
        let mut sift = async |subject: String, most, waiting_max| {
            let messages = client.subscribe(subject).await?;
            let (to, sifted) = mpsc::channel(waiting_max);
            sifting.spawn(sift(messages, most, to, complain.clone()));
            Ok::<_, Error>(sifted)
        };
        let subject = format!("{}.beat.*", config.subject);
        let beats = sift(subject, BEATS_MAX, WAITING_MAX).await?;
        let messages = match own {
            Some(own) => {
                let subject = format!("{}.tell.*.{own}", config.subject);
                let sifted = sift(subject, MESSAGES_MAX, 2 * MESSAGES_MAX as usize).await?;
                Some((own.clone(), sifted))
            }
            None => None,
        };
        Ok(Self {
            client,
            subject: config.subject.clone(),
            beats,
            messages,
            _sifting: sifting,
            complaints,
            events,
            fault: "not connected yet".to_owned(),
        })
    }

    pub(super) fn reached(&self) -> Result<(), String> {
        match self.client.connection_state() {
            State::Connected => Ok(()),
            State::Pending | State::Disconnected => Err(self.fault.clone()),
        }
    }

    /// Its connection, for others of this process.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Sends a beat, if the engine can be reached now.
    pub(super) async fn tell(&self, beat: &Beat) -> bool {
        if self.reached().is_err() {
            return false;
        }
        let subject = format!("{}.beat.{}", self.subject, beat.server);
        let send = async {
            let bytes = Bytes::from(beat.to_bytes());
            self.client.publish(subject, bytes).await.is_ok()
                // The process ends, and what the client has not written is lost.
                && (!beat.is_last || self.client.flush().await.is_ok())
        };
        tokio::time::timeout(SEND_TIMEOUT, send)
            .await
            .unwrap_or(false)
    }

    /// Sends a message to a server, if the client takes it at once.
    pub(super) fn send(&self, to: &Name, content: Bytes) -> bool {
        let Some((own, _)) = &self.messages else {
            return false;
        };
        if self.reached().is_err() {
            return false;
        }
        let subject = format!("{}.tell.{own}.{to}", self.subject);
        let send = self.client.publish(subject, content);
        // Many are sent in one turn of the task, more than tokio would have in one.
        let sent = tokio::task::unconstrained(send).now_or_never();
        sent.is_some_and(|sent| sent.is_ok())
    }

    pub(super) async fn hear(&mut self) -> Heard {
        let messages = async |messages: &mut Option<(Name, mpsc::Receiver<_>)>| match messages {
            Some((_, messages)) => messages.recv().await,
            None => None,
        };
        tokio::select! {
            // The client ends only with this value.
            Some(event) = self.events.recv() => match event {
                Event::ClientError(error) => {
                    self.fault = error.to_string();
                    Heard::News
                }
                Event::ServerError(error) => Heard::Complaint(error.to_string()),
                Event::SlowConsumer(_) => Heard::Complaint("messages come too fast".to_owned()),
                _ => Heard::News,
            },
            Some(complaint) = self.complaints.recv() => Heard::Complaint(complaint),
            Some(beat) = self.beats.recv() => read_beat(&beat),
            Some(message) = messages(&mut self.messages) => match sender(&message.subject) {
                Some(from) => Heard::Message(Message::read(from, message.payload)),
                None => Heard::News,
            },
            else => std::future::pending().await,
        }
    }
}

/// Passes messages on, but no more than `most` a second of one subject. It does nothing else, so it
/// is as fast as the client: one server that floods the engine would fill the queue of all.
async fn sift(
    mut messages: Subscriber,
    most: u32,
    to: mpsc::Sender<Letter>,
    complaints: mpsc::Sender<String>,
) {
    let mut pace = Pace::new(Instant::now(), most);
    while let Some(message) = messages.next().await {
        let complaint = match pace.judge(Instant::now(), &message.subject) {
            Verdict::Heard => {
                // A payload that is too long stays too long when cut, and is refused later.
                let payload = match message.payload.get(..=BYTES_MAX) {
                    Some(begin) => Bytes::copy_from_slice(begin),
                    None => message.payload,
                };
                let subject = message.subject;
                match to.try_send(Letter { subject, payload }) {
                    Ok(()) => continue,
                    Err(_) => "messages come too fast".to_owned(),
                }
            }
            Verdict::TooMuch => format!("too many messages come as `{}`", message.subject),
            Verdict::Crowd => format!("messages come from more than {SENDERS_MAX} servers"),
            Verdict::Dropped => continue,
        };
        // One that finds no place is made again in the next second.
        let _ = complaints.try_send(complaint);
    }
}

fn read_beat(message: &Letter) -> Heard {
    match Beat::from_bytes(&message.payload) {
        // Rights on subjects say who may speak for whom.
        Ok(beat) if message.subject.ends_with(&format!(".{}", beat.server)) => {
            Heard::Beat(Box::new(beat))
        }
        Ok(beat) => Heard::Unfit(Unfit::Form(format!(
            "a beat of {} came as `{}`",
            beat.server, message.subject
        ))),
        Err(unfit) => Heard::Unfit(unfit),
    }
}

/// The server that a message is from, by its subject. NATS has checked that it may use it.
fn sender(subject: &str) -> Option<Name> {
    subject.rsplit('.').nth(1)?.parse().ok()
}

async fn read(file: &Path) -> Result<String, Error> {
    let text = tokio::fs::read_to_string(file).await;
    text.map_err(|error| Error::File {
        file: file.to_owned(),
        error,
    })
}

/// How long an attempt to connect may take. Where a server of NATS vanishes without a word, the
/// pings and two attempts take less time than [`DEAD_AFTER`](super::roster::DEAD_AFTER).
const TIMEOUT: Duration = Duration::from_secs(1);
/// A connection counts as gone when the third ping is due and none was answered.
const PING: Duration = Duration::from_millis(500);
/// A beat that waits longer is of no use.
const SEND_TIMEOUT: Duration = Duration::from_millis(400);
/// Messages that wait to be read. Further ones are dropped.
const WAITING_MAX: usize = 1024;
/// Beats of a server in a second, twenty times what it sends.
const BEATS_MAX: u32 = 10;
/// Messages of a server in a second. In a fleet of two, one that tells the other of 35,000 holders
/// anew sends a few hundred at once.
const MESSAGES_MAX: u32 = 2000;
const EVENTS_MAX: usize = 16;
const COMPLAINTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_off_loopback_needs_tls() {
        for (url, needs_tls) in [
            ("nats://127.0.0.1:4222", false),
            ("nats://localhost", false),
            ("nats://[::1]:4222", false),
            ("tls://127.0.0.1:4222", true),
            ("tls://nats.example:4222", true),
        ] {
            let (_, is_tls) = address(url).unwrap();
            assert_eq!(is_tls, needs_tls, "{url}");
        }
        for url in [
            "nats://nats.example:4222",
            "nats://192.0.2.1",
            "nats://localhost.example",
            "wss://nats.example",
            "nats.example:4222",
            "tls://nats.example/path",
            "tls://",
            "",
        ] {
            assert!(address(url).is_err(), "{url}");
        }
        let refused = address("tls://user:hidden@nats.example").unwrap_err();
        assert!(!refused.to_string().contains("hidden"), "{refused}");
    }

    #[test]
    fn a_subject_names_the_sender() {
        let from = sender("ncserverd.tell.a-1.b-2").unwrap();
        assert_eq!(from.as_str(), "a-1");
        assert_eq!(sender("ncserverd.tell.a b.c"), None);
        assert_eq!(sender("x"), None);
    }

    #[test]
    fn urls_with_and_without_tls_do_not_mix() {
        let config = |urls: [&str; 2]| Config {
            urls: urls.map(str::to_owned).into(),
            ..Config::default()
        };
        assert!(
            config(["tls://a.example", "tls://b.example"])
                .check()
                .is_ok()
        );
        let mixed = config(["tls://a.example", "nats://localhost"]).check();
        assert!(
            mixed
                .unwrap_err()
                .to_string()
                .contains("`nats://localhost`")
        );
    }
}
