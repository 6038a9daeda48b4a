//! The limit on open files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::server::Server;

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
            write!(scraper, "GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
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
