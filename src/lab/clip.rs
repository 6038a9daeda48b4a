//! The embedded clip: twelve seconds of HLS (fMP4, H.264 and AAC), made by `assets/clip/make.sh`.

/// One file of the clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its name, without a folder.
    pub name: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
}

/// The master playlist.
pub const MASTER: &str = "master.m3u8";
/// The media playlist that the master playlist names.
pub const PLAYLIST: &str = "video.m3u8";

/// Every file: playlists first, segments in playing order.
pub const FILES: [File; 9] = [
    File {
        name: MASTER,
        bytes: include_bytes!("../../assets/clip/master.m3u8"),
    },
    File {
        name: PLAYLIST,
        bytes: include_bytes!("../../assets/clip/video.m3u8"),
    },
    File {
        name: "init.mp4",
        bytes: include_bytes!("../../assets/clip/init.mp4"),
    },
    File {
        name: "segment0.m4s",
        bytes: include_bytes!("../../assets/clip/segment0.m4s"),
    },
    File {
        name: "segment1.m4s",
        bytes: include_bytes!("../../assets/clip/segment1.m4s"),
    },
    File {
        name: "segment2.m4s",
        bytes: include_bytes!("../../assets/clip/segment2.m4s"),
    },
    File {
        name: "segment3.m4s",
        bytes: include_bytes!("../../assets/clip/segment3.m4s"),
    },
    File {
        name: "segment4.m4s",
        bytes: include_bytes!("../../assets/clip/segment4.m4s"),
    },
    File {
        name: "segment5.m4s",
        bytes: include_bytes!("../../assets/clip/segment5.m4s"),
    },
];

/// The files that are sent as segments: all except the playlists.
pub fn segments() -> impl Iterator<Item = &'static File> {
    FILES.iter().filter(|file| !file.name.ends_with(".m3u8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_playlists_name_every_other_file() {
        let playlists: String = FILES
            .iter()
            .filter(|file| file.name.ends_with(".m3u8"))
            .map(|file| std::str::from_utf8(file.bytes).unwrap())
            .collect();
        for file in FILES.iter().filter(|file| file.name != MASTER) {
            assert!(
                playlists.contains(file.name),
                "{} is named nowhere",
                file.name
            );
        }
    }
}
