//! Cutting batches into units, and the results of batches.

use super::*;
use crate::{Resident, Threads};

/// Parts that a unit is cut into, in a batch of `rows` rows of a generation of 128 blocks of 4 KiB.
fn cuts(rows: usize, threads: usize) -> usize {
    let cost = 128 * 4096;
    parts(
        rows.min(Kernels::ROWS) * cost,
        rows * cost / (threads * UNITS_PER_THREAD),
        4096,
    )
}

#[test]
fn blocks_are_cut_where_there_are_too_few() {
    assert_eq!([1, 4, 8, 32].map(|rows| cuts(rows, 2)), [2, 8, 4, 1]);
    assert_eq!(
        [1, 4, 8, 32, 128, 256].map(|rows| cuts(rows, 16)),
        [2, 8, 8, 8, 2, 1]
    );
    assert_eq!(
        parts(8 << 19, 5 << 19, 4096),
        1,
        "whole rows, rounded up to what a kernel takes at once"
    );
    assert_eq!(parts(32 * 1088, 1, 1088), 1, "not worth waking a thread");
    assert_eq!(parts(usize::MAX, 1, 48), 1, "one column");
}

/// Twelve tasks of 1 to 12 rows over one generation. Their slots are cut from one allocation.
fn work(rows: impl Fn(u16) -> Rows) -> Vec<Work> {
    let shape = Shape::new(63 * 4112, 4112, 63).unwrap();
    let generation = shape.generation(0).unwrap();
    let resident = Arc::new(Resident {
        shape,
        parts: Vec::new(),
        epoch: 0,
        now: Arc::default(),
    });
    let work = |(task, count): (usize, u16)| {
        let mut slab = BytesMut::zeroed(usize::from(count) * 4200);
        let out = (0..count).map(|_| slab.split_to(4200)).collect();
        Work {
            id: ResidentId(1),
            _resident: Arc::clone(&resident),
            generation,
            rows: rows(count),
            first_row: 0,
            out,
            out_offset: 40,
            task,
        }
    };
    (1..=12).enumerate().map(work).collect()
}

fn places(batch: &[Work]) -> Vec<Vec<(*const u8, usize)>> {
    batch
        .iter()
        .map(|work| {
            work.out
                .iter()
                .map(|slot| (slot.as_ptr(), slot.len()))
                .collect()
        })
        .collect()
}

#[test]
fn slots_come_back_whole_and_in_order_even_from_units_that_fail() {
    let cost = 63 * 4112;
    assert_eq!(
        parts(4 * cost, 78 * cost / (16 * UNITS_PER_THREAD), 4112),
        3,
        "they come back from pieces"
    );
    for choice in [kernel::Kernel::Simd, kernel::Kernel::Table] {
        let config = Config {
            kernel: KernelChoice::Named(choice),
            cpu_threads: Threads::Count(16.try_into().unwrap()),
            ..Config::default()
        };
        let mut cpu = Cpu::open(&config).unwrap();
        let shape = Shape::new(63 * 4112, 4112, 63).unwrap();
        let bytes = vec![7; 63 * 4112].into();
        cpu.take_in(Loading {
            id: ResidentId(1),
            bytes,
            shape,
            share: Share::ALL,
        })
        .unwrap();
        // The last task has fewer rows than slots.
        let rows = |count: u16| Rows::Explicit {
            n: 63,
            coefficients: vec![3; 63 * usize::from(count.min(11))].into(),
        };
        let mut batch = work(rows);
        let before = places(&batch);
        assert_eq!(cpu.combine(&mut batch), Err(Error::Fault));
        assert_eq!(places(&batch), before);
        batch.pop();
        cpu.combine(&mut batch).unwrap();
        assert_eq!(places(&batch)[..], before[..11]);
        let is_made = |slot: &BytesMut| {
            slot.iter()
                .enumerate()
                .all(|(i, &byte)| (byte != 0) == (40..4152).contains(&i))
        };
        assert!(batch.iter().flat_map(|work| &work.out).all(is_made));
    }
}
