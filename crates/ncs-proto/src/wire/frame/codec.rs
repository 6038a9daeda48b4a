//! Numbers of codes, in HELLO and META.

/// Random linear coding over bytes.
pub(super) const RLNC: u64 = 1;
pub(super) const RAPTORQ: u64 = 2;
pub(super) const REED_SOLOMON: u64 = 3;
pub(super) const RLNC_Q: u64 = 4;
