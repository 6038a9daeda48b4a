//! What is published: streams, objects, segments and their generations, as plain values.
//!
//! An *object* is one file of a stream at the origin. An immutable object, or an aligned part of a
//! large one, is a *segment*, known by the BLAKE3 hash of its bytes. A segment is cut into
//! *generations* of at most `n_max` blocks of `block_bytes` bytes. Each generation is coded by
//! itself (RFC 8406 section 2.1), with the [`Codec`] of its stream.

mod held;
mod id;
mod lease;
mod refusal;
mod resolved;
mod tree;

pub use ncs_codec::shape::{Codec, Coding, Generation, HashGroup, Shape, ShapeError};

pub use held::{Arrival, Birth, FirstPass, Held};
pub use id::{AskedBy, GenerationKey, ParseIdError, SegmentId, SegmentKey, row_key};
pub use lease::{GRACE, Lease, Loan, Released, Standing};
pub use refusal::{Refusal, RefusalCode};
pub use resolved::{Body, Resolved, Signature};
pub use tree::Tree;
