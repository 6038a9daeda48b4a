//! A source block from the symbols that arrive.

use std::collections::HashSet;

use super::dense;
use super::parameters::Parameters;
use super::plan::{Plan, Wanted};
use super::rows::{Rows, index};
use super::solution::{Deficit, Solution};
use super::{DENSE_K_MAX, ESI_END, Error, Method};
use crate::gf::Kernels;

/// What became of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It is kept.
    Kept,
    /// It had come before.
    Duplicate,
    /// There are K + [`Decoder::SPARE`] already.
    Full,
}

/// Collects symbols of one block until the source symbols can be found.
///
/// Keeps K + [`SPARE`](Self::SPARE) symbols at most, in the memory of those that came. When so many do not suffice, those that depend
/// on others are dropped, so that others can come.
#[derive(Debug)]
pub struct Decoder {
    parameters: Parameters,
    symbol_bytes: usize,
    method: Method,
    kernels: Kernels,
    /// Symbols in the order of arrival, and their ids.
    symbols: Vec<u8>,
    esis: Vec<u32>,
    /// Where each source symbol is among them, or [`ABSENT`].
    sources: Vec<u32>,
    repair: HashSet<u32>,
}

impl Decoder {
    /// Symbols that are kept beyond K. Two are too few once in a million blocks.
    pub const SPARE: usize = 64;

    /// For a block of `k` source symbols of `symbol_bytes`.
    pub fn new(k: u32, symbol_bytes: usize, method: Method, kernels: Kernels) -> Result<Self, Error> {
        let parameters = Parameters::new(k)?;
        match &method {
            Method::Inactivation => (),
            Method::Inversion | Method::Reduction(_) if k > DENSE_K_MAX => return Err(Error::Dense { k }),
            Method::Inversion => (),
            Method::Reduction(inverse) if inverse.k_prime() == parameters.k_prime => (),
            Method::Reduction(_) => return Err(Error::Mismatch),
        }
        if symbol_bytes == 0 {
            return Err(Error::Length { length: 0, expected: 1 });
        }
        let sources = vec![ABSENT; k as usize];
        Ok(Self {
            parameters,
            symbol_bytes,
            method,
            kernels,
            symbols: Vec::new(),
            esis: Vec::new(),
            sources,
            repair: HashSet::new(),
        })
    }

    /// The constants of the block.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Takes the encoding symbol `esi`.
    pub fn push(&mut self, esi: u32, symbol: &[u8]) -> Result<Arrival, Error> {
        if esi >= ESI_END {
            return Err(Error::Esi { esi });
        }
        if symbol.len() != self.symbol_bytes {
            return Err(Error::Length { length: symbol.len(), expected: self.symbol_bytes });
        }
        let is_known = self.sources.get(esi as usize).map_or_else(|| self.repair.contains(&esi), |place| *place != ABSENT);
        if is_known {
            return Ok(Arrival::Duplicate);
        }
        if self.esis.len() == self.sources.len() + Self::SPARE {
            return Ok(Arrival::Full);
        }
        match self.sources.get_mut(esi as usize) {
            Some(place) => *place = index(self.esis.len()),
            None => _ = self.repair.insert(esi),
        }
        self.esis.push(esi);
        self.symbols.extend_from_slice(symbol);
        Ok(Arrival::Kept)
    }

    /// The ids of the symbols that are kept, in the order of arrival.
    pub fn received(&self) -> &[u32] {
        &self.esis
    }

    /// Whether there are as many symbols as it takes at least, so that [`decode`](Self::decode) is worth a try.
    pub fn is_ready(&self) -> bool {
        self.esis.len() >= self.sources.len()
    }

    /// The block, K symbols, unless more symbols are needed. Ask again when one has been kept.
    pub fn decode(&mut self) -> Result<Vec<u8>, Error> {
        if !self.is_ready() {
            return Err(Error::Incomplete { missing: self.sources.len() - self.esis.len() });
        }
        let mut block = self.block();
        let missing = self.missing();
        if missing.is_empty() {
            return Ok(block);
        }
        let mut outs = places(&mut block, self.symbol_bytes, &missing);
        let received = dense::Received { symbols: &self.symbols, esis: &self.esis, symbol_bytes: self.symbol_bytes };
        let result = match &self.method {
            Method::Inactivation => DecodingPlan::of(self.parameters, &self.esis, missing)
                .map(|plan| plan.plan.apply(self.kernels, &self.symbols, &mut outs))
                .map_err(|deficit| Error::Incomplete { missing: deficit.missing }),
            Method::Inversion => dense::invert(&self.parameters, received, &missing, &mut outs, self.kernels),
            Method::Reduction(inverse) => inverse.reduce(&self.parameters, received, &missing, &mut outs, self.kernels),
        };
        if let Err(error) = result {
            self.make_room();
            return Err(error);
        }
        Ok(block)
    }

    /// The block, by a plan that was made for symbols of the same ids in the same order.
    pub fn decode_by(&self, plan: &DecodingPlan) -> Result<Vec<u8>, Error> {
        if plan.k != self.parameters.k || plan.esis != self.esis {
            return Err(Error::Mismatch);
        }
        let mut block = self.block();
        plan.plan.apply(self.kernels, &self.symbols, &mut places(&mut block, self.symbol_bytes, &plan.missing));
        Ok(block)
    }

    /// The source symbols that came in their places, zeros in those of others.
    fn block(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(self.sources.len() * self.symbol_bytes);
        for &place in &self.sources {
            match place {
                ABSENT => block.resize(block.len() + self.symbol_bytes, 0),
                _ => block.extend_from_slice(&self.symbols[place as usize * self.symbol_bytes..][..self.symbol_bytes]),
            }
        }
        block
    }

    fn missing(&self) -> Vec<u32> {
        (0..self.parameters.k).filter(|&source| self.sources[source as usize] == ABSENT).collect()
    }

    /// Drops symbols that depend on others, if there is no room left.
    fn make_room(&mut self) {
        if self.esis.len() < self.sources.len() + Self::SPARE {
            return;
        }
        let Err(Deficit { dependent, .. }) = Solution::new(&self.parameters, &rows(&self.parameters, &self.esis).0) else {
            return;
        };
        // Rows of padding, which are behind those of symbols, have no id.
        let of_symbols = dependent.iter().filter_map(|row| row.checked_sub(self.parameters.s));
        let dropped: HashSet<u32> = of_symbols.filter_map(|row| self.esis.get(row as usize).copied()).collect();
        let (esis, symbols) = (std::mem::take(&mut self.esis), std::mem::take(&mut self.symbols));
        self.sources.fill(ABSENT);
        self.repair.clear();
        for (&esi, symbol) in esis.iter().zip(symbols.chunks_exact(self.symbol_bytes)).filter(|(esi, _)| !dropped.contains(*esi))
        {
            self.push(esi, symbol).expect("it was kept before");
        }
    }
}

/// Those symbols of a block.
fn places<'a>(block: &'a mut [u8], symbol_bytes: usize, symbols: &[u32]) -> Vec<&'a mut [u8]> {
    let mut wanted = symbols.iter().copied().peekable();
    block
        .chunks_exact_mut(symbol_bytes)
        .zip(0..)
        .filter(|(_, symbol)| wanted.next_if_eq(symbol).is_some())
        .map(|(place, _)| place)
        .collect()
}

/// How the source symbols that are missing come from symbols with certain ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodingPlan {
    k: u32,
    esis: Vec<u32>,
    missing: Vec<u32>,
    plan: Plan,
}

impl DecodingPlan {
    /// For a block of `k` source symbols of which symbols with these ids have come, none twice.
    pub fn new(k: u32, esis: &[u32]) -> Result<Self, Error> {
        let parameters = Parameters::new(k)?;
        let is_here = check(&parameters, esis)?;
        let missing = (0..k).filter(|&source| !is_here[source as usize]).collect();
        Self::of(parameters, esis, missing).map_err(|deficit| Error::Incomplete { missing: deficit.missing })
    }

    /// The source symbols that it makes, ascending.
    pub fn missing(&self) -> &[u32] {
        &self.missing
    }

    /// The operations: an input for each id, an output for each missing symbol.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn of(parameters: Parameters, esis: &[u32], missing: Vec<u32>) -> Result<Self, Deficit> {
        let (rows, padding) = rows(&parameters, esis);
        let solution = Solution::new(&parameters, &rows)?;
        let mut inputs: Vec<Option<u32>> = (0..index(esis.len())).map(Some).collect();
        inputs.resize(esis.len() + padding, None);
        let plan = Plan::new(&parameters, &rows, &solution, &inputs, Wanted::Symbols(&missing));
        Ok(Self { k: parameters.k, esis: esis.to_vec(), missing, plan })
    }
}

/// By how much the rank of symbols with these ids, none twice, is too low at least to give a block of `k` source symbols: zero if they
/// do.
pub fn deficit(k: u32, esis: &[u32]) -> Result<usize, Error> {
    let parameters = Parameters::new(k)?;
    check(&parameters, esis)?;
    let (rows, _) = rows(&parameters, esis);
    Ok(Solution::new(&parameters, &rows).map_or_else(|deficit| deficit.missing, |_| 0))
}

/// The rows of these symbols, and behind them those of padding, so many.
fn rows(parameters: &Parameters, esis: &[u32]) -> (Rows, usize) {
    let isis: Vec<u32> = esis.iter().map(|&esi| parameters.isi(esi)).chain(parameters.k..parameters.k_prime).collect();
    (Rows::new(parameters, isis.iter().copied()), isis.len() - esis.len())
}

/// Which source symbols are among these, unless an id is too large or comes twice.
fn check(parameters: &Parameters, esis: &[u32]) -> Result<Vec<bool>, Error> {
    let mut is_here = vec![false; parameters.k as usize];
    let mut seen = HashSet::with_capacity(esis.len());
    for &esi in esis {
        if esi >= ESI_END || !seen.insert(esi) {
            return Err(Error::Esi { esi });
        }
        if let Some(is_here) = is_here.get_mut(esi as usize) {
            *is_here = true;
        }
    }
    Ok(is_here)
}

/// No symbol.
const ABSENT: u32 = u32::MAX;
