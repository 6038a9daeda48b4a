//! Fetches one object to a file or standard output, and shows the progress.
//!
//! A file appears under its name only when it is complete and verified. Until then it is a hidden
//! file in the same directory, which is removed if the fetch ends early. Standard output, devices
//! and pipes get bytes as soon as they are proved.
//!
//! A server's claim of an object's length is not trusted: no more is written than claimed, than the
//! user allows, and, by default, than a part of the file system's free space.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ncs_net::console;
use tokio::fs::File;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{Client, Object, Stats};

/// The destination of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A file, once complete; a device or pipe as bytes arrive.
    File(PathBuf),
    /// Standard output, as bytes arrive.
    Stdout,
}

impl Target {
    /// From `-o`, or by default the last part of the object's path.
    pub fn new(output: Option<PathBuf>, path: &str) -> Result<Self, Error> {
        match output {
            Some(output) if output.as_os_str() == "-" => Ok(Self::Stdout),
            Some(output) => Ok(Self::File(output)),
            None => {
                let name = path
                    .split('?')
                    .next()
                    .and_then(|path| path.rsplit('/').next())
                    .unwrap_or_default();
                if matches!(name, "" | "." | "..") {
                    Err(Error::Nameless)
                } else {
                    Ok(Self::File(name.into()))
                }
            }
        }
    }
}

/// Why an object was not fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server or the path to it failed.
    #[error("{0}")]
    Peer(#[from] super::Error),
    /// Writing failed.
    #[error("cannot write {0}: {1}")]
    Write(String, #[source] io::Error),
    /// The path ends with a slash.
    #[error("the path ends with `/` and gives no file name: name the output file with -o")]
    Nameless,
    /// The object exceeds the limit.
    #[error("the object has {0}, more than the limit of {1}{2}")]
    Large(Size, ByteSize, &'static str),
    /// The object ended early.
    #[error("the object ended early, after {0} of {1} bytes")]
    Short(u64, u64),
}

/// Fetches `path` to `target`, at most `bytes_max` bytes.
pub async fn fetch(
    client: &Client,
    path: &str,
    target: Target,
    bytes_max: Option<ByteSize>,
) -> Result<(), Error> {
    let object = client.open(path, None).await?;
    match target {
        Target::Stdout => {
            let failed = |error| Error::Write("standard output".into(), error);
            let mut writer = stdout().map_err(failed)?;
            let most = Most::of(bytes_max, &writer).await.map_err(failed)?;
            copy(client, path, object, &mut writer, most, failed).await
        }
        Target::File(file) => {
            let failed = |error| Error::Write(file.display().to_string(), error);
            if file.metadata().is_ok_and(|metadata| !metadata.is_file()) {
                // A rename would replace the device by a file.
                let mut writer = File::options()
                    .write(true)
                    .open(&file)
                    .await
                    .map_err(failed)?;
                let most = Most::of(bytes_max, &writer).await.map_err(failed)?;
                return copy(client, path, object, &mut writer, most, failed).await;
            }
            let (part, mut writer) = PartialFile::create(&file).await.map_err(failed)?;
            let most = Most::of(bytes_max, &writer).await.map_err(failed)?;
            copy(client, path, object, &mut writer, most, failed).await?;
            writer.sync_all().await.map_err(failed)?;
            part.rename().await.map_err(failed)
        }
    }
}

/// Standard output as a file, without line buffering.
fn stdout() -> io::Result<File> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(File::from_std(output.into()))
}

async fn copy(
    client: &Client,
    path: &str,
    mut object: Object,
    writer: &mut (impl AsyncWrite + Unpin),
    mut most: Most,
    failed: impl Fn(io::Error) -> Error,
) -> Result<(), Error> {
    most.check(object.length.unwrap_or_default(), Size::Said)?;
    let progress = Progress::start(client, path, object.length);
    let mut written = 0;
    while let Some(bytes) = object.next().await {
        let bytes = bytes?;
        most.look(written).map_err(&failed)?;
        most.check(written + bytes.len() as u64, Size::Come)?;
        writer.write_all(&bytes).await.map_err(&failed)?;
        written += bytes.len() as u64;
        progress.bar.set_position(written);
    }
    writer.flush().await.map_err(&failed)?;
    progress.bar.finish_and_clear();
    match object.length {
        Some(length) if length != written => Err(Error::Short(written, length)),
        _ => Ok(()),
    }
}

/// The limit on bytes to write.
#[derive(Debug)]
struct Most {
    bytes: u64,
    /// The reason for the limit.
    reason: &'static str,
    /// The file, if the limit is a part of the free space, and the position at which the free space
    /// is checked again: others use it too.
    file: Option<File>,
    look_at: u64,
}

/// The known size of an object.
#[derive(Debug, Clone, Copy)]
pub enum Size {
    /// As the server claims.
    Said(u64),
    /// Received so far.
    Come(u64),
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said(bytes) => write!(f, "{}", ByteSize(*bytes)),
            Self::Come(bytes) => write!(f, "at least {}", ByteSize(*bytes)),
        }
    }
}

impl Most {
    /// The user's limit, or by default a part of the free space for regular files.
    async fn of(said: Option<ByteSize>, file: &File) -> io::Result<Self> {
        if let Some(said) = said {
            return Ok(Self {
                bytes: said.as_u64(),
                reason: " (--max-bytes)",
                file: None,
                look_at: 0,
            });
        }
        if !file.metadata().await?.is_file() {
            // The reader decides.
            return Ok(Self {
                bytes: u64::MAX,
                reason: "",
                file: None,
                look_at: 0,
            });
        }
        let (file, reason) = (
            Some(file.try_clone().await?),
            " (nine tenths of the free space): raise it with --max-bytes",
        );
        let mut most = Self {
            bytes: u64::MAX,
            reason,
            file,
            look_at: 0,
        };
        most.look(0)?;
        Ok(most)
    }

    /// Checks the free space from time to time, at `written` bytes.
    fn look(&mut self, written: u64) -> io::Result<()> {
        if let Some(file) = self.file.as_ref().filter(|_| self.look_at <= written) {
            let system = rustix::fs::fstatvfs(file)?;
            self.allow(written, system.f_bavail.saturating_mul(system.f_frsize));
            self.look_at = written + LOOK_EVERY;
        }
        Ok(())
    }

    /// Allows a part of the space that is free now, in addition to what is written, but never
    /// raises the limit.
    fn allow(&mut self, written: u64, free: u64) {
        self.bytes = self
            .bytes
            .min(written.saturating_add(free / 10 * FREE_TENTHS));
    }

    fn check(&self, bytes: u64, size: impl FnOnce(u64) -> Size) -> Result<(), Error> {
        if bytes > self.bytes {
            Err(Error::Large(size(bytes), ByteSize(self.bytes), self.reason))
        } else {
            Ok(())
        }
    }
}

/// The part of the free space that an object may use by default, in tenths.
const FREE_TENTHS: u64 = 9;
/// Bytes between checks of the free space.
const LOOK_EVERY: u64 = 4 << 20;

/// An incomplete file. Dropping it removes it.
#[derive(Debug)]
struct PartialFile {
    part: PathBuf,
    file: PathBuf,
}

impl PartialFile {
    /// The target of a link is replaced in the end, not the link.
    async fn create(file: &Path) -> io::Result<(Self, File)> {
        let file = &file.canonicalize().unwrap_or_else(|_| file.into());
        let name = file
            .file_name()
            .ok_or(io::ErrorKind::InvalidFilename)?
            .to_string_lossy();
        let part = file.with_file_name(format!(".{name}.{:08x}.part", rand::random::<u32>()));
        let writer = File::create_new(&part).await?;
        Ok((
            Self {
                part,
                file: file.to_owned(),
            },
            writer,
        ))
    }

    async fn rename(self) -> io::Result<()> {
        tokio::fs::rename(&self.part, &self.file).await
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After a rename there is nothing to remove.
        let _ = std::fs::remove_file(&self.part);
    }
}

/// The progress bar, and the task that updates its statistics.
struct Progress {
    bar: ProgressBar,
    task: tokio::task::JoinHandle<()>,
}

impl Progress {
    fn start(client: &Client, path: &str, length: Option<u64>) -> Self {
        let target = if console::is_watched() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(length, target);
        let template = if length.is_some() {
            "{prefix} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}"
        } else {
            "{prefix} {spinner} {bytes} {bytes_per_sec} {msg}"
        };
        bar.set_style(
            ProgressStyle::with_template(template)
                .expect("the template is valid")
                .progress_chars("=> "),
        );
        bar.set_prefix(path.to_owned());
        let (shown, mut stats) = (bar.clone(), client.stats());
        let task = tokio::spawn(async move {
            while stats.changed().await.is_ok() {
                let message = message(&stats.borrow_and_update());
                shown.set_message(message);
            }
        });
        Self { bar, task }
    }
}

fn message(stats: &Stats) -> String {
    let Stats {
        blocks_received,
        blocks_useless,
        blocks_repaired,
        generations_on_device,
        ..
    } = stats;
    let message =
        format!("blocks {blocks_received} useless {blocks_useless} repaired {blocks_repaired}");
    match stats.device {
        Some((backend, _)) => format!("{message} decoded by {backend} {generations_on_device}"),
        None => message,
    }
}

/// Where generations were decoded, and how many block by block. Generations of source blocks alone
/// needed no decoding, and count as decoded by the CPU.
pub fn summary(stats: &Stats) -> String {
    let Stats {
        generations,
        generations_on_device,
        generations_progressive,
        ..
    } = stats;
    let here = generations.saturating_sub(*generations_on_device);
    let by_device = match stats.device {
        Some((backend, kernel)) => {
            format!("{generations_on_device} by {backend} (kernel {kernel}), ")
        }
        None => String::new(),
    };
    let progressive = match generations_progressive {
        0 => String::new(),
        count => format!(", {count} of them block by block"),
    };
    format!("generations decoded: {by_device}{here} by the CPU{progressive}")
}

/// The cost and benefit of blocks requested in advance, if there were any.
pub fn repair(stats: &Stats) -> Option<String> {
    let Stats {
        blocks_received,
        blocks_ahead,
        blocks_ahead_used,
        generations_spared,
        ..
    } = stats;
    (*blocks_ahead > 0).then(|| {
        format!(
            "{blocks_ahead} repair blocks requested ahead of loss, {blocks_received} received; \
             {blocks_ahead_used} replaced lost blocks and saved {generations_spared} generations a \
             round trip"
        )
    })
}

/// Wrong blocks and their sources, if there were any.
pub fn pollution(stats: &Stats) -> Option<String> {
    let Stats {
        blocks_wrong,
        polluters,
        segments_mended,
        sources,
        ..
    } = stats;
    if *blocks_wrong == 0 && *polluters == 0 {
        return None;
    }
    let named = sources
        .iter()
        .filter(|source| source.counts.is_polluter)
        .map(|source| source.server.to_string());
    let named = named.collect::<Vec<_>>().join(", ");
    let whose = if named.is_empty() {
        "no source identified".to_owned()
    } else {
        format!("no longer used: {named}")
    };
    Some(format!(
        "wrong blocks dropped: {blocks_wrong}, segments repaired: {segments_mended}, {whose}"
    ))
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_the_object() {
        assert_eq!(
            Target::new(None, "/live/a/1.ts?x=/y").unwrap(),
            Target::File("1.ts".into())
        );
        assert_eq!(
            Target::new(Some("-".into()), "/live/").unwrap(),
            Target::Stdout
        );
        assert!(matches!(Target::new(None, "/live/"), Err(Error::Nameless)));
        assert!(matches!(
            Target::new(None, "/live/.."),
            Err(Error::Nameless)
        ));
    }

    #[tokio::test]
    async fn a_file_system_that_others_fill_is_not_filled_to_its_end() {
        let mut most = Most {
            bytes: u64::MAX,
            reason: "",
            file: None,
            look_at: 0,
        };
        most.allow(0, 1000);
        assert_eq!(most.bytes, 900);
        most.allow(500, 500);
        assert_eq!(most.bytes, 900, "what it has written itself");
        most.allow(500, 100);
        assert_eq!(most.bytes, 590);
        most.allow(500, 1000);
        assert_eq!(most.bytes, 590);
        let mut most = Most::of(None, &File::from_std(tempfile::tempfile().unwrap()))
            .await
            .unwrap();
        let at = |most: &mut Most, written| most.look(written).map(|()| most.look_at).unwrap();
        assert_eq!(
            [0, LOOK_EVERY - 1, LOOK_EVERY].map(|written| at(&mut most, written)),
            [LOOK_EVERY, LOOK_EVERY, 2 * LOOK_EVERY]
        );
    }

    #[test]
    fn it_is_told_where_generations_were_decoded() {
        let stats = Stats {
            generations: 5,
            ..Stats::default()
        };
        assert_eq!(summary(&stats), "generations decoded: 5 by the CPU");
        let pressed = Stats {
            generations_progressive: 2,
            ..stats.clone()
        };
        assert_eq!(
            summary(&pressed),
            "generations decoded: 5 by the CPU, 2 of them block by block"
        );
        let stats = Stats {
            generations_on_device: 3,
            device: Some(("cuda", "table")),
            ..stats
        };
        assert_eq!(
            summary(&stats),
            "generations decoded: 3 by cuda (kernel table), 2 by the CPU"
        );
        assert_eq!(
            message(&stats),
            "blocks 0 useless 0 repaired 0 decoded by cuda 3"
        );
        assert_eq!(pollution(&stats), None);
        let wrong = Stats {
            blocks_wrong: 3,
            segments_mended: 1,
            ..stats
        };
        assert_eq!(
            pollution(&wrong).unwrap(),
            "wrong blocks dropped: 3, segments repaired: 1, no source identified"
        );
    }

    #[test]
    fn it_is_told_what_repair_cost_and_gained() {
        let stats = Stats {
            blocks_received: 90,
            ..Stats::default()
        };
        assert_eq!(repair(&stats), None);
        let stats = Stats {
            blocks_ahead: 9,
            blocks_ahead_used: 5,
            generations_spared: 2,
            ..stats
        };
        let told = "9 repair blocks requested ahead of loss, 90 received; 5 replaced lost blocks \
                    and saved 2 generations a round trip";
        assert_eq!(repair(&stats).as_deref(), Some(told));
    }

    #[tokio::test]
    async fn a_file_that_is_not_complete_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.ts");
        let (part, mut writer) = PartialFile::create(&file).await.unwrap();
        writer.write_all(b"half").await.unwrap();
        drop(part);
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);

        let (part, mut writer) = PartialFile::create(&file).await.unwrap();
        writer.write_all(b"whole").await.unwrap();
        writer.sync_all().await.unwrap();
        part.rename().await.unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"whole");
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
    }
}
