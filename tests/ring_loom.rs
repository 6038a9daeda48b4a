//! The slots of the ring under every interleaving of two threads, with loom.
//!
//! The ring's own file is compiled here with loom's lock and counters instead of those of the
//! standard library. Tested: slots that different threads take and return are neither lost nor
//! duplicated, and a task that waits for a slot or its quota is woken. Not tested: the accounting
//! of the ring, which is a plain value behind one lock with its own tests, and more than two
//! threads.

#![allow(dead_code, unreachable_pub)]

pub(crate) mod sync {
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex};

    pub(crate) const SHELVES: usize = 2;
}

#[path = "../crates/ncs-serve/src/ring/slots.rs"]
mod slots;

use std::task::{Wake, Waker};

use loom::thread;
use ncs_proto::ring::HEADROOM;

use slots::{Pool, Quota};
use sync::{Arc, AtomicUsize, Ordering};

/// A waker that records whether it was woken.
struct Flag(AtomicUsize);

impl Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(1, Ordering::Release);
    }
}

fn flag() -> (std::sync::Arc<Flag>, Waker) {
    let flag = std::sync::Arc::new(Flag(AtomicUsize::new(0)));
    (std::sync::Arc::clone(&flag), flag.into())
}

#[test]
fn who_waits_for_a_slot_is_woken() {
    loom::model(|| {
        let pool = Pool::new(HEADROOM + 64);
        let slot = Pool::take(&pool, HEADROOM, 64, 1, None);
        assert_eq!(slot.len(), 1);
        let giver = thread::spawn(move || drop(slot));
        let (woken, waker) = flag();
        let taken = Pool::take(&pool, HEADROOM, 64, 1, Some(&waker));
        giver.join().unwrap();
        assert!(!taken.is_empty() || woken.0.load(Ordering::Acquire) == 1);
        drop(taken);
        assert_eq!(pool.usage().0, 0);
        assert_eq!(Pool::take(&pool, HEADROOM, 64, 2, None).len(), 1);
    });
}

#[test]
fn who_waits_for_its_quota_is_woken() {
    loom::model(|| {
        let pool = Pool::new(HEADROOM + 64);
        let quota = Quota::new(1);
        let mut slot = Pool::take(&pool, HEADROOM, 64, 1, None).pop().unwrap();
        slot.charge(&quota);
        let giver = thread::spawn(move || drop(slot));
        let (woken, waker) = flag();
        let room = quota.room(1, &waker);
        giver.join().unwrap();
        assert!(room == 1 || woken.0.load(Ordering::Acquire) == 1);
        assert_eq!(quota.held(), 0);
    });
}

#[test]
fn two_threads_share_the_slots() {
    loom::model(|| {
        let pool = Pool::new(2 * (HEADROOM + 64));
        let other = Arc::clone(&pool);
        let theirs = thread::spawn(move || Pool::take(&other, HEADROOM, 64, 1, None));
        let ours = Pool::take(&pool, HEADROOM, 64, 2, None);
        let theirs = theirs.join().unwrap();
        assert_eq!(ours.len() + theirs.len(), 2);
        drop((ours, theirs));
        assert_eq!(pool.usage().0, 0);
    });
}
