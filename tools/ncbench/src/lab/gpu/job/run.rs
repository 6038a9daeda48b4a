//! Running the stages, and timing them.

use std::time::{Duration, Instant};

use cudarc::driver::result;
use ncserverd::device::Error;
use ncserverd::device::abi;
use ncserverd::device::cuda::driver::{Buffer, Fault, Named, Pinned, Stream};
use ncserverd::device::cuda::kernels::FORM_THREADS;
use ncserverd::device::cuda::launch;

use super::super::basics;
use super::super::hold::Hold;
use super::super::kernels::DECODE;
use super::super::launch::progress;
use super::decoding::Decoding;
use super::{BatchJob, Chunks, Host, List, Rows};
use crate::lab::Stage;

impl BatchJob<'_> {
    fn sms(&self) -> u32 {
        self.part.unwrap_or(self.card.sms)
    }

    fn multiply(&self, launch: &abi::Launch, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: tasks describe memory of this job, whose streams are waited for before it is
        // dropped.
        unsafe {
            launch::combine(
                self.card,
                &self.combine,
                &self.variant,
                launch,
                self.sms(),
                stream,
            )
        }
    }

    fn make_rows(&self) -> Result<(), Fault> {
        let Some(Rows { list, n, .. }) = &self.rows else {
            return Ok(());
        };
        // SAFETY: as in `multiply`.
        unsafe { launch::rows(self.card, &list.launch, *n, &self.stream) }
    }

    fn make_forms(&self) -> Result<(), Fault> {
        let all = u32::try_from(
            self.shape
                .source_bytes()
                .div_ceil(16 * FORM_THREADS as usize),
        )
        .expect("a generation is small");
        let across = all
            .min((self.card.sms * FORM_BLOCKS_PER_SM).div_ceil(self.shape.generations))
            .max(1);
        let tasks = (self.form_tasks.address(), self.shape.generations);
        // SAFETY: as in `multiply`.
        unsafe { launch::form(self.card, self.combine.form, across, tasks, &self.stream) }
    }

    /// Uploads the distinct generations, copies them on the card to the others, and uploads
    /// inverses that the host has computed.
    pub(super) fn upload_raw(&self) -> Result<(), Fault> {
        let bytes = self.shape.source_bytes();
        let (sources, given) = match &self.upload {
            Some(upload) => upload.split_at(self.handed_in.len()),
            None => (
                self.handed_in.as_slice(),
                self.decode.as_ref().map_or(&[][..], Decoding::given),
            ),
        };
        let address = |index: usize| self.raw.address() + (index * bytes) as u64;
        for (index, from) in sources.chunks_exact(bytes).enumerate() {
            // SAFETY: inside `raw`; memory that is not pinned is copied before the call returns,
            // pinned memory lives with the job.
            unsafe { result::memcpy_htod_async(address(index), from, self.stream.raw) }
                .named("cuMemcpyHtoDAsync")?;
        }
        let distinct = sources.len() / bytes;
        for index in distinct..self.shape.generations as usize {
            let from = address(index % distinct);
            // SAFETY: both are inside `raw` and do not overlap.
            unsafe { result::memcpy_dtod_async(address(index), from, bytes, self.stream.raw) }
                .named("cuMemcpyDtoDAsync")?;
        }
        if !given.is_empty() {
            let inverses = self.decode.as_ref().map_or(0, Decoding::inverses);
            // SAFETY: the inverses are that long; the rest as above.
            unsafe { result::memcpy_htod_async(inverses, given, self.stream.raw) }
                .named("cuMemcpyHtoDAsync")?;
        }
        Ok(())
    }

    fn run(&mut self, stage: Stage, place: usize) -> Result<(), Fault> {
        match stage {
            Stage::Form => self.make_forms(),
            Stage::Rows => self.make_rows(),
            Stage::Multiply => {
                self.last_place = place;
                self.multiply(&self.places[place].launch, &self.stream)
            }
            Stage::Store => {
                let host = self.host.as_ref().expect("made by `ready`");
                self.multiply(&host.stores.launch, &self.stream)
            }
            Stage::Invert | Stage::Progressive => self.decode_stage(place),
            Stage::Upload => self.upload_raw(),
            Stage::Download => {
                let bytes = self.shape.out_bytes();
                let from = self.out.address() + (place * bytes) as u64;
                let host = self.host.as_mut().expect("made by `ready`");
                // SAFETY: both are that long and live as long as the job.
                unsafe {
                    result::memcpy_dtoh_async(&mut host.memory[..bytes], from, self.stream.raw)
                }
                .named("cuMemcpyDtoHAsync")
            }
        }
    }

    fn decode_stage(&mut self, place: usize) -> Result<(), Fault> {
        let tables = self.card.tables();
        match self.decode.as_ref() {
            Some(Decoding::Invert {
                inverter, tasks, ..
            }) => {
                // SAFETY: as in `multiply`.
                unsafe {
                    inverter.launch(
                        self.card,
                        tasks.address(),
                        self.shape.generations,
                        &self.stream,
                    )
                }
            }
            Some(Decoding::Progressive {
                entry,
                grid,
                tasks,
                kept,
                ..
            }) => {
                self.last_place = place;
                let function = self.card.function(DECODE, entry, grid.shared_bytes)?;
                let (bytes, start) = (
                    self.shape.out_bytes(),
                    self.out.address() + (place * self.shape.out_bytes()) as u64,
                );
                // SAFETY: inside `out`.
                unsafe { result::memset_d8_async(start, 0, bytes, self.stream.raw) }
                    .named("cuMemsetD8Async")?;
                for (generation, task) in (0_u64..).zip(tasks) {
                    // SAFETY: all of `kept`.
                    unsafe {
                        result::memset_d8_async(kept.address(), 0, kept.len(), self.stream.raw)
                    }
                    .named("cuMemsetD8Async")?;
                    let blocks = start + generation * self.shape.generation_bytes() as u64;
                    let step = abi::Progress { blocks, ..*task };
                    // SAFETY: as in `multiply`.
                    unsafe { progress(function, *grid, &step, tables, &self.stream) }?;
                }
                Ok(())
            }
            Some(Decoding::Given { .. }) | None => Ok(()),
        }
    }

    /// Allocates and loads what the stages need. Then keeps the rest of the card busy if only a
    /// part is to be used.
    fn ready(&mut self, stages: &[Stage]) -> Result<(), Fault> {
        let needs_host = stages
            .iter()
            .any(|stage| matches!(stage, Stage::Store | Stage::Download));
        if needs_host && self.host.is_none() {
            let memory = Pinned::new(&self.card.context, self.shape.out_bytes())?;
            let tasks: Vec<abi::Task> = self.tasks_of_place()?;
            let stores = self.list(&tasks, memory.address())?;
            self.host = Some(Host { memory, stores });
        }
        if stages.contains(&Stage::Upload) && self.upload.is_none() {
            let given = self.decode.as_ref().map_or(&[][..], Decoding::given);
            let mut upload = Pinned::new(&self.card.context, self.handed_in.len() + given.len())?;
            upload[..self.handed_in.len()].copy_from_slice(&self.handed_in);
            upload[self.handed_in.len()..].copy_from_slice(given);
            self.upload = Some(upload);
        }
        let Some(part) = self.part else { return Ok(()) };
        if self.hold.is_some() && stages.iter().all(|stage| self.is_warm.contains(stage)) {
            return Ok(());
        }
        self.hold = None;
        stages.iter().try_for_each(|stage| self.run(*stage, 0))?;
        self.stream.synchronize()?;
        self.is_warm.extend(stages);
        self.hold = Some(Hold::take(self.card, self.card.sms - part)?);
        Ok(())
    }

    /// The tasks as they were made, without regard to their place.
    fn tasks_of_place(&self) -> Result<Vec<abi::Task>, Fault> {
        let List { launch, tasks } = &self.places[0];
        match tasks {
            None => Ok(launch.few[..launch.count as usize].to_vec()),
            Some(buffer) => {
                let mut tasks = vec![abi::Task::default(); launch.count as usize];
                // SAFETY: the buffer was filled with as many tasks, which any bytes are.
                unsafe { result::memcpy_dtoh_sync(&mut tasks, buffer.address()) }
                    .named("cuMemcpyDtoH")?;
                Ok(tasks)
            }
        }
    }

    fn make_chunks(&mut self, generations: u32) -> Result<(), Fault> {
        if self
            .chunks
            .as_ref()
            .is_some_and(|chunks| chunks.generations == generations)
        {
            return Ok(());
        }
        let context = &self.card.context;
        let bytes = generations as usize * self.shape.generation_bytes();
        let stream = || Ok::<_, Fault>((Stream::new(context)?, Buffer::new(context, bytes)?));
        let streams = [stream()?, stream()?];
        let tasks = self.tasks_of_place()?;
        let lists = tasks
            .chunks(generations as usize)
            .enumerate()
            .map(|(index, tasks)| {
                let list = self.list(tasks, streams[index % 2].1.address())?;
                Ok((list, tasks.len() * self.shape.generation_bytes()))
            });
        let lists = lists.collect::<Result<_, Fault>>()?;
        self.chunks = Some(Chunks {
            generations,
            streams,
            lists,
        });
        Ok(())
    }

    /// The card's time for running these stages `repeats` times, in order on one stream.
    pub(crate) fn time(&mut self, stages: &[Stage], repeats: u32) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.ready(stages)?;
        self.clock.begin(&self.stream)?;
        for repeat in 0..repeats as usize {
            stages
                .iter()
                .try_for_each(|stage| self.run(*stage, repeat % self.places.len()))?;
        }
        Ok(self.clock.end(&self.stream)?)
    }

    /// The card's time for combining rows `repeats` times, on two streams in turn. A launch begins
    /// as soon as the one before leaves room, as with the batches of a server.
    pub(crate) fn time_in_turn(&mut self, repeats: u32) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.ready(&[Stage::Multiply])?;
        self.clock.begin(&self.stream)?;
        self.clock.hold(&self.second.0)?;
        for (repeat, place) in (0..repeats).zip((0..self.places.len()).cycle()) {
            self.last_place = place;
            let stream = if repeat % 2 == 0 {
                &self.stream
            } else {
                &self.second.0
            };
            self.multiply(&self.places[place].launch, stream)?;
        }
        self.second.1.record(&self.second.0)?;
        self.second.1.hold(&self.stream)?;
        Ok(self.clock.end(&self.stream)?)
    }

    /// The host's time for all generations, `repeats` times, in chunks of `chunk` generations. Each
    /// chunk is combined and then copied to pinned memory, on two streams in turn. Without
    /// `multiply` it only copies.
    pub(crate) fn overlap(
        &mut self,
        chunk: u32,
        multiply: bool,
        repeats: u32,
    ) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.ready(&[Stage::Download])?;
        self.make_chunks(chunk)?;
        let (chunks, mut host) = (
            self.chunks.take().expect("made a line ago"),
            self.host.take().expect("made by `ready`"),
        );
        let start = Instant::now();
        let result = (0..repeats).try_for_each(|_| {
            let mut at = 0;
            for (index, (list, bytes)) in chunks.lists.iter().enumerate() {
                let (stream, staging) = &chunks.streams[index % 2];
                if multiply {
                    self.multiply(&list.launch, stream)?;
                }
                // SAFETY: both are that long, and both streams are waited for below before anyone
                // reads or frees.
                unsafe {
                    result::memcpy_dtoh_async(
                        &mut host.memory[at..at + bytes],
                        staging.address(),
                        stream.raw,
                    )
                }
                .named("cuMemcpyDtoHAsync")?;
                at += bytes;
            }
            Ok(())
        });
        let waited = chunks
            .streams
            .iter()
            .try_for_each(|(stream, _)| stream.synchronize());
        let elapsed = start.elapsed();
        (self.chunks, self.host) = (Some(chunks), Some(host));
        result.and(waited)?;
        Ok(elapsed)
    }

    /// The host's time from starting these stages until all their results are there.
    pub(crate) fn answer(&mut self, stages: &[Stage]) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.ready(stages)?;
        let start = Instant::now();
        stages.iter().try_for_each(|stage| self.run(*stage, 0))?;
        self.stream.synchronize()?;
        Ok(start.elapsed())
    }

    /// Fills all results with a pattern that the stages would not make.
    pub(crate) fn poison(&mut self) -> Result<(), Error> {
        self.card.context.bind()?;
        for buffer in [
            Some(&self.out),
            Some(&self.forms),
            self.coefficients.as_ref(),
        ]
        .into_iter()
        .flatten()
        {
            basics::poison(buffer, &self.stream)?;
        }
        if let Some(host) = &mut self.host {
            host.memory.fill(basics::POISON);
        }
        Ok(self.stream.synchronize()?)
    }

    /// Reads a block from the card, or from pinned memory if `is_on_host`.
    pub(crate) fn read(
        &mut self,
        generation: u32,
        row: u32,
        is_on_host: bool,
        block: &mut [u8],
    ) -> Result<(), Error> {
        let k = self.shape.k as usize;
        assert!(
            generation < self.shape.generations && row < self.shape.rows && block.len() == k,
            "block {row} of {generation}"
        );
        let at = (generation as usize * self.shape.rows as usize + row as usize) * k;
        match (&self.host, is_on_host) {
            (Some(host), true) => block.copy_from_slice(&host.memory[at..at + k]),
            (None, true) => {
                return Err(Fault::Driver("nothing has been brought to the host".into()).into());
            }
            (_, false) => {
                self.card.context.bind()?;
                basics::read(
                    &self.out,
                    self.last_place * self.shape.out_bytes() + at,
                    block,
                )?;
            }
        }
        Ok(())
    }
}

const FORM_BLOCKS_PER_SM: u32 = 16;
