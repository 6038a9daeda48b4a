//! What `web/` calls where pages serve each other. A link is a connection with another page.

use std::time::Duration;

use bytes::Bytes;

use super::{Handle, handle, number, random, time, whole};
use crate::{LinkId, Peer, SharedCounts};

/// A peer as of `create`, which serves other pages.
#[unsafe(no_mangle)]
extern "C" fn create_sharing(window_max: f64) -> &'static mut Handle {
    handle(Peer::sharing(random(), whole(window_max), random()))
}

/// The input is what this page says to that of a link.
#[unsafe(no_mangle)]
extern "C" fn signal(handle: &mut Handle, link: u32, length: usize) {
    let bytes = Bytes::copy_from_slice(handle.taken(length));
    handle.peer.signal(LinkId(link), bytes);
}

/// A link is connected.
#[unsafe(no_mangle)]
extern "C" fn link_opened(handle: &mut Handle, now: f64, link: u32) {
    handle.peer.link_opened(time(now), LinkId(link));
}

/// The round-trip time to the page of a link.
#[unsafe(no_mangle)]
extern "C" fn link_rtt(handle: &mut Handle, link: u32, ms: f64) {
    if let Ok(rtt) = Duration::try_from_secs_f64(ms / 1e3) {
        handle.peer.set_link_rtt(LinkId(link), rtt);
    }
}

/// A link has ended.
#[unsafe(no_mangle)]
extern "C" fn link_closed(handle: &mut Handle, now: f64, link: u32) {
    handle.peer.link_closed(time(now), LinkId(link));
}

/// The input is bytes of frames.
#[unsafe(no_mangle)]
extern "C" fn link_control(
    handle: &mut Handle,
    now: f64,
    link: u32,
    as_consumer: bool,
    length: usize,
) {
    let bytes = handle.taken(length).to_vec();
    handle
        .peer
        .link_control(time(now), LinkId(link), as_consumer, &bytes);
}

/// The input is a datagram.
#[unsafe(no_mangle)]
extern "C" fn link_datagram(handle: &mut Handle, now: f64, link: u32, length: usize) {
    let bytes = Bytes::copy_from_slice(handle.taken(length));
    handle.peer.link_datagram(time(now), LinkId(link), bytes);
}

/// Leaves bytes of frames, and returns their number.
#[unsafe(no_mangle)]
extern "C" fn link_messages(handle: &mut Handle, now: f64, link: u32, as_consumer: bool) -> usize {
    handle.output = handle
        .peer
        .poll_link_control(time(now), LinkId(link), as_consumer);
    handle.output.len()
}

/// Leaves datagrams, each with its length before it, and returns the number of bytes.
#[unsafe(no_mangle)]
extern "C" fn link_blocks(handle: &mut Handle, now: f64, link: u32, room: f64) -> usize {
    let room = usize::try_from(whole(room)).unwrap_or(usize::MAX);
    handle.output = handle
        .peer
        .poll_link_blocks(time(now), LinkId(link), room.min(ROOM_MAX));
    handle.output.len()
}

/// Bytes of datagrams that are made at once, at most.
const ROOM_MAX: usize = 1 << 20;

/// Leaves what is counted of other pages, as `statistics` does.
#[unsafe(no_mangle)]
extern "C" fn shared(handle: &mut Handle) -> usize {
    let SharedCounts {
        connected,
        received_bytes,
        sent_bytes,
        liars,
    } = handle.peer.shared_counts();
    let numbers = [connected, received_bytes, sent_bytes, liars].map(number);
    handle.output.clear();
    handle
        .output
        .extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    handle.output.len()
}
