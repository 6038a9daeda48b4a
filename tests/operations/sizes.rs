//! Sizes that are left to the machine, and the limit on open files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytesize::ByteSize;
use ncserverd::units::size::exact;
use tempfile::TempDir;

use crate::server::{Server, command};

/// Connections that a listener for metrics takes.
const SCRAPERS: usize = 60;

/// The value of a series without labels.
fn value(server: &Server, name: &str) -> u64 {
    let (_, page) = server.get("/metrics");
    let mut values = page
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value: f64 = values.next().expect("a series").parse().unwrap();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let value = value as u64;
    value
}

fn run(arguments: &[&str]) -> String {
    let output = command(&TempDir::new().unwrap(), arguments).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn server_doctor_and_plan_tell_the_same_sizes() {
    const NAMES: [&str; 2] = [
        "ncserverd_endpoint_max_connections",
        "ncserverd_ring_capacity_bytes",
    ];
    let given = ["endpoint.connections_max=1234", "ring.bytes=100MiB"];
    for set in [vec![], given[..1].to_vec(), given.to_vec()] {
        let set: Vec<&str> = set.iter().flat_map(|key| ["--set", key]).collect();
        let server = Server::start(&set);
        let [connections, ring] = NAMES.map(|name| value(&server, name));
        let log = server.heard();
        for field in [
            format!("\"connections_max\":{connections}"),
            format!("\"ring_bytes\":{ring}"),
        ] {
            assert!(log.contains(&field), "{field} is not in {log}");
        }
        let ring = ByteSize(ring);
        let free = ["--set", "endpoint.listen=127.0.0.1:0"];
        let doctor = run(&[&["doctor"], &free[..], &set].concat());
        for part in [
            format!("(ring {ring}, "),
            format!(", {connections} connections of "),
        ] {
            assert!(doctor.contains(&part), "{part} is not in {doctor}");
        }
        let plan = run(&[&["plan", "--peers", "1", "--bitrate", "768k"], &set[..]].concat());
        let part = format!(
            "limits of {connections} connections and a ring of {}",
            exact(ring)
        );
        assert!(plan.contains(&part), "{part} is not in {plan}");
        if set.len() == 4 {
            assert_eq!((connections, ring), (1234, ByteSize::mib(100)));
        }
    }
}

#[test]
fn the_limit_on_open_files_is_raised_as_far_as_it_may_be() {
    let limit = |limits: &str| {
        let shell = format!("{limits}; exec \"$@\"");
        Server::start_under(&["/bin/sh", "-c", &shell, "sh"], &[])
    };
    let server = limit("ulimit -Sn 48; ulimit -Hn 500");
    assert_eq!(value(&server, "process_max_fds"), 500);
    let log = server.heard();
    assert!(log.contains("raised the limit on open files"), "{log}");
    // More than the first limit allows.
    let mut scrapers: Vec<_> = (0..SCRAPERS)
        .map(|_| {
            let mut scraper = TcpStream::connect(server.metrics()).unwrap();
            scraper
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            write!(scraper, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            scraper
        })
        .collect();
    for scraper in &mut scrapers {
        let mut status = [0; 12];
        scraper.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    }

    let poor = limit("ulimit -Sn 200; ulimit -Hn 200");
    let log = poor.heard();
    assert!(log.contains("limit on open files is too low"), "{log}");
    assert_eq!(poor.get("/healthz").0, 200, "it serves all the same");
}
