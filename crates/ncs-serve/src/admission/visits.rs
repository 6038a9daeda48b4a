//! Visits: connections that a peer makes beside or in place of each other, and that count once.
//!
//! When a connection becomes silent, its peer tries another one before the first has timed out.
//! Both carry the same id, 128 random bits that only the peer and this server know. The later one
//! takes over the places of the earlier one, which is told to end. So a visit has one connection,
//! except for the moment until the earlier one has ended.
//!
//! A connection is also told to end where the fleet finds that its holder has too many.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ncs_proto::admission::account::Place;
use ncs_proto::wire::message::VisitId;
use tokio::sync::Notify;

use super::rolls::Seat;

/// The visits with a connection.
#[derive(Debug, Default)]
pub(super) struct Visits(Mutex<HashMap<VisitId, Weak<Visit>>>);

/// The places of a connection: at its address, and at the holder of its token.
pub(super) type Places = (Option<Arc<Place<IpAddr>>>, Option<Arc<Seat>>);

/// The same, as long as the connection holds them.
type Held = (Weak<Place<IpAddr>>, Weak<Seat>);

/// A connection of a visit, as seen by the next one.
#[derive(Debug, Default)]
pub(super) struct Visit {
    places: Mutex<Held>,
    /// Notified when the connection has to end.
    ends: Notify,
    /// Whether it has to because its holder has too many.
    is_limited: AtomicBool,
}

/// Why a connection has to end although its peer and its rights are in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Another connection of its visit has taken over.
    Replaced,
    /// Its holder has too many connections at all servers of the fleet together.
    Limited,
}

impl Visits {
    /// Makes this the connection of a visit. The earlier one is told to end, and returned.
    pub(super) fn take_over(&self, id: VisitId, visit: &Arc<Visit>) -> Option<Arc<Visit>> {
        let mut visits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = visits
            .insert(id, Arc::downgrade(visit))?
            .upgrade()
            .filter(|before| !Arc::ptr_eq(before, visit))?;
        before.end(Ending::Replaced);
        Some(before)
    }

    /// Notes the end of a connection.
    pub(super) fn leave(&self, id: &VisitId, visit: &Arc<Visit>) {
        let mut visits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if visits
            .get(id)
            .is_some_and(|known| known.as_ptr() == Arc::as_ptr(visit))
        {
            visits.remove(id);
        }
    }
}

impl Visit {
    /// Tells the connection to end.
    pub(super) fn end(&self, reason: Ending) {
        if reason == Ending::Limited {
            self.is_limited.store(true, Ordering::Relaxed);
        }
        self.ends.notify_one();
    }

    /// Completes when the connection has to end.
    pub(super) async fn ended(&self) -> Ending {
        self.ends.notified().await;
        match self.is_limited.load(Ordering::Relaxed) {
            true => Ending::Limited,
            false => Ending::Replaced,
        }
    }

    /// The places it holds.
    pub(super) fn places(&self) -> Places {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        (places.0.upgrade(), places.1.upgrade())
    }

    /// Records its places for the next connection.
    pub(super) fn note(&self, address: &Arc<Place<IpAddr>>, holder: Option<&Arc<Seat>>) {
        let holder = holder.map_or_else(Weak::new, Arc::downgrade);
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) =
            (Arc::downgrade(address), holder);
    }
}
