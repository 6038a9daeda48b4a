use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngExt, SeedableRng};

use super::*;

const ONE: NonZeroUsize = NonZeroUsize::MIN;

fn random(length: usize, rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// All n chunks by the definition, from these rows.
fn chunks(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut chunks = data.to_vec();
    for row in code.parity_rows() {
        let mut sum = vec![0; data[0].len()];
        for (&c, chunk) in row.iter().zip(data) {
            sum.iter_mut()
                .zip(chunk)
                .for_each(|(sum, &byte)| *sum ^= gf256::mul(c, byte));
        }
        chunks.push(sum);
    }
    chunks
}

/// What `repair` makes of `present`; `wanted` in that order.
fn rebuilt(
    kernels: Kernels,
    code: &Code,
    chunks: &[Vec<u8>],
    present: &[usize],
    wanted: &[usize],
) -> Vec<Vec<u8>> {
    let repair = code.repair(kernels, present, wanted).unwrap();
    assert!(
        repair
            .sources()
            .iter()
            .all(|source| present.contains(source)),
        "only what is there is read"
    );
    let sources: Vec<&[u8]> = repair
        .sources()
        .iter()
        .map(|&index| chunks[index].as_slice())
        .collect();
    let mut outs = vec![vec![0xEE; chunks[0].len()]; wanted.len()];
    let mut places: Vec<&mut [u8]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
    repair.run(kernels, &sources, &mut places, ONE).unwrap();
    outs
}

/// Whether the rows of these chunks are independent, by an elimination that knows nothing of the
/// codec's shortcuts.
fn are_independent(code: &Code, present: &[usize]) -> bool {
    let k = code.k();
    let row = |&index: &usize| match index < k {
        true => (0..k).map(|column| u8::from(column == index)).collect(),
        false => code.parity_rows().nth(index - k).unwrap().to_vec(),
    };
    let mut rows: Vec<Vec<u8>> = present.iter().map(row).collect();
    for column in 0..k {
        let Some(pivot) = (column..k).find(|&row| rows[row][column] != 0) else {
            return false;
        };
        rows.swap(column, pivot);
        let pivot = rows[column].clone();
        for row in &mut rows[column + 1..] {
            let factor = gf256::div(row[column], pivot[column]);
            row.iter_mut()
                .zip(&pivot)
                .for_each(|(element, &other)| *element ^= gf256::mul(factor, other));
        }
    }
    true
}

/// All ways to choose `count` of 0..n.
fn subsets(n: usize, count: usize) -> impl Iterator<Item = Vec<usize>> {
    let masks = (0_u32..1 << n).filter(move |mask| mask.count_ones() as usize == count);
    masks.map(move |mask| (0..n).filter(|index| mask >> index & 1 == 1).collect())
}

fn codes(n_max: usize) -> impl Iterator<Item = Code> {
    let shapes = (2..=n_max).flat_map(|n| (1..n).map(move |k| (k, n)));
    shapes.flat_map(|(k, n)| {
        Matrix::ALL
            .into_iter()
            .filter_map(move |matrix| Code::new(matrix, k, n).ok())
    })
}

#[test]
fn rows_are_the_known_ones() {
    let rows = |matrix, k, n| {
        Code::new(matrix, k, n)
            .unwrap()
            .parity_rows()
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        rows(Matrix::Cauchy, 4, 6),
        [[71, 167, 122, 186], [167, 71, 186, 122]]
    );
    assert_eq!(
        rows(Matrix::VandBb, 4, 6),
        [[27, 28, 18, 20], [28, 27, 20, 18]]
    );
    assert_eq!(
        rows(Matrix::VandJerasure, 4, 6),
        [[1, 1, 1, 1], [1, 70, 143, 200]]
    );
    assert_eq!(
        rows(Matrix::VandJerasure, 4, 7),
        [[1, 1, 1, 1], [1, 217, 92, 172], [1, 70, 143, 200]]
    );
    assert_eq!(rows(Matrix::IsalRs, 4, 6), [[1, 1, 1, 1], [1, 2, 4, 8]]);
    assert_eq!(rows(Matrix::VandJerasure, 3, 4), [[1, 1, 1]]);
}

/// By the definition: V times the inverse of its first k rows, for the largest matrices and for
/// some between.
#[test]
fn vandermonde_rows_are_made_systematic() {
    let power =
        |base: u8, exponent: usize| (0..exponent).fold(1, |product, _| gf256::mul(product, base));
    for (k, n) in [
        (1, 2),
        (1, 256),
        (2, 5),
        (10, 14),
        (17, 20),
        (100, 256),
        (255, 256),
    ] {
        let top: Vec<u8> = (0..k)
            .flat_map(|i| (0..k).map(move |j| power(element(i), j)))
            .collect();
        let inverse = matrix::invert(Kernels::detect(), k, &top, ONE).unwrap();
        for (i, row) in (k..n).zip(Code::new(Matrix::VandBb, k, n).unwrap().parity_rows()) {
            let mut sum = vec![0; k];
            for (j, inverse) in inverse.chunks_exact(k).enumerate() {
                let factor = power(element(i), j);
                sum.iter_mut()
                    .zip(inverse)
                    .for_each(|(sum, &element)| *sum ^= gf256::mul(factor, element));
            }
            assert_eq!(row, sum, "k = {k}, row {i}");
        }
    }
}

#[test]
fn any_k_of_up_to_twelve_chunks_rebuild_all() {
    let mut rng = SmallRng::seed_from_u64(1);
    let kernels: Vec<Kernels> = Kernels::available().collect();
    let mut count = 0;
    for code in codes(12) {
        let (k, n) = (code.k(), code.n());
        let data: Vec<Vec<u8>> = (0..k).map(|_| random(3, &mut rng)).collect();
        let chunks = chunks(&code, &data);
        let all: Vec<usize> = (0..n).collect();
        for present in subsets(n, k) {
            // They take turns: each meets thousands of subsets.
            let kernels = kernels[count % kernels.len()];
            assert!(
                rebuilt(kernels, &code, &chunks, &present, &all) == chunks,
                "{code:?} from {present:?}, {kernels:?}"
            );
            count += 1;
        }
    }
    assert!(count > 20_000, "{count} subsets");
}

#[test]
fn any_k_of_many_chunks_rebuild_all() {
    let mut rng = SmallRng::seed_from_u64(2);
    let shapes = [
        (10, 14),
        (20, 24),
        (17, 64),
        (4, 200),
        (128, 256),
        (250, 256),
        (255, 256),
        (1, 256),
        (100, 150),
    ];
    for (k, n) in shapes {
        for matrix in Matrix::ALL {
            let Ok(code) = Code::new(matrix, k, n) else {
                continue;
            };
            let data: Vec<Vec<u8>> = (0..k).map(|_| random(2, &mut rng)).collect();
            let chunks = chunks(&code, &data);
            let mut all: Vec<usize> = (0..n).collect();
            for round in 0..if k < 100 { 400 } else { 20 } {
                all.shuffle(&mut rng);
                // Now and then there are more than it takes.
                let present = &all[..if round % 3 == 0 {
                    rng.random_range(k..=n)
                } else {
                    k
                }];
                let wanted: Vec<usize> = all.sample(&mut rng, 9).copied().collect();
                let expected: Vec<Vec<u8>> =
                    wanted.iter().map(|&index| chunks[index].clone()).collect();
                let outs = rebuilt(Kernels::detect(), &code, &chunks, present, &wanted);
                assert!(outs == expected, "{matrix} ({k}, {n}) from {present:?}");
            }
        }
    }
}

/// Rows alone, because that is where independence is decided: many more subsets than can be decoded
/// here.
#[test]
fn thousands_of_random_subsets_are_independent() {
    let mut rng = SmallRng::seed_from_u64(3);
    for (k, n, rounds) in [
        (10, 14, 3000),
        (21, 25, 2000),
        (4, 25, 5000),
        (16, 40, 1000),
        (4, 200, 5000),
        (60, 256, 30),
    ] {
        for matrix in Matrix::ALL {
            let Ok(code) = Code::new(matrix, k, n) else {
                continue;
            };
            let mut all: Vec<usize> = (0..n).collect();
            for _ in 0..rounds {
                let (present, _) = all.partial_shuffle(&mut rng, k);
                assert!(
                    are_independent(&code, present),
                    "{matrix} ({k}, {n}): {present:?}"
                );
            }
        }
    }
}

/// Every square part of the rows that ISA-L says are safe, where there are few enough.
#[test]
fn isal_rs_is_taken_where_it_is_mds() {
    for (k, n) in [
        (4, 25),
        (5, 10),
        (3, 40),
        (1, 256),
        (2, 256),
        (12, 15),
        (12, 16),
    ] {
        let code = Code::new(Matrix::IsalRs, k, n).unwrap();
        let rows: Vec<&[u8]> = code.parity_rows().collect();
        for size in 1..=k.min(n - k).min(4) {
            let columns: Vec<Vec<usize>> = subsets(k, size).collect();
            for_each_subset(n - k, size, &mut |chosen| {
                for columns in &columns {
                    let part: Vec<Vec<u8>> = chosen
                        .iter()
                        .map(|&row| columns.iter().map(|&column| rows[row][column]).collect())
                        .collect();
                    assert!(
                        determinant(part) != 0,
                        "({k}, {n}): rows {chosen:?}, columns {columns:?}"
                    );
                }
            });
        }
    }
}

/// Like `subsets`, for more than 32.
fn for_each_subset(n: usize, count: usize, visit: &mut dyn FnMut(&[usize])) {
    fn extend(
        chosen: &mut Vec<usize>,
        next: usize,
        n: usize,
        count: usize,
        visit: &mut dyn FnMut(&[usize]),
    ) {
        if chosen.len() == count {
            return visit(chosen);
        }
        for index in next..n {
            chosen.push(index);
            extend(chosen, index + 1, n, count, visit);
            chosen.pop();
        }
    }
    extend(&mut Vec::new(), 0, n, count, visit);
}

/// By expansion along the first row.
fn determinant(rows: Vec<Vec<u8>>) -> u8 {
    let Some((first, rest)) = rows.split_first() else {
        return 1;
    };
    let minor = |without: usize| {
        let row = |row: &Vec<u8>| {
            row.iter()
                .enumerate()
                .filter(|(column, _)| *column != without)
                .map(|(_, &e)| e)
                .collect()
        };
        determinant(rest.iter().map(row).collect())
    };
    (0..first.len()).fold(0, |sum, column| {
        sum ^ gf256::mul(first[column], minor(column))
    })
}

/// ISA-L's issue 40: of these 18 chunks the nine that are left do not suffice.
#[test]
fn isal_rs_is_refused_where_it_is_not_mds() {
    let refused = Code::new(Matrix::IsalRs, 9, 18).unwrap_err();
    assert_eq!(refused, Error::NotMds { k: 9, n: 18 });
    assert!(
        refused.to_string().contains("every 9 of 18")
            && refused.to_string().contains("cauchy takes any"),
        "{refused}"
    );
    let rows = Matrix::IsalRs.parity(9, 18);
    let code = Code {
        matrix: Matrix::IsalRs,
        k: 9,
        n: 18,
        parity: rows,
    };
    let erased = [0, 1, 2, 5, 7, 9, 10, 14, 16];
    let left: Vec<usize> = (0..18).filter(|index| !erased.contains(index)).collect();
    assert!(!are_independent(&code, &left), "the reason for the refusal");
    let is_taken = |k, n| Code::new(Matrix::IsalRs, k, n).is_ok();
    for (k, n, expected) in [
        (3, 256, true),
        (4, 25, true),
        (4, 26, false),
        (5, 10, true),
        (5, 11, false),
        (6, 10, true),
        (6, 11, false),
        (21, 25, true),
        (22, 26, false),
        (253, 256, true),
        (200, 204, false),
    ] {
        assert_eq!(is_taken(k, n), expected, "({k}, {n})");
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    for (k, n) in [
        (0, 0),
        (0, 4),
        (4, 4),
        (5, 4),
        (1, 257),
        (256, 257),
        (usize::MAX, 3),
        (3, usize::MAX),
    ] {
        for matrix in Matrix::ALL {
            assert_eq!(Code::new(matrix, k, n), Err(Error::Shape { k, n }));
        }
    }
    for matrix in [Matrix::Cauchy, Matrix::VandBb, Matrix::VandJerasure] {
        for (k, n) in [(1, 2), (1, 256), (255, 256), (128, 256)] {
            let code = Code::new(matrix, k, n).unwrap();
            assert!(
                code.parity_rows().len() == n - k
                    && code
                        .parity_rows()
                        .all(|row| row.len() == k && !row.contains(&0))
            );
        }
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for matrix in Matrix::ALL {
        assert_eq!(matrix.to_string().parse(), Ok(matrix));
    }
    assert_eq!(
        Matrix::ALL.map(Matrix::name),
        ["cauchy", "vand-bb", "vand-jerasure", "isal-rs"]
    );
    let refused = "zfec".parse::<Matrix>().unwrap_err().to_string();
    assert!(
        Matrix::ALL
            .iter()
            .all(|matrix| refused.contains(matrix.name())),
        "{refused}"
    );
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let (kernels, code) = (Kernels::detect(), Code::new(Matrix::Cauchy, 3, 5).unwrap());
    let repair =
        |present: &[usize], wanted: &[usize]| code.repair(kernels, present, wanted).map(drop);
    assert_eq!(
        repair(&[0, 4], &[1]),
        Err(Error::TooFew { present: 2, k: 3 })
    );
    assert_eq!(repair(&[], &[]), Err(Error::TooFew { present: 0, k: 3 }));
    assert_eq!(repair(&[0, 4, 0], &[1]), Err(Error::Repeated(0)));
    assert_eq!(
        repair(&[0, 4, 5], &[1]),
        Err(Error::Index { index: 5, n: 5 })
    );
    assert_eq!(
        repair(&[0, 4, usize::MAX], &[1]),
        Err(Error::Index {
            index: usize::MAX,
            n: 5
        })
    );
    assert_eq!(
        repair(&[0, 4, 3], &[1, 9]),
        Err(Error::Index { index: 9, n: 5 })
    );
    let four: &[u8] = &[1; 4];
    let (three, five) = (&four[1..], &[1; 5][..]);
    let mut outs = [[0; 4]; 2];
    let [first, second] = &mut outs;
    let mut encode = |data: &[&[u8]]| {
        code.encode(
            kernels,
            data,
            &mut [first.as_mut_slice(), second.as_mut_slice()],
            ONE,
        )
    };
    assert_eq!(
        encode(&[four; 2]),
        Err(Error::Count {
            given: 2,
            expected: 3
        })
    );
    assert_eq!(
        encode(&[four, four, five]),
        Err(Error::Length {
            length: 5,
            expected: 4
        })
    );
    assert_eq!(
        encode(&[five; 3]),
        Err(Error::Length {
            length: 4,
            expected: 5
        })
    );
    assert_eq!(encode(&[four; 3]), Ok(()));
    assert_eq!(
        code.encode(kernels, &[four; 3], &mut [&mut [0; 4]], ONE),
        Err(Error::Count {
            given: 1,
            expected: 2
        })
    );
    let repair = code.repair(kernels, &[0, 4, 3], &[1]).unwrap();
    let run = |sources: &[&[u8]]| repair.run(kernels, sources, &mut [&mut [0; 4]], ONE);
    assert_eq!(
        run(&[four; 4]),
        Err(Error::Count {
            given: 4,
            expected: 3
        })
    );
    assert_eq!(
        run(&[four, three, four]),
        Err(Error::Length {
            length: 3,
            expected: 4
        })
    );
    assert_eq!(
        repair.run(kernels, &[four; 3], &mut [], ONE),
        Err(Error::Count {
            given: 0,
            expected: 1
        })
    );
}

/// Lengths around lines, columns and the pieces of threads, and none at all.
#[test]
fn every_instruction_set_makes_the_chunks_of_the_definition() {
    let mut rng = SmallRng::seed_from_u64(4);
    for (k, n) in [(1, 2), (4, 6), (10, 14), (4, 40), (33, 40), (70, 80)] {
        let code = Code::new(Matrix::Cauchy, k, n).unwrap();
        for length in [0, 1, 63, 64, 65, 255, 256, 257, 1000, 4096, 5000] {
            let data: Vec<Vec<u8>> = (0..k).map(|_| random(length, &mut rng)).collect();
            let chunks = chunks(&code, &data);
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let present: Vec<usize> = (n - k..n).collect();
            let wanted: Vec<usize> = (0..n - k).collect();
            for kernels in Kernels::available() {
                let mut parity = vec![vec![0xEE; length]; n - k];
                let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                code.encode(kernels, &data, &mut outs, ONE).unwrap();
                assert!(
                    parity == chunks[k..],
                    "({k}, {n}) of {length} bytes, {kernels:?}"
                );
                let outs = rebuilt(kernels, &code, &chunks, &present, &wanted);
                assert!(
                    outs == chunks[..n - k],
                    "({k}, {n}) of {length} bytes back, {kernels:?}"
                );
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    let mut rng = SmallRng::seed_from_u64(5);
    let code = Code::new(Matrix::VandBb, 4, 6).unwrap();
    // Enough for three threads, and no multiple of anything.
    let length = (32 << 20) / 4 + 12_345;
    let data: Vec<Vec<u8>> = (0..4).map(|_| random(length, &mut rng)).collect();
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let encode = |threads: usize| {
        let mut parity = vec![vec![0xEE; length]; 2];
        let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(
            Kernels::detect(),
            &data,
            &mut outs,
            NonZeroUsize::new(threads).unwrap(),
        )
        .unwrap();
        parity
    };
    let parity = encode(1);
    assert!(
        [2, 3, 4, 64]
            .into_iter()
            .all(|threads| encode(threads) == parity)
    );
    for at in [0, length / 3, length - 1] {
        let sum = |row: &[u8]| {
            row.iter()
                .zip(&data)
                .fold(0, |sum, (&c, chunk)| sum ^ gf256::mul(c, chunk[at]))
        };
        assert_eq!(
            parity.iter().map(|chunk| chunk[at]).collect::<Vec<_>>(),
            code.parity_rows().map(sum).collect::<Vec<_>>()
        );
    }
}

proptest! {
    #[test]
    fn what_is_lost_comes_back(
        matrix in prop::sample::select(&Matrix::ALL[..]),
        (k, n) in (1_usize..40).prop_flat_map(|k| (Just(k), k + 1..60)),
        length in 0_usize..300,
        seed: u64,
    ) {
        let code = Code::new(matrix, k, n);
        prop_assume!(code.is_ok());
        let (code, mut rng) = (code.unwrap(), SmallRng::seed_from_u64(seed));
        let data: Vec<Vec<u8>> = (0..k).map(|_| random(length, &mut rng)).collect();
        let chunks = chunks(&code, &data);
        let mut order: Vec<usize> = (0..n).collect();
        order.shuffle(&mut rng);
        let (present, wanted) = order.split_at(k);
        let expected: Vec<Vec<u8>> = wanted.iter().map(|&index| chunks[index].clone()).collect();
        for kernels in Kernels::available() {
            prop_assert!(rebuilt(kernels, &code, &chunks, present, wanted) == expected);
        }
    }
}
