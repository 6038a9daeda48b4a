use std::num::NonZeroU16;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use bytesize::ByteSize;
use ncs_serve::gfq::draw;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;
use crate::codec::gfq;
use crate::codec::numbers::Numbers;
use crate::codec::rlnc::Decoder;
use crate::device;
use crate::device::testing::Hoard;
use crate::gf::Kernels;
use crate::object::HashGroup;
use crate::object::row_key;
use crate::ring::{Claimed, LineKey, LineKind, Quota, SessionId};
use crate::store::index::Tier;
use crate::store::{self, Placement, Portion};

#[test]
fn an_order_is_split_where_the_slots_end() {
    let line = LineKey {
        generation: GenerationKey {
            segment: SegmentKey(1),
            index: 0,
        },
        kind: LineKind::Coded,
    };
    let order = |blocks| Order { line, blocks };
    assert_eq!(
        order(Blocks::Coded(5)).split(3),
        (Some(order(Blocks::Coded(3))), Some(order(Blocks::Coded(2))))
    );
    assert_eq!(
        order(Blocks::Coded(5)).split(9),
        (Some(order(Blocks::Coded(5))), None)
    );
    assert_eq!(
        order(Blocks::Coded(5)).split(0),
        (None, Some(order(Blocks::Coded(5))))
    );
    let source = order(Blocks::Source(vec![4, 5, 6]));
    assert_eq!(
        source.split(1),
        (
            Some(order(Blocks::Source(vec![4]))),
            Some(order(Blocks::Source(vec![5, 6])))
        )
    );
}

const BLOCK_BYTES: u32 = 64;
const N: u16 = 32;
/// A deadline later than the earlier ones.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(1)
}

/// Far longer than any device of a test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running encoder with everything it needs, on a device that claims memory of its own.
struct Rig {
    ring: Ring,
    store: Store,
    registry: prometheus::Registry,
    arrivals: broadcast::Sender<Arrival>,
    steps: Arc<AtomicUsize>,
    _settings: watch::Sender<Config>,
    thread: Option<device::Thread>,
}

impl Rig {
    fn start(copies: u64) -> Self {
        Self::start_with(copies, |device| device)
    }

    /// The same after a change to the device.
    fn start_with(copies: u64, change: impl FnOnce(Device) -> Device) -> Self {
        let registry = prometheus::Registry::new();
        let config = device::Config {
            backend: device::BackendChoice::Cpu,
            ..device::Config::default()
        };
        let (device, thread) =
            Device::open(&config, device::Metrics::new(&registry).unwrap()).unwrap();
        let device = change(device);
        let config = store::Config {
            device_bytes: Portion::Bytes(ByteSize::b(copies)),
            ..store::Config::default()
        };
        let store = Store::with_tiers(
            &config,
            device.clone(),
            store::Metrics::new(&registry).unwrap(),
            || Some(u64::MAX),
        );
        let ring = Ring::new(
            &ring::Config::default(),
            ring::Metrics::new(&registry).unwrap(),
        );
        let metrics = Metrics::new(&registry, device.backend(), device.kernel()).unwrap();
        let random = StdRng::seed_from_u64(1);
        let encoder = Encoder::new(
            Config::default(),
            ring.clone(),
            store.clone(),
            device,
            metrics,
            random,
        );
        let (settings, changes) = watch::channel(Config::default());
        let (arrivals, heard) = broadcast::channel(8);
        let steps = Arc::new(AtomicUsize::new(0));
        let (mut run, counted) = (Box::pin(encoder.run(heard, changes)), Arc::clone(&steps));
        tokio::spawn(std::future::poll_fn(move |context| {
            counted.fetch_add(1, Ordering::Relaxed);
            run.as_mut().poll(context)
        }));
        Self {
            ring,
            store,
            registry,
            arrivals,
            steps,
            _settings: settings,
            thread: Some(thread),
        }
    }

    async fn hold(&self, number: u8, eager: bool) -> (SegmentKey, Shape) {
        self.hold_sparse(number, eager, None).await
    }

    async fn hold_sparse(
        &self,
        number: u8,
        eager: bool,
        row_weight: Option<NonZeroU16>,
    ) -> (SegmentKey, Shape) {
        let bytes = content(number);
        let shape = Shape::new(bytes.len() as u64, BLOCK_BYTES, N).unwrap();
        let placement = Placement {
            eager,
            row_weight,
            ..Placement::default()
        };
        (
            self.store
                .insert(bytes, shape, placement)
                .await
                .unwrap()
                .lease
                .key,
            shape,
        )
    }

    /// Claims `count` blocks of a line, as a session does.
    async fn claim(&self, session: SessionId, line: LineKey, count: usize) -> Vec<Claimed> {
        let quota = Quota::new(usize::MAX);
        let mut claimed = Vec::new();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while claimed.len() < count {
            let more = self
                .ring
                .claim(session, line, u32::MAX, &quota, &ring::own_waker().await);
            let is_starved = more.is_empty();
            claimed.extend(more);
            if is_starved {
                tokio::time::timeout_at(deadline, ring::next_wake())
                    .await
                    .expect("blocks come");
            }
        }
        claimed
    }

    fn value(&self, name: &str) -> u64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap();
        let value = family
            .get_metric()
            .iter()
            .map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value());
        format!("{:.0}", value.sum::<f64>()).parse().unwrap()
    }

    fn steps(&self) -> usize {
        self.steps.load(Ordering::Relaxed)
    }
}

fn content(number: u8) -> Bytes {
    (0..4 * usize::from(N) * BLOCK_BYTES as usize)
        .map(|i| (i % 251) as u8 ^ number)
        .collect::<Vec<u8>>()
        .into()
}

/// Requests the source blocks of every generation of a segment, one after the other, and coded ones
/// in addition.
async fn view(rig: &Rig, session: u64, number: u8, segment: SegmentKey, shape: Shape) {
    let (session, bytes) = (SessionId(session), content(number));
    for generation in shape.iter() {
        let key = GenerationKey {
            segment,
            index: generation.index,
        };
        rig.ring.want_source(session, key, 0..generation.n, soon());
        let line = LineKey {
            generation: key,
            kind: LineKind::Coded,
        };
        rig.ring.want_coded(session, line, 8, soon());
        let source = LineKey {
            kind: LineKind::Source(session),
            ..line
        };
        for claimed in rig.claim(session, source, generation.n.into()).await {
            let Vector::Source(index) = claimed.vector else {
                panic!("{claimed:?}")
            };
            let range = generation.block_range(index);
            assert!(claimed.payload() == &bytes[range.start as usize..range.end as usize]);
        }
        rig.ring.leave(session, source);
        rig.claim(session, line, 8).await;
        rig.ring.leave(session, line);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_that_do_not_fit_the_device_together_are_served_in_turn() {
    let rig = Rig::start(content(0).len() as u64);
    let ((one, shape), (two, _)) = (rig.hold(1, false).await, rig.hold(2, false).await);
    let viewers = (0..6_u64).map(|session| {
        let (segment, number) = if session % 2 == 0 { (one, 1) } else { (two, 2) };
        view(&rig, session, number, segment, shape)
    });
    futures_util::future::join_all(viewers).await;
    let loads = rig.value("ncserverd_store_loads_total");
    assert!(loads >= 2 && rig.value("ncserverd_encoder_parked_total") >= 2);
    assert!(rig.store.usage(Tier::Device).1 <= 1);
    // A batch wakes the task when it is due and when it ends, a load when it ends, a viewer for
    // each line that it requests.
    let wishes = 6 * 2 * u64::from(shape.generations());
    assert!(
        (rig.steps() as u64) < 20 * (wishes + loads),
        "{} steps for {wishes} wishes and {loads} loads",
        rig.steps()
    );
    let before = rig.steps();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        rig.steps() - before < 5,
        "{} steps with nothing to do",
        rig.steps() - before
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn demand_that_cannot_be_met_does_not_spin() {
    let mut rig = Rig::start(1 << 30);
    let (eager, shape) = rig.hold(1, true).await;
    view(&rig, 1, 1, eager, shape).await;
    let (segment, _) = rig.hold(2, false).await;
    let before = rig.steps();
    rig.thread.take().unwrap().close();
    for index in 0..shape.generations() {
        let generation = GenerationKey { segment, index };
        rig.ring.want_coded(
            SessionId(1),
            LineKey {
                generation,
                kind: LineKind::Coded,
            },
            100,
            soon(),
        );
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(rig.steps() - before < 30, "{} steps", rig.steps() - before);
    assert_eq!(rig.ring.needed(Waker::noop()), 0, "it is parked");
    assert!(rig.value("ncserverd_store_load_failures_total") >= 2);
}

/// Blocks with sparse rows carry their rows, match them, and can be recoded by a peer that holds
/// too few to decode.
#[tokio::test(flavor = "multi_thread")]
async fn sparse_rows_travel_with_their_blocks() {
    let rig = Rig::start(1 << 30);
    let (session, weight, bytes) = (SessionId(1), NonZeroU16::new(5).unwrap(), content(1));
    let (segment, shape) = rig.hold_sparse(1, true, Some(weight)).await;
    let id = SegmentId::of(&bytes);
    for generation in shape.iter() {
        let key = GenerationKey {
            segment,
            index: generation.index,
        };
        let line = LineKey {
            generation: key,
            kind: LineKind::Sparse(weight),
        };
        let decoder = || Decoder::new(generation, row_key(&id, &generation), Kernels::detect());
        let (mut relay, mut receiver, mut rng) = (decoder(), decoder(), StdRng::seed_from_u64(9));
        while !receiver.is_complete() {
            rig.ring.want_coded(session, line, 8, soon());
            for claimed in rig.claim(session, line, 8).await {
                let Vector::Explicit(row) = &claimed.vector else {
                    panic!("{claimed:?}")
                };
                assert_eq!(row.iter().filter(|c| **c != 0).count(), 5);
                relay.absorb(&claimed.vector, claimed.payload()).unwrap();
                let (header, payload) =
                    ([&[0x42; 6][..], row].concat(), claimed.payload().to_vec());
                let (datagram, copied) = claimed.into_datagram(&header, payload.len());
                assert!(
                    copied == 0 && datagram[..] == [header, payload].concat()[..],
                    "one piece"
                );
            }
            for block in relay.recode(4, &mut rng) {
                receiver.absorb(&block.vector, &block.payload).unwrap();
            }
        }
        let range = usize::try_from(generation.offset).unwrap()
            ..usize::try_from(generation.offset + generation.length).unwrap();
        assert!(receiver.into_bytes().unwrap() == bytes[range]);
        rig.ring.leave(session, line);
    }
    assert!(rig.value("ncserverd_encoder_blocks_total") >= 4 * u64::from(N));
}

/// Source and parity blocks in one order, and repair symbols: each matches its row, and numbered
/// blocks are made only on request.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_every_code_are_what_their_numbers_say() {
    for codec in [Codec::ReedSolomon { parity: 9 }, Codec::RaptorQ] {
        let rig = Rig::start(1 << 30);
        let (session, bytes) = (SessionId(1), content(1));
        let shape = Shape::new(bytes.len() as u64, BLOCK_BYTES, N)
            .unwrap()
            .coded_with(codec)
            .unwrap();
        let placement = Placement {
            eager: true,
            ..Placement::default()
        };
        let segment = rig
            .store
            .insert(bytes.clone(), shape, placement)
            .await
            .unwrap()
            .lease
            .key;
        rig.arrivals
            .send(Arrival {
                stream: "live".into(),
                segment,
                shape,
                row_weight: None,
            })
            .unwrap();
        for generation in shape.iter() {
            let key = GenerationKey {
                segment,
                index: generation.index,
            };
            let line = LineKey {
                generation: key,
                kind: LineKind::Source(session),
            };
            // As a peer does that has lost two of each.
            rig.ring.want_source(session, key, 5..7, soon());
            rig.ring
                .want_source(session, key, N - 1..generation.numbered(), soon());
            let mut claimed = rig
                .claim(
                    session,
                    line,
                    usize::from(2 + generation.numbered() - (N - 1)),
                )
                .await;
            let numbers: Vec<_> = claimed
                .iter()
                .map(|claimed| Numbers::number(&claimed.vector).unwrap())
                .collect();
            assert_eq!(
                numbers,
                (5..7)
                    .chain(N - 1..generation.numbered())
                    .collect::<Vec<_>>()
            );
            rig.ring.leave(session, line);
            if codec == Codec::RaptorQ {
                let line = LineKey {
                    generation: key,
                    kind: LineKind::Coded,
                };
                rig.ring.want_coded(session, line, 20, soon());
                claimed.extend(rig.claim(session, line, 20).await);
                rig.ring.leave(session, line);
            }
            let own = &bytes
                [generation.offset as usize..(generation.offset + generation.length) as usize];
            let blocks: Vec<&[u8]> = own.chunks(BLOCK_BYTES as usize).collect();
            for claimed in claimed {
                let mut row = vec![0; N.into()];
                codec::write_number(&claimed.vector, &mut row);
                let mut expected = vec![0; BLOCK_BYTES as usize];
                blocks
                    .iter()
                    .zip(row)
                    .for_each(|(block, c)| Kernels::detect().mul_add(&mut expected, block, c));
                assert!(
                    claimed.payload() == expected,
                    "{:?} of {codec:?}",
                    claimed.vector
                );
            }
        }
        rig.ring.publish_metrics();
        let is_fixed = codec != Codec::RaptorQ;
        assert!(
            !is_fixed || rig.value("ncserverd_ring_ready_blocks") == 0,
            "nobody has asked for more"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_are_kept_ready_once_they_are_on_the_device() {
    let rig = Rig::start(1 << 30);
    let row_weight = NonZeroU16::new(13);
    let (segment, shape) = rig.hold_sparse(1, true, row_weight).await;
    rig.arrivals
        .send(Arrival {
            stream: "live".into(),
            segment,
            shape,
            row_weight,
        })
        .unwrap();
    let expected = u64::from(Config::default().prefill_blocks);
    for _ in 0..2000 {
        rig.ring.publish_metrics();
        if rig.value("ncserverd_ring_ready_blocks") == expected {
            let line = LineKey {
                generation: GenerationKey { segment, index: 0 },
                kind: LineKind::coded(row_weight, N),
            };
            rig.ring.want_coded(SessionId(1), line, 1, soon());
            assert!(
                matches!(
                    rig.claim(SessionId(1), line, 1).await[0].vector,
                    Vector::Explicit(_)
                ),
                "as the stream has them"
            );
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!(
        "{} of {expected} blocks are ready",
        rig.value("ncserverd_ring_ready_blocks")
    );
}

/// However many generations a segment has, no more of it is kept ready.
#[test]
fn a_prefill_is_of_the_first_generations() {
    let ring = Ring::new(
        &ring::Config::default(),
        ring::Metrics::new(&prometheus::Registry::new()).unwrap(),
    );
    let shape = Shape::new(64 << 10, 4096, 128).unwrap().in_parts(16);
    assert_eq!((shape.generations(), shape.n_max()), (4, 4));
    let arrival = Arrival {
        stream: "live".into(),
        segment: SegmentKey(1),
        shape,
        row_weight: None,
    };
    let ordered = |blocks| {
        keep_ready(&ring, &arrival, blocks);
        let orders = ring.take_orders(u32::MAX);
        orders.iter().for_each(|order| ring.give_up(order));
        orders
            .into_iter()
            .map(|order| (order.line.generation.index, order.blocks.count()))
            .collect::<Vec<_>>()
    };
    assert_eq!(ordered(8), [(0, 4), (1, 4)]);
    assert_eq!(ordered(5), [(0, 4), (1, 1)]);
    assert_eq!(ordered(100), [(0, 4), (1, 4), (2, 4), (3, 4)]);
    assert_eq!(ordered(0), []);
}

/// Requests as many coded blocks over the prime field as rebuild a generation with these bytes.
async fn check_prime(rig: &Rig, segment: SegmentKey, generation: &Generation, own: &[u8]) {
    let (session, key) = (
        SessionId(1),
        GenerationKey {
            segment,
            index: generation.index,
        },
    );
    let line = LineKey {
        generation: key,
        kind: LineKind::Coded,
    };
    rig.ring
        .want_coded(session, line, generation.n.into(), soon());
    let size = gfq::Shape::new(generation.n, 2).unwrap();
    let mut decoder = gfq::Decoder::new(size);
    for claimed in rig.claim(session, line, generation.n.into()).await {
        let Vector::Narrow(row) = &claimed.vector else {
            panic!("{:?}", claimed.vector)
        };
        let vector = gfq::Vector::parse_source(size, row).unwrap();
        let payload = gfq::Payload::parse(size, Bytes::copy_from_slice(claimed.payload())).unwrap();
        assert_ne!(
            decoder.absorb(gfq::Coded { vector, payload }).unwrap(),
            codec::Outcome::Redundant
        );
    }
    let made = decoder.into_bytes(&gfq::Cores::all()).unwrap();
    assert!(made[..own.len()] == *own && made[own.len()..].iter().all(|byte| *byte == 0));
}

/// Blocks over the prime field are made of a segment's bytes, each with its own row, ahead of
/// demand, and for several generations at once.
#[tokio::test(flavor = "multi_thread")]
async fn over_the_prime_field_blocks_carry_rows_of_their_own() {
    let rig = Rig::start(1 << 30);
    let (session, bytes) = (SessionId(1), content(1));
    let codec = Codec::RlncQ {
        group: HashGroup::P1024,
    };
    let shape = Shape::new(bytes.len() as u64, BLOCK_BYTES, N)
        .unwrap()
        .coded_with(codec)
        .unwrap();
    let segment = rig
        .store
        .insert(bytes.clone(), shape, Placement::default())
        .await
        .unwrap()
        .lease
        .key;
    rig.arrivals
        .send(Arrival {
            stream: "live".into(),
            segment,
            shape,
            row_weight: None,
        })
        .unwrap();
    for generation in shape.iter() {
        let own =
            &bytes[generation.offset as usize..(generation.offset + generation.length) as usize];
        let key = GenerationKey {
            segment,
            index: generation.index,
        };
        let source = LineKey {
            generation: key,
            kind: LineKind::Source(session),
        };
        rig.ring.want_source(session, key, 3..generation.n, soon());
        for claimed in rig
            .claim(session, source, usize::from(generation.n - 3))
            .await
        {
            let Vector::Source(index) = claimed.vector else {
                panic!("{:?}", claimed.vector)
            };
            let block =
                &own[usize::from(index) * BLOCK_BYTES as usize..][..generation.block_length(index)];
            assert_eq!(&claimed.payload()[..block.len()], block);
        }
        check_prime(&rig, segment, &generation, own).await;
    }
    // The headroom holds the header and the coefficients.
    let slots = rig.ring.reserve(
        LineKind::Coded.headroom(codec, N),
        shape.coded_bytes(),
        1,
        Waker::noop(),
    );
    assert!(slots[0].headroom() >= 2 + 4 * usize::from(N));
}

/// A rig whose device keeps copies of segments over the prime field, with one such segment: two
/// generations, the last block short.
async fn keeping(hang_timeout: Duration) -> (Rig, Hoard, SegmentKey, Shape, Bytes) {
    let hoard = Hoard::new(u64::MAX);
    let rig = Rig::start_with(1 << 30, |device| {
        device.with_gfq(Box::new(hoard.clone()), hang_timeout)
    });
    let bytes = content(1).slice(..60 * BLOCK_BYTES as usize - 7);
    let codec = Codec::RlncQ {
        group: HashGroup::P1024,
    };
    let shape = Shape::new(bytes.len() as u64, BLOCK_BYTES, N)
        .unwrap()
        .coded_with(codec)
        .unwrap();
    let (mut loads, placement) = (
        rig.store.loads(),
        Placement {
            eager: true,
            ..Placement::default()
        },
    );
    let segment = rig
        .store
        .insert(bytes.clone(), shape, placement)
        .await
        .unwrap()
        .lease
        .key;
    assert_eq!(loads.recv().await, Ok(segment));
    assert_eq!(hoard.used(), 60 * u64::from(BLOCK_BYTES));
    (rig, hoard, segment, shape, bytes)
}

fn part<'a>(bytes: &'a [u8], generation: &Generation) -> &'a [u8] {
    &bytes[generation.offset as usize..(generation.offset + generation.length) as usize]
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_prime_field_blocks_are_made_of_what_is_kept() {
    let (rig, hoard, segment, shape, bytes) = keeping(PATIENCE).await;
    for generation in shape.iter() {
        check_prime(&rig, segment, &generation, part(&bytes, &generation)).await;
    }
    let (kept, brought) = hoard.tasks();
    assert!(
        kept >= shape.generations() as usize && brought == 0,
        "{kept} and {brought}"
    );
    rig.store.expire(
        &SegmentId::of_coded(&bytes, shape.codec()),
        shape.coding(),
        Instant::now(),
    );
    until(|| {
        rig.store.sweep(Instant::now());
        !rig.store.is_held(segment)
    })
    .await;
    assert_eq!(hoard.used(), 0);
}

/// If a card fails during a call, that work and all later work is done without it; no session is
/// affected.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_is_lost_over_the_prime_field_fails_no_session() {
    let (rig, hoard, segment, shape, bytes) = keeping(PATIENCE).await;
    hoard.hold(true);
    let generations: Vec<Generation> = shape.iter().collect();
    let first = check_prime(
        &rig,
        segment,
        &generations[0],
        part(&bytes, &generations[0]),
    );
    let lose = async {
        until(|| hoard.calls() == 1).await;
        hoard.lose();
        rig.store.sweep(Instant::now());
        assert_eq!(rig.store.usage(Tier::Device), (0, 0));
        assert_eq!(
            hoard.used(),
            60 * u64::from(BLOCK_BYTES),
            "the call has it still"
        );
        hoard.hold(false);
    };
    futures_util::future::join(first, lose).await;
    check_prime(
        &rig,
        segment,
        &generations[1],
        part(&bytes, &generations[1]),
    )
    .await;
    assert_eq!(
        (
            hoard.tasks(),
            rig.value("ncserverd_encoder_failed_batches_total")
        ),
        ((0, 0), 0)
    );
    until(|| hoard.used() == 0).await;
}

/// All batches in progress may hang: the CPU makes their blocks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_hangs_over_the_prime_field_holds_no_session_up_for_long() {
    let (rig, hoard, segment, shape, bytes) = keeping(Duration::from_millis(300)).await;
    hoard.hold(true);
    let generations: Vec<Generation> = shape.iter().collect();
    let first = check_prime(
        &rig,
        segment,
        &generations[0],
        part(&bytes, &generations[0]),
    );
    let second = async {
        until(|| hoard.calls() == 1).await;
        check_prime(
            &rig,
            segment,
            &generations[1],
            part(&bytes, &generations[1]),
        )
        .await;
    };
    futures_util::future::join(first, second).await;
    assert_eq!((hoard.tasks(), hoard.calls()), ((0, 0), 2));
    assert_eq!(rig.value("ncserverd_device_fallbacks_total"), 1);
    hoard.hold(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_is_forgotten_during_a_call_leaves_nothing() {
    let (rig, hoard, segment, shape, bytes) = keeping(PATIENCE).await;
    hoard.hold(true);
    let line = LineKey {
        generation: GenerationKey { segment, index: 0 },
        kind: LineKind::Coded,
    };
    rig.ring.want_coded(SessionId(1), line, 4, soon());
    until(|| hoard.calls() == 1).await;
    rig.store.expire(
        &SegmentId::of_coded(&bytes, shape.codec()),
        shape.coding(),
        Instant::now(),
    );
    rig.store.sweep(Instant::now());
    assert!(rig.store.is_held(segment), "a batch reads it");
    rig.ring.forget(segment);
    hoard.hold(false);
    until(|| {
        rig.store.sweep(Instant::now());
        !rig.store.is_held(segment)
    })
    .await;
    assert_eq!((hoard.used(), rig.store.usage(Tier::Device)), (0, (0, 0)));
    until(|| rig.ring.used_bytes() == 0).await;
}

async fn until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..4000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it does not come to that");
}

/// Every row is different, and equals the vector sent, however many vectors share memory.
#[test]
fn rows_are_drawn_as_they_travel() {
    let shape = gfq::Shape::new(5, 2).unwrap();
    for count in [0, 1, 16, 17, 40] {
        let (rows, vectors) = draw(&mut SmallRng::seed_from_u64(1), count, shape);
        assert_eq!((rows.len(), vectors.len()), (5 * count, count));
        for (row, vector) in rows.chunks_exact(5).zip(&vectors) {
            let Vector::Narrow(bytes) = vector else {
                panic!("{vector:?}")
            };
            assert_eq!(
                gfq::Vector::parse_source(shape, bytes).unwrap(),
                gfq::Vector::Source(row.into())
            );
        }
        assert_eq!(
            vectors
                .iter()
                .map(|vector| format!("{vector:?}"))
                .collect::<HashSet<_>>()
                .len(),
            count
        );
    }
}

/// A random source that begins with zeros.
struct Reluctant(u8);

impl rand::TryRng for Reluctant {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        unreachable!("vectors are drawn as bytes")
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        unreachable!("vectors are drawn as bytes")
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        self.0 += 1;
        bytes.fill(self.0.saturating_sub(3));
        Ok(())
    }
}

/// Peers reject vectors of zeros.
#[test]
fn no_block_is_made_of_nothing() {
    let (rows, vectors) = draw(&mut Reluctant(0), 2, gfq::Shape::new(1, 1).unwrap());
    assert_eq!(rows, [0x0101_0101, 0x0202_0202]);
    assert_eq!(
        vectors,
        [[1; 4], [2; 4]].map(|bytes| Vector::Narrow(Bytes::copy_from_slice(&bytes)))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_that_find_no_slots_hold_up_no_others() {
    let rig = Rig::start(1 << 30);
    let other = Shape::new(10 * 4096, 4096, N).unwrap();
    rig.ring
        .promise([BLOCK_BYTES, 4096].map(|block| block as usize + ring::HEADROOM));
    let (spent, shape) = rig.hold(1, true).await;
    let bytes = Bytes::from(vec![7; 10 * 4096]);
    let free = rig
        .store
        .insert(
            bytes,
            other,
            Placement {
                eager: true,
                ..Placement::default()
            },
        )
        .await
        .unwrap()
        .lease
        .key;
    // Peers that do not read hold all slots of this size.
    let slots = rig
        .ring
        .reserve(ring::HEADROOM, shape.coded_bytes(), 1 << 20, Waker::noop());
    let line = |segment| LineKey {
        generation: GenerationKey { segment, index: 0 },
        kind: LineKind::Coded,
    };
    let hasty = Instant::now();
    (0..4).for_each(|session| {
        rig.ring
            .want_coded(SessionId(session), line(spent), 2000, hasty)
    });
    rig.ring.want_coded(SessionId(9), line(free), 5, soon());
    assert_eq!(rig.claim(SessionId(9), line(free), 5).await.len(), 5);
    drop(slots);
    assert_eq!(rig.claim(SessionId(0), line(spent), 2000).await.len(), 2000);
}
