//! What is simulated: how many viewers, how they are joined, and what their lines are like.

use std::time::Duration;

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// Who draws on whom.
    pub(crate) layout: Layout,
    /// Viewers at a time.
    pub(crate) viewers: usize,
    /// Segments of the stream, and how many at its beginning do not count, while viewers have no
    /// neighbours yet.
    pub(crate) segments: usize,
    pub(crate) warm_up: usize,
    /// What a viewer sends and takes at most, in bitrates of the stream.
    pub(crate) upload: f64,
    pub(crate) download: f64,
    /// Share of the datagrams that each path, or each hop, loses.
    pub(crate) loss: f64,
    /// From one segment to the next. Without it all are there at once.
    pub(crate) interval: Duration,
    /// A segment that is complete later than this after its publication is late.
    pub(crate) latency: Duration,
    /// Share of the viewers that go within a minute, each followed by another.
    pub(crate) churn: f64,
    /// Shares of the viewers that offer to serve and send wrong blocks, or none.
    pub(crate) polluters: f64,
    pub(crate) mute: f64,
    pub(crate) seed: u64,
}

/// Who draws on whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Each viewer on the server alone.
    Star,
    /// Viewers on the server, and on each other as its directory says: `peers = "all"`.
    Swarm,
    /// The same in networks of so many viewers, each introduced to its own network only: `peers =
    /// "lan"`.
    Lans(usize),
    /// Viewers behind relays that recode, in so many tiers of so many below each node.
    Tree { hops: usize, fan_out: usize },
    /// Viewers at the end of paths of so many hops, whose nodes forward what arrives and store
    /// nothing.
    Forwarded { hops: usize },
}

impl Default for Setup {
    /// A live stream to one viewer.
    fn default() -> Self {
        Self {
            layout: Layout::Star,
            viewers: 1,
            segments: 14,
            warm_up: 4,
            upload: 1.0,
            download: 10.0,
            loss: 0.01,
            interval: INTERVAL,
            latency: INTERVAL * 3,
            churn: 0.0,
            polluters: 0.0,
            mute: 0.0,
            seed: 1,
        }
    }
}

/// How long a segment plays.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);
/// A segment: generations, and blocks of each.
pub(crate) const GENERATIONS: usize = 4;
pub(crate) const N: u16 = 32;
/// Bytes that a block carries here, and those that it stands for on the wire.
pub(crate) const PAYLOAD: u32 = 16;
pub(crate) const NOMINAL: u32 = 1088;
/// IP, UDP, and what QUIC puts around a datagram.
pub(crate) const OVERHEAD: usize = 60;

/// Bytes a second of the stream.
pub(crate) fn bitrate() -> f64 {
    f64::from(NOMINAL) * segment_blocks() / INTERVAL.as_secs_f64()
}

pub(crate) fn segment_blocks() -> f64 {
    GENERATIONS as f64 * f64::from(N)
}
