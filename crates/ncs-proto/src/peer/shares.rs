//! Splits the missing blocks of a generation so that all sources finish at the same time.

use std::time::Duration;

use super::ids::SourceId;

/// A source that can take more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) source: SourceId,
    /// Seconds until the first block could come: the round trip, and the time for what it has to
    /// send before.
    pub(super) backlog: f64,
    /// Blocks a second; more than 0.
    pub(super) rate: f64,
    /// Most blocks that it may be asked for.
    pub(super) room: u32,
}

impl Candidate {
    /// Blocks that it can send within this time.
    pub(super) fn within(&self, time: Duration) -> u32 {
        floor(((time.as_secs_f64() - self.backlog) * self.rate).max(0.0))
    }
}

/// Splits `blocks` among the candidates: each gets what it can send until the moment at which
/// everything has come. None gets more than its room, so the shares may add up to less. Candidates
/// without a share are left out.
pub(super) fn split(mut blocks: u32, mut candidates: Vec<Candidate>) -> Vec<(SourceId, u32)> {
    candidates.retain(|candidate| candidate.room > 0);
    candidates.sort_by(|a, b| {
        a.backlog
            .total_cmp(&b.backlog)
            .then(a.source.cmp(&b.source))
    });
    let mut shares: Vec<(SourceId, u32)> = Vec::new();
    // A candidate whose share exceeds its room drops out, and the rest is split again among the
    // others.
    while blocks > 0 && !candidates.is_empty() {
        let end = end(f64::from(blocks), &candidates);
        let wanted = |candidate: &Candidate| ((end - candidate.backlog) * candidate.rate).max(0.0);
        if let Some(full) = candidates
            .iter()
            .position(|candidate| wanted(candidate) >= f64::from(candidate.room))
        {
            let Candidate { source, room, .. } = candidates.remove(full);
            let share = room.min(blocks);
            blocks -= share;
            shares.push((source, share));
            continue;
        }
        // Whole blocks: the candidate that is nearest to its next one gets it.
        let mut given: Vec<(SourceId, u32, f64)> = Vec::new();
        for candidate in &candidates {
            let share = floor(wanted(candidate)).min(blocks);
            blocks -= share;
            given.push((
                candidate.source,
                share,
                wanted(candidate) - f64::from(share),
            ));
        }
        given.sort_by(|a, b| b.2.total_cmp(&a.2));
        for index in (0..given.len()).cycle().take(blocks as usize) {
            given[index].1 += 1;
        }
        shares.extend(given.into_iter().map(|(source, share, _)| (source, share)));
        blocks = 0;
    }
    shares.retain(|(_, share)| *share > 0);
    shares.sort_unstable();
    shares
}

/// When all of them together have sent this many blocks; they are sorted by backlog.
fn end(blocks: f64, candidates: &[Candidate]) -> f64 {
    let (mut rate, mut debt, mut end) = (0.0, 0.0, f64::INFINITY);
    for candidate in candidates {
        if candidate.backlog >= end {
            break;
        }
        rate += candidate.rate;
        debt += candidate.backlog * candidate.rate;
        end = (blocks + debt) / rate;
    }
    end
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, never negative"
)]
fn floor(value: f64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(source: u32, backlog: f64, rate: f64, room: u32) -> Candidate {
        Candidate {
            source: SourceId(source),
            backlog,
            rate,
            room,
        }
    }

    fn shares(blocks: u32, candidates: &[Candidate]) -> Vec<(u32, u32)> {
        split(blocks, candidates.to_vec())
            .into_iter()
            .map(|(source, share)| (source.0, share))
            .collect()
    }

    #[test]
    fn one_source_gets_all_that_it_has_room_for() {
        assert_eq!(shares(100, &[candidate(3, 1.0, 0.1, 500)]), [(3, 100)]);
        assert_eq!(shares(100, &[candidate(3, 1.0, 0.1, 60)]), [(3, 60)]);
        assert_eq!(shares(100, &[candidate(3, 1.0, 0.1, 0)]), []);
        assert_eq!(shares(0, &[candidate(3, 1.0, 0.1, 7)]), []);
        assert_eq!(shares(7, &[]), []);
    }

    #[test]
    fn shares_follow_the_rates() {
        let equal = [0, 1, 2, 3].map(|source| candidate(source, 0.05, 100.0, 1000));
        assert_eq!(shares(128, &equal), [(0, 32), (1, 32), (2, 32), (3, 32)]);
        let unlike = [
            candidate(0, 0.0, 300.0, 1000),
            candidate(1, 0.0, 100.0, 1000),
        ];
        assert_eq!(shares(100, &unlike), [(0, 75), (1, 25)]);
    }

    #[test]
    fn who_is_late_anyway_gets_nothing() {
        // The first has sent all of it before the second could begin.
        let far = [
            candidate(0, 0.02, 1000.0, 1000),
            candidate(1, 0.5, 1000.0, 1000),
        ];
        assert_eq!(shares(100, &far), [(0, 100)]);
        // Ten blocks' worth of backlog make ten blocks of difference.
        let behind = [
            candidate(0, 0.0, 100.0, 1000),
            candidate(1, 0.1, 100.0, 1000),
        ];
        assert_eq!(shares(100, &behind), [(0, 55), (1, 45)]);
    }

    #[test]
    fn what_one_has_no_room_for_the_others_get() {
        let full = [
            candidate(0, 0.0, 300.0, 10),
            candidate(1, 0.0, 100.0, 1000),
            candidate(2, 0.0, 100.0, 1000),
        ];
        assert_eq!(shares(100, &full), [(0, 10), (1, 45), (2, 45)]);
    }

    #[test]
    fn nothing_is_lost_or_made_up() {
        for blocks in 0..200 {
            for seed in 0..20_u32 {
                let wild = |source: u32| {
                    let x = seed * 31 + source * 17;
                    candidate(
                        source,
                        f64::from(x % 13) / 50.0,
                        1.0 + f64::from(x % 7) * 40.0,
                        x * 5 % 90,
                    )
                };
                let candidates: Vec<_> = (0..5).map(wild).collect();
                let shares = split(blocks, candidates.clone());
                let room: u32 = candidates.iter().map(|candidate| candidate.room).sum();
                assert_eq!(
                    shares.iter().map(|(_, share)| share).sum::<u32>(),
                    blocks.min(room)
                );
                for (source, share) in shares {
                    assert!(
                        share
                            <= candidates
                                .iter()
                                .find(|candidate| candidate.source == source)
                                .unwrap()
                                .room
                    );
                }
            }
        }
    }
}
