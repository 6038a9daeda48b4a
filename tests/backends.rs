//! One list of cases for every back end and instruction set that this machine has, by name, against the scalar definition.
//!
//! For a run under a tool that slows kernels down, `NCTEST_KERNELS` names those of the GPU that are tested, with commas between them
//! (`default`, `auto` and `hybrid` are names, too) and beside them the scalar definition alone; `NCTEST_BYTES_MAX` leaves out larger
//! generations.

use std::num::NonZeroU16;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ncserverd::device::{BackendChoice, Batch, Config, Decode, Device, IsaChoice, Kernel, KernelChoice, Task, Threads};
use ncserverd::gf::{Isa, Kernels, Panel, RowKey, Rows, gf256};
use ncserverd::object::Shape;
use prometheus::Registry;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// The instruction sets to test. Prints the others, so that a log shows what it does not cover.
fn kernels() -> Vec<Kernels> {
    let (present, absent): (Vec<Isa>, Vec<Isa>) = Isa::ALL.into_iter().partition(|&isa| Kernels::new(isa).is_some());
    println!("tested: {present:?}, not on this processor: {absent:?}");
    assert!(present.contains(&Isa::Scalar));
    assert_eq!(Kernels::available().map(|kernels| kernels.isa()).collect::<Vec<_>>(), present);
    assert_eq!(Some(&Kernels::detect().isa()), present.last());
    Kernels::available().collect()
}

fn random(length: usize, rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Zeros and ones are more frequent than chance has it.
fn random_row(n: usize, rng: &mut SmallRng) -> Vec<u8> {
    (0..n).map(|_| if rng.random_bool(0.2) { rng.random_range(0..2) } else { rng.random() }).collect()
}

fn expected(row: &[u8], sources: &[&[u8]], block_bytes: usize) -> Vec<u8> {
    let mut sum = vec![0; block_bytes];
    for (&c, source) in row.iter().zip(sources) {
        sum.iter_mut().zip(*source).for_each(|(sum, &byte)| *sum ^= gf256::mul(c, byte));
    }
    sum
}

/// Every coefficient, every length around a vector's, every misalignment of a few bytes.
#[test]
fn row_operations() {
    let mut rng = SmallRng::seed_from_u64(1);
    for kernels in kernels() {
        for length in (0..200).chain([255, 256, 257, 1088, 4096, 4099]) {
            let offset = length % 7;
            let (dst, src) = (random(offset + length, &mut rng), random(offset + length, &mut rng));
            let check = |name, out: &[u8], f: &dyn Fn(u8, u8) -> u8| {
                let bytes = dst[offset..].iter().zip(&src[offset..]).map(|(&d, &s)| f(d, s)).collect::<Vec<_>>();
                assert_eq!(out, bytes, "{name} {} {length}", kernels.isa());
            };
            let mut out = dst.clone();
            kernels.add(&mut out[offset..], &src[offset..]);
            check("add", &out[offset..], &|d, s| d ^ s);
            for c in [0, 1, 2, 0x1D, 0x80, 0xFF, rng.random()] {
                let mut out = dst.clone();
                kernels.mul_add(&mut out[offset..], &src[offset..], c);
                check("mul_add", &out[offset..], &|d, s| d ^ gf256::mul(c, s));
                let mut out = dst.clone();
                kernels.scale(&mut out[offset..], c);
                check("scale", &out[offset..], &|d, _| gf256::mul(c, d));
            }
        }
        let all: Vec<u8> = (0..=255).collect();
        for c in 0..=255 {
            let mut products = vec![0; 256];
            kernels.mul_add(&mut products, &all, c);
            assert!(products.iter().zip(&all).all(|(&product, &byte)| product == gf256::mul(c, byte)), "{} {c}", kernels.isa());
        }
    }
}

/// All numbers of rows and widths that the kernels treat differently, from packed and from scattered sources.
#[test]
fn combinations() {
    let mut rng = SmallRng::seed_from_u64(2);
    let lengths = [1, 15, 16, 17, 63, 64, 65, 80, 127, 128, 191, 192, 200, 256, 257, 320, 448, 1088, 1104];
    for kernels in kernels() {
        for (case, &block_bytes) in lengths.iter().cycle().take(3 * lengths.len()).enumerate() {
            let (n, p) = (1 + case * 5 % 37, case % 10);
            let bytes = random(n * block_bytes, &mut rng);
            let sources: Vec<&[u8]> = bytes.chunks(block_bytes).collect();
            let rows: Vec<Vec<u8>> = (0..p).map(|_| random_row(n, &mut rng)).collect();
            let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
            let sums: Vec<Vec<u8>> = rows.iter().map(|row| expected(row, &sources, block_bytes)).collect();
            let panel = Panel::of(&bytes, n, block_bytes);
            let name = format!("{} n={n} k={block_bytes} p={p}", kernels.isa());
            for scattered in [false, true] {
                let mut buffers = vec![vec![0xEE; block_bytes + 5]; p];
                let mut outs: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut buffer[3..3 + block_bytes]).collect();
                match scattered {
                    false => kernels.combine(&rows, &panel, &mut outs),
                    true => kernels.combine_scattered(&rows, &sources, &mut outs),
                }
                for (buffer, sum) in buffers.iter().zip(&sums) {
                    assert_eq!(buffer[3..3 + block_bytes], sum[..], "{name}");
                    assert!(buffer[..3].iter().chain(&buffer[3 + block_bytes..]).all(|&byte| byte == 0xEE), "{name}");
                }
            }
            within(kernels, &bytes, block_bytes, &rows, &name);
        }
    }
}

/// The blocks in reverse order as sources, the first ones as targets.
fn within(kernels: Kernels, bytes: &[u8], block_bytes: usize, rows: &[&[u8]], name: &str) {
    let sources: Vec<&[u8]> = bytes.chunks(block_bytes).rev().collect();
    let rows = &rows[..rows.len().min(sources.len())];
    let order: Vec<u16> = (0..).take(sources.len()).collect::<Vec<_>>().into_iter().rev().collect();
    let targets: Vec<u16> = (0..).take(rows.len()).collect();
    let mut blocks = bytes.to_vec();
    kernels.combine_within(rows, &mut blocks, block_bytes, &order, &targets);
    for (index, block) in blocks.chunks(block_bytes).enumerate() {
        match rows.get(index) {
            Some(row) => assert_eq!(block, expected(row, &sources, block_bytes), "{name}"),
            None => assert_eq!(block, &bytes[index * block_bytes..][..block_bytes], "{name}"),
        }
    }
}

/// Every back end and kernel by name. Those of the GPU are skipped where there is none.
fn back_ends() -> Vec<Config> {
    let isas = [IsaChoice::Scalar, IsaChoice::Ssse3, IsaChoice::Avx2, IsaChoice::Avx512, IsaChoice::Gfni];
    let simd = isas.into_iter().map(|cpu_isa| (KernelChoice::Named(Kernel::Simd), cpu_isa));
    let all = simd.chain([(KernelChoice::Named(Kernel::Table), IsaChoice::Auto), (KernelChoice::Default, IsaChoice::Auto)]);
    let threads = |count| Threads::Count(NonZeroU16::new(count).unwrap());
    let all = all.flat_map(|(kernel, cpu_isa)| [1, 2, 5].map(|count| (kernel, cpu_isa, threads(count))));
    let config = |(kernel, cpu_isa, cpu_threads)| Config {
        backend: BackendChoice::Cpu,
        kernel,
        cpu_isa,
        cpu_threads,
        ..Config::default()
    };
    let gpu = |backend, kernel| Config { backend, kernel, ..Config::default() };
    let kernels = Kernel::ALL.iter().filter(|kernel| **kernel != Kernel::Simd);
    let named = kernels.map(|&kernel| gpu(BackendChoice::Cuda, KernelChoice::Named(kernel)));
    let others = [KernelChoice::Default, KernelChoice::Auto].map(|choice| gpu(BackendChoice::Cuda, choice));
    let hybrid = gpu(BackendChoice::Hybrid, KernelChoice::Default);
    let all = all.map(config).chain(named).chain(others).chain([hybrid]);
    let Ok(wanted) = std::env::var("NCTEST_KERNELS") else { return all.collect() };
    let is_wanted = |(index, config): &(usize, Config)| match config.backend {
        BackendChoice::Cpu => *index == 0,
        BackendChoice::Hybrid => wanted.split(',').any(|name| name == "hybrid"),
        _ => wanted.split(',').any(|name| name == config.kernel.to_string()),
    };
    let chosen: Vec<Config> = all.enumerate().filter(is_wanted).map(|(_, config)| config).collect();
    assert!(chosen.len() > wanted.split(',').count(), "NCTEST_KERNELS names what is not there: {wanted}");
    chosen
}

/// Bytes of the largest generation that is tested.
fn bytes_max() -> usize {
    std::env::var("NCTEST_BYTES_MAX").map_or(usize::MAX, |bytes| bytes.parse().expect("NCTEST_BYTES_MAX is a number"))
}

/// Whether a back end that could not be opened may be missing: a host that is said to have a GPU has every one of its kernels.
fn may_be_missing(config: &Config) -> bool {
    config.backend == BackendChoice::Cpu || std::env::var_os("NCTEST_REQUIRE_GPU").is_none()
}

/// A segment of the list of cases, and how its slots lie in memory.
struct Case {
    n: u16,
    block_bytes: u32,
    generations: u32,
    /// Bytes that the last block lacks.
    missing: u64,
    fill: Fill,
    rows: u16,
    slots: Slots,
}

#[derive(Clone, Copy)]
enum Fill {
    Zeros,
    Ones,
    Random,
}

/// Where a task's slots are.
#[derive(Clone, Copy)]
enum Slots {
    /// Each on its own.
    Alone,
    /// Side by side in memory that the device may have pinned.
    Together,
    /// There, in reverse order.
    Reversed,
}

/// Every n with every k, both within what makes the oracle slow, and what lies around the sizes at which kernels differ.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let fills = [Fill::Random, Fill::Zeros, Fill::Ones, Fill::Random];
    let slots = [Slots::Together, Slots::Alone, Slots::Reversed];
    let rows = [1, 2, 3, 8, 15, 16, 17, 33, 70, 129];
    for n in [1, 2, 31, 37, 128, 129, 512, 1024] {
        for block_bytes in [16, 32, 48, 80, 1008, 1088, 1104, 4096, 4112, 16_384] {
            let index = cases.len();
            let too_long = u32::from(n) * block_bytes > 1 << 20;
            cases.push(Case {
                n,
                block_bytes,
                generations: if too_long { 1 } else { 1 + u32::try_from(index % 3).unwrap() },
                missing: [0, 5, u64::from(block_bytes) - 1][index % 3],
                fill: fills[index % fills.len()],
                rows: if too_long { 9 } else { rows[index % rows.len()] },
                slots: slots[index % slots.len()],
            });
        }
    }
    cases.retain(|case| usize::from(case.n) * case.block_bytes as usize <= bytes_max());
    cases
}

const OUT_OFFSET: usize = 64;

/// What a device writes for all cases in one batch, then for the first of them alone. One segment follows the other, so that
/// generations of every n, k and number of rows meet in a launch.
async fn combine_everything(device: &Device) -> Vec<Vec<u8>> {
    let mut rng = SmallRng::seed_from_u64(3);
    let (mut batches, mut pins, mut small) = (vec![Batch::default()], Vec::new(), Vec::new());
    for case in cases() {
        let length = u64::from(case.n) * u64::from(case.block_bytes) * u64::from(case.generations) - case.missing;
        let shape = Shape::local(length, case.block_bytes, case.n).unwrap();
        let length = usize::try_from(length).unwrap();
        let bytes = match case.fill {
            Fill::Zeros => vec![0; length],
            Fill::Ones => vec![1; length],
            Fill::Random => random(length, &mut rng),
        };
        let resident = Arc::new(device.load(bytes.into(), shape).await.unwrap());
        for generation in shape.iter() {
            let key = RowKey { key: 99, generation: u64::from(generation.index) };
            let (n, count) = (generation.n, usize::from(case.rows));
            for kind in 0..3 {
                let rows = match kind {
                    0 => Rows::Source { indices: (0..case.rows).map(|i| (i * 7 + n - 1) % n).collect() },
                    1 => Rows::Explicit { n, coefficients: (0..count).flat_map(|_| random_row(n.into(), &mut rng)).collect() },
                    _ => Rows::Seeded { key, first_seed: u32::MAX - 5, count: case.rows.into() },
                };
                let out = slots(device, case.slots, count, case.block_bytes as usize, &mut pins);
                let resident = Arc::clone(&resident);
                let task = Task { resident, generation: generation.index, rows, out, out_offset: OUT_OFFSET };
                // A launch of its own, which other kernels do than a large one.
                if kind == 2 || case.rows % 2 == 1 {
                    let out = slots(device, case.slots, count, case.block_bytes as usize, &mut pins);
                    small.push(Task { resident: Arc::clone(&task.resident), rows: task.rows.clone(), out, ..task });
                }
                let last = batches.last_mut().unwrap();
                last.tasks.push(task);
                if last.blocks() > 2000 {
                    batches.push(Batch::default());
                }
            }
        }
    }
    batches.extend(small.into_iter().map(|task| Batch { tasks: vec![task] }));
    let done = futures_util::future::join_all(batches.into_iter().map(|batch| device.combine(batch))).await;
    let done = done.into_iter().map(|done| done.map_err(|failed| failed.error).unwrap());
    let tasks: Vec<Task> = done.flat_map(|done| done.batch.tasks).collect();
    let blocks = tasks.iter().flat_map(|task| {
        let k = task.resident.shape().block_bytes() as usize;
        task.out.iter().map(move |slot| {
            let (before, block) = slot.split_at(OUT_OFFSET);
            assert!(before.iter().chain(&block[k..]).all(|&byte| byte == 0xEE), "written outside of a block");
            block[..k].to_vec()
        })
    });
    let blocks = blocks.collect();
    // Before the memory itself goes.
    drop(pins);
    drop(tasks);
    blocks
}

/// Slots filled with 0xEE. Those that lie together are cut from one piece that the device may pin.
fn slots(
    device: &Device,
    way: Slots,
    count: usize,
    k: usize,
    pins: &mut Vec<Box<dyn std::any::Any + Send + Sync>>,
) -> Vec<BytesMut> {
    let size = OUT_OFFSET + k;
    if matches!(way, Slots::Alone) {
        return (0..count).map(|_| BytesMut::from(vec![0xEE; size].as_slice())).collect();
    }
    let mut slab = BytesMut::from(vec![0xEE; count * size + 4096].as_slice());
    let unaligned = slab.split_to(slab.as_ptr().align_offset(4096));
    pins.extend(device.pin(&mut slab[..count * size]));
    let mut slots: Vec<BytesMut> = (0..count).map(|_| slab.split_to(size)).collect();
    drop(unaligned);
    if matches!(way, Slots::Reversed) {
        slots.reverse();
    }
    slots
}

/// Every back end writes the same bytes, the scalar one first, which is the definition.
#[tokio::test]
async fn back_ends_agree() {
    let mut oracle: Option<Vec<Vec<u8>>> = None;
    for config in back_ends() {
        let name = format!("{:?} {} {:?} {}", config.backend, config.kernel, config.cpu_isa, config.cpu_threads);
        match Device::open(&config, &Registry::new()) {
            Err(error) => {
                println!("not tested: {name}: {error}");
                assert!(may_be_missing(&config), "{name}: {error}");
            }
            Ok((device, _thread)) => {
                let blocks = combine_everything(&device).await;
                println!("tested: {name} ({})", device.kernel());
                let oracle = oracle.get_or_insert_with(|| blocks.clone());
                let different = oracle.iter().zip(&blocks).filter(|(one, other)| one != other).count();
                assert!(oracle.len() == blocks.len() && different == 0, "{name}: {different} of {} differ", blocks.len());
            }
        }
    }
}

/// Generations of every n with the rows of a receiver: some source blocks, coded ones otherwise. Every seventh has no solution.
fn systems() -> Vec<(Decode, Option<Vec<u8>>)> {
    let mut rng = SmallRng::seed_from_u64(4);
    let sizes = [1, 2, 3, 15, 16, 17, 31, 32, 33, 37, 64, 100, 128, 129, 200, 256, 384, 416, 417, 512, 1024];
    let blocks = [16, 80, 1008, 1088, 4096, 16_384];
    let mut systems = Vec::new();
    for (index, (&n, &k)) in sizes.iter().chain(&sizes[..13]).chain(&[128; 40]).zip(blocks.iter().cycle()).enumerate() {
        let k = if n > 256 { k.min(1088) } else { k };
        if n * k > bytes_max() {
            continue;
        }
        let source = random(n * k, &mut rng);
        let mut coefficients = random(n * n, &mut rng);
        for i in (0..n).filter(|_| rng.random_bool(0.3)).collect::<Vec<_>>() {
            coefficients[i * n..][..n].fill(0);
            coefficients[i * n + (i * 7 + 2) % n] = 1;
        }
        let is_singular = index % 7 == 6;
        if is_singular && n == 1 {
            coefficients.fill(0);
        } else if is_singular {
            coefficients.copy_within(..n, n);
        }
        let mut payloads = vec![0; n * k];
        let rows: Vec<&[u8]> = coefficients.chunks_exact(n).collect();
        let mut outs: Vec<&mut [u8]> = payloads.chunks_exact_mut(k).collect();
        Kernels::detect().combine(&rows, &Panel::of(&source, n, k), &mut outs);
        // Chance makes others singular, too.
        let is_singular =
            ncserverd::gf::matrix::invert(Kernels::detect(), n, &coefficients, std::num::NonZeroUsize::MIN).is_none();
        let job = Decode { n: u16::try_from(n).unwrap(), coefficients, payloads, out: vec![0xEE; n * k] };
        systems.push((job, (!is_singular).then_some(source)));
    }
    systems
}

/// Every back end finds what was encoded, with those of a GPU's kernels that are ours: the others differ in the form of rows alone.
#[tokio::test]
async fn back_ends_decode_what_was_encoded() {
    let systems = systems();
    assert!(systems.iter().filter(|(_, source)| source.is_some()).count() > 55 || bytes_max() < usize::MAX);
    let ours = ["table", "tensor", "bitsliced", "prmt", "product", "simd"];
    let is_ours = |config: &Config| match config.kernel {
        KernelChoice::Named(kernel) => ours.contains(&kernel.name()) || kernel.name() == "table5",
        KernelChoice::Default | KernelChoice::Auto => true,
    };
    let two = Threads::Count(NonZeroU16::new(2).unwrap());
    let is_ours = |config: &Config| is_ours(config) && (config.backend != BackendChoice::Cpu || config.cpu_threads == two);
    for config in back_ends().into_iter().filter(is_ours) {
        let name = format!("{:?} {} {:?} {}", config.backend, config.kernel, config.cpu_isa, config.cpu_threads);
        let (device, _thread) = match Device::open(&config, &Registry::new()) {
            Err(error) => {
                println!("not tested: {name}: {error}");
                assert!(may_be_missing(&config), "{name}: {error}");
                continue;
            }
            Ok(opened) => opened,
        };
        let jobs = || systems.iter().map(|(job, _)| job.clone()).collect::<Vec<_>>();
        let small = systems.iter().filter(|(job, _)| job.n == 128).take(3).map(|(job, _)| job.clone()).collect();
        let (all, again, few) = tokio::join!(device.decode(jobs()), device.decode(jobs()), device.decode(small));
        for (decoded, (job, source)) in all.unwrap().iter().zip(&systems).chain(again.unwrap().iter().zip(&systems)) {
            let k = job.out.len() / usize::from(job.n);
            assert_eq!(decoded.solution.is_ok(), source.is_some(), "{name}: n = {}, k = {k}", job.n);
            assert!(source.as_ref().is_none_or(|source| decoded.job.out == *source), "{name}: n = {}, k = {k}", job.n);
        }
        assert_eq!(few.unwrap().len(), 3);
        println!("tested: {name} ({})", device.kernel());
    }
}

/// A small batch is done while many segments wait to be loaded.
#[tokio::test]
async fn a_batch_does_not_wait_for_all_loads() {
    let config = Config { backend: BackendChoice::Cpu, kernel: KernelChoice::Named(Kernel::Table), ..Config::default() };
    let (device, _thread) = Device::open(&config, &Registry::new()).unwrap();
    let shape = Shape::new(2 << 20, 4096, 128).unwrap();
    let bytes = Bytes::from(vec![3; 2 << 20]);
    let resident = Arc::new(device.load(bytes.clone(), shape).await.unwrap());
    let loads: Vec<_> = (0..200)
        .map(|_| {
            tokio::spawn({
                let (device, bytes) = (device.clone(), bytes.clone());
                async move { device.load(bytes, shape).await.map(drop) }
            })
        })
        .collect();
    tokio::task::yield_now().await;
    let rows = Rows::Source { indices: vec![0] };
    let out = vec![BytesMut::zeroed(4096)];
    device.combine(Batch { tasks: vec![Task { resident, generation: 0, rows, out, out_offset: 0 }] }).await.unwrap();
    assert!(loads.iter().any(|load| !load.is_finished()), "all loads went first");
    for load in loads {
        load.await.unwrap().unwrap();
    }
}
