//! The only launches of kernels that back ends have not.

use std::ffi::c_void;

use ncserverd::device::abi;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::driver::{Address, Fault, Function, Stream};
use ncserverd::device::cuda::launch::{Grid, argument, start};

use super::kernels::THESIS;

/// Kernels that decode one generation block by block.
///
/// # Safety
/// As `device::cuda::launch` says; the function is one of these kernels, and the grid is one that
/// its source allows.
pub(super) unsafe fn progress(
    function: Function,
    grid: Grid,
    progress: &abi::Progress,
    tables: Address,
    stream: &Stream,
) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { start(function, grid, &mut [argument(progress), argument(&tables)], stream) }
}

/// A kernel of the thesis, which has these arguments.
///
/// # Safety
/// As `device::cuda::launch` says; the arguments are what the kernel's source declares, with
/// numbers that keep it inside of its matrices.
pub(super) unsafe fn thesis(
    card: &Card,
    entry: &'static str,
    grid: Grid,
    arguments: &mut [*mut c_void],
    stream: &Stream,
) -> Result<(), Fault> {
    let function = card.function(THESIS, entry, 0)?;
    // SAFETY: the caller's promise.
    unsafe { start(function, grid, arguments, stream) }
}

/// Keeps multiprocessors busy until the word at `released` is not zero, or so many nanoseconds have
/// passed. Each thread block adds one to the word at `arrived` when it runs.
///
/// # Safety
/// As `device::cuda::launch` says; `released` is a word of device memory, `arrived` of pinned
/// memory.
pub(super) unsafe fn hold(
    function: Function,
    grid: Grid,
    (released, arrived): (Address, Address),
    nanoseconds: u64,
    stream: &Stream,
) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { start(function, grid, &mut [argument(&released), argument(&arrived), argument(&nanoseconds)], stream) }
}
