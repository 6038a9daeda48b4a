//! What proves that blocks and metadata are those of the stream: its signature, hashes of blocks, and secret checksums of rows.
//!
//! A segment is named by the hash of its bytes, so a whole one proves itself. What this module adds serves peers that draw on others
//! which nobody vouches for: the stream's key says which id a path has ([`signing`]), hashes tell a wrong source block as it comes
//! ([`hashes`]), and checksums that no sender knows tell a wrong row of any kind ([`checks`]). Pure computation: no socket, clock or task.

pub mod checks;
pub mod hashes;
pub mod signing;
