//! Without the prime field there are no rows over it.

use ncs_codec::block::Vector;
use rand::Rng;

use super::news::News;
use crate::object::Generation;

/// Nothing is of this type.
#[derive(Debug)]
pub(super) enum Proven {}

impl Proven {
    pub(super) fn new(_: &Generation) -> Option<Self> {
        None
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match *self {}
    }

    pub(super) fn rank(&self) -> u32 {
        match *self {}
    }

    pub(super) fn absorb(&mut self, _: News) {
        match *self {}
    }

    pub(super) fn recode(&self, _: &mut impl Rng, _: &mut [&mut [u8]]) -> Vec<Vector> {
        match *self {}
    }
}
