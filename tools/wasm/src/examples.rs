//! The examples of `docs/protocol.md`.

use ncs_proto::integrity::signing::StreamKey;
use ncs_proto::wire::frame::Reader;
use ncs_proto::wire::message::Message;

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

/// Reads and writes every message among the examples, and verifies what is signed. How many
/// messages there are.
///
/// # Panics
/// If one is not what the document says.
pub fn check() -> usize {
    let (mut count, mut signed) = (0, 0);
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```example ") else {
            continue;
        };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let is_message = !name.starts_with("datagram") && !name.starts_with("stream of");
        if !is_message || name.ends_with(" page") {
            continue;
        }
        let bytes = bytes_of(&body);
        let mut reader = Reader::new();
        reader.push(&bytes);
        let mut written = Vec::new();
        while let Some(message) = reader
            .next()
            .unwrap_or_else(|error| panic!("{name}: {error}"))
        {
            if let Message::Meta(meta) = &message
                && meta.signature.is_some()
            {
                assert!(
                    StreamKey::of(meta).is_some(),
                    "{name} is not signed by the key that it names"
                );
                signed += 1;
            }
            message.encode(&mut written);
        }
        assert_eq!(written, bytes, "example {name}");
        count += 1;
    }
    assert!(
        count > 30 && signed >= 2,
        "{count} examples, {signed} of them signed"
    );
    count
}

fn bytes_of(lines: &[&str]) -> Vec<u8> {
    let hex: String = lines
        .iter()
        .filter_map(|line| line.split('#').next())
        .collect();
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits
        .chunks_exact(2)
        .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits"))
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn messages_are_read_and_written_alike() {
        super::check();
    }
}
