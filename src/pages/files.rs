//! The files of the pages, which are part of the program.

use ncs_net::page::{CSS, HTML, ICON, JS, SVG};

use super::Index;

/// A file.
#[derive(Debug, Clone, Copy)]
pub(super) struct File {
    pub(super) media_type: &'static str,
    pub(super) bytes: &'static [u8],
    pub(super) is_gzip: bool,
}

/// The file at this path.
pub(super) fn find(index: Index, path: &str) -> Option<File> {
    let path = match (path, index) {
        ("/", Index::Player) => "/player.html",
        ("/", Index::Demo) => "/demo.html",
        _ => path,
    };
    all()
        .find(|(known, _)| *known == path)
        .map(|(_, file)| file)
}

/// All files, with their paths.
pub(super) fn all() -> impl Iterator<Item = (&'static str, File)> {
    let plain = |&(path, bytes): &(&'static str, &'static str)| {
        let file = File {
            media_type: media_type(path),
            bytes: bytes.as_bytes(),
            is_gzip: false,
        };
        (path, file)
    };
    let built = |&(path, bytes): &(&'static str, &'static [u8])| {
        let file = File {
            media_type: media_type(path),
            bytes,
            is_gzip: true,
        };
        (path, file)
    };
    PAGES.iter().map(plain).chain(BUILT.iter().map(built))
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => HTML,
        Some("css") => CSS,
        Some("svg") => SVG,
        Some("wasm") => "application/wasm",
        _ => JS,
    }
}

const PAGES: [(&str, &str); 6] = [
    ("/player.html", include_str!("player.html")),
    ("/player.js", include_str!("player.js")),
    ("/demo.html", include_str!("demo.html")),
    ("/demo.js", include_str!("demo.js")),
    ("/pages.css", include_str!("pages.css")),
    ("/icon.svg", ICON),
];

/// hls.js and the package of `web/`, compressed: `web/embed.py` writes them.
const BUILT: &[(&str, &[u8])] = include!("../../assets/web/files.rs");
