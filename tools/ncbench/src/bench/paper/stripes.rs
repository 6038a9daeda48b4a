//! Reed-Solomon over whole chunks: the input of every contender of the talk's rows, and the CPU's
//! cases.
//!
//! A case's n is the talk's k native chunks, its rows are its n - k code chunks, and its k is the
//! bytes of a chunk. A GPU takes part as another contender on the same [`Stripes`].

use std::num::NonZeroUsize;

use ncs_codec::rs::{Code, Matrix};
use ncs_gf::Kernels;
use ncserverd::bench::oracle;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::catalogue::Case;
use super::cpu::{UNTOUCHED, part};
use super::load::SEED;
use super::talk::Way;
use super::{Run, Sample};
use crate::bench::team::{self, Member};

/// A file in chunks, and the code over them.
pub(super) struct Stripes {
    pub(super) code: Code,
    pub(super) chunk_bytes: usize,
    /// Native chunks, one behind the other.
    pub(super) native: Vec<u8>,
}

impl Stripes {
    pub(super) fn new(case: &Case) -> Self {
        let (k, chunk_bytes) = (
            usize::from(case.n),
            usize::try_from(case.k).expect("a chunk fits in memory"),
        );
        let code_chunks = usize::try_from(case.rows).expect("a count");
        let code =
            Code::new(Matrix::Cauchy, k, k + code_chunks).expect("cases have numbers of a code");
        let mut native = vec![0; k * chunk_bytes];
        SmallRng::seed_from_u64(SEED).fill_bytes(&mut native);
        Self {
            code,
            chunk_bytes,
            native,
        }
    }

    pub(super) fn chunks(&self) -> Vec<&[u8]> {
        self.native.chunks_exact(self.chunk_bytes).collect()
    }

    /// All code chunks, by our kernels; the first, the last and one between are compared with the
    /// definition of the field.
    pub(super) fn coded(&self) -> Option<Vec<u8>> {
        let count = self.code.n() - self.code.k();
        let mut coded = vec![0; count * self.chunk_bytes];
        let outs = &mut coded.chunks_exact_mut(self.chunk_bytes).collect::<Vec<_>>();
        self.code
            .encode(Kernels::detect(), &self.chunks(), outs, all_threads())
            .ok()?;
        let rows: Vec<&[u8]> = self.code.parity_rows().collect();
        let is_right = |row: usize| {
            coded[row * self.chunk_bytes..][..self.chunk_bytes]
                == oracle::combine(rows[row], &self.native, self.chunk_bytes)
        };
        [0, count / 2, count - 1]
            .into_iter()
            .all(is_right)
            .then_some(coded)
    }
}

fn all_threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// What is multiplied: rows, what they are multiplied with, and what has to come out.
pub(super) struct ChunkProduct {
    pub(super) rows: Vec<u8>,
    /// Chunks, one behind the other.
    pub(super) sources: Vec<u8>,
    pub(super) expected: Vec<u8>,
    chunk_bytes: usize,
}

impl ChunkProduct {
    /// All code chunks of the native ones, or the first two native chunks of all others.
    pub(super) fn new(case: &Case) -> Option<Self> {
        let stripes = Stripes::new(case);
        let (coded, chunk_bytes, k) = (stripes.coded()?, stripes.chunk_bytes, stripes.code.k());
        if !case.measure.is_rebuild() {
            let rows = stripes.code.parity_rows().collect::<Vec<_>>().concat();
            return Some(Self {
                rows,
                sources: stripes.native,
                expected: coded,
                chunk_bytes,
            });
        }
        let lost: Vec<usize> = (0..LOST.min(k).min(stripes.code.n() - k)).collect();
        let present: Vec<usize> = (lost.len()..stripes.code.n()).collect();
        let repair = stripes
            .code
            .repair(Kernels::detect(), &present, &lost)
            .ok()?;
        let chunk = |&index: &usize| match index.checked_sub(k) {
            Some(row) => &coded[row * chunk_bytes..][..chunk_bytes],
            None => &stripes.native[index * chunk_bytes..][..chunk_bytes],
        };
        let sources = repair
            .sources()
            .iter()
            .map(chunk)
            .collect::<Vec<_>>()
            .concat();
        let expected = stripes.native[..lost.len() * chunk_bytes].to_vec();
        Some(Self {
            rows: repair.rows().collect::<Vec<_>>().concat(),
            sources,
            expected,
            chunk_bytes,
        })
    }

    fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.rows
            .chunks_exact(self.sources.len() / self.chunk_bytes)
    }
}

/// Codes or rebuilds, and looks at every byte of it; none if one is wrong.
pub(super) fn code(case: &Case) -> Option<Run> {
    let (job, threads) = (ChunkProduct::new(case)?, case.threads);
    let way = Way::named(case.kernel);
    let count = job.rows().count();
    let run = move |repeats: u32| {
        let bytes = |index| part(job.chunk_bytes, threads, index, 4096);
        let work = |outs: &mut Vec<u8>, member: &Member<'_>, _| {
            let bytes = bytes(member.index);
            if bytes.is_empty() {
                return;
            }
            let sources: Vec<&[u8]> = job
                .sources
                .chunks_exact(job.chunk_bytes)
                .map(|source| &source[bytes.clone()])
                .collect();
            let mut outs: Vec<&mut [u8]> = outs.chunks_exact_mut(bytes.len()).collect();
            match way {
                Some(way) => way.combine(job.rows(), &sources, &mut outs),
                None => Kernels::detect().combine_scattered(
                    &job.rows().collect::<Vec<_>>(),
                    &sources,
                    &mut outs,
                ),
            }
        };
        let (elapsed, outs) = team::time(
            threads,
            repeats,
            |index| vec![UNTOUCHED; count * bytes(index).len()],
            work,
        );
        let is_right = |(index, out): (usize, &Vec<u8>)| {
            let bytes = bytes(index);
            let wanted = job
                .expected
                .chunks_exact(job.chunk_bytes)
                .map(|chunk| &chunk[bytes.clone()]);
            bytes.is_empty() || out.chunks_exact(bytes.len()).eq(wanted)
        };
        (elapsed, outs.iter().enumerate().all(is_right))
    };
    run(1)
        .1
        .then(|| Box::new(move |repeats| run(repeats).0) as Run)
}

/// Bytes stored per byte of the file: by the code, which has to rebuild all chunks from any k; by
/// three copies; and by as many copies as survive the loss of as many chunks. `None` if a pattern
/// of losses is not rebuilt.
pub(super) fn stored(case: &Case) -> Option<Vec<(&'static str, Sample)>> {
    let stripes = Stripes::new(&Case {
        k: STORED_BYTES,
        ..case.clone()
    });
    let (k, n, kernels) = (stripes.code.k(), stripes.code.n(), Kernels::detect());
    let coded = stripes.coded()?;
    let chunks: Vec<&[u8]> = stripes
        .native
        .chunks_exact(stripes.chunk_bytes)
        .chain(coded.chunks_exact(stripes.chunk_bytes))
        .collect();
    let mut patterns = 0_u32;
    let is_rebuilt = |lost: u32| {
        let is_gone = |&chunk: &usize| chunk < PATTERN_CHUNKS && lost >> chunk & 1 != 0;
        let (gone, present): (Vec<usize>, Vec<usize>) = (0..n).partition(is_gone);
        patterns += 1;
        let Ok(repair) = stripes.code.repair(kernels, &present, &gone) else {
            return false;
        };
        let sources: Vec<&[u8]> = repair
            .sources()
            .iter()
            .map(|&index| chunks[index])
            .collect();
        let mut made = vec![0; gone.len() * stripes.chunk_bytes];
        let outs = &mut made
            .chunks_exact_mut(stripes.chunk_bytes)
            .collect::<Vec<_>>();
        let is_run = repair
            .run(kernels, &sources, outs, NonZeroUsize::MIN)
            .is_ok();
        is_run
            && gone
                .iter()
                .zip(made.chunks_exact(stripes.chunk_bytes))
                .all(|(&chunk, made)| *made == *chunks[chunk])
    };
    let mut all =
        (0..1_u32 << n.min(PATTERN_CHUNKS)).filter(|lost| lost.count_ones() as usize == n - k);
    if !all.all(is_rebuilt) {
        return None;
    }
    let bytes: usize = chunks.iter().map(|chunk| chunk.len()).sum();
    let sample = |value| Sample {
        value,
        best: value,
        worst: value,
        rounds: 1,
        repeats: patterns,
        bytes: bytes as u64,
    };
    let copies = f64::from(u16::try_from(n - k + 1).ok()?);
    let code = sample(ratio(bytes, stripes.native.len()));
    Some(vec![
        ("", code),
        (", three copies", sample(3.0)),
        (", copies for as many losses", sample(copies)),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "some kilobytes")]
fn ratio(a: usize, b: usize) -> f64 {
    a as f64 / b as f64
}

/// Native chunks that are lost at a time.
const LOST: usize = 2;
const STORED_BYTES: u32 = 64;
/// Chunks of which every pattern of losses is tried.
const PATTERN_CHUNKS: usize = 20;

#[cfg(test)]
mod tests {
    use super::super::catalogue::{Axis, Scope};
    use super::super::{Papers, all_rows};
    use super::*;

    fn case(native: u16, code: u32) -> Case {
        let scope = Scope {
            threads: 1,
            gpus: 1,
            sms: 1,
            n: vec![native],
            k: vec![100],
            kernels: Vec::new(),
            is_quick: false,
            is_full: false,
        };
        let papers = Papers {
            rows: vec!["S5-1".into()],
            ..Papers::default()
        };
        assert_eq!(papers.wanted().unwrap()[0].axis, Axis::Chunks);
        let case = all_rows()
            .find(|row| row.id == "S5-1")
            .unwrap()
            .cases(&scope)
            .remove(0);
        Case { rows: code, ..case }
    }

    /// The talk's example: four chunks stored for two save a third of three copies. "Save 50 %"
    /// counts only the added chunks: one for one, where copies are two for one.
    #[test]
    fn bytes_beside_triple_replication() {
        for (native, code, expected) in [(2, 2, 2.0), (6, 3, 1.5), (10, 4, 1.4)] {
            let [(_, stored), (_, three), (_, copies)] = &stored(&case(native, code)).unwrap()[..]
            else {
                panic!()
            };
            assert_eq!(
                (stored.value, three.value, copies.value),
                (expected, 3.0, f64::from(code + 1))
            );
        }
        let three = stored(&case(2, 2)).unwrap()[1].1.value;
        assert_eq!(
            (
                three,
                (three - 2.0) / three,
                1.0 - (2.0 - 1.0) / (three - 1.0)
            ),
            (3.0, 1.0 / 3.0, 0.5)
        );
        let patterns = |native, code| stored(&case(native, code)).unwrap()[0].1.repeats;
        assert_eq!(
            (patterns(2, 2), patterns(6, 3), patterns(10, 4)),
            (6, 84, 1001)
        );
    }
}
