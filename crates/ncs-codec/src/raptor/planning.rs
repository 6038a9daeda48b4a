//! Plans for the two tasks: the intermediate symbols of a block, and its missing source symbols.

use super::plan::{Plan, Wanted};
use super::rows::{Rows, index};
use super::solution::{Deficit, Solution};
use super::system::{Size, System};

/// Makes all intermediate symbols from the K' source symbols, which must give a regular system.
pub(super) fn encoding_plan(system: &impl System) -> Plan {
    let k_prime = system.size().k_prime;
    let rows = Rows::new(system, 0..k_prime);
    let solution =
        Solution::new(system, &rows).expect("the systematic index makes the system regular");
    let inputs: Vec<Option<u32>> = (0..k_prime).map(Some).collect();
    Plan::new(system, &rows, &solution, &inputs, Wanted::Intermediate)
}

/// Makes the source symbols `missing` from encoding symbols with these ids, none twice.
pub(super) fn decoding_plan(
    system: &impl System,
    esis: &[u32],
    missing: &[u32],
) -> Result<Plan, Deficit> {
    let (rows, padding) = rows(system, esis);
    let solution = Solution::new(system, &rows)?;
    let mut inputs: Vec<Option<u32>> = (0..index(esis.len())).map(Some).collect();
    inputs.resize(esis.len() + padding, None);
    Ok(Plan::new(
        system,
        &rows,
        &solution,
        &inputs,
        Wanted::Symbols(missing),
    ))
}

/// Lower bound of the rank deficit of encoding symbols with these ids, none twice.
pub(super) fn deficit(system: &impl System, esis: &[u32]) -> usize {
    solvable(system, esis).map_or_else(|deficit| deficit.missing, |()| 0)
}

/// Whether encoding symbols with these ids, none twice, determine the block.
pub(super) fn solvable(system: &impl System, esis: &[u32]) -> Result<(), Deficit> {
    Solution::new(system, &rows(system, esis).0).map(drop)
}

/// The rows of these symbols, followed by those of padding, and the number of the latter.
fn rows(system: &impl System, esis: &[u32]) -> (Rows, usize) {
    let Size { k, k_prime, .. } = system.size();
    let isis: Vec<u32> = esis
        .iter()
        .map(|&esi| system.isi(esi))
        .chain(k..k_prime)
        .collect();
    (
        Rows::new(system, isis.iter().copied()),
        isis.len() - esis.len(),
    )
}
