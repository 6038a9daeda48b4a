//! Energy that a card takes, as counted by NVML, the driver's library for monitoring.
//!
//! It is opened at run time, like the driver, and may be missing. Seven of its functions are
//! declared here, with the types of CUDA 13's `nvml.h`. Cards are identified by their address on
//! the bus, because their numbers change if `CUDA_VISIBLE_DEVICES` hides some.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::ptr;

use libloading::Library;

/// A card's energy counters.
pub(crate) struct Gauge {
    device: Device,
    nvml: Nvml,
    /// Whether the card reports its momentary power.
    is_momentary: bool,
}

// SAFETY: NVML may be called by any thread at any time ("thread-safe", as its reference says), and
// its handles belong to the process.
unsafe impl Send for Gauge {}
// SAFETY: as above.
unsafe impl Sync for Gauge {}

impl Gauge {
    /// Opens those of the card with this address on the bus, such as `0000:1B:00.0`.
    pub(super) fn open(bus_id: &CStr) -> Result<Self, String> {
        let nvml = Nvml::open()?;
        let mut device = ptr::null_mut();
        // SAFETY: NVML is initialised, the address ends with a zero, and there is room for a
        // handle.
        nvml.check("nvmlDeviceGetHandleByPciBusId", unsafe {
            (nvml.by_bus_id)(bus_id.as_ptr(), &raw mut device)
        })?;
        let mut gauge = Self {
            device,
            nvml,
            is_momentary: true,
        };
        gauge.is_momentary = gauge.momentary().is_ok();
        Ok(gauge)
    }

    fn momentary(&self) -> Result<u32, String> {
        let mut field = FieldValue {
            field: FIELD_POWER_INSTANT,
            ..FieldValue::default()
        };
        // SAFETY: the handle is of this NVML, and there is one field.
        self.nvml.check("nvmlDeviceGetFieldValues", unsafe {
            (self.nvml.fields)(self.device, 1, &raw mut field)
        })?;
        self.nvml.check("nvmlDeviceGetFieldValues", field.outcome)?;
        Ok(field.value[0])
    }

    fn averaged(&self) -> Result<u32, String> {
        let mut milliwatts = 0;
        // SAFETY: the handle is of this NVML, and there is room for the number.
        self.nvml.check("nvmlDeviceGetPowerUsage", unsafe {
            (self.nvml.power)(self.device, &raw mut milliwatts)
        })?;
        Ok(milliwatts)
    }

    /// Energy in millijoules since an arbitrary moment.
    pub(crate) fn millijoules(&self) -> Result<u64, String> {
        let mut millijoules = 0;
        // SAFETY: the handle is of this NVML, and there is room for the number.
        let code = unsafe { (self.nvml.energy)(self.device, &raw mut millijoules) };
        self.nvml
            .check("nvmlDeviceGetTotalEnergyConsumption", code)
            .map(|()| millijoules)
    }

    /// Power in milliwatts: momentary, or the average of the last second if the card reports
    /// nothing else.
    pub(crate) fn milliwatts(&self) -> Result<u32, String> {
        if self.is_momentary {
            self.momentary()
        } else {
            self.averaged()
        }
    }
}

type Code = c_int;
type Device = *mut c_void;

/// `nvmlFieldValue_t`. Its value is a union of numbers; power is an unsigned one of four bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency: c_longlong,
    kind: c_uint,
    outcome: Code,
    value: [c_uint; 2],
}

/// The library, initialised.
struct Nvml {
    shutdown: unsafe extern "C" fn() -> Code,
    error: unsafe extern "C" fn(Code) -> *const c_char,
    by_bus_id: unsafe extern "C" fn(*const c_char, *mut Device) -> Code,
    energy: unsafe extern "C" fn(Device, *mut c_ulonglong) -> Code,
    power: unsafe extern "C" fn(Device, *mut c_uint) -> Code,
    fields: unsafe extern "C" fn(Device, c_int, *mut FieldValue) -> Code,
    /// The library of these functions, closed after the last call.
    _library: Library,
}

impl Nvml {
    fn open() -> Result<Self, String> {
        // SAFETY: the initialisers of NVIDIA's library demand nothing of the process.
        let library = unsafe { Library::new(NAME) }.map_err(|error| format!("{NAME}: {error}"))?;
        let init = function::<unsafe extern "C" fn() -> Code>(&library, c"nvmlInit_v2")?;
        let nvml = Self {
            shutdown: function(&library, c"nvmlShutdown")?,
            error: function(&library, c"nvmlErrorString")?,
            by_bus_id: function(&library, c"nvmlDeviceGetHandleByPciBusId_v2")?,
            energy: function(&library, c"nvmlDeviceGetTotalEnergyConsumption")?,
            power: function(&library, c"nvmlDeviceGetPowerUsage")?,
            fields: function(&library, c"nvmlDeviceGetFieldValues")?,
            _library: library,
        };
        // SAFETY: it may be called as often as one likes, and `drop` takes one back. What is
        // refused now is refused then, too.
        nvml.check("nvmlInit", unsafe { init() }).map(|()| nvml)
    }

    fn check(&self, call: &str, code: Code) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: every number has a text, which stands in the library.
        let text = unsafe { (self.error)(code) };
        if text.is_null() {
            return Err(format!("{call}: error {code}"));
        }
        // SAFETY: a text that ends with a zero.
        let text = unsafe { CStr::from_ptr(text) };
        Err(format!("{call}: {}", text.to_string_lossy()))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: nothing uses a handle any more: what owns one owns this.
        let _ = unsafe { (self.shutdown)() };
    }
}

/// Looks up a function, which must have the type that `nvml.h` declares.
fn function<F: Copy>(library: &Library, name: &CStr) -> Result<F, String> {
    // SAFETY: callers ask for the types of `nvml.h`; what is copied is used while the library is
    // open.
    let found = unsafe { library.get::<F>(name) };
    found
        .map(|function| *function)
        .map_err(|error| format!("{NAME}: {error}"))
}

const NAME: &str = "libnvidia-ml.so.1";
const SUCCESS: Code = 0;
/// `NVML_FI_DEV_POWER_INSTANT`. From Ampere on `nvmlDeviceGetPowerUsage` is an average over a
/// second.
const FIELD_POWER_INSTANT: c_uint = 186;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::gpu::{Lab, is_here};
    use super::*;

    #[test]
    fn a_field_lies_as_the_header_has_it() {
        assert_eq!(
            (
                size_of::<FieldValue>(),
                std::mem::offset_of!(FieldValue, value)
            ),
            (40, 32)
        );
        assert_eq!(
            (
                std::mem::offset_of!(FieldValue, timestamp),
                std::mem::offset_of!(FieldValue, outcome)
            ),
            (8, 28)
        );
    }

    /// Works without the library and without the card.
    #[test]
    fn what_is_not_there_has_a_reason() {
        let error = Gauge::open(c"ffff:ff:1f.7")
            .err()
            .expect("no bus has such a place");
        assert!(
            error.starts_with(NAME) || error.starts_with("nvml"),
            "{error}"
        );
    }

    #[test]
    fn a_card_counts_what_it_takes() {
        if !is_here() {
            return println!("skipped: no GPU");
        }
        let lab = Lab::open(0).expect("a GPU that works");
        let gauge = match lab.gauge() {
            Ok(gauge) => gauge,
            Err(reason) => return println!("skipped: {reason}"),
        };
        let milliwatts = gauge
            .milliwatts()
            .expect("every card from Ampere on tells its power");
        assert!((5_000..2_000_000).contains(&milliwatts), "{milliwatts} mW");
        let before = gauge
            .millijoules()
            .expect("every card from Volta on counts its energy");
        std::thread::sleep(Duration::from_millis(500));
        let taken = gauge.millijoules().unwrap() - before;
        assert!(
            (1_000..1_000_000).contains(&taken),
            "{taken} mJ in half a second at {milliwatts} mW"
        );
    }
}
