//! The film and the players: made and fetched once, and kept in cargo's target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The renditions: bits per second of the picture, its width, and its height, by which the page
/// tells them apart. The sound comes on top.
pub(crate) const RENDITIONS: [(u32, u32, u32); 3] = [
    (200_000, 320, 180),
    (500_000, 480, 270),
    (1_200_000, 640, 360),
];
/// Bits a second of the sound.
pub(crate) const SOUND: u32 = 64_000;

/// Seconds of the film, more than any run watches, and of a segment.
const LENGTH: u32 = 180;
const SEGMENT: u32 = 4;

/// A folder with `master.m3u8`, `manifest.mpd` and the fragments that both name.
pub(crate) fn make(work: &Path) -> PathBuf {
    let media = work.join("media");
    if media.join("master.m3u8").exists() {
        return media;
    }
    // Half a film from a run that was ended must not be taken for a whole one.
    let unfinished = work.join("media.part");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished).expect("a folder for the film");
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args([
        "-hide_banner",
        "-loglevel",
        "error",
        "-nostdin",
        "-f",
        "lavfi",
        "-i",
    ]);
    // Noise, or the picture would not need the rate that it is given.
    ffmpeg.arg(format!(
        "testsrc2=size=640x360:rate=25:duration={LENGTH},noise=alls=24:allf=t"
    ));
    ffmpeg.args([
        "-f",
        "lavfi",
        "-i",
        &format!("sine=frequency=440:duration={LENGTH}"),
    ]);
    for _ in RENDITIONS {
        ffmpeg.args(["-map", "0:v"]);
    }
    ffmpeg.args([
        "-map",
        "1:a",
        "-c:a",
        "aac",
        "-b:a",
        &SOUND.to_string(),
        "-c:v",
        "libx264",
        "-preset",
        "veryfast",
    ]);
    ffmpeg.args([
        "-g",
        &(25 * SEGMENT).to_string(),
        "-sc_threshold",
        "0",
        "-pix_fmt",
        "yuv420p",
    ]);
    for (number, (bits, width, height)) in RENDITIONS.iter().enumerate() {
        for (option, value) in [("b", *bits), ("maxrate", *bits), ("bufsize", *bits)] {
            ffmpeg
                .arg(format!("-{option}:v:{number}"))
                .arg(value.to_string());
        }
        ffmpeg
            .arg(format!("-s:v:{number}"))
            .arg(format!("{width}x{height}"));
    }
    ffmpeg.args([
        "-f",
        "dash",
        "-seg_duration",
        &SEGMENT.to_string(),
        "-adaptation_sets",
        "id=0,streams=v id=1,streams=a",
    ]);
    ffmpeg
        .args(["-hls_playlist", "1"])
        .arg(unfinished.join("manifest.mpd"));
    let status = ffmpeg.status().expect("ffmpeg is installed");
    assert!(status.success(), "ffmpeg ended with {status}");
    fs::rename(&unfinished, &media).expect("a finished film gets its name");
    media
}

/// The playlist of the live stream.
pub(crate) const LIVE: &str = "live.m3u8";
/// Segments behind the edge of the live stream at which hls.js begins.
pub(crate) const LIVE_BEHIND: usize = 3;
/// Seconds of a segment of the live stream.
const LIVE_SEGMENT: u32 = 2;

/// An encoder of a live stream of one rendition, the best one of the film, into this folder. Its
/// playlist tells when each segment was recorded.
pub(crate) fn live(folder: &Path) -> Command {
    fs::create_dir_all(folder).expect("a folder for the live stream");
    let (bits, width, height) = RENDITIONS[2];
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-hide_banner", "-loglevel", "error", "-nostdin"]);
    ffmpeg.args(["-re", "-f", "lavfi", "-i"]);
    ffmpeg.arg(format!(
        "testsrc2=size={width}x{height}:rate=25,noise=alls=24:allf=t"
    ));
    ffmpeg.args(["-re", "-f", "lavfi", "-i", "sine=frequency=440"]);
    ffmpeg.args(["-c:a", "aac", "-b:a", &SOUND.to_string()]);
    ffmpeg.args([
        "-c:v",
        "libx264",
        "-preset",
        "superfast",
        "-tune",
        "zerolatency",
    ]);
    ffmpeg.args(["-pix_fmt", "yuv420p", "-sc_threshold", "0"]);
    ffmpeg.args(["-g", &(25 * LIVE_SEGMENT).to_string()]);
    for option in ["-b:v", "-maxrate", "-bufsize"] {
        ffmpeg.args([option, &bits.to_string()]);
    }
    ffmpeg.args(["-f", "hls", "-hls_time", &LIVE_SEGMENT.to_string()]);
    ffmpeg.args(["-hls_flags", "program_date_time+delete_segments+temp_file"]);
    ffmpeg.arg(folder.join(LIVE));
    ffmpeg.stdout(Stdio::null());
    ffmpeg
}

/// The folder with the players' packages, in the versions of package-lock.json.
pub(crate) fn players(work: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/abr");
    let lock = fs::read(here.join("package-lock.json")).expect("a file of this project");
    let (folder, installed) = (work.join("players"), work.join("players/installed"));
    if fs::read(&installed).is_ok_and(|of| of == lock) {
        return folder.join("node_modules");
    }
    fs::create_dir_all(&folder).expect("a folder for players");
    for name in ["package.json", "package-lock.json"] {
        fs::copy(here.join(name), folder.join(name)).expect("a file of this project");
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let status = npm.status().expect("npm is installed");
    assert!(status.success(), "npm ci ended with {status}");
    fs::write(&installed, lock).expect("room for a mark");
    folder.join("node_modules")
}
