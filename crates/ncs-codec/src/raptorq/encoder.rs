//! Encoding symbols of a source block.

use super::parameters::Parameters;
use crate::raptor;

/// Makes encoding symbols of one source block.
pub type Encoder = raptor::Encoder<Parameters>;

/// A plan that makes the intermediate symbols of a block from its source symbols. Keep it, because
/// making it takes about as long as using it once.
pub type EncodingPlan = raptor::EncodingPlan<Parameters>;
