//! Storage of a block's symbols as they arrive.

use std::collections::HashSet;

use super::plan::Plan;
use super::planning::{decoding_plan, solvable};
use super::rows::index;
use super::system::System;
use ncs_gf::Kernels;

/// The result of storing a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The symbol is stored.
    Kept,
    /// The symbol had arrived before.
    Duplicate,
    /// The maximum number of symbols beyond K is already stored.
    Full,
}

/// Symbols of a block in the order of arrival, none twice, at most K + [`SPARE`](Self::SPARE).
#[derive(Debug)]
pub struct Held {
    symbol_bytes: usize,
    symbols: Vec<u8>,
    esis: Vec<u32>,
    /// The place of each source symbol among them, or [`ABSENT`].
    sources: Vec<u32>,
    repair: HashSet<u32>,
}

impl Held {
    /// Maximum number of symbols stored beyond K.
    pub(crate) const SPARE: usize = 64;

    /// An empty store for a block of `k` source symbols. `symbol_bytes` is not zero.
    pub(crate) fn new(k: u32, symbol_bytes: usize) -> Self {
        let sources = vec![ABSENT; k as usize];
        Self {
            symbol_bytes,
            symbols: Vec::new(),
            esis: Vec::new(),
            sources,
            repair: HashSet::new(),
        }
    }

    pub(crate) fn symbol_bytes(&self) -> usize {
        self.symbol_bytes
    }

    /// Stores the encoding symbol `esi`, which has the length of a symbol.
    pub(crate) fn push(&mut self, esi: u32, symbol: &[u8]) -> Arrival {
        let is_known = self
            .sources
            .get(esi as usize)
            .map_or_else(|| self.repair.contains(&esi), |place| *place != ABSENT);
        if is_known {
            return Arrival::Duplicate;
        }
        if self.is_full() {
            return Arrival::Full;
        }
        match self.sources.get_mut(esi as usize) {
            Some(place) => *place = index(self.esis.len()),
            None => _ = self.repair.insert(esi),
        }
        self.esis.push(esi);
        self.symbols.extend_from_slice(symbol);
        Arrival::Kept
    }

    /// The ids, in the order of arrival.
    pub(crate) fn esis(&self) -> &[u32] {
        &self.esis
    }

    /// The symbols, in the order of arrival, one after the other.
    pub(crate) fn symbols(&self) -> &[u8] {
        &self.symbols
    }

    fn is_full(&self) -> bool {
        self.esis.len() == self.sources.len() + Self::SPARE
    }

    /// The number of symbols missing to K.
    pub(crate) fn shortage(&self) -> usize {
        self.sources.len().saturating_sub(self.esis.len())
    }

    /// The source symbols that have not arrived, ascending.
    pub(crate) fn missing(&self) -> Vec<u32> {
        (0..)
            .zip(&self.sources)
            .filter(|(_, place)| **place == ABSENT)
            .map(|(source, _)| source)
            .collect()
    }

    /// The arrived source symbols in their places, with zeros in the others.
    pub(crate) fn block(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(self.sources.len() * self.symbol_bytes);
        for &place in &self.sources {
            match place {
                ABSENT => block.resize(block.len() + self.symbol_bytes, 0),
                _ => block.extend_from_slice(
                    &self.symbols[place as usize * self.symbol_bytes..][..self.symbol_bytes],
                ),
            }
        }
        block
    }

    /// Those symbols of a block.
    pub(crate) fn places<'a>(&self, block: &'a mut [u8], symbols: &[u32]) -> Vec<&'a mut [u8]> {
        let mut wanted = symbols.iter().copied().peekable();
        block
            .chunks_exact_mut(self.symbol_bytes)
            .zip(0..)
            .filter(|(_, symbol)| wanted.next_if_eq(symbol).is_some())
            .map(|(place, _)| place)
            .collect()
    }

    /// The block, rebuilt by a plan that makes the symbols `missing` from the stored ones.
    pub(crate) fn rebuilt(&self, kernels: Kernels, plan: &Plan, missing: &[u32]) -> Vec<u8> {
        let mut block = self.block();
        plan.apply(
            kernels,
            &self.symbols,
            &mut self.places(&mut block, missing),
        );
        block
    }

    /// The block, or a lower bound of the number of symbols still needed.
    pub(crate) fn decoded(
        &mut self,
        kernels: Kernels,
        system: &impl System,
    ) -> Result<Vec<u8>, usize> {
        let (missing, plan) = self.solution(system)?;
        Ok(plan.map_or_else(
            || self.block(),
            |plan| self.rebuilt(kernels, &plan, &missing),
        ))
    }

    /// The missing source symbols, with the plan that makes them from the stored ones (`None` if
    /// none is missing); or a lower bound of the number of symbols still needed.
    pub(crate) fn solution(
        &mut self,
        system: &impl System,
    ) -> Result<(Vec<u32>, Option<Plan>), usize> {
        if self.shortage() > 0 {
            return Err(self.shortage());
        }
        let missing = self.missing();
        if missing.is_empty() {
            return Ok((missing, None));
        }
        match decoding_plan(system, &self.esis, &missing) {
            Ok(plan) => Ok((missing, Some(plan))),
            Err(deficit) => {
                self.make_room(system);
                Err(deficit.missing)
            }
        }
    }

    /// Drops symbols that depend on others, if there is no room left.
    pub(crate) fn make_room(&mut self, system: &impl System) {
        if !self.is_full() {
            return;
        }
        let Err(deficit) = solvable(system, &self.esis) else {
            return;
        };
        // Rows of LDPC, and those of padding, which are behind those of symbols, have no id.
        let of_symbols = deficit
            .dependent
            .iter()
            .filter_map(|row| row.checked_sub(system.size().s));
        let dropped: HashSet<u32> = of_symbols
            .filter_map(|row| self.esis.get(row as usize).copied())
            .collect();
        let (esis, symbols) = (
            std::mem::take(&mut self.esis),
            std::mem::take(&mut self.symbols),
        );
        self.sources.fill(ABSENT);
        self.repair.clear();
        for (&esi, symbol) in esis
            .iter()
            .zip(symbols.chunks_exact(self.symbol_bytes))
            .filter(|(esi, _)| !dropped.contains(*esi))
        {
            self.push(esi, symbol);
        }
    }
}

/// The source symbols of K that are not among these ids, ascending. If an id is not below `end` or
/// comes twice, that id.
pub(crate) fn missing(k: u32, end: u32, esis: &[u32]) -> Result<Vec<u32>, u32> {
    let mut is_here = vec![false; k as usize];
    let mut seen = HashSet::with_capacity(esis.len());
    for &esi in esis {
        if esi >= end || !seen.insert(esi) {
            return Err(esi);
        }
        if let Some(is_here) = is_here.get_mut(esi as usize) {
            *is_here = true;
        }
    }
    Ok((0..k).filter(|&source| !is_here[source as usize]).collect())
}

/// No symbol.
const ABSENT: u32 = u32::MAX;
