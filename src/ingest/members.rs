//! Other servers of the fleet as sources: the origin is asked once for all.
//!
//! Each object has a *home*, the server with the greatest weight for its path
//! ([`Fleet::route`]). The home asks the origin; every other server fetches the object's blocks
//! from a server nearer to the home, as any peer does, so that the home sends few copies. If that
//! one is slow, silent or refuses, the next one is asked beside it, and the origin in the end: the
//! first answer counts. No answer of another server is final but the object itself, because that
//! server may be configured otherwise.
//!
//! When servers come or go, objects get another home, which may not have what the one before has
//! fetched. For a while it asks those who come next in an object's order for what they hold, before
//! it asks the origin.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use bytesize::ByteSize;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use ncs_serve::fleet::Fleet;
use prometheus::{IntCounterVec, Registry};
use tokio::sync::{mpsc, watch};
use url::Url;

use super::{BoxFuture, Change, Error, Fetch, Fetched, Object, Source, Validators, Want};
use crate::integrity::signing::StreamKey;
use crate::peer::{self, Client, TokenSource};
use crate::telemetry::quiet::{RateLimited, suppressed};
use crate::telemetry::register;
use crate::tls::Trust;
use crate::wire::message::{Alternate, Delivery, Meta};

/// The least time that a server gets before another one is asked as well, and the most.
const PATIENCE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(150)..=Duration::from_secs(3);
/// It is this many times the time that fetches from other servers take.
const PATIENCE_FACTOR: u32 = 4;
/// One that is asked second may wait for the first itself, and ask the origin then: it gets this
/// many times as long.
const LATER_FACTOR: u32 = 4;
/// The time that they take while that is not known.
const TAKES_AT_FIRST: Duration = Duration::from_millis(250);
/// Connections that were not used for this long are closed, and a client that has given up is made
/// again after this long.
const IDLE: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_secs(5);
/// The time between two lines about servers that do not answer.
const LINE_EVERY: Duration = Duration::from_secs(60);
/// How long after members have changed another server may hold an object whose home is here: longer
/// than segments are in a live playlist.
const CHANGE_LASTS: Duration = Duration::from_secs(60);

/// The other servers, for all streams. Clones share their connections.
#[derive(Clone)]
pub struct Members {
    inner: Arc<Inner>,
}

struct Inner {
    fleet: Fleet,
    /// Whether they are asked before an origin.
    asks: bool,
    /// What this server shows the others, if they admit viewers by token.
    token: Option<TokenSource>,
    clients: Mutex<BTreeMap<Alternate, Connected>>,
    /// How long a fetch from another server takes, smoothed.
    takes: Mutex<Duration>,
    fetches: IntCounterVec,
    lines: RateLimited<()>,
    /// The members among which objects have their homes, and since when these are known here.
    among: Mutex<(u64, Instant)>,
}

/// A client of another server, once it is connected, and when it was made and last used.
struct Connected {
    client: watch::Receiver<Option<Client>>,
    /// The key that it takes for each stream's, where it was told.
    keys: BTreeMap<String, Option<StreamKey>>,
    made_at: Instant,
    used_at: Instant,
}

impl Connected {
    /// Whether the client has given up, some time ago: its certificate was refused, for example.
    fn is_over(&self, now: Instant) -> bool {
        self.client.has_changed().is_err() && self.made_at + REST <= now
    }
}

/// Who has brought an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The origin, because this server is the object's home.
    Home,
    /// Another server.
    Member,
    /// The origin, because no other server was in time.
    Hedge,
}

impl By {
    const ALL: [Self; 3] = [Self::Home, Self::Member, Self::Hedge];

    fn name(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Member => "member",
            Self::Hedge => "hedge",
        }
    }
}

impl Members {
    /// The servers of this fleet, which are shown the token in this file. `asks`: they are asked
    /// before an origin.
    pub fn new(
        fleet: Fleet,
        token_file: Option<PathBuf>,
        asks: bool,
        registry: &Registry,
    ) -> Result<Self, prometheus::Error> {
        let fetches = register::counters(
            registry,
            "ncserverd_cluster_fetches_total",
            "Objects and parts fetched, by who has brought them.",
            &["by"],
        )?;
        for by in By::ALL {
            fetches.with_label_values(&[by.name()]);
        }
        let inner = Inner {
            fleet,
            asks,
            token: token_file.map(TokenSource::File),
            clients: Mutex::default(),
            takes: Mutex::new(TAKES_AT_FIRST),
            fetches,
            lines: RateLimited::new(LINE_EVERY),
            among: Mutex::new((0, Instant::now())),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// A source of the stream of this name that asks them before this origin, if they are asked.
    /// What they say has to be signed by this key, if the stream has one.
    pub fn before(
        &self,
        origin: Arc<dyn Source>,
        stream: &str,
        key: Option<StreamKey>,
    ) -> Arc<dyn Source> {
        if !self.inner.asks {
            return origin;
        }
        Arc::new(SharedOrigin {
            members: self.clone(),
            origin,
            stream: stream.to_owned(),
            key: Mutex::new(key),
        })
    }

    /// The times with which they issue answers now, in milliseconds since 1970.
    pub fn times(&self, now: Instant) -> Vec<u64> {
        self.inner.fleet.times(now)
    }

    /// Waits until they have had time to greet this server. One that has just started knows nobody:
    /// it would take itself for the home of all objects, and its wall clock for right.
    pub async fn greeted(&self) {
        let mut greeted = self.inner.fleet.greeted();
        let at = greeted.wait_for(Option::is_some).await;
        let at = at.ok().and_then(|at| *at);
        if let Some(at) = at {
            tokio::time::sleep_until(at.into()).await;
        }
    }

    /// A client of a server, which may not be connected yet.
    fn client(&self, server: &Alternate) -> watch::Receiver<Option<Client>> {
        let now = Instant::now();
        let mut clients = self.clients();
        clients.retain(|other, connected| {
            let is_used = other == server || connected.used_at + IDLE > now;
            is_used && !connected.is_over(now)
        });
        let begin = || Connected {
            client: self.connect(server),
            keys: BTreeMap::new(),
            made_at: now,
            used_at: now,
        };
        let connected = clients.entry(server.clone()).or_insert_with(begin);
        connected.used_at = now;
        connected.client.clone()
    }

    /// Has the client of a server take this key for a stream's. Nothing is to be done if it was
    /// told before.
    async fn tell_key(
        &self,
        server: &Alternate,
        client: &Client,
        stream: &str,
        key: Option<StreamKey>,
    ) {
        let tell = |known: &mut Connected| known.keys.insert(stream.to_owned(), key) != Some(key);
        let is_new = self.clients().get_mut(server).is_some_and(tell);
        if is_new {
            // A client that has ended fails the fetch, too.
            let _ = client.pin(stream, key).await;
        }
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<Alternate, Connected>> {
        self.inner
            .clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, server: &Alternate) -> watch::Receiver<Option<Client>> {
        let (sender, receiver) = watch::channel(None);
        let Ok(named) = peer::Server::try_from(server) else {
            return receiver;
        };
        let config = peer::Config {
            token: self.inner.token.clone(),
            // The store keeps what is fetched, and a server is not sent to another one.
            cache: ByteSize(0),
            metas: ByteSize::kib(256),
            follows: false,
            neighbours_max: 0,
            ..peer::Config::new(named, Trust::System)
        };
        tokio::spawn(async move {
            if let Ok((client, _)) = Client::connect_when_there(config).await {
                sender.send_replace(Some(client));
                // The client lives as long as somebody may ask for it.
                sender.closed().await;
            }
        });
        receiver
    }

    /// How long a server gets before another one is asked as well.
    fn patience(&self) -> Duration {
        let takes = *self.takes();
        (takes * PATIENCE_FACTOR).clamp(*PATIENCE.start(), *PATIENCE.end())
    }

    fn takes(&self) -> MutexGuard<'_, Duration> {
        self.inner
            .takes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn note_time(&self, took: Duration) {
        let mut takes = self.takes();
        *takes = (*takes * 7 + took) / 8;
    }

    /// Whether the members among which objects have their homes were others until lately.
    fn has_changed(&self, among: u64, now: Instant) -> bool {
        let known = &self.inner.among;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != among {
            *known = (among, now);
        }
        known.1 + CHANGE_LASTS > now
    }

    fn count(&self, by: By) {
        self.inner.fetches.with_label_values(&[by.name()]).inc();
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members").finish_non_exhaustive()
    }
}

/// An origin that a fleet asks once.
#[derive(Debug)]
struct SharedOrigin {
    members: Members,
    origin: Arc<dyn Source>,
    stream: String,
    key: Mutex<Option<StreamKey>>,
}

impl Source for SharedOrigin {
    fn fetch(&self, fetch: Fetch) -> BoxFuture<'_, Result<Fetched, Error>> {
        Box::pin(self.fetch_once(fetch))
    }

    fn changes(&self) -> Option<mpsc::Receiver<Change>> {
        self.origin.changes()
    }

    fn base(&self) -> Option<&Url> {
        self.origin.base()
    }

    fn has_queries(&self) -> bool {
        self.origin.has_queries()
    }

    fn set_key(&self, key: Option<StreamKey>) {
        *self.key() = key;
    }
}

impl SharedOrigin {
    fn key(&self) -> MutexGuard<'_, Option<StreamKey>> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch_once(&self, fetch: Fetch) -> Result<Fetched, Error> {
        let path = format!("/{}/{}", self.stream, fetch.path.as_str());
        let route = self.members.inner.fleet.route(&path);
        let has_changed = self.members.has_changed(route.among, Instant::now());
        let mut patience = self.members.patience();
        let mut through = route.through.into_iter();
        let Some(first) = through.next() else {
            if has_changed
                && let Some(fetched) = self.held(route.after, &path, &fetch, patience).await
            {
                self.members.count(By::Member);
                return Ok(fetched);
            }
            self.members.count(By::Home);
            return self.origin.fetch(fetch).await;
        };
        let mut asked = FuturesUnordered::new();
        asked.push(self.ask(first, &path, &fetch, Of::Any));
        loop {
            let answer = tokio::time::timeout(patience, asked.next()).await;
            // Otherwise it is slow, or nobody is left.
            if let Ok(Some(answer)) = answer
                && let Some(fetched) = self.came(answer)
            {
                return Ok(fetched);
            }
            let Some(next) = through.next() else { break };
            asked.push(self.ask(next, &path, &fetch, Of::Any));
            patience = (self.members.patience() * LATER_FACTOR).min(*PATIENCE.end());
        }
        // Another server may still be first.
        let origin = self.origin.fetch(fetch.clone());
        let mut origin = std::pin::pin!(origin);
        let failed = loop {
            tokio::select! {
                fetched = &mut origin => match fetched {
                    Err(error) if error.is_transient() => break error,
                    fetched => {
                        self.members.count(By::Hedge);
                        return fetched;
                    }
                },
                Some(answer) = asked.next() => if let Some(fetched) = self.came(answer) {
                    return Ok(fetched);
                },
            }
        };
        // The origin fails. Another server may have what it does not give.
        let late = async {
            while let Some(answer) = asked.next().await {
                if let Some(fetched) = self.came(answer) {
                    return Some(fetched);
                }
            }
            None
        };
        match tokio::time::timeout(*PATIENCE.end(), late).await {
            Ok(Some(fetched)) => Ok(fetched),
            Ok(None) | Err(_) => Err(failed),
        }
    }

    /// The object, if one of these servers holds it. A playlist changes, and a version that is
    /// known here is checked at the origin.
    async fn held(
        &self,
        servers: Vec<Alternate>,
        path: &str,
        fetch: &Fetch,
        patience: Duration,
    ) -> Option<Fetched> {
        if matches!(fetch.want, Want::Whole(_)) || fetch.known.is_some() {
            return None;
        }
        let asked = servers.into_iter();
        let asked = asked.map(|server| self.ask(server, path, fetch, Of::Holders));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let found = async {
            while let Some(answer) = asked.next().await {
                if let Ok(fetched) = answer {
                    return Some(fetched);
                }
            }
            None
        };
        let found = tokio::time::timeout(patience, found);
        found.await.ok().flatten()
    }

    /// What another server has answered, if it is the object.
    fn came(&self, answer: Result<Fetched, Miss>) -> Option<Fetched> {
        match answer {
            Ok(fetched) => {
                self.members.count(By::Member);
                Some(fetched)
            }
            Err(Miss { server, reason }) => {
                self.complain(&server, &reason);
                None
            }
        }
    }

    /// Fetches from another server.
    async fn ask(
        &self,
        server: Alternate,
        path: &str,
        fetch: &Fetch,
        of: Of,
    ) -> Result<Fetched, Miss> {
        let begun = Instant::now();
        let mut client = self.members.client(&server);
        let outcome = async {
            let client = client.wait_for(Option::is_some).await;
            let client = client.ok().and_then(|client| client.clone());
            let client = client.ok_or_else(|| "it cannot be reached".to_owned())?;
            let key = *self.key();
            let told = self.members.tell_key(&server, &client, &self.stream, key);
            told.await;
            self.fetch_from((&client, of), key, path, fetch).await
        };
        match outcome.await {
            Ok(fetched) => {
                // What is held says nothing about the time that the origin takes.
                if of == Of::Any {
                    self.members.note_time(begun.elapsed());
                }
                Ok(fetched)
            }
            Err(reason) => Err(Miss { server, reason }),
        }
    }

    async fn fetch_from(
        &self,
        (client, of): (&Client, Of),
        key: Option<StreamKey>,
        path: &str,
        fetch: &Fetch,
    ) -> Result<Fetched, String> {
        let (offset, length) = match &fetch.want {
            Want::Whole(_) | Want::Head(_) => (0, None),
            Want::Part(range) => (range.start, None),
            Want::Listed(range) => (range.start, Some(range.end - range.start)),
        };
        let held_only = of == Of::Holders;
        let asked = client.look_up_at_first(path, offset, length, held_only);
        let (meta, whole, _) = asked.await.map_err(|error| error.to_string())?;
        if let Some(key) = key
            && StreamKey::of(&meta) != Some(key)
        {
            return Err("its answer is not signed by the key of the stream".to_owned());
        }
        fits(&meta, &fetch.want)?;
        let signature = meta.signature.as_ref().filter(|_| key.is_some());
        let issued_ms = signature.map(|signature| signature.issued_ms);
        let told = Validators::told(meta.version);
        let is_same = |known: &Validators| known.version(meta.object_length) == meta.version;
        // A version that was told may be that of any bytes: the origin may give no tags.
        let is_known = |known: &Validators| known.told.is_none() && is_same(known);
        if fetch.known.as_ref().is_some_and(is_known) {
            return Ok(Fetched::NotModified);
        }
        if !fetch.part_of.as_ref().is_none_or(is_same) {
            return Err("it has another version of the object".to_owned());
        }
        let bytes: Bytes = match whole {
            Some(bytes) => bytes,
            None => {
                let fetched = client.fetch_segment(&meta).await;
                fetched.map_err(|error| error.to_string())?
            }
        };
        let content_type = Some(meta.content_type.clone());
        Ok(Fetched::Object(Object {
            bytes,
            offset: meta.offset,
            length: meta.object_length,
            validators: told,
            content_type: content_type.filter(|text| !text.is_empty()),
            complete: Instant::now(),
            issued_ms,
        }))
    }

    fn complain(&self, server: &Alternate, reason: &str) {
        if let Some(more) = self.members.inner.lines.admit((), Instant::now()) {
            let (server, suppressed) = (&server.address, suppressed(more));
            tracing::info!(
                server,
                reason,
                suppressed,
                "another server of the fleet does not have an object: asking further",
            );
        }
    }
}

/// What another server is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// The object, which it fetches if it does not hold it.
    Any,
    /// The object, if it holds it.
    Holders,
}

/// Another server has not brought an object.
struct Miss {
    server: Alternate,
    reason: String,
}

/// Whether these bytes are what is wanted: servers may cut objects in other places.
fn fits(meta: &Meta, want: &Want) -> Result<(), String> {
    let (is_whole, end) = (
        meta.object_length == Some(meta.length),
        meta.offset + meta.length,
    );
    let is_last = meta.object_length == Some(end);
    let is_mutable = !matches!(meta.delivery, Delivery::Coded(_)) && is_whole;
    let fits = match want {
        Want::Whole(max) => meta.offset == 0 && is_mutable && meta.length <= *max,
        Want::Head(max) => meta.offset == 0 && (meta.length == *max || (is_whole && end <= *max)),
        Want::Part(range) => {
            meta.offset == range.start && (end == range.end || (is_last && end < range.end))
        }
        Want::Listed(range) => meta.offset == range.start && end == range.end,
    };
    match fits {
        true => Ok(()),
        false => Err("it cuts the object in another way".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{SegmentId, Shape};

    fn meta(offset: u64, length: u64, object_length: Option<u64>) -> Meta {
        Meta {
            request: 1,
            path: "/live/a.ts".to_owned(),
            id: SegmentId::of(b""),
            offset,
            length,
            object_length,
            version: 1,
            max_age_ms: 0,
            content_type: String::new(),
            delivery: Delivery::Coded(Shape::new(length, 4096, 128).unwrap()),
            signature: None,
            tree: None,
        }
    }

    #[test]
    fn only_bytes_that_are_cut_as_wanted_are_taken() {
        const PART: u64 = 1 << 20;
        let part = PART..2 * PART;
        for (want, meta, is_fit) in [
            (Want::Head(PART), meta(0, 1000, Some(1000)), true),
            (Want::Head(PART), meta(0, PART, Some(3 * PART)), true),
            (Want::Head(PART), meta(0, PART / 2, Some(3 * PART)), false),
            (Want::Head(PART), meta(0, 2 * PART, Some(3 * PART)), false),
            (Want::Part(part.clone()), meta(PART, PART, None), true),
            (
                Want::Part(part.clone()),
                meta(PART, 10, Some(PART + 10)),
                true,
            ),
            (Want::Part(part.clone()), meta(PART, 10, None), false),
            (Want::Part(part.clone()), meta(0, PART, None), false),
            (Want::Listed(5..9), meta(5, 4, Some(100)), true),
            (Want::Listed(5..9), meta(5, 3, Some(8)), false),
            // A playlist is not coded.
            (Want::Whole(PART), meta(0, 1000, Some(1000)), false),
        ] {
            assert_eq!(fits(&meta, &want).is_ok(), is_fit, "{want:?}, {meta:?}");
        }
    }
}
