//! `ncserverd serve` as a process of its own: its certificate, its log, and its metrics.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ncs_net::tls::Fingerprint;

use crate::exposition::Exposition;
use crate::http::get;
use crate::process::Process;

/// How long the log may take to say something.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server, until it is dropped.
pub struct Daemon {
    /// Its process.
    pub process: Process,
    log: Receiver<String>,
    has_panicked: Arc<AtomicBool>,
    metrics: SocketAddr,
    /// Where peers connect: `host:port`.
    pub address: String,
}

impl Daemon {
    /// A server that this command starts, which has addresses for peers and for metrics.
    pub fn start(command: &mut Command) -> Self {
        let mut process = Process::start(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped()),
        );
        let (said, log) = channel();
        let has_panicked = Arc::new(AtomicBool::new(false));
        // The log is read to its end, so that the server never waits for a reader.
        let (errors, saw_panic) = (BufReader::new(process.errors()), Arc::clone(&has_panicked));
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                saw_panic.fetch_or(line.contains("panicked at"), Ordering::Relaxed);
                let _ = said.send(line);
            }
        });
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut daemon = Self {
            process,
            log,
            has_panicked,
            metrics: nowhere,
            address: String::new(),
        };
        let line = daemon.said("/metrics").expect("the server starts");
        daemon.metrics = between(&line, "http://", "/metrics")
            .and_then(|text| text.parse().ok())
            .expect("an address");
        let line = daemon
            .said("peers connect with")
            .expect("the server starts");
        daemon.address = between(&line, "ncs://", " ")
            .expect("an address")
            .to_owned();
        daemon
    }

    /// Its metrics now.
    ///
    /// # Errors
    /// It does not answer, or with something else than metrics.
    pub fn metrics(&self) -> Result<Exposition, String> {
        let page = get(self.metrics, "/metrics")
            .map_err(|error| format!("the server's metrics: {error}"))?;
        Exposition::parse(&String::from_utf8_lossy(&page))
    }

    /// Whether something in it has panicked, and drops what it has said so far.
    pub fn has_panicked(&self) -> bool {
        self.log.try_iter().for_each(drop);
        self.has_panicked.load(Ordering::Relaxed)
    }

    /// The next line of the log with this text in it.
    pub fn said(&self, text: &str) -> Result<String, String> {
        let until = Instant::now() + PATIENCE;
        let mut last = String::new();
        while let Ok(line) = self
            .log
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            if line.contains(text) {
                return Ok(line);
            }
            last = line;
        }
        Err(format!(
            "the server does not say `{text}`; its last line was `{last}`"
        ))
    }
}

/// Makes a certificate and its key, `cert.pem` and `key.pem` in this directory.
pub fn certify(directory: &Path) -> Fingerprint {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let pair =
        rcgen::generate_simple_self_signed(names).expect("names that a certificate may have");
    fs::write(directory.join("cert.pem"), pair.cert.pem()).expect("a certificate");
    fs::write(directory.join("key.pem"), pair.signing_key.serialize_pem()).expect("a key");
    Fingerprint::of(pair.cert.der())
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after)?.0)
}
