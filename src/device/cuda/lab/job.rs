//! Generations on a card, and the stages that they go through.

use std::iter;
use std::time::{Duration, Instant};

use cudarc::driver::result;

use super::super::card::{Card, bytes_of};
use super::super::driver::{Address, Buffer, Event, Fault, Named, Pinned, Stream};
use super::super::image::Image;
use super::super::inversion::Inverter;
use super::super::kernels::{Combine, Demand, FORM_THREADS, Variant};
use super::super::launch::{self, Grid};
use super::hold::Hold;
use crate::device::Error;
use crate::device::abi::{self, define};
use crate::device::lab::{Coefficients, Decode, Decoder, Encode, Stage, Work};

/// Fields are dropped in this order: the card is whole again before memory is freed, which waits for kernels.
pub(super) struct Job<'a> {
    hold: Option<Hold>,
    /// Multiprocessors to be used, if not all.
    part: Option<u32>,
    is_warm: Vec<Stage>,
    card: &'a Card,
    stream: Stream,
    /// What takes turns with it, and where that has ended.
    second: (Stream, Event),
    start: Event,
    stop: Event,
    shape: Shape,
    combine: Combine,
    variant: Variant,
    raw: Buffer,
    /// Sources or payloads as they were handed in.
    handed_in: Vec<u8>,
    /// The same, and inverses behind it, where the device reads them fastest.
    upload: Option<Pinned>,
    forms: Buffer,
    form_tasks: Buffer,
    /// Rows in the kernel's form: of `coefficients`, or the inverses themselves. 0 if the kernel makes its own.
    row_address: Address,
    coefficients: Option<Buffer>,
    rows: Option<Rows>,
    out: Buffer,
    out_places: usize,
    /// One for each place in `out`, which repetitions take in turn.
    places: Vec<List>,
    last_place: usize,
    host: Option<Host>,
    chunks: Option<Chunks>,
    decode: Option<Decoding>,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    n: u32,
    k: u32,
    generations: u32,
    rows: u32,
}

impl Shape {
    fn source_bytes(self) -> usize {
        self.n as usize * self.k as usize
    }

    fn generation_bytes(self) -> usize {
        self.rows as usize * self.k as usize
    }

    fn out_bytes(self) -> usize {
        self.generations as usize * self.generation_bytes()
    }

    /// Coefficients from one row to the next.
    fn pitch(self) -> usize {
        (self.n as usize).next_multiple_of(abi::ROW_ALIGN)
    }
}

/// What makes rows: their tasks, and what these read.
struct Rows {
    list: List,
    n: u32,
    given: Option<Buffer>,
}

/// Tasks of a launch.
struct List {
    launch: abi::Launch,
    tasks: Option<Buffer>,
}

/// Pinned memory for everything that is made.
struct Host {
    memory: Pinned,
    stores: List,
}

/// Two streams with room for a chunk each.
struct Chunks {
    generations: u32,
    streams: [(Stream, Buffer); 2],
    lists: Vec<(List, usize)>,
}

/// What is decoded with.
enum Decoding {
    Invert { inverter: Inverter, tasks: Buffer, _matrices: Buffer, inverses: Buffer, _status: Buffer },
    Given { inverses: Buffer, host: Vec<u8> },
    Progressive { entry: &'static str, grid: Grid, tasks: Vec<abi::Progress>, kept: Buffer, _vectors: Buffer, _outcomes: Buffer },
}

impl<'a> Job<'a> {
    pub(super) fn encode(card: &'a Card, combine: Combine, plan: &Encode<'_>) -> Result<Self, Fault> {
        let shape = Shape { n: plan.n.into(), k: plan.k, generations: plan.generations, rows: plan.rows };
        let mut job = Self::new(card, combine, shape, plan.sources, plan.sms)?;
        let is_seeded = matches!(plan.coefficients, Coefficients::Seeded { .. });
        if !(is_seeded && combine.makes_rows) {
            let given = match plan.coefficients {
                Coefficients::Seeded { .. } => None,
                Coefficients::Explicit(rows) => Some(filled(card, rows)?),
            };
            job.make_room_for_rows()?;
            job.rows = Some(Rows { list: List::empty(), n: shape.n, given });
        }
        let task = |job: &Self, generation: u32| {
            let each = shape.n as u64 * u64::from(shape.rows);
            let given = job.rows.as_ref().and_then(|rows| rows.given.as_ref());
            let (key, first_seed) = match plan.coefficients {
                Coefficients::Seeded { key, first_seed } => (key, first_seed),
                Coefficients::Explicit(_) => (0, 0),
            };
            abi::Task {
                kind: if is_seeded { abi::ROWS_SEEDED } else { abi::ROWS_EXPLICIT },
                given: given.map_or(0, |given| given.address() + u64::from(generation) % (given.len() as u64 / each) * each),
                key,
                generation: generation.into(),
                first_seed,
                ..job.task(generation)
            }
        };
        job.finish(&task)
    }

    pub(super) fn decode(card: &'a Card, combine: Combine, plan: &Decode<'_>) -> Result<Self, Fault> {
        let n = u32::from(plan.n);
        let shape = Shape { n, k: plan.k, generations: plan.generations, rows: n };
        let mut job = Self::new(card, combine, shape, plan.payloads, plan.sms)?;
        let decoding = Decoding::new(card, shape, plan, &job)?;
        let inverses = decoding.inverses();
        if inverses != 0 && combine.row_form == abi::RowForm::Bytes {
            job.row_address = inverses;
        } else if inverses != 0 {
            job.make_room_for_rows()?;
            // Inverses are padded with zeros up to the pitch, so that rows of that many coefficients are made of them.
            let pitch = u32::try_from(shape.pitch()).expect("at most 1024");
            job.rows = Some(Rows { list: List::empty(), n: pitch, given: None });
        }
        job.decode = Some(decoding);
        let bytes = u64::from(n) * shape.pitch() as u64;
        job.finish(&|job, generation| abi::Task {
            kind: abi::ROWS_EXPLICIT,
            given: inverses + u64::from(generation) * bytes,
            ..job.task(generation)
        })
    }

    fn new(card: &'a Card, combine: Combine, shape: Shape, sources: &[u8], part: Option<u32>) -> Result<Self, Fault> {
        let context = &card.context;
        let part = part.filter(|part| *part < card.sms);
        let tasks = iter::repeat_n((shape.n, shape.rows, shape.k), shape.generations as usize);
        let demand = Demand { sms: part.unwrap_or(card.sms), ..Demand::of(tasks, card) };
        let variant = combine.variant_for(&demand)?;
        let form_bytes = combine.form.bytes(shape.n as usize, shape.k as usize).next_multiple_of(256);
        let raw = Buffer::new(context, shape.generations as usize * shape.source_bytes())?;
        let forms = Buffer::new(context, shape.generations as usize * form_bytes)?;
        let form_tasks = (0..u64::from(shape.generations)).map(|generation| abi::FormTask {
            raw: raw.address() + generation * shape.source_bytes() as u64,
            out: forms.address() + generation * form_bytes as u64,
            raw_pitch: shape.k,
            raw_length: shape.n * shape.k,
            n: shape.n,
            k: shape.k,
        });
        let form_tasks = filled(card, &form_tasks.flat_map(|task| bytes_of(&task).to_vec()).collect::<Vec<u8>>())?;
        let out_places = (ROTATION_BYTES / shape.out_bytes()).clamp(1, PLACES_MAX);
        let job = Self {
            hold: None,
            part,
            is_warm: Vec::new(),
            card,
            stream: Stream::new(context)?,
            second: (Stream::new(context)?, Event::untimed(context)?),
            start: Event::new(context)?,
            stop: Event::new(context)?,
            shape,
            combine,
            variant,
            raw,
            handed_in: sources.to_vec(),
            upload: None,
            forms,
            form_tasks,
            row_address: 0,
            coefficients: None,
            rows: None,
            out: Buffer::new(context, out_places * shape.out_bytes())?,
            out_places,
            places: Vec::with_capacity(out_places),
            last_place: 0,
            host: None,
            chunks: None,
            decode: None,
        };
        job.upload_raw()?;
        job.stream.synchronize()?;
        Ok(job)
    }

    /// Lists of tasks for every place.
    fn finish(mut self, task: &dyn Fn(&Self, u32) -> abi::Task) -> Result<Self, Fault> {
        let tasks: Vec<abi::Task> = (0..self.shape.generations).map(|generation| task(&self, generation)).collect();
        if let Some(n) = self.rows.as_ref().map(|rows| rows.n) {
            let tasks: Vec<abi::Task> = tasks.iter().map(|task| abi::Task { n, ..*task }).collect();
            let list = self.list(&tasks, self.out.address())?;
            if let Some(rows) = &mut self.rows {
                rows.list = list;
            }
        }
        for place in 0..self.out_places {
            let list = self.list(&tasks, self.out.address() + (place * self.shape.out_bytes()) as u64)?;
            self.places.push(list);
        }
        Ok(self)
    }

    fn row_bytes(&self) -> usize {
        self.shape.pitch() * self.combine.row_form.bytes()
    }

    fn make_room_for_rows(&mut self) -> Result<(), Fault> {
        let bytes = self.row_bytes() * self.shape.generations as usize * self.shape.rows as usize;
        let room = Buffer::new(&self.card.context, bytes)?;
        self.row_address = room.address();
        self.coefficients = Some(room);
        Ok(())
    }

    /// The part of a task that does not depend on where rows come from. Out, first unit and first row are the list's.
    fn task(&self, generation: u32) -> abi::Task {
        let Shape { n, k, rows, .. } = self.shape;
        let form_bytes = self.combine.form.bytes(n as usize, k as usize).next_multiple_of(256);
        let row_bytes = (rows as usize * self.row_bytes()) as u64;
        abi::Task {
            source: self.forms.address() + u64::from(generation) * form_bytes as u64,
            coefficients: if self.row_address == 0 { 0 } else { self.row_address + u64::from(generation) * row_bytes },
            rows,
            out_pitch: k,
            n,
            k,
            ..abi::Task::default()
        }
    }

    /// A launch over these tasks with blocks from `out` on.
    fn list(&self, tasks: &[abi::Task], out: Address) -> Result<List, Fault> {
        let mut launch = abi::Launch { row_form: self.combine.row_form as u32, ..abi::Launch::default() };
        let mut listed = Vec::with_capacity(tasks.len());
        for task in tasks {
            let before = u64::from(launch.rows) * u64::from(task.k);
            listed.push(abi::Task { out: out + before, first_unit: launch.units, first_row: launch.rows, ..*task });
            launch.units += self.variant.units(task.rows, task.k);
            launch.rows += task.rows;
        }
        launch.count = u32::try_from(listed.len()).expect("few tasks");
        let mut uploaded = None;
        match launch.few.get_mut(..listed.len()) {
            Some(few) => few.copy_from_slice(&listed),
            None => {
                let buffer = filled(self.card, &listed.iter().flat_map(|task| bytes_of(task).to_vec()).collect::<Vec<u8>>())?;
                launch.tasks = buffer.address();
                uploaded = Some(buffer);
            }
        }
        Ok(List { launch, tasks: uploaded })
    }

    fn sms(&self) -> u32 {
        self.part.unwrap_or(self.card.sms)
    }

    fn multiply(&self, launch: &abi::Launch, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: tasks describe memory of this job, whose streams are waited for before it is dropped.
        unsafe { launch::combine(self.card, &self.combine, &self.variant, launch, self.sms(), stream) }
    }

    fn make_rows(&self) -> Result<(), Fault> {
        let Some(Rows { list, n, .. }) = &self.rows else { return Ok(()) };
        // SAFETY: as in `multiply`.
        unsafe { launch::rows(self.card, &list.launch, *n, &self.stream) }
    }

    fn make_forms(&self) -> Result<(), Fault> {
        let all = u32::try_from(self.shape.source_bytes().div_ceil(16 * FORM_THREADS as usize)).expect("a generation is small");
        let across = all.min((self.card.sms * FORM_BLOCKS_PER_SM).div_ceil(self.shape.generations)).max(1);
        let tasks = (self.form_tasks.address(), self.shape.generations);
        // SAFETY: as in `multiply`.
        unsafe { launch::form(self.card, self.combine.form, across, tasks, &self.stream) }
    }

    /// Plain bytes of the generations that differ, whose copies the others are, and inverses that the host has made.
    fn upload_raw(&self) -> Result<(), Fault> {
        let bytes = self.shape.source_bytes();
        let (sources, given) = match &self.upload {
            Some(upload) => upload.split_at(self.handed_in.len()),
            None => (self.handed_in.as_slice(), self.decode.as_ref().map_or(&[][..], Decoding::given)),
        };
        let address = |index: usize| self.raw.address() + (index * bytes) as u64;
        for (index, from) in sources.chunks_exact(bytes).enumerate() {
            // SAFETY: inside `raw`; memory that is not pinned is copied before the call returns, pinned memory lives with the job.
            unsafe { result::memcpy_htod_async(address(index), from, self.stream.raw) }.named("cuMemcpyHtoDAsync")?;
        }
        let distinct = sources.len() / bytes;
        for index in distinct..self.shape.generations as usize {
            let from = address(index % distinct);
            // SAFETY: both are inside `raw` and do not overlap.
            unsafe { result::memcpy_dtod_async(address(index), from, bytes, self.stream.raw) }.named("cuMemcpyDtoDAsync")?;
        }
        if !given.is_empty() {
            let inverses = self.decode.as_ref().map_or(0, Decoding::inverses);
            // SAFETY: the inverses are that long; the rest as above.
            unsafe { result::memcpy_htod_async(inverses, given, self.stream.raw) }.named("cuMemcpyHtoDAsync")?;
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
                unsafe { result::memcpy_dtoh_async(&mut host.memory[..bytes], from, self.stream.raw) }.named("cuMemcpyDtoHAsync")
            }
        }
    }

    fn decode_stage(&mut self, place: usize) -> Result<(), Fault> {
        let tables = self.card.tables();
        match self.decode.as_ref() {
            Some(Decoding::Invert { inverter, tasks, .. }) => {
                // SAFETY: as in `multiply`.
                unsafe { inverter.launch(self.card, tasks.address(), self.shape.generations, &self.stream) }
            }
            Some(Decoding::Progressive { entry, grid, tasks, kept, .. }) => {
                self.last_place = place;
                let function = self.card.function(Image::Decode, entry, grid.shared_bytes)?;
                let (bytes, start) = (self.shape.out_bytes(), self.out.address() + (place * self.shape.out_bytes()) as u64);
                // SAFETY: inside `out`.
                unsafe { result::memset_d8_async(start, 0, bytes, self.stream.raw) }.named("cuMemsetD8Async")?;
                for (generation, task) in (0_u64..).zip(tasks) {
                    // SAFETY: all of `kept`.
                    unsafe { result::memset_d8_async(kept.address(), 0, kept.len(), self.stream.raw) }
                        .named("cuMemsetD8Async")?;
                    let blocks = start + generation * self.shape.generation_bytes() as u64;
                    let progress = abi::Progress { blocks, ..*task };
                    // SAFETY: as in `multiply`.
                    unsafe { launch::progress(function, *grid, &progress, tables, &self.stream) }?;
                }
                Ok(())
            }
            Some(Decoding::Given { .. }) | None => Ok(()),
        }
    }

    /// Allocates and loads what the stages need, and takes the rest of the card away if only a part is to be used.
    fn ready(&mut self, stages: &[Stage]) -> Result<(), Fault> {
        let needs_host = stages.iter().any(|stage| matches!(stage, Stage::Store | Stage::Download));
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

    /// The tasks as they were made, whatever their place.
    fn tasks_of_place(&self) -> Result<Vec<abi::Task>, Fault> {
        let List { launch, tasks } = &self.places[0];
        match tasks {
            None => Ok(launch.few[..launch.count as usize].to_vec()),
            Some(buffer) => {
                let mut tasks = vec![abi::Task::default(); launch.count as usize];
                // SAFETY: the buffer was filled with as many tasks, which any bytes are.
                unsafe { result::memcpy_dtoh_sync(&mut tasks, buffer.address()) }.named("cuMemcpyDtoH")?;
                Ok(tasks)
            }
        }
    }

    fn make_chunks(&mut self, generations: u32) -> Result<(), Fault> {
        if self.chunks.as_ref().is_some_and(|chunks| chunks.generations == generations) {
            return Ok(());
        }
        let context = &self.card.context;
        let bytes = generations as usize * self.shape.generation_bytes();
        let stream = || Ok::<_, Fault>((Stream::new(context)?, Buffer::new(context, bytes)?));
        let streams = [stream()?, stream()?];
        let tasks = self.tasks_of_place()?;
        let lists = tasks.chunks(generations as usize).enumerate().map(|(index, tasks)| {
            let list = self.list(tasks, streams[index % 2].1.address())?;
            Ok((list, tasks.len() * self.shape.generation_bytes()))
        });
        let lists = lists.collect::<Result<_, Fault>>()?;
        self.chunks = Some(Chunks { generations, streams, lists });
        Ok(())
    }

    fn overlap(&mut self, chunk: u32, multiply: bool, repeats: u32) -> Result<Duration, Fault> {
        self.card.context.bind()?;
        self.ready(&[Stage::Download])?;
        self.make_chunks(chunk)?;
        let (chunks, mut host) = (self.chunks.take().expect("made a line ago"), self.host.take().expect("made by `ready`"));
        let start = Instant::now();
        let result = (0..repeats).try_for_each(|_| {
            let mut at = 0;
            for (index, (list, bytes)) in chunks.lists.iter().enumerate() {
                let (stream, staging) = &chunks.streams[index % 2];
                if multiply {
                    self.multiply(&list.launch, stream)?;
                }
                // SAFETY: both are that long, and both streams are waited for below before anyone reads or frees.
                unsafe { result::memcpy_dtoh_async(&mut host.memory[at..at + bytes], staging.address(), stream.raw) }
                    .named("cuMemcpyDtoHAsync")?;
                at += bytes;
            }
            Ok(())
        });
        let waited = chunks.streams.iter().try_for_each(|(stream, _)| stream.synchronize());
        let elapsed = start.elapsed();
        (self.chunks, self.host) = (Some(chunks), Some(host));
        result.and(waited).map(|()| elapsed)
    }

    fn time(&mut self, stages: &[Stage], repeats: u32) -> Result<Duration, Fault> {
        self.card.context.bind()?;
        self.ready(stages)?;
        self.start.record(&self.stream)?;
        for repeat in 0..repeats as usize {
            stages.iter().try_for_each(|stage| self.run(*stage, repeat % self.places.len()))?;
        }
        self.stop.record(&self.stream)?;
        self.stream.synchronize()?;
        self.stop.since(&self.start)
    }

    fn time_in_turn(&mut self, repeats: u32) -> Result<Duration, Fault> {
        self.card.context.bind()?;
        self.ready(&[Stage::Multiply])?;
        self.start.record(&self.stream)?;
        self.start.hold(&self.second.0)?;
        for (repeat, place) in (0..repeats).zip((0..self.places.len()).cycle()) {
            self.last_place = place;
            let stream = if repeat % 2 == 0 { &self.stream } else { &self.second.0 };
            self.multiply(&self.places[place].launch, stream)?;
        }
        self.second.1.record(&self.second.0)?;
        self.second.1.hold(&self.stream)?;
        self.stop.record(&self.stream)?;
        self.stream.synchronize()?;
        self.stop.since(&self.start)
    }

    fn answer(&mut self, stages: &[Stage]) -> Result<Duration, Fault> {
        self.card.context.bind()?;
        self.ready(stages)?;
        let start = Instant::now();
        stages.iter().try_for_each(|stage| self.run(*stage, 0))?;
        self.stream.synchronize()?;
        Ok(start.elapsed())
    }

    fn poison(&mut self) -> Result<(), Fault> {
        self.card.context.bind()?;
        for buffer in [Some(&self.out), Some(&self.forms), self.coefficients.as_ref()].into_iter().flatten() {
            // SAFETY: all of the buffer, and nothing that uses it is under way.
            unsafe { result::memset_d8_async(buffer.address(), POISON, buffer.len(), self.stream.raw) }
                .named("cuMemsetD8Async")?;
        }
        if let Some(host) = &mut self.host {
            host.memory.fill(POISON);
        }
        self.stream.synchronize()
    }

    fn read(&self, (generation, row): (u32, u32), is_on_host: bool, block: &mut [u8]) -> Result<(), Fault> {
        let k = self.shape.k as usize;
        assert!(generation < self.shape.generations && row < self.shape.rows && block.len() == k, "block {row} of {generation}");
        let at = (generation as usize * self.shape.rows as usize + row as usize) * k;
        match (&self.host, is_on_host) {
            (Some(host), true) => block.copy_from_slice(&host.memory[at..at + k]),
            (None, true) => return Err(Fault::Driver("nothing has been brought to the host".into())),
            (_, false) => {
                let from = self.out.address() + (self.last_place * self.shape.out_bytes() + at) as u64;
                self.card.context.bind()?;
                // SAFETY: inside `out`, whose stream has been waited for.
                unsafe { result::memcpy_dtoh_sync(block, from) }.named("cuMemcpyDtoH")?;
            }
        }
        Ok(())
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        self.hold = None;
        let _ = self.card.context.bind();
        let _ = self.stream.synchronize();
        let _ = self.second.0.synchronize();
    }
}

impl Decoding {
    /// Where inverses are; 0 if there are none.
    fn inverses(&self) -> Address {
        match self {
            Self::Invert { inverses, .. } | Self::Given { inverses, .. } => inverses.address(),
            Self::Progressive { .. } => 0,
        }
    }

    /// Inverses that the host has made.
    fn given(&self) -> &[u8] {
        match self {
            Self::Given { host, .. } => host,
            Self::Invert { .. } | Self::Progressive { .. } => &[],
        }
    }

    fn new(card: &Card, shape: Shape, plan: &Decode<'_>, job: &Job<'_>) -> Result<Self, Fault> {
        let (n, pitch, generations) = (shape.n as usize, shape.pitch(), shape.generations as usize);
        let mut padded = vec![0; generations * n * pitch];
        for (to, from) in padded.chunks_exact_mut(pitch).zip(plan.matrices.chunks_exact(n).cycle()) {
            to[..n].copy_from_slice(from);
        }
        let each = (n * pitch) as u64;
        match plan.decoder {
            Decoder::Given => Ok(Self::Given { inverses: filled(card, &padded)?, host: padded }),
            Decoder::Invert(name) => {
                let inverter = Inverter::named(name, shape.n, shape.generations, card);
                let inverter = inverter.ok_or_else(|| Fault::Driver(format!("{name} cannot do n = {}", shape.n)))?;
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
                let tasks: Vec<u8> =
                    (0..generations as u64).flat_map(|generation| bytes_of(&task(generation)).to_vec()).collect();
                let tasks = filled(card, &tasks)?;
                Ok(Self::Invert { inverter, tasks, _matrices: matrices, inverses, _status: status })
            }
            Decoder::Progressive(name) => {
                let blocks = shape.k.div_ceil(16).min(card.sms);
                let slice = shape.k.div_ceil(blocks).next_multiple_of(16);
                let blocks = shape.k.div_ceil(slice);
                let cached = PROGRESS_FIXED_BYTES + shape.n * u32::try_from(pitch).expect("at most 1024");
                let (entry, shared_bytes) = match name {
                    "progressive-search" if cached <= card.shared_bytes => ("nc_progress_cached", cached),
                    "progressive-search" => ("nc_progress_global", PROGRESS_FIXED_BYTES),
                    "progressive" if cached <= card.shared_bytes => ("nc_progress_cached_min", cached),
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
                let (grid, tasks) = (Grid::line(blocks, PROGRESS_THREADS, shared_bytes), tasks.collect());
                Ok(Self::Progressive { entry, grid, tasks, kept, _vectors: vectors, _outcomes: outcomes })
            }
        }
    }
}

impl List {
    const fn empty() -> Self {
        let task = abi::Task {
            source: 0,
            out: 0,
            coefficients: 0,
            given: 0,
            key: 0,
            generation: 0,
            first_seed: 0,
            kind: 0,
            rows: 0,
            out_pitch: 0,
            n: 0,
            k: 0,
            first_unit: 0,
            first_row: 0,
        };
        let launch = abi::Launch { tasks: 0, count: 0, units: 0, rows: 0, row_form: 0, few: [task; abi::INLINE_TASKS] };
        Self { launch, tasks: None }
    }
}

/// Device memory with these bytes.
fn filled(card: &Card, bytes: &[u8]) -> Result<Buffer, Fault> {
    let buffer = Buffer::new(&card.context, bytes.len())?;
    buffer.write(bytes)?;
    Ok(buffer)
}

impl Work for Job<'_> {
    fn time(&mut self, stages: &[Stage], repeats: u32) -> Result<Duration, Error> {
        Ok(Job::time(self, stages, repeats)?)
    }

    fn time_in_turn(&mut self, repeats: u32) -> Result<Duration, Error> {
        Ok(Job::time_in_turn(self, repeats)?)
    }

    fn overlap(&mut self, chunk: u32, multiply: bool, repeats: u32) -> Result<Duration, Error> {
        Ok(Job::overlap(self, chunk, multiply, repeats)?)
    }

    fn answer(&mut self, stages: &[Stage]) -> Result<Duration, Error> {
        Ok(Job::answer(self, stages)?)
    }

    fn poison(&mut self) -> Result<(), Error> {
        Ok(Job::poison(self)?)
    }

    fn read(&mut self, generation: u32, row: u32, is_on_host: bool, block: &mut [u8]) -> Result<(), Error> {
        Ok(Job::read(self, (generation, row), is_on_host, block)?)
    }
}

/// More than the second-level cache of any card holds.
const ROTATION_BYTES: usize = 512 << 20;
const PLACES_MAX: usize = 64;
const FORM_BLOCKS_PER_SM: u32 = 16;
const POISON: u8 = 0xA5;
const PROGRESS_THREADS: u32 = define("NC_PROGRESS_THREADS");
const PROGRESS_FIXED_BYTES: u32 = define("NC_PROGRESS_FIXED_BYTES");
