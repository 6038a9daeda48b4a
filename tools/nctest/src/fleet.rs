//! The engine of a fleet: nodes of NATS on loopback.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::Program;
use crate::skip::skip;

/// The program of NATS, or `None` and a line that says so.
///
/// # Panics
/// If there is none and `NCTEST_REQUIRE_ALL` is set.
pub fn nats_server() -> Option<PathBuf> {
    let named = std::env::var_os("NATS_SERVER").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|folder| folder.join("nats-server"));
    let found = named.or_else(|| found.find(|file| file.is_file()));
    if found.is_none() {
        skip("there is no nats-server");
    }
    found
}

/// TCP ports of loopback that were free just now.
///
/// # Panics
/// If there are none.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let listen = |()| TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listeners = [(); N].map(listen);
    listeners.map(|listener| listener.local_addr().expect("its address").port())
}

/// A UDP address of loopback that was free just now.
///
/// # Panics
/// If there is none.
pub fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("its address")
}

/// A node that keeps what it is given to keep in this folder, configured by a file if there is one.
pub fn keeping_node(nats: &Path, port: u16, folder: &Path, file: Option<&Path>) -> Program {
    let mut command = Command::new(nats);
    command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"]);
    command.arg(folder);
    if let Some(file) = file {
        command.arg("-c").arg(file);
    }
    let node = Program::start(&mut command);
    node.says(["Server is ready"]);
    node
}

/// A node for clients at this port, which is ready. `routes` are the ports by which nodes reach
/// each other, its own the first.
pub fn node(nats: &PathBuf, port: u16, routes: &[u16]) -> Program {
    let mut command = Command::new(nats);
    command.args(["-a", "127.0.0.1", "-p", &port.to_string()]);
    if let [own, others @ ..] = routes {
        let url = |port: &u16| format!("nats://127.0.0.1:{port}");
        let others: Vec<_> = others.iter().map(url).collect();
        command.args(["--cluster_name", "test", "--cluster", &url(own)]);
        command.args(["--routes", &others.join(",")]);
    }
    let node = Program::start(&mut command);
    node.says(["Server is ready"]);
    node
}
