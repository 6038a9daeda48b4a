//! Secrets are used but never shown or published.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::page::Updates;
use crate::program::program;
use crate::server::{Server, command};

/// Parts of all secrets here, each of which is configured differently.
const SECRETS: [&str; 7] = [
    "hunter",
    "flagged",
    "surprise",
    "pass-of-keys",
    "pass-of-origin",
    "from-a-file",
    "from-environment",
];

#[track_caller]
fn assert_hidden(what: &str, text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{what} shows `{secret}`:\n{text}");
    }
}

/// Writes a configuration with a secret in every possible place.
fn write(file: &Path, header: &str) {
    let header_file = file.with_file_name("auth");
    fs::write(&header_file, "Bearer from-a-file\n").unwrap();
    let text = format!(
        "[admission]\nkeys = \"http://issuer:pass-of-keys@127.0.0.1:9/jwks.json\"\n\
         insecure = true\n\
         [stream.live]\norigin = \"http://reader:pass-of-origin@127.0.0.1:9/hls/\"\n\
         [stream.live.headers]\nAuthorization = \"Bearer {header}\"\n\
         X-File = {{ file = {header_file:?} }}\nX-Environment = {{ env = \"ORIGIN_KEY\" }}\n"
    );
    fs::write(file, text).unwrap();
}

#[test]
fn the_configuration_is_shown_without_its_secrets() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("test.toml");
    write(&file, "hunter2-hunter2");
    let flag = [
        "--config",
        file.to_str().unwrap(),
        "--set",
        "stream.live.headers.X-Flag=flagged",
    ];
    for tail in [
        &["config", "check"][..],
        &["config", "print"],
        &["doctor"],
        &["plan", "--peers", "10", "--bitrate", "100k"],
    ] {
        let output = command(&place, &[&flag, tail].concat())
            .env("ORIGIN_KEY", "from-environment")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains("admission") || text.contains("127.0.0.1:9/hls/"),
            "{tail:?}: {text}"
        );
        assert_hidden(&format!("{tail:?}"), &text);
    }
    // Errors do not show them either: a wrong type, an unknown key, a line that is not TOML, and an
    // invalid URL.
    for (text, flags) in [
        (
            "[stream.live]\norigin = \"http://o/\"\nheaders = \"Bearer surprise\"\n",
            "",
        ),
        (
            "[stream.live]\norigin = \"http://o/\"\nheaders.A = [\"surprise\"]\n",
            "",
        ),
        (
            "[stream.live]\norigin = \"http://o/\"\nheaders.A = { fil = \"surprise\" }\n",
            "",
        ),
        (
            "[stream.live]\norigin = \"http://o/\"\nheaders.A = \"Bearer surprise\n",
            "",
        ),
        (
            "[stream.live]\norigin = \"ftp://me:pass-of-origin@o/\"\n",
            "",
        ),
        (
            "[stream.live]\norigin = \"http://o/\"\n",
            "stream.live.header.A=surprise",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let flags = if flags.is_empty() {
            vec![]
        } else {
            vec!["--set", flags]
        };
        let serve = [
            "--config",
            file.to_str().unwrap(),
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
        ];
        let output = command(&place, &[&flags[..], &serve].concat())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{text}: {said}");
        assert_hidden(text, &said);
    }
}

#[test]
fn a_running_server_shows_no_secret() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("test.toml");
    write(&file, "hunter2-hunter2");
    let mut server = Server::start_with(
        &["--config", file.to_str().unwrap()],
        &[("ORIGIN_KEY", "from-environment")],
    );
    let reasons = server.wait_for_status("/readyz", 503);
    assert!(reasons.contains("127.0.0.1:9/jwks.json"), "{reasons}");
    assert_hidden("/readyz", &reasons);
    write(&file, "surprise");
    server.signal("HUP");
    let line = server.wait_for("headers.Authorization");
    assert_hidden("the line about a change", &line);
    server.wait_for("configuration reloaded");
    // Only the content of the file changes.
    fs::write(file.with_file_name("auth"), "Bearer from-a-file-again").unwrap();
    server.signal("HUP");
    assert_hidden("the line about a file", &server.wait_for("headers.X-File"));
    server.wait_for("configuration reloaded");
    assert_hidden("/metrics", &server.get("/metrics").1);
    let mut updates = Updates::open(&server);
    updates.wait_for("configuration reloaded");
    assert_hidden("the page's state and events", &updates.text);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert_hidden("the log", &server.heard());
}

#[test]
fn a_secret_below_a_published_directory_is_refused() {
    let place = TempDir::new().unwrap();
    let (media, outside) = (place.path().join("media"), place.path().join("outside"));
    fs::create_dir_all(media.join("deep")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(media.join("deep/secret"), "x").unwrap();
    // A link from outside to a directory that is inside.
    std::os::unix::fs::symlink(media.join("deep"), outside.join("back")).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (inside, back) = (
        text(&media.join("deep/secret")),
        text(&outside.join("back/secret")),
    );
    let made = text(&media.join("new/key.pem"));
    let publish = format!("stream.live.directory={}", media.display());
    for setting in [
        format!("stream.live.signing_key={made}"),
        format!("stream.other.signing_key={back}"),
        format!("tls.key={inside}"),
        format!("tls.directory={}", media.join("deep").display()),
        format!("admission.keys={back}"),
        format!("stream.other.headers.A.file={inside}"),
        format!("telemetry.credential={inside}"),
    ] {
        let other = "stream.other.origin=http://127.0.0.1:9/";
        let pair = format!("tls.cert={}", outside.display());
        let mut arguments = vec!["--set", &publish, "--set", other, "--set", &setting];
        if setting.starts_with("tls.key") {
            arguments.extend(["--set", &pair]);
        }
        let output = command(&place, &[&arguments[..], &["config", "check"]].concat())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{setting}: {said}");
        let key = setting.split('=').next().unwrap();
        assert!(
            said.contains(&format!("`{key}`")) && said.contains("`stream.live.directory`"),
            "{setting}: {said}"
        );
    }
    // Even with a certificate from elsewhere, the key of stateless resets is created in the
    // directory.
    let settings = [
        format!("tls.cert={}", outside.join("cert.pem").display()),
        format!("tls.key={}", outside.join("key.pem").display()),
        format!("tls.directory={}", media.join("tls").display()),
    ];
    let arguments: Vec<_> = [&publish]
        .into_iter()
        .chain(&settings)
        .flat_map(|setting| ["--set", setting])
        .collect();
    let output = command(&place, &[&arguments[..], &["config", "check"]].concat())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(3),
        "the key of stateless resets: {said}"
    );
    assert_eq!(said.matches("`tls.directory`").count(), 1, "{said}");
    let file = media.join("test.toml");
    fs::write(&file, "").unwrap();
    let output = command(
        &place,
        &[
            "--config",
            file.to_str().unwrap(),
            "--set",
            &publish,
            "config",
            "check",
        ],
    )
    .output()
    .unwrap();
    assert_eq!(
        output.status.code(),
        Some(3),
        "the configuration itself: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The reader of the log has stopped reading; the process still ends.
#[test]
fn what_hangs_does_not_keep_the_process() {
    let state = TempDir::new().unwrap();
    let file = state.path().join("test.toml");
    fs::write(&file, "[server]\ndrain_timeout = \"1s\"\n").unwrap();
    let mut process = Command::new(program("ncserverd"))
        .args([
            "--config",
            file.to_str().unwrap(),
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
        ])
        .env_clear()
        .env("STATE_DIRECTORY", state.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("/metrics") {
        line.clear();
        log.read_line(&mut line).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    // This refusal is longer than the pipe, so the task that handles signals blocks in the middle
    // of it.
    let unknown: String = (0..10_000)
        .map(|number| format!("[section{number}]\nkey = 1\n"))
        .collect();
    fs::write(&file, unknown).unwrap();
    let signal = |name: &str| {
        assert!(
            Command::new("kill")
                .args(["-s", name, &process.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
    };
    signal("HUP");
    std::thread::sleep(Duration::from_secs(3));
    signal("TERM");
    let end = Instant::now() + Duration::from_secs(40);
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > end {
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    drop(log);
    let _ = process.kill();
    let _ = process.wait();
    assert_eq!(status.expect("the process ends").code(), Some(9));
}

/// Faults of an origin are logged with URL and status, only now and then, and without its secrets.
#[test]
fn faults_of_an_origin_are_said_with_their_url() {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = origin.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in origin.incoming().map_while(Result::ok) {
            let mut request = String::new();
            let _ = BufReader::new(&socket).read_line(&mut request);
            let (status, more) = match request {
                _ if request.contains("401") => ("401 Unauthorized", ""),
                _ if request.contains("moved") => (
                    "302 Found",
                    "Location: http://me:pass-of-origin@127.0.0.1:9/x\r\n",
                ),
                _ if request.contains("gzip") => ("200 OK", "Content-Encoding: gzip\r\n"),
                _ => ("404 Not Found", ""),
            };
            let _ = write!(
                &socket,
                "HTTP/1.1 {status}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
    });
    let url = format!("stream.live.origin=http://reader:pass-of-origin@{address}/hls/");
    let gone = "stream.gone.origin=http://reader:pass-of-origin@127.0.0.1:9/";
    let mut server = Server::start(&["--set", &url, "--set", gone]);
    let (at, fingerprint) = server.peers_connect_with();
    let fetch = |path: &str| {
        let mut command = Command::new(program("ncpeer"));
        command
            .args([
                "fetch",
                &at,
                path,
                "--fingerprint",
                &fingerprint,
                "-o",
                "/dev/null",
            ])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let refused = |path: &str| {
        let output = fetch(path).wait_with_output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let base = format!("GET http://{address}/hls/");
    for (path, status) in [
        ("401.ts", "status 401"),
        ("moved.ts", "redirects to 127.0.0.1:9"),
        ("gzip.ts", "compressed"),
        ("none.ts", "no such object"),
    ] {
        let said = refused(&format!("/live/{path}?token=surprise&n=1"));
        assert!(!said.contains("pass-of-origin"), "{said}");
        let line = server.wait_for(&format!("{base}{path}?token=[hidden]&n=1"));
        assert!(line.contains(status), "{line}");
    }
    // This may be temporary, so the peer keeps asking.
    let mut patient = fetch("/gone/x.ts");
    let line = server.wait_for("GET http://127.0.0.1:9/x.ts");
    patient.kill().unwrap();
    patient.wait().unwrap();
    assert!(line.contains("cannot be reached"), "{line}");
    for _ in 0..3 {
        refused("/live/401.ts");
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let heard = server.heard();
    assert_hidden("the log", &heard);
    assert_eq!(
        heard.matches("status 401").count(),
        1,
        "one line for many: {heard}"
    );
}
