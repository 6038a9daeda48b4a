//! Tests of the handle, over the CPU.
#![expect(clippy::cast_possible_truncation, reason = "numbers of a test")]

use super::recorder::tests::Sums;
use super::*;
use std::num::NonZeroU16;

use ncs_gf::{Kernels, RowKey, gf256};

const KEY: RowKey = RowKey {
    key: 7,
    generation: 0,
};
const HEADROOM: usize = 11;

fn config(kernel: KernelChoice, threads: u16) -> Config {
    let cpu_threads = Threads::Count(NonZeroU16::new(threads).unwrap());
    Config {
        backend: BackendChoice::Cpu,
        kernel,
        cpu_threads,
        ..Config::default()
    }
}

fn slots(count: usize, block_bytes: usize) -> Vec<BytesMut> {
    vec![BytesMut::from(vec![0xEE; HEADROOM + block_bytes + 3].as_slice()); count]
}

fn rows(count: u32, n: u16) -> [Rows; 4] {
    let explicit = (0..count * u32::from(n))
        .map(|i| (i * 37 + i / 256) as u8)
        .collect::<Vec<_>>();
    let source = (0..count).map(|i| (i % u32::from(n)) as u16).collect();
    [
        Rows::Seeded {
            key: KEY,
            first_seed: u32::MAX - 1,
            count,
        },
        Rows::Explicit {
            n,
            coefficients: explicit.into(),
        },
        Rows::Source { indices: source },
        Rows::sparse(KEY, 5, count, NonZeroU16::MIN, n),
    ]
}

fn expected(bytes: &[u8], shape: &Shape, generation: u32, rows: &Rows, i: usize) -> Vec<u8> {
    let generation = shape.generation(generation).unwrap();
    let start = generation.offset as usize;
    let mut row = vec![0; usize::from(generation.n)];
    rows.fill(i, &mut row);
    let mut sum = vec![0; generation.block_bytes as usize];
    let blocks = bytes[start..start + generation.length as usize].chunks(sum.len());
    for (&c, block) in row.iter().zip(blocks) {
        sum.iter_mut()
            .zip(block)
            .for_each(|(sum, &byte)| *sum ^= gf256::mul(c, byte));
    }
    sum
}

#[tokio::test]
async fn a_batch_over_many_generations_is_written_into_its_slots() {
    let named = KernelChoice::Named;
    for (kernel, threads) in [
        (named(Kernel::Simd), 1),
        (named(Kernel::Simd), 3),
        (named(Kernel::Table), 2),
    ] {
        let sums = Sums::default();
        let (device, thread) = Device::open(&config(kernel, threads), sums.clone()).unwrap();
        let shape = Shape::new(9_999, 96, 24).unwrap();
        let bytes: Bytes = (0..9_999_u32)
            .map(|i| (i.wrapping_mul(i) >> 3) as u8)
            .collect::<Vec<_>>()
            .into();
        let resident = Arc::new(device.load(bytes.clone(), shape).await.unwrap());
        assert!(resident.resident_bytes() >= 9_999);
        let mut batch = Batch::default();
        for generation in 0..shape.generations() {
            for (rows, count) in rows(9, shape.generation(generation).unwrap().n)
                .into_iter()
                .zip([9; 4])
            {
                let (resident, out) = (Arc::clone(&resident), slots(count, 96));
                batch.tasks.push(Task {
                    resident,
                    generation,
                    rows,
                    out,
                    out_offset: HEADROOM,
                });
            }
        }
        let done = device.combine(batch).await.unwrap();
        for task in &done.batch.tasks {
            for (i, slot) in task.out.iter().enumerate() {
                let block = expected(&bytes, &shape, task.generation, &task.rows, i);
                assert_eq!(slot[HEADROOM..HEADROOM + 96], block);
                assert!(
                    slot[..HEADROOM]
                        .iter()
                        .chain(&slot[HEADROOM + 96..])
                        .all(|&byte| byte == 0xEE)
                );
            }
        }
        drop((done, resident));
        let is_empty = || sums.resident() == (0, 0);
        for _ in 0..1000 {
            if is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(is_empty(), "what was dropped is released");
        thread.close();
        assert_eq!(device.load(bytes, shape).await.unwrap_err(), Error::Closed);
    }
}

/// With several threads the batches are cut across the blocks.
#[tokio::test]
async fn a_few_blocks_are_the_same_however_they_are_cut() {
    let shape = Shape::new(128 * 4112 - 7, 4112, 128).unwrap();
    let bytes: Bytes = (0..shape.length() as u32)
        .map(|i| (i.wrapping_mul(i) >> 3) as u8)
        .collect::<Vec<_>>()
        .into();
    let seeded = |count| Rows::Seeded {
        key: KEY,
        first_seed: 3,
        count,
    };
    let expected: Vec<Vec<u8>> = (0..9)
        .map(|i| expected(&bytes, &shape, 0, &seeded(9), i))
        .collect();
    for kernel in [Kernel::Simd, Kernel::Table] {
        for threads in [1, 2, 3, 5] {
            let (device, _thread) =
                Device::open(&config(KernelChoice::Named(kernel), threads), Unrecorded).unwrap();
            let resident = Arc::new(device.load(bytes.clone(), shape).await.unwrap());
            for count in 1..=9 {
                let mut slab = BytesMut::from(vec![0xEE; count * (HEADROOM + 4112 + 3)].as_slice());
                let out: Vec<BytesMut> = (0..count)
                    .map(|_| slab.split_to(HEADROOM + 4112 + 3))
                    .collect();
                let places = |out: &[BytesMut]| {
                    out.iter()
                        .map(|slot| (slot.as_ptr() as usize, slot.len()))
                        .collect::<Vec<_>>()
                };
                let before = places(&out);
                let rows = seeded(count as u32);
                let task = Task {
                    resident: Arc::clone(&resident),
                    generation: 0,
                    rows,
                    out,
                    out_offset: HEADROOM,
                };
                let done = device.combine(Batch { tasks: vec![task] }).await.unwrap();
                let out = &done.batch.tasks[0].out;
                assert_eq!(
                    places(out),
                    before,
                    "{kernel:?}, {threads} threads, {count} blocks"
                );
                for (slot, block) in out.iter().zip(&expected) {
                    assert!(
                        slot[HEADROOM..HEADROOM + 4112] == *block,
                        "{kernel:?}, {threads} threads, {count} blocks"
                    );
                    assert!(
                        slot[..HEADROOM]
                            .iter()
                            .chain(&slot[HEADROOM + 4112..])
                            .all(|&byte| byte == 0xEE)
                    );
                }
            }
        }
    }
}

/// Random rows for n blocks of k bytes with the blocks that they make; and the source blocks.
fn job(n: u16, k: usize, seed: u64) -> (Decode, Vec<u8>) {
    let size = usize::from(n);
    let (mut coefficients, mut source) = (vec![0; size * size], vec![0; size * k]);
    let key = RowKey {
        key: seed,
        generation: 3,
    };
    (0..)
        .zip(coefficients.chunks_exact_mut(size))
        .for_each(|(seed, row)| key.fill(seed, row));
    key.fill(u32::MAX, &mut source);
    let mut payloads = vec![0; size * k];
    for (row, payload) in coefficients
        .chunks_exact(size)
        .zip(payloads.chunks_exact_mut(k))
    {
        row.iter()
            .zip(source.chunks_exact(k))
            .for_each(|(&c, block)| Kernels::detect().mul_add(payload, block, c));
    }
    (
        Decode {
            n,
            coefficients,
            payloads,
            out: vec![0xEE; size * k],
        },
        source,
    )
}

#[tokio::test]
async fn generations_of_all_sizes_are_decoded_in_one_call() {
    for (kernel, threads) in [
        (KernelChoice::Named(Kernel::Simd), 1),
        (KernelChoice::Default, 3),
        (KernelChoice::Named(Kernel::Table), 2),
    ] {
        let sums = Sums::default();
        let (device, thread) = Device::open(&config(kernel, threads), sums.clone()).unwrap();
        assert!(device.decode(Vec::new()).await.unwrap().is_empty());
        let sizes = [
            (1, 16),
            (2, 4096),
            (31, 1088),
            (128, 272),
            (200, 64),
            (31, 32),
            (1, 1008),
        ];
        let (mut jobs, sources): (Vec<_>, Vec<_>) = sizes
            .iter()
            .zip(10..)
            .map(|(&(n, k), seed)| job(n, k, seed))
            .unzip();
        // One row twice, and a row of zeros.
        jobs[2].coefficients.copy_within(..31, 31);
        jobs[6].coefficients.fill(0);
        let decoded = device.decode(jobs.clone()).await.unwrap();
        for (index, (decoded, source)) in decoded.iter().zip(&sources).enumerate() {
            let is_singular = matches!(index, 2 | 6);
            assert_eq!(
                decoded.solution,
                if is_singular { Err(Singular) } else { Ok(()) },
                "{index}"
            );
            assert!(is_singular || decoded.job.out == *source, "{index}");
            assert_eq!(
                (&decoded.job.coefficients, decoded.backend),
                (&jobs[index].coefficients, "cpu")
            );
        }
        let solved: usize = [0, 1, 3, 4, 5]
            .iter()
            .map(|&index: &usize| sources[index].len())
            .sum();
        assert_eq!(sums.decoded_bytes(), solved as u64);
        thread.close();
        let undecoded = device.decode(jobs.clone()).await.unwrap_err();
        assert_eq!((undecoded.error, undecoded.jobs), (Error::Closed, jobs));
    }
}

/// Uses several threads per generation if there are more threads than generations.
#[tokio::test]
async fn few_generations_are_decoded_by_all_threads() {
    let (whole, source) = job(64, 4112, 3);
    let mut singular = whole.clone();
    singular.coefficients.copy_within(..64, 64);
    for threads in [1, 2, 3, 7] {
        let (device, _thread) =
            Device::open(&config(KernelChoice::Default, threads), Unrecorded).unwrap();
        let decoded = device.decode(vec![whole.clone()]).await.unwrap();
        assert!(
            decoded[0].solution.is_ok() && decoded[0].job.out == source,
            "{threads} threads"
        );
        let decoded = device
            .decode(vec![singular.clone(), whole.clone(), singular.clone()])
            .await
            .unwrap();
        let solutions: Vec<_> = decoded
            .iter()
            .map(|decoded| decoded.solution.is_ok())
            .collect();
        assert!(
            solutions == [false, true, false] && decoded[1].job.out == source,
            "{threads} threads"
        );
    }
}

#[tokio::test]
async fn what_is_no_generation_comes_back() {
    let (device, _thread) = Device::open(&config(KernelChoice::Auto, 1), Unrecorded).unwrap();
    let good = || job(3, 32, 1).0;
    for bad in [
        Decode { n: 0, ..good() },
        Decode { n: 1025, ..good() },
        Decode { n: 2, ..good() },
        Decode {
            coefficients: vec![1; 8],
            ..good()
        },
        Decode {
            payloads: vec![1; 80],
            ..good()
        },
        Decode {
            payloads: vec![1; 3 * 24],
            out: vec![1; 3 * 24],
            ..good()
        },
        Decode {
            payloads: Vec::new(),
            out: Vec::new(),
            ..good()
        },
    ] {
        let undecoded = device.decode(vec![good(), bad.clone()]).await.unwrap_err();
        assert!(
            matches!(undecoded.error, Error::Task { task: 1, .. }),
            "{bad:?}"
        );
        assert_eq!(undecoded.jobs[1], bad);
    }
}

#[tokio::test]
async fn a_bad_batch_comes_back_untouched() {
    let (device, _thread) = Device::open(&config(KernelChoice::Auto, 2), Unrecorded).unwrap();
    let shape = Shape::new(640, 64, 10).unwrap();
    assert!(matches!(
        device.load(Bytes::from_static(b"short"), shape).await,
        Err(Error::Length {
            length: 5,
            shape: 640
        })
    ));
    let resident = Arc::new(device.load(vec![1; 640].into(), shape).await.unwrap());
    let good = |out_offset| Task {
        resident: Arc::clone(&resident),
        generation: 0,
        rows: Rows::Seeded {
            key: KEY,
            first_seed: 0,
            count: 2,
        },
        out: slots(2, 64),
        out_offset,
    };
    for bad in [
        Task {
            generation: 1,
            ..good(0)
        },
        Task {
            rows: Rows::Seeded {
                key: KEY,
                first_seed: 0,
                count: 3,
            },
            ..good(0)
        },
        Task {
            rows: Rows::Explicit {
                n: 9,
                coefficients: vec![0; 18].into(),
            },
            ..good(0)
        },
        Task {
            rows: Rows::Source {
                indices: vec![0, 10],
            },
            ..good(0)
        },
        good(HEADROOM + 4),
        good(usize::MAX),
    ] {
        let failed = device
            .combine(Batch {
                tasks: vec![good(0), bad],
            })
            .await
            .unwrap_err();
        assert!(
            matches!(failed.error, Error::Task { task: 1, .. }),
            "{}",
            failed.error
        );
        assert_eq!(failed.batch.blocks(), 4);
        assert!(
            failed
                .batch
                .tasks
                .iter()
                .flat_map(|task| &task.out)
                .flatten()
                .all(|&byte| byte == 0xEE)
        );
    }
    device
        .combine(Batch {
            tasks: vec![good(HEADROOM)],
        })
        .await
        .unwrap();
}

#[test]
fn what_is_asked_for_by_name_is_had_or_refused() {
    for isa in ["scalar", "ssse3", "avx2", "avx512", "gfni"] {
        let config: Config =
            toml::from_str(&format!("backend = \"cpu\"\ncpu_isa = \"{isa}\"")).unwrap();
        let opened = Device::open(&config, Unrecorded).map(|(device, _thread)| device.kernel());
        match Kernels::new(isa.parse().unwrap()) {
            Some(_) => assert_eq!(
                opened,
                Ok(format!("simd-{isa}")).as_deref().map_err(Error::clone)
            ),
            None => assert_eq!(opened, Err(Error::Isa(isa.parse().unwrap()))),
        }
    }
    let config = Config {
        backend: BackendChoice::Cuda,
        ..Config::default()
    };
    match Device::open(&config, Unrecorded) {
        Ok((device, _thread)) => assert_eq!((device.backend(), device.kernel()), ("cuda", "table")),
        Err(Error::NotBuilt) if cfg!(not(feature = "cuda")) => {}
        Err(error) => assert!(matches!(error, Error::NoGpu { .. }), "{error}"),
    }
    let config = Config {
        kernel: KernelChoice::Named(Kernel::Tensor),
        ..self::config(KernelChoice::Default, 1)
    };
    let auto = Config {
        backend: BackendChoice::Auto,
        ..config.clone()
    };
    assert!(
        Device::open(&auto, Unrecorded).is_ok(),
        "without a GPU, the CPU's own kernel"
    );
    assert!(matches!(
        Device::open(&config, Unrecorded),
        Err(Error::Unavailable(reason)) if reason.contains("tensor")
    ));
}

#[test]
fn the_section_reads_and_prints() {
    let text = "backend = \"cpu\"\ngpus = [0, 2]\nkernel = \"table\"\ncpu_isa = \"ssse3\"\n\
                cpu_threads = 3\nqueue_batches = 2\nhang_timeout = \"2s\"\n";
    let config: Config = toml::from_str(text).unwrap();
    assert_eq!(config.cpu_isa.isa(), Some(Isa::Ssse3));
    assert_eq!(config.cpu_threads.count(), 3);
    assert_eq!(toml::to_string(&config).unwrap(), text);
    assert_eq!(toml::from_str::<Config>("").unwrap(), Config::default());
    assert_eq!(
        toml::from_str::<Config>("cpu_threads = \"auto\"")
            .unwrap()
            .cpu_threads,
        Threads::Auto
    );
    assert_eq!(
        toml::from_str::<Config>("gpus = \"all\"").unwrap().gpus,
        Gpus::All
    );
    assert_eq!(
        toml::from_str::<Config>("gpus = \"1, 0\"").unwrap().gpus,
        Gpus::List(vec![1, 0])
    );
    for bad in [
        "gpus = []",
        "gpus = [1, 1]",
        "gpus = \"some\"",
        "gpus = [-1]",
        "kernel = \"tabel\"",
        "backend = \"gpu\"",
    ] {
        assert!(toml::from_str::<Config>(bad).is_err(), "{bad}");
    }
    for bad in [
        "cpu_threads = 0",
        "cpu_threads = -1",
        "cpu_threads = 1025",
        "queue_batches = 0",
        "cpu_isa = \"mmx\"",
        "x = 1",
    ] {
        assert!(toml::from_str::<Config>(bad).is_err(), "{bad}");
    }
}
