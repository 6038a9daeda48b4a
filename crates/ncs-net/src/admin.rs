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

use std::future::pending;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::FutureExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use prometheus::{IntGauge, Registry, TextEncoder};
use serde_json::json;
use tokio::runtime;
use tokio::sync::oneshot;

use crate::listener::{self, Crowd, Limits};
use crate::supervise::{ServerPart, Supervisor};
use crate::telemetry::{Config, Error, Readiness, Reason, Status, rate, register};

/// The running listener. Dropping it ends its thread.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
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

/// Listens, and starts the thread that answers and logs the encoder's rate.
pub fn serve(
    config: &Config,
    registry: Registry,
    readiness: Readiness,
    supervisor: &Supervisor,
) -> Result<Listener, Error> {
    let listen = |source| Error::Listen {
        address: config.listen,
        source,
    };
    let socket = std::net::TcpListener::bind(config.listen).map_err(listen)?;
    socket.set_nonblocking(true).map_err(listen)?;
    let address = socket.local_addr().map_err(listen)?;
    let help = "1 while /readyz reports ready, otherwise 0. /readyz gives the reasons.";
    let ready = register::gauge(&registry, "ncserverd_telemetry_ready", help)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Thread)?;
    let (stop, stopped) = oneshot::channel();
    let shown = Shown {
        registry,
        readiness,
        ready,
        ready_when_degraded: config.ready_when_degraded,
    };
    let interval = config.rate_interval;
    let answering = supervisor.clone().revived(ServerPart::Telemetry, move || {
        answer(socket.try_clone(), shown.clone(), interval)
    });
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
        stop: Some(stop),
        thread: Some(thread),
    })
}

#[derive(Clone)]
struct Shown {
    registry: Registry,
    readiness: Readiness,
    ready: IntGauge,
    ready_when_degraded: bool,
}

impl Shown {
    fn readiness(&self) -> (bool, Status, Vec<Reason>) {
        let (status, reasons) = self.readiness.status();
        let is_ready = match status {
            Status::Ready => true,
            Status::Degraded => self.ready_when_degraded,
            Status::NotReady => false,
        };
        (is_ready, status, reasons)
    }
}

async fn answer(socket: std::io::Result<std::net::TcpListener>, shown: Shown, interval: Duration) {
    let socket = match socket.and_then(tokio::net::TcpListener::from_std) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!(%error, "cannot serve metrics"),
    };
    let lines = rate::log(shown.registry.clone(), interval);
    let routes = TowerToHyperService::new(routes(shown));
    let page = move |request, _| {
        routes
            .call(request)
            .map(|page| page.unwrap_or_else(|never| match never {}))
    };
    let pages = listener::serve(socket, Crowd::new(LIMITS), page, pending());
    tokio::select! {
        () = lines => {}
        () = pages => {}
    }
}

fn routes(shown: Shown) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(shown)
}

async fn metrics(State(shown): State<Shown>) -> Response {
    shown.ready.set(i64::from(shown.readiness().0));
    let encoder = TextEncoder::new();
    match encoder.encode_to_string(&shown.registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn healthz(State(shown): State<Shown>) -> (StatusCode, &'static str) {
    match shown.readiness.is_dead() {
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
        write!(
            stream,
            "{line} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
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
            listen: "127.0.0.1:0".parse().unwrap(),
            ready_when_degraded,
            ..Config::default()
        };
        let readiness = Readiness::new();
        (serve_at(&config, readiness.clone()).unwrap(), readiness)
    }

    fn serve_at(config: &Config, readiness: Readiness) -> Result<Listener, Error> {
        let registry = crate::telemetry::registry().unwrap();
        let supervisor = Supervisor::new(&registry, readiness.clone()).unwrap();
        serve(config, registry, readiness, &supervisor)
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
        assert!(request(listener.address(), "GET /").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn dropping_the_listener_frees_its_address() {
        let (listener, _readiness) = started();
        let address = listener.address();
        drop(listener);
        assert!(std::net::TcpListener::bind(address).is_ok());
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
