//! A player: plays a live stream from the gateway in its namespace, in time, and compares every
//! byte.
//!
//! It is a process of its own. On standard output it prints the outcome of each segment, and, for
//! every line of its standard input, the gateway's counters.

use std::io::{self, BufRead};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use nctest::http::get;
use nctest::live::{PLAYLIST, SEGMENT, segment};

/// The gateway, and its metrics.
pub(crate) const GATEWAY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
pub(crate) const METRICS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9100);

/// Segments from the end of the playlist where a player begins, as RFC 8216 has it.
const BEHIND: usize = 3;

/// What a player says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Said {
    /// A segment was there so long after it was due; zero is in time.
    Played { late: Duration },
    /// The playlist went on without a segment that was to be played.
    Missed,
    /// A segment had other bytes.
    Wrong,
    /// Bytes of blocks that the gateway has had from the server and from peers.
    Received { server: f64, peers: f64 },
}

impl Said {
    fn tell(self) {
        match self {
            Self::Played { late } => println!("played {}", late.as_millis()),
            Self::Missed => println!("missed"),
            Self::Wrong => println!("wrong"),
            Self::Received { server, peers } => println!("received {server} {peers}"),
        }
    }

    /// Reads a line of a player.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["played", late] => Some(Self::Played {
                late: Duration::from_millis(late.parse().ok()?),
            }),
            ["missed"] => Some(Self::Missed),
            ["wrong"] => Some(Self::Wrong),
            ["received", server, peers] => Some(Self::Received {
                server: server.parse().ok()?,
                peers: peers.parse().ok()?,
            }),
            _ => None,
        }
    }
}

/// Plays until it is killed or nobody listens.
pub(crate) fn play(length: usize) {
    std::thread::spawn(|| {
        for _ in io::stdin().lock().lines() {
            let metrics = get(METRICS, "/metrics").unwrap_or_default();
            let of = |from: &str| {
                metric(
                    &metrics,
                    &format!("ncserverd_peer_received_bytes_total{{from=\"{from}\"}}"),
                )
            };
            Said::Received {
                server: of("server"),
                peers: of("peer"),
            }
            .tell();
        }
    });
    let mut named = playlist();
    while named.len() < BEHIND {
        std::thread::sleep(SEGMENT / 4);
        named = playlist();
    }
    let mut number = named[named.len() - BEHIND];
    // When the next one is due, from the first on.
    let mut due: Option<Instant> = None;
    loop {
        let read_at = Instant::now();
        if let Some(oldest) = named.first().filter(|oldest| number < **oldest) {
            (number..*oldest).for_each(|_| Said::Missed.tell());
            (number, due) = (*oldest, None);
        }
        while named.contains(&number) {
            let Ok(bytes) = get(GATEWAY, &format!("/live/{number}.ts")) else {
                break;
            };
            let now = Instant::now();
            let late = due.map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
            if bytes == segment(number, length) {
                Said::Played { late }
            } else {
                Said::Wrong
            }
            .tell();
            // A player that has waited plays everything as much later.
            due = Some(due.map_or(now, |due| due + late) + SEGMENT);
            number += 1;
        }
        // A playlist is reloaded when it may have changed, and sooner if it has not (RFC 8216,
        // 6.3.4).
        let mut wait = SEGMENT;
        loop {
            std::thread::sleep((read_at + wait).saturating_duration_since(Instant::now()));
            let now_named = playlist();
            let is_changed = now_named != named;
            named = now_named;
            if is_changed {
                break;
            }
            wait += SEGMENT / 2;
        }
    }
}

/// Numbers of the segments that the playlist names.
fn playlist() -> Vec<u64> {
    let text = get(GATEWAY, &format!("/live/{PLAYLIST}")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .filter_map(|line| line.strip_suffix(".ts")?.parse().ok())
        .collect()
}

/// The sum of the series whose names begin like this, of which there is at least one.
pub(crate) fn metric(metrics: &[u8], name: &str) -> f64 {
    let text = String::from_utf8_lossy(metrics);
    let series: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
    assert!(!series.is_empty(), "no series {name}");
    series
        .iter()
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
