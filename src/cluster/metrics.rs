//! Metrics of the fleet.

use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::beat::Beat;
use super::counts;
use super::roster::Change;
use super::sharers;
use crate::telemetry::register;

/// Counters of beats, and a row for each server that lives.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Beats that were sent.
    pub sent: IntCounter,
    /// Beats that could not be sent.
    pub unsent: IntCounter,
    /// Beats that came.
    pub received: IntCounter,
    /// Messages that were no beats.
    pub unfit: IntCounter,
    /// Messages to other servers that were sent.
    pub messages_sent: IntCounter,
    /// Messages that could not be sent.
    pub messages_unsent: IntCounter,
    /// Messages that came.
    pub messages_received: IntCounter,
    /// Messages that came and cannot be read.
    pub messages_unfit: IntCounter,
    /// Whether the engine is reached.
    pub engine_up: IntGauge,
    /// The revision of the fleet's configuration that is in force, 0 for none.
    pub config_revision: IntGauge,
    /// The newest one that this server knows.
    pub config_newest: IntGauge,
    /// The hash of the one in force, as a number, 0 for none.
    pub config_hash: IntGauge,
    /// The hash of the newest one.
    pub config_newest_hash: IntGauge,
    /// Whether the last attempt to read it has succeeded.
    pub config_up: IntGauge,
    changes: IntCounterVec,
    members: IntGauge,
    unlike: IntGauge,
    lost: IntGauge,
    /// Holders here, owned and shared.
    holders: [IntGauge; 3],
    /// Peers that serve: those here, owned and found.
    sharers: [IntGauge; 3],
    viewers: IntGaugeVec,
    viewers_max: IntGaugeVec,
    busy: GaugeVec,
    draining: IntGaugeVec,
}

impl Metrics {
    /// Registers all metrics of the fleet.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let beats = register::counters(
            registry,
            "ncserverd_cluster_beats_total",
            "Beats sent to the other servers, not sent because the engine was not reached, and \
             received from all servers; and messages received that were none.",
            &["kind"],
        )?;
        let messages = register::counters(
            registry,
            "ncserverd_cluster_messages_total",
            "Messages sent to other servers, not sent because the engine or the other server does \
             not take them, and received; and of the latter, those that this version cannot read.",
            &["kind"],
        )?;
        let holders = register::gauges(
            registry,
            "ncserverd_cluster_holders",
            "Holders of tokens with a limit: those that use this server or have a share of it, \
             those that this server counts for the fleet, and those of them that are at several \
             servers.",
            &["kind"],
        )?;
        let sharers = register::gauges(
            registry,
            "ncserverd_cluster_sharers",
            "Peers that serve others: those of this server of which other servers are told, those \
             of all servers that this one keeps for the fleet, and those of other servers that it \
             may name to its viewers. A peer counts once for each stream.",
            &["kind"],
        )?;
        let of_server = |noun: &str, help: &str| {
            let name = format!("ncserverd_cluster_member_{noun}");
            register::gauges(registry, &name, help, &["server"])
        };
        let engine_up = register::gauge(
            registry,
            "ncserverd_cluster_engine_up",
            "Whether the engine that carries beats is reached. 1 without an engine.",
        )?;
        engine_up.set(1);
        let config_up = register::gauge(
            registry,
            "ncserverd_cluster_config_up",
            "Whether the fleet's configuration could be read from its store at the last attempt. \
             1 without one.",
        )?;
        config_up.set(1);
        let changes = register::counters(
            registry,
            "ncserverd_cluster_changes_total",
            "Changes among the other servers of the fleet, as this one has noticed them.",
            &["change"],
        )?;
        for kind in Change::KINDS {
            changes.with_label_values(&[kind]);
        }
        Ok(Self {
            sent: beats.with_label_values(&["sent"]),
            unsent: beats.with_label_values(&["unsent"]),
            received: beats.with_label_values(&["received"]),
            unfit: beats.with_label_values(&["unfit"]),
            messages_sent: messages.with_label_values(&["sent"]),
            messages_unsent: messages.with_label_values(&["unsent"]),
            messages_received: messages.with_label_values(&["received"]),
            messages_unfit: messages.with_label_values(&["unfit"]),
            engine_up,
            config_revision: register::gauge(
                registry,
                "ncserverd_cluster_config_revision",
                "The revision of the fleet's configuration that is in force on this server. 0 for \
                 none.",
            )?,
            config_newest: register::gauge(
                registry,
                "ncserverd_cluster_config_newest_revision",
                "The newest revision of the fleet's configuration that this server knows. 0 for \
                 none.",
            )?,
            config_hash: register::gauge(
                registry,
                "ncserverd_cluster_config_hash",
                "The first six bytes of the hash of the configuration in force, as a number: two \
                 servers with the same number have the same document. 0 for none.",
            )?,
            config_newest_hash: register::gauge(
                registry,
                "ncserverd_cluster_config_newest_hash",
                "The same of the newest configuration that this server knows. 0 for none.",
            )?,
            config_up,
            changes,
            holders: ["here", "owned", "shared"].map(|kind| holders.with_label_values(&[kind])),
            sharers: ["here", "owned", "found"].map(|kind| sharers.with_label_values(&[kind])),
            lost: register::gauge(
                registry,
                "ncserverd_cluster_lost_members",
                "Servers that have fallen silent within the last hour and not come back.",
            )?,
            unlike: register::gauge(
                registry,
                "ncserverd_cluster_unlike_members",
                "Servers of the fleet that do not have the same streams as this one, by name.",
            )?,
            members: register::gauge(
                registry,
                "ncserverd_cluster_members",
                "Servers of the fleet that live, this one among them.",
            )?,
            viewers: of_server("viewers", "Viewers that a server of the fleet serves.")?,
            viewers_max: of_server(
                "max_viewers",
                "Connections that a server of the fleet takes at most.",
            )?,
            busy: register::float_gauges(
                registry,
                "ncserverd_cluster_member_busy_ratio",
                "The busy share of the threads' time of a server of the fleet.",
                &["server"],
            )?,
            draining: of_server(
                "draining",
                "Whether a server of the fleet takes no newcomers because it is going to end.",
            )?,
        })
    }

    /// Shows a server as its last beat tells it.
    pub(super) fn show(&self, beat: &Beat) {
        let server = [beat.server.as_str()];
        let set = |gauge: &IntGaugeVec, value| gauge.with_label_values(&server).set(value);
        set(&self.viewers, beat.load.viewers.into());
        set(&self.viewers_max, beat.load.viewers_max.into());
        set(&self.draining, i64::from(beat.is_draining));
        self.busy.with_label_values(&server).set(beat.load.busy);
    }

    /// Shows how many servers live, and how many were lost.
    pub(super) fn set_members(&self, members: usize, lost: usize) {
        self.members.set(number(members));
        self.lost.set(number(lost));
    }

    /// Shows how many servers have other streams.
    pub(super) fn set_unlike(&self, servers: usize) {
        self.unlike.set(number(servers));
    }

    /// Shows how many holders are counted.
    pub(super) fn set_holders(&self, tally: counts::Tally) {
        set_all(&self.holders, [tally.here, tally.owned, tally.shared]);
    }

    /// Shows how many peers that serve are known.
    pub(super) fn set_sharers(&self, tally: sharers::Tally) {
        set_all(&self.sharers, [tally.here, tally.owned, tally.found]);
    }

    /// Counts a change, and forgets a server that is gone.
    pub(super) fn note(&self, change: &Change) {
        self.changes.with_label_values(&[change.kind()]).inc();
        let server = match change {
            Change::Left(server) | Change::Lost(server) => [server.as_str()],
            _ => return,
        };
        for gauge in [&self.viewers, &self.viewers_max, &self.draining] {
            let _ = gauge.remove_label_values(&server);
        }
        let _ = self.busy.remove_label_values(&server);
    }
}

fn set_all<const N: usize>(gauges: &[IntGauge; N], counts: [usize; N]) {
    let pairs = gauges.iter().zip(counts);
    pairs.for_each(|(gauge, count)| gauge.set(number(count)));
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
