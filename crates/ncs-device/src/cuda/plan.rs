//! Cutting a batch into launches, and choosing how their blocks get to their slots. Decides without
//! a GPU.

use std::ops::Range;

use ncs_gf::Rows;

use crate::backend::Work;

/// Some rows of one work in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The work's index.
    pub(super) work: usize,
    /// Indices of its slots.
    pub(super) slots: Range<usize>,
}

/// Limits of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes of blocks.
    pub(super) out_bytes: usize,
    /// Bytes of coefficients in the kernel's form.
    pub(super) row_bytes: usize,
    /// Bytes of its upload: tasks, explicit rows, addresses of slots.
    pub(super) upload_bytes: usize,
    /// Bytes of a coefficient in the kernel's form.
    pub(super) coefficient_bytes: usize,
}

/// Upload bytes of a task; below, those of the address for each row.
pub(super) const TASK_BYTES: usize = size_of::<super::abi::Task>();
pub(super) const ADDRESS_BYTES: usize = size_of::<u64>();

/// The position in a batch that is being cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    work: usize,
    slot: usize,
}

impl Cursor {
    /// Whether the whole batch is cut.
    pub(super) fn is_at_end(&self, batch: &[Work]) -> bool {
        self.work >= batch.len()
    }

    /// The next launch: as many rows, in order, as the limits allow, and at least one if any is
    /// left.
    pub(super) fn next(&mut self, batch: &[Work], limits: &Limits) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (mut out, mut rows, mut upload) =
            (limits.out_bytes, limits.row_bytes, limits.upload_bytes);
        while let Some(work) = batch.get(self.work) {
            let costs = Costs::of(work, limits.coefficient_bytes);
            let fits = (out / costs.out)
                .min(rows / costs.row)
                .min(upload.saturating_sub(TASK_BYTES) / costs.upload);
            let least = usize::from(pieces.is_empty());
            let count = fits.max(least).min(work.out.len() - self.slot);
            if count > 0 {
                pieces.push(Piece {
                    work: self.work,
                    slots: self.slot..self.slot + count,
                });
                out = out.saturating_sub(count * costs.out);
                rows = rows.saturating_sub(count * costs.row);
                upload = upload.saturating_sub(TASK_BYTES + count * costs.upload);
                self.slot += count;
            }
            if self.slot < work.out.len() {
                break;
            }
            *self = Self {
                work: self.work + 1,
                slot: 0,
            };
        }
        pieces
    }
}

/// What a row takes of each limit.
struct Costs {
    out: usize,
    row: usize,
    upload: usize,
}

impl Costs {
    fn of(work: &Work, coefficient_bytes: usize) -> Self {
        let given = match work.rows {
            Rows::Seeded { .. } => 0,
            Rows::Explicit { .. } => work.n(),
            Rows::Source { .. } => size_of::<u16>(),
        };
        let row = work.n().next_multiple_of(super::abi::ROW_ALIGN) * coefficient_bytes;
        Self {
            out: work.block_bytes(),
            row,
            upload: given + ADDRESS_BYTES,
        }
    }
}

/// Slots at equal distances in memory that was pinned as one range: the driver copies to no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// Where the first block goes.
    pub(super) start: usize,
    /// Bytes from one slot to the next; the length if there is only one.
    pub(super) pitch: usize,
    pub(super) count: usize,
}

/// Finds runs of blocks of `k` bytes. `addresses` lists the blocks' addresses in order, each with
/// its pinned range.
pub(super) fn runs(
    addresses: impl IntoIterator<Item = (usize, Option<usize>)>,
    k: usize,
) -> Vec<Run> {
    let (mut runs, mut last): (Vec<Run>, _) = (Vec::new(), None);
    for (address, range) in addresses {
        let is_same = std::mem::replace(&mut last, range) == range;
        match runs.last_mut().filter(|_| is_same) {
            Some(run)
                if run.count == 1
                    && address >= run.start + k
                    && address - run.start <= PITCH_MAX =>
            {
                *run = Run {
                    start: run.start,
                    pitch: address - run.start,
                    count: 2,
                };
            }
            Some(run) if run.count > 1 && address == run.start + run.count * run.pitch => {
                run.count += 1
            }
            _ => runs.push(Run {
                start: address,
                pitch: k,
                count: 1,
            }),
        }
    }
    runs
}

/// The way that blocks take to their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The kernel stores them there: fastest for few bytes.
    Stores,
    /// The copy engine copies a run at a time.
    Copies,
    /// A kernel copies them one by one to scattered slots.
    Scatter,
    /// The device copies them to pinned memory of ours, and the processor from there: for slots
    /// that are not pinned.
    Bounce,
}

/// Chooses the way of blocks with `bytes` bytes in `runs` runs.
pub(super) fn way(bytes: usize, runs: usize, is_pinned: bool, is_aligned: bool) -> Way {
    match () {
        () if !is_pinned => Way::Bounce,
        () if is_aligned && bytes <= STORED_BYTES_MAX && runs <= STORED_RUNS_MAX => Way::Stores,
        () if is_aligned && bytes / runs.max(1) < COPIED_BYTES_MIN => Way::Scatter,
        () => Way::Copies,
    }
}

/// Slots further apart are not a run: pitches are 32-bit numbers.
const PITCH_MAX: usize = 1 << 20;
/// Above this, the copy engine is faster than stores (54 against 51 GB/s), and it leaves the
/// multiprocessors free.
const STORED_BYTES_MAX: usize = 1 << 20;
/// Each run is a task of its own.
const STORED_RUNS_MAX: usize = 64;
/// A shorter copy takes longer to start than to run.
const COPIED_BYTES_MIN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found() {
        let run = |start, pitch, count| Run {
            start,
            pitch,
            count,
        };
        let runs =
            |addresses: &[usize], k| runs(addresses.iter().map(|&address| (address, Some(0))), k);
        assert_eq!(
            runs(&[100, 200, 300, 1000, 1064], 64),
            [run(100, 100, 3), run(1000, 64, 2)]
        );
        assert_eq!(runs(&[100], 64), [run(100, 64, 1)]);
        assert_eq!(
            runs(&[300, 200, 100], 64),
            [run(300, 64, 1), run(200, 64, 1), run(100, 64, 1)]
        );
        // Slots that would overlap or are far apart are not a run.
        assert_eq!(runs(&[100, 150], 64).len(), 2);
        assert_eq!(runs(&[0, 1 << 40], 64).len(), 2);
        assert!(runs(&[], 64).is_empty());
    }

    #[test]
    fn no_run_goes_from_one_pinned_range_into_the_next() {
        let run = |start, count| Run {
            start,
            pitch: 64,
            count,
        };
        let addresses = [
            (0, Some(0)),
            (64, Some(0)),
            (128, Some(128)),
            (192, Some(128)),
            (256, None),
            (320, None),
        ];
        assert_eq!(runs(addresses, 64), [run(0, 2), run(128, 2), run(256, 2)]);
    }

    #[test]
    fn the_way_depends_on_where_slots_are() {
        assert_eq!(way(100, 1, false, true), Way::Bounce);
        assert_eq!(way(512 << 10, 1, true, true), Way::Stores);
        assert_eq!(way(512 << 10, 1, true, false), Way::Copies);
        assert_eq!(way(16 << 20, 2, true, true), Way::Copies);
        assert_eq!(way(16 << 20, 4096, true, true), Way::Scatter);
        assert_eq!(way(16 << 20, 4096, true, false), Way::Copies);
    }
}
