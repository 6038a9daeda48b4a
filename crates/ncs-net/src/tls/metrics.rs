//! Metrics of the server's certificate.

use prometheus::{Error, IntGauge, Registry};

use super::ServerIdentity;
use crate::telemetry::register;

/// Gauges of the certificate.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// End of validity of the certificate in use, in seconds since 1970; 0 if its dates cannot be
    /// read.
    pub expires: IntGauge,
    /// Start of validity, in the same unit.
    pub begins: IntGauge,
}

impl Metrics {
    /// Registers all metrics of the certificate.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let ends = "End of validity of the certificate in use, or of one in its chain if that is \
                    earlier, in seconds since 1970.";
        let begins = "Start of validity of the certificate in use and of its whole chain, in \
                      seconds since 1970.";
        Ok(Self {
            expires: register::gauge(registry, "ncserverd_tls_certificate_expires_seconds", ends)?,
            begins: register::gauge(registry, "ncserverd_tls_certificate_begins_seconds", begins)?,
        })
    }

    /// Sets both for the certificate in use.
    pub fn show(&self, identity: &ServerIdentity) {
        let validity = identity.validity();
        self.expires
            .set(validity.map_or(0, |validity| validity.until));
        self.begins
            .set(validity.map_or(0, |validity| validity.from));
    }
}
