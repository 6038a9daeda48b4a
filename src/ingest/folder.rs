//! Objects in a folder that another program writes.
//!
//! One task per folder turns the kernel's events and periodic scans into [`Change`]s;
//! [`settle`](super::settle) interprets them. A file is read only while it is complete by that
//! judgement, and the bytes count only if the file is unchanged afterwards. A fetch of a file that
//! is being written waits for it, up to the stream's timeout. Files that are hidden or temporary by
//! name ([`names`](super::names)), and anything but regular files, are treated as missing.
//!
//! The watcher's thread sends events over a bounded channel. When that is full, it drops them and
//! requests a scan, as the kernel does when its own queue overflows. Nothing outside the folder
//! is read, not even through links.
//!
//! Every access to the file system runs on a separate thread, at most [`THREADS_MAX`] at once. If
//! it hangs, as a network file system may, fetches end with the stream's timeout, and no other
//! stream waits.

use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use ncs_net::files;
use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RemoveKind, RenameMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;
use url::Url;

use super::metrics::SourceMetrics;
use super::names::Names;
use super::settle::{Stat, Tracker};
use super::{
    BoxFuture, Change, Config, Error, Fetch, Fetched, Object, ObjectPath, Source, Want, complain,
};
use crate::supervise::{ServerPart, Supervisor};
use crate::telemetry::MILESTONE;
use crate::telemetry::quiet::RateLimited;

/// Why a folder cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder cannot be opened.
    #[error("cannot open the folder {0}: {1}")]
    Root(PathBuf, std::io::Error),
    /// The kernel's notifications fail.
    #[error("cannot watch the folder {0}: {1}")]
    Watch(PathBuf, notify::Error),
}

/// A watched folder. The watch ends when this is dropped.
#[derive(Debug)]
pub struct Folder {
    shared: Arc<Shared>,
    changes: Mutex<Option<mpsc::Receiver<Change>>>,
    task: JoinHandle<()>,
    /// Dropping it ends the watcher's thread.
    _watcher: RecommendedWatcher,
}

#[derive(Debug)]
struct Shared {
    /// The canonical path.
    root: PathBuf,
    names: Names,
    timeout: Duration,
    config: Config,
    /// Permits for threads that access the file system.
    threads: Arc<Semaphore>,
    complaints: RateLimited<(&'static str, u16)>,
    tracker: Mutex<Tracker>,
    /// Notified whenever the tracker has learned something.
    learned: Notify,
    metrics: SourceMetrics,
}

impl Folder {
    /// Begins to watch. Must be called within a tokio runtime. Fails if the file system does not
    /// answer within `timeout`.
    pub async fn open(
        root: &Path,
        names: Names,
        timeout: Duration,
        config: &Config,
        metrics: SourceMetrics,
        supervisor: &Supervisor,
    ) -> Result<Self, OpenError> {
        let (events, event_queue) = mpsc::channel(EVENTS_MAX);
        let lost = Arc::new(AtomicBool::new(false));
        let (at, forward) = (root.to_owned(), forwarder(events, Arc::clone(&lost)));
        let begun = in_time(timeout, move || begin(&at, forward)).await;
        let (canonical, watcher) =
            begun.map_err(|error| OpenError::Root(root.to_owned(), error))??;
        let files_max = usize::try_from(config.objects_max).unwrap_or(usize::MAX);
        let shared = Arc::new(Shared {
            root: canonical,
            names,
            timeout,
            config: config.clone(),
            threads: Arc::new(Semaphore::new(THREADS_MAX)),
            complaints: RateLimited::new(COMPLAIN_EVERY),
            tracker: Mutex::new(Tracker::new(config.settle, files_max)),
            learned: Notify::new(),
            metrics,
        });
        let (changed, changes) = mpsc::channel(CHANGES_MAX);
        let (watched, event_queue) = (
            Arc::clone(&shared),
            Arc::new(tokio::sync::Mutex::new(event_queue)),
        );
        let watch = move || {
            watch(
                Arc::clone(&watched),
                Arc::clone(&event_queue),
                Arc::clone(&lost),
                changed.clone(),
            )
        };
        let task = tokio::spawn(supervisor.clone().revived(ServerPart::Folder, watch));
        Ok(Self {
            shared,
            changes: Mutex::new(Some(changes)),
            task,
            _watcher: watcher,
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Source for Folder {
    fn fetch(&self, fetch: Fetch) -> BoxFuture<'_, Result<Fetched, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let begun = Instant::now();
            shared.metrics.requests.inc();
            let outcome = Arc::clone(&shared)
                .fetch_when_complete(&fetch, begun + shared.timeout)
                .await;
            match &outcome {
                Ok(Fetched::NotModified) => shared.metrics.not_modified.inc(),
                Ok(Fetched::Object(object)) => {
                    shared
                        .metrics
                        .bytes
                        .inc_by(u64::try_from(object.bytes.len()).unwrap_or(u64::MAX));
                }
                Err(Error::NotFound | Error::OutOfRange(_) | Error::Incomplete) => {}
                Err(error) => complain(&shared.complaints, error, || {
                    shared.root.join(fetch.path.to_file()).display().to_string()
                }),
            }
            shared.metrics.finished(begun.elapsed(), &outcome);
            outcome
        })
    }

    fn changes(&self) -> Option<mpsc::Receiver<Change>> {
        self.changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn base(&self) -> Option<&Url> {
        None
    }

    fn has_queries(&self) -> bool {
        false
    }
}

impl Shared {
    async fn fetch_when_complete(
        self: Arc<Self>,
        fetch: &Fetch,
        deadline: Instant,
    ) -> Result<Fetched, Error> {
        loop {
            let learned = self.learned.notified();
            let attempt = fetch.clone();
            match self.look(move |this| this.attempt(&attempt)).await {
                Err(Error::Incomplete) => {}
                outcome => return outcome,
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Error::Incomplete);
            }
            self.metrics.retries.inc();
            let _ = tokio::time::timeout(RECHECK.min(deadline - now), learned).await;
        }
    }

    /// Accesses the file system on a thread that may hang, for at most the time of a fetch.
    async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        look: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (this, threads) = (Arc::clone(self), Arc::clone(&self.threads));
        let looking = async move {
            let place = threads.acquire_owned().await.map_err(|_| Error::Timeout)?;
            let thread = tokio::task::spawn_blocking(move || {
                let outcome = look(&this);
                // Only the thread returns the permit, even if the caller has given up.
                drop(place);
                outcome
            });
            thread
                .await
                .unwrap_or_else(|error| Err(Error::Io(error.to_string())))
        };
        tokio::time::timeout(self.timeout, looking)
            .await
            .unwrap_or(Err(Error::Timeout))
    }

    fn attempt(&self, fetch: &Fetch) -> Result<Fetched, Error> {
        let name = fetch.path.to_file();
        if !self.names.publish(&name) {
            return Err(Error::NotFound);
        }
        let inside = self
            .root
            .join(name)
            .canonicalize()
            .map_err(|error| io_error(&error))?;
        // The target of a link has its own name, which is judged too.
        let name = inside
            .strip_prefix(&self.root)
            .ok()
            .filter(|name| self.names.publish(name))
            .ok_or(Error::NotFound)?;
        let (mut file, metadata) =
            files::open_below(&self.root, name).map_err(|error| io_error(&error))?;
        let before = stat(&metadata).ok_or(Error::NotFound)?;
        let complete = self.complete(fetch, before)?;
        let validators = before.validators();
        if fetch.known.as_ref() == Some(&validators) {
            return Ok(Fetched::NotModified);
        }
        let (start, end) = bounds(&fetch.want, before.length)?;
        let bytes = read(&mut file, start, end)?;
        let is_growing = matches!(fetch.want, Want::Listed(_));
        let after = std::fs::metadata(&inside)
            .ok()
            .as_ref()
            .and_then(stat)
            .ok_or(Error::Incomplete)?;
        let is_same = after == before
            || (is_growing && after.inode == before.inode && after.length >= before.length);
        if !is_same || self.complete(fetch, after).is_err() {
            return Err(Error::Incomplete);
        }
        let length = Some(before.length);
        Ok(Fetched::Object(Object {
            bytes,
            offset: start,
            length,
            validators,
            content_type: None,
            complete,
            issued_ms: None,
        }))
    }

    /// When the file was complete, or [`Error::Incomplete`].
    fn complete(&self, fetch: &Fetch, stat: Stat) -> Result<Instant, Error> {
        if let Want::Listed(range) = &fetch.want {
            // A listed range is complete although the file grows behind it.
            return if range.end <= stat.length {
                Ok(Instant::now())
            } else {
                Err(Error::Incomplete)
            };
        }
        let tracker = self.tracker();
        let path = fetch.path.without_query();
        match tracker.complete(&path, stat) {
            Some(at) => Ok(at),
            None if tracker.is_known(&path) => Err(Error::Incomplete),
            // A file beyond the number that is tracked: no event or scan has reported it.
            None => match stat.modified.and_then(|modified| modified.elapsed().ok()) {
                Some(age) if age >= self.config.settle => Ok(Instant::now()),
                _ => Err(Error::Incomplete),
            },
        }
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn object(&self, file: &Path) -> Option<ObjectPath> {
        let name = file
            .strip_prefix(&self.root)
            .ok()
            .filter(|name| self.names.publish(name))?;
        ObjectPath::from_file(name)
    }

    /// Interprets an event for the files that it names. The second value tells whether a scan
    /// should follow.
    fn heard(&self, event: &notify::Event, now: Instant) -> (Vec<Change>, bool) {
        if event.need_rescan() {
            self.tracker().overflowed(now);
            return (Vec::new(), true);
        }
        let mut changes = Vec::new();
        let mut scan = false;
        let last = event.paths.len().saturating_sub(1);
        for (at, file) in event.paths.iter().enumerate() {
            let Some(path) = self.object(file) else {
                continue;
            };
            let meaning = match event.kind {
                EventKind::Access(AccessKind::Close(AccessMode::Write)) => Meaning::Closed,
                EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Meaning::Closed,
                EventKind::Modify(ModifyKind::Name(RenameMode::From)) => Meaning::Gone,
                EventKind::Modify(ModifyKind::Name(RenameMode::Both)) if at == last => {
                    Meaning::Closed
                }
                EventKind::Modify(ModifyKind::Name(RenameMode::Both)) => Meaning::Gone,
                EventKind::Modify(ModifyKind::Name(_)) => Meaning::Scan,
                EventKind::Modify(ModifyKind::Metadata(_)) => Meaning::Nothing,
                EventKind::Modify(_) => Meaning::Written,
                EventKind::Create(CreateKind::File) => Meaning::Created,
                EventKind::Create(_) => Meaning::Scan,
                EventKind::Remove(RemoveKind::Folder) => Meaning::Scan,
                EventKind::Remove(_) => Meaning::Gone,
                EventKind::Any | EventKind::Access(_) | EventKind::Other => Meaning::Nothing,
            };
            match meaning {
                Meaning::Closed => match std::fs::metadata(file) {
                    Ok(metadata) if metadata.is_dir() => scan = true,
                    Ok(metadata) => {
                        let stat = stat(&metadata);
                        changes
                            .extend(stat.and_then(|stat| self.tracker().closed(&path, stat, now)));
                    }
                    Err(_) => changes.extend(self.tracker().removed(&path)),
                },
                Meaning::Created => changes.extend(self.tracker().created(&path, now)),
                Meaning::Written => changes.extend(self.tracker().written(&path, now)),
                Meaning::Gone => {
                    changes.extend(self.tracker().removed(&path));
                    // A removed folder takes its files with it.
                    scan |=
                        matches!(event.kind, EventKind::Modify(_)) && path.extension().is_empty();
                }
                Meaning::Scan => scan = true,
                Meaning::Nothing => {}
            }
        }
        (changes, scan)
    }

    /// Waits for a thread that accesses the file system, and logs when it hangs.
    async fn patiently<T>(&self, mut thread: JoinHandle<T>) -> Option<T> {
        if let Ok(outcome) = tokio::time::timeout(self.timeout, &mut thread).await {
            return outcome.ok();
        }
        let folder = self.root.display();
        tracing::warn!(%folder, "the folder does not respond: watching stops until it does");
        let outcome = thread.await.ok();
        tracing::info!(
            name: MILESTONE,
            folder = %self.root.display(),
            "the folder responds again"
        );
        outcome
    }

    /// Every regular file below the root.
    fn scan(&self) -> Vec<(ObjectPath, Stat)> {
        let mut found = Vec::new();
        let mut pending = vec![(self.root.clone(), 0)];
        let files_max = usize::try_from(self.config.objects_max).unwrap_or(usize::MAX);
        while let Some((folder, depth)) = pending.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else {
                continue;
            };
            for entry in entries.flatten() {
                if found.len() >= files_max {
                    return found;
                }
                let Ok(kind) = entry.file_type() else {
                    continue;
                };
                if !self
                    .names
                    .publish_name(&entry.file_name().to_string_lossy())
                {
                    continue;
                }
                if kind.is_dir() && depth < DEPTH_MAX {
                    pending.push((entry.path(), depth + 1));
                    continue;
                }
                let path = self.object(&entry.path());
                // Follows links to files; a fetch refuses those that lead outside.
                let stat = std::fs::metadata(entry.path()).ok().as_ref().and_then(stat);
                found.extend(path.zip(stat));
            }
        }
        found
    }
}

/// Accesses the file system on a thread that may hang, and waits for at most `bound`.
async fn in_time<T: Send + 'static>(
    bound: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<T> {
    match tokio::time::timeout(bound, tokio::task::spawn_blocking(look)).await {
        Ok(outcome) => outcome.map_err(std::io::Error::other),
        Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

/// The canonical path of the folder, and its watcher.
fn begin(
    root: &Path,
    forward: impl notify::EventHandler,
) -> Result<(PathBuf, RecommendedWatcher), OpenError> {
    let unread = |error| OpenError::Root(root.to_owned(), error);
    let unwatched = |error| OpenError::Watch(root.to_owned(), error);
    let canonical = root.canonicalize().map_err(unread)?;
    std::fs::read_dir(&canonical).map_err(unread)?;
    let mut watcher = notify::recommended_watcher(forward).map_err(unwatched)?;
    watcher
        .watch(&canonical, RecursiveMode::Recursive)
        .map_err(unwatched)?;
    Ok((canonical, watcher))
}

/// Whether an event means that a file has its content now, so that its metadata is read.
fn is_closed(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
    )
}

enum Meaning {
    Closed,
    Created,
    Written,
    Gone,
    Scan,
    Nothing,
}

/// The task of a folder. It locks the events while it runs.
async fn watch(
    shared: Arc<Shared>,
    events: Arc<tokio::sync::Mutex<mpsc::Receiver<notify::Event>>>,
    lost: Arc<AtomicBool>,
    changed: mpsc::Sender<Change>,
) {
    let mut events = events.lock().await;
    let (mut number, mut is_deaf) = (0, false);
    let mut next_scan = Instant::now();
    loop {
        let changes = tokio::select! {
            biased;
            event = events.recv(), if !is_deaf => {
                let Some(event) = event else {
                    let folder = shared.root.display();
                    tracing::error!(
                        %folder,
                        "the watcher of a folder ended: scanning periodically instead",
                    );
                    is_deaf = true;
                    continue;
                };
                let (now, this) = (Instant::now(), Arc::clone(&shared));
                // Only a closed file is looked at; the other events need no access.
                let (changes, scan) = match is_closed(event.kind) {
                    true => {
                        let heard = tokio::task::spawn_blocking(move || this.heard(&event, now));
                        let Some(heard) = shared.patiently(heard).await else { return };
                        heard
                    }
                    false => this.heard(&event, now),
                };
                if lost.swap(false, Ordering::Relaxed) {
                    shared.tracker().overflowed(now);
                    next_scan = now;
                } else if scan {
                    next_scan = next_scan.min(now + SCAN_PAUSE);
                }
                changes
            }
            () = tokio::time::sleep_until(next_scan.into()) => {
                number += 1;
                let (now, wall, this) = (Instant::now(), SystemTime::now(), Arc::clone(&shared));
                let scan = tokio::task::spawn_blocking(move || this.scan());
                let Some(found) = shared.patiently(scan).await else { return };
                next_scan = Instant::now() + shared.config.rescan;
                shared.tracker().scanned(found, number, now, wall)
            }
        };
        shared.learned.notify_waiters();
        for change in changes {
            if changed.send(change).await.is_err() {
                return;
            }
        }
    }
}

/// Runs in the watcher's thread.
fn forwarder(
    events: mpsc::Sender<notify::Event>,
    lost: Arc<AtomicBool>,
) -> impl Fn(notify::Result<notify::Event>) + Send + 'static {
    move |event| {
        let is_sent = match event {
            Ok(event) => is_idle(event.kind) || events.try_send(event).is_ok(),
            Err(error) => {
                tracing::warn!(%error, "cannot watch a folder: scanning it again");
                false
            }
        };
        if !is_sent {
            lost.store(true, Ordering::Relaxed);
        }
    }
}

/// Events caused by reading the folder.
fn is_idle(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

fn stat(metadata: &Metadata) -> Option<Stat> {
    let stat = Stat {
        length: metadata.len(),
        modified: metadata.modified().ok(),
        inode: inode(metadata),
    };
    metadata.is_file().then_some(stat)
}

#[cfg(unix)]
fn inode(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn inode(_metadata: &Metadata) -> u64 {
    0
}

fn bounds(want: &Want, length: u64) -> Result<(u64, u64), Error> {
    match want {
        Want::Whole(max) if length > *max => Err(Error::TooLarge(*max)),
        Want::Whole(_) => Ok((0, length)),
        Want::Head(max) => Ok((0, length.min(*max))),
        Want::Part(range) | Want::Listed(range) if range.start >= length => {
            Err(Error::OutOfRange(Some(length)))
        }
        Want::Part(range) => Ok((range.start, range.end.min(length))),
        Want::Listed(range) if range.end > length => Err(Error::OutOfRange(Some(length))),
        Want::Listed(range) => Ok((range.start, range.end)),
    }
}

fn read(file: &mut File, start: u64, end: u64) -> Result<Bytes, Error> {
    file.seek(SeekFrom::Start(start))
        .map_err(|error| io_error(&error))?;
    let mut bytes = Vec::new();
    file.take(end - start)
        .read_to_end(&mut bytes)
        .map_err(|error| io_error(&error))?;
    if u64::try_from(bytes.len()) == Ok(end - start) {
        Ok(bytes.into())
    } else {
        Err(Error::Incomplete)
    }
}

fn io_error(error: &std::io::Error) -> Error {
    match error.kind() {
        // Not a regular file, or replaced by a link a moment ago.
        std::io::ErrorKind::NotFound
        | std::io::ErrorKind::NotADirectory
        | std::io::ErrorKind::InvalidInput => Error::NotFound,
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            Error::NotFound
        }
        std::io::ErrorKind::PermissionDenied => Error::Forbidden(403),
        _ => Error::Io(error.to_string()),
    }
}

/// Threads of one folder that access the file system. One that hangs stays until its system call
/// ends.
const THREADS_MAX: usize = 32;
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);
const EVENTS_MAX: usize = 16_384;
const CHANGES_MAX: usize = 1024;
const DEPTH_MAX: usize = 16;
/// Events tell when a file is complete; this covers missing ones.
const RECHECK: Duration = Duration::from_millis(250);
/// The pause before a new folder is scanned, so that its first files can appear.
const SCAN_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::RefusalCode;

    /// As a server on HTTP answers it: another attempt does not help.
    #[test]
    fn a_file_that_the_server_may_not_read_is_forbidden() {
        let error = io_error(&std::io::ErrorKind::PermissionDenied.into());
        assert_eq!(
            (error.code(), error.status()),
            (RefusalCode::Forbidden, Some(403))
        );
        assert!(!error.is_transient());
    }

    /// With a single thread, which would hang too if the access did not have its own.
    #[tokio::test]
    async fn a_look_that_hangs_is_not_waited_for() {
        let (end, hang) = std::sync::mpsc::channel::<()>();
        let looked = in_time(Duration::from_millis(10), move || hang.recv()).await;
        assert_eq!(looked.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        drop(end);
        assert_eq!(in_time(Duration::from_secs(60), || 5).await.unwrap(), 5);
    }
}
