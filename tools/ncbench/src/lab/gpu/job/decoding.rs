//! The decoders of a job, and their memory on the card.

use ncserverd::device::abi::{self, define};
use ncserverd::device::cuda::card::{Card, bytes_of};
use ncserverd::device::cuda::driver::{Address, Buffer, Fault};
use ncserverd::device::cuda::inversion::Inverter;
use ncserverd::device::cuda::launch::Grid;

use super::super::inverters;
use super::{BatchJob, Shape, filled};
use crate::lab::{Decode, Decoder};

/// How blocks are decoded.
pub(super) enum Decoding {
    Invert {
        inverter: Inverter,
        tasks: Buffer,
        _matrices: Buffer,
        inverses: Buffer,
        _status: Buffer,
    },
    Given {
        inverses: Buffer,
        host: Vec<u8>,
    },
    Progressive {
        entry: &'static str,
        grid: Grid,
        tasks: Vec<abi::Progress>,
        kept: Buffer,
        _vectors: Buffer,
        _outcomes: Buffer,
    },
}

impl Decoding {
    /// Address of the inverses; 0 if there are none.
    pub(super) fn inverses(&self) -> Address {
        match self {
            Self::Invert { inverses, .. } | Self::Given { inverses, .. } => inverses.address(),
            Self::Progressive { .. } => 0,
        }
    }

    /// Inverses that the host has computed.
    pub(super) fn given(&self) -> &[u8] {
        match self {
            Self::Given { host, .. } => host,
            Self::Invert { .. } | Self::Progressive { .. } => &[],
        }
    }

    pub(super) fn new(
        card: &Card,
        shape: Shape,
        plan: &Decode<'_>,
        job: &BatchJob<'_>,
    ) -> Result<Self, Fault> {
        let (n, pitch, generations) = (shape.n as usize, shape.pitch(), shape.generations as usize);
        let mut padded = vec![0; generations * n * pitch];
        for (to, from) in padded
            .chunks_exact_mut(pitch)
            .zip(plan.matrices.chunks_exact(n).cycle())
        {
            to[..n].copy_from_slice(from);
        }
        let each = (n * pitch) as u64;
        match plan.decoder {
            Decoder::Given => Ok(Self::Given {
                inverses: filled(card, &padded)?,
                host: padded,
            }),
            Decoder::Invert(name) => {
                let inverter = inverters::named(name, shape.n, shape.generations, card);
                let inverter = inverter
                    .ok_or_else(|| Fault::Driver(format!("{name} cannot do n = {}", shape.n)))?;
                let matrices = filled(card, &padded)?;
                let inverses = Buffer::new(&card.context, padded.len())?;
                let status = Buffer::new(&card.context, 4 * generations)?;
                let task = |generation: u64| abi::InvertTask {
                    matrix: matrices.address() + generation * each,
                    inverse: inverses.address() + generation * each,
                    status: status.address() + generation * 4,
                    n: shape.n,
                    pitch: u32::try_from(pitch).expect("at most 1024"),
                };
                let tasks: Vec<u8> = (0..generations as u64)
                    .flat_map(|generation| bytes_of(&task(generation)).to_vec())
                    .collect();
                let tasks = filled(card, &tasks)?;
                Ok(Self::Invert {
                    inverter,
                    tasks,
                    _matrices: matrices,
                    inverses,
                    _status: status,
                })
            }
            Decoder::Progressive(name) => {
                let blocks = shape.k.div_ceil(16).min(card.sms);
                let slice = shape.k.div_ceil(blocks).next_multiple_of(16);
                let blocks = shape.k.div_ceil(slice);
                let cached =
                    PROGRESS_FIXED_BYTES + shape.n * u32::try_from(pitch).expect("at most 1024");
                let (entry, shared_bytes) = match name {
                    "progressive-search" if cached <= card.shared_bytes => {
                        ("nc_progress_cached", cached)
                    }
                    "progressive-search" => ("nc_progress_global", PROGRESS_FIXED_BYTES),
                    "progressive" if cached <= card.shared_bytes => {
                        ("nc_progress_cached_min", cached)
                    }
                    _ => ("nc_progress_global_min", PROGRESS_FIXED_BYTES),
                };
                let kept = Buffer::new(&card.context, blocks as usize * n * pitch)?;
                let vectors = filled(card, &padded)?;
                let outcomes = Buffer::new(&card.context, 4 * n)?;
                let tasks = (0..generations as u64).map(|generation| abi::Progress {
                    coefficients: kept.address(),
                    blocks: 0,
                    vectors: vectors.address() + generation * each,
                    payload: job.raw.address() + generation * shape.source_bytes() as u64,
                    outcomes: outcomes.address(),
                    payload_pitch: shape.k,
                    rows: shape.n,
                    n: shape.n,
                    k: shape.k,
                    slice,
                    reserved: 0,
                });
                let (grid, tasks) = (
                    Grid::line(blocks, PROGRESS_THREADS, shared_bytes),
                    tasks.collect(),
                );
                Ok(Self::Progressive {
                    entry,
                    grid,
                    tasks,
                    kept,
                    _vectors: vectors,
                    _outcomes: outcomes,
                })
            }
        }
    }
}

const PROGRESS_THREADS: u32 = define("NC_PROGRESS_THREADS");
const PROGRESS_FIXED_BYTES: u32 = define("NC_PROGRESS_FIXED_BYTES");
