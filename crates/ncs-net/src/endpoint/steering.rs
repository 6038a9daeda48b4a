//! The program by which the kernel chooses the socket of a packet.
//!
//! Sockets with `SO_REUSEPORT` may share an address. By itself the kernel chooses one of them by a
//! hash of both addresses and ports, so a client whose address changes would reach a socket that
//! does not know its connection. This program (classic BPF, `SO_ATTACH_REUSEPORT_CBPF`) reads the
//! destination connection id instead, which begins at the same place in every version of QUIC (RFC
//! 8999):
//!
//! - An id of our length names its worker. The first packet of a client may have an id of this
//!   length, too; its octets are random, so such clients are spread evenly.
//! - In a long header an id of another length is the client's own choice, and random (RFC 9000,
//!   section 7.2). Four octets of it spread clients evenly, and all packets that a client sends
//!   before it knows our id go to one socket.
//!
//! The program reduces what it has read by the number of sockets. So every packet has a socket:
//! after a restart with fewer sockets, each of them can answer with a stateless reset. A packet
//! that is too short for a load goes to the first socket.
//!
//! While another process ends on the same address ([`ports`](super::ports)), ids that name it go to
//! its sockets. Of the ids of our length that clients choose, one in 2048 times 256 divided by the
//! number of workers looks like that; its client is refused, and chooses another one.

#[cfg(target_os = "linux")]
mod kernel;

#[cfg(target_os = "linux")]
pub(super) use kernel::attach;

use super::ids;

/// One instruction, as the kernel reads it (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u16,
    /// Instructions to skip if a condition holds.
    then: u8,
    /// Instructions to skip otherwise.
    otherwise: u8,
    value: u32,
}

/// Who gets which packets. Each process has as many sockets, in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// The sockets of a process.
    pub(super) workers: u8,
    /// The process that gets new clients, and all ids that are nobody's.
    pub(super) process: u8,
    /// A process that keeps its connections.
    pub(super) other: Option<u8>,
}

impl Plan {
    /// One process has all sockets.
    pub(super) const fn alone(workers: u8) -> Self {
        Self {
            workers,
            process: 0,
            other: None,
        }
    }
}

/// The program for a plan. Offsets count from the UDP payload; the index register holds where the
/// connection id begins.
pub(super) fn program(plan: &Plan) -> Vec<Instruction> {
    let worker_at = u32::from(ids::WORKER_AT);
    let workers = u32::from(plan.workers);
    let first = |process: u8| u32::from(process) * workers;
    let theirs = plan.other.map_or(Vec::new(), |other| {
        vec![
            /* 7 */ load(LOAD_INDEXED, 0),
            /* 8 */ jump(JUMP_IF_SET, ids::LAYOUT_BITS.into(), 4, 0),
            /* 9 */ load(LOAD_INDEXED, ids::PROCESS_AT.into()),
            /* 10 */ jump(JUMP_IF_EQUAL, other.into(), 0, 2),
            /* 11 */ load(LOAD_INDEXED, worker_at),
            /* 12 */ jump(JUMP_IF_AT_LEAST, workers, 0, 6),
        ]
    });
    let to_word = if theirs.is_empty() { 3 } else { 9 };
    let begin = [
        /* 0 */ load(LOAD_OCTET, 0),
        /* 1 */ jump(JUMP_IF_SET, LONG_HEADER, 2, 0),
        /* 2 */ plain(LOAD_INDEX, SHORT_ID_AT),
        /* 3 */ skip(3),
        /* 4 */ load(LOAD_OCTET, LONG_ID_AT - 1),
        /* 5 */ jump(JUMP_IF_EQUAL, ids::LENGTH.into(), 0, to_word),
        /* 6 */ plain(LOAD_INDEX, LONG_ID_AT),
    ];
    let end = [
        /* 13 */ load(LOAD_INDEXED, worker_at),
        /* 14 */ skip(1),
        /* 15 */ load(LOAD_WORD, LONG_ID_AT),
        /* 16 */ plain(MODULO, workers),
        /* 17 */ plain(ADD, first(plan.process)),
        /* 18 */ plain(RETURN, 0),
        /* 19 */ plain(ADD, plan.other.map_or(0, first)),
        /* 20 */ plain(RETURN, 0),
    ];
    begin.into_iter().chain(theirs).chain(end).collect()
}

/// The destination connection id by which the program steers a datagram, if it has our length.
pub(super) fn id(datagram: &[u8]) -> Option<&[u8]> {
    let (long_at, length) = (LONG_ID_AT as usize, usize::from(ids::LENGTH));
    let at = match *datagram.first()? {
        first if u32::from(first) & LONG_HEADER == 0 => SHORT_ID_AT as usize,
        _ if *datagram.get(long_at - 1)? == ids::LENGTH => long_at,
        _ => return None,
    };
    datagram.get(at..at + length)
}

const fn plain(code: u16, value: u32) -> Instruction {
    jump(code, value, 0, 0)
}

const fn load(code: u16, at: u32) -> Instruction {
    plain(code, at)
}

const fn skip(instructions: u32) -> Instruction {
    plain(JUMP, instructions)
}

const fn jump(code: u16, value: u32, then: u8, otherwise: u8) -> Instruction {
    Instruction {
        code,
        then,
        otherwise,
        value,
    }
}

/// The bit of octet 0 that long headers have.
const LONG_HEADER: u32 = 0x80;
/// Where the id begins in a short header.
const SHORT_ID_AT: u32 = 1;
/// Where it begins in a long header, behind the version and its own length.
const LONG_ID_AT: u32 = 6;

/// `A = octet at value` (`BPF_LD | BPF_B | BPF_ABS`).
const LOAD_OCTET: u16 = 0x30;
/// `A = word at value` (`BPF_LD | BPF_W | BPF_ABS`).
const LOAD_WORD: u16 = 0x20;
/// `A = octet at X + value` (`BPF_LD | BPF_B | BPF_IND`).
const LOAD_INDEXED: u16 = 0x50;
/// `X = value` (`BPF_LDX | BPF_W | BPF_IMM`).
const LOAD_INDEX: u16 = 0x01;
/// `A += value` (`BPF_ALU | BPF_ADD | BPF_K`).
const ADD: u16 = 0x04;
/// `A >= value` (`BPF_JMP | BPF_JGE | BPF_K`).
const JUMP_IF_AT_LEAST: u16 = 0x35;
/// `A %= value` (`BPF_ALU | BPF_MOD | BPF_K`).
const MODULO: u16 = 0x94;
/// Skips `value` instructions (`BPF_JMP | BPF_JA`).
const JUMP: u16 = 0x05;
/// `A == value` (`BPF_JMP | BPF_JEQ | BPF_K`).
const JUMP_IF_EQUAL: u16 = 0x15;
/// `A & value` (`BPF_JMP | BPF_JSET | BPF_K`).
const JUMP_IF_SET: u16 = 0x45;
/// Returns `A` (`BPF_RET | BPF_A`).
const RETURN: u16 = 0x16;

#[cfg(test)]
mod tests;
