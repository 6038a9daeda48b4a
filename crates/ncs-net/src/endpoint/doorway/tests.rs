use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use quinn::{Connection, ConnectionError, Endpoint};
use tempfile::TempDir;

use super::super::tests::{HERE, IDLE, PATIENCE, client, client_config, config, identity};
use super::super::{Listener, Ports, open_guarded, server_config};
use super::*;
use crate::tls::ServerIdentity;

const OWNER: Owner = Owner {
    process: 0,
    worker: 0,
};
/// The connection ids of the example in `docs/protocol.md`, section 12, and its bytes, which
/// `tests/wire.rs` reads.
const CHOSEN: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
const CLIENT: [u8; 4] = [0xc1, 0xc2, 0xc3, 0xc4];
const SERVER: [u8; 8] = [0x05, 0, 0, 1, 2, 3, 4, 5];
const EXAMPLE: &str = concat!(
    "c00000000104c1c2c3c4080500000102030405004029b8b43239a56939dde18b",
    "263ebace5249954598e97816580aaa12c84834caf351702ad3e60a562ef52b"
);

/// Refuses while it is told to, and counts.
#[derive(Debug, Default)]
struct Keeper {
    is_shut: AtomicBool,
    asked: AtomicUsize,
}

const RETRY_AFTER: Duration = Duration::from_millis(12_000);

impl Doorkeeper for Keeper {
    fn refuses(&self, _: Instant) -> Option<Duration> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let is_shut = self.is_shut.load(Ordering::Relaxed);
        is_shut.then_some(RETRY_AFTER)
    }
}

fn crypto() -> Arc<dyn crypto::ServerConfig> {
    let place = TempDir::new().unwrap();
    let server = server_config(&config(1), IDLE, &identity(place.path()), None).unwrap();
    Arc::clone(&server.crypto)
}

/// The beginning of a datagram that may begin a handshake.
fn first(destination: &[u8], source: &[u8]) -> Vec<u8> {
    let mut datagram = vec![INITIAL | 0b11];
    datagram.extend(VERSION.to_be_bytes());
    for id in [destination, source] {
        datagram.push(u8::try_from(id.len()).unwrap());
        datagram.extend(id);
    }
    datagram.resize(DATAGRAM_MIN, 7);
    datagram
}

/// A server with so many sockets and this keeper, and its identity.
fn guarded(sockets: u8, keeper: &Arc<Keeper>) -> (Listener, ServerIdentity) {
    let place = TempDir::new().unwrap();
    let identity = identity(place.path());
    let guard = Arc::clone(keeper) as Arc<dyn Doorkeeper>;
    let config = config(sockets);
    let ports = Ports::open(&config, false).unwrap();
    let mut listeners = open_guarded(&config, &ports, IDLE, &identity, guard, None).unwrap();
    (listeners.remove(0), identity)
}

/// A doorway with this keeper whose refusals go nowhere else.
fn doorway(keeper: &Arc<Keeper>) -> (Doorway, Arc<Sink>) {
    let sink = Arc::new(Sink::default());
    let guard = Arc::clone(keeper) as Arc<dyn Doorkeeper>;
    let doorway = Doorway::new(
        Arc::clone(&sink) as _,
        guard,
        crypto(),
        OWNER,
        1,
        (1, Arc::default()),
    );
    (doorway, sink)
}

/// The metadata of datagrams of this size in a buffer of this length.
fn meta(len: usize, stride: usize) -> RecvMeta {
    RecvMeta {
        addr: HERE,
        len,
        stride,
        ecn: None,
        dst_ip: None,
    }
}

async fn accept(endpoint: Endpoint) {
    let mut connections = Vec::new();
    while let Some(incoming) = endpoint.accept().await {
        connections.push(incoming.await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_when_to_come_again_and_connections_go_on() {
    let keeper = Arc::new(Keeper::default());
    let (listener, identity) = guarded(2, &keeper);
    for endpoint in &listener.endpoints {
        tokio::spawn(accept(endpoint.clone()));
    }
    let (client, config) = (client(), client_config(&identity));
    let connect = async || {
        let connecting = client.connect_with(config.clone(), listener.address, "localhost");
        tokio::time::timeout(PATIENCE, connecting.unwrap())
            .await
            .unwrap()
    };
    let before: Connection = connect().await.unwrap();
    keeper.is_shut.store(true, Ordering::Relaxed);
    for _ in 0..50 {
        let Err(ConnectionError::ConnectionClosed(close)) = connect().await else {
            panic!("a handshake began");
        };
        assert_eq!(close.error_code, TransportErrorCode::CONNECTION_REFUSED);
        assert_eq!(refusal::retry_after(&close.reason), Some(RETRY_AFTER));
    }
    // Nothing of that was QUIC's.
    let open = |endpoint: &Endpoint| endpoint.open_connections();
    assert_eq!(listener.endpoints.iter().map(open).sum::<usize>(), 1);
    // The door does not apply to packets of connections.
    let asked = keeper.asked.load(Ordering::Relaxed);
    before.send_datagram(vec![0; 1000].into()).unwrap();
    let (mut send, _receive) = before.open_bi().await.unwrap();
    send.write_all(&[1; 30_000]).await.unwrap();
    send.finish().unwrap();
    send.stopped().await.ok();
    assert_eq!(keeper.asked.load(Ordering::Relaxed), asked);
    keeper.is_shut.store(false, Ordering::Relaxed);
    connect().await.unwrap();
    assert_eq!(before.close_reason(), None);
}

#[test]
fn a_refusal_is_the_documented_packet_and_smaller_than_what_it_answers() {
    let datagram = first(&CHOSEN, &CLIENT);
    let first = First::parse(&datagram).unwrap();
    assert_eq!(
        (first.destination, first.source),
        (&CHOSEN[..], &CLIENT[..])
    );
    let own = ConnectionId::new(&SERVER);
    let packet = first.refusal(&*crypto(), own, RETRY_AFTER).unwrap();
    let hex: String = packet.iter().map(|octet| format!("{octet:02x}")).collect();
    assert_eq!(hex, EXAMPLE);
    let longest = First {
        source: &[9; ID_MAX],
        ..first
    };
    let packet = longest.refusal(&*crypto(), own, Duration::MAX).unwrap();
    assert!(packet.len() * 10 <= DATAGRAM_MIN, "{}", packet.len());
}

#[test]
fn only_whole_first_packets_are_answered() {
    let datagram = first(&CHOSEN, &CLIENT);
    for length in 0..datagram.len() {
        assert_eq!(First::parse(&datagram[..length]), None, "{length}");
    }
    let change = |at: usize, octet: u8| {
        let mut datagram = datagram.clone();
        datagram[at] = octet;
        datagram
    };
    for (what, datagram) in [
        ("a short header", change(0, 0b0100_0000)),
        ("0-RTT", change(0, 0b1101_0000)),
        ("Handshake", change(0, 0b1110_0000)),
        ("another version", change(4, 2)),
        ("version negotiation", change(4, 0)),
        ("an id that is too long", change(5, 21)),
        ("a chosen id that is too short", change(5, 7)),
        ("a client's id that is too long", change(14, 21)),
    ] {
        assert_eq!(First::parse(&datagram), None, "{what}");
    }
    let ids = first(&[1; ID_MAX], &[]);
    assert_eq!(First::parse(&ids).unwrap().source, &[0_u8; 0]);
}

/// A socket that keeps what is sent, and receives nothing by itself.
#[derive(Debug, Default)]
struct Sink(Mutex<VecDeque<Vec<u8>>>);

impl AsyncUdpSocket for Sink {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        unreachable!("nobody waits for it")
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.0.lock().unwrap().push_back(transmit.contents.to_vec());
        Ok(())
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        _: &mut [IoSliceMut<'_>],
        _: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(HERE)
    }
}

#[test]
fn what_is_not_refused_stays_in_order_and_whole() {
    let keeper = Arc::new(Keeper::default());
    let (doorway, sink) = doorway(&keeper);
    let now = Instant::now();
    let mut left = 4;
    let mut sift = |datagrams: &[&[u8]]| {
        let mut buffer = datagrams.concat();
        let mut meta = meta(buffer.len(), DATAGRAM_MIN);
        doorway.sift(now, &mut left, &mut meta, &mut buffer);
        buffer.truncate(meta.len);
        buffer
    };
    let (known, unknown) = (first(&CHOSEN, &CLIENT), first(&[1; 9], &CLIENT));
    let (own, other) = (first(&SERVER, &CLIENT), vec![0b0100_0000; DATAGRAM_MIN]);
    let short = vec![0b0100_0001; 50];
    // It begins while the door is open.
    assert_eq!(sift(&[&known]), known);
    keeper.is_shut.store(true, Ordering::Relaxed);
    let kept = sift(&[&unknown, &other, &unknown, &own, &known, &unknown, &short]);
    let own = first(&SERVER, &CLIENT);
    assert!(OWNER.is_own(&[0x1f, 0, 0, 1, 2, 3, 4, 5]) && !OWNER.is_own(&[0x20; 8]));
    assert_eq!(kept, [&other[..], &own, &known, &short].concat());
    assert_eq!(sink.0.lock().unwrap().len(), 3);
    assert_eq!(keeper.asked.load(Ordering::Relaxed), 2);
    assert_eq!(sift(&[&unknown]), Vec::<u8>::new());
    assert_eq!(sift(&[]), Vec::<u8>::new());
    // Beyond the most of a call they are dropped without an answer, and all else stays.
    assert_eq!(sift(&[&unknown, &other]), other);
    assert_eq!(sink.0.lock().unwrap().len(), 4);
}

#[test]
fn who_sends_its_first_packet_again_is_answered_as_before() {
    let keeper = Arc::new(Keeper::default());
    let (doorway, sink) = doorway(&keeper);
    let now = Instant::now();
    let is_refused = |after: Duration, datagram: &[u8]| {
        let meta = meta(datagram.len(), datagram.len());
        doorway.is_refused(now + after, &mut 1, &meta, datagram)
    };
    let (ms, asked) = (Duration::from_millis(1), || {
        keeper.asked.load(Ordering::Relaxed)
    });
    let (begun, refused) = (first(&CHOSEN, &CLIENT), first(&[1; 9], &CLIENT));
    assert!(!is_refused(Duration::ZERO, &begun));
    keeper.is_shut.store(true, Ordering::Relaxed);
    assert!(!is_refused(REMEMBERED - 2 * ms, &begun));
    assert!(is_refused(Duration::ZERO, &refused));
    assert_eq!(asked(), 2);
    // There is room now, but this client has ended its attempt, or will when it is told again.
    keeper.is_shut.store(false, Ordering::Relaxed);
    assert!(is_refused(RETRY_AFTER - 2 * ms, &refused));
    assert_eq!((asked(), sink.0.lock().unwrap().len()), (2, 2));
    assert!(!is_refused(RETRY_AFTER, &refused));
    keeper.is_shut.store(true, Ordering::Relaxed);
    assert!(
        is_refused(REMEMBERED + 2 * ms, &begun),
        "its handshake is over"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_has_proven_its_address_passes_a_door_that_was_shut_meanwhile() {
    let keeper = Arc::new(Keeper::default());
    let (listener, identity) = guarded(1, &keeper);
    let endpoint = listener.endpoints[0].clone();
    let shut = Arc::clone(&keeper);
    let accepting = tokio::spawn(async move {
        let incoming = endpoint.accept().await.unwrap();
        shut.is_shut.store(true, Ordering::Relaxed);
        incoming.retry().unwrap();
        let incoming = endpoint.accept().await.unwrap();
        assert!(incoming.remote_address_validated());
        incoming.await.unwrap()
    });
    let (client, config) = (client(), client_config(&identity));
    let connecting = client.connect_with(config, listener.address, "localhost");
    let connected = tokio::time::timeout(PATIENCE, connecting.unwrap());
    let (_there, _here) = (connected.await.unwrap().unwrap(), accepting.await.unwrap());
    assert_eq!(keeper.asked.load(Ordering::Relaxed), 1);
}

/// A round trip that takes longer is lost.
const LOST: Duration = Duration::from_secs(1);

/// Sends datagrams back.
async fn echo(endpoint: Endpoint) {
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    while let Ok(datagram) = connection.read_datagram().await {
        connection.send_datagram(datagram).unwrap();
    }
}

/// Round trips of datagrams, one after the other, in order of their length. One that is lost counts
/// as [`LOST`].
async fn round_trips(connection: &Connection, time: Duration) -> Vec<Duration> {
    let (begun, mut times) = (Instant::now(), Vec::new());
    for number in 0_u64.. {
        if begun.elapsed() >= time {
            break;
        }
        let (sent, number) = (Instant::now(), number.to_be_bytes());
        connection.send_datagram(number.to_vec().into()).unwrap();
        let back = async { while connection.read_datagram().await.unwrap()[..] != number {} };
        let _ = tokio::time::timeout(LOST, back).await;
        times.push(sent.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    times.sort();
    times
}

/// A flood of first packets at a full server with one connection, and round trips of that: before
/// and during it. Returns how many were sent and refused, and the round trips during it.
async fn flood(per_second: u32, time: Duration) -> (u32, usize, Vec<Duration>) {
    let keeper = Arc::new(Keeper::default());
    let (listener, identity) = guarded(1, &keeper);
    tokio::spawn(echo(listener.endpoints[0].clone()));
    let client = client();
    let connecting = client.connect_with(client_config(&identity), listener.address, "localhost");
    let connection = connecting.unwrap().await.unwrap();
    keeper.is_shut.store(true, Ordering::Relaxed);
    let quiet = round_trips(&connection, time / 4).await;
    let asked = keeper.asked.load(Ordering::Relaxed);
    let sending = std::thread::spawn(move || {
        let socket = std::net::UdpSocket::bind(HERE).unwrap();
        socket.connect(listener.address).unwrap();
        let (begun, mut sent) = (Instant::now(), 0_u32);
        while begun.elapsed() < time {
            while f64::from(sent) < begun.elapsed().as_secs_f64() * f64::from(per_second) {
                let _ = socket.send(&first(&rand::random::<[u8; 12]>(), &CLIENT));
                sent += 1;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        sent
    });
    let flooded = round_trips(&connection, time).await;
    let sent = sending.join().unwrap();
    let refused = keeper.asked.load(Ordering::Relaxed) - asked;
    for (what, times) in [("before", &quiet), ("during", &flooded)] {
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        let (half, most) = (at(50), at(99));
        let lost = times.iter().filter(|time| **time >= LOST).count();
        let count = times.len();
        println!("{count} round trips {what}: {half:?} (half), {most:?} (99 %), {lost} lost");
    }
    let seconds = time.as_secs_f64();
    let refused_rate = refused as f64 / seconds;
    println!("first packets a second: {per_second} sent, {refused_rate:.0} refused");
    (sent, refused, flooded)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_goes_on_beside_a_flood_at_a_full_server() {
    let (sent, refused, times) = flood(5_000, Duration::from_secs(1)).await;
    // In order of their length.
    assert!(times[times.len() / 2] < LOST, "{times:?}");
    assert!(
        refused > 100 && refused <= sent as usize,
        "{refused} of {sent}"
    );
}

/// `make bench-refusals`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "half a minute, and a machine with nothing else to do"]
async fn round_trips_beside_floods_at_a_full_server() {
    for per_second in [5_000, 20_000, 80_000] {
        flood(per_second, Duration::from_secs(8)).await;
    }
}
