//! Programs of this build and of another one serve each other, on paths that lose a tenth of all
//! packets.
//!
//! `OLD_NCPEER` and `OLD_NCSERVERD` name the other programs: `make mixed FROM=v0.1.0` builds them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nctest::fleet::{free_ports, nats_server, node};
use nctest::program::{PATIENCE, Program, metric};

use crate::blocking;
use crate::place::{ACTS, Act, Engine, Loss, Place, Player, Plot, Way};
use crate::program::program;

/// A peer and a server of one build.
struct Build {
    name: &'static str,
    ncpeer: PathBuf,
    ncserverd: PathBuf,
}

/// The other build, and this one.
fn builds() -> [Build; 2] {
    let named = |variable: &str| -> PathBuf {
        let path = std::env::var_os(variable);
        path.unwrap_or_else(|| panic!("{variable} names a program"))
            .into()
    };
    let old = Build {
        name: "old",
        ncpeer: named("OLD_NCPEER"),
        ncserverd: named("OLD_NCSERVERD"),
    };
    let new = Build {
        name: "new",
        ncpeer: program("ncpeer"),
        ncserverd: program("ncserverd"),
    };
    [old, new]
}

/// The other build beside this one, and the reverse.
fn pairs(builds: &[Build; 2]) -> [[&Build; 2]; 2] {
    let [old, new] = builds;
    [[old, new], [new, old]]
}

/// An object of hundreds of blocks in each of dozens of generations.
const LARGE_PATH: &str = "/large/large.ts";

/// Gets the large object from several sources.
const fn large(flags: &'static [&'static str]) -> Act {
    Act {
        name: "large",
        plot: Plot::Gets,
        path: LARGE_PATH,
        flags,
        loss: Loss::Nothing,
    }
}

fn fetch(place: &Place, peer: &Build, url: &str, act: &Act) {
    let (succeeds, said) = blocking(|| place.fetch(&peer.ncpeer, url, act));
    assert_eq!(succeeds, act.plot == Plot::Gets, "{}: {said}", act.name);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs of another version: make mixed"]
async fn a_peer_fetches_from_a_server_of_another_version() {
    let builds = builds();
    for [peer, server] in pairs(&builds) {
        let place = Place::new([&*server.ncserverd; 2], Way::Lossy);
        let _server = blocking(|| place.alone());
        let fetched = ACTS
            .iter()
            .filter(|act| matches!(act.plot, Plot::Gets | Plot::Misses));
        for act in fetched.chain(&[large(&[]), large(&["--no-datagrams"])]) {
            println!("{} peer, {} server: {}", peer.name, server.name, act.name);
            fetch(&place, peer, &place.url('a'), act);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs of another version: make mixed"]
async fn a_peer_draws_on_servers_of_both_versions() {
    let builds = builds();
    for [first, second] in pairs(&builds) {
        for peer in [first, second] {
            println!("{} peer, {} server first", peer.name, first.name);
            let place = Place::new([&*first.ncserverd, &*second.ncserverd], Way::Lossy);
            let servers = blocking(|| place.both());
            let flags: Vec<String> = vec!["--source".to_owned(), place.url('b')];
            let flags: Vec<&'static str> = flags.into_iter().map(|flag| &*flag.leak()).collect();
            fetch(&place, peer, &place.url('a'), &large(flags.leak()));
            for (server, metrics) in &servers {
                let sent = metric(*metrics, "ncserverd_session_sent_blocks_total");
                assert!(
                    sent.is_some_and(|sent| sent > 0.0),
                    "{sent:?}: {}",
                    server.said()
                );
            }
        }
    }
}

/// A relay of this build, until it is dropped, and its URL.
fn relay(build: &Build, url: &str) -> (Program, String) {
    let mut command = Command::new(&build.ncpeer);
    command
        .env_clear()
        .args(["relay", url, "--listen", "127.0.0.1:0"]);
    let relay = Program::start(&mut command);
    let [url] = relay.says(["relays at "]);
    (relay, url)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs of another version: make mixed"]
async fn a_relay_of_another_version_passes_segments_on() {
    let builds = builds();
    for [relaying, other] in pairs(&builds) {
        println!("{} relay", relaying.name);
        let place = Place::new([&*other.ncserverd; 2], Way::Lossy);
        let _server = blocking(|| place.alone());
        let (_relay, url) = blocking(|| relay(relaying, &place.url('a')));
        // The relay learns of a segment from who asks for it.
        for path in [LARGE_PATH, "/rs/0.ts", "/prime/0.ts"] {
            let act = Act { path, ..large(&[]) };
            fetch(&place, other, &url, &act);
        }
    }
}

/// Whether servers of this build can be in a fleet.
fn has_fleets(ncserverd: &Path) -> bool {
    let help = Command::new(ncserverd).args(["cluster", "--help"]).output();
    help.unwrap().status.success()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs of another version: make mixed"]
async fn a_fleet_of_both_versions_serves_viewers_with_a_list() {
    fleet_serves(Engine::Static);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs of another version: make mixed"]
async fn a_fleet_of_both_versions_serves_viewers_with_nats() {
    let Some(nats) = nats_server() else {
        return;
    };
    let [port] = free_ports();
    let _node = node(&nats, port, &[]);
    fleet_serves(Engine::Nats(port));
}

/// Either version ends under viewers of both, who go on at the other.
fn fleet_serves(engine: Engine) {
    let builds = builds();
    if !has_fleets(&builds[0].ncserverd) {
        println!("the old server knows no fleets");
        return;
    }
    for [first, second] in pairs(&builds) {
        for peer in [first, second] {
            println!("{} server ends, {} peer moves", first.name, peer.name);
            let place = Place::new([&*first.ncserverd, &*second.ncserverd], Way::Lossy);
            let servers = blocking(|| place.fleet(engine));
            let player = Player::new(&peer.ncpeer, &place.url('a'));
            // Segments may have been read ahead, and the same bytes are fetched once. Playlists are
            // neither.
            let sent = || metric(servers[1].1, "ncserverd_session_objects_total");
            blocking(|| {
                player.starts();
                assert_eq!(
                    sent().unwrap_or(0.0),
                    0.0,
                    "all comes from the first server"
                );
                player.goes_on_with(LARGE_PATH, || servers[0].0.signal("TERM"));
                player.gets("/live/long.m3u8");
                // Counts are published once in a while.
                let end = Instant::now() + PATIENCE;
                while sent().unwrap_or(0.0) == 0.0 {
                    assert!(Instant::now() < end, "{}", servers[1].0.said());
                    std::thread::sleep(Duration::from_millis(100));
                }
                player.ends();
            });
        }
    }
}

/// A peer that knows no fleets is served by a server of one all the same.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs of another version: make mixed"]
async fn an_old_peer_is_served_by_a_new_fleet() {
    let [old, new] = builds();
    let place = Place::new([&*new.ncserverd; 2], Way::Lossy);
    let _servers = blocking(|| place.fleet(Engine::Static));
    for letter in ['a', 'b'] {
        fetch(&place, &old, &place.url(letter), &large(&[]));
    }
}
