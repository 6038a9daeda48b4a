//! Chromium under control of a test, by its protocol for developers.
//!
//! It talks over two named pipes: JSON messages that end with a zero byte.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::Process;

/// Options without which it does not run headless in a container, or makes requests of its own.
pub const OPTIONS: [&str; 8] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// Far longer than an answer takes, also while Chromium starts on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether there is Chromium.
///
/// # Panics
/// There is none, and `NCTEST_REQUIRE_ALL` is set.
pub fn is_there() -> bool {
    let version = Command::new("chromium")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let is_there = version.is_ok_and(|status| status.success());
    if !is_there {
        assert!(
            std::env::var_os("NCTEST_REQUIRE_ALL").is_none(),
            "this test needs Chromium"
        );
        println!("skipped: there is no Chromium");
    }
    is_there
}

/// A browser with one page.
pub struct Chromium {
    _process: Process,
    orders: File,
    messages: Receiver<Value>,
    session: String,
    number: u64,
    /// Messages that answer no call, such as lines of the console.
    pub events: Vec<Value>,
}

impl Chromium {
    /// Starts it with its profile and pipes in this folder, and an empty page.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(folder: &Path) -> Self {
        let [orders, answers] = ["orders", "answers"].map(|name| folder.join(name));
        let made = Command::new("mkfifo").args([&orders, &answers]).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
        let mut command = Command::new("sh");
        // It reads from descriptor 3 and writes to descriptor 4.
        command.args(["-c", "exec chromium \"$@\" 3<\"$0\" 4>\"$PIPE\""]);
        command.arg(&orders).env("PIPE", &answers).args(OPTIONS);
        command
            .arg("--remote-debugging-pipe")
            .arg(format!(
                "--user-data-dir={}",
                folder.join("profile").display()
            ))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = Process::start(&mut command);
        let orders = OpenOptions::new().write(true).open(orders).unwrap();
        let mut answers = BufReader::new(File::open(answers).unwrap());
        let (said, messages) = channel();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            while answers.read_until(0, &mut text).is_ok_and(|read| read > 0) {
                text.pop();
                let _ = said.send(serde_json::from_slice(&text).unwrap_or_default());
                text.clear();
            }
        });
        let mut chromium = Self {
            _process: process,
            orders,
            messages,
            session: String::new(),
            number: 0,
            events: Vec::new(),
        };
        let target = chromium.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = chromium.call("Target.attachToTarget", attach);
        chromium.session = session["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Audits"] {
            chromium.call(&format!("{domain}.enable"), json!({}));
        }
        chromium
    }

    /// Calls a method of the page, and returns its result.
    ///
    /// # Panics
    /// It fails.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let number = self.number;
        let mut order = json!({"id": number, "method": method, "params": parameters});
        if !self.session.is_empty() {
            order["sessionId"] = self.session.clone().into();
        }
        self.orders
            .write_all(format!("{order}\0").as_bytes())
            .expect("Chromium reads");
        let end = Instant::now() + PATIENCE;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(rest) {
                Ok(answer) if answer["id"] == number => {
                    assert!(answer.get("error").is_none(), "{method}: {answer}");
                    return answer["result"].clone();
                }
                Ok(event) => self.events.push(event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("no answer to {method}")
                }
            }
        }
    }

    /// The value of an expression in the page; of a promise, that of its result.
    ///
    /// # Panics
    /// It throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({
            "expression": expression,
            "returnByValue": true,
            "awaitPromise": true,
        });
        let answer = self.call("Runtime.evaluate", parameters);
        let thrown = answer.get("exceptionDetails");
        assert!(thrown.is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// It stays false.
    pub fn wait_for(&mut self, expression: &str) {
        let end = Instant::now() + PATIENCE;
        while self.value(expression) != true {
            let text = self.value("document.body.innerText");
            assert!(Instant::now() < end, "not {expression}: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the page has complained of so far: errors and warnings in the console, exceptions, and
    /// whatever a content security policy has kept out.
    pub fn complaints(&mut self) -> Vec<Value> {
        // So that all events before it have come.
        self.value("0");
        let is_complaint = |event: &&Value| {
            let parameters = &event["params"];
            match event["method"].as_str() {
                Some("Runtime.exceptionThrown" | "Audits.issueAdded") => true,
                Some("Runtime.consoleAPICalled") => parameters["type"] != "log",
                Some("Log.entryAdded") => parameters["entry"]["level"] != "info",
                _ => false,
            }
        };
        self.events.iter().filter(is_complaint).cloned().collect()
    }
}
