//! A chain of namespaces, and a path emulator on every hop between two of them.
//!
//! The programs run at the ends of hops. In the middle namespace, which every hop crosses, this
//! program emulates the path: on each hop it takes every IP packet from one end and delivers it to
//! the other, delayed or never.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use ncserverd::endpoint::udp_socket;
use ncserverd::lab::path::{Counts, PathDirection, Shape};

use nctest::netns::ip;

/// Hops of the chain.
pub(crate) const HOPS: u8 = 3;

/// The address of an end of a hop to the other: of the nearer one, or of the one further down.
pub(crate) fn address(hop: u8, far: bool) -> String {
    format!("10.77.{hop}.{}", 1 + u8::from(far))
}

/// How an end of the chain reaches a hop.
pub(crate) fn route(end: u8, hop: u8) -> String {
    let network = format!("10.77.{hop}.0/24");
    match hop {
        hop if hop > end => format!("{network} via {}", address(end, true)),
        hop if hop + 1 < end => format!("{network} via {}", address(end - 1, false)),
        hop => format!("{network} dev path{hop} src {}", address(hop, hop < end)),
    }
}

/// VXLAN's ends of one side of a hop: outside of the box, and its own.
fn outer(hop: u8, far: bool) -> [String; 2] {
    let network = 2 * hop + u8::from(far);
    [1, 2].map(|host| format!("10.88.{network}.{host}"))
}

const VXLAN_PORT: u16 = 4789;
const VXLAN_HEADER: usize = 8;
const ETHERNET_HEADER: usize = 14;
/// Where a packet of IPv4 states its protocol, and UDP's number.
const IP_PROTOCOL: usize = 9;
const IP_UDP: u8 = 17;
const SOCKET_BUFFER: ByteSize = ByteSize::mib(4);

/// The namespaces of a chain and the one in the middle, removed when dropped.
pub(crate) struct Namespaces {
    pub(crate) middle: String,
    /// Of the first hop the first two, and so on.
    pub(crate) ends: Vec<String>,
}

impl Namespaces {
    pub(crate) fn new() -> Result<Self, String> {
        let name = |end: &str| format!("ncp{}{end}", std::process::id());
        let made = Self {
            middle: name("m"),
            ends: (0..=HOPS).map(|end| name(&end.to_string())).collect(),
        };
        for namespace in made.all() {
            ip(&format!("netns add {namespace}"))?;
            // A link's own IPv6 address becomes valid two seconds after the link came up, and a
            // browser that learns of a new address aborts its requests.
            sysctl(namespace, "net.ipv6.conf.default.disable_ipv6=1")?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        for (hop, ends) in (0..HOPS).zip(made.ends.windows(2)) {
            for (namespace, far) in ends.iter().zip([false, true]) {
                made.join(namespace, hop, far)?;
            }
        }
        for (end, namespace) in (0..=HOPS).zip(&made.ends) {
            // Or the second run of TCP begins with what the first has learned.
            sysctl(namespace, "net.ipv4.tcp_no_metrics_save=1")?;
            // The ends pass on what goes further, so that one flow can take several hops.
            sysctl(namespace, "net.ipv4.ip_forward=1")?;
            for hop in 0..HOPS {
                ip(&format!("-n {namespace} route replace {}", route(end, hop)))?;
            }
        }
        Ok(made)
    }

    /// Gives a namespace its end of a hop.
    fn join(&self, namespace: &str, hop: u8, far: bool) -> Result<(), String> {
        let (veth, inner, path) = (
            format!("v{hop}{}", u8::from(far)),
            address(hop, far),
            format!("path{hop}"),
        );
        let [outer, middle] = outer(hop, far);
        ip(&format!(
            "link add {veth} netns {namespace} type veth peer name {veth} netns {}",
            self.middle
        ))?;
        for (namespace, address) in [(namespace, &outer), (&self.middle, &middle)] {
            ip(&format!("-n {namespace} addr add {address}/24 dev {veth}"))?;
            ip(&format!(
                "-n {namespace} link set {veth} mtu 1600 up gso_max_segs 1"
            ))?;
        }
        let number = 7 + hop;
        ip(&format!(
            "-n {namespace} link add {path} type vxlan id {number} local {outer} remote {middle} \
             dstport {VXLAN_PORT} nolearning"
        ))?;
        ip(&format!("-n {namespace} addr add {inner}/24 dev {path}"))?;
        // One packet of the path is to be one packet of the box.
        ip(&format!(
            "-n {namespace} link set {path} mtu 1500 up gso_max_segs 1"
        ))
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        self.ends.iter().chain([&self.middle])
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in self.all() {
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}

fn sysctl(namespace: &str, setting: &str) -> Result<(), String> {
    ip(&format!("netns exec {namespace} sysctl -q {setting}"))
}

/// A packet of VXLAN on its way.
type Late = Reverse<(Instant, u64, Vec<u8>)>;

/// What stands for a hop while it is not dropped.
pub(crate) struct Box {
    /// The way down the chain.
    pub(crate) there: Arc<Mutex<PathDirection>>,
    /// Bytes of UDP that its bottleneck has sent.
    udp_there: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Box {
    /// Down the chain, and back.
    pub(crate) fn start(hop: u8, path: [Shape; 2], seed: u64) -> Self {
        let [near, far] = [false, true].map(|far| outer(hop, far));
        let bind = |[_, own]: &[String; 2]| {
            let address = format!("{own}:{VXLAN_PORT}").parse().expect("an address");
            // Or the kernel drops bursts at 100 Mbit/s.
            let socket = udp_socket(address, SOCKET_BUFFER, SOCKET_BUFFER)
                .expect("the box has its addresses");
            socket.set_nonblocking(false).expect("a socket can block");
            socket
        };
        let sockets = [&near, &far].map(bind);
        let outside = [near, far].map(|[outside, _]| outside);
        let ends = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let directions: Vec<Arc<Mutex<PathDirection>>> = path
            .into_iter()
            .zip(0..)
            .map(|(shape, number)| {
                let direction = PathDirection::new(shape, 2 * seed + number, Instant::now())
                    .expect("a shape that can be");
                Arc::new(Mutex::new(direction))
            })
            .collect();
        let udp = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        for (from, to) in [(0, 1), (1, 0)] {
            let (late, due) = channel();
            let incoming = sockets[from].try_clone().expect("a socket is cloned");
            let outgoing = sockets[to].try_clone().expect("a socket is cloned");
            let (direction, udp, ends, outside) = (
                Arc::clone(&directions[from]),
                Arc::clone(&udp[from]),
                Arc::clone(&ends),
                outside[to].clone(),
            );
            threads.push(std::thread::spawn(move || {
                take(&incoming, &direction, &udp, &late, &ends)
            }));
            threads.push(std::thread::spawn(move || {
                deliver(&outgoing, &outside, &due)
            }));
        }
        Self {
            there: Arc::clone(&directions[0]),
            udp_there: Arc::clone(&udp[0]),
            ends,
            threads,
        }
    }

    /// What happened down the chain since this was last asked.
    pub(crate) fn counts(&self) -> Counts {
        self.there
            .lock()
            .expect("nobody panics with it")
            .counts(Instant::now())
    }

    /// Bytes of UDP that the bottleneck has sent down the chain since this was last asked.
    #[allow(dead_code, reason = "benches/abr measures one flow at a time")]
    pub(crate) fn udp_bytes(&self) -> u64 {
        self.udp_there.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Box {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn take(
    socket: &UdpSocket,
    direction: &Mutex<PathDirection>,
    udp: &AtomicU64,
    late: &Sender<Late>,
    ends: &AtomicBool,
) {
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("a timeout above zero");
    let mut buffer = vec![0; 1 << 16];
    let mut number = 0;
    while !ends.load(Ordering::Relaxed) {
        let Ok(length) = socket.recv(&mut buffer) else {
            continue;
        };
        let now = Instant::now();
        let Some(frame) = buffer[..length].get_mut(VXLAN_HEADER..) else {
            continue;
        };
        mend(frame);
        let packet = frame.len().saturating_sub(ETHERNET_HEADER);
        let is_udp = frame.get(ETHERNET_HEADER + IP_PROTOCOL) == Some(&IP_UDP);
        for due in direction
            .lock()
            .expect("nobody panics with it")
            .take(now, packet)
        {
            number += 1;
            if is_udp {
                udp.fetch_add(packet as u64, Ordering::Relaxed);
            }
            // The other thread lives as long as this one.
            let _ = late.send(Reverse((due, number, buffer[..length].to_vec())));
        }
    }
}

fn deliver(socket: &UdpSocket, to: &str, late: &Receiver<Late>) {
    let mut heap: BinaryHeap<Late> = BinaryHeap::new();
    loop {
        let now = Instant::now();
        while heap.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
            let Some(Reverse((_, _, packet))) = heap.pop() else {
                break;
            };
            // A full socket drops, which a measurement in single megabits does not reach.
            let _ = socket.send_to(&packet, (to, VXLAN_PORT));
        }
        let wait = heap
            .peek()
            .map_or(Duration::from_secs(1), |Reverse((due, ..))| {
                due.saturating_duration_since(now)
            });
        match late.recv_timeout(wait) {
            Ok(packet) => heap.push(packet),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Puts the right checksum into a frame with TCP or UDP over IPv4: the kernel leaves that to the
/// network card, and there is none.
fn mend(frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(ETHERNET_HEADER..) else {
        return;
    };
    let &mut [first, _, high, low, ..] = packet else {
        return;
    };
    let (header, total) = (
        usize::from(first & 15) * 4,
        usize::from(u16::from_be_bytes([high, low])),
    );
    if first >> 4 != 4 || header < 20 || total > packet.len() || total < header + 8 {
        return;
    }
    let (ip, body) = packet[..total].split_at_mut(header);
    let at = match ip[IP_PROTOCOL] {
        6 if body.len() >= 20 => 16,
        IP_UDP => 6,
        _ => return,
    };
    body[at..at + 2].fill(0);
    let words = |bytes: &[u8]| -> u32 {
        bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
            .sum()
    };
    let length = u32::try_from(body.len()).expect("at most a packet");
    let mut sum = words(&ip[12..20]) + u32::from(ip[9]) + length + words(body);
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    let sum = !u16::try_from(sum).expect("folded");
    // UDP says with zero that there is none.
    body[at..at + 2].copy_from_slice(&if sum == 0 { 0xFFFF } else { sum }.to_be_bytes());
}
