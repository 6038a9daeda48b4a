//! Replaces `cuda` in builds without that feature: the same functions, for no GPUs.

use std::any::Any;
use std::sync::Arc;

use ncs_codec::gfq::Arithmetic;
use ncs_gf::dense::Algebra;

use super::portions::{Coder, Demand};
use super::worker::{Member, Owner};
use super::{BackendChoice, Config, Error, Gpu, Recorder, Workload};

/// The memory that GPUs may write to: none.
#[derive(Debug, Clone, Default)]
pub(super) struct HostMemory(());

impl HostMemory {
    pub(super) fn pin(&self, _: &mut [u8]) -> Option<Box<dyn Any + Send + Sync>> {
        None
    }
}

/// Why the GPUs are not used: this program was built without them.
#[derive(Debug)]
pub(super) struct Absence;

impl Absence {
    pub(super) fn tell(&self) {
        tracing::info!("built without support for GPUs: the CPU encodes");
    }

    pub(super) fn into_error(self, _: BackendChoice) -> Error {
        Error::NotBuilt
    }
}

pub(super) fn open(
    _: &Config,
    _: &Workload,
    _: &Arc<dyn Recorder>,
    _: &HostMemory,
) -> Result<Vec<(Member, Owner)>, Absence> {
    Err(Absence)
}

pub(super) fn describe(_: u16) -> Result<Gpu, Error> {
    Err(Error::NotBuilt)
}

pub(super) fn open_calculator(_: u16) -> Result<Box<dyn Algebra>, Error> {
    Err(Error::NotBuilt)
}

pub(super) fn open_arithmetic(_: u16, _: &HostMemory) -> Result<Box<dyn Arithmetic>, Error> {
    Err(Error::NotBuilt)
}

pub(super) fn open_coder(_: u16, _: &Demand) -> Result<Box<dyn Coder>, Error> {
    Err(Error::NotBuilt)
}
