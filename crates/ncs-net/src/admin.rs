//! The HTTP listener for operators.
//!
//! It has a thread and a runtime of its own, so that `/metrics` answers even when every worker is
//! busy, which is when it is needed. It holds at most 64 connections, and ends each after a while;
//! more wait in the kernel's queue.
//!
//! - `/metrics`: the registry in Prometheus' text format.
//! - `/healthz`: 200 as long as the process lives; 503 when a vital part has died and the process
//!   is ending.
//! - `/readyz`: 200 when every part can serve, else 503; both with status and reasons as JSON. A
//!   part that serves in another way than intended makes the status `degraded`, which counts as
//!   ready by default.
//! - `/`: a page for people, whose state comes as server-sent events from `/updates`. Nothing is
//!   made while nobody looks (`feed`). `guard` decides who may see it.

mod guard;
mod snapshot;

use std::fmt;
use std::future::pending;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use prometheus::{IntGauge, Registry, TextEncoder};
use serde_json::json;
use tokio::runtime;
use tokio::sync::oneshot;

use self::guard::Guard;
pub use self::snapshot::Origin;
use self::snapshot::Snapshot;
use crate::feed::{Feed, Part};
use crate::listener::{self, Crowd, Ends, Limits};
use crate::page;
use crate::supervise::{ServerPart, Supervisor};
use crate::telemetry::{Config, Error, Events, Readiness, Reason, Status, now_ms, rate, register};
use crate::tls::{self, Https};

/// The running listener. Dropping it ends its thread.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    config: Config,
    guard: Arc<Guard>,
    https: Option<Https>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// The URL of its pages, without a path.
    pub fn url(&self) -> String {
        let scheme = if self.https.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.address)
    }

    /// Reads the files of certificate, key and credential again. What cannot be used changes
    /// nothing.
    pub fn reload(&self) -> Result<(), Error> {
        let Config {
            certificate,
            key,
            credential,
            ..
        } = &self.config;
        if let (Some(https), Some(certificate), Some(key)) = (&self.https, certificate, key) {
            https.reload(certificate, key).map_err(unusable)?;
        }
        match credential {
            Some(path) => self.guard.reload(path),
            None => Ok(()),
        }
    }

    /// The address it listens on: the configured one, with the port that the system chose if that
    /// was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread
                .join()
                .unwrap_or_else(|_| tracing::error!("the metrics thread panicked"));
        }
    }
}

/// What the listener shows.
#[derive(Clone)]
pub struct Facts {
    /// The metrics.
    pub registry: Registry,
    /// The parts with a problem.
    pub readiness: Readiness,
    /// The events of the last hour.
    pub events: Events,
    /// Tells the state of every stream's origin, while somebody looks.
    pub origins: Arc<dyn Fn() -> Vec<Origin> + Send + Sync>,
}

impl Facts {
    /// Without events and origins.
    pub fn new(registry: Registry, readiness: Readiness) -> Self {
        Self {
            registry,
            readiness,
            events: Events::default(),
            origins: Arc::new(Vec::new),
        }
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Facts").finish_non_exhaustive()
    }
}

/// Checks what the listener would read: host names, certificate, key and credential.
pub fn check(config: &Config) -> Result<(), Error> {
    Guard::open(config)?;
    https(config).map(drop)
}

fn unusable(error: tls::Error) -> Error {
    Error::Certificate(error.to_string())
}

fn https(config: &Config) -> Result<Option<Https>, Error> {
    let pair = config.certificate.as_deref().zip(config.key.as_deref());
    pair.map(|(certificate, key)| Https::open(certificate, key))
        .transpose()
        .map_err(unusable)
}

/// Listens at the configured address. Nobody is answered yet.
pub fn bind(config: &Config) -> Result<TcpListener, Error> {
    let socket = TcpListener::bind(config.listen);
    let open = |socket: TcpListener| socket.set_nonblocking(true).map(|()| socket);
    socket.and_then(open).map_err(|source| Error::Listen {
        address: config.listen,
        source,
    })
}

/// Listens, and starts the thread that answers and logs the encoder's rate.
pub fn serve(config: &Config, facts: Facts, supervisor: &Supervisor) -> Result<Listener, Error> {
    serve_on(bind(config)?, config, facts, supervisor)
}

/// The same on a socket that is open already.
pub fn serve_on(
    socket: TcpListener,
    config: &Config,
    facts: Facts,
    supervisor: &Supervisor,
) -> Result<Listener, Error> {
    let listen = |source| Error::Listen {
        address: config.listen,
        source,
    };
    let guard = Arc::new(Guard::open(config)?);
    let https = https(config)?;
    let served = https.as_ref().map(Https::config).transpose();
    let served = served.map_err(unusable)?;
    let address = socket.local_addr().map_err(listen)?;
    let help = "1 while /readyz reports ready, otherwise 0. /readyz gives the reasons.";
    let ready = register::gauge(&facts.registry, "ncserverd_telemetry_ready", help)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Thread)?;
    let (stop, stopped) = oneshot::channel();
    let shown = Shown {
        facts,
        ready,
        ready_when_degraded: config.ready_when_degraded,
        begun: Instant::now(),
        feed: Feed::new(),
    };
    let serving = Serving {
        socket,
        tls: served,
        guard: Arc::clone(&guard),
        shown,
        interval: config.rate_interval,
    };
    let answering = supervisor
        .clone()
        .revived(ServerPart::Telemetry, move || answer(serving.try_clone()));
    let answering = async move {
        tokio::select! {
            _ = stopped => {}
            () = answering => {}
        }
    };
    let thread = std::thread::Builder::new().name("telemetry".into());
    let thread = thread
        .spawn(move || runtime.block_on(answering))
        .map_err(Error::Thread)?;
    Ok(Listener {
        address,
        config: config.clone(),
        guard,
        https,
        stop: Some(stop),
        thread: Some(thread),
    })
}

#[derive(Clone)]
struct Shown {
    facts: Facts,
    ready: IntGauge,
    ready_when_degraded: bool,
    begun: Instant,
    feed: Arc<Feed>,
}

impl Shown {
    fn readiness(&self) -> (bool, Status, Vec<Reason>) {
        let (status, reasons) = self.facts.readiness.status();
        let is_ready = match status {
            Status::Ready => true,
            Status::Degraded => self.ready_when_degraded,
            Status::NotReady => false,
        };
        (is_ready, status, reasons)
    }

    /// The state of the page.
    fn parts(&self) -> Vec<Part> {
        let Facts {
            registry,
            readiness,
            events,
            origins,
        } = &self.facts;
        let uptime = self.begun.elapsed();
        let snapshot = Snapshot::take(registry, readiness.status(), origins(), uptime);
        let (revision, events) = events.since_an_hour(now_ms());
        vec![
            Part {
                name: "state",
                revision: uptime.as_micros().try_into().unwrap_or(u64::MAX),
                json: snapshot.to_json().into(),
            },
            Part {
                name: "events",
                revision,
                json: serde_json::to_vec(&events)
                    .expect("texts and numbers")
                    .into(),
            },
        ]
    }
}

/// Everything that the thread needs, again after its part has died.
struct Serving {
    socket: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    guard: Arc<Guard>,
    shown: Shown,
    interval: Duration,
}

impl Serving {
    fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self {
            socket: self.socket.try_clone()?,
            tls: self.tls.clone(),
            guard: Arc::clone(&self.guard),
            shown: self.shown.clone(),
            interval: self.interval,
        })
    }
}

async fn answer(serving: std::io::Result<Serving>) {
    let opened = serving.and_then(|serving| {
        let socket = serving.socket.try_clone()?;
        Ok((tokio::net::TcpListener::from_std(socket)?, serving))
    });
    let (socket, serving) = match opened {
        Ok(opened) => opened,
        Err(error) => return tracing::error!(%error, "cannot serve metrics"),
    };
    let Serving {
        tls,
        guard,
        shown,
        interval,
        ..
    } = serving;
    let lines = rate::log(shown.facts.registry.clone(), interval);
    let feeding = shown.clone();
    let feeding = feeding.feed.run(|| feeding.parts());
    let routes = TowerToHyperService::new(routes(shown));
    let page = move |request: Request<Incoming>, ends: Ends| {
        let refusal = guard.refuse(&request, ends.client, Instant::now());
        let page = refusal.is_none().then(|| routes.call(request));
        async move {
            match page {
                Some(page) => page.await.unwrap_or_else(|never| match never {}),
                None => refusal.expect("without a page there is a refusal"),
            }
        }
    };
    let pages = listener::serve_with(socket, Crowd::new(LIMITS), tls, page, pending());
    tokio::select! {
        () = lines => {}
        () = feeding => {}
        () = pages => {}
    }
}

fn routes(shown: Shown) -> Router {
    let part = |content_type, text: &'static str| {
        get(move || async move { page::answer(StatusCode::OK, content_type, text) })
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/", part(page::HTML, include_str!("admin/index.html")))
        .route("/icon.svg", part(page::SVG, page::ICON))
        .route("/page.css", part(page::CSS, page::STYLE))
        .route("/page.js", part(page::JS, page::SCRIPT))
        .route(
            "/operator.js",
            part(page::JS, include_str!("admin/operator.js")),
        )
        .route("/updates", get(updates))
        .with_state(shown)
}

async fn updates(State(shown): State<Shown>) -> Response {
    shown.feed.open()
}

async fn metrics(State(shown): State<Shown>) -> Response {
    shown.ready.set(i64::from(shown.readiness().0));
    let encoder = TextEncoder::new();
    match encoder.encode_to_string(&shown.facts.registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn healthz(State(shown): State<Shown>) -> (StatusCode, &'static str) {
    match shown.facts.readiness.is_dead() {
        true => (StatusCode::SERVICE_UNAVAILABLE, "an essential part died\n"),
        false => (StatusCode::OK, "ok\n"),
    }
}

async fn readyz(State(shown): State<Shown>) -> Response {
    let (is_ready, status, reasons) = shown.readiness();
    let code = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json!({ "ready": is_ready, "reasons": reasons, "status": status });
    (
        code,
        [(header::CONTENT_TYPE, "application/json")],
        format!("{body}\n"),
    )
        .into_response()
}

/// Concurrent connections.
pub const CONNECTIONS_MAX: usize = 64;
const LIMITS: Limits = Limits {
    connections_max: CONNECTIONS_MAX,
    head_timeout: Duration::from_secs(10),
    stall_timeout: Duration::from_secs(10),
    life: Some(Duration::from_secs(60)),
};

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn request(address: SocketAddr, line: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        converse(&mut stream, line, "")
    }

    fn converse(stream: &mut (impl Read + Write), line: &str, headers: &str) -> String {
        write!(
            stream,
            "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn started() -> (Listener, Readiness) {
        started_with(true)
    }

    fn started_with(ready_when_degraded: bool) -> (Listener, Readiness) {
        let config = Config {
            ready_when_degraded,
            ..config()
        };
        let readiness = Readiness::new();
        (serve_at(&config, readiness.clone()).unwrap(), readiness)
    }

    fn config() -> Config {
        Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            ..Config::default()
        }
    }

    fn serve_at(config: &Config, readiness: Readiness) -> Result<Listener, Error> {
        let registry = crate::telemetry::registry().unwrap();
        let supervisor = Supervisor::new(&registry, readiness.clone()).unwrap();
        serve(config, Facts::new(registry, readiness), &supervisor)
    }

    /// Reads from a stream until its text contains `until`, and returns all of it.
    fn read_until(stream: &mut impl Read, until: &str) -> String {
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        while !text.contains(until) {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "it ended before {until}: {text}");
            text += &String::from_utf8_lossy(&buffer[..read]);
        }
        text
    }

    fn updates(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        write!(stream, "GET /updates HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream
    }

    #[test]
    fn the_page_and_its_parts_come_from_here_only() {
        let (listener, _readiness) = started();
        for (path, content_type) in [
            ("/", "text/html"),
            ("/page.css", "text/css"),
            ("/page.js", "text/javascript"),
            ("/operator.js", "text/javascript"),
        ] {
            let answer = request(listener.address(), &format!("GET {path}")).to_lowercase();
            assert!(answer.starts_with("http/1.1 200"), "{answer}");
            for header in [
                &format!("content-type: {content_type}; charset=utf-8")[..],
                "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
                "x-content-type-options: nosniff",
                "referrer-policy: no-referrer",
                "cache-control: no-store",
            ] {
                assert!(answer.contains(header), "{path}: {header}");
            }
        }
        let html = include_str!("admin/index.html");
        for forbidden in ["http:", "https:", "style=", "<style", "onclick"] {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
        for script in [include_str!("admin/operator.js"), page::SCRIPT] {
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacent",
                "document.write",
                "eval",
            ] {
                assert!(!script.contains(forbidden), "{forbidden}");
            }
        }
    }

    #[test]
    fn updates_follow_changes() {
        let (listener, readiness) = started();
        let mut stream = updates(listener.address());
        let first = read_until(&mut stream, "event: events");
        assert!(first.contains("retry: 1000\n\n"), "{first}");
        assert!(
            first
                .to_lowercase()
                .contains("content-type: text/event-stream")
        );
        assert!(
            first.contains(r#""part":"server","reason":"starting","advice":"wait"#),
            "{first}"
        );
        readiness.ready("server");
        read_until(&mut stream, r#""status":"ready","attention":[]"#);
    }

    #[test]
    fn scrapers_find_a_place_beside_all_open_pages() {
        let (listener, _readiness) = started();
        let address = listener.address();
        let pages: Vec<_> = (0..crate::feed::READERS_MAX)
            .map(|_| {
                let mut stream = updates(address);
                read_until(&mut stream, "event: state");
                stream
            })
            .collect();
        let refused = request(address, "GET /updates");
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        assert!(request(address, "GET /metrics").starts_with("HTTP/1.1 200"));
        drop(pages);
        let begun = Instant::now();
        loop {
            let mut stream = updates(address);
            if read_until(&mut stream, "\r\n\r\n").starts_with("HTTP/1.1 200") {
                break;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "places are freed"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn foreign_hosts_are_refused() {
        let (listener, _readiness) = started();
        for path in ["/", "/updates", "/metrics"] {
            let mut stream = TcpStream::connect(listener.address()).unwrap();
            write!(
                stream,
                "GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
            )
            .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
            assert!(answer.contains("telemetry.hosts"), "{answer}");
        }
    }

    /// A certificate for `localhost` and its key, in files.
    fn pair(folder: &std::path::Path) -> (Config, rustls::pki_types::CertificateDer<'static>) {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let [certificate, key, credential] =
            ["cert.pem", "key.pem", "credential"].map(|name| folder.join(name));
        std::fs::write(&certificate, pair.cert.pem()).unwrap();
        std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
        std::fs::write(&credential, "me:pw\n").unwrap();
        let config = Config {
            certificate: Some(certificate),
            key: Some(key),
            credential: Some(credential),
            ..config()
        };
        (config, pair.cert.der().clone())
    }

    fn request_by_tls(
        address: SocketAddr,
        authority: &rustls::pki_types::CertificateDer<'static>,
        line: &str,
        headers: &str,
    ) -> std::io::Result<String> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
        let mut socket = TcpStream::connect(address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        client.complete_io(&mut socket)?;
        let mut stream = rustls::Stream::new(&mut client, &mut socket);
        Ok(converse(&mut stream, line, headers))
    }

    #[test]
    fn with_a_certificate_the_listener_speaks_tls_only() {
        let folder = tempfile::tempdir().unwrap();
        let (config, certificate) = pair(folder.path());
        let listener = serve_at(&config, Readiness::new()).unwrap();
        let address = listener.address();
        assert_eq!(listener.url(), format!("https://{address}"));
        let get = |certificate, path: &str, headers: &str| {
            request_by_tls(address, certificate, &format!("GET {path}"), headers)
        };
        // `me:pw` in base64.
        let credential = "Authorization: Basic bWU6cHc=\r\n";
        let metrics = get(&certificate, "/metrics", "").unwrap();
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        let page = get(&certificate, "/", "").unwrap();
        assert!(page.starts_with("HTTP/1.1 401"), "{page}");
        let page = get(&certificate, "/", credential).unwrap();
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        let mut plain = TcpStream::connect(address).unwrap();
        plain
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut answer = Vec::new();
        let _ = plain.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");

        // A renewed certificate and another password, and then unusable ones.
        let (_, renewed) = pair(folder.path());
        std::fs::write(config.credential.as_ref().unwrap(), "me:other").unwrap();
        listener.reload().unwrap();
        assert!(get(&certificate, "/metrics", "").is_err());
        let page = get(&renewed, "/", credential).unwrap();
        assert!(page.starts_with("HTTP/1.1 401"), "{page}");
        std::fs::write(config.key.as_ref().unwrap(), "no key").unwrap();
        assert!(listener.reload().is_err());
        assert!(get(&renewed, "/healthz", "").is_ok());
    }

    #[test]
    fn unusable_files_stop_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let (config, _) = pair(folder.path());
        assert!(check(&config).is_ok());
        let gone = || Some(folder.path().join("gone"));
        for config in [
            Config {
                key: gone(),
                ..config.clone()
            },
            Config {
                credential: gone(),
                ..config.clone()
            },
            Config {
                hosts: vec!["a b".into()],
                ..config
            },
        ] {
            assert!(check(&config).is_err());
            assert!(serve_at(&config, Readiness::new()).is_err());
        }
    }

    /// Half-done handshakes are like half-sent requests.
    #[test]
    fn handshakes_keep_no_scraper_out() {
        let folder = tempfile::tempdir().unwrap();
        let (config, certificate) = pair(folder.path());
        let listener = serve_at(&config, Readiness::new()).unwrap();
        let silent: Vec<TcpStream> = (0..CONNECTIONS_MAX + 8)
            .map(|_| TcpStream::connect(listener.address()).unwrap())
            .collect();
        let answer = request_by_tls(listener.address(), &certificate, "GET /healthz", "").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop(silent);
    }

    #[test]
    fn a_dead_part_is_shown_on_both_pages() {
        let (listener, readiness) = started();
        readiness.ready("server");
        assert!(request(listener.address(), "GET /healthz").starts_with("HTTP/1.1 200"));
        readiness.dead("encoder", "it panicked");
        assert!(request(listener.address(), "GET /healthz").starts_with("HTTP/1.1 503"));
        let unready = request(listener.address(), "GET /readyz");
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(
            unready.contains(r#"{"part":"encoder","reason":"it panicked"}"#),
            "{unready}"
        );
    }

    #[test]
    fn the_pages_answer() {
        let (listener, readiness) = started();
        let address = listener.address();
        assert!(request(address, "GET /healthz").starts_with("HTTP/1.1 200"));
        let metrics = request(address, "GET /metrics");
        assert!(metrics.contains("text/plain; version=0.0.4"), "{metrics}");
        assert!(
            metrics.contains("ncserverd_build_info{version="),
            "{metrics}"
        );
        let unready = request(address, "GET /readyz");
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(
            unready.contains(concat!(
                r#"{"ready":false,"reasons":[{"part":"server","reason":"starting"}],"#,
                r#""status":"not-ready"}"#
            )),
            "{unready}"
        );
        assert!(metrics.contains("ncserverd_telemetry_ready 0"), "{metrics}");
        readiness.ready("server");
        assert!(request(address, "GET /metrics").contains("ncserverd_telemetry_ready 1"));
        assert!(request(address, "GET /readyz").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn what_is_degraded_is_ready_unless_configured_otherwise() {
        for (ready_when_degraded, code, gauge) in [(true, 200, 1), (false, 503, 0)] {
            let (listener, readiness) = started_with(ready_when_degraded);
            readiness.ready("server");
            readiness.degraded("device", "lost");
            let page = request(listener.address(), "GET /readyz");
            assert!(page.starts_with(&format!("HTTP/1.1 {code}")), "{page}");
            let body = r#""reasons":[{"part":"device","reason":"lost"}],"status":"degraded"}"#;
            assert!(
                page.contains(&format!("{{\"ready\":{ready_when_degraded},{body}")),
                "{page}"
            );
            let metrics = request(listener.address(), "GET /metrics");
            assert!(
                metrics.contains(&format!("ncserverd_telemetry_ready {gauge}")),
                "{metrics}"
            );
        }
    }

    #[test]
    fn half_sent_requests_keep_no_scraper_out() {
        let (listener, _readiness) = started();
        let halves: Vec<TcpStream> = (0..CONNECTIONS_MAX + 8)
            .map(|_| {
                let mut half = TcpStream::connect(listener.address()).unwrap();
                write!(half, "GET /metrics HTTP/1.1\r\nHost").unwrap();
                half
            })
            .collect();
        assert!(request(listener.address(), "GET /healthz").starts_with("HTTP/1.1 200"));
        drop(halves);
    }

    #[test]
    fn other_methods_and_paths_are_refused() {
        let (listener, _readiness) = started();
        assert!(request(listener.address(), "POST /metrics").starts_with("HTTP/1.1 405"));
        assert!(request(listener.address(), "DELETE /readyz").starts_with("HTTP/1.1 405"));
        assert!(request(listener.address(), "GET /none").starts_with("HTTP/1.1 404"));
        assert!(request(listener.address(), "POST /updates").starts_with("HTTP/1.1 405"));
    }

    #[test]
    fn dropping_the_listener_frees_its_address() {
        let (listener, _readiness) = started();
        let address = listener.address();
        drop(listener);
        assert!(TcpListener::bind(address).is_ok());
    }

    #[test]
    fn an_address_in_use_is_named() {
        let (listener, readiness) = started();
        let config = Config {
            listen: listener.address(),
            ..Config::default()
        };
        let error = serve_at(&config, readiness).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!(
                "cannot listen on {} for metrics",
                listener.address()
            )),
            "{error}"
        );
    }
}
