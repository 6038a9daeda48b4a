//! GPUs: finding and opening them, and the back end that each of them is.
//!
//! The driver's library is opened at run time, so all of this compiles and is linted on machines
//! without it. `unsafe` is allowed here and below, and every block says who keeps its promise.
#![allow(unsafe_code)]
// With the feature `lab` the GPU laboratory (`tools/ncbench`) sees the modules below as they are.
// They are not an interface for others.
#![allow(unreachable_pub, unnameable_types, private_interfaces)]
#![cfg_attr(
    feature = "lab",
    allow(
        missing_docs,
        missing_debug_implementations,
        clippy::len_without_is_empty
    )
)]
#![cfg_attr(not(feature = "lab"), allow(dead_code))]

use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};
use ncs_codec::gfq::Arithmetic;
use ncs_gf::dense::Algebra;

use super::backend::Backend;
use super::portions::{Coder, Demand};
use super::worker::{Member, Owner};
use super::{
    BackendChoice, Config, Error, Field, Gpus, Kernel, KernelChoice, Recorder, Workload, abi,
};

pub mod card;
mod choose;
pub mod chunk_lane;
pub mod chunks;
pub mod dense;
pub mod driver;
mod engine;
pub mod gfq;
pub mod host;
pub mod image;
pub mod inversion;
pub mod kernels;
mod lane;
pub mod launch;
mod loader;
mod plan;
mod portions;
pub mod replay_lane;
mod solver;

pub use super::Gpu;
pub(super) use host::HostMemory;

use card::Card;
use engine::Engine;
use kernels::{COMBINES, Combine};

/// Why the GPUs are not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absence {
    NoDriver,
    NoDevice,
    /// The driver or a card fails.
    Fails(String),
    /// The configuration cannot be satisfied.
    Refused(String),
}

impl Absence {
    /// Logs what `auto` found.
    pub(super) fn tell(&self) {
        match self {
            Self::NoDriver => tracing::info!("no NVIDIA driver found: the CPU encodes"),
            Self::NoDevice => tracing::info!("an NVIDIA driver but no GPU found: the CPU encodes"),
            Self::Fails(reason) | Self::Refused(reason) => {
                tracing::warn!("cannot use a GPU, so the CPU encodes: {reason}");
            }
        }
    }

    /// The error of a back end that the configuration names.
    pub(super) fn into_error(self, choice: BackendChoice) -> Error {
        Error::NoGpu {
            choice,
            reason: self.into_reason(),
        }
    }

    fn into_reason(self) -> String {
        match self {
            Self::NoDriver => "the NVIDIA driver library (libcuda) is not installed".to_owned(),
            Self::NoDevice => "the NVIDIA driver finds no GPU".to_owned(),
            Self::Fails(reason) | Self::Refused(reason) => reason,
        }
    }
}

/// Opens the configured GPUs, each on a thread of its own.
pub(super) fn open(
    config: &Config,
    workload: &Workload,
    recorder: &Arc<dyn Recorder>,
    host: &HostMemory,
) -> Result<Vec<(Member, Owner)>, Absence> {
    let combine = combine_of(config.kernel).map_err(Absence::Refused)?;
    let count = count()?;
    let ordinals = match &config.gpus {
        Gpus::All => (0..count).collect(),
        Gpus::List(list) => list.clone(),
    };
    if let Some(missing) = ordinals.iter().find(|ordinal| **ordinal >= count) {
        return Err(Absence::Refused(format!(
            "device.gpus names GPU {missing}, but there are {count} GPUs, numbered from 0"
        )));
    }
    let open_one = |ordinal: u16| {
        let (host, workload) = (host.clone(), *workload);
        let open = move || {
            open_engine(ordinal, combine, &workload, &host).map(|engine| Box::new(engine) as _)
        };
        let opened = Member::start(&ordinal.to_string(), config.queue_batches, recorder, open);
        opened.map_err(|error| Absence::Fails(error.to_string()))
    };
    ordinals.into_iter().map(open_one).collect()
}

/// Opens a GPU on the calling thread. Without a given kernel it measures which is fastest.
fn open_engine(
    ordinal: u16,
    combine: Option<&'static Combine>,
    workload: &Workload,
    host: &HostMemory,
) -> Result<Engine, Error> {
    let fails = |fault| Error::Unavailable(format!("GPU {ordinal}: {fault}"));
    let card = Card::open(ordinal, Field::Standard).map_err(fails)?;
    let (name, sms) = (card.name.clone(), card.sms);
    host.set_context(&card.context);
    let (engine, why) = match combine {
        Some(combine) if combine.is_hopper_only && card.capability != HOPPER => {
            let reason = "needs instructions of Hopper cards (compute capability 9.0)";
            return Err(Error::Unavailable(format!(
                "GPU {ordinal} ({name}): the kernel \"{}\" {reason}",
                combine.kernel
            )));
        }
        Some(combine) => (
            Engine::new(card, combine, host.clone()).map_err(fails)?,
            "as configured".to_owned(),
        ),
        None => choose::fastest(card, workload, host).map_err(fails)?,
    };
    tracing::info!(
        "GPU {ordinal}, {name}, {sms} multiprocessors, encodes with the kernel \"{}\" ({why})",
        engine.kernel()
    );
    Ok(engine)
}

/// The kernel that a choice names; `None` for the fastest.
fn combine_of(choice: KernelChoice) -> Result<Option<&'static Combine>, String> {
    let kernel = match choice {
        KernelChoice::Auto => return Ok(None),
        KernelChoice::Default => Kernel::Table,
        KernelChoice::Named(kernel) => kernel,
    };
    let found = COMBINES
        .iter()
        .find(|combine| combine.kernel == kernel.name());
    found
        .map(Some)
        .ok_or_else(|| format!("device.kernel = \"{kernel}\" is not a GPU kernel"))
}

/// Describes a GPU.
pub(super) fn describe(ordinal: u16) -> Result<Gpu, Error> {
    look_for(ordinal)?;
    Ok(Card::open(ordinal, Field::Standard)?.facts()?)
}

/// Opens a GPU for dense matrices.
pub(super) fn open_calculator(ordinal: u16) -> Result<Box<dyn Algebra>, Error> {
    look_for(ordinal)?;
    Ok(Box::new(dense::Calculator::open(ordinal)?))
}

/// Opens a GPU for coding over GF(q) and for hashes. The card writes blocks for memory of `host`
/// there itself.
pub(super) fn open_arithmetic(
    ordinal: u16,
    host: &HostMemory,
) -> Result<Box<dyn Arithmetic>, Error> {
    look_for(ordinal)?;
    Ok(Box::new(gfq::Calculator::open(ordinal, host)?))
}

/// Checks that a GPU has this number.
pub fn look_for(ordinal: u16) -> Result<(), Error> {
    let count = count().map_err(|absence| absence.into_error(BackendChoice::Cuda))?;
    check_ordinal(ordinal, count)
}

/// Opens a GPU for portions of files on the calling thread.
pub(super) fn open_coder(ordinal: u16, demand: &Demand) -> Result<Box<dyn Coder>, Error> {
    let count = count().map_err(|absence| Error::Unavailable(absence.into_reason()))?;
    check_ordinal(ordinal, count)?;
    let fails = |fault| Error::Unavailable(format!("GPU {ordinal}: {fault}"));
    let card = Card::open(ordinal, Field::Standard).map_err(fails)?;
    tracing::info!("GPU {ordinal}, {}, codes files", card.name);
    Ok(Box::new(
        portions::FileCoder::new(card, demand).map_err(fails)?,
    ))
}

fn check_ordinal(ordinal: u16, count: u16) -> Result<(), Error> {
    if ordinal < count {
        return Ok(());
    }
    Err(Error::Unavailable(format!(
        "there is no GPU {ordinal}: there are {count} GPUs, numbered from 0"
    )))
}

/// Number of GPUs, at least one.
pub fn count() -> Result<u16, Absence> {
    // SAFETY: opens the driver's shared library by its well-known names and closes it again. This
    // runs its initialisers, which have no preconditions. No symbol of it is used here.
    if !unsafe { sys::is_culib_present() } {
        return Err(Absence::NoDriver);
    }
    match CudaContext::device_count() {
        Ok(0) => Err(Absence::NoDevice),
        Ok(count) => Ok(u16::try_from(count).unwrap_or(u16::MAX)),
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Err(Absence::NoDevice),
        Err(error) => Err(Absence::Fails(format!(
            "the NVIDIA driver does not start: {error}"
        ))),
    }
}

/// Compute capability × 10 of the cards that the tensor kernel is made for.
pub const HOPPER: u32 = 90;

#[cfg(test)]
mod tests;
