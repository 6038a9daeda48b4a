//! Pages that serve each other, in virtual time: a server written from `docs/protocol.md`, and
//! data channels that lose datagrams.
#![cfg(feature = "share")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncs_codec::block::Vector;
use ncs_codec::rlnc::Encoder;
use ncs_gf::Kernels;
use ncs_proto::integrity::checks::project;
use ncs_proto::integrity::hashes::BlockHashes;
use ncs_proto::integrity::signing::SigningKey;
use ncs_proto::object::{Codec, SegmentId, Shape, Tree, row_key};
use ncs_proto::peer::SourceId;
use ncs_proto::wire::block;
use ncs_proto::wire::frame::Reader;
use ncs_proto::wire::message::{
    Checks, Delivery, Hello, Holding, HoldingState, Message, Meta, PageIntroduction, RequestCode,
    RequestError, is_path,
};
use ncs_web::{Event, LinkId, Peer, ReadId};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

const SERVER: SourceId = SourceId(0);
const DELAY: Duration = Duration::from_millis(20);
const SEGMENT: usize = 60_000;
/// The server's line to each page carries a block in such a time.
const BLOCK_EVERY: Duration = Duration::from_millis(4);

/// What the server has: a segment at each path.
fn segment(index: usize) -> Bytes {
    (0..SEGMENT)
        .map(|at| u8::try_from((at * at + index * 7 * at) % 251).expect("it is below 251"))
        .collect()
}

fn shape() -> Shape {
    Shape::new(SEGMENT as u64, 1024, 32).unwrap()
}

/// The identity under which the server names a page.
fn identity(page: usize) -> [u8; 32] {
    [10 + u8::try_from(page).unwrap(); 32]
}

struct Page {
    peer: Peer,
    frames: Reader,
    /// Requests that are open at the server: segment and generation.
    open: BTreeMap<u16, (SegmentId, u32)>,
    seqs: BTreeMap<u16, u16>,
    serves: bool,
    follows: bool,
    holds: BTreeSet<SegmentId>,
    /// The links of the page, by the other page.
    links: BTreeMap<usize, LinkId>,
    read: Option<ReadId>,
    got: Vec<u8>,
    is_done: bool,
    lies: bool,
    /// Nothing that it sends arrives.
    is_mute: bool,
    /// Bytes of blocks from the server, and to others.
    from_server: usize,
    /// When what the server has sent to it has left.
    free_at: Instant,
    blames: Vec<[u8; 32]>,
}

/// What is on its way.
enum Packet {
    FromServer(usize, Bytes, bool),
    Signal(usize, usize, Bytes),
    Opened(usize, usize),
    Control(usize, usize, bool, Vec<u8>),
    Datagram(usize, usize, Bytes),
}

struct World {
    now: Instant,
    key: SigningKey,
    introduces: bool,
    pages: Vec<Page>,
    /// By their time, and in their order.
    wires: BTreeMap<(Instant, u64), Packet>,
    packets: u64,
    seed: u32,
    sent: u64,
}

impl World {
    fn new(count: usize, introduces: bool) -> Self {
        let now = Instant::now() + Duration::from_secs(1000);
        let pem = SigningKey::generate(&mut StdRng::seed_from_u64(5));
        let page = |index: usize| {
            let seed = u8::try_from(index).unwrap();
            let mut peer = Peer::sharing([seed; 32], 1 << 20, [seed; 32]);
            peer.connected(now, SERVER, None, [seed; 16], 7);
            peer.set_rtt(SERVER, 2 * DELAY);
            Page {
                peer,
                frames: Reader::new(),
                open: BTreeMap::new(),
                seqs: BTreeMap::new(),
                serves: false,
                follows: false,
                holds: BTreeSet::new(),
                links: BTreeMap::new(),
                read: None,
                got: Vec::new(),
                is_done: false,
                lies: false,
                is_mute: false,
                from_server: 0,
                free_at: now,
                blames: Vec::new(),
            }
        };
        let mut world = Self {
            now,
            key: SigningKey::from_pem(pem.as_bytes()).unwrap(),
            introduces,
            pages: (0..count).map(page).collect(),
            wires: BTreeMap::new(),
            packets: 0,
            seed: 0,
            sent: 0,
        };
        world.run_for(Duration::from_millis(300));
        world
    }

    fn send(&mut self, packet: Packet) {
        self.send_at(self.now, packet);
    }

    fn send_at(&mut self, at: Instant, packet: Packet) {
        self.packets += 1;
        self.wires.insert((at + DELAY, self.packets), packet);
    }

    fn read(&mut self, page: usize, index: usize) {
        let path = format!("/live/{index}.ts");
        assert!(is_path(&path));
        let page = &mut self.pages[page];
        let read = page.peer.read(&path, 0..u64::MAX, None).unwrap();
        page.peer.set_room(read, u64::MAX);
        (page.read, page.is_done) = (Some(read), false);
        page.got.clear();
    }

    /// Runs until these pages have read what they read, which must be right, and takes no longer
    /// than a wait for others may.
    fn run(&mut self, pages: &[usize], index: usize) {
        let end = self.now + Duration::from_secs(5);
        while pages.iter().any(|page| !self.pages[*page].is_done) {
            assert!(self.now < end, "it does not end");
            self.step();
        }
        for page in pages {
            assert!(self.pages[*page].got == segment(index), "page {page}");
        }
    }

    /// Two pages read so many segments: the second one each after the first.
    fn read_in_turn(&mut self, segments: usize) {
        for index in 0..segments {
            self.read(0, index);
            self.run(&[0], index);
            self.run_for(Duration::from_millis(500));
            self.read(1, index);
            self.run(&[1], index);
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn step(&mut self) {
        for page in 0..self.pages.len() {
            self.settle(page);
        }
        self.now += Duration::from_millis(2);
        while let Some(first) = self.wires.first_entry()
            && first.key().0 <= self.now
        {
            let packet = first.remove();
            self.arrive(packet);
        }
        for page in &mut self.pages {
            page.peer.handle_timeout(self.now);
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let now = self.now;
        match packet {
            Packet::FromServer(to, bytes, true) => self.pages[to].peer.datagram(now, SERVER, bytes),
            Packet::FromServer(to, bytes, false) => {
                self.pages[to].peer.control(now, SERVER, &bytes);
            }
            Packet::Signal(from, to, bytes) => {
                let page = identity(from);
                let signal = Message::Signal { page, bytes }.to_frame();
                self.pages[to].peer.control(now, SERVER, &signal);
            }
            Packet::Opened(page, other) => {
                if let Some(link) = self.pages[page].links.get(&other).copied() {
                    self.pages[page].peer.link_opened(now, link);
                }
            }
            Packet::Control(from, to, as_consumer, bytes) => {
                if let Some(link) = self.pages[to].links.get(&from).copied() {
                    let peer = &mut self.pages[to].peer;
                    peer.link_control(now, link, as_consumer, &bytes);
                }
            }
            Packet::Datagram(from, to, bytes) => {
                if let Some(link) = self.pages[to].links.get(&from).copied() {
                    self.pages[to].peer.link_datagram(now, link, bytes);
                }
            }
        }
    }

    fn settle(&mut self, page: usize) {
        let now = self.now;
        let bytes = self.pages[page].peer.poll_messages(now, SERVER);
        self.hear(page, &bytes);
        while let Some(event) = self.pages[page].peer.poll_event(now) {
            let own = &mut self.pages[page];
            match event {
                Event::Bytes(_, bytes) => own.got.extend_from_slice(&bytes),
                Event::Ended(read) => own.is_done |= own.read == Some(read),
                Event::Failed { reason, .. } => panic!("page {page}: {reason}"),
                // What scripts say is the number of the link here; the server puts the page before.
                Event::Call(link, _) => {
                    own.peer
                        .signal(link, Bytes::copy_from_slice(&link.0.to_be_bytes()));
                }
                Event::Signal(link, _, said) => self.connect(page, link, &said),
                Event::HangUp(link) => self.hang_up(page, link),
                _ => {}
            }
        }
        let links: Vec<(usize, LinkId)> = self.pages[page]
            .links
            .iter()
            .map(|(other, link)| (*other, *link))
            .collect();
        for (other, link) in links {
            for as_consumer in [true, false] {
                let peer = &mut self.pages[page].peer;
                let bytes = peer.poll_link_control(now, link, as_consumer);
                if !bytes.is_empty() {
                    self.send(Packet::Control(page, other, !as_consumer, bytes));
                }
            }
            let blocks = self.pages[page].peer.poll_link_blocks(now, link, 20_000);
            self.pass(page, other, &blocks);
        }
    }

    /// The scripts of two pages connect them.
    fn connect(&mut self, page: usize, link: LinkId, said: &[u8]) {
        let (other, theirs) = said.split_first().unwrap();
        let other = usize::from(*other);
        let theirs = LinkId(u32::from_be_bytes(theirs.try_into().unwrap()));
        if self.pages[page].links.contains_key(&other) {
            return;
        }
        self.pages[page].links.insert(other, link);
        self.pages[other].links.insert(page, theirs);
        self.send(Packet::Opened(page, other));
        self.send(Packet::Opened(other, page));
    }

    /// Datagrams of a link, of which one in eight is lost.
    fn pass(&mut self, page: usize, other: usize, mut blocks: &[u8]) {
        while let Some((length, rest)) = blocks.split_first_chunk::<2>() {
            let (datagram, rest) = rest.split_at(u16::from_le_bytes(*length).into());
            blocks = rest;
            self.sent += 1;
            let mut datagram = datagram.to_vec();
            if self.pages[page].lies {
                *datagram.last_mut().unwrap() ^= 1;
            }
            if !self.sent.is_multiple_of(8) && !self.pages[page].is_mute {
                self.send(Packet::Datagram(page, other, datagram.into()));
            }
        }
    }

    fn hang_up(&mut self, page: usize, link: LinkId) {
        let other = self.pages[page]
            .links
            .iter()
            .find(|(_, of)| **of == link)
            .map(|(other, _)| *other);
        if let Some(other) = other {
            self.pages[page].links.remove(&other);
            if let Some(link) = self.pages[other].links.remove(&page) {
                let now = self.now;
                self.pages[other].peer.link_closed(now, link);
            }
        }
    }
}

/// The server.
impl World {
    fn hear(&mut self, page: usize, bytes: &[u8]) {
        self.pages[page].frames.push(bytes);
        while let Some(message) = self.pages[page].frames.next().expect("frames") {
            self.take(page, message);
        }
    }

    fn say(&mut self, page: usize, message: &Message) {
        self.send(Packet::FromServer(page, message.to_frame(), false));
    }

    fn take(&mut self, page: usize, message: Message) {
        match message {
            Message::Hello(_) => self.say(page, &Message::Hello(Hello::defaults())),
            Message::Get(get) => {
                let name = get.path.strip_prefix("/live/").unwrap();
                let index = name.strip_suffix(".ts").unwrap().parse().unwrap();
                self.pages[page].follows = true;
                self.name(page, get.request, get.path.clone(), index);
            }
            Message::Request(request) => {
                let segment = request.segment;
                let open = (segment, request.generation);
                self.pages[page].open.insert(request.alias, open);
                self.blocks(page, request.alias, request.credit);
                self.introduce(page, segment);
            }
            Message::Credit { alias, blocks } => self.blocks(page, alias, blocks),
            Message::Stop { alias, .. } => drop(self.pages[page].open.remove(&alias)),
            Message::OfferPage { serves } => {
                self.pages[page].serves = serves;
                let identity = identity(page);
                self.say(page, &Message::Page { identity });
            }
            Message::Have(holdings) => self.pages[page].have(&holdings),
            Message::Signal { page: to, bytes } => {
                let to = usize::from(to[0] - 10);
                let from = [u8::try_from(page).unwrap()];
                let said = [&from[..], &bytes].concat();
                self.send(Packet::Signal(page, to, said.into()));
            }
            Message::GetChecks(asked) => {
                let index = (0..10).find(|index| SegmentId::of(&segment(*index)) == asked.segment);
                let generation = shape().generation(asked.generation).unwrap();
                let bytes = part(&segment(index.unwrap()), asked.generation);
                let seed = [9; 32];
                let id = asked.segment;
                let projections =
                    project(Kernels::detect(), &seed, &id, &generation, 4, &bytes).into();
                let mut checks = Checks {
                    request: asked.request,
                    seed,
                    columns: 4,
                    projections,
                    signature: None,
                };
                self.key.sign_checks(&asked, &mut checks);
                self.say(page, &Message::Checks(checks));
            }
            Message::GetHashes { request, .. } => {
                let error = RequestError {
                    request,
                    code: RequestCode::Unknown,
                    retry_after_ms: 0,
                    reason: "no hashes".to_owned(),
                };
                self.say(page, &Message::Error(error));
            }
            Message::Blame { identity, .. } => self.pages[page].blames.push(identity),
            _ => {}
        }
    }

    fn name(&mut self, page: usize, request: u64, path: String, index: usize) {
        let bytes = segment(index);
        let (id, tree) = Tree::of(&bytes, Codec::Rlnc);
        let mut meta = Meta {
            request,
            path,
            id,
            offset: 0,
            length: SEGMENT as u64,
            object_length: Some(SEGMENT as u64),
            version: 1,
            max_age_ms: 1000,
            content_type: "video/mp2t".to_owned(),
            delivery: Delivery::Coded(shape()),
            signature: None,
            tree,
        };
        let blocks = BlockHashes::of(&bytes, &shape()).digest();
        self.key.sign_meta(&mut meta, 1000, Some(blocks));
        self.say(page, &Message::Meta(meta));
    }

    /// Names the pages that hold something of a segment, or soon will.
    fn introduce(&mut self, page: usize, segment: SegmentId) {
        if !self.introduces || !self.pages[page].serves {
            return;
        }
        // It holds something of it, or follows the stream, and is about to.
        let named = |other: &usize| {
            let other_page = &self.pages[*other];
            let knows = other_page.holds.contains(&segment) || other_page.follows;
            *other != page && other_page.serves && knows
        };
        let introduction = |other: usize| PageIntroduction {
            identity: identity(other),
            lasts_ms: 300_000,
            ticket: self.key.ticket("live", 1, identity(other), [1; 8]),
        };
        let pages: Vec<_> = (0..self.pages.len())
            .filter(named)
            .map(introduction)
            .collect();
        if !pages.is_empty() {
            self.say(page, &Message::Pages { segment, pages });
        }
    }

    fn blocks(&mut self, page: usize, alias: u16, credit: u32) {
        let Some((id, generation)) = self.pages[page].open.get(&alias).copied() else {
            return;
        };
        let index = (0..10).find(|index| SegmentId::of(&segment(*index)) == id);
        let bytes = part(&segment(index.unwrap()), generation);
        let generation = shape().generation(generation).unwrap();
        let key = row_key(&id, &generation);
        let encoder = Encoder::new(&generation, &bytes, key, Kernels::detect()).unwrap();
        for _ in 0..credit {
            self.seed += 1;
            let vector = Vector::Seed(self.seed);
            let mut datagram = vec![0; block::datagram_header_len(&vector)];
            let seq = self.pages[page].seqs.entry(alias).or_default();
            block::write_datagram_header(&mut datagram, &vector, alias, *seq, false);
            *seq = seq.wrapping_add(1);
            let head = datagram.len();
            datagram.resize(head + 1024, 0);
            encoder.block(self.seed, &mut datagram[head..]);
            let page_of = &mut self.pages[page];
            page_of.from_server += 1024;
            let at = page_of.free_at.max(self.now) + BLOCK_EVERY;
            page_of.free_at = at;
            self.send_at(at, Packet::FromServer(page, datagram.into(), true));
        }
    }
}

impl Page {
    fn have(&mut self, holdings: &[Holding]) {
        for Holding { segment, state, .. } in holdings {
            match state {
                HoldingState::Gone => self.holds.remove(segment),
                _ => self.holds.insert(*segment),
            };
        }
    }
}

fn part(bytes: &Bytes, generation: u32) -> Bytes {
    let generation = shape().generation(generation).unwrap();
    let at = usize::try_from(generation.offset).unwrap();
    bytes.slice(at..at + usize::try_from(generation.length).unwrap())
}

#[test]
fn a_page_serves_another_what_it_has() {
    let mut world = World::new(2, true);
    world.read_in_turn(6);
    let [one, other] = [0, 1].map(|page| world.pages[page].peer.shared_counts());
    assert_eq!((one.connected, other.connected), (1, 1));
    let all = 6 * SEGMENT;
    assert!(other.received_bytes > all as u64 / 3, "{other:?}");
    assert!(one.sent_bytes >= other.received_bytes, "{one:?} {other:?}");
    assert!(
        world.pages[1].from_server < all,
        "{}",
        world.pages[1].from_server
    );
}

#[test]
fn pages_that_read_at_the_same_time_exchange_rows() {
    let mut world = World::new(3, true);
    for index in 0..8 {
        for page in 0..3 {
            world.read(page, index);
        }
        world.run(&[0, 1, 2], index);
        world.run_for(Duration::from_millis(500));
    }
    for page in 0..3 {
        let counts = world.pages[page].peer.shared_counts();
        assert!(
            counts.received_bytes > 0 && counts.sent_bytes > 0,
            "{page}: {counts:?}"
        );
    }
}

#[test]
fn a_page_that_lies_is_found_and_left() {
    let mut world = World::new(3, true);
    world.pages[0].lies = true;
    for index in 0..6 {
        world.read(0, index);
        world.run(&[0], index);
        world.run_for(Duration::from_millis(500));
        for page in [1, 2] {
            world.read(page, index);
        }
        world.run(&[1, 2], index);
    }
    for page in [1, 2] {
        let counts = world.pages[page].peer.shared_counts();
        assert_eq!(counts.liars, 1, "{page}");
        assert!(!world.pages[page].links.contains_key(&0), "{page}");
        assert!(
            world.pages[page]
                .blames
                .iter()
                .all(|blamed| *blamed == identity(0))
        );
        assert!(!world.pages[page].blames.is_empty());
        assert!(counts.received_bytes > 0, "the honest one helps");
    }
}

/// The server is asked for what a page does not send. It had nothing to send meanwhile, and does
/// not count as silent for that.
#[test]
fn a_page_that_sends_nothing_costs_a_moment() {
    let mut world = World::new(2, true);
    world.pages[0].is_mute = true;
    for index in 0..6 {
        world.read(0, index);
        world.run_for(Duration::from_millis(1500));
        world.read(1, index);
        world.run(&[0, 1], index);
        world.run_for(Duration::from_millis(1500));
    }
    assert_eq!(world.pages[1].peer.shared_counts().received_bytes, 0);
}

#[test]
fn nobody_is_connected_who_was_not_introduced() {
    let mut world = World::new(2, false);
    for page in [0, 1] {
        world.read(page, 0);
        world.run(&[page], 0);
    }
    let counts = world.pages[1].peer.shared_counts();
    assert_eq!((counts.connected, counts.received_bytes), (0, 0));
}

/// Whatever comes over a data channel ends the link, or nothing.
#[test]
fn noise_on_a_link_ends_it() {
    let mut world = World::new(2, true);
    world.read_in_turn(2);
    let link = world.pages[0].links[&1];
    let now = world.now;
    let noises: [(bool, Vec<u8>); 4] = [
        (false, vec![0x3e; 100]),
        (true, vec![0x3e; 100]),
        (false, vec![0; 100_000]),
        // Frames that are skipped, without end.
        (true, [0x40, 0x5f, 0x7f, 0x00].repeat(1000)),
    ];
    for (as_consumer, noise) in &noises[..1] {
        let peer = &mut world.pages[0].peer;
        peer.link_control(now, link, *as_consumer, noise);
        peer.link_datagram(now, link, Bytes::from_static(&[0; 20]));
    }
    world.run_for(Duration::from_millis(100));
    assert!(!world.pages[0].links.contains_key(&1));
    // Calls for a link that is gone do nothing.
    for (as_consumer, noise) in &noises {
        let peer = &mut world.pages[0].peer;
        peer.link_control(now, link, *as_consumer, noise);
        peer.link_opened(now, link);
        assert!(peer.poll_link_control(now, link, *as_consumer).is_empty());
        assert!(peer.poll_link_blocks(now, link, 1000).is_empty());
    }
}
