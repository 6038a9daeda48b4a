//! `ncserverd plan`: the resources of a server for a number of peers at a bitrate, from constants
//! measured on this machine.
//!
//! Two short measurements are made: the configured device's encoding rate for blocks of the planned
//! shape ([`crate::bench`]), and a server's cost of a QUIC packet and handshake ([`measure`]). The
//! rest is arithmetic without I/O: how segments are cut ([`layout`]), the size of a block on the
//! wire ([`overhead`]), and the sum over all peers ([`estimate`]).
//!
//! Every value that is neither measured nor given by the protocol is an assumption, a named
//! constant, and the text says so.

use std::io;
use std::time::Duration;

use crate::config::Config;
use crate::machine::Machine;
use crate::sizes::Sizes;
use crate::{bench, endpoint, stream, tls};

mod estimate;
mod layout;
mod measure;
mod overhead;
mod report;

use estimate::{Constants, Estimate};
use layout::Layout;

/// The planned load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Concurrent viewers.
    pub peers: u32,
    /// The bitrate of each viewer, in bits per second.
    pub bitrate: f64,
    /// The loss rate on the way to them, below 1.
    pub loss: f64,
    /// The duration of a segment.
    pub segment: Duration,
    /// The round trip to the viewers.
    pub rtt: Duration,
    /// Concurrent streams, each at the bitrate.
    pub streams: u32,
}

/// Options, measurements and results.
#[derive(Debug)]
pub struct Plan {
    options: Options,
    layout: Layout,
    constants: Constants,
    estimate: Estimate,
    /// The limits that a server with the configuration as it is has on this machine.
    sizes: Sizes,
    snippet: String,
}

impl Plan {
    /// Measures for about two seconds, and calculates.
    pub fn make(options: &Options, config: &Config) -> Result<Self, Error> {
        options.check()?;
        let (layout, machine) = (Layout::choose(options, config)?, Machine::here());
        let encode =
            bench::encode_rate(&config.device, layout.n(), layout.block_bytes(), ENCODE_FOR)?;
        let quic = measure::quic(&config.endpoint, &layout)?;
        let constants = Constants {
            encode,
            quic,
            cores: machine.cores,
        };
        let estimate = Estimate::new(options, config, &machine, &layout, &constants);
        let snippet = report::snippet(config, &layout, &estimate);
        Ok(Self {
            options: *options,
            layout,
            constants,
            estimate,
            sizes: config.sizes(&machine),
            snippet,
        })
    }

    /// The keys to set, as TOML: a complete configuration.
    pub fn snippet(&self) -> &str {
        &self.snippet
    }
}

impl Options {
    fn check(&self) -> Result<(), Error> {
        let faults = [
            (self.peers == 0, "peers must be at least 1"),
            (
                !self.bitrate.is_finite() || !(BITRATE_MIN..=BITRATE_MAX).contains(&self.bitrate),
                "the bitrate must be from 1k to 10G bits per second",
            ),
            (
                !(0.0..1.0).contains(&self.loss),
                "the loss must be at least 0 and below 1 (100 %)",
            ),
            (
                self.segment < SEGMENT_MIN || self.segment > SEGMENT_MAX,
                "a segment must play for 100ms to 10min",
            ),
            (
                self.rtt.is_zero() || self.rtt > RTT_MAX,
                "the round trip must be above 0 and at most 10s",
            ),
            (self.streams == 0, "streams must be at least 1"),
            (
                self.streams > self.peers,
                "there are more streams than peers",
            ),
        ];
        faults
            .into_iter()
            .find(|(is_wrong, _)| *is_wrong)
            .map_or(Ok(()), |(_, text)| Err(Error::Options(text)))
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options are invalid.
    #[error("{0}")]
    Options(&'static str),
    /// Segments cannot be cut in this shape.
    #[error("{0}")]
    Shape(#[from] stream::Fault),
    /// The code uses other arithmetic than is measured here.
    #[error(
        "codec = \"rlnc-q\" is not supported here: measure arithmetic over the prime field with \
         `ncbench papers --paper s3`"
    )]
    Gfq,
    /// Encoding could not be measured.
    #[error("cannot measure encoding: {0}")]
    Encode(#[from] bench::Error),
    /// No endpoint could be opened.
    #[error("cannot measure QUIC: {0}")]
    Endpoint(#[from] endpoint::Error),
    /// No certificate could be generated.
    #[error("cannot measure QUIC: {0}")]
    Tls(#[from] tls::Error),
    /// The system has no socket or thread left.
    #[error("cannot measure QUIC: {0}")]
    System(#[from] io::Error),
    /// A connection over loopback failed or ended.
    #[error("cannot measure QUIC over loopback: {0}")]
    Transfer(String),
}

const ENCODE_FOR: Duration = Duration::from_millis(500);
const BITRATE_MIN: f64 = 1e3;
const BITRATE_MAX: f64 = 1e10;
const SEGMENT_MIN: Duration = Duration::from_millis(100);
const SEGMENT_MAX: Duration = Duration::from_secs(600);
const RTT_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const OPTIONS: Options = Options {
        peers: 10_000,
        bitrate: 768_000.0,
        loss: 0.0,
        segment: Duration::from_secs(4),
        rtt: Duration::from_millis(50),
        streams: 1,
    };

    #[test]
    fn nonsense_is_refused() {
        assert!(OPTIONS.check().is_ok());
        for (options, word) in [
            (
                Options {
                    peers: 0,
                    ..OPTIONS
                },
                "peers",
            ),
            (
                Options {
                    bitrate: 0.0,
                    ..OPTIONS
                },
                "bitrate",
            ),
            (
                Options {
                    bitrate: f64::NAN,
                    ..OPTIONS
                },
                "bitrate",
            ),
            (
                Options {
                    loss: 1.0,
                    ..OPTIONS
                },
                "loss",
            ),
            (
                Options {
                    loss: -0.1,
                    ..OPTIONS
                },
                "loss",
            ),
            (
                Options {
                    loss: f64::NAN,
                    ..OPTIONS
                },
                "loss",
            ),
            (
                Options {
                    segment: Duration::ZERO,
                    ..OPTIONS
                },
                "segment",
            ),
            (
                Options {
                    rtt: Duration::ZERO,
                    ..OPTIONS
                },
                "round trip",
            ),
            (
                Options {
                    streams: 0,
                    ..OPTIONS
                },
                "streams",
            ),
            (
                Options {
                    streams: 10_001,
                    ..OPTIONS
                },
                "streams",
            ),
        ] {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(word), "{options:?}: {error}");
        }
    }
}
