use bytesize::ByteSize;

use super::*;
use crate::ring::slots::SLAB_BYTES;

#[test]
fn slots_come_home_and_the_budget_holds() {
    let pool = Pool::new(10 * (HEADROOM + 4096));
    let first = Pool::take(&pool, HEADROOM, 4096, 8, None);
    assert_eq!(first.len(), 8);
    assert_eq!(Pool::take(&pool, HEADROOM, 4096, 8, None).len(), 2);
    drop(first);
    assert_eq!(pool.usage().0, 0);
    assert_eq!(Pool::take(&pool, HEADROOM, 4096, 100, None).len(), 10);
}

#[test]
fn idle_slots_of_another_size_make_room() {
    let pool = Pool::new(100_000);
    let large = Pool::take(&pool, HEADROOM, 4096, 100, None);
    assert!(Pool::take(&pool, HEADROOM, 1088, 1, None).is_empty());
    drop(large);
    assert!(Pool::take(&pool, HEADROOM, 1088, 50, None).len() == 50);
}

#[test]
fn a_quota_counts_what_is_out() {
    let pool = Pool::new(1 << 20);
    let quota = Quota::new(2);
    let mut slots = Pool::take(&pool, HEADROOM, 64, 2, None);
    for slot in &mut slots {
        slot.charge(&quota);
    }
    assert_eq!(quota.room(10, Waker::noop()), 0);
    slots.pop();
    assert_eq!((quota.room(10, Waker::noop()), quota.released()), (1, 1));
    assert_eq!(
        quota.room(1, Waker::noop()),
        0,
        "of a full ring there is less"
    );
}

#[test]
fn headers_lie_against_the_payload() {
    let pool = Pool::new(1 << 20);
    let mut slot = Pool::take(&pool, HEADROOM, 64, 1, None)
        .pop()
        .expect("the pool is empty no more");
    slot.payload_mut().fill(7);
    let start = slot.write_header(&[1, 2, 3]);
    assert_eq!(&slot.from(start)[..4], &[1, 2, 3, 7]);
    assert_eq!(slot.from(start).len(), 67);
}

#[test]
fn a_slot_has_room_for_all_coefficients_in_its_header() {
    assert_eq!(
        [0, 48, 49, 128, 1024].map(headroom),
        [HEADROOM, 64, 128, 192, 1088]
    );
    let pool = Pool::new(1 << 20);
    let header: Vec<u8> = (0..134).collect();
    let mut slot = Pool::take(&pool, headroom(128), 64, 1, None)
        .pop()
        .expect("the pool is empty no more");
    slot.payload_mut().fill(7);
    assert_eq!(slot.payload().len(), 64);
    let start = slot.write_header(&header);
    assert_eq!(
        (&slot.from(start)[..134], &slot.from(start)[134..]),
        (&header[..], &[7; 64][..])
    );
    drop(slot);
    // A slot of the same total size serves with another headroom.
    let slot = Pool::take(&pool, HEADROOM, 64 + headroom(128) - HEADROOM, 1, None)
        .pop()
        .expect("it is home");
    assert_eq!(slot.payload().len(), 192);
}

/// A ring of a few slots.
fn ring(slots: u64, max_reuse: u16) -> Ring {
    let config = Config {
        bytes: Capacity::Bytes(ByteSize(slots * (64 + HEADROOM as u64))),
        max_reuse,
    };
    Ring::new(
        &config,
        Metrics::new(&prometheus::Registry::new()).expect("the registry is empty"),
    )
}

/// A deadline later than the earlier ones.
fn soon() -> Instant {
    Instant::now() + std::time::Duration::from_secs(1)
}

const GENERATION: GenerationKey = GenerationKey {
    segment: SegmentKey(1),
    index: 0,
};
const LINE: LineKey = LineKey {
    generation: GENERATION,
    kind: LineKind::Coded,
};

fn make(ring: &Ring, count: u32) {
    for order in ring.take_orders(count) {
        let slots = ring.reserve(HEADROOM, 64, order.blocks.count(), Waker::noop());
        ring.publish(
            order.line,
            slots.into_iter().enumerate().map(|(i, mut slot)| {
                slot.payload_mut().fill(9);
                (Vector::Seed(u32::try_from(i).unwrap_or(0)), slot)
            }),
        );
    }
}

#[test]
fn a_block_leaves_in_the_slot_that_was_filled() {
    let (ring, quota) = (ring(4, 1), Quota::new(8));
    ring.want_coded(SessionId(1), LINE, 2, soon());
    make(&ring, 9);
    let mut claimed = ring.claim(SessionId(1), LINE, 9, &quota, Waker::noop());
    assert_eq!((claimed.len(), quota.held()), (2, 2));
    let filled = claimed[0].payload().as_ptr();
    let (bytes, copied) = claimed.remove(0).into_datagram(&[1, 2, 3], 60);
    assert_eq!(
        (bytes.len(), &bytes[..4], copied),
        (63, &[1, 2, 3, 9][..], 0)
    );
    assert_eq!(bytes[3..].as_ptr(), filled);
    let clone = bytes.clone();
    drop(bytes);
    assert_eq!(quota.held(), 2);
    drop(clone);
    assert_eq!(quota.held(), 1);
}

#[test]
fn a_shared_block_is_copied_into_datagrams_alone() {
    let (ring, quota) = (ring(4, 2), Quota::new(8));
    for session in [1, 2] {
        ring.want_coded(SessionId(session), LINE, 1, soon());
    }
    make(&ring, 9);
    let claim = |session| {
        ring.claim(SessionId(session), LINE, 9, &quota, Waker::noop())
            .remove(0)
    };
    let (first, second) = (claim(1), claim(2));
    let filled = second.payload().as_ptr();
    assert_eq!(quota.held(), 2);
    assert_eq!(first.into_datagram(&[1], 64).1, 64);
    let (header, payload) = second.into_chunks(&[1, 2], 64);
    let payload = payload.expect("a shared block comes in two pieces");
    assert_eq!((header.len(), payload.as_ptr()), (2, filled));
    drop(payload);
    assert_eq!(quota.held(), 0);
}

#[test]
fn blocks_that_nobody_wants_make_room() {
    let ring = ring(4, 1);
    ring.keep_ready(LINE, 4);
    make(&ring, 9);
    assert_eq!(ring.reserve(HEADROOM, 64, 3, Waker::noop()).len(), 3);
    ring.want_coded(SessionId(1), LINE, 1, soon());
    assert_eq!(
        ring.claim(SessionId(1), LINE, 9, &Quota::new(1), Waker::noop())
            .len(),
        1,
        "the last one is still there"
    );
}

#[test]
fn the_less_is_left_the_less_a_session_may_have() {
    let ring = ring(1000, 1);
    assert_eq!(ring.share(64), 31);
    ring.want_coded(SessionId(2), LINE, 100_000, soon());
    assert_eq!(ring.share(64), 15, "not all of it at a time");
    ring.leave(SessionId(2), LINE);
    ring.want_coded(SessionId(1), LINE, 360, soon());
    assert_eq!(ring.share(64), 20, "what is to be made has its room");
    make(&ring, 360);
    assert_eq!(ring.share(64), 20);
    // Blocks without demand count as free room.
    ring.leave(SessionId(1), LINE);
    assert_eq!(ring.share(64), 31);
    ring.want_coded(SessionId(1), LINE, 1000, soon());
    make(&ring, 1000);
    assert_eq!(ring.share(64), SHARE_MIN);
    let quota = Quota::new(1000);
    let claimed = ring.claim(SessionId(1), LINE, 1000, &quota, Waker::noop());
    assert_eq!((claimed.len(), ring.share(64)), (1000, SHARE_MIN));
    drop(claimed);
    ring.publish_metrics();
    assert_eq!(ring.share(64), 31);
}

#[test]
fn slots_are_taken_as_they_lie_in_memory() {
    let pool = Pool::new(1 << 20);
    let starts = |slots: &[Slot]| {
        slots
            .iter()
            .map(|slot| slot.payload().as_ptr() as usize)
            .collect::<Vec<_>>()
    };
    let side_by_side = |starts: &[usize]| {
        starts
            .windows(2)
            .all(|pair| pair[1] == pair[0] + HEADROOM + 4096)
    };
    let (first, second) = (
        Pool::take(&pool, HEADROOM, 4096, 100, None),
        Pool::take(&pool, HEADROOM, 4096, 50, None),
    );
    assert!(side_by_side(&starts(&first)) && side_by_side(&starts(&second)));
    let (first_starts, end) = (starts(&first), starts(&second)[49]);
    drop(first);
    // Returned slots wait until the others have had their turn.
    let rest = Pool::take(&pool, HEADROOM, 4096, 102, None);
    assert!(side_by_side(&starts(&rest)) && starts(&rest)[0] == end + HEADROOM + 4096);
    assert_eq!(
        starts(&Pool::take(&pool, HEADROOM, 4096, 100, None)),
        first_starts
    );
}

#[test]
fn pinned_memory_begins_at_a_page_and_is_let_go_before_it_is_freed() {
    use std::sync::atomic::{AtomicBool, Ordering};
    struct Guard(Arc<AtomicBool>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let released = Arc::new(AtomicBool::new(false));
    let (theirs, seen) = (Arc::clone(&released), Arc::new(Mutex::new(Vec::new())));
    let ours = Arc::clone(&seen);
    let pin = Box::new(move |memory: &mut [u8]| {
        ours.lock()
            .unwrap()
            .push((memory.as_ptr() as usize, memory.len()));
        Some(Box::new(Guard(Arc::clone(&theirs))) as _)
    });
    let pool = Pool::pinned(8 << 20, pin);
    let slots = Pool::take(&pool, HEADROOM, 1088, 100, None);
    let (start, len) = seen.lock().unwrap()[0];
    assert!(start % 4096 == 0 && len <= 1 << 20);
    let inside =
        |slot: &Slot| (start..start + len - 1087).contains(&(slot.payload().as_ptr() as usize));
    assert!(slots.iter().all(inside));
    drop((pool, slots));
    assert!(released.load(Ordering::Acquire));
}

#[test]
fn a_pool_that_was_full_goes_back_to_few_slots() {
    const SIZE: usize = HEADROOM + 4032;
    let pool = Pool::new(128 << 20);
    let all = Pool::take(&pool, HEADROOM, 4032, (128 << 20) / SIZE, None);
    assert_eq!(all.len(), (128 << 20) / SIZE);
    drop(all);
    let mut used = std::collections::HashSet::new();
    for _ in 0..1000 {
        used.extend(
            Pool::take(&pool, HEADROOM, 4032, 100, None)
                .iter()
                .map(|slot| slot.payload().as_ptr() as usize),
        );
    }
    assert!(used.len() * SIZE <= 17 << 20, "{}", used.len());
}

/// Keeps one slot of each slab that these were taken from.
fn pins(slots: Vec<Slot>) -> Vec<Slot> {
    slots.into_iter().step_by(100).collect()
}

#[test]
fn slabs_are_cut_anew_one_by_one() {
    let pool = Pool::new(8 << 20);
    let mut small = Pool::take(&pool, HEADROOM, 1088, 10_000, None);
    assert!(Pool::take(&pool, HEADROOM, 4096, 1, None).is_empty());
    small.truncate(10);
    assert_eq!(pool.usage().0, 10 * (1088 + HEADROOM));
    // Ten blocks that stay out pin one slab.
    assert!(Pool::take(&pool, HEADROOM, 4096, 10_000, None).len() >= 7 * 250);
    assert!(Pool::take(&pool, HEADROOM, 1088, 10_000, None).len() >= 900);
}

#[test]
fn each_promised_size_has_its_part_whoever_holds_the_others() {
    let pool = Pool::new(8 << 20);
    pool.promise([1088 + HEADROOM, 4096 + HEADROOM]);
    let held = pins(Pool::take(&pool, HEADROOM, 1088, 10_000, None));
    let own = Pool::take(&pool, HEADROOM, 4096, 10_000, None);
    assert!(
        own.len() * (4096 + HEADROOM) > (2 << 20) - (8 << 10),
        "{} of a quarter of the ring",
        own.len()
    );
    assert!(
        pool.room(1088 + HEADROOM, 0) > 5 << 20,
        "what is out counts, not what is cut"
    );
    assert!(pool.room(4096 + HEADROOM, 0) > 3 << 20);
    drop((held, own));
    let all = Pool::take(&pool, HEADROOM, 1088, 10_000, None);
    assert!(
        all.len() * (1088 + HEADROOM) > (6 << 20) - (8 << 10),
        "the rest is for whoever comes: {}",
        all.len()
    );
    drop(all);
    // A single size may use everything.
    pool.promise([1088 + HEADROOM]);
    assert!(
        Pool::take(&pool, HEADROOM, 1088, 10_000, None).len() * (1088 + HEADROOM)
            > (8 << 20) - (8 << 10)
    );
}

#[test]
fn slabs_are_emptied_for_a_size_that_is_promised_later() {
    let pool = Pool::new(8 << 20);
    let held = pins(Pool::take(&pool, HEADROOM, 1088, 10_000, None));
    pool.promise([1088 + HEADROOM, 4096 + HEADROOM]);
    assert!(
        Pool::take(&pool, HEADROOM, 4096, 1, None).is_empty(),
        "a slot of each slab is out"
    );
    let rest = Pool::take(&pool, HEADROOM, 1088, 10_000, None);
    assert!(
        (5000..5500).contains(&rest.len()),
        "nothing more of two slabs: {}",
        rest.len()
    );
    drop(held);
    // Sizes that ask for more meanwhile still have their own part.
    assert!(Pool::take(&pool, HEADROOM, 4096, 10_000, None).len() >= 2 * 250);
    drop(rest);
    assert!(Pool::take(&pool, HEADROOM, 1088, 10_000, None).len() >= 5000);
}

#[test]
fn memory_that_a_device_keeps_is_replaced() {
    let pool = Pool::new(10 * (HEADROOM + 64));
    let mut slots = Pool::take(&pool, HEADROOM, 64, 10, None);
    let kept: Vec<_> = slots.iter_mut().map(Slot::take_bytes).collect();
    drop(slots);
    let slots = Pool::take(&pool, HEADROOM, 64, 11, None);
    assert_eq!(slots.len(), 10);
    let inside = |slot: &Slot| {
        kept.iter()
            .any(|kept| kept.as_ptr_range().contains(&slot.payload().as_ptr()))
    };
    assert!(!slots.iter().any(inside) && slots.iter().all(|slot| slot.payload().len() == 64));
}

proptest::proptest! {
    /// Takes and returns of three sizes: slots never overlap, the budget holds, and each size gets
    /// its part.
    #[test]
    fn slots_of_all_sizes_lie_apart(
        steps in proptest::collection::vec((0..3_usize, 1..2000_usize, 0..3_u8), 1..40),
    ) {
        const BUDGET: usize = 6 << 20;
        const BLOCKS: [usize; 3] = [600, 1088, 4096];
        let pool = Pool::new(BUDGET);
        pool.promise(BLOCKS.map(|block| block + HEADROOM));
        let mut out: [Vec<Slot>; 3] = Default::default();
        for (size, count, step) in steps {
            let slot = BLOCKS[size] + HEADROOM;
            match step {
                0 => drop(out[size].drain(..count.min(out[size].len()))),
                1 => {
                    let mut number = 0;
                    out[size].retain(|_| { number += 1; number % 7 == 0 });
                }
                _ => {
                    let taken = Pool::take(&pool, HEADROOM, BLOCKS[size], count, None);
                    let is_short = taken.len() < count;
                    out[size].extend(taken);
                    let slabs = BUDGET / SLAB_BYTES + 1;
                    proptest::prop_assert!(
                        !is_short || (out[size].len() + slabs) * slot >= BUDGET / 6
                    );
                }
            }
            let mut places: Vec<_> = out
                .iter()
                .flatten()
                .map(|slot| slot.from(0).as_ptr_range())
                .collect();
            places.sort_unstable_by_key(|place| place.start);
            proptest::prop_assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start));
            let bytes: usize = out
                .iter()
                .zip(BLOCKS)
                .map(|(slots, block)| slots.len() * (block + HEADROOM))
                .sum();
            proptest::prop_assert_eq!(pool.usage(), (bytes, BUDGET));
        }
    }
}
