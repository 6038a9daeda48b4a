//! The bytes in which servers tell each other of holders: fixed sizes, big-endian.
//!
//! A message is a kind (1 byte), the sender's start (8), its number among all messages of the
//! sender (8), the number of the one before it to the same server (8), and entries up to its end. A
//! use is the holder (16), its connections (4), flags (1), for each limit that the flags name the
//! limit (4) or the rate and the bytes a second in use (8, 8), and a count (1) of ages in
//! milliseconds (4 each). A share is the holder (16), flags (1), and what the flags name:
//! connections (4), bytes a second (8).

use bytes::{Buf, BufMut as _};
use ncs_serve::admission::rolls::{MARKS_MAX, Share};

use crate::cluster::engine::MESSAGE_MAX;
use crate::cluster::entries::{Unfit, all};

/// The sender, and the place of a message in what it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// When its process started, as in its beats.
    pub(super) started_ms: u64,
    /// Later messages have higher numbers, from 1.
    pub(super) number: u64,
    /// The number of the last message to the same server, or 0.
    pub(super) previous: u64,
}

/// What a server tells an owner of a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) holder: u128,
    pub(super) connections: u32,
    pub(super) limit: Option<u32>,
    pub(super) flow: Option<Flow>,
    /// How long ago its connections came, in milliseconds, the oldest first. Each stands for an
    /// equal part of them.
    pub(super) ages: Vec<u32>,
}

/// A holder's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    /// Bytes a second that the holder may spend in all.
    pub(super) rate: u64,
    /// Those that it spends at this server.
    pub(super) used: u64,
    /// Whether it would spend more.
    pub(super) is_hungry: bool,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// What holders use at the sender. `is_anew`: nothing that was told before counts.
    Uses { is_anew: bool, told: Vec<Told> },
    /// What the receiver may use of the limits of holders.
    Shares(Vec<(u128, Share)>),
    /// The sender has missed something: all uses have to be told anew.
    Again,
}

impl Message {
    /// How many of these uses one message has room for.
    pub(super) fn fit(told: &[Told]) -> usize {
        let mut left = MESSAGE_MAX - HEAD_BYTES;
        let fits = |told: &&Told| {
            let size = told.size();
            let fits = size <= left;
            left = left.saturating_sub(size);
            fits
        };
        told.iter().take_while(fits).count()
    }

    pub(super) fn write(&self, head: Head) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES);
        out.put_u8(match self {
            Self::Uses { is_anew: false, .. } => USES,
            Self::Uses { is_anew: true, .. } => USES_ANEW,
            Self::Shares(_) => SHARES,
            Self::Again => AGAIN,
        });
        out.put_u64(head.started_ms);
        out.put_u64(head.number);
        out.put_u64(head.previous);
        match self {
            Self::Uses { told, .. } => told.iter().for_each(|told| told.write(&mut out)),
            Self::Shares(shares) => {
                shares
                    .iter()
                    .for_each(|(holder, share)| write_share(&mut out, *holder, share));
            }
            Self::Again => {}
        }
        out
    }

    pub(super) fn read(mut bytes: &[u8]) -> Result<(Head, Self), Unfit> {
        let bytes = &mut bytes;
        let kind = bytes.try_get_u8()?;
        let head = Head {
            started_ms: bytes.try_get_u64()?,
            number: bytes.try_get_u64()?,
            previous: bytes.try_get_u64()?,
        };
        if head.previous >= head.number {
            return Err(Unfit);
        }
        let message = match kind {
            USES | USES_ANEW => Self::Uses {
                is_anew: kind == USES_ANEW,
                told: all(bytes, Told::read)?,
            },
            SHARES => Self::Shares(all(bytes, read_share)?),
            AGAIN if bytes.is_empty() => Self::Again,
            _ => return Err(Unfit),
        };
        Ok((head, message))
    }
}

impl Told {
    fn size(&self) -> usize {
        let limit = self.limit.map_or(0, |_| 4);
        let flow = self.flow.map_or(0, |_| 16);
        16 + 4 + 1 + limit + flow + 1 + 4 * self.ages.len()
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u128(self.holder);
        out.put_u32(self.connections);
        let is_hungry = self.flow.is_some_and(|flow| flow.is_hungry);
        out.put_u8(
            flag(self.limit.is_some(), HAS_CONNECTIONS)
                | flag(self.flow.is_some(), HAS_RATE)
                | flag(is_hungry, IS_HUNGRY),
        );
        if let Some(limit) = self.limit {
            out.put_u32(limit);
        }
        if let Some(flow) = self.flow {
            out.put_u64(flow.rate);
            out.put_u64(flow.used);
        }
        let ages = &self.ages[..self.ages.len().min(MARKS_MAX)];
        out.put_u8(u8::try_from(ages.len()).expect("they are few"));
        ages.iter().for_each(|age| out.put_u32(*age));
    }

    fn read(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        let (holder, connections) = (bytes.try_get_u128()?, bytes.try_get_u32()?);
        let flags = bytes.try_get_u8()?;
        let is_unknown = flags & !(HAS_CONNECTIONS | HAS_RATE | IS_HUNGRY) != 0;
        if is_unknown || flags & (HAS_RATE | IS_HUNGRY) == IS_HUNGRY {
            return Err(Unfit);
        }
        let limit = match flags & HAS_CONNECTIONS {
            0 => None,
            _ => Some(bytes.try_get_u32()?),
        };
        let flow = match flags & HAS_RATE {
            0 => None,
            _ => Some(Flow {
                rate: bytes.try_get_u64()?,
                used: bytes.try_get_u64()?,
                is_hungry: flags & IS_HUNGRY != 0,
            }),
        };
        let count = usize::from(bytes.try_get_u8()?);
        if count > MARKS_MAX || (count == 0) != (connections == 0) {
            return Err(Unfit);
        }
        let ages = (0..count).map(|_| bytes.try_get_u32());
        Ok(Self {
            holder,
            connections,
            limit,
            flow,
            ages: ages.collect::<Result<_, _>>()?,
        })
    }
}

fn write_share(out: &mut Vec<u8>, holder: u128, share: &Share) {
    out.put_u128(holder);
    out.put_u8(
        flag(share.keep.is_some(), HAS_CONNECTIONS)
            | flag(share.rate.is_some(), HAS_RATE)
            | flag(share.is_strict, IS_STRICT),
    );
    if let Some(keep) = share.keep {
        out.put_u32(keep);
    }
    if let Some(rate) = share.rate {
        out.put_u64(rate);
    }
}

fn read_share(bytes: &mut &[u8]) -> Result<(u128, Share), Unfit> {
    let (holder, flags) = (bytes.try_get_u128()?, bytes.try_get_u8()?);
    if flags & !(HAS_CONNECTIONS | HAS_RATE | IS_STRICT) != 0 {
        return Err(Unfit);
    }
    let keep = match flags & HAS_CONNECTIONS {
        0 => None,
        _ => Some(bytes.try_get_u32()?),
    };
    let rate = match flags & HAS_RATE {
        0 => None,
        _ => Some(bytes.try_get_u64()?),
    };
    let is_strict = flags & IS_STRICT != 0;
    Ok((
        holder,
        Share {
            keep,
            is_strict,
            rate,
        },
    ))
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

/// Shares in a message.
pub(super) const SHARES_MAX: usize = (MESSAGE_MAX - HEAD_BYTES) / (16 + 1 + 4 + 8);
const HEAD_BYTES: usize = 1 + 3 * 8;
const USES: u8 = 1;
const USES_ANEW: u8 = 2;
const SHARES: u8 = 3;
const AGAIN: u8 = 4;
const HAS_CONNECTIONS: u8 = 1;
const HAS_RATE: u8 = 2;
const IS_HUNGRY: u8 = 4;
const IS_STRICT: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::entries::assert_no_bytes_do_harm;

    const HEAD: Head = Head {
        started_ms: 1_800_000_000_000,
        number: 7,
        previous: 5,
    };

    fn told(holder: u128, connections: u32) -> Told {
        let flow = Flow {
            rate: 1_000_000,
            used: 70_000,
            is_hungry: true,
        };
        Told {
            holder,
            connections,
            limit: Some(2),
            flow: holder.is_multiple_of(2).then_some(flow),
            ages: (0..connections.min(16)).map(|age| 90_000 - age).collect(),
        }
    }

    fn samples() -> Vec<Message> {
        let share = |keep, rate, is_strict| Share {
            keep,
            is_strict,
            rate,
        };
        vec![
            Message::Uses {
                is_anew: false,
                told: vec![told(1, 1), told(u128::MAX - 1, 3), told(5, 0), told(6, 99)],
            },
            Message::Uses {
                is_anew: true,
                told: Vec::new(),
            },
            Message::Shares(vec![
                (1, share(Some(0), None, true)),
                (2, share(None, Some(u64::MAX), false)),
                (3, Share::default()),
            ]),
            Message::Again,
        ]
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        for message in samples() {
            let bytes = message.write(HEAD);
            assert_eq!(Message::read(&bytes), Ok((HEAD, message)));
        }
    }

    /// Servers of other versions must understand this one.
    #[test]
    fn bytes_are_what_they_were() {
        let message = Message::Uses {
            is_anew: false,
            told: vec![told(1, 1)],
        };
        let hex: String = message
            .write(HEAD)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            "01000001a3185c50000000000000000007000000000000000500000000000000000000000000000001\
             0000000101000000020100015f90"
        );
    }

    #[test]
    fn as_many_uses_are_sent_as_fit() {
        let all: Vec<Told> = (0..1000).map(|holder| told(holder, 16)).collect();
        let count = Message::fit(&all);
        let told = all[..count].to_vec();
        let bytes = Message::Uses {
            is_anew: true,
            told,
        }
        .write(HEAD);
        assert!((MESSAGE_MAX - 110..=MESSAGE_MAX).contains(&bytes.len()));
        let most = vec![
            (
                7,
                Share {
                    keep: Some(1),
                    is_strict: true,
                    rate: Some(1)
                }
            );
            SHARES_MAX
        ];
        assert!(Message::Shares(most).write(HEAD).len() <= MESSAGE_MAX);
    }

    #[test]
    fn no_bytes_do_harm() {
        let samples = samples().into_iter();
        let bytes = samples.map(|message| message.write(HEAD));
        assert_no_bytes_do_harm(bytes, Message::read, |(head, message)| message.write(head));
    }
}
