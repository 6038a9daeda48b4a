//! Measures coded bytes per second: one thread for every instruction set, and the whole CPU device.
//!
//! Throughput counts bytes of coded payload. `packed` reads a packed panel, as the CPU back end
//! does; `scattered` packs consecutive blocks inside the timer, as a decoder does. Rows are drawn
//! before the timer starts. `device` draws rows and goes through the queue, the thread and the
//! pool, so it shows what the encoder gets; its slots are allocated before. The clock of one thread
//! is its processor time, that of the device is wall time. Every result is compared with the scalar
//! definition before it is measured.

use std::hint::black_box;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ncserverd::device::{
    self, BackendChoice, Batch, Config, Device, Kernel, KernelChoice, Task, Threads,
};
use ncserverd::gf::{Isa, Kernels, Panel, RowKey, Rows, gf256};
use ncserverd::object::Shape;
use nctest::cpu_time::CpuTime;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SHAPES: [(usize, usize); 7] = [
    (32, 4096),
    (64, 1088),
    (128, 1024),
    (128, 4096),
    (128, 16_384),
    (256, 4096),
    (512, 4096),
];

struct Case {
    n: usize,
    k: usize,
    bytes: Vec<u8>,
    rows: Vec<u8>,
}

impl Case {
    fn new(n: usize, k: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(7);
        let (mut bytes, mut rows) = (vec![0; n * k], vec![0; n * n]);
        rng.fill_bytes(&mut bytes);
        rng.fill_bytes(&mut rows);
        Self { n, k, bytes, rows }
    }

    /// The first, the last and one other block; the whole would take minutes.
    fn check(&self, out: &[u8], name: &str) {
        for row in [0, self.n / 3, self.n - 1] {
            let mut sum = vec![0; self.k];
            for (&c, block) in self.rows[row * self.n..]
                .iter()
                .zip(self.bytes.chunks(self.k))
            {
                sum.iter_mut()
                    .zip(block)
                    .for_each(|(sum, &byte)| *sum ^= gf256::mul(c, byte));
            }
            assert_eq!(out[row * self.k..][..self.k], sum, "{name} is wrong");
        }
    }
}

fn one_thread(criterion: &mut Criterion<CpuTime>) {
    for (n, k) in SHAPES {
        let case = Case::new(n, k);
        let panel = Panel::of(&case.bytes, n, k);
        let sources: Vec<&[u8]> = case.bytes.chunks(k).collect();
        let rows: Vec<&[u8]> = case.rows.chunks(n).collect();
        let mut out = vec![0; n * k];
        let mut group = criterion.benchmark_group(format!("combine/{n}x{k}"));
        group.throughput(Throughput::BytesDecimal((n * k) as u64));
        for kernels in Kernels::available() {
            if kernels.isa() == Isa::Scalar && n > 32 {
                continue;
            }
            for scattered in [false, true] {
                let mut combine = || {
                    let mut outs: Vec<&mut [u8]> = out.chunks_mut(k).collect();
                    match scattered {
                        false => kernels.combine(black_box(&rows), &panel, &mut outs),
                        true => kernels.combine_scattered(black_box(&rows), &sources, &mut outs),
                    }
                };
                let name = if scattered { "scattered" } else { "packed" };
                group.bench_function(BenchmarkId::new(name, kernels.isa()), |bencher| {
                    bencher.iter(&mut combine)
                });
                combine();
                case.check(&out, name);
                out.fill(0);
            }
        }
        group.finish();
    }
}

fn one_row(criterion: &mut Criterion<CpuTime>) {
    let (dst, src) = (vec![1; 4096], vec![2; 4096]);
    let mut group = criterion.benchmark_group("row/4096");
    group.throughput(Throughput::BytesDecimal(4096));
    for kernels in Kernels::available() {
        let mut dst = dst.clone();
        group.bench_function(BenchmarkId::new("mul_add", kernels.isa()), |bencher| {
            bencher.iter(|| kernels.mul_add(black_box(&mut dst), &src, black_box(29)));
        });
    }
    let key = RowKey {
        key: 1,
        generation: 2,
    };
    let mut row = vec![0; 128];
    group.throughput(Throughput::BytesDecimal(128));
    group.bench_function("draw/128", |bencher| {
        bencher.iter(|| key.fill(black_box(3), black_box(&mut row)))
    });
    group.finish();
}

fn whole_device(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let mut group = criterion.benchmark_group("device");
    for (kernel, threads) in [(Kernel::Simd, 1), (Kernel::Simd, 2), (Kernel::Table, 2)] {
        let cpu_threads = Threads::Count(NonZeroU16::new(threads).expect("not zero"));
        let config = Config {
            backend: BackendChoice::Cpu,
            kernel: KernelChoice::Named(kernel),
            cpu_threads,
            ..Config::default()
        };
        let (device, thread) = Device::open(&config, device::Unrecorded).expect("a CPU device");
        for (n, k) in [(32, 4096), (64, 1088), (128, 4096)] {
            let (generations, count) = (4, 64);
            let case = Case::new(n * generations, k);
            let (block_bytes, n_max) = (
                u32::try_from(k).expect("a small block"),
                u16::try_from(n).expect("a small generation"),
            );
            let shape = Shape::new(case.bytes.len() as u64, block_bytes, n_max).expect("a shape");
            let resident = runtime
                .block_on(device.load(Bytes::from(case.bytes), shape))
                .expect("room");
            let resident = Arc::new(resident);
            let tasks = (0_u32..).take(generations).map(|generation| Task {
                resident: Arc::clone(&resident),
                generation,
                rows: Rows::Seeded {
                    key: RowKey {
                        key: 5,
                        generation: u64::from(generation),
                    },
                    first_seed: 9,
                    count,
                },
                out: vec![BytesMut::zeroed(16 + k); count as usize],
                out_offset: 16,
            });
            let mut batch = Batch {
                tasks: tasks.collect(),
            };
            group.throughput(Throughput::BytesDecimal((batch.blocks() * k) as u64));
            let name = format!("{}-{threads}/{n}x{k}", device.kernel());
            group.bench_function(&name, |bencher| {
                bencher.iter_custom(|iterations| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..iterations {
                        let start = Instant::now();
                        batch = runtime
                            .block_on(device.combine(std::mem::take(&mut batch)))
                            .expect("a batch")
                            .batch;
                        spent += start.elapsed();
                    }
                    spent
                });
            });
        }
        thread.close();
    }
    group.finish();
}

fn settings() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
}

criterion_group! {
    name = thread;
    config = settings().with_measurement(CpuTime);
    targets = one_thread, one_row
}
criterion_group! {
    name = device;
    config = settings();
    targets = whole_device
}
criterion_main!(thread, device);
