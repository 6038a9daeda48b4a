//! A small HTTP origin: files from memory or a directory, with validators, ranges and request
//! counts.
//!
//! It replaces nginx in the demo and in tests. One task accepts, and axum starts one per
//! connection; all end when the [`Origin`] is dropped.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, Method, Response, StatusCode, Uri, header};
use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::clip;
use crate::peer::http::{ByteRange, media_type};

/// Loopback, on a port chosen by the system.
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A running origin on loopback. Dropping it stops it.
#[derive(Debug)]
pub struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<io::Result<()>>,
}

impl Origin {
    /// Serves files from memory, none at first.
    pub async fn in_memory() -> io::Result<Self> {
        Self::serve(None, ANY_PORT).await
    }

    /// Serves the content of a directory at the time of each request; files [put](Self::put) in
    /// memory hide those on disk.
    pub async fn of_directory(directory: impl Into<PathBuf>) -> io::Result<Self> {
        Self::serve(Some(directory.into()), ANY_PORT).await
    }

    /// The same at a given address, so that a stopped origin can be restarted there.
    pub async fn of_directory_at(
        directory: impl Into<PathBuf>,
        address: SocketAddr,
    ) -> io::Result<Self> {
        Self::serve(Some(directory.into()), address).await
    }

    /// Serves the embedded clip from the root.
    pub async fn of_clip() -> io::Result<Self> {
        let origin = Self::in_memory().await?;
        for file in clip::FILES {
            origin.put(&format!("/{}", file.name), Bytes::from_static(file.bytes));
        }
        Ok(origin)
    }

    /// The address it listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, with a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Puts a file in memory, or replaces it. The path starts with a slash and is compared without
    /// decoding.
    pub fn put(&self, path: &str, bytes: Bytes) {
        self.shared
            .lock()
            .files
            .insert(path.to_owned(), File::new(bytes, SystemTime::now()));
    }

    /// Removes a file from memory.
    pub fn remove(&self, path: &str) {
        self.shared.lock().files.remove(path);
    }

    /// Requests so far for a path, with any query.
    pub fn count(&self, path: &str) -> Count {
        self.shared
            .lock()
            .counts
            .get(path)
            .copied()
            .unwrap_or_default()
    }

    /// Requests so far, by path without the query.
    pub fn counts(&self) -> BTreeMap<String, Count> {
        self.shared.lock().counts.clone()
    }

    async fn serve(directory: Option<PathBuf>, address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            directory,
            state: Mutex::default(),
        });
        let app = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(Self {
            address,
            shared,
            task,
        })
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Requests for a path, by kind of response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// GET with bytes: 200 or 206.
    pub sent: u64,
    /// Without bytes because the client has them: 304.
    pub unchanged: u64,
    /// HEAD.
    pub head: u64,
    /// Everything else, such as 404 and 416.
    pub refused: u64,
}

#[derive(Debug)]
struct Shared {
    directory: Option<PathBuf>,
    state: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    files: BTreeMap<String, File>,
    counts: BTreeMap<String, Count>,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Files> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn find(&self, path: &str) -> Option<File> {
        if let Some(file) = self.lock().files.get(path) {
            return Some(file.clone());
        }
        let file = self.directory.as_ref()?.join(relative(path)?);
        let bytes = tokio::fs::read(&file).await.ok()?;
        let modified = tokio::fs::metadata(&file).await.ok()?.modified().ok()?;
        Some(File::new(bytes.into(), modified))
    }

    fn tally(&self, method: &Method, path: &str, status: StatusCode) {
        let mut state = self.lock();
        let count = state.counts.entry(path.to_owned()).or_default();
        match status {
            StatusCode::NOT_MODIFIED => count.unchanged += 1,
            _ if !status.is_success() => count.refused += 1,
            _ if method == Method::HEAD => count.head += 1,
            _ => count.sent += 1,
        }
    }
}

#[derive(Debug, Clone)]
struct File {
    bytes: Bytes,
    etag: String,
    modified: SystemTime,
}

impl File {
    fn new(bytes: Bytes, modified: SystemTime) -> Self {
        let etag = format!("\"{}\"", &blake3::hash(&bytes).to_hex()[..16]);
        Self {
            bytes,
            etag,
            modified,
        }
    }

    /// If-None-Match takes precedence (RFC 9110, section 13.2.2).
    fn is_unchanged(&self, headers: &HeaderMap) -> bool {
        if let Some(known) = text(headers, header::IF_NONE_MATCH) {
            return known
                .split(',')
                .any(|tag| tag.trim() == self.etag || tag.trim() == "*");
        }
        let since = text(headers, header::IF_MODIFIED_SINCE)
            .and_then(|date| httpdate::parse_http_date(date).ok());
        let modified = httpdate::parse_http_date(&httpdate::fmt_http_date(self.modified));
        since.is_some_and(|since| modified.is_ok_and(|modified| modified <= since))
    }

    fn answer(&self, method: &Method, headers: &HeaderMap, path: &str) -> Response<Body> {
        let response = Response::builder()
            .header(header::ETAG, &self.etag)
            .header(
                header::LAST_MODIFIED,
                httpdate::fmt_http_date(self.modified),
            )
            .header(header::ACCEPT_RANGES, "bytes");
        if self.is_unchanged(headers) {
            return finish(response.status(StatusCode::NOT_MODIFIED), Bytes::new());
        }
        let length = self.bytes.len() as u64;
        let same = text(headers, header::IF_RANGE).is_none_or(|tag| tag == self.etag);
        let range = text(headers, header::RANGE)
            .filter(|_| same)
            .and_then(ByteRange::parse);
        let (response, bytes) = match range.map(|range| range.resolve(length)) {
            None => (response.status(StatusCode::OK), self.bytes.clone()),
            Some(None) => {
                let response = response.header(header::CONTENT_RANGE, format!("bytes */{length}"));
                return finish(
                    response.status(StatusCode::RANGE_NOT_SATISFIABLE),
                    Bytes::new(),
                );
            }
            Some(Some(range)) => {
                let content_range = format!("bytes {}-{}/{length}", range.start, range.end - 1);
                let slice = usize::try_from(range.start)
                    .ok()
                    .zip(usize::try_from(range.end).ok());
                let (start, end) = slice.expect("a range of bytes in memory");
                let response = response.header(header::CONTENT_RANGE, content_range);
                (
                    response.status(StatusCode::PARTIAL_CONTENT),
                    self.bytes.slice(start..end),
                )
            }
        };
        let response = response
            .header(header::CONTENT_TYPE, media_type(path))
            .header(header::CONTENT_LENGTH, bytes.len());
        finish(
            response,
            if method == Method::HEAD {
                Bytes::new()
            } else {
                bytes
            },
        )
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response<Body> {
    let path = uri.path();
    let response = if method != Method::GET && method != Method::HEAD {
        finish(
            Response::builder().status(StatusCode::METHOD_NOT_ALLOWED),
            Bytes::new(),
        )
    } else if let Some(file) = shared.find(path).await {
        file.answer(&method, &headers, path)
    } else {
        finish(
            Response::builder().status(StatusCode::NOT_FOUND),
            Bytes::from_static(b"no such file\n"),
        )
    };
    shared.tally(&method, path, response.status());
    response
}

fn finish(response: axum::http::response::Builder, bytes: Bytes) -> Response<Body> {
    response
        .body(Body::from(bytes))
        .expect("status and headers are valid")
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The file of a request path below a directory; `None` if it would be outside.
fn relative(path: &str) -> Option<PathBuf> {
    let decoded = percent_encoding::percent_decode_str(path.strip_prefix('/')?)
        .decode_utf8()
        .ok()?;
    let relative = Path::new(decoded.as_ref());
    let inside = relative
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    inside.then(|| relative.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(origin: &Origin, path: &str, headers: &[(&str, &str)]) -> Response<Body> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        answer(
            State(Arc::clone(&origin.shared)),
            Method::GET,
            path.parse().unwrap(),
            map,
        )
        .await
    }

    async fn body(response: Response<Body>) -> Bytes {
        axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn files_validators_and_ranges() {
        let origin = Origin::in_memory().await.unwrap();
        origin.put("/a/b.ts", Bytes::from_static(b"0123456789"));

        let whole = ask(&origin, "/a/b.ts?x=1", &[]).await;
        assert_eq!(whole.status(), StatusCode::OK);
        assert_eq!(whole.headers()[header::CONTENT_TYPE], "video/mp2t");
        let etag = whole.headers()[header::ETAG].to_str().unwrap().to_owned();
        let modified = whole.headers()[header::LAST_MODIFIED]
            .to_str()
            .unwrap()
            .to_owned();
        assert_eq!(body(whole).await, "0123456789");

        assert_eq!(
            ask(&origin, "/a/b.ts", &[("if-none-match", &etag)])
                .await
                .status(),
            StatusCode::NOT_MODIFIED
        );
        assert_eq!(
            ask(&origin, "/a/b.ts", &[("if-modified-since", &modified)])
                .await
                .status(),
            StatusCode::NOT_MODIFIED
        );
        let part = ask(&origin, "/a/b.ts", &[("range", "bytes=-3")]).await;
        assert_eq!(part.headers()[header::CONTENT_RANGE], "bytes 7-9/10");
        assert_eq!(body(part).await, "789");
        let stale = ask(
            &origin,
            "/a/b.ts",
            &[("range", "bytes=-3"), ("if-range", "\"old\"")],
        )
        .await;
        assert_eq!(stale.status(), StatusCode::OK);
        assert_eq!(
            ask(&origin, "/a/b.ts", &[("range", "bytes=10-")])
                .await
                .status(),
            StatusCode::RANGE_NOT_SATISFIABLE
        );
        assert_eq!(
            origin.count("/a/b.ts"),
            Count {
                sent: 3,
                unchanged: 2,
                head: 0,
                refused: 1
            }
        );

        origin.remove("/a/b.ts");
        assert_eq!(
            ask(&origin, "/a/b.ts", &[]).await.status(),
            StatusCode::NOT_FOUND
        );
    }

    #[tokio::test]
    async fn a_directory_is_not_left() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("in")).unwrap();
        std::fs::write(directory.path().join("in/a b.txt"), "inside").unwrap();
        std::fs::write(directory.path().join("out.txt"), "outside").unwrap();
        let origin = Origin::of_directory(directory.path().join("in"))
            .await
            .unwrap();
        assert_eq!(body(ask(&origin, "/a%20b.txt", &[]).await).await, "inside");
        for path in [
            "/../out.txt",
            "/%2e%2e/out.txt",
            "/a/..%2f..%2fout.txt",
            "//etc/hostname",
            "/",
        ] {
            assert_eq!(
                ask(&origin, path, &[]).await.status(),
                StatusCode::NOT_FOUND,
                "{path}"
            );
        }
    }
}
