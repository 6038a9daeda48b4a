//! What is shown of the server's certificate.

use prometheus::{Error, IntGauge, Registry};

use super::ServerIdentity;
use crate::telemetry::register;

/// Gauges of the certificate.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// When the certificate in use ends, in seconds since 1970; 0 if it cannot be told.
    pub expires: IntGauge,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let help = "When the certificate in use ends, or one of its chain, in seconds since 1970.";
        Ok(Self { expires: register::gauge(registry, "ncserverd_tls_certificate_expires_seconds", help)? })
    }

    /// Shows the certificate in use.
    pub fn show(&self, identity: &ServerIdentity) {
        self.expires.set(identity.validity().map_or(0, |validity| validity.until));
    }
}
