//! Pauses in which events gather, for a program that serves others beside its own work.
//!
//! Neighbours send single packets, a hundred a second, and each would wake the program: to find out
//! what is due takes longer than the work on one packet. So a worker that has nothing to do first
//! sleeps, and then finds several. It does not after it had much to do: more may be coming than a
//! socket's buffer holds for so long.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use ncs_net::machine::thread_cpu_time;
use tokio::runtime::Builder;

/// How long events gather. It adds to the round trip, and is a part of the queueing delay that
/// [`ncs_net::endpoint::Uplink`] aims at.
const GATHER: Duration = Duration::from_millis(20);
/// After more work than this, in processor time, a worker waits for the next event at once. It is
/// that on 150 kB of blocks; Linux's usual socket buffer holds 200 kB.
const BUSY: Duration = Duration::from_millis(2);

/// Has the workers of a runtime pause before they wait for events.
pub(crate) fn between_events(runtime: &mut Builder) {
    thread_local! {
        /// The worker's processor time when it last began to work.
        static BEGUN: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }
    runtime.on_thread_unpark(|| BEGUN.set(thread_cpu_time()));
    runtime.on_thread_park(|| {
        if thread_cpu_time().saturating_sub(BEGUN.get()) < BUSY {
            thread::sleep(GATHER);
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn events_gather_while_little_comes() {
        let wakes = |has_pauses: bool| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1);
            if has_pauses {
                between_events(&mut builder);
            }
            let runtime = builder.build().unwrap();
            let (send, mut receive) = mpsc::unbounded_channel();
            let counting = runtime.spawn(async move {
                let (mut wakes, mut all) = (0, Vec::new());
                while receive.recv_many(&mut all, usize::MAX).await > 0 {
                    wakes += 1;
                }
                (wakes, all.len())
            });
            for _ in 0..50 {
                send.send(()).unwrap();
                thread::sleep(Duration::from_millis(4));
            }
            drop(send);
            let (wakes, all) = runtime.block_on(counting).unwrap();
            assert_eq!(all, 50);
            wakes
        };
        // The first of 200 ms can be a wake of their own.
        let (with, without) = (wakes(true), wakes(false));
        assert!(with <= 20 && with < without, "{with} of {without}");
    }
}
