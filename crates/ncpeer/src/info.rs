//! The text of `ncpeer info`: about servers, an object, and the cost of fetching it.

use std::fmt;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use ncs_proto::object::{Codec, Shape};

use super::{Client, Error, Stats, fetch};

/// Waits briefly for servers that have not answered, and describes all; then the object at `path`.
pub async fn describe(client: &Client, path: Option<&str>) -> Result<String, Error> {
    // With several servers, the first has answered already; the others get a moment.
    let mut stats = client.stats();
    let all_answer =
        stats.wait_for(|stats| stats.sources.iter().all(|source| source.hello.is_some()));
    let _ = tokio::time::timeout(ANSWER_MAX, all_answer).await;
    let stats = client.stats().borrow().clone();
    let mut text = Lines::default();
    for source in &stats.sources {
        text.line("server", &source.server);
        let Some(hello) = &source.hello else {
            text.line(
                "",
                &if source.counts.is_polluter {
                    "sent wrong blocks and is not used"
                } else {
                    "does not answer"
                },
            );
            continue;
        };
        if let Some(address) = source.address {
            text.line("address", &address);
        }
        text.line("agent", &hello.agent);
        text.line(
            "generations",
            &format_args!(
                "up to {} blocks of up to {} bytes",
                hello.n_max, hello.block_bytes_max
            ),
        );
        text.line(
            "segments",
            &format_args!("up to {}", ByteSize::b(hello.segment_bytes_max)),
        );
        text.line(
            "requests",
            &format_args!(
                "up to {} open, {} blocks of credit each",
                hello.requests_max, hello.credit_max
            ),
        );
        text.line(
            "round trip",
            &format_args!("{:.1} ms", source.rtt.as_secs_f64() * 1e3),
        );
    }
    if let Some(path) = path {
        let meta = client.stat(path, 0, None).await?;
        text.line("path", &path);
        match meta.object_length {
            Some(length) => text.line("length", &format_args!("{length} bytes")),
            None => text.line("length", &"not known"),
        }
        text.line(
            "type",
            &if meta.content_type.is_empty() {
                "not known"
            } else {
                &meta.content_type
            },
        );
        text.line(
            "delivery",
            &if meta.mutable {
                "whole"
            } else {
                "coded blocks"
            },
        );
        if let Some(shape) = &meta.shape {
            text.line("code", &code(shape));
        }
        text.line("first part", &format_args!("{} bytes", meta.length));
        text.line("version", &format_args!("{:016x}", meta.version));
        text.line("valid for", &humantime::format_duration(meta.max_age));
        match meta.key {
            Some(key) => text.line("signed by", &key),
            None => text.line("signed by", &"nobody"),
        }
    }
    Ok(text.0)
}

/// The code of a stream, by its first part.
fn code(shape: &Shape) -> String {
    let parity = match shape.codec() {
        Codec::ReedSolomon { parity } => format!(" with {parity} parity blocks"),
        Codec::RlncQ { group } => format!(" with homomorphic hashes of {} bits", group.bits()),
        Codec::Rlnc | Codec::RaptorQ => String::new(),
    };
    let (name, n_max, k) = (shape.codec().name(), shape.n_max(), shape.block_bytes());
    format!("{name}{parity}, generations of up to {n_max} blocks of {k} bytes")
}

/// Fetches the object, or about `bytes_max` of it, keeps nothing, and describes the cost.
pub async fn measure(client: &Client, path: &str, bytes_max: ByteSize) -> Result<String, Error> {
    let begun = Instant::now();
    let mut object = client.open(path, None).await?;
    let mut bytes = 0;
    while bytes < bytes_max.as_u64()
        && let Some(part) = object.next().await
    {
        bytes += part?.len() as u64;
    }
    Ok(took(&client.stats().borrow(), bytes, begun.elapsed()))
}

fn took(stats: &Stats, bytes: u64, time: Duration) -> String {
    let mut text = Lines::default();
    let megabits = bytes as f64 * 8e-6 / time.as_secs_f64().max(1e-6);
    text.line(
        "fetched",
        &format_args!(
            "{bytes} bytes in {:.3} s, {megabits:.2} Mbit/s",
            time.as_secs_f64()
        ),
    );
    let Stats {
        blocks_received,
        blocks_innovative,
        blocks_useless,
        blocks_late,
        generations,
        ..
    } = stats;
    let what = format!(
        "{blocks_innovative} innovative, {blocks_useless} redundant; {blocks_late} more arrived \
         late"
    );
    text.line(
        "blocks",
        &format_args!("{blocks_received} for {generations} generations: {what}"),
    );
    text.line(
        "loss",
        &format_args!(
            "{} datagrams lost, {} repaired by other blocks",
            stats.datagrams_lost, stats.blocks_repaired
        ),
    );
    text.line(
        "repair",
        &fetch::repair(stats)
            .unwrap_or_else(|| "no repair blocks requested ahead of loss".to_owned()),
    );
    if stats.tests > 0 {
        text.line(
            "tested",
            &format_args!(
                "{} blocks by homomorphic hashes, in {} batches",
                stats.blocks_tested, stats.tests
            ),
        );
    }
    if let Some(pollution) = fetch::pollution(stats) {
        text.line("pollution", &pollution);
    }
    for source in &stats.sources {
        let counts = &source.counts;
        let (share, loss) = (
            100.0 * counts.blocks as f64 / (*blocks_received).max(1) as f64,
            100.0 * counts.loss,
        );
        let what = format!(
            "{} blocks ({share:.0} %), {} datagrams lost, {loss:.1} % of late",
            counts.blocks, counts.lost
        );
        text.line("of", &format_args!("{}: {what}", source.server));
    }
    if stats.neighbour_bytes > 0 {
        text.line(
            "of peers",
            &format_args!(
                "{} of {} bytes of blocks",
                stats.neighbour_bytes, stats.payload_bytes
            ),
        );
    }
    text.0
}

/// Lines of a name and a value.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, value: &dyn fmt::Display) {
        self.0 += &format!("{name:<14}{value}\n");
    }
}

/// The maximum wait for servers other than the first that answers.
const ANSWER_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use ncs_proto::object::HashGroup;

    #[test]
    fn the_code_is_told_with_its_parity() {
        let shape = |codec| {
            Shape::new(1_000_000, 4096, 128)
                .unwrap()
                .coded_with(codec)
                .unwrap()
        };
        assert_eq!(
            code(&shape(Codec::Rlnc)),
            "a random linear code, generations of up to 128 blocks of 4096 bytes"
        );
        let rs = code(&shape(Codec::ReedSolomon { parity: 16 }));
        assert_eq!(
            rs,
            "Reed-Solomon with 16 parity blocks, generations of up to 128 blocks of 4096 bytes"
        );
        let prime = code(&shape(Codec::RlncQ {
            group: HashGroup::P2048,
        }));
        let expected = "a random linear code over a prime field with homomorphic hashes of 2048 \
                        bits, generations of up to 128 blocks of 4096 bytes";
        assert_eq!(prime, expected);
        assert_eq!(
            code(&shape(Codec::RaptorQ)),
            "RaptorQ, generations of up to 128 blocks of 4096 bytes"
        );
    }

    #[test]
    fn it_is_told_what_a_fetch_took() {
        let stats = Stats {
            blocks_received: 130,
            blocks_innovative: 128,
            blocks_useless: 2,
            generations: 2,
            ..Stats::default()
        };
        let text = took(&stats, 1_000_000, Duration::from_secs(2));
        assert!(
            text.contains("1000000 bytes in 2.000 s, 4.00 Mbit/s"),
            "{text}"
        );
        assert!(
            text.contains("130 for 2 generations: 128 innovative, 2 redundant"),
            "{text}"
        );
        assert!(
            text.contains("repair        no repair blocks requested ahead of loss"),
            "{text}"
        );
        let stats = Stats {
            blocks_ahead: 9,
            blocks_ahead_used: 5,
            generations_spared: 2,
            ..stats
        };
        assert!(
            took(&stats, 1, Duration::ZERO)
                .contains("repair        9 repair blocks requested ahead of loss")
        );
    }
}
