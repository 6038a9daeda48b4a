//! A lossy path: a UDP relay between clients and one server that drops, delays and reorders datagrams, each direction by its
//! own dice.
//!
//! The kernels we meet do not all have netem, and rules that drop at random cannot be seeded; here the n-th datagram of a
//! direction meets the same fate in every run with the same seed. What the two ends do about it is up to them, so a run as a
//! whole still varies with their timing.
//!
//! One task reads from the clients, one more for each client reads what the server answers, and one for each direction holds
//! what is not due yet. All end when the [`Link`] is dropped. A delay line that is full drops and counts; the
//! client unheard for longest gives way to a new one when there are too many.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// What happens to the datagrams of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Direction {
    /// Probability that a datagram is dropped, 0 to 1.
    pub loss: f64,
    /// How long every datagram takes.
    pub delay: Duration,
    /// Probability that a datagram that is not dropped takes longer than the others, 0 to 1.
    pub reorder: f64,
    /// How much longer.
    pub reorder_by: Duration,
    /// Bytes a second that it carries, one datagram after the other; what comes faster waits.
    pub rate: Option<NonZeroU32>,
}

impl Direction {
    /// Drops with this probability and does nothing else.
    pub fn losing(loss: f64) -> Self {
        Self { loss, ..Self::default() }
    }
}

/// The path to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Where the server listens: loopback, IPv4 or IPv6.
    pub server: SocketAddr,
    /// What the dice are seeded with.
    pub seed: u64,
    /// From the clients to the server.
    pub to_server: Direction,
    /// From the server to the clients.
    pub to_client: Direction,
}

/// A running relay. Dropping it cuts the path.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    to_server: Arc<Counters>,
    to_client: Arc<Counters>,
    _tasks: JoinSet<()>,
}

impl Link {
    /// Opens a port of the server's address family on loopback and relays what comes in.
    pub fn start(config: Config) -> io::Result<Self> {
        let socket = Arc::new(loopback(config.server)?);
        let address = socket.local_addr()?;
        let mut tasks = JoinSet::new();
        let to_server = Lane::start(config.to_server, Dice::new(config.to_server, config.seed, 0)?, &mut tasks);
        let to_client = Lane::start(config.to_client, Dice::new(config.to_client, config.seed, 1)?, &mut tasks);
        let counters = (Arc::clone(&to_server.counters), Arc::clone(&to_client.counters));
        tasks.spawn(relay(socket, config.server, to_server, to_client));
        Ok(Self { address, to_server: counters.0, to_client: counters.1, _tasks: tasks })
    }

    /// Where clients find the server through this path.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What became of the datagrams from the clients to the server so far.
    pub fn to_server(&self) -> Counts {
        self.to_server.read()
    }

    /// What became of the datagrams from the server to the clients so far.
    pub fn to_client(&self) -> Counts {
        self.to_client.read()
    }
}

/// What became of the datagrams of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handed on, those reordered included.
    pub passed: u64,
    /// Dropped by the dice.
    pub dropped: u64,
    /// Held back longer than the others.
    pub reordered: u64,
    /// Dropped because the delay line or a socket had no room.
    pub overflowed: u64,
}

#[derive(Debug, Default)]
struct Counters {
    passed: AtomicU64,
    dropped: AtomicU64,
    reordered: AtomicU64,
    overflowed: AtomicU64,
}

impl Counters {
    fn read(&self) -> Counts {
        Counts {
            passed: self.passed.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            reordered: self.reordered.load(Relaxed),
            overflowed: self.overflowed.load(Relaxed),
        }
    }
}

/// What the dice say about one datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Drop,
    Pass,
    HoldBack,
}

/// Decides alone, without sockets or clocks, so that a seed says what happens.
///
/// Xoshiro256++ by name and not the crate's standard generator, whose algorithm may change with its version.
#[derive(Debug)]
struct Dice {
    rng: Xoshiro256PlusPlus,
    loss: f64,
    reorder: f64,
}

impl Dice {
    fn new(direction: Direction, seed: u64, number: u64) -> io::Result<Self> {
        let possible = 0.0..=1.0;
        if !possible.contains(&direction.loss) || !possible.contains(&direction.reorder) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a probability is a number from 0 to 1"));
        }
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(2).wrapping_add(number));
        Ok(Self { rng, loss: direction.loss, reorder: direction.reorder })
    }

    fn roll(&mut self) -> Fate {
        if self.rng.random_bool(self.loss) {
            Fate::Drop
        } else if self.rng.random_bool(self.reorder) {
            Fate::HoldBack
        } else {
            Fate::Pass
        }
    }
}

/// One direction: its dice, its counters and, if it delays, the way to its delay line.
#[derive(Debug)]
struct Lane {
    direction: Direction,
    dice: std::sync::Mutex<Dice>,
    counters: Arc<Counters>,
    late: mpsc::Sender<Late>,
    /// When what came so far has left, where there is a rate.
    free: std::sync::Mutex<Instant>,
}

impl Lane {
    fn start(direction: Direction, dice: Dice, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let counters = Arc::new(Counters::default());
        let (late, queue) = mpsc::channel(LATE_MAX);
        tasks.spawn(deliver_late(queue, Arc::clone(&counters)));
        Arc::new(Self { direction, dice: dice.into(), counters, late, free: Instant::now().into() })
    }

    /// Takes one datagram and sees to it that it arrives, if it is to.
    fn take(&self, datagram: &[u8], socket: &Arc<UdpSocket>, to: SocketAddr) {
        let fate = self.dice.lock().unwrap_or_else(std::sync::PoisonError::into_inner).roll();
        let delay = match fate {
            Fate::Drop => {
                self.counters.dropped.fetch_add(1, Relaxed);
                return;
            }
            Fate::Pass => self.direction.delay,
            Fate::HoldBack => {
                self.counters.reordered.fetch_add(1, Relaxed);
                self.direction.delay + self.direction.reorder_by
            }
        };
        let delay = delay + self.wait(datagram.len());
        if delay.is_zero() {
            send(socket, datagram, to, &self.counters);
            return;
        }
        let bytes = Bytes::copy_from_slice(datagram);
        if self.late.try_send(Late { due: Instant::now() + delay, bytes, socket: Arc::clone(socket), to }).is_err() {
            self.counters.overflowed.fetch_add(1, Relaxed);
        }
    }

    /// Until so many bytes, behind those before them, are through.
    fn wait(&self, bytes: usize) -> Duration {
        let Some(rate) = self.direction.rate else { return Duration::ZERO };
        let now = Instant::now();
        let mut free = self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *free = now.max(*free) + Duration::from_secs_f64(bytes as f64 / f64::from(rate.get()));
        *free - now
    }
}

/// A datagram that is on its way. Ordered so that a heap yields the one due first.
#[derive(Debug)]
struct Late {
    due: Instant,
    bytes: Bytes,
    socket: Arc<UdpSocket>,
    to: SocketAddr,
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Late {}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Late {
    fn cmp(&self, other: &Self) -> Ordering {
        other.due.cmp(&self.due)
    }
}

/// Holds at most as many datagrams as its channel does: it stops reading when it has them.
async fn deliver_late(mut queue: mpsc::Receiver<Late>, counters: Arc<Counters>) {
    let mut heap = BinaryHeap::new();
    loop {
        let due = heap.peek().map(|late: &Late| late.due);
        tokio::select! {
            late = queue.recv(), if heap.len() < LATE_MAX => match late {
                Some(late) => heap.push(late),
                None => return,
            },
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                if let Some(late) = heap.pop() {
                    send(&late.socket, &late.bytes, late.to, &counters);
                }
            }
        }
    }
}

/// One client's way to the server: a socket of its own, so that the server tells clients apart.
#[derive(Debug)]
struct Upstream {
    socket: Arc<UdpSocket>,
    answers: AbortHandle,
    heard: u64,
}

async fn relay(socket: Arc<UdpSocket>, server: SocketAddr, to_server: Arc<Lane>, to_client: Arc<Lane>) {
    let mut clients: HashMap<SocketAddr, Upstream> = HashMap::new();
    let mut answering = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM_MAX];
    let mut heard = 0;
    loop {
        // The system reports earlier sends that were refused here; the next datagram may still come.
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else { continue };
        heard += 1;
        if !clients.contains_key(&client) {
            make_room(&mut clients);
            let Ok(upstream) = loopback(server).map(Arc::new) else { continue };
            let answers = answer(Arc::clone(&upstream), Arc::clone(&socket), client, Arc::clone(&to_client));
            let answers = answering.spawn(answers);
            clients.insert(client, Upstream { socket: upstream, answers, heard });
        }
        if let Some(upstream) = clients.get_mut(&client) {
            upstream.heard = heard;
            to_server.take(&buffer[..length], &upstream.socket, server);
        }
    }
}

async fn answer(upstream: Arc<UdpSocket>, socket: Arc<UdpSocket>, client: SocketAddr, to_client: Arc<Lane>) {
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        if let Ok((length, _)) = upstream.recv_from(&mut buffer).await {
            to_client.take(&buffer[..length], &socket, client);
        }
    }
}

fn make_room(clients: &mut HashMap<SocketAddr, Upstream>) {
    if clients.len() < CLIENTS_MAX {
        return;
    }
    let oldest = clients.iter().min_by_key(|(_, upstream)| upstream.heard).map(|(client, _)| *client);
    if let Some(upstream) = oldest.and_then(|client| clients.remove(&client)) {
        upstream.answers.abort();
    }
}

/// Never waits: a full socket drops, as a full link would. Past tokio, which refuses to send on a new socket before the system
/// has reported it ready.
fn send(socket: &UdpSocket, datagram: &[u8], to: SocketAddr, counters: &Counters) {
    let sent = SockRef::from(socket).send_to(datagram, &to.into());
    let counter = if sent.is_ok() { &counters.passed } else { &counters.overflowed };
    counter.fetch_add(1, Relaxed);
}

/// A socket on loopback of the address family of `like`, with room for bursts, since only the dice are to drop.
fn loopback(like: SocketAddr) -> io::Result<UdpSocket> {
    let (domain, address) = match like {
        SocketAddr::V4(_) => (Domain::IPV4, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        SocketAddr::V6(_) => (Domain::IPV6, SocketAddr::from((Ipv6Addr::LOCALHOST, 0))),
    };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    // The system takes as much of these as it allows.
    socket.set_recv_buffer_size(SOCKET_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BYTES)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

/// Largest UDP datagram.
const DATAGRAM_MAX: usize = 65_535;
/// Datagrams that a direction holds while they are not due.
const LATE_MAX: usize = 8192;
/// Clients that one relay remembers.
const CLIENTS_MAX: usize = 256;
/// Socket buffers in bytes.
const SOCKET_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_every_fate() {
        let direction = Direction { loss: 0.1, reorder: 0.02, ..Direction::default() };
        let fates = |seed, number| {
            let mut dice = Dice::new(direction, seed, number).unwrap();
            (0..100_000).map(|_| dice.roll()).collect::<Vec<_>>()
        };
        let count = |fates: &[Fate], fate| fates.iter().filter(|&&is| is == fate).count();
        let to_server = fates(7, 0);
        assert_eq!(to_server, fates(7, 0));
        assert_ne!(to_server, fates(7, 1));
        assert_eq!((count(&to_server, Fate::Drop), count(&to_server, Fate::HoldBack)), (10_046, 1_764));
    }

    #[test]
    fn probabilities_beyond_one_are_refused() {
        for loss in [-0.1, 1.1, f64::NAN] {
            assert!(Dice::new(Direction::losing(loss), 0, 0).is_err());
        }
    }

    /// Sends `count` numbered datagrams through `link` one after the other and yields the numbers that arrive in either direction.
    async fn echo(server: UdpSocket, link: &Link, count: u16) -> (Vec<u16>, Vec<u16>) {
        let client = loopback(link.address()).unwrap();
        let there = tokio::spawn(async move {
            let mut heard = Vec::new();
            let mut buffer = [0; 2];
            while let Ok(Ok((_, from))) = tokio::time::timeout(PATIENCE, server.recv_from(&mut buffer)).await {
                heard.push(u16::from_be_bytes(buffer));
                server.send_to(&buffer, from).await.unwrap();
            }
            heard
        });
        for number in 0..count {
            client.send_to(&number.to_be_bytes(), link.address()).await.unwrap();
            tokio::task::yield_now().await;
        }
        let mut back = Vec::new();
        let mut buffer = [0; 2];
        while let Ok(Ok(_)) = tokio::time::timeout(PATIENCE, client.recv_from(&mut buffer)).await {
            back.push(u16::from_be_bytes(buffer));
        }
        (there.await.unwrap(), back)
    }

    const PATIENCE: Duration = Duration::from_secs(2);

    async fn through(server: &str, to_server: Direction, to_client: Direction, count: u16) -> (Link, Vec<u16>, Vec<u16>) {
        let server = loopback(server.parse().unwrap()).unwrap();
        let config = Config { server: server.local_addr().unwrap(), seed: 1, to_server, to_client };
        let link = Link::start(config).unwrap();
        let (there, back) = echo(server, &link, count).await;
        (link, there, back)
    }

    #[tokio::test]
    async fn each_direction_loses_by_its_own_dice() {
        let (link, there, back) = through("127.0.0.1:0", Direction::losing(0.1), Direction::losing(0.5), 1000).await;
        assert_eq!(link.to_server(), Counts { passed: there.len() as u64, dropped: 83, ..Counts::default() });
        assert_eq!(link.to_client().passed, back.len() as u64);
        assert_eq!(link.to_client().passed + link.to_client().dropped, there.len() as u64);
        assert!(back.is_sorted());
    }

    #[tokio::test]
    async fn delay_keeps_the_order_and_reordering_does_not() {
        let delay = Duration::from_millis(5);
        let held_back = Direction { delay, reorder: 0.2, reorder_by: Duration::from_millis(20), ..Direction::default() };
        let (link, there, mut back) = through("[::1]:0", Direction { delay, ..Direction::default() }, held_back, 300).await;
        assert!(there.is_sorted() && there.len() == 300);
        assert!(link.to_client().reordered > 0 && !back.is_sorted());
        back.sort_unstable();
        assert_eq!(back, there);
    }
}
