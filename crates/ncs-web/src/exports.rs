//! What `web/` calls. A page's worker has one module and one peer.
//!
//! Bytes go in through a buffer of the peer ([`input`]), and out through another ([`output`]),
//! which the next call may overwrite. Times are milliseconds of one clock that never goes back,
//! such as `performance.now()`. A number below zero stands for nothing.

#![expect(
    unsafe_code,
    reason = "functions that are exported and imported by name"
)]

#[cfg(feature = "share")]
mod share;

use std::panic;
use std::time::Duration;

use bytes::Bytes;
use ncs_proto::peer::SourceId;
use ncs_proto::time::Instant;
use ncs_proto::wire::elsewhere;

use crate::{Event, Peer, ReadId};

#[link(wasm_import_module = "page")]
unsafe extern "C" {
    /// Fills this memory with random bytes.
    fn fill_random(bytes: *mut u8, length: usize);
    /// Takes the text of a panic.
    fn say(text: *const u8, length: usize);
}

/// A peer, and the buffers of its calls.
#[derive(Debug)]
pub(crate) struct Handle {
    peer: Peer,
    input: Vec<u8>,
    output: Vec<u8>,
    numbers: [f64; 2],
}

impl Handle {
    fn taken(&self, length: usize) -> &[u8] {
        &self.input[..length.min(self.input.len())]
    }

    fn text(&self, length: usize) -> String {
        String::from_utf8_lossy(self.taken(length)).into_owned()
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: the page writes as many bytes as there are.
    unsafe { fill_random(bytes.as_mut_ptr(), N) };
    bytes
}

fn time(ms: f64) -> Instant {
    let distance = Duration::try_from_secs_f64(ms.max(0.0) / 1e3);
    // The peer subtracts times from the present.
    Instant::from_epoch(EPOCH + distance.unwrap_or(EPOCH))
}

const EPOCH: Duration = Duration::from_secs(1_000_000);

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

#[expect(clippy::cast_precision_loss, reason = "no number here reaches 2^53")]
fn number(whole: u64) -> f64 {
    whole as f64
}

/// A peer that requests at most so many bytes ahead. It is never freed: it ends with its module.
#[unsafe(no_mangle)]
extern "C" fn create(window_max: f64) -> &'static mut Handle {
    handle(Peer::new(random(), whole(window_max)))
}

fn handle(peer: Peer) -> &'static mut Handle {
    panic::set_hook(Box::new(|panic| {
        let text = panic.to_string();
        // SAFETY: the page reads as many bytes as the text has, and keeps none of them.
        unsafe { say(text.as_ptr(), text.len()) }
    }));
    Box::leak(Box::new(Handle {
        peer,
        input: Vec::new(),
        output: Vec::new(),
        numbers: [0.0; 2],
    }))
}

/// Room for so many bytes of the next call.
#[unsafe(no_mangle)]
extern "C" fn input(handle: &mut Handle, length: usize) -> *mut u8 {
    if handle.input.len() < length {
        handle.input.resize(length, 0);
    }
    handle.input.as_mut_ptr()
}

/// The bytes that the last call has left.
#[unsafe(no_mangle)]
extern "C" fn output(handle: &Handle) -> *const u8 {
    handle.output.as_ptr()
}

/// Their number.
#[unsafe(no_mangle)]
extern "C" fn output_length(handle: &Handle) -> usize {
    handle.output.len()
}

/// Pins the key that the input names: `key`, or `stream=key`. Returns whether it is one.
#[unsafe(no_mangle)]
extern "C" fn pin(handle: &mut Handle, length: usize) -> bool {
    let text = handle.text(length);
    handle.peer.pin(&text)
}

/// The input is the servers of the page, `host:port` each, with blanks between. Returns whether
/// they are.
#[unsafe(no_mangle)]
extern "C" fn set_servers(handle: &mut Handle, length: usize) -> bool {
    let text = handle.text(length);
    let servers: Vec<&str> = text.split(' ').collect();
    handle.peer.set_servers(&servers)
}

/// A server is connected. The input is a token, if it is not empty.
#[unsafe(no_mangle)]
extern "C" fn connected(handle: &mut Handle, now: f64, source: u32, visit: u64, length: usize) {
    let token = (length > 0).then(|| handle.text(length));
    let mut of_server = [0; 16];
    of_server[..8].copy_from_slice(&visit.to_be_bytes());
    of_server[8..].copy_from_slice(&random::<8>());
    let grease = u32::from_be_bytes(random());
    handle
        .peer
        .connected(time(now), SourceId(source), token, of_server, grease);
}

/// A server has closed the connection with this code. The input is its reason.
#[unsafe(no_mangle)]
extern "C" fn closed(handle: &mut Handle, now: f64, source: u32, code: f64, length: usize) {
    let reason = handle.text(length);
    let (source, code) = (SourceId(source), whole(code));
    handle.peer.closed(time(now), source, code, &reason);
}

/// A connection, or an attempt to make one, has ended.
#[unsafe(no_mangle)]
extern "C" fn disconnected(handle: &mut Handle, now: f64, source: u32, is_outage: bool) {
    handle
        .peer
        .disconnected(time(now), SourceId(source), is_outage);
}

/// The round-trip time to a server, where the browser tells it.
#[unsafe(no_mangle)]
extern "C" fn set_rtt(handle: &mut Handle, source: u32, ms: f64) {
    if let Ok(rtt) = Duration::try_from_secs_f64(ms / 1e3) {
        handle.peer.set_rtt(SourceId(source), rtt);
    }
}

/// The input is bytes of a server's control stream.
#[unsafe(no_mangle)]
extern "C" fn control(handle: &mut Handle, now: f64, source: u32, length: usize) {
    let bytes = handle.taken(length).to_vec();
    handle.peer.control(time(now), SourceId(source), &bytes);
}

/// The input is a datagram.
#[unsafe(no_mangle)]
extern "C" fn datagram(handle: &mut Handle, now: f64, source: u32, length: usize) {
    let bytes = Bytes::copy_from_slice(handle.taken(length));
    handle.peer.datagram(time(now), SourceId(source), bytes);
}

/// The input is bytes of a stream.
#[unsafe(no_mangle)]
extern "C" fn stream(handle: &mut Handle, now: f64, source: u32, stream: u32, length: usize) {
    let bytes = std::mem::take(&mut handle.input);
    let taken = &bytes[..length.min(bytes.len())];
    handle
        .peer
        .stream(time(now), SourceId(source), stream.into(), taken);
    handle.input = bytes;
}

/// A stream has ended, or was reset with this code.
#[unsafe(no_mangle)]
extern "C" fn stream_end(handle: &mut Handle, now: f64, source: u32, stream: u32, reset: f64) {
    let reset = (reset >= 0.0).then(|| whole(reset));
    handle
        .peer
        .stream_end(time(now), SourceId(source), stream.into(), reset);
}

/// Does what is due.
#[unsafe(no_mangle)]
extern "C" fn handle_timeout(handle: &mut Handle, now: f64) {
    handle.peer.handle_timeout(time(now));
}

/// When something is due.
#[unsafe(no_mangle)]
extern "C" fn due(handle: &Handle) -> f64 {
    handle.peer.poll_timeout().map_or(-1.0, |due| {
        (due - Instant::from_epoch(EPOCH)).as_secs_f64() * 1e3
    })
}

/// Reads these bytes of the object whose path is the input. Below zero: it is no path.
#[unsafe(no_mangle)]
extern "C" fn read(handle: &mut Handle, start: f64, end: f64, deadline: f64, length: usize) -> f64 {
    let end = if end < 0.0 { u64::MAX } else { whole(end) };
    let deadline = (deadline >= 0.0).then(|| time(deadline));
    let path = handle.text(length);
    let read = handle.peer.read(&path, whole(start)..end, deadline);
    read.map_or(-1.0, |ReadId(read)| read.into())
}

/// The reader now has room for so many bytes.
#[unsafe(no_mangle)]
extern "C" fn set_room(handle: &mut Handle, read: u32, bytes: f64) {
    handle.peer.set_room(ReadId(read), whole(bytes));
}

/// Ends a read.
#[unsafe(no_mangle)]
extern "C" fn cancel(handle: &mut Handle, read: u32) {
    handle.peer.cancel(ReadId(read));
}

/// Subscribes to the stream whose name is the input.
#[unsafe(no_mangle)]
extern "C" fn subscribe(handle: &mut Handle, length: usize) -> f64 {
    let name = handle.text(length);
    number(handle.peer.subscribe(&name))
}

/// Ends a subscription.
#[unsafe(no_mangle)]
extern "C" fn unsubscribe(handle: &mut Handle, request: f64) {
    handle.peer.unsubscribe(whole(request));
}

/// Leaves bytes for a server's control stream, and returns their number.
#[unsafe(no_mangle)]
extern "C" fn messages(handle: &mut Handle, now: f64, source: u32) -> usize {
    handle.output = handle.peer.poll_messages(time(now), SourceId(source));
    handle.output.len()
}

/// A stream to refuse.
#[unsafe(no_mangle)]
extern "C" fn stop(handle: &mut Handle, source: u32) -> f64 {
    let stream = handle.peer.poll_stop(SourceId(source));
    stream.map_or(-1.0, number)
}

/// The kind of the next event; 0 if there is none. Its numbers and bytes are left.
#[unsafe(no_mangle)]
extern "C" fn event(handle: &mut Handle, now: f64) -> u32 {
    let Some(event) = handle.peer.poll_event(time(now)) else {
        return 0;
    };
    let (kind, numbers, bytes) = match event {
        Event::Ready(SourceId(source)) => (1, [source.into(), 0.0], Vec::new()),
        Event::Opened {
            read: ReadId(read),
            length,
            content_type,
        } => {
            let length = length.map_or(-1.0, number);
            (2, [read.into(), length], content_type.into_bytes())
        }
        Event::Bytes(ReadId(read), bytes) => (3, [read.into(), 0.0], bytes.to_vec()),
        Event::Ended(ReadId(read)) => (4, [read.into(), 0.0], Vec::new()),
        Event::Failed {
            read: ReadId(read),
            reason,
        } => (5, [read.into(), 0.0], reason.into_bytes()),
        Event::Announced { request, path } => (6, [number(request), 0.0], path.into_bytes()),
        Event::Unsubscribed { request, reason } => (7, [number(request), 0.0], reason.into_bytes()),
        Event::TokenRefused(SourceId(source)) => (8, [source.into(), 0.0], Vec::new()),
        Event::GoingAway(SourceId(source)) => (9, [source.into(), 0.0], Vec::new()),
        Event::Close {
            source: SourceId(source),
            code,
            reason,
            is_polluter,
        } => {
            let kind = if is_polluter { 11 } else { 10 };
            let code = f64::from(code.quic());
            (kind, [source.into(), code], reason.into_bytes())
        }
        Event::Open {
            source: SourceId(source),
            server,
            by: SourceId(by),
        } => {
            let url = elsewhere::url(&server);
            (15, [source.into(), by.into()], url.into_bytes())
        }
        Event::Rest(SourceId(source)) => (16, [source.into(), 0.0], Vec::new()),
        Event::Resume(SourceId(source)) => (17, [source.into(), 0.0], Vec::new()),
        Event::Forget(SourceId(source)) => (18, [source.into(), 0.0], Vec::new()),
        #[cfg(feature = "share")]
        Event::Call(link, is_first) => (12, [link.0.into(), f64::from(is_first)], Vec::new()),
        #[cfg(feature = "share")]
        Event::Signal(link, is_first, bytes) => {
            (13, [link.0.into(), f64::from(is_first)], bytes.to_vec())
        }
        #[cfg(feature = "share")]
        Event::HangUp(link) => (14, [link.0.into(), 0.0], Vec::new()),
    };
    (handle.numbers, handle.output) = (numbers, bytes);
    kind
}

/// Leaves what is counted, as numbers of 8 bytes, little end first: of all servers, then of each
/// that the input names by 4 bytes, then rank and size of generations under way. Returns the number
/// of bytes.
#[unsafe(no_mangle)]
extern "C" fn statistics(handle: &mut Handle, length: usize) -> usize {
    let counts = handle.peer.counts();
    let mut numbers = [
        counts.blocks,
        counts.innovative,
        counts.useless,
        counts.systematic,
        counts.lost,
        counts.repaired,
        counts.late,
        counts.wrong,
        counts.payload_bytes,
        counts.generations,
    ]
    .map(number)
    .to_vec();
    let (sources, _) = handle.taken(length).as_chunks();
    for source in sources.iter().map(|id| SourceId(u32::from_le_bytes(*id))) {
        let of = handle.peer.source_counts(source);
        let counted = [
            of.blocks,
            of.innovative,
            of.useless,
            of.lost,
            of.wrong,
            of.payload_bytes,
        ];
        numbers.extend(counted.map(number));
        let rtt = of.rtt.map_or(-1.0, |rtt| rtt.as_secs_f64() * 1e3);
        numbers.extend([of.loss, of.rate, rtt]);
    }
    for progress in handle.peer.progress().iter().take(GENERATIONS_SHOWN) {
        numbers.extend([f64::from(progress.rank), f64::from(progress.n)]);
    }
    handle.output.clear();
    handle
        .output
        .extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    handle.output.len()
}

/// Generations whose rank a page is told.
const GENERATIONS_SHOWN: usize = 64;

/// A number of the last event: 0 or 1.
#[unsafe(no_mangle)]
extern "C" fn event_number(handle: &Handle, index: usize) -> f64 {
    handle.numbers.get(index).copied().unwrap_or(-1.0)
}
