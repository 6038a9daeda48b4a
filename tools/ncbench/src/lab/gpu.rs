//! A GPU under measurement: every kernel by name, each stage of a batch by itself, on all of the
//! card or a part of it.
//!
//! A part of the card is the rest of it kept busy (`tools/kernels/hold.cu`): a smaller grid alone
//! would be spread over all multiprocessors. Nothing may be allocated, freed or loaded while that
//! lasts, because the driver waits for running kernels then, so stages run once before the rest is
//! taken, and it is given back before memory is.

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
use super::{
    ChunkWork, Chunks, Decode, Decoder, Elimination, EliminationWork, Encode, Lab, Pin, Product, ProductWork, Replay, ReplayWork,
    Systems, SystemsWork, WordElimination, Words, WordsWork, Work,
};
use chunk_job::ChunkJob;
use job::Job;
use replay_job::ReplayJob;
use systems_job::SystemsJob;
use words_job::WordsJob;

mod basics;
mod chunk_job;
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
mod word_steps;
mod words_job;

/// A card with the tables of both fields.
pub(super) struct GpuLab {
    facts: Gpu,
    standard: Card,
    rijndael: Card,
    /// Other cards of the host, opened when they are first asked for.
    others: Vec<Card>,
    ordinal: u16,
}

impl GpuLab {
    pub(super) fn open(ordinal: u16) -> Result<Self, Fault> {
        let standard = Card::open(ordinal, Field::Standard)?;
        let rijndael = Card::open(ordinal, Field::Rijndael)?;
        let facts = standard.facts()?;
        Ok(Self { facts, standard, rijndael, others: Vec::new(), ordinal })
    }

    /// Opens so many other cards, the first that there are.
    fn open_others(&mut self, count: usize) -> Result<(), Error> {
        let own = self.ordinal;
        for ordinal in (0..).filter(|ordinal| *ordinal != own).take(count).skip(self.others.len()) {
            let unknown = |fault| Error::Unavailable(format!("GPU {ordinal}: {fault}"));
            self.others.push(Card::open(ordinal, Field::Standard).map_err(unknown)?);
        }
        Ok(())
    }

    fn combine(&self, name: &str) -> Option<Combine> {
        let all = || products::COMBINES.iter().chain(kernels::COMBINES);
        let found = all().find(|combine| combine.kernel == name).copied()?;
        (!found.is_hopper_only || self.standard.capability == HOPPER).then_some(found)
    }

    fn known(&self, name: &str) -> Result<Combine, Error> {
        self.combine(name).ok_or_else(|| Error::Unavailable(format!("no kernel {name} for this card")))
    }
}

impl Lab for GpuLab {
    fn card(&self) -> &Gpu {
        &self.facts
    }

    fn has(&self, name: &str, n: u16) -> bool {
        let is_inverter = || inverters::named(name, n.into(), 1, &self.standard).is_some();
        DECODERS.contains(&name) || Way::named(name).is_some() || self.combine(name).is_some() || is_inverter()
    }

    fn encode<'a>(&'a mut self, plan: &Encode<'_>) -> Result<Box<dyn Work + 'a>, Error> {
        let card = if plan.field == Field::Rijndael { &self.rijndael } else { &self.standard };
        card.context.bind()?;
        Ok(Box::new(Job::encode(card, self.known(plan.kernel)?, plan)?))
    }

    fn decode<'a>(&'a mut self, plan: &Decode<'_>) -> Result<Box<dyn Work + 'a>, Error> {
        // A progressive decoder multiplies by itself; any kernel will do.
        let kernel = if matches!(plan.decoder, Decoder::Progressive(_)) { Kernel::Table.name() } else { plan.kernel };
        self.standard.context.bind()?;
        Ok(Box::new(Job::decode(&self.standard, self.known(kernel)?, plan)?))
    }

    fn chunks<'a>(&'a mut self, plan: &Chunks<'_>) -> Result<Box<dyn ChunkWork + 'a>, Error> {
        let helpers = usize::from(plan.gpus).saturating_sub(1);
        self.open_others(helpers)?;
        self.standard.context.bind()?;
        Ok(Box::new(ChunkJob::new(&self.standard, &self.others[..helpers], plan)?))
    }

    fn replay<'a>(&'a mut self, plan: &Replay<'_>) -> Result<Box<dyn ReplayWork + 'a>, Error> {
        self.standard.context.bind()?;
        Ok(Box::new(ReplayJob::new(&self.standard, plan)?))
    }

    fn opener(&self, demand: &Demand) -> Opener {
        let (ordinal, demand) = (self.ordinal, *demand);
        Box::new(move || device::open_coder(ordinal, &demand))
    }

    fn product<'a>(&'a mut self, plan: &Product<'_>) -> Result<Box<dyn ProductWork + 'a>, Error> {
        self.standard.context.bind()?;
        Ok(Box::new(thesis::ProductJob::new(&self.standard, plan)?))
    }

    fn elimination<'a>(&'a mut self, plan: &Elimination<'_>) -> Result<Box<dyn EliminationWork + 'a>, Error> {
        self.standard.context.bind()?;
        Ok(Box::new(thesis::EliminationJob::new(&self.standard, plan)?))
    }

    fn systems<'a>(&'a mut self, plan: &Systems<'_>) -> Result<Box<dyn SystemsWork + 'a>, Error> {
        self.standard.context.bind()?;
        Ok(Box::new(SystemsJob::new(&self.standard, plan)?))
    }

    fn words<'a>(&'a mut self, plan: &Words<'_>) -> Result<Box<dyn WordsWork + 'a>, Error> {
        self.standard.context.bind()?;
        Ok(Box::new(WordsJob::new(&self.standard, plan)?))
    }

    fn word_elimination<'a>(&'a mut self, n: usize, matrix: &[Element]) -> Result<Box<dyn WordElimination + 'a>, Error> {
        self.standard.context.bind()?;
        Ok(Box::new(word_steps::Job::new(&self.standard, n, matrix)?))
    }

    fn arithmetic(&self) -> Result<(Box<dyn Arithmetic>, Pin), Error> {
        let host = HostMemory::default();
        let calculator = Box::new(gfq::Calculator::open(self.ordinal, &host)?);
        Ok((calculator, Box::new(move |memory| host.pin(memory))))
    }

    fn algebra(&self) -> Result<Box<dyn Algebra>, Error> {
        Ok(Box::new(Calculator::open(self.ordinal)?))
    }

    fn gauge(&self) -> Result<Box<dyn super::Gauge>, String> {
        let bus_id = self.standard.context.bus_id().map_err(|fault| fault.to_string())?;
        Ok(Box::new(Gauge::open(&bus_id)?))
    }
}

const DECODERS: [&str; 3] = ["progressive", "progressive-search", "progressive-uncached"];

/// Whether there is a GPU, which a host may promise with `NCTEST_REQUIRE_GPU`.
#[cfg(test)]
pub(super) fn is_here() -> bool {
    let absence = device::cuda::count().err();
    assert!(absence.is_none() || std::env::var_os("NCTEST_REQUIRE_GPU").is_none(), "a GPU was to be here: {absence:?}");
    absence.is_none()
}
