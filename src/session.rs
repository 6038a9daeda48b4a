//! One conversation with one peer: its requests, credits and pacing.
