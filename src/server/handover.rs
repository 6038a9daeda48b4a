//! An upgrade without a gap: a new process takes the place of the one that serves.
//!
//! The process that serves listens at a Unix socket (`server.handover`). A new one that is started
//! with the same path connects there, and gets the listening sockets, which stay open all the time.
//! It starts all its parts, takes the objects that are held, and has its device take them. Only
//! then do new clients come to it, and the old process sends its peers to it and ends. If the new
//! process fails before, the old one goes on as if nothing had been.
//!
//! | to the process that serves | to the next one |
//! |---|---|
//! | `hello` | each `port` with its sockets, each `listener`, `welcome`; or `refused`, `unable` |
//! | `more` | `objects` with a parcel of objects ([`parcel`]), or `all` |
//! | `serves` | `leaves`; when it has ended, the connection ends |
//!
//! Both are of one user of one machine, and of the same or a near version. Each message is checked
//! all the same; a wrong one ends the conversation, and the old process serves on.

mod channel;
mod parcel;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ncs_net::endpoint::{NotTaken, Port, Ports};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::config;
use crate::stream::{Library, Title};
use crate::telemetry::MILESTONE;
pub(crate) use channel::is_socket;
use channel::{Channel, Door};
use parcel::{Packing, Unpacking};

/// The form of the conversation. Another form is another number.
const FORM: u32 = 1;
/// How long an answer that needs no work may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a process waits until the one before that which serves has ended.
const WELCOME_WITHIN: Duration = Duration::from_secs(150);
/// How long the process that serves may take for a parcel.
const PARCEL_WITHIN: Duration = Duration::from_secs(30);
/// How long a process takes objects before it serves without the rest.
const OBJECTS_WITHIN: Duration = Duration::from_secs(60);
/// How long the next process may take between two of its messages: it may prepare its device.
const NEXT_WITHIN: Duration = Duration::from_secs(150);
/// Addresses and listeners of one process.
const SOCKETS_MAX: usize = 64;

/// Why a process does not take the place of another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path cannot be used.
    #[error("{}: {}", .0.display(), .1)]
    Path(PathBuf, #[source] io::Error),
    /// The system refuses something.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Something else is at the path.
    #[error("{}: this is no socket: name a path where nothing else is", .0.display())]
    NoSocket(PathBuf),
    /// The other process belongs to another user.
    #[error("the other process belongs to user {0}")]
    Stranger(u32),
    /// The other process has ended.
    #[error("the other process has ended the conversation")]
    Gone,
    /// It does not answer.
    #[error("the other process does not answer")]
    Slow,
    /// It says something else than expected.
    #[error("the other process says something unexpected: it may be of another version")]
    Message,
    /// It does not hand over now.
    #[error("the process that serves refuses: {0}")]
    Refused(String),
    /// It never does.
    #[error("the process that serves cannot hand over: {0}")]
    Unable(String),
    /// Its sockets are of no use.
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
}

impl Error {
    /// Whether the other process has ended in the middle of the conversation.
    fn is_of_an_end(&self) -> bool {
        match self {
            Self::Gone => true,
            Self::Io(error) => matches!(
                error.kind(),
                io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof
            ),
            _ => false,
        }
    }
}

/// What a listener of HTTP is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Use {
    /// `telemetry.listen`.
    Telemetry,
    /// `web.listen`.
    Web,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FromNext {
    Hello { form: u32, version: String },
    More,
    Serves,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FromServing {
    /// It does not hand over now, or never does, for this reason.
    Refused(String),
    Unable(String),
    /// The sockets of a configured address.
    Port(SocketAddr),
    Listener(Use, SocketAddr),
    /// All sockets were sent; the number of the next process.
    Welcome {
        process: u8,
    },
    Objects,
    All,
    Leaves,
}

/// The reason of a process that does not hand over.
struct Refusal {
    reason: &'static str,
    /// Whether a later attempt is refused, too.
    is_for_good: bool,
}

/// The sockets that this process listens on: for the next process.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Those of QUIC.
    pub(super) ports: Arc<Ports>,
    /// Those of HTTP, by their configured addresses.
    pub(super) listeners: Vec<(Use, SocketAddr, TcpListener)>,
}

/// The process that serves, as the next one sees it.
#[derive(Debug)]
pub(super) struct Predecessor {
    channel: Channel,
    inherited: Inherited,
}

/// The sockets that another process has opened.
#[derive(Debug)]
pub(super) struct Inherited {
    ports: Vec<(SocketAddr, Vec<UdpSocket>)>,
    listeners: Vec<(Use, SocketAddr, TcpListener)>,
    process: u8,
}

impl Inherited {
    /// The sockets of QUIC, if they are those of this configuration.
    pub(super) fn ports(&self, config: &config::Config) -> Result<Ports, Error> {
        let port = |(configured, sockets): &(SocketAddr, Vec<UdpSocket>)| {
            let sockets: io::Result<_> = sockets.iter().map(UdpSocket::try_clone).collect();
            io::Result::Ok(Port::handed(*configured, sockets?))
        };
        let ports: io::Result<_> = self.ports.iter().map(port).collect();
        Ok(Ports::take(&config.endpoint, ports?, self.process)?)
    }

    /// The listener of this use at a configured address, if one was inherited.
    pub(super) fn listener(
        inherited: Option<&Self>,
        of: Use,
        address: SocketAddr,
    ) -> Result<Option<TcpListener>, Error> {
        let mut listeners = inherited.into_iter().flat_map(|all| &all.listeners);
        let found = listeners.find(|(its, at, _)| (*its, *at) == (of, address));
        let listener = found.map(|(_, _, listener)| listener.try_clone());
        Ok(listener.transpose()?)
    }
}

impl Predecessor {
    /// The process that serves and listens at this path. None if there is none.
    pub(super) async fn meet(path: &Path) -> Result<Option<Self>, Error> {
        let begun = Instant::now();
        loop {
            let Some(channel) = Channel::connect(path).await? else {
                return Ok(None);
            };
            match Self::greet(channel).await {
                // It has ended meanwhile. Perhaps another one was first to take its place.
                Err(error) if error.is_of_an_end() && begun.elapsed() < WELCOME_WITHIN => {
                    tokio::time::sleep(PAUSE).await;
                }
                met => return met.map(Some),
            }
        }
    }

    async fn greet(mut channel: Channel) -> Result<Self, Error> {
        tracing::info!("another process serves: taking its place");
        let hello = FromNext::Hello {
            form: FORM,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        channel.send(&hello, &[]).await?;
        let mut inherited = Inherited {
            ports: Vec::new(),
            listeners: Vec::new(),
            process: 0,
        };
        for _ in 0..SOCKETS_MAX {
            let (message, files) = within(WELCOME_WITHIN, channel.receive()).await?;
            match message {
                FromServing::Refused(reason) => return Err(Error::Refused(reason)),
                FromServing::Unable(reason) => return Err(Error::Unable(reason)),
                FromServing::Port(configured) => {
                    let sockets = files.into_iter().map(UdpSocket::from).collect();
                    inherited.ports.push((configured, sockets));
                }
                FromServing::Listener(of, configured) => {
                    let file = files.into_iter().next().ok_or(Error::Message)?;
                    let listener = TcpListener::from(file);
                    inherited.listeners.push((of, configured, listener));
                }
                FromServing::Welcome { process } => {
                    inherited.process = process;
                    return Ok(Self { channel, inherited });
                }
                FromServing::Objects | FromServing::All | FromServing::Leaves => break,
            }
        }
        Err(Error::Message)
    }

    /// Its sockets.
    pub(super) fn inherited(&self) -> &Inherited {
        &self.inherited
    }

    /// Takes the objects that it holds, the last used first, as far as there is room and time.
    pub(super) async fn inherit(&mut self, library: &Library) -> Result<(), Error> {
        let begun = Instant::now();
        let mut taken: Vec<Title> = Vec::new();
        let (mut bytes, mut refused) = (0, 0u64);
        while begun.elapsed() < OBJECTS_WITHIN {
            self.channel.send(&FromNext::More, &[]).await?;
            let (message, files) = within(PARCEL_WITHIN, self.channel.receive()).await?;
            match message {
                FromServing::Objects => {}
                FromServing::All => break,
                _ => return Err(Error::Message),
            }
            let file = files.into_iter().next().ok_or(Error::Message)?;
            let mut parcel = Unpacking::begin(file)?;
            while let Some(piece) = parcel.next()? {
                let (title, length) = (piece.title(), piece.bytes.len() as u64);
                if library.inherit(piece).await {
                    taken.extend(title);
                    bytes += length;
                } else {
                    refused += 1;
                }
            }
        }
        library.touch(&taken);
        tracing::info!(
            name: MILESTONE,
            pieces = taken.len(),
            bytes,
            refused,
            took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            "took the objects of the process before",
        );
        Ok(())
    }

    /// Has new clients come to this process, and the other one send its peers here and end.
    pub(super) async fn replace(self, ports: Arc<Ports>) -> Result<(), Error> {
        let Self {
            mut channel,
            inherited,
        } = self;
        drop(inherited);
        ports.take_newcomers()?;
        channel.send(&FromNext::Serves, &[]).await?;
        match within(ANSWER_WITHIN, channel.receive()).await? {
            (FromServing::Leaves, _) => {}
            _ => return Err(Error::Message),
        }
        tokio::spawn(async move {
            channel.closed().await;
            match ports.stay_alone() {
                Ok(()) => tracing::info!(name: MILESTONE, "the process before has ended"),
                Err(error) => tracing::warn!(
                    %error,
                    "clients of the process before are not told that it has ended: they notice by \
                     its silence",
                ),
            }
        });
        Ok(())
    }
}

/// The place where the next process comes. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Handover {
    door: Arc<Door>,
    sockets: Arc<Sockets>,
    library: Library,
}

impl Handover {
    /// Listens beside a path, where nobody comes before [`Handover::publish`].
    pub(super) fn open(path: &Path, sockets: Sockets, library: Library) -> Result<Self, Error> {
        Ok(Self {
            door: Arc::new(Door::open(path)?),
            sockets: Arc::new(sockets),
            library,
        })
    }

    /// Listens at the path, in the place of another process.
    pub(super) fn publish(&self) -> Result<(), Error> {
        self.door.publish()
    }

    /// Answers processes that come. When one of them serves, the connection with it is given to
    /// `served`: it has to live as long as this process. If that one dies before this process has
    /// ended, others may come.
    pub(super) async fn attend(self, served: mpsc::Sender<Successor>) {
        let mut door = Arc::clone(&self.door);
        loop {
            let mut channel = match door.accept().await {
                Ok(channel) => channel,
                Err(error) => {
                    tracing::warn!(%error, "a process that wants to take over is not heard");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            match self.converse(&mut channel).await {
                Ok(()) => {
                    self.sockets.ports.note_replaced();
                    let channel = Arc::new(channel);
                    let successor = Successor {
                        _channel: Arc::clone(&channel),
                    };
                    let _ = served.send(successor).await;
                    channel.closed().await;
                    tracing::warn!(
                        "the process that has taken over has ended before this one: another one \
                         may take its place",
                    );
                    tell_lost(self.sockets.ports.stay_alone());
                    match door.again() {
                        Ok(again) => door = Arc::new(again),
                        Err(error) => {
                            tracing::warn!(%error, "no other process can take over");
                            return std::future::pending().await;
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "a process that was to take over has not: this one goes on",
                    );
                    tell_lost(self.sockets.ports.keep_newcomers());
                }
            }
        }
    }

    /// Nobody is to come any more, because this process ends and none takes its place.
    pub(super) fn close(&self) {
        self.door.close();
    }

    async fn converse(&self, channel: &mut Channel) -> Result<(), Error> {
        let (hello, _) = within(ANSWER_WITHIN, channel.receive()).await?;
        let FromNext::Hello { form, version } = hello else {
            return Err(Error::Message);
        };
        tracing::info!(
            name: MILESTONE,
            version,
            "another process is to take the place of this one",
        );
        if let Some(Refusal {
            reason,
            is_for_good,
        }) = self.refusal(form).await
        {
            let reason = reason.to_owned();
            let (message, error) = match is_for_good {
                true => (FromServing::Unable(reason.clone()), Error::Unable(reason)),
                false => (FromServing::Refused(reason.clone()), Error::Refused(reason)),
            };
            channel.send(&message, &[]).await?;
            return Err(error);
        }
        for port in self.sockets.ports.ports() {
            let files: Vec<_> = port.sockets.iter().map(|socket| socket.as_fd()).collect();
            let message = FromServing::Port(port.configured);
            channel.send(&message, &files).await?;
        }
        for (of, configured, listener) in &self.sockets.listeners {
            let message = FromServing::Listener(*of, *configured);
            channel.send(&message, &[listener.as_fd()]).await?;
        }
        let process = self.sockets.ports.next_process();
        channel.send(&FromServing::Welcome { process }, &[]).await?;
        let mut titles = self.library.titles().into_iter();
        loop {
            match within(NEXT_WITHIN, channel.receive()).await?.0 {
                FromNext::Hello { .. } => return Err(Error::Message),
                FromNext::More => match self.pack(&mut titles).await? {
                    Some(file) => channel.send(&FromServing::Objects, &[file.as_fd()]).await?,
                    None => channel.send(&FromServing::All, &[]).await?,
                },
                FromNext::Serves => {
                    channel.send(&FromServing::Leaves, &[]).await?;
                    return Ok(());
                }
            }
        }
    }

    /// Why this process does not hand over, if so.
    async fn refusal(&self, form: u32) -> Option<Refusal> {
        let ports = &self.sockets.ports;
        let refusal = |is_for_good, reason| {
            Some(Refusal {
                reason,
                is_for_good,
            })
        };
        if form != FORM {
            return refusal(true, "its version does so in another way: stop it first");
        }
        if !ports.may_be_replaced() {
            return refusal(true, "the system gave it no sockets for a next process");
        }
        let alone = async {
            while ports.is_beside() {
                tokio::time::sleep(PAUSE).await;
            }
        };
        match timeout(WELCOME_WITHIN, alone).await {
            Ok(()) => None,
            Err(_) => refusal(false, "the process before it has not ended yet"),
        }
    }

    /// The next objects; none at the end.
    async fn pack(&self, titles: &mut std::vec::IntoIter<Title>) -> Result<Option<OwnedFd>, Error> {
        let mut parcel = Packing::begin()?;
        while !parcel.is_full() {
            let Some(title) = titles.next() else { break };
            if let Some(piece) = self.library.leave(&title).await {
                parcel.add(&piece)?;
            }
        }
        if parcel.is_empty() {
            return Ok(None);
        }
        Ok(Some(parcel.seal()?))
    }
}

/// The process that has taken over. When this is dropped, it takes this one for ended.
#[derive(Debug)]
pub(super) struct Successor {
    _channel: Arc<Channel>,
}

/// Says that new clients could not be had come to this process.
fn tell_lost(steered: io::Result<()>) {
    if let Err(error) = steered {
        tracing::warn!(%error, "new clients may come to a process that is gone");
    }
}

async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limit, answer).await.unwrap_or(Err(Error::Slow))
}

const PAUSE: Duration = Duration::from_millis(100);
