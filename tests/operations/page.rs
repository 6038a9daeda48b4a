//! The page for operators: who may see it, and that it follows what happens.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ncserverd::supervise::advice::{ADVICE, PROCESS_ENDS, RESTARTS, advice};
use serde_json::Value;
use tempfile::TempDir;

use crate::program::program;
use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(60);

/// The event stream of a server's page.
pub(crate) struct Updates {
    stream: TcpStream,
    /// Everything that came.
    pub(crate) text: String,
}

impl Updates {
    pub(crate) fn open(server: &Server) -> Self {
        let mut stream = server.connect();
        write!(stream, "GET /updates HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        Self {
            stream,
            text: String::new(),
        }
    }

    /// Waits until this text has come.
    pub(crate) fn wait_for(&mut self, text: &str) {
        self.wait_until(|seen| seen.contains(text), text);
    }

    fn wait_until(&mut self, is_right: impl Fn(&str) -> bool, what: &str) {
        let end = Instant::now() + PATIENCE;
        let mut buffer = [0; 16 << 10];
        while !is_right(&self.text) {
            assert!(Instant::now() < end, "no {what} in {}", self.text);
            let read = self.stream.read(&mut buffer).unwrap();
            assert!(read > 0, "it ended without {what}: {}", self.text);
            self.text += &String::from_utf8_lossy(&buffer[..read]);
        }
    }

    /// The next state that is right.
    fn state(&mut self, is_right: impl Fn(&Value) -> bool, what: &str) -> Value {
        let last = |text: &str| {
            let (_, state) = text.rsplit_once("event: state\ndata: ")?;
            serde_json::from_str::<Value>(state.split_once("\n\n")?.0).ok()
        };
        self.text.clear();
        self.wait_until(
            |text| last(text).is_some_and(|state| is_right(&state)),
            what,
        );
        last(&self.text).expect("it was there")
    }
}

#[test]
fn the_page_follows_what_happens() {
    let (media, place) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(media.path().join("clip.ts"), vec![7; 300_000]).unwrap();
    let file = place.path().join("test.toml");
    let streams = format!(
        "[stream.media]\ndirectory = {:?}\n[stream.away]\norigin = \"http://127.0.0.1:9/\"\n",
        media.path()
    );
    fs::write(&file, "").unwrap();
    let server = Server::start(&["--config", file.to_str().unwrap()]);
    let (url, fingerprint) = server.peers_connect_with();
    let (status, page) = server.get("/");
    assert_eq!(status, 200);
    assert!(page.contains("<script type=\"module\" src=\"operator.js\">"));

    let mut updates = Updates::open(&server);
    let unready = updates.state(|state| state["status"] == "not-ready", "complaint");
    assert_eq!(unready["attention"][0]["part"], "streams");
    let help = unready["attention"][0]["advice"].as_str().unwrap();
    assert_eq!(help, advice("streams", "no streams"));
    // Everything that the page shows is there from the start.
    for number in [
        "coded_bytes",
        "sent_bytes",
        "viewers",
        "late",
        "repaired",
        "busy",
        "ring_used",
        "ring_capacity",
        "store_used",
        "store_budget",
        "connections_max",
        "memory_bytes",
    ] {
        assert!(unready["numbers"][number].is_number(), "{number}");
    }
    assert!(unready["devices"][0]["labels"]["kernel"].is_string());

    fs::write(&file, streams).unwrap();
    server.signal("HUP");
    updates.state(|state| state["status"] == "ready", "readiness");
    let fetch = |path: &str| {
        let mut peer = Command::new(program("ncpeer"));
        peer.args(["fetch", "-o", "/dev/null", &url, path, "--fingerprint"]);
        peer.arg(&fingerprint).output().unwrap().status.success()
    };
    assert!(fetch("/media/clip.ts"));
    let sent = |state: &Value| {
        let row = state["streams"].as_array().unwrap().iter();
        let row = row.clone().find(|row| row["labels"]["stream"] == "media");
        row.is_some_and(|row| row["numbers"]["sent_bytes"].as_f64().unwrap() >= 300_000.0)
    };
    let state = updates.state(sent, "bytes of the stream");
    assert!(state["numbers"]["coded_bytes"].as_f64().unwrap() > 0.0);

    // An origin that does not answer: its stream says so, and an event is kept.
    assert!(!fetch("/away/a.ts"));
    let fault = |state: &Value| {
        let origins = state["origins"].as_array().unwrap();
        let away = origins.iter().find(|origin| origin["stream"] == "away");
        away.is_some_and(|origin| origin["fault"].is_string())
    };
    updates.state(fault, "fault of the origin");
    let mut updates = Updates::open(&server);
    updates.wait_for("a fetch from an origin failed");
    for milestone in [
        "\"text\":\"started (version: ",
        "\"configuration reloaded\"",
    ] {
        assert!(updates.text.contains(milestone), "{}", updates.text);
    }
    assert!(updates.text.contains("\"level\":\"warning\""));
}

#[test]
fn foreign_hosts_are_refused() {
    let server = Server::start(&["--set", "telemetry.hosts=ops.example"]);
    for path in ["/", "/updates", "/metrics", "/healthz"] {
        let (status, text) = server.get_by(path, "evil.example");
        assert_eq!(status, 421, "{path}");
        assert!(text.contains("telemetry.hosts"), "{text}");
    }
    for host in ["ops.example:9443", "127.0.0.1", "[::1]:9443"] {
        assert_eq!(server.get_by("/", host).0, 200, "{host}");
    }
}

/// The wildcard address is not loopback.
const ELSEWHERE: [&str; 2] = ["--set", "telemetry.listen=0.0.0.0:0"];

#[test]
fn off_loopback_there_is_no_page_without_tls_and_a_credential() {
    let server = Server::start(&ELSEWHERE);
    for path in ["/", "/updates", "/operator.js"] {
        let (status, text) = server.get(path);
        assert_eq!(status, 404, "{path}");
        assert!(text.contains("telemetry.credential"), "{text}");
    }
    for host in ["ncserverd.monitoring.svc:9443", "10.0.0.1"] {
        assert_eq!(server.get_by("/metrics", host).0, 200, "{host}");
        assert_eq!(server.get_by("/healthz", host).0, 200, "{host}");
    }
}

/// A client of TLS that trusts this certificate.
fn trusting(pair: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pair.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(tls)
}

/// The answer to a request with this head, over TLS.
fn ask(tls: &Arc<rustls::ClientConfig>, stream: TcpStream, head: &str) -> String {
    let name = "localhost".try_into().unwrap();
    let client = rustls::ClientConnection::new(Arc::clone(tls), name).unwrap();
    let mut stream = rustls::StreamOwned::new(client, stream);
    write!(stream, "{head}Connection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// The player for viewers off loopback: by TLS, with a certificate that a reload replaces.
#[test]
fn off_loopback_the_player_speaks_tls() {
    let place = TempDir::new().unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    let write_pair = || {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        fs::write(path("cert.pem"), pair.cert.pem()).unwrap();
        fs::write(path("key.pem"), pair.signing_key.serialize_pem()).unwrap();
        pair
    };
    let pair = write_pair();
    let settings = [
        format!("tls.cert={}", path("cert.pem")),
        format!("tls.key={}", path("key.pem")),
        "web.listen=0.0.0.0:0".to_owned(),
        "web.origins=https://localhost:1".to_owned(),
    ];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let server = Server::start(&settings.collect::<Vec<_>>());
    // Said before the address of the metrics, for which the start has waited.
    let said = server.heard();
    let (_, rest) = said
        .split_once("viewers play at https://127.0.0.1:")
        .unwrap_or_else(|| panic!("{said}"));
    let port = rest.split('/').next().unwrap().parse::<u16>().unwrap();
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();

    let head = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n");
    let page = ask(&trusting(&pair), connect(), &head("/"));
    assert!(
        page.starts_with("HTTP/1.1 200 ") && page.contains("player.js"),
        "{page}"
    );
    let facts = ask(&trusting(&pair), connect(), &head("/facts.json"));
    assert!(
        facts.contains("\"hashes\":[]"),
        "an authority is trusted: {facts}"
    );

    // Plain HTTP is no TLS.
    let mut plain = connect();
    write!(plain, "{}\r\n", head("/")).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");

    let next = write_pair();
    server.signal("HUP");
    server.wait_for("configuration reloaded");
    let page = ask(&trusting(&next), connect(), &head("/player.html"));
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
}

#[test]
fn off_loopback_the_page_is_shown_by_tls_to_those_with_the_credential() {
    let place = TempDir::new().unwrap();
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    fs::write(path("cert.pem"), pair.cert.pem()).unwrap();
    fs::write(path("key.pem"), pair.signing_key.serialize_pem()).unwrap();
    fs::write(path("credential"), "me:pw\n").unwrap();
    let set = |key: &str, file: &str| format!("telemetry.{key}={}", path(file));
    let settings = [
        set("certificate", "cert.pem"),
        set("key", "key.pem"),
        set("credential", "credential"),
    ];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let server = Server::start(&ELSEWHERE.into_iter().chain(settings).collect::<Vec<_>>());

    let tls = trusting(&pair);
    let get = |path: &str, host: &str, headers: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}");
        let answer = ask(&tls, server.connect(), &head);
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    // `me:pw` and `me:no`.
    let right = "Authorization: Basic bWU6cHc=\r\n";
    let wrong = "Authorization: Basic bWU6bm8=\r\n";
    assert_eq!(get("/metrics", "ncserverd.svc", ""), 200);
    assert_eq!(get("/", "localhost", ""), 401);
    assert_eq!(get("/", "localhost", wrong), 401);
    assert_eq!(get("/", "localhost", right), 200);
    assert_eq!(get("/", "evil.example", right), 421);

    fs::write(path("credential"), "me:no\n").unwrap();
    server.signal("HUP");
    server.wait_for("configuration reloaded");
    assert_eq!(get("/", "localhost", right), 401, "a reload reads it again");
    assert_eq!(get("/", "localhost", wrong), 200);
    assert!(!server.heard().contains("me:"), "{}", server.heard());
}

/// What the page says is what the document says, and every complaint in the program has advice.
#[test]
fn the_advice_is_documented_and_complete() {
    let document = include_str!("../../docs/operating.md");
    for (part, reason, advice) in ADVICE {
        let beginning = match reason {
            "" => format!("| `{part}` |"),
            reason => format!("| `{part}`: {reason} |"),
        };
        let row = document.lines().find(|line| line.starts_with(&beginning));
        let row = row.unwrap_or_else(|| panic!("docs/operating.md lacks {beginning} {advice} |"));
        assert_eq!(row, format!("{beginning} {advice} |"));
    }
    for advice in [RESTARTS, PROCESS_ENDS] {
        assert!(document.contains(&format!("| {advice} |")), "{advice}");
    }
    let mut parts = Vec::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in [root.join("src"), root.join("crates")] {
        complaints(&folder, &mut parts);
    }
    parts.sort_unstable();
    parts.dedup();
    assert!(parts.len() >= 7, "{parts:?}");
    for part in &parts {
        let known = ADVICE.iter().any(|(known, ..)| known == part);
        assert!(known, "{part} has no advice in supervise/advice.rs");
    }
}

/// The parts that the sources below a folder name when they complain.
fn complaints(folder: &std::path::Path, parts: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            complaints(&path, parts);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for call in ["not_ready(", "degraded(", "heed_room("] {
                let names = code.split(call).skip(1);
                let names = names.filter_map(|rest| rest.trim_start().strip_prefix('"'));
                parts.extend(names.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
            }
        }
    }
}
