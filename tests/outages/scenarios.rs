//! The outages, one a test. All begin and end with a fleet that is well.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ncserverd::peer::Client;
use nctest::live::PLAYLIST;
use nctest::program::PATIENCE;
use nctest::skip::skip;
use tempfile::TempDir;

use crate::fleet::Fleet;
use crate::moves::Loss;
use crate::net::Half;
use crate::report::Outage;
use crate::scale::Scale;
use crate::viewers::{HOLDS, read, settings};

/// How long a program is gone that was killed.
const DOWN: Duration = Duration::from_secs(3);
/// Seconds by which a clock jumps.
const HOUR: i64 = 3600;

/// Runs a scenario with a fleet of its own. Each segment may be requested so often from the origin
/// while something changes.
fn run(
    name: &'static str,
    preloaded: Option<(&Path, (&str, &Path))>,
    requests_max: usize,
    scenario: impl FnOnce(&mut Fleet, &mut Outage, &Scale),
) {
    let scale = Scale::read();
    let mut fleet = match Fleet::start(&scale, preloaded) {
        Ok(fleet) => fleet,
        Err(lack) => return skip(&lack),
    };
    let end = Instant::now() + PATIENCE;
    while fleet
        .crowd
        .viewers
        .iter()
        .any(|viewer| viewer.waited().is_none())
    {
        assert!(Instant::now() < end, "viewers get no segment");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut outage = Outage::begin(name, &fleet);
    std::thread::sleep(scale.calm);
    scenario(&mut fleet, &mut outage, &scale);
    // Until what was published in the outage was to be shown.
    std::thread::sleep(scale.calm.max(HOLDS));
    outage.end(&mut fleet, &scale, requests_max);
}

/// Kills these servers and nodes at one moment, starts them again, and waits until all is well.
fn kill(fleet: &mut Fleet, outage: &mut Outage, servers: &[usize], nodes: &[usize]) {
    outage.change(|outage| {
        if !servers.is_empty() {
            outage.losses.push(Loss::of(servers.to_vec()));
        }
        for server in servers {
            fleet.servers[*server].kill();
        }
        for node in nodes {
            fleet.nodes[*node].kill();
        }
        std::thread::sleep(DOWN);
    });
    outage.change(|_| {
        for node in nodes {
            fleet.nodes[*node].start();
        }
        for server in servers {
            fleet.servers[*server].start_again();
        }
        fleet.await_all();
    });
}

/// Waits for less than a segment, at random.
fn pause() {
    std::thread::sleep(Duration::from_millis(rand::random_range(0..2000)));
}

/// One server after the other is killed, at random.
#[test]
#[ignore = "CI kills servers and nodes together"]
fn servers_are_killed() {
    run("servers-are-killed", None, 2, |fleet, outage, scale| {
        for _ in 0..scale.kills {
            pause();
            let server = rand::random_range(0..fleet.servers.len());
            kill(fleet, outage, &[server], &[]);
        }
        outage.note(format!("{} servers were killed, each for 3 s", scale.kills));
    });
}

/// One node of the engine after the other.
#[test]
#[ignore = "CI kills servers and nodes together"]
fn nodes_are_killed() {
    run("nodes-are-killed", None, 2, |fleet, outage, scale| {
        for _ in 0..scale.kills {
            pause();
            let node = rand::random_range(0..fleet.nodes.len());
            kill(fleet, outage, &[], &[node]);
        }
        outage.note(format!("{} nodes were killed, each for 3 s", scale.kills));
    });
}

/// A server and a node at the same moment.
#[test]
fn servers_and_nodes_are_killed() {
    run(
        "servers-and-nodes-are-killed",
        None,
        2,
        |fleet, outage, scale| {
            for _ in 0..scale.kills {
                pause();
                let server = rand::random_range(0..fleet.servers.len());
                let node = rand::random_range(0..fleet.nodes.len());
                kill(fleet, outage, &[server], &[node]);
            }
            let kills = scale.kills;
            outage.note(format!(
                "{kills} times a server and a node were killed, each for 3 s"
            ));
        },
    );
}

/// All nodes are gone, and come back. Servers that know nobody ask the origin themselves, so each
/// segment may be requested once by each of them.
#[test]
fn the_engine_is_off() {
    let servers = Scale::read().servers;
    run(
        "the-engine-is-off",
        None,
        servers,
        |fleet, outage, scale| {
            let begun = outage.change(|_| {
                let begun = Instant::now();
                fleet.nodes.iter_mut().for_each(|node| node.kill());
                std::thread::sleep(scale.outage / 2);
                begun
            });
            // Newcomers are admitted meanwhile.
            let before = fleet.crowd.viewers.len();
            let first = fleet.addresses();
            let newcomers = (scale.viewers / 10).max(2);
            fleet
                .crowd
                .join(newcomers, |_, number| first[number % first.len()].clone());
            let rest = (begun + scale.outage).saturating_duration_since(Instant::now());
            std::thread::sleep(rest);
            let waited = fleet.crowd.viewers[before..]
                .iter()
                .filter_map(|viewer| viewer.waited());
            let mut waited: Vec<Duration> = waited.collect();
            waited.sort_unstable();
            assert_eq!(waited.len(), newcomers, "newcomers are served");
            outage.note(format!(
                "of {newcomers} newcomers in the outage each had its first segment within {:.2} s",
                waited[waited.len() - 1].as_secs_f64()
            ));
            let known: Vec<f64> = fleet
                .servers
                .iter()
                .map(|server| server.members())
                .collect();
            outage.note(format!(
                "servers knew {known:?} servers at the end of the outage"
            ));

            let back = Instant::now();
            fleet.nodes.iter_mut().for_each(|node| node.start());
            fleet.await_all();
            let reached = |server: &crate::fleet::Server| {
                server.looks(|looks| {
                    let later =
                        |(at, said): &&(Instant, String)| *at > back && !said.contains("cluster");
                    let found = looks.readiness.iter().find(later);
                    found.map_or(f64::NAN, |(at, _)| (*at - back).as_secs_f64())
                })
            };
            let reached: Vec<String> = fleet
                .servers
                .iter()
                .map(|server| format!("{:.1}", reached(server)))
                .collect();
            outage.note(format!(
            "after {:.0} s the nodes were started again; the servers were connected to them {} s \
             later, and all knew all after {:.1} s",
            (back - begun).as_secs_f64(),
            reached.join(", "),
            back.elapsed().as_secs_f64()
        ));
            outage.changes = vec![begun..Instant::now()];
        },
    );
}

/// Servers, nodes and viewers of one half do not reach those of the other. The origin is reached
/// from both.
#[test]
fn the_network_is_divided() {
    // Each half has a home for an object, and each may have lost one just before.
    run("the-network-is-divided", None, 4, |fleet, outage, scale| {
        let (left, right) = (fleet.servers_of(Half::Left), fleet.servers_of(Half::Right));
        outage.change(|outage| {
            let how = fleet.network.divide(fleet.hosts());
            outage.losses.push(Loss {
                at: Instant::now(),
                left: right.clone(),
                right: left.clone(),
            });
            let begun = Instant::now();
            fleet.await_members(|server| match server.host.half {
                Half::Left => left.len(),
                _ => right.len(),
            });
            outage.note(format!(
                "divided by {how} into {} and {} servers, for {:.0} s; each half knew none but its \
                 own after {:.1} s",
                left.len(),
                right.len(),
                scale.outage.as_secs_f64(),
                begun.elapsed().as_secs_f64()
            ));
            std::thread::sleep((begun + scale.outage).saturating_duration_since(Instant::now()));
            fleet.network.heal(fleet.hosts());
            let healed = Instant::now();
            fleet.await_all();
            let took = healed.elapsed().as_secs_f64();
            outage.note(format!("all knew all {took:.1} s after it was healed"));
        });
    });
}

/// One node answers slowly, and then not at all, and is well again.
#[test]
fn a_node_is_slow() {
    run("a-node-is-slow", None, 2, |fleet, outage, scale| {
        let node = rand::random_range(0..fleet.nodes.len());
        outage.change(|outage| {
            let host = &fleet.nodes[node].host;
            match fleet.network.slow(host) {
                Some(how) => {
                    std::thread::sleep(scale.outage / 2);
                    fleet.network.quicken(host);
                    outage.note(format!("the link of node {node} was slow ({how})"));
                }
                None => outage.note("this kernel has no way to make a link slow"),
            }
            let known: Vec<f64> = fleet
                .servers
                .iter()
                .map(|server| server.members())
                .collect();
            outage.note(format!("servers knew {known:?} servers at the end of that"));
            fleet.nodes[node].signal("STOP");
            std::thread::sleep(scale.outage / 2);
            fleet.nodes[node].signal("CONT");
            let (continued, seconds) = (Instant::now(), (scale.outage / 2).as_secs_f64());
            fleet.await_all();
            outage.note(format!(
                "then it was stopped (SIGSTOP) for {seconds:.0} s; all knew all {:.1} s later",
                continued.elapsed().as_secs_f64()
            ));
        });
    });
}

/// The wall clock of one server goes an hour ahead, then an hour behind. Each time a server is
/// killed, so that viewers who have heard the one hear the other.
#[test]
fn a_clock_jumps() {
    let folder = TempDir::new().unwrap();
    let Some(object) = moved_clock(folder.path()) else {
        return skip("there is no cc, nor a clock that it has made");
    };
    let file = folder.path().join("moved");
    fs::write(&file, 0_i64.to_ne_bytes()).unwrap();
    // In place, because the server has the file mapped.
    let moved = fs::OpenOptions::new().write(true).open(&file).unwrap();
    let jump = |seconds: i64| moved.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    let preloaded = Some((&*object, ("NCTEST_CLOCK", &*file)));
    run("a-clock-jumps", preloaded, 2, |fleet, outage, scale| {
        let rounds = scale.kills.div_ceil(10);
        for round in 0..rounds {
            // Viewers go from the server that is ahead, and to the one that is behind.
            for (seconds, killed) in [(HOUR, 0), (-HOUR, 1)] {
                jump(seconds);
                std::thread::sleep(scale.outage / 4);
                if round == 0 {
                    newcomers(fleet, outage, seconds);
                }
                kill(fleet, outage, &[killed], &[]);
                pause();
            }
        }
        outage.note(format!(
            "{rounds} times the clock of server-0 went an hour ahead, and server-0 was killed, and \
             started again so; then an hour behind, and server-1 was killed"
        ));
    });
}

/// Newcomers at the first server, whose clock is wrong by these seconds. One that is ahead refuses
/// tokens that expire within that time.
fn newcomers(fleet: &Fleet, outage: &mut Outage, seconds: i64) {
    for (what, life) in [("half an hour", HOUR / 2), ("two hours", 2 * HOUR)] {
        let config = settings(fleet.servers[0].server.clone(), life);
        let answer = fleet.crowd.run_at(0, async move {
            let client = Client::connect(config).await?;
            read(&client, &format!("/live/{PLAYLIST}")).await.map(drop)
        });
        assert_eq!(
            answer.is_ok(),
            life > seconds,
            "{what} at {seconds}: {answer:?}"
        );
        let answer = answer.map_or_else(|error| error.to_string(), |()| "admitted".to_owned());
        outage.note(format!(
            "clock of server-0 at {seconds:+} s: a newcomer there whose token is good for {what}: \
             {answer}"
        ));
    }
}

/// The object that moves a program's clock: compiled, or beside the programs.
fn moved_clock(folder: &Path) -> Option<PathBuf> {
    if let Some(beside) = std::env::var_os("NCTEST_BIN_DIR") {
        return Some(PathBuf::from(beside).join("clock.so")).filter(|file| file.is_file());
    }
    let (object, source) = (folder.join("clock.so"), folder.join("clock.c"));
    fs::write(&source, include_str!("clock.c")).unwrap();
    let mut command = Command::new("cc");
    command
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .arg(&object)
        .arg(&source);
    let is_made = command.status().is_ok_and(|status| status.success());
    is_made.then_some(object)
}
