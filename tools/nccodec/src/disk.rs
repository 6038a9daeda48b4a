//! Long files at the pace of a disk, past the page cache.
//!
//! To copy bytes into the page cache and out of it takes more of a core's time than to code them.
//! So files are read and written directly (`O_DIRECT`), in large aligned buffers, while others are
//! worked on: threads read before they are asked ([`ReadAhead`] one file, [`Readers`] and
//! [`Parts`] several), and write what is handed to them ([`Writers`], [`Target`]). What is in the
//! page cache is read from there, and a file system without direct I/O gets ordinary reads and
//! writes.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::partial::Partial;

/// A file that is read in large parts, each at a multiple of [`ALIGNMENT`].
#[derive(Debug)]
struct Source {
    file: File,
    is_direct: bool,
    /// Whether direct reads are of no use: the file system has none, or the end was reached.
    is_plain: bool,
}

impl Source {
    fn new(file: File) -> Self {
        // A look at a page must not bring those behind it into the cache.
        let _ = fadvise(&file, 0, None, Advice::Random);
        Self {
            file,
            is_direct: false,
            is_plain: false,
        }
    }

    /// Fills a buffer from this place on. One that is not full is the last.
    fn read(&mut self, buffer: &mut Buffer, at: u64) -> io::Result<()> {
        buffer.clear();
        loop {
            let from = at + buffer.length as u64;
            let is_direct = !self.is_plain && !self.is_cached(from, buffer.room())?;
            self.set_direct(is_direct)?;
            match self.file.read_at(buffer.rest(), from) {
                Ok(0) => return Ok(()),
                Ok(length) => buffer.length += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.is_direct && is_invalid(&error) => self.is_plain = true,
                Err(error) => return Err(error),
            }
            if buffer.is_full() {
                return Ok(());
            }
            // What follows is not aligned.
            self.is_plain = true;
        }
    }

    /// Reads what comes before the place that cannot be read, in parts as small as the least that a
    /// disk loses.
    fn read_sound(&mut self, buffer: &mut Buffer, at: u64) -> io::Result<()> {
        buffer.clear();
        self.set_direct(false)?;
        while !buffer.is_full() {
            let from = at + buffer.length as u64;
            let rest = buffer.rest();
            let length = rest.len().min(ALIGNMENT);
            match self.file.read_at(&mut rest[..length], from)? {
                0 => break,
                length => buffer.length += length,
            }
        }
        Ok(())
    }

    /// Whether the page cache has these bytes, judged by one of them. The look may bring its page
    /// into the cache, so the next look at these bytes had better be at another.
    fn is_cached(&mut self, from: u64, bytes: usize) -> io::Result<bool> {
        self.set_direct(false)?;
        let at = from + rand::random_range(0..bytes as u64);
        let mut byte = [0];
        let looked = preadv2(
            &self.file,
            &mut [IoSliceMut::new(&mut byte)],
            at,
            ReadWriteFlags::NOWAIT,
        );
        // Behind the end there is no byte.
        Ok(!matches!(looked, Ok(0) | Err(Errno::AGAIN)))
    }

    fn set_direct(&mut self, is_direct: bool) -> io::Result<()> {
        if self.is_direct == is_direct {
            return Ok(());
        }
        match set_direct(&self.file, is_direct) {
            Err(error) if is_direct && is_invalid(&error) => self.is_plain = true,
            result => {
                result?;
                self.is_direct = is_direct;
            }
        }
        Ok(())
    }
}

/// A file from its beginning to its end, which a thread reads before it is asked for.
#[derive(Debug)]
pub(super) struct ReadAhead {
    full: Receiver<io::Result<Buffer>>,
    spare: Sender<Buffer>,
    /// None before the first is needed.
    current: Option<Buffer>,
    /// The bytes of it that were taken.
    taken: usize,
}

impl ReadAhead {
    /// A regular file, of so many bytes when it was looked at.
    pub(super) fn start(file: File, bytes: u64) -> io::Result<Self> {
        let (full_in, full) = mpsc::channel();
        let (spare, spare_out) = mpsc::channel::<Buffer>();
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        for _ in 0..(wanted / BUFFER_BYTES_MAX + 1).min(READ_AHEAD) {
            let _ = spare.send(Buffer::new(BUFFER_BYTES_MAX));
        }
        let work = move || {
            let (mut source, mut at) = (Source::new(file), 0);
            // Without who reads there is nothing more to do.
            while let Ok(mut buffer) = spare_out.recv() {
                let read = source.read(&mut buffer, at);
                at += buffer.length as u64;
                let is_last = read.is_err() || !buffer.is_full();
                if full_in.send(read.map(|()| buffer)).is_err() || is_last {
                    return;
                }
            }
        };
        let builder = thread::Builder::new().name("files-read".to_owned());
        builder.stack_size(STACK_BYTES).spawn(work)?;
        Ok(Self {
            full,
            spare,
            current: None,
            taken: 0,
        })
    }

    /// The bytes that are there and were not taken. None at the end of the file.
    fn left(&mut self) -> io::Result<&[u8]> {
        let is_used = |buffer: &Buffer| self.taken == buffer.length;
        if self
            .current
            .as_ref()
            .is_none_or(|buffer| is_used(buffer) && buffer.is_full())
        {
            // The thread may have no other to fill.
            if let Some(used) = self.current.take() {
                let _ = self.spare.send(used);
            }
            self.taken = 0;
            let next = self.full.recv().map_err(|_| io::Error::other(DIED))??;
            self.current = Some(next);
        }
        let current = self.current.as_ref().map_or(&[][..], Buffer::filled);
        Ok(&current[self.taken..])
    }
}

impl Read for ReadAhead {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        let length = left.len().min(bytes.len());
        bytes[..length].copy_from_slice(&left[..length]);
        self.taken += length;
        Ok(length)
    }
}

/// Threads that read the next part of each of several files. Clones share them; they end with the
/// last one.
#[derive(Debug, Clone)]
pub(super) struct Readers {
    jobs: Sender<ReadJob>,
    buffer_bytes: usize,
}

/// A part that is to be read.
#[derive(Debug)]
struct ReadJob {
    source: Source,
    buffer: Buffer,
    at: u64,
    done: Sender<(Source, Buffer, io::Result<()>)>,
}

impl Readers {
    /// For so many files at a time.
    pub(super) fn start(files: usize) -> io::Result<Self> {
        let (jobs, taken) = mpsc::channel::<ReadJob>();
        let work = |job: ReadJob| {
            let ReadJob {
                mut source,
                mut buffer,
                at,
                done,
            } = job;
            let read = source.read(&mut buffer, at);
            if read.is_err() {
                // It ends with an error, too, at the bad place.
                let _ = source.read_sound(&mut buffer, at);
            }
            let _ = done.send((source, buffer, read));
        };
        start_threads("files-read", taken, Arc::new(work))?;
        Ok(Self {
            jobs,
            // Each file has two.
            buffer_bytes: buffer_bytes(2 * files),
        })
    }

    /// Has a buffer filled from this place on.
    fn begin(&self, source: Source, buffer: Buffer, at: u64) -> Next {
        let (done_in, done) = mpsc::channel();
        // If it is not taken, `done` says so.
        let _ = self.jobs.send(ReadJob {
            source,
            buffer,
            at,
            done: done_in,
        });
        Next { at, done }
    }
}

/// A file whose parts are read one behind the other, where some may be left out.
#[derive(Debug)]
pub(super) struct Parts {
    readers: Readers,
    /// Bytes of a full buffer.
    room: u64,
    held: Buffer,
    /// Where it begins in the file.
    at: u64,
    next: Next,
}

/// The buffer that comes after the one that is held.
#[derive(Debug)]
struct Next {
    at: u64,
    done: Receiver<(Source, Buffer, io::Result<()>)>,
}

impl Parts {
    /// Begins to read a file of so many bytes, from this place on.
    pub(super) fn new(file: File, bytes: u64, from: u64, readers: &Readers) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let room = bytes.clamp(1, readers.buffer_bytes);
        let room = room.next_multiple_of(ALIGNMENT);
        let buffer = || Buffer::new(room);
        let at = from - from % ALIGNMENT as u64;
        Self {
            readers: readers.clone(),
            room: room as u64,
            held: buffer(),
            at,
            next: readers.begin(Source::new(file), buffer(), at),
        }
    }

    /// Reads the bytes from this place on.
    pub(super) fn read_exact_at(&mut self, mut bytes: &mut [u8], mut from: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let skipped = from.checked_sub(self.at).map(usize::try_from);
            let held = match skipped {
                Some(Ok(skipped)) => self.held.filled().get(skipped..).unwrap_or_default(),
                _ => &[],
            };
            if held.is_empty() {
                self.turn(from)?;
                continue;
            }
            let length = held.len().min(bytes.len());
            let (now, later) = std::mem::take(&mut bytes).split_at_mut(length);
            now.copy_from_slice(&held[..length]);
            (bytes, from) = (later, from + length as u64);
        }
        Ok(())
    }

    /// Holds the buffer that has the byte at this place, and begins to read the one behind it.
    fn turn(&mut self, from: u64) -> io::Result<()> {
        let room = self.room;
        loop {
            let died = |_| io::Error::other(DIED);
            let (source, buffer, read) = self.next.done.recv().map_err(died)?;
            let at = self.next.at;
            let is_wanted = (at..at + room).contains(&from);
            let (spare, next_at) = match is_wanted {
                true => (std::mem::replace(&mut self.held, buffer), at + room),
                false => (buffer, from - from % ALIGNMENT as u64),
            };
            self.next = self.readers.begin(source, spare, next_at);
            if is_wanted {
                self.at = at;
                if self.held.filled().len() as u64 > from - at {
                    return Ok(());
                }
                return Err(read
                    .err()
                    .unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// Starts [`THREADS`] threads that take jobs until no more come.
fn start_threads<T: Send + 'static>(
    name: &str,
    jobs: Receiver<T>,
    work: Arc<dyn Fn(T) + Send + Sync>,
) -> io::Result<Vec<JoinHandle<()>>> {
    let jobs = Arc::new(Mutex::new(jobs));
    let start = |index| {
        let (jobs, work) = (Arc::clone(&jobs), Arc::clone(&work));
        let next = move || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let builder = thread::Builder::new().name(format!("{name}-{index}"));
        builder.stack_size(STACK_BYTES).spawn(move || {
            while let Ok(job) = next() {
                work(job);
            }
        })
    };
    (0..THREADS).map(start).collect()
}

/// Threads that write buffers to files. Several files of a result share them.
#[derive(Debug)]
pub(super) struct Writers {
    /// None when no more come.
    jobs: Option<Sender<Job>>,
    spare: Receiver<Buffer>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    buffer_bytes: usize,
}

#[derive(Debug, Default)]
struct Shared {
    has_failed: AtomicBool,
    /// What failed first.
    fault: Mutex<Option<(PathBuf, io::Error)>>,
}

/// A full buffer on its way to a file.
#[derive(Debug)]
struct Job {
    partial: Arc<Partial>,
    offset: u64,
    buffer: Buffer,
}

impl Writers {
    /// For so many files at a time.
    pub(super) fn start(files: usize) -> io::Result<Self> {
        let buffer_bytes = buffer_bytes(files);
        let (jobs, taken) = mpsc::channel::<Job>();
        let (spare_in, spare) = mpsc::channel();
        for _ in 0..SPARE {
            let _ = spare_in.send(Buffer::new(buffer_bytes));
        }
        let shared = Arc::<Shared>::default();
        let write = {
            let shared = Arc::clone(&shared);
            move |job| drop(spare_in.send(shared.write(job)))
        };
        let threads = start_threads("files-write", taken, Arc::new(write))?;
        Ok(Self {
            jobs: Some(jobs),
            spare,
            shared,
            threads,
            buffer_bytes,
        })
    }

    /// Waits until everything is written that files have handed over. An error is that of the file
    /// that failed first.
    pub(super) fn finish(mut self) -> Result<(), (PathBuf, io::Error)> {
        self.end().expect("writing does not panic");
        self.shared.take_fault().map_or(Ok(()), Err)
    }

    /// Waits for the threads.
    fn end(&mut self) -> thread::Result<()> {
        self.jobs = None;
        self.threads
            .drain(..)
            .map(JoinHandle::join)
            .fold(Ok(()), Result::and)
    }

    /// Hands over a full buffer, and waits for an empty one.
    fn exchange(&self, job: Job) -> Result<Buffer, (PathBuf, io::Error)> {
        if self.shared.has_failed.load(Ordering::Relaxed) {
            let died = || (job.partial.path().to_owned(), io::Error::other(DIED));
            return Err(self.shared.take_fault().unwrap_or_else(died));
        }
        let path = job.partial.path().to_owned();
        let is_taken = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        let spare = self.spare.recv().ok().filter(|_| is_taken);
        spare.ok_or_else(|| (path, io::Error::other(DIED)))
    }
}

/// What waits is not written, and files that nobody else holds are gone when this returns.
impl Drop for Writers {
    fn drop(&mut self) {
        self.shared.has_failed.store(true, Ordering::Relaxed);
        let _ = self.end();
    }
}

impl Shared {
    /// Writes a buffer, and empties it. After a failure nothing more is written.
    fn write(&self, job: Job) -> Buffer {
        let Job {
            partial,
            offset,
            mut buffer,
        } = job;
        if !self.has_failed.load(Ordering::Relaxed)
            && let Err(error) = write_at(partial.file(), buffer.filled(), offset)
        {
            let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
            fault.get_or_insert_with(|| (partial.path().to_owned(), error));
            self.has_failed.store(true, Ordering::Relaxed);
        }
        buffer.clear();
        buffer
    }

    fn take_fault(&self) -> Option<(PathBuf, io::Error)> {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.take()
    }
}

/// Writes directly if the file and its file system do.
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    match file.write_all_at(bytes, offset) {
        Err(error) if is_invalid(&error) => {
            set_direct(file, false)?;
            file.write_all_at(bytes, offset)
        }
        result => result,
    }
}

/// As direct I/O says that a file system has none, or not of these bytes.
fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

fn set_direct(file: &File, is_direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, is_direct);
    Ok(fcntl_setfl(file, flags)?)
}

/// A file that is written from its beginning to its end.
#[derive(Debug)]
pub(super) struct Target {
    partial: Arc<Partial>,
    buffer: Buffer,
    /// Where the buffer goes.
    offset: u64,
}

impl Target {
    pub(super) fn new(partial: Partial, writers: &Writers) -> Self {
        // Without direct I/O the cache takes it.
        let _ = set_direct(partial.file(), true);
        Self {
            partial: Arc::new(partial),
            buffer: Buffer::new(writers.buffer_bytes),
            offset: 0,
        }
    }

    /// Appends these bytes. An error may be that of another file, which has failed before.
    pub(super) fn write(
        &mut self,
        mut bytes: &[u8],
        writers: &Writers,
    ) -> Result<(), (PathBuf, io::Error)> {
        while !bytes.is_empty() {
            bytes = self.buffer.fill(bytes);
            if self.buffer.is_full() {
                let length = self.buffer.length;
                let buffer = std::mem::take(&mut self.buffer);
                let job = Job {
                    partial: Arc::clone(&self.partial),
                    offset: self.offset,
                    buffer,
                };
                self.buffer = writers.exchange(job)?;
                self.offset += length as u64;
            }
        }
        Ok(())
    }

    /// Writes what is left in the buffer, after [`Writers::finish`]. The file is no longer written
    /// directly.
    pub(super) fn finish(self) -> Result<Partial, (PathBuf, io::Error)> {
        let partial = Arc::into_inner(self.partial).expect("the writers have ended");
        let written = set_direct(partial.file(), false).and_then(|()| {
            partial
                .file()
                .write_all_at(self.buffer.filled(), self.offset)
        });
        match written {
            Ok(()) => Ok(partial),
            Err(error) => Err((partial.path().to_owned(), error)),
        }
    }
}

/// Memory as direct I/O takes it: its address and its size are multiples of [`ALIGNMENT`].
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        let bytes = vec![0; bytes + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self {
            bytes,
            start,
            length: 0,
        }
    }

    /// Takes as many of the bytes as it has room for, and returns the others.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (taken, left) = bytes.split_at(bytes.len().min(self.room()));
        self.bytes[self.start + self.length..][..taken.len()].copy_from_slice(taken);
        self.length += taken.len();
        left
    }

    fn clear(&mut self) {
        self.length = 0;
    }

    fn room(&self) -> usize {
        self.bytes.len().saturating_sub(ALIGNMENT) - self.length
    }

    /// The part that is not filled.
    fn rest(&mut self) -> &mut [u8] {
        let (from, room) = (self.start + self.length, self.room());
        &mut self.bytes[from..][..room]
    }

    fn is_full(&self) -> bool {
        self.room() == 0
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length]
    }
}

/// Bytes of each buffer where so many files are read or written at a time.
fn buffer_bytes(files: usize) -> usize {
    let each = BUFFERS_BYTES / (files + SPARE) / ALIGNMENT * ALIGNMENT;
    each.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)
}

/// What addresses, offsets and sizes of direct I/O are multiples of: no disk has larger sectors.
const ALIGNMENT: usize = 4096;
/// The buffers of files that are read or written together, unless these are so many that each
/// would get less than the least.
const BUFFERS_BYTES: usize = 64 << 20;
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// Smaller parts cost a disk time.
const BUFFER_BYTES_MAX: usize = 4 << 20;
/// Threads that write.
const THREADS: usize = 2;
/// Buffers that are written or wait for it.
const SPARE: usize = 6;
/// Buffers that are read before they are needed: reading goes on while writing holds the others up.
const READ_AHEAD: usize = 12;
const STACK_BYTES: usize = 256 << 10;
const DIED: &str = "the thread of the disk has ended";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;

    fn bytes(length: usize) -> Vec<u8> {
        let pattern: Vec<u8> = (0..=250).collect();
        pattern.into_iter().cycle().take(length).collect()
    }

    /// Lengths around those of pages and buffers.
    fn lengths() -> impl Iterator<Item = usize> {
        let edges = [0, ALIGNMENT, BUFFER_BYTES_MAX, 2 * BUFFER_BYTES_MAX];
        let around = |edge: usize| [edge.saturating_sub(1), edge, edge + 1, edge + 5000];
        edges.into_iter().flat_map(around)
    }

    /// Folders on a disk and in memory.
    fn folders() -> impl Iterator<Item = TempDir> {
        let places = [std::env::temp_dir(), "/dev/shm".into()];
        let places = places.into_iter().filter(|place| place.is_dir());
        places.map(|place| TempDir::new_in(place).unwrap())
    }

    fn read_ahead(path: &Path) -> Vec<u8> {
        let file = File::open(path).unwrap();
        let length = file.metadata().unwrap().len();
        let mut read = Vec::new();
        let mut source = ReadAhead::start(file, length).unwrap();
        source.read_to_end(&mut read).unwrap();
        assert_eq!(source.read(&mut [0]).unwrap(), 0, "the end stays the end");
        read
    }

    #[test]
    fn files_are_read_as_they_were_written() {
        let readers = Readers::start(3).unwrap();
        for folder in folders() {
            let paths = [folder.path().join("a"), folder.path().join("b")];
            for length in lengths() {
                let bytes = bytes(length);
                let writers = Writers::start(paths.len()).unwrap();
                let target = |path| Target::new(Partial::create(path).unwrap(), &writers);
                let mut targets = paths.each_ref().map(|path| target(path));
                for part in bytes.chunks(1_000_003) {
                    for target in &mut targets {
                        target.write(part, &writers).unwrap();
                    }
                }
                writers.finish().unwrap();
                for target in targets {
                    target.finish().unwrap().publish().unwrap();
                }
                for path in &paths {
                    assert!(fs::read(path).unwrap() == bytes, "{length}");
                    assert!(read_ahead(path) == bytes, "{length}");
                    let mut parts =
                        Parts::new(File::open(path).unwrap(), length as u64, 0, &readers);
                    let mut read = vec![0; length];
                    for (index, part) in read.chunks_mut(70_001).enumerate() {
                        parts.read_exact_at(part, index as u64 * 70_001).unwrap();
                    }
                    assert!(read == bytes, "{length}");
                }
            }
        }
    }

    /// Whether a part is in the page cache or not, what was written last is read.
    #[test]
    fn what_was_written_last_is_read() {
        for folder in folders() {
            let path = folder.path().join("file");
            let mut expected = bytes(3 * BUFFER_BYTES_MAX + 7);
            fs::write(&path, &expected).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.sync_all().unwrap();
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
            let middle = BUFFER_BYTES_MAX + 100;
            file.write_all_at(&[9; 10_000], middle as u64).unwrap();
            expected[middle..][..10_000].fill(9);
            assert!(read_ahead(&path) == expected);
        }
    }

    #[test]
    fn parts_may_be_read_in_any_order_and_end_with_the_file() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        let expected = bytes(5 * BUFFER_BYTES_MAX / 2);
        fs::write(&path, &expected).unwrap();
        let readers = Readers::start(1).unwrap();
        let mut parts = Parts::new(
            File::open(&path).unwrap(),
            expected.len() as u64,
            0,
            &readers,
        );
        let mut part = vec![0; 5000];
        for at in [0, 9_000_000, 4_190_000, 10, 4096, expected.len() - 5000] {
            parts.read_exact_at(&mut part, at as u64).unwrap();
            assert!(part == expected[at..][..5000], "{at}");
        }
        for at in [expected.len() - 4999, expected.len(), 1 << 40] {
            let error = parts.read_exact_at(&mut part, at as u64).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{at}");
        }
    }

    /// What a file says of its length may be wrong: one of the kernel's says zero.
    #[test]
    fn a_file_may_be_longer_than_it_says() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        let expected = bytes(3 * BUFFER_BYTES_MAX + 123);
        fs::write(&path, &expected).unwrap();
        for told in [0, 1, BUFFER_BYTES_MAX as u64] {
            let mut read = Vec::new();
            let mut source = ReadAhead::start(File::open(&path).unwrap(), told).unwrap();
            source.read_to_end(&mut read).unwrap();
            assert!(read == expected, "{told}");
        }
    }

    /// A file that grows while it is read is read to its new end.
    #[test]
    fn a_file_may_grow() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        let expected = bytes(BUFFER_BYTES_MAX + 123);
        fs::write(&path, &expected[..5000]).unwrap();
        let (mut source, mut buffer) = (
            Source::new(File::open(&path).unwrap()),
            Buffer::new(BUFFER_BYTES_MAX),
        );
        source.read(&mut buffer, 0).unwrap();
        assert!(buffer.filled() == &expected[..5000]);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(&expected[5000..]).unwrap();
        source.read(&mut buffer, 0).unwrap();
        assert!(buffer.is_full() && buffer.filled() == &expected[..BUFFER_BYTES_MAX]);
        source.read(&mut buffer, BUFFER_BYTES_MAX as u64).unwrap();
        assert!(buffer.filled() == &expected[BUFFER_BYTES_MAX..]);
    }
}
