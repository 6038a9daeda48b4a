//! The layout of connection ids.
//!
//! A server's connection ids have 8 octets. They say which process and which of its workers owns
//! the connection, so that a packet finds it whatever address it comes from:
//!
//! | octet | bits | content |
//! |---|---|---|
//! | 0 | 3 | 0: the number of this layout |
//! | 0 | 5 | random |
//! | 1 | 8 | the process |
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
const PROCESS_AT: usize = 1;
/// The octet that holds the worker.
pub(super) const WORKER_AT: u8 = 2;
/// The bits of octet 0 that are random.
const RANDOM_BITS: u8 = 0x1f;

/// The process of a server that has no other process beside it on its address.
pub(super) const ONLY_PROCESS: u8 = 0;

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
            && id[0] & !RANDOM_BITS == 0
            && id[PROCESS_AT] == self.process
            && id[usize::from(WORKER_AT)] == self.worker
    }

    /// Whether another of so many workers of this process has generated an id.
    pub(super) fn is_of_another(&self, id: &[u8], workers: u8) -> bool {
        let worker = id.get(usize::from(WORKER_AT)).copied();
        let its = Self {
            worker: worker.unwrap_or(self.worker),
            ..*self
        };
        its.worker != self.worker && its.worker < workers && its.is_own(id)
    }
}

impl ConnectionIdGenerator for Owner {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id: [u8; LENGTH as usize] = rand::random();
        id[0] &= RANDOM_BITS;
        id[PROCESS_AT] = self.process;
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
        let owner = |worker| Owner {
            process: ONLY_PROCESS,
            worker,
        };
        let id = owner(2).generate_cid();
        assert!(owner(0).is_of_another(&id, 4) && owner(3).is_of_another(&id, 4));
        assert!(!owner(2).is_of_another(&id, 4));
        assert!(
            !owner(0).is_of_another(&id, 2),
            "there were more before a restart"
        );
        assert!(!owner(0).is_of_another(&id[..7], 4));
        let foreign = Owner {
            process: 9,
            worker: 2,
        };
        assert!(!owner(0).is_of_another(&foreign.clone().generate_cid(), 4));
    }

    #[test]
    fn names_of_connections_do_not_meet() {
        let mut ids = Owner {
            process: ONLY_PROCESS,
            worker: 0,
        };
        assert_eq!(ids.cid_len(), usize::from(LENGTH));
        let mut met = HashSet::new();
        // With 24 bits, 128 of them would repeat.
        assert!((0..1 << 16).all(|_| met.insert(ids.generate_cid())));
    }
}
