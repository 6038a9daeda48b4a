//! Connections: what arrives on them, their beginning and their end, and what is logged of both.

use std::collections::BTreeSet;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use ncs_proto::wire::{CloseCode, Violation};
use quinn::{Connection, VarInt};
use tokio::sync::oneshot;

use super::link::{End, Fault, Happening, Link, Next, Read, Wires};
use super::{DATAGRAMS_A_TURN, Driver, Ready};
use crate::proto::{SourceId, StreamEnd};
use crate::{Error, Server};

/// A caller that waits for the first connection.
pub(super) struct Waiting {
    pub(super) reply: oneshot::Sender<Ready>,
    /// Servers that have not failed yet.
    pub(super) left: BTreeSet<SourceId>,
    /// Whether all others refused, or were refused because of their certificates.
    pub(super) is_refused: bool,
    /// When to report that no server answers, and keep trying; without it failure is final.
    pub(super) until: Option<Instant>,
}

impl Driver {
    /// Returns the number of datagrams.
    pub(super) fn happened(&mut self, link: &mut Link, happening: Happening) -> usize {
        let (source, mut datagrams) = (link.id, 0);
        let outcome = match happening {
            Happening::Connected => {
                let _entered = link.span.clone().entered();
                let now = Instant::now();
                self.neighbours.answered(source);
                self.proto
                    .handle_connected(now, source, link.shown.first(now));
                link.note_address();
                if let Some(identity) = link.identify() {
                    self.proto.identify(source, *identity.as_bytes());
                }
                Ok(())
            }
            Happening::NotConnected(fault) => {
                let _entered = link.span.clone().entered();
                let Fault {
                    reason,
                    is_refusal,
                    is_untrusted,
                    ..
                } = fault;
                self.say_fault(&link.server, source, &reason, is_refusal);
                if self.neighbours.failed(source, false) {
                    self.dismissed.push(source);
                }
                self.proto
                    .note_trouble(Instant::now(), source, reason.clone());
                let error = if is_untrusted {
                    Error::Untrusted(reason)
                } else {
                    Error::Connection(reason)
                };
                self.failed(source, error, is_refusal);
                Ok(())
            }
            Happening::Written => Ok(()),
            Happening::Silence(is_silent) => {
                if is_silent {
                    tracing::info!(
                        server = %link.server,
                        "the server is silent: trying a second connection",
                    );
                }
                self.proto.set_silent(source, is_silent);
                Ok(())
            }
            Happening::Ended(end) => Err(end),
            Happening::Control(bytes) => link
                .wires()
                .map_or(Ok(()), |wires| self.control(source, wires, &bytes)),
            Happening::Datagram(first) => match link.connection() {
                Some(connection) => self.datagrams(source, connection, first, &mut datagrams),
                None => Ok(()),
            },
            Happening::Stream(read) => link
                .wires()
                .map_or(Ok(()), |wires| self.stream(source, wires, read)),
        };
        if let Err(end) = outcome {
            self.end(link, end);
        }
        datagrams
    }

    fn control(&mut self, source: SourceId, wires: &mut Wires, bytes: &[u8]) -> Result<(), End> {
        let now = Instant::now();
        wires.frames.push(bytes);
        while let Some(message) = wires.frames.next()? {
            self.proto.handle_message(now, source, message)?;
        }
        Ok(())
    }

    fn datagrams(
        &mut self,
        source: SourceId,
        connection: &Connection,
        first: Bytes,
        count: &mut usize,
    ) -> Result<(), End> {
        let (now, mut next) = (Instant::now(), Some(Ok(first)));
        while let Some(datagram) = next {
            self.proto.handle_datagram(now, source, datagram?)?;
            *count += 1;
            next = if *count < DATAGRAMS_A_TURN {
                connection.read_datagram().now_or_never()
            } else {
                None
            };
        }
        Ok(())
    }

    fn stream(&mut self, source: SourceId, wires: &Wires, read: Read) -> Result<(), End> {
        let now = Instant::now();
        let Read {
            mut stream,
            chunks,
            end,
        } = read;
        let id = VarInt::from(stream.id()).into_inner();
        for chunk in chunks {
            self.proto.handle_stream(now, source, id, &chunk)?;
        }
        match end {
            Some(end) => self.proto.handle_stream_end(source, id, end)?,
            None if self.refused(source, id) => {
                // If the sender has ended it already, there is nothing to stop.
                let _ = stream.stop(VarInt::from_u32(CloseCode::Done.quic()));
                self.proto.handle_stream_end(
                    source,
                    id,
                    StreamEnd::Reset(u64::from(CloseCode::Done.quic())),
                )?;
            }
            None => wires.read_on(stream),
        }
        Ok(())
    }

    /// Whether the protocol has refused a stream. Only one that just delivered bytes can be
    /// refused.
    fn refused(&mut self, source: SourceId, stream: u64) -> bool {
        let mut refused = false;
        while let Some(stopped) = self.proto.poll_stop(source) {
            refused |= stopped == stream;
        }
        refused
    }

    /// Ends a connection, and prepares the next.
    pub(super) fn end(&mut self, link: &mut Link, end: End) {
        let _entered = link.span.clone().entered();
        // A slow server may merely have been cut off.
        let is_late = matches!(end, End::Violation(Violation::Timeout(_)));
        let is_silent = matches!(end, End::Silent(_));
        // However it ends, a server that was left is not connected again.
        let is_moved = self.alternates.has_left(link.id);
        let is_outage = is_silent || matches!(end, End::Left | End::SentOn(..));
        let next = match end {
            End::Silent(_) => Next::AtOnce,
            End::TurnedAway(_) => Next::WhenWanted,
            _ => Next::Soon,
        };
        let broke_the_rules = matches!(end, End::Violation(_) | End::Polluted) && !is_late;
        let (code, fault) = match end {
            End::Left if is_moved => (CloseCode::Done, "another server serves".to_owned()),
            End::SentOn(fault, servers) => {
                self.told(link.id, true, servers);
                (CloseCode::Done, fault)
            }
            End::Left => (CloseCode::Done, "the server is shutting down".to_owned()),
            End::Violation(violation) => {
                let peer = link.connection().map(Connection::remote_address);
                tracing::warn!(
                    server = %link.server,
                    ?peer,
                    %violation,
                    "the server violates the protocol",
                );
                (violation.close_code(), violation.to_string())
            }
            End::Lost(fault) | End::Silent(fault) | End::TurnedAway(fault) => {
                (CloseCode::Done, fault)
            }
            End::Polluted => {
                let peer = link.connection().map(Connection::remote_address);
                tracing::warn!(
                    server = %link.server,
                    ?peer,
                    "the server sent blocks that are proved wrong: no longer using it",
                );
                (
                    CloseCode::Pollution,
                    "proved to send wrong blocks".to_owned(),
                )
            }
        };
        if self.neighbours.is_one(link.id) || is_moved {
            tracing::debug!(peer = %link.server, fault, "the connection has ended");
        } else {
            tracing::info!(server = %link.server, fault, "the connection ended: reconnecting");
        }
        self.stats.reconnects +=
            u64::from(self.proto.server(link.id).is_some() || self.proto.is_leaving(link.id));
        link.end(code, &fault, next);
        self.hushed.remove(&link.id);
        if code == CloseCode::Pollution || is_moved {
            link.give_up();
        } else if broke_the_rules && link.note_breach() {
            tracing::warn!(
                server = %link.server,
                "the server violated the protocol twice in a row: pausing connections to it",
            );
        }
        self.proto
            .handle_disconnected(Instant::now(), link.id, is_outage);
        if self.neighbours.failed(link.id, broke_the_rules) {
            self.dismissed.push(link.id);
        }
        self.proto
            .note_trouble(Instant::now(), link.id, fault.clone());
        self.failed(link.id, Error::Connection(fault), false);
    }

    /// Notes that a source has no connection. The first caller is told when no source is left; if
    /// all servers have refused, the client ends.
    pub(super) fn failed(&mut self, source: SourceId, error: Error, is_refusal: bool) {
        let is_last = |waiting: &mut Waiting| {
            if waiting.left.remove(&source) {
                waiting.is_refused &= is_refusal;
            }
            waiting.left.is_empty()
        };
        if let Some(waiting) = self.ready.as_mut()
            && self.alternates.may_help(Instant::now())
        {
            // The servers that were named are waited for.
            is_last(waiting);
            return;
        }
        if let Some(waiting) = self.ready.take_if(is_last) {
            if waiting.until.is_none() || waiting.is_refused {
                // No caller will get a handle.
                self.commands.close();
            }
            let _ = waiting.reply.send(Err(error));
        }
    }

    /// Logs a connection that accepts requests.
    pub(super) fn say_connected(&mut self, links: &[Link], source: SourceId) {
        self.faults.remove(&source);
        let Some(link) = links.iter().find(|link| link.id == source) else {
            return;
        };
        let server = &link.server;
        if self.neighbours.is_one(source) {
            tracing::debug!(%server, "connected to a peer");
        } else if self.known.insert(source) {
            tracing::info!(%server, "connected");
        } else {
            tracing::info!(%server, "connected again");
        }
    }

    /// Logs why there is no connection, each reason once.
    fn say_fault(&mut self, server: &Server, source: SourceId, fault: &str, is_refusal: bool) {
        if self.neighbours.is_one(source)
            || self.faults.get(&source).is_some_and(|said| said == fault)
        {
            tracing::debug!(%server, fault, "no connection");
            return;
        }
        if is_refusal {
            tracing::warn!(
                %server,
                fault,
                "no connection to the server: certificate verification failed",
            );
        } else {
            tracing::info!(%server, fault, "no connection to the server: retrying");
        }
        self.faults.insert(source, fault.to_owned());
    }
}
