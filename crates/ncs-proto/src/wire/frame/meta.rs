//! GET, META, ERROR and SUBSCRIBE: paths, and what they lead to.

use super::body::{Body, Fault, write_text};
use super::coding::{parse_codec, write_codec};
use super::kind;
use crate::object::{Codec, SegmentId, Shape};
use crate::wire::message::{
    CONTENT_TYPE_MAX, Delivery, Get, INLINE_MAX, Meta, PATH_MAX, REASON_MAX, RequestCode,
    RequestError, SIGNATURE_MAX, STREAM_NAME_MAX, Signature, Subscribe, Tree, is_path,
    is_stream_name,
};
use crate::wire::text::{is_plain, plain};
use crate::wire::varint;

/// The number of Ed25519, among signature schemes.
const SIGNATURE_ED25519: u8 = 1;
/// Bytes of a signature of that scheme, with its scheme, key, time and digest.
const ED25519_LEN: usize = 1 + 32 + 8 + 32 + 64;
/// Most bytes of a tree: the size of its groups and their values.
const TREE_MAX: usize = 1 + Tree::GROUPS_MAX * Tree::VALUE_LEN;

/// The flag of a GET that is answered from what is held.
const HELD_ONLY: u8 = 1;

/// How the bytes of an object come.
pub(super) mod delivery {
    pub(crate) const INLINE: u8 = 0;
    pub(crate) const CODED: u8 = 1;
    pub(crate) const STREAM: u8 = 2;
    pub(crate) const CODED_WITH: u8 = 3;
}

pub(super) fn write_get(get: &Get, out: &mut Vec<u8>) -> u64 {
    debug_assert!(is_path(&get.path), "not a path: {:?}", get.path);
    varint::write(get.request, out);
    write_text(&get.path, PATH_MAX, out);
    varint::write(get.offset, out);
    varint::write(get.length.unwrap_or(0), out);
    // Older builds know no flags.
    if get.held_only {
        out.push(HELD_ONLY);
    }
    kind::GET
}

pub(super) fn parse_get(body: &mut Body) -> Result<Get, Fault> {
    let (request, path) = (body.varint()?, body.path()?);
    let (offset, length) = (body.varint()?, body.varint()?);
    let flags = if body.is_empty() { 0 } else { body.u8()? };
    Ok(Get {
        request,
        path,
        offset,
        length: (length > 0).then_some(length),
        held_only: flags & HELD_ONLY != 0,
    })
}

pub(super) fn write_meta(meta: &Meta, out: &mut Vec<u8>) -> u64 {
    varint::write(meta.request, out);
    write_described(meta, out);
    varint::write(meta.max_age_ms, out);
    write_text(&meta.content_type, CONTENT_TYPE_MAX, out);
    write_delivery(meta, out);
    if let Delivery::Inline(bytes) = &meta.delivery {
        debug_assert!(
            bytes.len() <= INLINE_MAX && bytes.len() as u64 == meta.length,
            "inline bytes of another length"
        );
        out.extend_from_slice(bytes);
    }
    write_signature(meta.signature.as_ref(), out);
    if let Some(tree) = &meta.tree {
        write_tree(tree, out);
    }
    kind::META
}

pub(super) fn parse_meta(body: &mut Body) -> Result<Meta, Fault> {
    let (request, path) = (body.varint()?, body.path()?);
    let id = SegmentId::from_bytes(body.array()?);
    let (offset, length) = (body.varint()?, body.varint()?);
    let object_length = body.varint()?.checked_sub(1);
    let end = offset
        .checked_add(length)
        .filter(|end| *end <= varint::MAX)
        .ok_or(Fault::Malformed)?;
    if object_length.is_some_and(|object_length| end > object_length) {
        return Err(Fault::Malformed);
    }
    let version = u64::from_be_bytes(body.array()?);
    let max_age_ms = body.varint()?;
    let content_type = body.text(CONTENT_TYPE_MAX)?;
    if !content_type
        .bytes()
        .all(|byte| byte.is_ascii_graphic() || byte == b' ')
    {
        return Err(Fault::Malformed);
    }
    let delivery = match body.u8()? {
        delivery::INLINE => {
            let length = usize::try_from(length)
                .ok()
                .filter(|length| *length <= INLINE_MAX)
                .ok_or(Fault::Malformed)?;
            Delivery::Inline(body.take(length)?)
        }
        delivery::CODED => {
            let (block_bytes, n_max) = (body.at_most()?, body.at_most()?);
            Delivery::Coded(Shape::new(length, block_bytes, n_max).map_err(|_| Fault::Malformed)?)
        }
        delivery::CODED_WITH => {
            let (block_bytes, n_max) = (body.at_most()?, body.at_most()?);
            let shape = Shape::new(length, block_bytes, n_max).map_err(|_| Fault::Malformed)?;
            let codec = parse_codec(body)?;
            Delivery::Coded(shape.coded_with(codec).map_err(|_| Fault::Malformed)?)
        }
        delivery::STREAM => Delivery::Stream,
        _ => return Err(Fault::Malformed),
    };
    let signature = parse_signature(body)?;
    let tree = parse_tree(body, &id, length, delivery.codec())?;
    Ok(Meta {
        request,
        path,
        id,
        offset,
        length,
        object_length,
        version,
        max_age_ms,
        content_type,
        delivery,
        signature,
        tree,
    })
}

/// Writes the description of the object, from its path to its version.
fn write_described(meta: &Meta, out: &mut Vec<u8>) {
    debug_assert!(is_path(&meta.path), "not a path: {:?}", meta.path);
    write_text(&meta.path, PATH_MAX, out);
    out.extend_from_slice(meta.id.as_bytes());
    varint::write(meta.offset, out);
    varint::write(meta.length, out);
    varint::write(
        meta.object_length
            .map_or(0, |length| length.saturating_add(1)),
        out,
    );
    out.extend_from_slice(&meta.version.to_be_bytes());
}

/// Writes how the bytes come, without inline bytes.
fn write_delivery(meta: &Meta, out: &mut Vec<u8>) {
    match &meta.delivery {
        Delivery::Inline(_) => out.push(delivery::INLINE),
        Delivery::Coded(shape) => {
            debug_assert_eq!(
                shape.length(),
                meta.length,
                "the shape belongs to other bytes"
            );
            // Peers that know no other code know delivery 1 alone.
            out.push(if shape.codec() == Codec::Rlnc {
                delivery::CODED
            } else {
                delivery::CODED_WITH
            });
            varint::write(u64::from(shape.block_bytes()), out);
            varint::write(u64::from(shape.n_max()), out);
            if shape.codec() != Codec::Rlnc {
                write_codec(shape.codec(), out);
            }
        }
        Delivery::Stream => out.push(delivery::STREAM),
    }
}

fn write_signature(signature: Option<&Signature>, out: &mut Vec<u8>) {
    let Some(Signature {
        key,
        issued_ms,
        blocks,
        bytes,
    }) = signature
    else {
        varint::write(0, out);
        return;
    };
    varint::write(ED25519_LEN as u64, out);
    out.push(SIGNATURE_ED25519);
    out.extend_from_slice(key);
    out.extend_from_slice(&issued_ms.to_be_bytes());
    out.extend_from_slice(blocks);
    out.extend_from_slice(bytes);
}

/// Reads a signature. One of an unknown scheme counts as none.
fn parse_signature(body: &mut Body) -> Result<Option<Signature>, Fault> {
    let length = body.length(SIGNATURE_MAX)?;
    let mut rest = Body(body.take(length)?);
    if length == 0 || rest.u8()? != SIGNATURE_ED25519 {
        return Ok(None);
    }
    let signature = Signature {
        key: rest.array()?,
        issued_ms: u64::from_be_bytes(rest.array()?),
        blocks: rest.array()?,
        bytes: rest.array()?,
    };
    if rest.is_empty() {
        Ok(Some(signature))
    } else {
        Err(Fault::Malformed)
    }
}

fn write_tree(tree: &Tree, out: &mut Vec<u8>) {
    varint::write(1 + tree.values().len() as u64, out);
    out.push(tree.group_log());
    out.extend_from_slice(tree.values());
}

/// Reads a tree. There is none where the message ends before it, or says so. A tree that is not
/// that of the described bytes is malformed.
fn parse_tree(
    body: &mut Body,
    id: &SegmentId,
    length: u64,
    codec: Codec,
) -> Result<Option<Tree>, Fault> {
    if body.is_empty() {
        return Ok(None);
    }
    let bytes = body.length(TREE_MAX)?;
    if bytes == 0 {
        return Ok(None);
    }
    let mut rest = Body(body.take(bytes)?);
    let group_log = rest.u8()?;
    Tree::checked(id, length, codec, group_log, rest.0)
        .map(Some)
        .ok_or(Fault::Malformed)
}

impl Meta {
    /// The bytes that are signed, with this time and this digest of block hashes:
    /// `docs/protocol.md`, section 3.
    pub fn signed_part(&self, issued_ms: u64, blocks: &[u8; 32]) -> Vec<u8> {
        let mut out = b"ncs/1 META\0".to_vec();
        out.extend_from_slice(&issued_ms.to_be_bytes());
        out.extend_from_slice(blocks);
        write_described(self, &mut out);
        write_text(&self.content_type, CONTENT_TYPE_MAX, &mut out);
        write_delivery(self, &mut out);
        out
    }
}

pub(super) fn write_error(error: &RequestError, out: &mut Vec<u8>) -> u64 {
    varint::write(error.request, out);
    varint::write(u64::from(error.code.value()), out);
    varint::write(error.retry_after_ms, out);
    debug_assert!(
        error.reason.chars().all(is_plain),
        "a reason that is not plain: {:?}",
        error.reason
    );
    write_text(&error.reason, REASON_MAX, out);
    kind::ERROR
}

pub(super) fn parse_error(body: &mut Body) -> Result<RequestError, Fault> {
    Ok(RequestError {
        request: body.varint()?,
        code: RequestCode::from_value(body.varint()?),
        retry_after_ms: body.varint()?,
        // A reason that is not plain does not end the connection, but must not be shown as it is.
        reason: plain(&body.text(REASON_MAX)?, REASON_MAX),
    })
}

pub(super) fn write_subscribe(subscribe: &Subscribe, out: &mut Vec<u8>) -> u64 {
    debug_assert!(
        is_stream_name(&subscribe.stream),
        "not the name of a stream: {:?}",
        subscribe.stream
    );
    varint::write(subscribe.request, out);
    write_text(&subscribe.stream, STREAM_NAME_MAX, out);
    kind::SUBSCRIBE
}

pub(super) fn parse_subscribe(body: &mut Body) -> Result<Subscribe, Fault> {
    let (request, stream) = (body.varint()?, body.text(STREAM_NAME_MAX)?);
    if is_stream_name(&stream) {
        Ok(Subscribe { request, stream })
    } else {
        Err(Fault::Malformed)
    }
}
