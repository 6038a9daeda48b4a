//! The server: its configuration and certificate, which change while it runs, its log, and its metrics.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ncserverd::tls::Fingerprint;

use crate::http::get;
use crate::metrics::Exposition;
use crate::process::Process;
use crate::watched::Usage;

/// How long open requests may take to finish at the end.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);
/// What exiting may take besides.
const EXIT: Duration = Duration::from_secs(5);
/// How long the log may take to say something, and a peer to connect.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server, until it is dropped.
pub(crate) struct Server {
    process: Process,
    files: Files,
    log: Receiver<String>,
    has_panicked: Arc<AtomicBool>,
    metrics: SocketAddr,
    address: String,
    fingerprint: Fingerprint,
}

/// What it reads.
struct Files {
    directory: PathBuf,
    /// What of the configuration stays as it is.
    fixed: String,
}

impl Server {
    /// Of the stream `live` from this origin, with its files in this directory.
    pub(crate) fn start(directory: &Path, origin: &str, connections_max: u64, batch_blocks_max: u32) -> Self {
        let place = |name: &str| directory.join(name).display().to_string();
        let fixed = format!(
            "[server]\ndrain_timeout = \"{}s\"\n[endpoint]\nlisten = [\"127.0.0.1:0\"]\nconnections_max = {connections_max}\n\
             [telemetry]\nlisten = \"127.0.0.1:0\"\n[tls]\ncert = \"{}\"\nkey = \"{}\"\n\
             [stream.live]\norigin = \"{origin}\"\nretention = \"20s\"\n",
            DRAIN.as_secs(),
            place("cert.pem"),
            place("key.pem"),
        );
        let files = Files { directory: directory.to_owned(), fixed };
        files.configure(batch_blocks_max);
        let fingerprint = files.certify();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ncserverd"));
        command.arg("--config").arg(files.configuration()).arg("serve").env_clear();
        let mut process = Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
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
        let mut server = Self { process, files, log, has_panicked, metrics: nowhere, address: String::new(), fingerprint };
        let line = server.said("/metrics").expect("the server starts");
        server.metrics = between(&line, "http://", "/metrics").and_then(|text| text.parse().ok()).expect("an address");
        let line = server.said("peers connect with").expect("the server starts");
        server.address = between(&line, "ncs://", " ").expect("an address").to_owned();
        server
    }

    /// What peers connect to, with the certificate that is shown now.
    pub(crate) fn url(&self) -> String {
        format!("ncs://{}#{}", self.address, self.fingerprint)
    }

    pub(crate) fn usage(&self) -> Option<Usage> {
        self.process.usage()
    }

    pub(crate) fn metrics(&self) -> Result<Exposition, String> {
        let page = get(self.metrics, "/metrics").map_err(|error| format!("the server's metrics: {error}"))?;
        Exposition::parse(&String::from_utf8_lossy(&page))
    }

    /// Whether something in it has panicked, and drops what it has said so far.
    pub(crate) fn has_panicked(&self) -> bool {
        self.log.try_iter().for_each(drop);
        self.has_panicked.load(Ordering::Relaxed)
    }

    /// Has it take batches of at most so many blocks.
    pub(crate) fn set_batch(&self, blocks_max: u32) -> Result<(), String> {
        self.files.configure(blocks_max);
        self.process.signal("HUP");
        let line = self.said("`encoder.batch_blocks_max`")?;
        let is_taken = line.contains(&format!("to {blocks_max}: takes effect now"));
        if is_taken { Ok(()) } else { Err(format!("the server says of its batches: {line}")) }
    }

    /// Gives it another certificate. Newcomers are to see that one, and not the one before.
    pub(crate) fn replace_certificate(&mut self) -> Result<(), String> {
        let before = self.url();
        self.fingerprint = self.files.certify();
        self.process.signal("HUP");
        self.said(&format!("certificate fingerprint {}", self.fingerprint))?;
        ask(&self.url()).map_err(|reason| format!("a newcomer who expects the new certificate: {reason}"))?;
        match ask(&before) {
            Err(reason) if reason.contains("certificate") => Ok(()),
            other => Err(format!("a newcomer who expects the old certificate: {other:?}")),
        }
    }

    pub(crate) fn terminate(&self) {
        self.process.signal("TERM");
    }

    /// How it ended, unless it takes too long after SIGTERM.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        self.process.wait(DRAIN + EXIT)
    }

    /// The next line of the log with this text in it.
    fn said(&self, text: &str) -> Result<String, String> {
        let until = Instant::now() + PATIENCE;
        let mut last = String::new();
        while let Ok(line) = self.log.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if line.contains(text) {
                return Ok(line);
            }
            last = line;
        }
        Err(format!("the server does not say `{text}`; its last line was `{last}`"))
    }
}

impl Files {
    fn configuration(&self) -> PathBuf {
        self.directory.join("ncserverd.toml")
    }

    fn configure(&self, batch_blocks_max: u32) {
        let text = format!("{}[encoder]\nbatch_blocks_max = {batch_blocks_max}\n", self.fixed);
        fs::write(self.configuration(), text).expect("a configuration");
    }

    /// Makes a certificate and its key in the configured files.
    fn certify(&self) -> Fingerprint {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let pair = rcgen::generate_simple_self_signed(names).expect("names that a certificate may have");
        fs::write(self.directory.join("cert.pem"), pair.cert.pem()).expect("a certificate");
        fs::write(self.directory.join("key.pem"), pair.signing_key.serialize_pem()).expect("a key");
        Fingerprint::of(pair.cert.der())
    }
}

/// Whether a newcomer gets an answer, or what it says instead.
fn ask(url: &str) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ncpeer"));
    let mut peer = Process::start(command.args(["info", url]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
    let status = peer.wait(PATIENCE).ok_or("no answer")?;
    let said = BufReader::new(peer.errors()).lines().map_while(Result::ok).collect::<Vec<_>>().join("\n");
    if status.success() { Ok(()) } else { Err(said) }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after)?.0)
}
