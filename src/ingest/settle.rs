//! Decides which files of a watched folder are complete. A plain value: events, scans and `now`
//! go in, changes come out.
//!
//! A file is complete when the kernel reports that its writer has closed it or moved it into place.
//! Where the kernel reports nothing (network file systems, files older than the watch, an
//! overflowed queue of events), it is complete when a scan finds size and time of modification
//! unchanged for a while. A file seen being written, under any of its names, is complete only when
//! closed, however long its writer pauses.
//!
//! A new file may be a link, which is never closed. If it has bytes and no write was seen, it is
//! complete once it has been unchanged for a while. An empty one is waited for, because its writer
//! may not have begun.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use super::path::ObjectPath;
use super::{Change, ChangeKind, Validators};

/// Metadata of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Size in bytes.
    pub length: u64,
    /// Last modification.
    pub modified: Option<SystemTime>,
    /// Identifies the file, whatever its name.
    pub inode: u64,
}

impl Stat {
    /// Validators made of size, time and inode.
    pub fn validators(&self) -> Validators {
        let modified = self
            .modified
            .and_then(|modified| modified.duration_since(SystemTime::UNIX_EPOCH).ok())
            .unwrap_or_default();
        Validators {
            etag: Some(format!(
                "\"{:x}-{:x}-{:x}\"",
                self.length,
                modified.as_nanos(),
                self.inode
            )),
            last_modified: None,
            told: None,
        }
    }
}

/// The files of a folder.
#[derive(Debug)]
pub struct Tracker {
    settle: Duration,
    files_max: usize,
    files: HashMap<ObjectPath, File>,
    scanned_once: bool,
}

#[derive(Debug)]
struct File {
    /// As last seen.
    stat: Option<Stat>,
    since: Instant,
    writer: Writer,
    complete: Option<(Stat, Instant)>,
    /// The last scan that saw it.
    scan: u64,
}

/// The writer of a file, as far as events tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Nobody,
    /// The file has appeared: its creator may be about to write.
    Maker,
    /// A write was seen, and no close since.
    Seen,
}

impl Tracker {
    /// A tracker that knows no file. Files found by the first scan existed before.
    pub fn new(settle: Duration, files_max: usize) -> Self {
        Self {
            settle,
            files_max,
            files: HashMap::new(),
            scanned_once: false,
        }
    }

    /// A file, or a link to one, has appeared.
    pub fn created(&mut self, path: &ObjectPath, now: Instant) -> Option<Change> {
        self.opened(path, Writer::Maker, now)
    }

    /// A file is being written.
    pub fn written(&mut self, path: &ObjectPath, now: Instant) -> Option<Change> {
        self.opened(path, Writer::Seen, now)
    }

    fn opened(&mut self, path: &ObjectPath, writer: Writer, now: Instant) -> Option<Change> {
        let file = self.file(path, now)?;
        file.writer = writer;
        file.since = now;
        file.stat = None;
        file.complete.take().map(|_| Change {
            path: path.clone(),
            kind: ChangeKind::Written,
        })
    }

    /// A file was closed by its writer, or moved into place.
    pub fn closed(&mut self, path: &ObjectPath, stat: Stat, now: Instant) -> Option<Change> {
        let file = self.file(path, now)?;
        file.writer = Writer::Nobody;
        file.stat = Some(stat);
        file.since = now;
        file.complete(path, stat, now)
    }

    /// A file was deleted or moved away.
    pub fn removed(&mut self, path: &ObjectPath) -> Option<Change> {
        let file = self.files.remove(path)?;
        let was_known = file.complete.is_some() || file.writer != Writer::Nobody;
        was_known.then(|| Change {
            path: path.clone(),
            kind: ChangeKind::Gone,
        })
    }

    /// Events were lost: nothing is known of open files any more.
    pub fn overflowed(&mut self, now: Instant) {
        for file in self
            .files
            .values_mut()
            .filter(|file| file.writer != Writer::Nobody)
        {
            file.writer = Writer::Nobody;
            file.since = now;
        }
    }

    /// A scan that began at `now`, or `wall` by the wall clock, found these files. Returns changes
    /// that events did not report.
    pub fn scanned(
        &mut self,
        found: Vec<(ObjectPath, Stat)>,
        number: u64,
        now: Instant,
        wall: SystemTime,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        let is_first = !std::mem::replace(&mut self.scanned_once, true);
        let has_writer = |path: &ObjectPath| {
            self.files
                .get(path)
                .is_some_and(|file| file.writer == Writer::Seen)
        };
        let open: HashSet<u64> = found
            .iter()
            .filter(|(path, _)| has_writer(path))
            .map(|(_, stat)| stat.inode)
            .collect();
        for (path, stat) in found {
            let settle = self.settle;
            let Some(file) = self.file(&path, now) else {
                continue;
            };
            file.scan = number;
            if file.stat.replace(stat).is_some_and(|before| before != stat) {
                file.since = now;
            }
            let stood = now.saturating_duration_since(file.since);
            // A time in the future is ignored.
            let age = stat
                .modified
                .and_then(|modified| wall.duration_since(modified).ok())
                .unwrap_or(stood);
            let is_open =
                open.contains(&stat.inode) || (file.writer == Writer::Maker && stat.length == 0);
            if !is_open && age >= settle && (stood >= settle || is_first) {
                let change = file.complete(&path, stat, now);
                changes.extend(change.map(|change| {
                    if is_first {
                        Change {
                            kind: ChangeKind::Present,
                            ..change
                        }
                    } else {
                        change
                    }
                }));
            }
        }
        let gone: Vec<ObjectPath> = self
            .files
            .iter()
            .filter(|(_, file)| file.scan != number && file.since < now)
            .map(|(path, _)| path.clone())
            .collect();
        changes.extend(gone.iter().filter_map(|path| self.removed(path)));
        changes
    }

    /// When a file with this metadata was complete; `None` if it is not, as far as known.
    pub fn complete(&self, path: &ObjectPath, stat: Stat) -> Option<Instant> {
        self.files
            .get(path)?
            .complete
            .filter(|(complete, _)| *complete == stat)
            .map(|(_, at)| at)
    }

    /// Whether anything is known of a file.
    pub fn is_known(&self, path: &ObjectPath) -> bool {
        self.files.contains_key(path)
    }

    fn file(&mut self, path: &ObjectPath, now: Instant) -> Option<&mut File> {
        if self.files.len() >= self.files_max && !self.files.contains_key(path) {
            return None;
        }
        Some(self.files.entry(path.clone()).or_insert_with(|| File {
            stat: None,
            since: now,
            writer: Writer::Nobody,
            complete: None,
            scan: 0,
        }))
    }
}

impl File {
    fn complete(&mut self, path: &ObjectPath, stat: Stat, now: Instant) -> Option<Change> {
        if self.complete.is_some_and(|(before, _)| before == stat) {
            return None;
        }
        self.complete = Some((stat, now));
        Some(Change {
            path: path.clone(),
            kind: ChangeKind::Complete,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_secs(1);

    fn path() -> ObjectPath {
        ObjectPath::parse("a/seg.ts").unwrap()
    }

    fn stat(length: u64) -> Stat {
        Stat {
            length,
            modified: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1000)),
            inode: 7,
        }
    }

    fn wall(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn change(kind: ChangeKind) -> (ObjectPath, ChangeKind) {
        (path(), kind)
    }

    fn told(changes: impl IntoIterator<Item = Change>) -> Vec<(ObjectPath, ChangeKind)> {
        changes
            .into_iter()
            .map(|change| (change.path, change.kind))
            .collect()
    }

    /// A tracker after its first scan, of an empty folder.
    fn tracker(now: Instant) -> Tracker {
        let mut tracker = Tracker::new(SETTLE, 100);
        assert!(tracker.scanned(Vec::new(), 1, now, wall(0)).is_empty());
        tracker
    }

    #[test]
    fn a_close_completes_a_file_at_once() {
        let now = Instant::now();
        let mut tracker = tracker(now);
        assert_eq!(tracker.written(&path(), now), None);
        assert_eq!(tracker.complete(&path(), stat(5)), None);
        assert_eq!(
            told(tracker.closed(&path(), stat(9), now)),
            [change(ChangeKind::Complete)]
        );
        assert_eq!(tracker.complete(&path(), stat(9)), Some(now));
        assert_eq!(
            tracker.complete(&path(), stat(10)),
            None,
            "it has grown since"
        );
        assert_eq!(
            tracker.closed(&path(), stat(9), now),
            None,
            "nothing is new"
        );
        assert_eq!(
            told(tracker.written(&path(), now)),
            [change(ChangeKind::Written)]
        );
        assert_eq!(tracker.complete(&path(), stat(9)), None);
        assert_eq!(told(tracker.removed(&path())), [change(ChangeKind::Gone)]);
    }

    #[test]
    fn a_pausing_writer_is_waited_for() {
        let begin = Instant::now();
        let mut tracker = tracker(begin);
        tracker.written(&path(), begin);
        for second in 1..60 {
            let now = begin + Duration::from_secs(second);
            assert!(
                tracker
                    .scanned(
                        vec![(path(), stat(5))],
                        1 + second,
                        now,
                        wall(2000 + second)
                    )
                    .is_empty()
            );
        }
        let now = begin + Duration::from_secs(60);
        tracker.overflowed(now);
        assert!(
            tracker
                .scanned(vec![(path(), stat(5))], 99, now, wall(3000))
                .is_empty()
        );
        let later = now + SETTLE;
        assert_eq!(
            told(tracker.scanned(vec![(path(), stat(5))], 100, later, wall(3001))),
            [change(ChangeKind::Complete)]
        );
    }

    /// No close follows, because there is no writer.
    #[test]
    fn a_link_is_complete_once_it_has_stood_still() {
        let begin = Instant::now();
        let mut tracker = tracker(begin);
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(tracker.created(&path(), at(0)), None);
        assert!(
            tracker
                .scanned(vec![(path(), stat(5))], 2, at(0), wall(2000))
                .is_empty(),
            "its maker may write yet"
        );
        assert_eq!(
            told(tracker.scanned(vec![(path(), stat(5))], 3, at(1), wall(2001))),
            [change(ChangeKind::Complete)]
        );
        assert_eq!(tracker.complete(&path(), stat(5)), Some(at(1)));
        assert_eq!(
            told(tracker.created(&path(), at(2))),
            [change(ChangeKind::Written)],
            "another link in its place"
        );
        assert_eq!(told(tracker.removed(&path())), [change(ChangeKind::Gone)]);
    }

    #[test]
    fn a_new_file_without_bytes_is_waited_for() {
        let begin = Instant::now();
        let mut tracker = tracker(begin);
        tracker.created(&path(), begin);
        for second in 1..60 {
            let now = begin + Duration::from_secs(second);
            assert!(
                tracker
                    .scanned(
                        vec![(path(), stat(0))],
                        1 + second,
                        now,
                        wall(2000 + second)
                    )
                    .is_empty()
            );
        }
        assert_eq!(
            told(tracker.closed(&path(), stat(0), begin)),
            [change(ChangeKind::Complete)]
        );
    }

    #[test]
    fn a_link_to_what_is_being_written_is_waited_for() {
        let begin = Instant::now();
        let mut tracker = tracker(begin);
        let link = ObjectPath::parse("link.ts").unwrap();
        tracker.written(&path(), begin);
        tracker.created(&link, begin);
        let found = || vec![(link.clone(), stat(5)), (path(), stat(5))];
        for second in 1..60 {
            let now = begin + Duration::from_secs(second);
            assert!(
                tracker
                    .scanned(found(), 1 + second, now, wall(2000 + second))
                    .is_empty()
            );
        }
        let now = begin + Duration::from_secs(60);
        tracker.closed(&path(), stat(5), now);
        assert_eq!(
            told(tracker.scanned(found(), 100, now, wall(3000))),
            [(link, ChangeKind::Complete)]
        );
    }

    #[test]
    fn without_events_standing_still_completes_a_file() {
        let begin = Instant::now();
        let mut tracker = tracker(begin);
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(
            tracker
                .scanned(vec![(path(), stat(5))], 2, at(2), wall(1002))
                .is_empty()
        );
        assert!(
            tracker
                .scanned(vec![(path(), stat(6))], 3, at(4), wall(1004))
                .is_empty()
        );
        assert_eq!(
            told(tracker.scanned(vec![(path(), stat(6))], 4, at(6), wall(1006))),
            [change(ChangeKind::Complete)]
        );
        assert!(
            tracker
                .scanned(vec![(path(), stat(6))], 5, at(8), wall(1008))
                .is_empty()
        );
        assert_eq!(
            told(tracker.scanned(Vec::new(), 6, at(10), wall(1010))),
            [change(ChangeKind::Gone)]
        );
    }

    #[test]
    fn what_was_there_before_is_not_new() {
        let now = Instant::now();
        let mut tracker = Tracker::new(SETTLE, 100);
        assert_eq!(
            told(tracker.scanned(vec![(path(), stat(5))], 1, now, wall(5000))),
            [change(ChangeKind::Present)]
        );
        assert_eq!(tracker.complete(&path(), stat(5)), Some(now));
    }

    #[test]
    fn what_was_written_a_moment_before_is_not_complete_yet() {
        let now = Instant::now();
        let mut tracker = Tracker::new(SETTLE, 100);
        assert!(
            tracker
                .scanned(vec![(path(), stat(5))], 1, now, wall(1000))
                .is_empty()
        );
        let later = now + SETTLE;
        assert_eq!(
            told(tracker.scanned(vec![(path(), stat(5))], 2, later, wall(1001))),
            [change(ChangeKind::Complete)]
        );
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let now = Instant::now();
        let mut tracker = Tracker::new(SETTLE, 1);
        tracker.written(&path(), now);
        assert!(
            tracker
                .closed(&ObjectPath::parse("other").unwrap(), stat(1), now)
                .is_none()
        );
        assert!(!tracker.is_known(&ObjectPath::parse("other").unwrap()));
    }
}
