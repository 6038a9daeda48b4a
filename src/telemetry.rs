//! Logs, metrics and the listener that shows them.

pub mod register;
