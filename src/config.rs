//! The configuration: every module owns its part, this one composes, loads and explains them.

pub mod duration;
