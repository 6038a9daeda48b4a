//! Compares kernels that no back end launches with the CPU. Skipped without a GPU; these tests fail
//! instead if `NCTEST_REQUIRE_GPU` is set.

use std::sync::Arc;

use ncs_codec::gfq::{
    Arithmetic, Coded, Cores as AllCores, Encode as CodeTask, Payload, Recode, Shape, Vector,
    draw_rows,
};
use ncs_codec::hash::Hashes;
use ncs_codec::raptor10;
use ncs_codec::raptorq::{
    Decoder as Block, DecodingPlan, Encoder, EncodingPlan, Inverse, Method, Plan,
};
use ncs_gf::dense::{Cores, System};
use ncs_gf::{Kernels, gf256, matrix};
use ncserverd::bench::oracle;
use ncserverd::device::cuda;
use ncserverd::device::cuda::chunks::NAMES;
use ncserverd::device::cuda::dense::Inversion;
use ncserverd::device::cuda::gfq::layout::{row_pitch, rows_of};
use ncserverd::device::dense::crossover;
use ncserverd::object::HashGroup;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::*;
use crate::lab::{Before, Coefficients, Group, Stage};

fn lab() -> Option<Lab> {
    is_here().then(|| Lab::open(0).expect("a GPU that works"))
}

fn random(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Explicit rows over several generations, of shapes at the edges of what kernels take at a time.
#[test]
fn every_kernel_combines_as_the_field_defines() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for combine in products::COMBINES.iter().chain(kernels::COMBINES) {
        let kernel = combine.kernel;
        if kernel.ends_with("-dummy")
            || (combine.is_hopper_only && lab.standard.capability != HOPPER)
        {
            println!("skipped: {kernel}");
            continue;
        }
        for (n, k, rows, generations) in [
            (1_u16, 64, 1, 1),
            (3, 80, 5, 2),
            (33, 1088, 34, 3),
            (128, 1040, 20, 2),
            (200, 272, 9, 2),
        ] {
            let columns = usize::from(n);
            let (sources, given) = (
                random(columns * k * generations, 1),
                random(columns * rows * generations, 2),
            );
            let plan = Encode {
                kernel,
                field: Field::Standard,
                n,
                k: u32::try_from(k).unwrap(),
                generations: u32::try_from(generations).unwrap(),
                rows: u32::try_from(rows).unwrap(),
                sources: &sources,
                coefficients: Coefficients::Explicit(&given),
                sms: None,
            };
            let mut work = lab.encode(&plan).expect(kernel);
            work.poison().unwrap();
            work.time(&[Stage::Form, Stage::Rows, Stage::Multiply], 1)
                .unwrap();
            let mut made = vec![0; k];
            for (generation, source) in sources.chunks_exact(columns * k).enumerate() {
                let given = &given[generation * rows * columns..][..rows * columns];
                for (index, row) in given.chunks_exact(columns).enumerate() {
                    work.read(
                        u32::try_from(generation).unwrap(),
                        u32::try_from(index).unwrap(),
                        false,
                        &mut made,
                    )
                    .unwrap();
                    assert!(
                        made == oracle::combine(row, source, k),
                        "{kernel} on {n}x{k}, row {index} of {generation}"
                    );
                }
            }
        }
    }
}

fn check_chunks(
    lab: &mut Lab,
    kernel: &str,
    n: u8,
    rows: usize,
    bytes: usize,
    tile: Option<(u32, u32)>,
) {
    let (matrix, sources) = (
        random(usize::from(n) * rows, 1),
        random(usize::from(n) * bytes, 2),
    );
    check_plan(
        lab,
        &Chunks {
            kernel,
            n,
            matrix: &matrix,
            bytes,
            sources: &sources,
            tile,
            gpus: 1,
        },
    );
}

/// Every byte of every code chunk, on the card and through it, or through all of its cards.
fn check_plan(lab: &mut Lab, plan: &Chunks<'_>) {
    let Chunks {
        kernel,
        n,
        matrix,
        bytes,
        sources,
        tile,
        gpus,
    } = *plan;
    let columns = usize::from(n);
    let what = format!(
        "{kernel}, {n} chunks and {} coefficients, {bytes} bytes, tile {tile:?}, {gpus} GPUs",
        matrix.len()
    );
    let mut work = lab.chunks(plan).expect(&what);
    for is_on_host in [false, true] {
        // In pieces, the last of which is shorter.
        work.through(2, 48.min(bytes), false).unwrap();
        work.poison().unwrap();
        if is_on_host {
            work.through(2, 48.min(bytes), true).unwrap();
        } else {
            work.time(2).unwrap();
        }
        let mut made = vec![0; bytes];
        for (row, factors) in matrix.chunks_exact(columns).enumerate() {
            work.read(row, 0, is_on_host, &mut made).unwrap();
            let mut expected = vec![0; bytes];
            for (native, factor) in sources.chunks_exact(bytes).zip(factors) {
                expected
                    .iter_mut()
                    .zip(native)
                    .for_each(|(sum, byte)| *sum ^= gf256::mul(*factor, *byte));
            }
            assert!(
                made == expected,
                "{what}, code chunk {row}, on the host: {is_on_host}"
            );
        }
    }
}

#[test]
fn kernels_over_chunks_make_every_byte() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for (name, way) in NAMES {
        if *way == Way::Tensor && lab.standard.capability != HOPPER {
            println!("skipped: {name} is for Hopper alone");
            continue;
        }
        let tiles: &[Option<(u32, u32)>] = match way {
            Way::Tiles(..) => &[
                Some((1, 256)),
                Some((2, 128)),
                Some((16, 16)),
                Some((256, 1)),
            ],
            _ => &[None],
        };
        for (n, rows, bytes) in [
            (1, 1, 16),
            (4, 2, 4096),
            (4, 2, 80),
            (3, 5, 1040),
            (10, 4, 20_000),
            (4, 196, 1040),
            (33, 40, 1552),
            (128, 64, 512),
            (200, 56, 592),
        ] {
            tiles
                .iter()
                .for_each(|tile| check_chunks(&mut lab, name, n, rows, bytes, *tile));
        }
    }
}

#[test]
fn chunks_go_through_all_gpus() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    let count = cuda::count().expect("there is one");
    if count < 2 {
        return println!("skipped: one GPU");
    }
    let (matrix, sources) = (random(4 * 2, 1), random(4 * 4096, 2));
    for gpus in [count, 2, 1] {
        let plan = Chunks {
            kernel: "stripes",
            n: 4,
            matrix: &matrix,
            bytes: 4096,
            sources: &sources,
            tile: None,
            gpus,
        };
        check_plan(&mut lab, &plan);
    }
}

/// So many bytes that every multiprocessor comes back to the memory that it has had before.
#[test]
fn kernels_for_large_chunks_go_round() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for (n, rows) in [(4, 2), (12, 70), (128, 20), (130, 3)] {
        check_chunks(&mut lab, "stripes", n, rows, 272_400, None);
        if lab.standard.capability == HOPPER {
            check_chunks(&mut lab, "tensor", n, rows, 272_400, None);
        }
    }
}

fn check_replay(lab: &mut Lab, plans: &[&Plan], blocks: usize, symbol_bytes: usize, what: &str) {
    let inputs = plans[0].inputs() * symbol_bytes;
    let symbols = random(3 * inputs, 3);
    let mut work = lab
        .replay(&Replay {
            plans,
            blocks,
            symbol_bytes,
            symbols: &symbols,
        })
        .expect(what);
    let ways: [fn(&mut ReplayJob<'_>, &[&Plan]); 4] = [
        |work, _| _ = work.time(2).unwrap(),
        |work, _| _ = work.through(2, true).unwrap(),
        |work, _| _ = work.through(3, true).unwrap(),
        |work, plans| {
            work.planned(2, &mut |blocks| {
                blocks
                    .map(|block| plans[block % plans.len()].bytes())
                    .collect()
            })
            .unwrap()
        },
    ];
    for (way, run) in ways.into_iter().enumerate() {
        let is_on_host = way > 0;
        work.through(2, false).unwrap();
        work.poison().unwrap();
        run(&mut work, plans);
        for block in 0..blocks {
            let plan = plans[block % plans.len()];
            let mut expected = vec![0; plan.outputs() * symbol_bytes];
            let mut made = expected.clone();
            let mut places: Vec<_> = expected.chunks_exact_mut(symbol_bytes).collect();
            plan.apply(
                Kernels::detect(),
                &symbols[block % 3 * inputs..][..inputs],
                &mut places,
            );
            work.read(block, is_on_host, &mut made).unwrap();
            assert!(made == expected, "{what}, source block {block}, way {way}");
        }
    }
}

#[test]
fn plans_replayed_make_every_byte() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    let older = raptor10::EncodingPlan::new(101).unwrap();
    check_replay(&mut lab, &[older.plan()], 5, 132, "Raptor10");
    // The last has more slots than fit into shared memory.
    for k in [1, 10, 101, 1002, 3000] {
        let encoding = EncodingPlan::new(k).unwrap();
        check_replay(
            &mut lab,
            &[encoding.plan()],
            5,
            132,
            &format!("encoding {k}"),
        );
        let lost = k.div_ceil(10);
        let plans: Vec<DecodingPlan> = [0, k - lost]
            .into_iter()
            .map(|first| {
                let is_lost = |esi: &u32| (first..first + lost).contains(esi);
                let esis: Vec<u32> = (0..k + lost + 2).filter(|esi| !is_lost(esi)).collect();
                DecodingPlan::new(k, &esis).unwrap()
            })
            .collect();
        let plans: Vec<&Plan> = plans.iter().map(DecodingPlan::plan).collect();
        check_replay(&mut lab, &plans, 5, 1024, &format!("decoding {k}"));
    }
}

#[test]
fn the_thesis_multiplies_and_inverts() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    let group = |width, height| Group { width, height };
    for (rows, inner, columns) in [(1, 1, 1), (7, 30, 19), (73, 101, 512), (129, 64, 33)] {
        let (a, b) = (random(rows * inner, 5), random(inner * columns, 6));
        let combined = a.chunks_exact(inner).flat_map(|row| {
            let mut sum = vec![0; columns];
            for (factor, of_b) in row.iter().zip(b.chunks_exact(columns)) {
                sum.iter_mut()
                    .zip(of_b)
                    .for_each(|(sum, byte)| *sum ^= gf256::mul(*factor, *byte));
            }
            sum
        });
        let expected: Vec<u8> = combined.collect();
        let count = |number: usize| u32::try_from(number).unwrap();
        for group in [group(16, 16), group(256, 1), group(1, 64), group(32, 32)] {
            let plan = Product {
                rows: count(rows),
                a: &a,
                columns: count(columns),
                b: &b,
                group,
            };
            let mut work = lab.product(&plan).unwrap();
            work.poison().unwrap();
            work.time(2).unwrap();
            assert!(
                work.read().unwrap() == expected,
                "{rows} x {inner} times {inner} x {columns}, {group:?}"
            );
            work.poison().unwrap();
            work.through().unwrap();
            assert!(work.read().unwrap() == expected, "with copies, {group:?}");
        }
    }
    for n in [1, 2, 12, 83, 130] {
        let mut matrix = random(n * n, 7);
        // Rows change places.
        matrix[0] = 0;
        if n == 1 {
            matrix[0] = 7;
        }
        let expected = matrix::invert(Kernels::detect(), n, &matrix, std::num::NonZeroUsize::MIN);
        for group in [group(16, 16), group(256, 1)] {
            let mut work = lab
                .elimination(&Elimination {
                    order: u32::try_from(n).unwrap(),
                    matrix: &matrix,
                    group,
                })
                .unwrap();
            work.run().unwrap();
            assert!(
                work.inverse() == expected.as_deref(),
                "order {n}, {group:?}"
            );
        }
        let zeros = vec![0; n * n];
        let mut work = lab
            .elimination(&Elimination {
                order: u32::try_from(n).unwrap(),
                matrix: &zeros,
                group: group(16, 16),
            })
            .unwrap();
        work.run().unwrap();
        assert_eq!(work.inverse(), None);
    }
}

fn threads() -> std::num::NonZeroUsize {
    std::thread::available_parallelism().unwrap()
}

/// Matrices that ask for pivots in different ways, and some that have no inverse.
fn matrices(n: usize) -> Vec<Vec<u8>> {
    let at = |of: &dyn Fn(usize, usize) -> u8| {
        (0..n * n)
            .map(|place| of(place / n, place % n))
            .collect::<Vec<u8>>()
    };
    let shifted = at(&|row, column| if (row + 3) % n == column { 5 } else { 0 });
    let upside_down = at(&|row, column| {
        if row + column == n - 1 {
            1 + u8::try_from(row % 255).unwrap()
        } else {
            0
        }
    });
    // Two permutations and a few more elements, as sparse as the rows of RaptorQ.
    let mut rng = SmallRng::seed_from_u64(n as u64);
    let mut sparse =
        at(&|row, column| u8::from((row * 7 + 1) % n == column || (row + 1) % n == column));
    (0..4 * n).for_each(|_| sparse[rng.random_range(0..n * n)] = rng.random_range(1..=255));
    let mut repeated = random(n * n, 11);
    let (first, last) = (0, n - 1);
    repeated.copy_within(first * n..(first + 1) * n, last * n);
    vec![
        random(n * n, 10),
        shifted,
        upside_down,
        sparse,
        if n > 1 { repeated } else { vec![0] },
        vec![0; n * n],
        random(n * n, 12),
    ]
}

#[test]
fn dense_matrices_are_inverted_side_by_side() {
    let Some(lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for n in [
        1, 2, 31, 32, 33, 64, 83, 127, 130, 300, 416, 417, 448, 700, 1025,
    ] {
        let matrices = matrices(n);
        let expected: Vec<Option<Vec<u8>>> = matrices
            .iter()
            .map(|matrix| matrix::invert(Kernels::detect(), n, matrix, threads()))
            .collect();
        assert!(
            expected.iter().any(Option::is_some) && expected.iter().any(Option::is_none),
            "order {n}"
        );
        let symbols = vec![None; n];
        let systems: Vec<System<'_>> = matrices
            .iter()
            .map(|matrix| System {
                order: n,
                matrix,
                sums: &[],
                symbols: &symbols,
            })
            .collect();
        let plan = Systems {
            systems: &systems,
            before: &[],
            count: matrices.len() + 2,
            symbol_bytes: 0,
        };
        let own = Inversion::of(n, &lab.standard);
        for way in if own == Inversion::Wide {
            vec![own]
        } else {
            vec![own, Inversion::Wide]
        } {
            let mut work = SystemsJob::by(way, &lab.standard, &plan).unwrap();
            for repeats in [1, 2] {
                work.poison().unwrap();
                work.time(true, repeats).unwrap();
                for index in 0..plan.count {
                    let inverse = work.inverse(index).unwrap();
                    assert!(
                        inverse == expected[index % matrices.len()],
                        "order {n}, matrix {index}, {way:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_largest_matrix_of_the_schemes_is_inverted() {
    let Some(lab) = lab() else {
        return println!("skipped: no GPU");
    };
    let n = 4300;
    let sparse_first = [3, 0, 6].map(|index| matrices(n).swap_remove(index));
    let inverse = |matrix: &Vec<u8>| matrix::invert(Kernels::detect(), n, matrix, threads());
    let (matrix, expected) = sparse_first
        .iter()
        .find_map(|matrix| Some((matrix, inverse(matrix)?)))
        .expect("one of the three is regular");
    let symbols = vec![None; n];
    let systems = [System {
        order: n,
        matrix,
        sums: &[],
        symbols: &symbols,
    }];
    let mut work = SystemsJob::new(
        &lab.standard,
        &Systems {
            systems: &systems,
            before: &[],
            count: 1,
            symbol_bytes: 0,
        },
    )
    .unwrap();
    work.poison().unwrap();
    work.time(true, 1).unwrap();
    assert!(work.inverse(0).unwrap() == Some(expected));
}

#[test]
fn dense_systems_make_every_byte() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for (order, inner, bytes, wanted) in [
        (1, 1, 4, 1),
        (12, 60, 512, 12),
        (83, 70, 100, 7),
        (300, 333, 33, 70),
        (500, 40, 1024, 65),
    ] {
        let regular = |seed: u64| {
            let found = (seed..).map(|seed| random(order * order, seed));
            found
                .into_iter()
                .find(|matrix| {
                    matrix::invert(Kernels::detect(), order, matrix, threads()).is_some()
                })
                .unwrap()
        };
        let matrices: Vec<Vec<u8>> = (0..2).map(|index| regular(100 * index)).collect();
        let term = |sum: usize, term: usize| u32::try_from((sum * 31 + term * 17) % order).unwrap();
        let sums: Vec<Vec<u32>> = (0..wanted)
            .map(|sum| (0..=sum % 4).map(|index| term(sum, index)).collect())
            .collect();
        let (sides, rows, known) = (
            random(order * bytes, 3),
            random(order * inner, 4),
            random(inner * bytes, 5),
        );
        let symbols: Vec<Option<&[u8]>> = sides
            .chunks_exact(bytes)
            .enumerate()
            .map(|(row, symbol)| (row % 5 != 4).then_some(symbol))
            .collect();
        let sources: Vec<Option<&[u8]>> = known
            .chunks_exact(bytes)
            .enumerate()
            .map(|(row, symbol)| (row % 3 != 2).then_some(symbol))
            .collect();
        let systems: Vec<System<'_>> = matrices
            .iter()
            .map(|matrix| System {
                order,
                matrix,
                sums: &sums,
                symbols: &symbols,
            })
            .collect();
        let before = [Before {
            rows: &rows,
            known: &sources,
        }; 2];
        let cores = Cores::new(Kernels::detect(), threads());
        for before in [&[][..], &before] {
            let mut all = vec![vec![0; bytes]; order];
            if !before.is_empty() {
                let rows: Vec<&[u8]> = rows.chunks_exact(inner).collect();
                cores
                    .multiply(
                        &rows,
                        &sources,
                        &mut all.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
                    )
                    .unwrap();
            }
            for (sum, symbol) in all.iter_mut().zip(&symbols) {
                symbol
                    .iter()
                    .for_each(|symbol| Kernels::detect().add(sum, symbol));
            }
            let all: Vec<Option<&[u8]>> = all.iter().map(|sum| Some(sum.as_slice())).collect();
            let plan = Systems {
                systems: &systems,
                before,
                count: 5,
                symbol_bytes: bytes,
            };
            let mut work = lab.systems(&plan).unwrap();
            work.through().unwrap();
            for is_on_host in [false, true] {
                work.poison().unwrap();
                if is_on_host {
                    work.through().unwrap()
                } else {
                    work.time(false, 2).unwrap()
                };
                for index in 0..plan.count {
                    let (mut made, mut expected) =
                        (vec![0; wanted * bytes], vec![vec![0; bytes]; wanted]);
                    work.read(index, is_on_host, &mut made).unwrap();
                    let system = System {
                        symbols: &all,
                        ..systems[index % 2]
                    };
                    let mut places: Vec<&mut [u8]> =
                        expected.iter_mut().map(Vec::as_mut_slice).collect();
                    assert!(cores.solve(&system, &mut places).unwrap());
                    let what = format!(
                        "order {order}, {} first, system {index}, on the host: {is_on_host}",
                        before.len()
                    );
                    assert!(made == expected.concat(), "{what}");
                }
            }
        }
    }
}

#[test]
fn raptorq_is_decoded_by_dense_matrices_on_a_card() {
    let Some(lab) = lab() else {
        return println!("skipped: no GPU");
    };
    let algebra: Arc<dyn Algebra> = lab.algebra().unwrap().into();
    for (k, bytes) in [
        (1, 8),
        (10, 100),
        (60, 512),
        (101, 33),
        (511, 1024),
        (1002, 64),
    ] {
        let source = random(k as usize * bytes, 6);
        let encoder = Encoder::new(
            source.clone(),
            bytes,
            &EncodingPlan::new(k).unwrap(),
            Kernels::detect(),
        )
        .unwrap();
        let inverse = Arc::new(Inverse::new(k, Kernels::detect()).unwrap());
        for method in [Method::Inversion, Method::Reduction(inverse)] {
            for lost in [1, k.div_ceil(5)] {
                let mut block = Block::new(k, bytes, method.clone(), Kernels::detect())
                    .unwrap()
                    .with_algebra(Arc::clone(&algebra));
                let mut symbol = vec![0; bytes];
                for esi in lost..k + lost + 2 {
                    encoder.symbol(esi, &mut symbol).unwrap();
                    block.push(esi, &symbol).unwrap();
                }
                assert!(
                    block.decode().unwrap() == source,
                    "K = {k}, T = {bytes}, {lost} lost, {method:?}"
                );
            }
        }
    }
}

#[test]
fn a_card_knows_a_matrix_without_inverse_and_has_a_crossover() {
    let Some(lab) = lab() else {
        return println!("skipped: no GPU");
    };
    let algebra = lab.algebra().unwrap();
    for order in [12, 500] {
        let (matrix, symbol) = (vec![0; order * order], [1; 20]);
        let symbols = vec![Some(symbol.as_slice()); order];
        let system = System {
            order,
            matrix: &matrix,
            sums: &[vec![0]],
            symbols: &symbols,
        };
        assert_eq!(algebra.solve(&system, &mut [&mut [0; 20]]), Ok(false));
    }
    algebra.multiply(&[], &[], &mut []).unwrap();
    assert!((32..=1025).contains(&crossover(
        &Cores::new(Kernels::detect(), threads()),
        algebra.as_ref()
    )));
}

/// Elements, and rows of 32-bit coefficients.
fn elements(count: usize, seed: u64) -> Vec<Element> {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..count).map(|_| Element::random(&mut rng)).collect()
}

/// So many payloads of elements, one behind the other.
fn payloads(shape: Shape, count: usize, seed: u64) -> Vec<u8> {
    let rows = rows_of(&elements(count * shape.words(), seed), shape.words());
    rows.chunks_exact(row_pitch(shape.words()))
        .flat_map(|row| row[..shape.payload_bytes()].to_vec())
        .collect()
}

fn coded(shape: Shape, matrix: &[Element], payloads: &[u8]) -> Vec<Coded> {
    let payloads = payloads.chunks_exact(shape.payload_bytes());
    let blocks = matrix
        .chunks_exact(shape.n())
        .zip(payloads)
        .map(|(row, payload)| Coded {
            vector: Vector::Recoded(row.into()),
            payload: Payload::parse(shape, payload.to_vec().into()).unwrap(),
        });
    blocks.collect()
}

/// Everything that a work makes, of each of so many generations.
fn check_gfq(lab: &mut Lab, plan: &Gfq<'_>, generations: usize, expected: &[u8]) {
    let mut work = lab.gfq(plan).unwrap();
    work.poison().unwrap();
    work.time(2).unwrap();
    for index in 0..generations {
        assert!(
            work.read(index).unwrap() == expected,
            "generation {index} of {plan:?}"
        );
    }
}

#[test]
fn words_are_combined_as_on_the_cpu() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for (n, words, count) in [(1, 1, 1), (5, 35, 9), (33, 130, 40), (128, 512, 32)] {
        let shape = Shape::new(n, words).unwrap();
        let source = random(shape.source_bytes(), 1);
        let rows = draw_rows(shape, count, &mut SmallRng::seed_from_u64(2));
        let mut expected = vec![0; count * shape.payload_bytes()];
        AllCores::all()
            .encode(
                shape,
                &mut [CodeTask::new(shape, &source, &rows, &mut expected)],
            )
            .unwrap();
        for kernel in [
            "ours",
            "ours-1",
            "ours-2",
            "ours-4",
            "ours-8",
            "paper-32",
            "paper-256",
            "paper-512",
        ] {
            let plan = Gfq::Encode {
                shape,
                generations: 3,
                kernel,
                source: &source,
                rows: &rows,
            };
            check_gfq(&mut lab, &plan, 3, &expected);
        }

        let (matrix, held) = (
            elements(count * shape.n(), 3),
            payloads(shape, shape.n(), 4),
        );
        let unit: Vec<Element> = elements(shape.n() * shape.n(), 5);
        let held_blocks = coded(shape, &unit, &held);
        let (mut vectors, mut expected) = (vec![0; count * shape.recoded_vector_bytes()], expected);
        let recode = Recode {
            held: &held_blocks.iter().collect::<Vec<_>>(),
            rows: &matrix,
            vectors: &mut vectors,
            payloads: &mut expected,
        };
        AllCores::all().recode(shape, &mut [recode]).unwrap();
        for is_paper in [false, true] {
            let plan = Gfq::Combine {
                shape,
                generations: 2,
                is_paper,
                payloads: &held,
                rows: &matrix,
            };
            check_gfq(&mut lab, &plan, 2, &expected);
        }
    }
}

/// A matrix times a vector.
fn times(matrix: &[Element], vector: &[Element]) -> Vec<Element> {
    let factors: Vec<_> = vector.iter().map(Element::factor).collect();
    let dot = |row: &[Element]| {
        row.iter()
            .zip(&factors)
            .fold(Element::ZERO, |sum, (element, factor)| {
                sum.add(&factor.times(element))
            })
    };
    matrix.chunks_exact(vector.len()).map(dot).collect()
}

/// Rows of n elements as a work gives them.
fn words_of(matrix: &[Element], n: usize) -> Vec<u8> {
    let rows = rows_of(matrix, n);
    rows.chunks_exact(row_pitch(n))
        .flat_map(|row| row[..n * 32 + n.div_ceil(8)].to_vec())
        .collect()
}

#[test]
fn matrices_of_elements_are_inverted_in_both_ways() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for n in [1, 2, 31, 33, 128, 256] {
        let mut matrix = elements(n * n, n as u64);
        if n > 2 {
            // Pivots are not where one begins to look.
            matrix[0] = Element::ZERO;
            matrix[n + 1] = Element::ZERO;
        }
        let mut elimination = lab.word_elimination(n, &matrix).unwrap();
        elimination.run().unwrap();
        let inverse = elimination.inverse().expect("a regular matrix").to_vec();
        let vector = elements(n, 7);
        assert!(times(&matrix, &times(&inverse, &vector)) == vector, "n={n}");
        drop(elimination);
        if n > 1 {
            let bytes = words_of(&inverse, n);
            check_gfq(
                &mut lab,
                &Gfq::Invert {
                    n,
                    count: 3,
                    matrix: &matrix,
                },
                3,
                &bytes,
            );
            let (first, rest) = matrix.split_at_mut(n);
            rest[(n - 2) * n..].copy_from_slice(first);
            let mut elimination = lab.word_elimination(n, &matrix).unwrap();
            elimination.run().unwrap();
            assert!(elimination.inverse().is_none(), "n={n}, singular");
        }
    }
}

#[test]
fn generations_of_words_are_rebuilt() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for (n, words) in [(1, 1), (33, 40), (128, 512)] {
        let shape = Shape::new(n, words).unwrap();
        let (matrix, source) = (
            elements(shape.n() * shape.n(), 1),
            payloads(shape, shape.n(), 2),
        );
        let unit: Vec<Element> = (0..shape.n() * shape.n())
            .map(|index| u64::from(index % (shape.n() + 1) == 0).into())
            .collect();
        let blocks = coded(shape, &unit, &source);
        let (mut vectors, mut coded) = (
            vec![0; shape.n() * shape.recoded_vector_bytes()],
            vec![0; source.len()],
        );
        let recode = Recode {
            held: &blocks.iter().collect::<Vec<_>>(),
            rows: &matrix,
            vectors: &mut vectors,
            payloads: &mut coded,
        };
        AllCores::all().recode(shape, &mut [recode]).unwrap();
        check_gfq(
            &mut lab,
            &Gfq::Decode {
                shape,
                generations: 3,
                matrix: &matrix,
                payloads: &coded,
            },
            3,
            &source,
        );
    }
}

#[test]
fn blocks_are_hashed_in_every_way() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for (group, words, count) in [
        (HashGroup::P1024, 35, 3),
        (HashGroup::P1024, 512, 2),
        (HashGroup::P2048, 9, 2),
    ] {
        let data = random(words * 32 * count, 1);
        let plain: Vec<&[u8]> = data.chunks(words * 32).collect();
        let expected = AllCores::all().hash(group, words, &plain).unwrap();
        for (threads, blocks) in [(32, 1), (64, 7), (128, 300)] {
            check_gfq(
                &mut lab,
                &Gfq::Powers {
                    group,
                    words,
                    data: &data,
                    threads,
                    blocks,
                },
                1,
                &expected,
            );
        }
        for window in [1, 2, 4, 8] {
            check_gfq(
                &mut lab,
                &Gfq::Hashes {
                    group,
                    words,
                    data: &data,
                    window,
                },
                1,
                &expected,
            );
        }
        let mut ladders = [true, false].map(|is_by_lanes| {
            let plan = Gfq::Ladder {
                group,
                words,
                sets: 2,
                window: 4,
                is_by_lanes,
            };
            let mut work = lab.gfq(&plan).unwrap();
            work.poison().unwrap();
            work.time(1).unwrap();
            [0, 1].map(|index| work.read(index).unwrap())
        });
        let [by_lanes, by_threads] = &mut ladders;
        assert!(by_lanes == by_threads, "{group:?}, {words} words");
    }
}

#[test]
fn batches_are_checked_in_the_cards_memory() {
    let Some(mut lab) = lab() else {
        return println!("skipped: no GPU");
    };
    for (group, n, words, count) in [
        (HashGroup::P1024, 5, 35, 9),
        (HashGroup::P1024, 128, 64, 256),
        (HashGroup::P2048, 3, 9, 4),
    ] {
        let shape = Shape::new(n, words).unwrap();
        let source = random(shape.source_bytes(), 1);
        let rows = draw_rows(shape, count, &mut SmallRng::seed_from_u64(2));
        let mut made = vec![0; count * shape.payload_bytes()];
        AllCores::all()
            .encode(
                shape,
                &mut [CodeTask::new(shape, &source, &rows, &mut made)],
            )
            .unwrap();
        let plain: Vec<&[u8]> = source.chunks(shape.block_bytes()).collect();
        let hashes = AllCores::all().hash(group, shape.words(), &plain).unwrap();
        let hashes = Hashes::signed(group, shape, &hashes).unwrap();
        let vectors: Vec<Element> = rows
            .iter()
            .map(|&coefficient| u64::from(coefficient).into())
            .collect();
        let weights: Vec<u128> = (1..=count as u128)
            .map(|index| (index * 0x1_0000_0001_0000_0001_0000_0001) >> 1)
            .collect();
        for is_right in [true, false] {
            made[40] ^= u8::from(!is_right);
            let plan = Gfq::Check {
                group,
                shape,
                batches: 3,
                payloads: &made,
                vectors: &vectors,
                weights: &weights,
                hashes: hashes.numbers(),
            };
            let mut work = lab.gfq(&plan).unwrap();
            work.poison().unwrap();
            work.time(2).unwrap();
            for index in 0..3 {
                let numbers = work.read(index).unwrap();
                let (left, right) = numbers.split_at(group.hash_bytes());
                assert_eq!(
                    left == right,
                    is_right,
                    "{group:?}, n={n}, m={words}, batch {index}"
                );
            }
        }
    }
}
