//! Metrics of admission. No label names a peer.

use ncs_net::telemetry::register;
use prometheus::{Error, IntCounter, IntCounterVec, IntGauge, Registry};

use super::token::TokenError;

/// Counters of tokens, keys and limits.
#[derive(Debug, Clone)]
pub struct Metrics {
    tokens: IntCounterVec,
    tickets: IntCounterVec,
    pub(super) certificates: IntCounter,
    limited: IntCounterVec,
    pub(super) keys: IntGauge,
    pub(super) reloads: IntCounterVec,
}

impl Metrics {
    /// Registers all metrics of admission, with all values of their labels.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let tokens = register::counters(
            registry,
            "ncserverd_admission_tokens_total",
            "Tokens presented by peers, by result.",
            &["result"],
        )?;
        ALL.iter()
            .for_each(|result| drop(tokens.with_label_values(&[result_of(*result)])));
        let tickets = register::counters(
            registry,
            "ncserverd_admission_tickets_total",
            "Tickets presented by peers, by result.",
            &["result"],
        )?;
        ["admitted", "refused"]
            .iter()
            .for_each(|result| drop(tickets.with_label_values(&[result])));
        let limited = register::counters(
            registry,
            "ncserverd_admission_limited_total",
            "Connections refused at the limit of their address, or closed at the limit of their \
             token or certificate, which this server or the fleet counts.",
            &["by"],
        )?;
        ["address", "token", "fleet"]
            .iter()
            .for_each(|by| drop(limited.with_label_values(&[by])));
        let reloads = register::counters(
            registry,
            "ncserverd_admission_reloads_total",
            "Reloads of keys or authorities: taken after a change, or failed.",
            &["result"],
        )?;
        ["taken", "failed"]
            .iter()
            .for_each(|result| drop(reloads.with_label_values(&[result])));
        Ok(Self {
            tokens,
            tickets,
            certificates: register::counter(
                registry,
                "ncserverd_admission_certificates_total",
                "Connections admitted by a client certificate.",
            )?,
            limited,
            keys: register::gauge(
                registry,
                "ncserverd_admission_keys",
                "Keys that verify tokens.",
            )?,
            reloads,
        })
    }

    pub(super) fn limited_by(&self, by: &str, connections: u64) {
        self.limited.with_label_values(&[by]).inc_by(connections);
    }

    pub(super) fn ticket_judged(&self, counts: bool) {
        self.tickets
            .with_label_values(&[if counts { "admitted" } else { "refused" }])
            .inc();
    }

    pub(super) fn judged(&self, result: Result<(), TokenError>) {
        self.tokens.with_label_values(&[result_of(result)]).inc();
    }
}

const ALL: [Result<(), TokenError>; 8] = [
    Ok(()),
    Err(TokenError::Malformed),
    Err(TokenError::UnknownKey),
    Err(TokenError::Forged),
    Err(TokenError::Expired),
    Err(TokenError::Early),
    Err(TokenError::Audience),
    Err(TokenError::Claims),
];

const fn result_of(result: Result<(), TokenError>) -> &'static str {
    match result {
        Ok(()) => "accepted",
        Err(TokenError::Malformed) => "malformed",
        Err(TokenError::UnknownKey) => "unknown_key",
        Err(TokenError::Forged) => "forged",
        Err(TokenError::Expired) => "expired",
        Err(TokenError::Early) => "early",
        Err(TokenError::Audience) => "audience",
        Err(TokenError::Claims) => "claims",
    }
}
