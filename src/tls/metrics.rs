//! What is shown of the server's certificate.

use prometheus::{Error, IntGauge, Registry};

use super::ServerIdentity;
use crate::telemetry::register;

/// Gauges of the certificate.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// When the certificate in use ends, in seconds since 1970; 0 if it cannot be told.
    pub expires: IntGauge,
    /// When it begins to count; as much.
    pub begins: IntGauge,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let ends = "When the certificate in use ends, or one of its chain, in seconds since 1970.";
        let begins = "When the certificate in use began to count, and all of its chain, in seconds since 1970.";
        Ok(Self {
            expires: register::gauge(registry, "ncserverd_tls_certificate_expires_seconds", ends)?,
            begins: register::gauge(registry, "ncserverd_tls_certificate_begins_seconds", begins)?,
        })
    }

    /// Shows the certificate in use.
    pub fn show(&self, identity: &ServerIdentity) {
        let validity = identity.validity();
        self.expires.set(validity.map_or(0, |validity| validity.until));
        self.begins.set(validity.map_or(0, |validity| validity.from));
    }
}
