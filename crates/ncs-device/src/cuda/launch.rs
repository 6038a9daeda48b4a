//! One function for each kind of kernel, which holds its only launch.
//!
//! They do not wait. All have these conditions: the launch, form task or list holds addresses of
//! memory that stays allocated until the stream has passed the kernel. Tasks and tables describe
//! this memory correctly, and nothing else writes there meanwhile.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::{result, sys};

use super::card::Card;
use super::driver::{Address, Fault, Function, Named, Stream};
use super::image::Image;
use super::kernels::{Combine, Form, ROWS_THREADS, Variant};
use crate::abi;

/// Blocks in three dimensions, threads per block, dynamic shared memory per block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    pub blocks: (u32, u32, u32),
    pub threads: u32,
    pub shared_bytes: u32,
}

impl Grid {
    pub const fn line(blocks: u32, threads: u32, shared_bytes: u32) -> Self {
        Self {
            blocks: (blocks, 1, 1),
            threads,
            shared_bytes,
        }
    }
}

/// Makes the rows of a launch in its row form. `n` is the size of its largest generation.
///
/// # Safety
/// As the module says.
pub unsafe fn rows(
    card: &Card,
    launch: &abi::Launch,
    n: u32,
    stream: &Stream,
) -> Result<(), Fault> {
    let function = card.function(Image::Rows, "nc_rows", 0)?;
    let blocks = (
        launch.rows.div_ceil(ROWS_PER_BLOCK).max(1),
        n.div_ceil(COEFFICIENTS_PER_STEP).max(1),
        1,
    );
    let grid = Grid {
        blocks,
        threads: ROWS_THREADS,
        shared_bytes: 0,
    };
    let tables = card.tables();
    // SAFETY: the caller's promise.
    unsafe {
        start(
            function,
            grid,
            &mut [argument(launch), argument(&tables)],
            stream,
        )
    }
}

/// Combines with this variant of `combine` on up to `sms` multiprocessors.
///
/// # Safety
/// As the module says; the variant belongs to `combine`, and sources and rows are in its forms.
pub unsafe fn combine(
    card: &Card,
    combine: &Combine,
    variant: &Variant,
    launch: &abi::Launch,
    sms: u32,
    stream: &Stream,
) -> Result<(), Fault> {
    let function = card.function(combine.image, variant.entry, variant.shared_bytes)?;
    let grid = Grid::line(
        variant.blocks(launch.units, sms),
        variant.threads,
        variant.shared_bytes,
    );
    let (tables, texture) = (card.tables(), card.texture());
    // SAFETY: the caller's promise. Kernels without texture have two parameters; the driver reads
    // as many as the kernel has.
    unsafe {
        start(
            function,
            grid,
            &mut [argument(launch), argument(&tables), argument(&texture)],
            stream,
        )
    }
}

/// Converts generations into a form, with `across` thread blocks each. `tasks` is the device
/// address of `count` form tasks.
///
/// # Safety
/// As the module says.
pub unsafe fn form(
    card: &Card,
    form: Form,
    across: u32,
    (tasks, count): (Address, u32),
    stream: &Stream,
) -> Result<(), Fault> {
    let (image, entry, threads) = form.maker();
    let function = card.function(image, entry, 0)?;
    let grid = Grid {
        blocks: (across, count, 1),
        threads,
        shared_bytes: 0,
    };
    let tables = card.tables();
    // SAFETY: the caller's promise.
    unsafe {
        start(
            function,
            grid,
            &mut [argument(&tasks), argument(&count), argument(&tables)],
            stream,
        )
    }
}

/// Copies `count` blocks of `bytes` bytes, `pitch` apart, to the addresses in a list.
///
/// # Safety
/// As the module says; addresses, `from`, `pitch` and `bytes` are multiples of 16.
pub unsafe fn scatter(
    function: Function,
    grid: Grid,
    addresses: Address,
    (from, pitch): (Address, u32),
    (count, bytes): (u32, u32),
    stream: &Stream,
) -> Result<(), Fault> {
    let mut arguments = [
        argument(&addresses),
        argument(&from),
        argument(&pitch),
        argument(&count),
        argument(&bytes),
    ];
    // SAFETY: the caller's promise.
    unsafe { start(function, grid, &mut arguments, stream) }
}

/// Inverts matrices. `tasks` is the device address of `count` invert tasks, and `cluster` blocks
/// share a matrix.
///
/// # Safety
/// As the module says; the function is one of these kernels, and the grid is one that its source
/// allows.
pub unsafe fn invert(
    function: Function,
    grid: Grid,
    cluster: u32,
    (tasks, count): (Address, u32),
    tables: Address,
    stream: &Stream,
) -> Result<(), Fault> {
    let mut arguments = [argument(&tasks), argument(&count), argument(&tables)];
    if cluster == 1 {
        // SAFETY: as the caller promises.
        return unsafe { start(function, grid, &mut arguments, stream) };
    }
    if cluster > PORTABLE_CLUSTER {
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        // SAFETY: the function was found in a loaded module.
        unsafe { result::function::set_function_attribute(function.0, attribute, 1) }
            .named(function.1)?;
    }
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    };
    attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
        x: cluster,
        y: 1,
        z: 1,
    };
    let config = sys::CUlaunchConfig {
        gridDimX: grid.blocks.0,
        gridDimY: grid.blocks.1,
        gridDimZ: grid.blocks.2,
        blockDimX: grid.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: grid.shared_bytes,
        hStream: stream.raw,
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    // SAFETY: the driver copies configuration and arguments before it returns; the rest is the
    // caller's promise.
    unsafe {
        sys::cuLaunchKernelEx(
            &raw const config,
            function.0,
            arguments.as_mut_ptr(),
            ptr::null_mut(),
        )
    }
    .result()
    .named(function.1)
}

/// Makes code chunks from native ones.
///
/// # Safety
/// As the module says; the grid is one that the kernel's source allows for these chunks.
pub unsafe fn chunks(
    card: &Card,
    (image, entry): (Image, &'static str),
    grid: Grid,
    chunks: &abi::Chunks,
    stream: &Stream,
) -> Result<(), Fault> {
    let function = card.function(image, entry, grid.shared_bytes)?;
    let tables = card.tables();
    // SAFETY: the caller's promise.
    unsafe {
        start(
            function,
            grid,
            &mut [argument(chunks), argument(&tables)],
            stream,
        )
    }
}

/// Replays plans on symbols.
///
/// # Safety
/// As the module says; plans have the format of `nc_plan`, and their slots, inputs and places are
/// within the numbers that they and the task state.
pub unsafe fn replay(
    card: &Card,
    entry: &'static str,
    grid: Grid,
    task: &abi::Replay,
    stream: &Stream,
) -> Result<(), Fault> {
    let function = card.function(Image::Replay, entry, grid.shared_bytes)?;
    // SAFETY: the caller's promise.
    unsafe { start(function, grid, &mut [argument(task)], stream) }
}

/// Starts a kernel over large matrices: a step of an inversion, a product, or sums. Kernels that
/// multiply read the tables.
///
/// # Safety
/// As the module says; the entry takes this structure, and the grid is one that `nc_abi.h` allows.
pub unsafe fn wide<T: abi::Plain>(
    card: &Card,
    entry: &'static str,
    grid: Grid,
    task: &T,
    stream: &Stream,
) -> Result<(), Fault> {
    let function = card.function(Image::Wide, entry, grid.shared_bytes)?;
    let tables = card.tables();
    // SAFETY: the caller's promise. Kernels without tables have one parameter; the driver reads as
    // many as the kernel has.
    unsafe {
        start(
            function,
            grid,
            &mut [argument(task), argument(&tables)],
            stream,
        )
    }
}

/// Starts a kernel over words of 257 bits, or over hashes.
///
/// # Safety
/// As the module says; the entry takes this structure, and the grid is one that `nc_abi.h` allows.
pub unsafe fn words<T: abi::Plain>(
    card: &Card,
    (image, entry): (Image, &'static str),
    grid: Grid,
    task: &T,
    stream: &Stream,
) -> Result<(), Fault> {
    let function = card.function(image, entry, grid.shared_bytes)?;
    // SAFETY: the caller's promise.
    unsafe { start(function, grid, &mut [argument(task)], stream) }
}

/// A pointer to a kernel's argument, which must live until the launch returns.
pub fn argument<T>(value: &T) -> *mut c_void {
    ptr::from_ref(value).cast_mut().cast()
}

/// Starts a kernel.
///
/// # Safety
/// The arguments are those that the kernel's source declares, and the callers' conditions hold.
pub unsafe fn start(
    function: Function,
    grid: Grid,
    arguments: &mut [*mut c_void],
    stream: &Stream,
) -> Result<(), Fault> {
    // SAFETY: the driver copies the arguments before it returns; the rest is the caller's promise.
    unsafe {
        result::launch_kernel(
            function.0,
            grid.blocks,
            (grid.threads, 1, 1),
            grid.shared_bytes,
            stream.raw,
            arguments,
        )
    }
    .named(function.1)
}

/// Maximum blocks of a cluster on every card that has clusters.
const PORTABLE_CLUSTER: u32 = 8;

/// Rows that a thread block of the row-making kernel makes in one step.
const ROWS_PER_BLOCK: u32 = 32;
const COEFFICIENTS_PER_STEP: u32 = 128;
