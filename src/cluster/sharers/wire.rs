//! The bytes in which servers tell each other of peers that serve: fixed sizes, big-endian.
//!
//! A message is a kind (1 byte), the sender (8), and entries up to its end. A server is named by
//! the hash of its name and its start. An entry of kind 1 is a circle (16), a count (1), and so
//! many peers of the sender: all of the circle that the receiver should know, perhaps none. Kind 2
//! asks: an entry is a circle (16). Kind 3 answers: a circle (16), a count (1), and for each peer
//! its server (8) before it. A peer is the SHA-256 of its certificate (32), 4 or 6 (1), and its
//! address (4 or 16) and port (2).
//!
//! Nothing else is said of a peer: not which segments it has, nor what it has asked for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Buf, BufMut as _};
use ncs_serve::directory::{Circle, SHARERS_MAX, Sharer};

use crate::cluster::engine::MESSAGE_MAX;
use crate::cluster::entries::{Unfit, all};

/// A process of a server: a hash of its name and its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ServerId(pub(super) u64);

/// A peer, and the server to which it is connected.
pub(super) type Found = (ServerId, Sharer);

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// These peers of the sender are in these circles, and no others.
    Told(Vec<(Circle, Vec<Sharer>)>),
    /// Who is in these circles?
    Asked(Vec<Circle>),
    /// Some peers of these circles, of other servers than the one that has asked.
    Found(Vec<(Circle, Vec<Found>)>),
}

impl Message {
    pub(super) fn write(&self, from: ServerId) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES);
        out.put_u8(match self {
            Self::Told(_) => TOLD,
            Self::Asked(_) => ASKED,
            Self::Found(_) => FOUND,
        });
        out.put_u64(from.0);
        match self {
            Self::Told(told) => {
                for (circle, sharers) in told {
                    write_circle(&mut out, *circle, sharers.len());
                    sharers.iter().for_each(|sharer| write(&mut out, sharer));
                }
            }
            Self::Asked(circles) => circles.iter().for_each(|circle| out.put_u128(circle.0)),
            Self::Found(all) => {
                for (circle, found) in all {
                    write_circle(&mut out, *circle, found.len());
                    for (server, sharer) in found {
                        out.put_u64(server.0);
                        write(&mut out, sharer);
                    }
                }
            }
        }
        out
    }

    pub(super) fn read(mut bytes: &[u8]) -> Result<(ServerId, Self), Unfit> {
        let bytes = &mut bytes;
        let kind = bytes.try_get_u8()?;
        let from = ServerId(bytes.try_get_u64()?);
        let message = match kind {
            TOLD => Self::Told(all(bytes, |bytes| circle(bytes, SHARERS_MAX, read))?),
            ASKED if bytes.len() <= 16 * ASKED_MAX => {
                Self::Asked(all(bytes, |bytes| Ok(Circle(bytes.try_get_u128()?)))?)
            }
            FOUND => Self::Found(all(bytes, |bytes| {
                circle(bytes, FOUND_MAX, |bytes| {
                    Ok((ServerId(bytes.try_get_u64()?), read(bytes)?))
                })
            })?),
            _ => return Err(Unfit),
        };
        Ok((from, message))
    }
}

/// Divides entries among messages, by the bytes that each takes at most.
pub(super) fn batches<T>(entries: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut batches, mut left) = (Vec::new(), 0);
    for entry in entries {
        let bytes = size(&entry);
        if batches.is_empty() || bytes > left {
            batches.push(Vec::new());
            left = MESSAGE_MAX - HEAD_BYTES;
        }
        left = left.saturating_sub(bytes);
        batches.last_mut().expect("there is one").push(entry);
    }
    batches
}

/// The bytes of peers of a circle at most, in kinds 1 and 3.
pub(super) fn told_bytes((_, sharers): &(Circle, Vec<Sharer>)) -> usize {
    CIRCLE_BYTES + sharers.len() * SHARER_BYTES_MAX
}

pub(super) fn found_bytes((_, found): &(Circle, Vec<Found>)) -> usize {
    CIRCLE_BYTES + found.len() * (8 + SHARER_BYTES_MAX)
}

fn write_circle(out: &mut Vec<u8>, circle: Circle, count: usize) {
    out.put_u128(circle.0);
    out.put_u8(u8::try_from(count).expect("they are few"));
}

/// A circle, and at most `most` peers of it.
fn circle<T>(
    bytes: &mut &[u8],
    most: usize,
    read: impl Fn(&mut &[u8]) -> Result<T, Unfit>,
) -> Result<(Circle, Vec<T>), Unfit> {
    let (circle, count) = (Circle(bytes.try_get_u128()?), bytes.try_get_u8()?);
    if usize::from(count) > most {
        return Err(Unfit);
    }
    let entries = (0..count).map(|_| read(bytes));
    Ok((circle, entries.collect::<Result<_, _>>()?))
}

fn write(out: &mut Vec<u8>, sharer: &Sharer) {
    out.put_slice(&sharer.identity);
    match sharer.address.ip() {
        IpAddr::V4(ip) => {
            out.put_u8(4);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_u8(6);
            out.put_slice(&ip.octets());
        }
    }
    out.put_u16(sharer.address.port());
}

fn read(bytes: &mut &[u8]) -> Result<Sharer, Unfit> {
    let mut identity = [0; 32];
    bytes.try_copy_to_slice(&mut identity)?;
    let ip = match bytes.try_get_u8()? {
        4 => IpAddr::from(Ipv4Addr::from_bits(bytes.try_get_u32()?)),
        6 => IpAddr::from(Ipv6Addr::from_bits(bytes.try_get_u128()?)),
        _ => return Err(Unfit),
    };
    let port = bytes.try_get_u16()?;
    if port == 0 {
        return Err(Unfit);
    }
    let address = SocketAddr::new(ip, port);
    Ok(Sharer { address, identity })
}

/// Circles of one question, and peers of one in its answer: the answer takes eight messages at
/// most.
pub(super) const ASKED_MAX: usize = 64;
pub(super) const FOUND_MAX: usize = 8;
const HEAD_BYTES: usize = 1 + 8;
const CIRCLE_BYTES: usize = 16 + 1;
const SHARER_BYTES_MAX: usize = 32 + 1 + 16 + 2;
const TOLD: u8 = 1;
const ASKED: u8 = 2;
const FOUND: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::entries::assert_no_bytes_do_harm;

    const FROM: ServerId = ServerId(0x0102_0304_0506_0708);

    fn sharer(number: u8) -> Sharer {
        let address = match number % 2 {
            0 => SocketAddr::from(([192, 0, 2, number], 4444)),
            _ => SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()], 4444)),
        };
        let identity = [number; 32];
        Sharer { address, identity }
    }

    fn samples() -> Vec<Message> {
        let found = |number: u8| (ServerId(number.into()), sharer(number));
        vec![
            Message::Told(vec![
                (Circle(1), vec![sharer(2), sharer(3)]),
                (Circle(u128::MAX), Vec::new()),
            ]),
            Message::Told(Vec::new()),
            Message::Asked(vec![Circle(1), Circle(2)]),
            Message::Found(vec![
                (Circle(7), Vec::new()),
                (Circle(8), vec![found(1), found(2)]),
            ]),
        ]
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        for message in samples() {
            assert_eq!(Message::read(&message.write(FROM)), Ok((FROM, message)));
        }
    }

    /// Servers of other versions must understand this one. Each byte is accounted for: nothing says
    /// what a peer has, or has asked for.
    #[test]
    fn a_message_says_how_a_peer_is_reached_and_nothing_more() {
        let told = Message::Told(vec![(Circle(9), vec![sharer(2)])]);
        let head = FROM.0.to_be_bytes();
        let circle = 9_u128.to_be_bytes();
        let port = 4444_u16.to_be_bytes();
        let expected: [&[u8]; 8] = [
            &[1],
            &head,
            &circle,
            &[1],
            &[2; 32],
            &[4],
            &[192, 0, 2, 2],
            &port,
        ];
        assert_eq!(told.write(FROM), expected.concat());
        let asked = Message::Asked(vec![Circle(9)]);
        assert_eq!(asked.write(FROM), [&[2], &head[..], &circle].concat());
        let found = Message::Found(vec![(Circle(9), vec![(ServerId(5), sharer(2))])]);
        let server = 5_u64.to_be_bytes();
        let expected: [&[u8]; 9] = [
            &[3],
            &head,
            &circle,
            &[1],
            &server,
            &[2; 32],
            &[4],
            &[192, 0, 2, 2],
            &port,
        ];
        assert_eq!(found.write(FROM), expected.concat());
    }

    #[test]
    fn messages_have_their_bounds() {
        let most = vec![sharer(1); SHARERS_MAX];
        let told: Vec<_> = (0..500)
            .map(|number| (Circle(number), most.clone()))
            .collect();
        let sent = batches(told.clone(), told_bytes);
        let lengths = sent
            .iter()
            .map(|told| Message::Told(told.clone()).write(FROM).len());
        assert!(lengths.max().unwrap() <= MESSAGE_MAX);
        assert_eq!(sent.concat(), told);
        let asked = |count| Message::Asked(vec![Circle(1); count]).write(FROM);
        assert!(Message::read(&asked(ASKED_MAX)).is_ok());
        assert_eq!(Message::read(&asked(ASKED_MAX + 1)), Err(Unfit));
        let found = vec![(ServerId(1), sharer(1)); FOUND_MAX];
        let found = vec![(Circle(1), found); ASKED_MAX];
        assert!(batches(found, found_bytes).len() <= 10);
        let too_many = Message::Told(vec![(Circle(1), vec![sharer(1); SHARERS_MAX + 1])]);
        assert_eq!(Message::read(&too_many.write(FROM)), Err(Unfit));
    }

    #[test]
    fn no_bytes_do_harm() {
        let samples = samples().into_iter();
        let bytes = samples.map(|message| message.write(FROM));
        assert_no_bytes_do_harm(bytes, Message::read, |(from, message)| message.write(from));
    }
}
