//! The compiled kernels that combine: the forms of segments and rows that each needs, and how it is
//! launched.

use super::card::Card;
use super::driver::Fault;
use super::image::Image;
use crate::Kernel;
use crate::abi::{RowForm, define};

/// A form in which generations are held in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Plain bytes.
    Bytes,
    /// Logarithms, 255 for zero.
    Logs,
    /// Logarithms plus one, 0 for zero.
    Logs1,
    /// Byte-transposed tiles of 64 positions and 32 sources.
    Tiles,
    /// Bit planes.
    Planes,
    /// Selectors, each of three bits of each of three sources.
    Selectors,
}

impl Form {
    /// The kernel that makes the form, its file, and its threads per block.
    pub const fn maker(self) -> (Image, &'static str, u32) {
        match self {
            Self::Bytes => (Image::Forms, "nc_form_bytes", FORM_THREADS),
            Self::Logs => (Image::Forms, "nc_form_logs", FORM_THREADS),
            Self::Logs1 => (Image::Forms, "nc_form_logs1", FORM_THREADS),
            Self::Tiles => (Image::Tensor, "nc_form_tiles", FORM_THREADS),
            Self::Planes => (Image::Bitsliced, "nc_form_planes", FORM_THREADS),
            Self::Selectors => (Image::Prmt, "nc_form_selectors", FORM_THREADS),
        }
    }

    /// Bytes of a generation of n blocks of k bytes in this form.
    pub const fn bytes(self, n: usize, k: usize) -> usize {
        match self {
            Self::Bytes | Self::Logs | Self::Logs1 => n * k,
            Self::Tiles => k.div_ceil(64) * tensor_steps(n) * TENSOR_TILE_BYTES,
            Self::Planes => k.next_multiple_of(PLANES_BYTES) * n,
            Self::Selectors => n.div_ceil(3) * k.div_ceil(SELECTORS_BYTES) * SELECTORS_SIZE,
        }
    }
}

/// A variant of a kernel, with its launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub entry: &'static str,
    /// Rows, and bytes of a row, in a unit of work.
    pub unit: (u32, u32),
    pub threads: u32,
    pub shared_bytes: u32,
    /// Thread blocks that run on one multiprocessor at once.
    pub blocks_per_sm: u32,
    /// Units that a thread block processes at a time.
    pub units_per_block: u32,
    /// Thread blocks that share a unit; the grid is a multiple of it.
    pub cluster: u32,
    /// Whether it makes seeded rows itself if it is given none.
    pub makes_rows: bool,
}

impl Variant {
    /// Thread blocks for `units` units on `sms` multiprocessors.
    pub fn blocks(&self, units: u32, sms: u32) -> u32 {
        let wanted = units.div_ceil(self.units_per_block);
        wanted.min(sms * self.blocks_per_sm / self.cluster).max(1) * self.cluster
    }

    /// Units of work in `rows` rows of k bytes.
    pub const fn units(&self, rows: u32, k: u32) -> u32 {
        rows.div_ceil(self.unit.0) * k.div_ceil(self.unit.1)
    }
}

/// The properties of some work that decide between variants of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Source blocks of the largest generation.
    pub n: u32,
    /// Rows of a task, on average.
    pub rows_per_task: u32,
    /// Total rows.
    pub rows: u32,
    /// Bytes of the largest block.
    pub k: u32,
    /// Multiprocessors.
    pub sms: u32,
    /// Maximum dynamic shared memory of a thread block.
    pub shared_bytes: u32,
}

/// A kernel that combines, with the forms that it needs.
#[derive(Debug, Clone, Copy)]
pub struct Combine {
    /// Its name.
    pub kernel: &'static str,
    pub image: Image,
    pub form: Form,
    pub row_form: RowForm,
    /// Whether it runs only on Hopper.
    pub is_hopper_only: bool,
    /// The variant for some work. `None` if this card cannot do it.
    pub variant: fn(&Demand) -> Option<Variant>,
}

/// All kernels with which back ends combine.
pub const COMBINES: &[Combine] = &[
    Combine {
        form: Form::Logs,
        row_form: RowForm::Logs16,
        ..Combine::new(Kernel::Table.name(), Image::Table, table)
    },
    Combine {
        form: Form::Tiles,
        is_hopper_only: true,
        ..Combine::new(Kernel::Tensor.name(), Image::Tensor, tensor)
    },
    Combine {
        form: Form::Planes,
        ..Combine::new(Kernel::Bitsliced.name(), Image::Bitsliced, |demand| {
            demand.grant(BITSLICED)
        })
    },
    Combine {
        form: Form::Selectors,
        ..Combine::new(Kernel::Prmt.name(), Image::Prmt, |demand| {
            demand.grant(PRMT)
        })
    },
    Combine::new(Kernel::Product.name(), Image::Product, |demand| {
        demand.grant(PRODUCT)
    }),
];

impl Demand {
    /// The demand of tasks of these shapes, (n, rows, k), on a card.
    pub fn of(tasks: impl IntoIterator<Item = (u32, u32, u32)>, card: &Card) -> Self {
        let none = Self {
            n: 1,
            rows_per_task: 0,
            rows: 0,
            k: 1,
            sms: card.sms,
            shared_bytes: card.shared_bytes,
        };
        let mut count = 0_u32;
        let sum = tasks.into_iter().fold(none, |sum, (n, rows, k)| {
            count += 1;
            Self {
                n: sum.n.max(n),
                rows: sum.rows.saturating_add(rows),
                k: sum.k.max(k),
                ..sum
            }
        });
        Self {
            rows_per_task: sum.rows.div_ceil(count.max(1)),
            ..sum
        }
    }

    /// The variant, if the card has enough shared memory for it.
    pub fn grant(&self, variant: Variant) -> Option<Variant> {
        (variant.shared_bytes <= self.shared_bytes).then_some(variant)
    }
}

impl Combine {
    /// The variant for some work.
    pub fn variant_for(&self, demand: &Demand) -> Result<Variant, Fault> {
        let none = || {
            Fault::Driver(format!(
                "the kernel {} has no variant for {demand:?}",
                self.kernel
            ))
        };
        (self.variant)(demand).ok_or_else(none)
    }

    /// A kernel over plain bytes and plain coefficients.
    pub const fn new(
        kernel: &'static str,
        image: Image,
        variant: fn(&Demand) -> Option<Variant>,
    ) -> Self {
        Self {
            kernel,
            image,
            form: Form::Bytes,
            row_form: RowForm::Bytes,
            is_hopper_only: false,
            variant,
        }
    }
}

impl Variant {
    pub const fn new(
        entry: &'static str,
        unit: (u32, u32),
        threads: u32,
        blocks_per_sm: u32,
    ) -> Self {
        Self {
            entry,
            unit,
            threads,
            shared_bytes: 0,
            blocks_per_sm,
            units_per_block: 1,
            cluster: 1,
            makes_rows: false,
        }
    }
}

const TABLE: Variant = {
    let unit = (define("NC_TABLE_ROWS"), define("NC_TABLE_BYTES"));
    let variant = Variant::new(
        "nc_table",
        unit,
        define("NC_TABLE_THREADS"),
        define("NC_TABLE_CTAS"),
    );
    Variant {
        shared_bytes: define("NC_TABLE_SHARED"),
        ..variant
    }
};

const TABLE_SMALL: Variant = {
    let unit = (
        define("NC_TABLE_SMALL_ROWS"),
        define("NC_TABLE_SMALL_BYTES"),
    );
    let (threads, blocks) = (
        define("NC_TABLE_SMALL_THREADS"),
        define("NC_TABLE_SMALL_CTAS"),
    );
    let variant = Variant::new("nc_table_small", unit, threads, blocks);
    Variant {
        shared_bytes: define("NC_TABLE_SMALL_SHARED"),
        makes_rows: true,
        ..variant
    }
};

const BITSLICED: Variant = {
    let unit = (
        define("NC_BITSLICED_UNIT_ROWS"),
        define("NC_BITSLICED_UNIT_BYTES"),
    );
    let blocks = define("NC_BITSLICED_BLOCKS_PER_SM");
    let variant = Variant::new("nc_bitsliced", unit, define("NC_BITSLICED_THREADS"), blocks);
    Variant {
        shared_bytes: define("NC_BITSLICED_SHARED"),
        ..variant
    }
};

const PRMT: Variant = {
    let unit = (define("NC_PRMT_UNIT_ROWS"), define("NC_PRMT_UNIT_BYTES"));
    let variant = Variant::new(
        "nc_prmt",
        unit,
        define("NC_PRMT_THREADS"),
        define("NC_PRMT_BLOCKS_PER_SM"),
    );
    Variant {
        shared_bytes: define("NC_PRMT_SHARED"),
        ..variant
    }
};

const PRODUCT: Variant = {
    let unit = (
        define("NC_PRODUCT_UNIT_ROWS"),
        define("NC_PRODUCT_UNIT_BYTES"),
    );
    let variant = Variant::new(
        "nc_product",
        unit,
        define("NC_PRODUCT_THREADS"),
        define("NC_PRODUCT_BLOCKS_PER_SM"),
    );
    Variant {
        shared_bytes: define("NC_PRODUCT_SHARED"),
        ..variant
    }
};

/// A launch of few units ends sooner if it makes its rows itself; a large unit reads the source
/// less often.
fn table(demand: &Demand) -> Option<Variant> {
    let units = TABLE_SMALL.units(demand.rows, demand.k);
    let small = demand
        .grant(TABLE_SMALL)
        .filter(|_| units <= SMALL_UNITS_PER_SM * demand.sms);
    small.or_else(|| demand.grant(TABLE))
}

/// Small units suit tasks of few rows, and launches of few units. Large units read the source less
/// often. Above n = 512 two thread blocks share tiles that neither could hold alone.
fn tensor(demand: &Demand) -> Option<Variant> {
    let columns = demand.k.div_ceil(TENSOR_UNIT_BYTES);
    let is_little = demand.rows.div_ceil(8) * columns <= 2 * demand.sms;
    let wanted = match () {
        () if is_little || demand.rows_per_task <= 8 => [TENSOR_8, TENSOR_16, TENSOR_PAIR],
        () if demand.rows_per_task <= 16 => [TENSOR_16, TENSOR_PAIR, TENSOR_8],
        () if demand.n <= 512 => [TENSOR_32, TENSOR_16, TENSOR_8],
        () => [TENSOR_PAIR, TENSOR_16, TENSOR_8],
    };
    wanted
        .iter()
        .find_map(|variant| variant.for_n(demand.n, demand.shared_bytes.min(TENSOR_SHARED_MAX)))
}

/// Groups of 32 sources in the tensor kernel's loop.
pub const fn tensor_steps(n: usize) -> usize {
    if n <= 64 {
        n.div_ceil(32)
    } else {
        4 * n.div_ceil(128)
    }
}

struct TensorVariant {
    entry: &'static str,
    rows: u32,
    threads: u32,
    shared: u32,
    shared_slot: u32,
    blocks_per_sm: u32,
    /// Thread blocks that share their tiles.
    cluster: u32,
}

impl TensorVariant {
    /// The variant for generations of up to n blocks. Its shared memory has a slot for each 128
    /// coefficients of its rows, and two if there is room: the next rows are then made while the
    /// last are multiplied.
    fn for_n(&self, n: u32, available: u32) -> Option<Variant> {
        let slots = n.div_ceil(128);
        let needed = self.shared + slots * self.shared_slot;
        let blocks = if needed <= available / self.blocks_per_sm {
            self.blocks_per_sm
        } else {
            1
        };
        let room = (available / blocks).checked_sub(self.shared)? / self.shared_slot;
        if room < slots {
            return None;
        }
        let shared_bytes =
            self.shared + room.min(2 * slots).min(TENSOR_SLOTS_MAX) * self.shared_slot;
        let variant = Variant::new(
            self.entry,
            (self.rows, TENSOR_UNIT_BYTES),
            self.threads,
            blocks,
        );
        Some(Variant {
            shared_bytes,
            cluster: self.cluster,
            makes_rows: true,
            ..variant
        })
    }
}

macro_rules! tensor_variant {
    ($define:literal, $entry:literal, $cluster:literal) => {
        TensorVariant {
            entry: $entry,
            rows: define(concat!("NC_TENSOR_", $define, "_ROWS")),
            threads: define(concat!("NC_TENSOR_", $define, "_THREADS")),
            shared: define(concat!("NC_TENSOR_", $define, "_SHARED")),
            shared_slot: define(concat!("NC_TENSOR_", $define, "_SHARED_SLOT")),
            blocks_per_sm: define(concat!("NC_TENSOR_", $define, "_PER_SM")),
            cluster: $cluster,
        }
    };
}

const TENSOR_PAIR: TensorVariant = tensor_variant!("PAIR", "nc_tensor_pair", 2);
const TENSOR_32: TensorVariant = tensor_variant!("32", "nc_tensor_32", 1);
const TENSOR_16: TensorVariant = tensor_variant!("16", "nc_tensor_16", 1);
const TENSOR_8: TensorVariant = tensor_variant!("8", "nc_tensor_8", 1);

/// Up to this many units the small kernel is not slower: measured at n = 128 with two generations
/// of 128 blocks of 4096.
const SMALL_UNITS_PER_SM: u32 = 16;
const TENSOR_SLOTS_MAX: u32 = 16;
const TENSOR_SHARED_MAX: u32 = define("NC_TENSOR_SHARED_MAX");
const TENSOR_UNIT_BYTES: u32 = define("NC_TENSOR_UNIT_BYTES");
const TENSOR_TILE_BYTES: usize = define("NC_TENSOR_TILE_BYTES") as usize;
const PLANES_BYTES: usize = define("NC_PLANES_BYTES") as usize;
const SELECTORS_BYTES: usize = define("NC_SELECTORS_BYTES") as usize;
const SELECTORS_SIZE: usize = define("NC_SELECTORS_SIZE") as usize;
pub const ROWS_THREADS: u32 = define("NC_ROWS_THREADS");
pub const FORM_THREADS: u32 = define("NC_FORM_THREADS");
pub const COPY_THREADS: u32 = define("NC_COPY_THREADS");
