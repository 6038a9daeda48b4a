//! The store of the fleet's configuration: one key of a bucket of NATS, with its last revisions.
//!
//! It is asked and not followed: a watch of NATS is a consumer, which NATS may lose, and watches
//! are reported to stay silent for ever afterwards. Who applies a revision says so by a message,
//! and servers ask; whoever misses the message asks a minute later. A question goes to the node
//! that leads, so that nobody is told an old revision after a new one.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::kv::UpdateErrorKind;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use async_nats::jetstream::{self, Context, ErrorCode, kv};
use bytes::Bytes;
use futures_util::StreamExt as _;

use super::entry::ENTRY_BYTES_MAX;
use crate::cluster::beat::{ConfigHash, Name};

/// A revision as it is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) revision: u64,
    /// When it was written, in milliseconds since 1970, by the clock of NATS.
    pub(super) written_ms: u64,
    pub(super) bytes: Bytes,
}

impl Stored {
    /// What tells it from revisions of the same number in another store.
    pub(super) fn hash(&self) -> ConfigHash {
        ConfigHash::of(&self.bytes)
    }
}

/// What is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Newest {
    /// Nothing was ever applied.
    Nothing,
    /// It was deleted, by this revision.
    Deleted(u64),
    Revision(Stored),
}

impl Newest {
    /// Its revision, 0 if there is none.
    pub(super) const fn revision(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Deleted(revision) | Self::Revision(Stored { revision, .. }) => *revision,
        }
    }
}

/// Why the store does not do as it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0}")]
    Read(String),
    #[error("{0}")]
    Write(String),
    /// Somebody else has written meanwhile.
    #[error("another revision was applied meanwhile")]
    Moved,
}

/// The store of a fleet.
#[derive(Debug)]
pub(super) struct Store {
    client: Client,
    context: Context,
    bucket: String,
    notices: String,
}

impl Store {
    /// The store of the fleet whose subjects begin with this word.
    pub(super) fn new(client: Client, subject: &Name) -> Self {
        let mut context = jetstream::new(client.clone());
        context.set_timeout(TIMEOUT);
        Self {
            client,
            context,
            bucket: format!("{subject}_config"),
            notices: format!("{subject}.config"),
        }
    }

    /// The subject of messages that say that there is a new revision.
    pub(super) fn notices(&self) -> &str {
        &self.notices
    }

    pub(super) async fn newest(&self) -> Result<Newest, Error> {
        let stream = self.stream().await?;
        let message = match stream.get_last_raw_message_by_subject(&self.key()).await {
            Ok(message) => message,
            Err(error) => {
                return match error.kind() {
                    LastRawMessageErrorKind::NoMessageFound => Ok(Newest::Nothing),
                    LastRawMessageErrorKind::JetStream(error) if is_nothing(error.error_code()) => {
                        Ok(Newest::Nothing)
                    }
                    _ => Err(Error::Read(told(&error))),
                };
            }
        };
        // A revision that was deleted leaves a message with this header.
        if message.headers.get("KV-Operation").is_some() {
            return Ok(Newest::Deleted(message.sequence));
        }
        Ok(Newest::Revision(stored(message)))
    }

    /// An earlier revision. `None` if it is not kept, or is none of the configuration.
    pub(super) async fn revision(&self, revision: u64) -> Result<Option<Stored>, Error> {
        let stream = self.stream().await?;
        match stream.get_raw_message(revision).await {
            Ok(message) => {
                let is_revision = message.subject.as_str() == self.key()
                    && message.headers.get("KV-Operation").is_none();
                Ok(is_revision.then(|| stored(message)))
            }
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                LastRawMessageErrorKind::JetStream(error) if is_nothing(error.error_code()) => {
                    Ok(None)
                }
                _ => Err(Error::Read(told(&error))),
            },
        }
    }

    /// The revisions that are kept, the oldest first.
    pub(super) async fn history(&self) -> Result<Vec<Stored>, Error> {
        let read = |error: &dyn std::error::Error| Error::Read(told(error));
        let bucket = self.context.get_key_value(&self.bucket).await;
        let bucket = bucket.map_err(|error| read(&error))?;
        let history = async {
            let mut history = bucket.history(KEY).await.map_err(|error| read(&error))?;
            let mut all = Vec::new();
            while let Some(entry) = history.next().await {
                let entry = entry.map_err(|error| read(&error))?;
                if entry.operation == kv::Operation::Put {
                    all.push(Stored {
                        revision: entry.revision,
                        written_ms: milliseconds(entry.created.unix_timestamp_nanos()),
                        bytes: entry.value,
                    });
                }
            }
            Ok(all)
        };
        let history = tokio::time::timeout(2 * TIMEOUT, history).await;
        history.unwrap_or_else(|_| Err(Error::Read("no answer in time".to_owned())))
    }

    /// Writes a revision over this one, 0 for none, and tells the servers. Makes the bucket on so
    /// many nodes if there is none.
    pub(super) async fn swap(&self, base: u64, bytes: Vec<u8>, replicas: u8) -> Result<u64, Error> {
        let bucket = match self.context.get_key_value(&self.bucket).await {
            Ok(bucket) => bucket,
            Err(_) if base == 0 => self.create(replicas).await?,
            Err(error) => return Err(Error::Write(told(&error))),
        };
        // With 0 it succeeds only where nothing was ever written.
        let revision = bucket.update(KEY, bytes.into(), base).await;
        let revision = revision.map_err(|error| match error.kind() {
            UpdateErrorKind::WrongLastRevision => Error::Moved,
            _ => Error::Write(told(&error)),
        })?;
        // Whoever misses this reads within a minute.
        let notice = revision.to_string().into();
        let told = self.client.publish(self.notices.clone(), notice).await;
        if told.is_ok() {
            let _ = self.client.flush().await;
        }
        Ok(revision)
    }

    async fn create(&self, replicas: u8) -> Result<kv::Store, Error> {
        let config = kv::Config {
            bucket: self.bucket.clone(),
            description: "the configuration that servers of ncserverd share".to_owned(),
            max_value_size: i32::try_from(ENTRY_BYTES_MAX).unwrap_or(i32::MAX),
            history: HISTORY,
            storage: jetstream::stream::StorageType::File,
            num_replicas: usize::from(replicas),
            ..kv::Config::default()
        };
        let created = self.context.create_key_value(config).await;
        created.map_err(|error| Error::Write(told(&error)))
    }

    async fn stream(&self) -> Result<Stream<()>, Error> {
        let stream = self
            .context
            .get_stream_no_info(format!("KV_{}", self.bucket));
        stream.await.map_err(|error| Error::Read(told(&error)))
    }

    /// The subject under which the bucket keeps the configuration.
    fn key(&self) -> String {
        format!("$KV.{}.{KEY}", self.bucket)
    }
}

fn stored(message: jetstream::message::StreamMessage) -> Stored {
    Stored {
        revision: message.sequence,
        written_ms: milliseconds(message.time.unix_timestamp_nanos()),
        bytes: message.payload,
    }
}

fn milliseconds(nanoseconds: i128) -> u64 {
    u64::try_from(nanoseconds / 1_000_000).unwrap_or(0)
}

fn is_nothing(code: ErrorCode) -> bool {
    code == ErrorCode::STREAM_NOT_FOUND || code == ErrorCode::NO_MESSAGE_FOUND
}

/// An error with what has caused it.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

const KEY: &str = "document";
/// Revisions that are kept.
const HISTORY: i64 = 10;
const TIMEOUT: Duration = Duration::from_secs(4);
