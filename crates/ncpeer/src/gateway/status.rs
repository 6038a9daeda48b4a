//! The gateway's own page: what is played, from whom, and how it was repaired.
//!
//! Its paths have no second `/`, as those of all objects do, so no stream can have them. Pages of
//! other sites cannot read them, whatever they may read of streams; nor can other machines, because
//! the page names what its user plays, and viewers who help.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use ncs_net::feed::{Feed, Part};
use ncs_net::page;
use ncs_net::telemetry::now_ms;
use serde::Serialize;

use super::played::{Played, Shown};
use crate::{SourceStats, Stats};

/// The answer, if the path is one of this page.
pub(super) fn answer(
    path: &str,
    headers: &HeaderMap,
    local: IpAddr,
    feed: &Feed,
) -> Option<Response> {
    if PATHS.contains(&path) && !local.is_loopback() {
        let text = "this page is shown to browsers on the gateway's own machine only";
        return Some(page::sentence(StatusCode::NOT_FOUND, text));
    }
    let (content_type, text) = match path {
        "/status" => (page::HTML, include_str!("status/index.html")),
        "/status.js" => (page::JS, include_str!("status/status.js")),
        "/page.js" => (page::JS, page::SCRIPT),
        "/page.css" => (page::CSS, page::STYLE),
        "/icon.svg" => (page::SVG, page::ICON),
        "/status-updates" if page::is_of_another(headers) => {
            let text = "a request of another site's page";
            return Some(page::sentence(StatusCode::FORBIDDEN, text));
        }
        "/status-updates" => return Some(feed.open()),
        _ => return None,
    };
    Some(page::answer(StatusCode::OK, content_type, text))
}

/// The state of the page.
pub(super) fn parts(stats: &Stats, played: &Played, uptime: Duration) -> Vec<Part> {
    let state = State {
        time_ms: now_ms(),
        uptime_seconds: uptime.as_secs(),
        version: env!("CARGO_PKG_VERSION"),
        status: if stats.connected {
            "ready"
        } else {
            "not-ready"
        },
        numbers: Numbers::of(stats),
        sources: stats.sources.iter().map(Source::of).collect(),
        played: played.shown(),
    };
    vec![Part {
        name: "state",
        revision: uptime.as_micros().try_into().unwrap_or(u64::MAX),
        json: serde_json::to_vec(&state)
            .expect("texts and numbers")
            .into(),
    }]
}

#[derive(Serialize)]
struct State {
    time_ms: u64,
    uptime_seconds: u64,
    version: &'static str,
    status: &'static str,
    numbers: Numbers,
    sources: Vec<Source>,
    played: Vec<Shown>,
}

#[derive(Serialize)]
struct Numbers {
    bytes: u64,
    payload_bytes: u64,
    neighbour_bytes: u64,
    innovative: u64,
    useless: u64,
    lost: u64,
    repaired: u64,
    ahead: u64,
    ahead_used: u64,
    generations: u64,
    verified: u64,
    corrupt: u64,
    mended: u64,
    wrong: u64,
    reconnects: u64,
    outage_seconds: f64,
}

impl Numbers {
    fn of(stats: &Stats) -> Self {
        Self {
            bytes: stats.bytes,
            payload_bytes: stats.payload_bytes,
            neighbour_bytes: stats.neighbour_bytes,
            innovative: stats.blocks_innovative,
            useless: stats.blocks_useless,
            lost: stats.datagrams_lost,
            repaired: stats.blocks_repaired,
            ahead: stats.blocks_ahead,
            ahead_used: stats.blocks_ahead_used,
            generations: stats.generations,
            verified: stats.segments_verified,
            corrupt: stats.segments_corrupt,
            mended: stats.segments_mended,
            wrong: stats.blocks_wrong,
            reconnects: stats.reconnects,
            outage_seconds: stats.outages.as_secs_f64(),
        }
    }
}

#[derive(Serialize)]
struct Source {
    server: String,
    state: &'static str,
    rtt_ms: f64,
    loss: f64,
    payload_bytes: u64,
    innovative: u64,
    useless: u64,
    lost: u64,
    wrong: u64,
}

impl Source {
    fn of(source: &SourceStats) -> Self {
        let counts = &source.counts;
        let state = match (&source.hello, source.address) {
            _ if counts.is_polluter => "dropped",
            (Some(_), _) => "connected",
            (None, Some(_)) => "leaving",
            (None, None) => "no connection",
        };
        Self {
            server: source.server.to_string(),
            state,
            rtt_ms: source.rtt.as_secs_f64() * 1e3,
            loss: counts.loss,
            payload_bytes: counts.payload_bytes,
            innovative: counts.innovative,
            useless: counts.useless,
            lost: counts.lost,
            wrong: counts.wrong,
        }
    }
}

const PATHS: [&str; 6] = [
    "/status",
    "/status.js",
    "/status-updates",
    "/page.js",
    "/page.css",
    "/icon.svg",
];

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn the_page_has_its_own_paths_and_headers() {
        let feed = Feed::new();
        let mut headers = HeaderMap::new();
        for path in PATHS {
            assert_eq!(path.matches('/').count(), 1, "objects have two");
            let page = answer(path, &headers, HERE, &feed).unwrap();
            assert_eq!(page.status(), StatusCode::OK);
            assert!(page.headers().contains_key("content-security-policy"));
            assert!(!page.headers().contains_key("access-control-allow-origin"));
            let elsewhere = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 5));
            let page = answer(path, &headers, elsewhere, &feed).unwrap();
            assert_eq!(page.status(), StatusCode::NOT_FOUND);
        }
        assert!(answer("/status/1.ts", &headers, HERE, &feed).is_none());
        let updates = answer("/status-updates", &headers, HERE, &feed).unwrap();
        assert_eq!(updates.headers()["content-type"], "text/event-stream");
        headers.insert("sec-fetch-site", "cross-site".parse().unwrap());
        let foreign = answer("/status-updates", &headers, HERE, &feed).unwrap();
        assert_eq!(foreign.status(), StatusCode::FORBIDDEN);
    }

    #[test]
    fn the_state_says_what_is_played_from_whom() {
        let played = Played::default();
        let playing = played.begin("/live/1.ts");
        playing.add(500);
        let stats = Stats {
            connected: true,
            datagrams_lost: 7,
            blocks_repaired: 5,
            ..Stats::default()
        };
        let parts = parts(&stats, &played, Duration::from_secs(3));
        let json: serde_json::Value = serde_json::from_slice(&parts[0].json).unwrap();
        assert_eq!(json["played"][0]["path"], "/live/1.ts");
        assert_eq!(json["played"][0]["bytes"], 500);
        assert_eq!(json["numbers"]["lost"], 7);
        assert_eq!(json["numbers"]["repaired"], 5);
        assert_eq!(json["status"], "ready");
    }
}
