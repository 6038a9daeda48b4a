//! The choice of congestion controller.

use std::fmt;
use std::sync::Arc;

use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig};
use serde::{Deserialize, Serialize};

pub(super) use filter::Floor;
pub use gate::{close, close_with};

use super::uplink::Uplink;

mod delay;
mod filter;
mod gate;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

/// The congestion controller of a sender. The figures in `docs/benchmarks/network.md`, "Lossy
/// paths", hold for the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// Loss-based (RFC 9438): fills the queue and treats every loss as congestion
    Cubic,
    /// Model-based, on delivery rate and round-trip time (BBR version 1, experimental in quinn)
    Bbr,
    /// Delay-based, on the queueing delay; falls back to loss beside flows that fill the queue
    #[default]
    Delay,
}

impl Congestion {
    /// The factory of a connection's controllers.
    pub fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        self.factory_on(None)
    }

    /// The same where all connections share a line, whose rate is measured.
    pub(super) fn factory_on(
        self,
        uplink: Option<&Uplink>,
    ) -> Arc<dyn ControllerFactory + Send + Sync> {
        let controllers: Arc<dyn ControllerFactory + Send + Sync> = match self {
            Self::Cubic => Arc::new(CubicConfig::default()),
            Self::Bbr => Arc::new(BbrConfig::default()),
            Self::Delay => Arc::new(delay::DelayConfig::new()),
        };
        Arc::new(gate::Gated {
            controllers,
            uplink: uplink.cloned(),
        })
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::Delay => "delay",
        })
    }
}
