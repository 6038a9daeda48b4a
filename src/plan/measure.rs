//! A server's cost of QUIC on this machine: a transfer over loopback with the server's own
//! transport settings.
//!
//! The server's side is one thread with its own runtime, so that the thread's CPU time is the whole
//! cost; the viewers run on another thread. As in a server, each connection gets a few blocks per
//! wake-up, and connections take turns: saturated connections would send more packets per system
//! call than viewers of a stream need. The load is light, so that a machine with two cores loses
//! little. Wake-ups then cost more than with many viewers, by about as much as sessions would add.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use quinn::{ClientConfig, Connection, Endpoint};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, sleep, timeout};

use super::Error;
use super::layout::{Layout, Way};
use crate::bench::clock::Lap;
use crate::endpoint::{self, Sockets};
use crate::tls::{self, Fingerprint, ServerIdentity, Trust};

/// The measurements.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct QuicCost {
    /// CPU time in seconds per packet sent, including acknowledgements.
    pub(super) cpu_per_packet: f64,
    /// CPU time in seconds per handshake.
    pub(super) cpu_per_handshake: f64,
    /// Measured bytes of UDP payload per byte of blocks.
    pub(super) udp_per_byte: f64,
    /// Packets sent.
    pub(super) packets: u64,
    /// Blocks per connection and wake-up.
    pub(super) burst_blocks: usize,
}

/// Sends blocks of this layout over loopback for a second.
pub(super) fn quic(config: &endpoint::Config, layout: &Layout) -> Result<QuicCost, Error> {
    let identity = ServerIdentity::ephemeral()?;
    let fingerprint = identity.fingerprint();
    let config = endpoint::Config {
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        sockets: Sockets::ONE,
        ..config.clone()
    };
    let (way, block_bytes) = (layout.way, layout.block_bytes() as usize);
    let block = Bytes::from(vec![0x5a; layout.header + block_bytes]);
    let (tell, told) = mpsc::channel();
    let server = thread::Builder::new()
        .name("plan-server".into())
        .spawn(move || {
            let runtime = runtime()?;
            Sender {
                way,
                block,
                block_bytes,
            }
            .run(&runtime, &config, &identity, &tell)
        })?;
    // If the server does not start, it reports the reason itself.
    let viewers = told
        .recv()
        .map_or(Ok(()), |address| view(address, fingerprint));
    let cost = server
        .join()
        .map_err(|_| failed("the server's thread panicked"))??;
    viewers.map(|()| cost)
}

/// The server's side.
struct Sender {
    way: Way,
    /// Including its header.
    block: Bytes,
    block_bytes: usize,
}

impl Sender {
    fn run(
        &self,
        runtime: &Runtime,
        config: &endpoint::Config,
        identity: &ServerIdentity,
        tell: &mpsc::Sender<SocketAddr>,
    ) -> Result<QuicCost, Error> {
        let endpoint = {
            let _guard = runtime.enter();
            let mut listener = endpoint::open_here(config, IDLE, identity)?.swap_remove(0);
            listener.endpoints.swap_remove(0)
        };
        // The viewers' side waits for it.
        let _ = tell.send(endpoint.local_addr()?);
        let mut accepted = Ok(Vec::new());
        let shaking = Lap::thread(|| accepted = runtime.block_on(in_time(accept(&endpoint))));
        let connections = accepted?;
        // Path MTU discovery is not part of the cost of a packet.
        runtime.block_on(async { sleep(SETTLE).await });
        let before = sent(&connections);
        let mut handed = Ok(0);
        let sending =
            Lap::thread(|| handed = runtime.block_on(in_time(self.send_all(&connections))));
        let (after, handed) = (sent(&connections), handed?);
        let (packets, bytes) = (after.0 - before.0, after.1 - before.1);
        endpoint.close(0u32.into(), b"measured");
        let _ = runtime.block_on(async { timeout(SETTLE, endpoint.wait_idle()).await });
        if packets == 0 || handed == 0 {
            return Err(failed("nothing was sent"));
        }
        Ok(QuicCost {
            cpu_per_packet: sending.cpu.as_secs_f64() / packets as f64,
            cpu_per_handshake: shaking.cpu.as_secs_f64() / CONNECTIONS as f64,
            udp_per_byte: bytes as f64 / (handed * self.block_bytes) as f64,
            packets,
            burst_blocks: burst_blocks(&self.block),
        })
    }

    /// Returns the number of blocks handed over.
    async fn send_all(&self, connections: &[Connection]) -> Result<usize, Error> {
        let mut tasks = JoinSet::new();
        let begin = Instant::now();
        for (turn, connection) in connections.iter().enumerate() {
            let first = begin + EVERY.mul_f64(turn as f64 / connections.len() as f64);
            tasks.spawn(send(
                connection.clone(),
                self.way,
                self.block.clone(),
                first,
            ));
        }
        let mut handed = 0;
        while let Some(ended) = tasks.join_next().await {
            handed += ended.map_err(failed)??;
        }
        Ok(handed)
    }
}

/// Hands blocks to one connection periodically.
async fn send(
    connection: Connection,
    way: Way,
    block: Bytes,
    first: Instant,
) -> Result<usize, Error> {
    let blocks = burst_blocks(&block);
    let mut stream = match way {
        Way::Streams => Some(connection.open_uni().await.map_err(failed)?),
        Way::Datagrams => None,
    };
    let (mut turns, end) = (interval_at(first, EVERY), first + SEND_FOR);
    let mut handed = 0;
    while turns.tick().await < end {
        match &mut stream {
            Some(stream) => stream
                .write_all_chunks(&mut vec![block.clone(); blocks])
                .await
                .map_err(failed)?,
            None => {
                for _ in 0..blocks {
                    connection
                        .send_datagram_wait(block.clone())
                        .await
                        .map_err(failed)?;
                }
            }
        }
        handed += blocks;
    }
    Ok(handed)
}

fn burst_blocks(block: &Bytes) -> usize {
    (BURST_BYTES / block.len()).max(1)
}

async fn accept(endpoint: &Endpoint) -> Result<Vec<Connection>, Error> {
    let mut shaking = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let incoming = endpoint
            .accept()
            .await
            .ok_or_else(|| failed("the endpoint was closed"))?;
        shaking.spawn(async move { incoming.await });
    }
    let mut connections = Vec::new();
    while let Some(connection) = shaking.join_next().await {
        connections.push(connection.map_err(failed)?.map_err(failed)?);
    }
    Ok(connections)
}

/// Packets and bytes sent so far.
fn sent(connections: &[Connection]) -> (u64, u64) {
    let sent = connections
        .iter()
        .map(|connection| connection.stats().udp_tx);
    sent.fold((0, 0), |(packets, bytes), sent| {
        (packets + sent.datagrams, bytes + sent.bytes)
    })
}

/// The viewers, which read until the server closes.
fn view(server: SocketAddr, fingerprint: Fingerprint) -> Result<(), Error> {
    let crypto = tls::client_config(&Trust::Fingerprint(fingerprint), None)?;
    let config = ClientConfig::new(std::sync::Arc::new(crypto));
    runtime()?.block_on(async {
        let endpoint = Endpoint::client(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let mut viewers = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let connecting = endpoint
                .connect_with(config.clone(), server, "localhost")
                .map_err(failed)?;
            viewers.spawn(async move {
                let connection = connecting.await.map_err(failed)?;
                tokio::join!(take_streams(&connection), take_datagrams(&connection));
                Ok::<_, Error>(())
            });
        }
        in_time(async {
            while let Some(ended) = viewers.join_next().await {
                ended.map_err(failed)??;
            }
            Ok(())
        })
        .await
    })
}

async fn take_streams(connection: &Connection) {
    let mut chunks: [Bytes; 16] = std::array::from_fn(|_| Bytes::new());
    while let Ok(mut stream) = connection.accept_uni().await {
        while let Ok(Some(_)) = stream.read_chunks(&mut chunks).await {}
    }
}

async fn take_datagrams(connection: &Connection) {
    while connection.read_datagram().await.is_ok() {}
}

async fn in_time<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| Err(failed("the measurement timed out")))
}

fn runtime() -> Result<Runtime, Error> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn failed(reason: impl ToString) -> Error {
    Error::Transfer(reason.to_string())
}

pub(super) const CONNECTIONS: usize = 64;
/// Bytes per connection and wake-up: 8 blocks of 4 KiB, or as much in other blocks.
const BURST_BYTES: usize = 33 << 10;
/// The interval at which each connection gets blocks.
const EVERY: Duration = Duration::from_millis(40);
const SEND_FOR: Duration = Duration::from_secs(1);
const SETTLE: Duration = Duration::from_millis(300);
const IDLE: Duration = Duration::from_secs(10);
/// Far above the time needed on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::overhead::OnWire;
    use super::super::tests::OPTIONS;
    use super::*;
    use crate::config::Config;

    /// The planned sizes match real packets. After losses, more packets are sent.
    #[test]
    fn what_is_counted_is_what_is_reckoned() {
        for loss in [0.0, 0.01] {
            let config = Config::default();
            let layout = Layout::choose(&Options { loss, ..OPTIONS }, &config).unwrap();
            let cost = quic(&config.endpoint, &layout).unwrap();
            let reckoned = OnWire::new(&layout).udp_bytes / f64::from(layout.block_bytes());
            assert!(cost.udp_per_byte > 0.99 * reckoned, "{cost:?} {reckoned}");
            assert!(
                cost.packets > 0 && cost.cpu_per_packet > 0.0 && cost.cpu_per_handshake > 0.0,
                "{cost:?}"
            );
        }
    }
}
