//! The controllers on simulated paths. Assertions hold with a margin; `--nocapture` shows the
//! figures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Congestion;
use super::delay::DelayConfig;
use super::sim::bbr::BbrConfig;
use super::sim::{Flow, Outcome, Path, run};

/// A round trip of 50 ms.
fn path(megabits: f64, buffer: Duration, loss: f64) -> Path {
    let bits_per_second = megabits * 1e6;
    Path {
        bits_per_second,
        buffer,
        delay: ms(25),
        loss,
        change: None,
        seed: 1,
        start: Instant::now(),
    }
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A sender that starts after `from` seconds. `path` and `phase` decide when the beats are.
fn flow_at(path: &Path, congestion: Congestion, from: u64, phase: Duration) -> Flow {
    let controllers = match congestion {
        Congestion::Delay => Arc::new(DelayConfig::anchored(path.start, phase)),
        other => other.factory(),
    };
    Flow {
        controllers,
        from: s(from),
        until: Duration::MAX,
        bits_per_second: f64::INFINITY,
    }
}

fn flow(path: &Path, congestion: Congestion, from: u64) -> Flow {
    flow_at(path, congestion, from, ms(300))
}

fn show(what: &str, outcome: &Outcome) {
    let each = |values: &[f64], unit: f64| {
        values
            .iter()
            .map(|value| format!("{:.2}", value / unit))
            .collect::<Vec<_>>()
            .join(" + ")
    };
    println!(
        "{what:44} {:12} Mbit/s, queue {:5.1} ms, 95th {:5.1} ms, overflow {:4.1} %, lost {} %",
        each(&outcome.goodputs, 1e6),
        outcome.queue_mean,
        outcome.queue_95th,
        outcome.overflow * 100.0,
        each(&outcome.lost, 1e-2)
    );
}

#[test]
fn random_loss_costs_what_is_lost_and_little_more() {
    for loss in [0.0, 0.01, 0.05, 0.1, 0.2] {
        let path = path(20.0, ms(100), loss);
        let outcome = run(path, &[flow(&path, Congestion::Delay, 0)], s(2), s(22));
        show(&format!("20 Mbit/s, {loss} lost, delay"), &outcome);
        let reached = outcome.goodputs[0] / ((1.0 - loss) * path.bits_per_second);
        assert!(reached > 0.88, "{reached} of what the path carries");
        assert!(outcome.queue_mean < 10.0);
    }
    let path = path(20.0, ms(100), 0.05);
    let outcome = run(path, &[flow(&path, Congestion::Cubic, 0)], s(2), s(22));
    show("20 Mbit/s, 0.05 lost, cubic", &outcome);
    assert!(outcome.goodputs[0] < 3e6, "what this is good for");
}

#[test]
fn alone_it_keeps_the_queue_short() {
    for (megabits, delay, buffer, queue_max) in [
        (10.0, 25, 50, 9.0),
        (10.0, 25, 400, 9.0),
        (10.0, 2, 100, 9.0),
        (2.0, 25, 100, 20.0),
        (100.0, 50, 100, 8.0),
    ] {
        let path = Path {
            delay: ms(delay),
            ..path(megabits, ms(buffer), 0.0)
        };
        let outcome = run(path, &[flow(&path, Congestion::Delay, 0)], s(5), s(25));
        show(
            &format!("{megabits} Mbit/s, {} ms, alone", 2 * delay),
            &outcome,
        );
        assert!(outcome.queue_mean < queue_max && outcome.goodputs[0] > 0.9 * path.bits_per_second);
    }
}

/// The first bytes of a segment come while startup ends, and a player measures the path by them.
#[test]
fn at_the_end_of_startup_the_path_is_full() {
    let reached = |seed| {
        let path = Path {
            seed,
            ..path(5.0, ms(250), 0.05)
        };
        let outcome = run(path, &[flow(&path, Congestion::Delay, 0)], ms(250), ms(650));
        show("5 Mbit/s, 0.05 lost, from 0.25 to 0.65 s", &outcome);
        outcome.goodputs[0] / (0.95 * path.bits_per_second)
    };
    let reached: Vec<f64> = (0..16).map(reached).collect();
    let mean = reached.iter().sum::<f64>() / reached.len() as f64;
    println!("{mean}: {reached:.2?}");
    assert!(
        mean > 0.78,
        "{mean} of what the path carries: {reached:.2?}"
    );
}

#[test]
fn beside_cubic_it_takes_a_fair_share() {
    for buffer in [50, 100, 200] {
        for (order, cubic, ours) in [
            ("together", 0, 0),
            ("cubic first", 0, 5),
            ("cubic last", 5, 0),
        ] {
            let path = path(10.0, ms(buffer), 0.0);
            // The start of the flows within a beat must not matter.
            let ours = flow_at(&path, Congestion::Delay, ours, ms(7 * buffer));
            let outcome = run(
                path,
                &[flow(&path, Congestion::Cubic, cubic), ours],
                s(15),
                s(75),
            );
            show(
                &format!("{buffer} ms of buffer, {order}, cubic + delay"),
                &outcome,
            );
            let share = 2.0 * outcome.goodputs[1] / outcome.goodputs.iter().sum::<f64>();
            assert!((0.55..=1.6).contains(&share), "{share} of its share");
        }
    }
}

/// Others on the bottleneck.
#[derive(Debug, Clone, Copy)]
enum Rival {
    Cubic,
    Bbr,
}

/// Asserts that this controller gets between half and twice a fair part beside one and four such
/// flows, in each of the buffers. It is late: the others have the path when it begins.
fn assert_fair(rival: Rival, megabits: f64) {
    let mut unfair = Vec::new();
    for rivals in [1, 4] {
        for buffer in [20, 50, 100] {
            let path = path(megabits, ms(buffer), 0.0);
            let other = match rival {
                Rival::Cubic => flow(&path, Congestion::Cubic, 0),
                Rival::Bbr => Flow {
                    controllers: Arc::new(BbrConfig),
                    ..flow(&path, Congestion::Cubic, 0)
                },
            };
            let mut flows = vec![other; rivals];
            flows.push(flow_at(&path, Congestion::Delay, 1, ms(7 * buffer)));
            let outcome = run(path, &flows, s(25), s(65));
            let all: f64 = outcome.goodputs.iter().sum();
            let share = outcome.goodputs[rivals] / all * flows.len() as f64;
            let what = format!("{megabits} Mbit/s, {buffer} ms, {rivals} {rival:?}: {share:.2}");
            show(&what, &outcome);
            // BBR keeps so short a buffer full, and is seldom noticed in time.
            let is_hard = matches!(rival, Rival::Bbr) && megabits == 100.0 && buffer == 20;
            let least = if is_hard { 0.25 } else { 0.5 };
            if !(least..=2.0).contains(&share) {
                unfair.push(what);
            }
        }
    }
    assert!(unfair.is_empty(), "{unfair:#?}");
}

#[test]
fn beside_cubic_at_10_megabits_each_share_is_fair() {
    assert_fair(Rival::Cubic, 10.0);
}

#[test]
fn beside_cubic_at_100_megabits_each_share_is_fair() {
    assert_fair(Rival::Cubic, 100.0);
}

#[test]
fn beside_bbr_at_10_megabits_each_share_is_fair() {
    assert_fair(Rival::Bbr, 10.0);
}

#[test]
fn beside_bbr_at_100_megabits_shares_are_fair_but_in_the_shortest_buffer() {
    assert_fair(Rival::Bbr, 100.0);
}

#[test]
fn it_shares_with_itself() {
    for (buffer, flows) in [(50, 2), (200, 2), (200, 4)] {
        let path = path(10.0, ms(buffer), 0.0);
        let flows: Vec<Flow> = (0..flows)
            .map(|number| flow(&path, Congestion::Delay, 3 * number))
            .collect();
        let outcome = run(path, &flows, s(20), s(50));
        show(&format!("{buffer} ms, {} x delay", flows.len()), &outcome);
        let even = 9.5e6 / flows.len() as f64;
        assert!(
            outcome
                .goodputs
                .iter()
                .all(|goodput| (0.75..1.25).contains(&(goodput / even)))
        );
        assert!(
            outcome.queue_mean < 25.0,
            "nobody took another for one that fills queues"
        );
    }
}

#[test]
fn when_the_other_ends_the_queue_empties() {
    let path = path(10.0, ms(100), 0.0);
    let cubic = Flow {
        until: s(20),
        ..flow(&path, Congestion::Cubic, 0)
    };
    let outcome = run(
        path,
        &[cubic, flow(&path, Congestion::Delay, 2)],
        s(35),
        s(55),
    );
    show("cubic ends, delay stays", &outcome);
    assert!(outcome.queue_mean < 10.0 && outcome.goodputs[1] > 9e6);
}

#[test]
fn a_queue_too_short_to_be_felt_is_heard_by_its_losses() {
    let path = path(10.0, ms(5), 0.0);
    let outcome = run(path, &[flow(&path, Congestion::Delay, 0)], s(15), s(45));
    show("5 ms of buffer, delay", &outcome);
    assert!(outcome.overflow < 0.08 && outcome.goodputs[0] > 8.5e6);
    let outcome = run(path, &[flow(&path, Congestion::Bbr, 0)], s(15), s(45));
    show("5 ms of buffer, bbr", &outcome);
    assert!(
        outcome.overflow > 0.2,
        "which a rate model alone does not hear"
    );
}

#[test]
fn it_follows_a_path_that_changes() {
    for (what, megabits, delay, least) in [
        ("slower", 2.0, 25, 1.7),
        ("faster", 50.0, 25, 42.0),
        ("shorter", 10.0, 5, 9.0),
    ] {
        let path = Path {
            change: Some((s(10), megabits * 1e6, ms(delay))),
            ..path(10.0, ms(200), 0.0)
        };
        let outcome = run(path, &[flow(&path, Congestion::Delay, 0)], s(15), s(30));
        show(&format!("a path that gets {what}"), &outcome);
        assert!(outcome.goodputs[0] > least * 1e6 && outcome.queue_mean < 25.0);
    }
    for loss in [0.0, 0.05] {
        let path = Path {
            change: Some((s(10), 10e6, ms(50))),
            ..path(10.0, ms(200), loss)
        };
        let outcome = run(path, &[flow(&path, Congestion::Delay, 0)], s(40), s(60));
        show(&format!("a path that gets longer, {loss} lost"), &outcome);
        assert!(
            outcome.goodputs[0] > 8e6 && outcome.queue_mean < 25.0,
            "it is not taken for a queue for ever"
        );
    }
}

#[test]
fn a_sender_with_little_to_send_is_not_slowed_down() {
    let path = path(10.0, ms(100), 0.02);
    let video = Flow {
        bits_per_second: 3e6,
        ..flow(&path, Congestion::Delay, 0)
    };
    let outcome = run(path, &[video], s(5), s(25));
    show("3 of 10 Mbit/s", &outcome);
    assert!(outcome.goodputs[0] > 2.95e6 && outcome.queue_mean < 4.0);
}
