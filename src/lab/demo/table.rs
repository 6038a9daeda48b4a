//! The table at the end of the demo.

use std::fmt;
use std::time::Duration;

use super::Report;
use crate::peer::Stats;

/// The results of one peer.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The peer's number, from 1.
    pub peer: u16,
    /// Segments equal to the origin's.
    pub segments: usize,
    /// Segments of the clip.
    pub segments_expected: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks received.
    pub blocks: u64,
    /// Innovative blocks.
    pub innovative: u64,
    /// Redundant blocks.
    pub useless: u64,
    /// Lost datagrams replaced by other coded blocks.
    pub repaired: u64,
    /// The loss rate of datagrams with blocks to this peer, 0 to 1.
    pub loss: f64,
    /// From the start of the connection to the last byte.
    pub time: Duration,
}

impl Row {
    pub(super) fn new(
        peer: u16,
        segments: usize,
        segments_expected: usize,
        bytes: u64,
        stats: &Stats,
        time: Duration,
    ) -> Self {
        Self {
            peer,
            segments,
            segments_expected,
            bytes,
            blocks: stats.blocks_received,
            innovative: stats.blocks_innovative,
            useless: stats.blocks_useless,
            repaired: stats.blocks_repaired,
            loss: loss(stats),
            time,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>4}  {:>8}  {:>7}  {:>6}  {:>10}  {:>7}  {:>8}  {:>6}  {:>7}",
            "peer",
            "segments",
            "bytes",
            "blocks",
            "innovative",
            "useless",
            "repaired",
            "loss",
            "time"
        )?;
        for row in &self.rows {
            let segments = format!("{}/{}", row.segments, row.segments_expected);
            writeln!(
                f,
                "{:>4}  {segments:>8}  {:>7}  {:>6}  {:>10}  {:>7}  {:>8}  {:>4.1} %  {:>5.2} s",
                row.peer,
                row.bytes,
                row.blocks,
                row.innovative,
                row.useless,
                row.repaired,
                row.loss * 100.0,
                row.time.as_secs_f64()
            )?;
        }
        let verdict = if self.is_complete() {
            "every segment is the origin's, byte for byte (BLAKE3)"
        } else {
            "SEGMENTS ARE MISSING OR DIFFER from the origin's"
        };
        let repaired: u64 = self.rows.iter().map(|row| row.repaired).sum();
        writeln!(
            f,
            "\n{verdict};\ncoding repaired {repaired} lost datagrams, none was sent again"
        )
    }
}

/// The loss rate of datagrams with blocks.
pub(super) fn loss(stats: &Stats) -> f64 {
    share(
        stats.datagrams_lost,
        stats.datagrams_lost + stats.blocks_received + stats.blocks_late,
    )
}

#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(segments: usize) -> Row {
        let stats = Stats::default();
        Row::new(1, segments, 7, 1000, &stats, Duration::from_millis(1500))
    }

    #[test]
    fn a_missing_segment_is_told() {
        let whole = Report { rows: vec![row(7)] };
        assert!(whole.is_complete() && whole.to_string().contains("byte for byte"));
        let torn = Report {
            rows: vec![row(7), row(6)],
        };
        assert!(!torn.is_complete() && torn.to_string().contains("DIFFER"));
        assert!(torn.to_string().contains("6/7"));
        assert!(
            torn.to_string().lines().all(|line| line.len() <= 80),
            "{torn}"
        );
    }
}
