//! The size of a block on the wire: headers of docs/protocol.md, section 6, in packets of QUIC
//! version 1 over UDP and IPv4.

use super::layout::{Layout, Way};

/// A block on the wire, without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OnWire {
    /// Packets per block; blocks on a stream share packets.
    pub(super) packets: f64,
    /// Bytes of UDP payload.
    pub(super) udp_bytes: f64,
    /// The same with UDP and IPv4 headers.
    pub(super) wire_bytes: f64,
}

impl OnWire {
    pub(super) fn new(layout: &Layout) -> Self {
        let block = f64::from(layout.block_bytes()) + layout.header as f64;
        let (packets, udp_bytes) = match layout.way {
            Way::Datagrams => (1.0, block + PACKET + DATAGRAM_FRAME),
            Way::Streams => {
                let packets = block / (UDP_PAYLOAD_MAX - PACKET - STREAM_FRAME);
                (packets, packets * UDP_PAYLOAD_MAX)
            }
        };
        Self {
            packets,
            udp_bytes,
            wire_bytes: udp_bytes + packets * IP_AND_UDP,
        }
    }
}

/// Where path MTU discovery ends.
const UDP_PAYLOAD_MAX: f64 = 1452.0;
/// Short header: flags, 8 bytes of connection id, 2 of packet number; and the encryption tag.
const PACKET: f64 = 1.0 + 8.0 + 2.0 + 16.0;
/// Type and length.
const DATAGRAM_FRAME: f64 = 3.0;
/// Type, id, offset; the last frame of a packet omits the length.
const STREAM_FRAME: f64 = 1.0 + 2.0 + 4.0;
/// IPv6 has 20 more.
pub(super) const IP_AND_UDP: f64 = 20.0 + 8.0;

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::OPTIONS;
    use super::*;
    use crate::config::Config;

    /// From the record of many viewers: 1.025 to 1.030 bytes of UDP were received per byte of
    /// payload.
    #[test]
    fn blocks_on_streams_cost_what_was_counted() {
        let layout = Layout::choose(&OPTIONS, &Config::default()).unwrap();
        let block = OnWire::new(&layout);
        let factor = block.udp_bytes / 4096.0;
        assert!((1.02..1.031).contains(&factor), "{factor}");
        assert!(
            block.wire_bytes > block.udp_bytes && (2.8..3.0).contains(&block.packets),
            "{block:?}"
        );
    }

    #[test]
    fn a_block_in_a_datagram_is_a_packet() {
        let layout = Layout::choose(
            &Options {
                loss: 0.05,
                ..OPTIONS
            },
            &Config::default(),
        )
        .unwrap();
        let block = OnWire::new(&layout);
        assert_eq!(
            (block.packets, block.udp_bytes, block.wire_bytes),
            (1.0, 1128.0, 1156.0)
        );
    }
}
