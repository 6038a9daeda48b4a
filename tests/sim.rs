//! Server and peer in virtual time on a path that loses, duplicates and reorders: the protocol's
//! decisions without a socket.
//!
//! Every scenario runs for a list of seeds; each problem found in the field is added as a scenario
//! with a name.

#[path = "sim/link.rs"]
mod link;
#[path = "sim/world.rs"]
mod world;

use std::collections::HashSet;
use std::num::NonZeroU16;
use std::time::Duration;

use bytes::Bytes;
use link::Conditions;
use ncserverd::object::{Codec, FirstPass, HashGroup, RefusalCode};
use ncserverd::peer::proto::{Counts, Failure, SourceId};
use world::{Setup, World};

const SECOND: Duration = Duration::from_secs(1);
const SEEDS: std::ops::Range<u64> = 1..9;

/// 16 generations of 32 blocks for datagrams.
const GENERATIONS: usize = 16;
const LENGTH: usize = GENERATIONS * 32 * 1088;

fn lossy(loss: f64, seed: u64) -> Setup {
    let path = Conditions {
        loss,
        ..Conditions::default()
    };
    Setup {
        down: path,
        up: path,
        seed,
        ..Setup::default()
    }
}

fn live(world: &mut World) -> Bytes {
    world.publish("/live/1.m4s", LENGTH, 1088, 32)
}

#[test]
fn no_loss() {
    for seed in SEEDS {
        let mut world = World::new(lossy(0.0, seed));
        let bytes = live(&mut world);
        let time = world.fetch_and_check("/live/1.m4s", &bytes, 3 * SECOND);
        world.idle(SECOND);
        let (sent, counts) = (world.sent.datagrams, world.peer.counts());
        // Exactly what was missing, plus one block for each row that depended on others.
        assert_eq!(sent, 512 + counts.useless, "{counts:?}");
        assert!(
            counts.useless <= 3 && counts.lost == 0 && counts.late == 0,
            "{counts:?}"
        );
        // 557 kB at 2 MB/s take 0.28 s; the path must not idle much longer.
        assert!(time < Duration::from_millis(600), "{time:?}");
    }
}

#[test]
fn random_loss() {
    for (loss, share) in [(0.05, 0.05), (0.2, 0.2)] {
        for seed in SEEDS {
            let mut world = World::new(lossy(loss, seed));
            let bytes = live(&mut world);
            world.fetch_and_check("/live/1.m4s", &bytes, 10 * SECOND);
            world.idle(SECOND);
            let (sent, counts) = (world.sent.datagrams as f64, world.peer.counts());
            assert!(counts.repaired > 0 && counts.lost > 0, "{counts:?}");
            // What the path needs and a few more: nothing is requested without need.
            let needed = 512.0 / (1.0 - share);
            assert!(
                sent < needed * 1.06 + 8.0,
                "{sent} for {needed}: {counts:?}"
            );
            assert!(counts.late <= 12, "{counts:?}");
        }
    }
}

#[test]
fn what_is_received_is_what_is_needed_at_any_loss_and_the_path_is_full() {
    const BLOCKS: u64 = 6144;
    for n in [32, 64, 128] {
        for loss in [0.0, 0.01, 0.05, 0.1, 0.2] {
            let path = Conditions {
                bytes_per_second: 2_500_000,
                ..lossy(loss, 1).down
            };
            let mut world = World::new(Setup {
                down: path,
                ..lossy(loss, u64::from(n))
            });
            let bytes = world.publish("/live/1.m4s", (BLOCKS * 1088).try_into().unwrap(), 1088, n);
            let fetch = world.fetch("/live/1.m4s", None);
            // The last generations need more round trips, depending on luck.
            let nearly_all = BLOCKS * 9 / 10;
            let time = world.run(60 * SECOND, |world| {
                world.peer.counts().innovative >= nearly_all
            });
            world.run(60 * SECOND, |world| {
                world.decoded(fetch, bytes.len()).is_some()
            });
            assert_eq!(
                world.decoded(fetch, bytes.len()).as_deref(),
                Some(&bytes[..])
            );
            world.idle(SECOND);
            let counts = world.peer.counts();
            let received = (counts.blocks + counts.late) as f64 * f64::from(n) / BLOCKS as f64;
            assert!(
                received <= f64::from(n) * 1.005 + 1.0,
                "{received} of {n} at {loss}: {counts:?}"
            );
            // Ahead is only what the loss may take of the last few blocks.
            assert!(
                counts.ahead <= u64::from(n) / 4 && counts.duplicate == 0,
                "{counts:?}"
            );
            let full = (nearly_all * 1088) as f64 / (1.0 - loss) / 2_500_000.0;
            assert!(
                time.as_secs_f64() < full / 0.85 + 0.2,
                "{time:?} for {full} s at {loss}: {counts:?}"
            );
        }
    }
}

#[test]
fn who_waits_behind_others_is_not_silent() {
    for seed in SEEDS {
        // The last of what is requested at once is served 1.1 s later.
        let path = Conditions {
            bytes_per_second: 500_000,
            ..Conditions::default()
        };
        let mut world = World::new(Setup {
            down: path,
            window_min: 4 << 20,
            seed,
            ..Setup::default()
        });
        let bytes = live(&mut world);
        world.fetch_and_check("/live/1.m4s", &bytes, 5 * SECOND);
        world.idle(SECOND);
        let counts = world.peer.counts();
        assert_eq!(
            (world.sent.datagrams, counts.credits),
            (512 + counts.useless, counts.useless),
            "{counts:?}"
        );
    }
}

#[test]
fn who_is_silent_before_others_is_not_thought_to_wait() {
    let path = Conditions {
        bytes_per_second: 500_000,
        ..Conditions::default()
    };
    let mut world = World::new(Setup {
        down: path,
        window_min: 4 << 20,
        ..Setup::default()
    });
    let bytes = live(&mut world);
    // The end of the first generation, which no later block reveals, and a few sent next to it.
    world.doom = Box::new(|sent, _| (26..34).contains(&sent.datagrams));
    let fetch = world.fetch("/live/1.m4s", None);
    world.run(5 * SECOND, |world| {
        world.decoded(fetch, bytes.len()).is_some()
    });
    // 70 ms per generation: the loss is noticed 115 ms after its last block, reported a round trip
    // later, and repaired after another.
    let place = world
        .completed(fetch)
        .iter()
        .position(|offset| *offset == 0);
    assert!(
        place.is_some_and(|place| (2..=5).contains(&place)),
        "{place:?}"
    );
}

#[test]
fn reordering_is_not_taken_for_loss_for_long() {
    for seed in SEEDS {
        let path = Conditions {
            jitter: Duration::from_millis(4),
            ..Conditions::default()
        };
        let mut world = World::new(Setup {
            down: path,
            seed,
            ..Setup::default()
        });
        let bytes = live(&mut world);
        world.fetch_and_check("/live/1.m4s", &bytes, 3 * SECOND);
        world.idle(SECOND);
        let counts = world.peer.counts();
        assert!(
            world.sent.datagrams <= 512 + 60,
            "{:?} {counts:?}",
            world.sent
        );
    }
}

#[test]
fn doubled_datagrams_cost_no_credit() {
    for seed in SEEDS {
        let path = Conditions {
            double: 0.3,
            loss: 0.05,
            ..Conditions::default()
        };
        let mut world = World::new(Setup {
            down: path,
            seed,
            ..Setup::default()
        });
        let bytes = live(&mut world);
        world.fetch_and_check("/live/1.m4s", &bytes, 5 * SECOND);
        let counts = world.peer.counts();
        assert!(counts.duplicate > 50 && counts.useless <= 4, "{counts:?}");
    }
}

#[test]
fn a_systematic_first_pass_is_repaired_by_coded_blocks() {
    for seed in SEEDS {
        let mut world = World::new(Setup {
            first_pass: FirstPass::Systematic,
            ..lossy(0.1, seed)
        });
        let bytes = live(&mut world);
        world.fetch_and_check("/live/1.m4s", &bytes, 5 * SECOND);
        let counts = world.peer.counts();
        assert!(
            counts.systematic > 400 && counts.innovative - counts.systematic > 10,
            "{counts:?}"
        );
    }
}

#[test]
fn sparse_rows_travel_in_datagrams_and_few_of_them_are_useless() {
    for seed in SEEDS {
        let mut world = World::new(Setup {
            row_weight: NonZeroU16::new(13),
            ..lossy(0.1, seed)
        });
        let bytes = live(&mut world);
        world.fetch_and_check("/live/1.m4s", &bytes, 5 * SECOND);
        let (counts, sent) = (world.peer.counts(), &world.sent);
        assert!(
            sent.dropped == 0 && sent.records == 0 && sent.datagrams > 400 && counts.useless <= 4,
            "{sent:?} {counts:?}"
        );
    }
}

#[test]
fn large_blocks_travel_on_streams_and_lose_nothing() {
    for seed in SEEDS {
        let mut world = World::new(lossy(0.05, seed));
        let bytes = world.publish("/vod/1.ts", 1_500_001, 4096, 128);
        world.fetch_and_check("/vod/1.ts", &bytes, 10 * SECOND);
        world.idle(SECOND);
        let counts = world.peer.counts();
        assert_eq!(world.sent.datagrams, 0);
        assert_eq!(counts.lost, 0);
        assert!(
            world.sent.records <= 367 + counts.useless + 1,
            "{:?} {counts:?}",
            world.sent
        );
    }
}

#[test]
fn a_path_without_datagrams_moves_requests_to_streams() {
    let mut world = World::new(Setup {
        datagram_max: Some(900),
        ..Setup::default()
    });
    let bytes = live(&mut world);
    world.fetch_and_check("/live/1.m4s", &bytes, 3 * SECOND);
    assert_eq!(world.sent.datagrams, 0);
}

#[test]
fn a_slow_reader_is_sent_no_more_than_it_reads() {
    let mut world = World::new(Setup {
        reader: Some((400_000, 64 << 10)),
        ..Setup::default()
    });
    let bytes = world.publish("/vod/1.ts", 600_000, 4096, 64);
    let fetch = world.fetch("/vod/1.ts", None);
    world.idle(Duration::from_millis(300));
    assert!(world.sent.records < 50, "{:?}", world.sent);
    world.run(30 * SECOND, |world| {
        world.decoded(fetch, bytes.len()).is_some()
    });
    assert_eq!(
        world.decoded(fetch, bytes.len()).as_deref(),
        Some(&bytes[..])
    );
}

#[test]
fn the_last_block_of_all_is_lost() {
    for seed in SEEDS {
        let mut world = World::new(lossy(0.0, seed));
        let bytes = world.publish("/live/1.m4s", 32 * 1088, 1088, 32);
        world.doom = Box::new(|sent, _| sent.datagrams == 31);
        let time = world.fetch_and_check("/live/1.m4s", &bytes, SECOND);
        // A silence of 1.5 round trips, then one round trip for the replacement.
        assert!(time < Duration::from_millis(300), "{time:?}");
        world.idle(SECOND);
        assert!(world.sent.datagrams <= 34, "{:?}", world.sent);
    }
}

#[test]
fn every_block_that_says_last_is_lost_once() {
    for seed in SEEDS {
        let mut world = World::new(lossy(0.05, seed));
        let bytes = live(&mut world);
        let mut lost = HashSet::new();
        world.doom = Box::new(move |_, ends| ends.is_some_and(|request| lost.insert(request)));
        world.fetch_and_check("/live/1.m4s", &bytes, 10 * SECOND);
        assert!(
            world.sent.dropped >= GENERATIONS as u64,
            "one of each generation: {:?}",
            world.sent
        );
    }
}

#[test]
fn everything_is_lost_for_a_while() {
    let mut world = World::new(Setup::default());
    let bytes = live(&mut world);
    world.doom = Box::new(|sent, _| (100..300).contains(&sent.datagrams));
    world.fetch_and_check("/live/1.m4s", &bytes, 5 * SECOND);
}

#[test]
fn a_connection_lost_half_way_costs_what_was_on_the_way() {
    for seed in SEEDS {
        let mut world = World::new(lossy(0.05, seed));
        let bytes = live(&mut world);
        let fetch = world.fetch("/live/1.m4s", None);
        world.run(5 * SECOND, |world| world.peer.counts().innovative >= 250);
        world.disconnect(0);
        world.idle(SECOND);
        world.connect(0);
        world.run(5 * SECOND, |world| {
            world.decoded(fetch, bytes.len()).is_some()
        });
        assert_eq!(
            world.decoded(fetch, bytes.len()).as_deref(),
            Some(&bytes[..])
        );
        assert!(
            world.peer.counts().innovative == 512,
            "what was decoded is not fetched again"
        );
    }
}

#[test]
fn a_server_that_goes_away_finishes_what_is_open() {
    let mut world = World::new(Setup::default());
    let bytes = world.publish("/live/1.m4s", 2 * 32 * 1088, 1088, 32);
    let fetch = world.fetch("/live/1.m4s", None);
    world.run(SECOND, |world| world.peer.counts().blocks > 0);
    world.server().go_away(SECOND);
    let refused = world.peer.get(world.now, "/live/1.m4s", 0, None);
    world.run(2 * SECOND, |world| {
        world.decoded(fetch, bytes.len()).is_some()
    });
    assert!(world.peer.is_leaving(SourceId(0)));
    // A question that came too late waits for another server.
    assert!(
        !world.answers.contains_key(&refused),
        "{:?}",
        world.answers[&refused]
    );
    world.disconnect(0);
    world.connect(0);
    world.run(SECOND, |world| world.answers.contains_key(&refused));
    assert!(
        world.answers[&refused].is_ok(),
        "{:?}",
        world.answers[&refused]
    );
}

#[test]
fn who_leaves_the_decoding_to_others_asks_and_gets_the_same() {
    for first_pass in [FirstPass::Coded, FirstPass::Systematic] {
        for seed in SEEDS {
            let runs = [false, true].map(|gathers| {
                let mut world = World::new(Setup {
                    gathers,
                    first_pass,
                    ..lossy(0.08, seed)
                });
                let bytes = world.publish("/live/1.m4s", 300_000, 1088, 64);
                world.fetch_and_check("/live/1.m4s", &bytes, 10 * SECOND);
                assert_eq!(world.left_to_others > 0, gathers);
                (world.sent, world.peer.counts())
            });
            assert_eq!(runs[0], runs[1], "{first_pass:?} {seed}");
        }
    }
}

#[test]
fn a_cancelled_fetch_leaves_nothing_open() {
    for after in [0, 1, 20, 60, 100] {
        let mut world = World::new(Setup::default());
        let bytes = live(&mut world);
        let fetch = world.fetch("/live/1.m4s", None);
        world.idle(Duration::from_millis(after));
        world.peer.cancel_fetch(fetch);
        world.idle(Duration::from_millis(200));
        let sent = world.sent;
        world.idle(SECOND);
        assert_eq!(world.sent, sent, "nothing is sent for what was cancelled");
        assert!(world.peer.is_idle() && world.server().is_idle());
        world.fetch_and_check("/live/1.m4s", &bytes, 3 * SECOND);
    }
}

#[test]
fn near_the_deadline_losses_are_met_ahead() {
    let (mut late, mut spared) = ([0, 0], 0);
    for seed in 1..40 {
        let path = Conditions {
            loss: 0.1,
            delay: Duration::from_millis(100),
            ..Conditions::default()
        };
        let setup = Setup {
            down: path,
            up: Conditions { loss: 0.0, ..path },
            seed,
            ..Setup::default()
        };
        for (tight, late) in late.iter_mut().enumerate() {
            let mut world = World::new(setup);
            // First the loss rate is learnt.
            let first = world.publish("/live/1.m4s", 200 * 1088, 1088, 32);
            world.fetch_and_check("/live/1.m4s", &first, 10 * SECOND);
            let bytes = world.publish("/live/2.m4s", 32 * 1088, 1088, 32);
            // 450 ms leave no second round trip of 200 ms; 1500 ms leave several.
            let deadline = Duration::from_millis(if tight == 1 { 450 } else { 1500 });
            let fetch = world.fetch("/live/2.m4s", Some(deadline));
            world.run(3 * SECOND, |world| {
                world.decoded(fetch, bytes.len()).is_some() || world.failures.contains_key(&fetch)
            });
            *late += u32::from(world.failures.get(&fetch) == Some(&Failure::Deadline));
            let counts = world.peer.counts();
            // With time for more round trips, only for the last few blocks of the two.
            assert!(
                if tight == 1 {
                    counts.ahead > 0
                } else {
                    counts.ahead <= 16
                },
                "{counts:?}"
            );
            assert!(
                counts.ahead_used <= counts.ahead && counts.generations_spared <= counts.ahead_used,
                "{counts:?}"
            );
            spared += counts.generations_spared;
        }
    }
    assert!(spared > 10, "{spared} of 39");
    assert!(
        late[0] <= 1,
        "with time for several round trips {} of 39 were late",
        late[0]
    );
    assert!(late[1] <= 13, "{} of 39 late", late[1]);
}

#[test]
fn what_a_full_queue_loses_is_not_met_ahead() {
    for seed in SEEDS {
        let shares = [5, 50].map(|queue| {
            let path = Conditions {
                loss: 0.05,
                queue: Duration::from_millis(queue),
                ..Conditions::default()
            };
            let up = Conditions { loss: 0.0, ..path };
            let mut world = World::new(Setup {
                down: path,
                up,
                seed,
                ..Setup::default()
            });
            let first = live(&mut world);
            world.fetch_and_check("/live/1.m4s", &first, 10 * SECOND);
            let before = world.peer.counts();
            assert!(before.lost > 10 && before.ahead <= 8, "{before:?}");
            // It keeps the queue full, and more urgent ones pass it.
            world.publish("/vod/1.ts", 8 << 20, 1088, 128);
            world.fetch("/vod/1.ts", None);
            world.idle(SECOND / 4);
            for index in 0..20 {
                let path = format!("/live/{index}/2.m4s");
                let bytes = world.publish(&path, 3 * 32 * 1088, 1088, 32);
                let fetch = world.fetch(&path, Some(Duration::from_millis(150)));
                world.run(SECOND, |world| {
                    world.decoded(fetch, bytes.len()).is_some()
                        || world.failures.contains_key(&fetch)
                });
            }
            let counts = world.peer.counts();
            counts.ahead as f64 / f64::from(20 * 3 * 32)
        });
        assert!(shares[0] > 0.05, "{shares:?} where the path loses");
        assert!(shares[1] < 0.02, "{shares:?} where the queue is full");
    }
}

#[test]
fn a_deadline_that_passes_ends_the_request() {
    let path = Conditions {
        bytes_per_second: 20_000,
        ..Conditions::default()
    };
    let mut world = World::new(Setup {
        down: path,
        ..Setup::default()
    });
    live(&mut world);
    let fetch = world.fetch("/live/1.m4s", Some(SECOND));
    world.run(2 * SECOND, |world| world.failures.contains_key(&fetch));
    assert_eq!(world.failures[&fetch], Failure::Deadline);
    world.idle(SECOND);
    assert!(world.server().is_idle());
}

#[test]
fn a_server_that_sends_nothing_is_given_up() {
    let mut world = World::new(Setup::default());
    live(&mut world);
    let fetch = world.fetch("/live/1.m4s", None);
    world.doom = Box::new(|_, _| true);
    world.run(15 * SECOND, |world| world.failures.contains_key(&fetch));
    assert_eq!(world.failures[&fetch], Failure::Stalled);
}

#[test]
fn whole_objects_and_refusals_are_answered() {
    for seed in SEEDS {
        let mut world = World::new(lossy(0.1, seed));
        let playlist = Bytes::from(vec![b'#'; 40_000]);
        world.publish_whole("/live/index.m3u8", &playlist);
        let whole = world.peer.get(world.now, "/live/index.m3u8", 0, None);
        let unknown = world.peer.get(world.now, "/live/none", 0, None);
        world.run(5 * SECOND, |world| world.answers.len() == 2);
        assert_eq!(
            world.answers[&whole].as_ref().unwrap().bytes,
            Some(playlist)
        );
        let Err(Failure::Refused(refusal)) = &world.answers[&unknown] else {
            panic!()
        };
        assert_eq!(refusal.code, RefusalCode::Unknown);
    }
}

#[test]
fn many_segments_share_the_path() {
    let mut world = World::new(lossy(0.05, 3));
    let segments: Vec<_> = (0..12)
        .map(|index| {
            (
                format!("/live/{index}.m4s"),
                world.publish(&format!("/live/{index}.m4s"), 80_000, 1088, 32),
            )
        })
        .collect();
    let fetches: Vec<_> = segments
        .iter()
        .map(|(path, bytes)| (world.fetch(path, None), bytes.clone()))
        .collect();
    let done = |world: &World| {
        fetches
            .iter()
            .all(|(fetch, bytes)| world.decoded(*fetch, bytes.len()).is_some())
    };
    world.run(10 * SECOND, done);
    for (fetch, bytes) in &fetches {
        assert_eq!(
            world.decoded(*fetch, bytes.len()).as_deref(),
            Some(&bytes[..])
        );
    }
}

/// Paths of several servers: 5 % loss, and these rates.
fn paths(rates: &[u64]) -> Vec<(Conditions, Conditions)> {
    let path = |&bytes_per_second| {
        let up = Conditions {
            loss: 0.05,
            ..Conditions::default()
        };
        (
            Conditions {
                bytes_per_second,
                ..up
            },
            up,
        )
    };
    rates.iter().map(path).collect()
}

/// Fetches a segment from four such servers. All blocks received, useful or not, are at most this
/// percentage of n; no source block arrives twice, each server sends its share, and it is fast
/// enough. Returns the peer's counts, and n.
fn fetch_from_four(setup: Setup, received_percent_max: u64) -> (Counts, u64) {
    let mut world = World::with_sites(setup, &paths(&[500_000; 4]));
    let (length, n) = (8 * 128 * 1088, 8 * 128);
    let bytes = world.publish("/live/1.m4s", length, 1088, 128);
    let time = world.fetch_and_check("/live/1.m4s", &bytes, 5 * SECOND);
    world.idle(SECOND);
    let counts = world.peer.counts();
    let received = counts.blocks + counts.late;
    assert!(
        received <= n * received_percent_max / 100,
        "{received} of {n} with {setup:?}: {counts:?}"
    );
    assert_eq!(world.doubled_sources, 0, "{setup:?} {counts:?}");
    // 1.1 MB at 2 MB/s together, plus losses and some round trips.
    assert!(
        time < Duration::from_millis(1000),
        "{time:?} {setup:?} {counts:?}"
    );
    for site in 0..4 {
        let share = world.peer.source_counts(SourceId(site)).blocks;
        assert!(
            (n / 6..n / 3).contains(&share),
            "{share} of {n} from {site}"
        );
    }
    (counts, n)
}

#[test]
fn four_servers_share_the_blocks_without_knowing_of_each_other() {
    for first_pass in [FirstPass::Systematic, FirstPass::Coded] {
        for seed in SEEDS {
            let (counts, n) = fetch_from_four(
                Setup {
                    first_pass,
                    seed,
                    ..Setup::default()
                },
                103,
            );
            let is_systematic = first_pass == FirstPass::Systematic;
            assert_eq!(
                counts.systematic > n * 85 / 100,
                is_systematic,
                "{counts:?}"
            );
        }
    }
}

#[test]
fn shares_follow_what_paths_carry() {
    for seed in SEEDS {
        let mut world = World::with_sites(
            Setup {
                seed,
                ..Setup::default()
            },
            &paths(&[1_600_000, 400_000]),
        );
        let bytes = world.publish("/live/1.m4s", 16 * 128 * 1088, 1088, 128);
        let time = world.fetch_and_check("/live/1.m4s", &bytes, 10 * SECOND);
        let [fast, slow] =
            [0, 1].map(|site| world.peer.source_counts(SourceId(site)).blocks as f64);
        assert!((2.5..6.0).contains(&(fast / slow)), "{fast} and {slow}");
        // 2.2 MB at 2 MB/s.
        assert!(time < Duration::from_millis(1800), "{time:?}");
    }
}

#[test]
fn a_server_that_falls_silent_stalls_nothing() {
    for (seed, k) in SEEDS.flat_map(|seed| [(seed, 1088), (seed, 4096)]) {
        let mut world = World::with_sites(
            Setup {
                seed,
                ..Setup::default()
            },
            &paths(&[500_000; 4]),
        );
        let bytes = world.publish("/vod/1.ts", 16 * 64 * 1088, k, 64);
        let fetch = world.fetch("/vod/1.ts", None);
        world.run(5 * SECOND, |world| {
            world.peer.counts().innovative * u64::from(k) >= 256 * 1088
        });
        world.sites[2].is_mute = true;
        let time = world.run(10 * SECOND, |world| {
            world.decoded(fetch, bytes.len()).is_some()
        });
        let counts = world.peer.counts();
        // Another 0.84 MB from three at 1.5 MB/s together, the time until the failure is noticed,
        // and the last round trips.
        assert!(time < Duration::from_millis(1650), "{time:?} {counts:?}");
        assert!(counts.reassigned > 0, "{counts:?}");
        // It comes back, and is used again.
        world.sites[2].is_mute = false;
        let before = world.peer.source_counts(SourceId(2)).blocks;
        world.publish("/vod/2.ts", 16 * 64 * 1088 - 1, k, 64);
        let again = world.fetch("/vod/2.ts", None);
        world.run(10 * SECOND, |world| {
            world.decoded(again, 16 * 64 * 1088 - 1).is_some()
        });
        let since = world.peer.source_counts(SourceId(2)).blocks - before;
        assert!(since * u64::from(k) > 64 * 1088, "{since} blocks");
    }
}

#[test]
fn a_server_that_becomes_slow_is_not_waited_for() {
    for seed in SEEDS {
        let mut world = World::with_sites(
            Setup {
                seed,
                ..Setup::default()
            },
            &paths(&[1_000_000, 1_000_000]),
        );
        let bytes = world.publish("/vod/1.ts", 32 * 64 * 1088, 4096, 64);
        let fetch = world.fetch("/vod/1.ts", None);
        world.run(5 * SECOND, |world| world.peer.counts().innovative >= 100);
        world.slow_down(1, 20_000);
        let time = world.run(10 * SECOND, |world| {
            world.decoded(fetch, bytes.len()).is_some()
        });
        // Another 1.8 MB from one at 1 MB/s.
        assert!(
            time < Duration::from_millis(3200),
            "{time:?} {:?}",
            world.peer.counts()
        );
    }
}

#[test]
fn a_connection_that_breaks_costs_what_was_on_the_way_from_there() {
    for seed in SEEDS {
        let mut world = World::with_sites(
            Setup {
                seed,
                ..Setup::default()
            },
            &paths(&[500_000; 2]),
        );
        let bytes = live(&mut world);
        let fetch = world.fetch("/live/1.m4s", None);
        world.run(5 * SECOND, |world| world.peer.counts().innovative >= 200);
        world.disconnect(0);
        let time = world.run(5 * SECOND, |world| {
            world.decoded(fetch, bytes.len()).is_some()
        });
        assert!(
            time < Duration::from_millis(1200),
            "{time:?} {:?}",
            world.peer.counts()
        );
    }
}

#[test]
fn a_path_is_asked_of_the_next_server_when_one_is_silent_or_does_not_know_it() {
    let mut world = World::with_sites(Setup::default(), &paths(&[500_000; 2]));
    world.idle(SECOND);
    world.sites[0].is_mute = true;
    let bytes = live(&mut world);
    let time = world.fetch_and_check("/live/1.m4s", &bytes, 5 * SECOND);
    assert!(time < 3 * SECOND, "{time:?}");
    let unknown = world.peer.get(world.now, "/live/none", 0, None);
    world.run(15 * SECOND, |world| world.answers.contains_key(&unknown));
    assert!(world.answers[&unknown].is_err());
    // The first one is back, and knows nothing.
    (world.sites[0].is_mute, world.sites[0].is_ignorant) = (false, true);
    let before = world.sites[0].refused;
    let other = world.publish("/live/2.m4s", LENGTH, 1088, 32);
    let time = world.fetch_and_check("/live/2.m4s", &other, 5 * SECOND);
    assert!(time < 3 * SECOND, "{time:?}");
    assert!(world.sites[0].refused > before, "it was not asked");
}

/// Codes whose blocks are not recoded. With this many parity blocks no request runs out of them at
/// moderate loss.
const FIXED: [Codec; 2] = [Codec::ReedSolomon { parity: 32 }, Codec::RaptorQ];

#[test]
fn source_blocks_come_once_and_what_is_lost_is_repaired() {
    for (codec, loss) in FIXED
        .into_iter()
        .flat_map(|codec| [(codec, 0.0), (codec, 0.05), (codec, 0.2)])
    {
        for seed in SEEDS {
            let mut world = World::new(Setup {
                codec,
                first_pass: FirstPass::Systematic,
                ..lossy(loss, seed)
            });
            let bytes = live(&mut world);
            world.fetch_and_check("/live/1.m4s", &bytes, 10 * SECOND);
            world.idle(SECOND);
            let (sent, counts) = (world.sent.datagrams as f64, world.peer.counts());
            if loss == 0.0 {
                assert_eq!(
                    (world.sent.datagrams, counts.systematic, counts.useless),
                    (512, 512, 0),
                    "{codec:?} {counts:?}"
                );
                continue;
            }
            let needed = 512.0 / (1.0 - loss);
            assert!(
                sent < needed * 1.06 + 8.0,
                "{sent} for {needed} with {codec:?}: {counts:?}"
            );
            // RaptorQ needs one more block for some generations; with Reed-Solomon any n are
            // enough.
            let is_exact = matches!(codec, Codec::ReedSolomon { .. });
            assert!(
                counts.useless <= if is_exact { 0 } else { 8 },
                "{codec:?} {counts:?}"
            );
            assert!(
                counts.systematic as f64 > 512.0 * (1.0 - loss) * 0.9,
                "{codec:?} {counts:?}"
            );
            assert_eq!(world.doubled_sources, 0, "{codec:?} {counts:?}");
        }
    }
}

/// At this loss three parity blocks are not enough: lost blocks are requested by number until they
/// arrive.
#[test]
fn where_parity_blocks_run_out_lost_ones_come_again() {
    for (loss, seed) in SEEDS.flat_map(|seed| [(0.2, seed), (0.4, seed)]) {
        let codec = Codec::ReedSolomon { parity: 3 };
        let mut world = World::new(Setup {
            codec,
            ..lossy(loss, seed)
        });
        let bytes = live(&mut world);
        let time = world.fetch_and_check("/live/1.m4s", &bytes, 20 * SECOND);
        world.idle(SECOND);
        let (sent, counts) = (world.sent.datagrams as f64, world.peer.counts());
        assert!(world.doubled_sources > 0, "{counts:?}");
        // Nothing arrives twice except what was lost, or given up too early, or asked for ahead at
        // the end.
        assert!(counts.useless + counts.late <= 32, "{counts:?}");
        let needed = 512.0 / (1.0 - loss);
        assert!(
            sent < needed * 1.15 + 16.0,
            "{sent} for {needed}: {counts:?}"
        );
        assert!(
            time < if loss < 0.3 { 3 * SECOND } else { 6 * SECOND },
            "{time:?} {counts:?}"
        );
    }
}

#[test]
fn the_last_numbered_block_of_all_is_lost() {
    for seed in SEEDS {
        // Loses the last source block, and the only parity block when first sent.
        let mut world = World::new(Setup {
            codec: Codec::ReedSolomon { parity: 1 },
            ..lossy(0.0, seed)
        });
        let bytes = world.publish("/live/1.m4s", 32 * 1088, 1088, 32);
        world.doom = Box::new(|sent, _| (31..33).contains(&sent.datagrams));
        let time = world.fetch_and_check("/live/1.m4s", &bytes, 3 * SECOND);
        world.idle(SECOND);
        // Two silences, the second twice as long, and a round trip.
        assert!(
            time < Duration::from_millis(800),
            "{time:?} {:?}",
            world.peer.counts()
        );
        assert!(world.sent.datagrams <= 36, "{:?}", world.sent);
    }
}

#[test]
fn four_servers_send_no_block_twice_though_its_number_is_all_it_has() {
    for codec in [Codec::ReedSolomon { parity: 64 }, Codec::RaptorQ] {
        for seed in SEEDS {
            let (counts, n) = fetch_from_four(
                Setup {
                    codec,
                    first_pass: FirstPass::Systematic,
                    seed,
                    ..Setup::default()
                },
                105,
            );
            assert!(counts.systematic > n * 80 / 100, "{codec:?} {counts:?}");
        }
    }
}

#[test]
fn few_parity_blocks_and_a_silent_server_among_three_stall_nothing() {
    for (codec, seed) in SEEDS.flat_map(|seed| {
        [
            (Codec::ReedSolomon { parity: 4 }, seed),
            (Codec::RaptorQ, seed),
        ]
    }) {
        let setup = Setup {
            codec,
            first_pass: FirstPass::Systematic,
            seed,
            ..Setup::default()
        };
        let mut world = World::with_sites(setup, &paths(&[500_000; 3]));
        let bytes = world.publish("/vod/1.ts", 16 * 64 * 1088, 1088, 64);
        let fetch = world.fetch("/vod/1.ts", None);
        world.run(5 * SECOND, |world| world.peer.counts().innovative >= 256);
        world.sites[2].is_mute = true;
        let time = world.run(10 * SECOND, |world| {
            world.decoded(fetch, bytes.len()).is_some()
        });
        assert_eq!(
            world.decoded(fetch, bytes.len()).as_deref(),
            Some(&bytes[..])
        );
        // Another 0.84 MB from two at 1 MB/s together, the time until the failure is noticed, and
        // the last round trips.
        assert!(
            time < Duration::from_millis(2200),
            "{time:?} {codec:?} {:?}",
            world.peer.counts()
        );
    }
}

#[test]
fn numbered_blocks_come_on_streams_and_after_a_broken_connection() {
    for codec in FIXED {
        for seed in SEEDS {
            let setup = Setup {
                codec,
                first_pass: FirstPass::Systematic,
                ..lossy(0.05, seed)
            };
            let mut world = World::new(setup);
            let bytes = world.publish("/vod/1.ts", 8 * 64 * 4096 + 5, 4096, 64);
            let fetch = world.fetch("/vod/1.ts", None);
            world.run(5 * SECOND, |world| world.peer.counts().innovative >= 200);
            world.disconnect(0);
            world.idle(SECOND / 10);
            world.connect(0);
            world.run(10 * SECOND, |world| {
                world.decoded(fetch, bytes.len()).is_some()
            });
            assert_eq!(
                world.decoded(fetch, bytes.len()).as_deref(),
                Some(&bytes[..])
            );
            assert_eq!(world.sent.datagrams, 0);
        }
    }
}

#[test]
fn a_near_deadline_is_met_with_what_there_is_of_parity() {
    for codec in FIXED {
        let (mut met, mut late) = (0, 0);
        for seed in SEEDS {
            let setup = Setup {
                codec,
                first_pass: FirstPass::Systematic,
                ..lossy(0.05, seed)
            };
            let mut world = World::new(setup);
            let first = live(&mut world);
            world.fetch_and_check("/live/1.m4s", &first, 5 * SECOND);
            let bytes = world.publish("/live/2.m4s", LENGTH - 1, 1088, 32);
            let fetch = world.fetch("/live/2.m4s", Some(Duration::from_millis(500)));
            world.run(SECOND, |world| {
                world.decoded(fetch, bytes.len()).is_some() || world.failures.contains_key(&fetch)
            });
            *if world.failures.contains_key(&fetch) {
                &mut late
            } else {
                &mut met
            } += 1;
        }
        assert!(met >= 6, "{met} met, {late} late with {codec:?}");
    }
}

const PRIME: Codec = Codec::RlncQ {
    group: HashGroup::P1024,
};

/// Blocks over the prime field travel on streams although the path takes datagrams. Each is
/// requested once, although it counts only after its test, and the hashes are requested once.
#[test]
fn over_the_prime_field_nothing_is_asked_for_twice() {
    for (seed, first_pass) in [
        (1, FirstPass::Coded),
        (2, FirstPass::Systematic),
        (3, FirstPass::Coded),
    ] {
        for sites in [1, 3] {
            let setup = Setup {
                codec: PRIME,
                first_pass,
                seed,
                ..Setup::default()
            };
            let mut world =
                World::with_sites(setup, &paths(&[1_000_000, 300_000, 500_000])[..sites]);
            // Three generations, with a short last block.
            let bytes = world.publish("/live/1.m4s", 32 * 256 - 77, 256, 12);
            let time = world.fetch_and_check("/live/1.m4s", &bytes, 5 * SECOND);
            world.idle(SECOND);
            let counts = world.peer.counts();
            assert_eq!(
                (counts.blocks, counts.useless, counts.wrong),
                (32, 0, 0),
                "{sites}: {counts:?}"
            );
            assert_eq!(
                (world.sent.datagrams, world.sent.records),
                (0, 32),
                "{sites}: {counts:?}"
            );
            assert_eq!((counts.tested, counts.kept_bytes), (32, 0), "{counts:?}");
            assert_eq!(
                counts.systematic == 32,
                first_pass == FirstPass::Systematic,
                "{counts:?}"
            );
            assert!(
                counts.tests < 32 && time < SECOND,
                "{sites}: {time:?} {counts:?}"
            );
        }
    }
}

/// Where nothing can be lost, silence is not loss: a peer that waits for the first block requests
/// no more of them.
#[test]
fn over_the_prime_field_a_slow_sender_is_waited_for() {
    let mut world = World::new(Setup {
        codec: PRIME,
        ..Setup::default()
    });
    world.slow_down(0, 2000);
    let bytes = world.publish("/live/1.m4s", 8 * 2048, 2048, 8);
    world.fetch_and_check("/live/1.m4s", &bytes, 20 * SECOND);
    world.idle(SECOND);
    assert_eq!(world.sent.records, 8, "{:?}", world.peer.counts());
}

/// Tested blocks remain useful when the connection breaks, and so do the hashes.
#[test]
fn a_broken_connection_costs_no_tested_block() {
    let mut world = World::new(Setup {
        codec: PRIME,
        ..Setup::default()
    });
    world.slow_down(0, 50_000);
    let bytes = world.publish("/vod/1.ts", 24 * 512, 512, 24);
    let fetch = world.fetch("/vod/1.ts", None);
    world.run(5 * SECOND, |world| world.peer.counts().innovative >= 10);
    world.disconnect(0);
    world.idle(SECOND / 10);
    let before = world.peer.counts().innovative;
    world.connect(0);
    world.run(10 * SECOND, |world| {
        world.decoded(fetch, bytes.len()).is_some()
    });
    assert_eq!(
        world.decoded(fetch, bytes.len()).as_deref(),
        Some(&bytes[..])
    );
    let counts = world.peer.counts();
    assert!(
        before >= 10 && counts.innovative == 24 && counts.wrong == 0,
        "{before} {counts:?}"
    );
}
