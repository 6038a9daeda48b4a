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
    /// Byte-transposed tiles of 64 positions and 32 sources.
    Tiles,
}

impl Form {
    /// The kernel that makes it, its file, and its threads a block.
    pub(super) const fn maker(self) -> (Image, &'static str, u32) {
        match self {
            Self::Bytes => (Image::Forms, "nc_form_bytes", FORM_THREADS),
            Self::Logs => (Image::Forms, "nc_form_logs", FORM_THREADS),
            Self::Logs1 => (Image::Forms, "nc_form_logs1", FORM_THREADS),
            Self::Tiles => (Image::Tensor, "nc_form_tiles", FORM_THREADS),
        }
    }

    /// Bytes that a generation of n blocks of k bytes takes.
    pub(super) const fn bytes(self, n: usize, k: usize) -> usize {
        match self {
            Self::Bytes | Self::Logs | Self::Logs1 => n * k,
            Self::Tiles => k.div_ceil(64) * tensor_steps(n) * TENSOR_TILE_BYTES,
        }
    }
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
    /// Reads the field's tables as a texture.
    pub(super) reads_texture: bool,
    /// Runs on Hopper alone.
    pub(super) is_hopper_only: bool,
    /// The variant for some work; `None` if it cannot be done on this card.
    pub(super) variant: fn(&Demand) -> Option<Variant>,
}

/// Every way to combine that is compiled.
pub(super) const COMBINES: &[Combine] = &[
    Combine {
        form: Form::Logs,
        row_form: RowForm::Logs16,
        ..Combine::new(Kernel::Table, Image::Table, |demand| {
            let variant = Variant { shared_bytes: TABLE_SHARED, ..Variant::new("nc_table", TABLE_UNIT, TABLE_THREADS, 1) };
            (TABLE_SHARED <= demand.shared_bytes).then_some(variant)
        })
    },
    Combine { form: Form::Tiles, makes_rows: true, is_hopper_only: true, ..Combine::new(Kernel::Tensor, Image::Tensor, tensor) },
    Combine::new(Kernel::Loop, Image::Ladder, |_| Some(s2_block("nc_loop"))),
    Combine::new(Kernel::ProductGlobal, Image::Tiled, |_| Some(s1("nc_product_global"))),
    Combine::new(Kernel::ProductLdg, Image::Tiled, |_| Some(s1("nc_product_ldg"))),
    Combine { reads_texture: true, ..Combine::new(Kernel::ProductTexture, Image::Tiled, |_| Some(s1("nc_product_texture"))) },
    Combine::new(Kernel::LogexpLdg, Image::Tiled, |_| Some(s1("nc_logexp_ldg"))),
    Combine { reads_texture: true, ..Combine::new(Kernel::LogexpTexture, Image::Tiled, |_| Some(s1("nc_logexp_texture"))) },
    Combine::new(Kernel::Single, Image::Tiled, |_| Some(Variant::new("nc_single", (1, 128), 32, 32))),
    Combine::new(Kernel::Tiled, Image::Tiled, |_| Some(tiled("nc_tiled"))),
    Combine::new(Kernel::Table0Global, Image::Ladder, |_| Some(s2_block("nc_table0_global"))),
    Combine::new(Kernel::Table0, Image::Ladder, |_| Some(s2_block("nc_table0"))),
    Combine::logs(Kernel::Table1, Form::Logs, RowForm::Logs, |_| Some(s2("nc_table1"))),
    Combine::logs(Kernel::Table2, Form::Logs, RowForm::Logs, |_| Some(s2("nc_table2"))),
    Combine::logs(Kernel::Table3, Form::Logs1, RowForm::Logs1, |_| Some(s2("nc_table3"))),
    Combine::logs(Kernel::Table4, Form::Logs1, RowForm::Logs1, |_| Some(s2("nc_table4"))),
    Combine {
        reads_texture: true,
        ..Combine::logs(Kernel::Table4Texture, Form::Logs1, RowForm::Logs1, |_| Some(s2("nc_table4_texture")))
    },
    Combine::logs(Kernel::Table5, Form::Logs1, RowForm::Logs1, |_| Some(s2("nc_table5"))),
    Combine::logs(Kernel::Table5Wide, Form::Logs1, RowForm::Logs1, |demand| {
        let variant = Variant { shared_bytes: TABLE5_WIDE_SHARED, ..Variant::new("nc_table5_32", S2_UNIT, 1024, 2) };
        (TABLE5_WIDE_SHARED <= demand.shared_bytes).then_some(variant)
    }),
];

impl Combine {
    /// Over plain bytes and coefficients.
    pub(super) const fn new(kernel: Kernel, image: Image, variant: fn(&Demand) -> Option<Variant>) -> Self {
        Self {
            kernel,
            image,
            form: Form::Bytes,
            row_form: RowForm::Bytes,
            makes_rows: false,
            reads_texture: false,
            is_hopper_only: false,
            variant,
        }
    }

    /// One of those of the second paper over logarithms.
    pub(super) const fn logs(kernel: Kernel, form: Form, row_form: RowForm, variant: fn(&Demand) -> Option<Variant>) -> Self {
        Self { form, row_form, ..Self::new(kernel, Image::Ladder, variant) }
    }
}

impl Variant {
    pub(super) const fn new(entry: &'static str, unit: (u32, u32), threads: u32, blocks_per_sm: u32) -> Self {
        Self { entry, unit, threads, shared_bytes: 0, blocks_per_sm }
    }
}

const fn s1(entry: &'static str) -> Variant {
    Variant::new(entry, (32, 32), 256, 8)
}

const fn tiled(entry: &'static str) -> Variant {
    Variant::new(entry, (64, 64), 256, 8)
}

const fn s2_block(entry: &'static str) -> Variant {
    Variant::new(entry, (1, 1024), 256, 8)
}

const fn s2(entry: &'static str) -> Variant {
    Variant::new(entry, S2_UNIT, 256, 8)
}

/// Few rows of a task, or few units in all, want small units; large ones read the source less often.
fn tensor(demand: &Demand) -> Option<Variant> {
    let steps = u32::try_from(tensor_steps(demand.n as usize)).expect("at most 32");
    let fits = |variant: &TensorVariant| variant.shared_bytes(steps) <= demand.shared_bytes;
    let columns = demand.k.div_ceil(TENSOR_UNIT_BYTES);
    let fills = |variant: &TensorVariant| demand.rows.div_ceil(variant.rows) * columns >= demand.sms;
    let suits = |variant: &&TensorVariant| fits(variant) && demand.rows_per_task >= variant.rows && fills(variant);
    let chosen = TENSOR_VARIANTS.iter().find(suits).or_else(|| TENSOR_VARIANTS.iter().rev().find(|variant| fits(variant)))?;
    let shared_bytes = chosen.shared_bytes(steps);
    let blocks = (SM_SHARED_BYTES / (shared_bytes + BLOCK_SHARED_BYTES)).clamp(1, chosen.blocks_per_sm);
    let variant = Variant::new(chosen.entry, (chosen.rows, TENSOR_UNIT_BYTES), chosen.threads, blocks);
    Some(Variant { shared_bytes, ..variant })
}

/// Groups of 32 sources that the tensor kernel works through.
const fn tensor_steps(n: usize) -> usize {
    if n <= 64 { n.div_ceil(32) } else { 4 * n.div_ceil(128) }
}

struct TensorVariant {
    entry: &'static str,
    rows: u32,
    threads: u32,
    shared: u32,
    shared_step: u32,
    blocks_per_sm: u32,
}

impl TensorVariant {
    const fn shared_bytes(&self, steps: u32) -> u32 {
        self.shared + steps * self.shared_step
    }
}

const TENSOR_VARIANTS: [TensorVariant; 4] = [
    TensorVariant { entry: "nc_tensor_64", rows: 64, threads: 544, shared: 66_560, shared_step: 16_384, blocks_per_sm: 1 },
    TensorVariant { entry: "nc_tensor_32", rows: 32, threads: 288, shared: 50_176, shared_step: 8192, blocks_per_sm: 2 },
    TensorVariant { entry: "nc_tensor_16", rows: 16, threads: 160, shared: 33_792, shared_step: 4096, blocks_per_sm: 4 },
    TensorVariant { entry: "nc_tensor_8", rows: 8, threads: 160, shared: 33_792, shared_step: 2048, blocks_per_sm: 4 },
];

const TENSOR_UNIT_BYTES: u32 = 256;
const TENSOR_TILE_BYTES: usize = 2048;
const TABLE_UNIT: (u32, u32) = (8, 512);
const TABLE_THREADS: u32 = 256;
const TABLE_SHARED: u32 = 74_752;
const TABLE5_WIDE_SHARED: u32 = 65_536;
const S2_UNIT: (u32, u32) = (1, 128);
/// Shared memory of a multiprocessor of Hopper, and what the system takes of it for each thread block.
const SM_SHARED_BYTES: u32 = 233_472;
const BLOCK_SHARED_BYTES: u32 = 1024;

pub(super) const ROWS_THREADS: u32 = 256;
pub(super) const FORM_THREADS: u32 = 256;
pub(super) const COPY_THREADS: u32 = 512;
