//! How segments are cut, and how their blocks are sent.

use std::num::NonZeroU16;

use super::{Error, Options};
use crate::block::Vector;
use crate::config::{Config, DATAGRAM_AFTER_DISCOVERY};
use crate::object::{Codec, FirstPass, Shape};
use crate::ring::LineKind;
use crate::stream;
use crate::wire::block::{datagram_header_len, record_header_len};

/// The layout of a planned segment.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// The shape of a segment, or of one of its parts.
    pub(super) shape: Shape,
    /// The configured maximum of blocks per generation: a short segment has fewer.
    pub(super) n_max: u16,
    /// The minimum number of generations per segment, if they are long enough.
    pub(super) generations_min: u16,
    /// Parts per segment of the playlist.
    pub(super) parts: u64,
    pub(super) way: Way,
    /// The size of a block's header.
    pub(super) header: usize,
    pub(super) codec: Codec,
    /// Whether source blocks are sent first, so that only replacements of lost ones are coded.
    pub(super) is_source_first: bool,
    /// Why n and k were chosen.
    pub(super) reason: String,
    kind: LineKind,
}

/// How blocks are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Each in a packet of its own; a lost one is replaced by another coded one.
    Datagrams,
    /// On streams; QUIC retransmits losses.
    Streams,
}

impl Layout {
    /// n and k of the first configured stream; without one, the defaults, or, at high loss, blocks
    /// that fit datagrams.
    pub(super) fn choose(options: &Options, config: &Config) -> Result<Self, Error> {
        let default = stream::Config::default();
        let (stream, reason) = match config.stream.iter().next() {
            Some((name, stream)) => (stream.clone(), format!("from stream `{name}`")),
            None if options.loss < LOSSY => (
                default,
                "the defaults; loss is low, and QUIC retransmits lost data".to_owned(),
            ),
            None => (
                stream::Config {
                    n_max: LOSSY_N,
                    block_bytes: LOSSY_BLOCK_BYTES,
                    ..default
                },
                "small enough for datagrams, where coding repairs loss".to_owned(),
            ),
        };
        let stream::Config {
            n_max,
            generations_min,
            block_bytes,
            ..
        } = stream;
        // Invalid codes were refused when the configuration was loaded.
        let codec = stream.codec().unwrap_or_default();
        if codec.is_gfq() {
            return Err(Error::Gfq);
        }
        let is_source_first = !codec.is_recodable() || stream.first_pass == FirstPass::Systematic;
        let object = object_bytes(options);
        let part = object.min(config.ingest.segment_max_bytes.as_u64());
        let shape = stream.shape(part)?;
        let n = shape.n_max();
        let kind = LineKind::coded(stream.row_weight.and_then(NonZeroU16::new), n);
        let vector = match codec {
            Codec::ReedSolomon { .. } => Vector::Shard(0),
            Codec::RaptorQ => Vector::Symbol(0),
            Codec::RlncQ { .. } => Vector::Narrow(vec![0; 4 * usize::from(n)].into()),
            Codec::Rlnc if kind.is_explicit() => Vector::Explicit(vec![0; n.into()].into()),
            Codec::Rlnc => Vector::Seed(0),
        };
        let in_datagram = datagram_header_len(&vector);
        let fits = in_datagram as u64 + u64::from(block_bytes) <= DATAGRAM_AFTER_DISCOVERY;
        let (way, header) = match fits && config.session.datagrams {
            true => (Way::Datagrams, in_datagram),
            false => (Way::Streams, record_header_len(&vector)),
        };
        let parts = object.div_ceil(part);
        Ok(Self {
            shape,
            n_max,
            generations_min,
            parts,
            way,
            header,
            codec,
            is_source_first,
            reason,
            kind,
        })
    }

    /// Blocks of the longest generation.
    pub(super) fn n(&self) -> u16 {
        self.shape
            .generation(0)
            .map_or(1, |generation| generation.n)
    }

    pub(super) fn block_bytes(&self) -> u32 {
        self.shape.block_bytes()
    }

    /// Memory of a block in the ring.
    pub(super) fn slot_bytes(&self) -> u64 {
        u64::from(self.codec.coded_bytes(self.block_bytes()))
            + self.kind.headroom(self.codec, self.shape.n_max()) as u64
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "options are checked: at most 750 GB"
)]
fn object_bytes(options: &Options) -> u64 {
    (options.bitrate / 8.0 * options.segment.as_secs_f64()).ceil() as u64
}

/// The loss rate from which blocks in datagrams are worth their headers.
const LOSSY: f64 = 0.01;
/// The values that README and docs/protocol.md, section 6, recommend for every path, including
/// recoded blocks.
const LOSSY_N: u16 = 64;
const LOSSY_BLOCK_BYTES: u32 = 1088;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::OPTIONS;
    use super::*;

    fn choose(options: &Options) -> Layout {
        Layout::choose(options, &Config::default()).unwrap()
    }

    #[test]
    fn the_segment_decides_the_generations() {
        let layout = choose(&OPTIONS);
        // As the server cuts it: 23 parts of at least 16 KiB, in whole blocks.
        assert_eq!(
            (
                layout.shape.length(),
                layout.shape.generations(),
                layout.n(),
                layout.n_max
            ),
            (384_000, 19, 5, 128)
        );
        assert_eq!(
            (layout.way, layout.header, layout.block_bytes()),
            (Way::Streams, 5, 4096)
        );
        let fast = choose(&Options {
            bitrate: 8e6,
            ..OPTIONS
        });
        assert_eq!(
            (fast.shape.generations(), fast.n(), fast.parts),
            (32, 31, 1)
        );
        let mut config = Config::default();
        config.stream.insert(
            "live".into(),
            stream::Config {
                generations_min: 1,
                ..stream::Config::default()
            },
        );
        let whole = Layout::choose(&OPTIONS, &config).unwrap();
        assert_eq!((whole.shape.generations(), whole.n()), (1, 94));
    }

    #[test]
    fn where_much_is_lost_blocks_fit_datagrams() {
        let layout = choose(&Options {
            loss: 0.01,
            ..OPTIONS
        });
        assert_eq!(
            (
                layout.way,
                layout.header,
                layout.block_bytes(),
                layout.n_max
            ),
            (Way::Datagrams, 10, 1088, 64)
        );
    }

    #[test]
    fn long_segments_are_parts() {
        let layout = choose(&Options {
            bitrate: 1e8,
            segment: Duration::from_secs(10),
            ..OPTIONS
        });
        assert_eq!((layout.shape.length(), layout.parts), (8 << 20, 15));
    }

    #[test]
    fn a_configured_stream_decides() {
        let mut config = Config::default();
        let stream = stream::Config {
            n_max: 32,
            block_bytes: 1024,
            row_weight: Some(16),
            ..stream::Config::default()
        };
        config.stream.insert("live".into(), stream);
        let layout = Layout::choose(&OPTIONS, &config).unwrap();
        assert_eq!(
            (layout.shape.n_max(), layout.way, layout.header),
            (32, Way::Datagrams, 6 + 32),
            "{layout:?}"
        );
        assert!(layout.reason.contains("`live`"));
        config.session.datagrams = false;
        assert_eq!(Layout::choose(&OPTIONS, &config).unwrap().way, Way::Streams);
    }
}
