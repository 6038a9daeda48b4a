//! Checks of the network: addresses, buffers, segmentation offload.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;
use quinn::udp::{Transmit, UdpSockRef, UdpSocketState};
use socket2::SockRef;

use super::Check;
use crate::config::Config;
use crate::endpoint::{self, granted_buffers, udp_socket};
use crate::server::is_socket;
use crate::units::size;

/// Where the next process is to come.
pub(super) fn handover(path: Option<&Path>) -> Vec<Check> {
    const NAME: &str = "place for the next process";
    let Some(path) = path else {
        return Vec::new();
    };
    let shown = path.display();
    if is_socket(path) == Some(false) {
        let change = "name a path in `server.handover` where nothing else is";
        return vec![Check::fail(NAME, format!("{shown} is no socket"), change)];
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let draft = path.with_added_extension(format!("doctor-{}", std::process::id()));
    let tried = UnixListener::bind(&draft);
    let _ = fs::remove_file(&draft);
    let check = match (tried, fs::metadata(folder)) {
        (Ok(_), Ok(folder)) if folder.permissions().mode() & 0o022 != 0 => Check::warn(
            NAME,
            format!("others than this user can write to the folder of {shown}"),
            "take that right away: chmod go-w",
        ),
        (Ok(_), Ok(_)) => Check::ok(NAME, format!("{shown} can be made")),
        (Err(error), _) | (_, Err(error)) => Check::fail(
            NAME,
            format!("cannot make {shown}: {error}"),
            "make its folder, where this user can write, or change `server.handover`",
        ),
    };
    vec![check]
}

/// Whether a server that runs may hand over its addresses.
fn hands_over(config: &Config) -> bool {
    let path = config.server.handover.as_deref();
    path.and_then(is_socket) == Some(true)
}

/// The addresses for peers, all bound at once as by the server, because one may conflict with
/// another.
pub(super) fn listening(config: &Config) -> Vec<Check> {
    let endpoint = &config.endpoint;
    let mut held = Vec::new();
    let bind = |address: &SocketAddr| match udp_socket(
        *address,
        endpoint.receive_buffer,
        endpoint.send_buffer,
    ) {
        Ok(socket) => {
            held.push(socket);
            Check::ok("address for peers", format!("UDP {address} can be bound"))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse && hands_over(config) => {
            Check::ok("address for peers", handed("UDP", *address))
        }
        Err(error) => refused(
            "address for peers",
            "UDP",
            "endpoint.listen",
            *address,
            &error,
        ),
    };
    endpoint.listen.iter().map(bind).collect()
}

/// The address for metrics.
pub(super) fn telemetry(config: &Config) -> Check {
    let (name, address) = ("address for metrics", config.telemetry.listen);
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(name, format!("TCP {address} can be bound")),
        Err(error) if error.kind() == ErrorKind::AddrInUse && hands_over(config) => {
            Check::ok(name, handed("TCP", address))
        }
        Err(error) => refused(name, "TCP", "telemetry.listen", address, &error),
    }
}

fn handed(protocol: &str, address: SocketAddr) -> String {
    format!(
        "{protocol} {address} is in use: the server that listens at `server.handover` hands it over"
    )
}

fn refused(
    name: &'static str,
    protocol: &str,
    key: &str,
    address: SocketAddr,
    error: &io::Error,
) -> Check {
    let change = match error.kind() {
        ErrorKind::AddrInUse => format!(
            "another program or a running server uses the address: stop it, or change `{key}`"
        ),
        ErrorKind::AddrNotAvailable => {
            format!("this machine lacks the address: `ip address` lists those for `{key}`")
        }
        ErrorKind::PermissionDenied => {
            format!(
                "set a port of 1024 or above in `{key}`, or give the service CAP_NET_BIND_SERVICE"
            )
        }
        _ => format!("change `{key}`"),
    };
    Check::fail(
        name,
        format!("cannot bind {protocol} {address}: {error}"),
        change,
    )
}

/// The buffer sizes that the kernel grants.
pub(super) fn buffers(config: &endpoint::Config) -> Vec<Check> {
    let loopback = loopback(config);
    let socket = udp_socket(loopback, config.receive_buffer, config.send_buffer);
    let granted = socket.and_then(|socket| granted_buffers(SockRef::from(&socket)));
    match granted {
        Ok((receive, send)) => vec![
            RECEIVE.judge(config.receive_buffer, receive),
            SEND.judge(config.send_buffer, send),
        ],
        Err(error) => {
            let found = format!("cannot open a UDP socket on {loopback}: {error}");
            vec![Check::fail(
                RECEIVE.name,
                found,
                "bring up the loopback interface: ip link set lo up",
            )]
        }
    }
}

/// Whether several sockets may share an address.
pub(super) fn sharing(config: &endpoint::Config) -> Check {
    let wanted = config.sockets.count();
    if wanted == 1 {
        return Check::ok(
            SHARING,
            "one by `endpoint.sockets`, or by the number of cores",
        );
    }
    match endpoint::check_sharing(config, loopback(config).ip()) {
        Ok(()) => Check::ok(SHARING, format!("{wanted} can share an address")),
        Err(error) => Check::warn(
            SHARING,
            format!(
                "{wanted} cannot share an address, so handshakes use one core at a time: {error}"
            ),
            "use Linux 4.5 or later, and a sandbox that allows SO_ATTACH_REUSEPORT_CBPF",
        ),
    }
}

/// One of a socket's two buffers.
struct Buffer {
    name: &'static str,
    key: &'static str,
    sysctl: &'static str,
    harm: &'static str,
}

const RECEIVE: Buffer = Buffer {
    name: "receive buffer",
    key: "endpoint.receive_buffer",
    sysctl: "net.core.rmem_max",
    harm: "bursts of new peers and of acknowledgements will be lost",
};
const SEND: Buffer = Buffer {
    name: "send buffer",
    key: "endpoint.send_buffer",
    sysctl: "net.core.wmem_max",
    harm: "packets will wait for buffer space with many peers",
};

impl Buffer {
    fn judge(&self, asked: ByteSize, granted: usize) -> Check {
        let granted = ByteSize(granted as u64);
        let found = format!(
            "the kernel grants {} of {} = {}",
            size::exact(granted),
            self.key,
            size::exact(asked)
        );
        if granted >= asked {
            return Check::ok(self.name, found);
        }
        let (sysctl, bytes) = (self.sysctl, asked.as_u64());
        let change = format!(
            "sysctl -w {sysctl}={bytes}, and add `{sysctl} = {bytes}` to \
             /etc/sysctl.d/60-ncserverd.conf"
        );
        Check::warn(self.name, format!("{found}: {}", self.harm), change)
    }
}

/// Sends one batch of segments over loopback, and counts arrivals.
pub(super) fn gso(config: &endpoint::Config) -> Check {
    if !config.gso {
        return Check::ok(GSO, "disabled by `endpoint.gso`");
    }
    match send_segments(loopback(config)) {
        Ok(sent) => sent.judge(),
        Err(error) => Check::fail(
            GSO,
            format!("cannot send a batch of segments: {error}"),
            "set endpoint.gso = false",
        ),
    }
}

/// The results of a batch.
#[derive(Debug, Clone, Copy)]
struct Segments {
    /// Segments that the kernel accepts per call.
    at_most: usize,
    /// Segments sent.
    sent: usize,
    /// Segments that arrived whole.
    came: usize,
}

impl Segments {
    fn judge(self) -> Check {
        let Self {
            at_most,
            sent,
            came,
        } = self;
        if at_most <= 1 {
            let found = "the kernel does not segment UDP (UDP_SEGMENT): a system call per packet \
                         costs about three times the CPU";
            return Check::warn(
                GSO,
                found,
                "use Linux 4.18 or later, and a sandbox that allows UDP_SEGMENT",
            );
        }
        if came < sent {
            let found =
                format!("only {came} of {sent} segments sent in one call arrived over loopback");
            return Check::fail(GSO, found, "set endpoint.gso = false");
        }
        Check::ok(
            GSO,
            format!(
                "{sent} segments sent in one call arrived as {came} packets over loopback (at most \
                 {at_most} per call)"
            ),
        )
    }
}

fn send_segments(loopback: SocketAddr) -> io::Result<Segments> {
    let (sender, receiver) = (UdpSocket::bind(loopback)?, UdpSocket::bind(loopback)?);
    receiver.set_read_timeout(Some(PATIENCE))?;
    let state = UdpSocketState::new(UdpSockRef::from(&sender))?;
    let at_most = state.max_gso_segments();
    let sent = at_most.min(SEGMENTS);
    let contents = vec![0x5a; sent * SEGMENT_BYTES];
    let segment_size = (sent > 1).then_some(SEGMENT_BYTES);
    let transmit = Transmit {
        destination: receiver.local_addr()?,
        ecn: None,
        contents: &contents,
        segment_size,
        src_ip: None,
    };
    // quinn-udp makes its socket non-blocking, but the socket is idle.
    state.try_send(UdpSockRef::from(&sender), &transmit)?;
    let mut packet = [0; 2 * SEGMENT_BYTES];
    let mut came = 0;
    while came < sent
        && receiver
            .recv(&mut packet)
            .is_ok_and(|length| length == SEGMENT_BYTES)
    {
        came += 1;
    }
    Ok(Segments {
        at_most,
        sent,
        came,
    })
}

/// Of the address family that peers use.
fn loopback(config: &endpoint::Config) -> SocketAddr {
    let is_ipv6 = config
        .listen
        .first()
        .is_some_and(|address| address.is_ipv6() && !address.ip().is_unspecified());
    let ip = if is_ipv6 {
        IpAddr::V6(Ipv6Addr::LOCALHOST)
    } else {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    };
    SocketAddr::new(ip, 0)
}

const SHARING: &str = "sockets for handshakes";
const GSO: &str = "segmentation offload";
/// As many as quinn sends in one call.
const SEGMENTS: usize = 10;
/// The size of the smallest packet that QUIC must be able to send.
const SEGMENT_BYTES: usize = 1200;
/// Packets over loopback have arrived long before.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_small_buffer_names_its_sysctl() {
        let check = RECEIVE.judge(ByteSize::mib(4), 212_992);
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(
            check
                .to_string()
                .contains("sysctl -w net.core.rmem_max=4194304"),
            "{check}"
        );
        assert!(
            SEND.judge(ByteSize::mib(4), 212_992)
                .to_string()
                .contains("net.core.wmem_max")
        );
        assert_eq!(SEND.judge(ByteSize::mib(4), 4 << 20).verdict, Verdict::Ok);
    }

    #[test]
    fn segments_are_counted() {
        assert_eq!(
            Segments {
                at_most: 64,
                sent: 10,
                came: 10
            }
            .judge()
            .verdict,
            Verdict::Ok
        );
        let lost = Segments {
            at_most: 64,
            sent: 10,
            came: 1,
        }
        .judge();
        assert_eq!(
            (lost.verdict, lost.change.as_deref()),
            (Verdict::Fail, Some("set endpoint.gso = false"))
        );
        assert_eq!(
            Segments {
                at_most: 1,
                sent: 1,
                came: 1
            }
            .judge()
            .verdict,
            Verdict::Warn
        );
        let here = send_segments(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        assert_eq!(here.came, here.sent);
    }

    #[test]
    fn an_address_that_is_taken_is_named() {
        let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = taken.local_addr().unwrap();
        let mut config = Config::default();
        config.endpoint.listen = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), address];
        let checks = listening(&config);
        assert_eq!(
            (checks[0].verdict, checks[1].verdict),
            (Verdict::Ok, Verdict::Fail)
        );
        assert!(
            checks[1].found.contains(&address.to_string())
                && checks[1].to_string().contains("endpoint.listen"),
            "{}",
            checks[1]
        );
    }

    #[test]
    fn the_place_for_the_next_process_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let verdict = |path: &Path| handover(Some(path))[0].verdict;
        assert!(handover(None).is_empty());
        let path = folder.path().join("handover");
        assert_eq!(verdict(&path), Verdict::Ok);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(
            verdict(&folder.path().join("absent/handover")),
            Verdict::Fail
        );
        fs::write(&path, "bytes").unwrap();
        assert_eq!(verdict(&path), Verdict::Fail);
        fs::remove_file(&path).unwrap();
        // A server that runs hands over what it listens on.
        let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut config = Config::default();
        config.endpoint.listen = vec![taken.local_addr().unwrap()];
        config.server.handover = Some(path.clone());
        assert_eq!(listening(&config)[0].verdict, Verdict::Fail);
        let _server = UnixListener::bind(&path).unwrap();
        assert_eq!(listening(&config)[0].verdict, Verdict::Ok);
        assert_eq!(verdict(&path), Verdict::Ok);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(verdict(&path), Verdict::Warn);
    }

    #[test]
    fn two_addresses_of_which_one_covers_the_other_do_not_go_together() {
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        drop(held);
        let mut config = Config::default();
        config.endpoint.listen = vec![
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        ];
        assert_eq!(listening(&config)[1].verdict, Verdict::Fail);
    }
}
