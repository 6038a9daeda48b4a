//! Solving dense systems side by side, in a card's memory or through the card.

use std::time::Duration;

use cudarc::driver::result;
use ncserverd::device::cuda::card::{Card, number};
use ncserverd::device::cuda::dense::{
    self, Inversion, ORDER_MAX, Places, Shape, spaced, terms_and_ends,
};
use ncserverd::device::cuda::driver::{Address, Buffer, Fault, Named, Pinned, Stream};
use ncserverd::device::{Error, abi};

use super::basics::{self, Clock};
use crate::lab::Systems;

/// Systems on a card that can be solved repeatedly. Dropping it waits for the stream before memory
/// is freed.
pub(crate) struct SystemsJob<'a> {
    card: &'a Card,
    stream: Stream,
    clock: Clock,
    shape: Shape,
    way: Inversion,
    memory: Buffer,
    places: Places,
    before: Option<Before>,
    /// The uploads, with their addresses on the card.
    uploads: Vec<(Address, Vec<u8>)>,
    host: Option<Host>,
}

/// A product that is added to the symbols before solving.
struct Before {
    /// The received symbols.
    given: Buffer,
    rows: Buffer,
    known: Buffer,
    /// Number of sources in the product.
    inner: usize,
}

impl Before {
    /// Bytes of one system's rows.
    fn rows_bytes(&self, shape: &Shape) -> usize {
        shape.order * self.inner.next_multiple_of(abi::ROW_ALIGN)
    }

    fn known_bytes(&self, shape: &Shape) -> usize {
        self.inner * shape.symbol_pitch()
    }
}

/// The uploads and the results in pinned memory.
struct Host {
    uploads: Vec<(Address, Pinned)>,
    made: Pinned,
}

impl<'a> SystemsJob<'a> {
    pub(super) fn new(card: &'a Card, plan: &Systems<'_>) -> Result<Self, Error> {
        Self::by(Inversion::of(plan.systems[0].order, card), card, plan)
    }

    /// The same with a given way to invert.
    pub(super) fn by(way: Inversion, card: &'a Card, plan: &Systems<'_>) -> Result<Self, Error> {
        let Systems {
            systems,
            before,
            count,
            symbol_bytes,
        } = *plan;
        let in_turn = || (0..count).map(|index| &systems[index % systems.len()]);
        let first = &systems[0];
        let is_alike = systems
            .iter()
            .all(|system| (system.order, system.sums.len()) == (first.order, first.sums.len()));
        assert!(is_alike && first.order <= ORDER_MAX, "systems of one shape");
        let terms = in_turn().flat_map(|system| system.sums).map(Vec::len).sum();
        let shape = Shape {
            order: first.order,
            count,
            wanted: first.sums.len(),
            terms,
            symbol_bytes,
        };
        let (_, bytes) = Places::new(&shape, &way, 0);
        let memory = Buffer::new(&card.context, bytes)?;
        let (places, _) = Places::new(&shape, &way, memory.address());
        let all = |of: &dyn Fn(usize) -> Vec<u8>| (0..systems.len()).map(of).collect::<Vec<_>>();
        let matrices = all(&|index| {
            spaced(
                systems[index].matrix.chunks_exact(shape.order).map(Some),
                shape.pitch(),
            )
        });
        let symbols =
            all(&|index| spaced(systems[index].symbols.iter().copied(), shape.symbol_pitch()));
        let repeated = |of: &[Vec<u8>]| {
            (0..count)
                .flat_map(|index| &of[index % of.len()])
                .copied()
                .collect::<Vec<u8>>()
        };
        let mut uploads = vec![(places.matrices, repeated(&matrices))];
        let before = match before.first() {
            None => {
                uploads.push((places.symbols, repeated(&symbols)));
                None
            }
            Some(first) => {
                let inner = first.known.len();
                let row_pitch = inner.next_multiple_of(abi::ROW_ALIGN);
                let rows = all(&|index| {
                    spaced(before[index].rows.chunks_exact(inner).map(Some), row_pitch)
                });
                let known =
                    all(&|index| spaced(before[index].known.iter().copied(), shape.symbol_pitch()));
                let mut put = |bytes: Vec<u8>| -> Result<Buffer, Fault> {
                    let buffer = Buffer::new(&card.context, bytes.len())?;
                    uploads.push((buffer.address(), bytes));
                    Ok(buffer)
                };
                Some(Before {
                    given: put(repeated(&symbols))?,
                    rows: put(repeated(&rows))?,
                    known: put(repeated(&known))?,
                    inner,
                })
            }
        };
        let stream = Stream::new(&card.context)?;
        let job = Self {
            card,
            stream,
            clock: Clock::new(&card.context)?,
            shape,
            way,
            memory,
            places,
            before,
            uploads,
            host: None,
        };
        let (terms, ends) = terms_and_ends(in_turn().flat_map(|system| system.sums));
        // SAFETY: all places are as large as the shape says, and nothing uses them.
        unsafe {
            dense::upload(job.places.terms, &terms)?;
            dense::upload(job.places.ends, &ends)?;
            job.uploads
                .iter()
                .try_for_each(|(to, bytes)| dense::upload(*to, bytes))?;
        }
        job.systems().prepare()?;
        Ok(job)
    }

    fn systems(&self) -> dense::Systems<'_> {
        dense::Systems {
            card: self.card,
            shape: self.shape,
            way: self.way,
            places: self.places,
        }
    }

    fn invert(&self) -> Result<(), Fault> {
        // SAFETY: the places are this shape's, in memory of this job, whose stream is waited for
        // before it is dropped.
        unsafe { self.systems().invert(&self.stream) }
    }

    fn solve(&self) -> Result<(), Fault> {
        if let Some(before) = &self.before {
            let (shape, to) = (&self.shape, self.places.symbols);
            let product = abi::WideProduct {
                left: before.rows.address(),
                right: before.known.address(),
                out: to,
                left_step: before.rows_bytes(shape) as u64,
                right_step: before.known_bytes(shape) as u64,
                out_step: shape.symbols_bytes() as u64,
                rows: number(shape.order),
                inner: number(before.inner),
                columns: number(shape.symbol_pitch()),
                left_pitch: number(before.inner.next_multiple_of(abi::ROW_ALIGN)),
                right_pitch: number(shape.symbol_pitch()),
                out_pitch: number(shape.symbol_pitch()),
                adds: 1,
                reserved: 0,
            };
            let bytes = shape.count * shape.symbols_bytes();
            // SAFETY: both are that large, in memory of this job.
            unsafe {
                result::memcpy_dtod_async(to, before.given.address(), bytes, self.stream.raw)
                    .named("cuMemcpyDtoDAsync")?;
                dense::multiply(self.card, &product, shape.count, &self.stream)?;
            }
        }
        self.invert()?;
        // SAFETY: as `invert`; terms and ends were made of sums that were checked.
        unsafe { self.systems().multiply(&self.stream) }
    }

    fn made_bytes(&self) -> usize {
        self.shape.count * self.shape.made_bytes()
    }

    fn make_host(&mut self) -> Result<(), Fault> {
        if self.host.is_none() {
            let context = &self.card.context;
            let pin = |(to, bytes): &(Address, Vec<u8>)| -> Result<(Address, Pinned), Fault> {
                let mut pinned = Pinned::new(context, bytes.len())?;
                pinned.copy_from_slice(bytes);
                Ok((*to, pinned))
            };
            let uploads = self.uploads.iter().map(pin).collect::<Result<_, Fault>>()?;
            self.host = Some(Host {
                uploads,
                made: Pinned::new(context, self.made_bytes())?,
            });
        }
        Ok(())
    }

    fn there_and_back(&self, host: &mut Host) -> Result<(), Fault> {
        for (to, bytes) in &host.uploads {
            // SAFETY: so many bytes are there, and the stream is waited for before anybody reads,
            // writes or frees.
            unsafe { result::memcpy_htod_async(*to, bytes, self.stream.raw) }
                .named("cuMemcpyHtoDAsync")?;
        }
        self.solve()?;
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_async(&mut host.made, self.places.made, self.stream.raw) }
            .named("cuMemcpyDtoHAsync")
    }

    /// The card's time for solving all systems in its own memory, `repeats` times, or only for
    /// inverting their matrices.
    pub(crate) fn time(&mut self, inverts_alone: bool, repeats: u32) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.clock.begin(&self.stream)?;
        for _ in 0..repeats {
            if inverts_alone {
                self.invert()?
            } else {
                self.solve()?
            }
        }
        Ok(self.clock.end(&self.stream)?)
    }

    /// The host's time from matrices and symbols in pinned memory until the results are there.
    pub(crate) fn through(&mut self) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.make_host()?;
        let mut host = self.host.take().expect("made a line ago");
        let elapsed = basics::elapsed(
            &mut host,
            |host| Ok(self.there_and_back(host)?),
            |_| self.stream.synchronize(),
        );
        self.host = Some(host);
        elapsed
    }

    /// Fills inverses and results with a pattern.
    pub(crate) fn poison(&mut self) -> Result<(), Error> {
        self.card.context.bind()?;
        // SAFETY: all of both places, which nothing uses.
        unsafe {
            let (inverses, made) = (
                self.shape.count * self.shape.matrix_bytes(),
                self.made_bytes(),
            );
            result::memset_d8_async(
                self.places.inverses,
                basics::POISON,
                inverses,
                self.stream.raw,
            )
            .named("cuMemsetD8Async")?;
            if made > 0 {
                result::memset_d8_async(self.places.made, basics::POISON, made, self.stream.raw)
                    .named("cuMemsetD8Async")?;
            }
        }
        if let Some(host) = &mut self.host {
            host.made.fill(basics::POISON);
        }
        Ok(self.stream.synchronize()?)
    }

    /// An inverse, row by row. `None` if the matrix has none.
    pub(crate) fn inverse(&mut self, index: usize) -> Result<Option<Vec<u8>>, Error> {
        assert!(index < self.shape.count, "system {index}");
        self.card.context.bind()?;
        let offset = |place: Address| {
            usize::try_from(place - self.memory.address()).expect("inside of the memory")
        };
        let mut status = [0; 4];
        basics::read(
            &self.memory,
            offset(self.places.status) + 4 * index,
            &mut status,
        )?;
        if u32::from_le_bytes(status) == 0 {
            return Ok(None);
        }
        let mut rows = vec![0; self.shape.matrix_bytes()];
        basics::read(
            &self.memory,
            offset(self.places.inverses) + index * rows.len(),
            &mut rows,
        )?;
        Ok(Some(
            rows.chunks_exact(self.shape.pitch())
                .flat_map(|row| &row[..self.shape.order])
                .copied()
                .collect(),
        ))
    }

    /// Reads all wanted symbols of a system from the card or from pinned memory.
    pub(crate) fn read(
        &mut self,
        index: usize,
        is_on_host: bool,
        made: &mut [u8],
    ) -> Result<(), Error> {
        let Shape {
            wanted,
            symbol_bytes,
            ..
        } = self.shape;
        assert!(
            index < self.shape.count && made.len() == wanted * symbol_bytes,
            "{} bytes of system {index}",
            made.len()
        );
        let (each, mut bytes) = (self.shape.made_bytes(), vec![0; self.shape.made_bytes()]);
        match (&self.host, is_on_host) {
            (Some(host), true) => bytes.copy_from_slice(&host.made[index * each..][..each]),
            (None, true) => {
                return Err(Fault::Driver("nothing has been brought to the host".into()).into());
            }
            (_, false) => {
                self.card.context.bind()?;
                let start = usize::try_from(self.places.made - self.memory.address())
                    .expect("inside of the memory");
                basics::read(&self.memory, start + index * each, &mut bytes)?;
            }
        }
        let symbols = bytes
            .chunks_exact(self.shape.symbol_pitch())
            .map(|symbol| &symbol[..symbol_bytes]);
        made.chunks_exact_mut(symbol_bytes)
            .zip(symbols)
            .for_each(|(place, symbol)| place.copy_from_slice(symbol));
        Ok(())
    }
}

impl Drop for SystemsJob<'_> {
    fn drop(&mut self) {
        let _ = self.card.context.bind();
        let _ = self.stream.synchronize();
    }
}
