//! Blocks over the prime field: how often they are tested, and what happens to senders of wrong
//! ones.

use std::collections::{BTreeMap, VecDeque};

use ncs_codec::gfq::{self, Arithmetic as _, Encode, draw_rows};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;
use crate::integrity::signing::SigningKey;
use crate::object::HashGroup;
use crate::wire::block::{record_header_len, write_record_header};

const CODEC: Codec = Codec::RlncQ {
    group: HashGroup::P1024,
};
const PLACE: &str = "/a/b";
/// Longer than blocks wait for others to be tested with.
const TEST: Duration = Duration::from_millis(50);

/// A peer with several sources that fetches two generations of eight blocks of two words.
pub(super) struct Bench {
    proto: Proto,
    fetch: FetchId,
    now: Instant,
    random: StdRng,
    hashes: BlockHashes,
    /// Open requests, and the remaining credit of each.
    open: BTreeMap<(SourceId, u32), (u16, u32)>,
    /// GET_HASHES without an answer.
    asked: Vec<(SourceId, u64)>,
    /// Trials to run.
    trials: VecDeque<Trial>,
    decoded: Vec<u32>,
    polluters: Vec<SourceId>,
    streams: BTreeMap<(SourceId, u16), u64>,
    next_stream: u64,
}

impl Bench {
    pub(super) fn new(sources: u32) -> Self {
        let (now, random) = (Instant::now(), StdRng::seed_from_u64(1));
        let key = SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes())
            .unwrap()
            .public();
        let keys = Keys {
            any: Some(key),
            streams: Default::default(),
        };
        let mut proto = Proto::new(Config {
            keys,
            tests_max: 1,
            ..config()
        });
        for source in (0..sources).map(SourceId) {
            proto.handle_connected(now, source, None);
            proto
                .handle_message(now, source, Message::Hello(Hello::defaults()))
                .unwrap();
        }
        let order = order_with(CODEC);
        let bytes = source();
        let blocks: Vec<&[u8]> = bytes.chunks(64).collect();
        let hashes = BlockHashes::made(
            Cores::all()
                .hash(HashGroup::P1024, 2, &blocks)
                .unwrap()
                .into(),
            &order.shape,
        );
        let proof = Some(Proof {
            key,
            blocks: hashes.digest(),
        });
        let fetch = proto.fetch(
            now,
            Order { proof, ..order },
            Some(Place {
                path: PLACE.to_owned(),
                offset: 0,
                length: None,
            }),
        );
        let mut bench = Self {
            proto,
            fetch,
            now,
            random,
            hashes,
            open: BTreeMap::new(),
            asked: Vec::new(),
            trials: VecDeque::new(),
            decoded: Vec::new(),
            polluters: Vec::new(),
            streams: BTreeMap::new(),
            next_stream: 3,
        };
        bench.settle(sources);
        bench
    }

    /// Handles all messages and events of the peer.
    fn settle(&mut self, sources: u32) {
        for source in (0..sources).map(SourceId) {
            while let Some(message) = self.proto.poll_message(self.now, source) {
                match message {
                    Message::Request(request) => {
                        self.open.insert(
                            (source, request.generation),
                            (request.alias, request.credit),
                        );
                    }
                    Message::Credit { alias, blocks } => {
                        let (_, credit) = self
                            .open
                            .iter_mut()
                            .find(|((of, _), (open, _))| (*of, *open) == (source, alias))
                            .unwrap()
                            .1;
                        *credit += blocks;
                    }
                    Message::Stop { alias, .. } => self
                        .open
                        .retain(|(of, _), (open, _)| (*of, *open) != (source, alias)),
                    Message::GetHashes { request, .. } => self.asked.push((source, request)),
                    _ => {}
                }
            }
        }
        while let Some(event) = self.proto.poll_event() {
            match event {
                Event::Test(trial) => self.trials.push_back(*trial),
                Event::Decoded { decoder, .. } => self.decoded.push(decoder.generation().index),
                Event::Polluter(source) => self.polluters.push(source),
                _ => {}
            }
        }
    }

    /// Answers GET_HASHES with these hashes.
    fn answer(&mut self, sources: u32, bytes: &[u8]) -> Result<(), Violation> {
        let (source, request) = self.asked.remove(0);
        let mut out = Vec::new();
        StreamHead::Hashes { request }.encode(&mut out);
        out.extend_from_slice(bytes);
        self.next_stream += 4;
        self.proto
            .handle_stream(self.now, source, self.next_stream, &out)?;
        self.proto
            .handle_stream_end(source, self.next_stream, StreamEnd::Finished)?;
        self.settle(sources);
        Ok(())
    }

    /// Refuses every GET_HASHES with a retry time of a millisecond, for a second. Returns how many
    /// came.
    pub(super) fn refuse_hashes(&mut self, sources: u32) -> usize {
        let (end, mut asked) = (self.now + SECOND, 0);
        while self.now < end {
            for (source, request) in std::mem::take(&mut self.asked) {
                asked += 1;
                let (code, reason) = (RefusalCode::Overload, String::new());
                let error = RequestError {
                    request,
                    code,
                    retry_after_ms: 1,
                    reason,
                };
                self.proto
                    .handle_message(self.now, source, Message::Error(error))
                    .unwrap();
            }
            self.wait(sources, Duration::from_millis(1)).unwrap();
        }
        asked
    }

    fn answer_right(&mut self, sources: u32) {
        let hashes = self.hashes.as_bytes().clone();
        self.answer(sources, &hashes).unwrap();
    }

    /// A source sends a block of its open request for a generation.
    fn send(&mut self, source: SourceId, generation: u32, block: &Block) {
        let (alias, credit) = self
            .open
            .get_mut(&(source, generation))
            .expect("it is asked");
        assert!(*credit > 0, "it may send");
        (*credit, self.next_stream) = (*credit - 1, self.next_stream + 4);
        let (mut out, alias) = (Vec::new(), *alias);
        let stream = *self.streams.entry((source, alias)).or_insert_with(|| {
            StreamHead::Blocks { alias }.encode(&mut out);
            self.next_stream
        });
        let head = out.len();
        out.resize(head + record_header_len(&block.vector), 0);
        write_record_header(&mut out[head..], &block.vector);
        out.extend_from_slice(&block.payload);
        self.proto
            .handle_stream(self.now, source, stream, &out)
            .unwrap();
    }

    /// Draws coded blocks of a generation.
    fn blocks(&mut self, generation: u32, count: usize) -> Vec<Block> {
        let generation = order_with(CODEC).shape.generation(generation).unwrap();
        let (bytes, shape) = (source(), gfq::Shape::new(generation.n, 2).unwrap());
        let start = usize::try_from(generation.offset).unwrap();
        let part = &bytes[start..start + usize::try_from(generation.length).unwrap()];
        let rows = draw_rows(shape, count, &mut self.random);
        let mut out = vec![0; count * shape.payload_bytes()];
        Cores::all()
            .encode(shape, &mut [Encode::new(shape, part, &rows, &mut out)])
            .unwrap();
        let vector = |row: &[u32]| {
            Vector::Narrow(
                row.iter()
                    .flat_map(|coefficient| coefficient.to_be_bytes())
                    .collect(),
            )
        };
        let made = rows
            .chunks_exact(shape.n())
            .zip(out.chunks_exact(shape.payload_bytes()));
        made.map(|(row, payload)| Block {
            vector: vector(row),
            payload: Bytes::copy_from_slice(payload),
        })
        .collect()
    }

    /// Time passes.
    fn wait(&mut self, sources: u32, time: Duration) -> Result<(), (SourceId, Violation)> {
        self.now += time;
        self.proto.handle_timeout(self.now)?;
        self.settle(sources);
        Ok(())
    }

    /// Runs the oldest trial.
    fn test(&mut self, sources: u32) {
        let trial = self.trials.pop_front().expect("something is to be tested");
        let tested = trial.run(&Cores::all(), &mut self.random);
        self.proto.tested(self.now, tested);
        self.settle(sources);
    }
}

/// The block as one that was recoded.
fn recoded(block: &Block) -> Block {
    let Vector::Narrow(row) = &block.vector else {
        panic!("{block:?}")
    };
    let wide = row
        .chunks(4)
        .flat_map(|coefficient| [&[0; 29][..], coefficient].concat())
        .collect();
    Block {
        vector: Vector::Wide(wide),
        ..block.clone()
    }
}

/// The block with another word in it.
fn wrong(block: &Block) -> Block {
    let payload = block
        .payload
        .iter()
        .enumerate()
        .map(|(at, byte)| byte ^ u8::from(at == 31))
        .collect();
    Block {
        payload,
        ..block.clone()
    }
}

/// A block that comes repeatedly is tested once, right or wrong, and its sender is not asked for
/// ever.
#[test]
fn a_sender_that_repeats_a_block_costs_one_test_and_its_connection() {
    let mut bench = Bench::new(1);
    bench.answer_right(1);
    let block = recoded(&bench.blocks(0, 1)[0]);
    let mut sent = 0;
    let end = loop {
        assert!(sent < 100, "{:?}", bench.proto.counts());
        // A redundant block counts as redundant, also where it is wrong.
        bench.send(
            HERE,
            0,
            &if sent % 2 == 0 {
                block.clone()
            } else {
                wrong(&block)
            },
        );
        sent += 1;
        bench.wait(1, TEST).unwrap();
        bench.test(1);
        if let Err(end) = bench.wait(1, Duration::ZERO) {
            break end;
        }
    };
    assert_eq!(
        (sent, end),
        (1 + 2 * 8 + 1, (HERE, Violation::Flood("useless blocks")))
    );
    let counts = bench.proto.counts();
    assert_eq!(
        (counts.tests, counts.tested, counts.innovative, counts.wrong),
        (1, 1, 1, 0),
        "{counts:?}"
    );
}

/// Blocks of all generations are collected before the hashes have come. A polluter is found by the
/// first that is tested, and costs nothing in the others.
#[test]
fn a_liar_is_found_by_one_generation_and_costs_no_test_in_others() {
    let mut bench = Bench::new(2);
    let credit = |bench: &Bench| bench.open.values().map(|(_, credit)| credit).sum::<u32>();
    for generation in [0, 1] {
        for pair in bench.blocks(generation, 8).chunks(2) {
            bench.send(HERE, generation, &pair[0]);
            bench.send(SourceId(1), generation, &wrong(&pair[1]));
        }
    }
    assert_eq!(credit(&bench), 0);
    bench.wait(2, TEST).unwrap();
    assert!(
        bench.trials.is_empty(),
        "without hashes nothing can be tested"
    );
    bench.answer_right(2);
    bench.wait(2, Duration::ZERO).unwrap();
    assert_eq!(bench.trials.len(), 1, "no more than are done at a time");
    assert!(
        bench.proto.poll_timeout().is_none_or(|due| due > bench.now),
        "the others wait for the first"
    );
    bench.test(2);
    assert_eq!(
        (&bench.polluters[..], bench.proto.counts().wrong),
        (&[SourceId(1)][..], 1)
    );
    // All its right blocks are held, and were requested.
    let before = bench.proto.counts();
    bench.wait(2, Duration::ZERO).unwrap();
    bench.test(2);
    let counts = bench.proto.counts();
    assert_eq!(
        (
            counts.tests - before.tests,
            counts.tested - before.tested,
            counts.wrong
        ),
        (1, 4, 1),
        "{counts:?}"
    );
    assert_eq!(counts.innovative, 8);
    bench.wait(2, SECOND).unwrap();
    assert_eq!(credit(&bench), 8, "what it has sent is asked of the other");
    for generation in [0, 1] {
        for block in bench.blocks(generation, 4) {
            bench.send(HERE, generation, &block);
        }
        bench.wait(2, TEST).unwrap();
        bench.test(2);
    }
    assert_eq!(bench.decoded, [0, 1]);
}

#[test]
fn who_lies_just_before_a_fetch_ends_is_found_all_the_same() {
    let mut bench = Bench::new(1);
    bench.answer_right(1);
    let [right, other] = &bench.blocks(0, 2)[..] else {
        unreachable!()
    };
    bench.send(HERE, 0, right);
    bench.send(HERE, 0, &wrong(other));
    bench.wait(1, TEST).unwrap();
    assert_eq!(bench.trials.len(), 1);
    bench.proto.cancel_fetch(bench.fetch);
    bench.settle(1);
    bench.test(1);
    let counts = bench.proto.counts();
    assert_eq!(
        (&bench.polluters[..], counts.wrong, counts.innovative),
        (&[HERE][..], 1, 0),
        "{counts:?}"
    );
    assert!(counts.tests > 0 && counts.tested == 2, "{counts:?}");
}

/// Hashes may be megabytes: a source that sends other than the signed ones does so once, and the
/// next is asked.
#[test]
fn who_sends_other_hashes_than_the_signed_ones_is_closed_and_not_asked_again() {
    let mut bench = Bench::new(2);
    assert!(matches!(bench.asked[..], [(HERE, _)]));
    let mut others = bench.hashes.as_bytes().to_vec();
    others[1000] ^= 1;
    assert_eq!(
        bench.answer(2, &others),
        Err(Violation::Unexpected("hashes that nobody has signed"))
    );
    bench.proto.handle_disconnected(bench.now, HERE, true);
    bench.proto.handle_connected(bench.now, HERE, None);
    bench
        .proto
        .handle_message(bench.now, HERE, Message::Hello(Hello::defaults()))
        .unwrap();
    bench.wait(2, TEST).unwrap();
    assert!(
        matches!(bench.asked[..], [(SourceId(1), _)]),
        "{:?}",
        bench.asked
    );
    bench.answer_right(2);
    let block = bench.blocks(0, 1).remove(0);
    bench.send(SourceId(1), 0, &block);
    bench.wait(2, TEST).unwrap();
    bench.test(2);
    assert_eq!(bench.proto.counts().innovative, 1);
}
