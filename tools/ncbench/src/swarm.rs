//! A load generator: many viewers of one stream, each with a connection and a playout clock of its
//! own.
//!
//! Viewers join at a rate, and leave and seek by chance, drawn from a seed. Each plays segment
//! after segment: it requests a segment when its time comes, and counts it as late if it cannot be
//! decoded two durations later. A share of the viewers decodes and verifies every block; the others
//! keep only the coefficients, whose rank says that the blocks *would* decode.
//!
//! Threads share nothing: each has its sockets, a runtime and its part of the viewers.

mod clock;
mod lossy;
mod person;
mod plain;
mod playback;
mod report;
mod totals;
mod viewer;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use ncs_gf::Kernels;
use ncserverd::endpoint::{INITIAL_RTT, udp_socket};
use ncserverd::object::Shape;
use ncserverd::peer::playlist::{self, Media};
use ncserverd::peer::{self, Client};
use ncserverd::tls::{self, Trust};
use ncserverd::wire::message::{Accept, Codecs, Credential, Hello, Message};
use quinn::{Endpoint, EndpointConfig, Runtime as _, TokioRuntime, TransportConfig, VarInt};
use tokio::sync::watch;

use clock::Item;
use lossy::Lossy;
pub use plain::{Config as PlainConfig, serve as serve_plain};
pub use report::{Asked, Line, Report};
use totals::Totals;
pub use totals::{Percentiles, Snapshot};
use viewer::Shard;

/// Options of a swarm.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Number of viewers
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000),
    )]
    pub viewers: u64,
    /// Viewers that join per second
    #[arg(long, value_name = "RATE", default_value_t = 500.0, value_parser = parse_positive)]
    pub join_rate: f64,
    /// Duration of the run after all viewers have joined
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = humantime::parse_duration,
    )]
    pub time: Duration,
    /// Play at this rate in bits per second, whatever the playlist says; required if PATH is not a
    /// playlist
    #[arg(long, value_name = "RATE", value_parser = parse_positive)]
    pub bitrate: Option<f64>,
    /// Mean time after which a viewer leaves and joins again
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub stay: Option<Duration>,
    /// Mean time after which a viewer seeks
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub seek: Option<Duration>,
    /// Start every viewer at the beginning instead of a random position
    #[arg(long)]
    pub from_start: bool,
    /// Share of the viewers that decode and verify everything, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = parse_share)]
    pub verify: f64,
    /// Accept systematic blocks, too, if the server sends them
    #[arg(long)]
    pub systematic: bool,
    /// Accept blocks in datagrams
    #[arg(long)]
    pub datagrams: bool,
    /// Drop this share of incoming packets, 0 to 1, independently of each other
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = parse_share)]
    pub loss: f64,
    /// Threads, each with its own sockets [default: one per processor]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<NonZeroUsize>,
    /// Sockets of each thread, over which its viewers are spread
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pub sockets: NonZeroUsize,
    /// Seed of all random choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Kind of server to load
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub against: Against,
    /// Segment size with --against plain, which has no playlist
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    pub plain_segment: ByteSize,
    /// Fail if less than this share of the viewers is served, or of what they would play is played
    /// in time, 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub require: Option<f64>,
    /// Write the results to this file as JSON, - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Kinds of server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// A server or a relay.
    #[default]
    Coded,
    /// `ncbench plain`: the same bytes on plain QUIC streams, for comparison.
    Plain,
}

/// Why there is no swarm.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is to be played cannot be had.
    #[error("{0}")]
    Peer(#[from] peer::Error),
    /// It is not what can be played.
    #[error("{0}")]
    Program(&'static str),
    /// The server's name.
    #[error("no connection: {0}")]
    Name(String),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// Sockets and threads.
    #[error("a socket or thread of the swarm failed: {0}")]
    Thread(#[from] std::io::Error),
    /// The report.
    #[error("cannot write {0}: {1}")]
    Write(String, #[source] std::io::Error),
}

/// What is played.
#[derive(Debug, Clone)]
enum Program {
    /// These, from any of them on, and from the beginning again.
    Fixed(Arc<[Item]>),
    /// What the playlist has at its end, as it grows.
    Live { path: String, items: Arc<[Item]> },
}

/// What all viewers share.
#[derive(Debug)]
struct Plan {
    begin: Instant,
    against: Against,
    address: SocketAddr,
    host: String,
    quic: quinn::ClientConfig,
    /// HELLO, and AUTH where there is a token.
    greeting: Bytes,
    program: Program,
    join_rate: f64,
    stay: Option<Duration>,
    seek: Option<Duration>,
    from_start: bool,
    verify: f64,
    bitrate: Option<f64>,
    loss: f64,
    sockets: usize,
    seed: u64,
    accept: Accept,
    kernels: Kernels,
}

/// Runs a swarm until its time is over, or until `stop` says so.
pub async fn run(
    options: &Options,
    source: peer::Config,
    path: Option<&str>,
    stop: impl Future<Output = ()>,
) -> Result<Report, Error> {
    let server = source
        .servers
        .first()
        .cloned()
        .ok_or(Error::Program("no server given"))?;
    let address = viewer::resolve(&server.host, server.port)
        .await
        .map_err(Error::Name)?;
    let trust = server.fingerprint.map_or(source.trust, Trust::Fingerprint);
    let crypto = tls::client_config(&trust, source.certificate.as_ref())?;
    let (program, greeting) = match options.against {
        Against::Plain => {
            let bitrate = options.bitrate.ok_or(Error::Program(
                "plain streams have no playlist: set --bitrate",
            ))?;
            let end = Some(options.plain_segment.as_u64().max(1));
            let duration =
                Duration::from_secs_f64(options.plain_segment.as_u64() as f64 * 8.0 / bitrate);
            (
                Program::Fixed(
                    [Item {
                        path: String::new(),
                        offset: 0,
                        end,
                        duration,
                    }]
                    .into(),
                ),
                Bytes::new(),
            )
        }
        Against::Coded => {
            let path = path.ok_or(Error::Program(
                "PATH is missing: name a media playlist or a large file",
            ))?;
            let client = Client::connect(peer::Config {
                neighbours_max: 0,
                ..source.clone()
            })
            .await?;
            let mut greeting = Vec::new();
            let most = Hello::defaults();
            let hello = Hello {
                // Its viewers keep no payloads, so they cannot test them.
                codecs: Codecs {
                    gfq: false,
                    ..Codecs::ALL
                },
                n_max: Shape::N_LIMIT,
                block_bytes_max: Shape::BLOCK_BYTES_MAX,
                segment_bytes_max: Shape::LENGTH_MAX,
                ..most
            };
            Message::Hello(Hello {
                agent: concat!("ncpeer-swarm/", env!("CARGO_PKG_VERSION")).into(),
                ..hello
            })
            .encode(&mut greeting);
            if let Some(token) = source.token.as_ref().and_then(|token| token.read().ok()) {
                Message::Auth(Credential::Token(token)).encode(&mut greeting);
            }
            (
                read_program(&client, path, options.bitrate).await?,
                greeting.into(),
            )
        }
    };
    let mut quic = quinn::ClientConfig::new(Arc::new(crypto));
    quic.transport_config(Arc::new(transport(options.datagrams)));
    let plan = Arc::new(Plan {
        begin: Instant::now(),
        against: options.against,
        address,
        host: server.host,
        quic,
        greeting,
        program,
        join_rate: options.join_rate,
        stay: options.stay,
        seek: options.seek,
        from_start: options.from_start,
        verify: options.verify,
        bitrate: options.bitrate,
        loss: options.loss,
        sockets: options.sockets.get(),
        seed: options.seed,
        accept: Accept {
            coded: true,
            systematic: options.systematic,
            datagrams: options.datagrams,
            recoded: true,
        },
        kernels: Kernels::detect(),
    });
    let threads = options
        .threads
        .or_else(|| std::thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get);
    let (end, over) = watch::channel(false);
    let present = Arc::new(AtomicU64::new(0));
    let mut totals = Vec::new();
    let mut running = Vec::new();
    for thread in 0..threads as u64 {
        let counted = Arc::new(Totals::default());
        totals.push(Arc::clone(&counted));
        let (plan, over, present) = (Arc::clone(&plan), over.clone(), Arc::clone(&present));
        let viewers = (thread..options.viewers).step_by(threads);
        let body = move || part(&plan, thread, counted, present, over, viewers);
        running.push(
            std::thread::Builder::new()
                .name(format!("swarm-{thread}"))
                .spawn(body)?,
        );
    }
    let time = Duration::from_secs_f64(options.viewers as f64 / options.join_rate) + options.time;
    let report = report::watch(options, (&totals, &present), plan.begin, time, stop).await;
    end.send_replace(true);
    let ended = tokio::task::spawn_blocking(move || {
        running.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    });
    ended
        .await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
    let report = report
        .map_err(|error| Error::Write("standard output".to_owned(), error))?
        .close(&totals);
    if let Some(file) = &options.json {
        report
            .write(file)
            .map_err(|error| Error::Write(file.display().to_string(), error))?;
    }
    Ok(report)
}

/// What one of the threads does.
fn part(
    plan: &Arc<Plan>,
    thread: u64,
    totals: Arc<Totals>,
    present: Arc<AtomicU64>,
    over: watch::Receiver<bool>,
    viewers: impl Iterator<Item = u64>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let set = tokio::task::LocalSet::new();
    set.block_on(&runtime, async {
        let endpoints = (0..plan.sockets as u64)
            .map(|socket| open(plan, thread.wrapping_add(socket << 32)))
            .collect::<std::io::Result<Vec<Endpoint>>>()?;
        let shard = std::rc::Rc::new(Shard {
            plan: Arc::clone(plan),
            totals,
            present,
        });
        let mut views = Vec::new();
        for (number, endpoint) in viewers.zip(endpoints.iter().cycle()) {
            let (shard, over) = (std::rc::Rc::clone(&shard), over.clone());
            let endpoint = endpoint.clone();
            views.push(tokio::task::spawn_local(async move {
                viewer::view(&shard, &endpoint, number, over).await;
            }));
        }
        for view in views {
            view.await
                .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
        let _ = tokio::time::timeout(CLOSE_MAX, async {
            for endpoint in &endpoints {
                endpoint.wait_idle().await;
            }
        })
        .await;
        Ok(())
    })
}

/// A socket of a thread, on its runtime. Losses are drawn by `lane`.
fn open(plan: &Plan, lane: u64) -> std::io::Result<Endpoint> {
    let any: SocketAddr = if plan.address.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = udp_socket(any, SOCKET_BUFFER, SOCKET_BUFFER)?;
    let mut socket = TokioRuntime.wrap_udp_socket(socket)?;
    if plan.loss > 0.0 {
        let seed = plan.seed.wrapping_add(lane);
        socket = Arc::new(Lossy::new(socket, plan.loss, seed));
    }
    Endpoint::new_with_abstract_socket(
        EndpointConfig::default(),
        None,
        socket,
        Arc::new(TokioRuntime),
    )
}

/// Finds out what there is to play.
async fn read_program(client: &Client, path: &str, bitrate: Option<f64>) -> Result<Program, Error> {
    let meta = client.stat(path, 0, None).await?;
    if meta.mutable {
        let bytes = client.open(path, None).await?.read_to_end().await?;
        if !playlist::is_playlist(&bytes) {
            return Err(Error::Program(
                "PATH is neither an HLS playlist nor a file sent in coded blocks",
            ));
        }
        let (items, ended) = items(path, &bytes).ok_or(Error::Program(
            "PATH is a master playlist: name the media playlist of one rendition",
        ))?;
        if items.is_empty() {
            return Err(Error::Program("the playlist has no segments"));
        }
        let items = items.into();
        return Ok(if ended {
            Program::Fixed(items)
        } else {
            Program::Live {
                path: path.to_owned(),
                items,
            }
        });
    }
    let bitrate = bitrate.ok_or(Error::Program(
        "PATH is not a playlist with durations: set --bitrate",
    ))?;
    let length = meta
        .object_length
        .ok_or(Error::Program("the length of PATH is unknown"))?;
    let part = meta.length.max(1);
    let items = (0..length.div_ceil(part)).map(|index| {
        let (offset, bytes) = (index * part, part.min(length - index * part));
        // Whatever part covers the first of these bytes.
        Item {
            path: path.to_owned(),
            offset,
            end: Some(offset + 1),
            duration: Duration::from_secs_f64(bytes as f64 * 8.0 / bitrate),
        }
    });
    Ok(Program::Fixed(items.collect()))
}

/// The segments of a media playlist, and whether it has ended.
fn items(path: &str, bytes: &[u8]) -> Option<(Vec<Item>, bool)> {
    let media = Media::parse(bytes)?;
    let mut items = Vec::with_capacity(media.segments.len());
    for (segment, duration) in media.segments.iter().zip(&media.durations) {
        let (offset, end) = segment
            .range
            .as_ref()
            .map_or((0, None), |range| (range.start, Some(range.end)));
        items.push(Item {
            path: playlist::resolve(path, &segment.uri)?,
            offset,
            end,
            duration: *duration,
        });
    }
    Some((items, media.ended))
}

fn transport(datagrams: bool) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.initial_rtt(INITIAL_RTT);
    transport.max_idle_timeout(Some(VarInt::from_u32(30_000).into()));
    transport.keep_alive_interval(Some(Duration::from_secs(8)));
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    transport.max_concurrent_uni_streams(VarInt::from_u32(8));
    transport.stream_receive_window(VarInt::from_u32(1 << 20));
    transport.receive_window(VarInt::from_u32(2 << 20));
    transport.send_window(64 << 10);
    // What viewers send is short: larger packets are of no use to them, and probes cost the server
    // time.
    transport.mtu_discovery_config(None);
    transport.datagram_receive_buffer_size(datagrams.then_some(1 << 20));
    transport
}

fn parse_positive(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .map_err(|_| format!("`{text}` is not a number"))?;
    if number > 0.0 && f64::is_finite(number) {
        Ok(number)
    } else {
        Err("expected a number above 0".to_owned())
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .map_err(|_| format!("`{text}` is not a number"))?;
    if (0.0..=1.0).contains(&number) {
        Ok(number)
    } else {
        Err("expected a number from 0 to 1".to_owned())
    }
}

const SOCKET_BUFFER: ByteSize = ByteSize::mib(4);
/// How long the last packets may take.
const CLOSE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    pub(super) struct Line {
        #[command(flatten)]
        pub(super) options: Options,
    }

    #[test]
    fn a_playlist_is_what_there_is_to_play() {
        let list = b"#EXTM3U\n#EXT-X-TARGETDURATION:6\n#EXTINF:5.5,\na.ts?x=1\n#EXTINF:4,\n#EXT-X-BYTERANGE:10@20\n../b.ts\n#EXT-X-ENDLIST\n";
        let (found, ended) = items("/live/one/list.m3u8", list).unwrap();
        let item = |path: &str, offset, end, duration| Item {
            path: path.to_owned(),
            offset,
            end,
            duration: Duration::from_secs_f64(duration),
        };
        assert!(ended);
        assert_eq!(
            found,
            [
                item("/live/one/a.ts?x=1", 0, None, 5.5),
                item("/live/b.ts", 20, Some(30), 4.0)
            ]
        );
        assert_eq!(
            items("/live/x", b"#EXTM3U\n#EXTINF:4,\nhttp://elsewhere/b.ts\n"),
            None
        );
        assert_eq!(items("/live/x", b"no list"), None);
    }

    #[test]
    fn numbers_are_checked_where_they_are_given() {
        assert_eq!(parse_positive("768000"), Ok(768_000.0));
        assert_eq!(parse_share("0.01"), Ok(0.01));
        for text in ["0", "-1", "NaN", "inf", "x"] {
            assert!(parse_positive(text).is_err(), "{text}");
        }
        assert!(parse_share("1.1").is_err() && parse_share("NaN").is_err());
    }
}
