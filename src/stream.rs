//! Publishing points: each resolves the paths of a stream, with one fetch for all who ask at once.
//!
//! The [`Library`] has one publishing point per configured stream. A point answers a path from its
//! catalogue if the entry is held and fresh. Otherwise it begins one fetch in a separate task, for
//! which all requests of the same path wait. A fetched part is put into the store before any
//! answer. Segments that playlists newly list, and files that appear in a watched folder, are
//! prefetched, announced to subscribers and passed to the encoder.
//!
//! If a stream has a key, answers and announcements are signed ([`signer`]), once, when they become
//! known or are confirmed. Checksums of blocks are computed when a peer requests them, a few at a
//! time.
//!
//! Each point has one task that follows its playlists or its folder; the library has one that
//! sweeps. All end when the library is dropped. Requests take turns at fetches
//! ([`ncs_serve::turns`]). `ingest::Config` bounds concurrent and waiting fetches, waiting
//! requests, known paths, and the bytes of documents and listings; anything beyond is refused as
//! overload. Announcements go through a channel of [`ANNOUNCEMENTS_MAX`]; a lagging subscriber
//! misses the oldest.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, broadcast};
use tokio::task::AbortHandle;
use url::Url;

use crate::directory::Policy;
use crate::gf::Kernels;
use crate::gf::rows::sparse::{weight_floor, weight_min};
use crate::ingest::folder::Folder;
use crate::ingest::http::{Http, Origin};
use crate::ingest::members::Members;
use crate::ingest::names::{self, Names};
use crate::ingest::{self, ObjectPath, Parameters, Source, folder, http};
use crate::integrity::checks;
use crate::integrity::signing::StreamKey;
use crate::object::{
    Arrival, AskedBy, Body, Codec, Coding, FirstPass, HashGroup, Held, Refusal, RefusalCode,
    Resolved, SegmentId, Shape, ShapeError,
};
use crate::secret::{Secret, SecretUrl, Setting, is_http};
use crate::store::Store;
use crate::supervise::{ServerPart, Supervisor};
use crate::wire::message::{Checks, GetChecks, stream_of};

mod catalogue;
mod clock;
mod follow;
mod inheritance;
pub mod metrics;
mod point;
mod signer;

pub use inheritance::{About, Piece, Title};
pub use metrics::Metrics;
use point::{Point, Shared};
pub use signer::{KeyFileError, Signer};

/// One table of `[streams]` in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// URL to which paths of the stream are appended.
    pub origin: Option<SecretUrl>,
    /// A folder to watch instead of an origin; its files are the objects.
    pub directory: Option<PathBuf>,
    /// File with the stream's signing key; without one nothing is signed.
    pub signing_key: Option<PathBuf>,
    /// Whether its viewers are told of each other, to fetch from each other first; needs a
    /// `signing_key`.
    pub peers: Policy,
    /// Maximum number of blocks in a generation.
    pub n_max: u16,
    /// Minimum number of generations per segment, as long as each keeps 16 KiB: peers relay
    /// generation by generation. Not with sparse rows or over a prime field.
    pub generations_min: u16,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// The code of its blocks.
    pub codec: CodecName,
    /// Parity blocks per generation, with Reed-Solomon.
    pub parity: Option<u16>,
    /// Bits of the prime modulus of homomorphic hashes, with a code over a prime field: 1024 or
    /// 2048.
    pub hash_bits: Option<u16>,
    /// What is sent first if a request leaves the choice; other codes always send source blocks
    /// first.
    pub first_pass: FirstPass,
    /// Non-zero coefficients in a row of its coded blocks, which then carry all coefficients;
    /// `None` for dense rows.
    pub row_weight: Option<u16>,
    /// Accepts a `row_weight` with which peers need many more blocks.
    pub row_weight_force: bool,
    /// How long a segment is kept after it has left its playlist's window or the folder.
    #[serde(with = "crate::units::duration")]
    pub retention: Duration,
    /// How long a playlist or another mutable object is used before the origin is asked again.
    #[serde(with = "crate::units::duration")]
    pub playlist_age: Duration,
    /// How long a playlist is used while the origin fails.
    #[serde(with = "crate::units::duration")]
    pub playlist_grace: Duration,
    /// How long a live playlist may stay unchanged before it is refused as stale; at least three of
    /// its target durations.
    #[serde(with = "crate::units::duration")]
    pub playlist_stale_after: Duration,
    /// The maximum size of a playlist or other mutable object.
    #[serde(with = "crate::units::size")]
    pub playlist_max_bytes: ByteSize,
    /// How long an immutable object is used before the origin is asked whether it has changed.
    #[serde(with = "crate::units::duration")]
    pub segment_age: Duration,
    /// Segments at the live edge to prefetch; 0 for none.
    pub prefetch: u16,
    /// Playlists to follow without requests; a master playlist includes its variants.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub playlists: Vec<String>,
    /// Extensions of mutable objects.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub mutable: Vec<String>,
    /// Query parameters that select another object; `*` for all.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub query: Vec<String>,
    /// Headers for the origin; each a text, or the file or environment variable that holds it.
    pub headers: BTreeMap<String, Setting>,
    /// `Host` to send to the origin instead of the URL's.
    pub host: Option<String>,
    /// Hosts, as `name` or `name:port`, that the origin may redirect to.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub redirect_hosts: Vec<String>,
    /// names of files and folders that are not published, with `*` for any characters.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub refuse: Vec<String>,
    /// Names that are published even if `refuse` matches.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub allow: Vec<String>,
    /// The maximum time of a fetch, including retries.
    #[serde(with = "crate::units::duration")]
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            origin: None,
            directory: None,
            signing_key: None,
            peers: Policy::Off,
            n_max: 128,
            generations_min: 32,
            block_bytes: 4096,
            codec: CodecName::default(),
            parity: None,
            hash_bits: None,
            first_pass: FirstPass::default(),
            row_weight: None,
            row_weight_force: false,
            retention: Duration::from_secs(60),
            playlist_age: Duration::from_millis(500),
            playlist_grace: Duration::from_secs(10),
            playlist_stale_after: Duration::from_secs(60),
            playlist_max_bytes: ByteSize::mib(4),
            segment_age: Duration::from_secs(600),
            prefetch: 3,
            playlists: Vec::new(),
            mutable: ["m3u8", "m3u", "mpd"].map(Into::into).to_vec(),
            query: vec!["*".into()],
            headers: BTreeMap::new(),
            host: None,
            redirect_hosts: Vec::new(),
            refuse: names::REFUSED.map(Into::into).to_vec(),
            allow: Vec::new(),
            timeout: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Makes the key's path absolute, so that it survives changes of the working directory. Reads
    /// headers from files and environment variables; an error names the unreadable one, and the
    /// reason.
    pub fn resolve<'a>(
        &mut self,
        variable: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<(), (String, String)> {
        if let Some(path) = &mut self.signing_key {
            *path = crate::units::absolute(path);
        }
        let mut headers = self.headers.iter_mut();
        headers.try_for_each(|(name, value)| {
            value
                .resolve(&variable)
                .map_err(|reason| (format!("headers.{name}"), reason))
        })
    }

    /// The stream's code, with its parameters.
    pub fn codec(&self) -> Result<Codec, CodecError> {
        if self.hash_bits.is_some() && self.codec != CodecName::RlncQ {
            return Err(CodecError::HashBits);
        }
        let codec = match (self.codec, self.parity) {
            (CodecName::Rs, Some(parity)) => Codec::ReedSolomon { parity },
            (CodecName::Rs, None) => return Err(CodecError::NoParity),
            (_, Some(_)) => return Err(CodecError::Parity),
            (CodecName::Rlnc, None) => Codec::Rlnc,
            (CodecName::RaptorQ, None) => Codec::RaptorQ,
            (CodecName::RlncQ, None) => Codec::RlncQ {
                group: self.group()?,
            },
        };
        if codec.is_gfq() && self.signing_key.is_none() {
            return Err(CodecError::NoKey);
        }
        if self.row_weight.is_some() && codec != Codec::Rlnc {
            return Err(CodecError::RowWeight);
        }
        Ok(codec)
    }

    /// The names of a folder that are published.
    pub fn names(&self) -> Result<Names, Fault> {
        Names::new(&self.refuse, &self.allow).map_err(|(text, error)| Fault::Pattern(text, error))
    }

    fn group(&self) -> Result<HashGroup, CodecError> {
        let bits = self.hash_bits.unwrap_or(1024);
        HashGroup::ALL
            .into_iter()
            .find(|group| group.bits() == u32::from(bits))
            .ok_or(CodecError::NoGroup(bits))
    }

    /// The shape of its segments, for one of this length.
    pub fn shape(&self, length: u64) -> Result<Shape, Fault> {
        let shape = Shape::new(length, self.block_bytes, self.n_max)?.coded_with(self.codec()?)?;
        Ok(shape.in_parts(self.parts()?))
    }

    /// The minimum number of generations per segment; one where short generations cost more. A
    /// sparse row is sent with all coefficients, and blocks over a prime field are tested in
    /// batches per generation.
    fn parts(&self) -> Result<u16, CodecError> {
        let is_costly = self.row_weight.is_some() || self.codec()?.is_gfq();
        Ok(if is_costly {
            1
        } else {
            self.generations_min.max(1)
        })
    }

    /// Non-zero coefficients per row, if rows are sparse.
    pub fn sparse_rows(&self) -> Result<Option<NonZeroU16>, RowWeightError> {
        let Some(given) = self.row_weight else {
            return Ok(None);
        };
        let weight = NonZeroU16::new(given).ok_or(RowWeightError::Zero)?;
        let (n_max, least) = (self.n_max, weight_min(self.n_max));
        if given < least && !self.row_weight_force {
            return Err(RowWeightError::Few {
                weight: given,
                n_max,
                least,
            });
        }
        let least = weight_floor(n_max);
        if given < least.min(n_max) {
            return Err(RowWeightError::Flood {
                weight: given,
                n_max,
                least,
            });
        }
        Ok(Some(weight))
    }
}

/// The codes of streams, by their names in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodecName {
    /// Random linear combinations of blocks.
    #[default]
    Rlnc,
    /// Reed-Solomon.
    Rs,
    /// RaptorQ.
    RaptorQ,
    /// Random linear combinations over a prime field, with homomorphic hashes of blocks.
    #[serde(rename = "rlnc-q")]
    RlncQ,
}

/// All streams by name: 1 to 64 letters, digits, `-` and `_`.
pub type Streams = BTreeMap<String, Config>;

/// A fault in the configuration of a stream.
#[derive(Debug, thiserror::Error)]
#[error("stream `{stream}`: {fault}")]
pub struct Error {
    /// The stream.
    pub stream: String,
    /// The fault.
    pub fault: Fault,
}

/// The kinds of faults.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The name is invalid.
    #[error("a name must be 1 to 64 letters, digits, `-` or `_`")]
    Name,
    /// Neither or both of origin and directory are given.
    #[error("a stream needs exactly one of `origin` (a URL) and `directory` (a path)")]
    Place,
    /// The origin is invalid.
    #[error("origin = \"{0}\": {1}")]
    Origin(SecretUrl, &'static str),
    /// Segments cannot be cut in this shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The signing key is unusable.
    #[error("signing_key: {0}")]
    Key(#[from] KeyFileError),
    /// A setting belongs to another code, or is missing.
    #[error("codec: {0}")]
    Codec(#[from] CodecError),
    /// The row weight is unusable.
    #[error("row_weight: {0}")]
    RowWeight(#[from] RowWeightError),
    /// A path in `playlists` is invalid.
    #[error("playlists: \"{0}\": {1}")]
    Playlist(String, ingest::PathError),
    /// A name in `refuse` or `allow` is invalid.
    #[error("`{0}` in `refuse` or `allow`: {1}")]
    Pattern(String, names::PatternError),
    /// The HTTP origin cannot be used.
    #[error(transparent)]
    Http(#[from] http::OpenError),
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] folder::OpenError),
}

/// A setting that does not fit the code of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Reed-Solomon without `parity`.
    #[error("codec = \"rs\" needs a fixed number of parity blocks per generation: set `parity`")]
    NoParity,
    /// `parity` with another code.
    #[error("`parity` requires codec = \"rs\": the other codes are rateless")]
    Parity,
    /// `row_weight` with another code.
    #[error(
        "`row_weight` requires codec = \"rlnc\": the other codes fix their coefficient vectors"
    )]
    RowWeight,
    /// `hash_bits` with another code.
    #[error("`hash_bits` requires codec = \"rlnc-q\": the other codes have no homomorphic hashes")]
    HashBits,
    /// An unknown size of the prime.
    #[error("homomorphic hashes must have 1024 bits (a legacy strength) or 2048, not {0}")]
    NoGroup(u16),
    /// Homomorphic hashes without a signing key.
    #[error(
        "codec = \"rlnc-q\" needs a key that signs the hashes of blocks: set `signing_key`, too"
    )]
    NoKey,
}

/// An unsuitable number of non-zero coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowWeightError {
    /// Zero.
    #[error("a coefficient vector must not be all zeros; remove the key for dense vectors")]
    Zero,
    /// So few that source blocks stay uncovered.
    #[error(
        "{weight} nonzero coefficients per vector leave source blocks of a generation of {n_max} \
         uncovered, so peers need many more blocks: set at least {least} (ln n + 8), or \
         `row_weight_force = true` to use {weight}"
    )]
    Few {
        /// The given number.
        weight: u16,
        /// Blocks of a generation.
        n_max: u16,
        /// The minimum without force.
        least: u16,
    },
    /// So few that peers disconnect because of redundant blocks.
    #[error(
        "{weight} nonzero coefficients per vector make so many redundant blocks in a generation of \
         {n_max} that peers close the connection: set at least {least}, even with \
         `row_weight_force`"
    )]
    Flood {
        /// The given number.
        weight: u16,
        /// Blocks of a generation.
        n_max: u16,
        /// The minimum.
        least: u16,
    },
}

/// All publishing points. Clones are cheap; when the last is dropped, all fetching ends.
#[derive(Debug, Clone)]
pub struct Library {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    ingest_metrics: ingest::Metrics,
    points: ArcSwap<BTreeMap<String, Running>>,
    sweeper: AbortHandle,
}

/// A publishing point and its task, which ends when the last clone is dropped.
#[derive(Debug, Clone)]
struct Running {
    point: Arc<Point>,
    _task: Arc<Task>,
}

#[derive(Debug)]
struct Task(AbortHandle);

/// The changes of a new configuration, by names of streams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// New streams.
    pub added: Vec<String>,
    /// Removed streams.
    pub removed: Vec<String>,
    /// Streams with another origin; their segments are no longer used.
    pub replaced: Vec<String>,
    /// Streams with any other change; it applies to new segments.
    pub changed: Vec<String>,
}

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The fault of the origin at the last fetch, if any.
    pub fault: Option<String>,
    /// The key that verifies its signatures, if it has one.
    pub key: Option<StreamKey>,
}

impl Library {
    /// Opens every stream. `members` are the other servers of the fleet. Must be called within a
    /// tokio runtime.
    pub async fn open(
        config: &ingest::Config,
        streams: &Streams,
        store: Store,
        ingest_metrics: ingest::Metrics,
        metrics: Metrics,
        members: Members,
        supervisor: &Supervisor,
    ) -> Result<Self, Error> {
        let (arrivals, _) = broadcast::channel(ARRIVALS_MAX);
        let swept = store.clone();
        let checks = Semaphore::new(CHECKS_QUEUED);
        let (checks_at_once, reading) = (
            Semaphore::new(CHECKS_AT_ONCE),
            Semaphore::new(READING_AT_ONCE),
        );
        let (config, supervisor) = (config.clone(), supervisor.clone());
        let sweep = supervisor
            .clone()
            .revived(ServerPart::Sweep, move || sweep(store.clone()));
        let shared = Shared {
            config,
            store: swept,
            metrics,
            arrivals,
            checks,
            checks_at_once,
            reading,
            supervisor,
            members,
        };
        let shared = Arc::new(shared);
        let sweeper = tokio::spawn(sweep).abort_handle();
        let inner = Inner {
            shared,
            ingest_metrics,
            points: ArcSwap::default(),
            sweeper,
        };
        let library = Self {
            inner: Arc::new(inner),
        };
        library.apply(streams).await?;
        Ok(library)
    }

    /// Resolves a path at `offset`, from the catalogue or the origin.
    ///
    /// The answer covers `offset` if the object does. It may start earlier; the next request starts
    /// at its end. Objects are cut at the ranges of their playlists, whatever length is requested.
    pub async fn resolve(&self, path: &str, offset: u64, by: AskedBy) -> Result<Resolved, Refusal> {
        let outcome = match self.locate(path) {
            Ok((point, object)) => point
                .resolve(&object, offset, by)
                .await
                .map(|resolved| point.named(path, resolved)),
            Err(refusal) => Err(refusal),
        };
        self.note_resolved(&outcome, by);
        outcome.inspect_err(|refusal| self.inner.shared.metrics.refused(refusal))
    }

    /// Resolves a path at `offset` from the catalogue alone. What is not there is refused, without
    /// asking the origin.
    pub fn resolve_held(&self, path: &str, offset: u64, by: AskedBy) -> Result<Resolved, Refusal> {
        let outcome = self.locate(path).and_then(|(point, object)| {
            let resolved = point.resolve_held(&object, offset)?;
            Ok(point.named(path, resolved))
        });
        self.note_resolved(&outcome, by);
        outcome.inspect_err(|refusal| self.inner.shared.metrics.refused(refusal))
    }

    /// A session may ask for blocks of this segment.
    fn note_resolved(&self, outcome: &Result<Resolved, Refusal>, by: AskedBy) {
        if let Ok(Resolved {
            body: Body::Coded(held),
            ..
        }) = outcome
        {
            let store = &self.inner.shared.store;
            store.note_named(&held.lease, by.account, Instant::now());
        }
    }

    /// A held segment of a published stream, with this coding if given.
    pub fn find(&self, id: &SegmentId, coding: Option<Coding>) -> Option<Held> {
        let held = self.inner.shared.store.lookup(id, coding)?;
        let points = self.inner.points.load();
        let is_published = held
            .path
            .as_deref()
            .is_none_or(|path| points.contains_key(stream_of(path)));
        is_published.then_some(held)
    }

    /// The hashes of a held segment's blocks, if its stream has a key.
    pub fn hashes(&self, held: &Held) -> Option<Bytes> {
        self.inner
            .shared
            .store
            .hashes(held.lease.key)
            .map(|hashes| hashes.as_bytes().clone())
    }

    /// Computes secret checksums of a generation of a held segment, signed if its stream has a key.
    pub async fn checks(&self, held: &Held, asked: &GetChecks) -> Result<Checks, Refusal> {
        let shared = &self.inner.shared;
        let generation = held
            .lease
            .shape
            .generation(asked.generation)
            .ok_or_else(|| unknown("no such generation"))?;
        if generation.codec.is_gfq() {
            return Err(unknown(
                "this stream has public homomorphic hashes instead of secret checksums",
            ));
        }
        let _place = shared
            .checks
            .try_acquire()
            .map_err(|_| point::overload("too many requests for checksums are waiting"))?;
        let _turn = shared
            .checks_at_once
            .acquire()
            .await
            .map_err(|_| point::internal("the server is stopping"))?;
        let bytes = match shared.store.generation(&held.lease, &generation).await {
            Ok(bytes) => bytes.ok_or_else(|| unknown("the server no longer holds the segment"))?,
            Err(error) => return Err(point::internal(&error.to_string())),
        };
        let stream = held
            .path
            .as_deref()
            .and_then(|path| path.strip_prefix('/')?.split('/').next());
        let signer = stream.and_then(|stream| self.signer(stream));
        let (asked, counter) = (asked.clone(), shared.metrics.signed_checks.clone());
        let made = tokio::task::spawn_blocking(move || {
            let (seed, columns) = (rand::random(), checks::COLUMNS);
            let projections = checks::project(
                Kernels::detect(),
                &seed,
                &asked.segment,
                &generation,
                columns,
                &bytes,
            )
            .into();
            let mut answer = Checks {
                request: asked.request,
                seed,
                columns,
                projections,
                signature: None,
            };
            if let Some(signer) = signer {
                signer.key().sign_checks(&asked, &mut answer);
                counter.inc();
            }
            answer
        });
        made.await
            .map_err(|_| point::internal("cannot compute the checksums"))
    }

    /// The signer of a stream, if it has a key.
    pub fn signer(&self, stream: &str) -> Option<Arc<Signer>> {
        self.inner
            .points
            .load()
            .get(stream)?
            .point
            .settings()
            .signer
            .clone()
    }

    /// New segments of a stream as they appear; `None` for an unknown stream. Closed when the
    /// stream is removed.
    pub fn subscribe(&self, stream: &str) -> Option<broadcast::Receiver<Arc<Resolved>>> {
        let points = self.inner.points.load();
        points
            .get(stream)
            .map(|running| running.point.announced.subscribe())
    }

    /// New live segments of all streams, for prefilling the ring.
    pub fn arrivals(&self) -> broadcast::Receiver<Arrival> {
        self.inner.shared.arrivals.subscribe()
    }

    /// Names of the streams.
    pub fn names(&self) -> Vec<String> {
        self.inner.points.load().keys().cloned().collect()
    }

    /// The latest time with which a stream issues answers now, in milliseconds since 1970; nothing
    /// if none has issued one.
    pub fn time(&self) -> Option<u64> {
        let points = self.inner.points.load();
        points
            .values()
            .filter_map(|running| running.point.time())
            .max()
    }

    /// The state of every stream.
    pub fn status(&self) -> Vec<Status> {
        let points = self.inner.points.load();
        let status = |(name, running): (&String, &Running)| Status {
            name: name.clone(),
            fault: running.point.fault(),
            key: running.point.settings().key(),
        };
        points.iter().map(status).collect()
    }

    /// Replaces the streams: all of them, or none if one is faulty. One call at a time.
    pub async fn apply(&self, streams: &Streams) -> Result<Applied, Error> {
        let before = self.inner.points.load_full();
        let mut applied = Applied::default();
        let mut points = BTreeMap::new();
        let mut configured = Vec::new();
        for (name, config) in streams {
            let fail = |fault| Error {
                stream: name.clone(),
                fault,
            };
            let signer = before
                .get(name)
                .and_then(|running| running.point.settings().signer.clone());
            let settings =
                Settings::new(name, config, &self.inner.shared.config, signer.as_deref())
                    .map_err(fail)?;
            let running = match before.get(name) {
                Some(running) if running.point.settings().is_same_place(&settings) => {
                    if *running.point.settings() != settings {
                        applied.changed.push(name.clone());
                        configured.push((Arc::clone(&running.point), settings));
                    }
                    running.clone()
                }
                other => {
                    let list = if other.is_some() {
                        &mut applied.replaced
                    } else {
                        &mut applied.added
                    };
                    list.push(name.clone());
                    let announced = other.map(|running| running.point.announced.clone());
                    self.start(name, settings, announced).await.map_err(fail)?
                }
            };
            points.insert(name.clone(), running);
        }
        for (point, settings) in configured {
            point.configure(settings);
        }
        applied.removed = before
            .keys()
            .filter(|name| !points.contains_key(*name))
            .cloned()
            .collect();
        let points = Arc::new(points);
        self.inner.points.store(Arc::clone(&points));
        // Nobody may have their segments any more, not even by id.
        let gone: Vec<&String> = applied.removed.iter().chain(&applied.replaced).collect();
        gone.iter()
            .filter_map(|name| before.get(*name))
            .for_each(|running| running.point.close());
        if !gone.is_empty() {
            self.inner
                .shared
                .store
                .withdraw(|path| gone.iter().any(|name| *name == stream_of(path)));
        }
        let is_new = |name: &String| {
            [&applied.added, &applied.replaced, &applied.changed]
                .iter()
                .any(|list| list.contains(name))
        };
        for (name, running) in points.iter().filter(|(name, _)| is_new(name)) {
            if let Some(signer) = &running.point.settings().signer {
                tracing::info!(
                    stream = name,
                    public_key = %signer.key().public(),
                    "the stream is signed",
                );
            }
        }
        Ok(applied)
    }

    async fn start(
        &self,
        name: &str,
        settings: Settings,
        announced: Option<broadcast::Sender<Arc<Resolved>>>,
    ) -> Result<Running, Fault> {
        let (config, metrics) = (&self.inner.shared.config, &self.inner.ingest_metrics);
        let supervisor = &self.inner.shared.supervisor;
        let source: Arc<dyn Source> = match &settings.place {
            Place::Http(origin) => {
                let origin = Http::open(origin.clone(), config, metrics.http.clone())?;
                let members = &self.inner.shared.members;
                members.before(Arc::new(origin), name, settings.key())
            }
            Place::Folder(root, names) => {
                let metrics = metrics.folder.clone();
                Arc::new(
                    Folder::open(
                        root,
                        names.clone(),
                        settings.timeout,
                        config,
                        metrics,
                        supervisor,
                    )
                    .await?,
                )
            }
        };
        let announced = announced.unwrap_or_else(|| broadcast::channel(ANNOUNCEMENTS_MAX).0);
        let unreadable = metrics.playlist_errors.clone();
        let point = Arc::new(Point::new(
            name,
            settings,
            source,
            Arc::clone(&self.inner.shared),
            announced,
            unreadable,
        ));
        let (followed, changes) = (
            Arc::clone(&point),
            Arc::new(tokio::sync::Mutex::new(point.source.changes())),
        );
        let follow = move || follow::follow(Arc::clone(&followed), Arc::clone(&changes));
        let task = tokio::spawn(
            self.inner
                .shared
                .supervisor
                .clone()
                .revived(ServerPart::LiveEdge, follow),
        )
        .abort_handle();
        Ok(Running {
            point,
            _task: Arc::new(Task(task)),
        })
    }

    /// The stream at the beginning of a path, and the rest of the path.
    fn locate(&self, path: &str) -> Result<(Arc<Point>, ObjectPath), Refusal> {
        let (name, object) = path
            .strip_prefix('/')
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(|| unknown("a path must be /STREAM/OBJECT"))?;
        let points = self.inner.points.load();
        let running = points.get(name).ok_or_else(|| unknown("no such stream"))?;
        let object = ObjectPath::parse(object).map_err(|error| unknown(&error.to_string()))?;
        Ok((Arc::clone(&running.point), object))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The resolved configuration of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    place: Place,
    signer: Option<Arc<Signer>>,
    n_max: u16,
    /// Minimum number of generations per segment, if they are long enough.
    parts: u16,
    block_bytes: u32,
    codec: Codec,
    first_pass: FirstPass,
    row_weight: Option<NonZeroU16>,
    retention: Duration,
    playlist_age: Duration,
    playlist_grace: Duration,
    playlist_stale_after: Duration,
    playlist_max_bytes: u64,
    segment_age: Duration,
    prefetch: u16,
    playlists: Vec<ObjectPath>,
    mutable: Vec<String>,
    parameters: Parameters,
    timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Http(Origin),
    Folder(PathBuf, Names),
}

impl Settings {
    /// The key that verifies the stream's signatures, if it has one.
    fn key(&self) -> Option<StreamKey> {
        self.signer.as_ref().map(|signer| signer.key().public())
    }

    /// `signer` is the present signer.
    fn new(
        name: &str,
        config: &Config,
        ingest: &ingest::Config,
        signer: Option<&Signer>,
    ) -> Result<Self, Fault> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !(1..=64).contains(&name.len()) || !name.bytes().all(is_plain) {
            return Err(Fault::Name);
        }
        let codec = config.shape(ingest.segment_max_bytes.as_u64())?.codec();
        let parameters = Parameters::new(&config.query);
        let playlist = |text: &String| match ObjectPath::parse(text) {
            Ok(path) => Ok(path.with_parameters(&parameters)),
            Err(error) => Err(Fault::Playlist(text.clone(), error)),
        };
        Ok(Self {
            place: Place::new(config)?,
            signer: config
                .signing_key
                .as_deref()
                .map(|path| Signer::open(path, signer))
                .transpose()?
                .map(Arc::new),
            n_max: config.n_max,
            parts: config.parts()?,
            block_bytes: config.block_bytes,
            codec,
            first_pass: if codec.is_recodable() {
                config.first_pass
            } else {
                FirstPass::Systematic
            },
            row_weight: config.sparse_rows()?,
            retention: config.retention,
            playlist_age: config.playlist_age,
            playlist_grace: config.playlist_grace,
            playlist_stale_after: config.playlist_stale_after,
            playlist_max_bytes: config.playlist_max_bytes.as_u64(),
            segment_age: config.segment_age,
            prefetch: config.prefetch,
            playlists: config
                .playlists
                .iter()
                .map(playlist)
                .collect::<Result<_, _>>()?,
            mutable: config
                .mutable
                .iter()
                .map(|text| text.trim_start_matches('.').to_ascii_lowercase())
                .collect(),
            parameters,
            timeout: config.timeout,
        })
    }

    /// The shape of a segment of this length.
    fn shape(&self, length: u64) -> Result<Shape, ShapeError> {
        Ok(Shape::new(length, self.block_bytes, self.n_max)?
            .coded_with(self.codec)?
            .in_parts(self.parts))
    }

    /// Whether objects come from the same place in the same way, so that held segments stay valid.
    fn is_same_place(&self, other: &Self) -> bool {
        self.place == other.place && self.timeout == other.timeout
    }
}

impl Place {
    fn new(config: &Config) -> Result<Self, Fault> {
        let origin = match (&config.origin, &config.directory) {
            (Some(origin), None) => origin,
            (None, Some(root)) => return Ok(Self::Folder(root.clone(), config.names()?)),
            (Some(_), Some(_)) | (None, None) => return Err(Fault::Place),
        };
        let fail = |why| Fault::Origin(origin.clone(), why);
        let mut base = Url::parse(origin.expose()).map_err(|_| fail(NO_URL))?;
        if !is_http(&base) {
            return Err(fail("expected a URL with the scheme http or https"));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(fail(
                "the URL must not have a query or fragment: use `headers` for parameters that the \
                 origin needs",
            ));
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Ok(Self::Http(Origin {
            base: Secret::new(base),
            host: config.host.clone(),
            headers: config
                .headers
                .iter()
                .map(|(name, value)| (name.clone(), value.value().clone()))
                .collect(),
            redirect_hosts: config.redirect_hosts.clone(),
            timeout: config.timeout,
        }))
    }
}

impl Config {
    /// The HTTP origin of a stream.
    pub(crate) fn http(&self) -> Result<Origin, Fault> {
        match Place::new(self)? {
            Place::Http(origin) => Ok(origin),
            Place::Folder(..) => Err(Fault::Place),
        }
    }
}

fn unknown(reason: &str) -> Refusal {
    Refusal {
        code: RefusalCode::Unknown,
        retry_after: None,
        reason: reason.to_owned(),
    }
}

/// The library's sweeping task.
async fn sweep(store: Store) {
    let mut tick = tokio::time::interval(SWEEP);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        store.sweep(Instant::now());
    }
}

const NO_URL: &str =
    "not a valid URL; in a user or password `/`, `?`, `#` and `@` must be percent-encoded";
const SWEEP: Duration = Duration::from_secs(1);
/// Announcements hold leases until the slowest subscriber has read them, so there are few.
const ANNOUNCEMENTS_MAX: usize = 16;
const ARRIVALS_MAX: usize = 64;
/// Concurrent computations of checksums: each takes a thread for some milliseconds, and memory for
/// a generation.
const CHECKS_AT_ONCE: usize = 2;
/// The same, plus those that wait.
const CHECKS_QUEUED: usize = 64;
/// Long playlists parsed at once: each takes a thread and, for a moment, many times its size in
/// memory.
const READING_AT_ONCE: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(name: &str, config: &Config) -> Result<Settings, Fault> {
        Settings::new(name, config, &ingest::Config::default(), None)
    }

    fn config(origin: &str) -> Config {
        Config {
            origin: Some(origin.into()),
            ..Config::default()
        }
    }

    #[test]
    fn names_are_one_part_of_a_path() {
        for (name, is_good) in [
            ("live-1_X", true),
            ("", false),
            ("a/b", false),
            ("..", false),
            ("a b", false),
            ("é", false),
        ] {
            assert_eq!(
                settings(name, &config("http://origin.test")).is_ok(),
                is_good,
                "{name}"
            );
        }
    }

    #[test]
    fn origins_are_urls() {
        let place = |origin: &str| settings("s", &config(origin)).map(|settings| settings.place);
        let Ok(Place::Http(origin)) = place("https://origin.test/base") else {
            panic!("an origin over HTTP")
        };
        assert_eq!(origin.base.expose().as_str(), "https://origin.test/base/");
        for origin in [
            "",
            "media",
            "/srv",
            "ftp://x/",
            "http://",
            "http://x/?a",
            "http://x/#a",
        ] {
            assert!(place(origin).is_err(), "{origin}");
        }
        let both = Config {
            directory: Some("/srv".into()),
            ..config("http://origin.test")
        };
        assert!(matches!(settings("s", &both), Err(Fault::Place)));
        assert!(matches!(
            settings("s", &Config::default()),
            Err(Fault::Place)
        ));
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        assert!(
            settings(
                "s",
                &Config {
                    n_max: 0,
                    ..config("http://origin.test")
                }
            )
            .is_err()
        );
        assert!(
            settings(
                "s",
                &Config {
                    row_weight: Some(12),
                    ..config("http://origin.test")
                }
            )
            .is_err()
        );
        assert!(
            settings(
                "s",
                &Config {
                    block_bytes: 100,
                    ..config("http://origin.test")
                }
            )
            .is_err()
        );
        assert!(
            settings(
                "s",
                &Config {
                    playlists: vec!["../x.m3u8".into()],
                    ..config("http://origin.test")
                }
            )
            .is_err()
        );
    }
}
