//! A running program, on ports that the system chooses.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::program::program;

/// The program, killed when the test ends.
pub(crate) struct Server {
    process: Child,
    metrics: SocketAddr,
    log: Receiver<String>,
    /// Lines that were skipped or returned.
    heard: RefCell<String>,
    _state: TempDir,
}

const SERVE: [&str; 7] = [
    "serve",
    "--listen",
    "127.0.0.1:0",
    "--metrics",
    "127.0.0.1:0",
    "--set",
    "telemetry.log_format=json",
];
/// Far longer than anything takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// `ncserverd` with these arguments, an otherwise empty environment, and its state in `state`.
pub(crate) fn command(state: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("ncserverd"));
    command
        .args(arguments)
        .env_clear()
        .env("STATE_DIRECTORY", state.path());
    command
}

impl Server {
    /// Starts it with these arguments, and waits for the address of its metrics.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// The same with these environment variables.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let state = TempDir::new().unwrap();
        let mut command = command(&state, &[&SERVE, arguments].concat());
        command.envs(variables.iter().copied());
        Self::start_as(command, state)
    }

    /// The same as a child of the program `parent`, which gets its name and arguments at the end.
    pub(crate) fn start_under(parent: &[&str], arguments: &[&str]) -> Self {
        let state = TempDir::new().unwrap();
        let mut command = Command::new(parent[0]);
        command
            .args(&parent[1..])
            .arg(program("ncserverd"))
            .args(SERVE)
            .args(arguments);
        command
            .env_clear()
            .env("STATE_DIRECTORY", state.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Self::start_as(command, state)
    }

    fn start_as(mut command: Command, state: TempDir) -> Self {
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (said, log) = channel();
        // The log is read to its end, so that the server never blocks on it.
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| drop(said.send(line)))
        });
        let mut server = Self {
            process,
            metrics: SocketAddr::from(([127, 0, 0, 1], 0)),
            log,
            heard: RefCell::default(),
            _state: state,
        };
        let line = server.wait_for("/metrics");
        let address = line
            .split_once("metrics on http")
            .and_then(|(_, rest)| rest.split_once("://"))
            .and_then(|(_, rest)| rest.split_once("/metrics"));
        server.metrics = address.expect("the line has a URL").0.parse().unwrap();
        server
    }

    /// The next line of the log that contains this text.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let mut seen = String::new();
        let end = Instant::now() + PATIENCE;
        while let Ok(line) = self
            .log
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            *self.heard.borrow_mut() += &(line.clone() + "\n");
            if line.contains(text) {
                return line;
            }
            seen = seen + &line + "\n";
        }
        panic!("the log has no line with `{text}`:\n{seen}");
    }

    /// The server's `ncs://` URL and its fingerprint, for peers.
    pub(crate) fn peers_connect_with(&self) -> (String, String) {
        let line = self.wait_for("peers connect with: ");
        let word = |after: &str| {
            let (_, rest) = line.split_once(after).expect("the line has it");
            rest.split(' ').next().unwrap_or_default().to_owned()
        };
        (word("gateway "), word("--fingerprint "))
    }

    /// Every line of the log so far.
    pub(crate) fn heard(&self) -> String {
        self.heard.borrow().clone() + &self.log.try_iter().collect::<Vec<_>>().join("\n")
    }

    /// Status and body of a page.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.get_by(path, "localhost")
    }

    /// The same with this Host.
    pub(crate) fn get_by(&self, path: &str, host: &str) -> (u16, String) {
        let mut stream = self.connect();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_owned(),
        )
    }

    /// A connection to the listener.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.metrics).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Waits until the page has this status.
    pub(crate) fn wait_for_status(&self, path: &str, status: u16) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let (now, body) = self.get(path);
            if now == status {
                return body;
            }
            assert!(
                Instant::now() < end,
                "{path} answers {now}, not {status}: {body}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The address of the metrics listener.
    pub(crate) fn metrics(&self) -> SocketAddr {
        self.metrics
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.process.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success(), "kill -s {name}");
    }

    /// Waits for the end of the program.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the server does not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
