//! The encoding rate of a device on this machine, also for planning.

use std::time::Duration;

use super::Error;
use super::clock::Lap;
use super::engine::{Bed, Load};
use super::work::Work;
use crate::device::{self, Memory};

/// The performance of a device with batches of one shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EncodeRate {
    /// Its back end.
    pub backend: &'static str,
    /// Its kernel.
    pub kernel: &'static str,
    /// Coded bytes per second of wall-clock time, with the whole device.
    pub bytes_per_second: f64,
    /// CPU time of all threads per coded byte, in seconds.
    pub cpu_per_byte: f64,
    /// Blocks per batch.
    pub batch_blocks: usize,
    /// The device's memory, if it has its own.
    pub memory: Option<Memory>,
}

/// Encodes for about `time`, n blocks of each generation, after comparing the first batch with the
/// definition.
pub fn encode_rate(
    config: &device::Config,
    n: u16,
    k: u32,
    time: Duration,
) -> Result<EncodeRate, Error> {
    let work = Work::new(n, k);
    let mut bed = Bed::open(config, &work, Load::Generations)?;
    bed.combine(1)?;
    let (backend, kernel) = (bed.device().backend(), bed.device().kernel());
    if !bed.is_right(&work) {
        return Err(Error::Wrong {
            case: format!("encode/{kernel}/{n}x{k}"),
        });
    }
    let (mut batches, mut spent) = (0u32, Lap::default());
    while spent.wall < time {
        spent += bed.combine(1)?;
        batches += 1;
    }
    let batch_blocks = bed.batch().blocks();
    let bytes = f64::from(batches) * batch_blocks as f64 * f64::from(k);
    Ok(EncodeRate {
        backend,
        kernel,
        bytes_per_second: bytes / spent.wall.as_secs_f64(),
        cpu_per_byte: spent.cpu.as_secs_f64() / bytes,
        batch_blocks,
        memory: bed.device().memory(),
    })
}
