//! One task per client, between [`Proto`], QUIC and the blocking pool.
//!
//! The loop waits for any of: an event of a connection ([`link`]), a command of the program, a
//! finished multiplication, a result of the device, a deadline. After each it handles everything
//! else that is ready, and carries out the decisions of [`Proto`].

mod alternates;
mod attempts;
mod callers;
mod connections;
mod introductions;
mod jobs;
mod link;
mod segments;
mod statistics;

use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use ncs_gf::Kernels;
use ncs_net::tls;
use ncs_proto::object::Shape;
use ncs_proto::wire::frame;
use ncs_proto::wire::message::{Codecs, Hello, Message, Meta};
use quinn::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::bulk::Bulk;
use super::neighbours::Neighbours;
use super::proto::alternates::Alternates;
use super::proto::{self, Answer, Event, FetchId, Proto, SourceId};
use super::token::Current;
use super::{Config, Error, KnownKeys, Listener, Server, Stats};
pub(super) use callers::{Command, Of};
use connections::Waiting;
use jobs::{Done, PoolJobs, gather, gfq, multiply};
use link::{End, Happening, Link, Shown};
use segments::Rebuild;

/// How long to wait for a first answer of any server before the caller is told that none answers.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// The minimum interval of published statistics.
const STATS_EVERY: Duration = Duration::from_millis(50);

/// The time for which blocks of neighbours gather, if nothing else has come and there were fewer
/// than these. Neighbours on slow lines send so few.
const GATHER: Duration = Duration::from_millis(20);
const GATHERED_FEW: usize = 8;
/// Events of a link that are handled in one turn, on average, and the datagrams of one link; a turn
/// that has handled as many of all links takes no more.
const EVENTS_A_LINK: usize = 4;
const DATAGRAMS_A_TURN: usize = 512;

/// The result of the first attempts to connect.
pub(super) type Ready = Result<(), Error>;

/// Keeps connections to all servers until all handles of the client are dropped. `ready` is told
/// when the first connection is established, or that none could be made; in that case this ends,
/// unless it `waits` for a server.
pub(super) async fn run(
    config: Config,
    commands: mpsc::Receiver<Command>,
    stats: watch::Sender<Stats>,
    keys: Arc<KnownKeys>,
    ready: oneshot::Sender<Ready>,
    waits: bool,
) {
    let (mut links, mut entrusted) = (Vec::new(), BTreeSet::new());
    for (id, server) in (0..).map(SourceId).zip(&config.servers) {
        let gets_token = id.0 == 0 || config.entrusted.contains(server);
        let token = config.token.clone().filter(|_| gets_token);
        entrusted.extend(gets_token.then_some(id));
        match link_to(
            id,
            server.clone(),
            Shown::Token(Current::new(token)),
            &config,
        ) {
            Ok(link) => links.push(link),
            Err(error) => {
                let _ = ready.send(Err(Error::Setup(error)));
                return;
            }
        }
    }
    if links.is_empty() {
        let _ = ready.send(Err(Error::Setup("no server given".to_owned())));
        return;
    }
    let mut driver = Driver::new(&config, commands, stats, keys);
    driver.entrusted = entrusted;
    let left = links.iter().map(|link| link.id).collect();
    let until = waits.then(|| Instant::now() + FIRST_WAIT);
    driver.ready = Some(Waiting {
        reply: ready,
        left,
        is_refused: true,
        until,
    });
    driver.drive(&mut links).await;
    link::close(links).await;
}

/// Creates a link that connects.
fn link_to(id: SourceId, server: Server, shown: Shown, config: &Config) -> Result<Link, String> {
    let trust = server
        .fingerprint
        .map_or(config.trust, tls::Trust::Fingerprint);
    // A named peer gets only a ticket, and does not learn this side's identity.
    let certificate = config
        .certificate
        .as_ref()
        .filter(|_| matches!(shown, Shown::Token(_)));
    let rejection = Arc::default();
    let tls = tls::client_config_noting(&trust, certificate, Arc::clone(&rejection))
        .map_err(|error| error.to_string())?;
    let mut quic = quinn::ClientConfig::new(Arc::new(tls));
    quic.transport_config(Arc::new(link::transport(config.congestion)));
    Ok(Link::new(id, server, (quic, rejection), shown, config))
}

struct Driver {
    config: Config,
    /// Known keys of streams, for others to read.
    keys: Arc<KnownKeys>,
    proto: Proto,
    neighbours: Neighbours,
    alternates: Alternates,
    /// Servers that are shown the token.
    entrusted: BTreeSet<SourceId>,
    /// Servers of which nothing is awaited while others answer.
    hushed: BTreeSet<SourceId>,
    /// Neighbours and alternates whose links have to be closed and forgotten.
    dismissed: Vec<SourceId>,
    /// Whether the user was warned about ignored peers at private addresses.
    has_left_private: bool,
    commands: mpsc::Receiver<Command>,
    gets: HashMap<u64, oneshot::Sender<Result<Answer, Error>>>,
    fetches: HashMap<FetchId, Rebuild>,
    subscriptions: HashMap<u64, mpsc::Sender<Meta>>,
    jobs: PoolJobs,
    bulk: Bulk,
    listener: Option<Arc<dyn Listener>>,
    ready: Option<Waiting>,
    publish: watch::Sender<Stats>,
    published: Instant,
    stats: Stats,
    /// UDP bytes of former neighbours.
    wire_bytes_before: u64,
    /// The logged reasons why servers are not connected.
    faults: HashMap<SourceId, String>,
    /// Servers that have been connected.
    known: BTreeSet<SourceId>,
}

impl Driver {
    fn new(
        config: &Config,
        commands: mpsc::Receiver<Command>,
        publish: watch::Sender<Stats>,
        keys: Arc<KnownKeys>,
    ) -> Self {
        let hello = Hello {
            codecs: Codecs::ALL,
            n_max: Shape::N_LIMIT,
            block_bytes_max: Shape::BLOCK_BYTES_MAX,
            segment_bytes_max: Shape::LENGTH_MAX,
            // A client serves nothing.
            requests_max: 0,
            credit_max: 0,
            agent: concat!("ncpeer/", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Hello::defaults()
        };
        let jobs = PoolJobs::new();
        let proto = Proto::new(proto::Config {
            hello,
            datagrams: config.datagrams,
            requests_max: usize::from(config.requests_max),
            window_min: config.window.0.as_u64(),
            window_max: config.window.1.as_u64(),
            hello_timeout: config.connect_timeout,
            answer_timeout: config.answer_timeout,
            stall_timeout: config.stall_timeout,
            rate_min: config.rate_min.map_or(0, |rate| rate.as_u64()),
            kernels: Kernels::detect(),
            gathers: config.device.is_some(),
            tells: config.listener.is_some(),
            keys: config.keys.clone(),
            tests_max: jobs.most,
            rows_max: config.rows.as_u64(),
            secret: proto::Secret::new(rand::random()),
        });
        let first = u32::try_from(config.servers.len()).unwrap_or(u32::MAX);
        Self {
            config: config.clone(),
            keys,
            proto,
            neighbours: Neighbours::new(config.neighbours_max, first, config.private_neighbours),
            alternates: Alternates::new(config.servers.iter().map(Into::into)),
            entrusted: BTreeSet::new(),
            hushed: BTreeSet::new(),
            dismissed: Vec::new(),
            has_left_private: false,
            commands,
            gets: HashMap::new(),
            fetches: HashMap::new(),
            subscriptions: HashMap::new(),
            jobs,
            bulk: Bulk::new(config.device.clone()),
            listener: config.listener.clone(),
            ready: None,
            publish,
            published: Instant::now(),
            stats: Stats::default(),
            wire_bytes_before: 0,
            faults: HashMap::new(),
            known: BTreeSet::new(),
        }
    }

    /// Serves the program until all handles are dropped.
    async fn drive(&mut self, links: &mut Vec<Link>) {
        let mut first = 0;
        // Whether only a few blocks of neighbours have come, and more may gather.
        let mut gathers = false;
        loop {
            self.turn(links);
            first %= links.len();
            let tokens = links
                .iter()
                .filter(|link| link.connection().is_some())
                .filter_map(|link| link.shown.due());
            let due = tokens
                .chain(self.due())
                .chain(self.servers_due(links))
                .min();
            if std::mem::take(&mut gathers) {
                self.wait_for_more(due).await;
                // These events were in time, even if something is due now.
                if let Some(happening) = link::next(links, first).now_or_never() {
                    gathers = self.take_all(links, &mut first, happening);
                }
                continue;
            }
            tokio::select! {
                happening = link::next(links, first) => {
                    gathers = self.take_all(links, &mut first, happening);
                }
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                done = self.jobs.next() => self.done(done),
                outcomes = self.bulk.next() => self.decoded(outcomes),
                () = until(due) => {}
            }
        }
    }

    /// Waits while blocks gather, until something is due or else to do: each turn looks at
    /// everything, and costs as much for one block as for many.
    async fn wait_for_more(&mut self, due: Option<Instant>) {
        let until = Instant::now() + GATHER;
        let until = due.map_or(until, |due| due.min(until));
        tokio::select! {
            // Without any handle left, the next look ends this.
            Some(command) = self.commands.recv() => self.command(command),
            done = self.jobs.next() => self.done(done),
            outcomes = self.bulk.next() => self.decoded(outcomes),
            () = tokio::time::sleep_until(until.into()) => {}
        }
    }

    /// Handles an event, and all others that are there. Returns whether they were a few blocks of
    /// neighbours, and nothing else.
    fn take_all(
        &mut self,
        links: &mut [Link],
        first: &mut usize,
        happening: (usize, Happening),
    ) -> bool {
        let (mut next, mut datagrams, mut is_other) = (Some(happening), 0, false);
        let mut left = EVENTS_A_LINK * links.len();
        while let Some((index, happening)) = next {
            *first = (index + 1) % links.len();
            let link = &mut links[index];
            is_other |=
                !matches!(happening, Happening::Datagram(_)) || !self.neighbours.is_one(link.id);
            datagrams += self.happened(link, happening);
            left -= 1;
            next = if left > 0 && datagrams < DATAGRAMS_A_TURN {
                link::next(links, *first).now_or_never()
            } else {
                None
            };
        }
        !is_other && datagrams < GATHERED_FEW
    }

    /// Carries out the protocol's decisions.
    fn turn(&mut self, links: &mut Vec<Link>) {
        while let Ok(command) = self.commands.try_recv() {
            self.command(command);
        }
        self.drop_abandoned();
        let now = Instant::now();
        if !self.proto.is_idle() {
            links.iter_mut().for_each(Link::wanted);
        }
        for link in links.iter_mut() {
            let Some(rtt) = link.connection().map(Connection::rtt) else {
                continue;
            };
            self.proto.set_rtt(link.id, rtt);
            if let Some(credential) = link.shown.newer(now) {
                self.proto.authorise(link.id, credential);
            }
        }
        if let Some(waiting) = self
            .ready
            .take_if(|waiting| waiting.until.is_some_and(|until| until <= now))
        {
            let _ = waiting
                .reply
                .send(Err(Error::Connection("no answer yet".to_owned())));
        }
        if self.proto.poll_timeout().is_some_and(|due| due <= now) {
            while let Err((source, violation)) = self.proto.handle_timeout(now) {
                match links.iter_mut().find(|link| link.id == source) {
                    Some(link) => self.end(link, violation.into()),
                    None => self.proto.handle_disconnected(now, source, false),
                }
            }
        }
        // Those that take no more requests, and owe nothing.
        let mut over = Vec::new();
        for link in links.iter_mut() {
            let (source, visit) = (link.id, Some(link.visit));
            let is_sent = link.is_sent || !self.config.follows;
            let Some(wires) = link.wires() else { continue };
            if wires.is_writable() {
                let mut out = Vec::new();
                while let Some(message) = self.proto.poll_message(now, source) {
                    match message {
                        Message::Hello(hello) => frame::encode_greeting(
                            &Hello {
                                visit,
                                is_sent,
                                ..hello
                            },
                            rand::random(),
                            &mut out,
                        ),
                        other => other.encode(&mut out),
                    }
                }
                if !out.is_empty() {
                    wires.write(out);
                } else if self.proto.is_leaving(source) && self.proto.is_quiet_at(source) {
                    over.push(source);
                }
            }
        }
        // An event may say why a server takes no more requests.
        self.take_events(links);
        for link in links.iter_mut() {
            if over.contains(&link.id) && !self.alternates.waits_at(link.id) {
                self.end(link, End::Left);
            }
        }
        self.find_servers(now, links);
        self.dismiss(links);
        if links.iter().all(Link::is_left_alone) {
            self.give_up(links);
        }
        self.bulk
            .start(now, self.proto.is_quiet() && self.jobs.is_empty());
        self.publish(links);
    }

    /// Passes on the protocol's events.
    fn take_events(&mut self, links: &mut Vec<Link>) {
        while let Some(event) = self.proto.poll_event() {
            match event {
                Event::Ready(source) => {
                    self.renew(links);
                    self.publish.send_replace(self.stats.clone());
                    self.say_connected(links, source);
                    if let Some(waiting) = self.ready.take() {
                        let _ = waiting.reply.send(Ok(()));
                    }
                }
                Event::Answered { request, answer } => {
                    if let Ok(Answer { meta, .. }) = &answer
                        && let Some(key) = self.proto.key(&meta.path)
                    {
                        self.keys.learn(&meta.path, key);
                    }
                    if let Some(reply) = self.gets.remove(&request) {
                        let _ = reply.send(answer.map_err(|failure| self.error(links, failure)));
                    }
                }
                Event::Announced { request, meta } => {
                    // A program that does not read misses only news.
                    if let Some(news) = self.subscriptions.get(&request) {
                        let _ = news.try_send(meta);
                    }
                }
                Event::Unsubscribed { request, refusal } => {
                    tracing::debug!(reason = refusal.reason, "subscription ended");
                    self.subscriptions.remove(&request);
                }
                Event::Brought {
                    cut,
                    generation,
                    source,
                    block,
                    is_checked,
                } => {
                    if let Some(listener) = &self.listener {
                        listener.brought(&cut, generation, source, block, is_checked);
                    }
                }
                Event::Checked {
                    cut,
                    generation,
                    rows,
                } => {
                    if let Some(listener) = &self.listener {
                        listener.checked(&cut, generation, rows);
                    }
                }
                Event::Hashed { cut, hashes } => {
                    if let Some(listener) = &self.listener {
                        listener.hashed(&cut, hashes);
                    }
                }
                Event::Test(trial) => {
                    let device = self.config.device.clone();
                    self.jobs
                        .add(move || Done::Tested(trial.run(&*gfq(device), &mut rand::rng())));
                }
                Event::Decoded { fetch, decoder } => {
                    self.fetches
                        .entry(fetch)
                        .and_modify(|rebuild| rebuild.decoding += 1);
                    let (device, tree) = (self.config.device.clone(), self.tree(fetch));
                    self.jobs.add(move || match decoder.is_to_be_solved() {
                        true => gather(fetch, *decoder),
                        false => multiply(fetch, *decoder, device, tree.as_ref()),
                    });
                }
                Event::Failed { fetch, failure } => {
                    if let Some(rebuild) = self.fetches.remove(&fetch) {
                        let _ = rebuild.reply.send(Err(self.error(links, failure)));
                    }
                }
                Event::TokenRefused(source) => {
                    if let Some(link) = links.iter_mut().find(|link| link.id == source) {
                        link.shown
                            .refused(Instant::now(), self.config.certificate.is_some());
                    }
                }
                Event::Alternates {
                    source,
                    moves,
                    servers,
                } => {
                    tracing::debug!(
                        source = source.0,
                        moves,
                        ?servers,
                        "other servers are named"
                    );
                    self.told(source, moves, servers);
                }
                Event::Peers { segment, peers } => {
                    peers
                        .into_iter()
                        .for_each(|peer| self.named(links, segment, peer));
                }
                // For web pages, which have offered to serve each other.
                Event::Page { .. } | Event::Pages { .. } | Event::Signal { .. } => {}
                Event::Polluter(source) => {
                    self.alternates.ban(source);
                    if let Some(identity) = self.proto.identity(source) {
                        self.neighbours.ban(identity);
                    }
                    if let Some(link) = links.iter_mut().find(|link| link.id == source) {
                        self.end(link, End::Polluted);
                    }
                }
                Event::GoingAway(source) => {
                    tracing::debug!(source = source.0, "the server goes away")
                }
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        let stats = (!self.proto.is_idle()).then(|| self.published + STATS_EVERY);
        let ready = self.ready.as_ref().and_then(|waiting| waiting.until);
        [self.proto.poll_timeout(), self.bulk.due(), stats, ready]
            .into_iter()
            .flatten()
            .min()
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Flow;
    use crate::proto::assembly::examine;
    use crate::proto::{GfqGeneration, Order, Place, Rebuilder, Urgency};
    use ncs_codec::block::Vector;
    use ncs_codec::rlnc::{Decoder, Encoder};
    use ncs_device::Device;
    use ncs_device::{self as device, BackendChoice};
    use ncs_proto::object::row_key;
    use ncs_proto::object::{Codec, HashGroup, RefusalCode};
    use ncs_proto::object::{SegmentId, Tree};
    use ncs_proto::wire::block::write_datagram_header;
    use ncs_proto::wire::message::{GetChecks, Request, RequestError};
    use std::collections::VecDeque;

    fn new_driver(config: &Config) -> Driver {
        let ((_, commands), (publish, _)) = (mpsc::channel(1), watch::channel(Stats::default()));
        Driver::new(config, commands, publish, Arc::default())
    }

    fn peer_config() -> Config {
        Config::new("ncs://[::1]:1".parse().unwrap(), tls::Trust::System)
    }

    /// A viewer of other streams does not open a card for unused arithmetic.
    #[test]
    fn who_does_arithmetic_over_the_prime_field_is_found_when_there_is_some() {
        let config = device::Config {
            backend: BackendChoice::Cpu,
            ..device::Config::default()
        };
        let (device, _thread) = Device::open(&config, device::Unrecorded).unwrap();
        let is_found = || !format!("{device:?}").contains("found: Mutex { data: None");
        let mut driver = new_driver(&Config {
            device: Some(device.clone()),
            ..peer_config()
        });
        let (segment, shape, urgency) = (
            SegmentId::of(b""),
            Shape::new(300, 64, 8).unwrap(),
            Urgency::Now,
        );
        let fetch = driver.proto.fetch(
            Instant::now(),
            Order {
                segment,
                shape,
                proof: None,
                deadline: None,
                urgency,
            },
            None,
        );
        let generation = shape.generation(0).unwrap();
        let decoder = Decoder::new(
            generation,
            row_key(&segment, &generation),
            Kernels::detect(),
        );
        multiply(
            fetch,
            Rebuilder::Blocked(decoder),
            driver.config.device.clone(),
            None,
        );
        assert!(!is_found(), "{device:?}");
        let shape = shape
            .coded_with(Codec::RlncQ {
                group: HashGroup::P1024,
            })
            .unwrap();
        let gfq = GfqGeneration::new(shape.generation(0).unwrap()).unwrap();
        multiply(
            fetch,
            Rebuilder::Gfq(Box::new(gfq)),
            driver.config.device.clone(),
            None,
        );
        assert!(is_found(), "{device:?}");
    }

    /// Fetches a segment of generations of 1,280 bytes over groups of 1,024, without common
    /// boundaries, from a server without checksums that answers one request after the other. It
    /// sends each generation wrong as often as given. Returns whether the bytes are right, if any
    /// arrive; `None` if the fetch hangs.
    async fn fetch_of_a_liar(mut wrong: [u32; 5]) -> Option<Result<bool, Error>> {
        let bytes: Vec<u8> = (0..6300u32)
            .map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1])
            .collect();
        let (segment, tree) = Tree::with_groups(&bytes, Codec::Rlnc, 10);
        let shape = Shape::new(6300, 64, 20).unwrap();
        let (server, mut now) = (SourceId(0), Instant::now());
        let mut driver = new_driver(&peer_config());
        driver.proto.handle_connected(now, server, None);
        while driver.proto.poll_message(now, server).is_some() {}
        driver
            .proto
            .handle_message(now, server, Message::Hello(Hello::defaults()))
            .unwrap();
        let order = Order {
            segment,
            shape,
            proof: None,
            deadline: None,
            urgency: Urgency::Now,
        };
        let place = Place {
            path: "/a/b".to_owned(),
            offset: 0,
            length: None,
        };
        let (reply, mut fetched) = oneshot::channel();
        driver.command(Command::Fetch {
            order,
            place,
            tree,
            flow: Arc::new(Flow::new()),
            reply,
        });
        let (mut open, mut credits) = (HashMap::new(), VecDeque::new());
        loop {
            while let Some(message) = driver.proto.poll_message(now, server) {
                match message {
                    Message::Request(Request {
                        alias,
                        generation,
                        credit,
                        ..
                    }) => {
                        open.insert(alias, (generation, None, 0));
                        credits.push_back((alias, credit));
                    }
                    Message::Credit { alias, blocks } => credits.push_back((alias, blocks)),
                    Message::Stop { alias, .. } => drop(open.remove(&alias)),
                    Message::GetChecks(GetChecks { request, .. }) => {
                        let (code, reason) = (RefusalCode::Unknown, String::new());
                        let error = RequestError {
                            request,
                            code,
                            retry_after_ms: 0,
                            reason,
                        };
                        driver
                            .proto
                            .handle_message(now, server, Message::Error(error))
                            .unwrap();
                    }
                    _ => {}
                }
            }
            driver.take_events(&mut Vec::new());
            if !driver.jobs.is_empty() {
                let done = driver.jobs.next().await;
                driver.done(done);
                continue;
            }
            if let Ok(fetched) = fetched.try_recv() {
                return Some(fetched.map(|fetched| fetched == bytes));
            }
            let Some((alias, credit)) = credits.pop_front() else {
                now = driver
                    .proto
                    .poll_timeout()?
                    .max(now + Duration::from_millis(1));
                driver.proto.handle_timeout(now).unwrap();
                continue;
            };
            let Some((index, encoder, sent)) = open.get_mut(&alias) else {
                continue;
            };
            let generation = shape.generation(*index).unwrap();
            let encoder = encoder.get_or_insert_with(|| {
                let start = usize::try_from(generation.offset).unwrap();
                let mut part =
                    bytes[start..start + usize::try_from(generation.length).unwrap()].to_vec();
                let left = &mut wrong[*index as usize];
                part[600] ^= u8::from(*left > 0);
                *left = left.saturating_sub(1);
                Encoder::new(
                    &generation,
                    &part,
                    row_key(&segment, &generation),
                    Kernels::detect(),
                )
                .unwrap()
            });
            for left in (0..credit).rev() {
                let (seed, mut out) = (u32::from(*sent), vec![0; 10 + 64]);
                write_datagram_header(&mut out[..10], &Vector::Seed(seed), alias, *sent, left == 0);
                encoder.block(seed, &mut out[10..]);
                driver
                    .proto
                    .handle_datagram(now, server, out.into())
                    .unwrap();
                *sent += 1;
            }
        }
    }

    /// Whichever of them fails last.
    #[tokio::test]
    async fn a_server_that_may_come_is_waited_for_beside_one_that_is_refused() {
        for (refused, is_end) in [
            ([true, false], false),
            ([false, true], false),
            ([true, true], true),
        ] {
            let (publish, _) = watch::channel(Stats::default());
            let (handle, commands) = mpsc::channel(1);
            let mut driver = Driver::new(&peer_config(), commands, publish, Arc::default());
            let (reply, mut told) = oneshot::channel();
            let (left, until) = (
                [0, 1].map(SourceId).into(),
                Some(Instant::now() + FIRST_WAIT),
            );
            driver.ready = Some(Waiting {
                reply,
                left,
                is_refused: true,
                until,
            });
            for (source, is_refusal) in [0, 1].map(SourceId).into_iter().zip(refused) {
                assert!(told.try_recv().is_err());
                driver.failed(source, Error::Connection("no".to_owned()), is_refusal);
            }
            assert_eq!(told.try_recv(), Ok(Err(Error::Connection("no".to_owned()))));
            assert_eq!(handle.is_closed(), is_end, "{refused:?}");
        }
    }

    /// A wrong generation also refutes its neighbours where they share a group.
    #[tokio::test]
    async fn a_segment_with_wrong_generations_is_mended_or_fails_and_never_hangs() {
        for wrong in [
            [0, 0, 0, 0, 0],
            [1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [0, 1, 1, 0, 0],
            [1, 1, 1, 1, 1],
        ] {
            assert_eq!(fetch_of_a_liar(wrong).await, Some(Ok(true)), "{wrong:?}");
        }
        for index in 0..5 {
            let mut wrong = [0; 5];
            wrong[index] = u32::MAX;
            assert_eq!(
                fetch_of_a_liar(wrong).await,
                Some(Err(Error::Corrupt)),
                "{index}"
            );
        }
        assert_eq!(
            fetch_of_a_liar([u32::MAX; 5]).await,
            Some(Err(Error::Corrupt))
        );
    }

    /// Whatever the reason.
    #[tokio::test]
    async fn a_segment_of_which_nothing_more_comes_fails() {
        let mut driver = new_driver(&peer_config());
        let (shape, urgency) = (Shape::new(1000, 64, 8).unwrap(), Urgency::Now);
        let order = Order {
            segment: SegmentId::of(b""),
            shape,
            proof: None,
            deadline: None,
            urgency,
        };
        let place = Place {
            path: "/a/b".to_owned(),
            offset: 0,
            length: None,
        };
        let (reply, mut fetched) = oneshot::channel();
        driver.command(Command::Fetch {
            order,
            place,
            tree: None,
            flow: Arc::new(Flow::new()),
            reply,
        });
        let (fetch, rebuild) = driver.fetches.iter_mut().next().unwrap();
        let fetch = *fetch;
        rebuild.decoding = 2;
        driver.proto.cancel_fetch(fetch);
        driver.examined(fetch, examine(&shape.generation(0).unwrap(), None, None));
        assert!(fetched.try_recv().is_err(), "another is being decoded");
        driver.examined(fetch, examine(&shape.generation(0).unwrap(), None, None));
        assert_eq!(fetched.try_recv(), Ok(Err(Error::Corrupt)));
    }
}
