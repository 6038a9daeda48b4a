//! The driver's objects with owners: contexts, streams, events, memory. This module does not know
//! what they are used for.
//!
//! It wraps cudarc's raw driver interface, not its safe one. The safe one allocates pinned memory
//! as write-combined, does not always wait before that memory is read, and records events for its
//! buffers that are not needed here. A [`Context`] exists only if the driver's library is there;
//! this is the one check before all calls.

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{DriverError, result, sys};

use crate::Error;

/// Why a call of the driver failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No memory for this many bytes.
    Memory(u64),
    /// Anything else. After most of these the driver does not work until the process restarts.
    Driver(String),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Memory(bytes) => Self::Memory { bytes },
            Fault::Driver(reason) => Self::Lost(reason),
        }
    }
}

/// Adds the name of the driver's call to an error.
pub trait Named<T> {
    fn named(self, call: &str) -> Result<T, Fault>;
}

impl<T> Named<T> for Result<T, DriverError> {
    fn named(self, call: &str) -> Result<T, Fault> {
        let text = |text: Result<&CStr, DriverError>| {
            text.map_or(String::new(), |text| text.to_string_lossy().into_owned())
        };
        self.map_err(|error| {
            Fault::Driver(format!(
                "{call}: {} ({})",
                text(error.error_string()),
                text(error.error_name())
            ))
        })
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(bytes) => write!(f, "no memory for {bytes} bytes"),
            Self::Driver(reason) => f.write_str(reason),
        }
    }
}

/// The primary context of a GPU. It is current on the thread that opened it.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: contexts belong to the process; each thread that uses one makes it current first
// (`Context::bind`).
unsafe impl Send for Context {}
// SAFETY: the driver locks what threads share.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the context of the GPU with this number and makes it current. The driver's library
    /// must be there (`probe`).
    pub fn open(ordinal: u16) -> Result<Arc<Self>, Fault> {
        result::init().named("cuInit")?;
        let device = result::device::get(ordinal.into()).named("cuDeviceGet")?;
        // SAFETY: the device was given by the driver; the context is released in `drop`.
        let context =
            unsafe { result::primary_ctx::retain(device) }.named("cuDevicePrimaryCtxRetain")?;
        let context = Arc::new(Self { device, context });
        context.bind()?;
        Ok(context)
    }

    /// Makes it current on the calling thread.
    pub fn bind(&self) -> Result<(), Fault> {
        // SAFETY: the context is retained while `self` lives.
        unsafe { result::ctx::set_current(self.context) }.named("cuCtxSetCurrent")
    }

    /// The vendor's name of the card.
    pub fn name(&self) -> Result<String, Fault> {
        result::device::get_name(self.device).named("cuDeviceGetName")
    }

    /// The card's address on the bus, such as `0000:1B:00.0`.
    pub fn bus_id(&self) -> Result<CString, Fault> {
        let mut text = [0_u8; BUS_ID_BYTES];
        let room = i32::try_from(text.len()).expect("a few bytes");
        // SAFETY: there is room for so many bytes, the last of which the driver makes a zero.
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), room, self.device) }
            .result()
            .named("cuDeviceGetPCIBusId")?;
        let text = CStr::from_bytes_until_nul(&text)
            .map_err(|error| Fault::Driver(format!("cuDeviceGetPCIBusId: {error}")))?;
        Ok(text.to_owned())
    }

    pub fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u32, Fault> {
        // SAFETY: the device was given by the driver.
        let value = unsafe { result::device::get_attribute(self.device, attribute) }
            .named("cuDeviceGetAttribute")?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Free and total bytes of the current context's card.
    pub fn memory() -> Result<(u64, u64), Fault> {
        let (free, total) = result::mem_get_info().named("cuMemGetInfo")?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, in `open`. If a failed driver refuses, nothing can be done.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A stream: the driver does its work in order.
#[derive(Debug)]
pub struct Stream {
    pub raw: sys::CUstream,
    _context: Arc<Context>,
}

// SAFETY: like contexts.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)
            .named("cuStreamCreate")?;
        Ok(Self {
            raw,
            _context: Arc::clone(context),
        })
    }

    /// Waits until all work in it is done.
    pub fn synchronize(&self) -> Result<(), Fault> {
        // SAFETY: the stream is destroyed in `drop` only.
        unsafe { result::stream::synchronize(self.raw) }.named("cuStreamSynchronize")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was created once. Its work continues; the owner of the memory in use has
        // waited for it.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    _context: Arc<Context>,
}

// SAFETY: like contexts.
unsafe impl Send for Event {}

impl Event {
    /// An event that records the time.
    pub fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        Self::with(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// An event without a time, which is faster.
    pub fn untimed(context: &Arc<Context>) -> Result<Self, Fault> {
        Self::with(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Self, Fault> {
        let raw = result::event::create(flags).named("cuEventCreate")?;
        Ok(Self {
            raw,
            _context: Arc::clone(context),
        })
    }

    pub fn record(&self, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: both are destroyed in `drop` only.
        unsafe { result::event::record(self.raw, stream.raw) }.named("cuEventRecord")
    }

    /// Makes later work in the stream wait for this event.
    pub fn hold(&self, stream: &Stream) -> Result<(), Fault> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are destroyed in `drop` only.
        unsafe { result::stream::wait_event(stream.raw, self.raw, flags) }
            .named("cuStreamWaitEvent")
    }

    /// Whether the stream has passed it.
    pub fn is_done(&self) -> Result<bool, Fault> {
        // SAFETY: it is destroyed in `drop` only.
        match unsafe { result::event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(error).named("cuEventQuery"),
        }
    }

    /// Time between two events, both of which are done.
    pub fn since(&self, earlier: &Self) -> Result<Duration, Fault> {
        // SAFETY: both are destroyed in `drop` only.
        let milliseconds =
            unsafe { result::event::elapsed(earlier.raw, self.raw) }.named("cuEventElapsedTime")?;
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds.max(0.0)) / 1e3,
        ))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}

/// An address in device memory.
pub type Address = sys::CUdeviceptr;

/// Device memory.
#[derive(Debug)]
pub struct Buffer {
    address: Address,
    len: usize,
    _context: Arc<Context>,
}

// SAFETY: an address and a length; the owner decides who uses the memory and when.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Allocates memory with undefined contents, aligned to at least 256 bytes.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, Fault> {
        // SAFETY: freed once, in `drop`.
        let address = unsafe { result::malloc_sync(len.max(1)) }
            .map_err(|error| out_of_memory(error, len))?;
        Ok(Self {
            address,
            len,
            _context: Arc::clone(context),
        })
    }

    /// Address of at least this many bytes, which no work under way uses: those of `kept` if it is
    /// large enough, otherwise a new buffer's.
    pub fn reserve(
        kept: &mut Option<Self>,
        context: &Arc<Context>,
        len: usize,
    ) -> Result<Address, Fault> {
        if let Some(kept) = kept.as_ref().filter(|kept| kept.len >= len) {
            return Ok(kept.address);
        }
        // Frees the smaller buffer first.
        *kept = None;
        Ok(kept.insert(Self::new(context, len)?).address)
    }

    pub fn address(&self) -> Address {
        self.address
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes `bytes` to its beginning, and waits for the copy.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Fault> {
        assert!(
            bytes.len() <= self.len,
            "{} bytes for a buffer of {}",
            bytes.len(),
            self.len
        );
        // SAFETY: the buffer is large enough and lives.
        unsafe { result::memcpy_htod_sync(self.address, bytes) }.named("cuMemcpyHtoD")?;
        // The copy returns when the bytes are in the driver's own memory. Our streams do not wait
        // for the default one, so they could otherwise begin before the bytes have arrived.
        // SAFETY: null is the default stream of the context that is current.
        unsafe { result::stream::synchronize(ptr::null_mut()) }.named("cuStreamSynchronize")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated once; freeing waits for work that uses it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// The error of `Buffer::new` and of the pool below for a refused allocation.
pub fn out_of_memory(error: DriverError, len: usize) -> Fault {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Fault::Memory(len as u64),
        _ => Fault::Driver(format!("allocating {len} bytes: {error}")),
    }
}

/// A texture that reads device memory as bytes.
#[derive(Debug)]
pub struct Texture {
    raw: sys::CUtexObject,
    _context: Arc<Context>,
}

// SAFETY: the handle is a plain number.
unsafe impl Send for Texture {}

impl Texture {
    /// A texture over the first `len` bytes of a buffer, which must outlive it.
    pub fn over(context: &Arc<Context>, buffer: &Buffer, len: usize) -> Result<Self, Fault> {
        assert!(
            len <= buffer.len,
            "a texture of {len} bytes over a buffer of {}",
            buffer.len
        );
        let linear = sys::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_3 {
            devPtr: buffer.address,
            format: sys::CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8,
            numChannels: 1,
            sizeInBytes: len,
        };
        // SAFETY: both descriptions are C structures in which zero is a value of every field.
        let (mut resource, mut texture) = unsafe {
            (
                MaybeUninit::<sys::CUDA_RESOURCE_DESC>::zeroed().assume_init(),
                MaybeUninit::<sys::CUDA_TEXTURE_DESC>::zeroed().assume_init(),
            )
        };
        resource.resType = sys::CUresourcetype::CU_RESOURCE_TYPE_LINEAR;
        resource.res.linear = linear;
        texture.flags = sys::CU_TRSF_READ_AS_INTEGER;
        let mut raw = 0;
        // SAFETY: the descriptions are complete, and there is no view.
        unsafe {
            sys::cuTexObjectCreate(
                &raw mut raw,
                &raw const resource,
                &raw const texture,
                ptr::null(),
            )
        }
        .result()
        .named("cuTexObjectCreate")?;
        Ok(Self {
            raw,
            _context: Arc::clone(context),
        })
    }

    /// The handle that kernels take.
    pub fn handle(&self) -> u64 {
        self.raw
    }
}

impl Drop for Texture {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { sys::cuTexObjectDestroy(self.raw) }.result();
    }
}

/// Pinned memory: host memory whose pages stay in place, so that the device can read and write it.
#[derive(Debug)]
pub struct Pinned {
    start: *mut u8,
    len: usize,
    _context: Arc<Context>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates memory filled with zeros. It is not write-combined, because the host reads results
    /// from it.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, Fault> {
        // SAFETY: freed once, in `drop`.
        let start = unsafe { result::malloc_host(len.max(1), sys::CU_MEMHOSTALLOC_PORTABLE) };
        let start: *mut u8 = start.map_err(|error| out_of_memory(error, len))?.cast();
        // SAFETY: the allocation is that long.
        unsafe { ptr::write_bytes(start, 0, len) };
        Ok(Self {
            start,
            len,
            _context: Arc::clone(context),
        })
    }

    /// Its address for the device. All systems that CUDA 13 supports have one address space, so it
    /// is the host's address.
    pub fn address(&self) -> Address {
        self.start as Address
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: allocated with this length and initialised; the code that lets the device write
        // there waits before it reads.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it was allocated once.
        let _ = unsafe { result::free_host(self.start.cast()) };
    }
}

/// Memory from the driver's pool for short-lived use. One stream orders its allocations, so that no
/// other stream waits for them.
#[derive(Debug)]
pub struct Pool {
    stream: Stream,
}

/// A piece of the pool. [`Pool::free`] returns it; dropping does not.
#[derive(Debug)]
pub struct Piece {
    pub address: Address,
    pub len: usize,
}

impl Pool {
    /// A pool that keeps freed memory for later pieces.
    pub fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let mut keep = u64::MAX;
        // SAFETY: the device was given by the driver, and the attribute is a 64-bit number.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.device)
                .named("cuDeviceGetDefaultMemPool")?;
            let threshold = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(
                pool,
                threshold,
                ptr::from_mut(&mut keep).cast::<c_void>(),
            )
            .named("cuMemPoolSetAttribute")?;
        }
        Ok(Self {
            stream: Stream::new(context)?,
        })
    }

    /// Allocates a piece. Work that begins from now on may use it.
    pub fn take(&self, len: usize) -> Result<Piece, Fault> {
        // SAFETY: the stream lives; the piece is freed by `free` or with the context.
        let address = unsafe { result::malloc_async(self.stream.raw, len.max(1)) }
            .map_err(|error| out_of_memory(error, len))?;
        self.stream.synchronize()?;
        Ok(Piece { address, len })
    }

    /// Frees a piece that no work under way uses.
    pub fn free(&self, piece: Piece) -> Result<(), Fault> {
        // SAFETY: it came from `take`, and pieces are neither copied nor freed twice.
        unsafe { result::free_async(piece.address, self.stream.raw) }.named("cuMemFreeAsync")
    }
}

/// A loaded module of compiled kernels.
#[derive(Debug)]
pub struct Module {
    raw: sys::CUmodule,
    _context: Arc<Context>,
}

// SAFETY: like contexts.
unsafe impl Send for Module {}

/// A kernel of a loaded module, and its name.
#[derive(Debug, Clone, Copy)]
pub struct Function(pub sys::CUfunction, pub &'static str);

// SAFETY: like contexts.
unsafe impl Send for Function {}

impl Module {
    /// Loads a fatbin. The driver takes its machine code for this card, or compiles its PTX.
    pub fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self, Fault> {
        // SAFETY: a complete image, embedded at compile time; the driver copies it.
        let raw = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .named("cuModuleLoadData")?;
        Ok(Self {
            raw,
            _context: Arc::clone(context),
        })
    }

    /// Looks up a kernel.
    pub fn function(&self, name: &'static str) -> Result<Function, Fault> {
        let text = CString::new(name).expect("names of kernels have no zeros");
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.raw, text) }.named(name)?;
        Ok(Function(function, name))
    }
}

impl Function {
    /// Allows the kernel this much dynamic shared memory.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), Fault> {
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).expect("less than a megabyte");
        // SAFETY: the function was found in a module that stays loaded while the card is open.
        unsafe { result::function::set_function_attribute(self.0, attribute, bytes) }
            .named("cuFuncSetAttribute")
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: it was loaded once.
        let _ = unsafe { result::module::unload(self.raw) };
    }
}

/// Room for domain, bus, device, function, their separators and a zero: thirteen bytes suffice.
const BUS_ID_BYTES: usize = 32;
