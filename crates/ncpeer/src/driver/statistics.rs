//! Statistics for the program.

use std::time::{Duration, Instant};

use quinn::Connection;

use super::link::Link;
use super::{Driver, STATS_EVERY};
use crate::{SourceStats, Stats};

impl Driver {
    pub(super) fn publish(&mut self, links: &[Link]) {
        let now = Instant::now();
        if now < self.published + STATS_EVERY && !self.proto.is_idle() {
            return;
        }
        self.published = now;
        self.renew(links);
        self.publish.send_replace(self.stats.clone());
    }

    /// Updates the statistics.
    pub(super) fn renew(&mut self, links: &[Link]) {
        let counts = self.proto.counts();
        let (loss, rate) = self.proto.path();
        let source = |link: &Link| SourceStats {
            server: link.server.clone(),
            hello: self.proto.server(link.id).cloned(),
            identity: link.identity,
            address: link.connection().map(Connection::remote_address),
            rtt: link.connection().map_or(Duration::ZERO, Connection::rtt),
            counts: self.proto.source_counts(link.id),
        };
        let sources: Vec<SourceStats> = links.iter().map(source).collect();
        let first = sources.iter().find(|source| source.hello.is_some());
        self.stats = Stats {
            connected: first.is_some(),
            address: first.map_or(self.stats.address, |first| first.address),
            server: first.map_or_else(|| self.stats.server.take(), |first| first.hello.clone()),
            rtt: first.map_or(self.stats.rtt, |first| first.rtt),
            blocks_received: counts.blocks,
            blocks_innovative: counts.innovative,
            blocks_useless: counts.useless,
            blocks_late: counts.late,
            blocks_systematic: counts.systematic,
            blocks_reassigned: counts.reassigned,
            datagrams_lost: counts.lost,
            blocks_repaired: counts.repaired,
            blocks_ahead: counts.ahead,
            blocks_ahead_used: counts.ahead_used,
            generations_spared: counts.generations_spared,
            blocks_tested: counts.tested,
            tests: counts.tests,
            blocks_wrong: counts.wrong,
            polluters: counts.polluters,
            segments_mended: counts.mended,
            rows_bytes: counts.kept_bytes,
            generations: counts.generations,
            generations_progressive: counts.generations_progressive,
            wire_bytes: self.wire_bytes_before + links.iter().map(Link::wire_bytes).sum::<u64>(),
            payload_bytes: counts.payload_bytes,
            neighbour_bytes: counts.neighbour_bytes,
            loss,
            rate,
            outages: self.proto.outages(),
            progress: self.proto.progress(),
            sources,
            ..std::mem::take(&mut self.stats)
        };
    }
}
