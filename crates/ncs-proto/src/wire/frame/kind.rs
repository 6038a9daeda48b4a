//! Frame types. An unknown even type ends the connection; an unknown odd one is skipped.

pub(super) const HELLO: u64 = 0x00;
pub(super) const AUTH: u64 = 0x02;
pub(super) const GRANT: u64 = 0x04;
pub(super) const SUBSCRIBE: u64 = 0x06;
pub(super) const SUBSCRIBE_OK: u64 = 0x08;
pub(super) const ERROR: u64 = 0x0a;
pub(super) const UNSUBSCRIBE: u64 = 0x0c;
pub(super) const META: u64 = 0x0e;
pub(super) const REQUEST: u64 = 0x10;
pub(super) const CREDIT: u64 = 0x12;
pub(super) const STOP: u64 = 0x14;
pub(super) const REJECT: u64 = 0x16;
pub(super) const RANK: u64 = 0x17;
pub(super) const HAVE: u64 = 0x19;
pub(super) const GET_CHECKS: u64 = 0x1a;
pub(super) const CHECKS: u64 = 0x1c;
pub(super) const BLAME: u64 = 0x1d;
pub(super) const PEERS: u64 = 0x1f;
pub(super) const GOAWAY: u64 = 0x22;
pub(super) const GET: u64 = 0x24;
pub(super) const GET_HASHES: u64 = 0x26;
pub(super) const OFFER: u64 = 0x27;
pub(super) const RESCHEDULE: u64 = 0x29;
pub(super) const OFFER_PAGE: u64 = 0x2b;
pub(super) const PAGE: u64 = 0x2d;
pub(super) const PAGES: u64 = 0x2f;
pub(super) const SIGNAL: u64 = 0x31;
pub(super) const ALTERNATES: u64 = 0x33;

/// Whether this version knows a type.
pub(super) const fn is_known(kind: u64) -> bool {
    matches!(
        kind,
        HELLO
            | AUTH
            | GRANT
            | SUBSCRIBE
            | SUBSCRIBE_OK
            | ERROR
            | UNSUBSCRIBE
            | META
            | REQUEST
            | CREDIT
            | STOP
            | REJECT
            | RANK
            | HAVE
            | GET_CHECKS
            | CHECKS
            | BLAME
            | PEERS
            | GOAWAY
            | GET
            | GET_HASHES
            | OFFER
            | RESCHEDULE
            | OFFER_PAGE
            | PAGE
            | PAGES
            | SIGNAL
            | ALTERNATES
    )
}

/// Whether a frame of an unknown type is skipped. Otherwise it ends the connection.
pub(super) const fn may_be_skipped(kind: u64) -> bool {
    kind & 1 == 1
}
