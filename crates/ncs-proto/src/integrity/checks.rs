//! Secret random checksums, which tell right rows of a generation from wrong ones before they are
//! decoded.
//!
//! The holder of the n source blocks B_i of k bytes draws a random k × L matrix R and projects each
//! block by it, P_i = B_i · R. A row with coefficients c and payload e is right only if e · R = c_1
//! · P_1 + … + c_n · P_n. A wrong row whose maker does not know R passes with probability 256^-L. R
//! is drawn anew for every query, and known to the two sides alone. (Gkantsidis and Rodriguez,
//! "Cooperative Security for Network Coding File Distribution", INFOCOM 2006, section IV.)

use ncs_codec::block::Vector;
use ncs_gf::{Kernels, Panel, RowKey};

use crate::object::{Generation, SegmentId};
use crate::wire::message::Checks;

/// Columns in the answers of this server: a wrong row passes with probability 2^-64.
pub const COLUMNS: u8 = 8;

/// k × `columns` random bytes, row by row.
fn random(seed: &[u8; 32], segment: &SegmentId, generation: &Generation, columns: u8) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_keyed(seed);
    hasher
        .update(b"ncs/1 CHECKS")
        .update(segment.as_bytes())
        .update(&generation.index.to_be_bytes());
    let mut bytes = vec![0; generation.block_bytes as usize * usize::from(columns)];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// The projections of a generation's source blocks: n × `columns` bytes, block by block. `bytes`
/// are those of the generation, the last block without padding.
pub fn project(
    kernels: Kernels,
    seed: &[u8; 32],
    segment: &SegmentId,
    generation: &Generation,
    columns: u8,
    bytes: &[u8],
) -> Vec<u8> {
    let panel = Panel::of(
        &random(seed, segment, generation, columns),
        generation.block_bytes as usize,
        usize::from(columns),
    );
    products(
        kernels,
        &panel,
        generation.block_bytes as usize,
        &bytes
            .chunks(generation.block_bytes as usize)
            .collect::<Vec<_>>(),
    )
}

/// The product of each of `rows`, padded to `length`, with the panel; one behind the other.
fn products(kernels: Kernels, panel: &Panel, length: usize, rows: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![0; rows.len() * panel.block_bytes()];
    let padded: Vec<_> = rows
        .iter()
        .map(|row| {
            if row.len() < length {
                [row, &vec![0; length - row.len()][..]].concat()
            } else {
                Vec::new()
            }
        })
        .collect();
    let rows: Vec<&[u8]> = rows
        .iter()
        .zip(&padded)
        .map(|(row, padded)| if padded.is_empty() { row } else { &padded[..] })
        .collect();
    kernels.combine(
        &rows,
        panel,
        &mut out
            .chunks_exact_mut(panel.block_bytes())
            .collect::<Vec<_>>(),
    );
    out
}

/// Checksums that test rows of one generation.
#[derive(Debug)]
pub struct RowChecks {
    kernels: Kernels,
    key: RowKey,
    generation: Generation,
    random: Panel,
    projections: Panel,
}

impl RowChecks {
    /// Takes an answer about this generation; `None` if it does not have the generation's length.
    /// The caller has verified the sender of the answer.
    pub fn new(
        kernels: Kernels,
        segment: &SegmentId,
        key: RowKey,
        generation: Generation,
        answer: &Checks,
    ) -> Option<Self> {
        let columns = usize::from(answer.columns);
        if answer.projections.len() != usize::from(generation.n) * columns {
            return None;
        }
        let random = random(&answer.seed, segment, &generation, answer.columns);
        Some(Self {
            kernels,
            key,
            generation,
            random: Panel::of(&random, generation.block_bytes as usize, columns),
            projections: Panel::of(&answer.projections, usize::from(generation.n), columns),
        })
    }

    /// Tells which of these rows are right. Vectors and payloads have the lengths of the
    /// generation.
    pub fn are_right(&self, rows: &[(&Vector, &[u8])]) -> Vec<bool> {
        let payloads: Vec<_> = rows.iter().map(|(_, payload)| *payload).collect();
        let found = products(
            self.kernels,
            &self.random,
            self.generation.block_bytes as usize,
            &payloads,
        );
        let vectors: Vec<_> = rows
            .iter()
            .map(|(vector, _)| self.coefficients(vector))
            .collect();
        let vectors: Vec<_> = vectors.iter().map(Vec::as_slice).collect();
        let expected = products(
            self.kernels,
            &self.projections,
            usize::from(self.generation.n),
            &vectors,
        );
        let columns = self.random.block_bytes();
        found
            .chunks_exact(columns)
            .zip(expected.chunks_exact(columns))
            .map(|(found, expected)| found == expected)
            .collect()
    }

    fn coefficients(&self, vector: &Vector) -> Vec<u8> {
        let mut row = vec![0; usize::from(self.generation.n)];
        ncs_codec::rlnc::write_row(vector, self.key, &mut row);
        row
    }
}

#[cfg(test)]
mod tests {
    use ncs_codec::rlnc::Encoder;
    use ncs_gf::gf256;
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::object::Shape;
    use crate::object::row_key;

    struct Case {
        id: SegmentId,
        generation: Generation,
        bytes: Vec<u8>,
        answer: Checks,
    }

    fn case(length: u64, block_bytes: u32, n: u16, columns: u8, rng: &mut SmallRng) -> Case {
        let generation = Shape::new(length, block_bytes, n)
            .unwrap()
            .generation(0)
            .unwrap();
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        rng.fill_bytes(&mut bytes);
        let id = SegmentId::of(&bytes);
        let seed = rng.random();
        let projections =
            project(Kernels::detect(), &seed, &id, &generation, columns, &bytes).into();
        Case {
            id,
            generation,
            bytes,
            answer: Checks {
                request: 0,
                seed,
                columns,
                projections,
                signature: None,
            },
        }
    }

    #[test]
    fn projections_are_what_the_definition_says() {
        let Case {
            id,
            generation,
            bytes,
            answer,
        } = case(150, 64, 3, 5, &mut SmallRng::seed_from_u64(1));
        let random = random(&answer.seed, &id, &generation, 5);
        for i in 0..3 {
            for l in 0..5 {
                let byte = |j: usize| bytes.get(i * 64 + j).copied().unwrap_or_default();
                let sum = (0..64).fold(0, |sum, j| sum ^ gf256::mul(byte(j), random[j * 5 + l]));
                assert_eq!(answer.projections[i * 5 + l], sum);
            }
        }
        let checks = RowChecks::new(
            Kernels::detect(),
            &id,
            row_key(&id, &generation),
            generation,
            &answer,
        )
        .unwrap();
        let short = Checks {
            projections: answer.projections.slice(5..),
            ..answer
        };
        assert!(
            RowChecks::new(
                Kernels::detect(),
                &id,
                row_key(&id, &generation),
                generation,
                &short
            )
            .is_none()
        );
        assert_eq!(
            checks.are_right(&[
                (&Vector::Source(2), &bytes[128..]),
                (&Vector::Source(1), &bytes[..64])
            ]),
            [true, false]
        );
    }

    proptest! {
        #[test]
        fn right_rows_pass_and_wrong_ones_do_not(
            n in 1u16..40, step in 4u32..30, cut in 0u64..64, columns in 4u8..=16, seed: u64,
        ) {
            let mut rng = SmallRng::seed_from_u64(seed);
            let block_bytes = step * 16;
            let length = u64::from(n) * u64::from(block_bytes) - cut;
            let Case {
                id,
                generation,
                bytes,
                answer,
            } = case(length, block_bytes, n, columns, &mut rng);
            let key = row_key(&id, &generation);
            let checks = RowChecks::new(Kernels::detect(), &id, key, generation, &answer).unwrap();
            let encoder = Encoder::new(&generation, &bytes, key, Kernels::detect()).unwrap();
            let k = block_bytes as usize;
            let mut seeded = vec![0; k];
            let number = rng.random();
            encoder.block(number, &mut seeded);
            let index = rng.random_range(0..generation.n);
            let source = &bytes[usize::from(index) * k..][..generation.block_length(index)];
            let row: Vec<u8> = (0..n).map(|_| rng.random()).collect();
            let mut combined = vec![0; k];
            for (c, block) in row.iter().zip(bytes.chunks(k)) {
                combined
                    .iter_mut()
                    .zip(block)
                    .for_each(|(sum, byte)| *sum ^= gf256::mul(*c, *byte));
            }
            let (by_seed, by_index) = (Vector::Seed(number), Vector::Source(index));
            let (explicit, unverified) = (
                Vector::Explicit(row.clone().into()),
                Vector::Unverified(row.into()),
            );
            let rows = [
                (&by_seed, &seeded[..]),
                (&by_index, source),
                (&explicit, &combined),
                (&unverified, &combined),
            ];
            prop_assert_eq!(checks.are_right(&rows), [true; 4]);

            let mut wrong = combined.clone();
            wrong[rng.random_range(0..k)] ^= rng.random_range(1..=255u8);
            let rows = [
                (&explicit, &wrong[..]),
                (&explicit, &combined[..]),
                (&by_seed, &wrong[..]),
            ];
            prop_assert_eq!(checks.are_right(&rows), [false, true, false]);
        }
    }
}
