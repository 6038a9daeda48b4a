//! The other side of the page of `demo --web`: the clip's files on one plain QUIC stream, without
//! coding. What is lost on the way is sent again by QUIC, and what has come behind it waits.
//!
//! A page sends a path and a line feed on the first bidirectional stream of its session, as often
//! as it likes; each is answered by eight bytes of length, big-endian, and the bytes, in this
//! order. The congestion control is that of the server.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use quinn::{Endpoint, Incoming, RecvStream, SendStream};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::task::JoinSet;

use super::clip;
use crate::tls::{self, ForPages, Rotated, ServerIdentity};
use crate::web::{self, Origins};
use crate::wire::CloseCode;
use crate::{endpoint, pages};

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Plain {
    address: SocketAddr,
    hashes: Vec<String>,
    _tasks: JoinSet<()>,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket.
    #[error(transparent)]
    Endpoint(#[from] endpoint::Error),
    /// The certificate.
    #[error(transparent)]
    Tls(#[from] tls::Error),
}

impl Plain {
    /// Serves the clip on loopback to pages of these origins, with paths below `prefix`.
    pub fn start(origins: &Origins, prefix: &'static str) -> Result<Self, Error> {
        let rotated = std::sync::Arc::new(Rotated::ephemeral(tls::now())?);
        let hashes = pages::hashes(Some(&rotated));
        let identity = ServerIdentity::ephemeral()?.with_web(ForPages::Rotated(rotated));
        let config = endpoint::Config {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
            sockets: endpoint::Sockets::ONE,
            ..endpoint::Config::default()
        };
        let listeners = endpoint::open(&config, IDLE_TIMEOUT, &identity)?;
        let address = listeners
            .first()
            .map_or(config.listen[0], |one| one.address);
        let mut tasks = JoinSet::new();
        for endpoint in listeners.into_iter().flat_map(|one| one.endpoints) {
            tasks.spawn(accept(endpoint, origins.clone(), prefix));
        }
        Ok(Self {
            address,
            hashes,
            _tasks: tasks,
        })
    }

    /// Its address.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The hashes of its certificates.
    pub fn hashes(&self) -> &[String] {
        &self.hashes
    }
}

async fn accept(endpoint: Endpoint, origins: Origins, prefix: &'static str) {
    let mut serving = JoinSet::new();
    while let Some(incoming) = endpoint.accept().await {
        while serving.len() >= CONNECTIONS_MAX {
            serving.join_next().await;
        }
        serving.spawn(serve(incoming, origins.clone(), prefix));
    }
}

/// One page.
async fn serve(incoming: Incoming, origins: Origins, prefix: &'static str) {
    let Ok(connection) = incoming.await else {
        return;
    };
    let accepting = web::accept(&connection, &origins);
    let Ok(Ok((opened, ending))) = tokio::time::timeout(IDLE_TIMEOUT, accepting).await else {
        return endpoint::close(&connection, CloseCode::Done, "");
    };
    tokio::select! {
        () = answer(opened.receive, opened.send, prefix) => {}
        () = ending.ended() => {}
        _ = connection.closed() => {}
    }
    opened.session.close(CloseCode::Done, "").await;
}

async fn answer(receive: RecvStream, mut send: SendStream, prefix: &str) {
    let mut requests = BufReader::new(receive);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut requests).take(PATH_MAX);
        if limited.read_until(b'\n', &mut line).await.is_err() || line.pop() != Some(b'\n') {
            return;
        }
        let name = line.strip_prefix(prefix.as_bytes());
        let file = clip::FILES
            .iter()
            .find(|file| name == Some(file.name.as_bytes()));
        let Some(file) = file else {
            return;
        };
        let length = (file.bytes.len() as u64).to_be_bytes();
        if send.write_all(&length).await.is_err() || send.write_all(file.bytes).await.is_err() {
            return;
        }
    }
}

const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECTIONS_MAX: usize = 64;
/// Bytes of a path and its line feed.
const PATH_MAX: u64 = 256;
