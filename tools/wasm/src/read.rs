//! A long object that a page reads slowly, while a server sends as fast as it is asked: what memory
//! its peer takes. In WebAssembly memory is what the module has; it never shrinks.

use std::time::Duration;

use bytes::Bytes;
use ncs_codec::block::Vector;
use ncs_codec::rlnc::Encoder;
use ncs_gf::Kernels;
use ncs_proto::object::{Codec, SegmentId, Shape, Tree, row_key};
use ncs_proto::peer::SourceId;
use ncs_proto::wire::block;
use ncs_proto::wire::frame::Reader;
use ncs_proto::wire::message::{Delivery, Hello, Message, Meta};
use ncs_web::{Event, Peer};

use crate::fetch::beginning;

/// All parts are alike. Two of them fit under what a page fetches ahead: the most memory.
const PART_BYTES: u32 = 15 << 20;
const PARTS: u64 = 14;
const BLOCK_BYTES: u32 = 1088;
const N: u16 = 64;
/// Of so many blocks one is lost.
const LOST_ONE_OF: u32 = 50;
/// What the reader takes in each step of a millisecond; the server sends ten times as fast.
const ROOM: u64 = 64 << 10;
/// What the page lets its peer request ahead.
const WINDOW_MAX: u64 = 8 << 20;
const SERVER: SourceId = SourceId(0);

/// What has come of it.
#[derive(Debug, Clone, Copy)]
pub struct Peak {
    /// Bytes read.
    pub read: u64,
    /// Bytes by which the module's memory has grown for the peer.
    pub memory: usize,
}

/// Reads the object.
///
/// # Panics
/// If other bytes come than were sent, or too few.
pub fn read() -> Peak {
    let mut server = Server::new();
    let mut now = beginning();
    let before = memory();
    let mut peer = Peer::new([1; 32], WINDOW_MAX);
    peer.connected(now, SERVER, None, [2; 16], 7);
    peer.set_rtt(SERVER, Duration::from_millis(20));
    let id = peer.read("/film.ts", 0..u64::MAX, None).expect("a path");
    let mut read = 0;
    for _ in 0..STEPS_MAX {
        peer.set_room(id, ROOM);
        server.hear(&peer.poll_messages(now, SERVER));
        for _ in 0..BLOCKS_A_STEP {
            match server.next() {
                Some(Packet::Control(bytes)) => peer.control(now, SERVER, &bytes),
                Some(Packet::Datagram(bytes)) => peer.datagram(now, SERVER, bytes),
                None => break,
            }
            server.hear(&peer.poll_messages(now, SERVER));
        }
        while let Some(event) = peer.poll_event(now) {
            match event {
                Event::Bytes(_, bytes) => {
                    let at = usize::try_from(read % u64::from(PART_BYTES)).expect("a part");
                    assert!(
                        server.part[at..at + bytes.len()] == bytes,
                        "other bytes at {read}"
                    );
                    read += bytes.len() as u64;
                }
                Event::Ended(_) => {
                    assert_eq!(read, PARTS * u64::from(PART_BYTES), "all bytes");
                    let memory = memory() - before;
                    return Peak { read, memory };
                }
                Event::Failed { reason, .. } => panic!("{reason} after {read} bytes"),
                _ => {}
            }
        }
        now += Duration::from_millis(1);
        peer.handle_timeout(now);
    }
    panic!("{read} bytes, and no end");
}

/// Enough for all bytes, twice.
const STEPS_MAX: u64 = 2 * PARTS * (PART_BYTES as u64) / ROOM;
const BLOCKS_A_STEP: u64 = 10 * ROOM / BLOCK_BYTES as u64;

/// The size of the memory, in bytes; 0 where that is not known.
fn memory() -> usize {
    #[cfg(target_arch = "wasm32")]
    return std::arch::wasm32::memory_size(0) << 16;
    #[cfg(not(target_arch = "wasm32"))]
    0
}

enum Packet {
    Control(Bytes),
    Datagram(Bytes),
}

/// A server that has one part, and names it at every offset.
struct Server {
    part: Bytes,
    id: SegmentId,
    tree: Option<Tree>,
    shape: Shape,
    frames: Reader,
    control: Vec<Bytes>,
    /// Open requests: alias, generation, the next number of a datagram, credit left.
    open: Vec<(u16, u32, u16, u32)>,
    seed: u32,
    /// What was used last, and its generation.
    encoder: Option<(u32, Encoder)>,
}

impl Server {
    fn new() -> Self {
        let part: Bytes = (0..PART_BYTES)
            .map(|at| (at.wrapping_mul(at) % 251).to_le_bytes()[0])
            .collect();
        let (id, tree) = Tree::of(&part, Codec::Rlnc);
        let shape = Shape::new(PART_BYTES.into(), BLOCK_BYTES, N).expect("a shape");
        Self {
            part,
            id,
            tree,
            shape,
            frames: Reader::new(),
            control: Vec::new(),
            open: Vec::new(),
            seed: 0,
            encoder: None,
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.frames.push(bytes);
        while let Some(message) = self.frames.next().expect("frames") {
            match message {
                Message::Hello(_) => {
                    let hello = Message::Hello(Hello::defaults());
                    self.control.push(hello.to_frame());
                }
                Message::Get(get) => {
                    let meta = Meta {
                        request: get.request,
                        path: get.path,
                        id: self.id,
                        offset: get.offset,
                        length: PART_BYTES.into(),
                        object_length: Some(PARTS * u64::from(PART_BYTES)),
                        version: 1,
                        max_age_ms: 1000,
                        content_type: "video/mp2t".to_owned(),
                        delivery: Delivery::Coded(self.shape),
                        signature: None,
                        tree: self.tree.clone(),
                    };
                    self.control.push(Message::Meta(meta).to_frame());
                }
                Message::Request(request) => {
                    self.open
                        .push((request.alias, request.generation, 0, request.credit));
                }
                Message::Credit { alias, blocks } => {
                    let open = self.open.iter_mut().find(|open| open.0 == alias);
                    open.into_iter().for_each(|open| open.3 += blocks);
                }
                Message::Stop { alias, .. } => self.open.retain(|open| open.0 != alias),
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Option<Packet> {
        if !self.control.is_empty() {
            return Some(Packet::Control(self.control.remove(0)));
        }
        loop {
            let open = self.open.iter_mut().find(|open| open.3 > 0)?;
            let (alias, index, seq, _) = *open;
            (open.2, open.3) = (seq.wrapping_add(1), open.3 - 1);
            self.seed += 1;
            if self.seed.is_multiple_of(LOST_ONE_OF) {
                continue;
            }
            if self.encoder.as_ref().is_none_or(|(of, _)| *of != index) {
                let generation = self.shape.generation(index).expect("the segment has it");
                let start = usize::try_from(generation.offset).expect("it is in memory");
                let length = usize::try_from(generation.length).expect("it is in memory");
                let bytes = &self.part[start..start + length];
                let key = row_key(&self.id, &generation);
                let encoder = Encoder::new(&generation, bytes, key, Kernels::detect());
                self.encoder = Some((index, encoder.expect("its bytes")));
            }
            let (_, encoder) = self.encoder.as_ref()?;
            let vector = Vector::Seed(self.seed);
            let mut datagram = vec![0; block::datagram_header_len(&vector)];
            block::write_datagram_header(&mut datagram, &vector, alias, seq, false);
            let head = datagram.len();
            datagram.resize(head + BLOCK_BYTES as usize, 0);
            encoder.block(self.seed, &mut datagram[head..]);
            return Some(Packet::Datagram(datagram.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_long_object_is_read() {
        assert!(super::read().read > 200_000_000);
    }
}
