//! The rules by which a server admits: which paths a right covers, who is counted together, and
//! what they may have.
//!
//! [`scope`] says which paths are meant, [`account`] counts connections and bytes, [`ledger`] what
//! is kept in memory, [`tickets`] judges what a server has given its viewers for other peers.
//! Tokens and certificates are judged elsewhere; all of them come to a [`Scope`], an end and a
//! [`Holder`]. What a session may do with the outcome is an [`Access`].

pub mod account;
mod holder;
pub mod ledger;
pub mod scope;
pub mod tickets;

pub use holder::Holder;
pub use ledger::{Kept, Ledger, Share};
pub use scope::{Access, Scope};
pub use tickets::Tickets;
