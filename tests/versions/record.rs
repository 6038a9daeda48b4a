//! What a client and a server of one version have said to each other, as text.
//!
//! ```text
//! scene datagrams
//! connection 0 a                    the first connection of the scene, to server a
//! 0 > control 00010010…             a frame of the client
//! 0 < stream 3 500000…              bytes of the server's fourth unidirectional stream
//! 0 < end 3
//! 0 < reset 3 5129984
//! 0 > stop 3 5129984                STOP_SENDING
//! 0 < datagram 41000000…
//! 0 > close 5129984 646f6e65        code and reason
//! ```
//!
//! All bytes are in hexadecimal digits. Lines that begin with `#` say where it comes from.

use std::fmt::Write;

use nctest::number::varint;

/// Which side has sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// What a side has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A frame of the control stream.
    Control(Vec<u8>),
    /// Bytes of a unidirectional stream, by its number.
    Stream(u64, Vec<u8>),
    /// The end of one.
    End(u64),
    /// A reset of one, with this code.
    Reset(u64, u64),
    /// STOP_SENDING for one, with this code.
    Stop(u64, u64),
    Datagram(Vec<u8>),
    /// The end of the connection, with this code and reason.
    Close(u64, Vec<u8>),
}

/// A connection: the letter of the server that it went to, and what was sent.
#[derive(Debug, Clone)]
pub(crate) struct Conversation {
    pub(crate) server: char,
    pub(crate) events: Vec<(Side, Sent)>,
}

/// A scene, by its name: its connections in the order in which they began.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) name: String,
    pub(crate) conversations: Vec<Conversation>,
}

impl Scene {
    pub(crate) fn write(&self, out: &mut String) {
        writeln!(out, "scene {}", self.name).unwrap();
        for (number, conversation) in self.conversations.iter().enumerate() {
            writeln!(out, "connection {number} {}", conversation.server).unwrap();
            for (side, sent) in &conversation.events {
                let arrow = match side {
                    Side::Client => '>',
                    Side::Server => '<',
                };
                writeln!(out, "{number} {arrow} {}", written(sent)).unwrap();
            }
        }
    }

    /// The scenes of a file.
    ///
    /// # Panics
    /// A line is none of the above.
    pub(crate) fn read_all(text: &str) -> Vec<Self> {
        let mut scenes: Vec<Self> = Vec::new();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for line in lines.filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split(' ').collect();
            match (&words[..], scenes.last_mut()) {
                (["scene", name], _) => scenes.push(Self {
                    name: (*name).to_owned(),
                    conversations: Vec::new(),
                }),
                (["connection", _, server], Some(scene)) => {
                    scene.conversations.push(Conversation {
                        server: server.parse().expect("a letter"),
                        events: Vec::new(),
                    });
                }
                ([number, arrow, sent @ ..], Some(scene)) => {
                    let side = match *arrow {
                        ">" => Side::Client,
                        "<" => Side::Server,
                        _ => panic!("{line}"),
                    };
                    let number: usize = number.parse().expect("the number of a connection");
                    let sent = read(sent).unwrap_or_else(|| panic!("{line}"));
                    scene.conversations[number].events.push((side, sent));
                }
                _ => panic!("{line}"),
            }
        }
        scenes
    }
}

fn written(sent: &Sent) -> String {
    match sent {
        Sent::Control(bytes) => format!("control {}", hex(bytes)),
        Sent::Stream(stream, bytes) => format!("stream {stream} {}", hex(bytes)),
        Sent::End(stream) => format!("end {stream}"),
        Sent::Reset(stream, code) => format!("reset {stream} {code}"),
        Sent::Stop(stream, code) => format!("stop {stream} {code}"),
        Sent::Datagram(bytes) => format!("datagram {}", hex(bytes)),
        Sent::Close(code, reason) => format!("close {code} {}", hex(reason)),
    }
}

fn read(words: &[&str]) -> Option<Sent> {
    let number = |text: &str| text.parse::<u64>().ok();
    Some(match words {
        ["control", bytes] => Sent::Control(unhex(bytes)?),
        ["stream", stream, bytes] => Sent::Stream(number(stream)?, unhex(bytes)?),
        ["end", stream] => Sent::End(number(stream)?),
        ["reset", stream, code] => Sent::Reset(number(stream)?, number(code)?),
        ["stop", stream, code] => Sent::Stop(number(stream)?, number(code)?),
        ["datagram", bytes] => Sent::Datagram(unhex(bytes)?),
        ["close", code, reason] => Sent::Close(number(code)?, unhex(reason)?),
        _ => return None,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect()
}

/// A number in QUIC's encoding at the beginning of these bytes, and the bytes that it takes.
pub(crate) fn number(bytes: &[u8]) -> Option<(u64, usize)> {
    let length = 1 << (bytes.first()? >> 6);
    let taken = bytes.get(..length)?.iter();
    let value = taken.fold(0, |value, byte| value << 8 | u64::from(*byte));
    Some((value & (u64::MAX >> (66 - 8 * length)), length))
}

/// The type and the body of a frame that is complete, and the bytes that it takes.
pub(crate) fn frame(bytes: &[u8]) -> Option<(u64, &[u8], usize)> {
    let (kind, first) = number(bytes)?;
    let (length, second) = number(&bytes[first..])?;
    let head = first + second;
    let end = head + usize::try_from(length).ok()?;
    Some((kind, bytes.get(head..end)?, end))
}

/// A frame of this type.
pub(crate) fn framed(kind: u64, body: &[u8]) -> Vec<u8> {
    [&varint(kind)[..], &varint(body.len() as u64), body].concat()
}
