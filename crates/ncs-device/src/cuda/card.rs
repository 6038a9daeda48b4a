//! A card with its kernels loaded: the state that all work on it shares.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use super::driver::{Buffer, Context, Fault, Function, Module, Texture};
use super::image::Image;
use crate::{Field, Gpu, abi};

/// A card, its loaded kernels, and the field's tables in its memory. A thread that shares it makes
/// its context current first.
#[derive(Debug)]
pub struct Card {
    pub name: String,
    /// Multiprocessors.
    pub sms: u32,
    /// Compute capability: major × 10 + minor.
    pub capability: u32,
    /// Maximum dynamic shared memory of a thread block.
    pub shared_bytes: u32,
    /// Dropped before the tables that it reads.
    texture: Texture,
    tables: Buffer,
    modules: Mutex<HashMap<Image, Module>>,
    /// Each with the dynamic shared memory that it may have so far.
    functions: Mutex<HashMap<&'static str, (Function, u32)>>,
    pub context: Arc<Context>,
}

impl Card {
    /// Opens the GPU with this number on the calling thread.
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
            shared_bytes: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?,
            texture,
            tables,
            modules: Mutex::default(),
            functions: Mutex::default(),
            context,
        })
    }

    /// Describes the card. Its context must be current.
    pub fn facts(&self) -> Result<Gpu, Fault> {
        Ok(Gpu {
            name: self.name.clone(),
            driver: driver(),
            sms: self.sms,
            memory_bytes: Context::memory()?.1,
            compute_capability: (self.capability / 10, self.capability % 10),
            clock_mhz: self
                .context
                .attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?
                / 1000,
        })
    }

    /// Device address of the field's tables.
    pub fn tables(&self) -> u64 {
        self.tables.address()
    }

    /// The texture of logarithms, powers and products.
    pub fn texture(&self) -> u64 {
        self.texture.handle()
    }

    /// A kernel that may use this much dynamic shared memory. The first call looks it up.
    pub fn function(
        &self,
        image: Image,
        entry: &'static str,
        shared_bytes: u32,
    ) -> Result<Function, Fault> {
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

/// The driver's version as the system reports it.
fn driver() -> String {
    let text = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let words = text.lines().next().unwrap_or_default().split_whitespace();
    let mut versions =
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    versions.next().unwrap_or("unknown").to_owned()
}

/// Poisoning is harmless: no code panics halfway through a change under this lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A length or count of a structure of the ABI.
///
/// # Panics
/// From 2^32 on, which nothing on a card has.
pub fn number(value: usize) -> u32 {
    u32::try_from(value).expect("fewer than 2^32")
}

/// The bytes of a structure of the ABI. None has padding.
pub fn bytes_of<T: abi::Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` promises that every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Logarithms, powers and products: the first part of the tables.
const TEXTURE_BYTES: usize = 256 + 512 + 65_536;
/// Dynamic shared memory that a kernel has without asking for more.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;
