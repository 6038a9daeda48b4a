//! Tests that need a GPU are skipped without one. They fail instead if `NCTEST_REQUIRE_GPU` is set.

use ncs_codec::gfq::{Coded, Cores, Payload, Place, Vector, draw_factors, draw_rows};
use ncs_codec::hash::Hashes;
use ncs_gf::{gfq, montgomery};
use num_bigint::BigUint;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::super::image::Image;
use super::super::launch::{self, Grid};
use super::super::tests::is_here;
use super::layout::{group_of, halves};
use super::step::{HASH_THREADS, inversion, invert_work_bytes};
use super::*;

fn calculator() -> Option<Calculator> {
    is_here().then(|| Calculator::open(0, &HostMemory::default()).expect("a GPU that works"))
}

fn big(limbs: &[u32]) -> BigUint {
    BigUint::new(limbs.to_vec())
}

/// The number in `count` limbs; it fits.
fn limbs(number: &BigUint, count: usize) -> Vec<u32> {
    let mut limbs = number.to_u32_digits();
    assert!(limbs.len() <= count, "{number} in {count} limbs");
    limbs.resize(count, 0);
    limbs
}

fn q() -> BigUint {
    BigUint::from_bytes_be(&gfq::Q_BYTES)
}

#[test]
fn the_field_is_what_kernels_expect() {
    let (field, r) = (field(), BigUint::from(1_u8) << 288);
    assert_eq!(big(&field.q), q());
    assert_eq!(field.q[0].wrapping_mul(field.negated), u32::MAX, "-1 / q");
    assert_eq!(big(&field.one), &r % q());
    assert_eq!(big(&field.square), (&r * &r) % q());
    assert_eq!(
        big(&[field.ratio_low, field.ratio_high]),
        (BigUint::from(1_u8) << 320) / q()
    );
}

#[test]
fn groups_are_what_kernels_expect() {
    for group in Group::ALL {
        let (made, r) = (
            group_of(group),
            BigUint::from(1_u8) << (8 * group.hash_bytes()),
        );
        let p = big(&made.p);
        assert_eq!(
            p,
            BigUint::from_slice(
                &group
                    .modulus()
                    .iter()
                    .copied()
                    .flat_map(halves)
                    .collect::<Vec<_>>()
            )
        );
        assert_eq!(made.p[0].wrapping_mul(made.negated), u32::MAX, "-1 / p");
        assert_eq!(big(&made.one), &r % &p);
        assert_eq!(big(&made.square), (&r * &r) % &p);
    }
}

#[test]
fn rows_of_words_are_as_payloads_travel() {
    let mut rng = SmallRng::seed_from_u64(1);
    for words in [1, 7, 8, 9, 512] {
        let shape = Shape::new(1, u16::try_from(words).unwrap()).unwrap();
        let elements: Vec<Element> = (0..words).map(|_| Element::random(&mut rng)).collect();
        let rows = rows_of(&elements, words);
        assert_eq!((rows.len(), rows.len() % 16), (row_pitch(words), 0));
        let payload = Payload::parse(shape, rows[..shape.payload_bytes()].to_vec().into()).unwrap();
        assert!(payload.elements().eq(elements.iter().copied()));
        for (index, element) in elements.iter().enumerate() {
            assert_eq!(element_bytes(&rows, words, index), element.to_bytes());
        }
    }
}

/// For all sizes, every window of every word belongs to a thread, and every thread block has a
/// place for its part.
#[test]
fn products_are_shared_without_gaps() {
    for window in [1, 2, 4, 8] {
        for (rows, words) in [
            (1, 1),
            (1, 512),
            (3, 35),
            (128, 512),
            (32_768, 2048),
            (256, 128),
        ] {
            let tables = Tables {
                group: Group::P1024,
                words,
                window,
            };
            let hash = tables.hash(rows, 32 * words, true, 132);
            let whole = 256 / window;
            assert!(
                whole % hash.share == 0 && hash.items >= 1,
                "{window} {rows} {words}"
            );
            let threads = HASH_THREADS * hash.items;
            assert_eq!(
                hash.count,
                (hash.words * (whole / hash.share)).div_ceil(threads)
            );
            assert_eq!((hash.windows, hash.tops), (whole + 1, 1));
        }
    }
    assert_eq!(
        Tables {
            group: Group::P1024,
            words: 512,
            window: 8
        }
        .bytes(),
        512 * 33 * 256 * 128
    );
}

#[test]
fn memory_holds_a_row_at_least() {
    assert_eq!(rows_at_once(100, 1000, 10), 1);
    assert_eq!(rows_at_once(1000, 100, 10), 90);
    assert_eq!(rows_at_once(usize::MAX, 0, 1), ROWS_MAX);
    assert_eq!(
        (invert_work_bytes(1), invert_work_bytes(33)),
        (9 * 32 * 36 + 592, 41 * 64 * 36 + 17 * 592)
    );
}

#[test]
fn panels_are_as_wide_as_shared_memory_allows() {
    for (n, width) in [
        (1, 8),
        (256, 8),
        (343, 8),
        (344, 4),
        (678, 4),
        (679, 2),
        (1024, 2),
    ] {
        let steps = Step::invert(inversion(n, [0; 4], field()), 3, 132);
        assert_eq!(steps.len(), 2 + 2 * n.div_ceil(width as usize));
        for (first, pair) in (0..)
            .step_by(width as usize)
            .zip(steps[1..steps.len() - 1].chunks_exact(2))
        {
            let [
                Step::Invert(panel, grid, task),
                Step::Invert(update, across, _),
            ] = pair
            else {
                panic!("an inversion")
            };
            assert_eq!(
                (*panel, *update),
                (
                    &*format!("nc_gfq_invert_panel_{width}"),
                    &*format!("nc_gfq_invert_update_{width}")
                )
            );
            assert_eq!(
                (grid.blocks, grid.shared_bytes),
                ((3, 1, 1), (36 * width + 4) * super::number(n))
            );
            assert!(
                grid.shared_bytes + 1024 < 99 << 10,
                "what the kernel has of its own, and what a card has"
            );
            assert_eq!(
                (task.first, across.blocks),
                (first, (super::number(n).div_ceil(32) * task.parts, 3, 1))
            );
        }
    }
}

#[test]
fn one_matrix_is_shared_by_the_card_and_many_have_rows_enough() {
    let parts = |n, count| {
        let steps = Step::invert(inversion(n, [0; 4], field()), count, 132);
        let Step::Invert(_, _, task) = &steps[1] else {
            panic!("an inversion")
        };
        task.parts
    };
    assert_eq!(
        [
            parts(256, 1),
            parts(256, 8),
            parts(256, 132),
            parts(5, 1),
            parts(5, 132)
        ],
        [64, 9, 4, 2, 2]
    );
}

/// A random number of this many limbs, or one for which carries are easily wrong.
fn number(rng: &mut SmallRng, limbs: usize, below: &BigUint) -> BigUint {
    let one = BigUint::from(1_u8);
    let mut any = || big(&(0..limbs).map(|_| rng.random()).collect::<Vec<u32>>());
    let number = match any().to_u32_digits().first().copied().unwrap_or(0) % 16 {
        0 => BigUint::ZERO,
        1 => one,
        2 => below - one,
        3 => below >> 1,
        4 => (one << (32 * (limbs - 1))) - 1_u8,
        5 => big(&any()
            .to_u32_digits()
            .iter()
            .map(|limb| if limb & 1 == 0 { 0 } else { u32::MAX })
            .collect::<Vec<_>>()),
        _ => any(),
    };
    number % below
}

/// The operations of `nc_mp_operations`, in its order.
const OPERATIONS: [&str; 9] = [
    "compare",
    "subtract",
    "modular add",
    "modular subtract",
    "multiply",
    "divide",
    "inverse",
    "Montgomery reduce",
    "Montgomery multiply",
];

/// The words that an operation must return.
fn expected(
    operation: &str,
    limb_count: usize,
    (a, b): (&BigUint, &BigUint),
    p: &BigUint,
) -> Vec<u32> {
    let r = BigUint::from(1_u8) << (32 * limb_count);
    let two = BigUint::from(2_u8);
    let both = || a + b * &r;
    let after_r = |number: BigUint| number * r.modpow(&(p - &two), p) % p;
    match operation {
        "compare" => vec![match a.cmp(b) {
            std::cmp::Ordering::Less => u32::MAX,
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Greater => 1,
        }],
        "subtract" => [
            limbs(&((a + &r - b) % &r), limb_count),
            vec![u32::from(a < b)],
        ]
        .concat(),
        "modular add" => limbs(&((a + b) % p), limb_count),
        "modular subtract" => limbs(&((a + p - b) % p), limb_count),
        "multiply" => limbs(&(a * b), 2 * limb_count),
        "divide" => [
            limbs(&(both() / p), limb_count + 1),
            limbs(&(both() % p), limb_count),
        ]
        .concat(),
        "inverse" => {
            let inverse = a.modpow(&(p - &two), p);
            [
                limbs(&inverse, limb_count),
                vec![u32::from(*a != BigUint::ZERO)],
            ]
            .concat()
        }
        "Montgomery reduce" => limbs(&after_r(both()), limb_count),
        _ => limbs(&after_r(a * b), limb_count),
    }
}

/// Moduli: the field's, both groups', and two primes whose upper bits are all set, so that sums
/// carry.
#[test]
fn long_numbers_are_computed_as_by_a_library() {
    if !is_here() {
        return println!("skipped: no GPU");
    }
    let card = Card::open(0, Field::Standard).unwrap();
    let stream = Stream::new(&card.context).unwrap();
    let power = |bits: u32, less: u32| (BigUint::from(1_u8) << bits) - less;
    let primes = [
        (9, "nc_mp_9", q()),
        (32, "nc_mp_32", big(&group_of(Group::P1024).p)),
        (32, "nc_mp_32", power(1024, 105)),
        (64, "nc_mp_64", big(&group_of(Group::P2048).p)),
        (64, "nc_mp_64", power(2048, 1_942_289)),
    ];
    let mut rng = SmallRng::seed_from_u64(9);
    for (limb_count, entry, p) in &primes {
        let (limb_count, r) = (*limb_count, BigUint::from(1_u8) << (32 * limb_count));
        let padded = |number: &BigUint| limbs(number, 64).try_into().expect("64 limbs");
        let negated = {
            let low = u64::from(p.to_u32_digits()[0]);
            halves(montgomery::negative_inverse(low))[0]
        };
        let group = abi::Group {
            p: padded(p),
            one: padded(&(&r % p)),
            square: padded(&(&r * &r % p)),
            negated,
            reserved: 0,
        };
        for (operation, name) in (0_u32..).zip(OPERATIONS) {
            let is_long = ["compare", "subtract", "multiply", "divide"].contains(&name);
            let (limit_a, limit_b) = match name {
                "Montgomery reduce" => (&r, p),
                _ if is_long => (&r, &r),
                _ => (p, p),
            };
            let pairs: Vec<(BigUint, BigUint)> = (0..PAIRS)
                .map(|index| {
                    let (a, b) = (
                        number(&mut rng, limb_count, limit_a),
                        number(&mut rng, limb_count, limit_b),
                    );
                    if index % 16 == 0 {
                        (b.clone(), b)
                    } else {
                        (a, b)
                    }
                })
                .collect();
            let bytes = |of: &dyn Fn(&(BigUint, BigUint)) -> BigUint| {
                let limbs = pairs.iter().flat_map(|pair| limbs(&of(pair), limb_count));
                limbs.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
            };
            let (a, b) = (bytes(&|pair| pair.0.clone()), bytes(&|pair| pair.1.clone()));
            let put = |bytes: &[u8]| {
                let buffer = Buffer::new(&card.context, bytes.len()).unwrap();
                buffer.write(bytes).unwrap();
                buffer
            };
            let (a, b, out) = (
                put(&a),
                put(&b),
                put(&vec![0xA5; PAIRS * (2 * limb_count + 1) * 4]),
            );
            let count = u32::try_from(PAIRS).unwrap();
            let task = abi::MpOperations {
                a: a.address(),
                b: b.address(),
                out: out.address(),
                count,
                operation,
                group,
            };
            let grid = Grid::line(
                count.div_ceil(define("NC_MP_THREADS")),
                define("NC_MP_THREADS"),
                0,
            );
            let mut made = vec![0; out.len()];
            // SAFETY: numbers and results are as large as the task says, and the stream is waited
            // for.
            unsafe {
                launch::words(&card, (Image::Mp, entry), grid, &task, &stream).unwrap();
                stream.synchronize().unwrap();
                download(&mut made, out.address()).unwrap();
            }
            let words: Vec<u32> = made
                .as_chunks()
                .0
                .iter()
                .map(|word| u32::from_le_bytes(*word))
                .collect();
            for ((a, b), words) in pairs.iter().zip(words.chunks_exact(2 * limb_count + 1)) {
                let expected = expected(name, limb_count, (a, b), p);
                assert_eq!(
                    words[..expected.len()],
                    expected,
                    "{name} of {limb_count} limbs: {a:#x}, {b:#x}, modulo {p:#x}"
                );
            }
        }
    }
}

/// A generation and coded blocks of it: encoded at the source, recoded, or alternately both.
struct Case {
    shape: Shape,
    source: Vec<u8>,
    blocks: Vec<Coded>,
}

impl Case {
    fn new(n: u16, words: u16, count: usize, seed: u64) -> Self {
        let shape = Shape::new(n, words).expect("a shape");
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut source = vec![0; shape.source_bytes()];
        rng.fill_bytes(&mut source);
        let (rows, factors) = (
            draw_rows(shape, count, &mut rng),
            draw_factors(count, count, &mut rng),
        );
        let cores = Cores::all();
        let mut payloads = vec![0; count * shape.payload_bytes()];
        cores
            .encode(
                shape,
                &mut [Encode::new(shape, &source, &rows, &mut payloads)],
            )
            .unwrap();
        let coded = blocks_of(shape, &rows, &payloads);
        let recoded = recoded(&cores, shape, &coded.iter().collect::<Vec<_>>(), &factors);
        let mix = coded.into_iter().zip(recoded).enumerate();
        let blocks = mix
            .map(|(index, (coded, recoded))| if index % 2 == 0 { coded } else { recoded })
            .collect();
        Self {
            shape,
            source,
            blocks,
        }
    }

    fn held(&self) -> Vec<&Coded> {
        self.blocks.iter().collect()
    }

    fn hashes(&self, group: Group) -> Hashes {
        let plain: Vec<&[u8]> = self.source.chunks(self.shape.block_bytes()).collect();
        let hashes = Cores::all()
            .hash(group, self.shape.words(), &plain)
            .unwrap();
        Hashes::signed(group, self.shape, &hashes).unwrap()
    }
}

/// Blocks with coefficients of 32 bits.
fn blocks_of(shape: Shape, rows: &[u32], payloads: &[u8]) -> Vec<Coded> {
    let blocks = rows
        .chunks_exact(shape.n())
        .zip(payloads.chunks_exact(shape.payload_bytes()));
    blocks
        .map(|(row, payload)| Coded {
            vector: Vector::Source(row.into()),
            payload: parsed(shape, payload),
        })
        .collect()
}

fn parsed(shape: Shape, payload: &[u8]) -> Payload {
    Payload::parse(shape, payload.to_vec().into()).expect("words below q")
}

fn recoded(
    arithmetic: &dyn Arithmetic,
    shape: Shape,
    held: &[&Coded],
    factors: &[Element],
) -> Vec<Coded> {
    let count = factors.len() / held.len();
    let (mut vectors, mut payloads) = (
        vec![0; count * shape.recoded_vector_bytes()],
        vec![0; count * shape.payload_bytes()],
    );
    let recode = Recode {
        held,
        rows: factors,
        vectors: &mut vectors,
        payloads: &mut payloads,
    };
    arithmetic.recode(shape, &mut [recode]).unwrap();
    vectors
        .chunks_exact(shape.recoded_vector_bytes())
        .zip(payloads.chunks_exact(shape.payload_bytes()))
        .map(|(vector, payload)| Coded {
            vector: Vector::parse_recoded(shape, vector).expect("coefficients below q"),
            payload: parsed(shape, payload),
        })
        .collect()
}

/// Shapes that fill warps, tiles and thread blocks, and shapes that do not.
const SHAPES: [(u16, u16); 8] = [
    (1, 1),
    (2, 7),
    (5, 35),
    (16, 32),
    (33, 40),
    (129, 130),
    (128, 512),
    (64, 513),
];

fn check_encoding(card: &dyn Arithmetic) {
    for (n, words) in SHAPES {
        let shape = Shape::new(n, words).unwrap();
        let mut rng = SmallRng::seed_from_u64(n.into());
        let mut source = vec![0; shape.source_bytes() - 3];
        rng.fill_bytes(&mut source);
        for count in [1, 3, 8, 70] {
            let mut rows = draw_rows(shape, count, &mut rng);
            rows[0] = u32::MAX;
            let mut made = [(); 2].map(|()| vec![0xA5; count * shape.payload_bytes()]);
            let [ours, expected] = &mut made;
            let again = rows.clone();
            let mut second = vec![0; ours.len()];
            let mut tasks = [
                Encode::new(shape, &source, &rows, ours),
                Encode::new(shape, &source[..1], &again, &mut second),
            ];
            card.encode(shape, &mut tasks).unwrap();
            Cores::all()
                .encode(shape, &mut [Encode::new(shape, &source, &rows, expected)])
                .unwrap();
            assert!(made[0] == made[1], "n={n}, m={words}, {count} blocks");
            assert!(second != made[0], "the source that came with it");
        }
    }
}

/// Where blocks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Memory that the card cannot write to.
    Elsewhere,
    /// Pinned and contiguous, as in a ring.
    Even,
    /// The same in reverse order, with gaps.
    Scattered,
    /// Pinned, at unaligned addresses.
    Odd,
}

/// Encodes into memory of this layout and returns the blocks. Checks that nothing is written
/// between them.
fn made_in(
    layout: Layout,
    host: &HostMemory,
    shape: Shape,
    count: usize,
    make: impl FnOnce(Vec<&mut [u8]>),
) -> Vec<Vec<u8>> {
    const PAGE: usize = 4096;
    let bytes = shape.payload_bytes();
    let (start, pitch) = match layout {
        Layout::Odd => (1, bytes + 3),
        _ => (64, bytes.next_multiple_of(64) + 64),
    };
    let mut memory = vec![0xA5; (start + count * pitch).next_multiple_of(PAGE) + PAGE];
    let before = memory.as_ptr().align_offset(PAGE);
    let pages = (start + count * pitch).next_multiple_of(PAGE);
    let memory = &mut memory[before..before + pages];
    let pin =
        (layout != Layout::Elsewhere).then(|| host.pin(memory).expect("memory can be pinned"));
    let mut slots: Vec<&mut [u8]> = memory[start..]
        .chunks_mut(pitch)
        .take(count)
        .map(|slot| &mut slot[..bytes])
        .collect();
    if layout == Layout::Scattered {
        slots.reverse();
    }
    make(slots);
    drop(pin);
    let mut made: Vec<Vec<u8>> = Vec::new();
    for slot in memory[start..].chunks(pitch).take(count) {
        assert!(
            slot[bytes..].iter().all(|&byte| byte == 0xA5),
            "{layout:?}, {shape:?}: between blocks"
        );
        made.push(slot[..bytes].to_vec());
    }
    if layout == Layout::Scattered {
        made.reverse();
    }
    made
}

/// A segment of three generations, the last of which is shorter.
struct Kept3 {
    shape: Shape,
    bytes: Vec<u8>,
    kept: Arc<dyn Kept>,
}

impl Kept3 {
    fn new(card: &Calculator, (n, words): (u16, u16), seed: u64) -> Self {
        let shape = Shape::new(n, words).unwrap();
        let padded = 3 * shape.source_bytes();
        let mut bytes = vec![0; padded - 40.min(shape.source_bytes() - 1)];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
        let kept = card
            .keep(&bytes, padded)
            .unwrap()
            .expect("a card keeps what it is given");
        assert!(kept.bytes() == padded as u64 && kept.is_alive());
        Self { shape, bytes, kept }
    }

    fn source(&self, generation: usize) -> &[u8] {
        let start = generation * self.shape.source_bytes();
        &self.bytes[start..self.bytes.len().min(start + self.shape.source_bytes())]
    }

    /// Encodes blocks of several generations, some of them kept, in one call, and compares all of
    /// them with the CPU's.
    fn check(
        &self,
        card: &dyn Arithmetic,
        host: &HostMemory,
        layout: Layout,
        wanted: &[(usize, usize, bool)],
    ) {
        let (shape, mut rng) = (self.shape, SmallRng::seed_from_u64(12));
        let rows: Vec<Vec<u32>> = wanted
            .iter()
            .map(|(_, count, _)| draw_rows(shape, *count, &mut rng))
            .collect();
        let made = made_in(
            layout,
            host,
            shape,
            wanted.iter().map(|(_, count, _)| count).sum(),
            |slots| {
                let (mut slots, mut tasks) = (slots.into_iter(), Vec::new());
                for (&(generation, count, is_kept), rows) in wanted.iter().zip(&rows) {
                    let kept = is_kept.then(|| Place {
                        kept: &*self.kept,
                        offset: generation * shape.source_bytes(),
                    });
                    tasks.push(Encode {
                        source: self.source(generation),
                        kept,
                        rows,
                        out: slots.by_ref().take(count).collect(),
                    });
                }
                card.encode(shape, &mut tasks).unwrap();
            },
        );
        let mut made = made.iter();
        for ((generation, count, is_kept), rows) in wanted.iter().zip(&rows) {
            let mut expected = vec![0; count * shape.payload_bytes()];
            Cores::all()
                .encode(
                    shape,
                    &mut [Encode::new(
                        shape,
                        self.source(*generation),
                        rows,
                        &mut expected,
                    )],
                )
                .unwrap();
            let blocks = expected.chunks_exact(shape.payload_bytes()).zip(&mut made);
            let is_right = blocks.fold(true, |is_right, (expected, made)| {
                is_right && expected == made
            });
            assert!(
                is_right,
                "{shape:?}, {layout:?}, generation {generation}, {count} blocks, kept: {is_kept}"
            );
        }
    }
}

const LAYOUTS: [Layout; 4] = [
    Layout::Elsewhere,
    Layout::Even,
    Layout::Scattered,
    Layout::Odd,
];
/// Generation, number of blocks, and whether the source is kept. Some neighbours share a launch,
/// and some do not.
const WANTED: &[(usize, usize, bool)] = &[
    (0, 8, true),
    (1, 8, true),
    (2, 8, true),
    (2, 3, true),
    (0, 5, false),
    (1, 70, true),
    (0, 0, true),
    (2, 1, false),
];

fn check_kept(card: &Calculator, host: &HostMemory) {
    for shape in SHAPES {
        let segment = Kept3::new(card, shape, 13);
        for layout in LAYOUTS {
            segment.check(card, host, layout, WANTED);
            segment.check(card, host, layout, &[(2, 1, true)]);
        }
    }
    assert_eq!(card.coder.busy(), 0);
}

fn calculator_and_host() -> Option<(Calculator, HostMemory)> {
    let host = HostMemory::default();
    is_here().then(|| (Calculator::open(0, &host).expect("a GPU that works"), host))
}

#[test]
fn kept_sources_are_coded_as_the_cpu_does_wherever_blocks_go() {
    let Some((card, host)) = calculator_and_host() else {
        return println!("skipped: no GPU");
    };
    check_kept(&card, &host);
    // More than one portion, and more portions than a call has lanes.
    let segment = Kept3::new(&card, (128, 512), 14);
    for layout in [Layout::Even, Layout::Elsewhere] {
        segment.check(&card, &host, layout, &[(1, 2500, true), (2, 30, true)]);
    }
    // Many small tasks, whose generations are at no constant distance.
    let small: Vec<_> = (0..100)
        .map(|index| (index * index % 3, 1 + index % 8, index % 7 != 0))
        .collect();
    segment.check(&card, &host, Layout::Even, &small);
    // Sources that another card keeps, or the same card opened again, are not found here.
    let other = Calculator::open(0, &HostMemory::default()).unwrap();
    segment.check(&other, &HostMemory::default(), Layout::Elsewhere, WANTED);
    assert!(
        other.keep(&[], 0).unwrap().is_some()
            && other.keep(&[1], 1 << 20).unwrap().unwrap().bytes() == 1 << 20
    );
}

#[test]
fn with_little_memory_kept_sources_are_coded_in_portions() {
    let Some((card, host)) = calculator_and_host() else {
        return println!("skipped: no GPU");
    };
    check_kept(&card.with_work_bytes(100_000), &host);
}

/// More callers than lanes, while sources come and go.
#[test]
fn several_threads_have_blocks_made_at_once() {
    let Some((card, host)) = calculator_and_host() else {
        return println!("skipped: no GPU");
    };
    let (card, host) = (&card, &host);
    std::thread::scope(|scope| {
        for (index, shape) in [
            (16, 32),
            (33, 40),
            (128, 512),
            (64, 513),
            (128, 512),
            (5, 35),
        ]
        .into_iter()
        .enumerate()
        {
            scope.spawn(move || {
                let segment = Kept3::new(card, shape, index as u64);
                for round in 0..20 {
                    segment.check(card, host, LAYOUTS[(index + round) % 4], WANTED);
                    // Keeps another source for a moment.
                    drop(Kept3::new(card, (64, 64), 15));
                }
                if index == 2 {
                    segment.check(card, host, Layout::Even, &[(0, 3000, true)]);
                }
            });
        }
        scope.spawn(|| check_recoding(card));
    });
    assert_eq!(card.coder.busy(), 0);
}

/// A kernel that reads an invalid address ends the context of the process, so this runs in a
/// process of its own.
#[test]
fn a_kernel_that_faults_loses_what_is_kept_and_holds_nobody_up() {
    const NAME: &str =
        "cuda::gfq::tests::a_kernel_that_faults_loses_what_is_kept_and_holds_nobody_up";
    const CHILD: &str = "NCTEST_FAULT_HERE";
    let Some((card, _)) = calculator_and_host() else {
        return println!("skipped: no GPU");
    };
    if std::env::var_os(CHILD).is_none() {
        drop(card);
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child
            .args([NAME, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}{}", String::from_utf8_lossy(&output.stderr));
        return assert!(
            output.status.success() && said.contains("1 passed"),
            "{}",
            output.status
        );
    }
    let segment = Kept3::new(&card, (16, 32), 16);
    let nothing = card.coder.nothing();
    let (rows, mut out) = (vec![1; 16], vec![0; segment.shape.payload_bytes()]);
    let task = Encode::new(segment.shape, segment.source(0), &rows, &mut out);
    let kept = Some(Place {
        kept: &nothing,
        offset: 0,
    });
    let Failed(reason) = card
        .encode(segment.shape, &mut [Encode { kept, ..task }])
        .unwrap_err();
    assert!(reason.contains("CUDA_ERROR"), "{reason}");
    assert!(
        !segment.kept.is_alive()
            && card
                .keep(&segment.bytes, segment.bytes.len())
                .unwrap()
                .is_none()
    );
    assert_eq!(card.coder.busy(), 0);
    // Sources in host memory are refused as well. The caller then uses the CPU, which is faster
    // than asking the driver.
    let task = Encode::new(segment.shape, segment.source(0), &rows, &mut out);
    assert!(card.encode(segment.shape, &mut [task]).is_err());
}

fn check_recoding(card: &dyn Arithmetic) {
    for (n, words) in SHAPES {
        for (held, count) in [(1, 1), (3, 4), (40, 9)] {
            let case = Case::new(n, words, held, 2);
            let factors = draw_factors(held, count, &mut SmallRng::seed_from_u64(3));
            let expected = recoded(&Cores::all(), case.shape, &case.held(), &factors);
            assert!(
                recoded(card, case.shape, &case.held(), &factors) == expected,
                "n={n}, m={words}, {count} of {held}"
            );
        }
    }
}

fn check_decoding(card: &dyn Arithmetic) {
    for (n, words) in SHAPES {
        let case = Case::new(n, words, n.into(), 4);
        let mut blocks = [case.held(), case.held(), case.held()];
        // One block twice, and one whose words do not match its coefficients.
        let last = blocks[1].len() - 1;
        blocks[1][last] = blocks[1][0];
        let mut changed = case.blocks[0].payload.as_bytes().to_vec();
        changed[WORD_BYTES - 1] ^= 1;
        let polluted = Coded {
            vector: case.blocks[0].vector.clone(),
            payload: parsed(case.shape, &changed),
        };
        blocks[2][0] = &polluted;
        let mut outs = vec![vec![0xA5; case.shape.source_bytes()]; 3];
        let mut tasks: Vec<_> = blocks
            .iter()
            .zip(&mut outs)
            .map(|(blocks, out)| Decode { blocks, out })
            .collect();
        let rebuilt = card.decode(case.shape, &mut tasks).unwrap();
        let singular = if n == 1 {
            Rebuilt::Whole
        } else {
            Rebuilt::Singular
        };
        assert_eq!(rebuilt[..2], [Rebuilt::Whole, singular], "n={n}, m={words}");
        assert!(outs[0] == case.source, "n={n}, m={words}");
        assert!(
            rebuilt[2] == Rebuilt::Overflow || outs[2] != case.source,
            "a change is seen"
        );
        let mut expected = vec![0; case.shape.source_bytes()];
        let on_cores = Cores::all()
            .decode(
                case.shape,
                &mut [Decode {
                    blocks: &blocks[2],
                    out: &mut expected,
                }],
            )
            .unwrap();
        assert_eq!(on_cores[0], rebuilt[2], "n={n}, m={words}");
    }
}

/// Sparse matrices, whose pivots are in other rows: source blocks in reverse order, a third of them
/// replaced by coded ones, and some by sums of two.
fn check_decoding_of_sparse(card: &dyn Arithmetic) {
    // The last two take panels of four columns, and of two.
    for (n, words) in SHAPES.into_iter().chain([(342, 1), (670, 1)]) {
        let shape = Shape::new(n, words).unwrap();
        let (mut rng, n) = (SmallRng::seed_from_u64(n.into()), shape.n());
        let mut source = vec![0; shape.source_bytes()];
        rng.fill_bytes(&mut source);
        let mut rows = vec![0; n * n];
        for (index, row) in rows.chunks_exact_mut(n).enumerate() {
            let last = n - 1 - index;
            row[last] = 1;
            match index % 3 {
                0 => row[(last + 5) % n] = 1 + u32::from(n == 1),
                1 => row[last..]
                    .iter_mut()
                    .for_each(|coefficient| *coefficient = rng.random_range(1..u32::MAX)),
                _ => {}
            }
        }
        let mut payloads = vec![0; n * shape.payload_bytes()];
        Cores::all()
            .encode(
                shape,
                &mut [Encode::new(shape, &source, &rows, &mut payloads)],
            )
            .unwrap();
        let blocks = blocks_of(shape, &rows, &payloads);
        let held: Vec<&Coded> = blocks.iter().collect();
        let mut outs = [vec![0xA5; source.len()], vec![0xA5; source.len()]];
        let [ours, expected] = &mut outs;
        let on_card = card
            .decode(
                shape,
                &mut [Decode {
                    blocks: &held,
                    out: ours,
                }],
            )
            .unwrap();
        let on_cores = Cores::all()
            .decode(
                shape,
                &mut [Decode {
                    blocks: &held,
                    out: expected,
                }],
            )
            .unwrap();
        assert_eq!(on_card, on_cores, "n={n}");
        assert!(
            on_card[0] == Rebuilt::Singular || outs[0] == source,
            "n={n}"
        );
        assert!(n < 6 || on_card[0] == Rebuilt::Whole, "n={n}");
    }
}

fn check_hashing(card: &dyn Arithmetic, group: Group, words: usize, count: usize) {
    let mut data = vec![0; words * WORD_BYTES * count];
    SmallRng::seed_from_u64(5).fill_bytes(&mut data);
    data[..words.min(4) * WORD_BYTES].fill(0);
    let mut blocks: Vec<&[u8]> = data.chunks(words * WORD_BYTES).collect();
    // One short block, and one empty.
    blocks[0] = &blocks[0][..words * WORD_BYTES - 5];
    blocks.push(&[]);
    let expected = Cores::all().hash(group, words, &blocks).unwrap();
    assert!(
        card.hash(group, words, &blocks).unwrap() == expected,
        "{group:?}, {words} words, {count} blocks"
    );
}

fn check_batches(card: &dyn Arithmetic, group: Group, (n, words, count): (u16, u16, usize)) {
    let mut rng = SmallRng::seed_from_u64(6);
    let cases = [Case::new(n, words, count, 7), Case::new(n, words, count, 8)];
    let hashes = [cases[0].hashes(group), cases[1].hashes(group)];
    let of_other = Coded {
        vector: cases[0].blocks[0].vector.clone(),
        payload: cases[1].blocks[0].payload.clone(),
    };
    let mut blocks = cases[0].held();
    blocks.push(&of_other);
    // Batches of two generations, whose tables differ; of one generation; and none.
    let batches = [
        Batch::new(&hashes[0], cases[0].held(), &mut rng),
        Batch::new(&hashes[1], cases[1].held(), &mut rng),
        Batch::new(&hashes[0], blocks, &mut rng),
        Batch::new(&hashes[1], cases[0].held(), &mut rng),
    ];
    assert_eq!(
        card.holds(&batches).unwrap(),
        [true, true, false, false],
        "{group:?}, n={n}, m={words}"
    );
    assert_eq!(card.holds(&batches[2..3]).unwrap(), [false]);
    assert_eq!(
        card.holds(&[Batch::new(&hashes[0], Vec::new(), &mut rng)])
            .unwrap(),
        [true]
    );
    assert!(card.holds(&[]).unwrap().is_empty());
}

#[test]
fn a_card_codes_as_the_cpu_does() {
    let Some(card) = calculator() else {
        return println!("skipped: no GPU");
    };
    check_encoding(&card);
    check_recoding(&card);
    check_decoding(&card);
    check_decoding_of_sparse(&card);
}

#[test]
fn a_card_hashes_as_the_cpu_does() {
    let Some(card) = calculator() else {
        return println!("skipped: no GPU");
    };
    for (group, words, count) in [
        (Group::P1024, 35, 3),
        (Group::P1024, 1, 1),
        (Group::P2048, 20, 2),
        // More words than the table has so far, and fewer.
        (Group::P1024, 130, 5),
        (Group::P1024, 40, 140),
    ] {
        check_hashing(&card, group, words, count);
    }
    for (group, case) in [
        (Group::P1024, (1, 1, 1)),
        (Group::P1024, (5, 35, 9)),
        (Group::P1024, (40, 70, 33)),
        (Group::P2048, (6, 10, 4)),
    ] {
        check_batches(&card, group, case);
    }
}

/// The same with memory for hardly more than one row, so that all work is done in portions.
#[test]
fn a_card_with_little_memory_does_the_same() {
    let Some(card) = calculator() else {
        return println!("skipped: no GPU");
    };
    let card = card.with_work_bytes(100_000);
    check_encoding(&card);
    check_recoding(&card);
    check_decoding(&card);
    check_hashing(&card, Group::P1024, 40, 140);
    check_batches(&card, Group::P1024, (5, 35, 40));
}

/// Flips every bit of a block: of its words, their top bits, and its coefficients; more than ten
/// thousand.
#[test]
fn no_change_of_a_bit_is_accepted() {
    let Some(card) = calculator() else {
        return println!("skipped: no GPU");
    };
    let case = Case::new(8, 33, 8, 10);
    let (hashes, shape) = (case.hashes(Group::P1024), case.shape);
    let mut rng = SmallRng::seed_from_u64(11);
    let Coded { vector, payload } = &case.blocks[1];
    let flipped = |bytes: &[u8], bit: usize| {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    };
    // Changes that make it an invalid block are refused by the parser.
    let mut changed: Vec<Coded> = (0..8 * shape.payload_bytes())
        .filter_map(|bit| Payload::parse(shape, flipped(payload.as_bytes(), bit).into()).ok())
        .map(|payload| Coded {
            vector: vector.clone(),
            payload,
        })
        .collect();
    let coefficients = vector.to_bytes();
    changed.extend((0..8 * coefficients.len()).filter_map(|bit| {
        let vector = Vector::parse_recoded(shape, &flipped(&coefficients, bit)).ok()?;
        Some(Coded {
            vector,
            payload: payload.clone(),
        })
    }));
    assert!(changed.len() > 10_000, "{} blocks", changed.len());
    let batches: Vec<_> = changed
        .iter()
        .map(|block| Batch::new(&hashes, vec![block], &mut rng))
        .collect();
    assert!(card.holds(&batches).unwrap().iter().all(|holds| !holds));
}

const PAIRS: usize = 200;
