//! The whole system in one process: origin, server, lossy paths and peers, and a comparison of the
//! output with the input.
//!
//! Everything is on loopback, on ports chosen by the system. Blocks are sent in datagrams, which
//! QUIC does not retransmit: lost ones are replaced by further coded blocks, which the table at the
//! end counts. Each peer has its own lossy path, seeded by its number, and plays the clip like a
//! player: master playlist, media playlist, then one segment after another with the next one
//! prefetched. On a terminal, peers fetch at the clip's pace, over paths with little more capacity.

mod screen;
mod table;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, try_join_all};
use serde_json::json;

use self::screen::{Line, Screen};
use super::clip;
use super::lossy::{self, Direction, Link};
use super::origin::Origin;
use super::plain::{self, Plain};
use crate::admin::{self, Facts};
use crate::pages::{self, Index, Site};
use crate::peer::gateway::{self, Gateway};
use crate::peer::playlist::{self, Media};
use crate::peer::{self, Client};
use crate::server::{self, Server};
use crate::telemetry::{self, Readiness};
use crate::tls::{self, ServerIdentity, Trust};
use crate::web::Origins;
use crate::{config, stream};

pub use table::Row;

/// The options of a demo.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Concurrent peers.
    pub peers: u16,
    /// Probability of losing a datagram, each way, 0 to 1.
    pub loss: f64,
    /// The delay of a datagram, each way.
    pub delay: Duration,
    /// The seed of the lossy paths.
    pub seed: u64,
    /// Whether to leave a gateway running at the end, behind another lossy path, until interrupted.
    pub keep: bool,
    /// The address of that gateway, or of the page.
    pub gateway: SocketAddr,
    /// Whether peers fetch at the clip's pace, over paths with little more capacity; otherwise at
    /// full speed.
    pub paced: bool,
    /// Whether to show the clip in a page instead, beside a plain stream, until interrupted.
    pub web: bool,
    /// Whether to suppress progress and the table.
    pub quiet: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            peers: 3,
            loss: 0.1,
            delay: Duration::from_millis(10),
            seed: 1,
            keep: false,
            web: false,
            paced: false,
            gateway: gateway::Config::default().listen,
            quiet: false,
        }
    }
}

/// The results of a demo.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// One row per peer.
    pub rows: Vec<Row>,
}

impl Report {
    /// Whether every peer received every segment correctly.
    pub fn is_complete(&self) -> bool {
        self.rows
            .iter()
            .all(|row| row.segments == row.segments_expected)
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The embedded origin or a lossy path failed.
    #[error("cannot open a port on loopback: {0}")]
    Loopback(#[from] io::Error),
    /// The server failed.
    #[error("the server did not start: {0}")]
    Server(#[from] server::Error),
    /// A peer failed.
    #[error("peer {0}: {1}")]
    Peer(u16, #[source] peer::Error),
    /// A peer received a playlist other than the clip's.
    #[error("peer {0} received a playlist that differs from the clip's")]
    Playlist(u16),
    /// Standard output failed.
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),
    /// The gateway of `keep` failed.
    #[error("the gateway did not start: {0}")]
    Gateway(#[from] gateway::Error),
    /// The page of `web` failed.
    #[error("the page: {0}")]
    Page(#[from] pages::Error),
    /// The server of the plain stream failed.
    #[error("the plain stream: {0}")]
    Plain(#[from] plain::Error),
}

/// Runs the demo and prints the table. [`is_complete`](Report::is_complete) of the report tells
/// whether all is well.
pub fn run(options: Options) -> BoxFuture<'static, Result<Report, Error>> {
    // Boxed: the body of an async function is compiled in each crate that awaits it.
    Box::pin(show(options))
}

async fn show(options: Options) -> Result<Report, Error> {
    let origin = Origin::of_clip().await?;
    let screen = Screen::start(options.quiet);
    if options.web {
        page(&options, &origin, &screen).await?;
        return Ok(Report { rows: Vec::new() });
    }
    let server = Loopback::start(&origin, Origins::default()).await?;
    screen.say(&format!(
        "origin  {}\nserver  ncs://{}\nmetrics http://{}/metrics\n\
         {} peers, each behind {:.0} % loss and {} ms each way\n",
        origin.url(),
        server.address,
        server.metrics.address(),
        options.peers,
        options.loss * 100.0,
        options.delay.as_millis(),
    ))?;
    let peers = (1..=options.peers).map(|number| Peer::start(number, &options, &server));
    let peers = peers.collect::<Result<Vec<_>, Error>>()?;
    let rows = try_join_all(peers.into_iter().map(|peer| peer.play(screen.line()))).await?;
    let report = Report { rows };
    screen.end(&report.to_string())?;
    if options.keep {
        keep(&options, &server, &screen).await?;
    }
    server.end().await;
    Ok(report)
}

/// The server with everything that a process of its own would have, on loopback.
struct Loopback {
    server: Server,
    metrics: admin::Listener,
    address: SocketAddr,
    trust: Trust,
}

impl Loopback {
    /// Pages of `origins` may connect.
    async fn start(origin: &Origin, origins: Origins) -> Result<Self, Error> {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut config = config::Config::default();
        config.endpoint.listen = vec![free];
        config.telemetry.listen = free;
        config.web.origins = origins;
        // A block with its header fits the first datagram, even with an explicit vector.
        let stream = stream::Config {
            origin: Some(origin.url().into()),
            n_max: 64,
            block_bytes: 1088,
            ..stream::Config::default()
        };
        config.stream.insert(STREAM.into(), stream);
        let identity = ServerIdentity::ephemeral().map_err(server::Error::from)?;
        let trust = Trust::Fingerprint(identity.fingerprint());
        let registry = telemetry::registry().map_err(server::Error::from)?;
        let readiness = Readiness::new();
        let telemetry = config.telemetry.clone();
        let server = Server::start(config, identity, &registry, readiness.clone()).await?;
        let metrics = admin::serve(
            &telemetry,
            Facts::new(registry, readiness),
            server.supervisor(),
        )
        .map_err(server::Error::from)?;
        let address = server.addresses().first().copied().unwrap_or(free);
        Ok(Self {
            server,
            metrics,
            address,
            trust,
        })
    }

    async fn end(self) {
        self.server.drain(DRAIN).await;
    }
}

/// One peer and its path to the server.
struct Peer {
    number: u16,
    link: Link,
    trust: Trust,
    paced: bool,
}

/// The path of the peer with this number to a server.
fn link(options: &Options, number: u16, server: SocketAddr) -> io::Result<Link> {
    let direction = Direction {
        loss: options.loss,
        delay: options.delay,
        rate: options.paced.then_some(PACED_BYTES_PER_SECOND),
        ..Direction::default()
    };
    Link::start(lossy::Config {
        server,
        seed: options.seed.wrapping_mul(1000).wrapping_add(number.into()),
        to_server: direction,
        to_client: direction,
    })
}

impl Peer {
    fn start(number: u16, options: &Options, server: &Loopback) -> Result<Self, Error> {
        Ok(Self {
            number,
            link: link(options, number, server.address)?,
            trust: server.trust,
            paced: options.paced,
        })
    }

    async fn connect(&self) -> Result<Client, Error> {
        let at = self.link.address();
        let server = peer::Server {
            host: at.ip().to_string(),
            port: at.port(),
            fingerprint: None,
        };
        let config = peer::Config::new(server, self.trust);
        Client::connect(config)
            .await
            .map_err(|error| Error::Peer(self.number, error))
    }

    async fn play(self, line: Line) -> Result<Row, Error> {
        let begun = Instant::now();
        let client = self.connect().await?;
        let watching = line.watch(self.number, client.stats());
        let master = self.text(&client, clip::MASTER).await?;
        let playlist = playlist::uris(&master)
            .next()
            .ok_or(Error::Playlist(self.number))?;
        let text = self.text(&client, playlist).await?;
        let media = Media::parse(text.as_bytes()).ok_or(Error::Playlist(self.number))?;
        let names = media
            .maps
            .iter()
            .chain(&media.segments)
            .map(|file| file.uri.as_str())
            .collect::<Vec<_>>();
        let (mut segments, mut bytes) = (0, 0);
        for (place, name) in names.iter().enumerate() {
            watching.at(place + 1, names.len()).map_err(Error::Output)?;
            if self.paced {
                tokio::time::sleep_until((begun + due(&media, place)).into()).await;
            }
            if let Some(next) = names.get(place + 1) {
                client.prefetch(&path(next), None);
            }
            let got = self.fetch(&client, name).await?;
            bytes += got.len() as u64;
            segments += usize::from(
                clip::segments().any(|file| file.name == *name && is_same(&got, file.bytes)),
            );
        }
        let time = begun.elapsed();
        drop(watching);
        tokio::time::sleep(LAST_STATS).await;
        let stats = client.stats().borrow().clone();
        Ok(Row::new(
            self.number,
            segments,
            clip::segments().count(),
            bytes,
            &stats,
            time,
        ))
    }

    async fn text(&self, client: &Client, name: &str) -> Result<String, Error> {
        let bytes = self.fetch(client, name).await?;
        String::from_utf8(bytes).map_err(|_| Error::Playlist(self.number))
    }

    async fn fetch(&self, client: &Client, name: &str) -> Result<Vec<u8>, Error> {
        let failed = |error| Error::Peer(self.number, error);
        client
            .open(&path(name), None)
            .await
            .map_err(failed)?
            .read_to_end()
            .await
            .map_err(failed)
    }
}

/// When the file at this place is needed, at the clip's pace: first the maps, then the segments,
/// each after the playing time of the segments before it.
fn due(media: &Media, place: usize) -> Duration {
    media
        .durations
        .iter()
        .take(place.saturating_sub(media.maps.len()))
        .sum()
}

/// Compares hashes, as everything here does.
fn is_same(got: &[u8], origin: &[u8]) -> bool {
    blake3::hash(got) == blake3::hash(origin)
}

/// The path of a file of the clip, at the server and at the gateway.
fn path(name: &str) -> String {
    format!("/{STREAM}/{name}")
}

/// Serves a page that plays the clip twice, until interrupted: from coded blocks, and from a plain
/// stream over a path of the same kind.
async fn page(options: &Options, origin: &Origin, screen: &Screen) -> Result<(), Error> {
    let site = Arc::new(Site::bind(options.gateway, &tls::Config::default())?);
    let server = Loopback::start(origin, site.origins()).await?;
    let plain = Plain::start(&site.origins(), PREFIX)?;
    let coded = link(options, 0, server.address)?;
    let beside = link(options, 0, plain.address())?;
    let (hashes, plain_hashes) = (server.server.page_hashes(), plain.hashes().to_vec());
    let loss = options.loss;
    let facts = move || {
        json!({
            "coded": {"url": format!("https://{}", coded.address()), "hashes": hashes},
            "plain": {
                "url": format!("https://{}", beside.address()),
                "hashes": plain_hashes,
                "lost": beside.to_client().dropped,
            },
            "path": path(clip::MASTER),
            "loss": loss,
            "bytes": clip::segments().map(|file| file.bytes.len()).sum::<usize>(),
        })
    };
    let url = site.url();
    let serving = tokio::spawn(site.serve(Index::Demo, Arc::new(facts)));
    let said = screen.say(&format!(
        "Open this page, until Ctrl-C: a clip through {:.0} % loss and {} ms each way,\nfrom coded \
         blocks, and beside them from a plain stream:\n  {url}\n",
        options.loss * 100.0,
        options.delay.as_millis(),
    ));
    if said.is_ok() {
        let _ = tokio::signal::ctrl_c().await;
    }
    serving.abort();
    server.end().await;
    said
}

/// Runs a gateway for players, behind another lossy path.
async fn keep(options: &Options, server: &Loopback, screen: &Screen) -> Result<(), Error> {
    let peer = Peer::start(0, options, server)?;
    let client = peer.connect().await?;
    let gateway = Gateway::start(
        gateway::Config {
            listen: options.gateway,
            ..Default::default()
        },
        client,
    )
    .await?;
    let url = gateway.url(&path(clip::MASTER));
    let said = screen.say(&format!(
        "\nThe stream through {:.0} % loss, until Ctrl-C:\n  ffplay {url}\n  vlc {url}\n  browser: \
         {}?play={}\n",
        options.loss * 100.0,
        gateway.url("/"),
        path(clip::MASTER),
    ));
    if said.is_ok() {
        let _ = tokio::signal::ctrl_c().await;
    }
    gateway.stop(Duration::from_secs(1)).await;
    said
}

const STREAM: &str = "demo";
/// What precedes a file's name in [`path`].
const PREFIX: &str = "/demo/";
/// The rate of each path at the clip's pace: one and a half times the clip's, for losses and
/// headers.
const PACED_BYTES_PER_SECOND: NonZeroU32 = NonZeroU32::new(60_000).expect("more than none");
/// The time in which statistics catch up.
const LAST_STATS: Duration = Duration::from_millis(200);
/// How long peers may take to leave.
const DRAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_clips_pace_the_demo_lasts_ten_seconds() {
        let playlist = clip::FILES
            .iter()
            .find(|file| file.name == clip::PLAYLIST)
            .unwrap();
        let media = Media::parse(playlist.bytes).unwrap();
        let places = media.maps.len() + media.segments.len();
        let due = (0..places)
            .map(|place| due(&media, place))
            .collect::<Vec<_>>();
        assert_eq!(
            due[..3],
            [Duration::ZERO, Duration::ZERO, Duration::from_secs(2)]
        );
        assert!(
            due.is_sorted() && due[places - 1] >= Duration::from_secs(10),
            "{due:?}"
        );
    }
}
