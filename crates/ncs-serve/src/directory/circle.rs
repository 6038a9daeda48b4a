//! Circles: the peers that may be told of each other.

use std::net::IpAddr;

use ncs_proto::integrity::signing::StreamKey;

/// Peers that may be told of each other: programs, or pages, that follow a stream, in one network
/// if the stream's policy requires it. Servers with the same key of the stream name it alike, and
/// others do not, since their tickets do not count for each other's peers.
///
/// It is a hash, so that it is short: whoever knows the stream can find the network by trying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Circle(pub u128);

/// What peers of a circle are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Programs,
    Pages,
}

impl Circle {
    pub(super) fn new(kind: Kind, stream: &str, key: &StreamKey, network: Option<IpAddr>) -> Self {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        context.update(b"ncserverd 2026 circle");
        context.update(&[match kind {
            Kind::Programs => 0,
            Kind::Pages => 1,
        }]);
        context.update(key.as_bytes());
        match network {
            None => context.update(&[0]),
            Some(IpAddr::V4(network)) => {
                context.update(&[4]);
                context.update(&network.octets());
            }
            Some(IpAddr::V6(network)) => {
                context.update(&[6]);
                context.update(&network.octets());
            }
        }
        context.update(stream.as_bytes());
        let digest = context.finish();
        let first = digest.as_ref().first_chunk();
        Self(u128::from_be_bytes(*first.expect("a digest has 32 bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers of other versions must name circles alike.
    #[test]
    fn circles_are_what_they_were() {
        let key = StreamKey::from_bytes([7; 32]);
        let of = |kind, stream, network: Option<&str>| {
            let network = network.map(|network| network.parse().unwrap());
            Circle::new(kind, stream, &key, network).0
        };
        let all = [
            of(Kind::Programs, "live", None),
            of(Kind::Programs, "live", Some("192.0.2.0")),
            of(Kind::Programs, "live", Some("2001:db8::")),
            of(Kind::Programs, "vod", None),
            of(Kind::Pages, "live", None),
            Circle::new(
                Kind::Programs,
                "live",
                &StreamKey::from_bytes([8; 32]),
                None,
            )
            .0,
        ];
        assert_eq!(all[0], 85_664_863_698_331_228_428_542_217_968_612_599_925);
        for (index, circle) in all.iter().enumerate() {
            assert!(!all[..index].contains(circle), "{index}");
        }
    }
}
