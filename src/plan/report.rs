//! The text of the plan, and its keys as TOML.

use std::fmt;

use bytesize::ByteSize;

use super::Plan;
use super::estimate::{Estimate, FASTEST, WINDOW_SEGMENTS};
use super::layout::{Layout, Way};
use super::measure::CONNECTIONS;
use crate::config::Config;
use crate::object::Codec;
use crate::secret::HIDDEN;
use crate::session;
use crate::sizes::Sizes;
use crate::units::size;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, .. } = self;
        writeln!(
            f,
            "Plan for {} peers at {} each, {} % loss, segments of {}, round trips of {}, streams: \
             {}\n",
            options.peers,
            bits(options.bitrate),
            round(100.0 * options.loss),
            humantime::format_duration(options.segment),
            humantime::format_duration(options.rtt),
            options.streams
        )?;
        self.measured(f)?;
        self.segments(f)?;
        self.server(f)?;
        self.assumed(f)?;
        write!(f, "{KEYS_FOLLOW}\n\n{}", self.snippet)
    }
}

impl Plan {
    fn measured(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (encode, quic) = (&self.constants.encode, &self.constants.quic);
        writeln!(f, "Measured on this machine:")?;
        row(
            f,
            "encoding",
            format_args!(
                "{} MB/s of coded blocks on the whole device ({}, kernel {}), {} ns of CPU time \
                 per KB, n = {}, k = {}, batches of {}",
                round(encode.bytes_per_second / 1e6),
                encode.backend,
                encode.kernel,
                round(encode.cpu_per_byte * 1e12),
                self.layout.n(),
                self.layout.block_bytes(),
                encode.batch_blocks
            ),
        )?;
        row(
            f,
            "QUIC",
            format_args!(
                "{} us of CPU time per packet at the server ({} packets over loopback, \
                 {CONNECTIONS} connections, blocks per wake-up: {})",
                round(quic.cpu_per_packet * 1e6),
                quic.packets,
                quic.burst_blocks
            ),
        )?;
        row(
            f,
            "",
            format_args!(
                "{} bytes of UDP payload per byte of blocks",
                round(quic.udp_per_byte)
            ),
        )?;
        row(
            f,
            "handshake",
            format_args!(
                "{} us of CPU time at the server",
                round(quic.cpu_per_handshake * 1e6)
            ),
        )?;
        row(
            f,
            "cores",
            format_args!("{} usable by this process\n", self.constants.cores),
        )
    }

    fn segments(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout {
            shape,
            n_max,
            parts,
            way,
            reason,
            ..
        } = &self.layout;
        writeln!(f, "Segments:")?;
        row(
            f,
            "n, k",
            format_args!(
                "n_max = {n_max}, block_bytes = {}: {reason}",
                shape.block_bytes()
            ),
        )?;
        row(f, "code", format_args!("{}", self.code()))?;
        if *parts > 1 {
            row(
                f,
                "parts",
                format_args!(
                    "{parts} of at most {} (ingest.segment_max_bytes)",
                    ByteSize(shape.length())
                ),
            )?;
        }
        let of = if *parts > 1 { "a part" } else { "a segment" };
        row(
            f,
            "generations",
            format_args!(
                "{} of up to {} blocks: {of} has {} blocks for {} bytes",
                shape.generations(),
                self.layout.n(),
                shape.blocks(),
                shape.length()
            ),
        )?;
        row(
            f,
            "blocks travel",
            format_args!(
                "{}\n",
                match way {
                    Way::Datagrams => "in datagrams, one per packet",
                    Way::Streams => "on streams",
                }
            ),
        )
    }

    /// The code, and the order of its blocks.
    fn code(&self) -> String {
        let Layout {
            codec,
            is_source_first,
            ..
        } = self.layout;
        let parity = match codec {
            Codec::ReedSolomon { parity } => format!(" with {parity} parity blocks per generation"),
            Codec::Rlnc | Codec::RaptorQ | Codec::RlncQ { .. } => String::new(),
        };
        let first = if is_source_first {
            "source blocks first, then coded blocks to repair loss"
        } else {
            "coded blocks from the start"
        };
        format!("{}{parity}: {first}", codec.name())
    }

    fn server(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.estimate;
        writeln!(f, "The server:")?;
        row(
            f,
            "link",
            format_args!(
                "{} to the peers, {} packets/s",
                bits(plan.link),
                round(plan.packets)
            ),
        )?;
        row(
            f,
            "",
            format_args!(
                "{} bytes on the wire per byte of media: headers, padding, repair",
                round(plan.wire_factor)
            ),
        )?;
        row(
            f,
            "cores",
            format_args!(
                "{} in total: QUIC and sessions {}, encoding {}",
                round(plan.cores()),
                round(plan.quic_cores),
                round(plan.encode_cores)
            ),
        )?;
        row(
            f,
            "",
            format_args!(
                "the cores of this machine suffice for about {} peers",
                round(plan.peers_here.floor())
            ),
        )?;
        row(
            f,
            "encoding",
            format_args!(
                "{} blocks/s in {} full batches/s, {} of them coded, {} % of the device",
                round(plan.blocks),
                round(plan.batches),
                round(plan.coded),
                round(100.0 * plan.device_share)
            ),
        )?;
        if plan.device_share > 1.0 {
            row(
                f,
                "",
                format_args!(
                    "too much for the device: use another, a smaller n_max, or first_pass = \
                     \"systematic\""
                ),
            )?;
        }
        row(
            f,
            "ring",
            format_args!(
                "{} at least; a server here would have {} for {} connections",
                ByteSize(plan.ring_bytes),
                ByteSize(plan.ring_here),
                plan.connections_max
            ),
        )?;
        row(
            f,
            "store",
            format_args!(
                "{}, plus memory for recordings that viewers watch",
                ByteSize(plan.store_bytes)
            ),
        )?;
        match plan.device_bytes {
            Some((needed, memory)) => {
                row(
                    f,
                    "device memory",
                    format_args!("{} of {} free", ByteSize(needed), ByteSize(memory.free)),
                )?;
            }
            None => row(
                f,
                "device memory",
                format_args!("none: the CPU reads segments from the store"),
            )?,
        }
        row(
            f,
            "connections",
            format_args!("{} of memory", ByteSize(plan.peers_bytes)),
        )?;
        row(
            f,
            "cold start",
            format_args!(
                "{} s for the handshakes of all peers at once",
                round(plan.cold_start)
            ),
        )?;
        let Sizes { connections, ring } = self.sizes;
        row(
            f,
            "as configured",
            format_args!(
                "a server here has limits of {connections} connections and a ring of {}\n",
                size::exact(ring)
            ),
        )
    }

    fn assumed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Assumed, not measured:")?;
        for text in [
            "a packet of many sessions costs as much as one of QUIC alone at light load, as \
             docs/benchmarks/servers.md found".to_owned(),
            format!("a connection uses at most {} of memory", ByteSize(session::MEMORY_BYTES)),
            "handshakes use one core for each of `endpoint.sockets`, one after another".to_owned(),
            "more cores scale linearly; loopback costs as much CPU time as a network card"
                .to_owned(),
            format!(
                "the fastest peer receives at {FASTEST} times the bitrate; each coded block is for \
                 one peer (max_reuse = 1)"
            ),
            match (self.layout.is_source_first, self.layout.codec) {
                (false, _) => "every block sent is coded".to_owned(),
                (true, Codec::ReedSolomon { .. }) => {
                    "a source block costs a copy, counted as zero; parity blocks replace lost ones \
                     until they run out".to_owned()
                }
                (true, _) => "a source block costs only a copy, counted as zero".to_owned(),
            },
            format!(
                "viewers watch live: the store holds `retention` and {WINDOW_SEGMENTS} segments of \
                 each stream"
            ),
            "packets carry 1452 bytes of UDP over IPv4; the link rate excludes acknowledgements to \
             the server".to_owned(),
        ] {
            writeln!(f, "  {text}")?;
        }
        writeln!(f)
    }
}

/// The keys of the plan, with everything that a configuration needs.
pub(super) fn snippet(config: &Config, layout: &Layout, plan: &Estimate) -> String {
    let stream = config.stream.iter().next();
    let name = stream.map_or("live", |(name, _)| name);
    let directory = stream.and_then(|(_, stream)| stream.directory.as_ref());
    let (key, place) = match directory {
        Some(directory) => ("directory", directory.display().to_string()),
        None => (
            "origin",
            stream
                .and_then(|(_, stream)| stream.origin.as_ref())
                .map(ToString::to_string)
                .unwrap_or_else(|| ORIGIN.to_owned()),
        ),
    };
    // Only an origin can hide credentials.
    let hint = if place.contains(HIDDEN) {
        CREDENTIALS_HINT
    } else {
        ""
    };
    let place = toml::Value::String(place.replace(HIDDEN, CREDENTIALS));
    let code = match layout.codec {
        Codec::ReedSolomon { parity } => format!("codec = \"rs\"\nparity = {parity}\n"),
        Codec::RaptorQ => "codec = \"raptorq\"\n".to_owned(),
        Codec::RlncQ { group } => format!("codec = \"rlnc-q\"\nhash_bits = {}\n", group.bits()),
        Codec::Rlnc if layout.is_source_first => "first_pass = \"systematic\"\n".to_owned(),
        Codec::Rlnc => String::new(),
    };
    let store = plan.store_bytes.max(config.store.bytes.as_u64());
    let ring = plan.ring_bytes.max(plan.ring_here);
    let [ring, store] = [ring, store].map(|bytes| size::exact(ByteSize(bytes)));
    format!(
        "[endpoint]\nconnections_max = {}\n\n[store]\nbytes = \"{store}\"\n\n[encoder]\n\
         batch_blocks_max = {}\n\n[ring]\nbytes = \"{ring}\"\n\n\
         [stream.{name}]\n{key} = {place}{hint}\n{code}n_max = {}\ngenerations_min = {}\n\
         block_bytes = {}\n",
        plan.connections_max,
        config.encoder.batch_blocks_max,
        layout.n_max,
        layout.generations_min,
        layout.block_bytes()
    )
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(f, "  {name:<15}{value}")
}

fn bits(rate: f64) -> String {
    let (divisor, unit) = UNITS
        .into_iter()
        .find(|(divisor, _)| rate >= *divisor)
        .unwrap_or((1.0, "bit/s"));
    format!("{} {unit}", round(rate / divisor))
}

/// Three digits, or all before the decimal point.
fn round(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.01.. => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

const KEYS_FOLLOW: &str =
    "Keys to set, as a complete configuration (larger configured values are kept):";
const UNITS: [(f64, &str); 3] = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")];
/// The origin of a stream that is not configured.
const ORIGIN: &str = "http://127.0.0.1:8080/hls/";
/// The placeholder for hidden credentials.
const CREDENTIALS: &str = "USER:PASSWORD";
const CREDENTIALS_HINT: &str = " # insert the stream's user and password";

#[cfg(test)]
mod tests {
    use super::super::estimate::tests::estimate;
    use super::super::tests::OPTIONS;
    use super::*;
    use crate::stream;

    /// Loaded as it is, it tells what is missing if the origin refuses.
    #[test]
    fn an_origins_credentials_are_to_be_put_in() {
        let mut config = Config::default();
        let origin = Some("http://me:hunter2@origin/hls/".into());
        config.stream.insert(
            "live".into(),
            stream::Config {
                origin,
                n_max: 64,
                ..stream::Config::default()
            },
        );
        let layout = Layout::choose(&OPTIONS, &config).unwrap();
        let text = snippet(&config, &layout, &estimate(&OPTIONS));
        let stream: stream::Config =
            toml::from_str::<toml::Table>(&text).unwrap()["stream"]["live"]
                .clone()
                .try_into()
                .unwrap();
        assert_eq!(
            stream.origin.unwrap().expose(),
            "http://USER:PASSWORD@origin/hls/"
        );
        assert!(
            text.contains("insert the stream's user and password"),
            "{text}"
        );
        assert_eq!(
            (stream.n_max, stream.generations_min),
            (64, 32),
            "as configured, though segments are shorter"
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0251, "0.025"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (12_345.6, "12346"),
            (1e-4, "1.00e-4"),
        ] {
            assert_eq!(round(value), text);
        }
        assert_eq!(
            [bits(768e3), bits(7.68e9), bits(5.0)],
            ["768 kbit/s", "7.68 Gbit/s", "5.00 bit/s"]
        );
    }
}
