//! The credit of one request: blocks that were requested, that have come, and that will not come
//! any more.
//!
//! Streams lose nothing. Datagrams are numbered by the sender, so a gap in the numbers is a block
//! that is late or lost. It is lost once [`REORDER`] later ones have come, or, when the sender has
//! announced its silence (LAST), after a quarter of a round trip. A block that comes after it was
//! given up counts like any other, and is subtracted from the losses.

use crate::sorted::SortedMap;
use std::time::Duration;

use crate::time::Instant;

/// This many later datagrams prove that one is lost.
const REORDER: u8 = 3;

/// The credit of one request, and its blocks.
#[derive(Debug)]
pub(super) struct Flight {
    credited: u64,
    received: u64,
    lost: u64,
    /// The number that follows the highest seen.
    next: u64,
    /// Numbers that were skipped. Never more than the credit given.
    gaps: SortedMap<u64, Gap>,
    /// Whether blocks have come by datagram, and by stream.
    by_datagram: bool,
    by_stream: bool,
    /// When a block last came.
    came_at: Option<Instant>,
    begun_at: Instant,
    credited_at: Instant,
    silences: u32,
    /// The first number of the credit given last, which no earlier credit brings, until a block has
    /// told the round trip.
    untimed_from: Option<u64>,
    /// Whether the sender had other blocks to send when that credit was given.
    was_busy: bool,
}

#[derive(Debug)]
enum Gap {
    Late {
        since: Instant,
        later: u8,
        silent: bool,
    },
    Lost,
}

/// What a block is to its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Expected.
    New,
    /// Given up before.
    Returned,
    /// Received already: the network delivered it twice.
    Duplicate,
    /// Beyond the credit.
    Excess,
}

impl Flight {
    /// A request that is sent now with this much credit. `was_busy`: the sender has other blocks to
    /// send.
    pub(super) fn new(now: Instant, credit: u32, was_busy: bool) -> Self {
        Self {
            credited: u64::from(credit),
            received: 0,
            lost: 0,
            next: 0,
            gaps: SortedMap::new(),
            by_datagram: false,
            by_stream: false,
            came_at: None,
            begun_at: now,
            credited_at: now,
            silences: 0,
            untimed_from: Some(0),
            was_busy,
        }
    }

    /// How long the first block of the credit given last took, once, and whether the sender was
    /// busy.
    pub(super) fn take_round_trip(&mut self, now: Instant) -> Option<(Duration, bool)> {
        self.untimed_from.take_if(|from| *from < self.next)?;
        let took = now.saturating_duration_since(self.credited_at);
        Some((took, self.was_busy))
    }

    /// The same for a request that follows others, which this many silences in a row have ended.
    pub(super) fn after(self, silences: u32) -> Self {
        Self { silences, ..self }
    }

    /// The same for a request whose blocks come on a stream in any case.
    pub(super) fn on_stream(self) -> Self {
        Self {
            by_stream: true,
            ..self
        }
    }

    /// Blocks that may still come.
    pub(super) fn in_flight(&self) -> u64 {
        self.credited.saturating_sub(self.received + self.lost)
    }

    /// Credit given, in blocks.
    pub(super) fn credited(&self) -> u64 {
        self.credited
    }

    /// Blocks that have come or may still come.
    pub(super) fn kept(&self) -> u32 {
        u32::try_from(self.credited.saturating_sub(self.lost)).unwrap_or(u32::MAX)
    }

    /// Datagrams that were given up.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Datagrams that were skipped and have not come.
    pub(super) fn missed(&self) -> usize {
        self.gaps.len()
    }

    /// When a block last came, or credit was last given.
    pub(super) fn heard(&self) -> Instant {
        self.came_at
            .map_or(self.credited_at, |came_at| came_at.max(self.credited_at))
    }

    /// When a block last came.
    pub(super) fn came_at(&self) -> Option<Instant> {
        self.came_at
    }

    /// When the request was sent.
    pub(super) fn begun_at(&self) -> Instant {
        self.begun_at
    }

    /// When credit was last given.
    pub(super) fn credited_at(&self) -> Instant {
        self.credited_at
    }

    /// How many silences in a row have been answered with a probe.
    pub(super) fn silences(&self) -> u32 {
        self.silences
    }

    /// Whether all blocks come on a stream, so that silence means waiting and not loss.
    pub(super) fn is_reliable(&self) -> bool {
        self.by_stream && !self.by_datagram
    }

    /// Whether a block has come by datagram.
    pub(super) fn has_datagrams(&self) -> bool {
        self.by_datagram
    }

    /// Gives more credit. `was_busy`: the sender has other blocks to send.
    pub(super) fn credit(&mut self, now: Instant, blocks: u32, was_busy: bool) {
        (self.untimed_from, self.was_busy) = (Some(self.credited), was_busy);
        self.credited += u64::from(blocks);
        self.credited_at = now;
    }

    /// Gives more credit because of a silence.
    pub(super) fn probe(&mut self, now: Instant, blocks: u32) {
        self.credit(now, blocks, true);
        self.silences += 1;
    }

    /// Takes a block on the request's stream.
    pub(super) fn record(&mut self, now: Instant) -> Arrival {
        if self.received >= self.credited {
            return Arrival::Excess;
        }
        self.by_stream = true;
        self.arrived(now);
        Arrival::New
    }

    /// Takes a block in a datagram with this number. Also returns how many others are given up
    /// because of it.
    pub(super) fn datagram(&mut self, now: Instant, seq: u16, last: bool) -> (Arrival, u64) {
        let number = self.unwrap(seq);
        if number >= self.credited {
            return (Arrival::Excess, 0);
        }
        let mut arrival = Arrival::New;
        if number < self.next {
            match self.gaps.remove(&number) {
                None => return (Arrival::Duplicate, 0),
                Some(Gap::Lost) => {
                    self.lost -= 1;
                    arrival = Arrival::Returned;
                }
                Some(Gap::Late { .. }) => {}
            }
        } else {
            self.gaps.extend((self.next..number).map(|missed| {
                (
                    missed,
                    Gap::Late {
                        since: now,
                        later: 0,
                        silent: false,
                    },
                )
            }));
            self.next = number + 1;
        }
        self.by_datagram = true;
        self.arrived(now);
        (arrival, self.pass(number, last))
    }

    /// Gives up late blocks that will not come. Returns how many.
    pub(super) fn give_up(&mut self, now: Instant, patience: Duration) -> u64 {
        let mut given_up = 0;
        for gap in self.gaps.values_mut() {
            if matches!(gap, Gap::Late { since, silent: true, .. } if *since + patience <= now) {
                *gap = Gap::Lost;
                given_up += 1;
            }
        }
        self.lost += given_up;
        given_up
    }

    /// When [`Flight::give_up`] has something to do.
    pub(super) fn give_up_at(&self, patience: Duration) -> Option<Instant> {
        let late = self.gaps.values().filter_map(|gap| match gap {
            Gap::Late {
                since,
                silent: true,
                ..
            } => Some(*since + patience),
            _ => None,
        });
        late.min()
    }

    fn arrived(&mut self, now: Instant) {
        self.received += 1;
        self.came_at = Some(now);
        self.silences = 0;
    }

    /// Counts a datagram against the gaps before it.
    fn pass(&mut self, number: u64, last: bool) -> u64 {
        let mut given_up = 0;
        for gap in self.gaps.values_below_mut(&number) {
            if let Gap::Late { later, silent, .. } = gap {
                *later += 1;
                *silent |= last;
                if *later >= REORDER {
                    *gap = Gap::Lost;
                    given_up += 1;
                }
            }
        }
        self.lost += given_up;
        given_up
    }

    /// The full number behind the 16 bits that are sent: the one nearest to the expected one.
    fn unwrap(&self, seq: u16) -> u64 {
        let [.., high, low] = self.next.to_be_bytes();
        let ahead = seq.wrapping_sub(u16::from_be_bytes([high, low]));
        if ahead < 0x8000 {
            self.next + u64::from(ahead)
        } else {
            self.next.saturating_sub(u64::from(ahead.wrapping_neg()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(25);

    fn flight(credit: u32) -> (Flight, Instant) {
        let now = Instant::now();
        (Flight::new(now, credit, false), now)
    }

    #[test]
    fn three_later_ones_prove_a_loss() {
        let (mut flight, now) = flight(10);
        assert_eq!(flight.datagram(now, 0, false), (Arrival::New, 0));
        assert_eq!(flight.datagram(now, 2, false), (Arrival::New, 0));
        assert_eq!(flight.datagram(now, 3, false), (Arrival::New, 0));
        assert_eq!(flight.datagram(now, 4, false), (Arrival::New, 1));
        assert_eq!((flight.in_flight(), flight.lost()), (5, 1));
        // It comes late.
        assert_eq!(flight.datagram(now, 1, false), (Arrival::Returned, 0));
        assert_eq!((flight.in_flight(), flight.lost()), (5, 0));
        assert_eq!(flight.datagram(now, 1, false), (Arrival::Duplicate, 0));
    }

    #[test]
    fn after_the_last_one_patience_is_short() {
        let (mut flight, now) = flight(4);
        flight.datagram(now, 0, false);
        assert_eq!(flight.give_up_at(PATIENCE), None);
        flight.datagram(now, 3, true);
        assert_eq!(flight.give_up_at(PATIENCE), Some(now + PATIENCE));
        assert_eq!(flight.give_up(now, PATIENCE), 0);
        assert_eq!(flight.give_up(now + PATIENCE, PATIENCE), 2);
        assert_eq!(flight.in_flight(), 0);
        assert_eq!(flight.give_up_at(PATIENCE), None);
    }

    #[test]
    fn credit_bounds_what_is_taken() {
        let (mut flight, now) = flight(2);
        assert_eq!(flight.datagram(now, 2, false).0, Arrival::Excess);
        assert_eq!(flight.record(now), Arrival::New);
        assert_eq!(flight.record(now), Arrival::New);
        assert!(flight.is_reliable());
        assert_eq!(flight.record(now), Arrival::Excess);
        flight.credit(now, 1, false);
        assert_eq!(flight.record(now), Arrival::New);
    }

    #[test]
    fn the_first_block_of_a_credit_tells_the_round_trip() {
        let (mut flight, now) = flight(2);
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(flight.take_round_trip(at(5)), None);
        flight.datagram(at(20), 0, false);
        let took = Some((Duration::from_millis(20), false));
        assert_eq!(flight.take_round_trip(at(20)), took);
        assert_eq!(flight.take_round_trip(at(20)), None);
        flight.credit(at(30), 2, true);
        flight.datagram(at(31), 1, true);
        assert_eq!(
            flight.take_round_trip(at(31)),
            None,
            "the credit before brought it"
        );
        flight.datagram(at(60), 3, true);
        let took = Some((Duration::from_millis(30), true));
        assert_eq!(flight.take_round_trip(at(60)), took);
    }

    #[test]
    fn numbers_wrap() {
        let (mut flight, now) = flight(200_000);
        for number in 0..200_000u32 {
            let [.., high, low] = number.to_be_bytes();
            assert_eq!(
                flight.datagram(now, u16::from_be_bytes([high, low]), false),
                (Arrival::New, 0)
            );
        }
        assert_eq!(flight.in_flight(), 0);
    }
}
