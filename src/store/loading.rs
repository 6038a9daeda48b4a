//! Copying segments to the device: one task per copy, however many callers want it.
//!
//! A few copies upload at a time; the others wait for their turn, and the one whose turn it is
//! waits for room. Room appears when batches end, of which
//! [`Store::settled`](super::Store::settled) tells. A failed load is retried after a pause, a
//! bounded number of times; after that, a caller that still needs the segment begins another load.
//! The end of every load is reported.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;

use super::index::Tier;
use super::state::{Image, Room};
use super::{Reservation, Shared};
use crate::device;
use crate::object::{SegmentKey, Shape};

/// Copies a segment for which [`State::begin_load`](super::state::State::begin_load) was called.
pub(super) async fn bring(shared: Arc<Shared>, key: SegmentKey) {
    for pause in PAUSES {
        // A panic counts as a failure, because callers wait for the end of the load.
        match AssertUnwindSafe(shared.attempt(key))
            .catch_unwind()
            .await
            .unwrap_or(Err(device::Error::Fault))
        {
            Ok(()) => break,
            Err(error) => shared.note_failure(&error),
        }
        tokio::time::sleep(pause).await;
    }
    shared.end_load(key);
}

impl Shared {
    async fn attempt(self: &Arc<Self>, key: SegmentKey) -> Result<(), device::Error> {
        let _place = self.loads.acquire().await.expect("nobody closes it");
        let mut ceiling = u64::MAX;
        while let Some((bytes, shape, reservation)) = self.room(key, ceiling).await {
            match self.image(bytes, shape).await {
                Ok(Some(image)) => {
                    self.place(key, image, reservation);
                    self.note_success();
                    return Ok(());
                }
                Ok(None) => {
                    self.state().keep_nothing();
                    return Ok(());
                }
                // The device has less memory than the budget says: evict another copy, if there is
                // one.
                Err(error @ device::Error::Memory { .. }) => {
                    match self.used_by_others(&reservation) {
                        0 => return Err(error),
                        others => ceiling = (others + reservation.bytes).saturating_sub(1),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Has the device take a segment; `None` if it never has a use for the bytes.
    async fn image(&self, bytes: Bytes, shape: Shape) -> Result<Option<Image>, device::Error> {
        if shape.codec().is_gfq() {
            return Ok(self.device.keep(bytes, shape).await?.map(Image::Kept));
        }
        let resident = self.device.load(bytes, shape).await?;
        Ok(Some(Image::Resident(Arc::new(resident))))
    }

    /// Waits for room for a copy. `None` if the copy is no longer needed.
    async fn room(
        self: &Arc<Self>,
        key: SegmentKey,
        ceiling: u64,
    ) -> Option<(Bytes, Shape, Reservation)> {
        let _turn = self.room.lock().await;
        loop {
            match self.look_for_room(key, ceiling) {
                Room::Free { bytes, shape, cost } => {
                    return Some((
                        bytes,
                        shape,
                        Reservation {
                            shared: Arc::clone(self),
                            tier: Tier::Device,
                            bytes: cost,
                        },
                    ));
                }
                Room::Needless => return None,
                // The timeout covers copies that were owed but never claimed.
                Room::Wait => drop(tokio::time::timeout(ROOM_POLL, self.unused.notified()).await),
            }
        }
    }

    fn look_for_room(&self, key: SegmentKey, ceiling: u64) -> Room {
        let mut gone = Vec::new();
        let mut state = self.state();
        self.heed_losses(&mut state, &mut gone);
        let room = state.find_room(key, ceiling, Instant::now(), &mut gone);
        self.publish(state, gone);
        room
    }

    fn place(&self, key: SegmentKey, image: Image, reservation: Reservation) {
        let mut gone = Vec::new();
        let mut state = self.state();
        state.place(key, image, reservation.keep(), Instant::now(), &mut gone);
        self.publish(state, gone);
    }

    fn used_by_others(&self, reservation: &Reservation) -> u64 {
        self.state()
            .device_budget()
            .used()
            .saturating_sub(reservation.bytes)
    }

    fn end_load(&self, key: SegmentKey) {
        self.state().end_load(key);
        self.metrics.loads_pending.dec();
        // There may be no receiver yet.
        let _ = self.loaded.send(key);
    }

    fn note_failure(&self, error: &device::Error) {
        self.metrics.load_failures.inc();
        if self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::debug!(%error, "cannot load a segment into the device");
        } else {
            tracing::warn!(%error, "cannot load a segment into the device: retrying");
        }
    }

    fn note_success(&self) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            tracing::info!("segments load into the device again");
        }
    }
}

/// The number of loads past the queue: one that the device works on, and others that prepare behind
/// it.
pub(super) const LOADS_AT_ONCE: usize = 4;

/// A pause after each failed attempt, including the last, so that a caller that asks again does not
/// spin.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

const ROOM_POLL: Duration = Duration::from_millis(20);
