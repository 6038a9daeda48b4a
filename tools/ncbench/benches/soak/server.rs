//! The server: its configuration and certificate, which change while it runs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use ncserverd::tls::Fingerprint;

use crate::watched::{self, Usage};
use nctest::daemon::{Daemon, certify};
use nctest::exposition::Exposition;
use nctest::process::Process;
use nctest::program::beside as program;

/// How long open requests may take to finish at the end.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);
/// What exiting may take besides.
const EXIT: Duration = Duration::from_secs(5);
/// How long a peer may take to connect.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server, until it is dropped.
pub(crate) struct Server {
    daemon: Daemon,
    files: Files,
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
    pub(crate) fn start(
        directory: &Path,
        origin: &str,
        connections_max: u64,
        batch_blocks_max: u32,
    ) -> Self {
        let place = |name: &str| directory.join(name).display().to_string();
        let fixed = format!(
            "[server]\ndrain_timeout = \"{}s\"\n[endpoint]\nlisten = [\"127.0.0.1:0\"]\n\
             connections_max = {connections_max}\n\
             [telemetry]\nlisten = \"127.0.0.1:0\"\n[tls]\ncert = \"{}\"\nkey = \"{}\"\n\
             directory = \"{}\"\n[stream.live]\norigin = \"{origin}\"\nretention = \"20s\"\n",
            DRAIN.as_secs(),
            place("cert.pem"),
            place("key.pem"),
            place("state"),
        );
        let files = Files {
            directory: directory.to_owned(),
            fixed,
        };
        files.configure(batch_blocks_max);
        let fingerprint = certify(&files.directory);
        let mut command = Command::new(program("ncserverd"));
        let daemon = Daemon::start(
            command
                .arg("--config")
                .arg(files.configuration())
                .arg("serve")
                .env_clear(),
        );
        Self {
            daemon,
            files,
            fingerprint,
        }
    }

    /// What peers connect to, with the certificate that is shown now.
    pub(crate) fn url(&self) -> String {
        format!("ncs://{}#{}", self.daemon.address, self.fingerprint)
    }

    pub(crate) fn usage(&self) -> Option<Usage> {
        watched::usage(&self.daemon.process)
    }

    pub(crate) fn metrics(&self) -> Result<Exposition, String> {
        self.daemon.metrics()
    }

    /// Whether something in it has panicked.
    pub(crate) fn has_panicked(&self) -> bool {
        self.daemon.has_panicked()
    }

    /// Has it take batches of at most so many blocks.
    pub(crate) fn set_batch(&self, blocks_max: u32) -> Result<(), String> {
        self.files.configure(blocks_max);
        self.daemon.process.signal("HUP");
        let line = self.daemon.said("`encoder.batch_blocks_max`")?;
        let is_taken = line.contains(&format!("to {blocks_max}: takes effect now"));
        if is_taken {
            Ok(())
        } else {
            Err(format!("the server says of its batches: {line}"))
        }
    }

    /// Gives it another certificate. Newcomers are to see that one, and not the one before.
    pub(crate) fn replace_certificate(&mut self) -> Result<(), String> {
        let before = self.url();
        self.fingerprint = certify(&self.files.directory);
        self.daemon.process.signal("HUP");
        let line = self.daemon.said("the certificate was replaced")?;
        if !line.contains(&self.fingerprint.to_string()) {
            return Err(format!(
                "the server has another certificate than {}: {line}",
                self.fingerprint
            ));
        }
        ask(&self.url())
            .map_err(|reason| format!("a newcomer who expects the new certificate: {reason}"))?;
        match ask(&before) {
            Err(reason) if reason.contains("certificate") => Ok(()),
            other => Err(format!(
                "a newcomer who expects the old certificate: {other:?}"
            )),
        }
    }

    pub(crate) fn terminate(&self) {
        self.daemon.process.signal("TERM");
    }

    /// How it ended, unless it takes too long after SIGTERM.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        self.daemon.process.wait(DRAIN + EXIT)
    }
}

impl Files {
    fn configuration(&self) -> PathBuf {
        self.directory.join("ncserverd.toml")
    }

    fn configure(&self, batch_blocks_max: u32) {
        let text = format!(
            "{}[encoder]\nbatch_blocks_max = {batch_blocks_max}\n",
            self.fixed
        );
        fs::write(self.configuration(), text).expect("a configuration");
    }
}

/// Whether a newcomer gets an answer, or what it says instead.
fn ask(url: &str) -> Result<(), String> {
    let mut command = Command::new(program("ncpeer"));
    let mut peer = Process::start(
        command
            .args(["info", url])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped()),
    );
    let status = peer.wait(PATIENCE).ok_or("no answer")?;
    let said = BufReader::new(peer.errors())
        .lines()
        .map_while(Result::ok)
        .collect::<Vec<_>>()
        .join("\n");
    if status.success() { Ok(()) } else { Err(said) }
}
