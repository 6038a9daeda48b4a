//! A peer that serves: it passes on what it fetches, recoded, before a segment is complete.
//!
//! To its own peers a relay is a server. Sessions, ring and wire are the server's
//! ([`ncs_serve::session`], [`ncs_serve::ring`]). In place of publishing points, store and encoder
//! it has [`Holdings`], the rows and segments that it holds, and [`Recoder`], which makes blocks of
//! them. It asks its own sources about a path, taking turns between sessions, and passes their
//! answer on. It fetches the segment of the answer at once, because the asking peer will soon
//! request blocks: if each relay of a chain waited for that request, the first links would idle
//! from the last block of one segment until the request for the next had travelled the whole chain.
//! Until a segment is complete and verified, the relay sends combinations of the rows received so
//! far, with explicit vectors, and gives no session more blocks than it has rows. After that it
//! sends what a server sends: source blocks, and coded ones with seeds. Rows are tested by
//! checksums of the first source. Until then, rows of two sources are never mixed, and blocks made
//! of them are marked as unverified.
//!
//! A viewer that serves others is a relay whose own program reads too. It serves the segments that
//! it reads, to peers that its servers send with a ticket, and answers no other question.
//!
//! When memory is full, the least recently used segments go first. If a requested segment does not
//! fit beside those in use, its blocks wait until it does, or until their deadline. A fetch of a
//! segment whose blocks nobody has requested yet is charged to the session, address and token that
//! asked for its path, and gives way to requested segments.

mod fetcher;
mod holdings;
mod metrics;
mod recoder;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use futures_util::future::BoxFuture;
use ncs_net::endpoint::{self, Departure, Ports};
use ncs_net::machine::Machine;
use ncs_net::supervise::{self, ServerPart, Supervisor};
use ncs_net::telemetry::Readiness;
use ncs_net::tls::ServerIdentity;
use ncs_proto::object::{AskedBy, Body, Refusal, RefusalCode, Resolved, SegmentKey};
use ncs_proto::wire::message::{Delivery, Meta};
use ncs_serve::admission::{self, Admission, Tickets};
use ncs_serve::aside::Aside;
use ncs_serve::directory::{self, Directory};
use ncs_serve::fleet::Fleet;
use ncs_serve::front::{self, Front, FrontParts, ROOM_LOOK};
use ncs_serve::ring::{self, Ring};
use ncs_serve::session::{self, Ask, Ledgers};
use ncs_serve::sizes::{Load, Sizes};
use ncs_serve::turns::{self, Gate, Place, Refused, Wanted};
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;

use crate::Client;
use fetcher::Fetcher;
use holdings::{Holdings, Keeper};
use recoder::Recoder;

pub use metrics::Metrics;
pub use ncs_proto::rows::{Heap, News, Plan, Rows, plan};

/// The number of announcements that a slow session may fall behind.
const NEWS_KEPT: usize = 64;
/// The interval of reports to servers about the segments held.
pub const TELL_EVERY: Duration = Duration::from_millis(250);
/// When to ask again for hashes that have not arrived.
const HASHES_AFTER: Duration = Duration::from_millis(150);
/// Questions to sources. A server usually allows a session 32 unanswered ones, and fetches need
/// some of them.
const QUESTIONS: turns::Limits = turns::Limits {
    places: 32,
    queued: session::ASKS_QUEUED,
    queued_by_session: 32,
};
/// The ring of a relay, which often runs beside other programs of its user's.
const RING: ByteSize = ByteSize::mib(64);
/// The size of a slot that the ring must hold many of: a relay does not know the blocks of its
/// sources' streams. These are twice as large as the largest that are usual.
const SLOT_BYTES: u64 = 32 << 10;
/// When to ask again after a temporary failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The configuration of a relay, apart from its sources.
#[derive(Debug, Clone)]
pub struct Config {
    /// Sockets.
    pub endpoint: endpoint::Config,
    /// The peers that are admitted.
    pub admission: admission::Config,
    /// Limits of its peers.
    pub session: session::Config,
    /// Memory for blocks in flight.
    pub ring: ring::Config,
    /// Memory for segments, complete or not.
    pub bytes: ByteSize,
    /// Whether it reports to its servers what it holds, so that they send peers to it.
    pub offers: bool,
    /// Whether it serves only what it fetches for its own program. Otherwise it fetches what its
    /// peers ask for.
    pub own_only: bool,
    /// Whether it starts before any source answers, and waits for one.
    pub waits: bool,
    /// The maximum number of peers served at a time, where tickets admit them.
    pub served_max: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        let listen = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 4444))];
        Self {
            endpoint: endpoint::Config {
                listen,
                ..endpoint::Config::default()
            },
            admission: admission::Config::default(),
            session: session::Config::default(),
            ring: ring::Config {
                bytes: ring::Capacity::Bytes(RING),
                ..ring::Config::default()
            },
            bytes: ByteSize::mib(256),
            offers: false,
            own_only: false,
            waits: false,
            served_max: None,
        }
    }
}

impl Config {
    /// The default configuration at these addresses.
    pub fn listening(listen: Vec<SocketAddr>) -> Self {
        Self {
            endpoint: endpoint::Config {
                listen,
                ..endpoint::Config::default()
            },
            ..Self::default()
        }
    }
}

/// Why a relay does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No source answers.
    #[error(transparent)]
    Peer(#[from] crate::Error),
    /// Keys or authorities are invalid, or missing.
    #[error("admission: {0}")]
    Admission(#[from] admission::Error),
    /// A socket cannot be opened.
    #[error("endpoint: {0}")]
    Endpoint(#[from] endpoint::Error),
    /// A series cannot be registered.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The recoder's thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}

impl From<front::Error> for Error {
    fn from(error: front::Error) -> Self {
        match error {
            front::Error::Endpoint(error) => error.into(),
            front::Error::Metrics(error) => error.into(),
        }
    }
}

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    /// The first field, so that it is dropped before the parts end.
    closing: supervise::Closing,
    front: Front,
    client: Client,
    fault: Option<crate::Error>,
    supervisor: Supervisor,
    tasks: Vec<JoinHandle<()>>,
    _aside: Aside,
}

impl Relay {
    /// Connects to its sources and starts every part; returns when peers can connect. Must be
    /// called within a tokio runtime.
    pub fn start<'a>(
        config: Config,
        sources: crate::Config,
        identity: ServerIdentity,
        registry: &'a Registry,
        readiness: &'a Readiness,
    ) -> BoxFuture<'a, Result<Self, Error>> {
        // Boxed: the body of an async function is compiled in each crate that awaits it.
        Box::pin(Self::open(config, sources, identity, registry, readiness))
    }

    async fn open(
        mut config: Config,
        sources: crate::Config,
        identity: ServerIdentity,
        registry: &Registry,
        readiness: &Readiness,
    ) -> Result<Self, Error> {
        // Peers sent by servers show a ticket; nobody else has to be admitted.
        let by_ticket = config.offers && (config.own_only || config.admission.is_closed());
        if !by_ticket {
            config.admission.check_listen(&config.endpoint.listen)?;
        }
        let machine = Machine::here();
        let load = Load {
            held_bytes: config.bytes.as_u64(),
            slot_bytes: SLOT_BYTES,
            batch_blocks: recoder::BATCH_BLOCKS_MAX,
        };
        let sizes = Sizes::of(&machine, &config.endpoint, &config.ring, &load);
        sizes.settle(&mut config.endpoint, &mut config.ring);
        sizes.tell(&machine);
        let supervisor = Supervisor::new(registry, readiness.clone())?;
        let metrics = Metrics::new(registry)?;
        let holdings = Arc::new(Holdings::new(
            config.bytes.as_u64(),
            config.offers,
            metrics.clone(),
        ));
        // Verified segments are cached here and not in the client, unless its own program reads
        // them too.
        let cache = if config.own_only {
            sources.cache
        } else {
            ByteSize::b(0)
        };
        let listener = Arc::new(Keeper {
            holdings: Arc::clone(&holdings),
            keeps_all: config.own_only,
        });
        let sources = crate::Config {
            cache,
            device: None,
            listener: Some(listener),
            ..sources
        };
        let (client, fault) = match config.waits {
            true => Client::connect_when_there(sources).await?,
            false => (Client::connect(sources).await?, None),
        };
        let fingerprint = *identity.fingerprint().as_bytes();
        let tickets = by_ticket.then(|| Tickets {
            identity: fingerprint,
            keys: client.keys(),
            served_max: config.served_max,
        });
        let admission = Admission::open_with(
            &config.admission,
            tickets,
            admission::Metrics::new(registry)?,
        )?;
        let ring = Ring::new(&config.ring, ring::Metrics::new(registry)?);
        let random = StdRng::from_rng(&mut rand::rng());
        let follow = crate::Metrics::new(registry)?.follow(client.stats());
        let fetcher = (!config.own_only)
            .then(|| Fetcher::new(client.clone(), Arc::clone(&holdings), supervisor.clone()));
        let recoder = Recoder::new(
            ring.clone(),
            Arc::clone(&holdings),
            fetcher.clone(),
            metrics,
            random,
        );
        let aside = match config.endpoint.is_aside {
            true => Aside::here(),
            false => Aside::start("recode").map_err(Error::Thread)?,
        };
        let (room, heeded) = (Arc::clone(&holdings), readiness.clone());
        let heed = move || {
            let room = Arc::clone(&room);
            heeded
                .clone()
                .heed_room("relay", ROOM_LOOK, move |now| room.refused(now))
        };
        let mut tasks = vec![
            aside.spawn(supervisor.vital(ServerPart::Recoder, recoder.run())),
            // It ends with the client's task.
            tokio::spawn(supervisor.vital(ServerPart::Client, follow)),
            tokio::spawn(supervisor.clone().revived(ServerPart::Room, heed)),
        ];

        let (asks, questions) = mpsc::channel(session::ASKS_QUEUED);
        let told = Arc::clone(&holdings);
        let (asked, contain) = (client.clone(), supervisor.clone());
        let gate = Gate::new(QUESTIONS);
        let answerer = Answerer {
            client: asked,
            holdings,
            fetcher,
            gate,
            news: HashMap::new(),
            supervisor: contain,
        };
        tasks.push(tokio::spawn(
            supervisor.vital(ServerPart::Answers, answerer.run(questions)),
        ));
        let (endpoint, session) = (&config.endpoint, config.session);
        // A relay signs no tickets, so it names no peers.
        let directory = Directory::new(directory::Metrics::new(registry)?);
        // Created last, so that it is dropped before the parts end if the start fails.
        let closing = supervisor.closing();
        let ports = Ports::open(endpoint, false)?;
        let parts = FrontParts {
            endpoint,
            ports: &ports,
            // A relay serves programs only.
            origins: Arc::default(),
            session,
            identity,
            admission,
            directory,
            fleet: Fleet::alone(),
            ring,
            asks: asks.clone(),
            links: front::Links::default(),
            aside: &aside,
            supervisor: &supervisor,
        };
        let front = Front::open(parts, registry, readiness).await?;
        if let Some(address) = front.addresses().first().filter(|_| config.offers) {
            client.offer(address.port(), fingerprint).await?;
            let teller = client.clone();
            let tell = move || tell(teller.clone(), Arc::clone(&told));
            tasks.push(tokio::spawn(
                supervisor.clone().revived(ServerPart::Teller, tell),
            ));
        }
        Ok(Self {
            front,
            client,
            fault,
            supervisor,
            tasks,
            _aside: aside,
            closing,
        })
    }

    /// The UDP addresses of the relay.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.front.addresses()
    }

    /// Why no source answered at the start, if none did.
    pub fn fault(&self) -> Option<&crate::Error> {
        self.fault.as_ref()
    }

    /// The client with which it fetches.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The guard of its parts.
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Accepts no new peers, lets open requests finish for at most `bound`, then stops.
    pub async fn drain(self, bound: Duration) {
        drop(self.closing);
        self.front
            .drain(Departure::within(bound), std::future::ready(()))
            .await;
        self.tasks.iter().for_each(JoinHandle::abort);
        self.client.close().await;
    }
}

/// Reports changes of the segments held to the servers.
async fn tell(client: Client, holdings: Arc<Holdings>) {
    let mut tick = tokio::time::interval(TELL_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let changed = holdings.take_untold();
        if !changed.is_empty() && client.have(changed).await.is_err() {
            return;
        }
    }
}

/// Answers the questions of sessions by those of its sources.
struct Answerer {
    client: Client,
    holdings: Arc<Holdings>,
    /// Without a fetcher, nothing is fetched for others, and no question is answered.
    fetcher: Option<Fetcher>,
    /// The turns of questions to sources.
    gate: Arc<Gate>,
    news: HashMap<String, broadcast::Sender<Arc<Resolved>>>,
    supervisor: Supervisor,
}

impl Answerer {
    /// A question about an object may take as long as a source, so each has a task. Sessions limit
    /// their number.
    async fn run(mut self, mut questions: mpsc::Receiver<Ask>) {
        while let Some(ask) = questions.recv().await {
            // A failed send means that the session is gone.
            match ask {
                Ask::Resolve {
                    get,
                    by,
                    ledgers,
                    mut reply,
                } => {
                    let Some(fetcher) = self.fetcher.clone() else {
                        let _ = reply.send(Err(unknown("")));
                        continue;
                    };
                    let (client, holdings, gate) = (
                        self.client.clone(),
                        Arc::clone(&self.holdings),
                        Arc::clone(&self.gate),
                    );
                    tokio::spawn(self.supervisor.contained(ServerPart::Question, async move {
                        let place = match client.knows(&get.path, get.offset) {
                            true => Ok(None),
                            false if get.held_only => Err(unknown("not held here")),
                            false => tokio::select! {
                                place = turn(&gate, by) => place.map(Some),
                                // The session has ended.
                                () = reply.closed() => return,
                            },
                        };
                        let found = match place {
                            Ok(_place) => client
                                .look_up(&get.path, get.offset, get.length)
                                .await
                                .map_err(refusal),
                            Err(refusal) => Err(refusal),
                        };
                        let found = found
                            .map(|(meta, whole, left)| resolved(&holdings, &meta, whole, left));
                        if let Ok(Resolved {
                            body: Body::Coded(held),
                            ..
                        }) = &found
                        {
                            fetcher.start_ahead(held.lease.key, &ledgers);
                        }
                        let _ = reply.send(found);
                    }));
                }
                Ask::Subscribe { reply, .. } if self.fetcher.is_none() => {
                    drop(reply.send(Err(unknown(""))))
                }
                Ask::Find {
                    id,
                    coding,
                    told,
                    ledgers,
                    reply,
                } => {
                    let found = self.holdings.find(&id, coding, told);
                    // A peer that can use it only when complete gets no lease before, and nothing
                    // else would start the fetch.
                    if let (Some(fetcher), Some(held)) = (&self.fetcher, &found)
                        && held.is_recoded
                    {
                        fetcher.start_ahead(held.lease.key, &ledgers);
                    }
                    drop(reply.send(found));
                }
                Ask::Hashes {
                    held,
                    ledgers,
                    reply,
                } => drop(reply.send(self.hashes(held.lease.key, &ledgers))),
                // The checks of its own rows are the relay's secret.
                Ask::Checks { reply, .. } => {
                    drop(reply.send(Err(unknown("relays do not serve checksums"))))
                }
                Ask::Blame(blame) => blame.log(),
                Ask::Subscribe { stream, reply } => {
                    let news = self.subscribe(&stream).await;
                    let _ = reply.send(news);
                }
            }
        }
    }

    /// The hashes of a segment's blocks. Those used to test blocks arrive with the segment.
    fn hashes(&self, segment: SegmentKey, asker: &Ledgers) -> Result<bytes::Bytes, Refusal> {
        if let Some(hashes) = self.holdings.hashes(segment) {
            return Ok(hashes);
        }
        match &self.fetcher {
            Some(fetcher) if self.holdings.awaits_hashes(segment) => {
                fetcher.start_ahead(segment, asker);
                let reason = "the hashes of this segment have not come yet".to_owned();
                Err(Refusal {
                    code: RefusalCode::Overload,
                    retry_after: Some(HASHES_AFTER),
                    reason,
                })
            }
            _ => Err(unknown("the relay has no hashes of this segment")),
        }
    }

    /// Subscribes to a stream once for all of the relay's peers.
    async fn subscribe(
        &mut self,
        stream: &str,
    ) -> Result<broadcast::Receiver<Arc<Resolved>>, Refusal> {
        self.news.retain(|_, news| news.receiver_count() > 0);
        if let Some(news) = self.news.get(stream) {
            return Ok(news.subscribe());
        }
        let mut incoming = self.client.news(stream).await.map_err(refusal)?;
        let (sender, receiver) = broadcast::channel(NEWS_KEPT);
        self.news.insert(stream.to_owned(), sender.clone());
        let holdings = Arc::clone(&self.holdings);
        tokio::spawn(self.supervisor.contained(ServerPart::LiveEdge, async move {
            while let Some(meta) = incoming.recv().await {
                let whole = match &meta.delivery {
                    Delivery::Inline(bytes) => Some(bytes.clone()),
                    _ => None,
                };
                // No receiver is left: the subscription ends with its own.
                let left = Duration::from_millis(meta.max_age_ms);
                if sender
                    .send(Arc::new(resolved(&holdings, &Arc::new(meta), whole, left)))
                    .is_err()
                {
                    return;
                }
            }
        }));
        Ok(receiver)
    }
}

/// Waits for a turn to ask sources one question. The turn lasts until the place is dropped.
async fn turn(gate: &Arc<Gate>, by: AskedBy) -> Result<Place, Refusal> {
    let (mut place, _wish) = gate.enter(Wanted::Asked(by)).map_err(crowded)?;
    place.turn().await.map_err(crowded)?;
    Ok(place)
}

/// Turns a source's signed answer into a server's; `left` is the rest of its age.
fn resolved(
    holdings: &Holdings,
    meta: &Arc<Meta>,
    whole: Option<bytes::Bytes>,
    left: Duration,
) -> Resolved {
    let body = match (&meta.delivery, whole) {
        (Delivery::Coded(shape), _) => Body::Coded(holdings.name(meta, *shape)),
        (Delivery::Inline(bytes), _) => Body::Inline(bytes.clone()),
        (Delivery::Stream, whole) => Body::Whole(whole.unwrap_or_default()),
    };
    Resolved {
        path: meta.path.clone(),
        id: meta.id,
        offset: meta.offset,
        length: meta.length,
        object_length: meta.object_length,
        version: meta.version,
        max_age: left,
        content_type: meta.content_type.clone(),
        body,
        signature: meta.signature,
    }
}

fn crowded(refused: Refused) -> Refusal {
    let reason = match refused {
        Refused::Full => "too many requests are waiting",
        Refused::Session => "too many requests of this connection are waiting",
    };
    Refusal {
        code: RefusalCode::Overload,
        retry_after: Some(RETRY_AFTER),
        reason: reason.to_owned(),
    }
}

/// Maps an error of the sources to a refusal for this relay's peers.
fn refusal(error: crate::Error) -> Refusal {
    let later = |code, reason: &str| Refusal {
        code,
        retry_after: Some(RETRY_AFTER),
        reason: reason.to_owned(),
    };
    match error {
        crate::Error::Refused(refusal) => refusal,
        crate::Error::Range(_) | crate::Error::Path(_) => unknown(""),
        crate::Error::Changed => {
            later(RefusalCode::Changed, "the object is changing at the origin")
        }
        crate::Error::Corrupt => later(
            RefusalCode::Origin,
            "the received bytes do not match the segment's hash",
        ),
        _ => later(RefusalCode::Origin, "no source answers"),
    }
}

fn unknown(reason: &str) -> Refusal {
    Refusal {
        code: RefusalCode::Unknown,
        retry_after: None,
        reason: reason.to_owned(),
    }
}
