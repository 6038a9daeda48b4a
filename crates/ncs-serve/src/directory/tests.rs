use ncs_proto::integrity::signing::Admitted;
use ncs_proto::object::Codec;

use super::*;

struct Rig {
    directory: Directory,
    key: Arc<SigningKey>,
    start: Instant,
}

fn rig(policy: Policy) -> Rig {
    let directory = Directory::new(Metrics::new(&prometheus::Registry::new()).unwrap());
    let key =
        Arc::new(SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap());
    directory.set_streams(
        [(
            "live".to_owned(),
            Stream {
                policy,
                key: Arc::clone(&key),
            },
        )]
        .into(),
    );
    Rig {
        directory,
        key,
        start: Instant::now(),
    }
}

const CODING: Coding = Coding {
    block_bytes: 1088,
    n_max: 32,
    codec: Codec::Rlnc,
};
const MEANT: Meant = Meant::Coded(CODING);

fn segment(number: u32) -> SegmentId {
    SegmentId::of(&number.to_be_bytes())
}

impl Rig {
    /// Peer `number` offers to serve, and holds segment 1.
    fn peer(&self, number: u8, state: HoldingState) {
        let session = SessionId(number.into());
        self.directory.offer(
            session,
            SocketAddr::from(([10, 0, number, 1], 4444)),
            [number; 32],
        );
        self.directory.have(
            session,
            &[Holding {
                segment: segment(1),
                meant: MEANT,
                state,
            }],
        );
    }

    fn now(&self, seconds: u64) -> Now {
        let passed = Duration::from_secs(seconds);
        Now {
            instant: self.start + passed,
            date: Duration::from_secs(1_800_000_000) + passed,
        }
    }

    fn ask(&self, session: u64, seconds: u64) -> Vec<Introduction> {
        let asker = Asker {
            session: SessionId(session),
            address: [10, 0, 3, 9].into(),
        };
        self.directory
            .introduce(self.now(seconds), asker, "live", (segment(1), CODING))
    }

    fn named(&self, session: u64) -> Vec<u8> {
        self.ask(session, 0)
            .iter()
            .map(|peer| peer.identity[0])
            .collect()
    }
}

#[test]
fn those_who_hold_it_are_named_the_complete_ones_first() {
    let rig = rig(Policy::All);
    rig.peer(1, HoldingState::Partial);
    rig.peer(2, HoldingState::Complete);
    rig.peer(3, HoldingState::Partial);
    assert_eq!(rig.named(9)[0], 2);
    assert_eq!(rig.named(9).len(), 3);
    // Other blocks of the same bytes are useless; older peers do not report the coding.
    let other = Meant::Coded(Coding {
        n_max: 64,
        ..CODING
    });
    for (number, meant) in [(4, other), (5, Meant::LastNamed), (6, Meant::Foreign)] {
        let session = SessionId(number.into());
        rig.directory.offer(
            session,
            SocketAddr::from(([10, 0, number, 1], 4444)),
            [number; 32],
        );
        rig.directory.have(
            session,
            &[Holding {
                segment: segment(1),
                meant,
                state: HoldingState::Partial,
            }],
        );
    }
    let named = rig.named(9);
    assert_eq!(
        [4, 5, 6].map(|number| named.contains(&number)),
        [false, true, false],
        "{named:?}"
    );
    rig.directory.withdraw(SessionId(5));
    // No peer is named for unknown segments or other streams, and none to itself.
    let asker = Asker {
        session: SessionId(9),
        address: [10, 0, 3, 9].into(),
    };
    assert!(
        rig.directory
            .introduce(rig.now(0), asker, "live", (segment(2), CODING))
            .is_empty()
    );
    assert!(
        rig.directory
            .introduce(rig.now(0), asker, "vod", (segment(1), CODING))
            .is_empty()
    );
    assert_eq!(rig.named(2).len(), 2);
    // The same peer on a second connection is still itself.
    rig.directory.offer(
        SessionId(7),
        SocketAddr::from(([10, 0, 2, 1], 4444)),
        [2; 32],
    );
    assert!(!rig.named(7).contains(&2));

    rig.directory.withdraw(SessionId(2));
    rig.directory.withdraw(SessionId(7));
    rig.directory.have(
        SessionId(1),
        &[Holding {
            segment: segment(1),
            meant: MEANT,
            state: HoldingState::Gone,
        }],
    );
    assert_eq!(rig.named(9), [3]);
}

#[test]
fn the_policy_of_the_stream_says_whom() {
    let lan = rig(Policy::Lan);
    let off = rig(Policy::Off);
    for rig in [&lan, &off] {
        (1..=3).for_each(|number| rig.peer(number, HoldingState::Complete));
    }
    assert_eq!(lan.named(9), [3]);
    assert!(off.named(9).is_empty());
    assert_eq!(
        network("::ffff:10.0.3.7".parse().unwrap()),
        network("10.0.3.200".parse().unwrap())
    );
    assert_eq!(
        network("2001:db8::1".parse().unwrap()),
        network("2001:db8::ffff:0:0:1".parse().unwrap())
    );
    assert_ne!(
        network("2001:db8:0:1::1".parse().unwrap()),
        network("2001:db8::1".parse().unwrap())
    );
}

#[test]
fn who_follows_a_stream_is_named_before_anybody_holds_what_is_new() {
    let rig = rig(Policy::All);
    let new = |session: u64, seconds| {
        let asker = Asker {
            session: SessionId(session),
            address: [10, 0, 3, 9].into(),
        };
        let named = rig
            .directory
            .introduce(rig.now(seconds), asker, "live", (segment(5), CODING));
        let mut named: Vec<u8> = named.iter().map(|peer| peer.identity[0]).collect();
        named.sort_unstable();
        named
    };
    (1..=3).for_each(|number| rig.peer(number, HoldingState::Complete));
    assert!(new(9, 0).is_empty(), "nobody has asked for anything yet");
    rig.named(1);
    rig.named(2);
    assert_eq!(
        new(9, 1),
        [1, 2],
        "the third offers, but may watch something else"
    );
    assert_eq!(new(1, 1), [2]);
    // Holders come before followers.
    rig.directory.have(
        SessionId(3),
        &[Holding {
            segment: segment(5),
            meant: MEANT,
            state: HoldingState::Partial,
        }],
    );
    let asker = Asker {
        session: SessionId(9),
        address: [10, 0, 3, 9].into(),
    };
    let first = &rig
        .directory
        .introduce(rig.now(1), asker, "live", (segment(5), CODING))[0];
    assert_eq!(first.identity[0], 3);
    rig.directory.withdraw(SessionId(2));
    assert_eq!(new(9, 2), [1, 3]);
    // The first follower asked last at 1 s.
    assert_eq!(new(9, 31), [3]);
    assert!(rig.directory.state().followers.is_empty());
}

#[test]
fn a_new_offer_is_not_named_before_others_again() {
    let rig = rig(Policy::All);
    let [server, viewer] = [1, 2].map(SessionId);
    let address = SocketAddr::from(([10, 0, 1, 1], 4444));
    let named = || rig.directory.state().offers[&server].named;
    rig.directory.offer(server, address, [1; 32]);
    let holding = Holding {
        segment: segment(2),
        meant: MEANT,
        state: HoldingState::Complete,
    };
    rig.directory.have(server, &[holding]);
    let asker = Asker {
        session: viewer,
        address: [10, 0, 3, 9].into(),
    };
    let told = rig
        .directory
        .introduce(rig.now(0), asker, "live", (segment(2), CODING));
    assert_eq!((told.len(), named()), (1, 1));
    rig.directory.offer(server, address, [2; 32]);
    assert_eq!(named(), 1);
    rig.directory.withdraw(server);
    rig.directory.offer(server, address, [3; 32]);
    assert_eq!(named(), 0);
}

#[test]
fn a_follower_that_knows_enough_others_is_not_told_with_every_new_segment() {
    let rig = rig(Policy::All);
    let named = |session: u64, seconds, segment| -> Vec<u8> {
        let asker = Asker {
            session: SessionId(session),
            address: [10, 0, 3, 9].into(),
        };
        let named = rig
            .directory
            .introduce(rig.now(seconds), asker, "live", (segment, CODING));
        named.iter().map(|peer| peer.identity[0]).collect()
    };
    let ask = |session, seconds| named(session, seconds, segment(2)).len();
    for number in 0..10 {
        let address = SocketAddr::from(([10, 0, number, 1], 4444));
        rig.directory
            .offer(SessionId(number.into()), address, [number; 32]);
        assert_eq!(ask(number.into(), 0), NAMED_MAX.min(number.into()));
    }
    assert_eq!(ask(0, 2), NAMED_MAX, "nobody was there before");
    assert_eq!([ask(9, 2), ask(9, 9)], [0, 0]);
    assert_eq!(
        [ask(99, 10), ask(99, 11)],
        [NAMED_MAX; 2],
        "it serves nobody"
    );
    let told = named(9, 10, segment(2));
    assert_eq!(told.len(), NAMED_MAX, "after a while");
    let holds = |number: u8, segment| {
        let holding = Holding {
            segment,
            meant: MEANT,
            state: HoldingState::Complete,
        };
        rig.directory.have(SessionId(number.into()), &[holding]);
    };
    told.iter().for_each(|number| {
        assert_eq!(ask(9, 12), 0);
        holds(*number, segment(2));
    });
    assert_eq!(ask(9, 12), NAMED_MAX, "all of them have it");
    // Another segment is held by a peer that it was not told of. Then peers leave.
    let told = named(9, 22, segment(3));
    let stranger = (0..9).find(|number| !told.contains(number)).unwrap();
    assert!(named(9, 23, segment(4)).is_empty());
    holds(stranger, segment(4));
    let told = named(9, 23, segment(4));
    assert_eq!(told[0], stranger, "none of those has it");
    let withdraw = |number: &u8| rig.directory.withdraw(SessionId((*number).into()));
    told[..4].iter().for_each(withdraw);
    assert!(named(9, 24, segment(5)).is_empty());
    withdraw(&told[4]);
    assert_eq!(named(9, 24, segment(5)).len(), 4);
}

#[test]
fn in_a_network_of_their_own_those_are_named_that_follow_there() {
    let rig = rig(Policy::Lan);
    (1..=2).for_each(|number| rig.peer(number, HoldingState::Complete));
    let ask = |session: u64, network: u8| {
        let asker = Asker {
            session: SessionId(session),
            address: [10, 0, network, 9].into(),
        };
        let named = rig
            .directory
            .introduce(rig.now(0), asker, "live", (segment(5), CODING));
        named
            .iter()
            .map(|peer| peer.identity[0])
            .collect::<Vec<_>>()
    };
    ask(1, 1);
    ask(2, 2);
    assert_eq!(ask(9, 1), [1]);
    assert_eq!(ask(9, 2), [2]);
    assert!(ask(9, 3).is_empty());
}

#[test]
fn all_have_their_turn() {
    let rig = rig(Policy::All);
    (1..=40).for_each(|number| rig.peer(number, HoldingState::Complete));
    let mut times = [0; 41];
    (0..50).for_each(|_| {
        rig.named(99)
            .into_iter()
            .for_each(|number| times[usize::from(number)] += 1)
    });
    assert!(times[1..].iter().all(|times| *times == 10), "{times:?}");
}

#[test]
fn tickets_are_for_the_peer_that_is_named_and_end() {
    let rig = rig(Policy::All);
    rig.peer(1, HoldingState::Complete);
    let key = rig.key.public();
    let read = |seconds| {
        let [peer] = &rig.ask(9, seconds)[..] else {
            panic!("one peer")
        };
        let says = Admitted::by(&peer.ticket, |stream| (stream == "live").then_some(key)).unwrap();
        assert_eq!((says.identity, says.stream.as_str()), ([1; 32], "live"));
        let left = says.until_ms - u64::try_from(rig.now(seconds).date.as_millis()).unwrap();
        assert_eq!(peer.lasts_ms, left);
        (left, says.nonce)
    };
    let first = read(0);
    assert_eq!(first.0, 300_000);
    assert_eq!(read(100), (200_000, first.1));
    let next = read(120);
    assert_eq!(next.0, 300_000);
    assert_ne!(next.1, first.1);
}

#[test]
fn whom_several_blame_is_not_named_for_a_while() {
    let rig = rig(Policy::All);
    rig.peer(1, HoldingState::Complete);
    let blame = |reporter: [u8; 4], seconds| {
        rig.directory
            .blame(rig.now(seconds).instant, reporter.into(), None, [1; 32])
    };
    blame([10, 0, 5, 1], 0);
    blame([10, 0, 5, 2], 0);
    blame([10, 0, 6, 1], 0);
    // Two of them are in one network, and count once.
    assert_eq!(rig.named(9), [1]);
    blame([10, 0, 7, 1], 1);
    assert!(rig.ask(9, 2).is_empty());
    assert_eq!(rig.ask(9, 700).len(), 1);
}

/// Three networks accuse all peers, again and again: only a few are suppressed.
#[test]
fn a_few_networks_keep_few_peers_from_being_named() {
    let rig = rig(Policy::All);
    (1..=40).for_each(|number| rig.peer(number, HoldingState::Complete));
    for second in 0..5 {
        for (number, network) in
            (1..=40).flat_map(|number| [5, 6, 7].map(|network| (number, network)))
        {
            rig.directory.blame(
                rig.now(second).instant,
                [10, 0, network, 1].into(),
                None,
                [number; 32],
            );
        }
    }
    let mut named = HashSet::new();
    (0..100).for_each(|_| named.extend(rig.named(99)));
    assert_eq!(named.len(), 40 - REPORTS_MAX);
    // Each network may report again after a while.
    for network in [5, 6, 7] {
        rig.directory.blame(
            rig.now(700).instant,
            [10, 0, network, 1].into(),
            None,
            [40; 32],
        );
    }
    let named: HashSet<_> = (0..100)
        .flat_map(|_| rig.ask(99, 701))
        .map(|peer| peer.identity[0])
        .collect();
    assert!(named.len() == 39 && !named.contains(&40), "{}", named.len());
}

#[test]
fn one_token_and_one_site_count_once() {
    let rig = rig(Policy::All);
    rig.peer(1, HoldingState::Complete);
    let holder = |name: &str| Some(Holder::of("test", &[name.as_bytes()]));
    let blame = |reporter: &str, holder| {
        rig.directory.blame(
            rig.now(0).instant,
            reporter.parse().unwrap(),
            holder,
            [1; 32],
        );
    };
    for network in 1..4 {
        blame(&format!("10.1.{network}.1"), holder("one"));
        blame(&format!("2001:db8:7:{network}::1"), None);
    }
    assert_eq!(rig.named(9), [1], "a holder and a site: two");
    blame("2001:db8:8::1", holder("two"));
    assert!(rig.ask(9, 0).is_empty());
}

#[test]
fn what_a_peer_tells_is_bounded() {
    let rig = rig(Policy::All);
    rig.peer(1, HoldingState::Complete);
    for number in (2..).take(HOLDINGS_MAX) {
        let holding = Holding {
            segment: segment(number),
            meant: MEANT,
            state: HoldingState::Partial,
        };
        rig.directory.have(SessionId(1), &[holding]);
        rig.directory.have(SessionId(1), &[holding]);
    }
    // The first is forgotten.
    assert!(rig.named(9).is_empty());
    assert_eq!(rig.directory.state().holders.len(), HOLDINGS_MAX);
    // Without an offer the list is ignored, and not all twelve are named at once.
    rig.directory.have(
        SessionId(50),
        &[Holding {
            segment: segment(1),
            meant: MEANT,
            state: HoldingState::Complete,
        }],
    );
    assert!(rig.named(9).is_empty());
    (1..=12).for_each(|number| rig.peer(number, HoldingState::Complete));
    assert_eq!(rig.ask(99, 0).len(), NAMED_MAX);
    rig.directory.set_streams(HashMap::new());
    assert!(rig.ask(99, 0).is_empty());
    let noted = || {
        let state = rig.directory.state();
        (
            state.holdings,
            state.holders.values().map(Vec::len).sum::<usize>(),
        )
    };
    assert_eq!(noted(), (12, 12));
    (1..=12).for_each(|number| rig.directory.withdraw(SessionId(number)));
    assert_eq!(noted(), (0, 0));
}

impl Rig {
    /// Page `number` offers to serve, and follows the stream.
    fn page(&self, number: u64) -> Page {
        let page = self.directory.offer_page(SessionId(number)).unwrap();
        self.pages_for(number, 0);
        page
    }

    fn pages_for(&self, session: u64, seconds: u64) -> Vec<PageIntroduction> {
        let asker = Asker {
            session: SessionId(session),
            address: [10, 0, 3, 9].into(),
        };
        self.directory
            .introduce_pages(self.now(seconds), asker, "live", (segment(1), CODING))
    }

    fn says(&self, from: u64, to: &Page, seconds: u64) {
        let bytes = Bytes::from_static(b"hello");
        self.directory.signal(
            self.now(seconds).instant,
            SessionId(from),
            to.identity,
            bytes,
        );
    }
}

#[test]
fn pages_are_named_to_pages_and_peers_to_peers() {
    let rig = rig(Policy::All);
    rig.peer(1, HoldingState::Complete);
    let pages = [rig.page(11), rig.page(12)];
    rig.directory.have(
        SessionId(11),
        &[Holding {
            segment: segment(1),
            meant: MEANT,
            state: HoldingState::Partial,
        }],
    );
    let named = rig.pages_for(12, 1);
    assert_eq!(named.len(), 1);
    assert_eq!(named[0].identity, pages[0].identity);
    let says = Admitted::by(&named[0].ticket, |_| Some(rig.key.public())).unwrap();
    assert_eq!(
        (&says.stream[..], says.identity),
        ("live", pages[0].identity)
    );
    // One that only follows the stream is named, too; peers are named the peer alone.
    assert_eq!(rig.pages_for(11, 1)[0].identity, pages[1].identity);
    assert_eq!(rig.named(9), [1]);
    assert!(rig.named(1).is_empty());
    // Who serves no pages is told of none.
    assert!(rig.pages_for(9, 1).is_empty());
    assert!(rig.pages_for(1, 1).is_empty());
    rig.directory.withdraw(SessionId(11));
    assert!(rig.pages_for(12, 2).is_empty());
}

#[test]
fn pages_of_a_stream_that_keeps_viewers_apart_are_not_named() {
    for policy in [Policy::Off, Policy::Lan] {
        let rig = rig(policy);
        let (mut one, _other) = (rig.page(11), rig.page(12));
        assert!(rig.pages_for(12, 1).is_empty(), "{policy:?}");
        rig.says(12, &one, 1);
        assert!(one.signals.try_recv().is_err());
    }
}

#[test]
fn pages_say_something_to_those_that_were_introduced() {
    let rig = rig(Policy::All);
    let (mut one, mut other, stranger) = (rig.page(11), rig.page(12), rig.page(13));
    // The second was told of the first when it came, and the third of both.
    rig.says(12, &one, 1);
    rig.says(11, &other, 1);
    let hello = Bytes::from_static(b"hello");
    assert_eq!(one.signals.try_recv(), Ok((other.identity, hello.clone())));
    assert_eq!(other.signals.try_recv(), Ok((one.identity, hello)));
    // A peer with a port, and a session without an offer, say nothing.
    rig.peer(1, HoldingState::Complete);
    rig.says(1, &one, 1);
    rig.says(9, &one, 1);
    assert!(one.signals.try_recv().is_err());
    // After a while they have to be introduced again.
    rig.says(12, &one, 61);
    assert!(one.signals.try_recv().is_err());
    rig.pages_for(12, 61);
    rig.pages_for(11, 61);
    rig.says(12, &one, 62);
    assert!(one.signals.try_recv().is_ok());
    // A page that does not read is told a few things; the rest is dropped.
    for _ in 0..100 {
        rig.says(13, &other, 1);
    }
    let told = std::iter::from_fn(|| other.signals.try_recv().ok()).count();
    assert_eq!(told, SIGNALS_MAX);
    assert_eq!(rig.directory.inner.metrics.signals.get(), 3 + told as u64);
    // Whoever is gone is told nothing.
    rig.directory.withdraw(SessionId(13));
    rig.says(12, &stranger, 1);
    drop(stranger);
}

#[test]
fn a_page_is_told_of_a_bounded_number_of_others() {
    let rig = rig(Policy::All);
    let one = rig.page(1000);
    let others: Vec<Page> = (0..200).map(|number| rig.page(number)).collect();
    for second in 0..50 {
        rig.pages_for(1000, second);
    }
    let state = rig.directory.state();
    let Place::Page { named, .. } = &state.offers[&SessionId(1000)].place else {
        panic!("it is a page")
    };
    assert_eq!(named.len(), PAGES_MAX);
    assert_eq!((state.pages.len(), others.len()), (201, 200));
    drop(one);
}

impl Rig {
    /// Peers of these numbers offer to serve, and follow the stream.
    fn follow(&self, numbers: std::ops::RangeInclusive<u8>, seconds: u64) {
        for number in numbers {
            self.peer(number, HoldingState::Partial);
            let asker = Asker {
                session: SessionId(number.into()),
                address: [10, 0, number, 1].into(),
            };
            self.directory
                .introduce(self.now(seconds), asker, "live", (segment(1), CODING));
        }
    }

    /// What other servers may be told, if they are to be told something.
    fn told(&self, seconds: u64) -> Option<Vec<u8>> {
        let changed = self.directory.news().changed;
        let circle = changed.into_iter().next()?;
        Some(self.sharers(circle, seconds))
    }

    fn sharers(&self, circle: Circle, seconds: u64) -> Vec<u8> {
        let sharers = self.directory.sharers(self.now(seconds).instant, circle);
        let mut numbers: Vec<u8> = sharers.iter().map(|sharer| sharer.identity[0]).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// A peer of another server.
fn elsewhere(number: u8) -> Sharer {
    Sharer {
        address: SocketAddr::from(([10, 0, number, 1], 5555)),
        identity: [number; 32],
    }
}

#[test]
fn other_servers_are_told_who_follows_and_nothing_of_segments() {
    let rig = rig(Policy::All);
    rig.follow(1..=2, 0);
    rig.peer(3, HoldingState::Complete);
    // The first news have all that is known.
    assert_eq!(rig.told(0), Some(vec![1, 2]));
    assert_eq!(rig.told(0), None);
    // Who says that it has more, or asks for more, is no news.
    let holding = Holding {
        segment: segment(5),
        meant: MEANT,
        state: HoldingState::Complete,
    };
    rig.directory.have(SessionId(1), &[holding]);
    rig.ask(1, 0);
    assert_eq!(rig.told(1), None);
    rig.follow(3..=3, 1);
    let circle = rig.directory.news().changed.into_iter().next().unwrap();
    let sharers = rig.directory.sharers(rig.now(1).instant, circle);
    assert_eq!(sharers.len(), 3);
    assert!(sharers.contains(&Sharer {
        address: SocketAddr::from(([10, 0, 3, 1], 4444)),
        identity: [3; 32],
    }));
    rig.directory.withdraw(SessionId(1));
    assert_eq!(rig.told(1), Some(vec![2, 3]));
    // The first and the second asked last at 0 s.
    assert_eq!(rig.sharers(circle, 30), [3]);
    for network in 1..=3 {
        let reporter = [20, 0, network, 1].into();
        rig.directory
            .blame(rig.now(30).instant, reporter, None, [3; 32]);
    }
    assert_eq!(rig.sharers(circle, 30), [0; 0]);
}

/// However many follow a stream, the same few are told of as long as they do.
#[test]
fn other_servers_are_told_of_few() {
    let rig = rig(Policy::All);
    rig.directory.news();
    rig.follow(1..=40, 0);
    let circle = rig.directory.news().changed.into_iter().next().unwrap();
    let before = rig.sharers(circle, 1);
    assert_eq!(before.len(), SHARERS_MAX);
    assert_eq!(rig.sharers(circle, 2), before);
    rig.directory.withdraw(SessionId(before[3].into()));
    let after = rig.sharers(circle, 2);
    assert_eq!(after.len(), SHARERS_MAX);
    let stay = before.iter().filter(|number| after.contains(number));
    assert_eq!(stay.count(), SHARERS_MAX - 1);
}

#[test]
fn circles_are_of_a_stream_and_a_network() {
    let lan = rig(Policy::Lan);
    lan.directory.news();
    lan.follow(1..=3, 0);
    assert_eq!(lan.directory.news().changed.len(), 3);
    let off = rig(Policy::Off);
    off.directory.news();
    off.follow(1..=3, 0);
    let news = off.directory.news();
    assert!(news.changed.is_empty() && news.wanted.is_empty());
    // Pages stay with their server.
    let all = rig(Policy::All);
    all.directory.news();
    let page = all.page(1);
    all.pages_for(1, 0);
    let changed = all.directory.news().changed;
    assert_eq!(changed.len(), 1, "{page:?} follows");
    for circle in changed {
        assert_eq!(all.sharers(circle, 0), [0; 0]);
    }
}

#[test]
fn a_stream_that_is_removed_or_changes_is_withdrawn() {
    let rig = rig(Policy::All);
    rig.directory.news();
    rig.follow(1..=2, 0);
    let circle = rig.directory.news().changed.into_iter().next().unwrap();
    let streams = |policy, key: &Arc<SigningKey>| {
        let key = Arc::clone(key);
        HashMap::from([("live".to_owned(), Stream { policy, key })])
    };
    let all = || streams(Policy::All, &rig.key);
    rig.directory.set_streams(all());
    assert_eq!(rig.told(0), None, "nothing has changed");
    let other = SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap();
    for streams in [
        streams(Policy::Lan, &rig.key),
        streams(Policy::All, &Arc::new(other)),
        HashMap::new(),
    ] {
        rig.directory.set_streams(streams);
        assert_eq!(rig.told(0), Some(Vec::new()));
        assert_eq!(rig.sharers(circle, 0), [0; 0]);
        assert!(rig.directory.state().followers.is_empty());
        let state = rig.directory.state();
        assert!(state.offers.values().all(|offer| offer.follows.is_empty()));
        drop(state);
        rig.directory.set_streams(all());
        rig.follow(1..=2, 0);
        assert_eq!(rig.told(0), Some(vec![1, 2]));
    }
}

#[test]
fn peers_of_other_servers_are_named_where_this_one_has_too_few() {
    let rig = rig(Policy::All);
    rig.directory.news();
    rig.follow(1..=5, 0);
    let news = rig.directory.news();
    let circle = news.wanted.into_iter().next().unwrap();
    assert!(news.changed.contains(&circle));
    // One of them is connected to this server, too.
    rig.directory
        .found(circle, [5, 101, 102, 103, 104].map(elsewhere).to_vec());
    let named = rig.ask(9, 0);
    let numbers: Vec<u8> = named.iter().map(|peer| peer.identity[0]).collect();
    assert_eq!(numbers.len(), NAMED_MAX);
    assert!(numbers[..5].iter().all(|number| (1..=5).contains(number)));
    assert!(
        numbers[5..].iter().all(|number| *number > 100),
        "{numbers:?}"
    );
    let far = named.last().unwrap();
    assert_eq!(far.address, elsewhere(far.identity[0]).address);
    let ticket = Admitted::by(&far.ticket, |name| {
        (name == "live").then(|| rig.key.public())
    });
    assert_eq!(ticket.unwrap().identity, far.identity);
    let metrics = &rig.directory.inner.metrics;
    assert_eq!(metrics.fleet_introductions.get(), 3);
    // They take turns, and what is found again keeps its place.
    let missing = (101..=104)
        .find(|number| !numbers.contains(number))
        .unwrap();
    rig.directory
        .found(circle, [104, 103, 102, 101].map(elsewhere).to_vec());
    assert!(rig.named(9).contains(&missing));
    // None is named to itself, and none that several have blamed.
    rig.directory.offer(
        SessionId(50),
        SocketAddr::from(([10, 0, 101, 1], 5555)),
        [101; 32],
    );
    rig.directory.withdraw(SessionId(5));
    for network in 1..=3 {
        let reporter = [20, 0, network, 1].into();
        rig.directory
            .blame(rig.now(0).instant, reporter, None, [102; 32]);
    }
    for _ in 0..4 {
        let named = rig.named(50);
        assert_eq!(named.len(), 6, "{named:?}");
        assert!(!named.contains(&101) && !named.contains(&102));
    }
    // Where there are enough, nothing is wanted.
    rig.directory.news();
    rig.follow(11..=20, 0);
    rig.directory.news();
    let named = rig.named(9);
    assert!(named.iter().all(|number| *number < 100), "{named:?}");
    assert!(rig.directory.news().wanted.is_empty());
    rig.directory.found(circle, Vec::new());
    assert!(!rig.directory.state().elsewhere.knows(&[103; 32]));
}

/// Whoever lies to this server cannot lead its viewers out of their network.
#[test]
fn in_a_network_of_their_own_peers_of_other_servers_are_of_it() {
    let rig = rig(Policy::Lan);
    rig.directory.news();
    assert!(rig.named(9).is_empty());
    let circle = rig.directory.news().wanted.into_iter().next().unwrap();
    rig.directory
        .found(circle, [2, 3, 4].map(elsewhere).to_vec());
    assert_eq!(rig.named(9), [3]);
}
