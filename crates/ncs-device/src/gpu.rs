//! What a GPU is.

/// The facts about a GPU that operators and figures go by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// As the driver tells it.
    pub name: String,
    /// The version of the driver.
    pub driver: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Such as 9.0.
    pub compute_capability: (u32, u32),
    /// The most that the processor clock can be, in MHz.
    pub clock_mhz: u32,
}
