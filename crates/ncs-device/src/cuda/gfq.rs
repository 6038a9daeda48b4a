//! GF(q) and its hashes on a card: combinations of words, inverses of matrices, products of powers
//! (`kernels/gfq.cu`, `kernels/hash.cu`).
//!
//! [`Step`] is a kernel with its arguments, for callers whose data is in the card's memory.
//! [`Calculator`] is the card as [`Arithmetic`]: it takes data from host memory and returns results
//! there. It keeps its working memory for the next call, and takes at most [`WORK_BYTES`] besides
//! tables and kept sources. Larger work is done in portions. The first call that needs powers of a
//! group's generators makes their table; powers of a generation's hashes are made in each call.
//! Encoding, the work of a server, is separate ([`coder`]) and allows several calls at once. All
//! other work is one call at a time.

use std::sync::{Arc, Mutex, PoisonError};

use ncs_codec::gfq::{Arithmetic, Decode, Encode, Failed, Kept, NotKept, Rebuilt, Recode, Shape};
use ncs_codec::hash::{Batch, Group};
use ncs_gf::gfq::{Element, WORD_BYTES};

use super::card::{Card, number};
use super::dense::{download, upload};
use super::driver::{Address, Buffer, Context, Fault, Stream};
use super::host::HostMemory;
use crate::Field;
use crate::abi::{self, define};
use coder::Coder;
use layout::{Places, copy_rows, element_bytes, field, number_bytes, row_pitch, rows_of, spaced};
use rebuilding::{Rebuilding, unpack};
use step::{ROWS_MAX, Step, product};
use tables::Tables;

mod batches;
mod coder;
pub mod layout;
pub mod rebuilding;
pub mod step;
pub mod tables;

/// The card as [`Arithmetic`].
#[derive(Debug)]
pub struct Calculator {
    inner: Mutex<Inner>,
    coder: Coder,
    context: Arc<Context>,
}

#[derive(Debug)]
struct Inner {
    stream: Stream,
    memory: Option<Buffer>,
    /// Tables of the generators' powers, one per group.
    generators: Vec<(Tables, Buffer)>,
    field: abi::GfqField,
    work_bytes: usize,
    card: Arc<Card>,
}

impl Calculator {
    /// Opens the GPU with this number. The card writes blocks for memory of `host` there itself.
    pub fn open(ordinal: u16, host: &HostMemory) -> Result<Self, Fault> {
        let card = Arc::new(Card::open(ordinal, Field::Standard)?);
        let total = usize::try_from(Context::memory()?.1).unwrap_or(usize::MAX);
        let inner = Inner {
            stream: Stream::new(&card.context)?,
            memory: None,
            generators: Vec::new(),
            field: field(),
            work_bytes: WORK_BYTES.min(total / WORK_PART),
            card: Arc::clone(&card),
        };
        let coder = Coder::new(&card, host, inner.field, inner.work_bytes)?;
        Ok(Self {
            inner: Mutex::new(inner),
            coder,
            context: Arc::clone(&card.context),
        })
    }

    /// Limits its memory so far that all work is done in several portions.
    #[cfg(test)]
    pub fn with_work_bytes(mut self, bytes: usize) -> Self {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .work_bytes = bytes;
        self.coder.limit(bytes);
        self
    }

    fn ask<T>(&self, ask: impl FnOnce(&mut Inner) -> Result<T, Fault>) -> Result<T, Failed> {
        // Poisoning is harmless: the next call overwrites this memory before use.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let result = inner.card.context.bind().and_then(|()| ask(&mut inner));
        result.map_err(|fault| Failed(fault.to_string()))
    }
}

impl Drop for Calculator {
    fn drop(&mut self) {
        // Any thread may drop the fields.
        let _ = self.context.bind();
    }
}

impl Arithmetic for Calculator {
    fn keep(&self, source: &[u8], padded: usize) -> Result<Option<Arc<dyn Kept>>, NotKept> {
        assert!(source.len() <= padded, "{} bytes in {padded}", source.len());
        let kept = self
            .coder
            .keep(source, padded)
            .map_err(|fault| match fault {
                Fault::Memory(bytes) => NotKept::Memory(bytes),
                Fault::Driver(reason) => Failed(reason).into(),
            });
        Ok(kept?.map(|segment| Arc::new(segment) as _))
    }

    fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
        tasks.iter().for_each(|task| _ = task.count(shape));
        self.coder
            .encode(shape, tasks)
            .map_err(|fault| Failed(fault.to_string()))
    }

    fn recode(&self, shape: Shape, tasks: &mut [Recode<'_>]) -> Result<(), Failed> {
        tasks.iter().for_each(|task| _ = task.count(shape));
        self.ask(|inner| {
            tasks
                .iter_mut()
                .try_for_each(|task| inner.recode(shape, task))
        })
    }

    fn decode(&self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
        tasks.iter().for_each(|task| task.check(shape));
        self.ask(|inner| inner.decode(shape, tasks))
    }

    fn hash(&self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Failed> {
        let is_short = |block: &&[u8]| block.len() <= words * WORD_BYTES;
        assert!(
            words <= usize::from(Shape::WORDS_MAX) && blocks.iter().all(is_short),
            "blocks of {words} words"
        );
        if words == 0 || blocks.is_empty() {
            // The empty product.
            let one = [vec![0; group.hash_bytes() - 1], vec![1]].concat();
            return Ok(one.repeat(blocks.len()));
        }
        self.ask(|inner| inner.hash(group, words, blocks))
    }

    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
        self.ask(|inner| inner.holds(batches))
    }
}

impl Inner {
    /// Allocates the places that `lay` asks for. It calls `lay` twice: first for the size, then for
    /// the addresses.
    fn lay<T>(&mut self, lay: impl Fn(&mut Places) -> T) -> Result<T, Fault> {
        let mut places = Places::at(0);
        lay(&mut places);
        Ok(lay(&mut Places::at(Buffer::reserve(
            &mut self.memory,
            &self.card.context,
            places.bytes,
        )?)))
    }

    /// Does all steps, and waits.
    ///
    /// # Safety
    /// The conditions of [`Step::start`] hold for each; all memory is this calculator's.
    unsafe fn run(&self, steps: &[Step]) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        let started = steps
            .iter()
            .try_for_each(|step| unsafe { step.start(&self.card, &self.stream) });
        // Steps that have begun use memory, even if a later one failed.
        let waited = self.stream.synchronize();
        started.and(waited)
    }

    fn recode(&mut self, shape: Shape, task: &mut Recode<'_>) -> Result<(), Fault> {
        let (n, words, inner) = (shape.n(), shape.words(), task.held.len());
        if inner > INNER_MAX {
            return Err(Fault::Driver(format!(
                "{inner} blocks to be combined, and {INNER_MAX} are the most"
            )));
        }
        let (pitch, vector_pitch, factors_pitch) =
            (row_pitch(words), row_pitch(n), row_pitch(inner));
        let most = rows_at_once(
            self.work_bytes,
            inner * (pitch + vector_pitch),
            pitch + vector_pitch + factors_pitch,
        );
        let most = most.min((task.rows.len() / inner).max(1));
        let vectors: Vec<Element> = task
            .held
            .iter()
            .flat_map(|block| block.vector.elements())
            .collect();
        let payloads = task.held.iter().map(|block| &**block.payload.as_bytes());
        let (vectors, payloads) = (rows_of(&vectors, n), spaced(payloads, pitch));
        let outs = task.vectors.chunks_mut(most * shape.recoded_vector_bytes());
        let outs = outs.zip(task.payloads.chunks_mut(most * shape.payload_bytes()));
        for (index, (rows, (vectors_out, payloads_out))) in
            task.rows.chunks(most * inner).zip(outs).enumerate()
        {
            let count = rows.len() / inner;
            let [
                held_vectors,
                held_payloads,
                factors,
                made_vectors,
                made_payloads,
            ] = self.lay(|places| {
                let sizes = [
                    inner * vector_pitch,
                    inner * pitch,
                    most * factors_pitch,
                    most * vector_pitch,
                    most * pitch,
                ];
                sizes.map(|bytes| places.take(bytes))
            })?;
            let steps = [
                Step::combine(
                    false,
                    product(
                        (count, inner, n),
                        [held_vectors, factors, made_vectors],
                        self.field,
                    ),
                    1,
                ),
                Step::combine(
                    false,
                    product(
                        (count, inner, words),
                        [held_payloads, factors, made_payloads],
                        self.field,
                    ),
                    1,
                ),
            ];
            let (mut new_vectors, mut new_payloads) =
                (vec![0; count * vector_pitch], vec![0; count * pitch]);
            // SAFETY: places are as large as the tasks say, and every call waits for its work.
            unsafe {
                if index == 0 {
                    upload(held_vectors, &vectors)?;
                    upload(held_payloads, &payloads)?;
                }
                upload(factors, &rows_of(rows, inner))?;
                self.run(&steps)?;
                download(&mut new_vectors, made_vectors)?;
                download(&mut new_payloads, made_payloads)?;
            }
            copy_rows(&new_payloads, pitch, payloads_out, shape.payload_bytes());
            let outs = vectors_out.chunks_exact_mut(shape.recoded_vector_bytes());
            for (row, out) in new_vectors.chunks_exact(vector_pitch).zip(outs) {
                let elements = out.as_chunks_mut().0.iter_mut().enumerate();
                elements.for_each(|(index, out)| *out = element_bytes(row, n, index));
            }
        }
        Ok(())
    }

    fn decode(&mut self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Fault> {
        let generation = Rebuilding::of(shape);
        let most = (self.work_bytes / generation.bytes()).max(1);
        let mut rebuilt = Vec::with_capacity(tasks.len());
        for tasks in tasks.chunks_mut(most) {
            let (n, count) = (shape.n(), tasks.len());
            let places = self.lay(|places| generation.places(places, count))?;
            let mut status = vec![0; 4 * count];
            let mut made = vec![0; count * generation.payloads];
            for (index, task) in (0_u64..).zip(tasks.iter()) {
                let elements: Vec<Element> = task
                    .blocks
                    .iter()
                    .flat_map(|block| block.vector.elements())
                    .collect();
                let payloads = spaced(
                    task.blocks.iter().map(|block| &**block.payload.as_bytes()),
                    row_pitch(shape.words()),
                );
                // SAFETY: there is room for that many generations, and nothing uses it.
                unsafe {
                    upload(
                        places.matrices + index * generation.matrix as u64,
                        &rows_of(&elements, n),
                    )?;
                    upload(
                        places.payloads + index * generation.payloads as u64,
                        &payloads,
                    )?;
                }
            }
            // SAFETY: places are as large as the tasks say, and every call waits for its work.
            unsafe {
                self.run(&generation.steps(&places, self.field, number(count), self.card.sms))?;
                download(&mut status, places.status)?;
                download(&mut made, places.made)?;
            }
            let statuses = status
                .as_chunks()
                .0
                .iter()
                .map(|status| u32::from_le_bytes(*status));
            for ((task, is_regular), made) in tasks
                .iter_mut()
                .zip(statuses)
                .zip(made.chunks_exact(generation.payloads))
            {
                rebuilt.push(if is_regular == 0 {
                    Rebuilt::Singular
                } else {
                    unpack(shape, made, task.out)
                });
            }
        }
        Ok(rebuilt)
    }

    /// The table of a group's generators, for at least this many words.
    fn generators(&mut self, group: Group, words: usize) -> Result<(Tables, Address), Fault> {
        let found = self
            .generators
            .iter()
            .position(|(tables, _)| tables.group == group);
        if let Some(found) = found {
            let (tables, buffer) = &self.generators[found];
            if tables.words >= words {
                return Ok((*tables, buffer.address()));
            }
            self.generators.swap_remove(found);
        }
        let free = usize::try_from(Context::memory()?.0).unwrap_or(usize::MAX);
        let fits = |tables: &Tables| tables.bytes() <= TABLE_BYTES.min(free / TABLE_PART);
        let all = [8, 4].map(|window| Tables {
            group,
            words,
            window,
        });
        let tables = all.into_iter().find(fits).unwrap_or(all[1]);
        let buffer = Buffer::new(&self.card.context, tables.bytes())?;
        let bases = number_bytes(&group.generators(words)[..words]);
        let at = self.lay(|places| places.take(bases.len()))?;
        let hash = abi::Hash {
            bases: at,
            table: buffer.address(),
            ..tables.hash(1, 0, true, self.card.sms)
        };
        // SAFETY: bases and table are as large as the task says.
        unsafe {
            upload(at, &bases)?;
            self.run(&tables.make(hash, 1, self.card.sms))?;
        }
        let address = buffer.address();
        self.generators.push((tables, buffer));
        Ok((tables, address))
    }

    fn hash(&mut self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Fault> {
        let (tables, table) = self.generators(group, words)?;
        // A table's first bases are a table themselves.
        let tables = Tables { words, ..tables };
        let (pitch, bytes, sms) = (words * WORD_BYTES, group.hash_bytes(), self.card.sms);
        let most = rows_at_once(self.work_bytes, 0, pitch + 2 * bytes * words).min(ROWS_MAX);
        let mut hashes = Vec::with_capacity(blocks.len() * bytes);
        for blocks in blocks.chunks(most) {
            let hash = tables.hash(blocks.len(), pitch, false, sms);
            let [exponents, parts, out] = self.lay(|places| {
                let parts = blocks.len() * hash.count as usize * bytes;
                [
                    places.take(blocks.len() * pitch),
                    places.take(parts),
                    places.take(blocks.len() * bytes),
                ]
            })?;
            let hash = abi::Hash {
                table,
                exponents,
                parts,
                out,
                ..hash
            };
            let mut made = vec![0; blocks.len() * bytes];
            // SAFETY: places are as large as the task says, and every call waits for its work.
            unsafe {
                upload(exponents, &spaced(blocks.iter().copied(), pitch))?;
                self.run(&[Step::fixed(group, hash), Step::join(group, hash)])?;
                download(&mut made, out)?;
            }
            hashes.extend(made);
        }
        Ok(hashes)
    }
}

/// Rows that fit into `bytes` of memory besides `fixed` bytes; at least one.
fn rows_at_once(bytes: usize, fixed: usize, each: usize) -> usize {
    (bytes.saturating_sub(fixed) / each).clamp(1, ROWS_MAX)
}

/// Maximum sources of a combination.
const INNER_MAX: usize = define("NC_GFQ_N_MAX") as usize;
/// A calculator's memory besides tables of generators, or a quarter of a smaller card's.
const WORK_BYTES: usize = 1 << 30;
const WORK_PART: usize = 4;
/// A group's table of generators, or a quarter of the free memory.
const TABLE_BYTES: usize = 1280 << 20;
const TABLE_PART: usize = 4;

#[cfg(test)]
mod tests;
