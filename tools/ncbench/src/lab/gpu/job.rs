//! Generations on a card, and the stages that work on them.

use std::iter;

use ncserverd::device::abi;
use ncserverd::device::cuda::card::{Card, bytes_of};
use ncserverd::device::cuda::driver::{Address, Buffer, Event, Fault, Pinned, Stream};
use ncserverd::device::cuda::kernels::{Combine, Demand, Variant};

use super::basics::{Clock, filled};
use super::hold::Hold;
use crate::lab::{Coefficients, Decode, Encode, Stage};
use decoding::Decoding;

mod decoding;
mod run;

/// Generations on a card that can be encoded or decoded repeatedly. The fields' order matters: the
/// held multiprocessors are released before memory is freed, because freeing waits for kernels.
pub(crate) struct BatchJob<'a> {
    hold: Option<Hold>,
    /// Multiprocessors to use, if not all.
    part: Option<u32>,
    is_warm: Vec<Stage>,
    card: &'a Card,
    stream: Stream,
    /// The stream that takes turns with the first, and an event at its end.
    second: (Stream, Event),
    clock: Clock,
    shape: Shape,
    combine: Combine,
    variant: Variant,
    raw: Buffer,
    /// Sources or payloads as they were handed in.
    handed_in: Vec<u8>,
    /// The same, followed by inverses, in pinned memory.
    upload: Option<Pinned>,
    forms: Buffer,
    form_tasks: Buffer,
    /// Address of rows in the kernel's form: those of `coefficients`, or the inverses themselves. 0
    /// if the kernel makes its own.
    row_address: Address,
    coefficients: Option<Buffer>,
    rows: Option<Rows>,
    out: Buffer,
    out_places: usize,
    /// One list for each place in `out`; repetitions use them in turn.
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

    /// Number of coefficients from one row to the next.
    fn pitch(self) -> usize {
        (self.n as usize).next_multiple_of(abi::ROW_ALIGN)
    }
}

/// The tasks that make rows, and their input.
struct Rows {
    list: List,
    n: u32,
    given: Option<Buffer>,
}

/// Tasks of a launch.
#[derive(Default)]
struct List {
    launch: abi::Launch,
    tasks: Option<Buffer>,
}

/// Pinned memory for all results.
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

impl<'a> BatchJob<'a> {
    pub(super) fn encode(
        card: &'a Card,
        combine: Combine,
        plan: &Encode<'_>,
    ) -> Result<Self, Fault> {
        let shape = Shape {
            n: plan.n.into(),
            k: plan.k,
            generations: plan.generations,
            rows: plan.rows,
        };
        let mut job = Self::new(card, combine, shape, plan.sources, plan.sms)?;
        let is_seeded = matches!(plan.coefficients, Coefficients::Seeded { .. });
        if !(is_seeded && job.variant.makes_rows) {
            let given = match plan.coefficients {
                Coefficients::Seeded { .. } => None,
                Coefficients::Explicit(rows) => Some(filled(card, rows)?),
            };
            job.make_room_for_rows()?;
            job.rows = Some(Rows {
                list: List::default(),
                n: shape.n,
                given,
            });
        }
        let task = |job: &Self, generation: u32| {
            let each = shape.n as u64 * u64::from(shape.rows);
            let given = job.rows.as_ref().and_then(|rows| rows.given.as_ref());
            let (key, first_seed) = match plan.coefficients {
                Coefficients::Seeded { key, first_seed } => (key, first_seed),
                Coefficients::Explicit(_) => (0, 0),
            };
            abi::Task {
                kind: if is_seeded {
                    abi::ROWS_SEEDED
                } else {
                    abi::ROWS_EXPLICIT
                },
                given: given.map_or(0, |given| {
                    given.address() + u64::from(generation) % (given.len() as u64 / each) * each
                }),
                key,
                generation: generation.into(),
                first_seed,
                ..job.task(generation)
            }
        };
        job.finish(&task)
    }

    pub(super) fn decode(
        card: &'a Card,
        combine: Combine,
        plan: &Decode<'_>,
    ) -> Result<Self, Fault> {
        let n = u32::from(plan.n);
        let shape = Shape {
            n,
            k: plan.k,
            generations: plan.generations,
            rows: n,
        };
        let mut job = Self::new(card, combine, shape, plan.payloads, plan.sms)?;
        let decoding = Decoding::new(card, shape, plan, &job)?;
        let inverses = decoding.inverses();
        if inverses != 0 && combine.row_form == abi::RowForm::Bytes {
            job.row_address = inverses;
        } else if inverses != 0 {
            job.make_room_for_rows()?;
            // Inverses are padded with zeros up to the pitch, so their rows have that many
            // coefficients.
            let pitch = u32::try_from(shape.pitch()).expect("at most 1024");
            job.rows = Some(Rows {
                list: List::default(),
                n: pitch,
                given: None,
            });
        }
        job.decode = Some(decoding);
        let bytes = u64::from(n) * shape.pitch() as u64;
        job.finish(&|job, generation| abi::Task {
            kind: abi::ROWS_EXPLICIT,
            given: inverses + u64::from(generation) * bytes,
            ..job.task(generation)
        })
    }

    fn new(
        card: &'a Card,
        combine: Combine,
        shape: Shape,
        sources: &[u8],
        part: Option<u32>,
    ) -> Result<Self, Fault> {
        let context = &card.context;
        let part = part.filter(|part| *part < card.sms);
        let tasks = iter::repeat_n((shape.n, shape.rows, shape.k), shape.generations as usize);
        let demand = Demand {
            sms: part.unwrap_or(card.sms),
            ..Demand::of(tasks, card)
        };
        let variant = combine.variant_for(&demand)?;
        let form_bytes = combine
            .form
            .bytes(shape.n as usize, shape.k as usize)
            .next_multiple_of(256);
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
        let form_tasks = filled(
            card,
            &form_tasks
                .flat_map(|task| bytes_of(&task).to_vec())
                .collect::<Vec<u8>>(),
        )?;
        let out_places = (ROTATION_BYTES / shape.out_bytes()).clamp(1, PLACES_MAX);
        let job = Self {
            hold: None,
            part,
            is_warm: Vec::new(),
            card,
            stream: Stream::new(context)?,
            second: (Stream::new(context)?, Event::untimed(context)?),
            clock: Clock::new(context)?,
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

    /// Makes the lists of tasks for all places.
    fn finish(mut self, task: &dyn Fn(&Self, u32) -> abi::Task) -> Result<Self, Fault> {
        let tasks: Vec<abi::Task> = (0..self.shape.generations)
            .map(|generation| task(&self, generation))
            .collect();
        if let Some(n) = self.rows.as_ref().map(|rows| rows.n) {
            let tasks: Vec<abi::Task> = tasks.iter().map(|task| abi::Task { n, ..*task }).collect();
            let list = self.list(&tasks, self.out.address())?;
            if let Some(rows) = &mut self.rows {
                rows.list = list;
            }
        }
        for place in 0..self.out_places {
            let list = self.list(
                &tasks,
                self.out.address() + (place * self.shape.out_bytes()) as u64,
            )?;
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

    /// The part of a task that does not depend on the source of rows. The list sets output, first
    /// unit and first row.
    fn task(&self, generation: u32) -> abi::Task {
        let Shape { n, k, rows, .. } = self.shape;
        let form_bytes = self
            .combine
            .form
            .bytes(n as usize, k as usize)
            .next_multiple_of(256);
        let row_bytes = (rows as usize * self.row_bytes()) as u64;
        abi::Task {
            source: self.forms.address() + u64::from(generation) * form_bytes as u64,
            coefficients: if self.row_address == 0 {
                0
            } else {
                self.row_address + u64::from(generation) * row_bytes
            },
            rows,
            out_pitch: k,
            n,
            k,
            ..abi::Task::default()
        }
    }

    /// A launch of these tasks with output from `out` on.
    fn list(&self, tasks: &[abi::Task], out: Address) -> Result<List, Fault> {
        let mut launch = abi::Launch {
            row_form: self.combine.row_form as u32,
            ..abi::Launch::default()
        };
        let mut listed = Vec::with_capacity(tasks.len());
        for task in tasks {
            let before = u64::from(launch.rows) * u64::from(task.k);
            listed.push(abi::Task {
                out: out + before,
                first_unit: launch.units,
                first_row: launch.rows,
                ..*task
            });
            launch.units += self.variant.units(task.rows, task.k);
            launch.rows += task.rows;
        }
        launch.count = u32::try_from(listed.len()).expect("few tasks");
        let mut uploaded = None;
        match launch.few.get_mut(..listed.len()) {
            Some(few) => few.copy_from_slice(&listed),
            None => {
                let buffer = filled(
                    self.card,
                    &listed
                        .iter()
                        .flat_map(|task| bytes_of(task).to_vec())
                        .collect::<Vec<u8>>(),
                )?;
                launch.tasks = buffer.address();
                uploaded = Some(buffer);
            }
        }
        Ok(List {
            launch,
            tasks: uploaded,
        })
    }
}

impl Drop for BatchJob<'_> {
    fn drop(&mut self) {
        self.hold = None;
        let _ = self.card.context.bind();
        let _ = self.stream.synchronize();
        let _ = self.second.0.synchronize();
    }
}

/// More than the second-level cache of any card holds.
const ROTATION_BYTES: usize = 512 << 20;
const PLACES_MAX: usize = 64;
