//! A local web server on which any player opens the streams' own paths.
//!
//! The player sees the origin's objects under `/stream/path`, as if it asked the origin itself, and
//! notices neither coded blocks nor losses. Playlists and manifests are collected before they are
//! served, and absolute URIs in playlists are rewritten to the gateway. Everything else is sent as
//! its bytes are proved, with the head before the first of them. Objects that the player will
//! request next are prefetched, and sent at the path's pace (`pacing`), because a player chooses
//! its rendition by the rate of arrival.
//!
//! One task accepts, and one runs for each connection, at most `connections_max` ([`listener`]). A
//! request beyond `requests_max` is answered 503, unless a player has read nothing of its answer
//! for `stall_timeout`: that one is cut off. When a player leaves, its request ends: dropping the
//! body drops the object, which ends the transfer.
//!
//! Only requests for loopback names and configured ones are answered. If the gateway sends a
//! credential to the server, only its own pages and configured ones are served (`access`). Other
//! users of the machine can connect like its own user.
//!
//! A page of the gateway itself shows what is played, from whom, and how it was repaired
//! (`status`).

mod access;
mod ahead;
mod answer;
mod origins;
mod pacing;
mod played;
mod status;

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use bytesize::ByteSize;
use futures_util::future::BoxFuture;
use futures_util::stream;
use hyper::Request;
use hyper::body::Incoming;
use ncs_net::feed::Feed;
pub use ncs_net::host::parse as parse_host;
use ncs_net::listener::{self, Crowd, Limits};
use ncs_net::secret::redacted_path;
use ncs_proto::object::RefusalCode;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::access::Access;
pub use self::access::parse_origin;
use self::ahead::{Ahead, Wanted};
use self::answer::{
    Failure, Served, allow, finish, index, names, partial, preflight, slice, tag, text,
};
use self::origins::{Absolute, Mapping, Origins};
use self::pacing::Pacing;
use self::played::{Played, Playing};
use super::http::{ByteRange, media_type};
use super::manifest::{Beginning, Manifest};
use super::playlist::{self, Media};
use super::{Client, Object, Stats};

/// The configuration of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address for players.
    pub listen: SocketAddr,
    /// Accepted host names, in addition to loopback's and the local address of the connection.
    pub hosts: Vec<String>,
    /// Origins whose pages may read, `*` for all. By default all may, unless the gateway sends a
    /// credential to the server.
    pub origins: Vec<String>,
    /// The maximum number of connections from players. At the maximum, one that waits for a request
    /// makes room, or new ones wait.
    pub connections_max: usize,
    /// The maximum time for the head of a request, and of an idle connection.
    #[serde(with = "ncs_net::units::duration")]
    pub head_timeout: Duration,
    /// How long a player may read nothing of its answer, for example while paused, before its
    /// connection or request makes room for others. It can resume by a range request.
    #[serde(with = "ncs_net::units::duration")]
    pub stall_timeout: Duration,
    /// The maximum number of concurrent requests; more are answered 503.
    pub requests_max: usize,
    /// Segments to prefetch for the player.
    pub ahead_segments: usize,
    /// The maximum size of a playlist.
    pub playlist_bytes_max: ByteSize,
    /// The maximum time to the first bytes of an answer, before a 504.
    #[serde(with = "ncs_net::units::duration")]
    pub answer_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            hosts: Vec::new(),
            origins: Vec::new(),
            connections_max: 256,
            head_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(30),
            requests_max: 128,
            ahead_segments: 3,
            playlist_bytes_max: ByteSize::mib(4),
            answer_timeout: Duration::from_secs(30),
        }
    }
}

/// Why a gateway could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is in use, or is not one of this machine's.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
    /// A host or origin that no request could match.
    #[error("{0}")]
    Name(String),
}

/// A running gateway. Dropping it cuts every connection; [`stop`](Self::stop) lets answers finish.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    feed: Arc<Feed>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Gateway {
    /// Listens, and serves the objects of `client`.
    pub fn start(config: Config, client: Client) -> BoxFuture<'static, Result<Self, Error>> {
        // Boxed: the body of an async function is compiled in each crate that awaits it.
        Box::pin(Self::open(config, client))
    }

    async fn open(config: Config, client: Client) -> Result<Self, Error> {
        let access = Access::new(&config.hosts, &config.origins, client.has_credential())
            .map_err(Error::Name)?;
        let refused = |error| Error::Listen(config.listen, error);
        let listener = TcpListener::bind(config.listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let crowd = Crowd::new(Limits {
            connections_max: config.connections_max,
            head_timeout: config.head_timeout,
            stall_timeout: config.stall_timeout,
            // A player may read one answer for as long as it plays.
            life: None,
        });
        let shared = Arc::new_cyclic(|this| Shared {
            this: this.clone(),
            followed: Mutex::default(),
            access,
            client,
            crowd: Arc::clone(&crowd),
            places: Arc::new(Semaphore::new(config.requests_max)),
            begun: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            ahead: Mutex::new(Ahead::new(config.ahead_segments)),
            origins: Mutex::default(),
            played: Played::default(),
            feed: Feed::new(),
            config,
        });
        let (feed, shown, begun) = (
            Arc::clone(&shared.feed),
            Arc::clone(&shared),
            Instant::now(),
        );
        let answer = move |request: Request<Incoming>, local| {
            let (shared, (head, _)) = (Arc::clone(&shared), request.into_parts());
            async move {
                shared
                    .answer(&head.method, &head.uri, &head.headers, local)
                    .await
            }
        };
        let (stop, stopped) = oneshot::channel();
        let serving = listener::serve(listener, crowd, answer, async move {
            let _ = stopped.await;
        });
        let stats = shown.client.stats();
        let feeding = async move {
            let parts = || status::parts(&stats.borrow(), &shown.played, begun.elapsed());
            shown.feed.run(parts).await;
        };
        let task = tokio::spawn(async move {
            tokio::select! {
                () = serving => {}
                () = feeding => {}
            }
        });
        Ok(Self {
            address,
            feed,
            stop: Some(stop),
            task,
        })
    }

    /// The address it listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of an object.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Accepts no new connections, and waits at most `patience` for answers in progress.
    pub async fn stop(mut self, patience: Duration) {
        self.feed.close();
        drop(self.stop.take());
        if timeout(patience, &mut self.task).await.is_err() {
            tracing::debug!("players were still being answered");
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Shared {
    /// For tasks that must not keep the gateway alive.
    this: Weak<Self>,
    /// Streams whose announcements the gateway receives.
    followed: Mutex<HashSet<String>>,
    config: Config,
    access: Access,
    client: Client,
    /// The players' connections.
    crowd: Arc<Crowd>,
    places: Arc<Semaphore>,
    /// The number of answers begun, except playlists, and the number that wait for the path.
    begun: AtomicU64,
    waiting: AtomicUsize,
    ahead: Mutex<Ahead>,
    origins: Mutex<Origins>,
    /// For the gateway's own page.
    played: Played,
    feed: Arc<Feed>,
}

impl Shared {
    async fn answer(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        local: IpAddr,
    ) -> Response {
        let reader = match self.access.check(uri, headers, local) {
            Ok(reader) => reader,
            Err(failure) => {
                tracing::debug!(%local, reason = failure.reason, "a request was refused");
                return failure.into_response();
            }
        };
        let head = method == Method::HEAD;
        let mut response = if method == Method::OPTIONS {
            preflight(&reader)
        } else if !head && method != Method::GET {
            Failure::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET, HEAD and OPTIONS are supported",
            )
            .into_response()
        } else if uri.path() == "/" {
            index()
        } else if let Some(mut page) = status::answer(uri.path(), headers, local, &self.feed) {
            if head {
                *page.body_mut() = Body::empty();
            }
            return page;
        } else {
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let answered = self.serve(path, headers, head).await;
            answered.unwrap_or_else(|failure| {
                let status = failure.status.as_u16();
                tracing::debug!(
                    path = redacted_path(path),
                    status,
                    reason = failure.reason,
                    "not served"
                );
                failure.into_response()
            })
        };
        allow(&reader, response.headers_mut());
        if head {
            *response.body_mut() = Body::empty();
        }
        response
    }

    async fn serve(
        &self,
        path: &str,
        headers: &HeaderMap,
        head: bool,
    ) -> Result<Response, Failure> {
        let place = self
            .place()
            .await
            .ok_or_else(|| Failure::busy("too many requests"))?;
        let late = |_| Failure::new(StatusCode::GATEWAY_TIMEOUT, "no answer in time");
        timeout(
            self.config.answer_timeout,
            self.serve_in_time(path, headers, head, place),
        )
        .await
        .map_err(late)?
    }

    /// A permit for a request. If none is free, a player that reads nothing loses its own.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let places = || Arc::clone(&self.places);
        match places().try_acquire_owned() {
            Ok(place) => Some(place),
            Err(_) if self.crowd.end_stalled(Instant::now()) => {
                timeout(PLACE_WITHIN, places().acquire_owned())
                    .await
                    .ok()?
                    .ok()
            }
            Err(_) => None,
        }
    }

    async fn serve_in_time(
        &self,
        path: &str,
        headers: &HeaderMap,
        head: bool,
        place: OwnedSemaphorePermit,
    ) -> Result<Response, Failure> {
        if is_playlist_type(media_type(path)) {
            let object = self.client.open(path, None).await?;
            return self.serve_playlist(path, headers, object, None).await;
        }
        if head {
            return self.describe(path).await;
        }
        let under_way = UnderWay::new(self);
        let range = self.range(path, headers).await?;
        let next = self.look_ahead(path, range.clone());
        let mut object = self.client.open(path, range.clone()).await?;
        let tag = tag(object.version);
        if text(headers, header::IF_NONE_MATCH).is_some_and(|known| names(known, &tag)) {
            return Ok(finish(
                Response::builder()
                    .status(StatusCode::NOT_MODIFIED)
                    .header(header::ETAG, tag),
                Body::empty(),
            ));
        }
        // A player measures the path by the arrival of media bytes, beginning with the head. For
        // other files the first bytes tell whether they are a playlist, and a failure at this point
        // can still be reported; an answer in progress can only be cut off.
        let first = if is_media(path, &object.content_type) {
            None
        } else {
            object.next().await.transpose()?
        };
        if range.is_none()
            && (is_playlist_type(&object.content_type)
                || first.as_deref().is_some_and(playlist::is_playlist))
        {
            return self.serve_playlist(path, headers, object, first).await;
        }
        if let Some(is_live) = first
            .as_deref()
            .filter(|_| range.is_none())
            .and_then(Manifest::sniff)
        {
            let is_new = self.ahead().learn_manifest(path, is_live, Instant::now());
            if is_live {
                self.follow(path);
            }
            if is_new
                && object
                    .length
                    .is_some_and(|length| length <= self.config.playlist_bytes_max.as_u64())
            {
                let bytes = self.collect(&mut object, first).await?;
                self.ask_for_beginnings(path, &bytes);
                return Ok(slice(
                    served(path, &object).head(&tag),
                    headers,
                    &tag,
                    bytes,
                ));
            }
        }
        let mut response = served(path, &object).head(&tag);
        response = match (range, object.length) {
            (Some(_), Some(length)) => partial(response, &object.range, length),
            (_, Some(length)) => response.header(header::CONTENT_LENGTH, length),
            (_, None) => response,
        };
        let (there, pacing, stats) = (
            first.unwrap_or_default(),
            Pacing::new(Instant::now()),
            self.client.stats(),
        );
        let left = object.range.end.saturating_sub(object.range.start);
        Ok(finish(
            response,
            Flowing {
                object,
                there,
                pacing,
                stats,
                next,
                left,
                under_way,
                playing: self.played.begin(path),
                _place: place,
            }
            .body(),
        ))
    }

    /// The requested bytes, `None` for the whole object.
    async fn range(&self, path: &str, headers: &HeaderMap) -> Result<Option<Range<u64>>, Failure> {
        let Some(range) = text(headers, header::RANGE).and_then(ByteRange::parse) else {
            return Ok(None);
        };
        let (from, length) = match range {
            ByteRange::From(first, last) => {
                (first, last.and_then(|last| (last - first).checked_add(1)))
            }
            ByteRange::Suffix(_) => (0, None),
        };
        let meta = match self.client.stat(path, from, length).await {
            Err(_) if from > 0 => self.client.stat(path, 0, None).await?,
            answer => answer?,
        };
        if text(headers, header::IF_RANGE).is_some_and(|known| known != tag(meta.version)) {
            return Ok(None);
        }
        // Without a length there are no ranges: RFC 9110 allows ignoring the header.
        let Some(length) = meta.object_length else {
            return Ok(None);
        };
        range
            .resolve(length)
            .map(Some)
            .ok_or_else(|| Failure::unsatisfiable(length))
    }

    async fn describe(&self, path: &str) -> Result<Response, Failure> {
        let meta = self.client.stat(path, 0, None).await?;
        let served = Served {
            path,
            content_type: &meta.content_type,
            mutable: meta.mutable,
            max_age: meta.max_age,
        };
        let mut response = served.head(&tag(meta.version));
        if let Some(length) = meta.object_length {
            response = response.header(header::CONTENT_LENGTH, length);
        }
        Ok(finish(response, Body::empty()))
    }

    async fn serve_playlist(
        &self,
        path: &str,
        headers: &HeaderMap,
        mut object: Object,
        first: Option<Bytes>,
    ) -> Result<Response, Failure> {
        let bytes = self.collect(&mut object, first).await?;
        let bytes = match std::str::from_utf8(&bytes) {
            Ok(text) if playlist::is_playlist(&bytes) => {
                Bytes::from(self.turn_here(path, text).await)
            }
            _ => bytes,
        };
        if let Some(media) = Media::parse(&bytes) {
            let wanted = self.ahead().learn(path, &media, Instant::now());
            self.prefetch(wanted);
            if !media.ended {
                self.follow(path);
            }
        }
        let tag = format!("\"{}\"", &blake3::hash(&bytes).to_hex()[..16]);
        Ok(slice(
            served(path, &object).head(&tag),
            headers,
            &tag,
            bytes,
        ))
    }

    /// All bytes of an object; fails if it exceeds the limit of playlists.
    async fn collect(&self, object: &mut Object, first: Option<Bytes>) -> Result<Bytes, Failure> {
        let limit = usize::try_from(self.config.playlist_bytes_max.as_u64()).unwrap_or(usize::MAX);
        let mut bytes = BytesMut::from(first.unwrap_or_default());
        while let Some(part) = object.next().await {
            bytes.extend_from_slice(&part?);
            if bytes.len() > limit {
                return Err(Failure::new(
                    StatusCode::BAD_GATEWAY,
                    "the playlist is too long",
                ));
            }
        }
        Ok(bytes.freeze())
    }

    /// Rewrites the absolute URIs of a playlist to this gateway.
    async fn turn_here(&self, path: &str, text: &str) -> String {
        let stream = path.split(['/', '?']).nth(1).unwrap_or_default();
        // Newest first: in a live playlist, the oldest may just have been removed.
        for absolute in playlist::uris(text)
            .filter_map(Absolute::parse)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            if self.origins().map(stream, absolute, Instant::now()) == Mapping::Ask {
                let Ok(found) = self.find(stream, absolute).await else {
                    break;
                };
                self.origins()
                    .learn(stream, absolute, found.as_deref(), Instant::now());
            }
        }
        let (origins, now) = (self.origins(), Instant::now());
        playlist::rewrite(text, |uri| {
            match origins.map(stream, Absolute::parse(uri)?, now) {
                Mapping::Path(path) => Some(path),
                Mapping::Ask | Mapping::Elsewhere => None,
            }
        })
    }

    /// The path of the stream for an absolute URI, if there is one.
    async fn find(
        &self,
        stream: &str,
        absolute: Absolute<'_>,
    ) -> Result<Option<String>, crate::Error> {
        for candidate in origins::candidates(stream, absolute) {
            match self.client.stat(&candidate, 0, None).await {
                Ok(_) => return Ok(Some(candidate)),
                Err(crate::Error::Refused(_) | crate::Error::Path(_)) => {}
                Err(error) => return Err(error),
            }
        }
        tracing::warn!(
            stream,
            ?absolute,
            "a playlist names a file outside the stream: players will fetch it elsewhere"
        );
        Ok(None)
    }

    /// Prefetches the objects that the player will request next, or asks about them. Returns what
    /// to fetch once no answer is in progress.
    fn look_ahead(&self, path: &str, range: Option<Range<u64>>) -> Option<Wanted> {
        let is_whole = range.is_none();
        let asked = Wanted {
            path: path.to_owned(),
            range,
        };
        let wanted = self.ahead().after(&asked);
        self.prefetch(wanted);
        let listed = self.ahead().next_listed(&asked);
        if listed.is_some() {
            return listed;
        }
        let next = self.ahead().next_number(path).filter(|_| is_whole)?;
        let (gateway, client, path) = (self.this.clone(), self.client.clone(), next.clone());
        tokio::spawn(async move {
            if let Err(crate::Error::Refused(refusal)) = client.stat(&path, 0, None).await
                && refusal.code == RefusalCode::Unknown
                && let Some(gateway) = gateway.upgrade()
            {
                gateway.ahead().missed(&path);
            }
        });
        Some(Wanted {
            path: next,
            range: None,
        })
    }

    /// Requests the METAs of the first files of the manifest at `path`, so that their first blocks
    /// are one round trip away when the player asks; prefetches the files that it needs in any
    /// case, if prefetching is on.
    fn ask_for_beginnings(&self, path: &str, bytes: &[u8]) {
        let Some(manifest) = Manifest::parse(path, bytes) else {
            return;
        };
        let (gateway, client, fetches) = (
            self.this.clone(),
            self.client.clone(),
            self.config.ahead_segments > 0,
        );
        let mut asked = HashSet::new();
        let mut asks = Vec::new();
        for Beginning {
            initialization,
            media,
            is_only,
        } in manifest.beginnings
        {
            let initialization = initialization.map(|path| (path, Wish::Soon));
            // For a live one, the player's clock decides where it begins.
            let media = (!manifest.is_live)
                .then_some((media, if is_only { Wish::Now } else { Wish::Meta }));
            for (path, wish) in initialization.into_iter().chain(media) {
                let wish = if fetches { wish } else { Wish::Meta };
                if asked.insert(path.clone()) {
                    asks.push(ask(gateway.clone(), client.clone(), path, wish));
                }
            }
        }
        tokio::spawn(futures_util::future::join_all(asks));
    }

    /// Called at the end of an answer. If no other begins soon, and none waits for the path, the
    /// objects that players will request next are prefetched.
    fn rest(&self) {
        // Bodies are also dropped when the runtime ends.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (gateway, begun) = (self.this.clone(), self.begun.load(Ordering::Relaxed));
        runtime.spawn(async move {
            tokio::time::sleep(REST).await;
            let Some(gateway) = gateway.upgrade() else {
                return;
            };
            if gateway.begun.load(Ordering::Relaxed) == begun
                && gateway.waiting.load(Ordering::Relaxed) == 0
            {
                let next = gateway.ahead().take_next(Instant::now());
                gateway.prefetch(next);
            }
        });
    }

    /// Subscribes to a live stream that is being played, so that new segments are fetched before
    /// the player reloads its playlist. Ends when the stream is no longer played.
    fn follow(&self, path: &str) {
        let Some(stream) = path.split('/').nth(1).filter(|stream| !stream.is_empty()) else {
            return;
        };
        let mut followed = self.followed();
        if !followed.insert(stream.to_owned()) {
            return;
        }
        drop(followed);
        let (gateway, client, stream) = (self.this.clone(), self.client.clone(), stream.to_owned());
        tokio::spawn(async move {
            // If the subscription ends, the next read of the playlist renews it.
            if let Ok(mut news) = client.subscribe(&stream).await {
                while let Some((path, meta)) = news.recv().await {
                    let Some(gateway) = gateway.upgrade() else {
                        return;
                    };
                    if !gateway.announced(&stream, path, &meta) {
                        break;
                    }
                }
            }
            if let Some(gateway) = gateway.upgrade() {
                gateway.followed().remove(&stream);
            }
        });
    }

    /// Fetches an announced segment if a player will request it. False if the stream is not being
    /// played.
    fn announced(&self, stream: &str, path: String, meta: &crate::Meta) -> bool {
        let now = Instant::now();
        let whole = meta.offset == 0
            && meta
                .object_length
                .is_none_or(|length| length == meta.length);
        let range = (!whole).then(|| meta.offset..meta.offset + meta.length);
        let wanted = Wanted { path, range };
        let fetch = self.ahead().announced(&wanted, now);
        if fetch {
            self.prefetch(vec![wanted]);
        }
        fetch || self.ahead().plays_live(stream, now)
    }

    fn followed(&self) -> MutexGuard<'_, HashSet<String>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prefetch(&self, wanted: Vec<Wanted>) {
        for wanted in wanted {
            self.client.prefetch(&wanted.path, wanted.range);
        }
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn origins(&self) -> MutexGuard<'_, Origins> {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn served<'a>(path: &'a str, object: &'a Object) -> Served<'a> {
    Served {
        path,
        content_type: &object.content_type,
        mutable: object.mutable,
        max_age: object.max_age,
    }
}

/// An answer in progress. Holds its permit until the last byte is sent or the player leaves.
struct Flowing {
    object: Object,
    /// Received bytes that have not been sent.
    there: Bytes,
    pacing: Pacing,
    stats: watch::Receiver<Stats>,
    /// The object that the player will request after the remaining bytes.
    next: Option<Wanted>,
    left: u64,
    under_way: UnderWay,
    playing: Playing,
    _place: OwnedSemaphorePermit,
}

impl Flowing {
    /// The rest of the object as it arrives; bytes already there at the path's pace.
    fn body(self) -> Body {
        Body::from_stream(stream::unfold(self, async |mut flowing| {
            Some((flowing.next().await?, flowing))
        }))
    }

    async fn next(&mut self) -> Option<Result<Bytes, crate::Error>> {
        let begun = Instant::now();
        if self.there.is_empty() {
            let waiting = Waiting::new(&self.under_way);
            let came = self.object.next().await;
            drop(waiting);
            self.there = match came {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => {
                    tracing::warn!(%error, "an HTTP answer ended early");
                    return Some(Err(error));
                }
                None => {
                    self.note_next();
                    return None;
                }
            };
        }
        let (now, rate) = (Instant::now(), self.stats.borrow().rate);
        let (piece, at) = self.pacing.next(
            now,
            now.saturating_duration_since(begun),
            &mut self.there,
            rate,
        );
        if let Some(at) = at {
            tokio::time::sleep_until(at.into()).await;
        }
        self.playing.add(piece.len());
        self.left = self.left.saturating_sub(piece.len() as u64);
        // A body of known length is not polled for its end.
        if self.left == 0 {
            self.note_next();
        }
        Some(Ok(piece))
    }

    fn note_next(&mut self) {
        if let Some((gateway, next)) = self.under_way.0.upgrade().zip(self.next.take()) {
            gateway.ahead().note_next(next, Instant::now());
        }
    }
}

/// How much to fetch of a file before it is requested.
#[derive(Debug, Clone, Copy)]
enum Wish {
    /// Only its META.
    Meta,
    /// Its first part too, with low urgency.
    Soon,
    /// All of it with high urgency, if it is not larger than [`NOW_MAX`].
    Now,
}

async fn ask(gateway: Weak<Shared>, client: Client, path: String, wish: Wish) {
    let Ok(meta) = client.stat(&path, 0, None).await else {
        return;
    };
    match wish {
        Wish::Meta => {}
        Wish::Soon => client.prefetch(&path, None),
        // Read as a player would, so that it goes before all prefetches.
        Wish::Now if meta.object_length.is_some_and(|length| length <= NOW_MAX) => {
            let Ok(mut object) = client.open(&path, None).await else {
                return;
            };
            while gateway.strong_count() > 0 && matches!(object.next().await, Some(Ok(_))) {}
        }
        Wish::Now => {}
    }
}

/// An answer other than a playlist, from its request on.
#[derive(Debug)]
struct UnderWay(Weak<Shared>);

impl UnderWay {
    fn new(gateway: &Shared) -> Self {
        gateway.begun.fetch_add(1, Ordering::Relaxed);
        Self(gateway.this.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(gateway) = self.0.upgrade() {
            gateway.rest();
        }
    }
}

/// An answer that waits for the path, not for a slow player.
struct Waiting(Weak<Shared>);

impl Waiting {
    fn new(answer: &UnderWay) -> Self {
        if let Some(gateway) = answer.0.upgrade() {
            gateway.waiting.fetch_add(1, Ordering::Relaxed);
        }
        Self(answer.0.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(gateway) = self.0.upgrade() {
            gateway.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn is_playlist_type(content_type: &str) -> bool {
    let essence = content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    [
        "application/vnd.apple.mpegurl",
        "application/x-mpegurl",
        "audio/mpegurl",
        "audio/x-mpegurl",
    ]
    .contains(&essence.as_str())
}

/// Whether an object is audio, video, an image or text of a stream, and so not a playlist, by its
/// type or name.
fn is_media(path: &str, content_type: &str) -> bool {
    let is = |kind: &str| {
        let kind = kind.trim_start().to_ascii_lowercase();
        ["video/", "audio/", "image/", "text/vtt", "application/mp4"]
            .iter()
            .any(|media| kind.starts_with(media))
    };
    !is_playlist_type(content_type) && (is(content_type) || is(media_type(path)))
}

/// A player that wants more requests it at once after an answer; one with a full buffer waits for
/// seconds.
const REST: Duration = Duration::from_millis(200);
/// The maximum size of a first segment that is fetched with its manifest.
const NOW_MAX: u64 = 8 << 20;
/// The end of a connection frees its permit at once.
const PLACE_WITHIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playlist_types_are_known_with_parameters() {
        assert!(
            is_playlist_type("Application/x-mpegURL; charset=utf-8")
                && !is_playlist_type("video/mp2t")
        );
    }

    #[test]
    fn media_are_known_by_type_or_name() {
        assert!(
            is_media("/a/1", "Video/MP2T")
                && is_media("/a/1.m4s?x", "application/octet-stream")
                && is_media("/a/1.m4a", "")
        );
        for (path, content_type) in [
            ("/a/1.ts", "audio/mpegurl"),
            ("/a/list", ""),
            ("/a/v.mpd", "application/dash+xml"),
        ] {
            assert!(!is_media(path, content_type), "{path}");
        }
    }
}
