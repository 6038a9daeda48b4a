//! A lossy path: a UDP relay between clients and one server that drops, delays and reorders
//! datagrams, with separate random numbers for each direction.
//!
//! Not every kernel has netem, and firewall rules that drop at random cannot be seeded. Here the
//! n-th datagram of a direction has the same fate in every run with the same seed. The reactions of
//! the two ends depend on timing, so whole runs still vary.
//!
//! One task reads from the clients, one per client reads the server's answers, and one per
//! direction holds delayed datagrams. All end when the [`Link`] is dropped. A full delay line drops
//! and counts. With too many clients, the one that has been silent longest is forgotten.

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

/// The treatment of datagrams in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Direction {
    /// Probability of dropping a datagram, 0 to 1.
    pub loss: f64,
    /// The delay of every datagram.
    pub delay: Duration,
    /// Probability of an additional delay, 0 to 1.
    pub reorder: f64,
    /// The additional delay.
    pub reorder_by: Duration,
    /// Capacity in bytes per second; faster traffic queues.
    pub rate: Option<NonZeroU32>,
}

impl Direction {
    /// Only drops, with this probability.
    pub fn losing(loss: f64) -> Self {
        Self {
            loss,
            ..Self::default()
        }
    }
}

/// The configuration of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// The server's address on loopback, IPv4 or IPv6.
    pub server: SocketAddr,
    /// The seed.
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
    /// Opens a port of the server's address family on loopback, and relays datagrams.
    pub fn start(config: Config) -> io::Result<Self> {
        let socket = Arc::new(loopback(config.server)?);
        let address = socket.local_addr()?;
        let mut tasks = JoinSet::new();
        let to_server = RelayDirection::start(
            config.to_server,
            Dice::new(config.to_server, config.seed, 0)?,
            &mut tasks,
        );
        let to_client = RelayDirection::start(
            config.to_client,
            Dice::new(config.to_client, config.seed, 1)?,
            &mut tasks,
        );
        let counters = (
            Arc::clone(&to_server.counters),
            Arc::clone(&to_client.counters),
        );
        tasks.spawn(relay(socket, config.server, to_server, to_client));
        Ok(Self {
            address,
            to_server: counters.0,
            to_client: counters.1,
            _tasks: tasks,
        })
    }

    /// The address at which clients reach the server through this path.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts of datagrams from the clients to the server.
    pub fn to_server(&self) -> Counts {
        self.to_server.read()
    }

    /// Counts of datagrams from the server to the clients.
    pub fn to_client(&self) -> Counts {
        self.to_client.read()
    }
}

/// Counts of datagrams in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Relayed, including reordered ones.
    pub passed: u64,
    /// Dropped at random.
    pub dropped: u64,
    /// Delayed more than the others.
    pub reordered: u64,
    /// Dropped because the delay line or a socket was full.
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

/// The fate of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Drop,
    Pass,
    HoldBack,
}

/// Decides without sockets or clocks, so that the seed determines the result.
///
/// Xoshiro256++ by name, because the algorithm of the crate's standard generator may change with
/// its version.
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
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a probability is a number from 0 to 1",
            ));
        }
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(2).wrapping_add(number));
        Ok(Self {
            rng,
            loss: direction.loss,
            reorder: direction.reorder,
        })
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

/// One direction: its random numbers, its counters and its delay line.
#[derive(Debug)]
struct RelayDirection {
    direction: Direction,
    dice: std::sync::Mutex<Dice>,
    counters: Arc<Counters>,
    late: mpsc::Sender<Late>,
    /// When all earlier bytes have left, if there is a rate.
    free: std::sync::Mutex<Instant>,
}

impl RelayDirection {
    fn start(direction: Direction, dice: Dice, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let counters = Arc::new(Counters::default());
        let (late, queue) = mpsc::channel(LATE_MAX);
        tasks.spawn(deliver_late(queue, Arc::clone(&counters)));
        Arc::new(Self {
            direction,
            dice: dice.into(),
            counters,
            late,
            free: Instant::now().into(),
        })
    }

    /// Takes one datagram, and delivers it unless it is dropped.
    fn take(&self, datagram: &[u8], socket: &Arc<UdpSocket>, to: SocketAddr) {
        let fate = self
            .dice
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .roll();
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
        if self
            .late
            .try_send(Late {
                due: Instant::now() + delay,
                bytes,
                socket: Arc::clone(socket),
                to,
            })
            .is_err()
        {
            self.counters.overflowed.fetch_add(1, Relaxed);
        }
    }

    /// The time until these bytes have left, after those before them.
    fn wait(&self, bytes: usize) -> Duration {
        let Some(rate) = self.direction.rate else {
            return Duration::ZERO;
        };
        let now = Instant::now();
        let mut free = self
            .free
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *free = now.max(*free) + Duration::from_secs_f64(bytes as f64 / f64::from(rate.get()));
        *free - now
    }
}

/// A delayed datagram. The ordering makes a heap return the earliest.
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

/// Holds at most as many datagrams as its channel; then it stops reading.
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

/// A client's own socket to the server, so that the server can tell clients apart.
#[derive(Debug)]
struct Upstream {
    socket: Arc<UdpSocket>,
    answers: AbortHandle,
    heard: u64,
}

async fn relay(
    socket: Arc<UdpSocket>,
    server: SocketAddr,
    to_server: Arc<RelayDirection>,
    to_client: Arc<RelayDirection>,
) {
    let mut clients: HashMap<SocketAddr, Upstream> = HashMap::new();
    let mut answering = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM_MAX];
    let mut heard = 0;
    loop {
        // An error here belongs to an earlier send; the next datagram may still arrive.
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        heard += 1;
        if !clients.contains_key(&client) {
            make_room(&mut clients);
            let Ok(upstream) = loopback(server).map(Arc::new) else {
                continue;
            };
            let answers = answer(
                Arc::clone(&upstream),
                Arc::clone(&socket),
                client,
                Arc::clone(&to_client),
            );
            let answers = answering.spawn(answers);
            clients.insert(
                client,
                Upstream {
                    socket: upstream,
                    answers,
                    heard,
                },
            );
        }
        if let Some(upstream) = clients.get_mut(&client) {
            upstream.heard = heard;
            to_server.take(&buffer[..length], &upstream.socket, server);
        }
    }
}

async fn answer(
    upstream: Arc<UdpSocket>,
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    to_client: Arc<RelayDirection>,
) {
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
    let oldest = clients
        .iter()
        .min_by_key(|(_, upstream)| upstream.heard)
        .map(|(client, _)| *client);
    if let Some(upstream) = oldest.and_then(|client| clients.remove(&client)) {
        upstream.answers.abort();
    }
}

/// Never waits: a full socket drops, as a full link would. Bypasses tokio, which does not send on a
/// new socket before the system has reported it ready.
fn send(socket: &UdpSocket, datagram: &[u8], to: SocketAddr, counters: &Counters) {
    let sent = SockRef::from(socket).send_to(datagram, &to.into());
    let counter = if sent.is_ok() {
        &counters.passed
    } else {
        &counters.overflowed
    };
    counter.fetch_add(1, Relaxed);
}

/// A socket on loopback with the address family of `like`, with large buffers, so that drops are
/// only random ones.
fn loopback(like: SocketAddr) -> io::Result<UdpSocket> {
    let (domain, address) = match like {
        SocketAddr::V4(_) => (Domain::IPV4, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        SocketAddr::V6(_) => (Domain::IPV6, SocketAddr::from((Ipv6Addr::LOCALHOST, 0))),
    };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    // The system limits these silently.
    socket.set_recv_buffer_size(SOCKET_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BYTES)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

/// The maximum UDP datagram.
const DATAGRAM_MAX: usize = 65_535;
/// Delayed datagrams per direction.
const LATE_MAX: usize = 8192;
/// The maximum number of clients of a relay.
const CLIENTS_MAX: usize = 256;
/// Socket buffers in bytes.
const SOCKET_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_every_fate() {
        let direction = Direction {
            loss: 0.1,
            reorder: 0.02,
            ..Direction::default()
        };
        let fates = |seed, number| {
            let mut dice = Dice::new(direction, seed, number).unwrap();
            (0..100_000).map(|_| dice.roll()).collect::<Vec<_>>()
        };
        let count = |fates: &[Fate], fate| fates.iter().filter(|&&is| is == fate).count();
        let to_server = fates(7, 0);
        assert_eq!(to_server, fates(7, 0));
        assert_ne!(to_server, fates(7, 1));
        assert_eq!(
            (
                count(&to_server, Fate::Drop),
                count(&to_server, Fate::HoldBack)
            ),
            (10_046, 1_764)
        );
    }

    #[test]
    fn probabilities_beyond_one_are_refused() {
        for loss in [-0.1, 1.1, f64::NAN] {
            assert!(Dice::new(Direction::losing(loss), 0, 0).is_err());
        }
    }

    /// Sends `count` numbered datagrams through `link`, and returns the numbers that arrive in each
    /// direction.
    async fn echo(server: UdpSocket, link: &Link, count: u16) -> (Vec<u16>, Vec<u16>) {
        let client = loopback(link.address()).unwrap();
        let there = tokio::spawn(async move {
            let mut heard = Vec::new();
            let mut buffer = [0; 2];
            while let Ok(Ok((_, from))) =
                tokio::time::timeout(PATIENCE, server.recv_from(&mut buffer)).await
            {
                heard.push(u16::from_be_bytes(buffer));
                server.send_to(&buffer, from).await.unwrap();
            }
            heard
        });
        for number in 0..count {
            client
                .send_to(&number.to_be_bytes(), link.address())
                .await
                .unwrap();
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

    async fn through(
        server: &str,
        to_server: Direction,
        to_client: Direction,
        count: u16,
    ) -> (Link, Vec<u16>, Vec<u16>) {
        let server = loopback(server.parse().unwrap()).unwrap();
        let config = Config {
            server: server.local_addr().unwrap(),
            seed: 1,
            to_server,
            to_client,
        };
        let link = Link::start(config).unwrap();
        let (there, back) = echo(server, &link, count).await;
        (link, there, back)
    }

    #[tokio::test]
    async fn each_direction_loses_by_its_own_dice() {
        let (link, there, back) = through(
            "127.0.0.1:0",
            Direction::losing(0.1),
            Direction::losing(0.5),
            1000,
        )
        .await;
        assert_eq!(
            link.to_server(),
            Counts {
                passed: there.len() as u64,
                dropped: 83,
                ..Counts::default()
            }
        );
        assert_eq!(link.to_client().passed, back.len() as u64);
        assert_eq!(
            link.to_client().passed + link.to_client().dropped,
            there.len() as u64
        );
        assert!(back.is_sorted());
    }

    #[tokio::test]
    async fn delay_keeps_the_order_and_reordering_does_not() {
        let delay = Duration::from_millis(5);
        let held_back = Direction {
            delay,
            reorder: 0.2,
            reorder_by: Duration::from_millis(20),
            ..Direction::default()
        };
        let (link, there, mut back) = through(
            "[::1]:0",
            Direction {
                delay,
                ..Direction::default()
            },
            held_back,
            300,
        )
        .await;
        assert!(there.is_sorted() && there.len() == 300);
        assert!(link.to_client().reordered > 0 && !back.is_sorted());
        back.sort_unstable();
        assert_eq!(back, there);
    }
}
