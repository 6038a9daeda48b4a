//! Back ends that hold segments and combine their blocks, each owned by one thread.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

/// What computes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Back end.
    pub backend: Choice,
    /// Instruction set of the CPU back end.
    pub cpu_isa: String,
    /// Threads of the CPU back end; all cores if not given.
    pub cpu_threads: Option<NonZeroUsize>,
    /// Kernel.
    pub kernel: String,
    /// Batches that may wait for the device.
    pub queue_batches: NonZeroUsize,
}

/// Which back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// CUDA if it opens, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// CUDA or nothing.
    Cuda,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            backend: Choice::Auto,
            cpu_isa: "auto".into(),
            cpu_threads: None,
            kernel: "auto".into(),
            queue_batches: NonZeroUsize::new(4).expect("four is not zero"),
        }
    }
}
