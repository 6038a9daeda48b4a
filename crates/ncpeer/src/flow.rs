//! The proved beginning of a segment, shared by its fetch and its readers.
//!
//! The fetch appends pieces; any number of readers follow at their own pace. Pieces stay until the
//! last reader is gone, so a repeated fetch continues where the last one ended.

use std::sync::PoisonError;
use std::sync::RwLock;

use bytes::Bytes;
use tokio::sync::watch;

/// Bytes of a segment from its beginning.
#[derive(Debug)]
pub(super) struct Flow {
    pieces: RwLock<Pieces>,
    end: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Pieces {
    /// Pieces with their offsets, in order and without gaps.
    list: Vec<(u64, Bytes)>,
    end: u64,
}

impl Flow {
    pub(super) fn new() -> Self {
        Self {
            pieces: RwLock::default(),
            end: watch::Sender::new(0),
        }
    }

    /// Adds proved bytes at `at`. Bytes that are already there are not kept twice.
    pub(super) fn put(&self, at: u64, piece: &Bytes) {
        let mut pieces = self.pieces.write().unwrap_or_else(PoisonError::into_inner);
        let (known, end) = (pieces.end.saturating_sub(at), at + piece.len() as u64);
        if at > pieces.end || end <= pieces.end {
            return;
        }
        let place = pieces.end;
        pieces.list.push((
            place,
            piece.slice(usize::try_from(known).expect("less than a piece")..),
        ));
        pieces.end = end;
        drop(pieces);
        self.end.send_replace(end);
    }

    /// Replaces the pieces by the whole segment, which others keep too, so that memory is not used
    /// twice.
    pub(super) fn complete(&self, whole: Bytes) {
        let end = whole.len() as u64;
        *self.pieces.write().unwrap_or_else(PoisonError::into_inner) = Pieces {
            list: vec![(0, whole)],
            end,
        };
        self.end.send_replace(end);
    }

    /// The bytes from `at` to the end of its piece.
    pub(super) fn from(&self, at: u64) -> Option<Bytes> {
        let pieces = self.pieces.read().unwrap_or_else(PoisonError::into_inner);
        let index = pieces
            .list
            .partition_point(|(place, _)| *place <= at)
            .checked_sub(1)?;
        let (place, piece) = &pieces.list[index];
        let skipped = usize::try_from(at - place)
            .ok()
            .filter(|skipped| *skipped < piece.len())?;
        Some(piece.slice(skipped..))
    }

    /// Notifies of growth.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_follow_and_nothing_is_there_twice() {
        let flow = Flow::new();
        let told = flow.watch();
        assert_eq!(flow.from(0), None);
        flow.put(0, &Bytes::from_static(b"abc"));
        flow.put(5, &Bytes::from_static(b"a gap"));
        // A repeated fetch has other pieces.
        flow.put(0, &Bytes::from_static(b"ab"));
        flow.put(2, &Bytes::from_static(b"cdef"));
        assert_eq!(told.has_changed().ok().map(|_| *told.borrow()), Some(6));
        let read = |at| flow.from(at);
        assert_eq!(
            [read(0), read(1), read(3), read(5)].map(Option::unwrap),
            ["abc", "bc", "def", "f"]
        );
        assert_eq!((read(6), read(u64::MAX)), (None, None));
    }

    #[test]
    fn a_segment_is_not_kept_twice() {
        let flow = Flow::new();
        let pieces = [Bytes::from(b"abc".to_vec()), Bytes::from(b"def".to_vec())];
        flow.put(0, &pieces[0]);
        flow.put(3, &pieces[1]);
        assert!(!pieces[0].is_unique());
        flow.complete(Bytes::from_static(b"abcdefg"));
        assert!(pieces.iter().all(Bytes::is_unique), "they are gone");
        assert_eq!(
            (flow.from(4), flow.from(7)),
            (Some(Bytes::from_static(b"efg")), None)
        );
        assert_eq!(*flow.watch().borrow(), 7);
    }
}
