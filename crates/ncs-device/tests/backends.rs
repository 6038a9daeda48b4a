//! The same list of cases for every back end and instruction set of this machine, by name, compared
//! with the scalar definition.
//!
//! For runs under a tool that slows kernels down, `NCTEST_KERNELS` lists the GPU's kernels to test,
//! separated by commas (`default`, `auto` and `hybrid` are names, too); besides them only the
//! scalar definition runs. `NCTEST_BYTES_MAX` leaves out larger generations. For runs on a
//! processor that is made to look older, `NCTEST_ISAS` lists the instruction sets that it still
//! has.

use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::{Arc, LazyLock};

use bytes::{Bytes, BytesMut};
use ncs_codec::gfq::Cores;
use ncs_codec::shape::Shape;
use ncs_device::{
    BackendChoice, Batch, Config, Decode, Device, IsaChoice, Kernel, KernelChoice, Task, Threads,
    Unrecorded,
};
use ncs_gf::{Isa, Kernels, Panel, RowKey, Rows, gf256};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// The instruction sets to test. Prints the missing ones, so that a log shows what it does not
/// cover.
fn kernels() -> Vec<Kernels> {
    let (present, absent): (Vec<Isa>, Vec<Isa>) = Isa::ALL
        .into_iter()
        .partition(|&isa| Kernels::new(isa).is_some());
    println!("tested: {present:?}, not on this processor: {absent:?}");
    assert!(present.contains(&Isa::Scalar));
    assert_eq!(
        Kernels::available()
            .map(|kernels| kernels.isa())
            .collect::<Vec<_>>(),
        present
    );
    assert_eq!(Some(&Kernels::detect().isa()), present.last());
    Kernels::available().collect()
}

/// The instruction sets that must be present: those in `NCTEST_ISAS`, or under `NCTEST_REQUIRE_ALL`
/// those that the kernel reports of the processor. `None` if neither is set.
fn required() -> Option<Vec<Isa>> {
    if let Ok(names) = std::env::var("NCTEST_ISAS") {
        return Some(
            names
                .split(',')
                .map(|name| name.parse().expect("NCTEST_ISAS names instruction sets"))
                .collect(),
        );
    }
    std::env::var_os("NCTEST_REQUIRE_ALL")?;
    let text =
        std::fs::read_to_string("/proc/cpuinfo").expect("the kernel describes the processor");
    let flags: Vec<&str> = text
        .lines()
        .find(|line| line.starts_with("flags"))
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let has = |isa: &Isa| {
        let needed: &[&str] = match isa {
            Isa::Scalar => &[],
            Isa::Ssse3 => &["ssse3"],
            Isa::Avx2 => &["avx2"],
            Isa::Avx512 => &["avx512f", "avx512bw"],
            Isa::Gfni => &["avx512f", "avx512bw", "gfni"],
        };
        needed.iter().all(|flag| flags.contains(flag))
    };
    Some(Isa::ALL.into_iter().filter(has).collect())
}

/// No instruction set is left out silently, and none is used that the processor lacks.
#[test]
fn instruction_sets_are_those_of_the_processor() {
    let present: Vec<Isa> = kernels().iter().map(Kernels::isa).collect();
    match required() {
        Some(required) => assert_eq!(present, required),
        None => println!(
            "not compared with the processor: neither NCTEST_ISAS nor NCTEST_REQUIRE_ALL is set"
        ),
    }
}

/// The same for the multiplication of large numbers. FMA is as old as AVX2, or older, so a
/// processor with AVX2 has both.
#[test]
fn large_numbers_are_multiplied_by_what_the_processor_has() {
    let present: Vec<&str> = Cores::available().iter().map(Cores::instructions).collect();
    println!("tested: {present:?}");
    assert_eq!(present.last(), Some(&"plain Rust"));
    assert_eq!(Cores::all().instructions(), present[0]);
    if let Some(required) = required().filter(|_| cfg!(target_arch = "x86_64")) {
        assert_eq!(
            present.contains(&"AVX2 and FMA"),
            required.contains(&Isa::Avx2)
        );
        assert_eq!(
            present.contains(&"AVX-512 F"),
            required.contains(&Isa::Avx512)
        );
        assert!(required.contains(&Isa::Avx512) || !present.contains(&"AVX-512 IFMA"));
    }
}

fn random(length: usize, rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Zeros and ones are more frequent than by chance.
fn random_row(n: usize, rng: &mut SmallRng) -> Vec<u8> {
    (0..n)
        .map(|_| {
            if rng.random_bool(0.2) {
                rng.random_range(0..2)
            } else {
                rng.random()
            }
        })
        .collect()
}

/// [`gf256::mul`] for every pair, because large generations would take too long with it.
static PRODUCTS: LazyLock<Vec<[u8; 256]>> = LazyLock::new(|| {
    let products =
        |c| std::array::from_fn(|byte| gf256::mul(c, u8::try_from(byte).expect("256 of them")));
    (0..=255).map(products).collect()
});

fn expected(row: &[u8], sources: &[&[u8]], block_bytes: usize) -> Vec<u8> {
    let mut sum = vec![0; block_bytes];
    for (&c, source) in row.iter().zip(sources) {
        let products = &PRODUCTS[usize::from(c)];
        sum.iter_mut()
            .zip(*source)
            .for_each(|(sum, &byte)| *sum ^= products[usize::from(byte)]);
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
            let (dst, src) = (
                random(offset + length, &mut rng),
                random(offset + length, &mut rng),
            );
            let check = |name, out: &[u8], f: &dyn Fn(u8, u8) -> u8| {
                let bytes = dst[offset..]
                    .iter()
                    .zip(&src[offset..])
                    .map(|(&d, &s)| f(d, s))
                    .collect::<Vec<_>>();
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
            assert!(
                products
                    .iter()
                    .zip(&all)
                    .all(|(&product, &byte)| product == gf256::mul(c, byte)),
                "{} {c}",
                kernels.isa()
            );
        }
    }
}

/// All numbers of rows and widths that the kernels treat differently.
#[test]
fn combinations() {
    let mut rng = SmallRng::seed_from_u64(2);
    let lengths = [
        1, 15, 16, 17, 63, 64, 65, 80, 127, 128, 191, 192, 200, 256, 257, 320, 448, 1088, 1104,
    ];
    for kernels in kernels() {
        for (case, &k) in lengths.iter().cycle().take(3 * lengths.len()).enumerate() {
            let (n, p) = (1 + case * 5 % 37, case % 10);
            let bytes = random(n * k, &mut rng);
            let rows: Vec<Vec<u8>> = (0..p).map(|_| random_row(n, &mut rng)).collect();
            Combination::new(&rows, &bytes, k, 3)
                .check(kernels, &format!("{} n={n} k={k} p={p}", kernels.isa()));
        }
    }
}

/// Sizes at which an operation might fail: around those of a vector, a cache line and a page, the
/// smallest and the largest.
const NS: [usize; 8] = [1, 2, 31, 37, 128, 129, 512, 1024];
const KS: [usize; 8] = [1, 15, 16, 64, 1152, 4096, 4097, 16_384];

/// Every n with every k, over random bytes, zeros and ones, by random rows, zeros and ones, aligned
/// and not. Large generations have fewer rows, because the definition is slow.
#[test]
fn all_sizes_are_combined() {
    let mut rng = SmallRng::seed_from_u64(5);
    let all = kernels();
    for (n, k) in NS.into_iter().flat_map(|n| KS.map(|k| (n, k))) {
        let special = [vec![1; n], vec![0; n]];
        let count = if n * k > 1 << 20 { 1 } else { 2 + (n + k) % 4 };
        let rows: Vec<Vec<u8>> = (0..count)
            .map(|_| random_row(n, &mut rng))
            .chain(special)
            .collect();
        for (fill, shift) in [(Fill::Random, 1), (Fill::Zeros, 7), (Fill::Ones, 0)] {
            let bytes = fill.bytes(shift + n * k, &mut rng);
            let combination = Combination::new(&rows, &bytes[shift..], k, shift);
            for &kernels in &all {
                combination.check(kernels, &format!("{} n={n} k={k} {fill:?}", kernels.isa()));
            }
        }
    }
}

/// Rows times blocks of k bytes, with the result of the definition.
struct Combination<'a> {
    rows: Vec<&'a [u8]>,
    bytes: &'a [u8],
    sources: Vec<&'a [u8]>,
    k: usize,
    sums: Vec<Vec<u8>>,
    /// Bytes between the start of the allocation and the output.
    shift: usize,
}

impl<'a> Combination<'a> {
    fn new(rows: &'a [Vec<u8>], bytes: &'a [u8], k: usize, shift: usize) -> Self {
        let sources: Vec<&[u8]> = bytes.chunks(k).collect();
        let sums = rows.iter().map(|row| expected(row, &sources, k)).collect();
        Self {
            rows: rows.iter().map(Vec::as_slice).collect(),
            bytes,
            sources,
            k,
            sums,
            shift,
        }
    }

    /// With packed sources, scattered ones, and in place.
    fn check(&self, kernels: Kernels, name: &str) {
        let panel = Panel::of(self.bytes, self.sources.len(), self.k);
        self.check_outs(&format!("{name} packed"), |outs| {
            kernels.combine(&self.rows, &panel, outs)
        });
        self.check_outs(&format!("{name} scattered"), |outs| {
            kernels.combine_scattered(&self.rows, &self.sources, outs)
        });
        self.check_within(kernels, name);
    }

    fn check_outs(&self, name: &str, combine: impl FnOnce(&mut [&mut [u8]])) {
        let block = self.shift..self.shift + self.k;
        let mut buffers = vec![vec![0xEE; block.end + 2]; self.rows.len()];
        let mut outs: Vec<&mut [u8]> = buffers
            .iter_mut()
            .map(|buffer| &mut buffer[block.clone()])
            .collect();
        combine(&mut outs);
        for (buffer, sum) in buffers.iter().zip(&self.sums) {
            assert!(buffer[block.clone()] == sum[..], "{name}");
            assert!(
                buffer[..block.start]
                    .iter()
                    .chain(&buffer[block.end..])
                    .all(|&byte| byte == 0xEE),
                "{name}: outside"
            );
        }
    }

    /// Sources are the blocks in reverse order, with their coefficients; targets are the first
    /// blocks.
    fn check_within(&self, kernels: Kernels, name: &str) {
        let (n, k) = (self.sources.len(), self.k);
        let reversed: Vec<Vec<u8>> = self
            .rows
            .iter()
            .take(n)
            .map(|row| row.iter().rev().copied().collect())
            .collect();
        let rows: Vec<&[u8]> = reversed.iter().map(Vec::as_slice).collect();
        let order: Vec<u16> = (0..)
            .take(n)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect();
        let targets: Vec<u16> = (0..).take(rows.len()).collect();
        let mut buffer = vec![0xEE; self.shift];
        buffer.extend_from_slice(self.bytes);
        kernels.combine_within(&rows, &mut buffer[self.shift..], k, &order, &targets);
        let kept = self.sources.iter().skip(rows.len()).copied();
        let sums = self.sums.iter().take(rows.len()).map(Vec::as_slice);
        for (index, (block, expected)) in buffer[self.shift..]
            .chunks(k)
            .zip(sums.chain(kept))
            .enumerate()
        {
            assert!(block == expected, "{name} within: block {index}");
        }
    }
}

/// Every n with every k while the definition is quick enough; one k for generations of more than
/// 129 blocks.
#[test]
fn all_sizes_are_solved() {
    let mut rng = SmallRng::seed_from_u64(6);
    let all = kernels();
    let is_quick = |&(n, k): &(usize, usize)| k < 16_384 && (n <= 129 || k == 15);
    for (n, k) in NS
        .into_iter()
        .flat_map(|n| KS.map(|k| (n, k)))
        .filter(is_quick)
    {
        let key = RowKey {
            key: 11,
            generation: n as u64,
        };
        let mut coefficients = vec![0; 1 + n * n];
        (0..)
            .zip(coefficients[1..].chunks_exact_mut(n))
            .for_each(|(seed, row)| key.fill(seed, row));
        let source = random(n * k, &mut rng);
        let sources: Vec<&[u8]> = source.chunks(k).collect();
        let mut payloads = vec![0; 3];
        coefficients[1..]
            .chunks(n)
            .for_each(|row| payloads.extend(expected(row, &sources, k)));
        let mut singular = coefficients.clone();
        if n == 1 {
            singular[1] = 0
        } else {
            singular.copy_within(1..=n, 1 + n)
        }
        let threads = NonZeroUsize::MIN.saturating_add(n % 3);
        for kernels in &all {
            let mut out = vec![0xEE; 5 + n * k];
            assert!(
                !kernels.solve(n, &singular[1..], &payloads[3..], &mut out[5..], threads),
                "{} n={n} k={k}",
                kernels.isa()
            );
            assert!(
                out.iter().all(|&byte| byte == 0xEE),
                "{} n={n} k={k}: written though singular",
                kernels.isa()
            );
            assert!(
                kernels.solve(
                    n,
                    &coefficients[1..],
                    &payloads[3..],
                    &mut out[5..],
                    threads
                ),
                "{} n={n} k={k}",
                kernels.isa()
            );
            assert!(
                out[5..] == source[..] && out[..5] == [0xEE; 5],
                "{} n={n} k={k}",
                kernels.isa()
            );
        }
    }
}

/// Every back end and kernel by name. Without a GPU its kernels are skipped.
fn back_ends() -> Vec<Config> {
    let isas = [
        IsaChoice::Scalar,
        IsaChoice::Ssse3,
        IsaChoice::Avx2,
        IsaChoice::Avx512,
        IsaChoice::Gfni,
    ];
    let simd = isas
        .into_iter()
        .map(|cpu_isa| (KernelChoice::Named(Kernel::Simd), cpu_isa));
    let all = simd.chain([
        (KernelChoice::Named(Kernel::Table), IsaChoice::Auto),
        (KernelChoice::Default, IsaChoice::Auto),
    ]);
    let threads = |count| Threads::Count(NonZeroU16::new(count).unwrap());
    let all =
        all.flat_map(|(kernel, cpu_isa)| [1, 2, 5].map(|count| (kernel, cpu_isa, threads(count))));
    let config = |(kernel, cpu_isa, cpu_threads)| Config {
        backend: BackendChoice::Cpu,
        kernel,
        cpu_isa,
        cpu_threads,
        ..Config::default()
    };
    let gpu = |backend, kernel| Config {
        backend,
        kernel,
        ..Config::default()
    };
    let kernels = Kernel::ALL.iter().filter(|kernel| **kernel != Kernel::Simd);
    let named = kernels.map(|&kernel| gpu(BackendChoice::Cuda, KernelChoice::Named(kernel)));
    let others =
        [KernelChoice::Default, KernelChoice::Auto].map(|choice| gpu(BackendChoice::Cuda, choice));
    let hybrid = gpu(BackendChoice::Hybrid, KernelChoice::Default);
    let all = all.map(config).chain(named).chain(others).chain([hybrid]);
    let Ok(wanted) = std::env::var("NCTEST_KERNELS") else {
        return all.collect();
    };
    let is_wanted = |(index, config): &(usize, Config)| match config.backend {
        BackendChoice::Cpu => *index == 0,
        BackendChoice::Hybrid => wanted.split(',').any(|name| name == "hybrid"),
        _ => wanted
            .split(',')
            .any(|name| name == config.kernel.to_string()),
    };
    let chosen: Vec<Config> = all
        .enumerate()
        .filter(is_wanted)
        .map(|(_, config)| config)
        .collect();
    assert!(
        chosen.len() > wanted.split(',').count(),
        "NCTEST_KERNELS names what is not there: {wanted}"
    );
    chosen
}

/// Bytes of the largest generation to test.
fn bytes_max() -> usize {
    std::env::var("NCTEST_BYTES_MAX").map_or(usize::MAX, |bytes| {
        bytes.parse().expect("NCTEST_BYTES_MAX is a number")
    })
}

/// Whether a back end that failed to open may be missing: the CPU's only without its instruction
/// set, the GPU's unless `NCTEST_REQUIRE_GPU` is set.
fn may_be_missing(config: &Config) -> bool {
    match config.backend {
        BackendChoice::Cpu => config
            .cpu_isa
            .isa()
            .is_some_and(|isa| Kernels::new(isa).is_none()),
        _ => std::env::var_os("NCTEST_REQUIRE_GPU").is_none(),
    }
}

/// A segment of the list of cases, and the layout of its slots in memory.
struct Case {
    n: u16,
    block_bytes: u32,
    generations: u32,
    /// Bytes that the last block is short of.
    missing: u64,
    fill: Fill,
    rows: u16,
    slots: Slots,
}

#[derive(Debug, Clone, Copy)]
enum Fill {
    Zeros,
    Ones,
    Random,
}

impl Fill {
    fn bytes(self, length: usize, rng: &mut SmallRng) -> Vec<u8> {
        match self {
            Self::Zeros => vec![0; length],
            Self::Ones => vec![1; length],
            Self::Random => random(length, rng),
        }
    }
}

/// The layout of a task's slots.
#[derive(Clone, Copy)]
enum Slots {
    /// Each in its own allocation.
    Alone,
    /// Adjacent, in memory that the device may have pinned.
    Together,
    /// The same in reverse order.
    Reversed,
}

/// Every n with every k, within what is fast enough for the scalar definition, including sizes
/// around those at which kernels differ.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let fills = [Fill::Random, Fill::Zeros, Fill::Ones, Fill::Random];
    let slots = [Slots::Together, Slots::Alone, Slots::Reversed];
    let rows = [1, 2, 3, 8, 15, 16, 17, 33, 70, 129];
    for n in [1, 2, 31, 37, 128, 129, 512, 1024] {
        for block_bytes in [16, 32, 64, 80, 1008, 1088, 1104, 1152, 4096, 4112, 16_384] {
            let index = cases.len();
            let too_long = u32::from(n) * block_bytes > 1 << 20;
            cases.push(Case {
                n,
                block_bytes,
                generations: if too_long {
                    1
                } else {
                    1 + u32::try_from(index % 3).unwrap()
                },
                missing: [0, 5, u64::from(block_bytes) - 1][index % 3],
                fill: fills[index % fills.len()],
                rows: if too_long {
                    9
                } else {
                    rows[index % rows.len()]
                },
                slots: slots[index % slots.len()],
            });
        }
    }
    cases.retain(|case| usize::from(case.n) * case.block_bytes as usize <= bytes_max());
    cases
}

const OUT_OFFSET: usize = 64;

/// The output of a device for all cases in one batch, then for the first of them alone. Segments
/// follow each other, so that generations of every n, k and number of rows meet in a launch.
async fn combine_everything(device: &Device) -> Vec<Vec<u8>> {
    let mut rng = SmallRng::seed_from_u64(3);
    let (mut batches, mut pins, mut small) = (vec![Batch::default()], Vec::new(), Vec::new());
    for case in cases() {
        let length = u64::from(case.n) * u64::from(case.block_bytes) * u64::from(case.generations)
            - case.missing;
        let shape = Shape::local(length, case.block_bytes, case.n).unwrap();
        let length = usize::try_from(length).unwrap();
        let bytes = case.fill.bytes(length, &mut rng);
        let resident = Arc::new(device.load(bytes.into(), shape).await.unwrap());
        for generation in shape.iter() {
            let key = RowKey {
                key: 99,
                generation: u64::from(generation.index),
            };
            let (n, count) = (generation.n, usize::from(case.rows));
            for kind in 0..3 {
                let rows = match kind {
                    0 => Rows::Source {
                        indices: (0..case.rows).map(|i| (i * 7 + n - 1) % n).collect(),
                    },
                    1 => Rows::Explicit {
                        n,
                        coefficients: (0..count)
                            .flat_map(|_| random_row(n.into(), &mut rng))
                            .collect(),
                    },
                    _ => Rows::Seeded {
                        key,
                        first_seed: u32::MAX - 5,
                        count: case.rows.into(),
                    },
                };
                let out = slots(
                    device,
                    case.slots,
                    count,
                    case.block_bytes as usize,
                    &mut pins,
                );
                let resident = Arc::clone(&resident);
                let task = Task {
                    resident,
                    generation: generation.index,
                    rows,
                    out,
                    out_offset: OUT_OFFSET,
                };
                // A launch of its own, for which other kernels are chosen than for a large one.
                if kind == 2 || case.rows % 2 == 1 {
                    let out = slots(
                        device,
                        case.slots,
                        count,
                        case.block_bytes as usize,
                        &mut pins,
                    );
                    small.push(Task {
                        resident: Arc::clone(&task.resident),
                        rows: task.rows.clone(),
                        out,
                        ..task
                    });
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
    let done =
        futures_util::future::join_all(batches.into_iter().map(|batch| device.combine(batch)))
            .await;
    let done = done
        .into_iter()
        .map(|done| done.map_err(|failed| failed.error).unwrap());
    let tasks: Vec<Task> = done.flat_map(|done| done.batch.tasks).collect();
    let blocks = tasks.iter().flat_map(|task| {
        let k = task.resident.shape().block_bytes() as usize;
        task.out.iter().map(move |slot| {
            let (before, block) = slot.split_at(OUT_OFFSET);
            assert!(
                before.iter().chain(&block[k..]).all(|&byte| byte == 0xEE),
                "written outside of a block"
            );
            block[..k].to_vec()
        })
    });
    let blocks = blocks.collect();
    // Before the memory is freed.
    drop(pins);
    drop(tasks);
    blocks
}

/// Slots filled with 0xEE. Adjacent ones are cut from one piece that the device may pin.
fn slots(
    device: &Device,
    way: Slots,
    count: usize,
    k: usize,
    pins: &mut Vec<Box<dyn std::any::Any + Send + Sync>>,
) -> Vec<BytesMut> {
    let size = OUT_OFFSET + k;
    if matches!(way, Slots::Alone) {
        return (0..count)
            .map(|_| BytesMut::from(vec![0xEE; size].as_slice()))
            .collect();
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

/// Every back end writes the same bytes as the scalar definition, which is the first.
#[tokio::test]
async fn back_ends_agree() {
    let mut oracle: Option<Vec<Vec<u8>>> = None;
    for config in back_ends() {
        let name = format!(
            "{:?} {} {:?} {}",
            config.backend, config.kernel, config.cpu_isa, config.cpu_threads
        );
        match Device::open(&config, Unrecorded) {
            Err(error) => {
                println!("not tested: {name}: {error}");
                assert!(may_be_missing(&config), "{name}: {error}");
            }
            Ok((device, _thread)) => {
                let blocks = combine_everything(&device).await;
                println!("tested: {name} ({})", device.kernel());
                let oracle = oracle.get_or_insert_with(|| blocks.clone());
                let different = oracle
                    .iter()
                    .zip(&blocks)
                    .filter(|(one, other)| one != other)
                    .count();
                assert!(
                    oracle.len() == blocks.len() && different == 0,
                    "{name}: {different} of {} differ",
                    blocks.len()
                );
            }
        }
    }
}

/// Generations of every n with the rows that a receiver has: some source blocks, otherwise coded
/// ones. Every seventh has no solution.
fn systems() -> Vec<(Decode, Option<Vec<u8>>)> {
    let mut rng = SmallRng::seed_from_u64(4);
    let sizes = [
        1, 2, 3, 15, 16, 17, 31, 32, 33, 37, 64, 100, 128, 129, 200, 256, 384, 416, 417, 512, 1024,
    ];
    let blocks = [16, 80, 1008, 1088, 4096, 16_384];
    let mut systems = Vec::new();
    for (index, (&n, &k)) in sizes
        .iter()
        .chain(&sizes[..13])
        .chain(&[128; 40])
        .zip(blocks.iter().cycle())
        .enumerate()
    {
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
        // Some of the others are singular by chance.
        let is_singular =
            ncs_gf::matrix::invert(Kernels::detect(), n, &coefficients, NonZeroUsize::MIN)
                .is_none();
        let job = Decode {
            n: u16::try_from(n).unwrap(),
            coefficients,
            payloads,
            out: vec![0xEE; n * k],
        };
        systems.push((job, (!is_singular).then_some(source)));
    }
    systems
}

/// Every back end decodes what was encoded.
#[tokio::test]
async fn back_ends_decode_what_was_encoded() {
    let systems = systems();
    assert!(
        systems
            .iter()
            .filter(|(_, source)| source.is_some())
            .count()
            > 55
            || bytes_max() < usize::MAX
    );
    let two = Threads::Count(NonZeroU16::new(2).unwrap());
    let is_tried =
        |config: &Config| config.backend != BackendChoice::Cpu || config.cpu_threads == two;
    for config in back_ends().into_iter().filter(is_tried) {
        let name = format!(
            "{:?} {} {:?} {}",
            config.backend, config.kernel, config.cpu_isa, config.cpu_threads
        );
        let (device, _thread) = match Device::open(&config, Unrecorded) {
            Err(error) => {
                println!("not tested: {name}: {error}");
                assert!(may_be_missing(&config), "{name}: {error}");
                continue;
            }
            Ok(opened) => opened,
        };
        let jobs = || {
            systems
                .iter()
                .map(|(job, _)| job.clone())
                .collect::<Vec<_>>()
        };
        let small = systems
            .iter()
            .filter(|(job, _)| job.n == 128)
            .take(3)
            .map(|(job, _)| job.clone())
            .collect();
        let (all, again, few) = tokio::join!(
            device.decode(jobs()),
            device.decode(jobs()),
            device.decode(small)
        );
        for (decoded, (job, source)) in all
            .unwrap()
            .iter()
            .zip(&systems)
            .chain(again.unwrap().iter().zip(&systems))
        {
            let k = job.out.len() / usize::from(job.n);
            assert_eq!(
                decoded.solution.is_ok(),
                source.is_some(),
                "{name}: n = {}, k = {k}",
                job.n
            );
            assert!(
                source
                    .as_ref()
                    .is_none_or(|source| decoded.job.out == *source),
                "{name}: n = {}, k = {k}",
                job.n
            );
        }
        assert_eq!(few.unwrap().len(), 3);
        println!("tested: {name} ({})", device.kernel());
    }
}

/// A small batch completes while many segments wait to be loaded.
#[tokio::test]
async fn a_batch_does_not_wait_for_all_loads() {
    let config = Config {
        backend: BackendChoice::Cpu,
        kernel: KernelChoice::Named(Kernel::Table),
        ..Config::default()
    };
    let (device, _thread) = Device::open(&config, Unrecorded).unwrap();
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
    device
        .combine(Batch {
            tasks: vec![Task {
                resident,
                generation: 0,
                rows,
                out,
                out_offset: 0,
            }],
        })
        .await
        .unwrap();
    assert!(
        loads.iter().any(|load| !load.is_finished()),
        "all loads went first"
    );
    for load in loads {
        load.await.unwrap().unwrap();
    }
}
