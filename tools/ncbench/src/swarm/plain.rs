//! The same bytes over plain QUIC streams, to compare with: a server that sends as many bytes of a
//! file in memory as it is asked for, and viewers that ask for a segment's worth when its time
//! comes.
//!
//! A viewer opens a bidirectional stream for each segment and says its length in eight bytes, the
//! highest first. The server sends the file from where the last segment of this viewer ended, and
//! begins at a random place. If it always sent the same few bytes, they would stay in the
//! processor's cache.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::endpoint::{self, Congestion, INITIAL_RTT};
use ncserverd::tls::ServerIdentity;
use quinn::{
    Connection, Endpoint, Runtime, SendStream, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::clock::Playout;
use super::person::Person;
use super::playback::Player;
use super::viewer::{End, Shard, reason};
use super::{CLOSE_MAX, Program, SOCKET_BUFFER};

/// Where plain streams are served, and how.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// UDP address.
    pub listen: SocketAddr,
    /// What decides how fast a connection sends.
    pub congestion: Congestion,
}

/// Serves plain streams until `stop` says so, on as many sockets as a server of coded streams.
pub async fn serve(
    config: Config,
    identity: &ServerIdentity,
    stop: impl Future<Output = ()>,
) -> Result<(), endpoint::Error> {
    let mut server = ServerConfig::with_crypto(Arc::new(identity.quic()?));
    let mut transport = TransportConfig::default();
    transport.initial_rtt(INITIAL_RTT);
    transport.max_concurrent_uni_streams(VarInt::from_u32(0));
    transport.max_concurrent_bidi_streams(VarInt::from_u32(4));
    transport.send_window(1 << 20);
    transport.congestion_controller_factory(config.congestion.factory());
    server.transport_config(Arc::new(transport));
    let sockets = endpoint::Config {
        listen: vec![config.listen],
        congestion: config.congestion,
        receive_buffer: SOCKET_BUFFER,
        send_buffer: SOCKET_BUFFER,
        ..endpoint::Config::default()
    };
    let mut endpoints = Vec::new();
    let runtime = || Ok(Arc::new(TokioRuntime) as Arc<dyn Runtime>);
    for listener in endpoint::open_with(&sockets, IDLE_MAX, identity, runtime)? {
        endpoints.extend(listener.endpoints);
    }
    let file = file();
    for endpoint in &endpoints {
        endpoint.set_server_config(Some(server.clone()));
        tokio::spawn(accept(endpoint.clone(), file.clone()));
    }
    stop.await;
    for endpoint in &endpoints {
        endpoint.close(VarInt::from_u32(0), b"");
    }
    // Connections on a path with a long queue take a minute to drain.
    let _ = tokio::time::timeout(CLOSE_MAX, async {
        for endpoint in &endpoints {
            endpoint.wait_idle().await;
        }
    })
    .await;
    Ok(())
}

fn file() -> Bytes {
    let mut bytes = vec![0; FILE_BYTES];
    SmallRng::seed_from_u64(1).fill(&mut bytes[..]);
    bytes.into()
}

async fn accept(endpoint: Endpoint, file: Bytes) {
    while let Some(incoming) = endpoint.accept().await {
        let file = file.clone();
        tokio::spawn(async move {
            if let Ok(connection) = incoming.await {
                answer(connection, file).await;
            }
        });
    }
}

async fn answer(connection: Connection, file: Bytes) {
    let mut from = rand::random_range(0..FILE_BYTES as u64);
    while let Ok((send, mut receive)) = connection.accept_bi().await {
        let mut length = [0; 8];
        if receive.read_exact(&mut length).await.is_err() {
            return;
        }
        let length = u64::from_be_bytes(length);
        tokio::spawn(send_file(send, file.clone(), from, length));
        from = (from + length % FILE_BYTES as u64) % FILE_BYTES as u64;
    }
}

/// Sends so many bytes of the file from there on, and from its beginning behind its end.
async fn send_file(mut send: SendStream, file: Bytes, from: u64, length: u64) {
    let (mut at, mut left) = (usize::try_from(from).unwrap_or(0), length);
    while left > 0 {
        // Eight blocks at a time, as the other server does, and without a copy.
        let end = file.len().min(at + PIECE_BYTES);
        let end = end.min(at.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)));
        left -= (end - at) as u64;
        if send.write_chunk(file.slice(at..end)).await.is_err() {
            return;
        }
        at = end % file.len();
    }
    let _ = send.finish();
}

/// Plays until the viewer leaves or the connection ends.
pub(super) async fn play(
    shard: &Shard,
    connection: &Connection,
    person: &mut Person,
    begun: Instant,
    stays: Option<Duration>,
) -> End {
    shard.totals.joined.add(1);
    shard.totals.joining.add(begun.elapsed());
    let leaves = begun + stays.unwrap_or(FOREVER);
    tokio::select! {
        () = fetch(shard, connection, person) => {
            // The connection's own reason says more.
            End::Failed(connection.close_reason().map_or_else(
                || "a plain stream ended early".to_owned(),
                |error| reason(&error),
            ))
        }
        () = tokio::time::sleep_until(leaves.into()) => End::Left,
    }
}

/// Fetches segment after segment until the connection ends.
async fn fetch(shard: &Shard, connection: &Connection, person: &mut Person) {
    let Program::Fixed(items) = &shard.plan.program else {
        return;
    };
    let Some(item) = items.first() else { return };
    let length = item.end.unwrap_or_default();
    let mut playout = Playout::new(Instant::now(), 0, item.duration);
    let mut player = Player::new(&shard.totals, shard.plan.begin);
    let mut chunks: [Bytes; 16] = std::array::from_fn(|_| Bytes::new());
    loop {
        tokio::time::sleep_until(playout.ask_at().into()).await;
        let Ok((mut send, mut receive)) = connection.open_bi().await else {
            return;
        };
        let asked = Instant::now();
        if send.write_all(&length.to_be_bytes()).await.is_err() || send.finish().is_err() {
            return;
        }
        let mut received = 0;
        while let Ok(Some(count)) = receive.read_chunks(&mut chunks).await {
            let bytes = chunks[..count]
                .iter_mut()
                .map(|chunk| std::mem::take(chunk).len() as u64)
                .sum::<u64>();
            if received == 0 {
                person.enter(Instant::now(), &shard.totals);
                shard.totals.first_block.add(asked.elapsed());
            }
            received += bytes;
            shard.totals.bytes.add(bytes);
        }
        if received < length {
            return;
        }
        let now = Instant::now();
        person.serve(now, &shard.totals);
        if shard.totals.count(now, playout.due()) {
            player.take(now, length, item.duration);
        }
        playout.advance(item.duration);
    }
}

/// As long as the file of `benches/viewers`, and the largest piece that is given to QUIC.
const FILE_BYTES: usize = 50 << 20;
const PIECE_BYTES: usize = 8 * 4096;
/// Of connections that come before the transport of plain streams is set.
const IDLE_MAX: Duration = Duration::from_secs(30);
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
