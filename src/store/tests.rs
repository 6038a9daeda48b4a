use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::index::Cause;
use super::*;
use crate::codec::gfq::{Arithmetic as _, Cores};
use crate::device::testing::Hoard;
use crate::object::{HashGroup, Loan};

const K: u32 = 64;

fn open() -> (Device, device::Thread) {
    let config = device::Config {
        backend: device::BackendChoice::Cpu,
        ..device::Config::default()
    };
    Device::open(&config, device::Unrecorded).unwrap()
}

fn metrics() -> Metrics {
    Metrics::new(&prometheus::Registry::new()).unwrap()
}

fn store(bytes: u64) -> Store {
    let (device, thread) = open();
    // The thread ends with the device's last handle.
    std::mem::forget(thread);
    Store::new(
        &Config {
            bytes: ByteSize::b(bytes),
            ..Config::default()
        },
        device,
        metrics(),
    )
}

fn segment(number: u8) -> (Bytes, Shape) {
    (
        Bytes::from(vec![number; 1024]),
        Shape::new(1024, K, 8).unwrap(),
    )
}

/// The size of one of these segments on the device.
async fn cost() -> u64 {
    let store = store(1 << 20);
    insert(&store, 0, None).await.unwrap();
    store.usage(Tier::Host).0
}

async fn insert(store: &Store, number: u8, expires: Option<Instant>) -> Result<Held, Error> {
    let (bytes, shape) = segment(number);
    store
        .insert(
            bytes,
            shape,
            Placement {
                expires,
                ..Placement::default()
            },
        )
        .await
}

fn id(number: u8) -> SegmentId {
    SegmentId::of(&segment(number).0)
}

#[tokio::test]
async fn the_same_bytes_are_held_once() {
    let store = store(1 << 20);
    let (one, again) = (
        insert(&store, 1, None).await.unwrap(),
        insert(&store, 1, None).await.unwrap(),
    );
    assert_eq!(one.lease.key, again.lease.key);
    assert_eq!(store.usage(Tier::Host).1, 1);
    assert_eq!(store.lookup(&id(1), None).unwrap().lease.id, id(1));
    assert!(store.lookup(&id(2), None).is_none());
    assert!(matches!(store.resident(one.lease.key), Residency::Ready(found) if found.id == id(1)));
}

#[tokio::test]
async fn many_at_once_of_the_same_are_one() {
    let store = store(1 << 20);
    let inserts = (0..16).map(|_| insert(&store, 1, None));
    let held: Vec<Held> = futures_util::future::join_all(inserts)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert!(
        held.iter()
            .all(|other| other.lease.key == held[0].lease.key)
    );
    assert_eq!(store.usage(Tier::Host).1, 1);
    let used = store.shared.state().host.used();
    assert_eq!(used, store.usage(Tier::Host).0);
}

#[tokio::test]
async fn the_least_recently_used_goes() {
    let store = store(cost().await * 3);
    let mut evictions = store.evictions();
    let mut keys = Vec::new();
    for number in 0..3 {
        keys.push(insert(&store, number, None).await.unwrap().lease.key);
    }
    store.lookup(&id(0), None).unwrap();
    insert(&store, 3, None).await.unwrap();
    assert_eq!(evictions.try_recv(), Ok(keys[1]));
    assert!(!store.is_held(keys[1]) && store.is_held(keys[0]));
    store.touch(keys[2]);
    insert(&store, 4, None).await.unwrap();
    assert_eq!(evictions.try_recv(), Ok(keys[0]));
}

#[tokio::test]
async fn the_expired_go_first() {
    let store = store(cost().await * 3);
    insert(&store, 0, None).await.unwrap();
    insert(&store, 1, None).await.unwrap();
    let expired = insert(&store, 2, Some(Instant::now()))
        .await
        .unwrap()
        .lease
        .key;
    insert(&store, 3, None).await.unwrap();
    assert!(!store.is_held(expired));
    assert!(store.lookup(&id(0), None).is_some());
    assert_eq!(
        store
            .shared
            .metrics
            .evicted(Tier::Host, Cause::Expired)
            .get(),
        1
    );
}

#[tokio::test]
async fn what_is_leased_stays() {
    let store = store(cost().await * 8 / 3);
    let leases = (
        insert(&store, 0, Some(Instant::now())).await.unwrap(),
        insert(&store, 1, None).await.unwrap(),
    );
    leases
        .0
        .lease
        .note_used(Instant::now() + Duration::from_secs(3600), 1);
    leases
        .1
        .lease
        .note_used(Instant::now() + Duration::from_secs(3600), 1);
    assert!(matches!(
        insert(&store, 2, None).await,
        Err(Error::Full { .. })
    ));
    store.sweep(Instant::now() + Duration::from_secs(1));
    assert_eq!(store.usage(Tier::Host).1, 2);
    assert_eq!(store.shared.metrics.refused.get(), 1);

    let batch = store.resident(leases.0.lease.key);
    drop(leases.0);
    assert!(
        matches!(insert(&store, 2, None).await, Err(Error::Full { .. })),
        "a batch reads it"
    );
    drop(batch);
    insert(&store, 2, None).await.unwrap();
    assert!(store.lookup(&id(0), None).is_none());
    assert!(store.lookup(&id(1), None).is_some());
}

/// Less and more than the time after which a lease without sent blocks is stalled.
const SHORT: Duration = Duration::from_millis(900);
const LONG: Duration = Duration::from_millis(1100);

#[tokio::test]
async fn a_lease_gives_way_when_no_blocks_leave() {
    let store = store(cost().await * 3);
    let mut leases = Vec::new();
    for number in 0..3 {
        leases.push(insert(&store, number, None).await.unwrap().lease);
    }
    let (now, evict) = (Instant::now(), |at| {
        store
            .shared
            .state()
            .evict(at)
            .map(|gone| (gone.key, gone.cause))
    });
    assert_eq!(evict(now + SHORT / 2), None, "they have just come");
    // Blocks of the first leave; the others are stalled, and the least recently used goes first.
    leases[0].note_used(now + LONG, 1);
    assert_eq!(evict(now + LONG), Some((leases[1].key, Cause::Stalled)));
    assert!(leases[1].is_void() && !leases[0].is_void() && store.lookup(&id(1), None).is_none());
    // An unleased segment goes first if none of its blocks left lately, and last if one did.
    let last = leases[2].release();
    drop(leases.pop());
    store.touch(leases[0].key);
    assert_eq!(
        store
            .shared
            .state()
            .victim(now + LONG)
            .map(|(key, cause)| (key == leases[0].key, cause)),
        Some((false, Cause::Room))
    );
    let lease = last.renew().unwrap();
    lease.note_used(now + 2 * LONG, 1);
    drop(lease);
    assert_eq!(evict(now + 2 * LONG), Some((leases[0].key, Cause::Stalled)));
    assert!(evict(now + 2 * LONG).is_some_and(|(_, cause)| cause == Cause::Room));
    assert!(last.renew().is_none());
    assert_eq!(store.usage(Tier::Host), (0, 0));
}

/// Between an answer and the request that follows it, a segment is not in use.
#[tokio::test]
async fn questions_alone_evict_nothing_that_others_were_just_told_of() {
    let store = store(cost().await * 8);
    let (honest, crowd, now) = (1, 2, Instant::now() + Duration::from_secs(3600));
    let mut keys = Vec::new();
    for number in 0..40 {
        let lease = insert(&store, number, None).await.unwrap().lease;
        store.note_named(&lease, if number == 0 { honest } else { crowd }, now);
        keys.push(lease.key);
    }
    let held = |range: Range<usize>| {
        keys[range]
            .iter()
            .filter(|key| store.is_held(**key))
            .count()
    };
    assert_eq!(
        (held(0..1), held(1..33), held(33..40)),
        (1, 0, 7),
        "the crowd's give way to the crowd's"
    );
    let evict = |at| store.shared.state().evict(at).map(|gone| gone.key);
    let used = store.lookup(&id(33), None).unwrap().lease;
    used.note_used(now, 1);
    drop(used);
    let (rest, last) = (
        keys[34..39].iter().chain(&keys[33..34]),
        [keys[0], keys[39]],
    );
    for key in rest.chain(&last) {
        assert_eq!(
            evict(now),
            Some(*key),
            "what blocks have left of goes before what was just told of"
        );
    }
    assert_eq!(evict(now), None);

    let told = insert(&store, 0, None).await.unwrap().lease;
    store.note_named(&told, honest, now);
    let other = insert(&store, 1, None).await.unwrap().lease;
    let keys = (told.key, other.key);
    drop((told, other));
    assert_eq!(
        store.shared.state().victim(now),
        Some((keys.1, Cause::Room))
    );
    assert_eq!(
        store.shared.state().victim(now + Duration::from_secs(3)),
        Some((keys.0, Cause::Room)),
        "only for a moment"
    );
    store.expire(&id(0), segment(0).1.coding(), now);
    store.sweep(now);
    assert!(
        !store.is_held(keys.0) && store.is_held(keys.1),
        "and no longer than its time"
    );
}

/// Segments in use have three quarters; beyond that, the one read slowest for its size goes.
#[tokio::test]
async fn a_newcomer_finds_room_though_all_is_read() {
    let store = store(cost().await * 8);
    let mut leases = Vec::new();
    for number in 0..8 {
        let lease = insert(&store, number, None).await.unwrap().lease;
        lease.note_used(Instant::now(), if number == 3 { 1 << 10 } else { 20 << 10 });
        leases.push(lease);
    }
    let newcomers = [
        insert(&store, 8, None).await.unwrap(),
        insert(&store, 9, None).await.unwrap(),
    ];
    // Nothing of the second newcomer was sent: no more than of the first, which was evicted for it.
    let gone = |lease: &Lease| lease.is_void();
    assert_eq!(
        leases.iter().map(gone).collect::<Vec<_>>(),
        (0..8).map(|number| number == 3).collect::<Vec<_>>()
    );
    assert!(gone(&newcomers[0].lease) && !gone(&newcomers[1].lease));
    assert_eq!(
        store.shared.metrics.evicted(Tier::Host, Cause::Slow).get(),
        2
    );
    assert_eq!(
        (
            store.shared.metrics.refused.get(),
            store.usage(Tier::Host).1
        ),
        (0, 8)
    );
}

#[tokio::test]
async fn the_store_says_for_how_long_it_has_no_room() {
    let store = store(cost().await * 8 / 3);
    let leases = (
        insert(&store, 0, None).await.unwrap(),
        insert(&store, 1, None).await.unwrap(),
    );
    let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
    assert_eq!(store.refused(now), None, "nobody has asked");
    for held in [&leases.0, &leases.1] {
        held.lease.note_used(later, 1);
    }
    let refused = insert(&store, 2, None).await;
    let Err(Error::Full { bytes }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(store.refused(now), Some(bytes));
    assert_eq!(store.refused(later + LONG), None, "they have stalled");
    assert!(matches!(
        insert(&store, 2, None).await,
        Err(Error::Full { .. })
    ));
    drop(leases);
    assert_eq!(store.refused(now), None);
}

#[tokio::test]
async fn a_sweep_takes_what_has_expired() {
    let store = store(1 << 20);
    let now = Instant::now();
    drop((
        insert(&store, 0, Some(now)).await,
        insert(&store, 1, None).await,
        insert(&store, 2, None).await,
    ));
    store.expire(&id(1), segment(1).1.coding(), now + Duration::from_secs(10));
    store.sweep(now);
    assert_eq!(store.usage(Tier::Host).1, 2);
    // Inserted again without an expiry.
    insert(&store, 1, None).await.unwrap();
    store.sweep(now + Duration::from_secs(10));
    assert_eq!(store.usage(Tier::Host).1, 2);
    store.expire(&id(1), segment(1).1.coding(), now);
    store.sweep(now);
    assert_eq!(store.usage(Tier::Host).1, 1);
}

/// A stream may be withdrawn while its segment is being inserted.
#[tokio::test]
async fn what_comes_after_its_stream_was_withdrawn_is_not_taken_in() {
    let store = store(1 << 20);
    let path = |name: &str| Some(format!("/{name}/1").into());
    let withdrawn = Arc::new(AtomicBool::new(false));
    let placement = || Placement {
        path: path("old"),
        withdrawn: Arc::clone(&withdrawn),
        ..Placement::default()
    };
    let put = |number, placement| {
        let (bytes, shape) = segment(number);
        store.insert(bytes, shape, placement)
    };
    // While the device works on it, or just before.
    let mut late = std::pin::pin!(put(1, placement()));
    let early = late.as_mut().now_or_never();
    withdrawn.store(true, Ordering::Release);
    store.withdraw(|path| path.starts_with("/old/"));
    match early {
        // A fast device has finished before the poll; the segment was then withdrawn.
        Some(taken) => assert!(taken.is_ok()),
        None => assert_eq!(late.await.unwrap_err(), Error::Withdrawn),
    }
    assert_eq!(
        (store.usage(Tier::Host), store.shared.state().host.used()),
        ((0, 0), 0)
    );
    // A segment that another stream holds keeps its path there.
    put(
        2,
        Placement {
            path: path("other"),
            ..Placement::default()
        },
    )
    .await
    .unwrap();
    assert_eq!(put(2, placement()).await.unwrap_err(), Error::Withdrawn);
    assert_eq!(
        store.lookup(&id(2), None).unwrap().path.as_deref(),
        Some("/other/1")
    );
}

#[tokio::test]
async fn what_can_never_fit_is_said_to() {
    let store = store(100);
    assert!(matches!(
        insert(&store, 0, None).await,
        Err(Error::TooLarge { .. })
    ));
    assert_eq!(store.shared.state().host.used(), 0);
}

/// A store on a device that claims memory of its own, of which copies may use this much.
fn on(device: Device, host: u64, copies: u64) -> Store {
    let config = Config {
        bytes: ByteSize::b(host),
        device_bytes: Portion::Bytes(ByteSize::b(copies)),
    };
    Store::with_tiers(&config, device, metrics(), || Some(u64::MAX))
}

fn two_tiers(host: u64, copies: u64) -> Store {
    let (device, thread) = open();
    std::mem::forget(thread);
    on(device, host, copies)
}

async fn place(store: &Store, number: u8, eager: bool) -> SegmentKey {
    let (bytes, shape) = segment(number);
    store
        .insert(
            bytes,
            shape,
            Placement {
                eager,
                ..Placement::default()
            },
        )
        .await
        .unwrap()
        .lease
        .key
}

/// Asks until no load is in progress.
async fn settle(store: &Store, key: SegmentKey) -> Residency {
    let mut loads = store.loads();
    loop {
        match store.resident(key) {
            Residency::Loading => while loads.recv().await.unwrap() != key {},
            other => return other,
        }
    }
}

async fn ready(store: &Store, key: SegmentKey) -> Arc<Resident> {
    let answer = tokio::time::timeout(Duration::from_secs(20), settle(store, key))
        .await
        .expect("a load ends");
    let Residency::Ready(OnDevice { resident, .. }) = answer else {
        panic!("{answer:?}")
    };
    resident
}

fn copies(store: &Store) -> usize {
    store.usage(Tier::Device).1
}

fn is_loading(store: &Store, key: SegmentKey) -> bool {
    matches!(store.resident(key), Residency::Loading)
}

#[tokio::test]
async fn the_eager_are_copied_and_others_wait_for_a_request() {
    let store = two_tiers(1 << 20, 1 << 20);
    let mut loads = store.loads();
    let (live, other) = (place(&store, 0, true).await, place(&store, 1, false).await);
    assert_eq!(
        store.usage(Tier::Host),
        (2048, 2),
        "the host holds the bytes themselves"
    );
    assert_eq!(loads.recv().await, Ok(live));
    assert_eq!((copies(&store), store.shared.metrics.loads.get()), (1, 1));
    assert!(matches!(store.resident(live), Residency::Ready(found) if found.id == id(0)));
    drop(ready(&store, other).await);
    assert_eq!(
        (
            copies(&store),
            store.shared.metrics.loads.get(),
            store.shared.metrics.loads_pending.get()
        ),
        (2, 2, 0)
    );
    let used = store.shared.state().device_budget().used();
    assert_eq!(used, store.usage(Tier::Device).0);
    // Wanted again ahead of time, it is there.
    place(&store, 0, true).await;
    assert_eq!(store.shared.metrics.loads.get(), 2);
}

#[tokio::test]
async fn a_copy_goes_and_its_segment_stays() {
    let store = two_tiers(1 << 20, cost().await);
    let mut evictions = store.evictions();
    let keys = [place(&store, 0, false).await, place(&store, 1, false).await];
    for key in keys.iter().chain(&keys) {
        drop(ready(&store, *key).await);
        assert_eq!((store.usage(Tier::Host).1, copies(&store)), (2, 1));
    }
    assert_eq!(store.shared.metrics.loads.get(), 4);
    assert_eq!(
        store
            .shared
            .metrics
            .evicted(Tier::Device, Cause::Room)
            .get(),
        3
    );
    assert_eq!(
        store.shared.metrics.evicted(Tier::Host, Cause::Room).get(),
        0
    );
    assert!(
        evictions.try_recv().is_err(),
        "nothing has gone that anybody had to be told of"
    );
}

#[tokio::test]
async fn copies_that_were_used_or_live_longer_stay() {
    let store = two_tiers(1 << 20, cost().await * 3);
    let mut keys = Vec::new();
    for number in 0..4 {
        keys.push(place(&store, number, false).await);
    }
    for key in &keys[..3] {
        drop(ready(&store, *key).await);
    }
    store.expire(&id(1), segment(1).1.coding(), Instant::now());
    drop(ready(&store, keys[0]).await);
    drop(ready(&store, keys[3]).await);
    let held = store.shared.state().index.copies().collect::<Vec<_>>();
    assert_eq!(held, [keys[2], keys[0], keys[3]], "the expired one went");
    assert_eq!(
        store
            .shared
            .metrics
            .evicted(Tier::Device, Cause::Expired)
            .get(),
        1
    );
    drop(ready(&store, keys[1]).await);
    assert!(
        store
            .shared
            .state()
            .index
            .copies()
            .eq([keys[0], keys[3], keys[1]]),
        "then the one used least recently"
    );
}

#[tokio::test]
async fn a_segment_takes_its_copy_along() {
    let store = two_tiers(2 * 1024, 1 << 20);
    let mut evictions = store.evictions();
    let keys = [place(&store, 0, false).await, place(&store, 1, false).await];
    let batch = ready(&store, keys[0]).await;
    let next = place(&store, 2, false).await;
    assert_eq!(evictions.try_recv(), Ok(keys[1]), "a batch reads the other");
    drop(batch);
    drop(ready(&store, next).await);
    place(&store, 3, false).await;
    assert_eq!(evictions.try_recv(), Ok(keys[0]));
    assert!(matches!(store.resident(keys[0]), Residency::Gone));
    assert_eq!((store.usage(Tier::Host).1, copies(&store)), (2, 1));
    let used = store.shared.state().device_budget().used();
    assert_eq!(used, store.usage(Tier::Device).0);
}

#[tokio::test]
async fn many_askers_have_one_load() {
    let store = two_tiers(1 << 20, 1 << 20);
    let key = place(&store, 0, false).await;
    assert!((0..16).all(|_| is_loading(&store, key)));
    let mut loads = store.loads();
    place(&store, 0, true).await;
    assert_eq!(loads.recv().await, Ok(key));
    drop(ready(&store, key).await);
    assert_eq!(store.shared.metrics.loads.get(), 1);
    assert!(loads.try_recv().is_err());
}

#[tokio::test]
async fn a_waiting_load_has_its_turn_while_others_keep_asking() {
    let store = two_tiers(1 << 20, cost().await);
    let mut loads = store.loads();
    let (one, two) = (place(&store, 0, false).await, place(&store, 1, false).await);
    let batch = ready(&store, one).await;
    assert_eq!(loads.recv().await, Ok(one));
    assert!(is_loading(&store, two));
    while !is_loading(&store, one) {
        tokio::task::yield_now().await;
    }
    assert!(
        batch.is_alive() && loads.try_recv().is_err(),
        "a batch reads it: it is retiring, and there"
    );
    assert_eq!(
        store.shared.metrics.loads_pending.get(),
        2,
        "and it will be back"
    );
    drop(batch);
    store.settled();
    assert_eq!(loads.recv().await, Ok(two));
    assert!(is_loading(&store, one));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(
        matches!(store.resident(two), Residency::Ready(..)),
        "it stays until it has been handed out"
    );
    assert_eq!(loads.recv().await, Ok(one));
    assert_eq!((copies(&store), store.shared.metrics.loads.get()), (1, 3));
}

#[tokio::test]
async fn a_copy_that_nobody_comes_for_makes_room() {
    let store = two_tiers(1 << 20, cost().await);
    let mut loads = store.loads();
    let (one, two) = (place(&store, 0, false).await, place(&store, 1, false).await);
    assert!(is_loading(&store, one));
    assert_eq!(loads.recv().await, Ok(one));
    let begun = Instant::now();
    drop(ready(&store, two).await);
    assert!(begun.elapsed() > Duration::from_millis(100));
}

#[tokio::test]
async fn a_copy_larger_than_the_budget_is_alone() {
    let store = two_tiers(1 << 20, 100);
    let (one, two) = (place(&store, 0, false).await, place(&store, 1, false).await);
    for key in [one, two, one] {
        drop(ready(&store, key).await);
        assert_eq!(copies(&store), 1);
    }
}

#[tokio::test]
async fn a_device_with_less_memory_than_its_budget_loses_copies() {
    let store = two_tiers(1 << 20, 1 << 20);
    let keys = [
        place(&store, 0, false).await,
        place(&store, 1, false).await,
        place(&store, 2, false).await,
    ];
    drop((ready(&store, keys[0]).await, ready(&store, keys[1]).await));
    let (mut gone, now) = (Vec::new(), Instant::now());
    let mut state = store.shared.state();
    let ceiling = state.device_budget().used() + state::padded(&segment(0).1) - 1;
    assert!(matches!(
        state.find_room(keys[2], ceiling, now, &mut gone),
        state::Room::Free { cost: 1024, .. }
    ));
    let gone: Vec<_> = gone
        .iter()
        .map(|gone| (gone.key, gone.tier, gone.cause))
        .collect();
    assert_eq!(gone, [(keys[0], Tier::Device, Cause::Memory)]);
}

/// A resident of a device that no longer exists.
async fn dead(number: u8) -> Resident {
    let (device, thread) = open();
    let (bytes, shape) = segment(number);
    let resident = device.load(bytes, shape).await.unwrap();
    thread.close();
    assert!(!resident.is_alive());
    resident
}

#[tokio::test]
async fn a_lost_copy_is_made_again() {
    let store = two_tiers(1 << 20, 1 << 20);
    let mut evictions = store.evictions();
    let key = place(&store, 0, false).await;
    let lose = async |resident: Resident| {
        let (mut state, mut gone) = (store.shared.state(), Vec::new());
        assert!(state.device_budget().reserve(1024));
        state.place(
            key,
            state::Image::Resident(Arc::new(resident)),
            1024,
            Instant::now(),
            &mut gone,
        );
    };
    lose(dead(0).await).await;
    assert_eq!(copies(&store), 1);
    assert!(is_loading(&store, key));
    assert!(ready(&store, key).await.is_alive());
    assert_eq!(
        store
            .shared
            .metrics
            .evicted(Tier::Device, Cause::Lost)
            .get(),
        1
    );

    lose(dead(0).await).await;
    store.sweep(Instant::now());
    assert_eq!((copies(&store), store.usage(Tier::Host).1), (0, 1));
    assert!(evictions.try_recv().is_err());
}

#[tokio::test]
async fn a_store_whose_device_lost_its_memory_keeps_to_its_own() {
    let (device, thread) = open();
    std::mem::forget(thread);
    let total = Arc::new(AtomicU64::new(1 << 30));
    let told = Arc::clone(&total);
    let memory = move || Some(told.load(Ordering::Relaxed)).filter(|total| *total > 0);
    let store = Store::with_tiers(
        &Config {
            bytes: ByteSize::b(4096),
            ..Config::default()
        },
        device,
        metrics(),
        memory,
    );
    let limit = || store.shared.state().device_budget().limit();
    assert_eq!(limit(), Portion::Percent(80).of(1 << 30));
    total.store(0, Ordering::Relaxed);
    let key = place(&store, 0, false).await;
    drop(ready(&store, key).await);
    assert_eq!(limit(), 2048);
}

#[tokio::test]
async fn with_one_tier_what_is_lost_is_gone() {
    let (device, thread) = open();
    let store = Store::new(&Config::default(), device, metrics());
    let mut evictions = store.evictions();
    let (one, two) = (place(&store, 0, false).await, place(&store, 1, true).await);
    thread.close();
    assert!(matches!(store.resident(one), Residency::Gone));
    store.sweep(Instant::now());
    assert_eq!(
        (evictions.try_recv(), evictions.try_recv()),
        (Ok(one), Ok(two))
    );
    assert_eq!(store.shared.state().host.used(), 0);
}

#[tokio::test]
async fn a_load_that_fails_pauses_and_ends() {
    let (device, thread) = open();
    let store = on(device, 1 << 20, 1 << 20);
    thread.close();
    let (mut loads, key) = (store.loads(), place(&store, 0, false).await);
    let begun = Instant::now();
    assert!(is_loading(&store, key));
    assert_eq!(loads.recv().await, Ok(key));
    assert!(begun.elapsed() > Duration::from_secs(1));
    let metrics = &store.shared.metrics;
    assert_eq!(
        (
            metrics.loads.get(),
            metrics.load_failures.get(),
            metrics.loads_pending.get()
        ),
        (1, 5, 0)
    );
    assert!(store.is_held(key));
    assert_eq!(store.shared.state().device_budget().used(), 0);
    assert!(is_loading(&store, key), "whoever asks again begins another");
}

#[tokio::test]
async fn a_segment_that_goes_while_it_loads_leaves_nothing() {
    let store = two_tiers(1024, 1 << 20);
    let (mut loads, one) = (store.loads(), place(&store, 0, true).await);
    let two = place(&store, 1, false).await;
    assert_eq!(loads.recv().await, Ok(one));
    assert!(matches!(store.resident(one), Residency::Gone));
    assert_eq!(
        (copies(&store), store.shared.state().device_budget().used()),
        (0, 0)
    );
    drop(ready(&store, two).await);
}

/// Far longer than any device of a test takes.
const PATIENCE: Duration = Duration::from_secs(60);
const PRIME: Codec = Codec::RlncQ {
    group: HashGroup::P1024,
};

/// A two-tier store whose device keeps copies of segments coded over the prime field within `room`
/// bytes.
fn keeping(copies: u64, room: u64) -> (Store, Hoard) {
    let (device, thread) = open();
    std::mem::forget(thread);
    let hoard = Hoard::new(room);
    (
        on(
            device.with_gfq(Box::new(hoard.clone()), PATIENCE),
            1 << 20,
            copies,
        ),
        hoard,
    )
}

/// Two generations; the last block is short.
fn prime_shape() -> Shape {
    Shape::new(1000, K, 8).unwrap().coded_with(PRIME).unwrap()
}

async fn place_prime(store: &Store, number: u8, eager: bool) -> SegmentKey {
    let placement = Placement {
        eager,
        ..Placement::default()
    };
    store
        .insert(Bytes::from(vec![number; 1000]), prime_shape(), placement)
        .await
        .unwrap()
        .lease
        .key
}

/// A segment over the prime field: its bytes are always there.
fn plain(store: &Store, key: SegmentKey) -> Option<Arc<dyn Kept>> {
    match store.resident(key) {
        Residency::Plain(Plain { bytes, kept, .. }) => {
            assert_eq!(bytes.len(), 1000);
            kept
        }
        other => panic!("{other:?}"),
    }
}

/// Waits for its copy.
async fn kept(store: &Store, key: SegmentKey) -> Arc<dyn Kept> {
    let mut loads = store.loads();
    loop {
        match plain(store, key) {
            Some(kept) => return kept,
            None => _ = loads.recv().await,
        }
    }
}

#[tokio::test]
async fn what_is_coded_over_the_prime_field_is_kept_on_the_device_too() {
    let (store, hoard) = keeping(1 << 20, u64::MAX);
    let mut loads = store.loads();
    let (live, other) = (
        place_prime(&store, 0, true).await,
        place_prime(&store, 1, false).await,
    );
    assert_eq!(loads.recv().await, Ok(live));
    assert!(plain(&store, live).is_some());
    assert!(
        plain(&store, other).is_none(),
        "nobody waits for the way to the device"
    );
    assert_eq!(kept(&store, other).await.bytes(), 1024, "whole blocks");
    assert_eq!((store.usage(Tier::Device), hoard.used()), ((2048, 2), 2048));
    assert_eq!(store.shared.state().device_budget().used(), 2048);
    assert_eq!(
        (
            store.shared.metrics.loads.get(),
            store.shared.metrics.loads_pending.get()
        ),
        (2, 0)
    );
    for number in 0..2 {
        store.expire(
            &SegmentId::of_coded(&[number; 1000], PRIME),
            prime_shape().coding(),
            Instant::now(),
        );
    }
    store.sweep(Instant::now());
    assert_eq!(
        (
            store.usage(Tier::Host).1,
            store.usage(Tier::Device),
            hoard.used()
        ),
        (0, (0, 0), 0)
    );
    assert_eq!(store.shared.state().device_budget().used(), 0);
}

#[tokio::test]
async fn what_is_kept_makes_room_and_is_served_meanwhile() {
    let (store, hoard) = keeping(1024, u64::MAX);
    let keys = [
        place_prime(&store, 0, false).await,
        place_prime(&store, 1, false).await,
    ];
    let reader = kept(&store, keys[0]).await;
    assert!(plain(&store, keys[1]).is_none());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(
        plain(&store, keys[1]).is_none() && hoard.used() == 1024,
        "a batch reads the other"
    );
    drop(reader);
    store.settled();
    drop(kept(&store, keys[1]).await);
    assert_eq!((copies(&store), hoard.used()), (1, 1024));
    assert_eq!(
        store
            .shared
            .metrics
            .evicted(Tier::Device, Cause::Room)
            .get(),
        1
    );
    // Beside copies of other segments.
    let third = place(&store, 2, false).await;
    drop(ready(&store, third).await);
    assert_eq!((copies(&store), hoard.used()), (1, 0));
}

#[tokio::test]
async fn a_device_that_has_no_room_to_keep_loses_something_else() {
    let (store, hoard) = keeping(1 << 20, 1024);
    let keys = [
        place_prime(&store, 0, false).await,
        place_prime(&store, 1, false).await,
    ];
    for key in [keys[0], keys[1], keys[0]] {
        drop(kept(&store, key).await);
        assert_eq!((copies(&store), hoard.used()), (1, 1024));
    }
    assert_eq!(
        store
            .shared
            .metrics
            .evicted(Tier::Device, Cause::Memory)
            .get(),
        2
    );
}

#[tokio::test]
async fn what_keeps_nothing_is_asked_once() {
    let store = two_tiers(1 << 20, 1 << 20);
    let (mut loads, key) = (store.loads(), place_prime(&store, 0, true).await);
    assert_eq!(loads.recv().await, Ok(key));
    assert!(plain(&store, key).is_none());
    place_prime(&store, 1, true).await;
    assert_eq!(
        (
            store.shared.metrics.loads.get(),
            store.shared.metrics.load_failures.get()
        ),
        (1, 0)
    );
    assert_eq!(
        (copies(&store), store.shared.state().device_budget().used()),
        (0, 0)
    );
    // Without device memory it is never asked.
    let (device, thread) = open();
    let hoard = Hoard::new(u64::MAX);
    let store = Store::new(
        &Config::default(),
        device.with_gfq(Box::new(hoard.clone()), PATIENCE),
        metrics(),
    );
    let key = place_prime(&store, 0, true).await;
    assert!(plain(&store, key).is_none());
    assert_eq!((store.shared.metrics.loads.get(), hoard.used()), (0, 0));
    thread.close();
}

/// Otherwise it would keep the turn for hashes from all others.
#[tokio::test]
async fn a_card_that_hangs_over_hashes_is_waited_for_once() {
    let (device, thread) = open();
    let hoard = Hoard::new(u64::MAX);
    let device = device.with_gfq(Box::new(hoard.clone()), Duration::from_millis(200));
    let store = Store::new(&Config::default(), device, metrics());
    hoard.hold(true);
    for number in 0..2 {
        let held = store
            .insert(Bytes::from(vec![number; 1000]), prime_shape(), hashed())
            .await
            .unwrap();
        assert!(held.blocks_digest.is_some());
    }
    assert_eq!(hoard.calls(), 1);
    hoard.hold(false);
    thread.close();
}

#[tokio::test]
async fn what_was_kept_on_a_lost_card_goes_and_the_segment_stays() {
    let (store, hoard) = keeping(1 << 20, u64::MAX);
    let (key, other) = (
        place_prime(&store, 0, false).await,
        place_prime(&store, 1, false).await,
    );
    let reader = kept(&store, key).await;
    drop(kept(&store, other).await);
    hoard.lose();
    assert!(!reader.is_alive() && plain(&store, key).is_none());
    store.sweep(Instant::now());
    assert_eq!((store.usage(Tier::Host).1, copies(&store)), (2, 0));
    assert_eq!(
        store
            .shared
            .metrics
            .evicted(Tier::Device, Cause::Lost)
            .get(),
        2
    );
    assert_eq!(hoard.used(), 1024, "a batch has it still");
    drop(reader);
    assert_eq!(hoard.used(), 0);
}

/// Tasks do at random what the parts of a server do; nothing is left over at the end.
#[tokio::test(flavor = "multi_thread")]
async fn the_books_are_right_after_everything() {
    let store = two_tiers(24 * 1024, cost().await * 5);
    let worker = |seed: u64| {
        let (store, mut random) = (store.clone(), StdRng::seed_from_u64(seed));
        async move {
            let (mut leases, mut batches, mut keys) =
                (VecDeque::new(), VecDeque::new(), VecDeque::new());
            for _ in 0..2000 {
                let number = random.random_range(0..48);
                match random.random_range(0..8) {
                    0 | 1 => {
                        let (bytes, shape) = segment(number);
                        let placement = Placement {
                            eager: random.random(),
                            ..Placement::default()
                        };
                        if let Ok(held) = store.insert(bytes, shape, placement).await {
                            keys.push_back(held.lease.key);
                            leases.extend(random.random::<bool>().then_some(held));
                        }
                    }
                    2..5 => {
                        let key = keys.get(random.random_range(0..8)).copied();
                        if let Some(Residency::Ready(OnDevice { resident, .. })) =
                            key.map(|key| store.resident(key))
                        {
                            batches.push_back(resident);
                        }
                    }
                    5 => store.expire(&id(number), segment(number).1.coding(), Instant::now()),
                    6 => store.sweep(Instant::now()),
                    _ => {
                        tokio::time::sleep(Duration::from_micros(random.random_range(1..300))).await
                    }
                }
                leases.truncate(2);
                keys.drain(..keys.len().saturating_sub(8));
                if batches.len() > 2 {
                    batches.pop_front();
                    store.settled();
                }
            }
        }
    };
    futures_util::future::join_all((0..6).map(|seed| tokio::spawn(worker(seed))))
        .await
        .into_iter()
        .for_each(Result::unwrap);
    let begun = Instant::now();
    while store.shared.metrics.loads_pending.get() > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{:?}",
            store.shared
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut state = store.shared.state();
    assert_eq!(
        (state.host.used(), state.host.used() > 0),
        (state.index.bytes(Tier::Host), true)
    );
    assert_eq!(
        state.device_budget().used(),
        state.index.bytes(Tier::Device)
    );
    assert!(
        state.host.used() <= state.host.limit()
            && state.device_budget().used() <= state.device_budget().limit()
    );
    let metrics = &store.shared.metrics;
    assert!(
        metrics.evicted(Tier::Device, Cause::Room).get() > 10
            && metrics.evicted(Tier::Host, Cause::Expired).get() > 10
    );
    assert_eq!(metrics.load_failures.get(), 0);
}

fn hashed() -> Placement {
    Placement {
        hashed: true,
        ..Placement::default()
    }
}

/// Everything held counts, and all of it is evicted together.
#[tokio::test]
async fn hashes_are_kept_with_their_segment_and_cost_what_they_are() {
    for store in [store(1 << 20), two_tiers(1 << 20, 1 << 20)] {
        let (bytes, shape) = segment(1);
        let plain = insert(&store, 1, None).await.unwrap();
        assert_eq!(
            (plain.blocks_digest, store.hashes(plain.lease.key)),
            (None, None)
        );
        let before = store.usage(Tier::Host).0;
        // Hashes of a segment that was held without.
        let held = store.insert(bytes.clone(), shape, hashed()).await.unwrap();
        let hashes = BlockHashes::of(&bytes, &shape);
        assert_eq!(
            (held.lease.key, held.blocks_digest),
            (plain.lease.key, Some(hashes.digest()))
        );
        assert_eq!(store.hashes(held.lease.key), Some(hashes));
        assert_eq!(store.usage(Tier::Host).0, before + 16 * 16);
        assert_eq!(
            insert(&store, 1, None).await.unwrap().blocks_digest,
            held.blocks_digest,
            "they stay"
        );
        // Hashes of a new segment.
        let (bytes, shape) = segment(2);
        let other = store.insert(bytes.clone(), shape, hashed()).await.unwrap();
        assert_eq!(
            other.blocks_digest,
            Some(BlockHashes::of(&bytes, &shape).digest())
        );
        assert_eq!(store.usage(Tier::Host).0, 2 * (before + 16 * 16));
        drop((plain, held, other));
        for number in [1, 2] {
            store.expire(&id(number), segment(number).1.coding(), Instant::now());
        }
        store.sweep(Instant::now());
        assert_eq!(
            (store.usage(Tier::Host), store.shared.state().host.used()),
            ((0, 0), 0)
        );
    }
}

#[tokio::test]
async fn the_same_bytes_in_two_streams_are_held_as_each_codes_them() {
    for store in [store(1 << 20), two_tiers(1 << 20, 1 << 20)] {
        let bytes = segment(1).0;
        let with = |k, n_max, codec| {
            Shape::new(1024, k, n_max)
                .unwrap()
                .coded_with(codec)
                .unwrap()
        };
        let rs = Codec::ReedSolomon { parity: 2 };
        let shapes = [
            with(K, 8, Codec::Rlnc),
            with(2 * K, 8, Codec::Rlnc),
            with(K, 4, Codec::Rlnc),
            with(K, 8, rs),
        ];
        let mut all = Vec::new();
        for shape in shapes {
            all.push(store.insert(bytes.clone(), shape, hashed()).await.unwrap());
        }
        assert_eq!(
            (
                store.usage(Tier::Host).1,
                store.lookup(&id(1), None).map(|held| held.lease.key)
            ),
            (4, Some(all[3].lease.key))
        );
        for (held, shape) in all.iter().zip(shapes) {
            assert_eq!(held.lease.shape, shape);
            assert_eq!(
                held.blocks_digest,
                Some(BlockHashes::of(&bytes, &shape).digest())
            );
            let again = store.insert(bytes.clone(), shape, hashed()).await.unwrap();
            assert_eq!(again.lease.key, held.lease.key);
            assert_eq!(
                store
                    .lookup(&id(1), Some(shape.coding()))
                    .unwrap()
                    .lease
                    .key,
                held.lease.key
            );
            let generation = shape.generation(0).unwrap();
            let got = store
                .generation(&held.lease, &generation)
                .await
                .unwrap()
                .unwrap();
            assert_eq!(
                got,
                bytes.slice(..usize::try_from(generation.length).unwrap())
            );
        }
        assert!(
            store
                .lookup(&id(1), Some(with(K, 5, rs).coding()))
                .is_none()
        );
        // A segment that one stream drops stays with the others.
        drop(all);
        store.expire(&id(1), shapes[0].coding(), Instant::now());
        store.sweep(Instant::now());
        let is_held = shapes.map(|shape| store.lookup(&id(1), Some(shape.coding())).is_some());
        assert_eq!(is_held, [false, true, true, true]);
    }
}

#[tokio::test]
async fn a_generation_is_given_in_bytes_whatever_form_it_is_held_in() {
    for store in [store(1 << 20), two_tiers(1 << 20, 1 << 20)] {
        let bytes: Bytes = (0..1000_u32)
            .map(|i| u8::try_from(i % 251).unwrap())
            .collect::<Vec<_>>()
            .into();
        let shape = Shape::new(1000, K, 5).unwrap();
        let held = store
            .insert(bytes.clone(), shape, Placement::default())
            .await
            .unwrap();
        assert!(shape.generations() > 1);
        for generation in shape.iter() {
            let got = store
                .generation(&held.lease, &generation)
                .await
                .unwrap()
                .unwrap();
            let (start, length) = (
                usize::try_from(generation.offset).unwrap(),
                usize::try_from(generation.length).unwrap(),
            );
            assert_eq!(got[..length], bytes[start..start + length]);
            assert!(got[length..].iter().all(|byte| *byte == 0), "padding");
        }
        let lease = held.lease.clone();
        let gone = Lease::new(
            SegmentKey(lease.key.0 + 1),
            lease.id,
            shape,
            Loan::new(Instant::now()),
        );
        assert_eq!(
            store.generation(&gone, &shape.generation(0).unwrap()).await,
            Ok(None)
        );
    }
}

/// Segments over the prime field have no device form: their bytes are held with their hashes, which
/// count, and the CPU has no use for copies.
#[tokio::test]
async fn over_the_prime_field_bytes_are_held_and_hashed() {
    for store in [store(1 << 20), two_tiers(1 << 20, 1 << 20)] {
        let (bytes, shape) = segment(1);
        let group = HashGroup::P1024;
        let shape = shape.coded_with(Codec::RlncQ { group }).unwrap();
        let placement = Placement {
            eager: true,
            ..hashed()
        };
        let held = store.insert(bytes.clone(), shape, placement).await.unwrap();
        let hashes = store.hashes(held.lease.key).unwrap();
        assert_eq!(
            (hashes.as_bytes().len(), held.blocks_digest),
            (16 * 128, Some(hashes.digest()))
        );
        // Equal blocks have equal hashes, computed by the arithmetic itself.
        let one = Cores::all().hash(group, 2, &[&bytes[..64]]).unwrap();
        assert!(hashes.as_bytes().chunks(128).all(|hash| hash == one));
        assert_eq!(
            hashes.of_generation(&shape.generation(1).unwrap()).len(),
            8 * 128
        );
        assert_eq!(store.usage(Tier::Host).0, 1024 + 16 * 128);
        assert!(matches!(
            store.resident(held.lease.key),
            Residency::Plain(found) if found.bytes == bytes && found.shape == shape
        ));
        assert_eq!(store.usage(Tier::Device), (0, 0));
        assert_eq!(store.shared.metrics.homomorphic_hashes.get(), 16);
        let id = held.lease.id;
        drop(held);
        store.expire(&id, shape.coding(), Instant::now());
        store.sweep(Instant::now());
        assert_eq!(
            (store.usage(Tier::Host), store.shared.state().host.used()),
            ((0, 0), 0)
        );
    }
}

/// Two streams may have the same bytes in different codes: over the prime field they are a segment
/// of their own.
#[tokio::test]
async fn what_proves_itself_is_not_what_has_the_same_bytes() {
    let store = store(1 << 20);
    let (bytes, shape) = segment(1);
    let codecs = [
        Codec::Rlnc,
        Codec::RlncQ {
            group: HashGroup::P1024,
        },
        Codec::RlncQ {
            group: HashGroup::P2048,
        },
    ];
    let mut all = Vec::new();
    for codec in codecs {
        let held = store
            .insert(bytes.clone(), shape.coded_with(codec).unwrap(), hashed())
            .await
            .unwrap();
        let hashes = store.hashes(held.lease.key).unwrap();
        assert_eq!(
            hashes.as_bytes().len() as u64,
            BlockHashes::bytes(&held.lease.shape)
        );
        all.push(held);
    }
    for (held, codec) in all.iter().zip(codecs) {
        assert_eq!(held.lease.shape.codec(), codec);
        assert_eq!(
            store.lookup(&held.lease.id, None).unwrap().lease.key,
            held.lease.key
        );
    }
}

/// A segment held without hashes gets them within the budget, or not at all. The unsigned stream
/// and the signed one have the same bytes.
#[tokio::test]
async fn hashes_that_come_later_stay_within_the_budget() {
    let group = HashGroup::P1024;
    let shape = |number| {
        segment(number)
            .1
            .coded_with(Codec::RlncQ { group })
            .unwrap()
    };
    let budget = 4 * 1024 + 16 * 128;
    let store = store(budget);
    let mut all = Vec::new();
    for number in 1..=4 {
        all.push(
            store
                .insert(segment(number).0, shape(number), Placement::default())
                .await
                .unwrap(),
        );
    }
    for number in 1..=4 {
        let _ = store
            .insert(segment(number).0, shape(number), hashed())
            .await;
        let used = store.shared.state().host.used();
        assert!(
            used <= budget,
            "{used} of {budget} bytes after segment {number}"
        );
        assert_eq!(store.usage(Tier::Host).0, used, "nothing stays reserved");
    }
}

/// Refused segments cost no arithmetic, however often they are inserted.
#[tokio::test]
async fn room_is_found_before_hashes_are_made() {
    let group = HashGroup::P1024;
    let store = store((1024 + 16 * 128) * 4 / 3);
    let codec = Codec::RlncQ { group };
    let (bytes, shape) = segment(1);
    let held = store
        .insert(bytes, shape.coded_with(codec).unwrap(), hashed())
        .await
        .unwrap();
    let (bytes, shape) = segment(2);
    for _ in 0..2 {
        let refused = store
            .insert(bytes.clone(), shape.coded_with(codec).unwrap(), hashed())
            .await;
        assert_eq!(
            refused.unwrap_err(),
            Error::Full {
                bytes: 1024 + 16 * 128
            }
        );
    }
    assert_eq!(store.shared.metrics.homomorphic_hashes.get(), 16);
    drop(held);
    store
        .insert(bytes, shape.coded_with(codec).unwrap(), hashed())
        .await
        .unwrap();
    assert_eq!(store.shared.metrics.homomorphic_hashes.get(), 32);
}

/// A live segment waits for the one whose turn it is and the next, however many wait.
#[tokio::test]
async fn who_is_in_a_hurry_waits_for_two_at_most() {
    let turns = Arc::new(Turns::default());
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = turns.turn(false).await;
    let mut waiting = tokio::task::JoinSet::new();
    for (name, is_urgent) in [
        ("one", false),
        ("two", false),
        ("three", false),
        ("live", true),
        ("live again", true),
    ] {
        let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
        waiting.spawn(async move {
            let turn = turns.turn(is_urgent).await;
            order.lock().unwrap().push(name);
            tokio::task::yield_now().await;
            drop(turn);
        });
        // It has queued.
        tokio::task::yield_now().await;
    }
    drop(first);
    waiting.join_all().await;
    assert_eq!(
        *order.lock().unwrap(),
        ["one", "live", "live again", "two", "three"]
    );
}

/// The tree is made with the id, and its size counts.
#[tokio::test]
async fn a_segment_of_several_groups_is_held_with_its_tree() {
    for store in [store(1 << 20), two_tiers(1 << 20, 1 << 20)] {
        assert!(
            insert(&store, 1, None).await.unwrap().tree.is_none(),
            "one group is proven by the id"
        );
        let before = store.usage(Tier::Host).0;
        let bytes = Bytes::from(vec![7; 40_000]);
        let held = store
            .insert(
                bytes.clone(),
                Shape::new(40_000, 64, 8).unwrap(),
                Placement::default(),
            )
            .await
            .unwrap();
        let tree = held.tree.unwrap();
        assert!(
            bytes
                .chunks(16_384)
                .enumerate()
                .all(|(index, group)| tree.proves(index, group))
        );
        assert_eq!((held.lease.id, tree.groups()), (SegmentId::of(&bytes), 3));
        assert_eq!(store.usage(Tier::Host).0, before + 40_000 + 3 * 32);
        assert_eq!(store.lookup(&held.lease.id, None).unwrap().tree, Some(tree));
    }
}
