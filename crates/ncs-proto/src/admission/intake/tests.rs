use super::*;

const MS: Duration = Duration::from_millis(1);

/// An intake, and a loop of looks that measure this.
fn looks(intake: &mut Intake, now: &mut Instant, count: u32, load: f64, wait: Duration) {
    for _ in 0..count {
        *now += 20 * MS;
        intake.look(*now, Look { load, wait });
    }
}

fn enter(intake: &mut Intake, now: Instant) -> Option<(Entrant, Answer)> {
    let entrant = intake.knock()?;
    intake.connected(entrant);
    Some((entrant, intake.ask(now, entrant)))
}

#[test]
fn a_server_without_load_lets_everybody_in_and_a_full_one_nobody() {
    let mut now = Instant::now();
    let mut intake = Intake::new(Config::default(), now);
    for _ in 0..500 {
        looks(&mut intake, &mut now, 1, 0.1, Duration::ZERO);
        let (_, answer) = enter(&mut intake, now).unwrap();
        assert_eq!(answer, Answer::Admitted);
    }
    looks(&mut intake, &mut now, 500, 1.0, Duration::ZERO);
    let status = intake.status();
    assert_eq!((status.viewers, status.left), (500, 0), "who is in stays");
    assert!(status.rate < 0.01 && intake.is_short());
    let told = std::iter::from_fn(|| enter(&mut intake, now)).map(|(_, answer)| answer);
    let told: Vec<_> = told.collect();
    let admitted = told.iter().filter(|answer| **answer == Answer::Admitted);
    assert!(admitted.count() <= 1);
    assert!(
        told.len() <= ROOM_LEAST + 1,
        "the rest is refused before a handshake"
    );
}

#[test]
fn the_waiting_come_in_in_their_order_and_a_place_is_kept_for_a_while() {
    let mut now = Instant::now();
    let mut intake = Intake::new(Config::default(), now);
    let entrants: Vec<_> = (0..30).map(|_| enter(&mut intake, now).unwrap()).collect();
    let waits = |entry: &&(Entrant, Answer)| entry.1 != Answer::Admitted;
    let waiting: Vec<_> = entrants.iter().filter(waits).map(|entry| entry.0).collect();
    assert!(waiting.len() > 5);
    // The last asks often, and does not come in before the first.
    let last = *waiting.last().unwrap();
    assert!(matches!(intake.ask(now, last), Answer::Wait(_)));
    looks(&mut intake, &mut now, 1, 0.1, Duration::ZERO);
    assert_eq!(intake.ask(now, waiting[0]), Answer::Admitted);
    looks(&mut intake, &mut now, 20, 0.1, Duration::ZERO);
    assert_eq!(
        intake.ask(now, waiting[2]),
        Answer::Admitted,
        "it was late, and its place kept"
    );
    // A place that nobody takes is given to others.
    looks(&mut intake, &mut now, 400, 0.1, Duration::ZERO);
    assert_eq!(intake.status().waiting, 0);
    assert_eq!(intake.ask(now, waiting[1]), Answer::Admitted);
    intake.leave(waiting[1]);
    intake.leave(waiting[1]);
}

#[test]
fn the_youngest_leave_a_server_that_becomes_slower_and_return_first() {
    let mut now = Instant::now();
    let mut intake = Intake::new(Config::default(), now);
    let mut all = Vec::new();
    for _ in 0..300 {
        looks(&mut intake, &mut now, 1, 0.1, Duration::ZERO);
        all.push(enter(&mut intake, now).unwrap().0);
    }
    looks(&mut intake, &mut now, 500, 0.9, Duration::ZERO);
    assert_eq!(intake.poll_leave(now), None);
    // A quarter more is wanted than it does.
    let mut wait = Duration::ZERO;
    let mut left = Vec::new();
    for _ in 0..500 {
        wait += 5 * MS;
        looks(&mut intake, &mut now, 1, 1.0, wait);
        left.extend(std::iter::from_fn(|| intake.poll_leave(now)).map(|(entrant, _)| entrant));
        if !left.is_empty() {
            break;
        }
    }
    // A fifth is too much, and four fifths of that leave at once, and what drains the queue.
    assert!((48..56).contains(&left.len()), "{}", left.len());
    let youngest: Vec<_> = all.iter().rev().take(left.len()).copied().collect();
    assert_eq!(left, youngest);
    assert!(matches!(intake.ask(now, left[0]), Answer::Wait(_)));
    looks(&mut intake, &mut now, 500, 0.5, Duration::ZERO);
    let (_, answer) = enter(&mut intake, now).unwrap();
    assert_eq!(answer, Answer::Admitted, "all have had their turn");
    assert_eq!(intake.ask(now, left[0]), Answer::Admitted);
}

#[test]
fn a_few_who_take_all_time_share_with_newcomers_and_stay() {
    let mut now = Instant::now();
    let config = Config {
        few: 20,
        ..Config::default()
    };
    let mut intake = Intake::new(config, now);
    looks(&mut intake, &mut now, 1, 0.1, Duration::ZERO);
    assert_eq!(enter(&mut intake, now).unwrap().1, Answer::Admitted);
    // It downloads, and blocks queue because it has asked for many.
    looks(&mut intake, &mut now, 500, 1.0, 400 * MS);
    for _ in 1..20 {
        looks(&mut intake, &mut now, 10, 1.0, 400 * MS);
        assert_eq!(enter(&mut intake, now).unwrap().1, Answer::Admitted);
    }
    looks(&mut intake, &mut now, 500, 1.0, 400 * MS);
    assert!(intake.status().rate < 0.01, "these are not few");
    assert_eq!(intake.poll_leave(now), None);
    // A few are not asked to leave, however long blocks wait, but nobody comes to them then.
    intake.leave(Entrant(0));
    looks(&mut intake, &mut now, 500, 1.0, 3000 * MS);
    assert_eq!(intake.poll_leave(now), None);
    assert!(intake.status().rate < 0.01);
}

#[test]
fn a_crowd_that_asks_at_once_is_told_different_times() {
    let mut now = Instant::now();
    let config = Config {
        handshakes_rate: 40_000.0,
        ..Config::default()
    };
    let mut intake = Intake::new(config, now);
    let mut entrants = Vec::new();
    // While a server idles, all of its waiting room may come.
    for _ in 0..40 {
        looks(&mut intake, &mut now, 1, 0.0, Duration::ZERO);
        entrants.extend(std::iter::from_fn(|| intake.knock()));
    }
    let told: Vec<_> = entrants
        .into_iter()
        .filter_map(|entrant| match intake.ask(now, entrant) {
            Answer::Wait(again) => Some(again),
            Answer::Admitted => None,
        })
        .collect();
    assert!(told.len() > 1000);
    assert!(told.iter().all(|again| *again <= AGAIN_MOST));
    // Nowhere does more than an eighth of them return within 100 ms.
    let mut hundredths = [0; 50];
    for again in &told {
        hundredths[(again.as_millis() / 100).min(49) as usize] += 1;
    }
    assert!(
        hundredths.iter().all(|count| count * 8 < told.len()),
        "{hundredths:?}"
    );
}

#[test]
fn a_stall_closes_the_server_for_its_time_and_another_limit_than_the_load_for_long() {
    let mut now = Instant::now();
    let mut intake = Intake::new(Config::default(), now);
    for _ in 0..100 {
        looks(&mut intake, &mut now, 1, 0.3, Duration::ZERO);
        enter(&mut intake, now).unwrap();
    }
    looks(&mut intake, &mut now, 75, 0.3, 500 * MS);
    let status = intake.status();
    assert!(
        status.rate < 0.1 * Config::default().first_rate,
        "{status:?}"
    );
    assert!(status.load_max >= Config::default().load_max, "{status:?}");
    looks(&mut intake, &mut now, 75, 0.3, Duration::ZERO);
    assert!(intake.status().rate > 10.0);
    looks(&mut intake, &mut now, 125, 0.3, 500 * MS);
    assert!(intake.status().load_max < 0.3);
    looks(&mut intake, &mut now, 500, 0.3, Duration::ZERO);
    assert!(intake.status().rate > 1.0, "it has recovered a little");
    looks(&mut intake, &mut now, 50 * 150, 0.3, Duration::ZERO);
    assert!(intake.status().load_max >= Config::default().load_max);
}

#[test]
fn addresses_without_proof_do_not_take_the_last_places() {
    let mut now = Instant::now();
    let mut intake = Intake::new(Config::default(), now);
    looks(&mut intake, &mut now, 500, 1.0, Duration::ZERO);
    assert!(
        intake.wants_proof() && !intake.is_full(),
        "one handshake is left"
    );
    looks(&mut intake, &mut now, 1000, 0.0, Duration::ZERO);
    let mut without = 0;
    while !intake.wants_proof() {
        intake.knock().unwrap();
        without += 1;
    }
    assert!(without > 0);
    assert!(
        intake.knock().is_some(),
        "who proves its address still gets in"
    );
}

#[test]
fn connections_that_all_ask_at_once_do_not_grow_the_waiting_room() {
    let mut now = Instant::now();
    let config = Config {
        waiting_max: 40,
        ..Config::default()
    };
    let mut intake = Intake::new(config, now);
    let mut idle = Vec::new();
    for _ in 0..100 {
        looks(&mut intake, &mut now, 1, 0.0, Duration::ZERO);
        idle.extend(intake.knock());
        idle.iter().for_each(|entrant| intake.connected(*entrant));
    }
    looks(&mut intake, &mut now, 500, 1.0, Duration::ZERO);
    assert!(idle.len() > 90);
    for entrant in &idle {
        intake.ask(now, *entrant);
    }
    assert!(intake.status().waiting <= 40);
}
