//! Kernels that no back end launches, against the CPU. Skipped without a GPU, and failing without one if `NCTEST_REQUIRE_GPU` says
//! that there is one.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::chunks::NAMES;
use super::*;
use crate::codec::raptor10;
use crate::codec::raptorq::{DecodingPlan, EncodingPlan, Plan};
use crate::gf::{Kernels, gf256, matrix};

fn lab() -> Option<GpuLab> {
    super::super::tests::is_here().then(|| GpuLab::open(0).expect("a GPU that works"))
}

fn random(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Every byte of every code chunk, on the card and through it.
fn check_chunks(lab: &mut GpuLab, kernel: &str, n: u8, rows: usize, bytes: usize, tile: Option<(u32, u32)>) {
    let what = format!("{kernel}, {n} native and {rows} code chunks of {bytes} bytes, tile {tile:?}");
    let columns = usize::from(n);
    let (matrix, sources) = (random(columns * rows, 1), random(columns * bytes, 2));
    let mut work = lab.chunks(&Chunks { kernel, n, matrix: &matrix, bytes, sources: &sources, tile }).expect(&what);
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
                expected.iter_mut().zip(native).for_each(|(sum, byte)| *sum ^= gf256::mul(*factor, *byte));
            }
            assert!(made == expected, "{what}, code chunk {row}, on the host: {is_on_host}");
        }
    }
}

#[test]
fn kernels_over_chunks_make_every_byte() {
    let Some(mut lab) = lab() else { return println!("skipped: no GPU") };
    for (name, way) in NAMES {
        let tiles: &[Option<(u32, u32)>] = match way {
            Way::Tiles(..) => &[Some((1, 256)), Some((2, 128)), Some((16, 16)), Some((256, 1))],
            _ => &[None],
        };
        for (n, rows, bytes) in
            [(1, 1, 16), (4, 2, 4096), (4, 2, 80), (3, 5, 1040), (10, 4, 20_000), (4, 196, 1040), (128, 64, 512)]
        {
            tiles.iter().for_each(|tile| check_chunks(&mut lab, name, n, rows, bytes, *tile));
        }
    }
}

fn check_replay(lab: &mut GpuLab, plans: &[&Plan], blocks: usize, symbol_bytes: usize, what: &str) {
    let inputs = plans[0].inputs() * symbol_bytes;
    let symbols = random(3 * inputs, 3);
    let mut work = lab.replay(&Replay { plans, blocks, symbol_bytes, symbols: &symbols }).expect(what);
    for is_on_host in [false, true] {
        work.through(2, false).unwrap();
        work.poison().unwrap();
        if is_on_host {
            work.through(2, true).unwrap();
        } else {
            work.time(2).unwrap();
        }
        for block in 0..blocks {
            let plan = plans[block % plans.len()];
            let mut expected = vec![0; plan.outputs() * symbol_bytes];
            let mut made = expected.clone();
            let mut places: Vec<_> = expected.chunks_exact_mut(symbol_bytes).collect();
            plan.apply(Kernels::detect(), &symbols[block % 3 * inputs..][..inputs], &mut places);
            work.read(block, is_on_host, &mut made).unwrap();
            assert!(made == expected, "{what}, source block {block}, on the host: {is_on_host}");
        }
    }
}

#[test]
fn plans_replayed_make_every_byte() {
    let Some(mut lab) = lab() else { return println!("skipped: no GPU") };
    let older = raptor10::EncodingPlan::new(101).unwrap();
    check_replay(&mut lab, &[older.plan()], 5, 132, "Raptor10");
    // The last has more slots than fit into shared memory.
    for k in [1, 10, 101, 1002, 3000] {
        let encoding = EncodingPlan::new(k).unwrap();
        check_replay(&mut lab, &[encoding.plan()], 5, 132, &format!("encoding {k}"));
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
    let Some(mut lab) = lab() else { return println!("skipped: no GPU") };
    let group = |width, height| lab::Group { width, height };
    for (rows, inner, columns) in [(1, 1, 1), (7, 30, 19), (73, 101, 512), (129, 64, 33)] {
        let (a, b) = (random(rows * inner, 5), random(inner * columns, 6));
        let combined = a.chunks_exact(inner).flat_map(|row| {
            let mut sum = vec![0; columns];
            for (factor, of_b) in row.iter().zip(b.chunks_exact(columns)) {
                sum.iter_mut().zip(of_b).for_each(|(sum, byte)| *sum ^= gf256::mul(*factor, *byte));
            }
            sum
        });
        let expected: Vec<u8> = combined.collect();
        let count = |number: usize| u32::try_from(number).unwrap();
        for group in [group(16, 16), group(256, 1), group(1, 64), group(32, 32)] {
            let plan = Product { rows: count(rows), a: &a, columns: count(columns), b: &b, group };
            let mut work = lab.product(&plan).unwrap();
            work.poison().unwrap();
            work.time(2).unwrap();
            assert!(work.read().unwrap() == expected, "{rows} x {inner} times {inner} x {columns}, {group:?}");
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
            let mut work = lab.elimination(&Elimination { order: u32::try_from(n).unwrap(), matrix: &matrix, group }).unwrap();
            work.run().unwrap();
            assert!(work.inverse() == expected.as_deref(), "order {n}, {group:?}");
        }
        let zeros = vec![0; n * n];
        let mut work =
            lab.elimination(&Elimination { order: u32::try_from(n).unwrap(), matrix: &zeros, group: group(16, 16) }).unwrap();
        work.run().unwrap();
        assert_eq!(work.inverse(), None);
    }
}
