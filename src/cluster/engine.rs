//! What carries beats from a server to the others: nothing, NATS, or the servers themselves.
//!
//! This is the whole of what the fleet asks of an engine, and nothing waits for it. A beat that
//! cannot be sent now is dropped, because the next one says more.
//!
//! An engine also carries messages from one server to another by its name: some bytes of a
//! [`Topic`]. Its sender is known as surely as that of a beat. A message may be lost, in the engine
//! or before it, where a queue is full. So its sender has to send it again, or to say more later.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};

use super::beat::{Beat, Name, Unfit};
use super::members::{self, Members};
use super::nats::{self, Nats};
use super::{Config, Own};

/// The kinds of engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The server is alone.
    #[default]
    None,
    /// Servers of NATS.
    Nats,
    /// A list of the servers, which draw beats from each other.
    Static,
}

/// What a message between servers is about. The numbers travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Topic {
    /// Holders with limits ([`counts`](super::counts)).
    Counts = 1,
    /// Peers that serve others ([`sharers`](super::sharers)).
    Sharers = 2,
}

impl Topic {
    /// The topic of this number, if this version has it.
    pub fn of(number: u8) -> Option<Self> {
        [Self::Counts, Self::Sharers]
            .into_iter()
            .find(|topic| *topic as u8 == number)
    }
}

/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = 4000;

/// An engine that is open, whether or not it can be reached.
#[derive(Debug)]
pub enum Engine {
    /// There is none.
    None,
    /// Beats come from everybody, this server too. Messages go through NATS.
    Nats(Box<Nats>),
    /// Beats and messages come from the listed servers, except from this one.
    Static(Box<Members>),
}

/// Why an engine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// NATS.
    #[error(transparent)]
    Nats(#[from] nats::Error),
    /// A list.
    #[error(transparent)]
    Static(#[from] members::Error),
}

/// What an engine brings.
#[derive(Debug)]
pub enum Heard {
    /// A beat.
    Beat(Box<Beat>),
    /// A message that is not a valid beat.
    Unfit(Unfit),
    /// A message from another server.
    Message(Message),
    /// Whether the engine is reached may have changed.
    News,
    /// The engine refuses something, and goes on.
    Complaint(String),
}

/// A message, as it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The server that has sent it.
    pub from: Name,
    /// The number of its topic, and its bytes; none if it is too long or empty.
    pub content: Option<(u8, Bytes)>,
}

impl Message {
    /// Reads what [`content`] has written.
    pub(super) fn read(from: Name, mut bytes: Bytes) -> Self {
        let content = match bytes.len() {
            0 => None,
            length if length > 1 + MESSAGE_MAX => None,
            _ => Some((bytes.get_u8(), bytes)),
        };
        Self { from, content }
    }
}

/// A message as engines carry it: the number of its topic, and its bytes.
pub(super) fn content(topic: Topic, bytes: &[u8]) -> Bytes {
    let mut content = BytesMut::with_capacity(1 + bytes.len());
    content.put_u8(topic as u8);
    content.put_slice(bytes);
    content.freeze()
}

impl Engine {
    /// Opens the engine of a server. It need not be reachable.
    pub async fn open(own: &Own) -> Result<Self, Error> {
        let client = format!("ncserverd {}", own.name);
        Self::open_as(&own.config, &client, Some(own)).await
    }

    /// Opens the engine of a configuration, only to listen. `client` is what it calls this process.
    pub async fn listen(config: &Config, client: &str) -> Result<Self, Error> {
        Self::open_as(config, client, None).await
    }

    async fn open_as(config: &Config, client: &str, own: Option<&Own>) -> Result<Self, Error> {
        Ok(match config.engine {
            Kind::None => Self::None,
            Kind::Nats => {
                let own = own.map(|own| &own.name);
                Self::Nats(Box::new(Nats::open(&config.nats, client, own).await?))
            }
            Kind::Static => {
                let own = own.map(|own| (&own.publisher, &own.name));
                Self::Static(Box::new(Members::open(&config.members, own)?))
            }
        })
    }

    /// Whether the engine is reached, or the last reason why it is not.
    pub fn reached(&self) -> Result<(), String> {
        match self {
            Self::None => Ok(()),
            Self::Nats(nats) => nats.reached(),
            Self::Static(members) => members.reached(),
        }
    }

    /// The client of NATS, if that is the engine.
    pub fn client(&self) -> Option<async_nats::Client> {
        match self {
            Self::Nats(nats) => Some(nats.client()),
            Self::None | Self::Static(_) => None,
        }
    }

    /// Tells everybody a beat. Whether it was sent; the last one of a server has then left this
    /// process. `None` without an engine.
    pub async fn tell(&self, beat: &Beat) -> Option<bool> {
        match self {
            Self::None => None,
            Self::Nats(nats) => Some(nats.tell(beat).await),
            Self::Static(members) => Some(members.tell(beat).await),
        }
    }

    /// Sends a message to another server, if that is possible at once. Whether it was sent, which
    /// does not mean that it arrives. `None` without an engine.
    pub fn send(&self, to: &Name, topic: Topic, bytes: &[u8]) -> Option<bool> {
        if bytes.len() > MESSAGE_MAX {
            return Some(false);
        }
        match self {
            Self::None => None,
            Self::Nats(nats) => Some(nats.send(to, content(topic, bytes))),
            Self::Static(members) => Some(members.send(to, &content(topic, bytes))),
        }
    }

    /// Another process is this server from now on.
    pub fn hang_up(&self) {
        if let Self::Static(members) = self {
            members.hang_up();
        }
    }

    /// What comes next. Cancelling this loses nothing.
    pub async fn hear(&mut self) -> Heard {
        match self {
            Self::None => std::future::pending().await,
            Self::Nats(nats) => nats.hear().await,
            Self::Static(members) => members.hear().await,
        }
    }
}

/// The pause before an attempt to connect. It grows to [`PAUSE_MAX`], and is drawn at random: a
/// hundred servers must not come back in the same instant.
pub(crate) fn pause(attempts: usize) -> Duration {
    let grown = PAUSE_MIN.saturating_mul(1 << attempts.min(10));
    grown
        .min(PAUSE_MAX)
        .mul_f64(rand::rng().random_range(0.5..1.0))
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let read = |bytes: Bytes| Message::read("a".parse().unwrap(), bytes).content;
        let bytes = vec![7; MESSAGE_MAX];
        let written = content(Topic::Counts, &bytes);
        assert_eq!(read(written), Some((1, bytes.into())));
        assert_eq!(read(content(Topic::Counts, b"")), Some((1, Bytes::new())));
        assert_eq!(read(Bytes::new()), None);
        assert_eq!(read(vec![1; MESSAGE_MAX + 2].into()), None);
    }

    #[test]
    fn pauses_grow_to_their_bound() {
        for attempts in [0, 1, 20, usize::MAX] {
            let pause = pause(attempts);
            assert!(
                (PAUSE_MIN / 2..PAUSE_MAX).contains(&pause),
                "{attempts}: {pause:?}"
            );
        }
        assert!(pause(20) >= PAUSE_MAX / 2);
    }
}
