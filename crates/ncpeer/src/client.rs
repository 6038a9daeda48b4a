//! What programs hold: a client, and the objects that it opens.

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
use ncs_proto::cache::Cache;
use ncs_proto::integrity::signing::StreamKey;
use ncs_proto::object::{Refusal, RefusalCode, SegmentId, Shape, Tree};
use ncs_proto::wire::message::{self, Delivery, Holding, PATH_MAX, is_path, is_stream_name};
use ncs_proto::wire::text::plain;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::driver::{self, Command};
use super::flow::Flow;
use super::proto::{Answer, Cut, Order, Place, Proof, SourceId, Urgency};
use super::{Config, Error, KnownKeys, Listener, Stats};

/// Commands that wait for the driver; whoever has one more waits.
const COMMANDS_MAX: usize = 64;
/// Bytes of metadata that are remembered.
const METAS_MAX: u64 = 32 << 20;
/// Parts of one path whose metadata is remembered.
const PARTS_MAX: usize = 64;
/// Parts of an object that are fetched before the reader asks for them. While the last blocks of one are asked for again and another is
/// asked for in full already, a third fills the path.
const PARTS_AHEAD: usize = 3;
/// Bytes of parts beyond which no more of them are fetched ahead: a reader that stops reading holds them all.
const BYTES_AHEAD: u64 = 32 << 20;
/// How often one segment may be part of an object whose length is not known, and of how many it is known.
const REPEATS_MAX: usize = 64;
const REPEATS_OF: usize = 4096;
/// How often a path is asked for again when the server names a time for it.
const RETRIES: usize = 3;
/// The longest such time that is waited for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// How long after the first question. A server that takes longer has waited for its origin already, and whoever asks is to hear why.
const RETRY_WITHIN: Duration = Duration::from_secs(10);
/// How often a path is asked for again whose segment has gone each time before it was asked for: from a server short of memory.
const ASKED_ANEW_MAX: u32 = 8;
/// How long to wait for an object that changed while it was fetched, and before asking anew for one that has gone twice.
const RETRY_CHANGED: Duration = Duration::from_millis(200);
/// How long the end of a client may take: its last packets leave within a few milliseconds, and are repeated where a server goes on sending.
const CLOSE_WITHIN: Duration = Duration::from_millis(300);
/// Objects up to this size are hashed where they are, larger ones in the blocking pool.
const HASH_HERE_MAX: usize = 64 * 1024;

/// A handle to a peer. Clones are handles to the same one; it ends with the last.
#[derive(Clone)]
pub struct Client {
    common: Arc<Common>,
}

struct Common {
    commands: mpsc::Sender<Command>,
    stats: watch::Receiver<Stats>,
    deadline: Option<Duration>,
    has_credential: bool,
    /// Bytes a second that an object has to come at, over this time.
    rate_min: u64,
    window: Duration,
    shelf: Mutex<Shelf>,
    metas: Coalesced<(String, u64), Known>,
    segments: Coalesced<Cut, Bytes>,
    /// What has come of segments under way.
    flows: Mutex<HashMap<Cut, Weak<Flow>>>,
    prefetches: Arc<Semaphore>,
    /// How many wait for each segment; others are fetched for nobody in particular.
    readers: Mutex<HashMap<SegmentId, usize>>,
    keys: Arc<KnownKeys>,
    listener: Option<Arc<dyn Listener>>,
}

/// Somebody who waits for a segment, as long as this lives.
struct Reader {
    common: Arc<Common>,
    segment: SegmentId,
}

impl Reader {
    fn of(common: &Arc<Common>, segment: SegmentId) -> Self {
        *common.readers().entry(segment).or_default() += 1;
        Self { common: Arc::clone(common), segment }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut readers = self.common.readers();
        let Some(count) = readers.get_mut(&self.segment) else { return };
        *count -= 1;
        if *count == 0 {
            readers.remove(&self.segment);
            // Where there is no room for this, the segment comes before others that nobody waits for.
            let _ = self.common.commands.try_send(Command::Urgency(self.segment, Urgency::Ahead));
        }
    }
}

impl Common {
    fn readers(&self) -> MutexGuard<'_, HashMap<SegmentId, usize>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the listener of the end of a fetch, whatever the end is.
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

/// What is remembered.
struct Shelf {
    paths: Cache<String, Vec<Known>>,
    bytes: Cache<SegmentId, Bytes>,
}

/// Metadata, with the bytes where they are no segment.
#[derive(Clone)]
struct Known {
    meta: Arc<message::Meta>,
    whole: Option<Bytes>,
    /// Who said so, where it was asked for.
    source: Option<SourceId>,
    /// When it has to be asked for again.
    until: Instant,
}

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Media type, empty if unknown.
    pub content_type: String,
    /// Bytes of the whole object, if known.
    pub object_length: Option<u64>,
    /// Where the part starts that covers the offset asked for.
    pub offset: u64,
    /// Bytes of that part.
    pub length: u64,
    /// Changes when the object changes at its origin.
    pub version: u64,
    /// How long this holds without asking again.
    pub max_age: Duration,
    /// Whether the object is sent whole, as playlists are, and may change.
    pub mutable: bool,
    /// How the part is cut and coded, unless it is sent whole.
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
    /// The bytes that will come; its end is `u64::MAX` where neither the reader nor the server knows one.
    pub range: Range<u64>,
    /// Changes when the object changes at its origin.
    pub version: u64,
    /// How long this holds without asking again.
    pub max_age: Duration,
    /// Whether the object is sent whole, as playlists are, and may change.
    pub mutable: bool,
    bytes: Parts,
}

#[derive(Debug)]
enum Parts {
    Whole(Option<Bytes>),
    /// Until their end is known to be the object's, the task that sends them is kept.
    Coming(mpsc::Receiver<Result<Bytes, Error>>, Option<JoinHandle<()>>),
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the first server that answers. From then on the connection is kept, and made again when it is lost.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        let (client, connected) = Self::start(config, false);
        connected.await.unwrap_or(Err(Error::Closed))?;
        Ok(client)
    }

    /// The same, but where no server answers yet, the client goes on trying, and what is asked of it waits meanwhile; then why there is
    /// no connection is returned beside it. A certificate that one side refuses is an error still.
    pub async fn connect_when_there(config: Config) -> Result<(Self, Option<Error>), Error> {
        let (client, connected) = Self::start(config, true);
        match connected.await.unwrap_or(Err(Error::Closed)) {
            Ok(()) => Ok((client, None)),
            Err(error @ Error::Connection(_)) if !client.common.commands.is_closed() => Ok((client, Some(error))),
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
            shelf: Mutex::new(Shelf { paths: Cache::new(METAS_MAX), bytes: Cache::new(config.cache.as_u64()) }),
            metas: Coalesced::default(),
            segments: Coalesced::default(),
            flows: Mutex::default(),
            prefetches: Arc::new(Semaphore::new(config.prefetches_max)),
            readers: Mutex::default(),
        };
        tokio::spawn(driver::run(config, inbox, publish, keys, ready, waits));
        (Self { common: Arc::new(common) }, connected)
    }

    /// What the object at `path` is, from `offset` on; `length` is how much is wanted of it, if known.
    pub async fn stat(&self, path: &str, offset: u64, length: Option<u64>) -> Result<Meta, Error> {
        Ok((&*self.meta(path, offset, length).await?.meta).into())
    }

    /// Opens an object, or the range of it that lies within.
    pub async fn open(&self, path: &str, range: Option<Range<u64>>) -> Result<Object, Error> {
        let asked = range.unwrap_or(0..u64::MAX);
        let length = (asked.end < u64::MAX).then(|| asked.end.saturating_sub(asked.start)).filter(|length| *length > 0);
        let known = self.meta(path, asked.start, length).await?;
        let meta = known.meta.clone();
        let range = clip(&meta, &asked)?;
        let bytes = match known.whole {
            Some(whole) => Parts::Whole(Some(slice(&whole, &meta, &range))),
            None => {
                let (sender, receiver) = mpsc::channel(1);
                let pump = tokio::spawn(self.clone().pump(known, range.clone(), sender));
                Parts::Coming(receiver, Some(pump))
            }
        };
        let Meta { content_type, object_length, version, max_age, mutable, .. } = (&*meta).into();
        Ok(Object { content_type, length: object_length, range, version, max_age, mutable, bytes })
    }

    /// What the server says of a path, its bytes if they are no segment, and for how long that holds: for who answers others with it.
    pub async fn look_up(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(Arc<message::Meta>, Option<Bytes>, Duration), Error> {
        let Known { meta, whole, until, .. } = self.meta(path, offset, length).await?;
        Ok((meta, whole, until.saturating_duration_since(Instant::now())))
    }

    /// Whether [`Client::look_up`] asks nobody.
    pub fn knows(&self, path: &str, offset: u64) -> bool {
        !matches!(self.remembered(path, offset), Ok(None))
    }

    /// The verified bytes of a segment that [`Client::look_up`] has named.
    pub async fn fetch_segment(&self, meta: &Arc<message::Meta>) -> Result<Bytes, Error> {
        let reader = Reader::of(&self.common, meta.id);
        let fetched = self.wanted(meta).await;
        drop(reader);
        fetched
    }

    /// What servers say of new segments of a stream, each once.
    pub async fn news(&self, stream: &str) -> Result<mpsc::Receiver<message::Meta>, Error> {
        let (news, incoming) = mpsc::channel(COMMANDS_MAX);
        self.command(Command::Subscribe { stream: stream.to_owned(), news }).await?;
        Ok(incoming)
    }

    /// Fetches the part of an object where `range` begins, without one its beginning, into the cache. Returns at once; does nothing
    /// where too many are under way.
    pub fn prefetch(&self, path: &str, range: Option<Range<u64>>) {
        let Ok(place) = self.common.prefetches.clone().try_acquire_owned() else { return };
        let (client, path) = (self.clone(), path.to_owned());
        tokio::spawn(async move {
            let (offset, length) = range.map_or((0, None), |range| (range.start, range.end.checked_sub(range.start)));
            if let Ok(Known { meta, whole: None, .. }) = client.meta(&path, offset, length).await {
                // Nobody waits: a failure shows when somebody asks.
                let _ = client.segment(&meta).await;
            }
            drop(place);
        });
    }

    /// Whether servers are shown a token or a certificate: what comes may be for this user alone.
    pub fn has_credential(&self) -> bool {
        self.common.has_credential
    }

    /// The keys of streams that this side has heard of.
    pub fn keys(&self) -> Arc<KnownKeys> {
        Arc::clone(&self.common.keys)
    }

    /// Tells all servers that this side serves others: on this UDP port, with the certificate of this SHA-256.
    pub async fn offer(&self, port: u16, identity: [u8; 32]) -> Result<(), Error> {
        self.command(Command::Offer { port, identity }).await
    }

    /// Tells them what has changed of what there is to serve. To be called a few times a second at most.
    pub async fn have(&self, changed: Vec<Holding>) -> Result<(), Error> {
        self.command(Command::Have(changed)).await
    }

    /// What has become of the work so far; changes several times a second while there is work.
    pub fn stats(&self) -> watch::Receiver<Stats> {
        self.common.stats.clone()
    }

    /// Closes all connections, whoever else has a handle, and waits a moment until it is said: a server that does not hear of it counts this
    /// viewer for a quarter of a minute.
    pub async fn close(self) {
        let mut stats = self.stats();
        let closed = async {
            // Where this fails it has ended before.
            let _ = self.command(Command::Close).await;
            while stats.changed().await.is_ok() {}
        };
        let _ = tokio::time::timeout(CLOSE_WITHIN, closed).await;
    }

    /// New segments of a stream as they appear: their paths, and what they are. Ends when the server ends the subscription.
    pub async fn subscribe(&self, stream: &str) -> Result<mpsc::Receiver<(String, Meta)>, Error> {
        if !is_stream_name(stream) {
            return Err(Error::Path(stream.to_owned()));
        }
        let (news, mut incoming) = mpsc::channel(COMMANDS_MAX);
        self.command(Command::Subscribe { stream: stream.to_owned(), news }).await?;
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
                // Whoever has gone is noticed above.
                let _ = sender.send((meta.path.clone(), (&*meta).into())).await;
            }
        });
        Ok(receiver)
    }

    /// How long no server could send anything, until one could again.
    fn outages(&self) -> Duration {
        self.common.stats.borrow().outages
    }

    /// Hands an object to its reader as its bytes are proven, a few parts of it fetched ahead.
    async fn pump(self, first: Known, range: Range<u64>, reader: mpsc::Sender<Result<Bytes, Error>>) {
        let mut loading = VecDeque::from([self.load(first.meta.clone(), &range)]);
        let mut next = self.ask_after(&first, &range);
        let mut failed = None;
        let (mut trickle, mut repeats) = (Trickle::default(), Repeats::default());
        repeats.note(&first.meta);
        loop {
            let (begun, outages) = (Instant::now(), self.outages());
            let time = || begun.elapsed().saturating_sub(self.outages().saturating_sub(outages));
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
                        let piece = piece.and_then(|bytes| trickle.check(bytes, self.common.rate_min, self.common.window));
                        let has_failed = piece.is_err();
                        if reader.send(piece).await.is_err() || has_failed {
                            return;
                        }
                    }
                },
                part = own(&mut next), if room => match part {
                    Ok(part) if repeats.note(&part.meta) > REPEATS_MAX => {
                        let reason = "the object has no length and repeats one segment endlessly".to_owned();
                        failed = Some(Error::Refused(Refusal { code: RefusalCode::Limit, retry_after: None, reason }));
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
                    // Whoever has gone does not hear of it.
                    let _ = reader.send(Err(error)).await;
                }
                return;
            }
        }
    }

    /// Fetches a part, of which the reader wants what lies in the range.
    fn load(&self, meta: Arc<message::Meta>, range: &Range<u64>) -> Loading {
        let end = meta.offset + meta.length;
        let (at, end) = (range.start.clamp(meta.offset, end), range.end.clamp(meta.offset, end));
        let flow = match meta.delivery {
            Delivery::Coded(shape) => self.flow(&Cut::of(&meta, shape)),
            _ => Arc::new(Flow::new()),
        };
        let (client, told) = (self.clone(), flow.watch());
        let (at, end, length) = (at - meta.offset, end - meta.offset, meta.length);
        let (kept, prefetches) = (Kept::default(), Arc::clone(&self.common.prefetches));
        let reader = Arc::new(Mutex::new(Some(Reader::of(&self.common, meta.id))));
        // The task has them as well: who waited for a segment has gone when nobody is left who would have it come.
        let keeping = (kept.clone(), Arc::clone(&reader));
        let reader = Arc::downgrade(&reader);
        let fetched = Task::spawn(async move {
            let fetched = client.wanted(&meta).await;
            drop(keeping);
            fetched
        });
        Loading { flow, told, fetched, is_over: false, at, end, length, kept, prefetches, reader }
    }

    /// What has come of a segment, for all who fetch or read it.
    fn flow(&self, cut: &Cut) -> Arc<Flow> {
        let mut flows = self.common.flows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flow) = flows.get(cut).and_then(Weak::upgrade) {
            return flow;
        }
        flows.retain(|_, flow| flow.strong_count() > 0);
        let flow = Arc::new(Flow::new());
        flows.insert(*cut, Arc::downgrade(&flow));
        flow
    }

    /// Asks for the part that follows, if the reader wants it: of the same object.
    fn ask_after(&self, part: &Known, range: &Range<u64>) -> Option<Task<Known>> {
        let offset = part.meta.offset + part.meta.length;
        if offset >= range.end || part.meta.object_length.is_some_and(|length| offset >= length) {
            return None;
        }
        let (client, part) = (self.clone(), part.clone());
        let length = (range.end < u64::MAX).then(|| range.end - offset);
        Some(Task::spawn(async move {
            let path = &part.meta.path;
            let missing = |error| match error {
                Error::Refused(refusal) if refusal.code == RefusalCode::Unknown => Error::Missing(offset),
                error => error,
            };
            let mut known = client.meta(path, offset, length).await.map_err(missing)?;
            if known.source.is_none() {
                known = client.ask(path.clone(), offset, length, None).await.map_err(missing)?;
            }
            if known.whole.is_some() || known.meta.offset != offset || !is_of_one_object(&part.meta, &known.meta) {
                return Err(Error::Changed);
            }
            // Servers may have come to the same version by other bytes, as where an origin's tag stays while they change: who has named this part
            // is asked for the one before it.
            if known.source != part.source
                && let Some(source) = known.source
            {
                let before = client.ask(path.clone(), part.meta.offset, Some(part.meta.length), Some(source)).await?;
                if before.meta.id != part.meta.id || !is_of_one_object(&part.meta, &before.meta) {
                    return Err(Error::Changed);
                }
            }
            Ok(known)
        }))
    }

    /// Metadata of the part that covers `offset`: remembered, or asked for once however many want it.
    async fn meta(&self, path: &str, offset: u64, length: Option<u64>) -> Result<Known, Error> {
        if !is_path(path) {
            return Err(Error::Path(plain(path, PATH_MAX)));
        }
        if let Some(known) = self.remembered(path, offset)? {
            return Ok(known);
        }
        let client = self.clone();
        let key = (path.to_owned(), offset);
        let asked = self.common.metas.join(key.clone(), || async move { client.ask(key.0, offset, length, None).await }.boxed());
        asked.await
    }

    /// Asks for a part, `of` one source alone or of all.
    async fn ask(&self, path: String, offset: u64, length: Option<u64>, of: Option<SourceId>) -> Result<Known, Error> {
        let (begun, mut refused, mut corrupt) = (Instant::now(), 0, false);
        loop {
            let (reply, answer) = oneshot::channel();
            self.command(Command::Get { path: path.clone(), offset, length, of, reply }).await?;
            let Answer { meta, bytes, source } = match answer.await.unwrap_or(Err(Error::Closed)) {
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
                return Ok(Known { meta, whole: bytes, source: Some(source), until });
            }
            if std::mem::replace(&mut corrupt, true) {
                return Err(Error::Corrupt);
            }
        }
    }

    /// The verified bytes of a part that a [`Reader`] waits for.
    async fn wanted(&self, meta: &Arc<message::Meta>) -> Result<Bytes, Error> {
        if self.shelf(|shelf| shelf.bytes.get(&meta.id).is_none()) {
            // Perhaps it is on its way already, for nobody in particular.
            self.command(Command::Urgency(meta.id, Urgency::Now)).await?;
        }
        self.segment(meta).await
    }

    /// The verified bytes of a part: from the cache, or fetched once however many want them.
    async fn segment(&self, meta: &Arc<message::Meta>) -> Result<Bytes, Error> {
        if let Some(bytes) = self.shelf(|shelf| shelf.bytes.get(&meta.id).cloned()) {
            // An id names bytes of one length: what says otherwise is a lie.
            return if bytes.len() as u64 == meta.length { Ok(bytes) } else { Err(Error::Corrupt) };
        }
        let Delivery::Coded(shape) = meta.delivery else { return Err(Error::Changed) };
        let (client, meta) = (self.clone(), meta.clone());
        let fetched =
            self.common.segments.join(Cut::of(&meta, shape), || async move { client.fetch(&meta, shape).await }.boxed());
        fetched.await
    }

    async fn fetch(&self, meta: &Arc<message::Meta>, shape: Shape) -> Result<Bytes, Error> {
        let Some(listener) = &self.common.listener else { return self.fetch_unheard(meta).await };
        listener.begun(meta);
        let mut ending = Ending { listener: Arc::clone(listener), cut: Cut::of(meta, shape), bytes: None };
        let fetched = self.fetch_unheard(meta).await;
        ending.bytes = fetched.as_ref().ok().cloned();
        fetched
    }

    async fn fetch_unheard(&self, meta: &message::Meta) -> Result<Bytes, Error> {
        let (mut fetched, mut asked) = (self.fetch_once(meta).await, 0);
        // The server has forgotten the segment since it named it; asking for the path brings it back.
        while asked < ASKED_ANEW_MAX
            && let Err(Error::Refused(Refusal { code: RefusalCode::Unknown | RefusalCode::Changed, .. })) = fetched
        {
            if asked > 0 {
                tokio::time::sleep(RETRY_CHANGED).await;
            }
            asked += 1;
            let again = self.ask(meta.path.clone(), meta.offset, Some(meta.length), None).await?;
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
        let Delivery::Coded(shape) = meta.delivery else { return Err(Error::Changed) };
        let deadline = self.common.deadline.map(|deadline| Instant::now() + deadline);
        let (reply, bytes) = oneshot::channel();
        let place = Place { path: meta.path.clone(), offset: meta.offset, length: Some(meta.length) };
        let urgency = if self.common.readers().contains_key(&meta.id) { Urgency::Now } else { Urgency::Ahead };
        let order = Order { segment: meta.id, shape, proof: Proof::of(meta), deadline, urgency };
        let flow = self.flow(&Cut::of(meta, shape));
        self.command(Command::Fetch { order, place, tree: meta.tree.clone(), flow, reply }).await?;
        bytes.await.unwrap_or(Err(Error::Closed))
    }

    async fn command(&self, command: Command) -> Result<(), Error> {
        self.common.commands.send(command).await.map_err(|_| Error::Closed)
    }

    /// What is known of this part of an object; an error where the object is known to end before it.
    fn remembered(&self, path: &str, offset: u64) -> Result<Option<Known>, Error> {
        let now = Instant::now();
        self.shelf(|shelf| {
            let Some(parts) = shelf.paths.get(&path.to_owned()) else { return Ok(None) };
            parts.retain(|part| part.until > now);
            let length = parts.iter().find_map(|part| part.meta.object_length).filter(|length| offset > 0 && offset >= *length);
            if let Some(length) = length {
                return Err(Error::Range(length));
            }
            let covers = |meta: &message::Meta| meta.offset <= offset && offset - meta.offset < meta.length.max(1);
            let Some(part) = parts.iter().find(|part| covers(&part.meta)).cloned() else { return Ok(None) };
            Ok(match part.meta.delivery {
                Delivery::Coded(_) => Some(part),
                _ => shelf.bytes.get(&part.meta.id).cloned().map(|whole| Known { whole: Some(whole), ..part }),
            })
        })
    }

    /// Until when it may be used.
    fn remember(&self, meta: &Arc<message::Meta>, whole: Option<&Bytes>, source: Option<SourceId>) -> Instant {
        let until = Instant::now() + Duration::from_millis(meta.max_age_ms.min(24 * 3600 * 1000));
        self.shelf(|shelf| {
            if let Some(whole) = whole {
                shelf.bytes.insert(meta.id, whole.clone(), meta.length);
            }
            let mut parts = shelf.paths.remove(&meta.path).unwrap_or_default();
            parts.retain(|known| known.meta.version == meta.version && known.meta.offset != meta.offset);
            if parts.len() >= PARTS_MAX {
                parts.remove(0);
            }
            // The bytes of an object that is sent whole have their place above.
            parts.push(Known { meta: meta.clone(), whole: None, source, until });
            let weight = parts.iter().map(|part| weight(&part.meta)).sum();
            shelf.paths.insert(meta.path.clone(), parts, weight);
        });
        until
    }

    fn shelf<T>(&self, look: impl FnOnce(&mut Shelf) -> T) -> T {
        look(&mut self.common.shelf.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Object {
    /// The next bytes, in order, as soon as they are proven; `None` after the last. After an error there is nothing more: what was handed on
    /// is right, and not all.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        match &mut self.bytes {
            Parts::Whole(bytes) => bytes.take().map(Ok),
            Parts::Coming(parts, pump) => {
                if let Some(part) = parts.recv().await {
                    return Some(part);
                }
                // A task that died has not sent all.
                let ended = pump.as_mut()?.await;
                *pump = None;
                ended.err().map(|_| Err(Error::Closed))
            }
        }
    }

    /// Everything that is left.
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
            key: meta.signature.map(|signature| StreamKey::from_bytes(signature.key)),
        }
    }
}

/// When to ask again for a path that was refused. Whoever asks for what is not there hears so at once and knows best whether to
/// ask again.
fn retry_after(refusal: &Refusal) -> Option<Duration> {
    if refusal.code == RefusalCode::Unknown {
        return None;
    }
    // It changed while it was fetched; by now it may have settled.
    let settled = (refusal.code == RefusalCode::Changed).then_some(RETRY_CHANGED);
    refusal.retry_after.or(settled)
}

/// Whether a path is asked for again so long after the first question.
fn may_wait(elapsed: Duration, after: Duration) -> bool {
    after <= RETRY_AFTER_MAX && elapsed + after <= RETRY_WITHIN
}

/// Parts that come whole, each of them fast, and are too small or too far between to come to an end.
#[derive(Debug, Default)]
struct Trickle {
    /// How long the reader has waited for parts since the window began, without outages, and what has come.
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
        if bytes < rate_min.saturating_mul(waited.as_secs()) { Err(Error::Slow) } else { Ok(part) }
    }
}

/// How often each of the last segments is part of an object whose length is not known. What this side has already costs its sender
/// nothing, so that such an object need not end.
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

/// Whether one more part is fetched beside those of these lengths.
fn may_load(lengths: impl ExactSizeIterator<Item = u64>) -> bool {
    lengths.len() < PARTS_AHEAD && lengths.sum::<u64>() < BYTES_AHEAD
}

/// Bytes of memory that a META takes, about.
fn weight(meta: &message::Meta) -> u64 {
    let inline = if let Delivery::Inline(bytes) = &meta.delivery { bytes.len() } else { 0 };
    let tree = meta.tree.as_ref().map_or(0, |tree| tree.groups() * Tree::VALUE_LEN);
    // Its path is also the name that it is remembered by.
    (size_of::<Known>() + size_of::<message::Meta>() + 2 * meta.path.len() + meta.content_type.len() + inline + tree) as u64
}

/// Whether two parts may be put together: of one version, and of one length as far as that is known.
fn is_of_one_object(one: &message::Meta, other: &message::Meta) -> bool {
    let lengths = one.object_length.zip(other.object_length);
    one.version == other.version && lengths.is_none_or(|(one, other)| one == other)
}

/// The range in the object; one that begins behind its end is an error.
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

/// What of a part's bytes lies in the range.
fn slice(bytes: &Bytes, part: &message::Meta, range: &Range<u64>) -> Bytes {
    let place = |at: u64| usize::try_from(at.clamp(part.offset, part.offset + part.length) - part.offset).unwrap_or(bytes.len());
    let (start, end) = (place(range.start).min(bytes.len()), place(range.end).min(bytes.len()));
    bytes.slice(start.min(end)..end)
}

/// Whether bytes have the hash that names them.
async fn has_id(bytes: Bytes, id: SegmentId) -> bool {
    if bytes.len() <= HASH_HERE_MAX {
        return SegmentId::of(&bytes) == id;
    }
    tokio::task::spawn_blocking(move || SegmentId::of(&bytes) == id).await.unwrap_or(false)
}

/// Work that several wait for and that ends when the last of them no longer does.
struct Coalesced<K, V>(Mutex<HashMap<K, WeakShared<Work<V>>>>);

type Work<V> = BoxFuture<'static, Result<V, Error>>;

impl<K, V> Default for Coalesced<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Coalesced<K, V> {
    /// Joins the work under way for `key`, or begins it.
    fn join(&self, key: K, begin: impl FnOnce() -> Work<V>) -> Shared<Work<V>> {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(work) = under_way.get(&key).and_then(WeakShared::upgrade).filter(|work| work.peek().is_none()) {
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

/// A task that ends with its handle, unless it is detached: then it goes on.
#[derive(Debug)]
struct Task<T> {
    handle: JoinHandle<Result<T, Error>>,
    is_detached: bool,
}

impl<T: Send + 'static> Task<T> {
    fn spawn(work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self { handle: tokio::spawn(work), is_detached: false }
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(context).map(|joined| joined.unwrap_or(Err(Error::Closed)))
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
    /// Whether that has ended.
    is_over: bool,
    /// What the reader wants next, and where that ends, in the part.
    at: u64,
    end: u64,
    /// Bytes of the part.
    length: u64,
    /// The place that a fetch has which goes on without a reader, until it ends.
    kept: Kept,
    prefetches: Arc<Semaphore>,
    /// Until all is read that is wanted, or the fetch has ended.
    reader: Weak<Mutex<Option<Reader>>>,
}

type Kept = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

impl Loading {
    /// The next proven bytes; `None` behind the last. May be dropped before it is ready, and asked again. Who has read all of a segment finds it
    /// kept and counted.
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
                // The sender is in the flow, which is here.
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
            // All of it is proven.
            let _ = (&mut self.fetched).await;
            self.is_over = true;
        }
        None
    }

    /// What of these bytes is wanted; they are handed on.
    fn cut(&mut self, bytes: Bytes) -> Bytes {
        let wanted = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(bytes.len());
        self.at += wanted as u64;
        if self.at == self.end {
            if let Some(reader) = self.reader.upgrade() {
                *reader.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            // The rest comes all the same, where there is a place for what nobody waits for: it may be wanted next.
            if let Ok(place) = self.prefetches.clone().try_acquire_owned() {
                *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
                self.fetched.is_detached = true;
            }
        }
        bytes.slice(..wanted)
    }
}

/// What comes next of the part that is first; without any, never.
async fn front(parts: &mut VecDeque<Loading>) -> Option<Result<Bytes, Error>> {
    match parts.front_mut() {
        Some(part) => part.next().await,
        None => pending().await,
    }
}

/// The result of a task; without one, never.
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
        let may_wait = |elapsed, after| may_wait(Duration::from_secs(elapsed), Duration::from_secs(after));
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
        let (flow, bytes) = (Arc::new(Flow::new()), Bytes::from((0..100).collect::<Vec<u8>>()));
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
        assert!(part.next().now_or_never().is_none(), "nothing of it is proven");
        flow.put(10, &bytes.slice(10..40));
        assert_eq!(part.next().await, Some(Ok(bytes.slice(10..40))));
        assert!(part.next().now_or_never().is_none());
        flow.put(40, &bytes.slice(40..95));
        assert_eq!(part.next().await, Some(Ok(bytes.slice(40..90))));
        assert_eq!(part.next().await, None);

        // What does not flow comes in the end, and a fetch that fails cuts it off.
        let mut part = Loading { at: 50, ..part };
        part.flow = Arc::new(Flow::new());
        part.told = part.flow.watch();
        done.send(bytes.clone()).unwrap();
        assert_eq!(part.next().await, Some(Ok(bytes.slice(50..90))));
        part.flow.put(0, &bytes.slice(..60));
        (part.at, part.is_over, part.fetched) = (0, false, Task::spawn(async { Err(Error::Corrupt) }));
        assert_eq!(part.next().await, Some(Ok(bytes.slice(..60))));
        assert_eq!(part.next().await, Some(Err(Error::Corrupt)));

        // One that is shorter than it was said to be ends in an error, too.
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
        let (client, _) = Client::start(Config::new("ncs://[::1]:1".parse().unwrap(), tls::Trust::System), true);
        let (_, tree) = Tree::with_groups(&[7; 1 << 20], Codec::Rlnc, Tree::GROUP_LOG_MIN);
        let metas = (0..2000).map(|number| {
            let path = format!("/a/{}", number / 10);
            message::Meta { path, max_age_ms: 60_000, tree: tree.clone(), ..part(number % 10 * 100, 100, None) }
        });
        let metas: Vec<_> = metas.map(Arc::new).collect();
        for meta in &metas {
            client.remember(meta, None, None);
        }
        let knows = |meta: &Arc<message::Meta>| client.remembered(&meta.path, meta.offset).unwrap().is_some();
        let known = metas.iter().filter(|meta| knows(meta)).count() as u64;
        assert!((800..=METAS_MAX / (32 << 10)).contains(&known), "{known}");
        assert!(!knows(&metas[0]) && knows(&metas[1999]));
    }

    #[test]
    fn a_segment_may_be_in_an_object_of_unknown_length_a_number_of_times() {
        let mut repeats = Repeats::default();
        let other = message::Meta { id: SegmentId::of(b"other"), ..part(0, 100, None) };
        for times in 1..=REPEATS_MAX + 1 {
            assert_eq!((repeats.note(&part(0, 100, None)), repeats.note(&other)), (times, times));
            assert_eq!(repeats.note(&part(0, 100, Some(250))), 0);
        }
        for number in 0..2 * REPEATS_OF as u64 {
            repeats.note(&message::Meta { id: SegmentId::of(&number.to_le_bytes()), ..part(0, 100, None) });
        }
        assert!(repeats.0.len() <= REPEATS_OF);
    }

    #[test]
    fn parts_are_fetched_ahead_up_to_a_number_of_bytes() {
        let may_load = |lengths: &[u64]| may_load(lengths.iter().copied());
        assert!(may_load(&[]) && may_load(&[1000; 2]) && !may_load(&[1000; 3]));
        assert!(!may_load(&[BYTES_AHEAD]) && may_load(&[BYTES_AHEAD - 1]) && !may_load(&[BYTES_AHEAD / 2; 2]));
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
            bytes: Parts::Coming(parts, Some(task)),
        };
        let (sender, parts) = mpsc::channel(1);
        let dies = tokio::spawn(async move {
            sender.send(Ok(Bytes::from_static(b"a"))).await.unwrap();
            pending().await
        });
        let dying = dies.abort_handle();
        let mut object_of_dead = object(dies, parts);
        assert_eq!(object_of_dead.next().await, Some(Ok(Bytes::from_static(b"a"))));
        dying.abort();
        assert_eq!(object_of_dead.next().await, Some(Err(Error::Closed)));
        assert_eq!(object_of_dead.next().await, None, "once");
        let (_, parts) = mpsc::channel(1);
        assert_eq!(object(tokio::spawn(async {}), parts).next().await, None);
    }

    /// One byte each second, in parts of their own.
    #[test]
    fn parts_that_trickle_are_given_up_and_a_reader_that_waits_is_not() {
        let mut trickle = Trickle::default();
        let mut come = |waited: Duration, bytes: &'static [u8]| {
            trickle.waited += waited;
            trickle.check(Bytes::from_static(bytes), 10, Duration::from_secs(30)).map(|part| part.len())
        };
        for _ in 0..29 {
            assert_eq!(come(Duration::from_secs(1), b"a"), Ok(1));
        }
        assert_eq!(come(Duration::from_secs(1), b"a"), Err(Error::Slow));
        // A part as large as a window's bytes takes as long as it likes to be read.
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
