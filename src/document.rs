//! The configuration that the servers of a fleet share: one document, in revisions, in a store of
//! NATS.
//!
//! An operator applies a document ([`apply`], [`roll_back`]); each server reads it
//! ([`Following::read`]), takes it like the change of a file, and says in its beats which revision
//! is in force. A server refuses a document that does not go with its own file, keeps the last good
//! one, and says so. It keeps that one on its disk, too, and starts with it: nothing waits for the
//! store.
//!
//! `entry` is the form in the store, with what only servers can read in it (`sealing`). `keep` is
//! what a server has on its disk.

mod command;
mod entry;
mod follow;
mod keep;
mod nesting;
mod sealing;
mod store;

pub use command::{Apply, Error as CommandError, apply, inspect, roll_back, show};
pub use follow::{Following, News, Taken};
pub use keep::Error;
