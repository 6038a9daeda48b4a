//! Looks for a GPU. The driver's library is opened at run time, so this works on machines that have none.
#![allow(unsafe_code)]

use cudarc::driver::{CudaContext, result, sys};

use super::Error;

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Probe {
    NoDriver,
    DriverFails(String),
    NoDevice,
    Present { name: String, count: i32 },
}

/// Tells the operator what `auto` found.
pub(super) fn log_probe() {
    match probe() {
        Probe::NoDriver => tracing::info!("no NVIDIA driver here: coding runs on the CPU"),
        Probe::NoDevice => tracing::info!("an NVIDIA driver is here but no GPU: coding runs on the CPU"),
        Probe::DriverFails(reason) => {
            tracing::warn!("the NVIDIA driver does not start, so coding runs on the CPU: {reason}");
        }
        Probe::Present { name, count } => {
            tracing::warn!("a GPU is here ({name}, {count} in all), but this build's coding runs on the CPU");
        }
    }
}

/// Why `cuda` cannot be opened.
pub(super) fn explain_absence() -> Error {
    Error::Unavailable(match probe() {
        Probe::NoDriver => "device.backend = \"cuda\": the library of the NVIDIA driver (libcuda) is not installed".to_owned(),
        Probe::NoDevice => "device.backend = \"cuda\": the NVIDIA driver finds no GPU".to_owned(),
        Probe::DriverFails(reason) => format!("device.backend = \"cuda\": the NVIDIA driver does not start: {reason}"),
        Probe::Present { name, .. } => {
            format!("device.backend = \"cuda\": {name} is here, but this build's coding runs on the CPU only")
        }
    })
}

fn probe() -> Probe {
    // SAFETY: opens the driver's shared library by its well-known names and closes it again, which runs its initialisers; they
    // demand nothing of the process. No symbol of it is used here.
    if !unsafe { sys::is_culib_present() } {
        return Probe::NoDriver;
    }
    let count = match CudaContext::device_count() {
        Ok(0) => return Probe::NoDevice,
        Ok(count) => count,
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => return Probe::NoDevice,
        Err(error) => return Probe::DriverFails(error.to_string()),
    };
    match result::device::get(0).and_then(result::device::get_name) {
        Ok(name) => Probe::Present { name, count },
        Err(error) => Probe::DriverFails(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_never_panics_and_always_has_a_reason() {
        log_probe();
        assert!(matches!(explain_absence(), Error::Unavailable(reason) if reason.contains("cuda")));
    }
}
