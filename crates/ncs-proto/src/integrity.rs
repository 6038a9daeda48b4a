//! Proofs that blocks and metadata belong to a stream: its signature, hashes of blocks, and secret
//! checksums of rows.
//!
//! A segment is named by the hash of its bytes, so a complete one proves itself. This module serves
//! peers that draw on untrusted sources: the stream's key signs the id of a path ([`signing`]),
//! hashes tell a wrong source block as it comes ([`hashes`]), and checksums that no sender knows
//! tell a wrong row of any kind ([`checks`]). It is pure computation: no socket, clock or task.

pub mod checks;
pub mod hashes;
pub mod signing;
