//! Measures decoded bytes per second of one thread, from n coded blocks in memory to the source,
//! and recoding.
//!
//! `encode` makes n coded blocks, rows included, from a packed generation. `blocked` is the default
//! decoder: it absorbs all n, then finishes; its allocations are inside the timer. `progressive`
//! applies each elimination step to the payloads as well, and does not copy the result out. `lossy`
//! is the default decoder with 95 of 100 source blocks and coded blocks for the rest. `recode`
//! makes n blocks from n received ones, into allocated memory. `absorb` counts only arrivals, in
//! bytes of payload. The clock is the thread's processor time. Every result is compared with the
//! source before it is measured.

use std::hint::black_box;
use std::time::Duration;

use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use ncserverd::block::Vector;
use ncserverd::codec::rlnc::{Decoder, Encoder, Progressive};
use ncserverd::gf::{Isa, Kernels, RowKey};
use ncserverd::object::{Codec, Generation};
use nctest::cpu_time::CpuTime;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SHAPES: [(u16, u32); 7] = [
    (32, 4096),
    (64, 1088),
    (128, 1024),
    (128, 4096),
    (128, 16_384),
    (256, 4096),
    (512, 4096),
];
const KEY: RowKey = RowKey {
    key: 1,
    generation: 0,
};

struct Case {
    generation: Generation,
    source: Vec<u8>,
    coded: Vec<Vec<u8>>,
}

impl Case {
    fn new(n: u16, block_bytes: u32) -> Self {
        let length = u64::from(n) * u64::from(block_bytes);
        let generation = Generation {
            index: 0,
            n,
            block_bytes,
            offset: 0,
            length,
            codec: Codec::Rlnc,
        };
        let mut source = vec![0; usize::try_from(length).expect("a small generation")];
        SmallRng::seed_from_u64(1).fill_bytes(&mut source);
        let encoder = Encoder::new(&generation, &source, KEY, Kernels::detect())
            .expect("the generation's bytes");
        let mut coded = vec![vec![0; block_bytes as usize]; usize::from(n) + 4];
        let mut outs: Vec<&mut [u8]> = coded.iter_mut().map(Vec::as_mut_slice).collect();
        encoder.blocks(0, &mut outs);
        Self {
            generation,
            source,
            coded,
        }
    }

    fn seeded(&self) -> impl Iterator<Item = (Vector, &[u8])> {
        (0..)
            .map(Vector::Seed)
            .zip(self.coded.iter().map(Vec::as_slice))
    }

    /// Every twentieth source block lost.
    fn lossy(&self) -> impl Iterator<Item = (Vector, &[u8])> {
        let sources = (0..)
            .zip(self.source.chunks(self.coded[0].len()))
            .filter(|(index, _)| index % 20 != 7);
        sources
            .map(|(index, block)| (Vector::Source(index), block))
            .chain(self.seeded())
    }

    fn absorb<'a>(
        &self,
        blocks: impl Iterator<Item = (Vector, &'a [u8])>,
        kernels: Kernels,
    ) -> Decoder {
        let mut decoder = Decoder::new(self.generation, KEY, kernels);
        for (vector, payload) in blocks {
            decoder.absorb(&vector, payload).expect("a good block");
            if decoder.is_complete() {
                break;
            }
        }
        decoder
    }

    fn progressive(&self, kernels: Kernels) -> Progressive {
        let mut decoder = Progressive::new(self.generation, KEY, kernels);
        for (vector, payload) in self.seeded() {
            decoder.absorb(&vector, payload).expect("a good block");
            if decoder.missing() == 0 {
                break;
            }
        }
        decoder
    }

    fn check(&self, kernels: Kernels) {
        assert!(self.absorb(self.seeded(), kernels).into_bytes() == Ok(self.source.clone()));
        assert!(self.absorb(self.lossy(), kernels).into_bytes() == Ok(self.source.clone()));
        let mut out = vec![0; self.source.len()];
        self.progressive(kernels)
            .finish(&mut out)
            .expect("full rank");
        assert!(out == self.source);
    }
}

fn decode(criterion: &mut Criterion<CpuTime>) {
    for (n, block_bytes) in SHAPES {
        let case = Case::new(n, block_bytes);
        let mut group = criterion.benchmark_group(format!("decode/{n}x{block_bytes}"));
        group.throughput(Throughput::BytesDecimal(case.source.len() as u64));
        for kernels in Kernels::available().filter(|kernels| kernels.isa() >= Isa::Avx2) {
            case.check(kernels);
            measure(&mut group, &case, kernels);
        }
        group.finish();
    }
}

fn measure(group: &mut BenchmarkGroup<'_, CpuTime>, case: &Case, kernels: Kernels) {
    let id = |name| BenchmarkId::new(name, kernels.isa());
    let encoder =
        Encoder::new(&case.generation, &case.source, KEY, kernels).expect("the generation's bytes");
    let mut coded = case.coded[..usize::from(case.generation.n)].to_vec();
    let mut outs: Vec<&mut [u8]> = coded.iter_mut().map(Vec::as_mut_slice).collect();
    group.bench_function(id("encode"), |bencher| {
        bencher.iter(|| encoder.blocks(black_box(0), &mut outs))
    });
    group.bench_function(id("blocked"), |bencher| {
        bencher.iter(|| case.absorb(case.seeded(), kernels).into_bytes())
    });
    group.bench_function(id("absorb"), |bencher| {
        bencher.iter(|| case.absorb(case.seeded(), kernels))
    });
    group.bench_function(id("lossy"), |bencher| {
        bencher.iter(|| case.absorb(case.lossy(), kernels).into_bytes())
    });
    group.bench_function(id("progressive"), |bencher| {
        bencher.iter(|| case.progressive(kernels))
    });
    let decoder = case.absorb(case.seeded(), kernels);
    let mut rng = SmallRng::seed_from_u64(2);
    let mut vectors = vec![vec![0; usize::from(case.generation.n)]; outs.len()];
    let mut vectors: Vec<&mut [u8]> = vectors.iter_mut().map(Vec::as_mut_slice).collect();
    group.bench_function(id("recode"), |bencher| {
        bencher.iter(|| decoder.recode_into(&mut rng, &mut vectors, &mut outs))
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500));
    targets = decode
}
criterion_main!(benches);
