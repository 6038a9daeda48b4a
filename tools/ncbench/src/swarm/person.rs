//! What one viewer has gone through, over all of its connections: it counts once, however often it
//! tries.

use std::time::Instant;

use super::totals::Totals;

/// A viewer, from its first attempt to the end of the run.
#[derive(Debug, Default)]
pub(super) struct Person {
    asked_at: Option<Instant>,
    /// Its last attempt.
    attempt_at: Option<Instant>,
    was_refused: bool,
    was_in: bool,
    was_served: bool,
    was_put_out: bool,
    /// Whether it is let in.
    is_in: bool,
    /// Whether it has had a segment since then.
    is_playing: bool,
}

impl Person {
    /// It attempts to be served: connects, or requests blocks again after it was refused.
    pub(super) fn ask(&mut self, now: Instant, totals: &Totals) {
        self.attempt_at = Some(now);
        if self.asked_at.is_none() {
            self.asked_at = Some(now);
            totals.asked.add(1);
        }
    }

    /// The first bytes of a segment have come: it is let in.
    pub(super) fn enter(&mut self, now: Instant, totals: &Totals) {
        if self.is_in {
            return;
        }
        self.is_in = true;
        totals.admitted.add(1);
        if std::mem::replace(&mut self.was_in, true) {
            return;
        }
        if let (true, Some(at)) = (self.was_refused, self.asked_at) {
            totals.waiting.add(now.saturating_duration_since(at));
        }
    }

    /// A whole segment has come.
    pub(super) fn serve(&mut self, now: Instant, totals: &Totals) {
        self.enter(now, totals);
        self.is_playing = true;
        if std::mem::replace(&mut self.was_served, true) {
            return;
        }
        totals.served.add(1);
        for (spread, from) in [
            (&totals.first_segment, self.asked_at),
            (&totals.startup, self.attempt_at),
        ] {
            if let Some(from) = from {
                spread.add(now.saturating_duration_since(from));
            }
        }
    }

    /// The server does not serve it: it is put out if it was served before, and refused otherwise.
    pub(super) fn refuse(&mut self, totals: &Totals) {
        if self.put_out(totals) {
            return;
        }
        self.go(totals);
        totals.refused.add(1);
        if !self.was_refused && !self.was_in {
            self.was_refused = true;
            totals.refused_viewers.add(1);
        }
    }

    /// The server has closed its connection: whether it was served before.
    pub(super) fn put_out(&mut self, totals: &Totals) -> bool {
        if !std::mem::take(&mut self.is_playing) {
            return false;
        }
        self.go(totals);
        totals.put_out_times.add(1);
        if !std::mem::replace(&mut self.was_put_out, true) {
            totals.put_out.add(1);
        }
        true
    }

    /// It has left by itself, or its connection has failed.
    pub(super) fn leave(&mut self, totals: &Totals) {
        self.is_playing = false;
        self.go(totals);
    }

    /// The run is over.
    pub(super) fn end(&mut self, now: Instant, totals: &Totals) {
        self.leave(totals);
        let Some(at) = self.asked_at else { return };
        totals.wanted.add_time(now.saturating_duration_since(at));
        if self.was_refused && !self.was_in {
            totals.never_in.add(1);
        } else if !self.was_served {
            totals.unserved.add(1);
        }
    }

    fn go(&mut self, totals: &Totals) {
        if std::mem::take(&mut self.is_in) {
            totals.gone.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::totals::{Snapshot, Spread};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_viewer_counts_once_however_often_it_tries() {
        let (totals, begin, mut person) = (Totals::default(), Instant::now(), Person::default());
        for attempt in 0..3 {
            person.ask(begin + attempt * SECOND, &totals);
            person.refuse(&totals);
        }
        person.ask(begin + 3 * SECOND, &totals);
        person.enter(begin + 4 * SECOND, &totals);
        for second in 5..8 {
            person.serve(begin + second * SECOND, &totals);
        }
        person.end(begin + 10 * SECOND, &totals);
        let sum = Totals::sum([&totals]);
        let expected = Snapshot {
            asked: 1,
            served: 1,
            refused: 3,
            refused_viewers: 1,
            admitted: 1,
            gone: 1,
            wanted_us: 10_000_000,
            ..Snapshot::default()
        };
        assert_eq!(sum, expected);
        let [first, waiting, startup] = [&totals.first_segment, &totals.waiting, &totals.startup]
            .map(|spread| Spread::percentiles([spread]));
        assert_eq!((first.count, waiting.count, startup.count), (1, 1, 1));
        // Since the attempt that was granted.
        assert!((2000.0..2400.0).contains(&startup.max_ms), "{startup:?}");
        assert!((5000.0..6000.0).contains(&first.max_ms), "{first:?}");
        assert!((4000.0..4800.0).contains(&waiting.max_ms), "{waiting:?}");
    }

    #[test]
    fn who_was_served_is_put_out_and_who_was_not_is_refused() {
        let (totals, now, mut person) = (Totals::default(), Instant::now(), Person::default());
        for _ in 0..2 {
            person.ask(now, &totals);
            person.serve(now, &totals);
            person.refuse(&totals);
            // It comes again, and is refused before it gets anything.
            person.refuse(&totals);
        }
        person.end(now, &totals);
        let sum = Totals::sum([&totals]);
        assert_eq!(
            (sum.served, sum.put_out, sum.put_out_times, sum.refused),
            (1, 1, 2, 2)
        );
        assert_eq!((sum.admitted, sum.gone, sum.inside()), (2, 2, 0));
        // It waited for nothing before it was let in.
        assert_eq!((sum.refused_viewers, sum.never_in), (0, 0));
    }

    #[test]
    fn who_leaves_is_not_put_out_and_who_never_gets_in_is_counted() {
        let (totals, now) = (Totals::default(), Instant::now());
        let mut leaver = Person::default();
        leaver.ask(now, &totals);
        leaver.serve(now, &totals);
        assert_eq!(Totals::sum([&totals]).inside(), 1);
        leaver.leave(&totals);
        assert!(!leaver.put_out(&totals));
        leaver.end(now, &totals);
        let mut waiter = Person::default();
        waiter.ask(now, &totals);
        waiter.refuse(&totals);
        waiter.end(now + SECOND, &totals);
        // The server has said nothing.
        let mut unserved = Person::default();
        unserved.ask(now, &totals);
        unserved.end(now, &totals);
        // Who has not had its turn has asked for nothing.
        Person::default().end(now, &totals);
        let sum = Totals::sum([&totals]);
        assert_eq!((sum.asked, sum.served, sum.put_out), (3, 1, 0));
        assert_eq!((sum.refused_viewers, sum.never_in), (1, 1));
        assert_eq!(sum.asked, sum.served + sum.never_in + sum.unserved);
    }
}
