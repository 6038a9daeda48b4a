//! Runs the fuzz targets on their seeds, every truncation of these, and a fixed number of seeded
//! mutations.
//!
//! This keeps the targets working on every compiler; `make fuzz` finds new inputs.

#[path = "../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const MUTATIONS: usize = 300;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new("fuzz/seeds").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

fn mutate(seed: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..4) {
            0 => bytes.insert(at, rng.random()),
            1 => bytes.truncate(at),
            2 => bytes.extend_from_within(at..),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = rng.random();
                }
            }
        }
    }
    bytes
}

fn run(target: &str, body: fn(&[u8])) {
    let mut rng = StdRng::seed_from_u64(1);
    for seed in seeds(target) {
        for end in 0..=seed.len() {
            body(&seed[..end]);
        }
        for _ in 0..MUTATIONS {
            body(&mutate(&seed, &mut rng));
        }
    }
}

#[test]
fn wire_control() {
    run("wire_control", bodies::wire_control);
}

#[test]
fn wire_block() {
    run("wire_block", bodies::wire_block);
}

#[test]
fn decoder() {
    run("decoder", bodies::decoder);
}
