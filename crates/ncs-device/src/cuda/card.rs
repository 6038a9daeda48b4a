//! A card with its kernels loaded: everything that is the same for all work on it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use super::driver::{Buffer, Context, Fault, Function, Module, Texture};
use super::image::Image;
use crate::{Field, Gpu, abi};

/// A card, its loaded kernels, and the field's tables on it. Threads that share it make its context
/// current first.
#[derive(Debug)]
pub struct Card {
    pub name: String,
    /// Multiprocessors.
    pub sms: u32,
    /// Compute capability: major × 10 + minor.
    pub capability: u32,
    /// Dynamic shared memory that a thread block may have.
    pub shared_bytes: u32,
    /// Dropped before what it is over.
    texture: Texture,
    tables: Buffer,
    modules: Mutex<HashMap<Image, Module>>,
    /// With the dynamic shared memory that each may have by now.
    functions: Mutex<HashMap<&'static str, (Function, u32)>>,
    pub context: Arc<Context>,
}

impl Card {
    /// Opens the GPU with this number on this thread.
    pub fn open(ordinal: u16, field: Field) -> Result<Self, Fault> {
        let context = Context::open(ordinal)?;
        let attribute = |attribute| context.attribute(attribute);
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let tables = Buffer::new(&context, size_of::<abi::Tables>())?;
        tables.write(bytes_of(&*abi::Tables::of(field)))?;
        let texture = Texture::over(&context, &tables, TEXTURE_BYTES)?;
        Ok(Self {
            name: context.name()?,
            sms: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
            capability: 10 * major + minor,
            shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            texture,
            tables,
            modules: Mutex::default(),
            functions: Mutex::default(),
            context,
        })
    }

    /// What it is. Its context is current.
    pub fn facts(&self) -> Result<Gpu, Fault> {
        Ok(Gpu {
            name: self.name.clone(),
            driver: driver(),
            sms: self.sms,
            memory_bytes: Context::memory()?.1,
            compute_capability: (self.capability / 10, self.capability % 10),
            clock_mhz: self.context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)? / 1000,
        })
    }

    /// Address of the field's tables.
    pub fn tables(&self) -> u64 {
        self.tables.address()
    }

    /// The tables of logarithms, powers and products as a texture.
    pub fn texture(&self) -> u64 {
        self.texture.handle()
    }

    /// A kernel, loaded at the first call, that may have this much dynamic shared memory.
    pub fn function(&self, image: Image, entry: &'static str, shared_bytes: u32) -> Result<Function, Fault> {
        let known = lock(&self.functions).get(entry).copied();
        let (function, allowed) = match known {
            Some(known) => known,
            None => (self.load(image, entry)?, SHARED_WITHOUT_ASKING),
        };
        if shared_bytes > allowed {
            function.allow_shared(shared_bytes)?;
        }
        if known.is_none() || shared_bytes > allowed {
            lock(&self.functions).insert(entry, (function, allowed.max(shared_bytes)));
        }
        Ok(function)
    }

    fn load(&self, image: Image, entry: &'static str) -> Result<Function, Fault> {
        let mut modules = lock(&self.modules);
        let module = match modules.entry(image) {
            Entry::Occupied(module) => module.into_mut(),
            Entry::Vacant(place) => place.insert(Module::load(&self.context, image.bytes())?),
        };
        module.function(entry)
    }
}

/// What the system says that the driver is.
fn driver() -> String {
    let text = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let words = text.lines().next().unwrap_or_default().split_whitespace();
    let mut versions = words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    versions.next().unwrap_or("unknown").to_owned()
}

/// What is in there is whole, whatever a panic has left.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of a structure of the ABI, none of which has padding.
pub fn bytes_of<T: abi::Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` promises that every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Logarithms, powers and products: the beginning of the tables.
const TEXTURE_BYTES: usize = 256 + 512 + 65_536;
/// Dynamic shared memory that any kernel may have.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;
