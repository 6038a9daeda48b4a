//! Launches of kernels that no back end has. Each kind of kernel has its only launch here.

use std::ffi::c_void;

use ncserverd::device::abi;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::driver::{Address, Fault, Function, Stream};
use ncserverd::device::cuda::launch::{Grid, argument, start};

use super::kernels::THESIS;

/// Starts a kernel that decodes one generation block by block.
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
    unsafe {
        start(
            function,
            grid,
            &mut [argument(progress), argument(&tables)],
            stream,
        )
    }
}

/// Starts a kernel of the thesis with these arguments.
///
/// # Safety
/// As `device::cuda::launch` says; the arguments are those that the kernel's source declares, and
/// their numbers keep it inside its matrices.
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

/// Keeps multiprocessors busy until the word at `released` is not zero, or for at most
/// `nanoseconds`. Each thread block adds one to the word at `arrived` when it runs.
///
/// # Safety
/// As `device::cuda::launch` says; `released` is a word of device memory, `arrived` one of pinned
/// memory.
pub(super) unsafe fn hold(
    function: Function,
    grid: Grid,
    (released, arrived): (Address, Address),
    nanoseconds: u64,
    stream: &Stream,
) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe {
        start(
            function,
            grid,
            &mut [
                argument(&released),
                argument(&arrived),
                argument(&nanoseconds),
            ],
            stream,
        )
    }
}
