//! Prometheus metrics of the client in a gateway or relay.

use ncs_net::telemetry::register;
use prometheus::{Error, IntCounter, Registry};
use tokio::sync::watch;

use super::Stats;

/// Counters of a client, each with its source in [`Stats`].
#[derive(Debug, Clone)]
pub struct Metrics(Vec<(IntCounter, Source)>);

type Source = fn(&Stats) -> u64;

impl Metrics {
    /// Registers all metrics of the client.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let labelled = |name: &str, help: &str, label: &str| {
            register::counters(registry, name, help, &[label])
        };
        let blocks = labelled(
            "ncserverd_peer_blocks_total",
            "Requested blocks received: innovative, or useless (redundant).",
            "result",
        )?;
        let bytes = labelled(
            "ncserverd_peer_received_bytes_total",
            "Bytes of blocks received, from servers and from peers that servers had named.",
            "from",
        )?;
        let mut all: Vec<(IntCounter, Source)> = vec![
            (blocks.with_label_values(&["innovative"]), |stats| {
                stats.blocks_innovative
            }),
            (blocks.with_label_values(&["useless"]), |stats| {
                stats.blocks_useless
            }),
            (bytes.with_label_values(&["server"]), |stats| {
                stats.payload_bytes.saturating_sub(stats.neighbour_bytes)
            }),
            (bytes.with_label_values(&["peer"]), |stats| {
                stats.neighbour_bytes
            }),
        ];
        let plain: [(&str, &str, Source); 11] = [
            (
                "lost_datagrams",
                "Datagrams with blocks that were lost.",
                |stats| stats.datagrams_lost,
            ),
            (
                "repaired_datagrams",
                "Lost datagrams that other blocks replaced.",
                |stats| stats.blocks_repaired,
            ),
            (
                "ahead_blocks",
                "Repair blocks requested in advance, near a deadline.",
                |stats| stats.blocks_ahead,
            ),
            (
                "ahead_used_blocks",
                "Repair blocks requested in advance that replaced lost ones.",
                |stats| stats.blocks_ahead_used,
            ),
            (
                "spared_generations",
                "Generations that repair blocks requested in advance completed without another \
                 round trip.",
                |stats| stats.generations_spared,
            ),
            ("generations", "Generations received completely.", |stats| {
                stats.generations
            }),
            (
                "segments_verified",
                "Segments and whole objects received and verified.",
                |stats| stats.segments_verified,
            ),
            (
                "tested_blocks",
                "Blocks over the prime field tested by homomorphic hashes.",
                |stats| stats.blocks_tested,
            ),
            (
                "tests",
                "Batches of blocks tested by homomorphic hashes.",
                |stats| stats.tests,
            ),
            ("wrong_blocks", "Blocks proved wrong.", |stats| {
                stats.blocks_wrong
            }),
            (
                "polluters",
                "Sources no longer used because they sent wrong blocks as their own, or forged \
                 answers.",
                |stats| stats.polluters,
            ),
        ];
        for (name, help, of) in plain {
            all.push((
                register::counter(registry, &format!("ncserverd_peer_{name}_total"), help)?,
                of,
            ));
        }
        Ok(Self(all))
    }

    /// Copies each update of the client's counters, until the client ends.
    pub async fn follow(self, mut stats: watch::Receiver<Stats>) {
        while stats.changed().await.is_ok() {
            self.take(&stats.borrow_and_update());
        }
    }

    fn take(&self, stats: &Stats) {
        for (counter, of) in &self.0 {
            counter.inc_by(of(stats).saturating_sub(counter.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_follow_what_is_told() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.take(&Stats {
            payload_bytes: 100,
            neighbour_bytes: 30,
            blocks_ahead: 3,
            ..Stats::default()
        });
        metrics.take(&Stats {
            payload_bytes: 150,
            neighbour_bytes: 60,
            blocks_ahead: 7,
            ..Stats::default()
        });
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        for line in [
            "ncserverd_peer_received_bytes_total{from=\"server\"} 90",
            "ncserverd_peer_received_bytes_total{from=\"peer\"} 60",
            "ncserverd_peer_ahead_blocks_total 7",
            "ncserverd_peer_lost_datagrams_total 0",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(Metrics::new(&registry).is_err(), "they are registered once");
    }
}
