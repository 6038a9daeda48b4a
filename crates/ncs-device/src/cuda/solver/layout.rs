//! The layout of a part in device memory, and the tasks that describe it to kernels.

use super::super::card::{Card, bytes_of};
use super::super::driver::{Address, Fault};
use super::super::kernels::{Combine, Demand, Variant};
use super::super::loader::FORM_ALIGN;
use crate::abi::{self, RowForm};
use crate::decode::Decode;

/// Offsets of everything from the start of a part's piece.
#[derive(Debug, Clone, Default)]
pub(super) struct Layout {
    pub(super) jobs: Vec<Place>,
    /// Lists of tasks, one entry per job.
    pub(super) forms: usize,
    pub(super) inversions: usize,
    pub(super) rows: usize,
    pub(super) combinations: usize,
    /// Size of tasks and coefficients, which are uploaded together.
    pub(super) head: usize,
    pub(super) status: usize,
    pub(super) total: usize,
    /// Total blocks of all jobs.
    pub(super) blocks: u32,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) matrix: usize,
    pub(super) inverse: usize,
    pub(super) raw: usize,
    pub(super) form: usize,
    /// The inverse in the run's form of rows. Equal to the inverse's own offset if that form is
    /// bytes.
    pub(super) coefficients: usize,
    pub(super) out: usize,
}

impl Place {
    pub(super) fn pitch(&self) -> usize {
        self.n.next_multiple_of(abi::ROW_ALIGN)
    }

    pub(super) fn bytes(&self) -> usize {
        self.n * self.k
    }
}

impl Layout {
    pub(super) fn new(jobs: &[Decode], combine: &Combine) -> Self {
        let mut layout = Self::default();
        let mut end = 0;
        let mut place = |size: usize, align: usize| {
            let start = usize::next_multiple_of(end, align);
            end = start + size;
            start
        };
        layout.forms = place(jobs.len() * size_of::<abi::FormTask>(), ALIGN);
        layout.inversions = place(jobs.len() * size_of::<abi::InvertTask>(), ALIGN);
        layout.rows = place(jobs.len() * size_of::<abi::Task>(), ALIGN);
        layout.combinations = place(jobs.len() * size_of::<abi::Task>(), ALIGN);
        layout.jobs = jobs
            .iter()
            .map(|job| Place {
                n: job.n(),
                k: job.block_bytes(),
                ..Place::default()
            })
            .collect();
        for job in &mut layout.jobs {
            job.matrix = place(job.n * job.pitch(), ALIGN);
        }
        layout.head = place(0, ALIGN);
        for job in &mut layout.jobs {
            job.raw = place(job.bytes(), ALIGN);
            job.form = place(combine.form.bytes(job.n, job.k), FORM_ALIGN);
            job.inverse = place(job.n * job.pitch(), ALIGN);
            job.coefficients = match combine.row_form {
                RowForm::Bytes => job.inverse,
                form => place(job.n * job.pitch() * form.bytes(), ALIGN),
            };
            job.out = place(job.bytes(), ALIGN);
        }
        layout.status = place(jobs.len() * STATUS_BYTES, ALIGN);
        layout.total = place(0, ALIGN);
        layout.blocks = jobs.iter().map(|job| u32::from(job.n)).sum();
        layout
    }

    /// Total units of work.
    pub(super) fn units(&self, variant: &Variant) -> u32 {
        self.jobs
            .iter()
            .map(|place| variant.units(number(place.n), number(place.k)))
            .sum()
    }

    /// The upload of tasks and coefficients, if the piece begins at `base`.
    pub(super) fn head(&self, base: Address, jobs: &[Decode], variant: &Variant) -> Vec<u8> {
        let mut head = vec![0; self.head];
        let at = |offset: usize| base + offset as u64;
        let mut put =
            |offset: usize, bytes: &[u8]| head[offset..offset + bytes.len()].copy_from_slice(bytes);
        let (mut first_unit, mut first_row) = (0, 0);
        for (index, (place, job)) in self.jobs.iter().zip(jobs).enumerate() {
            let (n, k, pitch) = (number(place.n), number(place.k), number(place.pitch()));
            let raw_length = number(place.bytes());
            let form = abi::FormTask {
                raw: at(place.raw),
                out: at(place.form),
                raw_pitch: k,
                raw_length,
                n,
                k,
            };
            put(self.forms + index * size_of_val(&form), bytes_of(&form));
            let (inverse, status) = (at(place.inverse), at(self.status + index * STATUS_BYTES));
            let invert = abi::InvertTask {
                matrix: at(place.matrix),
                inverse,
                status,
                n,
                pitch,
            };
            put(
                self.inversions + index * size_of_val(&invert),
                bytes_of(&invert),
            );
            let combine = abi::Task {
                source: at(place.form),
                out: at(place.out),
                coefficients: at(place.coefficients),
                kind: abi::ROWS_EXPLICIT,
                rows: n,
                out_pitch: k,
                n,
                k,
                first_unit,
                first_row,
                ..abi::Task::default()
            };
            put(
                self.combinations + index * size_of_val(&combine),
                bytes_of(&combine),
            );
            // Explicit rows have no padding, but those of an inverse do. So the padding counts as
            // coefficients.
            let rows = abi::Task {
                given: inverse,
                n: pitch,
                ..combine
            };
            put(self.rows + index * size_of_val(&rows), bytes_of(&rows));
            for (row, coefficients) in job.coefficients.chunks_exact(place.n).enumerate() {
                put(place.matrix + row * place.pitch(), coefficients);
            }
            first_unit += variant.units(n, k);
            first_row += n;
        }
        head
    }
}

/// The variant of the kernel for a part.
pub(super) fn variant(card: &Card, combine: &Combine, layout: &Layout) -> Result<Variant, Fault> {
    let demand = Demand::of(
        layout
            .jobs
            .iter()
            .map(|place| (number(place.n), number(place.n), number(place.k))),
        card,
    );
    combine.variant_for(&demand)
}

/// Converts a number of a part; parts are bounded.
pub(super) fn number(number: usize) -> u32 {
    u32::try_from(number).expect("less than a part has bytes")
}

pub(super) const STATUS_BYTES: usize = size_of::<u32>();
const ALIGN: usize = 256;
