//! Datagrams and streams of a source: blocks, objects and hashes.

use bytes::{Bytes, BytesMut};

use super::ids::SourceId;
use super::link::{Incoming, StreamEnd};
use super::proto::Proto;
use super::refusal::refusal;
use crate::object::RefusalCode;
use crate::time::Instant;
use crate::wire::block::{self, Records, StreamHead};
use crate::wire::{CODE_BASE, Violation};

impl Proto {
    /// Takes a datagram of a source.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        source: SourceId,
        mut datagram: Bytes,
    ) -> Result<(), Violation> {
        if !self.sources.contains_key(&source) {
            return Ok(());
        }
        match block::parse_datagram(&mut datagram) {
            Some(head) => self
                .fetches
                .datagram(now, source, head, datagram, &mut self.effects),
            None => self.fetches.stray(source),
        }
    }

    /// Takes the next bytes of a stream that a source has opened; `stream` is its number in QUIC.
    /// Each stream ends with [`Proto::handle_stream_end`], a refused one too.
    pub fn handle_stream(
        &mut self,
        now: Instant,
        source: SourceId,
        stream: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let Some(peer) = self.sources.get_mut(&source) else {
            return Ok(());
        };
        match peer
            .streams
            .get_or_insert_with(stream, || Incoming::Head(BytesMut::new()))
        {
            Incoming::Blocks { alias, records } => {
                records.push(bytes);
                let alias = *alias;
                self.fetches.note_bytes(source, alias);
                self.take_records(now, source, stream, alias)
            }
            Incoming::Object { request } => {
                let request = *request;
                self.take_object(source, stream, request, bytes)
            }
            Incoming::Hashes { request } => {
                let request = *request;
                self.take_hashes(now, source, stream, request, bytes)
            }
            Incoming::Refused => Ok(()),
            Incoming::Head(head) => {
                head.extend_from_slice(bytes);
                let Some((kind, length)) = StreamHead::parse(head)? else {
                    return Ok(());
                };
                let rest = head.split_off(length).freeze();
                self.begin(now, source, stream, kind, &rest)
            }
        }
    }

    /// A stream of a source has ended.
    pub fn handle_stream_end(
        &mut self,
        source: SourceId,
        stream: u64,
        end: StreamEnd,
    ) -> Result<(), Violation> {
        let Some(peer) = self.sources.get_mut(&source) else {
            return Ok(());
        };
        match (peer.streams.remove(&stream), end) {
            (Some(Incoming::Object { request }), StreamEnd::Finished) => {
                self.gets.finished(request, source, &mut self.effects)
            }
            (Some(Incoming::Object { request }), StreamEnd::Reset(code)) => {
                let code = RefusalCode::from_value(code.wrapping_sub(u64::from(CODE_BASE)));
                let refusal = refusal(code, 0, "the object's stream was reset".to_owned());
                let others = self.open_servers();
                self.gets
                    .refused(request, source, refusal, &others, &mut self.effects)
            }
            (Some(Incoming::Hashes { request }), StreamEnd::Finished) => self
                .fetches
                .hashes_finished(request, source, &mut self.effects),
            (Some(Incoming::Blocks { records, .. }), StreamEnd::Finished)
                if !records.is_between_records() =>
            {
                Err(Violation::Malformed("block record"))
            }
            _ => Ok(()),
        }
    }

    /// Takes the head of a stream, and the bytes behind it.
    fn begin(
        &mut self,
        now: Instant,
        source: SourceId,
        stream: u64,
        head: StreamHead,
        rest: &[u8],
    ) -> Result<(), Violation> {
        let Some(peer) = self.sources.get_mut(&source) else {
            return Ok(());
        };
        match head {
            StreamHead::Blocks { alias } => {
                let Some(generation) = self.fetches.generation(source, alias) else {
                    peer.refuse(stream);
                    return Ok(());
                };
                let mut records = Records::new(generation);
                records.push(rest);
                peer.streams
                    .insert(stream, Incoming::Blocks { alias, records });
                self.take_records(now, source, stream, alias)
            }
            StreamHead::Object { request } => {
                peer.streams.insert(stream, Incoming::Object { request });
                self.take_object(source, stream, request, rest)
            }
            StreamHead::Hashes { request } => {
                peer.streams.insert(stream, Incoming::Hashes { request });
                self.take_hashes(now, source, stream, request, rest)
            }
        }
    }

    /// Hands all complete records of a stream to the fetches.
    fn take_records(
        &mut self,
        now: Instant,
        source: SourceId,
        stream: u64,
        alias: u16,
    ) -> Result<(), Violation> {
        let Some(peer) = self.sources.get_mut(&source) else {
            return Ok(());
        };
        let Some(Incoming::Blocks { records, .. }) = peer.streams.get_mut(&stream) else {
            return Ok(());
        };
        while let Some(block) = records.next()? {
            if !self
                .fetches
                .record(now, source, alias, block, &mut self.effects)?
            {
                peer.refuse(stream);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Hands bytes of an object to its GET, or refuses the stream.
    fn take_object(
        &mut self,
        source: SourceId,
        stream: u64,
        request: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        if !self.gets.object_bytes(request, source, bytes)?
            && let Some(peer) = self.sources.get_mut(&source)
        {
            peer.refuse(stream);
        }
        Ok(())
    }

    /// Hands bytes of hashes to their query, or refuses the stream.
    fn take_hashes(
        &mut self,
        now: Instant,
        source: SourceId,
        stream: u64,
        request: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        if !self.fetches.hash_bytes(now, request, source, bytes)?
            && let Some(peer) = self.sources.get_mut(&source)
        {
            peer.refuse(stream);
        }
        Ok(())
    }
}
