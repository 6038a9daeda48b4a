//! The rules of admission of a server: the paths that a right covers, who is counted together, and
//! the limits of an account.
//!
//! [`scope`] says which paths are meant, [`account`] counts connections and bytes, [`ledger`]
//! counts memory, and [`tickets`] judges the credentials that a server has given its viewers for
//! other peers. Tokens and certificates are judged elsewhere; each of them yields a [`Scope`], an
//! end and a [`Holder`]. The result for a session is an [`Access`]. [`intake`] decides how many
//! viewers are let in, and when.

pub mod account;
mod holder;
pub mod intake;
pub mod ledger;
pub mod scope;
pub mod tickets;

pub use holder::Holder;
pub use ledger::{Kept, Ledger, Share};
pub use scope::{Access, Scope};
pub use tickets::Tickets;
