//! An origin with faults on request that records its requests.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use tokio::task::JoinHandle;

/// The origin; it ends when dropped.
pub struct Origin {
    /// Where it listens.
    pub address: SocketAddr,
    state: Arc<Mutex<Contents>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Contents {
    files: HashMap<String, File>,
    asked: Vec<Asked>,
}

/// The content at a path.
#[derive(Clone, Default)]
pub struct File {
    /// The whole content.
    pub bytes: Bytes,
    /// Its ETag, with the quotation marks.
    pub etag: Option<String>,
    /// Its type, if the answer gives one.
    pub content_type: Option<&'static str>,
    /// How it is served.
    pub fault: Fault,
}

/// How it is served.
#[derive(Clone, Default, PartialEq)]
pub enum Fault {
    /// Correctly.
    #[default]
    None,
    /// Each answer has this status.
    Status(u16),
    /// The first this many answers are 503.
    StatusAtFirst(usize),
    /// Each answer comes this much later.
    Slow(Duration),
    /// The stated length, but only half of the bytes.
    Truncated,
    /// Half of the bytes in chunks, then the connection ends.
    TruncatedChunks,
    /// All bytes in chunks, without a length.
    Chunks,
    /// Answers to ranges lack one byte.
    ShortRange,
    /// Ranges are ignored.
    NoRanges,
    /// The answer states that the bytes are compressed.
    Compressed,
    /// Each answer leads to this place.
    Redirect(String),
}

/// A request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The path and the query.
    pub path: String,
    /// All its headers.
    pub headers: HeaderMap,
}

impl Origin {
    /// Starts one without content, on a free port.
    pub async fn start() -> Self {
        let state = Arc::new(Mutex::new(Contents::default()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&state));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            state,
            task,
        }
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Serves these bytes at the path.
    pub fn put(&self, path: &str, bytes: impl Into<Bytes>) {
        self.put_file(
            path,
            File {
                bytes: bytes.into(),
                ..File::default()
            },
        );
    }

    /// Serves this content at the path, with an ETag made from the bytes, unless it has one.
    pub fn put_file(&self, path: &str, mut file: File) {
        file.etag
            .get_or_insert_with(|| format!("\"{}\"", blake3::hash(&file.bytes).to_hex()));
        self.state
            .lock()
            .unwrap()
            .files
            .insert(path.to_owned(), file);
    }

    /// Serves these bytes at the path with a fault.
    pub fn put_fault(&self, path: &str, bytes: impl Into<Bytes>, fault: Fault) {
        self.put_file(
            path,
            File {
                bytes: bytes.into(),
                fault,
                ..File::default()
            },
        );
    }

    /// Serves the same content for every query of the path.
    pub fn put_whatever_the_query(&self, path: &str, bytes: impl Into<Bytes>, fault: Fault) {
        self.put_fault(&format!("{path}?*"), bytes, fault);
    }

    /// Removes the content of a path.
    pub fn remove(&self, path: &str) {
        self.state.lock().unwrap().files.remove(path);
    }

    /// All requests so far for a path including its query.
    pub fn asked(&self, path: &str) -> Vec<Asked> {
        self.state
            .lock()
            .unwrap()
            .asked
            .iter()
            .filter(|asked| asked.path == path)
            .cloned()
            .collect()
    }

    /// The number of all requests so far.
    pub fn asked_in_all(&self) -> usize {
        self.state.lock().unwrap().asked.len()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(state): State<Arc<Mutex<Contents>>>, request: Request) -> Response<Body> {
    let path = request.uri().path_and_query().unwrap().as_str().to_owned();
    let headers = request.headers().clone();
    let (file, before) = {
        let mut contents = state.lock().unwrap();
        let before = contents
            .asked
            .iter()
            .filter(|asked| asked.path == path)
            .count();
        contents.asked.push(Asked {
            path: path.clone(),
            headers: headers.clone(),
        });
        let whatever = || {
            contents
                .files
                .get(&format!("{}?*", path.split('?').next().unwrap_or_default()))
        };
        (contents.files.get(&path).or_else(whatever).cloned(), before)
    };
    let Some(file) = file else { return status(404) };
    match &file.fault {
        Fault::Status(code) => return status(*code),
        Fault::StatusAtFirst(count) if before < *count => return status(503),
        Fault::Slow(pause) => tokio::time::sleep(*pause).await,
        Fault::Redirect(location) => {
            return Response::builder()
                .status(302)
                .header(header::LOCATION, location)
                .body(Body::empty())
                .unwrap();
        }
        _ => {}
    }
    let etag = file.etag.clone().unwrap();
    if headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|known| *known == etag)
    {
        return Response::builder()
            .status(304)
            .header(header::ETAG, etag)
            .body(Body::empty())
            .unwrap();
    }
    let mut response = Response::builder().header(header::ETAG, &etag);
    if let Some(content_type) = file.content_type {
        response = response.header(header::CONTENT_TYPE, content_type);
    }
    let total = file.bytes.len();
    let is_other = headers
        .get(header::IF_RANGE)
        .is_some_and(|known| *known != etag);
    let heeds = file.fault != Fault::NoRanges && !is_other;
    let range = headers
        .get(header::RANGE)
        .filter(|_| heeds)
        .map(|range| parse(range.to_str().unwrap()));
    if let Some((start, end)) = range {
        let end = end.min(total);
        if start >= total {
            return response
                .status(416)
                .header(header::CONTENT_RANGE, format!("bytes */{total}"))
                .body(Body::empty())
                .unwrap();
        }
        let end = if file.fault == Fault::ShortRange {
            end - 1
        } else {
            end
        };
        let content_range = format!("bytes {start}-{}/{total}", end - 1);
        response = response
            .status(206)
            .header(header::CONTENT_RANGE, content_range);
        return response
            .body(Body::from(file.bytes.slice(start..end)))
            .unwrap();
    }
    match file.fault {
        Fault::Truncated => response
            .header(header::CONTENT_LENGTH, total)
            .body(pieces(file.bytes.slice(..total / 2), true))
            .unwrap(),
        Fault::TruncatedChunks => response
            .body(pieces(file.bytes.slice(..total / 2), true))
            .unwrap(),
        Fault::Chunks => response.body(pieces(file.bytes, false)).unwrap(),
        Fault::Compressed => response
            .header(header::CONTENT_ENCODING, "gzip")
            .body(Body::from(file.bytes))
            .unwrap(),
        _ => response.body(Body::from(file.bytes)).unwrap(),
    }
}

/// A body without a stated length, which ends with an error if `fails`.
fn pieces(bytes: Bytes, fails: bool) -> Body {
    let parts: Vec<_> = bytes
        .chunks(1000)
        .map(|part| Ok(Bytes::copy_from_slice(part)))
        .collect();
    let end = futures_util::stream::once(async move {
        // The earlier bytes should be sent first.
        tokio::time::sleep(Duration::from_millis(20)).await;
        if fails {
            Err(std::io::Error::other("enough"))
        } else {
            Ok(Bytes::new())
        }
    });
    Body::from_stream(futures_util::StreamExt::chain(
        futures_util::stream::iter(parts),
        end,
    ))
}

fn parse(range: &str) -> (usize, usize) {
    let (first, last) = range
        .strip_prefix("bytes=")
        .unwrap()
        .split_once('-')
        .unwrap();
    (first.parse().unwrap(), last.parse::<usize>().unwrap() + 1)
}

fn status(code: u16) -> Response<Body> {
    Response::builder()
        .status(StatusCode::from_u16(code).unwrap())
        .body(Body::empty())
        .unwrap()
}
