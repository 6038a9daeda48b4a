//! Lets the close of a connection leave even if its path is full.
//!
//! quinn-proto 0.11.19 holds a close back where congestion control would hold back the data queued
//! behind it. A closed connection reads no acknowledgements, so the path stays full, and the peer
//! is never told. This is quinn's issue 2785, fixed after that version: with the next one this file
//! can go. An unlimited window is harmless, because nothing but the close leaves any more.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ncs_proto::wire::CloseCode;
use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn::{Connection, VarInt};
use quinn_proto::RttEstimator;

use crate::endpoint::uplink::{Member, Uplink};

/// Closes a connection, and tells its peer at once.
pub fn close(connection: &Connection, code: CloseCode, reason: &str) {
    close_with(connection, VarInt::from_u32(code.quic()), reason);
}

/// The same with another protocol's code.
pub fn close_with(connection: &Connection, code: VarInt, reason: &str) {
    if let Ok(gate) = connection.congestion_state().into_any().downcast::<Gate>() {
        gate.is_open.store(true, Ordering::Relaxed);
    }
    connection.close(code, reason.as_bytes());
}

/// Wraps controllers in gates.
pub(super) struct Gated {
    pub(super) controllers: Arc<dyn ControllerFactory + Send + Sync>,
    /// The line that all connections share, if its rate is to be known.
    pub(super) uplink: Option<Uplink>,
}

impl ControllerFactory for Gated {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Gate {
            controller: Arc::clone(&self.controllers).build(now, current_mtu),
            member: self.uplink.as_ref().map(Uplink::member),
            is_open: Arc::default(),
        })
    }
}

/// A controller whose window can be lifted, for all of its clones.
struct Gate {
    controller: Box<dyn Controller>,
    member: Option<Member>,
    is_open: Arc<AtomicBool>,
}

impl Controller for Gate {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.controller.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        if let Some(member) = &mut self.member {
            member.acked(now, sent, bytes);
        }
        self.controller.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.controller
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.controller
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.controller.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        // Such a large window also disables pacing.
        if self.is_open.load(Ordering::Relaxed) {
            u64::MAX
        } else {
            self.controller.window()
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.controller.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            controller: self.controller.clone_box(),
            member: self.member.clone(),
            is_open: Arc::clone(&self.is_open),
        })
    }

    fn initial_window(&self) -> u64 {
        self.controller.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
