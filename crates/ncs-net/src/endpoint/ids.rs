//! The layout of connection ids.
//!
//! A server's connection ids have 8 octets. They say which process and which of its workers owns
//! the connection, so that a packet finds it whatever address it comes from:
//!
//! | octet | bits | content |
//! |---|---|---|
//! | 0 | 3 | 0: the number of this layout |
//! | 0 | 5 | random |
//! | 1 | 8 | the process: 0, or 1 for every second one of those that follow each other |
//! | 2 | 8 | the worker: the position of its socket among those of the address |
//! | 3 to 7 | 40 | random |
//!
//! This is the plaintext algorithm of QUIC-LB with configuration 0 and a server id of two octets:
//! a load balancer that knows QUIC-LB can read it. `docs/decisions/0017-workers.md` says why the
//! numbers are not hidden.

use std::time::Duration;

use quinn::ConnectionIdGenerator;
use quinn_proto::ConnectionId;

/// The length of every connection id of a server, as long as quinn's own.
pub(super) const LENGTH: u8 = 8;
/// The octet that holds the process.
pub(super) const PROCESS_AT: u8 = 1;
/// The octet that holds the worker.
pub(super) const WORKER_AT: u8 = 2;
/// The bits of octet 0 that are random, and those that number the layout, which is 0.
const RANDOM_BITS: u8 = 0x1f;
pub(super) const LAYOUT_BITS: u8 = !RANDOM_BITS;

/// The owner of a connection, which generates its ids.
///
/// 45 of their bits are random, because ids must not meet. After a Retry, a client continues under
/// the connection id that it contains. If another connection has that id already, quinn gives it
/// the client's packets, and nobody ever answers them. Beside 35,000 connections with five ids
/// each, one in two hundred million clients with a Retry is lost. It was one in a hundred with
/// quinn's own ids, which have 24 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    /// The process that holds the connection.
    pub(super) process: u8,
    /// The worker of that process.
    pub(super) worker: u8,
}

impl Owner {
    /// Whether this owner may have generated an id. Of the ids that a client chooses at random, one
    /// in half a million looks like it.
    pub(super) fn is_own(&self, id: &[u8]) -> bool {
        id.len() == usize::from(LENGTH)
            && id[0] & LAYOUT_BITS == 0
            && id[usize::from(PROCESS_AT)] == self.process
            && id[usize::from(WORKER_AT)] == self.worker
    }

    /// Whether another of so many workers of this process has generated an id, or one of another
    /// process that has connections on the same sockets.
    pub(super) fn is_of_another(&self, id: &[u8], workers: u8, other: Option<u8>) -> bool {
        let octet = |at: u8| id.get(usize::from(at)).copied();
        let (Some(process), Some(worker)) = (octet(PROCESS_AT), octet(WORKER_AT)) else {
            return false;
        };
        let its = Self { process, worker };
        let is_there = process == self.process || Some(process) == other;
        is_there && its != *self && worker < workers && its.is_own(id)
    }
}

impl ConnectionIdGenerator for Owner {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id: [u8; LENGTH as usize] = rand::random();
        id[0] &= RANDOM_BITS;
        id[usize::from(PROCESS_AT)] = self.process;
        id[usize::from(WORKER_AT)] = self.worker;
        ConnectionId::new(&id)
    }

    // `validate` accepts every id: those of an earlier process are answered with a reset.

    fn cid_len(&self) -> usize {
        LENGTH.into()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_id_names_its_owner() {
        let mut owner = Owner {
            process: 3,
            worker: 200,
        };
        let mut seen = [0; LENGTH as usize];
        for _ in 0..1000 {
            let id = owner.generate_cid();
            assert_eq!(
                (id.len(), id[0] >> 5, id[1], id[2]),
                (usize::from(LENGTH), 0, 3, 200)
            );
            seen.iter_mut()
                .zip(id.iter())
                .for_each(|(seen, octet)| *seen |= octet);
        }
        assert_eq!(seen, [0x1f, 3, 200, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn ids_of_other_workers_are_known() {
        let owner = |worker| Owner { process: 0, worker };
        let id = owner(2).generate_cid();
        let is_of_another = |worker, id: &[u8], workers| {
            let alone = owner(worker).is_of_another(id, workers, None);
            let beside = owner(worker).is_of_another(id, workers, Some(1));
            assert_eq!(alone, beside);
            alone
        };
        assert!(is_of_another(0, &id, 4) && is_of_another(3, &id, 4));
        assert!(!is_of_another(2, &id, 4));
        assert!(
            !is_of_another(0, &id, 2),
            "there were more before a restart"
        );
        assert!(!is_of_another(0, &id[..7], 4));
        let of = |process| Owner { process, worker: 2 }.generate_cid();
        assert!(!is_of_another(0, &of(9), 4));
        for worker in [0, 2] {
            assert!(owner(worker).is_of_another(&of(1), 4, Some(1)));
            assert!(
                !owner(worker).is_of_another(&of(1), 4, None),
                "it has ended, and its connections are reset"
            );
        }
        assert!(!owner(0).is_of_another(&of(1), 2, Some(1)));
    }

    #[test]
    fn names_of_connections_do_not_meet() {
        let mut ids = Owner {
            process: 0,
            worker: 0,
        };
        assert_eq!(ids.cid_len(), usize::from(LENGTH));
        let mut met = HashSet::new();
        // With 24 bits, 128 of them would repeat.
        assert!((0..1 << 16).all(|_| met.insert(ids.generate_cid())));
    }
}
