//! The files of the pages, which are part of the program.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ncs_net::page::{CSS, HTML, ICON, JS, SVG};

use super::Index;

/// A file.
#[derive(Debug)]
pub(super) struct File {
    pub(super) media_type: &'static str,
    pub(super) bytes: &'static [u8],
    pub(super) is_gzip: bool,
    /// The validator of its content (RFC 9110, section 8.8.3).
    pub(super) tag: String,
}

/// The file at this path.
pub(super) fn find(index: Index, path: &str) -> Option<&'static File> {
    let path = match (path, index) {
        ("/", Index::Player) => "/player.html",
        ("/", Index::Demo) => "/demo.html",
        _ => path,
    };
    FILES.get(path)
}

/// All files, by their paths.
pub(super) static FILES: LazyLock<BTreeMap<&str, File>> = LazyLock::new(|| {
    let pages = PAGES
        .iter()
        .map(|(path, text)| (*path, text.as_bytes(), false));
    let built = BUILT.iter().map(|(path, bytes)| (*path, *bytes, true));
    let files = pages.chain(built).map(|(path, bytes, is_gzip)| {
        let file = File {
            media_type: media_type(path),
            bytes,
            is_gzip,
            tag: format!("\"{}\"", &blake3::hash(bytes).to_hex()[..16]),
        };
        (path, file)
    });
    files.collect()
});

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
