//! `ncserverd plan`: what so many peers at such a bitrate take of a server, by constants that are measured on this machine.
//!
//! Two short measurements are made: how fast the configured device encodes blocks of the planned shape ([`crate::bench`]), and what a packet
//! and a handshake of QUIC cost a server here ([`measure`]). The rest is arithmetic without I/O: how segments are cut ([`layout`]), what a
//! block is on the wire ([`overhead`]), and what it comes to for all peers ([`estimate`]).
//!
//! What is neither measured nor known from the protocol is an assumption, a constant with a name, and the text says so.

use std::io;
use std::time::Duration;

use crate::config::Config;
use crate::device::Threads;
use crate::{bench, endpoint, stream, tls};

mod estimate;
mod layout;
mod measure;
mod overhead;
mod report;

use estimate::{Constants, Estimate};
use layout::Layout;

/// What is planned for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Viewers at the same time.
    pub peers: u32,
    /// Bits a second of what each of them plays.
    pub bitrate: f64,
    /// The part of the packets that is lost on the way to them, below 1.
    pub loss: f64,
    /// How long a segment plays.
    pub segment: Duration,
    /// Round trip to the peers.
    pub rtt: Duration,
    /// Streams that are watched at the same time, each at the bitrate.
    pub streams: u32,
}

/// What was asked for, what was measured, and what it comes to.
#[derive(Debug)]
pub struct Plan {
    options: Options,
    layout: Layout,
    constants: Constants,
    estimate: Estimate,
    snippet: String,
}

impl Plan {
    /// Measures for about two seconds and reckons.
    pub fn make(options: &Options, config: &Config) -> Result<Self, Error> {
        options.check()?;
        let layout = Layout::choose(options, config)?;
        let encode = bench::encode_rate(&config.device, layout.n(), layout.block_bytes(), ENCODE_FOR)?;
        let quic = measure::quic(&config.endpoint, &layout)?;
        let constants = Constants { encode, quic, cores: Threads::Auto.count() };
        let estimate = Estimate::new(options, config, &layout, &constants);
        let snippet = report::snippet(config, &layout, &estimate);
        Ok(Self { options: *options, layout, constants, estimate, snippet })
    }

    /// The keys to set, as TOML: a configuration by itself.
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
            (!(0.0..1.0).contains(&self.loss), "the loss must be at least 0 and below 1 (100 %)"),
            (self.segment < SEGMENT_MIN || self.segment > SEGMENT_MAX, "a segment must play for 100ms to 10min"),
            (self.rtt.is_zero() || self.rtt > RTT_MAX, "the round trip must be above 0 and at most 10s"),
            (self.streams == 0, "streams must be at least 1"),
            (self.streams > self.peers, "there are more streams than peers"),
        ];
        faults.into_iter().find(|(is_wrong, _)| *is_wrong).map_or(Ok(()), |(_, text)| Err(Error::Options(text)))
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What is asked for makes no sense.
    #[error("{0}")]
    Options(&'static str),
    /// Segments cannot be cut like that.
    #[error("{0}")]
    Shape(#[from] stream::Fault),
    /// The code's arithmetic is another one than what is measured here.
    #[error("codec = \"rlnc-q\" is not supported here: measure arithmetic over the prime field with `ncbench papers --paper s3`")]
    Prime,
    /// Encoding could not be measured.
    #[error("cannot measure encoding: {0}")]
    Encode(#[from] bench::Error),
    /// There is no endpoint to measure with.
    #[error("cannot measure QUIC: {0}")]
    Endpoint(#[from] endpoint::Error),
    /// There is no certificate to measure with.
    #[error("cannot measure QUIC: {0}")]
    Tls(#[from] tls::Error),
    /// The system gives no socket or no thread.
    #[error("cannot measure QUIC: {0}")]
    System(#[from] io::Error),
    /// A connection over loopback did not come about, or ended.
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
            (Options { peers: 0, ..OPTIONS }, "peers"),
            (Options { bitrate: 0.0, ..OPTIONS }, "bitrate"),
            (Options { bitrate: f64::NAN, ..OPTIONS }, "bitrate"),
            (Options { loss: 1.0, ..OPTIONS }, "loss"),
            (Options { loss: -0.1, ..OPTIONS }, "loss"),
            (Options { loss: f64::NAN, ..OPTIONS }, "loss"),
            (Options { segment: Duration::ZERO, ..OPTIONS }, "segment"),
            (Options { rtt: Duration::ZERO, ..OPTIONS }, "round trip"),
            (Options { streams: 0, ..OPTIONS }, "streams"),
            (Options { streams: 10_001, ..OPTIONS }, "streams"),
        ] {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(word), "{options:?}: {error}");
        }
    }
}
