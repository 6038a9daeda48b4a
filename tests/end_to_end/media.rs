//! Streams that ffmpeg makes from its test sources, and the comparison of played frames with them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::Process;

/// Frames a second of a live stream.
pub(crate) const LIVE_RATE: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Container {
    Ts,
    Fmp4,
}

impl Container {
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Ts => &["-hls_segment_type", "mpegts"],
            Self::Fmp4 => &["-hls_segment_type", "fmp4"],
        }
    }
}

fn ffmpeg(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("ffmpeg");
    command
        .current_dir(directory)
        .args(["-nostdin", "-hide_banner", "-loglevel", "error", "-y"])
        .args(arguments);
    command
}

/// Noise next to moving pictures: all frames differ, so a frame's hash identifies it.
fn sources(rate: u32) -> Vec<String> {
    let video = format!("testsrc2=size=320x180:rate={rate}");
    [
        "-f",
        "lavfi",
        "-i",
        &video,
        "-f",
        "lavfi",
        "-i",
        "anoisesrc=sample_rate=44100:seed=1:amplitude=0.2",
    ]
    .map(String::from)
    .to_vec()
}

/// Without perceptual noise substitution, which would give a decoder that starts in the middle
/// different noise.
fn codecs(gop: u32) -> Vec<String> {
    let gop = gop.to_string();
    let options = [
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-pix_fmt",
        "yuv420p",
        "-b:v",
        "330k",
        "-maxrate",
        "330k",
        "-bufsize",
        "330k",
        "-g",
        &gop,
        "-sc_threshold",
        "0",
        "-c:a",
        "aac",
        "-aac_pns",
        "0",
        "-b:a",
        "64k",
    ];
    options.map(String::from).to_vec()
}

/// Twelve seconds in six segments.
pub(crate) fn make_vod(directory: &Path, container: Container) {
    let mut command = ffmpeg(directory, &[]);
    command
        .args(sources(25))
        .args(["-t", "12"])
        .args(codecs(50))
        .args(["-f", "hls", "-hls_time", "2", "-hls_playlist_type", "vod"]);
    let status = command
        .args(container.options())
        .arg("index.m3u8")
        .status()
        .expect("ffmpeg runs");
    assert!(status.success(), "ffmpeg makes the clip");
}

/// A stream of one-second segments with a window of twelve, and an archive of everything.
pub(crate) fn start_live(directory: &Path, container: Container, seconds: u64) -> Process {
    let hls = match container {
        Container::Ts => {
            "[f=hls:hls_time=1:hls_list_size=12:hls_flags=\
             delete_segments+independent_segments+temp_file:hls_delete_threshold=6]index.m3u8"
        }
        Container::Fmp4 => {
            "[f=hls:hls_time=1:hls_list_size=12:hls_segment_type=fmp4:hls_flags=\
             delete_segments+independent_segments+temp_file:hls_delete_threshold=6]index.m3u8"
        }
    };
    let outputs = format!("[f=matroska]../archive.mkv|{hls}");
    let mut command = ffmpeg(directory, &["-re"]);
    let video = format!("testsrc2=size=320x180:rate={LIVE_RATE}");
    command.args([
        "-f",
        "lavfi",
        "-i",
        &video,
        "-re",
        "-f",
        "lavfi",
        "-i",
        "anoisesrc=sample_rate=44100:seed=1:amplitude=0.2",
    ]);
    command
        .args(["-t", &seconds.to_string()])
        .args(codecs(LIVE_RATE))
        .args([
            "-flags",
            "+global_header",
            "-map",
            "0:v",
            "-map",
            "1:a",
            "-f",
            "tee",
        ]);
    Process::start(command.arg(outputs).stdin(Stdio::null()))
}

/// The same in a directory that `ncserverd` watches, with two-second segments; with `in_place`
/// every file is written under its final name.
pub(crate) fn start_live_directory(directory: &Path, in_place: bool, seconds: u64) -> Process {
    let flags = if in_place {
        "delete_segments+independent_segments"
    } else {
        "delete_segments+independent_segments+temp_file"
    };
    let mut command = ffmpeg(directory, &["-re"]);
    let video = format!("testsrc2=size=320x180:rate={LIVE_RATE}");
    command.args([
        "-f",
        "lavfi",
        "-i",
        &video,
        "-re",
        "-f",
        "lavfi",
        "-i",
        "anoisesrc=sample_rate=44100:seed=1:amplitude=0.2",
    ]);
    command
        .args(["-t", &seconds.to_string()])
        .args(codecs(2 * LIVE_RATE));
    command.args([
        "-f",
        "hls",
        "-hls_time",
        "2",
        "-hls_list_size",
        "12",
        "-hls_flags",
        flags,
    ]);
    Process::start(command.arg("index.m3u8").stdin(Stdio::null()))
}

/// Waits until the playlist lists this many segments.
pub(crate) fn await_segments(directory: &Path, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while segments_named(directory) < count {
        assert!(
            Instant::now() < deadline,
            "ffmpeg writes {count} segments within a minute"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn segments_named(directory: &Path) -> usize {
    let playlist = std::fs::read_to_string(directory.join("index.m3u8")).unwrap_or_default();
    playlist
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .count()
}

/// Names of the media files of a finished stream.
pub(crate) fn segments(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory)
        .expect("the directory is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = names
        .filter(|name| name.ends_with(".ts") || name.ends_with(".m4s") || name.ends_with(".mp4"))
        .collect();
    names.sort();
    names
}

/// Hashes of decoded frames, for each stream in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frames {
    streams: BTreeMap<u32, Vec<String>>,
}

/// The played frames as a contiguous part of the source.
#[derive(Debug)]
#[allow(dead_code, reason = "shown in the test's output")]
pub(crate) struct Contiguous {
    pub(crate) skipped_frames: usize,
    pub(crate) video_frames: u64,
}

impl Frames {
    /// Parses the output of ffmpeg's `framemd5`: stream, dts, pts, duration, size, hash.
    pub(crate) fn parse(text: &str) -> Self {
        let mut streams: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<_> = line.split(',').map(str::trim).collect();
            let [stream, .., hash] = fields[..] else {
                continue;
            };
            streams
                .entry(stream.parse().expect("a stream's index"))
                .or_default()
                .push(hash.to_owned());
        }
        Self { streams }
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.values().map(Vec::len).sum()
    }

    /// Frames of the first stream, the video.
    pub(crate) fn video_frames(&self) -> u64 {
        self.streams.get(&0).map_or(0, Vec::len) as u64
    }

    pub(crate) fn assert_equal(&self, played: &Self) {
        assert_eq!(
            self.streams.keys().collect::<Vec<_>>(),
            played.streams.keys().collect::<Vec<_>>(),
            "streams of the file"
        );
        for (stream, frames) in &self.streams {
            let played = &played.streams[stream];
            let differing = frames
                .iter()
                .zip(played)
                .position(|(one, other)| one != other);
            assert_eq!(
                differing, None,
                "first frame of stream {stream} that differs"
            );
            assert_eq!(frames.len(), played.len(), "frames of stream {stream}");
        }
    }

    /// Finds the played frames in the source: after the first common frame none may be missing or
    /// wrong. A decoder that starts in the middle may decode its very first audio frames
    /// differently, so the first common frame need not be the first played one.
    pub(crate) fn contiguous(&self, played: &Self) -> Result<Contiguous, String> {
        let mut skipped_frames = 0;
        for (stream, frames) in &played.streams {
            // The last frame is cut where the player had to stop.
            let frames = frames.split_last().map_or(&[][..], |(_, whole)| whole);
            let source = self
                .streams
                .get(stream)
                .ok_or_else(|| format!("stream {stream} is not in the source"))?;
            let places = frames
                .iter()
                .enumerate()
                .find_map(|(at, hash)| Some((at, source.iter().position(|frame| frame == hash)?)));
            let (at, place) =
                places.ok_or_else(|| format!("no frame of stream {stream} is in the source"))?;
            let differing = frames[at..]
                .iter()
                .zip(&source[place..])
                .position(|(one, other)| one != other);
            if let Some(differing) = differing {
                return Err(format!(
                    "stream {stream}: frame {differing} after the first in common is not the \
                     source's"
                ));
            }
            if frames.len() - at > source.len() - place {
                return Err(format!("stream {stream}: more frames than the source has"));
            }
            skipped_frames += at;
        }
        Ok(Contiguous {
            skipped_frames,
            video_frames: played.video_frames(),
        })
    }
}
