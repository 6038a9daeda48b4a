//! Work on blocks over GF(q), and hashing, in a card's memory: all data is uploaded when a job is
//! made.

use std::time::Duration;

use ncs_codec::gfq::Shape;
use ncs_codec::hash::Group;
use ncs_gf::gfq::{Element, WORD_BYTES};
use ncserverd::device::cuda::card::{Card, number};
use ncserverd::device::cuda::driver::{Address, Buffer, Fault, Stream};
use ncserverd::device::cuda::gfq::layout::{
    field, number_bytes, row_pitch, rows_of, spaced, weight_bytes,
};
use ncserverd::device::cuda::gfq::rebuilding::Rebuilding;
use ncserverd::device::cuda::gfq::step::{self, Encoder, Step, invert_work_bytes};
use ncserverd::device::cuda::gfq::tables::Tables;
use ncserverd::device::{Error, abi};

use super::basics::{self, Clock};
use crate::lab::Gfq;

/// Work with words that can be done repeatedly. Dropping it waits for the stream before memory is
/// freed.
pub(crate) struct GfqJob<'a> {
    card: &'a Card,
    stream: Stream,
    clock: Clock,
    steps: Vec<Step>,
    made: Vec<Made>,
    _memory: Vec<Buffer>,
}

/// Rows of results.
struct Made {
    buffer: Buffer,
    /// Offset of the first row.
    start: usize,
    /// Rows of a generation, and bytes from one to the next.
    rows: usize,
    pitch: usize,
    /// Bytes of a row that are read.
    bytes: usize,
}

/// Allocates memory and keeps it.
struct Room<'a> {
    card: &'a Card,
    memory: Vec<Buffer>,
}

impl Room<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<Address, Fault> {
        let buffer = basics::filled(self.card, bytes)?;
        self.memory.push(buffer);
        Ok(self.memory.last().expect("pushed a line ago").address())
    }

    fn take(&mut self, bytes: usize) -> Result<Address, Fault> {
        self.memory.push(Buffer::new(&self.card.context, bytes)?);
        Ok(self.memory.last().expect("pushed a line ago").address())
    }

    fn made(&self, count: usize, rows: usize, pitch: usize, bytes: usize) -> Result<Made, Fault> {
        Ok(Made {
            buffer: Buffer::new(&self.card.context, count * rows * pitch)?,
            start: 0,
            rows,
            pitch,
            bytes,
        })
    }
}

impl<'a> GfqJob<'a> {
    pub(super) fn new(card: &'a Card, plan: &Gfq<'_>) -> Result<Self, Error> {
        let mut room = Room {
            card,
            memory: Vec::new(),
        };
        let stream = Stream::new(&card.context)?;
        let (steps, made) = match *plan {
            Gfq::Encode {
                shape,
                generations,
                kernel,
                source,
                rows,
            } => {
                let unknown = || Error::Unavailable(format!("no kernel {kernel} for words"));
                encode(
                    &mut room,
                    shape,
                    generations,
                    Encoder::named(kernel).ok_or_else(unknown)?,
                    source,
                    rows,
                )?
            }
            Gfq::Combine {
                shape,
                generations,
                is_paper,
                payloads,
                rows,
            } => combine(&mut room, shape, generations, is_paper, payloads, rows)?,
            Gfq::Invert { n, count, matrix } => invert(&mut room, n, count, matrix)?,
            Gfq::Decode {
                shape,
                generations,
                matrix,
                payloads,
            } => decode(&mut room, shape, generations, matrix, payloads)?,
            Gfq::Powers {
                group,
                words,
                data,
                threads,
                blocks,
            } => powers(&mut room, (group, words), data, (threads, blocks))?,
            Gfq::Hashes {
                group,
                words,
                data,
                window,
            } => hashes(
                &mut room,
                &stream,
                Tables {
                    group,
                    words,
                    window,
                },
                data,
            )?,
            Gfq::Ladder {
                group,
                words,
                sets,
                window,
                is_by_lanes,
            } => ladder(
                &mut room,
                Tables {
                    group,
                    words,
                    window,
                },
                sets,
                is_by_lanes,
            )?,
            Gfq::Check {
                group,
                shape,
                batches,
                payloads,
                vectors,
                weights,
                hashes,
            } => {
                let blocks = Blocks {
                    payloads,
                    vectors,
                    weights,
                };
                check(&mut room, &stream, (group, shape), batches, &blocks, hashes)?
            }
        };
        Ok(Self {
            card,
            stream,
            clock: Clock::new(&card.context)?,
            steps,
            made,
            _memory: room.memory,
        })
    }
}

type StepsMade = (Vec<Step>, Vec<Made>);

fn encode(
    room: &mut Room<'_>,
    shape: Shape,
    generations: u32,
    encoder: Encoder,
    source: &[u8],
    rows: &[u32],
) -> Result<StepsMade, Fault> {
    assert!(
        source.len() == shape.source_bytes() && rows.len().is_multiple_of(shape.n()),
        "a generation of {shape:?}"
    );
    let (n, count, pitch) = (shape.n(), rows.len() / shape.n(), row_pitch(shape.words()));
    let made = room.made(generations as usize, count, pitch, shape.payload_bytes())?;
    let coefficients: Vec<u8> = rows
        .iter()
        .flat_map(|coefficient| coefficient.to_le_bytes())
        .collect();
    let addresses = [
        room.put(&source.repeat(generations as usize))?,
        room.put(&coefficients.repeat(generations as usize))?,
        made.buffer.address(),
    ];
    let product = abi::GfqProduct {
        source_step: shape.source_bytes() as u64,
        coefficients_step: coefficients.len() as u64,
        source_pitch: number(shape.block_bytes()),
        coefficients_pitch: number(4 * n),
        tops: 0,
        ..product((count, n, shape.words()), addresses)
    };
    Ok((
        vec![Step::encode(encoder, product, generations, room.card.sms)],
        vec![made],
    ))
}

/// A task for contiguous generations of elements: `rows` rows from n sources of `words` words.
fn product(
    (rows, n, words): (usize, usize, usize),
    [source, coefficients, out]: [Address; 3],
) -> abi::GfqProduct {
    let (pitch, coefficients_pitch) = (row_pitch(words), row_pitch(n));
    abi::GfqProduct {
        source,
        coefficients,
        out,
        source_step: (n * pitch) as u64,
        coefficients_step: (rows * coefficients_pitch) as u64,
        out_step: (rows * pitch) as u64,
        source_pitch: number(pitch),
        coefficients_pitch: number(coefficients_pitch),
        out_pitch: number(pitch),
        n: number(n),
        rows: number(rows),
        words: number(words),
        tops: 1,
        reserved: 0,
        field: field(),
    }
}

fn combine(
    room: &mut Room<'_>,
    shape: Shape,
    generations: u32,
    is_paper: bool,
    payloads: &[u8],
    rows: &[Element],
) -> Result<StepsMade, Fault> {
    let (n, words, pitch, count) = (
        shape.n(),
        shape.words(),
        row_pitch(shape.words()),
        generations as usize,
    );
    let made = room.made(count, rows.len() / n, pitch, shape.payload_bytes())?;
    let addresses = [
        room.put(&spaced(payloads.chunks_exact(shape.payload_bytes()), pitch).repeat(count))?,
        room.put(&rows_of(rows, n).repeat(count))?,
        made.buffer.address(),
    ];
    Ok((
        vec![Step::combine(
            is_paper,
            product((rows.len() / n, n, words), addresses),
            generations,
        )],
        vec![made],
    ))
}

fn invert(
    room: &mut Room<'_>,
    n: usize,
    count: u32,
    matrix: &[Element],
) -> Result<StepsMade, Fault> {
    let pitch = row_pitch(n);
    let made = room.made(count as usize, n, pitch, n * WORD_BYTES + n.div_ceil(8))?;
    let matrices = room.put(&rows_of(matrix, n).repeat(count as usize))?;
    let work = room.take(count as usize * invert_work_bytes(n))?;
    let status = room.take(4 * count as usize)?;
    let inversion = step::inversion(n, [matrices, made.buffer.address(), work, status], field());
    Ok((Step::invert(inversion, count, room.card.sms), vec![made]))
}

fn decode(
    room: &mut Room<'_>,
    shape: Shape,
    generations: u32,
    matrix: &[Element],
    payloads: &[u8],
) -> Result<StepsMade, Fault> {
    let (generation, count, pitch) = (
        Rebuilding::of(shape),
        generations as usize,
        row_pitch(shape.words()),
    );
    let (_, bytes) = generation.places_at(0, count);
    let buffer = Buffer::new(&room.card.context, bytes)?;
    let (places, _) = generation.places_at(buffer.address(), count);
    let payloads = spaced(payloads.chunks_exact(shape.payload_bytes()), pitch).repeat(count);
    // SAFETY: the places are that large, and nothing uses them.
    unsafe {
        ncserverd::device::cuda::dense::upload(
            places.matrices,
            &rows_of(matrix, shape.n()).repeat(count),
        )?;
        ncserverd::device::cuda::dense::upload(places.payloads, &payloads)?;
    }
    let start = usize::try_from(places.made - buffer.address()).expect("inside of the memory");
    let made = Made {
        buffer,
        start,
        rows: shape.n(),
        pitch,
        bytes: shape.payload_bytes(),
    };
    Ok((
        generation.steps(&places, field(), generations, room.card.sms),
        vec![made],
    ))
}

fn powers(
    room: &mut Room<'_>,
    (group, words): (Group, usize),
    data: &[u8],
    (threads, blocks): (u32, u32),
) -> Result<StepsMade, Fault> {
    let (pitch, bytes) = (words * WORD_BYTES, group.hash_bytes());
    let rows = data.len() / pitch;
    let made = room.made(1, rows, bytes, bytes)?;
    let hash = abi::Hash {
        bases: room.put(&number_bytes(&group.generators(words)[..words]))?,
        exponents: room.put(data)?,
        parts: room.take(rows * words * bytes)?,
        out: made.buffer.address(),
        count: number(words),
        enters: 1,
        ..Tables {
            group,
            words,
            window: 4,
        }
        .hash(rows, pitch, false, room.card.sms)
    };
    Ok((
        vec![
            Step::power_paper(group, hash, threads, blocks),
            Step::join(group, hash),
        ],
        vec![made],
    ))
}

/// Makes a table of the generators' powers, and waits.
fn generators(room: &mut Room<'_>, stream: &Stream, tables: Tables) -> Result<Address, Fault> {
    let table = room.take(tables.bytes())?;
    let bases = room.put(&number_bytes(
        &tables.group.generators(tables.words)[..tables.words],
    ))?;
    let hash = abi::Hash {
        bases,
        table,
        ..tables.hash(1, 0, true, room.card.sms)
    };
    for step in tables.make(hash, 1, room.card.sms) {
        // SAFETY: bases and table are as large as the task says, in memory that is kept.
        unsafe { step.start(room.card, stream) }?;
    }
    stream.synchronize()?;
    Ok(table)
}

fn hashes(
    room: &mut Room<'_>,
    stream: &Stream,
    tables: Tables,
    data: &[u8],
) -> Result<StepsMade, Fault> {
    let (group, pitch, bytes) = (
        tables.group,
        tables.words * WORD_BYTES,
        tables.group.hash_bytes(),
    );
    let rows = data.len() / pitch;
    let made = room.made(1, rows, bytes, bytes)?;
    let hash = tables.hash(rows, pitch, false, room.card.sms);
    let hash = abi::Hash {
        table: generators(room, stream, tables)?,
        exponents: room.put(data)?,
        parts: room.take(rows * hash.count as usize * bytes)?,
        out: made.buffer.address(),
        ..hash
    };
    Ok((
        vec![Step::fixed(group, hash), Step::join(group, hash)],
        vec![made],
    ))
}

fn ladder(
    room: &mut Room<'_>,
    tables: Tables,
    sets: u32,
    is_by_lanes: bool,
) -> Result<StepsMade, Fault> {
    let bytes = tables.group.hash_bytes();
    let bases = number_bytes(&tables.group.generators(tables.words)[..tables.words]);
    let windows = tables.words * tables.windows() as usize;
    let mut made = room.made(sets as usize, windows, bytes << tables.window, bytes)?;
    // The entries of digit 1.
    made.start = bytes;
    let hash = abi::Hash {
        bases: room.put(&bases.repeat(sets as usize))?,
        table: made.buffer.address(),
        bases_step: bases.len() as u64,
        table_step: tables.bytes() as u64,
        ..tables.hash(1, 0, true, room.card.sms)
    };
    Ok((
        vec![Step::ladder(tables.group, hash, sets, is_by_lanes)],
        vec![made],
    ))
}

/// The blocks of a batch.
struct Blocks<'a> {
    payloads: &'a [u8],
    vectors: &'a [Element],
    weights: &'a [u128],
}

fn check(
    room: &mut Room<'_>,
    stream: &Stream,
    (group, shape): (Group, Shape),
    batches: u32,
    blocks: &Blocks<'_>,
    hashes: &[Box<[u64]>],
) -> Result<StepsMade, Fault> {
    let (n, words, rows, bytes, sms) = (
        shape.n(),
        shape.words(),
        batches as usize,
        group.hash_bytes(),
        room.card.sms,
    );
    let (pitch, vector_pitch, each) = (row_pitch(words), row_pitch(n), blocks.weights.len());
    let payloads = spaced(blocks.payloads.chunks_exact(shape.payload_bytes()), pitch);
    let payloads = room.put(&payloads.repeat(rows))?;
    let vectors = room.put(&rows_of(blocks.vectors, n).repeat(rows))?;
    let weights = room.put(&weight_bytes(blocks.weights))?;
    let (sums, vector_sums) = (room.take(rows * pitch)?, room.take(rows * vector_pitch)?);
    let fold = |words: usize, source: Address, out: Address| {
        let product = product((1, each, words), [source, weights, out]);
        Step::fold(
            abi::GfqProduct {
                coefficients_step: 0,
                ..product
            },
            batches,
        )
    };
    let tables = Tables {
        group,
        words,
        window: 8,
    };
    let own = Tables {
        group,
        words: n,
        window: 4,
    };
    let made = [
        room.made(rows, 1, bytes, bytes)?,
        room.made(rows, 1, bytes, bytes)?,
    ];
    let left = tables.hash(rows, pitch, true, sms);
    let left = abi::Hash {
        table: generators(room, stream, tables)?,
        exponents: sums,
        parts: room.take(rows * left.count as usize * bytes)?,
        out: made[0].buffer.address(),
        ..left
    };
    let right = own.hash(rows, vector_pitch, true, sms);
    let right = abi::Hash {
        bases: room.put(&number_bytes(hashes).repeat(rows))?,
        table: room.take(rows * own.bytes())?,
        exponents: vector_sums,
        parts: room.take(rows * right.count as usize * bytes)?,
        out: made[1].buffer.address(),
        bases_step: (n * bytes) as u64,
        table_step: own.bytes() as u64,
        ..right
    };
    let mut steps = vec![fold(words, payloads, sums), fold(n, vectors, vector_sums)];
    steps.extend(own.make(right, batches, sms));
    steps.extend(
        [left, right]
            .into_iter()
            .flat_map(|hash| [Step::fixed(group, hash), Step::join(group, hash)]),
    );
    Ok((steps, made.into()))
}

impl GfqJob<'_> {
    /// The card's time for doing all steps `repeats` times in its own memory.
    pub(crate) fn time(&mut self, repeats: u32) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.clock.begin(&self.stream)?;
        for _ in 0..repeats {
            for step in &self.steps {
                // SAFETY: everything is in memory of this job, as large as the tasks say, and the
                // stream is waited for before it goes.
                unsafe { step.start(self.card, &self.stream) }?;
            }
        }
        Ok(self.clock.end(&self.stream)?)
    }

    /// Fills the results with a pattern.
    pub(crate) fn poison(&mut self) -> Result<(), Error> {
        self.card.context.bind()?;
        // Results are at the end of their buffers.
        self.made
            .iter()
            .try_for_each(|made| basics::poison_from(&made.buffer, made.start, &self.stream))?;
        Ok(self.stream.synchronize()?)
    }

    /// Reads the results of a generation, matrix or batch: contiguous payloads, rows of a matrix in
    /// the form of payloads, all hashes, the first entries of tables in the kernels' form, or the
    /// two numbers of a batch, which are equal if it holds.
    pub(crate) fn read(&mut self, index: usize) -> Result<Vec<u8>, Error> {
        self.card.context.bind()?;
        let mut bytes = Vec::new();
        for made in &self.made {
            let each = made.rows * made.pitch;
            let mut rows = vec![0; each];
            let start = made.start + index * each;
            // Rows that begin inside an entry end with the buffer.
            let length = each.min(made.buffer.len() - start);
            basics::read(&made.buffer, start, &mut rows[..length])?;
            rows.chunks_exact(made.pitch)
                .for_each(|row| bytes.extend(&row[..made.bytes]));
        }
        Ok(bytes)
    }
}

impl Drop for GfqJob<'_> {
    fn drop(&mut self) {
        let _ = self.card.context.bind();
        let _ = self.stream.synchronize();
    }
}
