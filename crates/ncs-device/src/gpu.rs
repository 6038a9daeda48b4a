//! The description of a GPU.

/// The properties of a GPU that operators and measurements need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The name that the driver reports.
    pub name: String,
    /// The driver's version.
    pub driver: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Compute capability: major and minor, such as 9 and 0.
    pub compute_capability: (u32, u32),
    /// Maximum processor clock in MHz.
    pub clock_mhz: u32,
}
