//! Five servers and 200 viewers in virtual time: the shipped machines, and between them a network
//! with delay and loss. The fleet of 100 servers beside it (`tests/sim_fleet.rs`) has no sessions.
//!
//! Each server has its roster, its table of the fleet, and a session for each connection; each
//! viewer has the machine of a consumer, its policy of servers that others name, and a player that
//! holds six seconds. No clock is read, and the same seed gives the same run.
//!
//! What is a model: handshakes take a round trip, QUIC repeats lost pieces of a control stream
//! ([`net`]), the drivers are written after those of the programs ([`server`], [`viewer`],
//! [`link`]), and the ring makes blocks at once. A server has a segment within 150 ms after it is
//! first asked for. Left out are admission of newcomers, tokens, signatures, other consumers, the
//! way of segments between servers and the origin's requests, which `make bench-fleets` counts, and
//! the time that anything takes to compute.
//!
//! `NCTEST_RUNS` is the number of seeds for each scenario.

mod figures;
mod link;
mod net;
mod scenarios;
mod server;
mod stream;
mod viewer;
mod world;

use std::time::{Duration, Instant};

use figures::Moves;
use scenarios::{Run, Scenario};
use world::{SERVERS, VIEWERS};

/// Attempts that the policy begins at once, and the time after which it begins one more.
const ATTEMPTS: usize = 4;
const ATTEMPT_EVERY: Duration = Duration::from_secs(5);
/// Within which 99 of 100 viewers are to be at another server, and all who first try three that are
/// out of reach.
const MOVES_WITHIN: Duration = Duration::from_secs(2);
const ALL_MOVE_WITHIN: Duration = Duration::from_secs(4);
/// Within which all have tried each of two servers that do not return once more.
const RETURN_WITHIN: Duration = Duration::from_secs(12);
/// Newcomers in the time between two beats of a server, when they come slowly.
const UNTOLD: f64 = 4.0;
/// Within which one of two servers is left.
const SETTLES_WITHIN: Duration = Duration::from_secs(8);

fn runs(otherwise: u64) -> std::ops::Range<u64> {
    let runs = std::env::var("NCTEST_RUNS").ok();
    let runs = runs.map(|runs| runs.parse().expect("NCTEST_RUNS is a number"));
    0..runs.unwrap_or(otherwise)
}

/// Runs a scenario with every seed, and checks what holds in each: nothing is late or wrong, and
/// in the end each viewer is at one server that
/// lives. Returns all moves.
fn each(scenario: Scenario, mut check: impl FnMut(&Run)) -> Moves {
    let mut moves = Moves::default();
    for seed in runs(2) {
        let run = Run::new(scenario, seed);
        let (world, sight) = (&run.world, &run.sight);
        let about = format!("{scenario:?} {seed}: {sight:?} {:?}", run.moves);
        assert!(sight.segments > 1300, "{about}");
        assert!(sight.late_at.is_subset(&run.strangers), "{about}");
        assert_eq!(sight.wrong, 0, "{about}");
        for viewer in world.here() {
            // QUIC may not have given up a dead one yet.
            let servers = world.viewers[viewer].servers();
            let alive = servers.intersection(&world.reached(viewer)).count();
            let settled = world.viewers[viewer].seen.came + SETTLES_WITHIN;
            let most = if settled <= world.net.now { 1 } else { 2 };
            assert!((1..=most).contains(&alive), "{viewer} at {alive}: {about}");
        }
        for viewer in &world.viewers {
            let tried = &viewer.seen.tried;
            let mut bursts = tried.windows(ATTEMPTS + 2);
            let is_slow = |burst: &[_]| burst[ATTEMPTS + 1] - burst[0] >= ATTEMPT_EVERY;
            assert!(bursts.all(is_slow), "{about} {tried:?}");
        }
        check(&run);
        moves.add(&run.moves);
    }
    assert_eq!(moves.lost, 0);
    moves
}

#[test]
fn newcomers_spread_and_then_nobody_moves() {
    let mut crowded = 0;
    let moves = each(Scenario::Steady, |run| {
        assert_eq!((run.sight.late, run.sight.errors), (0, 0));
        // A quarter more than the mean, and the one who comes when all have so many. Others whom no
        // beat has told yet may have come to one server at the same time.
        let (most, mean) = run.load;
        let above = f64::from(most) - 1.25 * mean - 1.0;
        assert!(above <= UNTOLD, "{most} of {mean}");
        crowded += u64::from(above > 0.0);
        let sum = |of: fn(&server::Counts) -> u64| {
            let counts = run.world.servers.iter().map(|server| &server.counts);
            counts.map(of).sum::<u64>()
        };
        assert_eq!(sum(|counts| counts.newcomers), VIEWERS as u64);
        // Four of five come to a server that is not theirs.
        assert!(sum(|counts| counts.sent_on) > VIEWERS as u64 / 2);
        assert!(sum(|counts| counts.sent_here) >= sum(|counts| counts.sent_on));
        let tried = run
            .world
            .viewers
            .iter()
            .map(|viewer| viewer.seen.tried.len());
        // A few try another one beside it, because packets of the first were lost.
        assert!(tried.sum::<usize>() as u64 <= sum(|counts| counts.sent_on) * 21 / 20);
        for viewer in &run.world.viewers {
            let settled = run.happened + SETTLES_WITHIN;
            let is_later = |(at, ..): &(Instant, usize, bool)| *at > settled;
            assert!(!viewer.seen.changes.iter().any(is_later));
        }
    });
    assert!(crowded <= runs(2).end / 10, "{crowded}");
    assert_eq!(moves.took.len(), 0);
}

#[test]
fn a_server_dies_and_nothing_is_late() {
    let mut amid = 0;
    let moves = each(Scenario::Dies, |run| {
        assert_eq!((run.sight.late, run.sight.errors), (0, 0));
        assert!(run.moves.took.len() >= 20);
        assert!(run.rosters().all(|known| known == SERVERS - 1));
        amid += run.amid;
    });
    // Some were in mid-segment, and took the rest from another server.
    assert!(amid > 0);
    assert!(moves.are_swift(MOVES_WITHIN), "{moves:?}");
}

#[test]
fn two_servers_die_at_once_and_nothing_is_late() {
    let moves = each(Scenario::TwoDie, |run| {
        assert_eq!((run.sight.late, run.sight.errors), (0, 0));
        assert!(run.moves.took.len() >= 40);
        assert!(run.rosters().all(|known| known == SERVERS - 2));
    });
    assert!(moves.are_swift(MOVES_WITHIN), "{moves:?}");
}

#[test]
fn a_server_drains_at_the_rate_of_the_others_and_nothing_is_late() {
    let moves = each(Scenario::Drains, |run| {
        assert_eq!((run.sight.late, run.sight.errors), (0, 0));
        let server = &run.world.servers[run.first];
        let told = &server.counts.told_to_leave;
        let (first, last) = (told.iter().min(), told.iter().max());
        let (first, last) = (first.expect("some were there"), last.expect("the same"));
        assert!(told.len() >= run.moves.took.len() && run.moves.took.len() >= 20);
        assert!(*last <= run.happened + run.time_to_leave && first < last);
        assert!(server.has_ended);
        assert!(run.rosters().all(|known| known == SERVERS - 1));
    });
    assert!(moves.are_swift(MOVES_WITHIN), "{moves:?}");
}

/// Who knows a server of the own half misses nothing.
#[test]
fn a_divided_network_heals_and_nothing_is_late() {
    let moves = each(Scenario::Divided, |run| {
        assert_eq!(run.rosters_amid, [3, 3, 3, 2, 2]);
        assert_eq!(run.rosters().collect::<Vec<_>>(), [SERVERS; SERVERS]);
        assert!(run.moves.took.len() >= 50);
        let most = run.moves.within(100);
        assert!(
            !run.strangers.is_empty() || most < ALL_MOVE_WITHIN,
            "{most:?}"
        );
    });
    assert!(moves.within(95) < MOVES_WITHIN, "{moves:?}");
}

/// Each viewer finds one of those that start again, whether or not it is the first of those named.
#[test]
fn all_servers_die_and_who_returns_is_found() {
    let moves = each(Scenario::AllDie, |run| {
        assert_eq!(run.moves.took.len(), VIEWERS);
        assert!(run.rosters().all(|known| known == 3));
    });
    assert!(moves.within(100) < RETURN_WITHIN, "{moves:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let [one, again, other] = [3, 3, 4].map(|seed| Run::new(Scenario::Dies, seed).story());
    assert_eq!(one, again);
    assert_ne!(one, other);
}

/// Prints the figures of many runs.
#[test]
#[ignore = "takes minutes: `make bench-servers`"]
fn figures_of_many_runs() {
    println!(
        "| what happens | runs | segments due | late | wrong | least time to spare | viewers that \
         moved | half of them within | 99 % within | all within | most servers that one tried | \
         viewers of the fullest server when all had come, in means |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for scenario in Scenario::ALL {
        let (mut moves, mut segments, mut late, mut wrong) = (Moves::default(), 0, 0, 0);
        let (mut spare, mut tried, mut fullest) = (Duration::MAX, 0, 0.0_f64);
        let seeds = runs(100);
        for seed in seeds.clone() {
            let run = Run::new(scenario, seed);
            moves.add(&run.moves);
            segments += run.sight.segments;
            late += run.sight.late;
            wrong += run.sight.wrong;
            spare = spare.min(run.sight.spare);
            tried = tried.max(run.world.most_tried());
            fullest = fullest.max(f64::from(run.load.0) / run.load.1);
        }
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let [half, most, all] = [50, 99, 100].map(|percent| seconds(moves.within(percent)));
        println!(
            "| {} | {} | {segments} | {late} | {wrong} | {} | {} | {half} | {most} | {all} | \
             {tried} | {fullest:.2} |",
            scenario.name(),
            seeds.end,
            seconds(spare),
            moves.took.len() + moves.lost,
        );
    }
}
