//! `ncserverd bench`: the encoding rate of each instruction set and each kernel on this machine.
//!
//! Every contender is the device as the server runs it, with its queue, thread and pool. It makes
//! batches of n coded blocks of up to four generations. Its first batch is compared with the
//! field's definition ([`oracle`]); a wrong one ends the run. `tools/ncbench` measures everything
//! else: single operations, decoding, the papers' figures.

use std::io::{self, Write};
use std::num::NonZeroU16;
use std::time::Duration;

use crate::device::{self, BackendChoice, Config, IsaChoice, Kernel, KernelChoice, Threads};
use crate::gf::{Isa, Kernels};
use crate::object::{Shape, ShapeError};

pub mod clock;
pub mod engine;
pub mod oracle;
mod rate;
pub mod work;

pub use rate::{EncodeRate, encode_rate};

/// The options of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Blocks of a generation.
    pub n: u16,
    /// Bytes of a block.
    pub k: u32,
    /// Threads of the CPU back end.
    pub threads: Threads,
    /// How long each contender is measured.
    pub time: Duration,
}

/// Measures, and prints results as they come.
pub fn run(options: &Options, out: &mut impl Write) -> Result<(), Error> {
    let Options { n, k, threads, .. } = *options;
    Shape::new(u64::from(n) * u64::from(k), k, n).map_err(Error::Shape)?;
    writeln!(
        out,
        "# coded blocks of generations of {n} blocks of {k} bytes, by up to {} threads",
        threads.count()
    )?;
    writeln!(
        out,
        "# each contender's first batch is compared with the definition of the field"
    )?;
    writeln!(
        out,
        "{:<6} {:<16} {:>12} {:>12}",
        "# by", "kernel", "coded MB/s", "CPU s/GB"
    )?;
    for (name, config) in on_the_cpu(threads) {
        measure(options, &name, &config, out)?;
    }
    if let Err(absence) = device::Device::open(&on_a_gpu(KernelChoice::Default), device::Unrecorded)
    {
        return Ok(writeln!(out, "# no GPU: {}", absence.reason())?);
    }
    for &kernel in Kernel::ALL.iter().filter(|&&kernel| kernel != Kernel::Simd) {
        measure(
            options,
            kernel.name(),
            &on_a_gpu(KernelChoice::Named(kernel)),
            out,
        )?;
    }
    Ok(())
}

/// One line: the rates, or why there are none.
fn measure(
    options: &Options,
    name: &str,
    config: &Config,
    out: &mut impl Write,
) -> Result<(), Error> {
    let by = config.backend.name();
    match encode_rate(config, options.n, options.k, options.time) {
        Ok(EncodeRate {
            bytes_per_second,
            cpu_per_byte,
            ..
        }) => {
            writeln!(
                out,
                "{by:<6} {name:<16} {:>12.0} {:>12.3}",
                bytes_per_second / 1e6,
                cpu_per_byte * 1e9
            )?;
        }
        Err(Error::Device(error)) => writeln!(out, "# {by} {name}: {error}")?,
        Err(error) => return Err(error),
    }
    Ok(out.flush()?)
}

/// The instruction sets of this processor, and the scalar reference of the GPU's default kernel.
fn on_the_cpu(threads: Threads) -> impl Iterator<Item = (String, Config)> {
    let (backend, queue_batches) = (BackendChoice::Cpu, NonZeroU16::MIN);
    let with = move |kernel, cpu_isa| {
        let kernel = KernelChoice::Named(kernel);
        Config {
            backend,
            kernel,
            cpu_isa,
            cpu_threads: threads,
            queue_batches,
            ..Config::default()
        }
    };
    let simd = Kernels::available().map(move |kernels| {
        let isa = kernels.isa();
        (format!("simd {isa}"), with(Kernel::Simd, choice(isa)))
    });
    simd.chain([(
        Kernel::Table.name().to_owned(),
        with(Kernel::Table, IsaChoice::Auto),
    )])
}

fn on_a_gpu(kernel: KernelChoice) -> Config {
    Config {
        backend: BackendChoice::Cuda,
        kernel,
        queue_batches: NonZeroU16::MIN,
        ..Config::default()
    }
}

const fn choice(isa: Isa) -> IsaChoice {
    match isa {
        Isa::Scalar => IsaChoice::Scalar,
        Isa::Ssse3 => IsaChoice::Ssse3,
        Isa::Avx2 => IsaChoice::Avx2,
        Isa::Avx512 => IsaChoice::Avx512,
        Isa::Gfni => IsaChoice::Gfni,
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A contender's bytes differ from the definition.
    #[error("{case} computes wrong bytes; nothing was measured")]
    Wrong {
        /// The contender.
        case: String,
    },
    /// The shape is impossible.
    #[error("{0}")]
    Shape(ShapeError),
    /// The device cannot be opened, or fails.
    #[error("the device: {0}")]
    Device(#[from] device::Error),
    /// The results cannot be written.
    #[error("cannot write the results: {0}")]
    Output(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This also checks every instruction set on the device.
    #[test]
    fn every_instruction_set_has_a_line() {
        let time = Duration::from_millis(5);
        let options = Options {
            n: 5,
            k: 80,
            threads: Threads::Count(2.try_into().unwrap()),
            time,
        };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for kernels in Kernels::available() {
            assert!(
                text.contains(&format!("cpu    simd {} ", kernels.isa())),
                "{text}"
            );
        }
        assert!(
            text.contains("cpu    table ")
                && (text.contains("# no GPU: ") || text.contains("cuda   table ")),
            "{text}"
        );
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let options = Options {
            n: 5,
            k: 81,
            threads: Threads::Auto,
            time: Duration::ZERO,
        };
        assert!(matches!(
            run(&options, &mut Vec::new()),
            Err(Error::Shape(_))
        ));
    }
}
