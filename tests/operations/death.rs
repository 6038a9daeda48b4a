//! A running server in which an essential part dies.
//!
//! The server has no switch for that, so a debugger makes the device's thread panic when it is
//! about to load a segment.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, iter};

use tempfile::TempDir;

use crate::program::program;
use crate::server::Server;

/// Finds both functions by their symbols. At its first instruction, `load` is replaced by the
/// panicking function as if that had been called, so the panic unwinds through its caller.
const INJECT: &str = r#"
import gdb, re
for line in ["pagination off", "debuginfod enabled off", "startup-with-shell off"]:
    try:
        gdb.execute("set " + line)
    except gdb.error:
        pass
gdb.execute("handle SIGPIPE SIGTERM SIGINT nostop noprint pass")
gdb.execute("starti")
program = gdb.current_progspace().filename
symbols = gdb.execute("maint print msymbols -objfile " + program, to_string=True)
def address(name):
    return int(re.search(r" (0x[0-9a-f]+) " + name, symbols)[1], 16)
panic = address(r"\S*raw_vec\d+capacity_overflow")
load = address(r"_\S*device\S*cpu\S*Cpu\S*Backend\S*4load")
gdb.execute("break *%d" % load)
gdb.execute("continue")
gdb.execute("set $rip = %d" % panic)
gdb.execute("continue")
"#;

#[test]
fn a_server_whose_device_dies_says_so_and_ends_with_10() {
    let place = TempDir::new().unwrap();
    let script = place.path().join("inject.py");
    fs::write(&script, INJECT).unwrap();
    let gdb = ["gdb", "-q", "-nx", "-batch"];
    let has_gdb = Command::new("gdb")
        .args(&gdb[1..])
        .args(["-ex", "python pass"])
        .stdin(Stdio::null())
        .output();
    if !has_gdb.is_ok_and(|output| output.status.success()) {
        assert!(
            env::var_os("NCTEST_REQUIRE_ALL").is_none(),
            "gdb with Python is not installed"
        );
        return eprintln!("skipped: gdb with Python is not installed");
    }
    let media = place.path().join("media");
    fs::create_dir(&media).unwrap();
    fs::write(media.join("film.bin"), [7; 100_000]).unwrap();
    let parent = [
        &gdb[..],
        &[
            "-return-child-result",
            "-x",
            script.to_str().unwrap(),
            "--args",
        ],
    ]
    .concat();
    let directory = format!("stream.live.directory={}", media.display());
    let mut server = Server::start_under(
        &parent,
        &["--set", "device.backend=cpu", "--set", &directory],
    );
    assert_eq!(server.get("/healthz").0, 200);
    let (url, fingerprint) = server.peers_connect_with();
    let mut viewer = Command::new(program("ncpeer"))
        .args([
            "fetch",
            &url,
            "--fingerprint",
            &fingerprint,
            "/live/film.bin",
            "-o",
            "/dev/null",
        ])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    server.wait_for("the process ends because an essential part died: device");
    // The server may have ended before it is asked.
    let answers: Vec<u16> = iter::from_fn(|| status(server.metrics(), "/healthz")).collect();
    assert!(answers.iter().all(|status| *status == 503), "{answers:?}");
    assert_eq!(server.wait().code(), Some(10), "{}", server.heard());
    drop(viewer.kill());
    drop(viewer.wait());
}

/// `None` if nothing answers.
fn status(address: SocketAddr, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}
