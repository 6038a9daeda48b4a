//! Reads of objects from small servers over paths that lose datagrams, in virtual time. The servers
//! are written from `docs/protocol.md`: they answer GET and REQUEST, and some of them lie.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncs_codec::block::Vector;
use ncs_codec::rlnc::Encoder;
use ncs_gf::Kernels;
use ncs_proto::integrity::checks::{COLUMNS, project};
use ncs_proto::object::{Codec, Generation, SegmentId, Shape, Tree, row_key};
use ncs_proto::peer::SourceId;
use ncs_proto::wire::block::{self, StreamHead};
use ncs_proto::wire::frame::Reader;
use ncs_proto::wire::message::{
    Checks, Delivery, GetChecks, Hello, Message, Meta, RequestCode, RequestError,
};
use ncs_web::{Event, Peer, ReadId};

const DELAY: Duration = Duration::from_millis(20);
const PATH: &str = "/live/film.ts";
const PART: usize = 40_000;

fn content(length: usize) -> Bytes {
    (0..length)
        .map(|at| u8::try_from(at * at % 251).expect("it is below 251"))
        .collect()
}

/// How a server differs from an honest one.
#[derive(Debug, Clone, Copy, Default)]
struct Nature {
    /// Of so many datagrams one is lost; 0: none.
    loses: u64,
    /// Its memory is not as what it names: its blocks are wrong, and its checksums fit them.
    lies: bool,
    /// It answers GET_CHECKS.
    checks: bool,
    /// It names the version of another object from the second part on.
    changes: bool,
    /// It falls silent after so many blocks.
    blocks_max: Option<u64>,
    /// Its META has no tree.
    has_no_tree: bool,
    /// Bytes come on a stream.
    is_whole: bool,
    /// It names segments that it does not hold.
    evicts: bool,
    /// It says nothing after HELLO.
    is_dead: bool,
    /// It names no part behind so many.
    parts_max: Option<usize>,
}

struct Server {
    nature: Nature,
    object: Bytes,
    memory: Bytes,
    frames: Reader,
    open: Vec<(u16, SegmentId, u32)>,
    seed: u32,
    sent: u64,
    seqs: Vec<u16>,
}

/// What a server sends.
enum Packet {
    Control(Bytes),
    Datagram(Bytes),
    Stream(u64, Vec<u8>),
}

impl Server {
    fn new(nature: Nature, object: &Bytes) -> Self {
        let memory = match nature.lies {
            true => object.iter().map(|byte| byte ^ 1).collect(),
            false => object.clone(),
        };
        Self {
            nature,
            object: object.clone(),
            memory,
            frames: Reader::new(),
            open: Vec::new(),
            seed: 0,
            sent: 0,
            seqs: vec![0; 1 << 16],
        }
    }

    /// The part that a GET of this offset is told of.
    fn named(&self, offset: u64) -> Option<(u64, Bytes)> {
        let is_known = |at: &u64| {
            let parts = self.nature.parts_max.unwrap_or(usize::MAX);
            *at < parts.saturating_mul(PART) as u64
        };
        self.part(Some(offset).filter(is_known)?)
    }

    fn part(&self, offset: u64) -> Option<(u64, Bytes)> {
        let at = usize::try_from(offset).unwrap();
        if at >= self.object.len() {
            return None;
        }
        if self.nature.is_whole {
            return Some((0, self.object.clone()));
        }
        let begin = at / PART * PART;
        let end = self.object.len().min(begin + PART);
        Some((begin as u64, self.object.slice(begin..end)))
    }

    fn hear(&mut self, bytes: &[u8]) -> Vec<Packet> {
        self.frames.push(bytes);
        let mut out = Vec::new();
        while let Some(message) = self.frames.next().expect("frames") {
            match message {
                Message::Hello(_) => {
                    let hello = Message::Hello(Hello::defaults());
                    out.push(Packet::Control(hello.to_frame()));
                }
                _ if self.nature.is_dead => {}
                Message::Get(get) => match self.named(get.offset) {
                    Some(part) => self.name(get.request, &get.path, part, &mut out),
                    None => out.push(Packet::Control(
                        Message::Error(RequestError {
                            request: get.request,
                            code: RequestCode::Unknown,
                            retry_after_ms: 0,
                            reason: "no such object".to_owned(),
                        })
                        .to_frame(),
                    )),
                },
                Message::Request(request) if self.nature.evicts => {
                    let reject = Message::Reject {
                        alias: request.alias,
                        code: RequestCode::Unknown,
                        retry_after_ms: 0,
                    };
                    out.push(Packet::Control(reject.to_frame()));
                }
                Message::Request(request) => {
                    self.open
                        .push((request.alias, request.segment, request.generation));
                    self.send(request.alias, request.credit, &mut out);
                }
                Message::GetChecks(asked) if self.nature.checks => {
                    out.push(Packet::Control(self.check(&asked).to_frame()));
                }
                Message::Credit { alias, blocks } => self.send(alias, blocks, &mut out),
                Message::Stop { alias, .. } => self.open.retain(|(open, ..)| *open != alias),
                _ => {}
            }
        }
        out
    }

    fn name(&self, request: u64, path: &str, part: (u64, Bytes), out: &mut Vec<Packet>) {
        let (offset, bytes) = part;
        let (id, tree) = Tree::of(&bytes, Codec::Rlnc);
        let delivery = match self.nature.is_whole {
            true => Delivery::Stream,
            false => Delivery::Coded(Shape::new(bytes.len() as u64, 1024, 16).unwrap()),
        };
        let meta = Meta {
            request,
            path: path.to_owned(),
            id,
            offset,
            length: bytes.len() as u64,
            object_length: Some(self.object.len() as u64),
            version: 1 + u64::from(self.nature.changes && offset > 0),
            max_age_ms: 1000,
            content_type: "video/mp2t".to_owned(),
            delivery,
            signature: None,
            tree: tree.filter(|_| !self.nature.has_no_tree && !self.nature.is_whole),
        };
        out.push(Packet::Control(Message::Meta(meta).to_frame()));
        if self.nature.is_whole {
            let mut stream = Vec::new();
            StreamHead::Object { request }.encode(&mut stream);
            stream.extend_from_slice(&bytes);
            if self.nature.lies {
                *stream.last_mut().unwrap() ^= 1;
            }
            out.push(Packet::Stream(request, stream));
        }
    }

    /// A generation of a segment as it lies in the memory.
    fn remember(&self, segment: &SegmentId, generation: u32) -> (Generation, Bytes) {
        let parts = (0..self.object.len() as u64).step_by(PART);
        let (offset, bytes) = parts
            .filter_map(|offset| self.part(offset))
            .find(|(_, bytes)| SegmentId::of(bytes) == *segment)
            .expect("it was named");
        let shape = Shape::new(bytes.len() as u64, 1024, 16).unwrap();
        let generation = shape.generation(generation).expect("the segment has it");
        let begin = usize::try_from(offset + generation.offset).unwrap();
        let end = begin + usize::try_from(generation.length).unwrap();
        (generation, self.memory.slice(begin..end))
    }

    fn check(&self, asked: &GetChecks) -> Message {
        let (generation, bytes) = self.remember(&asked.segment, asked.generation);
        let seed = [7; 32];
        let kernels = Kernels::detect();
        let projections = project(kernels, &seed, &asked.segment, &generation, COLUMNS, &bytes);
        Message::Checks(Checks {
            request: asked.request,
            seed,
            columns: COLUMNS,
            projections: projections.into(),
            signature: None,
        })
    }

    fn send(&mut self, alias: u16, credit: u32, out: &mut Vec<Packet>) {
        let Some((_, segment, generation)) =
            self.open.iter().find(|(open, ..)| *open == alias).copied()
        else {
            return;
        };
        let (generation, bytes) = self.remember(&segment, generation);
        let key = row_key(&segment, &generation);
        let encoder = Encoder::new(&generation, &bytes, key, Kernels::detect()).unwrap();
        for _ in 0..credit {
            if self.nature.blocks_max.is_some_and(|most| self.sent >= most) {
                return;
            }
            self.seed += 1;
            self.sent += 1;
            let vector = Vector::Seed(self.seed);
            let mut datagram = vec![0; block::datagram_header_len(&vector)];
            let seq = &mut self.seqs[usize::from(alias)];
            block::write_datagram_header(&mut datagram, &vector, alias, *seq, false);
            *seq = seq.wrapping_add(1);
            let head = datagram.len();
            datagram.resize(head + 1024, 0);
            encoder.block(self.seed, &mut datagram[head..]);
            let is_lost = self.nature.loses > 0 && self.sent.is_multiple_of(self.nature.loses);
            if !is_lost {
                out.push(Packet::Datagram(datagram.into()));
            }
        }
    }
}

/// A peer and its servers.
struct World {
    now: Instant,
    peer: Peer,
    servers: Vec<Option<Server>>,
    up: VecDeque<(Instant, SourceId, Vec<u8>)>,
    down: VecDeque<(Instant, SourceId, Packet)>,
    got: Vec<u8>,
    closed: Vec<SourceId>,
}

impl World {
    fn new(natures: &[Nature], object: &Bytes) -> Self {
        let now = Instant::now() + Duration::from_secs(1000);
        let mut peer = Peer::new([1; 32], 1 << 20);
        for (index, _) in natures.iter().enumerate() {
            let source = SourceId(u32::try_from(index).unwrap());
            peer.connected(now, source, None, [source.0.to_le_bytes()[0]; 16], 7);
            peer.set_rtt(source, 2 * DELAY);
        }
        Self {
            now,
            peer,
            servers: natures
                .iter()
                .map(|nature| Some(Server::new(*nature, object)))
                .collect(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            got: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Begins a read whose reader takes everything.
    fn read(&mut self, range: Range<u64>) -> ReadId {
        self.read_until(range, None)
    }

    fn read_until(&mut self, range: Range<u64>, deadline: Option<Instant>) -> ReadId {
        let read = self.peer.read(PATH, range, deadline).unwrap();
        self.peer.set_room(read, u64::MAX);
        read
    }

    /// Runs until the read ends or fails, for five minutes at most.
    fn run(&mut self, read: ReadId) -> Result<(), String> {
        let end = self.now + Duration::from_secs(300);
        while self.now < end {
            if let Some(ended) = self.settle(read) {
                return ended;
            }
            step(self);
        }
        panic!("it neither ends nor fails");
    }

    fn settle(&mut self, read: ReadId) -> Option<Result<(), String>> {
        for index in 0..self.servers.len() {
            let source = SourceId(u32::try_from(index).unwrap());
            let bytes = self.peer.poll_messages(self.now, source);
            if !bytes.is_empty() {
                self.up.push_back((self.now + DELAY, source, bytes));
            }
            while self.peer.poll_stop(source).is_some() {}
        }
        let mut ended = None;
        while let Some(event) = self.peer.poll_event(self.now) {
            match event {
                Event::Bytes(id, bytes) if id == read => self.got.extend_from_slice(&bytes),
                Event::Ended(id) if id == read => ended = Some(Ok(())),
                Event::Failed { read: id, reason } if id == read => ended = Some(Err(reason)),
                Event::Close { source, .. } => {
                    self.closed.push(source);
                    self.servers[source.0 as usize] = None;
                }
                _ => {}
            }
        }
        ended
    }

    fn lose(&mut self, source: SourceId) {
        self.servers[source.0 as usize] = None;
        self.peer.disconnected(self.now, source, true);
    }
}

const LOSSY: Nature = Nature {
    loses: 6,
    lies: false,
    checks: false,
    changes: false,
    blocks_max: None,
    has_no_tree: false,
    is_whole: false,
    evicts: false,
    is_dead: false,
    parts_max: None,
};

#[test]
fn an_object_of_several_parts_comes_in_order_through_loss() {
    let object = content(5 * PART + 123);
    let mut world = World::new(&[LOSSY], &object);
    let read = world.read(0..u64::MAX);
    assert_eq!(world.run(read), Ok(()));
    assert!(world.got == object);
}

#[test]
fn a_range_is_cut_out_of_its_parts() {
    let object = content(4 * PART);
    for (from, to) in [
        (0, 1),
        (PART - 1, PART + 1),
        (1000, 3 * PART + 7),
        (PART, 2 * PART),
    ] {
        let mut world = World::new(&[LOSSY], &object);
        let range = from as u64..to as u64;
        let read = world.read(range);
        assert_eq!(world.run(read), Ok(()), "{from}..{to}");
        assert!(
            world.got == object[from..to],
            "{from}..{to}: {}",
            world.got.len()
        );
    }
}

#[test]
fn two_servers_share_the_work_and_one_of_them_may_go() {
    let object = content(6 * PART);
    let mut world = World::new(&[LOSSY, LOSSY], &object);
    let read = world.read(0..u64::MAX);
    let both = |world: &World| {
        let sent = world
            .servers
            .iter()
            .map(|server| server.as_ref().map_or(0, |one| one.sent));
        sent.min().unwrap() > 20
    };
    while !both(&world) {
        // A few packets at a time.
        let end = world.now + Duration::from_millis(5);
        while world.now < end && world.settle(read).is_none() {
            step(&mut world);
        }
        assert!(
            world.got.len() < object.len(),
            "the second has sent too little"
        );
    }
    world.lose(SourceId(0));
    assert_eq!(world.run(read), Ok(()));
    assert!(world.got == object);
}

/// Until the next packet arrives.
fn step(world: &mut World) {
    let up = world.up.front().map(|(at, ..)| *at);
    let down = world.down.front().map(|(at, ..)| *at);
    let next = [up, down, world.peer.poll_timeout()].into_iter().flatten();
    world.now = world.now.max(next.min().expect("something is due"));
    if let Some((_, source, packet)) = world.down.pop_front_if(|(at, ..)| *at <= world.now) {
        match packet {
            Packet::Control(bytes) => world.peer.control(world.now, source, &bytes),
            Packet::Datagram(bytes) => world.peer.datagram(world.now, source, bytes),
            Packet::Stream(stream, bytes) => {
                world.peer.stream(world.now, source, stream, &bytes);
                world.peer.stream_end(world.now, source, stream, None);
            }
        }
    }
    if let Some((_, source, bytes)) = world.up.pop_front_if(|(at, ..)| *at <= world.now)
        && let Some(server) = &mut world.servers[source.0 as usize]
    {
        for packet in server.hear(&bytes) {
            world.down.push_back((world.now + DELAY, source, packet));
        }
    }
    world.peer.handle_timeout(world.now);
}

#[test]
fn wrong_bytes_are_never_handed_on() {
    let object = content(2 * PART);
    for has_no_tree in [false, true] {
        let liar = Nature {
            lies: true,
            has_no_tree,
            ..Nature::default()
        };
        let mut world = World::new(&[liar], &object);
        let read = world.read(0..u64::MAX);
        assert!(world.run(read).is_err(), "tree: {}", !has_no_tree);
        assert!(object.starts_with(&world.got));
    }
}

/// Whichever of two servers lies, the other one finishes, and is asked from then on. The checksums
/// of the first one are of its memory, whatever that holds: it is not believed against the hash.
#[test]
fn of_two_servers_the_one_that_lies_is_left() {
    let object = content(3 * PART);
    for (lying, checks, has_no_tree) in [
        (0, false, false),
        (0, true, false),
        (0, true, true),
        (1, false, false),
        (1, true, false),
        (1, true, true),
    ] {
        let nature = |index| Nature {
            lies: index == lying,
            checks,
            has_no_tree,
            ..Nature::default()
        };
        let case = format!("{lying} lies, checks: {checks}, tree: {}", !has_no_tree);
        let mut world = World::new(&[nature(0), nature(1)], &object);
        for _ in 0..2 {
            world.got.clear();
            let read = world.read(0..u64::MAX);
            assert_eq!(world.run(read), Ok(()), "{case}");
            assert!(world.got == object, "{case}");
        }
        // Without checksums only the trusted one can be refuted.
        let is_found = lying == 0 || checks;
        let liar = SourceId(u32::from(lying == 1));
        assert_eq!(world.closed.contains(&liar), is_found, "{case}");
        assert!(!world.closed.contains(&SourceId(1 - liar.0)), "{case}");
    }
}

#[test]
fn without_a_tree_a_segment_comes_as_a_whole() {
    let object = content(2 * PART);
    let nature = Nature {
        has_no_tree: true,
        ..LOSSY
    };
    let mut world = World::new(&[nature], &object);
    let read = world.read(0..u64::MAX);
    assert_eq!(world.run(read), Ok(()));
    assert!(world.got == object);
}

#[test]
fn a_whole_object_is_verified() {
    let object = content(3000);
    let whole = Nature {
        is_whole: true,
        ..Nature::default()
    };
    let mut world = World::new(&[whole], &object);
    let read = world.read(0..u64::MAX);
    assert_eq!(world.run(read), Ok(()));
    assert!(world.got == object);
    let mut world = World::new(
        &[Nature {
            lies: true,
            ..whole
        }],
        &object,
    );
    let read = world.read(0..u64::MAX);
    assert!(world.run(read).is_err() && world.got.is_empty());
}

#[test]
fn parts_of_two_objects_are_not_put_together() {
    let object = content(3 * PART);
    let nature = Nature {
        changes: true,
        ..Nature::default()
    };
    let mut world = World::new(&[nature], &object);
    let read = world.read(0..u64::MAX);
    assert_eq!(
        world.run(read),
        Err("the object has changed meanwhile".to_owned())
    );
    assert!(world.got.len() <= PART && object.starts_with(&world.got));
}

#[test]
fn a_silent_server_fails_the_read_in_time() {
    let object = content(3 * PART);
    let nature = Nature {
        blocks_max: Some(10),
        ..Nature::default()
    };
    let mut world = World::new(&[nature], &object);
    let begun = world.now;
    let deadline = Some(begun + Duration::from_secs(5));
    let read = world.read_until(0..u64::MAX, deadline);
    assert!(world.run(read).is_err());
    assert!(
        world.now - begun <= Duration::from_secs(6),
        "{:?}",
        world.now - begun
    );
}

/// Whatever the server was about to send. In the second world, another source names the third part
/// than the second, and is asked whether it means the same object.
#[test]
fn a_server_may_fall_silent_at_any_moment() {
    let object = content(6 * PART);
    let all = Nature::default();
    let two_parts = Nature {
        parts_max: Some(2),
        ..all
    };
    for natures in [vec![all, all], vec![two_parts, all, all]] {
        for source in 0..natures.len() {
            let mut moment = 0;
            while let Some(took) = silenced(&natures, &object, source, moment) {
                let most = Duration::from_secs(3);
                assert!(took < most, "server {source}, moment {moment}: {took:?}");
                moment += 1;
            }
            assert!(moment > 100, "it has ended after {moment} moments");
        }
    }
}

/// How long a read takes while a server falls silent after so many steps. `None` if the read has
/// ended before.
fn silenced(natures: &[Nature], object: &Bytes, source: usize, moment: usize) -> Option<Duration> {
    let mut world = World::new(natures, object);
    let begun = world.now;
    let read = world.read(0..u64::MAX);
    for _ in 0..moment {
        if world.settle(read).is_some() {
            return None;
        }
        step(&mut world);
    }
    world.servers[source] = None;
    assert_eq!(world.run(read), Ok(()), "server {source}, moment {moment}");
    assert!(world.got == *object);
    Some(world.now - begun)
}

/// A browser takes half a minute until it ends a session with a server that is gone.
#[test]
fn a_dead_server_delays_one_read_and_not_those_after_it() {
    let object = content(PART);
    let dead = Nature {
        is_dead: true,
        ..Nature::default()
    };
    let mut world = World::new(&[dead, Nature::default()], &object);
    let mut took = Vec::new();
    for _ in 0..3 {
        let begun = world.now;
        let read = world.read(0..u64::MAX);
        assert_eq!(world.run(read), Ok(()));
        took.push(world.now - begun);
    }
    let ms = Duration::from_millis;
    assert!(took[0] < ms(900), "{took:?}");
    assert!(took[1] < ms(400) && took[2] < ms(400), "{took:?}");
}

#[test]
fn what_the_pinned_key_has_not_signed_is_refused() {
    let object = content(PART);
    let key = "d04ab232742bb4ab3a1368bd4615e4e6d0224ab71a016baf8520a332c9778737";
    for (pinned, is_taken) in [
        (key.to_owned(), false),
        (format!("live={key}"), false),
        (format!("other={key}"), true),
    ] {
        let mut world = World::new(&[Nature::default()], &object);
        assert!(world.peer.pin(&pinned));
        let read = world.read(0..u64::MAX);
        let ended = world.run(read);
        assert_eq!(ended.is_ok(), is_taken, "{pinned}: {ended:?}");
        assert_eq!(world.got.is_empty(), !is_taken);
    }
    let mut world = World::new(&[], &object);
    for text in [
        "",
        "live",
        &key[1..],
        &format!("no/name={key}"),
        &format!("live={key}0"),
    ] {
        assert!(!world.peer.pin(text), "{text}");
    }
}

#[test]
fn what_is_no_path_or_not_there_fails() {
    let object = content(PART);
    let mut world = World::new(&[LOSSY], &object);
    assert_eq!(world.peer.read("live/film.ts", 0..10, None), None);
    assert_eq!(world.peer.read(PATH, 10..10, None), None);
    let read = world.read(1 << 40..u64::MAX);
    assert_eq!(world.run(read), Err("no such object".to_owned()));
}

#[test]
fn a_server_that_breaks_the_rules_is_closed() {
    let object = content(PART);
    let mut world = World::new(&[LOSSY, LOSSY], &object);
    let read = world.read(0..u64::MAX);
    world.peer.control(world.now, SourceId(1), &[0x28, 0x00]);
    assert_eq!(world.run(read), Ok(()));
    assert!(world.got == object);
    assert_eq!(world.closed, [SourceId(1)]);
}

/// A reader that stops holds up what is fetched: three parts at most are in memory.
#[test]
fn a_reader_without_room_gets_nothing_more() {
    let object = content(9 * PART);
    let mut world = World::new(&[LOSSY], &object);
    let read = world.peer.read(PATH, 0..u64::MAX, None).unwrap();
    for room in [1_u64, 20_000, 100_000] {
        world.peer.set_room(read, room);
        let end = world.now + Duration::from_secs(20);
        while world.now < end && world.settle(read).is_none() {
            if world.up.is_empty() && world.down.is_empty() && world.peer.poll_timeout().is_none() {
                break;
            }
            step(&mut world);
        }
        let (got, sent) = (world.got.len(), world.servers[0].as_ref().unwrap().sent);
        assert!(got < object.len() && object.starts_with(&world.got));
        // Beside what was lost, no more than three parts ahead were sent.
        assert!(
            sent * 1024 < ((got + 4 * PART) * 3 / 2) as u64,
            "{got} {sent}"
        );
    }
    world.peer.set_room(read, u64::MAX);
    assert_eq!(world.run(read), Ok(()));
    assert!(world.got == object);
}

#[test]
fn a_segment_that_is_always_gone_is_given_up() {
    let object = content(2 * PART);
    let nature = Nature {
        evicts: true,
        ..Nature::default()
    };
    let mut world = World::new(&[nature], &object);
    let read = world.read(0..u64::MAX);
    assert!(world.run(read).is_err() && world.got.is_empty());
}
