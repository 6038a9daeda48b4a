//! The side that is asked for beats: it tells this server's own to others that know the secret.
//!
//! A server that has said its name also gets the messages to it. Each connection has a queue of
//! [`QUEUE_MAX`]; if it is full, further ones are dropped. Whoever has the secret may say any name,
//! and would get copies of what others are told, but takes nothing from them.
//!
//! A connection is no viewer. Until it has shown the secret it counts among the connections of its
//! address, and it has [`GREETING_TIMEOUT`] for that. Strangers have places of their own, so that
//! they cannot take those of servers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use ncs_net::endpoint;
use ncs_serve::accept::Place;
use ncs_serve::front::Links;
use quinn::{Connection, SendStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::secrets::{self, Secrets};
use super::{LAST_TIMEOUT, Refusal};
use crate::cluster::beat::{Beat, Name};
use crate::cluster::roster::MEMBERS_MAX;

/// What this server tells, and whom. Clones share it.
#[derive(Debug, Clone)]
pub struct Publisher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// None until the engine has read them.
    secrets: ArcSwapOption<Secrets>,
    told: watch::Sender<Option<Told>>,
    /// The queues of the connections of each server that has said its name.
    queues: Mutex<HashMap<Name, Vec<mpsc::Sender<Bytes>>>>,
    /// Places of connections that have not shown the secret, and of those that have.
    strangers: Semaphore,
    servers: Semaphore,
}

/// A beat as it travels.
#[derive(Debug, Clone)]
struct Told {
    frame: Bytes,
    is_last: bool,
}

impl Default for Publisher {
    fn default() -> Self {
        Self(Arc::new(Shared {
            secrets: ArcSwapOption::empty(),
            told: watch::Sender::new(None),
            queues: Mutex::default(),
            strangers: Semaphore::new(STRANGERS_MAX),
            servers: Semaphore::new(SERVERS_MAX),
        }))
    }
}

impl Publisher {
    /// Serves other servers of the fleet.
    pub fn links(&self) -> Links {
        let publisher = self.clone();
        Links::new(Arc::new(move |connection, place| {
            let publisher = publisher.clone();
            Box::pin(async move { publisher.serve(connection, place).await })
        }))
    }

    /// The secrets that count from now on. Connections with others are closed at the next beat.
    pub(super) fn set_secrets(&self, secrets: Arc<Secrets>) {
        self.0.secrets.store(Some(secrets));
    }

    /// The secrets that count now.
    pub(super) fn secrets(&self) -> Option<Arc<Secrets>> {
        self.0.secrets.load_full()
    }

    /// Tells a beat to all that are connected, and to those that come until the next one. Waits
    /// until the last one has been sent; whether it was in time.
    pub(super) async fn tell(&self, beat: &Beat) -> bool {
        let frame = super::frame([&beat.to_bytes(), &[]]);
        self.0.told.send_replace(frame.map(|frame| Told {
            frame,
            is_last: beat.is_last,
        }));
        !beat.is_last || timeout(SEND_TIMEOUT, self.0.told.closed()).await.is_ok()
    }

    /// Another process tells the beats of this server from now on: others are to ask that one.
    pub(super) fn hang_up(&self) {
        self.0.told.send_replace(Some(Told {
            frame: Bytes::new(),
            is_last: true,
        }));
    }

    /// Sends a message to a server. Whether it is connected and one of its queues has room.
    pub(super) fn send(&self, to: &Name, content: &[u8]) -> bool {
        let Some(frame) = super::frame([&[super::MESSAGE], content]) else {
            return false;
        };
        let queues = self.queues();
        let queues = queues.get(to).into_iter().flatten();
        let sent = queues.filter(|queue| queue.try_send(frame.clone()).is_ok());
        sent.count() > 0
    }

    /// A queue of messages to a server.
    fn queue(&self, server: Name) -> Queue {
        let (sender, messages) = mpsc::channel(QUEUE_MAX);
        self.queues()
            .entry(server.clone())
            .or_default()
            .push(sender);
        Queue {
            publisher: self.clone(),
            server,
            messages,
        }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<Name, Vec<mpsc::Sender<Bytes>>>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self, connection: Connection, place: Place) {
        let peer = connection.remote_address();
        match self.converse(&connection, place).await {
            Ok(()) => endpoint::close_with(&connection, super::DONE, ""),
            Err(refusal) => {
                tracing::debug!(%peer, %refusal, "a server of the fleet is refused");
                endpoint::close_with(&connection, refusal.code(), &refusal.to_string());
            }
        }
    }

    async fn converse(&self, connection: &Connection, place: Place) -> Result<(), Refusal> {
        let Place { address, entry } = place;
        // It is no viewer, and asks for nothing.
        drop(entry);
        let stranger = self.0.strangers.try_acquire();
        let stranger = stranger.map_err(|_| Refusal::Full)?;
        let Greeting {
            stream,
            shown,
            name,
        } = timeout(GREETING_TIMEOUT, greeting(connection))
            .await
            .unwrap_or(Err(Refusal::Greeting))?;
        if !self.accept(&shown) {
            return Err(Refusal::Secret);
        }
        let server = self.0.servers.try_acquire();
        let _server = server.map_err(|_| Refusal::Full)?;
        drop((address, stranger));
        let queue = name.map(|name| self.queue(name));
        self.tell_on(connection, stream, &shown, queue).await
    }

    fn accept(&self, shown: &blake3::Hash) -> bool {
        let secrets = self.0.secrets.load();
        secrets
            .as_ref()
            .is_some_and(|secrets| secrets.accept(shown))
    }

    /// Tells the present beat, and each later one, up to the last, and messages. A slow receiver
    /// misses some.
    async fn tell_on(
        &self,
        connection: &Connection,
        mut stream: SendStream,
        shown: &blake3::Hash,
        mut queue: Option<Queue>,
    ) -> Result<(), Refusal> {
        // Dropped when the last beat has been sent.
        let mut beats = self.0.told.subscribe();
        let mut next = beats.borrow_and_update().clone();
        loop {
            if let Some(Told { frame, is_last }) = next.take() {
                if !self.accept(shown) {
                    return Err(Refusal::Secret);
                }
                match timeout(WRITE_TIMEOUT, stream.write_all(&frame)).await {
                    Ok(Ok(())) => {}
                    // It has gone, or it does not read.
                    Ok(Err(_)) | Err(_) => return Ok(()),
                }
                if is_last {
                    let _ = stream.finish();
                    let _ = timeout(LAST_TIMEOUT, stream.stopped()).await;
                    return Ok(());
                }
            }
            tokio::select! {
                biased;
                changed = beats.changed() => match changed {
                    Ok(()) => next = beats.borrow_and_update().clone(),
                    Err(_) => return Ok(()),
                },
                _ = connection.closed() => return Ok(()),
                Some(frame) = message(&mut queue) => {
                    let is_last = false;
                    next = Some(Told { frame, is_last });
                }
            }
        }
    }
}

/// Messages to a server on one connection. Dropping it ends them.
struct Queue {
    publisher: Publisher,
    server: Name,
    messages: mpsc::Receiver<Bytes>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.messages.close();
        let mut queues = self.publisher.queues();
        if let Some(senders) = queues.get_mut(&self.server) {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                queues.remove(&self.server);
            }
        }
    }
}

async fn message(queue: &mut Option<Queue>) -> Option<Bytes> {
    match queue {
        Some(queue) => queue.messages.recv().await,
        None => None,
    }
}

/// What a client has said.
struct Greeting {
    stream: SendStream,
    /// The hash of the secret.
    shown: blake3::Hash,
    /// The name of its server, if it wants the messages to it.
    name: Option<Name>,
}

/// Waits for the stream of a server, and the secret and the name on it.
async fn greeting(connection: &Connection) -> Result<Greeting, Refusal> {
    let stream = connection.accept_bi().await;
    let (stream, mut receive) = stream.map_err(|_| Refusal::Greeting)?;
    let said = receive.read_to_end(GREETING_MAX).await;
    let said = said.map_err(|_| Refusal::Greeting)?;
    let (secret, name) = match said.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&said[..end], Some(&said[end + 1..])),
        None => (&said[..], None),
    };
    if secret.len() > secrets::BYTES_MAX {
        return Err(Refusal::Greeting);
    }
    let read = |name: &[u8]| str::from_utf8(name).ok()?.parse::<Name>().ok();
    let name = name.map(|name| read(name).ok_or(Refusal::Greeting));
    Ok(Greeting {
        stream,
        shown: secrets::hash(secret),
        name: name.transpose()?,
    })
}

/// The longest secret, a line feed, and the longest name.
const GREETING_MAX: usize = secrets::BYTES_MAX + 1 + 64;
/// Messages that wait on a connection. Further ones are dropped.
const QUEUE_MAX: usize = 64;
/// Connections that have not shown the secret.
const STRANGERS_MAX: usize = 256;
/// Connections of servers, and of operators that look at the fleet.
const SERVERS_MAX: usize = MEMBERS_MAX + 16;
/// The time from the handshake to the end of the secret.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// A beat that is not taken in this time ends the connection.
const WRITE_TIMEOUT: Duration = Duration::from_secs(4);
/// How long the last beat may take in all.
const SEND_TIMEOUT: Duration = Duration::from_millis(400);
