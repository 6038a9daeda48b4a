//! The public handles: a client, and the objects that it opens.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::{Future, pending};
use std::hash::Hash;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use ncs_net::secret::redacted_path;
use ncs_proto::cache::Cache;
use ncs_proto::integrity::signing::StreamKey;
use ncs_proto::object::{Refusal, RefusalCode, SegmentId, Shape, Tree};
use ncs_proto::wire::message::{self, Delivery, Holding, PATH_MAX, is_path, is_stream_name};
use ncs_proto::wire::text::plain;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::driver::{self, Command, Of};
use super::flow::Flow;
use super::proto::{Answer, Cut, Order, Place, Proof, SourceId, Urgency};
use super::{Config, Error, KnownKeys, Listener, Stats};

/// Capacity of the driver's queue; further commands wait.
const COMMANDS_MAX: usize = 64;
/// The first of the servers that the client was told to use.
const FIRST: SourceId = SourceId(0);
/// Parts of one path with remembered metadata.
const PARTS_MAX: usize = 64;
/// Parts of an object fetched ahead of the reader. While lost blocks of one part are repeated, and
/// all of the next is requested, a third keeps the path busy.
const PARTS_AHEAD: usize = 3;
/// Bytes of parts above which no more are fetched ahead: if the reader stops, all of them are held.
const BYTES_AHEAD: u64 = 32 << 20;
/// How often one segment may occur in an object of unknown length, and for how many segments this
/// is counted.
const REPEATS_MAX: usize = 64;
const REPEATS_OF: usize = 4096;
/// Retries of a path if the server gives a time for it.
const RETRIES: usize = 3;
/// The maximum of such a time.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// Retries end this long after the first request. A slower server has waited for its origin
/// already, and the caller should hear the reason.
const RETRY_WITHIN: Duration = Duration::from_secs(10);
/// Repeated requests for a path whose segment is gone each time before it can be fetched: the
/// server lacks memory.
const ASKED_ANEW_MAX: u32 = 8;
/// The pause before retrying an object that changed during the fetch, or one that was gone twice.
const RETRY_CHANGED: Duration = Duration::from_millis(200);
/// The maximum time to close a client: its last packets leave within a few milliseconds, and are
/// repeated if a server goes on sending.
const CLOSE_WITHIN: Duration = Duration::from_millis(300);
/// Objects up to this size are hashed in place, larger ones on the blocking pool.
const HASH_HERE_MAX: usize = 64 * 1024;

/// A handle to a client. Clones share it; it ends with the last.
#[derive(Clone)]
pub struct Client {
    common: Arc<Common>,
}

struct Common {
    commands: mpsc::Sender<Command>,
    stats: watch::Receiver<Stats>,
    deadline: Option<Duration>,
    has_credential: bool,
    /// The minimum rate of an object in bytes per second, over `window`.
    rate_min: u64,
    window: Duration,
    shelf: Mutex<Shelf>,
    metas: Coalesced<(String, u64), Known>,
    segments: Coalesced<Cut, Bytes>,
    /// The proved beginnings of segments in progress.
    flows: Mutex<HashMap<Cut, Weak<Flow>>>,
    prefetches: Arc<Semaphore>,
    /// The number of readers waiting for each segment; fetches of other segments are less urgent.
    readers: Mutex<HashMap<SegmentId, usize>>,
    keys: Arc<KnownKeys>,
    listener: Option<Arc<dyn Listener>>,
}

/// Counts as a reader that waits for a segment, until dropped.
struct Reader {
    common: Arc<Common>,
    segment: SegmentId,
}

impl Reader {
    fn of(common: &Arc<Common>, segment: SegmentId) -> Self {
        *common.readers().entry(segment).or_default() += 1;
        Self {
            common: Arc::clone(common),
            segment,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut readers = self.common.readers();
        let Some(count) = readers.get_mut(&self.segment) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            readers.remove(&self.segment);
            // If the queue is full, the segment only stays more urgent than necessary.
            let _ = self
                .common
                .commands
                .try_send(Command::Urgency(self.segment, Urgency::Ahead));
        }
    }
}

impl Common {
    fn readers(&self) -> MutexGuard<'_, HashMap<SegmentId, usize>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the listener of the end of a fetch, whatever the outcome.
struct Ending {
    listener: Arc<dyn Listener>,
    cut: Cut,
    bytes: Option<Bytes>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.listener.ended(&self.cut, self.bytes.as_ref());
    }
}

/// Remembered metadata and bytes.
struct Shelf {
    paths: Cache<String, Vec<Known>>,
    bytes: Cache<SegmentId, Bytes>,
}

/// Metadata, with the bytes of objects that are not segments.
#[derive(Clone)]
struct Known {
    meta: Arc<message::Meta>,
    whole: Option<Bytes>,
    /// The source of the answer, if it was requested.
    source: Option<SourceId>,
    /// When it expires.
    until: Instant,
}

/// The properties of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Media type, empty if unknown.
    pub content_type: String,
    /// Bytes of the whole object, if known.
    pub object_length: Option<u64>,
    /// Offset of the part that covers the requested one.
    pub offset: u64,
    /// Bytes of that part.
    pub length: u64,
    /// Changes when the object changes at its origin.
    pub version: u64,
    /// How long this is valid.
    pub max_age: Duration,
    /// Whether the object is sent whole, as playlists are, and may change.
    pub mutable: bool,
    /// The shape and code of the part, unless the object is sent whole.
    pub shape: Option<Shape>,
    /// The key that has signed this.
    pub key: Option<StreamKey>,
}

/// An object being read.
#[derive(Debug)]
pub struct Object {
    /// Media type, empty if unknown.
    pub content_type: String,
    /// Bytes of the whole object, if known.
    pub length: Option<u64>,
    /// The bytes to expect; the end is `u64::MAX` if neither reader nor server gives one.
    pub range: Range<u64>,
    /// Changes when the object changes at its origin.
    pub version: u64,
    /// How long this is valid.
    pub max_age: Duration,
    /// Whether the object is sent whole, as playlists are, and may change.
    pub mutable: bool,
    bytes: ObjectBytes,
}

#[derive(Debug)]
enum ObjectBytes {
    Whole(Option<Bytes>),
    /// The sending task's handle is kept until the task is known to have sent everything.
    Coming(mpsc::Receiver<Result<Bytes, Error>>, Option<JoinHandle<()>>),
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the first server that answers, and reconnects when a connection is lost.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        let (client, connected) = Self::start(config, false);
        connected.await.unwrap_or(Err(Error::Closed))?;
        Ok(client)
    }

    /// The same, but if no server answers yet, the client keeps trying, and requests wait; the
    /// reason is returned with it. A rejected certificate, on either side, is still an error.
    pub async fn connect_when_there(config: Config) -> Result<(Self, Option<Error>), Error> {
        let (client, connected) = Self::start(config, true);
        match connected.await.unwrap_or(Err(Error::Closed)) {
            Ok(()) => Ok((client, None)),
            Err(error @ (Error::Connection(_) | Error::Untrusted(_)))
                if !client.common.commands.is_closed() =>
            {
                Ok((client, Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    fn start(config: Config, waits: bool) -> (Self, oneshot::Receiver<driver::Ready>) {
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let (publish, stats) = watch::channel(Stats::default());
        let (ready, connected) = oneshot::channel();
        let keys = Arc::default();
        let common = Common {
            commands,
            stats,
            deadline: config.deadline,
            has_credential: config.token.is_some() || config.certificate.is_some(),
            rate_min: config.rate_min.map_or(0, |rate| rate.as_u64()),
            window: config.stall_timeout,
            keys: Arc::clone(&keys),
            listener: config.listener.clone(),
            shelf: Mutex::new(Shelf {
                paths: Cache::new(config.metas.as_u64()),
                bytes: Cache::new(config.cache.as_u64()),
            }),
            metas: Coalesced::default(),
            segments: Coalesced::default(),
            flows: Mutex::default(),
            prefetches: Arc::new(Semaphore::new(config.prefetches_max)),
            readers: Mutex::default(),
        };
        tokio::spawn(driver::run(config, inbox, publish, keys, ready, waits));
        (
            Self {
                common: Arc::new(common),
            },
            connected,
        )
    }

    /// The properties of the object at `path`, from `offset` on; `length` tells how much of it is
    /// wanted, if known.
    pub async fn stat(&self, path: &str, offset: u64, length: Option<u64>) -> Result<Meta, Error> {
        Ok((&*self.meta(path, offset, length).await?.meta).into())
    }

    /// Opens an object, or a range of it.
    pub async fn open(&self, path: &str, range: Option<Range<u64>>) -> Result<Object, Error> {
        let asked = range.unwrap_or(0..u64::MAX);
        let length = (asked.end < u64::MAX)
            .then(|| asked.end.saturating_sub(asked.start))
            .filter(|length| *length > 0);
        let known = self.meta(path, asked.start, length).await?;
        let meta = known.meta.clone();
        let range = clip(&meta, &asked)?;
        let bytes = match known.whole {
            Some(whole) => ObjectBytes::Whole(Some(slice(&whole, &meta, &range))),
            None => {
                let (sender, receiver) = mpsc::channel(1);
                let pump = tokio::spawn(self.clone().pump(known, range.clone(), sender));
                ObjectBytes::Coming(receiver, Some(pump))
            }
        };
        let Meta {
            content_type,
            object_length,
            version,
            max_age,
            mutable,
            ..
        } = (&*meta).into();
        Ok(Object {
            content_type,
            length: object_length,
            range,
            version,
            max_age,
            mutable,
            bytes,
        })
    }

    /// The server's answer for a path, the bytes of an object that is not a segment, and how long
    /// this is valid: for answering others.
    pub async fn look_up(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(Arc<message::Meta>, Option<Bytes>, Duration), Error> {
        let Known {
            meta, whole, until, ..
        } = self.meta(path, offset, length).await?;
        Ok((meta, whole, until.saturating_duration_since(Instant::now())))
    }

    /// As [`Client::look_up`], but of the first server alone, and not for longer than it answers:
    /// [`Error::Gone`] comes as soon as it is silent or gone. With `held_only`, it refuses what it
    /// would have to ask others for.
    pub async fn look_up_at_first(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
        held_only: bool,
    ) -> Result<(Arc<message::Meta>, Option<Bytes>, Duration), Error> {
        let of = Of::One(FIRST, held_only);
        let known = match self.remembered(path, offset)? {
            Some(known) => known,
            None => self.ask(path.to_owned(), offset, length, of).await?,
        };
        let left = known.until.saturating_duration_since(Instant::now());
        Ok((known.meta, known.whole, left))
    }

    /// Whether [`Client::look_up`] can answer without a request.
    pub fn knows(&self, path: &str, offset: u64) -> bool {
        !matches!(self.remembered(path, offset), Ok(None))
    }

    /// The verified bytes of a segment that [`Client::look_up`] has returned.
    pub async fn fetch_segment(&self, meta: &Arc<message::Meta>) -> Result<Bytes, Error> {
        let reader = Reader::of(&self.common, meta.id);
        let fetched = self.wanted(meta).await;
        drop(reader);
        fetched
    }

    /// Announcements of new segments of a stream, each once.
    pub async fn news(&self, stream: &str) -> Result<mpsc::Receiver<message::Meta>, Error> {
        let (news, incoming) = mpsc::channel(COMMANDS_MAX);
        self.command(Command::Subscribe {
            stream: stream.to_owned(),
            news,
        })
        .await?;
        Ok(incoming)
    }

    /// Fetches the part of an object at the start of `range`, or its beginning, into the cache.
    /// Returns at once; does nothing if too many prefetches are in progress.
    pub fn prefetch(&self, path: &str, range: Option<Range<u64>>) {
        let Ok(place) = self.common.prefetches.clone().try_acquire_owned() else {
            return;
        };
        let (client, path) = (self.clone(), path.to_owned());
        tokio::spawn(async move {
            let (offset, length) = range.map_or((0, None), |range| {
                (range.start, range.end.checked_sub(range.start))
            });
            if let Ok(Known {
                meta, whole: None, ..
            }) = client.meta(&path, offset, length).await
            {
                // A failure shows when the part is requested.
                let _ = client.segment(&meta).await;
            }
            drop(place);
        });
    }

    /// Whether servers get a token or a certificate: responses may be for this user only.
    pub fn has_credential(&self) -> bool {
        self.common.has_credential
    }

    /// The known keys of streams.
    pub fn keys(&self) -> Arc<KnownKeys> {
        Arc::clone(&self.common.keys)
    }

    /// Tells all servers that this side serves others, on this UDP port, with the certificate of
    /// this SHA-256.
    pub async fn offer(&self, port: u16, identity: [u8; 32]) -> Result<(), Error> {
        self.command(Command::Offer { port, identity }).await
    }

    /// Tells the servers what has changed in this side's holdings. Call it at most a few times per
    /// second.
    pub async fn have(&self, changed: Vec<Holding>) -> Result<(), Error> {
        self.command(Command::Have(changed)).await
    }

    /// Takes this key for a stream's from now on, or without one the key that the server names
    /// next.
    pub async fn pin(&self, stream: &str, key: Option<StreamKey>) -> Result<(), Error> {
        self.command(Command::Pin(stream.to_owned(), key)).await
    }

    /// Statistics, updated several times per second during transfers.
    pub fn stats(&self) -> watch::Receiver<Stats> {
        self.common.stats.clone()
    }

    /// Closes all connections, even if others hold handles, and briefly waits for the close to
    /// leave: a server that is not told counts this viewer for another 15 s.
    pub async fn close(self) {
        let mut stats = self.stats();
        let closed = async {
            // On failure it has already ended.
            let _ = self.command(Command::Close).await;
            while stats.changed().await.is_ok() {}
        };
        let _ = tokio::time::timeout(CLOSE_WITHIN, closed).await;
    }

    /// New segments of a stream as they appear: their paths and properties. Ends when the server
    /// ends the subscription.
    pub async fn subscribe(&self, stream: &str) -> Result<mpsc::Receiver<(String, Meta)>, Error> {
        if !is_stream_name(stream) {
            return Err(Error::Path(stream.to_owned()));
        }
        let (news, mut incoming) = mpsc::channel(COMMANDS_MAX);
        self.command(Command::Subscribe {
            stream: stream.to_owned(),
            news,
        })
        .await?;
        let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
        let client = self.clone();
        tokio::spawn(async move {
            loop {
                let meta = tokio::select! {
                    () = sender.closed() => return,
                    meta = incoming.recv() => match meta {
                        Some(meta) => Arc::new(meta),
                        None => return,
                    },
                };
                client.remember(&meta, None, None);
                // A closed receiver is noticed above.
                let _ = sender.send((meta.path.clone(), (&*meta).into())).await;
            }
        });
        Ok(receiver)
    }

    /// The total time of outages.
    fn outages(&self) -> Duration {
        self.common.stats.borrow().outages
    }

    /// Sends an object to its reader as its bytes are proved, and fetches a few parts ahead.
    async fn pump(
        self,
        first: Known,
        range: Range<u64>,
        reader: mpsc::Sender<Result<Bytes, Error>>,
    ) {
        let mut loading = VecDeque::from([self.load(first.meta.clone(), &range)]);
        let mut next = self.ask_after(&first, &range);
        let mut failed = None;
        let (mut trickle, mut repeats) = (Trickle::default(), Repeats::default());
        repeats.note(&first.meta);
        loop {
            let (begun, outages) = (Instant::now(), self.outages());
            let time = || {
                begun
                    .elapsed()
                    .saturating_sub(self.outages().saturating_sub(outages))
            };
            let room = may_load(loading.iter().map(|part| part.length)) && failed.is_none();
            tokio::select! {
                () = reader.closed() => return,
                piece = front(&mut loading) => match piece {
                    None => {
                        trickle.waited += time();
                        loading.pop_front();
                    }
                    Some(piece) => {
                        trickle.waited += time();
                        let piece = piece.and_then(|bytes| {
                            trickle.check(bytes, self.common.rate_min, self.common.window)
                        });
                        let has_failed = piece.is_err();
                        if reader.send(piece).await.is_err() || has_failed {
                            return;
                        }
                    }
                },
                part = own(&mut next), if room => match part {
                    Ok(part) if repeats.note(&part.meta) > REPEATS_MAX => {
                        let reason =
                            "the object has no length and repeats one segment endlessly".to_owned();
                        failed = Some(Error::Refused(Refusal {
                            code: RefusalCode::Limit,
                            retry_after: None,
                            reason,
                        }));
                        next = None;
                    }
                    Ok(part) => {
                        trickle.waited += time();
                        next = self.ask_after(&part, &range);
                        loading.push_back(self.load(part.meta, &range));
                    }
                    Err(error) => {
                        next = None;
                        failed = Some(error);
                    }
                },
            }
            if next.is_none() && loading.is_empty() {
                if let Some(error) = failed {
                    // The reader may be gone.
                    let _ = reader.send(Err(error)).await;
                }
                return;
            }
        }
    }

    /// Begins to fetch a part, of which the reader wants the range.
    fn load(&self, meta: Arc<message::Meta>, range: &Range<u64>) -> Loading {
        let end = meta.offset + meta.length;
        let (at, end) = (
            range.start.clamp(meta.offset, end),
            range.end.clamp(meta.offset, end),
        );
        let flow = match meta.delivery {
            Delivery::Coded(shape) => self.flow(&Cut::of(&meta, shape)),
            _ => Arc::new(Flow::new()),
        };
        let (client, told) = (self.clone(), flow.watch());
        let (at, end, length) = (at - meta.offset, end - meta.offset, meta.length);
        let (kept, prefetches) = (Kept::default(), Arc::clone(&self.common.prefetches));
        let reader = Arc::new(Mutex::new(Some(Reader::of(&self.common, meta.id))));
        // The task holds these too: once the reader's own are dropped, the segment counts as unread
        // when the task ends.
        let keeping = (kept.clone(), Arc::clone(&reader));
        let reader = Arc::downgrade(&reader);
        let fetched = Task::spawn(async move {
            let fetched = client.wanted(&meta).await;
            drop(keeping);
            fetched
        });
        Loading {
            flow,
            told,
            fetched,
            is_over: false,
            at,
            end,
            length,
            kept,
            prefetches,
            reader,
        }
    }

    /// The proved beginning of a segment, shared by all fetches and readers of it.
    fn flow(&self, cut: &Cut) -> Arc<Flow> {
        let mut flows = self
            .common
            .flows
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(flow) = flows.get(cut).and_then(Weak::upgrade) {
            return flow;
        }
        flows.retain(|_, flow| flow.strong_count() > 0);
        let flow = Arc::new(Flow::new());
        flows.insert(*cut, Arc::downgrade(&flow));
        flow
    }

    /// Requests the next part of the same object, if the reader wants it.
    fn ask_after(&self, part: &Known, range: &Range<u64>) -> Option<Task<Known>> {
        let offset = part.meta.offset + part.meta.length;
        if offset >= range.end
            || part
                .meta
                .object_length
                .is_some_and(|length| offset >= length)
        {
            return None;
        }
        let (client, part) = (self.clone(), part.clone());
        let length = (range.end < u64::MAX).then(|| range.end - offset);
        Some(Task::spawn(async move {
            let path = &part.meta.path;
            let missing = |error| match error {
                Error::Refused(refusal) if refusal.code == RefusalCode::Unknown => {
                    Error::Missing(offset)
                }
                error => error,
            };
            let mut known = client.meta(path, offset, length).await.map_err(missing)?;
            if known.source.is_none() {
                known = client
                    .ask(path.clone(), offset, length, Of::All)
                    .await
                    .map_err(missing)?;
            }
            let mut attempts = 0;
            loop {
                if known.whole.is_some()
                    || known.meta.offset != offset
                    || !is_of_one_object(&part.meta, &known.meta)
                {
                    return Err(Error::Changed);
                }
                let Some(source) = known.source.filter(|_| known.source != part.source) else {
                    return Ok(known);
                };
                match client.names_alike(source, &part).await {
                    Ok(true) => return Ok(known),
                    Ok(false) => return Err(Error::Changed),
                    // That source is gone since. Others are asked.
                    Err(Error::Gone) if attempts < RETRIES => attempts += 1,
                    Err(error) => return Err(error),
                }
                known = client
                    .ask(path.clone(), offset, length, Of::All)
                    .await
                    .map_err(missing)?;
            }
        }))
    }

    /// Whether a source names this part like the source that has named it. Servers may use one
    /// version for different bytes, for example if an origin's tag stays while they change.
    async fn names_alike(&self, source: SourceId, part: &Known) -> Result<bool, Error> {
        let (path, offset) = (part.meta.path.clone(), part.meta.offset);
        let named = self
            .ask(path, offset, Some(part.meta.length), Of::One(source, false))
            .await?;
        Ok(named.meta.id == part.meta.id && is_of_one_object(&part.meta, &named.meta))
    }

    /// Metadata of the part that covers `offset`: remembered, or requested once for all callers.
    async fn meta(&self, path: &str, offset: u64, length: Option<u64>) -> Result<Known, Error> {
        if !is_path(path) {
            return Err(Error::Path(plain(path, PATH_MAX)));
        }
        if let Some(known) = self.remembered(path, offset)? {
            return Ok(known);
        }
        let client = self.clone();
        let key = (path.to_owned(), offset);
        let asked = self.common.metas.join(key.clone(), || {
            async move { client.ask(key.0, offset, length, Of::All).await }.boxed()
        });
        asked.await
    }

    /// Requests a part.
    async fn ask(
        &self,
        path: String,
        offset: u64,
        length: Option<u64>,
        of: Of,
    ) -> Result<Known, Error> {
        let (begun, mut refused, mut corrupt) = (Instant::now(), 0, false);
        loop {
            let (reply, answer) = oneshot::channel();
            self.command(Command::Get {
                path: path.clone(),
                offset,
                length,
                of,
                reply,
            })
            .await?;
            let Answer {
                meta,
                bytes,
                source,
            } = match answer.await.unwrap_or(Err(Error::Closed)) {
                Ok(answer) => answer,
                Err(Error::Refused(refusal)) => match retry_after(&refusal) {
                    Some(after) if refused < RETRIES && may_wait(begun.elapsed(), after) => {
                        refused += 1;
                        tokio::time::sleep(after).await;
                        continue;
                    }
                    _ => return Err(Error::Refused(refusal)),
                },
                Err(error) => return Err(error),
            };
            let right = match &bytes {
                Some(bytes) => has_id(bytes.clone(), meta.id).await,
                None => true,
            };
            if right {
                let meta = Arc::new(meta);
                let until = self.remember(&meta, bytes.as_ref(), Some(source));
                return Ok(Known {
                    meta,
                    whole: bytes,
                    source: Some(source),
                    until,
                });
            }
            if std::mem::replace(&mut corrupt, true) {
                return Err(Error::Corrupt);
            }
        }
    }

    /// The verified bytes of a part that a [`Reader`] waits for.
    async fn wanted(&self, meta: &Arc<message::Meta>) -> Result<Bytes, Error> {
        if self.shelf(|shelf| shelf.bytes.get(&meta.id).is_none()) {
            // A less urgent fetch may be in progress.
            self.command(Command::Urgency(meta.id, Urgency::Now))
                .await?;
        }
        self.segment(meta).await
    }

    /// The verified bytes of a part: from the cache, or fetched once for all callers.
    async fn segment(&self, meta: &Arc<message::Meta>) -> Result<Bytes, Error> {
        if let Some(bytes) = self.shelf(|shelf| shelf.bytes.get(&meta.id).cloned()) {
            // An id has only one length; another one is false.
            return if bytes.len() as u64 == meta.length {
                Ok(bytes)
            } else {
                Err(Error::Corrupt)
            };
        }
        let Delivery::Coded(shape) = meta.delivery else {
            return Err(Error::Changed);
        };
        let (client, meta) = (self.clone(), meta.clone());
        let fetched = self.common.segments.join(Cut::of(&meta, shape), || {
            let span =
                tracing::debug_span!("fetch", segment = ?meta.id, path = redacted_path(&meta.path));
            async move { client.fetch(&meta, shape).await }
                .instrument(span)
                .boxed()
        });
        fetched.await
    }

    async fn fetch(&self, meta: &Arc<message::Meta>, shape: Shape) -> Result<Bytes, Error> {
        let Some(listener) = &self.common.listener else {
            return self.fetch_unheard(meta).await;
        };
        listener.begun(meta);
        let mut ending = Ending {
            listener: Arc::clone(listener),
            cut: Cut::of(meta, shape),
            bytes: None,
        };
        let fetched = self.fetch_unheard(meta).await;
        ending.bytes = fetched.as_ref().ok().cloned();
        fetched
    }

    async fn fetch_unheard(&self, meta: &message::Meta) -> Result<Bytes, Error> {
        let (mut fetched, mut asked) = (self.fetch_once(meta).await, 0);
        // The server has evicted the segment since its answer; requesting the path brings it back.
        while asked < ASKED_ANEW_MAX
            && let Err(Error::Refused(Refusal {
                code: RefusalCode::Unknown | RefusalCode::Changed,
                ..
            })) = fetched
        {
            if asked > 0 {
                tokio::time::sleep(RETRY_CHANGED).await;
            }
            asked += 1;
            let again = self
                .ask(meta.path.clone(), meta.offset, Some(meta.length), Of::All)
                .await?;
            if again.meta.id != meta.id || again.whole.is_some() {
                return Err(Error::Changed);
            }
            fetched = self.fetch_once(&again.meta).await;
        }
        let bytes = fetched?;
        self.shelf(|shelf| shelf.bytes.insert(meta.id, bytes.clone(), meta.length));
        Ok(bytes)
    }

    async fn fetch_once(&self, meta: &message::Meta) -> Result<Bytes, Error> {
        let Delivery::Coded(shape) = meta.delivery else {
            return Err(Error::Changed);
        };
        let deadline = self
            .common
            .deadline
            .map(|deadline| Instant::now() + deadline);
        let (reply, bytes) = oneshot::channel();
        let place = Place {
            path: meta.path.clone(),
            offset: meta.offset,
            length: Some(meta.length),
        };
        let urgency = if self.common.readers().contains_key(&meta.id) {
            Urgency::Now
        } else {
            Urgency::Ahead
        };
        let order = Order {
            segment: meta.id,
            shape,
            proof: Proof::of(meta),
            deadline,
            urgency,
        };
        let flow = self.flow(&Cut::of(meta, shape));
        self.command(Command::Fetch {
            order,
            place,
            tree: meta.tree.clone(),
            flow,
            reply,
        })
        .await?;
        bytes.await.unwrap_or(Err(Error::Closed))
    }

    async fn command(&self, command: Command) -> Result<(), Error> {
        self.common
            .commands
            .send(command)
            .await
            .map_err(|_| Error::Closed)
    }

    /// Remembered metadata for this part of an object; an error if the object is known to end
    /// before it.
    fn remembered(&self, path: &str, offset: u64) -> Result<Option<Known>, Error> {
        let now = Instant::now();
        self.shelf(|shelf| {
            let Some(parts) = shelf.paths.get(&path.to_owned()) else {
                return Ok(None);
            };
            parts.retain(|part| part.until > now);
            let length = parts
                .iter()
                .find_map(|part| part.meta.object_length)
                .filter(|length| offset > 0 && offset >= *length);
            if let Some(length) = length {
                return Err(Error::Range(length));
            }
            let covers = |meta: &message::Meta| {
                meta.offset <= offset && offset - meta.offset < meta.length.max(1)
            };
            let Some(part) = parts.iter().find(|part| covers(&part.meta)).cloned() else {
                return Ok(None);
            };
            Ok(match part.meta.delivery {
                Delivery::Coded(_) => Some(part),
                _ => shelf.bytes.get(&part.meta.id).cloned().map(|whole| Known {
                    whole: Some(whole),
                    ..part
                }),
            })
        })
    }

    /// Remembers metadata, and returns its expiry.
    fn remember(
        &self,
        meta: &Arc<message::Meta>,
        whole: Option<&Bytes>,
        source: Option<SourceId>,
    ) -> Instant {
        let until = Instant::now() + Duration::from_millis(meta.max_age_ms.min(24 * 3600 * 1000));
        self.shelf(|shelf| {
            if let Some(whole) = whole {
                shelf.bytes.insert(meta.id, whole.clone(), meta.length);
            }
            let mut parts = shelf.paths.remove(&meta.path).unwrap_or_default();
            parts.retain(|known| {
                known.meta.version == meta.version && known.meta.offset != meta.offset
            });
            if parts.len() >= PARTS_MAX {
                parts.remove(0);
            }
            // The bytes of an object sent whole are stored above.
            parts.push(Known {
                meta: meta.clone(),
                whole: None,
                source,
                until,
            });
            let weight = parts.iter().map(|part| weight(&part.meta)).sum();
            shelf.paths.insert(meta.path.clone(), parts, weight);
        });
        until
    }

    fn shelf<T>(&self, look: impl FnOnce(&mut Shelf) -> T) -> T {
        look(
            &mut self
                .common
                .shelf
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

impl Object {
    /// The next bytes in order, as soon as they are proved; `None` after the last. After an error
    /// nothing follows: the bytes so far are right but incomplete.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        match &mut self.bytes {
            ObjectBytes::Whole(bytes) => bytes.take().map(Ok),
            ObjectBytes::Coming(parts, pump) => {
                if let Some(part) = parts.recv().await {
                    return Some(part);
                }
                // A task that died has not sent everything.
                let ended = pump.as_mut()?.await;
                *pump = None;
                ended.err().map(|_| Err(Error::Closed))
            }
        }
    }

    /// Reads all remaining bytes.
    pub async fn read_to_end(mut self) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await {
            all.extend_from_slice(&bytes?);
        }
        Ok(all)
    }
}

impl From<&message::Meta> for Meta {
    fn from(meta: &message::Meta) -> Self {
        Self {
            content_type: meta.content_type.clone(),
            object_length: meta.object_length,
            offset: meta.offset,
            length: meta.length,
            version: meta.version,
            max_age: Duration::from_millis(meta.max_age_ms),
            mutable: !matches!(meta.delivery, Delivery::Coded(_)),
            shape: match meta.delivery {
                Delivery::Coded(shape) => Some(shape),
                Delivery::Inline(_) | Delivery::Stream => None,
            },
            key: meta
                .signature
                .map(|signature| StreamKey::from_bytes(signature.key)),
        }
    }
}

/// When to retry a refused path. A missing object is reported at once; the caller decides about a
/// retry.
fn retry_after(refusal: &Refusal) -> Option<Duration> {
    if refusal.code == RefusalCode::Unknown {
        return None;
    }
    // It changed during the fetch; by now it may be stable.
    let settled = (refusal.code == RefusalCode::Changed).then_some(RETRY_CHANGED);
    refusal.retry_after.or(settled)
}

/// Whether a retry is allowed this long after the first request.
fn may_wait(elapsed: Duration, after: Duration) -> bool {
    after <= RETRY_AFTER_MAX && elapsed + after <= RETRY_WITHIN
}

/// Detects objects that arrive in quick but tiny parts, so that they would never end.
#[derive(Debug, Default)]
struct Trickle {
    /// How long the reader has waited for parts in this window, without outages, and the bytes
    /// received.
    waited: Duration,
    bytes: u64,
}

impl Trickle {
    fn check(&mut self, part: Bytes, rate_min: u64, window: Duration) -> Result<Bytes, Error> {
        self.bytes += part.len() as u64;
        if self.waited < window {
            return Ok(part);
        }
        let Self { waited, bytes } = std::mem::take(self);
        if bytes < rate_min.saturating_mul(waited.as_secs()) {
            Err(Error::Slow)
        } else {
            Ok(part)
        }
    }
}

/// Counts how often recent segments occur in an object of unknown length. Cached segments cost
/// their sender nothing, so such an object could be endless.
#[derive(Debug, Default)]
struct Repeats(HashMap<SegmentId, usize>);

impl Repeats {
    fn note(&mut self, part: &message::Meta) -> usize {
        if part.object_length.is_some() {
            return 0;
        }
        if self.0.len() >= REPEATS_OF {
            self.0.clear();
        }
        let times = self.0.entry(part.id).or_default();
        *times += 1;
        *times
    }
}

/// Whether one more part may be fetched beside those of these lengths.
fn may_load(lengths: impl ExactSizeIterator<Item = u64>) -> bool {
    lengths.len() < PARTS_AHEAD && lengths.sum::<u64>() < BYTES_AHEAD
}

/// The approximate memory of a META.
fn weight(meta: &message::Meta) -> u64 {
    let inline = if let Delivery::Inline(bytes) = &meta.delivery {
        bytes.len()
    } else {
        0
    };
    let tree = meta
        .tree
        .as_ref()
        .map_or(0, |tree| tree.groups() * Tree::VALUE_LEN);
    // The path is also the key under which it is remembered.
    (size_of::<Known>()
        + size_of::<message::Meta>()
        + 2 * meta.path.len()
        + meta.content_type.len()
        + inline
        + tree) as u64
}

/// Whether two parts belong together: they have the same version, and the same object length as far
/// as known.
fn is_of_one_object(one: &message::Meta, other: &message::Meta) -> bool {
    let lengths = one.object_length.zip(other.object_length);
    one.version == other.version && lengths.is_none_or(|(one, other)| one == other)
}

/// The range within the object; an error if it begins beyond the end.
fn clip(meta: &message::Meta, asked: &Range<u64>) -> Result<Range<u64>, Error> {
    let length = match (meta.object_length, &meta.delivery) {
        (Some(length), _) => length,
        (None, Delivery::Coded(_)) => return Ok(asked.clone()),
        (None, _) => meta.length,
    };
    if asked.start > asked.end || (asked.start > 0 && asked.start >= length) {
        return Err(Error::Range(length));
    }
    Ok(asked.start..asked.end.min(length))
}

/// The bytes of a part within the range.
fn slice(bytes: &Bytes, part: &message::Meta, range: &Range<u64>) -> Bytes {
    let place = |at: u64| {
        usize::try_from(at.clamp(part.offset, part.offset + part.length) - part.offset)
            .unwrap_or(bytes.len())
    };
    let (start, end) = (
        place(range.start).min(bytes.len()),
        place(range.end).min(bytes.len()),
    );
    bytes.slice(start.min(end)..end)
}

/// Whether bytes match their id.
async fn has_id(bytes: Bytes, id: SegmentId) -> bool {
    if bytes.len() <= HASH_HERE_MAX {
        return SegmentId::of(&bytes) == id;
    }
    tokio::task::spawn_blocking(move || SegmentId::of(&bytes) == id)
        .await
        .unwrap_or(false)
}

/// Work shared by several waiters, which ends when the last of them is dropped.
struct Coalesced<K, V>(Mutex<HashMap<K, WeakShared<Work<V>>>>);

type Work<V> = BoxFuture<'static, Result<V, Error>>;

impl<K, V> Default for Coalesced<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Coalesced<K, V> {
    /// Joins the work in progress for `key`, or begins it.
    fn join(&self, key: K, begin: impl FnOnce() -> Work<V>) -> Shared<Work<V>> {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(work) = under_way
            .get(&key)
            .and_then(WeakShared::upgrade)
            .filter(|work| work.peek().is_none())
        {
            return work;
        }
        under_way.retain(|_, work| work.upgrade().is_some_and(|work| work.peek().is_none()));
        let work = begin().shared();
        if let Some(weak) = work.downgrade() {
            under_way.insert(key, weak);
        }
        work
    }
}

/// A task that is aborted when its handle is dropped, unless it was detached.
#[derive(Debug)]
struct Task<T> {
    handle: JoinHandle<Result<T, Error>>,
    is_detached: bool,
}

impl<T: Send + 'static> Task<T> {
    fn spawn(work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self {
            handle: tokio::spawn(work),
            is_detached: false,
        }
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle)
            .poll(context)
            .map(|joined| joined.unwrap_or(Err(Error::Closed)))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if !self.is_detached {
            self.handle.abort();
        }
    }
}

/// A part of an object on its way to a reader.
struct Loading {
    flow: Arc<Flow>,
    told: watch::Receiver<u64>,
    fetched: Task<Bytes>,
    /// Whether the fetch has ended.
    is_over: bool,
    /// The reader's position in the part, and the end of what it wants.
    at: u64,
    end: u64,
    /// The size of the part.
    length: u64,
    /// The permit of a fetch that goes on without a reader, until it ends.
    kept: Kept,
    prefetches: Arc<Semaphore>,
    /// Dropped when the reader has read all it wants, or the fetch has ended.
    reader: Weak<Mutex<Option<Reader>>>,
}

type Kept = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

impl Loading {
    /// The next proved bytes; `None` after the last. Cancel-safe. When a reader has read a whole
    /// segment, that is cached and counted.
    async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        while self.at < self.end {
            self.told.mark_unchanged();
            if let Some(piece) = self.flow.from(self.at) {
                return Some(Ok(self.cut(piece)));
            }
            if self.is_over {
                // The segment is shorter than its part.
                return Some(Err(Error::Corrupt));
            }
            let Self { told, fetched, .. } = self;
            tokio::select! {
                biased;
                // The sender is in the flow, which this holds.
                _ = told.changed() => {}
                whole = fetched => {
                    self.is_over = true;
                    return Some(whole.map(|whole| {
                        let at = usize::try_from(self.at).unwrap_or(usize::MAX).min(whole.len());
                        self.cut(whole.slice(at..))
                    }));
                }
            }
        }
        if self.end == self.length && !self.is_over {
            // All of it is proved.
            let _ = (&mut self.fetched).await;
            self.is_over = true;
        }
        None
    }

    /// The wanted bytes of these; advances the position.
    fn cut(&mut self, bytes: Bytes) -> Bytes {
        let wanted = usize::try_from(self.end - self.at)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        self.at += wanted as u64;
        if self.at == self.end {
            if let Some(reader) = self.reader.upgrade() {
                *reader.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            // The rest is still fetched if a prefetch permit is free, because it may be wanted
            // next.
            if let Ok(place) = self.prefetches.clone().try_acquire_owned() {
                *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
                self.fetched.is_detached = true;
            }
        }
        bytes.slice(..wanted)
    }
}

/// The next bytes of the first part; waits forever without a part.
async fn front(parts: &mut VecDeque<Loading>) -> Option<Result<Bytes, Error>> {
    match parts.front_mut() {
        Some(part) => part.next().await,
        None => pending().await,
    }
}

/// The result of a task; waits forever without one.
async fn own<T>(task: &mut Option<Task<T>>) -> Result<T, Error> {
    match task.as_mut() {
        Some(task) => task.await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncs_net::tls;
    use ncs_proto::object::Codec;

    fn part(offset: u64, length: u64, object_length: Option<u64>) -> message::Meta {
        message::Meta {
            request: 1,
            path: "/a/b".to_owned(),
            id: SegmentId::of(b""),
            offset,
            length,
            object_length,
            version: 1,
            max_age_ms: 0,
            content_type: String::new(),
            delivery: Delivery::Coded(Shape::new(length, 64, 4).unwrap()),
            signature: None,
            tree: None,
        }
    }

    #[test]
    fn a_server_that_has_waited_itself_is_not_asked_again() {
        let may_wait =
            |elapsed, after| may_wait(Duration::from_secs(elapsed), Duration::from_secs(after));
        assert!(may_wait(0, 1) && may_wait(4, 5) && !may_wait(0, 6));
        assert!(!may_wait(10, 1), "a stream's timeout by default");
    }

    #[test]
    fn ranges_are_clipped_to_the_object() {
        let known = part(0, 100, Some(250));
        assert_eq!(clip(&known, &(0..u64::MAX)), Ok(0..250));
        assert_eq!(clip(&known, &(10..20)), Ok(10..20));
        assert_eq!(clip(&known, &(250..300)), Err(Error::Range(250)));
        let unknown = part(0, 100, None);
        assert_eq!(clip(&unknown, &(10..u64::MAX)), Ok(10..u64::MAX));
    }

    #[tokio::test]
    async fn a_part_is_read_as_it_is_proven_and_cut_to_the_range() {
        let (flow, bytes) = (
            Arc::new(Flow::new()),
            Bytes::from((0..100).collect::<Vec<u8>>()),
        );
        let (done, whole) = oneshot::channel::<Bytes>();
        let fetched = Task::spawn(async move { whole.await.map_err(|_| Error::Corrupt) });
        let (kept, prefetches) = (Kept::default(), Arc::new(Semaphore::new(1)));
        let told = flow.watch();
        let mut part = Loading {
            flow: flow.clone(),
            told,
            fetched,
            is_over: false,
            at: 10,
            end: 90,
            length: 100,
            kept,
            prefetches,
            reader: Weak::new(),
        };
        flow.put(0, &bytes.slice(..10));
        assert!(
            part.next().now_or_never().is_none(),
            "nothing of it is proven"
        );
        flow.put(10, &bytes.slice(10..40));
        assert_eq!(part.next().await, Some(Ok(bytes.slice(10..40))));
        assert!(part.next().now_or_never().is_none());
        flow.put(40, &bytes.slice(40..95));
        assert_eq!(part.next().await, Some(Ok(bytes.slice(40..90))));
        assert_eq!(part.next().await, None);

        // Bytes outside the flow arrive at the end, and a failed fetch cuts the part off.
        let mut part = Loading { at: 50, ..part };
        part.flow = Arc::new(Flow::new());
        part.told = part.flow.watch();
        done.send(bytes.clone()).unwrap();
        assert_eq!(part.next().await, Some(Ok(bytes.slice(50..90))));
        part.flow.put(0, &bytes.slice(..60));
        (part.at, part.is_over, part.fetched) =
            (0, false, Task::spawn(async { Err(Error::Corrupt) }));
        assert_eq!(part.next().await, Some(Ok(bytes.slice(..60))));
        assert_eq!(part.next().await, Some(Err(Error::Corrupt)));

        // A part shorter than announced ends in an error too.
        part.flow = Arc::new(Flow::new());
        part.told = part.flow.watch();
        let short = bytes.slice(..60);
        (part.at, part.is_over, part.fetched) = (0, false, Task::spawn(async { Ok(short) }));
        assert_eq!(part.next().await, Some(Ok(bytes.slice(..60))));
        assert_eq!(part.next().await, Some(Err(Error::Corrupt)));
    }

    /// Each META has a tree of 32 KiB.
    #[tokio::test]
    async fn metadata_is_remembered_up_to_a_number_of_bytes() {
        let (client, _) = Client::start(
            Config::new("ncs://[::1]:1".parse().unwrap(), tls::Trust::System),
            true,
        );
        let (_, tree) = Tree::with_groups(&[7; 1 << 20], Codec::Rlnc, Tree::GROUP_LOG_MIN);
        let metas = (0..2000).map(|number| {
            let path = format!("/a/{}", number / 10);
            message::Meta {
                path,
                max_age_ms: 60_000,
                tree: tree.clone(),
                ..part(number % 10 * 100, 100, None)
            }
        });
        let metas: Vec<_> = metas.map(Arc::new).collect();
        for meta in &metas {
            client.remember(meta, None, None);
        }
        let knows = |meta: &Arc<message::Meta>| {
            client
                .remembered(&meta.path, meta.offset)
                .unwrap()
                .is_some()
        };
        let known = metas.iter().filter(|meta| knows(meta)).count() as u64;
        assert!((800..=(32 << 20) / (32 << 10)).contains(&known), "{known}");
        assert!(!knows(&metas[0]) && knows(&metas[1999]));
    }

    #[test]
    fn a_segment_may_be_in_an_object_of_unknown_length_a_number_of_times() {
        let mut repeats = Repeats::default();
        let other = message::Meta {
            id: SegmentId::of(b"other"),
            ..part(0, 100, None)
        };
        for times in 1..=REPEATS_MAX + 1 {
            assert_eq!(
                (repeats.note(&part(0, 100, None)), repeats.note(&other)),
                (times, times)
            );
            assert_eq!(repeats.note(&part(0, 100, Some(250))), 0);
        }
        for number in 0..2 * REPEATS_OF as u64 {
            repeats.note(&message::Meta {
                id: SegmentId::of(&number.to_le_bytes()),
                ..part(0, 100, None)
            });
        }
        assert!(repeats.0.len() <= REPEATS_OF);
    }

    #[test]
    fn parts_are_fetched_ahead_up_to_a_number_of_bytes() {
        let may_load = |lengths: &[u64]| may_load(lengths.iter().copied());
        assert!(may_load(&[]) && may_load(&[1000; 2]) && !may_load(&[1000; 3]));
        assert!(
            !may_load(&[BYTES_AHEAD])
                && may_load(&[BYTES_AHEAD - 1])
                && !may_load(&[BYTES_AHEAD / 2; 2])
        );
    }

    #[tokio::test]
    async fn an_object_whose_task_dies_is_not_complete() {
        let object = |task: JoinHandle<()>, parts| Object {
            content_type: String::new(),
            length: None,
            range: 0..u64::MAX,
            version: 1,
            max_age: Duration::ZERO,
            mutable: false,
            bytes: ObjectBytes::Coming(parts, Some(task)),
        };
        let (sender, parts) = mpsc::channel(1);
        let dies = tokio::spawn(async move {
            sender.send(Ok(Bytes::from_static(b"a"))).await.unwrap();
            pending().await
        });
        let dying = dies.abort_handle();
        let mut object_of_dead = object(dies, parts);
        assert_eq!(
            object_of_dead.next().await,
            Some(Ok(Bytes::from_static(b"a")))
        );
        dying.abort();
        assert_eq!(object_of_dead.next().await, Some(Err(Error::Closed)));
        assert_eq!(object_of_dead.next().await, None, "once");
        let (_, parts) = mpsc::channel(1);
        assert_eq!(object(tokio::spawn(async {}), parts).next().await, None);
    }

    /// One byte per second, each in a part of its own.
    #[test]
    fn parts_that_trickle_are_given_up_and_a_reader_that_waits_is_not() {
        let mut trickle = Trickle::default();
        let mut come = |waited: Duration, bytes: &'static [u8]| {
            trickle.waited += waited;
            trickle
                .check(Bytes::from_static(bytes), 10, Duration::from_secs(30))
                .map(|part| part.len())
        };
        for _ in 0..29 {
            assert_eq!(come(Duration::from_secs(1), b"a"), Ok(1));
        }
        assert_eq!(come(Duration::from_secs(1), b"a"), Err(Error::Slow));
        // A part as large as a window's minimum may take any time to be read.
        assert_eq!(come(Duration::from_secs(29), &[0; 300]), Ok(300));
        assert_eq!(come(Duration::from_secs(1), &[]), Ok(0));
    }

    #[test]
    fn parts_are_cut_to_the_range() {
        let bytes = Bytes::from((0..100).collect::<Vec<u8>>());
        let second = part(100, 100, Some(250));
        assert_eq!(slice(&bytes, &second, &(0..u64::MAX)), bytes);
        assert_eq!(slice(&bytes, &second, &(150..160)), bytes.slice(50..60));
        assert_eq!(slice(&bytes, &second, &(0..101)), bytes.slice(0..1));
        assert_eq!(slice(&bytes, &second, &(200..250)), Bytes::new());
    }
}
