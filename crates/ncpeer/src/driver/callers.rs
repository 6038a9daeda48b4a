//! Callers: their commands, and what happens to those who are gone or can get nothing.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ncs_proto::integrity::signing::StreamKey;
use ncs_proto::object::{SegmentId, Tree};
use ncs_proto::wire::message::{Holding, Meta};
use tokio::sync::{mpsc, oneshot};

use super::Driver;
use super::link::Link;
use super::segments::Rebuild;
use crate::Error;
use crate::flow::Flow;
use crate::proto::assembly::Assembly;
use crate::proto::{Answer, Failure, FetchId, Order, Place, SourceId, Urgency};

/// A command of the program.
pub(crate) enum Command {
    /// Request a path.
    Get {
        path: String,
        offset: u64,
        length: Option<u64>,
        of: Of,
        reply: oneshot::Sender<Result<Answer, Error>>,
    },
    /// Fetch a segment: its proved beginning as it grows, and all bytes in the end.
    Fetch {
        order: Order,
        place: Place,
        tree: Option<Tree>,
        flow: Arc<Flow>,
        reply: oneshot::Sender<Result<Bytes, Error>>,
    },
    /// Change the urgency of a segment.
    Urgency(SegmentId, Urgency),
    /// Subscribe to new segments.
    Subscribe {
        stream: String,
        news: mpsc::Sender<Meta>,
    },
    /// Tell servers that this side serves others, on this port and with this certificate.
    Offer { port: u16, identity: [u8; 32] },
    /// Tell servers what has changed in this side's holdings.
    Have(Vec<Holding>),
    /// Take this key for a stream's, or without one the key that the server names next.
    Pin(String, Option<StreamKey>),
    /// End, even if others hold handles.
    Close,
}

/// Whom a path is requested of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// All sources, one after the other.
    All,
    /// This source alone. If the second is true, it is to ask nobody else for it.
    One(SourceId, bool),
}

impl Driver {
    pub(super) fn command(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Get {
                path,
                offset,
                length,
                of,
                reply,
            } => {
                let request = match of {
                    Of::All => self.proto.get(now, &path, offset, length),
                    Of::One(source, held_only) => {
                        let of = (source, held_only);
                        self.proto.get_of(now, of, &path, offset, length)
                    }
                };
                self.gets.insert(request, reply);
            }
            Command::Fetch {
                order,
                place,
                tree,
                flow,
                reply,
            } => {
                let fetch = self.proto.fetch(now, order, Some(place));
                let assembly = Assembly::new(order.segment, order.shape, tree);
                let span = tracing::debug_span!("fetch", segment = ?order.segment);
                self.fetches.insert(
                    fetch,
                    Rebuild {
                        order,
                        assembly,
                        decoding: 0,
                        flow,
                        reply,
                        span,
                    },
                );
            }
            Command::Urgency(segment, urgency) => {
                // Cancelled fetches end soon; skip them.
                let wanted = self
                    .fetches
                    .iter_mut()
                    .filter(|(_, rebuild)| !rebuild.reply.is_closed());
                let meant = wanted.filter(|(_, rebuild)| rebuild.order.segment == segment);
                meant.for_each(|(fetch, rebuild)| {
                    rebuild.order.urgency = urgency;
                    self.proto.set_urgency(now, *fetch, urgency);
                });
            }
            Command::Subscribe { stream, news } => {
                let request = self.proto.subscribe(&stream);
                self.subscriptions.insert(request, news);
            }
            Command::Offer { port, identity } => {
                self.neighbours.set_own(identity);
                self.proto.offer(port, identity);
            }
            Command::Have(changed) => self.proto.tell_holdings(&changed),
            Command::Pin(stream, Some(key)) => self.proto.pin(Some(stream), key),
            Command::Pin(stream, None) => self.proto.unpin(&stream),
            Command::Close => self.commands.close(),
        }
    }

    /// Ends requests whose callers are gone.
    pub(super) fn drop_abandoned(&mut self) {
        self.gets.retain(|request, reply| {
            let wanted = !reply.is_closed();
            if !wanted {
                self.proto.cancel_get(*request);
            }
            wanted
        });
        self.fetches.retain(|fetch, rebuild| {
            let wanted = !rebuild.reply.is_closed();
            if !wanted {
                self.proto.cancel_fetch(*fetch);
            }
            wanted
        });
        self.subscriptions.retain(|request, news| {
            let wanted = !news.is_closed();
            if !wanted {
                self.proto.unsubscribe(*request);
            }
            wanted
        });
    }

    /// The error for a failure. After a stall it contains the last fault.
    pub(super) fn error(&self, links: &[Link], failure: Failure) -> Error {
        if failure != Failure::Stalled {
            return failure.into();
        }
        let cause = self.proto.trouble().map(|(source, what)| {
            let server = links
                .iter()
                .find(|link| link.id == source)
                .map(|link| link.server.address());
            server.map_or_else(|| what.to_owned(), |server| format!("{server}: {what}"))
        });
        Error::Stalled(cause)
    }

    /// No source is left: tell all callers why.
    pub(super) fn give_up(&mut self, links: &[Link]) {
        for (request, reply) in std::mem::take(&mut self.gets) {
            self.proto.cancel_get(request);
            let _ = reply.send(Err(self.error(links, Failure::Stalled)));
        }
        // Some are complete, and being decoded.
        let open: Vec<FetchId> = self
            .fetches
            .keys()
            .copied()
            .filter(|fetch| self.proto.is_under_way(*fetch))
            .collect();
        for fetch in open {
            self.proto.cancel_fetch(fetch);
            if let Some(rebuild) = self.fetches.remove(&fetch) {
                let _ = rebuild.reply.send(Err(self.error(links, Failure::Stalled)));
            }
        }
    }
}
