//! Pages for viewers at `web.listen`: a player for the streams of this server, for those who want
//! no site of their own, and the package that it is made of.
//!
//! Only what is built in is served. On loopback the listener speaks plain HTTP, and its own pages
//! may connect to the server. Elsewhere it speaks TLS, and `web.origins` names the site, because
//! only the operator knows by which name viewers reach it.

mod files;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use ncs_net::listener::{self, Crowd, Limits};
use ncs_net::page;
use serde_json::{Value, json};

use crate::host;
use crate::tls::{self, Https, Rotated};
use crate::web::Origins;

use files::{File, find};

/// Why no pages can be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not available.
    #[error("cannot listen on TCP {address}: {source}")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] tls::Error),
    /// Off loopback there must be one.
    #[error("{0} is not loopback: pages need the certificate of `tls.cert` and `tls.key` there")]
    Plain(SocketAddr),
}

/// What a page knows of its server: JSON, made anew for each request.
pub type Facts = Arc<dyn Fn() -> Value + Send + Sync>;

/// The page at `/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// Plays the stream that its query names.
    Player,
    /// Plays the clip of the demo twice, side by side.
    Demo,
}

/// The listener of the pages. Nobody is answered before [`Site::serve`].
#[derive(Debug)]
pub struct Site {
    socket: std::net::TcpListener,
    address: SocketAddr,
    https: Option<Https>,
    tls: Option<Arc<rustls::ServerConfig>>,
    crowd: Arc<Crowd>,
}

impl Site {
    /// Listens at this address: with the certificate of `tls`, or on loopback without one.
    pub fn bind(address: SocketAddr, tls: &tls::Config) -> Result<Self, Error> {
        Self::open(address, tls, || std::net::TcpListener::bind(address))
    }

    /// The same on a socket that is open already.
    pub fn on(
        socket: std::net::TcpListener,
        address: SocketAddr,
        tls: &tls::Config,
    ) -> Result<Self, Error> {
        Self::open(address, tls, || Ok(socket))
    }

    fn open(
        address: SocketAddr,
        tls: &tls::Config,
        socket: impl FnOnce() -> std::io::Result<std::net::TcpListener>,
    ) -> Result<Self, Error> {
        let is_here = address.ip().to_canonical().is_loopback();
        let https = match (is_here, &tls.cert, &tls.key) {
            (true, ..) => None,
            (false, Some(cert), Some(key)) => Some(Https::open(cert, key)?),
            (false, ..) => return Err(Error::Plain(address)),
        };
        let bind = |source| Error::Bind { address, source };
        let socket = socket().map_err(bind)?;
        socket.set_nonblocking(true).map_err(bind)?;
        Ok(Self {
            tls: https.as_ref().map(Https::config).transpose()?,
            address: socket.local_addr().map_err(bind)?,
            socket,
            https,
            crowd: Crowd::new(LIMITS),
        })
    }

    /// Its socket, for another process.
    pub fn socket(&self) -> std::io::Result<std::net::TcpListener> {
        self.socket.try_clone()
    }

    /// The URL of its first page.
    pub fn url(&self) -> String {
        let scheme = if self.https.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}/", host::reachable(self.address))
    }

    /// The origins of its pages, where their names are known: on loopback.
    pub fn origins(&self) -> Origins {
        if self.https.is_some() {
            return Origins::default();
        }
        let port = self.address.port();
        let names = [self.address.to_string(), format!("localhost:{port}")];
        Origins::of(&names.map(|name| format!("http://{name}"))).unwrap_or_default()
    }

    /// Reads the certificate again.
    pub fn reload(&self, tls: &tls::Config) -> Result<(), Error> {
        match (&self.https, &tls.cert, &tls.key) {
            (Some(https), Some(cert), Some(key)) => Ok(https.reload(cert, key)?),
            _ => Ok(()),
        }
    }

    /// Answers until it is dropped.
    pub async fn serve(self: Arc<Self>, index: Index, facts: Facts) {
        let socket = self.socket.try_clone();
        let listener = match socket.and_then(tokio::net::TcpListener::from_std) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "the player for viewers cannot be served"),
        };
        let answer = move |request: Request<_>, _| {
            let response = respond(index, &request, &facts);
            async move { response }
        };
        let (crowd, tls) = (Arc::clone(&self.crowd), self.tls.clone());
        listener::serve_with(listener, crowd, tls, answer, std::future::pending()).await;
    }
}

/// What the player knows of a server at these UDP addresses.
pub fn facts(addresses: &[SocketAddr], rotated: Option<Arc<Rotated>>) -> Facts {
    let ports: BTreeSet<u16> = addresses.iter().map(SocketAddr::port).collect();
    Arc::new(move || {
        let hashes = hashes(rotated.as_deref());
        let server = |port: &u16| json!({"port": port, "hashes": hashes});
        json!({"servers": ports.iter().map(server).collect::<Vec<_>>()})
    })
}

/// SHA-256 of the certificates that pages see, of the present and of the next term. None if an
/// authority has signed it, or no page may connect.
pub fn hashes(rotated: Option<&Rotated>) -> Vec<String> {
    let hashes = rotated.map(|rotated| rotated.fingerprints().map(|hash| hash.to_string()));
    hashes.map(Vec::from).unwrap_or_default()
}

fn respond<B>(index: Index, request: &Request<B>, facts: &Facts) -> Response<Body> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = page::sentence(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
        let allow = HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(header::ALLOW, allow);
        return refused;
    }
    match request.uri().path() {
        FACTS => page::answer(StatusCode::OK, "application/json", facts().to_string()),
        path => match find(index, path) {
            Some(file) => of_file(file, request.headers()),
            None => page::sentence(StatusCode::NOT_FOUND, "no such page"),
        },
    }
}

/// A file, unless the browser has it.
fn of_file(file: &File, headers: &HeaderMap) -> Response<Body> {
    let is_known = |known: &HeaderValue| {
        let known = known.to_str().unwrap_or_default();
        known.split(',').any(|known| known.trim() == file.tag)
    };
    let mut response = if headers.get_all(header::IF_NONE_MATCH).iter().any(is_known) {
        page::answer(StatusCode::NOT_MODIFIED, file.media_type, Body::empty())
    } else {
        page::answer(StatusCode::OK, file.media_type, file.bytes)
    };
    let own = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let headers = response.headers_mut();
    for (name, value) in own {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(&file.tag) {
        headers.insert(header::ETAG, tag);
    }
    if file.is_gzip {
        let encoding = HeaderValue::from_static("gzip");
        headers.insert(header::CONTENT_ENCODING, encoding);
    }
    response
}

const FACTS: &str = "/facts.json";
/// Scripts and their worker come from here; WebTransport goes to the server's port.
const POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; \
                      style-src 'self'; connect-src 'self' https:; img-src 'self' data:; \
                      media-src blob:; worker-src 'self' blob:; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";
/// Connections at a time. A browser makes six, for a moment.
pub const CONNECTIONS_MAX: usize = 512;
const LIMITS: Limits = Limits {
    connections_max: CONNECTIONS_MAX,
    head_timeout: Duration::from_secs(10),
    stall_timeout: Duration::from_secs(10),
    life: Some(Duration::from_secs(600)),
};

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    fn ask(method: Method, path: &str, headers: &[(&str, &str)]) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let facts: Facts = Arc::new(|| serde_json::json!({"servers": []}));
        respond(Index::Player, &request.body(()).unwrap(), &facts)
    }

    #[tokio::test]
    async fn every_file_is_served_once_and_then_known() {
        for path in files::FILES.keys() {
            let first = ask(Method::GET, path, &[]);
            assert_eq!(first.status(), StatusCode::OK, "{path}");
            let policy = first.headers()[header::CONTENT_SECURITY_POLICY].to_str();
            assert!(policy.unwrap().contains("'wasm-unsafe-eval'"), "{path}");
            let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
            assert!(
                !to_bytes(first.into_body(), 1 << 22)
                    .await
                    .unwrap()
                    .is_empty()
            );
            let again = ask(
                Method::GET,
                path,
                &[("if-none-match", &format!("W/\"x\", {tag}"))],
            );
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
            let other = ask(Method::GET, path, &[("if-none-match", "\"x\"")]);
            assert_eq!(other.status(), StatusCode::OK, "{path}");
        }
    }

    #[test]
    fn nothing_else_is_served() {
        for path in [
            "/x",
            "/peer",
            "/peer/",
            "/peer/../peer/index.js",
            "/%2e",
            "//",
        ] {
            assert_eq!(
                ask(Method::GET, path, &[]).status(),
                StatusCode::NOT_FOUND,
                "{path}"
            );
        }
        assert_eq!(
            ask(Method::POST, "/", &[]).status(),
            StatusCode::METHOD_NOT_ALLOWED
        );
        let facts = ask(Method::GET, FACTS, &[]);
        assert_eq!(facts.headers()[header::CACHE_CONTROL], "no-store");
    }

    #[test]
    fn pages_are_plain_on_loopback_alone() {
        let tls = tls::Config::default();
        let site = Site::bind("127.0.0.1:0".parse().unwrap(), &tls).unwrap();
        let port = site.address.port();
        assert_eq!(site.url(), format!("http://127.0.0.1:{port}/"));
        let origins = [
            format!("http://127.0.0.1:{port}"),
            format!("http://localhost:{port}"),
        ];
        assert_eq!(Vec::from(site.origins()), origins);
        let elsewhere = Site::bind("0.0.0.0:0".parse().unwrap(), &tls);
        assert!(matches!(elsewhere, Err(Error::Plain(_))));
    }
}
