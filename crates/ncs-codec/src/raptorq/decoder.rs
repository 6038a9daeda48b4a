//! Decoding of a source block from received symbols.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::dense::{self, DENSE_K_MAX, Inverse};
use super::error::Error;
use super::parameters::Parameters;
use crate::block::ESI_END;
use crate::raptor::{self, Code, Held, Refusal};
use ncs_gf::Kernels;
use ncs_gf::dense::{Algebra, Cores};

/// Collects symbols of one block until the source symbols can be found.
pub type Decoder = raptor::Decoder<Parameters>;

/// A plan that makes the missing source symbols from symbols with certain ids.
pub type DecodingPlan = raptor::DecodingPlan<Parameters>;

/// The method of finding missing symbols. All methods succeed on the same sets of symbols.
#[derive(Debug, Clone, Default)]
pub enum Method {
    /// Inactivation decoding (RFC 6330, section 5.4.2): sparse as far as the structure is, for
    /// every K.
    #[default]
    Inactivation,
    /// Dense inversion of the whole system: the first scheme of the thesis of Vicente (2015). For K
    /// up to [`DENSE_K_MAX`].
    Inversion,
    /// Inversion of the missing source symbols' part of the repair symbols only: the second scheme,
    /// matrix-dimensionality reduction (Guo 2014), with the inverse that source symbols have in
    /// common. For K up to [`DENSE_K_MAX`].
    Reduction(Arc<Inverse>),
}

/// A method, and the processor that inverts and multiplies dense matrices.
#[derive(Debug)]
pub struct Solver {
    method: Method,
    algebra: Arc<dyn Algebra>,
}

impl Code for Parameters {
    type Error = Error;
    type Solver = Solver;

    const ESI_END: u32 = ESI_END;

    fn of(k: u32) -> Result<Self, Error> {
        Self::new(k)
    }

    fn decode(&self, solver: &Solver, held: &mut Held, kernels: Kernels) -> Result<Vec<u8>, Error> {
        let algebra = solver.algebra.as_ref();
        match &solver.method {
            Method::Inactivation => held
                .decoded(kernels, self)
                .map_err(|missing| Refusal::Incomplete { missing }.into()),
            Method::Inversion => decode_densely(self, held, |received, missing, outs| {
                dense::invert(self, received, missing, outs, kernels, algebra)
            }),
            Method::Reduction(inverse) => decode_densely(self, held, |received, missing, outs| {
                inverse.reduce(self, received, missing, outs, kernels, algebra)
            }),
        }
    }
}

fn decode_densely(
    parameters: &Parameters,
    held: &mut Held,
    solve: impl FnOnce(dense::Received<'_>, &[u32], &mut [&mut [u8]]) -> Result<(), Error>,
) -> Result<Vec<u8>, Error> {
    if held.shortage() > 0 {
        return Err(Refusal::Incomplete {
            missing: held.shortage(),
        }
        .into());
    }
    let mut block = held.block();
    let missing = held.missing();
    if missing.is_empty() {
        return Ok(block);
    }
    let mut outs = held.places(&mut block, &missing);
    let received = dense::Received {
        symbols: held.symbols(),
        esis: held.esis(),
        symbol_bytes: held.symbol_bytes(),
    };
    if let Err(error) = solve(received, &missing, &mut outs) {
        held.make_room(parameters);
        return Err(error);
    }
    Ok(block)
}

impl raptor::Decoder<Parameters> {
    /// A decoder for a block of `k` source symbols of `symbol_bytes`.
    pub fn new(
        k: u32,
        symbol_bytes: usize,
        method: Method,
        kernels: Kernels,
    ) -> Result<Self, Error> {
        let parameters = Parameters::new(k)?;
        match &method {
            Method::Inactivation => (),
            Method::Inversion | Method::Reduction(_) if k > DENSE_K_MAX => {
                return Err(Error::Dense { k });
            }
            Method::Inversion => (),
            Method::Reduction(inverse) if inverse.k_prime() == parameters.k_prime => (),
            Method::Reduction(_) => return Err(Refusal::Mismatch.into()),
        }
        let solver = Solver {
            method,
            algebra: Arc::new(Cores::new(kernels, NonZeroUsize::MIN)),
        };
        Self::with_solver(parameters, symbol_bytes, solver, kernels)
    }

    /// The same decoder, with `algebra` (several threads, or a card) for inverting and multiplying
    /// dense matrices. The default is one thread. Inactivation does not use it.
    #[must_use]
    pub fn with_algebra(mut self, algebra: Arc<dyn Algebra>) -> Self {
        self.solver.algebra = algebra;
        self
    }
}

/// Lower bound of the rank deficit of symbols with these ids, none twice, for a block of `k` source
/// symbols; zero if they determine it.
pub fn deficit(k: u32, esis: &[u32]) -> Result<usize, Error> {
    raptor::deficit::<Parameters>(k, esis)
}
