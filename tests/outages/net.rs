//! Hosts of a fleet: network namespaces around a bridge, which can be divided.
//!
//! Each host is in one half of the network, or in neither, where both halves reach it. A process is
//! in a namespace because the thread that starts it is.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nctest::netns::run;
use nctest::process::Process;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The device of every host, and of the switch.
const DEVICE: &str = "veth0";
const BRIDGE: &str = "br0";
/// A node whose link has this rate is slow: a beat of a fleet of five takes seconds.
const SLOW: [&str; 2] = [
    "netem delay 1500ms 500ms",
    "tbf rate 16kbit burst 2000 latency 4s",
];

/// A half of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Left,
    Right,
    /// Reached from both.
    Neither,
}

impl Half {
    /// Left and right in turn.
    pub(crate) fn of(number: usize) -> Self {
        if number.is_multiple_of(2) {
            Self::Left
        } else {
            Self::Right
        }
    }

    /// Its addresses, as the first of them and the bits that they share.
    fn prefix(self) -> &'static str {
        match self {
            Self::Left => "10.78.0.0/18",
            Self::Right => "10.78.64.0/18",
            Self::Neither => "10.78.128.0/18",
        }
    }

    /// The address of its host of this number: each has a network of 256 addresses for itself.
    pub(crate) fn address(self, number: u8) -> Ipv4Addr {
        assert!(number < 64, "a half has 64 networks");
        let base = match self {
            Self::Left => 0,
            Self::Right => 64,
            Self::Neither => 128,
        };
        Ipv4Addr::new(10, 78, base + number, 1)
    }
}

/// A way into a namespace.
#[derive(Clone)]
pub(crate) struct Entrance(Arc<File>);

impl Entrance {
    /// Moves this thread inside, for good.
    pub(crate) fn enter(&self) {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(self.0.as_fd(), kind).expect("the namespace is there");
    }
}

/// A network namespace, removed when dropped and when nothing runs in it.
pub(crate) struct Namespace {
    pub(crate) entrance: Entrance,
    /// `ip` takes the number of a process that is inside.
    holder: Process,
}

impl Namespace {
    fn new() -> Result<Self, String> {
        let mut command = Command::new("unshare");
        // It ends when this test does, whichever way.
        command.args(["--net", "sh", "-c", "echo inside; cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let child = command
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut holder = Process(child);
        let mut said = [0; 7];
        let output = holder.0.stdout.as_mut().expect("it is piped");
        output
            .read_exact(&mut said)
            .map_err(|_| "this process may not make network namespaces".to_owned())?;
        let path = format!("/proc/{}/ns/net", holder.0.id());
        let handle = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
        let made = Self {
            entrance: Entrance(Arc::new(handle)),
            holder,
        };
        made.run(|| run("ip", "link set lo up"))?;
        Ok(made)
    }

    /// Runs this on a thread inside.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.entrance.enter();
            work()
        };
        std::thread::scope(|scope| {
            let done = scope.spawn(inside).join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn id(&self) -> u32 {
        self.holder.0.id()
    }
}

/// The bridge with all that is joined to it.
pub(crate) struct Network {
    switch: Namespace,
    ports: usize,
    /// Whether the bridge can drop what passes between the halves.
    filters: bool,
}

/// A host of the network.
pub(crate) struct Host {
    pub(crate) namespace: Namespace,
    pub(crate) half: Half,
    pub(crate) address: Ipv4Addr,
    port: String,
}

impl Network {
    pub(crate) fn new() -> Result<Self, String> {
        let switch = Namespace::new()?;
        switch.run(|| {
            run("ip", &format!("link add {BRIDGE} type bridge"))?;
            run("ip", &format!("link set {BRIDGE} up"))
        })?;
        let filters = switch
            .run(|| nft(RULES).and_then(|()| nft(NO_RULES)))
            .is_ok();
        Ok(Self {
            switch,
            ports: 0,
            filters,
        })
    }

    /// A host more.
    pub(crate) fn host(&mut self, half: Half, number: u8) -> Result<Host, String> {
        let (namespace, address) = (Namespace::new()?, half.address(number));
        let port = format!("port{}", self.ports);
        self.ports += 1;
        let (inside, outside) = (namespace.id(), self.switch.id());
        let peer = format!("peer name {port} netns {outside}");
        run(
            "ip",
            &format!("link add {DEVICE} netns {inside} type veth {peer}"),
        )?;
        let master = format!("link set {port} master {BRIDGE} up");
        self.switch.run(|| run("ip", &master))?;
        namespace.run(|| {
            run("ip", &format!("addr add {address}/16 dev {DEVICE}"))?;
            run("ip", &format!("link set {DEVICE} up"))
        })?;
        Ok(Host {
            namespace,
            half,
            address,
            port,
        })
    }

    /// From now on nothing passes between the halves. Says how.
    pub(crate) fn divide<'h>(&self, hosts: impl Iterator<Item = &'h Host>) -> &'static str {
        if self.filters {
            self.switch
                .run(|| nft(RULES))
                .expect("nft has taken the rules before");
            return "nftables";
        }
        route(hosts, "add");
        "routes into a black hole"
    }

    /// And now it does.
    pub(crate) fn heal<'h>(&self, hosts: impl Iterator<Item = &'h Host>) {
        if self.filters {
            self.switch
                .run(|| nft(NO_RULES))
                .expect("the rules are there");
        } else {
            route(hosts, "del");
        }
    }

    /// Slows the link of a host, in both directions. Says how; `None` if this kernel cannot.
    pub(crate) fn slow(&self, host: &Host) -> Option<&'static str> {
        let inside = format!("qdisc replace dev {DEVICE} root");
        let outside = format!("qdisc replace dev {} root", host.port);
        SLOW.into_iter().find(|how| {
            let slow = |device: &str| run("tc", &format!("{device} {how}"));
            host.namespace.run(|| slow(&inside)).is_ok()
                && self.switch.run(|| slow(&outside)).is_ok()
        })
    }

    /// And now it is as fast as before.
    pub(crate) fn quicken(&self, host: &Host) {
        let remove = |device: &str| run("tc", &format!("qdisc del dev {device} root"));
        host.namespace.run(|| remove(DEVICE)).expect("it is slow");
        self.switch.run(|| remove(&host.port)).expect("it is slow");
    }
}

/// Rules of the bridge that part the halves.
const RULES: &str = "table bridge outage {
    chain forward {
        type filter hook forward priority 0; policy accept;
        ip saddr 10.78.0.0/18 ip daddr 10.78.64.0/18 drop
        ip saddr 10.78.64.0/18 ip daddr 10.78.0.0/18 drop
    }
}";
const NO_RULES: &str = "delete table bridge outage";

fn nft(rules: &str) -> Result<(), String> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("nft: {error}"))?;
    let input = child.stdin.take().expect("it is piped");
    let written = { input }.write_all(rules.as_bytes());
    let status = child.wait().map_err(|error| format!("nft: {error}"))?;
    match written {
        Ok(()) if status.success() => Ok(()),
        _ => Err(format!("nft: {status}")),
    }
}

/// The other way: the hosts of each half drop what is meant for the other one.
fn route<'h>(hosts: impl Iterator<Item = &'h Host>, action: &str) {
    for host in hosts {
        let other = match host.half {
            Half::Left => Half::Right,
            Half::Right => Half::Left,
            Half::Neither => continue,
        };
        let words = format!("route {action} blackhole {}", other.prefix());
        let routed = host.namespace.run(|| run("ip", &words));
        routed.expect("routes can be added and removed");
    }
}

/// Waits until something answers at an address, which this thread reaches.
pub(crate) fn await_listener(address: std::net::SocketAddr) {
    let end = Instant::now() + nctest::program::PATIENCE;
    while std::net::TcpStream::connect(address).is_err() {
        assert!(Instant::now() < end, "{address} does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
}
