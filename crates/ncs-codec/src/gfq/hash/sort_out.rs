//! Which blocks of several senders are wrong.

use std::collections::BTreeMap;

use rand::Rng;

use super::batch::Batch;
use super::hashes::Hashes;
use crate::gfq::arithmetic::Arithmetic;
use crate::gfq::block::Coded;
use ncs_gf::dense::Failed;

/// The verdict of [`sort_out`] on a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The block matches its coefficients.
    Right,
    /// The block does not match its coefficients.
    Wrong,
    /// Not tested: its sender had already sent a wrong block.
    Untested,
}

/// The result of [`sort_out`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sorted {
    /// The finding on each block.
    pub findings: Vec<Finding>,
    /// The number of batches tested.
    pub batches: u64,
}

/// Separates right blocks from wrong ones. It tests all blocks at once, then those of each sender,
/// and bisects the blocks of a sender of a wrong one until the first is found. The sender's later
/// blocks are not tested: the sender is no longer used, and must not be able to cause as many tests
/// as it sends wrong blocks.
///
/// # Panics
/// If [`Batch::new`] does.
pub fn sort_out<S: Copy + Ord>(
    arithmetic: &dyn Arithmetic,
    hashes: &Hashes,
    blocks: &[(S, &Coded)],
    rng: &mut impl Rng,
) -> Result<Sorted, Failed> {
    let mut sorted = Sorted {
        findings: vec![Finding::Right; blocks.len()],
        batches: 0,
    };
    let Sorted { findings, batches } = &mut sorted;
    let mut holds = |some: &[&[usize]]| {
        *batches += some.len() as u64;
        let of = |places: &&[usize]| {
            Batch::new(
                hashes,
                places.iter().map(|place| blocks[*place].1).collect(),
                rng,
            )
        };
        arithmetic.holds(&some.iter().map(of).collect::<Vec<_>>())
    };
    let all: Vec<usize> = (0..blocks.len()).collect();
    if all.is_empty() || holds(&[&all])?[0] {
        return Ok(sorted);
    }
    let mut senders: BTreeMap<S, Vec<usize>> = BTreeMap::new();
    for (place, (sender, _)) in blocks.iter().enumerate() {
        senders.entry(*sender).or_default().push(place);
    }
    let senders: Vec<Vec<usize>> = senders.into_values().collect();
    let mut suspects: Vec<&[usize]> = senders.iter().map(Vec::as_slice).collect();
    if suspects.len() > 1 {
        let verdicts = holds(&suspects)?;
        suspects = suspects
            .into_iter()
            .zip(verdicts)
            .filter_map(|(places, holds)| (!holds).then_some(places))
            .collect();
    }
    // Each has a wrong one among these, and everything before them is right.
    while !suspects.is_empty() {
        suspects.retain(|places| {
            if let [only] = places {
                findings[*only] = Finding::Wrong;
            }
            places.len() > 1
        });
        let halves: Vec<&[usize]> = suspects
            .iter()
            .map(|places| &places[..places.len() / 2])
            .collect();
        if halves.is_empty() {
            break;
        }
        for (places, holds) in suspects.iter_mut().zip(holds(&halves)?) {
            let (first, second) = places.split_at(places.len() / 2);
            *places = if holds { second } else { first };
            if !holds {
                second
                    .iter()
                    .for_each(|place| findings[*place] = Finding::Untested);
            }
        }
    }
    Ok(sorted)
}
