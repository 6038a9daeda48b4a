//! The thesis' use of a GPU for RaptorQ, step by step: copies, kernels, and the host between them.

use std::time::{Duration, Instant};

use cudarc::driver::result;
use ncserverd::device::Error;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::driver::{Buffer, Fault, Named, Stream};
use ncserverd::device::cuda::launch::{Grid, argument};

use super::basics::{self, Clock};
use super::launch;
use crate::lab::{Elimination, Group, Product};

/// Two matrices and their product, which can be computed repeatedly.
pub(crate) struct ProductJob<'a> {
    card: &'a Card,
    stream: Stream,
    clock: Clock,
    rows: u32,
    inner: u32,
    columns: u32,
    group: Group,
    a: Vec<u8>,
    b: Vec<u8>,
    device_a: Buffer,
    device_b: Buffer,
    device_c: Buffer,
}

impl<'a> ProductJob<'a> {
    pub(super) fn new(card: &'a Card, plan: &Product<'_>) -> Result<Self, Fault> {
        let Product {
            rows,
            a,
            columns,
            b,
            group,
        } = *plan;
        let inner = u32::try_from(a.len()).expect("fewer than 2^32 bytes") / rows;
        assert!(
            a.len() == rows as usize * inner as usize
                && b.len() == inner as usize * columns as usize,
            "matrices that fit"
        );
        let context = &card.context;
        let job = Self {
            card,
            stream: Stream::new(context)?,
            clock: Clock::new(context)?,
            rows,
            inner,
            columns,
            group,
            a: a.to_vec(),
            b: b.to_vec(),
            device_a: Buffer::new(context, a.len())?,
            device_b: Buffer::new(context, b.len())?,
            device_c: Buffer::new(context, rows as usize * columns as usize)?,
        };
        job.device_a.write(a)?;
        job.device_b.write(b)?;
        Ok(job)
    }

    fn multiply(&self) -> Result<(), Fault> {
        let (a, b, c) = (
            self.device_a.address(),
            self.device_b.address(),
            self.device_c.address(),
        );
        let (width, tables) = (self.group.width, self.card.tables());
        let mut arguments = [
            argument(&a),
            argument(&b),
            argument(&c),
            argument(&self.rows),
            argument(&self.inner),
            argument(&self.columns),
            argument(&width),
            argument(&tables),
        ];
        let grid = over(self.rows, self.columns, self.group);
        // SAFETY: the matrices are as large as the numbers say, and live until the stream has been
        // waited for.
        unsafe {
            launch::thesis(
                self.card,
                "nc_thesis_multiply",
                grid,
                &mut arguments,
                &self.stream,
            )
        }
    }

    /// The card's time for computing the product `repeats` times.
    pub(crate) fn time(&mut self, repeats: u32) -> Result<Duration, Error> {
        self.card.context.bind()?;
        self.clock.begin(&self.stream)?;
        for _ in 0..repeats {
            self.multiply()?;
        }
        Ok(self.clock.end(&self.stream)?)
    }

    /// The host's time from all three matrices in memory that is not pinned until the product is
    /// there (Algorithm 2).
    pub(crate) fn through(&mut self) -> Result<Duration, Error> {
        self.card.context.bind()?;
        let mut c = vec![0; self.device_c.len()];
        let start = Instant::now();
        self.device_a.write(&self.a)?;
        self.device_b.write(&self.b)?;
        self.device_c.write(&c)?;
        self.multiply()?;
        self.stream.synchronize()?;
        basics::read(&self.device_c, 0, &mut c)?;
        Ok(start.elapsed())
    }

    /// Fills the product with a pattern.
    pub(crate) fn poison(&mut self) -> Result<(), Error> {
        self.card.context.bind()?;
        basics::poison(&self.device_c, &self.stream)?;
        Ok(self.stream.synchronize()?)
    }

    /// Reads the product, row by row.
    pub(crate) fn read(&mut self) -> Result<Vec<u8>, Error> {
        self.card.context.bind()?;
        let mut c = vec![0; self.device_c.len()];
        basics::read(&self.device_c, 0, &mut c)?;
        Ok(c)
    }
}

/// A matrix that can be inverted repeatedly, and memory for it beside the identity, twice.
pub(crate) struct EliminationJob<'a> {
    card: &'a Card,
    stream: Stream,
    order: u32,
    group: Group,
    matrix: Vec<u8>,
    extended: Buffer,
    copy: Buffer,
    inverse: Option<Vec<u8>>,
}

impl<'a> EliminationJob<'a> {
    pub(super) fn new(card: &'a Card, plan: &Elimination<'_>) -> Result<Self, Fault> {
        let Elimination {
            order,
            matrix,
            group,
        } = *plan;
        let n = order as usize;
        assert_eq!(matrix.len(), n * n, "a square matrix");
        let (context, bytes) = (&card.context, 2 * n * n);
        Ok(Self {
            card,
            stream: Stream::new(context)?,
            order,
            group,
            matrix: matrix.to_vec(),
            extended: Buffer::new(context, bytes)?,
            copy: Buffer::new(context, bytes)?,
            inverse: None,
        })
    }

    fn swap(&self, i: u32, j: u32) -> Result<(), Fault> {
        let (matrix, columns) = (self.extended.address(), 2 * self.order);
        let mut arguments = [
            argument(&matrix),
            argument(&j),
            argument(&columns),
            argument(&i),
        ];
        // SAFETY: rows and columns of the matrix; the stream is waited for before it is read.
        unsafe {
            launch::thesis(
                self.card,
                "nc_thesis_swap",
                along(columns, self.group),
                &mut arguments,
                &self.stream,
            )
        }
    }

    fn divide(&self, i: u32, pivot: u32) -> Result<(), Fault> {
        let (matrix, columns, tables) =
            (self.extended.address(), 2 * self.order, self.card.tables());
        let mut arguments = [
            argument(&matrix),
            argument(&i),
            argument(&columns),
            argument(&pivot),
            argument(&tables),
        ];
        // SAFETY: as above.
        unsafe {
            launch::thesis(
                self.card,
                "nc_thesis_divide",
                along(columns, self.group),
                &mut arguments,
                &self.stream,
            )
        }
    }

    fn sum(&self, i: u32) -> Result<(), Fault> {
        let (matrix, copy, columns) =
            (self.extended.address(), self.copy.address(), 2 * self.order);
        // SAFETY: both are as large, and the stream is waited for before either is freed.
        unsafe { result::memcpy_dtod_async(copy, matrix, self.extended.len(), self.stream.raw) }
            .named("cuMemcpyDtoDAsync")?;
        let (width, tables) = (self.group.width, self.card.tables());
        let mut arguments = [
            argument(&matrix),
            argument(&i),
            argument(&self.order),
            argument(&columns),
            argument(&copy),
            argument(&width),
            argument(&tables),
        ];
        let grid = over(self.order, columns, self.group);
        // SAFETY: as above.
        unsafe {
            launch::thesis(
                self.card,
                "nc_thesis_sum",
                grid,
                &mut arguments,
                &self.stream,
            )
        }
    }

    /// Reads the extended matrix. The thesis reads all of it after each step.
    fn look(&self, host: &mut [u8]) -> Result<(), Fault> {
        self.stream.synchronize()?;
        basics::read(&self.extended, 0, host)
    }

    /// Algorithm 10. `None` for a matrix without inverse.
    fn invert(&self) -> Result<Option<Vec<u8>>, Fault> {
        let n = self.order as usize;
        let mut host = vec![0; 2 * n * n];
        for (i, (row, given)) in host
            .chunks_exact_mut(2 * n)
            .zip(self.matrix.chunks_exact(n))
            .enumerate()
        {
            row[..n].copy_from_slice(given);
            row[n + i] = 1;
        }
        self.extended.write(&host)?;
        for (i, at) in (0..self.order).zip((0..).step_by(2 * n + 1)) {
            let Some(below) = host[at..].iter().step_by(2 * n).position(|&byte| byte != 0) else {
                return Ok(None);
            };
            if below > 0 {
                self.swap(i, i + u32::try_from(below).expect("a row"))?;
                self.look(&mut host)?;
            }
            if host[at] != 1 {
                self.divide(i, host[at].into())?;
            }
            self.sum(i)?;
            self.look(&mut host)?;
        }
        Ok(Some(
            host.chunks_exact(2 * n)
                .flat_map(|row| &row[n..])
                .copied()
                .collect(),
        ))
    }

    /// The host's time from the matrix to its inverse in host memory.
    pub(crate) fn run(&mut self) -> Result<Duration, Error> {
        self.card.context.bind()?;
        let start = Instant::now();
        self.inverse = self.invert()?;
        Ok(start.elapsed())
    }

    /// The result of the last run. `None` if the matrix has no inverse.
    pub(crate) fn inverse(&self) -> Option<&[u8]> {
        self.inverse.as_deref()
    }
}

/// One thread per element, in thread blocks of this shape.
fn over(rows: u32, columns: u32, group: Group) -> Grid {
    let blocks = (
        columns.div_ceil(group.width),
        rows.div_ceil(group.height),
        1,
    );
    Grid {
        blocks,
        threads: group.width * group.height,
        shared_bytes: 0,
    }
}

/// One thread per column, with as many threads per thread block as the shape has.
fn along(columns: u32, group: Group) -> Grid {
    let threads = group.width * group.height;
    Grid::line(columns.div_ceil(threads), threads, 0)
}
