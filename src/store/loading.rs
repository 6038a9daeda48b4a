//! Copies of segments on their way to the device: one task for each segment that is to have one, however many ask.
//!
//! A few upload at a time; the others wait for their turn, and he whose turn it is, for room. That comes when batches end: they
//! are not waited for by name, because whoever ends a batch says so ([`Store::settled`](super::Store::settled)). A load that
//! fails is tried again after a pause, a bounded number of times; then whoever still wants the segment begins another. However a
//! load ends, it is told.

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

/// Makes a copy of a segment that [`State::begin_load`](super::state::State::begin_load) was called for.
pub(super) async fn bring(shared: Arc<Shared>, key: SegmentKey) {
    for pause in PAUSES {
        // A panic is a failure like others: somebody waits to hear how the load has ended.
        match AssertUnwindSafe(shared.attempt(key)).catch_unwind().await.unwrap_or(Err(device::Error::Fault)) {
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
                // Less memory than the budget says: something more has to go, if there is anything.
                Err(error @ device::Error::Memory { .. }) => match self.used_by_others(&reservation) {
                    0 => return Err(error),
                    others => ceiling = (others + reservation.bytes).saturating_sub(1),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Has the device take a segment; nothing if it has no use for its bytes, and never will.
    async fn image(&self, bytes: Bytes, shape: Shape) -> Result<Option<Image>, device::Error> {
        if shape.codec().is_proving() {
            return Ok(self.device.keep(bytes, shape).await?.map(Image::Kept));
        }
        let resident = self.device.load(bytes, shape).await?;
        Ok(Some(Image::Resident(Arc::new(resident))))
    }

    /// Waits for room for a copy. `None` if none is needed any more.
    async fn room(self: &Arc<Self>, key: SegmentKey, ceiling: u64) -> Option<(Bytes, Shape, Reservation)> {
        let _turn = self.room.lock().await;
        loop {
            match self.look_for_room(key, ceiling) {
                Room::Free { bytes, shape, cost } => {
                    return Some((bytes, shape, Reservation { shared: Arc::clone(self), tier: Tier::Device, bytes: cost }));
                }
                Room::Needless => return None,
                // The time is for copies that nobody came for.
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
        self.state().device_budget().used().saturating_sub(reservation.bytes)
    }

    fn end_load(&self, key: SegmentKey) {
        self.state().end_load(key);
        self.metrics.loads_pending.dec();
        // Nobody may be listening yet.
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

/// How many loads have left the queue: one that the device works on, and those that prepare behind it.
pub(super) const LOADS_AT_ONCE: usize = 4;

/// After each attempt that failed, the last included: whoever asks again must not spin.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

const ROOM_POLL: Duration = Duration::from_millis(20);
