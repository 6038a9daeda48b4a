use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::*;

const GENERATION: GenerationKey = GenerationKey {
    segment: SegmentKey(1),
    index: 0,
};
const CODED: LineKey = LineKey {
    generation: GENERATION,
    kind: LineKind::Coded,
};
const ANNA: SessionId = SessionId(1);
const BERT: SessionId = SessionId(2);

/// Later than the deadlines before it.
fn soon() -> Instant {
    Instant::now() + std::time::Duration::from_secs(1)
}

fn coded(generation: GenerationKey) -> LineKey {
    LineKey {
        generation,
        kind: LineKind::Coded,
    }
}

fn board(max_reuse: u32) -> Board<u32> {
    Board::new(max_reuse, |block| Some(*block))
}

fn wake(board: &mut Board<u32>) {
    board.take_woken().into_iter().for_each(Waker::wake);
}

fn claim(board: &mut Board<u32>, session: SessionId, max: u32) -> Vec<u32> {
    board.claim(session, CODED, max, Waker::noop())
}

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn demand_of_all_sessions_is_one_order() {
    let mut board = board(1);
    board.want_coded(ANNA, CODED, 3, soon());
    board.want_coded(BERT, CODED, 4, soon());
    assert_eq!(board.needed(Waker::noop()), 7);
    assert_eq!(
        board.take_orders(100),
        [Order {
            line: CODED,
            blocks: Blocks::Coded(7)
        }]
    );
    assert_eq!(board.needed(Waker::noop()), 0);
    board.publish(CODED, (0..7).collect());
    assert_eq!(claim(&mut board, ANNA, 100), [0, 1, 2]);
    assert_eq!(claim(&mut board, BERT, 2), [3, 4]);
    assert_eq!(claim(&mut board, BERT, 100), [5, 6]);
    board.leave(ANNA, CODED);
    board.leave(BERT, CODED);
    assert_eq!((board.lines(), board.ready()), (0, 0));
}

#[test]
fn an_order_larger_than_a_batch_is_split_and_others_get_their_turn() {
    let mut board = board(1);
    let other = GenerationKey {
        segment: SegmentKey(2),
        index: 0,
    };
    let deadline = soon();
    board.want_coded(ANNA, CODED, 10, deadline);
    board.want_coded(BERT, coded(other), 2, deadline);
    assert_eq!(
        board.take_orders(6),
        [Order {
            line: CODED,
            blocks: Blocks::Coded(6)
        }]
    );
    let lines: Vec<_> = board
        .take_orders(6)
        .into_iter()
        .map(|order| (order.line.generation, order.blocks.count()))
        .collect();
    assert_eq!(lines, [(other, 2), (GENERATION, 4)]);
}

#[test]
fn what_is_due_first_is_made_first() {
    let mut board = board(1);
    let [first, second, third] = [1, 2, 3].map(|segment| {
        coded(GenerationKey {
            segment: SegmentKey(segment),
            index: 0,
        })
    });
    let (early, late) = (soon(), soon());
    board.keep_ready(first, 8);
    board.want_coded(ANNA, second, 4, late);
    board.want_coded(BERT, third, 4, early);
    let lines = |orders: Vec<Order>| {
        orders
            .into_iter()
            .map(|order| (order.line, order.blocks.count()))
            .collect::<Vec<_>>()
    };
    assert_eq!(lines(board.take_orders(3)), [(third, 3)]);
    // Somebody else is in more of a hurry.
    board.want_coded(BERT, second, 1, early);
    assert_eq!(lines(board.take_orders(1)), [(third, 1)]);
    assert_eq!(
        lines(board.take_orders(6)),
        [(second, 5), (first, 1)],
        "what nobody waits for comes last"
    );
    board.want_coded(ANNA, first, 20, late);
    board.leave(BERT, third);
    board.leave(ANNA, first);
    assert_eq!(lines(board.take_orders(9)), [(first, 7)]);
}

#[test]
fn whoever_has_the_earliest_deadline_is_woken_first() {
    let mut board = board(1);
    let (early, late) = (soon(), soon());
    let counters = [ANNA, BERT].map(|_| Arc::new(Counter::default()));
    for (session, deadline, counter) in [(ANNA, late, &counters[0]), (BERT, early, &counters[1])] {
        board.want_coded(session, CODED, 2, deadline);
        assert!(
            board
                .claim(session, CODED, 9, &Arc::clone(counter).into())
                .is_empty()
        );
    }
    let woken = || {
        counters
            .each_ref()
            .map(|counter| counter.0.load(Ordering::Relaxed))
    };
    board.take_orders(9);
    board.publish(CODED, vec![1, 2]);
    wake(&mut board);
    assert_eq!(woken(), [0, 1]);
    // It takes more than it was woken for, and waits no longer, with any deadline.
    assert_eq!(board.claim(BERT, CODED, 9, Waker::noop()), [1, 2]);
    board.want_coded(BERT, CODED, 1, soon());
    board.take_orders(9);
    board.publish(CODED, vec![3, 4, 5]);
    wake(&mut board);
    assert_eq!(woken(), [1, 1]);
    assert_eq!(claim(&mut board, ANNA, 9), [3, 4]);
    board.leave(ANNA, CODED);
    board.leave(BERT, CODED);
    assert_eq!((board.ready(), board.to_make()), (1, 0));
}

#[test]
fn what_becomes_due_earlier_is_made_and_given_earlier() {
    let mut board = board(1);
    let other = coded(GenerationKey {
        segment: SegmentKey(2),
        index: 0,
    });
    let (earliest, early, late) = (soon(), soon(), soon());
    board.want_coded(ANNA, CODED, 2, early);
    board.want_coded(BERT, other, 2, late);
    board.reschedule(BERT, other, earliest);
    let lines = |orders: Vec<Order>| {
        orders
            .into_iter()
            .map(|order| (order.line, order.blocks.count()))
            .collect::<Vec<_>>()
    };
    assert_eq!(lines(board.take_orders(2)), [(other, 2)]);
    assert_eq!(lines(board.take_orders(2)), [(CODED, 2)]);
    // Two wait for one line, and the one that came later is due earlier from now on.
    let counters = [ANNA, BERT].map(|_| Arc::new(Counter::default()));
    board.want_coded(BERT, CODED, 2, late);
    for (session, counter) in [(ANNA, &counters[0]), (BERT, &counters[1])] {
        assert!(
            board
                .claim(session, CODED, 9, &Arc::clone(counter).into())
                .is_empty()
        );
    }
    board.reschedule(BERT, CODED, earliest);
    board.publish(CODED, vec![1, 2]);
    wake(&mut board);
    assert_eq!(
        counters
            .each_ref()
            .map(|counter| counter.0.load(Ordering::Relaxed)),
        [0, 1]
    );
    // Who wants nothing of a line, and a line that nobody knows.
    board.reschedule(ANNA, other, early);
    board.reschedule(
        ANNA,
        coded(GenerationKey {
            segment: SegmentKey(3),
            index: 0,
        }),
        early,
    );
    [(ANNA, CODED), (BERT, CODED), (BERT, other)]
        .into_iter()
        .for_each(|(session, line)| board.leave(session, line));
    assert_eq!(board.to_make(), 0);
}

#[test]
fn nobody_takes_what_another_was_woken_for() {
    let mut board = board(1);
    board.want_coded(ANNA, CODED, 4, soon());
    assert!(claim(&mut board, ANNA, 9).is_empty());
    board.want_coded(BERT, CODED, 4, soon());
    board.take_orders(9);
    board.publish(CODED, vec![0, 1, 2, 3, 4, 5]);
    assert_eq!(
        claim(&mut board, BERT, 9),
        [0, 1],
        "the others are for Anna"
    );
    assert!(claim(&mut board, BERT, 9).is_empty());
    assert_eq!(claim(&mut board, ANNA, 3), [2, 3, 4]);
    assert!(claim(&mut board, BERT, 9).is_empty());
    // She does not want it any more.
    board.leave(ANNA, CODED);
    assert_eq!(claim(&mut board, BERT, 9), [5]);
}

#[test]
fn source_blocks_go_to_who_ordered_them() {
    let mut board = board(1);
    let line = LineKey {
        generation: GENERATION,
        kind: LineKind::Source(ANNA),
    };
    board.want_source(ANNA, GENERATION, 2..5, soon());
    let orders = board.take_orders(2);
    assert_eq!(
        orders,
        [Order {
            line,
            blocks: Blocks::Source(vec![2, 3])
        }]
    );
    board.give_up(&orders[0]);
    let orders = board.take_orders(9);
    assert_eq!(
        orders,
        [Order {
            line,
            blocks: Blocks::Source(vec![2, 3, 4])
        }]
    );
    board.publish(line, vec![2, 3, 4]);
    assert_eq!(board.claim(ANNA, line, 9, Waker::noop()), [2, 3, 4]);
    board.leave(ANNA, line);
    assert_eq!(board.lines(), 0);
}

#[test]
fn source_blocks_of_a_session_that_left_come_back() {
    let mut board = board(1);
    let line = LineKey {
        generation: GENERATION,
        kind: LineKind::Source(ANNA),
    };
    board.want_source(ANNA, GENERATION, 0..2, soon());
    board.take_orders(9);
    board.leave(ANNA, line);
    assert_eq!(board.publish(line, vec![0, 1]), [0, 1]);
    assert_eq!((board.lines(), board.ready()), (0, 0));
}

#[test]
fn reuse_gives_no_session_a_block_twice() {
    let mut board = board(3);
    board.want_coded(ANNA, CODED, 4, soon());
    board.want_coded(BERT, CODED, 4, soon());
    assert_eq!(board.take_orders(100)[0].blocks, Blocks::Coded(4));
    board.publish(CODED, vec![0, 1, 2, 3]);
    assert_eq!(claim(&mut board, ANNA, 9), [0, 1, 2, 3]);
    assert_eq!(claim(&mut board, BERT, 9), [0, 1, 2, 3]);
    board.want_coded(ANNA, CODED, 1, soon());
    assert_eq!(claim(&mut board, ANNA, 9), Vec::<u32>::new());
    assert_eq!(board.take_orders(100)[0].blocks, Blocks::Coded(1));
    board.publish(CODED, vec![4]);
    assert_eq!(claim(&mut board, ANNA, 9), [4]);
}

#[test]
fn unwanted_blocks_go_oldest_first_and_wanted_ones_stay() {
    let mut board = board(1);
    let other = GenerationKey {
        segment: SegmentKey(2),
        index: 0,
    };
    board.keep_ready(CODED, 2);
    board.keep_ready(coded(other), 2);
    board.take_orders(100);
    board.publish(CODED, vec![0, 1]);
    board.publish(coded(other), vec![10, 11]);
    board.want_coded(ANNA, CODED, 1, soon());
    assert_eq!(board.drop_unwanted(2, |_| true), [0, 10]);
    assert_eq!(claim(&mut board, ANNA, 9), [1]);
}

#[test]
fn a_block_left_over_wakes_the_next_in_line() {
    let mut board = board(1);
    let (first, second) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    board.want_coded(ANNA, CODED, 8, soon());
    board.want_coded(BERT, CODED, 8, soon());
    board.claim(ANNA, CODED, 8, &Arc::clone(&first).into());
    board.claim(BERT, CODED, 8, &Arc::clone(&second).into());
    board.publish(CODED, (0..8).collect());
    wake(&mut board);
    assert_eq!(
        (
            first.0.load(Ordering::Relaxed),
            second.0.load(Ordering::Relaxed)
        ),
        (1, 0)
    );
    board.leave(ANNA, CODED);
    wake(&mut board);
    assert_eq!(
        second.0.load(Ordering::Relaxed),
        1,
        "Anna left without claiming: Bert is told"
    );
}

#[test]
fn forgetting_a_segment_wakes_and_empties() {
    let (mut board, woken) = (board(1), Arc::new(Counter::default()));
    board.want_coded(ANNA, CODED, 8, soon());
    board.keep_ready(CODED, 3);
    assert!(
        board
            .claim(ANNA, CODED, 8, &Arc::clone(&woken).into())
            .is_empty()
    );
    wake(&mut board);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    assert_eq!(board.forget(SegmentKey(1)), Vec::<u32>::new());
    wake(&mut board);
    assert_eq!(
        woken.0.load(Ordering::Relaxed),
        1,
        "Anna waits for what does not come"
    );
    assert_eq!((board.needed(Waker::noop()), board.lines()), (0, 0));
    assert!(board.take_orders(9).is_empty());
    assert_eq!(board.publish(CODED, vec![1]), [1]);

    board.want_coded(ANNA, CODED, 2, soon());
    board.keep_ready(CODED, 3);
    assert_eq!(
        board.take_orders(9),
        [Order {
            line: CODED,
            blocks: Blocks::Coded(5)
        }]
    );
    assert!(board.publish(CODED, (0..5).collect()).is_empty());
    assert_eq!((board.ready(), board.spare()), (5, 3));
    assert_eq!(
        board.forget(SegmentKey(1)),
        [0, 1, 2, 3, 4],
        "what was ready comes back"
    );
    assert_eq!((board.ready(), board.spare(), board.lines()), (0, 0, 0));
}

#[test]
fn a_parked_segment_is_nothing_to_make_until_it_is_resumed() {
    let mut board = board(1);
    let woken = Arc::new(Counter::default());
    let (next, other) = (
        GenerationKey {
            index: 1,
            ..GENERATION
        },
        GenerationKey {
            segment: SegmentKey(2),
            index: 0,
        },
    );
    for generation in [GENERATION, next, other] {
        board.want_coded(ANNA, coded(generation), 4, soon());
    }
    let orders = board.take_orders(6);
    assert_eq!(
        orders
            .iter()
            .map(|order| order.line.generation)
            .collect::<Vec<_>>(),
        [GENERATION, next]
    );
    board.park(&orders[0]);
    board.park(&orders[1]);
    assert_eq!(
        board.take_orders(9),
        [Order {
            line: coded(other),
            blocks: Blocks::Coded(4)
        }]
    );
    board.want_coded(BERT, CODED, 2, soon());
    board.want_source(BERT, next, 0..3, soon());
    assert_eq!(board.needed(&Arc::clone(&woken).into()), 0);
    assert!(board.take_orders(9).is_empty());
    board.leave(ANNA, coded(next));
    board.resume(SegmentKey(1));
    wake(&mut board);
    assert_eq!(
        (board.needed(Waker::noop()), woken.0.load(Ordering::Relaxed)),
        (9, 1)
    );
    let mut made: Vec<_> = board
        .take_orders(99)
        .into_iter()
        .map(|order| (order.line.kind, order.blocks.count()))
        .collect();
    made.sort_by_key(|(_, count)| *count);
    assert_eq!(made, [(LineKind::Source(BERT), 3), (LineKind::Coded, 6)]);
}

#[test]
fn a_segment_that_goes_is_parked_no_longer() {
    let mut board = board(1);
    board.want_coded(ANNA, CODED, 4, soon());
    let orders = board.take_orders(9);
    board.park(&orders[0]);
    board.forget(SegmentKey(1));
    assert_eq!(
        (
            board.needed(Waker::noop()),
            board.lines(),
            board.parked.len()
        ),
        (0, 0, 0)
    );
    board.want_coded(ANNA, CODED, 4, soon());
    let again = board.take_orders(9);
    board.park(&again[0]);
    board.resume_all();
    assert_eq!(board.take_orders(9), orders);
}

#[derive(Debug, Clone)]
enum Operation {
    Want(u64, u32),
    Claim(u64, u32),
    Leave(u64),
    Make(u32),
    Park(u32),
    Resume,
    Drop(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (0..3_u64, 1..20_u32).prop_map(|(session, blocks)| Operation::Want(session, blocks)),
        (0..3_u64, 1..20_u32).prop_map(|(session, max)| Operation::Claim(session, max)),
        (0..3_u64).prop_map(Operation::Leave),
        (1..40_u32).prop_map(Operation::Make),
        (1..40_u32).prop_map(Operation::Park),
        Just(Operation::Resume),
        (1..10_usize).prop_map(Operation::Drop),
    ]
}

proptest! {
    /// Compared with a plain queue: blocks come out in the order in which they went in, each once,
    /// and no session gets more than it wants, or less except for others.
    #[test]
    fn one_line_is_a_queue(operations in prop::collection::vec(operation(), 1..80)) {
        let mut board = board(1);
        let mut queue = VecDeque::new();
        let mut wants = [0_u32; 3];
        let (mut next, mut is_parked) = (0, false);
        for operation in operations {
            match operation {
                Operation::Want(session, blocks) => {
                    board.want_coded(SessionId(session), CODED, blocks, soon());
                    wants[usize::try_from(session).unwrap()] += blocks;
                }
                Operation::Claim(session, max) => {
                    let want = &mut wants[usize::try_from(session).unwrap()];
                    let claimed = claim(&mut board, SessionId(session), max);
                    let expected: Vec<u32> =
                        claimed.iter().map_while(|_| queue.pop_front()).collect();
                    prop_assert_eq!(&claimed, &expected);
                    let missing = max.min(*want) - u32::try_from(claimed.len()).unwrap();
                    *want -= u32::try_from(claimed.len()).unwrap();
                    // What it could not have is for others.
                    let others =
                        wants.iter().sum::<u32>() - wants[usize::try_from(session).unwrap()];
                    prop_assert!(missing == 0 || queue.len() <= others as usize);
                }
                Operation::Leave(session) => {
                    board.leave(SessionId(session), CODED);
                    wants[usize::try_from(session).unwrap()] = 0;
                }
                Operation::Make(max) => {
                    for order in board.take_orders(max) {
                        let blocks: Vec<u32> = (next..next + order.blocks.count()).collect();
                        next += order.blocks.count();
                        queue.extend(blocks.iter().copied());
                        prop_assert!(board.publish(order.line, blocks).is_empty());
                    }
                }
                Operation::Park(max) => {
                    for order in board.take_orders(max) {
                        board.park(&order);
                        is_parked = true;
                    }
                }
                Operation::Resume => {
                    board.resume(GENERATION.segment);
                    is_parked = false;
                }
                Operation::Drop(count) => {
                    let surplus = queue.len().saturating_sub(wants.iter().sum::<u32>() as usize);
                    let expected: Vec<u32> = queue.drain(..surplus.min(count)).collect();
                    prop_assert_eq!(board.drop_unwanted(count, |_| true), expected);
                }
            }
            prop_assert_eq!(board.ready(), queue.len());
            let missing = u64::from(wants.iter().sum::<u32>()).saturating_sub(queue.len() as u64);
            prop_assert_eq!(board.needed(Waker::noop()), if is_parked { 0 } else { missing });
        }
    }
}

/// Sparse blocks are anyone's too, and nobody who wants dense ones gets them.
#[test]
fn dense_and_sparse_blocks_of_a_generation_lie_apart() {
    let mut board = board(2);
    let weight = |weight| NonZeroU16::new(weight);
    assert_eq!(
        LineKind::coded(weight(13), 64),
        LineKind::Sparse(weight(13).unwrap())
    );
    assert_eq!(
        (LineKind::coded(weight(64), 64), LineKind::coded(None, 64)),
        (LineKind::Coded, LineKind::Coded)
    );
    let sparse = LineKey {
        kind: LineKind::coded(weight(13), 64),
        ..CODED
    };
    for session in [ANNA, BERT] {
        board.want_coded(session, sparse, 2, soon());
    }
    assert_eq!(
        board.take_orders(9),
        [Order {
            line: sparse,
            blocks: Blocks::Coded(2)
        }],
        "two blocks serve both"
    );
    board.publish(sparse, vec![1, 2]);
    board.want_coded(ANNA, CODED, 1, soon());
    assert!(claim(&mut board, ANNA, 9).is_empty());
    for session in [ANNA, BERT] {
        assert_eq!(board.claim(session, sparse, 9, Waker::noop()), [1, 2]);
    }
    assert_eq!(
        board.take_orders(9),
        [Order {
            line: CODED,
            blocks: Blocks::Coded(1)
        }]
    );
}
