//! Neighbours: peers that a server has named, from their introduction until they are forgotten.

use std::time::Instant;

use ncs_net::tls::Fingerprint;
use ncs_proto::object::SegmentId;
use ncs_proto::wire::CloseCode;
use ncs_proto::wire::message::Introduction;

use super::link::{Link, Next, Shown};
use super::{Driver, link_to};
use crate::Server;
use crate::neighbours::Advice;
use crate::proto::SourceId;

impl Driver {
    /// Handles a peer that a server has named for a segment.
    pub(super) fn named(&mut self, links: &mut Vec<Link>, segment: SegmentId, peer: Introduction) {
        let now = Instant::now();
        let (source, left) = match self.neighbours.named(now, &peer) {
            Advice::Known(source) => {
                if let Some(link) = links.iter_mut().find(|link| link.id == source)
                    && let Shown::Ticket(ticket, seen) = &mut link.shown
                    && *ticket != peer.ticket
                {
                    (*ticket, *seen) = (peer.ticket, false);
                }
                return self.proto.note_holding(source, segment);
            }
            Advice::Take(source) => (source, None),
            Advice::Exchange(source, left) => (source, Some(left)),
            Advice::Forbidden => {
                if !std::mem::replace(&mut self.has_left_private, true) {
                    let address = peer.address;
                    tracing::warn!(
                        %address,
                        "ignoring viewers at private addresses: use --private-peers to allow them",
                    );
                }
                return;
            }
            Advice::Leave => return,
        };
        self.dismissed.extend(left);
        if self.take_neighbour(links, source, peer) {
            self.proto.note_holding(source, segment);
        }
    }

    fn take_neighbour(
        &mut self,
        links: &mut Vec<Link>,
        source: SourceId,
        peer: Introduction,
    ) -> bool {
        let Introduction {
            address,
            identity,
            ticket,
            ..
        } = peer;
        let (host, fingerprint) = (
            address.ip().to_string(),
            Some(Fingerprint::from_bytes(identity)),
        );
        let server = Server {
            host,
            port: address.port(),
            fingerprint,
        };
        match link_to(source, server, Shown::Ticket(ticket, false), &self.config) {
            Ok(link) => {
                tracing::debug!(peer = %link.server, "a peer to draw on");
                self.proto.add_neighbour(source);
                links.push(link);
                true
            }
            Err(error) => {
                tracing::debug!(error, "no way to connect to a peer");
                self.neighbours.remove(source);
                false
            }
        }
    }

    /// Forgets former neighbours, and records what the others have sent.
    pub(super) fn dismiss(&mut self, links: &mut Vec<Link>) {
        let now = Instant::now();
        for source in std::mem::take(&mut self.dismissed) {
            if let Some(link) = links.iter_mut().find(|link| link.id == source) {
                if link.connection().is_some() {
                    link.end(CloseCode::Done, "not needed any more", Next::Soon);
                    self.proto.handle_disconnected(now, source, false);
                }
                self.wire_bytes_before += link.wire_bytes();
            }
            links.retain(|link| link.id != source);
            self.proto.remove_source(source);
            self.faults.remove(&source);
            for ids in [&mut self.known, &mut self.entrusted, &mut self.hushed] {
                ids.remove(&source);
            }
        }
        for link in links.iter() {
            if self.neighbours.is_one(link.id) {
                self.neighbours.brought(
                    now,
                    link.id,
                    self.proto.source_counts(link.id).payload_bytes,
                );
            }
        }
    }
}
