//! A connection's place in the [`Intake`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ncs_proto::admission::intake::{self, Answer, Entrant, Intake, Returns};

use super::Headroom;
use super::shares::Unreported;

/// The rules, and the sessions that they may ask to leave.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) intake: Intake,
    pub(super) leaves: HashMap<Entrant, Arc<AtomicBool>>,
    pub(super) counted: intake::Status,
}

/// The state for clients that find no place at the door.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// Whether the next handshake would be refused.
    pub(super) is_full: AtomicBool,
    returns: Mutex<Returns>,
}

impl Outside {
    pub(super) fn returns(&self) -> MutexGuard<'_, Returns> {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection in the [`Intake`], which it leaves when dropped.
#[derive(Debug)]
pub struct Entry {
    headroom: Headroom,
    /// `None` where nothing is measured.
    entrant: Option<Entrant>,
    leaves: Arc<AtomicBool>,
    sent: Unreported,
}

/// Whether a client has proven its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// It has.
    Given,
    /// It has not, and may come in without if there are places.
    Absent,
    /// It has not, and has to.
    Wanted,
}

/// The reason why a client may not begin a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// There is no place: it comes again later, and need not prove its address before.
    Full,
    /// There may be a place once its address is proven.
    Unproven,
}

impl Headroom {
    /// If no handshake can begin now: the time after which a client may come again. It waits for
    /// nobody who decides about newcomers, since it is asked for every first packet.
    pub fn turn_away(&self, now: Instant) -> Option<Duration> {
        if !self.outside.is_full.load(Ordering::Relaxed) {
            return None;
        }
        self.metrics.refused.inc();
        Some(self.outside.returns().tell(now))
    }

    /// A client asks to begin a handshake.
    pub fn knock(&self, proof: Proof) -> Result<Entry, Closed> {
        let leaves = Arc::new(AtomicBool::new(false));
        let entrant = self.with_door(|door| {
            let wants_proof = match proof {
                Proof::Given => false,
                Proof::Absent => door.intake.wants_proof(),
                Proof::Wanted => true,
            };
            if !door.intake.is_full() && wants_proof {
                return Err(Closed::Unproven);
            }
            let entrant = door.intake.knock().ok_or(Closed::Full)?;
            door.leaves.insert(entrant, Arc::clone(&leaves));
            Ok(entrant)
        });
        let entrant = match entrant {
            None if proof == Proof::Wanted => return Err(Closed::Unproven),
            None => None,
            Some(entrant) => Some(entrant?),
        };
        Ok(Entry {
            headroom: self.clone(),
            entrant,
            leaves,
            sent: Unreported::default(),
        })
    }
}

impl Entry {
    /// The handshake is over.
    pub fn connected(&self) {
        if let Some(entrant) = self.entrant {
            self.headroom
                .with_door(|door| door.intake.connected(entrant));
        }
    }

    /// Whether its requests wait for admission.
    pub fn is_bound(&self) -> bool {
        self.entrant.is_some()
    }

    /// Whether the server has no room for newcomers, whenever they ask.
    pub fn is_short(&self) -> bool {
        self.headroom.is_short()
    }

    /// The peer requests blocks.
    pub fn ask(&self, now: Instant) -> Answer {
        let Some(entrant) = self.entrant else {
            return Answer::Admitted;
        };
        self.headroom
            .with_door(|door| door.intake.ask(now, entrant))
            .unwrap_or(Answer::Admitted)
    }

    /// The peer is sent these bytes of blocks.
    pub fn sends(&mut self, now: Instant, bytes: u64) {
        self.sent.add(now, bytes, &self.headroom.reports);
    }

    /// Whether the viewer has been asked to leave since the last call.
    pub fn takes_leave(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) && self.leaves.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(entrant) = self.entrant {
            self.headroom.with_door(|door| {
                door.intake.leave(entrant);
                door.leaves.remove(&entrant);
            });
        }
    }
}
