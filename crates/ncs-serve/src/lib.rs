//! What a server and a relay share: sessions with peers, and what sessions need.
//!
//! A server answers what sessions ask of its streams and its store, and encodes; a relay answers of
//! what it has fetched, and recodes. Between these and the peers is this crate: the [`ring`] that
//! blocks pass through, the [`session`]s that send them, who may connect ([`accept`], [`headroom`])
//! and ask ([`admission`]), who is named to whom ([`directory`]), which other servers there are
//! ([`fleet`]), how large all this may be ([`sizes`]), the documents that are read again and again
//! ([`source`]), and the [`front`] that opens it.

pub mod accept;
pub mod admission;
pub mod aside;
pub mod directory;
pub mod fleet;
pub mod front;
pub mod gfq;
pub mod headroom;
pub mod planner;
pub mod ring;
pub mod session;
pub mod sizes;
pub mod source;
pub mod turn;
pub mod turns;
