//! What is counted in a run, and what is said of it.

use std::time::Duration;

use ncserverd::peer::proto::Counts;

use crate::setup::{NOMINAL, Setup, bitrate, segment_blocks};

/// What is counted while a swarm runs.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) server_blocks: u64,
    pub(crate) server_control: u64,
    /// Segments that viewers were told of, and how long those took that came.
    pub(crate) wanted: u64,
    pub(crate) delays: Vec<Duration>,
    /// Counters of those who have left.
    pub(crate) left: Vec<(Counts, Counts, u64)>,
    pub(crate) polluters: u64,
}

/// A run, in figures.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Bytes that the server sent for a viewer and segment, in segments: blocks, and all else.
    pub(crate) server: f64,
    pub(crate) control: f64,
    /// Blocks received over blocks needed: of the median viewer, and the most of any.
    pub(crate) received: (f64, f64),
    /// Share of blocks that brought nothing.
    pub(crate) useless: f64,
    /// Share of segments that were late, and how long they take, median and 99th percentile.
    pub(crate) late: f64,
    pub(crate) delay: (Duration, Duration),
    /// What viewers send, in bitrates: tenth percentile, median, 90th, most.
    pub(crate) upload: [f64; 4],
    /// Bytes of the stream a second that reach a viewer, in bitrates.
    pub(crate) goodput: f64,
    /// Times that somebody was found to pollute.
    pub(crate) polluters: u64,
    ratios: Vec<f64>,
    blocks: u64,
    useless_blocks: u64,
}

impl Ledger {
    pub(crate) fn control(&mut self, counts: bool, bytes: usize) {
        if counts {
            self.server_control += bytes as u64;
        }
    }
}

impl Outcome {
    pub(crate) fn new(setup: &Setup, mut ledger: Ledger, lasted: Duration) -> Self {
        let wanted = ledger.wanted.max(1) as f64;
        let segment = segment_blocks() * f64::from(NOMINAL);
        ledger.delays.sort_unstable();
        let at = |share: f64| {
            ledger
                .delays
                .get(place(ledger.delays.len(), share))
                .copied()
                .unwrap_or_default()
        };
        let in_time = ledger
            .delays
            .iter()
            .filter(|delay| **delay <= setup.latency)
            .count();
        let fetched = ledger.delays.len() as f64 * segment / setup.viewers as f64;
        let mut outcome = Self {
            server: ledger.server_blocks as f64 / wanted / segment,
            control: ledger.server_control as f64 / wanted / segment,
            received: (0.0, 0.0),
            useless: 0.0,
            late: 1.0 - in_time as f64 / wanted,
            delay: (at(0.5), at(0.99)),
            upload: [0.0; 4],
            goodput: fetched / lasted.as_secs_f64() / bitrate(),
            polluters: ledger.polluters,
            ratios: Vec::new(),
            blocks: 0,
            useless_blocks: 0,
        };
        for (counts, before, completed) in ledger.left {
            outcome.add(counts, before, completed);
        }
        outcome
    }

    /// All that the server sent for a viewer and segment, in segments.
    pub(crate) fn all(&self) -> f64 {
        self.server + self.control
    }

    /// What one viewer has counted, since what counts began.
    pub(crate) fn add(&mut self, counts: Counts, before: Counts, completed: u64) {
        let blocks = counts.blocks + counts.late - before.blocks - before.late;
        self.blocks += blocks;
        self.useless_blocks += counts.useless + counts.late - before.useless - before.late;
        if completed > 0 {
            self.ratios
                .push(blocks as f64 / completed as f64 / segment_blocks());
        }
    }

    /// `uploads`: bytes that each viewer sent of the segments that count.
    pub(crate) fn finish(mut self, setup: &Setup, mut uploads: Vec<u64>) -> Self {
        self.ratios.sort_unstable_by(f64::total_cmp);
        uploads.sort_unstable();
        let ratio = |share: f64| {
            self.ratios
                .get(place(self.ratios.len(), share))
                .copied()
                .unwrap_or_default()
        };
        let whole = (setup.segments - setup.warm_up) as f64 * segment_blocks() * f64::from(NOMINAL);
        let upload = |share: f64| {
            uploads
                .get(place(uploads.len(), share))
                .map_or(0.0, |bytes| *bytes as f64 / whole)
        };
        self.received = (ratio(0.5), ratio(1.0));
        self.upload = [upload(0.1), upload(0.5), upload(0.9), upload(1.0)];
        self.useless = self.useless_blocks as f64 / self.blocks.max(1) as f64;
        self
    }
}

fn place(length: usize, share: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list"
    )]
    let place = (length.saturating_sub(1) as f64 * share).round() as usize;
    place
}
