//! A program of the package that runs beside a test: its log and its metrics.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Far longer than anything takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A program that runs until this is dropped.
pub(crate) struct Program {
    process: Child,
    log: Receiver<String>,
}

impl Program {
    /// Starts it without input, and with its log available.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = command.stderr(Stdio::piped()).stdin(Stdio::null()).spawn().expect("the program starts");
        let lines = BufReader::new(process.stderr.take().expect("as asked for")).lines();
        let (said, log) = channel();
        // The log is read to its end, so that the program never blocks on it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(said.send(line))));
        Self { process, log }
    }

    /// For the next line of the log with the first text: what follows each text, up to a blank or a
    /// quotation mark.
    pub(crate) fn says<const N: usize>(&self, texts: [&str; N]) -> [String; N] {
        let (mut seen, end) = (String::new(), Instant::now() + PATIENCE);
        while let Ok(line) = self.log.recv_timeout(end.saturating_duration_since(Instant::now())) {
            if line.contains(texts[0]) {
                return texts.map(|text| {
                    let (_, rest) = line.split_once(text).unwrap_or_else(|| panic!("no `{text}` in {line}"));
                    rest.split([' ', '"']).next().unwrap_or_default().to_owned()
                });
            }
            seen = seen + &line + "\n";
        }
        panic!("the log has no line with `{}`:\n{seen}", texts[0]);
    }

    /// Its output that has not been read yet.
    pub(crate) fn said(&self) -> String {
        self.log.try_iter().collect::<Vec<_>>().join("\n")
    }

    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its exit status, if it has ended.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("it is a child of this process")
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.id().to_string()]).status().expect("kill runs");
        assert!(status.success(), "kill -s {name}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The sum of a series over its labels, from the metrics listener at this address; `None` if there
/// is no such series.
pub(crate) fn metric(at: SocketAddr, name: &str) -> Option<f64> {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let is_meant = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
    let values = answer.lines().filter(is_meant).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.reduce(|sum, value| sum + value)
}
