//! Which compiled kernel does what, in which form it wants segments and rows, and how it is launched: the numbers that the
//! headers of `kernels/*.cu` state. A test compares those that are defined in `kernels/nc_abi.h`.

use super::image::Image;
use crate::device::Kernel;
use crate::device::abi::RowForm;

/// A form in which generations are held in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As they came.
    Bytes,
    /// Logarithms, 255 for zero.
    Logs,
    /// Logarithms plus one, 0 for zero.
    Logs1,
}

impl Form {
    /// The kernel that makes it, its file, and its threads a block.
    pub(super) const fn maker(self) -> (Image, &'static str, u32) {
        match self {
            Self::Bytes => (Image::Forms, "nc_form_bytes", FORM_THREADS),
            Self::Logs => (Image::Forms, "nc_form_logs", FORM_THREADS),
            Self::Logs1 => (Image::Forms, "nc_form_logs1", FORM_THREADS),
        }
    }

    /// Bytes that a generation of n blocks of k bytes takes.
    pub(super) const fn bytes(self, n: usize, k: usize) -> usize {
        match self {
            Self::Bytes | Self::Logs | Self::Logs1 => n * k,
        }
    }
}

/// A table that a kernel reads as a texture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Texture {
    /// All products.
    Products,
    /// Powers.
    Powers,
}

/// How a kernel is launched for some work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) entry: &'static str,
    /// Rows and bytes of a row that one unit of work makes.
    pub(super) unit: (u32, u32),
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
    /// Thread blocks that run on one multiprocessor at once.
    pub(super) blocks_per_sm: u32,
}

impl Variant {
    /// Units of work in so many rows of k bytes.
    pub(super) const fn units(&self, rows: u32, k: u32) -> u32 {
        rows.div_ceil(self.unit.0) * k.div_ceil(self.unit.1)
    }
}

/// What decides between variants of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    /// Source blocks of the largest generation.
    pub(super) n: u32,
    /// Rows of a task, on average.
    pub(super) rows_per_task: u32,
    /// Rows in all.
    pub(super) rows: u32,
    /// Bytes of the largest block.
    pub(super) k: u32,
    /// Multiprocessors.
    pub(super) sms: u32,
    /// Dynamic shared memory that a block may have.
    pub(super) shared_bytes: u32,
}

/// A way to combine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Combine {
    pub(super) kernel: Kernel,
    pub(super) image: Image,
    pub(super) form: Form,
    pub(super) row_form: RowForm,
    /// Makes seeded rows by itself when it is given none.
    pub(super) makes_rows: bool,
    pub(super) texture: Option<Texture>,
    /// Runs on Hopper alone.
    pub(super) is_hopper_only: bool,
    /// The variant for some work; `None` if it cannot be done on this card.
    pub(super) variant: fn(&Demand) -> Option<Variant>,
}

/// Every way to combine that is compiled.
pub(super) const COMBINES: &[Combine] = &[];

pub(super) const ROWS_THREADS: u32 = 256;
pub(super) const FORM_THREADS: u32 = 256;
pub(super) const COPY_THREADS: u32 = 512;
