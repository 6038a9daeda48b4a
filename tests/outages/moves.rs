//! How long viewers who have lost their servers take to be at another one.

use std::time::{Duration, Instant};

use crate::net::Half;

/// A viewer is connected to a server from now on, or is not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) at: Instant,
    pub(crate) server: usize,
    pub(crate) is_up: bool,
}

/// Servers that are gone from one moment on, for the viewers of each half. They may come back.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    pub(crate) at: Instant,
    pub(crate) left: Vec<usize>,
    pub(crate) right: Vec<usize>,
}

impl Loss {
    /// Gone for everybody.
    pub(crate) fn of(servers: Vec<usize>) -> Self {
        Self {
            at: Instant::now(),
            left: servers.clone(),
            right: servers,
        }
    }

    fn gone(&self, half: Half) -> &[usize] {
        match half {
            Half::Left => &self.left,
            Half::Right => &self.right,
            Half::Neither => &[],
        }
    }
}

/// What became of viewers who had no other server when theirs was gone.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// From the loss until they were connected to another one, or to the same one anew.
    pub(crate) took: Vec<Duration>,
    /// Those who never were until the end.
    pub(crate) lost: usize,
}

impl Moves {
    /// Adds those of one viewer, by what it saw and by what was lost, both in order. `served` says
    /// when it had the first segment that was published after a moment.
    ///
    /// A connection that is made again at once may not be seen to end. So a viewer who has had such
    /// a segment before the next connection had one all the time.
    pub(crate) fn add(
        &mut self,
        changes: &[Change],
        losses: &[Loss],
        half: Half,
        served: impl Fn(Instant) -> Option<Instant>,
    ) {
        for (index, loss) in losses.iter().enumerate() {
            if !must_move(changes, &losses[..=index], half) {
                continue;
            }
            let next = changes
                .iter()
                .find(|change| change.at > loss.at && change.is_up);
            match (next, served(loss.at)) {
                (Some(change), Some(served)) if served < change.at => {}
                (Some(change), _) => self.took.push(change.at - loss.at),
                (None, Some(_)) => {}
                (None, None) => self.lost += 1,
            }
        }
    }

    /// The time within which this part of the moves, of 100, was done.
    pub(crate) fn within(&self, percent: usize) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        let at = (took.len() * percent).div_ceil(100).saturating_sub(1);
        took.get(at).copied().unwrap_or_default()
    }
}

/// Whether the last of these losses leaves a viewer without a server. A client may take a dead
/// connection for a living one for a while, so what was made before a loss of its server does not
/// count.
fn must_move(changes: &[Change], losses: &[Loss], half: Half) -> bool {
    let Some(last) = losses.last() else {
        return false;
    };
    let known = || changes.iter().filter(|change| change.at <= last.at);
    let lives = |up: &&Change| {
        let is_later = |other: &Change| other.server == up.server && other.at > up.at;
        let ends = known().any(|other| is_later(other) && !other.is_up);
        let is_gone = |loss: &Loss| loss.at >= up.at && loss.gone(half).contains(&up.server);
        !ends && !losses.iter().any(is_gone)
    };
    let has_begun = known().any(|change| change.is_up);
    has_begun && !known().filter(|change| change.is_up).any(|up| lives(&up))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(begun: Instant, all: &[(u64, usize, bool)]) -> Vec<Change> {
        let change = |(at, server, is_up): &(u64, usize, bool)| Change {
            at: begun + Duration::from_millis(*at),
            server: *server,
            is_up: *is_up,
        };
        all.iter().map(change).collect()
    }

    /// A viewer that is served nothing.
    fn never(_: Instant) -> Option<Instant> {
        None
    }

    fn loss(begun: Instant, at: u64, left: &[usize], right: &[usize]) -> Loss {
        Loss {
            at: begun + Duration::from_millis(at),
            left: left.to_vec(),
            right: right.to_vec(),
        }
    }

    #[test]
    fn moves_are_from_the_loss_to_the_next_connection() {
        let begun = Instant::now();
        // At server 0, then 1; then 1 is lost, too; the connection to 0 ends late.
        let seen = [
            (0, 0, true),
            (1700, 1, true),
            (6200, 2, true),
            (9000, 0, false),
        ];
        let seen = changes(begun, &seen);
        let losses = [loss(begun, 1000, &[0], &[0]), loss(begun, 5000, &[1], &[1])];
        let mut moves = Moves::default();
        moves.add(&seen, &losses, Half::Left, never);
        let expected = [700, 1200].map(Duration::from_millis);
        assert_eq!((moves.took, moves.lost), (expected.to_vec(), 0));
    }

    #[test]
    fn who_has_another_server_need_not_move() {
        let begun = Instant::now();
        let seen = changes(begun, &[(0, 0, true), (10, 1, true)]);
        let mut moves = Moves::default();
        moves.add(&seen, &[loss(begun, 1000, &[0], &[0])], Half::Right, never);
        assert_eq!((moves.took.len(), moves.lost), (0, 0));
        // Then that one is gone: the first is no help.
        let losses = [loss(begun, 1000, &[0], &[0]), loss(begun, 2000, &[1], &[1])];
        moves.add(&seen, &losses, Half::Right, never);
        assert_eq!((moves.took.len(), moves.lost), (0, 1));
        // Unless it has had something since: then the first has come back.
        let mut moves = Moves::default();
        moves.add(&seen, &losses, Half::Right, |loss| {
            Some(loss + Duration::from_secs(1))
        });
        assert_eq!((moves.took.len(), moves.lost), (0, 0));
    }

    #[test]
    fn a_partition_takes_other_servers_from_each_half() {
        let begun = Instant::now();
        let seen = changes(begun, &[(0, 0, true), (2500, 1, true)]);
        let losses = [loss(begun, 1000, &[1], &[0])];
        let (mut left, mut right) = (Moves::default(), Moves::default());
        left.add(&seen, &losses, Half::Left, never);
        right.add(&seen, &losses, Half::Right, never);
        assert_eq!((left.took.len(), left.lost), (0, 0));
        assert_eq!(right.took, [Duration::from_millis(1500)]);
    }

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let took = (1..=200).rev().map(Duration::from_millis).collect();
        let moves = Moves { took, lost: 0 };
        let within = [50, 99, 100].map(|percent| moves.within(percent).as_millis());
        assert_eq!(within, [100, 198, 200]);
        assert_eq!(Moves::default().within(99), Duration::ZERO);
    }
}
