//! The side that is asked for beats: it tells this server's own to others that know the secret.
//!
//! A connection is no viewer. Until it has shown the secret it counts among the connections of its
//! address, and it has [`GREETING_TIMEOUT`] for that. Strangers have places of their own, so that
//! they cannot take those of servers.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use ncs_net::endpoint;
use ncs_serve::accept::Place;
use ncs_serve::front::Links;
use quinn::{Connection, SendStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::secrets::{self, Secrets};
use super::{LAST_TIMEOUT, Refusal};
use crate::cluster::beat::Beat;
use crate::cluster::roster::MEMBERS_MAX;

/// What this server tells, and whom. Clones share it.
#[derive(Debug, Clone)]
pub struct Publisher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// None until the engine has read them.
    secrets: ArcSwapOption<Secrets>,
    told: watch::Sender<Option<Told>>,
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
        let frame = super::frame(&beat.to_bytes());
        self.0.told.send_replace(frame.map(|frame| Told {
            frame,
            is_last: beat.is_last,
        }));
        !beat.is_last || timeout(SEND_TIMEOUT, self.0.told.closed()).await.is_ok()
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
        let (stream, shown) = timeout(GREETING_TIMEOUT, greeting(connection))
            .await
            .unwrap_or(Err(Refusal::Greeting))?;
        if !self.accept(&shown) {
            return Err(Refusal::Secret);
        }
        let server = self.0.servers.try_acquire();
        let _server = server.map_err(|_| Refusal::Full)?;
        drop((address, stranger));
        self.tell_on(connection, stream, &shown).await
    }

    fn accept(&self, shown: &blake3::Hash) -> bool {
        let secrets = self.0.secrets.load();
        secrets
            .as_ref()
            .is_some_and(|secrets| secrets.accept(shown))
    }

    /// Tells the present beat, and each later one, up to the last. A slow receiver misses some.
    async fn tell_on(
        &self,
        connection: &Connection,
        mut stream: SendStream,
        shown: &blake3::Hash,
    ) -> Result<(), Refusal> {
        // Dropped when the last beat has been sent.
        let mut beats = self.0.told.subscribe();
        loop {
            let told = beats.borrow_and_update().clone();
            if let Some(Told { frame, is_last }) = told {
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
                changed = beats.changed() => if changed.is_err() {
                    return Ok(());
                },
                _ = connection.closed() => return Ok(()),
            }
        }
    }
}

/// Waits for the stream of a server and the secret on it, whose hash is returned.
async fn greeting(connection: &Connection) -> Result<(SendStream, blake3::Hash), Refusal> {
    let stream = connection.accept_bi().await;
    let (send, mut receive) = stream.map_err(|_| Refusal::Greeting)?;
    let shown = receive.read_to_end(secrets::BYTES_MAX).await;
    let shown = shown.map_err(|_| Refusal::Greeting)?;
    Ok((send, secrets::hash(&shown)))
}

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
