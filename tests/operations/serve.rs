//! Starting, reloading and stopping.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::program::program;
use crate::server::{Server, command};

/// Writes a configuration file with one stream from a directory, followed by `rest`.
fn write(file: &Path, media: &Path, rest: &str) {
    fs::write(
        file,
        format!("[stream.media]\ndirectory = {media:?}\n{rest}"),
    )
    .unwrap();
}

#[test]
fn without_a_stream_it_runs_and_is_not_ready() {
    let mut server = Server::start(&[]);
    assert_eq!(server.get("/healthz").0, 200);
    let reasons = server.wait_for_status("/readyz", 503);
    assert!(
        reasons.contains(r#"{"part":"streams","reason":"no streams"}"#),
        "{reasons}"
    );
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_reload_is_taken_whole_or_not_at_all() {
    let place = TempDir::new().unwrap();
    let (file, media) = (place.path().join("test.toml"), place.path().join("media"));
    fs::create_dir(&media).unwrap();
    fs::write(&file, "").unwrap();
    let mut server = Server::start(&["--config", file.to_str().unwrap()]);
    server.wait_for_status("/readyz", 503);

    write(
        &file,
        &media,
        "[ring]\nbytes = \"65MiB\"\n[encoder]\nbatch_wait = \"1ms\"\n",
    );
    server.signal("HUP");
    let lines = ["`encoder.batch_wait`", "`ring.bytes`"].map(|key| server.wait_for(key));
    assert!(lines[0].contains("takes effect now"), "{}", lines[0]);
    assert!(lines[1].contains("needs a restart"), "{}", lines[1]);
    server.wait_for_status("/readyz", 200);

    fs::write(&file, "[stream.media]\ndirectry = \"x\"\n").unwrap();
    server.signal("HUP");
    let line = server.wait_for("did you mean `stream.media.directory`?");
    assert!(line.contains("line 2"), "{line}");
    assert_eq!(server.get("/readyz").0, 200, "the old configuration stays");

    write(
        &file,
        &media,
        "[tls]\ncert = \"/nonexistent\"\nkey = \"/nonexistent\"\n",
    );
    server.signal("HUP");
    server.wait_for("/nonexistent");
    assert_eq!(server.get("/readyz").0, 200);
    server.signal("INT");
    assert_eq!(server.wait().code(), Some(0));
}

/// A service manager may ask for a reload as soon as it has started the service.
#[test]
fn a_reload_that_is_requested_during_the_start_follows_it() {
    for _ in 0..8 {
        let mut server = Server::start(&[]);
        server.signal("HUP");
        server.wait_for("configuration reloaded");
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn a_certificate_that_has_expired_is_shown_and_complained_of() {
    let place = TempDir::new().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["media.example".into()]).unwrap();
    (params.not_before, params.not_after) = (
        rcgen::date_time_ymd(2020, 1, 1),
        rcgen::date_time_ymd(2021, 1, 1),
    );
    let (cert_file, key_file) = (place.path().join("cert.pem"), place.path().join("key.pem"));
    fs::write(&cert_file, params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    let (cert, key) = (
        format!("tls.cert={}", cert_file.display()),
        format!("tls.key={}", key_file.display()),
    );
    let server = Server::start(&["--set", &cert, "--set", &key]);
    let metrics = server.get("/metrics").1;
    assert!(
        metrics.contains("ncserverd_tls_certificate_expires_seconds 1609459200\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("ncserverd_tls_certificate_begins_seconds 1577836800\n"),
        "{metrics}"
    );
    assert!(
        server
            .heard()
            .contains("the certificate expired at 2021-01-01T00:00:00Z"),
        "{}",
        server.heard()
    );
}

#[test]
fn every_way_to_fail_has_its_exit_code() {
    let server = Server::start(&[]);
    let place = TempDir::new().unwrap();
    let taken = server.metrics().to_string();
    let not_pem = place.path().join("not.pem");
    fs::write(&not_pem, "").unwrap();
    let (cert, key) = (
        format!("tls.cert={}", not_pem.display()),
        format!("tls.key={}", not_pem.display()),
    );
    for (arguments, code, said) in [
        (&["--nonsense"][..], 2, "--nonsense"),
        (&["--set", "ring.byte=1"], 3, "`ring.bytes`"),
        (&["--config", "/nonexistent.toml"], 3, "/nonexistent.toml"),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--metrics",
                "127.0.0.1:0",
                "--set",
                &cert,
                "--set",
                &key,
            ],
            4,
            "not.pem",
        ),
        (
            &["serve", "--listen", "127.0.0.1:0", "--metrics", &taken],
            6,
            &taken,
        ),
        (
            &["serve", "--listen", "0.0.0.0:0", "--metrics", "127.0.0.1:0"],
            3,
            "`admission.insecure = true` if that is intended",
        ),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--set",
                "admission.keys=/nonexistent.json",
            ],
            3,
            "/nonexistent.json",
        ),
    ] {
        let output = command(&place, arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
}

/// The parts that had started end when the start fails, and are not reported as dead.
#[test]
fn a_taken_port_is_the_only_reason_that_is_told() {
    let place = TempDir::new().unwrap();
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for _ in 0..8 {
        let output = command(
            &place,
            &["serve", "--listen", &address, "--metrics", "127.0.0.1:0"],
        )
        .output()
        .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{stderr}");
        assert!(
            stderr.contains(&address) && !stderr.contains("died"),
            "{stderr}"
        );
    }
}

/// Otherwise the session would count until the idle timeout.
#[test]
fn the_server_hears_that_a_peer_has_ended() {
    let media = TempDir::new().unwrap();
    fs::write(media.path().join("clip.ts"), vec![7; 300_000]).unwrap();
    let server = Server::start(&["--directory", &format!("media={}", media.path().display())]);
    let (url, fingerprint) = server.peers_connect_with();
    server.wait_for_status("/readyz", 200);
    for command in [&["info"][..], &["fetch", "-o", "/dev/null"]].repeat(4) {
        let mut peer = Command::new(program("ncpeer"));
        let status = peer
            .args(command)
            .args([&url, "/media/clip.ts", "--fingerprint", &fingerprint])
            .output()
            .unwrap()
            .status;
        assert!(status.success(), "{command:?}: {status}");
    }
    let open = || {
        server
            .get("/metrics")
            .1
            .contains("\nncserverd_session_open_sessions 0\n")
    };
    let begun = Instant::now();
    while !open() {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{}",
            server.get("/metrics").1
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn other_addresses_than_loopback_are_served_when_somebody_says_so() {
    let mut server = Server::start(&[
        "--set",
        "endpoint.listen=0.0.0.0:0",
        "--set",
        "admission.insecure=true",
    ]);
    assert_eq!(server.get("/healthz").0, 200);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_configuration_can_be_looked_at() {
    let place = TempDir::new().unwrap();
    let run = |arguments: &[&str]| {
        let output = command(&place, arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let media = format!("stream.media.directory={}", place.path().display());
    let explained = run(&[
        "--config",
        "config/dev.toml",
        "--set",
        "store.bytes=3GiB",
        "--set",
        &media,
        "config",
        "check",
    ]);
    assert!(explained.contains("store.bytes = \"3GiB\""), "{explained}");
    let file = place.path().join("printed.toml");
    fs::write(&file, run(&["--set", "ring.bytes=1GiB", "config", "print"])).unwrap();
    assert_eq!(
        run(&["--config", file.to_str().unwrap(), "config", "print"]),
        fs::read_to_string(&file).unwrap()
    );
}
