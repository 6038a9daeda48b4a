//! Connections of one visit: those that a peer makes beside or instead of each other, and which count once.
//!
//! A peer whose connection has fallen silent tries another one before the first has timed out. Both bear the same id, 128 random bits
//! of the peer's that only it and this server know. The later one takes over the places of the earlier one, which is told to end: a
//! visit has one connection, but for the moment until the earlier one has gone.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ncs_proto::admission::account::Place;
use ncs_proto::wire::message::VisitId;
use tokio::sync::Notify;

use super::token::Holder;

/// The visits that have a connection.
#[derive(Debug, Default)]
pub(super) struct Visits(Mutex<HashMap<VisitId, Weak<Visit>>>);

/// The places that a connection holds: at its address, and at the holder of its token.
pub(super) type Places = (Option<Arc<Place<IpAddr>>>, Option<Arc<Place<Holder>>>);

/// The same, as long as the connection holds them.
type Held = (Weak<Place<IpAddr>>, Weak<Place<Holder>>);

/// A connection of a visit, as the next one finds it.
#[derive(Debug, Default)]
pub(super) struct Visit {
    places: Mutex<Held>,
    /// Told when another connection has taken over.
    pub(super) replaced: Notify,
}

impl Visits {
    /// This connection is of that visit from now on. What was before is told to end, and returned.
    pub(super) fn take_over(&self, id: VisitId, visit: &Arc<Visit>) -> Option<Arc<Visit>> {
        let mut visits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = visits.insert(id, Arc::downgrade(visit))?.upgrade().filter(|before| !Arc::ptr_eq(before, visit))?;
        before.replaced.notify_one();
        Some(before)
    }

    /// The connection is gone.
    pub(super) fn leave(&self, id: &VisitId, visit: &Arc<Visit>) {
        let mut visits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if visits.get(id).is_some_and(|known| known.as_ptr() == Arc::as_ptr(visit)) {
            visits.remove(id);
        }
    }
}

impl Visit {
    /// The places that it holds.
    pub(super) fn places(&self) -> Places {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        (places.0.upgrade(), places.1.upgrade())
    }

    /// Notes them for the next one.
    pub(super) fn note(&self, address: &Arc<Place<IpAddr>>, holder: Option<&Arc<Place<Holder>>>) {
        let holder = holder.map_or_else(Weak::new, Arc::downgrade);
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = (Arc::downgrade(address), holder);
    }
}
