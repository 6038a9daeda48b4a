//! A fleet in virtual time ([`ncserverd::lab::fleet`]), small: `make bench-fleets` has 100 servers.

use std::time::Duration;

use ncserverd::lab::fleet::{Config, Happening, Second, World};

/// Seconds between two happenings.
const APART: usize = 40;

/// A fleet of 20 to which these things happen, one after the other.
fn run(seed: u64, happens: &[Happening]) -> Vec<Vec<Second>> {
    let at = |index: usize| Duration::from_secs(((index + 1) * APART) as u64);
    let happens = happens.iter().enumerate();
    let happens: Vec<_> = happens.map(|(index, what)| (at(index), *what)).collect();
    let config = Config {
        servers: 20,
        viewers_each: 500,
        places: 2000,
        streams: 20,
        seed,
        lasts: at(happens.len()),
        happens,
        ..Config::default()
    };
    let seconds = World::new(config).run();
    seconds.chunks(APART).map(<[Second]>::to_vec).collect()
}

fn sum(seconds: &[Second], of: fn(&Second) -> u64) -> u64 {
    seconds.iter().map(of).sum()
}

fn most(seconds: &[Second], of: fn(&Second) -> f64) -> f64 {
    seconds.iter().map(of).fold(0.0, f64::max)
}

#[test]
fn viewers_spread_and_the_origin_is_asked_once() {
    for seed in 0..3 {
        let parts = run(seed, &[]);
        let steady = &parts[0];
        assert!(sum(steady, |second| second.segments) > 500);
        assert_eq!(
            sum(steady, |second| second.requests),
            sum(steady, |second| second.segments)
        );
        assert!(most(steady, |second| second.copies_most as f64) <= 3.0);
        // Beats are two seconds old, and so are the loads that they tell.
        assert!(most(steady, |second| second.most) < 1.25 + 0.05);
        assert!(most(steady, |second| second.entered) < 1.25 + 0.05);
        assert!(sum(steady, |second| second.sent_on) > 0);
        // A beat of each other server every two seconds.
        let beats = sum(steady, |second| second.beats) as f64;
        let expected = 20.0 * 19.0 / 2.0 * APART as f64;
        assert!((0.97..=1.03).contains(&(beats / expected)), "{beats}");
    }
}

#[test]
fn a_death_moves_viewers_and_costs_one_request_more_for_a_segment() {
    for seed in 0..3 {
        let parts = run(seed, &[Happening::Die(1)]);
        let after = &parts[1];
        assert!(sum(after, |second| second.moved) >= 300);
        assert_eq!(sum(after, |second| second.lost), 0);
        assert!(most(after, |second| second.requests_most as f64) <= 2.0);
        assert!(most(after, |second| second.most) < 1.35);
        // After nine seconds nobody asks the dead one.
        let later = &after[9..];
        assert_eq!(
            sum(later, |second| second.requests),
            sum(later, |second| second.segments)
        );
    }
}

/// Before it knows the others, it takes itself for the home of everything.
#[test]
fn a_server_that_comes_costs_one_request_more_for_a_segment() {
    for seed in 0..10 {
        let came = &run(seed, &[Happening::Come(1)])[1];
        assert!(most(came, |second| second.requests_most as f64) <= 2.0);
        let later = &came[2..];
        assert_eq!(
            sum(later, |second| second.requests),
            sum(later, |second| second.segments)
        );
    }
}

#[test]
fn servers_that_drain_and_come_lose_nobody() {
    for seed in 0..3 {
        let parts = run(seed, &[Happening::Drain(3), Happening::Come(3)]);
        let (drained, came) = (&parts[1], &parts[2]);
        assert!(sum(drained, |second| second.moved) >= 1000);
        assert_eq!(sum(drained, |second| second.lost), 0);
        // They end when their viewers have gone.
        assert_eq!(parts[0][APART - 1].running, 20);
        assert_eq!(drained[APART - 1].running, 17);
        // When they are known, newcomers go to them.
        assert!(most(&came[5..], |second| second.entered) < 1.25 + 0.05);
        assert!(came[APART - 1].least > came[0].least);
        for part in [drained, came] {
            let requests = sum(part, |second| second.requests) as f64;
            let segments = sum(part, |second| second.segments) as f64;
            assert!(requests <= 1.02 * segments, "{requests} for {segments}");
        }
    }
}
