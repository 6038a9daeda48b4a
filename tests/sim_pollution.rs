//! Sources that send wrong blocks, in virtual time: everything completes, they are found, and
//! nobody else is ever blamed.
//!
//! `NCTEST_RUNS` is the number of seeds for each scenario.

#[path = "sim/swarm.rs"]
mod swarm;

use std::time::Duration;

use ncserverd::object::{Codec, HashGroup};
use swarm::{Role, Swarm};

const LIMIT: Duration = Duration::from_secs(60);
const SERVER: Role = Role::Server { answers: true };
/// Has everything, but gives no checksums.
const PEER: Role = Role::Server { answers: false };

fn runs() -> std::ops::Range<u64> {
    let runs = std::env::var("NCTEST_RUNS")
        .ok()
        .map(|runs| runs.parse().expect("NCTEST_RUNS is a number"));
    0..runs.unwrap_or(1000)
}

fn liar(seed: u64) -> Role {
    Role::Liar {
        share: [0.0, 0.1, 0.5, 1.0][usize::try_from(seed % 4).unwrap()],
    }
}

fn loss(seed: u64) -> f64 {
    if seed.is_multiple_of(3) { 0.03 } else { 0.0 }
}

/// No consumer blames anyone but the polluter, and the trusted server is told of nobody else.
fn check_blame(swarm: &Swarm, consumers: &[usize], liar: usize, seed: u64) {
    for consumer in consumers {
        assert!(
            swarm
                .polluters(*consumer)
                .iter()
                .all(|(found, _)| *found == liar),
            "seed {seed}: {:?}",
            swarm.polluters(*consumer)
        );
    }
    assert!(
        swarm.blames.iter().all(|(_, about)| *about == liar),
        "seed {seed}: {:?}",
        swarm.blames
    );
}

#[test]
fn one_liar_among_eight_sources_is_found_and_all_is_right() {
    for seed in runs() {
        let mut roles = vec![SERVER; 1];
        roles.extend(vec![PEER; 7]);
        let at = 1 + usize::try_from(seed % 7).unwrap();
        roles[at] = liar(seed);
        roles.push(Role::Viewer {
            sources: (0..8).collect(),
        });
        let mut swarm = Swarm::new(seed, roles, 3, !seed.is_multiple_of(5), loss(seed));
        swarm.watch(8, LIMIT);
        check_blame(&swarm, &[8], at, seed);
        let found = swarm.polluters(8);
        assert!(
            matches!(found[..], [(_, 0 | 1)]),
            "seed {seed}: {found:?} {:?}",
            swarm.counts(8)
        );
        assert!(
            !swarm.blames.is_empty() && swarm.blames.iter().all(|(told, _)| *told == 0),
            "seed {seed}"
        );
    }
}

/// The polluter feeds relays; what they pass on before a test is marked as unverified, so nobody
/// blames them.
#[test]
fn relays_find_the_liar_and_are_not_blamed_for_what_they_got() {
    let mut fed = 0;
    for seed in runs() {
        // 0 server, 1 polluter, 2 and 3 relays of both, 4 to 8 others, 9 viewer.
        let mut roles = vec![SERVER, liar(seed)];
        roles.extend([
            Role::Relay {
                sources: vec![0, 1, 4],
            },
            Role::Relay {
                sources: vec![0, 1],
            },
        ]);
        roles.extend(vec![PEER; 5]);
        roles.push(Role::Viewer {
            sources: vec![0, 2, 3, 4, 5, 6, 7, 8],
        });
        let mut swarm = Swarm::new(seed, roles, 3, !seed.is_multiple_of(5), loss(seed));
        swarm.watch(9, LIMIT);
        check_blame(&swarm, &[2, 3, 9], 1, seed);
        for relay in [2, 3] {
            let found = swarm.polluters(relay);
            let has_sent = swarm.blocks_from(relay, 1) > 0;
            fed += u64::from(has_sent);
            assert_eq!(
                found.len(),
                usize::from(has_sent),
                "seed {seed}: {:?}",
                swarm.counts(relay)
            );
            assert!(
                found.iter().all(|(_, segment)| *segment <= 1),
                "seed {seed}: {found:?}"
            );
        }
        assert!(swarm.polluters(9).is_empty());
    }
    assert!(fed > 0, "no relay had anything of the liar");
}

/// A relay of another relay has no source of checksums: it mixes nothing, and receivers drop wrong
/// blocks from it.
#[test]
fn a_relay_that_cannot_test_is_not_blamed() {
    let (mut fed, mut dropped) = (0, 0);
    for seed in runs() {
        // 0 server, 1 polluter, 2 relay of the server, 3 relay of that one and the polluter, 4 to 8
        // others, 9 viewer.
        let mut roles = vec![
            SERVER,
            liar(seed),
            Role::Relay { sources: vec![0] },
            Role::Relay {
                sources: vec![2, 1],
            },
        ];
        roles.extend(vec![PEER; 5]);
        roles.push(Role::Viewer {
            sources: vec![0, 3, 4, 5, 6, 7, 8],
        });
        let mut swarm = Swarm::new(seed, roles, 3, true, loss(seed));
        swarm.watch(9, LIMIT);
        check_blame(&swarm, &[2, 3, 9], 1, seed);
        assert!(
            swarm.polluters(9).is_empty() && swarm.polluters(2).is_empty(),
            "seed {seed}"
        );
        fed += swarm.blocks_from(3, 1);
        dropped += swarm.counts(9).wrong;
    }
    assert!(
        fed > 0 && dropped > 0,
        "{fed} blocks of the liar, and {dropped} dropped by the viewer"
    );
}

/// A source that has the same bytes in another shape sends blocks that are right there. It is no
/// longer used, whether or not it heeds the coding in a request, and a polluter beside it is found.
#[test]
fn who_has_the_same_bytes_in_another_shape_is_never_blamed() {
    for seed in runs() {
        let other = |heeds| Role::Other { heeds };
        let roles = vec![
            SERVER,
            other(true),
            other(false),
            PEER,
            Role::Liar { share: 1.0 },
            Role::Viewer {
                sources: vec![0, 1, 2, 3, 4],
            },
        ];
        let mut swarm = Swarm::new(seed, roles, 3, !seed.is_multiple_of(3), loss(seed));
        swarm.watch(5, LIMIT);
        check_blame(&swarm, &[5], 4, seed);
        assert_eq!(
            swarm.polluters(5).len(),
            1,
            "seed {seed}: {:?}",
            swarm.counts(5)
        );
        assert_eq!(swarm.blocks_from(5, 1), 0, "seed {seed}");
    }
}

/// With one polluter beside the server nothing is tested early: the first segment turns out wrong,
/// and is mended with its right blocks.
#[test]
fn a_segment_is_mended_without_starting_over() {
    let mut mended = 0;
    for seed in runs() {
        let roles = vec![
            SERVER,
            Role::Liar { share: 1.0 },
            Role::Viewer {
                sources: vec![0, 1],
            },
        ];
        let mut swarm = Swarm::new(seed, roles, 2, true, 0.0);
        swarm.watch(2, LIMIT);
        check_blame(&swarm, &[2], 1, seed);
        let counts = swarm.counts(2);
        mended += counts.mended;
        // The server's blocks are not requested again: all it sent makes up the segments, plus a
        // few that were useless or late.
        let from_server = swarm.blocks_from(2, 0);
        assert!(
            from_server <= 2 * swarm.blocks() + counts.useless,
            "seed {seed}: {from_server} {counts:?}"
        );
        assert!(!swarm.blames.is_empty(), "seed {seed}");
    }
    assert!(mended > 0, "none was wrong when it was complete");
}

/// Nobody gives checksums: then the segment is fetched once more, from the trusted source alone.
#[test]
fn where_nobody_can_tell_the_trusted_source_sends_all_of_it() {
    let mut fed = 0;
    for seed in runs().take(100) {
        let roles = vec![
            PEER,
            Role::Liar { share: 0.5 },
            Role::Viewer {
                sources: vec![0, 1],
            },
        ];
        let mut swarm = Swarm::new(seed, roles, 2, false, loss(seed));
        swarm.watch(2, LIMIT);
        assert!(swarm.polluters(2).is_empty() && swarm.blames.is_empty());
        let [trusted, liar] = [0, 1].map(|source| swarm.blocks_from(2, source));
        fed += liar;
        // If just the wrong blocks are lost on the way, those of the polluter are useful.
        let sends_all = trusted >= 2 * swarm.blocks();
        assert!(
            sends_all || loss(seed) > 0.0,
            "seed {seed}: {trusted} blocks: {:?}",
            swarm.counts(2)
        );
    }
    assert!(fed > 0, "the liar has sent nothing");
}

/// The trusted source gives no checksums, but another one does, signed with the stream's key: they
/// are used for the rows received so far.
#[test]
fn checksums_of_others_count_where_the_key_vouches_for_them() {
    let mut found = 0;
    for seed in runs() {
        let roles = vec![
            PEER,
            Role::Liar { share: 1.0 },
            SERVER,
            Role::Viewer {
                sources: vec![0, 1, 2],
            },
        ];
        let mut swarm = Swarm::new(seed, roles, 2, true, loss(seed));
        swarm.watch(3, LIMIT);
        check_blame(&swarm, &[3], 1, seed);
        found += swarm.polluters(3).len();
    }
    assert!(found > 0);
}

const PRIME: Codec = Codec::RlncQ {
    group: HashGroup::P1024,
};

/// Every block over the prime field is tested where it first arrives. The polluter feeds relays,
/// for one of them as its first source; they find it by its first wrong block and pass on none of
/// them, and nobody behind them drops anything, although no server gives checksums.
#[test]
fn over_the_prime_field_nothing_wrong_passes_the_first_honest_hop() {
    let mut fed = 0;
    for seed in runs().take(40) {
        // 0 server, 1 polluter, 2 and 3 relays of both, 4 relay of 2, 5 viewer.
        let relay = |sources: &[usize]| Role::Relay {
            sources: sources.to_vec(),
        };
        let roles = vec![
            PEER,
            liar(seed),
            relay(&[0, 1]),
            relay(&[1, 0]),
            relay(&[2]),
            Role::Viewer {
                sources: vec![3, 4],
            },
        ];
        let mut swarm = Swarm::coded_with(PRIME, seed, roles, 2, true, 0.0);
        swarm.watch(5, LIMIT);
        check_blame(&swarm, &[2, 3, 4, 5], 1, seed);
        for hop in [2, 3] {
            let (found, counts) = (swarm.polluters(hop), swarm.counts(hop));
            let has_sent = swarm.blocks_from(hop, 1) > 0;
            fed += u64::from(has_sent);
            assert_eq!(
                (found.len(), counts.wrong > 0),
                (usize::from(has_sent), has_sent),
                "seed {seed}: {counts:?}"
            );
            assert!(
                found.iter().all(|(_, segment)| *segment == 0),
                "seed {seed}: by the first segment: {found:?}"
            );
        }
        for behind in [4, 5] {
            let counts = swarm.counts(behind);
            assert_eq!(
                (counts.wrong, counts.mended, counts.kept_bytes),
                (0, 0, 0),
                "seed {seed}: {counts:?}"
            );
        }
    }
    assert!(fed > 0, "no relay had anything of the liar");
}
