use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use quinn::{Connection, ConnectionError, Endpoint};
use tempfile::TempDir;

use super::super::tests::{HERE, IDLE, PATIENCE, client, client_config, config, identity};
use super::super::{ids, open_guarded, server_config};
use super::*;

const OWNER: Owner = Owner {
    process: ids::ONLY_PROCESS,
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
    let server = server_config(&config(1), IDLE, &identity(place.path())).unwrap();
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

async fn accept(endpoint: Endpoint) {
    let mut connections = Vec::new();
    while let Some(incoming) = endpoint.accept().await {
        connections.push(incoming.await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_when_to_come_again_and_connections_go_on() {
    let (place, keeper) = (TempDir::new().unwrap(), Arc::new(Keeper::default()));
    let identity = identity(place.path());
    let guard = Arc::clone(&keeper) as Arc<dyn Doorkeeper>;
    let mut listeners = open_guarded(&config(2), IDLE, &identity, guard).unwrap();
    let listener = listeners.remove(0);
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
    // The door is not there for packets of connections.
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
    let (sink, keeper) = (Arc::new(Sink::default()), Arc::new(Keeper::default()));
    let guard = Arc::clone(&keeper) as Arc<dyn Doorkeeper>;
    let doorway = Doorway::new(Arc::clone(&sink) as _, guard, crypto(), OWNER);
    let now = Instant::now();
    let meta = |buffer: &[u8]| RecvMeta {
        addr: HERE,
        len: buffer.len(),
        stride: DATAGRAM_MIN,
        ecn: None,
        dst_ip: None,
    };
    let mut left = 4;
    let mut sift = |datagrams: &[&[u8]]| {
        let mut buffer = datagrams.concat();
        let mut meta = meta(&buffer);
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
    assert_eq!(sift(&[&unknown]), Vec::<u8>::new());
    assert_eq!(sift(&[]), Vec::<u8>::new());
    // Beyond the most of a call they are dropped without an answer, and all else stays.
    assert_eq!(sift(&[&unknown, &other]), other);
    assert_eq!(sink.0.lock().unwrap().len(), 4);
}

#[test]
fn begun_handshakes_are_forgotten_after_their_time_or_by_their_number() {
    let now = Instant::now();
    let mut begun = Begun::new(now);
    begun.add(now, &CHOSEN);
    begun.add(now + REMEMBERED, &[1; 8]);
    assert!(begun.contains(&CHOSEN) && begun.contains(&[1; 8]));
    begun.add(now + 2 * REMEMBERED, &[2; 8]);
    assert!(!begun.contains(&CHOSEN) && begun.contains(&[1; 8]));
    let later = now + 2 * REMEMBERED;
    for number in 0..3 * REMEMBERED_MAX as u64 {
        begun.add(later, &number.to_be_bytes());
        assert!(begun.young.len() + begun.old.len() <= 2 * REMEMBERED_MAX);
    }
    assert!(!begun.contains(&[2; 8]));
}
