//! Coding chunks as `nccodec` codes files: stripes of the usual size in the crew's memory, each
//! coded by the next idle worker (`device::portions`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lab::Lab;
use nccodec::crew::Crew;
use nccodec::{BITE_BYTES, ChunkPlan};
use ncserverd::device::BackendChoice;
use ncserverd::device::portions::{Demand, Portion, Work};

use super::catalogue::Case;
use super::gpu::rounds_of;
use super::stripes::Stripes;
use super::{Error, Outcome, Run, Sample, Settings};

/// By all cores, after a look at every byte; none if one is wrong.
pub(super) fn by_cpu(case: &Case) -> Option<Run> {
    let mut job = WorkItemsRun::new(case, |demand| {
        Crew::with(BackendChoice::Cpu, None, demand, case.threads)
    })
    .ok()?;
    job.is_right()
        .then(|| Box::new(move |repeats| job.time(repeats)) as Run)
}

/// By a GPU, or by it and all cores: `cuda` and `hybrid`.
pub(super) fn by_gpu(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let backend = if case.kernel == "hybrid" {
        BackendChoice::Hybrid
    } else {
        BackendChoice::Cuda
    };
    let mut job = WorkItemsRun::new(case, |demand| {
        Crew::with(backend, Some(lab.opener(demand)), demand, case.threads)
    })?;
    if !job.is_right() {
        return Err(Error::Wrong {
            case: format!("{} {}", case.series, case.panel),
        });
    }
    let (times, repeats) = rounds_of(settings.short_pace(), |repeats| {
        Ok::<_, Error>(job.time(repeats))
    });
    // What the CPU has made in its place is no figure of a GPU.
    job.crew
        .lost()
        .map_or(Ok(()), |error| Err(Error::Device(error)))?;
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

struct WorkItemsRun {
    crew: Crew,
    stripes: Stripes,
    items: Vec<Portion>,
}

impl WorkItemsRun {
    fn new<E>(case: &Case, crew: impl FnOnce(&Demand) -> Result<Crew, E>) -> Result<Self, E> {
        let stripes = Stripes::new(case);
        let (k, count) = (stripes.code.k(), stripes.code.n() - stripes.code.k());
        let piece = PIECE_BYTES.min(stripes.chunk_bytes);
        let crew = crew(&Demand {
            input_bytes: k * piece,
            output_bytes: count * piece,
            bite_bytes: BITE_BYTES,
        })?;
        let rows: Arc<[u8]> = stripes.code.parity_rows().flatten().copied().collect();
        let item = |at: usize| {
            let bytes = piece.min(stripes.chunk_bytes - at);
            let (mut input, output) = (crew.memory(k * bytes), crew.memory(count * bytes));
            let pieces = stripes
                .chunks()
                .into_iter()
                .map(|chunk| &chunk[at..at + bytes]);
            input
                .chunks_exact_mut(bytes)
                .zip(pieces)
                .for_each(|(place, piece)| place.copy_from_slice(piece));
            Portion {
                work: Work::Product {
                    rows: Arc::clone(&rows),
                    n: k,
                    bytes,
                },
                input,
                output,
            }
        };
        let items = (0..stripes.chunk_bytes).step_by(piece).map(item).collect();
        Ok(Self {
            crew,
            stripes,
            items,
        })
    }

    /// From the first stripe that is handed in to the last that comes back.
    fn time(&mut self, repeats: u32) -> Duration {
        let start = Instant::now();
        for _ in 0..repeats {
            let count = self.items.len();
            self.items.drain(..).for_each(|item| self.crew.begin(item));
            self.items.extend((0..count).map(|_| {
                self.crew
                    .next()
                    .expect("as many come back as were handed in")
            }));
        }
        start.elapsed()
    }

    /// Codes once, and compares everything.
    fn is_right(&mut self) -> bool {
        self.items
            .iter_mut()
            .for_each(|item| item.output.fill(0xA5));
        self.time(1);
        let Some(coded) = self.stripes.coded() else {
            return false;
        };
        let starts =
            (0..self.stripes.chunk_bytes).step_by(PIECE_BYTES.min(self.stripes.chunk_bytes));
        self.items.iter().zip(starts).all(|(item, at)| {
            let bytes = item.work.input_bytes() / self.stripes.code.k();
            let expected = coded
                .chunks_exact(self.stripes.chunk_bytes)
                .map(|chunk| &chunk[at..at + bytes]);
            item.output.chunks_exact(bytes).eq(expected)
        })
    }
}

const PIECE_BYTES: usize = ChunkPlan::PIECE_BYTES as usize;
