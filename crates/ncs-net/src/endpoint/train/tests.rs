use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::task::{Wake, Waker};

use super::*;

const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const THERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2);

/// A socket that records sends, with their length and datagram length, and accepts `room` calls.
#[derive(Debug)]
struct Noting {
    sent: Mutex<Vec<(SocketAddr, usize, Option<usize>)>>,
    room: AtomicUsize,
    waiting: Mutex<Option<Waker>>,
}

impl Noting {
    fn new(room: usize) -> Arc<Self> {
        Arc::new(Self {
            sent: Mutex::default(),
            room: AtomicUsize::new(room),
            waiting: Mutex::default(),
        })
    }

    fn sent(&self) -> Vec<(SocketAddr, usize, Option<usize>)> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    fn make_room(&self) {
        self.room.store(usize::MAX, Ordering::SeqCst);
        if let Some(waker) = self.waiting.lock().unwrap().take() {
            waker.wake();
        }
    }
}

impl AsyncUdpSocket for Noting {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(NotingPoller(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.room
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |room| {
                room.checked_sub(1)
            })
            .map_err(|_| io::Error::from(ErrorKind::WouldBlock))?;
        self.sent.lock().unwrap().push((
            transmit.destination,
            transmit.contents.len(),
            transmit.segment_size,
        ));
        Ok(())
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        _: &mut [IoSliceMut<'_>],
        _: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(HERE)
    }

    fn max_transmit_segments(&self) -> usize {
        64
    }
}

#[derive(Debug)]
struct NotingPoller(Arc<Noting>);

impl UdpPoller for NotingPoller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        *self.0.waiting.lock().unwrap() = Some(cx.waker().clone());
        if self.0.room.load(Ordering::SeqCst) > 0 {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }
}

/// One round of a connection: the datagrams that it sends (destination, length, datagram length),
/// and whether it has more to send.
type Round = (Vec<(SocketAddr, usize, Option<usize>)>, bool);

/// A connection that runs these rounds and then waits, or ends.
struct Script {
    socket: Arc<Socket>,
    poller: Pin<Box<dyn UdpPoller>>,
    rounds: VecDeque<Round>,
    ends: bool,
    polls: Arc<AtomicUsize>,
}

impl Future for Script {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        let Some((sends, goes_on)) = self.rounds.pop_front() else {
            return if self.ends {
                Poll::Ready(())
            } else {
                Poll::Pending
            };
        };
        for (index, &(destination, length, segment_size)) in sends.iter().enumerate() {
            let contents = vec![0; length];
            let transmit = Transmit {
                destination,
                ecn: None,
                contents: &contents,
                segment_size,
                src_ip: None,
            };
            // As quinn does.
            loop {
                if self.poller.as_mut().poll_writable(cx).is_pending() {
                    self.rounds.push_front((sends[index..].to_vec(), goes_on));
                    return Poll::Pending;
                }
                match self.socket.try_send(&transmit) {
                    Ok(()) => break,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        }
        if goes_on {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Counts wakes.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Bed {
    below: Arc<Noting>,
    turns: Pin<Box<Turns>>,
    polls: Arc<AtomicUsize>,
    bell: Arc<Bell>,
}

impl Bed {
    fn new(room: usize, couples: bool, rounds: Vec<Round>, ends: bool) -> Self {
        let below = Noting::new(room);
        let socket = Socket::new(Arc::clone(&below) as _, couples);
        let polls = Arc::default();
        let poller = Arc::clone(&socket).create_io_poller();
        let driver = Script {
            socket: Arc::clone(&socket),
            poller,
            rounds: rounds.into(),
            ends,
            polls: Arc::clone(&polls),
        };
        Self {
            below,
            turns: Box::pin(Turns::new(Box::pin(driver), socket)),
            polls,
            bell: Arc::default(),
        }
    }

    fn poll(&mut self) -> Poll<()> {
        let waker = Waker::from(Arc::clone(&self.bell));
        self.turns.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn wakes(&self) -> usize {
        self.bell.0.swap(0, Ordering::SeqCst)
    }
}

fn round(sends: &[(SocketAddr, usize, Option<usize>)], goes_on: bool) -> Round {
    (sends.to_vec(), goes_on)
}

const TEN: (SocketAddr, usize, Option<usize>) = (THERE, 14_520, Some(1452));

#[test]
fn what_is_sent_in_rounds_leaves_in_as_few_calls_as_it_fits() {
    let mut bed = Bed::new(
        usize::MAX,
        true,
        vec![
            round(&[TEN, TEN], true),
            round(&[TEN, TEN], true),
            round(&[TEN, TEN], false),
        ],
        false,
    );
    assert_eq!(bed.poll(), Poll::Pending);
    assert_eq!(
        bed.below.sent(),
        [(THERE, 58_080, Some(1452)), (THERE, 29_040, Some(1452))]
    );
    assert_eq!((bed.polls.load(Ordering::SeqCst), bed.wakes()), (3, 0));
}

#[test]
fn others_get_their_turn_after_some_rounds() {
    let rounds = (0..ROUNDS_MAX + 1).map(|_| round(&[TEN], true)).collect();
    let mut bed = Bed::new(usize::MAX, true, rounds, false);
    assert_eq!(bed.poll(), Poll::Pending);
    assert_eq!(
        (bed.polls.load(Ordering::SeqCst), bed.wakes()),
        (ROUNDS_MAX as usize, 1)
    );
    assert_eq!(bed.poll(), Poll::Pending);
    assert_eq!(bed.wakes(), 0);
    let bytes: usize = bed.below.sent().iter().map(|sent| sent.1).sum();
    assert_eq!(bytes, 14_520 * (ROUNDS_MAX as usize + 1));
}

#[test]
fn only_the_last_datagram_of_a_call_is_shorter() {
    let sends = [
        (THERE, 2904, Some(1452)),
        (THERE, 1452, None),
        (THERE, 70, None),
        (THERE, 1452, None),
        (THERE, 1500, None),
        (HERE, 1500, None),
    ];
    let mut bed = Bed::new(usize::MAX, true, vec![round(&sends, false)], false);
    assert_eq!(bed.poll(), Poll::Pending);
    let sent = bed.below.sent();
    assert_eq!(
        sent,
        [
            (THERE, 4426, Some(1452)),
            (THERE, 1452, None),
            (THERE, 1500, None),
            (HERE, 1500, None)
        ]
    );
    assert!(sent.iter().all(|(_, bytes, _)| *bytes <= BYTES_MAX));
}

#[test]
fn without_offload_each_call_is_as_it_came() {
    let mut bed = Bed::new(
        usize::MAX,
        false,
        vec![round(&[(THERE, 1452, None), (THERE, 1452, None)], false)],
        false,
    );
    assert_eq!(bed.poll(), Poll::Pending);
    assert_eq!(bed.below.sent(), [(THERE, 1452, None), (THERE, 1452, None)]);
}

#[test]
fn what_a_full_socket_does_not_take_leaves_when_it_has_room_and_in_order() {
    let rounds = vec![
        round(&[TEN, TEN, TEN, TEN], true),
        round(&[(THERE, 1000, None)], true),
        round(&[TEN], false),
    ];
    let mut bed = Bed::new(0, true, rounds, false);
    assert_eq!(bed.poll(), Poll::Pending);
    assert_eq!(bed.poll(), Poll::Pending);
    assert!(bed.below.sent().is_empty());
    bed.wakes();
    bed.below.make_room();
    assert_eq!(bed.wakes(), 1);
    assert_eq!(bed.poll(), Poll::Pending);
    let sent: Vec<usize> = bed.below.sent().iter().map(|sent| sent.1).collect();
    assert_eq!(sent, [59_080, 14_520]);
}

#[test]
fn the_end_of_a_connection_sends_what_it_said_last() {
    let mut bed = Bed::new(
        usize::MAX,
        true,
        vec![round(&[(THERE, 40, None)], true)],
        true,
    );
    assert_eq!(bed.poll(), Poll::Ready(()));
    assert_eq!(bed.below.sent(), [(THERE, 40, None)]);
}

#[test]
fn a_wake_while_it_waits_wakes_its_task() {
    let mut bed = Bed::new(usize::MAX, true, Vec::new(), false);
    assert_eq!(bed.poll(), Poll::Pending);
    assert_eq!((bed.polls.load(Ordering::SeqCst), bed.wakes()), (1, 0));
    bed.turns.task.waker.wake_by_ref();
    assert_eq!(bed.wakes(), 1);
}

#[test]
fn outside_of_turns_nothing_waits() {
    let below = Noting::new(usize::MAX);
    let socket = Socket::new(Arc::clone(&below) as _, true);
    let transmit = Transmit {
        destination: THERE,
        ecn: None,
        contents: &[0; 30],
        segment_size: None,
        src_ip: None,
    };
    socket.try_send(&transmit).unwrap();
    assert_eq!(below.sent(), [(THERE, 30, None)]);
}
