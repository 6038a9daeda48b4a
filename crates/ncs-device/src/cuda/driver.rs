//! The driver's objects with owners: a context, streams, events, memory. Nothing here knows what it
//! is used for.
//!
//! This is a layer over the driver interface itself and not over the safe one of the same crate,
//! whose pinned memory is write-combined, whose reads of it do not always wait, and whose buffers
//! record events that nobody here asks for. What may be called is decided in one place: a
//! [`Context`] exists only if the driver's library is there.

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{DriverError, result, sys};

use crate::Error;

/// Why a call of the driver did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No memory for so many bytes.
    Memory(u64),
    /// Anything else. After most of these nothing works any more until the process is started anew.
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

/// Says which call of the driver failed.
pub trait Named<T> {
    fn named(self, call: &str) -> Result<T, Fault>;
}

impl<T> Named<T> for Result<T, DriverError> {
    fn named(self, call: &str) -> Result<T, Fault> {
        let text = |text: Result<&CStr, DriverError>| text.map_or(String::new(), |text| text.to_string_lossy().into_owned());
        self.map_err(|error| Fault::Driver(format!("{call}: {} ({})", text(error.error_string()), text(error.error_name()))))
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

/// The primary context of a GPU, current on the thread that opened it.
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
        let context = unsafe { result::primary_ctx::retain(device) }.named("cuDevicePrimaryCtxRetain")?;
        let context = Arc::new(Self { device, context });
        context.bind()?;
        Ok(context)
    }

    /// Makes it current on this thread.
    pub fn bind(&self) -> Result<(), Fault> {
        // SAFETY: the context is retained while `self` lives.
        unsafe { result::ctx::set_current(self.context) }.named("cuCtxSetCurrent")
    }

    /// The name that the vendor gives the card.
    pub fn name(&self) -> Result<String, Fault> {
        result::device::get_name(self.device).named("cuDeviceGetName")
    }

    /// Where the card is on the bus, such as `0000:1B:00.0`.
    pub fn bus_id(&self) -> Result<CString, Fault> {
        let mut text = [0_u8; BUS_ID_BYTES];
        let room = i32::try_from(text.len()).expect("a few bytes");
        // SAFETY: there is room for so many bytes, the last of which the driver makes a zero.
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), room, self.device) }.result().named("cuDeviceGetPCIBusId")?;
        let text = CStr::from_bytes_until_nul(&text).map_err(|error| Fault::Driver(format!("cuDeviceGetPCIBusId: {error}")))?;
        Ok(text.to_owned())
    }

    pub fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u32, Fault> {
        // SAFETY: the device was given by the driver.
        let value = unsafe { result::device::get_attribute(self.device, attribute) }.named("cuDeviceGetAttribute")?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Bytes that are free and bytes in all, of the context that is current.
    pub fn memory() -> Result<(u64, u64), Fault> {
        let (free, total) = result::mem_get_info().named("cuMemGetInfo")?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, in `open`. A driver that has failed refuses, and nothing is
        // to be done about it.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A stream of work in order.
#[derive(Debug)]
pub struct Stream {
    pub raw: sys::CUstream,
    _context: Arc<Context>,
}

// SAFETY: like contexts.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).named("cuStreamCreate")?;
        Ok(Self { raw, _context: Arc::clone(context) })
    }

    /// Waits until everything in it is done.
    pub fn synchronize(&self) -> Result<(), Fault> {
        // SAFETY: the stream is destroyed in `drop` only.
        unsafe { result::stream::synchronize(self.raw) }.named("cuStreamSynchronize")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was created once. Work in it goes on; whoever owns the memory it uses has
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
    /// One that remembers when.
    pub fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        Self::with(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// One that only tells that it is past, which is sooner.
    pub fn untimed(context: &Arc<Context>) -> Result<Self, Fault> {
        Self::with(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Self, Fault> {
        let raw = result::event::create(flags).named("cuEventCreate")?;
        Ok(Self { raw, _context: Arc::clone(context) })
    }

    pub fn record(&self, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: both are destroyed in `drop` only.
        unsafe { result::event::record(self.raw, stream.raw) }.named("cuEventRecord")
    }

    /// Makes what is put into the stream from now on wait for it.
    pub fn hold(&self, stream: &Stream) -> Result<(), Fault> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are destroyed in `drop` only.
        unsafe { result::stream::wait_event(stream.raw, self.raw, flags) }.named("cuStreamWaitEvent")
    }

    /// Whether the stream has come past it.
    pub fn is_done(&self) -> Result<bool, Fault> {
        // SAFETY: it is destroyed in `drop` only.
        match unsafe { result::event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(error).named("cuEventQuery"),
        }
    }

    /// Time between two events that are both done.
    pub fn since(&self, earlier: &Self) -> Result<Duration, Fault> {
        // SAFETY: both are destroyed in `drop` only.
        let milliseconds = unsafe { result::event::elapsed(earlier.raw, self.raw) }.named("cuEventElapsedTime")?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
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

/// Memory of the device.
#[derive(Debug)]
pub struct Buffer {
    address: Address,
    len: usize,
    _context: Arc<Context>,
}

// SAFETY: an address and a length; who uses it when is the owner's business.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Undefined contents, aligned to 256 bytes at least.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, Fault> {
        // SAFETY: freed once, in `drop`.
        let address = unsafe { result::malloc_sync(len.max(1)) }.map_err(|error| out_of_memory(error, len))?;
        Ok(Self { address, len, _context: Arc::clone(context) })
    }

    /// Where so many bytes are, which nothing uses that is under way: those of `kept`, if they are
    /// enough.
    pub fn reserve(kept: &mut Option<Self>, context: &Arc<Context>, len: usize) -> Result<Address, Fault> {
        if let Some(kept) = kept.as_ref().filter(|kept| kept.len >= len) {
            return Ok(kept.address);
        }
        // What is too small goes first.
        *kept = None;
        Ok(kept.insert(Self::new(context, len)?).address)
    }

    pub fn address(&self) -> Address {
        self.address
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Waits until `bytes` are at its beginning.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Fault> {
        assert!(bytes.len() <= self.len, "{} bytes for a buffer of {}", bytes.len(), self.len);
        // SAFETY: the buffer is large enough and lives.
        unsafe { result::memcpy_htod_sync(self.address, bytes) }.named("cuMemcpyHtoD")?;
        // The copy returns when the bytes are in the driver's own memory. Streams that do not wait
        // for the default one, which ours are, could otherwise begin before the bytes have arrived.
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

/// What `Buffer::new` and the pool below say about a refusal.
pub fn out_of_memory(error: DriverError, len: usize) -> Fault {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Fault::Memory(len as u64),
        _ => Fault::Driver(format!("allocating {len} bytes: {error}")),
    }
}

/// Device memory read as a texture of bytes.
#[derive(Debug)]
pub struct Texture {
    raw: sys::CUtexObject,
    _context: Arc<Context>,
}

// SAFETY: a number.
unsafe impl Send for Texture {}

impl Texture {
    /// Over the first `len` bytes of a buffer, which outlives it.
    pub fn over(context: &Arc<Context>, buffer: &Buffer, len: usize) -> Result<Self, Fault> {
        assert!(len <= buffer.len, "a texture of {len} bytes over a buffer of {}", buffer.len);
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
        unsafe { sys::cuTexObjectCreate(&raw mut raw, &raw const resource, &raw const texture, ptr::null()) }
            .result()
            .named("cuTexObjectCreate")?;
        Ok(Self { raw, _context: Arc::clone(context) })
    }

    /// What a kernel is given.
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

/// Memory of this process that the device reads and writes: pages stay where they are.
#[derive(Debug)]
pub struct Pinned {
    start: *mut u8,
    len: usize,
    _context: Arc<Context>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Zeros. Not write-combined: the host reads results.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, Fault> {
        // SAFETY: freed once, in `drop`.
        let start = unsafe { result::malloc_host(len.max(1), sys::CU_MEMHOSTALLOC_PORTABLE) };
        let start: *mut u8 = start.map_err(|error| out_of_memory(error, len))?.cast();
        // SAFETY: the allocation is that long.
        unsafe { ptr::write_bytes(start, 0, len) };
        Ok(Self { start, len, _context: Arc::clone(context) })
    }

    /// As the device sees it. Systems with one address space for both, which are all that CUDA 13
    /// knows, use the host's address.
    pub fn address(&self) -> Address {
        self.start as Address
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: allocated with this length and initialised; whoever lets the device write there
        // waits before reading.
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

/// Memory for what comes and goes, taken from the driver's pool in the order of one stream, so that
/// nothing else waits for it.
#[derive(Debug)]
pub struct Pool {
    stream: Stream,
}

/// A piece of the pool. Given back by [`Pool::free`], not by dropping.
#[derive(Debug)]
pub struct Piece {
    pub address: Address,
    pub len: usize,
}

impl Pool {
    /// A pool that keeps what is freed for the next piece.
    pub fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let mut keep = u64::MAX;
        // SAFETY: the device was given by the driver, and the attribute is a 64-bit number.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.device).named("cuDeviceGetDefaultMemPool")?;
            let threshold = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, threshold, ptr::from_mut(&mut keep).cast::<c_void>())
                .named("cuMemPoolSetAttribute")?;
        }
        Ok(Self { stream: Stream::new(context)? })
    }

    /// A piece that everything begun from now on may use.
    pub fn take(&self, len: usize) -> Result<Piece, Fault> {
        // SAFETY: the stream lives; the piece is freed by `free` or with the context.
        let address = unsafe { result::malloc_async(self.stream.raw, len.max(1)) }.map_err(|error| out_of_memory(error, len))?;
        self.stream.synchronize()?;
        Ok(Piece { address, len })
    }

    /// Gives a piece back. Nothing that uses it is under way.
    pub fn free(&self, piece: Piece) -> Result<(), Fault> {
        // SAFETY: it came from `take`, and pieces are neither copied nor freed twice.
        unsafe { result::free_async(piece.address, self.stream.raw) }.named("cuMemFreeAsync")
    }
}

/// Compiled kernels, loaded.
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
    /// Loads a fatbin. The driver takes the machine code for this card, or compiles the PTX in it.
    pub fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self, Fault> {
        // SAFETY: a complete image, embedded at compile time; the driver copies it.
        let raw = unsafe { result::module::load_data(image.as_ptr().cast()) }.named("cuModuleLoadData")?;
        Ok(Self { raw, _context: Arc::clone(context) })
    }

    /// Finds a kernel.
    pub fn function(&self, name: &'static str) -> Result<Function, Fault> {
        let text = CString::new(name).expect("names of kernels have no zeros");
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.raw, text) }.named(name)?;
        Ok(Function(function, name))
    }
}

impl Function {
    /// Lets it have this much dynamic shared memory.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), Fault> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).expect("less than a megabyte");
        // SAFETY: the function was found in a module that is loaded as long as the card is open.
        unsafe { result::function::set_function_attribute(self.0, attribute, bytes) }.named("cuFuncSetAttribute")
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: it was loaded once.
        let _ = unsafe { result::module::unload(self.raw) };
    }
}

/// Domain, bus, device and function with what separates them, and a zero: thirteen are enough.
const BUS_ID_BYTES: usize = 32;
