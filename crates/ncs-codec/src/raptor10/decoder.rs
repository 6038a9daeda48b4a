//! Decoding of a source block from received symbols, by inactivation decoding (RFC 5053, section
//! 5.5.2).

use super::error::Error;
use super::parameters::{ESI_END, Parameters};
use crate::raptor::{self, Code, Held, Refusal};
use ncs_gf::Kernels;

/// Collects symbols of one block until the source symbols can be found.
pub type Decoder = raptor::Decoder<Parameters>;

/// A plan that makes the missing source symbols from symbols with certain ids.
pub type DecodingPlan = raptor::DecodingPlan<Parameters>;

impl Code for Parameters {
    type Error = Error;
    type Solver = ();

    const ESI_END: u32 = ESI_END;

    fn of(k: u32) -> Result<Self, Error> {
        Self::new(k)
    }

    fn decode(&self, (): &(), held: &mut Held, kernels: Kernels) -> Result<Vec<u8>, Error> {
        held.decoded(kernels, self)
            .map_err(|missing| Refusal::Incomplete { missing }.into())
    }
}

impl raptor::Decoder<Parameters> {
    /// A decoder for a block of `k` source symbols of `symbol_bytes`.
    pub fn new(k: u32, symbol_bytes: usize, kernels: Kernels) -> Result<Self, Error> {
        Self::with_solver(Parameters::new(k)?, symbol_bytes, (), kernels)
    }
}

/// Lower bound of the rank deficit of symbols with these ids, none twice, for a block of `k` source
/// symbols; zero if they determine it.
pub fn deficit(k: u32, esis: &[u32]) -> Result<usize, Error> {
    raptor::deficit::<Parameters>(k, esis)
}
