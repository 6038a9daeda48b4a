//! A GPU under measurement: every kernel by name, each stage of a batch by itself, on all of the
//! card or a part of it.
//!
//! To use a part of the card, the rest is kept busy (`tools/kernels/hold.cu`): a smaller grid alone
//! would be spread over all multiprocessors. Meanwhile nothing may be allocated, freed or loaded,
//! because the driver would wait for the running kernels. So stages run once before the rest is
//! held, and the rest is released before memory is freed.

use ncs_codec::gfq::Arithmetic;
use ncs_gf::dense::Algebra;
use ncs_gf::gfq::Element;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::chunks::Way;
use ncserverd::device::cuda::dense::Calculator;
use ncserverd::device::cuda::driver::Fault;
use ncserverd::device::cuda::host::HostMemory;
use ncserverd::device::cuda::kernels::{self as products, Combine};
use ncserverd::device::cuda::{Gpu, HOPPER, gfq};
use ncserverd::device::portions::{Demand, Opener};
use ncserverd::device::{self, Error, Field, Kernel};

use super::nvml::Gauge;
use super::{Chunks, Decode, Decoder, Elimination, Encode, Gfq, Pin, Product, Replay, Systems};
use chunk_job::ChunkJob;
use gfq_job::GfqJob;
use gfq_steps::GfqEliminationJob;
use systems_job::SystemsJob;
use thesis::{EliminationJob, ProductJob};

mod basics;
mod chunk_job;
mod gfq_job;
mod gfq_steps;
mod hold;
mod inverters;
mod job;
mod kernels;
mod launch;
mod replay_job;
mod systems_job;
#[cfg(test)]
mod tests;
mod thesis;

pub(crate) use job::BatchJob;
pub(crate) use replay_job::ReplayJob;

/// A card with the tables of both fields.
pub(crate) struct Lab {
    facts: Gpu,
    standard: Card,
    rijndael: Card,
    /// Other cards of the host, opened at first use.
    others: Vec<Card>,
    ordinal: u16,
}

impl Lab {
    pub(super) fn open(ordinal: u16) -> Result<Self, Fault> {
        let standard = Card::open(ordinal, Field::Standard)?;
        let rijndael = Card::open(ordinal, Field::Rijndael)?;
        let facts = standard.facts()?;
        Ok(Self {
            facts,
            standard,
            rijndael,
            others: Vec::new(),
            ordinal,
        })
    }

    /// Opens the first `count` other cards.
    fn open_others(&mut self, count: usize) -> Result<(), Error> {
        let own = self.ordinal;
        for ordinal in (0..)
            .filter(|ordinal| *ordinal != own)
            .take(count)
            .skip(self.others.len())
        {
            let unknown = |fault| Error::Unavailable(format!("GPU {ordinal}: {fault}"));
            self.others
                .push(Card::open(ordinal, Field::Standard).map_err(unknown)?);
        }
        Ok(())
    }

    fn combine(&self, name: &str) -> Option<Combine> {
        let all = || products::COMBINES.iter().chain(kernels::COMBINES);
        let found = all().find(|combine| combine.kernel == name).copied()?;
        (!found.is_hopper_only || self.standard.capability == HOPPER).then_some(found)
    }

    fn known(&self, name: &str) -> Result<Combine, Error> {
        self.combine(name)
            .ok_or_else(|| Error::Unavailable(format!("no kernel {name} for this card")))
    }

    /// The card's description.
    pub(crate) fn card(&self) -> &Gpu {
        &self.facts
    }

    /// Whether the card can run an encode kernel, inverter or decoder of this name for generations
    /// of n blocks.
    pub(crate) fn has(&self, name: &str, n: u16) -> bool {
        let is_inverter = || inverters::named(name, n.into(), 1, &self.standard).is_some();
        DECODERS.contains(&name)
            || Way::named(name).is_some()
            || self.combine(name).is_some()
            || is_inverter()
    }

    /// Uploads generations to combine with rows.
    pub(crate) fn encode<'a>(&'a mut self, plan: &Encode<'_>) -> Result<BatchJob<'a>, Error> {
        let card = if plan.field == Field::Rijndael {
            &self.rijndael
        } else {
            &self.standard
        };
        card.context.bind()?;
        Ok(BatchJob::encode(card, self.known(plan.kernel)?, plan)?)
    }

    /// Uploads coded blocks to decode.
    pub(crate) fn decode<'a>(&'a mut self, plan: &Decode<'_>) -> Result<BatchJob<'a>, Error> {
        // A progressive decoder multiplies by itself, so any kernel will do.
        let kernel = if matches!(plan.decoder, Decoder::Progressive(_)) {
            Kernel::Table.name()
        } else {
            plan.kernel
        };
        self.standard.context.bind()?;
        Ok(BatchJob::decode(&self.standard, self.known(kernel)?, plan)?)
    }

    /// Uploads native chunks to code.
    pub(crate) fn chunks<'a>(&'a mut self, plan: &Chunks<'_>) -> Result<ChunkJob<'a>, Error> {
        let helpers = usize::from(plan.gpus).saturating_sub(1);
        self.open_others(helpers)?;
        self.standard.context.bind()?;
        ChunkJob::new(&self.standard, &self.others[..helpers], plan)
    }

    /// Uploads plans of RaptorQ and symbols.
    pub(crate) fn replay<'a>(&'a mut self, plan: &Replay<'_>) -> Result<ReplayJob<'a>, Error> {
        self.standard.context.bind()?;
        ReplayJob::new(&self.standard, plan)
    }

    /// Opens the card for work items of files when it is called.
    pub(crate) fn opener(&self, demand: &Demand) -> Opener {
        let (ordinal, demand) = (self.ordinal, *demand);
        Box::new(move || device::open_coder(ordinal, &demand))
    }

    /// Uploads two matrices to multiply by the method of the thesis on RaptorQ.
    pub(crate) fn product<'a>(&'a mut self, plan: &Product<'_>) -> Result<ProductJob<'a>, Error> {
        self.standard.context.bind()?;
        Ok(ProductJob::new(&self.standard, plan)?)
    }

    /// Takes a matrix to invert by the method of that thesis.
    pub(crate) fn elimination<'a>(
        &'a mut self,
        plan: &Elimination<'_>,
    ) -> Result<EliminationJob<'a>, Error> {
        self.standard.context.bind()?;
        Ok(EliminationJob::new(&self.standard, plan)?)
    }

    /// Uploads dense systems to solve.
    pub(crate) fn systems<'a>(&'a mut self, plan: &Systems<'_>) -> Result<SystemsJob<'a>, Error> {
        self.standard.context.bind()?;
        SystemsJob::new(&self.standard, plan)
    }

    /// Uploads blocks over GF(q), or data to hash.
    pub(crate) fn gfq<'a>(&'a mut self, plan: &Gfq<'_>) -> Result<GfqJob<'a>, Error> {
        self.standard.context.bind()?;
        GfqJob::new(&self.standard, plan)
    }

    /// Takes a matrix over GF(q), row by row, to invert by the paper's method: steps on the card,
    /// inverses of elements on the CPU.
    pub(crate) fn word_elimination<'a>(
        &'a mut self,
        n: usize,
        matrix: &[Element],
    ) -> Result<GfqEliminationJob<'a>, Error> {
        self.standard.context.bind()?;
        Ok(GfqEliminationJob::new(&self.standard, n, matrix)?)
    }

    /// The card as [`Arithmetic`], and a function that pins memory for its results.
    pub(crate) fn arithmetic(&self) -> Result<(Box<dyn Arithmetic>, Pin), Error> {
        let host = HostMemory::default();
        let calculator = Box::new(gfq::Calculator::open(self.ordinal, &host)?);
        Ok((calculator, Box::new(move |memory| host.pin(memory))))
    }

    /// The card as [`Algebra`], for decoders with dense matrices.
    pub(crate) fn algebra(&self) -> Result<Box<dyn Algebra>, Error> {
        Ok(Box::new(Calculator::open(self.ordinal)?))
    }

    /// The card's energy counters, or the reason why there are none.
    pub(crate) fn gauge(&self) -> Result<Gauge, String> {
        let bus_id = self
            .standard
            .context
            .bus_id()
            .map_err(|fault| fault.to_string())?;
        Gauge::open(&bus_id)
    }
}

const DECODERS: [&str; 3] = ["progressive", "progressive-search", "progressive-uncached"];

/// Whether there is a GPU. Fails without one if `NCTEST_REQUIRE_GPU` is set.
#[cfg(test)]
pub(crate) fn is_here() -> bool {
    let absence = device::cuda::count().err();
    assert!(
        absence.is_none() || std::env::var_os("NCTEST_REQUIRE_GPU").is_none(),
        "a GPU was to be here: {absence:?}"
    );
    absence.is_none()
}
