//! One publishing point: its requests, fetches and their consequences.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use ncs_serve::turns::{self, Gate, Place, Refused, Wanted, Wish};
use prometheus::IntCounter;
use tokio::sync::{Notify, Semaphore, broadcast, watch};
use tracing::Instrument as _;

use super::catalogue::{Catalogue, Description, Document, Found, Limits, Name, ObjectPart};
use super::clock::Clock;
use super::metrics::Metrics;
use super::signer::wall_clock;
use super::{Settings, unknown};
use crate::ingest::members::Members;
use crate::ingest::planner::{self, Cut, Followed, Plan, Planner, Step};
use crate::ingest::{self, Error, Fetch, Fetched, Object, ObjectPath, Parameters, Source, Want};
use crate::object::{
    Arrival, AskedBy, Birth, Body, Coding, Held, Refusal, RefusalCode, Resolved, SegmentId,
};
use crate::secret::redacted_path;
use crate::store::{self, Placement, Store};
use crate::supervise::{self, Supervisor};
use crate::telemetry::MILESTONE;
use crate::telemetry::quiet::{self, RateLimited};

/// Shared by all points.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: ingest::Config,
    pub(super) store: Store,
    pub(super) metrics: Metrics,
    pub(super) arrivals: broadcast::Sender<Arrival>,
    /// Permits for queued and for running computations of checksums.
    pub(super) checks: Semaphore,
    pub(super) checks_at_once: Semaphore,
    /// Permits for parsing long playlists.
    pub(super) reading: Semaphore,
    /// The guard of fetches.
    pub(super) supervisor: Supervisor,
    /// The other servers of the fleet.
    pub(super) members: Members,
}

/// A stream.
#[derive(Debug)]
pub(super) struct Point {
    name: String,
    settings: ArcSwap<Settings>,
    pub(super) source: Arc<dyn Source>,
    shared: Arc<Shared>,
    planner: Mutex<Planner>,
    catalogue: Mutex<Catalogue>,
    /// Fetches in progress, with their numbers in `gate`.
    flights: Mutex<HashMap<Errand, (u64, Outcome)>>,
    gate: Arc<Gate>,
    waiters: Semaphore,
    fault: Mutex<Option<String>>,
    lines: RateLimited<Line>,
    /// By which answers are issued.
    clock: Mutex<Clock>,
    unreadable: IntCounter,
    /// Whether the stream was withdrawn: the results of its last fetches are dropped.
    is_closed: Arc<AtomicBool>,
    pub(super) announced: broadcast::Sender<Arc<Resolved>>,
    /// Notified when there may be something new to follow.
    pub(super) planned: Notify,
}

/// The purpose of a fetch. Equal ones share a fetch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Errand {
    Document(ObjectPath),
    Part(ObjectPath, u64),
}

/// Log lines that peers can cause by their requests, so they are rate-limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Line {
    Unreadable,
    Changed,
    Refused,
    Restarted,
    Standing,
    Answers,
}

/// Receives the result of a fetch.
type Outcome = watch::Receiver<Option<Result<Arc<Resolved>, Refusal>>>;

/// The same for one waiting request. If all requests of a fetch are dropped before it begins, it is
/// cancelled.
struct Landing {
    outcome: Outcome,
    _wish: Option<Wish>,
}

impl Point {
    pub(super) fn new(
        name: &str,
        settings: Settings,
        source: Arc<dyn Source>,
        shared: Arc<Shared>,
        announced: broadcast::Sender<Arc<Resolved>>,
        unreadable: IntCounter,
    ) -> Self {
        let config = &shared.config;
        let limits = Limits {
            objects_max: usize::try_from(config.objects_max).unwrap_or(usize::MAX),
            bytes_max: config.small_bytes_max.as_u64(),
        };
        let queued = usize::from(config.fetches_queued_max);
        let turns = turns::Limits {
            places: usize::from(config.fetches_max.max(1)),
            queued,
            queued_by_session: (queued / SESSION_PART).max(1),
        };
        let waiters_max = usize::try_from(config.waiters_max)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        let mut planner = Planner::new(planning(&settings, config), source.base().cloned());
        planner.pin(settings.playlists.clone(), Instant::now());
        Self {
            name: name.to_owned(),
            planner: Mutex::new(planner),
            catalogue: Mutex::new(Catalogue::new(limits)),
            flights: Mutex::new(HashMap::new()),
            gate: Gate::new(turns),
            waiters: Semaphore::new(waiters_max),
            fault: Mutex::new(None),
            lines: RateLimited::new(TELL_EVERY),
            clock: Mutex::default(),
            unreadable,
            is_closed: Arc::default(),
            announced,
            planned: Notify::new(),
            settings: ArcSwap::from_pointee(settings),
            source,
            shared,
        }
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Changes the settings of the same place. Held segments keep their shapes.
    pub(super) fn configure(&self, settings: Settings) {
        let mut planner = self.planner();
        planner.configure(planning(&settings, &self.shared.config));
        planner.pin(settings.playlists.clone(), Instant::now());
        drop(planner);
        self.source.set_key(settings.key());
        self.settings.store(Arc::new(settings));
        self.planned.notify_one();
    }

    /// Takes in no more segments.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub(super) fn fault(&self) -> Option<String> {
        lock(&self.fault).clone()
    }

    pub(super) fn planner(&self) -> MutexGuard<'_, Planner> {
        lock(&self.planner)
    }

    pub(super) fn catalogue(&self) -> MutexGuard<'_, Catalogue> {
        lock(&self.catalogue)
    }

    /// Answers a request.
    pub(super) async fn resolve(
        self: &Arc<Self>,
        path: &ObjectPath,
        offset: u64,
        by: AskedBy,
    ) -> Result<Resolved, Refusal> {
        let path = self.place_of(path);
        if self.is_mutable(&path) || self.catalogue().document(&path).is_some() {
            return self.document(&path, by).await;
        }
        if let Some(answer) = self.held(&path, offset, Instant::now()) {
            self.shared.metrics.held.inc();
            return answer;
        }
        let (part, by) = {
            let planner = self.planner();
            let part = planner.part(&path, offset, self.shared.config.segment_max_bytes.as_u64());
            let cut = Cut {
                path: path.clone(),
                range: part.listed.then(|| part.range.clone()),
            };
            (part, wanted(planner.edge(&cut), Some(by)))
        };
        let resolved = self
            .wait(self.begin(Errand::Part(path, part.range.start), false, by)?)
            .await?;
        self.shared.metrics.fetched.inc();
        let covers = resolved.offset + resolved.length > offset
            || matches!(resolved.body, Body::Whole(_))
            || offset == 0;
        if covers {
            Ok(Arc::unwrap_or_clone(resolved))
        } else {
            Err(beyond(resolved.object_length))
        }
    }

    /// Answers a request from what is held. A playlist changes, and is never held in this sense.
    pub(super) fn resolve_held(&self, path: &ObjectPath, offset: u64) -> Result<Resolved, Refusal> {
        let path = self.place_of(path);
        let is_held = !self.is_mutable(&path);
        let answer = is_held
            .then(|| self.held(&path, offset, Instant::now()))
            .flatten();
        if answer.is_some() {
            self.shared.metrics.held.inc();
        }
        answer.unwrap_or_else(|| Err(unknown("not held here")))
    }

    /// The path under which an object is kept.
    fn place_of(&self, path: &ObjectPath) -> ObjectPath {
        match self.source.has_queries() {
            true => path.with_parameters(&self.settings().parameters),
            false => path.without_query(),
        }
    }

    async fn document(
        self: &Arc<Self>,
        path: &ObjectPath,
        by: AskedBy,
    ) -> Result<Resolved, Refusal> {
        let now = Instant::now();
        let by = {
            let mut planner = self.planner();
            planner.asked(path, now);
            wanted(planner.followed(path), Some(by))
        };
        self.planned.notify_one();
        let resolved = match self.held(path, 0, now) {
            Some(answer) => {
                self.shared.metrics.held.inc();
                answer?
            }
            None => {
                let resolved = self
                    .wait(self.begin(Errand::Document(path.clone()), false, by)?)
                    .await?;
                self.shared.metrics.fetched.inc();
                Arc::unwrap_or_clone(resolved)
            }
        };
        let (still, retry_after) = {
            let planner = self.planner();
            (
                planner.stale(path, Instant::now()),
                planner.target_duration(path),
            )
        };
        let Some(still) = still else {
            return Ok(resolved);
        };
        self.shared.metrics.playlists_standing.inc();
        let reason = format!(
            "the live playlist has not changed for {} s",
            still.as_secs()
        );
        self.tell(Line::Standing, |suppressed| {
            let (place, unchanged_s) = (self.place(path), still.as_secs());
            tracing::warn!(
                place,
                unchanged_s,
                suppressed,
                "a live playlist does not change, and is refused: check the encoder"
            );
        });
        Err(Refusal {
            code: RefusalCode::Origin,
            retry_after,
            reason,
        })
    }

    /// The place of an object at its origin, for the log.
    fn place(&self, path: &ObjectPath) -> String {
        self.source.base().map_or_else(
            || redacted_path(&format!("/{}/{path}", self.name)),
            |base| path.request(base),
        )
    }

    /// The answer without a fetch, if possible.
    fn held(
        &self,
        path: &ObjectPath,
        offset: u64,
        now: Instant,
    ) -> Option<Result<Resolved, Refusal>> {
        let settings = self.settings();
        let found = self.catalogue().find(path, offset);
        match found {
            Found::Document(document) => {
                if let Some(left) = document.fresh_for(settings.playlist_age, now) {
                    return Some(Ok(self.whole(path, &document, left)));
                }
            }
            Found::Part(description, part, checked) => {
                let age = now.saturating_duration_since(checked);
                let body = || match &part.inline {
                    Some(bytes) => Some(Body::Inline(bytes.clone())),
                    None => self.stored(&part).map(Body::Coded),
                };
                if let Some((left, body)) = settings.segment_age.checked_sub(age).zip(body()) {
                    return Some(Ok(self.resolved(path, &description, &part, left, body)));
                }
            }
            Found::Beyond(length) => return Some(Err(beyond(Some(length)))),
            Found::Nothing => {}
        }
        self.catalogue().refusal(path, now).map(Err)
    }

    /// A usable held segment: with a key, its blocks must be hashed.
    fn stored(&self, part: &ObjectPart) -> Option<Held> {
        let is_signed = self.settings().signer.is_some();
        self.shared
            .store
            .lookup(&part.id, Some(part.coding?))
            .filter(|held| held.blocks_digest.is_some() || !is_signed)
    }

    /// Sets the expiry of segments.
    fn expire(&self, names: &[Name], at: Instant) {
        let held = names
            .iter()
            .filter_map(|(id, coding)| Some((id, (*coding)?)));
        held.for_each(|(id, coding)| self.shared.store.expire(id, coding, at));
    }

    /// The time of a new answer of the origin.
    fn issue(&self) -> u64 {
        let now = Instant::now();
        self.agreed_clock(now).issue(now, wall_clock())
    }

    /// The clock, which goes by the fleet's time where there is one.
    fn agreed_clock(&self, now: Instant) -> MutexGuard<'_, Clock> {
        let mut clock = lock(&self.clock);
        let others = || self.shared.members.times(now);
        if let Some(other_ms) = clock.agree(now, wall_clock(), others) {
            tracing::warn!(
                stream = self.name,
                other_ms,
                "the only other server that tells a time has one that is more than a day away from \
                 this server's clock: one of the two is wrong"
            );
        }
        clock
    }

    /// The time with which it issues answers now, in milliseconds since 1970; nothing if it has
    /// neither issued nor heard one.
    pub(super) fn time(&self) -> Option<u64> {
        let now = Instant::now();
        self.agreed_clock(now).now(now, wall_clock())
    }

    /// Renames an answer to the requested path.
    pub(super) fn named(&self, path: &str, mut resolved: Resolved) -> Resolved {
        if resolved.path != path {
            path.clone_into(&mut resolved.path);
            let issued_ms = resolved
                .signature
                .take()
                .map(|signature| signature.issued_ms);
            if let (Some(issued_ms), Some(signer)) = (issued_ms, &self.settings().signer) {
                signer.sign(&mut resolved, issued_ms, &self.shared.metrics.signed_metas);
            }
        }
        resolved
    }

    /// The guard of its tasks.
    pub(super) fn supervisor(&self) -> &Supervisor {
        &self.shared.supervisor
    }

    /// Begins a fetch, or joins the one in progress.
    fn begin(self: &Arc<Self>, errand: Errand, live: bool, by: Wanted) -> Result<Landing, Refusal> {
        let mut flights = lock(&self.flights);
        if let Some((fetch, outcome)) = flights.get(&errand) {
            // Otherwise it was cancelled, and its task has not noticed yet.
            if let Ok(wish) = self.gate.join(*fetch, by) {
                self.shared.metrics.coalesced.inc();
                return Ok(Landing {
                    outcome: outcome.clone(),
                    _wish: wish,
                });
            }
        }
        let (place, wish) = self.gate.enter(by).map_err(crowded)?;
        let (outcome, landing) = watch::channel(None);
        flights.insert(errand.clone(), (place.fetch(), landing.clone()));
        let flight = Flight {
            point: Arc::clone(self),
            errand,
            fetch: place.fetch(),
        };
        let by = by.account();
        let (Errand::Document(path) | Errand::Part(path, _)) = &flight.errand;
        let span = tracing::debug_span!(
            "fetch",
            stream = self.name,
            path = redacted_path(path.as_str())
        );
        let fetch = async move {
            let result = match &flight.errand {
                Errand::Document(path) => flight.point.fetch_document(path, by, place).await,
                Errand::Part(path, offset) => {
                    flight
                        .point
                        .fetch_part(path, *offset, (live, by), place)
                        .await
                }
            };
            // The result is in the catalogue; later requests find it there.
            drop(flight);
            let _ = outcome.send(Some(result.map(Arc::new)));
        };
        tokio::spawn(
            self.shared
                .supervisor
                .contained(supervise::ServerPart::Fetch, fetch.instrument(span)),
        );
        Ok(Landing {
            outcome: landing,
            _wish: Some(wish),
        })
    }

    async fn wait(&self, mut landing: Landing) -> Result<Arc<Resolved>, Refusal> {
        let _waiter = self
            .waiters
            .try_acquire()
            .map_err(|_| overload("too many requests are waiting"))?;
        let outcome = landing
            .outcome
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(internal("the fetch was cancelled")))
    }

    async fn fetch_document(
        self: &Arc<Self>,
        path: &ObjectPath,
        by: Option<u128>,
        mut place: Place,
    ) -> Result<Resolved, Refusal> {
        place.turn().await.map_err(crowded)?;
        if let Some(answer) = self.held(path, 0, Instant::now()) {
            return answer;
        }
        let settings = self.settings();
        let before = self.catalogue().document(path).cloned();
        let known = before
            .as_ref()
            .map(|document| document.description.validators.clone())
            .filter(|known| !known.is_empty());
        let fetch = Fetch {
            path: path.clone(),
            want: Want::Whole(settings.playlist_max_bytes),
            known,
            part_of: None,
        };
        self.shared.members.greeted().await;
        let outcome = self.source.fetch(fetch).await;
        let now = Instant::now();
        self.note(&outcome);
        match (outcome, before) {
            (Ok(Fetched::NotModified), Some(document)) => {
                self.planner().unchanged(path, now);
                Ok(self.keep_document(path, document, now))
            }
            (Ok(Fetched::NotModified), None) => {
                Err(internal("an answer to a question that was not asked"))
            }
            (Ok(Fetched::Object(object)), before) => {
                self.accept_document((path, by), object, before, now).await
            }
            (Err(error), Some(document))
                if error.is_transient()
                    && now.saturating_duration_since(document.confirmed)
                        < settings.playlist_grace =>
            {
                tracing::debug!(
                    stream = self.name,
                    path = redacted_path(path.as_str()),
                    %error,
                    "using the playlist at hand",
                );
                Ok(self.whole(path, &document, settings.playlist_age))
            }
            (Err(error), before) => {
                if before.is_some() && !error.is_transient() {
                    self.drop_document(path, now);
                }
                Err(self.refuse(path, &error, now))
            }
        }
    }

    /// Turns a fetched object into a document; a long one on the blocking pool. A parsed playlist
    /// takes many times its size in memory, so few long ones are parsed at once.
    async fn accept_document(
        self: &Arc<Self>,
        (path, by): (&ObjectPath, Option<u128>),
        object: Object,
        before: Option<Document>,
        now: Instant,
    ) -> Result<Resolved, Refusal> {
        if object.bytes.len() <= READ_IN_PLACE && self.planner().listed(path) <= LISTED_IN_PLACE {
            return self.read_document((path, by), object, before, now);
        }
        let _turn = self
            .shared
            .reading
            .acquire()
            .await
            .map_err(|_| internal("the server is stopping"))?;
        let (point, path) = (Arc::clone(self), path.clone());
        let read = tokio::task::spawn_blocking(move || {
            point.read_document((&path, by), object, before, now)
        });
        read.await
            .map_err(|_| internal("a document could not be read"))?
    }

    /// Turns a fetched object into a document, and applies the plan of a playlist.
    fn read_document(
        self: &Arc<Self>,
        (path, by): (&ObjectPath, Option<u128>),
        object: Object,
        before: Option<Document>,
        now: Instant,
    ) -> Result<Resolved, Refusal> {
        let mut bytes = object.bytes;
        let content_type = content_type(path, object.content_type);
        let is_playlist =
            matches!(path.extension().as_str(), "m3u8" | "m3u") || is_playlist_type(&content_type);
        let mut plan = Plan::default();
        if is_playlist {
            let reader = self.planner().reader(path, by, now);
            let outcome = reader
                .read(&bytes)
                .and_then(|mut reading| self.plan(|planner| planner.take(&mut reading, now)));
            match (outcome, before) {
                (
                    Ok(Plan {
                        step: Step::Lagging,
                        ..
                    }),
                    Some(document),
                ) => {
                    self.shared.metrics.playlists_lagging.inc();
                    return Ok(self.keep_document(path, document, now));
                }
                (Ok(next), _) => plan = next,
                (Err(planner::Error::NoPlaylist), _) => {
                    self.unreadable.inc();
                    let error = Error::Protocol(planner::Error::NoPlaylist.to_string());
                    return Err(self.refuse(path, &error, now));
                }
                (Err(error), _) => {
                    self.unreadable.inc();
                    self.tell(Line::Unreadable, |suppressed| {
                        let (stream, path) = (&self.name, redacted_path(path.as_str()));
                        tracing::warn!(
                            stream,
                            path,
                            %error,
                            suppressed,
                            "serving a playlist, but not fetching its segments ahead",
                        );
                    });
                }
            }
            let local = self
                .source
                .base()
                .and_then(|base| planner::localise(&bytes, path, base, &self.name));
            bytes = local.map_or(bytes, Bytes::from);
        }
        let length = Some(length_of(&bytes));
        let version = object.validators.version(length);
        let issued_ms = self.issue();
        let description = Description {
            version,
            validators: object.validators,
            length,
            content_type,
            issued_ms,
        };
        let document = Document {
            description,
            id: SegmentId::of(&bytes),
            bytes,
            checked: Some(now),
            confirmed: now,
        };
        self.catalogue().put_document(path, document.clone());
        let followed = self.planner().followed(path);
        self.apply(plan, followed, now);
        Ok(self.whole(path, &document, self.settings().playlist_age))
    }

    fn keep_document(&self, path: &ObjectPath, mut document: Document, now: Instant) -> Resolved {
        document.checked = Some(now);
        document.confirmed = now;
        document.description.issued_ms = self.issue();
        let resolved = self.whole(path, &document, self.settings().playlist_age);
        self.catalogue().put_document(path, document);
        resolved
    }

    /// Forgets a removed mutable object, and lets go of the segments that it listed.
    pub(super) fn drop_document(self: &Arc<Self>, path: &ObjectPath, now: Instant) {
        self.catalogue().forget(path);
        let forgotten = self.plan(|planner| planner.forget(path, now));
        let point = Arc::clone(self);
        let is_long = forgotten.len() > LISTED_IN_PLACE;
        let apply = move || point.apply(forgotten.plan(), None, now);
        if is_long {
            tokio::task::spawn_blocking(apply);
        } else {
            apply();
        }
    }

    /// Changes the planner, and counts the change in memory.
    fn plan<T>(&self, change: impl FnOnce(&mut Planner) -> T) -> T {
        let mut planner = self.planner();
        let before = planner.bytes();
        let outcome = change(&mut planner);
        self.shared
            .metrics
            .listed_bytes
            .add(signed(planner.bytes()) - signed(before));
        outcome
    }

    async fn fetch_part(
        self: &Arc<Self>,
        path: &ObjectPath,
        offset: u64,
        (live, by): (bool, Option<u128>),
        mut place: Place,
    ) -> Result<Resolved, Refusal> {
        place.turn().await.map_err(crowded)?;
        if let Some(answer) = self.held(path, offset, Instant::now()) {
            return answer;
        }
        let planned =
            self.planner()
                .part(path, offset, self.shared.config.segment_max_bytes.as_u64());
        let want = match (planned.listed, planned.range.start) {
            (true, _) => Want::Listed(planned.range),
            (false, 0) => Want::Head(planned.range.end),
            (false, _) => Want::Part(planned.range),
        };
        let known = match self.catalogue().find(path, offset) {
            Found::Part(description, part, _)
                if part.inline.is_some() || self.stored(&part).is_some() =>
            {
                Some(description.validators).filter(|known| !known.is_empty())
            }
            _ => None,
        };
        let part_of = self
            .catalogue()
            .validators(path)
            .filter(|_| known.is_none());
        let mut fetch = Fetch {
            path: path.clone(),
            want,
            known,
            part_of,
        };
        self.shared.members.greeted().await;
        let mut outcome = self.source.fetch(fetch.clone()).await;
        if let Ok(Fetched::NotModified) = outcome {
            let now = Instant::now();
            self.catalogue().confirm(path, now, self.issue());
            if let Some(answer) = self.held(path, offset, now) {
                return answer;
            }
            // It was evicted during the request.
            fetch.known = None;
            outcome = self.source.fetch(fetch.clone()).await;
        }
        self.note(&outcome);
        let now = Instant::now();
        if let Ok(Fetched::Object(Object {
            issued_ms: Some(issued_ms),
            ..
        })) = outcome
        {
            self.agreed_clock(now).hear(now, wall_clock(), issued_ms);
        }
        match outcome {
            Ok(Fetched::Object(object)) if is_document(path, &object) => {
                self.accept_document((path, by), object, None, now).await
            }
            Ok(Fetched::Object(object)) => {
                // The fetch is done; hashing may take far longer, and has its own turns.
                drop(place);
                self.accept_part(path, object, &fetch.want, live).await
            }
            Ok(Fetched::NotModified) => Err(internal("an answer to a question that was not asked")),
            Err(Error::OutOfRange(length)) if !matches!(fetch.want, Want::Listed(_)) => {
                Err(beyond(length))
            }
            Err(Error::Changed) => {
                self.invalidate(path, now);
                self.shared.metrics.changed.inc();
                self.tell_changed(path);
                Err(Refusal {
                    code: RefusalCode::Changed,
                    retry_after: Some(RETRY_SOON),
                    reason: Error::Changed.to_string(),
                })
            }
            Err(error) => {
                if error == Error::NotFound {
                    self.let_go(
                        &Cut {
                            path: path.clone(),
                            range: None,
                        },
                        now,
                    );
                }
                Err(self.refuse(path, &error, now))
            }
        }
    }

    async fn accept_part(
        self: &Arc<Self>,
        path: &ObjectPath,
        object: Object,
        want: &Want,
        live: bool,
    ) -> Result<Resolved, Refusal> {
        let now = Instant::now();
        let content_type = content_type(path, object.content_type.clone());
        let length = length_of(&object.bytes);
        let description = Description {
            version: object.validators.version(object.length),
            validators: object.validators,
            length: object.length,
            content_type,
            issued_ms: self.issue(),
        };
        let is_small = length < INLINE_MAX;
        let body = if is_small {
            Body::Inline(object.bytes.clone())
        } else {
            let range =
                matches!(want, Want::Listed(_)).then(|| object.offset..object.offset + length);
            let cut = Cut {
                path: path.clone(),
                range,
            };
            let birth = (live || self.planner().is_edge(&cut)).then(|| Birth::new(object.complete));
            Body::Coded(self.store(path, object.bytes.clone(), birth).await?)
        };
        let (id, coding) = match &body {
            Body::Coded(held) => (held.lease.id, Some(held.lease.shape.coding())),
            _ => (SegmentId::of(&object.bytes), None),
        };
        let part = ObjectPart {
            id,
            coding,
            offset: object.offset,
            length,
            inline: is_small.then_some(object.bytes),
        };
        let admitted = self
            .catalogue()
            .admit(path, description.clone(), part.clone(), now);
        self.expire(&admitted.dropped, now);
        if admitted.changed {
            self.shared.metrics.changed.inc();
            self.tell_changed(path);
        }
        if admitted.changed && part.offset > 0 {
            let reason = "the object changed at the origin while its parts were fetched".to_owned();
            return Err(Refusal {
                code: RefusalCode::Changed,
                retry_after: Some(RETRY_SOON),
                reason,
            });
        }
        let description = Description {
            version: admitted.version,
            length: admitted.length,
            ..description
        };
        Ok(self.resolved(path, &description, &part, self.settings().segment_age, body))
    }

    /// Takes a document that another process has left, unless there is one.
    pub(super) fn inherit_document(&self, path: &ObjectPath, document: Document) {
        lock(&self.clock).inherit(document.description.issued_ms);
        let mut catalogue = self.catalogue();
        if catalogue.known(path).is_none() {
            catalogue.put_document(path, document);
        }
    }

    /// Takes a part of an object that another process has left. Its segment, if it is coded.
    pub(super) async fn inherit_part(
        &self,
        path: &ObjectPath,
        description: Description,
        (offset, bytes): (u64, Bytes),
        checked: Instant,
    ) -> Option<(SegmentId, Coding)> {
        lock(&self.clock).inherit(description.issued_ms);
        let length = length_of(&bytes);
        let is_small = length < INLINE_MAX;
        let (id, coding) = if is_small {
            (SegmentId::of(&bytes), None)
        } else {
            let held = self.store(path, bytes.clone(), None).await.ok()?;
            (held.lease.id, Some(held.lease.shape.coding()))
        };
        let part = ObjectPart {
            id,
            coding,
            offset,
            length,
            inline: is_small.then_some(bytes),
        };
        let mut catalogue = self.catalogue();
        // What this process has fetched itself is newer.
        let is_known = catalogue.validators(path);
        if is_known.is_none_or(|known| known == description.validators) {
            let admitted = catalogue.admit(path, description, part, checked);
            drop(catalogue);
            self.expire(&admitted.dropped, Instant::now());
        }
        Some((id, coding?))
    }

    /// Notes a use of an object.
    pub(super) fn touch(&self, path: &ObjectPath) {
        let mut catalogue = self.catalogue();
        catalogue.touch(path);
        let known = catalogue.known(path);
        drop(catalogue);
        for (id, coding) in known.iter().flat_map(|known| known.names(None)) {
            if let Some(coding) = coding {
                self.shared.store.lookup(&id, Some(coding));
            }
        }
    }

    async fn store(
        &self,
        path: &ObjectPath,
        bytes: Bytes,
        birth: Option<Arc<Birth>>,
    ) -> Result<Held, Refusal> {
        let settings = self.settings();
        let shape = settings.shape(length_of(&bytes)).map_err(|error| Refusal {
            code: RefusalCode::Limit,
            retry_after: None,
            reason: error.to_string(),
        })?;
        let eager = birth.is_some();
        let Settings {
            first_pass,
            row_weight,
            ..
        } = *settings;
        let hashed = settings.signer.is_some();
        let path = Some(format!("/{}/{path}", self.name).into());
        let withdrawn = Arc::clone(&self.is_closed);
        let placement = Placement {
            expires: None,
            first_pass,
            row_weight,
            birth,
            eager,
            path,
            hashed,
            withdrawn,
        };
        self.shared
            .store
            .insert(bytes, shape, placement)
            .await
            .map_err(|error| {
                if error != store::Error::Withdrawn {
                    let stream = &self.name;
                    self.tell(Line::Refused, |suppressed| {
                        tracing::warn!(stream, %error, suppressed, "the store refuses a segment");
                    });
                }
                let (code, retry_after) = match error {
                    store::Error::Full { .. } => (RefusalCode::Overload, Some(RETRY_SOON)),
                    store::Error::TooLarge { .. } => (RefusalCode::Limit, None),
                    store::Error::Withdrawn => (RefusalCode::Unknown, None),
                    store::Error::Device(_) => (RefusalCode::Internal, Some(RETRY_SOON)),
                };
                Refusal {
                    code,
                    retry_after,
                    reason: error.to_string(),
                }
            })
    }

    /// Applies the plan of a playlist, which is followed as `followed` says.
    fn apply(self: &Arc<Self>, plan: Plan, followed: Option<Followed>, now: Instant) {
        if plan.step == Step::Restarted {
            // Names that left the window long ago may be reused too.
            let parents = plan
                .dropped
                .iter()
                .chain(&plan.prefetch)
                .map(|cut| cut.path.parent())
                .collect();
            let names = self.catalogue().forget_in(&parents);
            self.expire(&names, now);
            let stream = &self.name;
            self.tell(Line::Restarted, |suppressed| {
                tracing::info!(name: MILESTONE, stream, suppressed, "the encoder restarted")
            });
        }
        for cut in &plan.left {
            self.let_go(cut, now);
        }
        self.planned.notify_one();
        if !plan.prefetch.is_empty() {
            self.prefetch(plan.prefetch, followed);
        }
    }

    /// Keeps a cut for the retention time, then forgets it.
    pub(super) fn let_go(&self, cut: &Cut, now: Instant) {
        let at = now + self.settings().retention;
        let names = self.catalogue().leave(cut.clone(), at);
        self.expire(&names, at);
    }

    /// Forgets a path.
    pub(super) fn invalidate(&self, path: &ObjectPath, now: Instant) {
        let names = self.catalogue().forget(path);
        self.expire(&names, now);
    }

    /// Prefetches cuts, all at once, and announces them in order.
    pub(super) fn prefetch(self: &Arc<Self>, cuts: Vec<Cut>, followed: Option<Followed>) {
        let (point, by) = (Arc::clone(self), wanted(followed, None));
        tokio::spawn(
            self.shared
                .supervisor
                .contained(supervise::ServerPart::Fetch, async move {
                    let begun: Vec<_> = cuts
                        .iter()
                        .map(|cut| point.begin_prefetch(cut, by))
                        .collect();
                    for (cut, landing) in cuts.iter().zip(begun) {
                        match point.wait_patiently(cut, by, landing).await {
                            Ok(resolved) => point.announce(resolved),
                            Err(refusal) => {
                                point.shared.metrics.prefetch_failed.inc();
                                tracing::debug!(
                                    stream = point.name,
                                    path = redacted_path(cut.path.as_str()),
                                    reason = refusal.reason,
                                    "not fetched ahead"
                                );
                            }
                        }
                    }
                }),
        );
    }

    /// Waits for a prefetch, and retries: a playlist may be ahead of its objects, while these are
    /// being replicated.
    async fn wait_patiently(
        self: &Arc<Self>,
        cut: &Cut,
        by: Wanted,
        mut landing: Result<Landing, Refusal>,
    ) -> Result<Arc<Resolved>, Refusal> {
        for _ in 0..PREFETCH_RETRIES {
            let refusal = match landing {
                Ok(landing) => match self.wait(landing).await {
                    Ok(resolved) => return Ok(resolved),
                    Err(refusal) => refusal,
                },
                Err(refusal) => refusal,
            };
            let Some(pause) = refusal.retry_after else {
                return Err(refusal);
            };
            tokio::time::sleep(pause).await;
            landing = self.begin_prefetch(cut, by);
        }
        self.wait(landing?).await
    }

    fn begin_prefetch(self: &Arc<Self>, cut: &Cut, by: Wanted) -> Result<Landing, Refusal> {
        self.catalogue().welcome(&cut.path);
        let offset = cut.range.as_ref().map_or(0, |range| range.start);
        self.begin(Errand::Part(cut.path.clone(), offset), true, by)
    }

    fn announce(&self, resolved: Arc<Resolved>) {
        if let Body::Coded(held) = &resolved.body {
            // Both channels may have no receiver.
            let (segment, shape, row_weight) = (held.lease.key, held.lease.shape, held.row_weight);
            let _ = self.shared.arrivals.send(Arrival {
                stream: self.name.as_str().into(),
                segment,
                shape,
                row_weight,
            });
        }
        self.shared.metrics.announced.inc();
        let _ = self.announced.send(resolved);
    }

    /// Asks the origin for a mutable object whatever its age; fetches it in full if it is known to
    /// have changed.
    pub(super) async fn refresh(self: Arc<Self>, path: ObjectPath, has_changed: bool) {
        let errand = Errand::Document(path.clone());
        let under_way = lock(&self.flights).get(&errand).cloned();
        if let Some((_, outcome)) = under_way {
            let _ = self
                .wait(Landing {
                    outcome,
                    _wish: None,
                })
                .await;
        }
        match has_changed {
            true => self.catalogue().distrust(&path),
            false => self.catalogue().doubt(&path),
        }
        let by = wanted(self.planner().followed(&path), None);
        let outcome = match self.begin(errand, false, by) {
            Ok(landing) => self.wait(landing).await,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = outcome {
            tracing::debug!(
                stream = self.name,
                path = redacted_path(path.as_str()),
                reason = refusal.reason,
                "no playlist"
            );
        }
        self.planned.notify_one();
    }

    pub(super) fn is_mutable(&self, path: &ObjectPath) -> bool {
        self.settings().mutable.contains(&path.extension())
    }

    /// Remembers the origin's refusal of a path, and returns it.
    fn refuse(&self, path: &ObjectPath, error: &Error, now: Instant) -> Refusal {
        let age = self.shared.config.negative_age;
        let refusal = Refusal {
            code: error.code(),
            retry_after: error.retry_after(age),
            reason: error.to_string(),
        };
        // An overloaded origin is not asked before the time that it gave.
        self.catalogue().refuse(
            path,
            refusal.clone(),
            now + refusal.retry_after.unwrap_or(age),
        );
        refusal
    }

    /// Records the state of the origin for `/readyz`.
    fn note(&self, outcome: &Result<Fetched, Error>) {
        let fault = outcome
            .as_ref()
            .err()
            .filter(|error| error.is_transient() && **error != Error::Incomplete);
        let mut noted = lock(&self.fault);
        match fault {
            None if noted.is_some() => {
                let stream = &self.name;
                self.tell(Line::Answers, |suppressed| {
                    tracing::info!(name: MILESTONE, stream, suppressed, "the origin answers again")
                });
            }
            _ => {}
        }
        *noted = fault.map(ToString::to_string);
    }

    fn tell_changed(&self, path: &ObjectPath) {
        self.tell(Line::Changed, |suppressed| {
            let (stream, path) = (&self.name, redacted_path(path.as_str()));
            tracing::info!(stream, path, suppressed, "the object changed at the origin");
        });
    }

    /// Logs a line, unless one of its kind was logged a moment ago. `write` gets the number of such
    /// lines, if any.
    fn tell(&self, line: Line, write: impl FnOnce(Option<u64>)) {
        if let Some(unsaid) = self.lines.admit(line, Instant::now()) {
            write(quiet::suppressed(unsaid));
        }
    }

    fn whole(&self, path: &ObjectPath, document: &Document, max_age: Duration) -> Resolved {
        let Document {
            description,
            id,
            bytes,
            ..
        } = document;
        let part = ObjectPart {
            id: *id,
            coding: None,
            offset: 0,
            length: length_of(bytes),
            inline: None,
        };
        self.resolved(
            path,
            description,
            &part,
            max_age,
            Body::Whole(bytes.clone()),
        )
    }

    fn resolved(
        &self,
        path: &ObjectPath,
        description: &Description,
        part: &ObjectPart,
        max_age: Duration,
        body: Body,
    ) -> Resolved {
        let mut resolved = Resolved {
            path: format!("/{}/{path}", self.name),
            id: part.id,
            offset: part.offset,
            length: part.length,
            object_length: description.length,
            version: description.version,
            max_age,
            content_type: description.content_type.clone(),
            body,
            signature: None,
        };
        if let Some(signer) = &self.settings().signer {
            signer.sign(
                &mut resolved,
                description.issued_ms,
                &self.shared.metrics.signed_metas,
            );
        }
        resolved
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        let planner = self
            .planner
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        self.shared
            .metrics
            .listed_bytes
            .sub(signed(planner.bytes()));
    }
}

/// A fetch in progress. It ends when this is dropped, whatever the outcome.
struct Flight {
    point: Arc<Point>,
    errand: Errand,
    fetch: u64,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut flights = lock(&self.point.flights);
        // A cancelled fetch may have been replaced by a new one.
        if flights
            .get(&self.errand)
            .is_some_and(|(fetch, _)| *fetch == self.fetch)
        {
            flights.remove(&self.errand);
        }
    }
}

/// The purpose of a fetch, from how its object is followed and who asks.
fn wanted(followed: Option<Followed>, by: Option<AskedBy>) -> Wanted {
    match (followed, by) {
        (None, Some(by)) => Wanted::Asked(by),
        (
            Some(Followed {
                is_pinned: false, ..
            }),
            Some(by),
        ) => Wanted::Followed(by),
        (
            Some(Followed {
                is_pinned: false,
                by: Some(account),
            }),
            None,
        ) => Wanted::Followed(AskedBy {
            account,
            session: 0,
        }),
        (Some(_), _) | (None, None) => Wanted::Own,
    }
}

fn planning(settings: &Settings, config: &ingest::Config) -> planner::Config {
    let queries_max = match settings.parameters {
        Parameters::All => 1,
        Parameters::Listed(_) => LISTED_QUERIES_MAX,
    };
    planner::Config {
        prefetch: settings.prefetch.into(),
        stale_after: settings.playlist_stale_after,
        interest: INTEREST,
        queries_max,
        parameters: settings.parameters.clone(),
        bytes_max: config.listed_bytes_max.as_u64(),
    }
}

/// The origin's media type, unless it says nothing; then one by extension.
fn content_type(path: &ObjectPath, origin: Option<String>) -> String {
    let is_telling = |text: &str| {
        !text.is_empty()
            && !text.starts_with("application/octet-stream")
            && !text.starts_with("text/plain")
    };
    let by_name = TYPES
        .iter()
        .find(|(extension, _)| *extension == path.extension())
        .map(|(_, text)| (*text).to_owned());
    match (
        origin.filter(|text| text.len() <= CONTENT_TYPE_MAX),
        by_name,
    ) {
        (Some(text), _) if is_telling(&text) => text,
        (_, Some(text)) => text,
        (origin, None) => origin.unwrap_or_default(),
    }
}

/// Whether a fetched part is a whole mutable object.
fn is_document(path: &ObjectPath, object: &Object) -> bool {
    let is_whole = object.offset == 0 && object.length == Some(length_of(&object.bytes));
    is_whole && is_mutable_type(&content_type(path, object.content_type.clone()))
}

fn is_playlist_type(content_type: &str) -> bool {
    content_type.to_ascii_lowercase().contains("mpegurl")
}

fn is_mutable_type(content_type: &str) -> bool {
    is_playlist_type(content_type)
        || content_type
            .to_ascii_lowercase()
            .starts_with("application/dash+xml")
}

fn crowded(refused: Refused) -> Refusal {
    overload(match refused {
        Refused::Full => "too many fetches are waiting",
        Refused::Session => "too many fetches of this connection are waiting",
    })
}

pub(super) fn overload(reason: &str) -> Refusal {
    Refusal {
        code: RefusalCode::Overload,
        retry_after: Some(RETRY_SOON),
        reason: reason.to_owned(),
    }
}

pub(super) fn internal(reason: &str) -> Refusal {
    Refusal {
        code: RefusalCode::Internal,
        retry_after: Some(RETRY_SOON),
        reason: reason.to_owned(),
    }
}

fn beyond(length: Option<u64>) -> Refusal {
    unknown(&match length {
        Some(length) => format!("the range is outside the object, which has {length} bytes"),
        None => "the range is outside the object".to_owned(),
    })
}

fn length_of(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The maximum part of the waiting fetches for one session (one in this many).
const SESSION_PART: usize = 32;
/// Smaller documents, with fewer listed segments, are read in the task that fetched them.
const READ_IN_PLACE: usize = 32 << 10;
const LISTED_IN_PLACE: usize = 1000;
/// Smaller objects are sent within their metadata.
const INLINE_MAX: u64 = 4096;
/// Playlists of one path that are followed where `query` lists parameters.
const LISTED_QUERIES_MAX: usize = 16;
/// The interval of equal log lines of a stream.
const TELL_EVERY: Duration = Duration::from_secs(10);
const INTEREST: Duration = Duration::from_secs(30);
const RETRY_SOON: Duration = Duration::from_millis(500);
const PREFETCH_RETRIES: usize = 3;
const CONTENT_TYPE_MAX: usize = 128;

const TYPES: [(&str, &str); 20] = [
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m3u", "application/vnd.apple.mpegurl"),
    ("mpd", "application/dash+xml"),
    ("ts", "video/mp2t"),
    ("m4s", "video/iso.segment"),
    ("mp4", "video/mp4"),
    ("m4v", "video/mp4"),
    ("cmfv", "video/mp4"),
    ("m4a", "audio/mp4"),
    ("cmfa", "audio/mp4"),
    ("aac", "audio/aac"),
    ("ac3", "audio/ac3"),
    ("mp3", "audio/mpeg"),
    ("vtt", "text/vtt"),
    ("webm", "video/webm"),
    ("mkv", "video/x-matroska"),
    ("jpg", "image/jpeg"),
    ("png", "image/png"),
    ("html", "text/html"),
    ("json", "application/json"),
];
