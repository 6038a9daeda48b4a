use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::codec::hash::{Group, Hashes, bad};

#[test]
fn whatever_is_coded_and_recoded_is_rebuilt_and_proves_itself() {
    let mut rng = SmallRng::seed_from_u64(1);
    for (n, words) in [(1, 1), (3, 9), (16, 40), (40, 8)] {
        let shape = Shape::new(n, words).unwrap();
        let cores = Cores::all();
        let mut source = vec![0; shape.source_bytes()];
        rng.fill_bytes(&mut source);
        let rows = draw_rows(shape, shape.n(), &mut rng);
        let mut out = vec![0; shape.n() * shape.payload_bytes()];
        cores.encode(shape, &mut [Encode { source: &source, rows: &rows, out: &mut out }]).unwrap();
        let coded: Vec<Coded> = rows
            .chunks_exact(shape.n())
            .zip(out.chunks_exact(shape.payload_bytes()))
            .map(|(row, payload)| Coded {
                vector: Vector::Source(row.into()),
                payload: Payload::parse(shape, payload.to_vec().into()).unwrap(),
            })
            .collect();
        let held: Vec<&Coded> = coded.iter().collect();
        let factors = draw_factors(held.len(), shape.n(), &mut rng);
        let (mut vectors, mut payloads) =
            (vec![0; shape.n() * shape.recoded_vector_bytes()], vec![0; shape.n() * shape.payload_bytes()]);
        cores
            .recode(shape, &mut [Recode { held: &held, rows: &factors, vectors: &mut vectors, payloads: &mut payloads }])
            .unwrap();
        let recoded: Vec<Coded> = vectors
            .chunks_exact(shape.recoded_vector_bytes())
            .zip(payloads.chunks_exact(shape.payload_bytes()))
            .map(|(vector, payload)| Coded {
                vector: Vector::parse_recoded(shape, vector).unwrap(),
                payload: Payload::parse(shape, payload.to_vec().into()).unwrap(),
            })
            .collect();
        for group in Group::ALL {
            let blocks: Vec<&[u8]> = source.chunks(shape.block_bytes()).collect();
            let hashes = Hashes::signed(group, shape, &cores.hash(group, shape.words(), &blocks).unwrap()).unwrap();
            let all: Vec<&Coded> = coded.iter().chain(&recoded).collect();
            assert!(bad(&cores, &hashes, &all, &mut rng).unwrap().is_empty());
        }
        for blocks in [coded, recoded] {
            let mut decoder = Decoder::new(shape);
            blocks.into_iter().for_each(|block| {
                decoder.absorb(block).unwrap();
            });
            assert_eq!(decoder.into_bytes(&cores).unwrap(), source);
        }
    }
}
