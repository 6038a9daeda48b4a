//! A live stream: segments that differ by their numbers, written to a directory as time goes by.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a segment plays.
pub const SEGMENT: Duration = Duration::from_secs(2);
/// The playlist's name.
pub const PLAYLIST: &str = "live.m3u8";

/// Bytes of a segment at so many bits a second.
pub fn segment_bytes(bitrate: u64) -> usize {
    usize::try_from(bitrate * SEGMENT.as_secs() / 8).expect("a segment fits in memory")
}

/// What a segment holds: no part of it like another, of it or of others.
pub fn segment(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&number.to_be_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Writes the stream until it is dropped.
pub struct Feeder {
    ends: Arc<AtomicBool>,
    begun: Instant,
    window: u64,
    thread: Option<JoinHandle<()>>,
}

impl Feeder {
    /// Starts a stream in the folder `media` of a directory, with the first segments written on
    /// return. The playlist names `window` segments.
    pub fn start(directory: &Path, bitrate: u64, window: u64) -> (Self, PathBuf) {
        let media = directory.join("media");
        fs::create_dir(&media).expect("a folder");
        let folder = Folder {
            media: media.clone(),
            next: directory.join("next"),
            length: segment_bytes(bitrate),
            window,
        };
        (0..window).for_each(|number| folder.add(number));
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let begun = Instant::now();
        let thread = std::thread::spawn(move || {
            for number in window.. {
                let due = published(begun, window, number);
                while Instant::now() < due {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(
                        due.saturating_duration_since(Instant::now())
                            .min(Duration::from_millis(50)),
                    );
                }
                folder.add(number);
            }
        });
        (
            Self {
                ends,
                begun,
                window,
                thread: Some(thread),
            },
            media,
        )
    }

    /// When a segment that is not in the first playlist is published.
    pub fn published(&self, number: u64) -> Instant {
        published(self.begun, self.window, number)
    }
}

fn published(begun: Instant, window: u64, number: u64) -> Instant {
    begun + SEGMENT * u32::try_from(number - window + 1).expect("a short stream")
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Folder {
    media: PathBuf,
    /// What is not complete yet.
    next: PathBuf,
    length: usize,
    window: u64,
}

impl Folder {
    /// A segment, and the playlist that names it.
    fn add(&self, number: u64) {
        self.put(&format!("{number}.ts"), &segment(number, self.length));
        let first = (number + 1).saturating_sub(self.window);
        let mut playlist = format!(
            "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:{}\n#EXT-X-MEDIA-SEQUENCE:{first}\n",
            SEGMENT.as_secs()
        );
        for number in first..=number {
            write!(playlist, "#EXTINF:{}.0,\n{number}.ts\n", SEGMENT.as_secs())
                .expect("a text takes more");
        }
        self.put(PLAYLIST, playlist.as_bytes());
        if let Some(gone) = number.checked_sub(2 * self.window) {
            let _ = fs::remove_file(self.media.join(format!("{gone}.ts")));
        }
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(&self.next, bytes).expect("room for a segment");
        fs::rename(&self.next, self.media.join(name))
            .expect("a file is moved within its file system");
    }
}
