//! `ncserverd doctor` and `ncserverd plan`, as an operator runs them.

use std::net::UdpSocket;
use std::process::{Command, Output};

use bytesize::ByteSize;
use ncserverd::config::Sources;
use serde_json::Value;
use tempfile::TempDir;

mod program;

use program::program;

const USAGE: i32 = 2;
const CONFIG: i32 = 3;
const UNFIT: i32 = 8;

/// Runs it with an empty environment and its state in its own directory.
fn run(arguments: &[&str]) -> Output {
    let state = TempDir::new().unwrap();
    let output = Command::new(program("ncserverd"))
        .args(arguments)
        .env_clear()
        .env("STATE_DIRECTORY", state.path())
        .output();
    assert_eq!(
        state.path().read_dir().unwrap().count(),
        0,
        "nothing is left behind"
    );
    output.unwrap()
}

/// On free addresses, whatever else runs here.
fn doctor(arguments: &[&str]) -> Output {
    run(&[
        &[
            "doctor",
            "--set",
            "telemetry.listen=127.0.0.1:0",
            "--set",
            "endpoint.listen=127.0.0.1:0",
        ],
        arguments,
    ]
    .concat())
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_machine_that_builds_this_can_serve_the_defaults() {
    let output = doctor(&[]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    for name in [
        "configuration",
        "address for peers",
        "address for metrics",
        "receive buffer",
        "send buffer",
        "sockets for handshakes",
        "segmentation offload",
        "open files",
        "memory",
        "clock",
        "processor",
        "device",
        "certificate",
    ] {
        let line = text
            .lines()
            .find(|line| line.contains(&format!(" {name}: ")));
        let line = line.unwrap_or_else(|| panic!("no line for {name}:\n{text}"));
        assert!(
            line.starts_with("ok   ") || line.starts_with("warn ") && line.contains(" => "),
            "{line}"
        );
    }
}

#[test]
fn an_address_that_is_taken_fails_and_is_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = doctor(&["--set", &format!("endpoint.listen={address}")]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(UNFIT), "{text}");
    let line = text.lines().find(|line| line.starts_with("fail ")).unwrap();
    assert!(
        line.contains(&address) && line.contains("`endpoint.listen`"),
        "{line}"
    );
}

#[test]
fn buffers_beyond_the_kernels_limit_name_the_sysctl() {
    let output = doctor(&["--set", "endpoint.receive_buffer=1GiB"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let line = text
        .lines()
        .find(|line| line.contains("receive buffer:"))
        .unwrap();
    assert!(
        line.starts_with("warn ") && line.contains("sysctl -w net.core.rmem_max=1073741824"),
        "{line}"
    );
}

#[test]
fn scripts_read_json() {
    let output = doctor(&[
        "--json",
        "--set",
        "device.backend=cuda",
        "--set",
        "device.gpus=15",
    ]);
    assert_eq!(output.status.code(), Some(UNFIT));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verdict"], "fail");
    let checks = report["checks"].as_array().unwrap();
    let device = checks
        .iter()
        .find(|check| check["name"] == "device")
        .unwrap();
    assert_eq!(device["verdict"], "fail");
    assert!(
        device["change"]
            .as_str()
            .unwrap()
            .contains("device.backend"),
        "{device}"
    );
}

#[test]
fn a_configuration_that_is_refused_is_not_looked_at() {
    for command in [
        &["doctor"][..],
        &["plan", "--peers", "1", "--bitrate", "768k"],
    ] {
        let output = run(&[command, &["--set", "ring.max_reuse=0"]].concat());
        assert_eq!(output.status.code(), Some(CONFIG), "{}", stderr(&output));
        assert!(stdout(&output).is_empty());
    }
}

#[test]
fn a_configuration_names_what_is_there() {
    let place = TempDir::new().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["media.example".into()]).unwrap();
    (params.not_before, params.not_after) = (
        rcgen::date_time_ymd(2020, 1, 1),
        rcgen::date_time_ymd(2021, 1, 1),
    );
    let certificate = params.self_signed(&key).unwrap();
    let write = |name: &str, text: String| {
        std::fs::write(place.path().join(name), text).unwrap();
        place.path().join(name).display().to_string()
    };
    let (cert, key) = (
        write("cert.pem", certificate.pem()),
        write("key.pem", key.serialize_pem()),
    );
    let (cert, key) = (format!("tls.cert={cert}"), format!("tls.key={key}"));
    let directory = format!("stream.a.directory={}", place.path().join("gone").display());
    for (keys, code, line) in [
        (
            &[&*cert, &*key][..],
            UNFIT,
            "expired at 2021-01-01T00:00:00Z",
        ),
        (&[&*directory], UNFIT, "which cannot be read: "),
        // Origins may come and go.
        (
            &["stream.a.origin=http://127.0.0.1:9/"],
            0,
            "a from http://127.0.0.1:9/: ",
        ),
    ] {
        let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
        let checked = run(&[&keys[..], &["config", "check"]].concat());
        for output in [checked, doctor(&keys)] {
            let text = stdout(&output);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{keys:?}: {text}{}",
                stderr(&output)
            );
            assert!(text.contains(line), "{keys:?}: {text}");
        }
    }
}

/// The keys at the end of a plan, loaded as by a server.
fn keys_of(plan: &str) -> ncserverd::config::Loaded {
    let keys = &plan[plan.find("[endpoint]").expect("the plan has keys")..];
    for (section, table) in keys.parse::<toml::Table>().unwrap() {
        assert!(
            table.as_table().is_some_and(|table| !table.is_empty()),
            "[{section}] is empty:\n{keys}"
        );
    }
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("plan.toml");
    std::fs::write(&file, keys).unwrap();
    let checked = run(&["--config", file.to_str().unwrap(), "config", "check"]);
    assert!(checked.status.success(), "{keys}{}", stderr(&checked));
    Sources {
        file: Some(file),
        ..Sources::default()
    }
    .load()
    .unwrap()
}

#[test]
fn a_plan_measures_and_ends_with_keys_that_are_accepted() {
    let output = run(&["plan", "--peers", "20000", "--bitrate", "768k"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for part in [
        "Measured on this machine:",
        "us of CPU time per packet at the server",
        "Assumed, not measured:",
        "n_max = 128",
        "cold start",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let loaded = keys_of(&text);
    assert_eq!(loaded.config.endpoint.connections_max.to_string(), "22000");
    assert_eq!(loaded.config.stream["live"].block_bytes, 4096);
    assert!(
        loaded.config.ring.bytes.size() > ByteSize::mib(64),
        "the default is for fewer"
    );
    assert!(loaded.findings.is_empty(), "{:?}", loaded.findings);
}

#[test]
fn a_plan_for_a_path_that_loses_has_blocks_for_datagrams() {
    let output = run(&[
        "plan",
        "--peers",
        "100",
        "--bitrate",
        "3M",
        "--loss",
        "2%",
        "--segment",
        "6s",
        "--streams",
        "2",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let (text, loaded) = (stdout(&output), keys_of(&stdout(&output)));
    assert!(text.contains("in datagrams"), "{text}");
    assert_eq!(
        (
            loaded.config.stream["live"].n_max,
            loaded.config.stream["live"].block_bytes
        ),
        (64, 1088)
    );
}

#[test]
fn a_plan_keeps_to_the_stream_that_is_configured() {
    let place = TempDir::new().unwrap();
    let media = place.path().join("\"tv\"");
    std::fs::create_dir(&media).unwrap();
    let directory = format!("stream.tv.directory={}", media.display());
    let stream = ["--set", &directory, "--set", "stream.tv.n_max=32"];
    let output = run(&[&["plan", "--peers", "10", "--bitrate", "1M"][..], &stream].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let loaded = keys_of(&stdout(&output));
    let tv = &loaded.config.stream["tv"];
    assert_eq!(
        (tv.n_max, tv.directory.as_deref()),
        (32, Some(media.as_path()))
    );
}

#[test]
fn plans_for_nonsense_are_refused() {
    for (arguments, word) in [
        (&["--peers", "0", "--bitrate", "768k"][..], "0 is not in"),
        (&["--peers", "1", "--bitrate", "fast"], "bits per second"),
        (&["--peers", "1", "--bitrate", "1"], "bitrate"),
        (
            &["--peers", "1", "--bitrate", "768k", "--loss", "1"],
            "below 1",
        ),
        (
            &["--peers", "1", "--bitrate", "768k", "--segment", "0s"],
            "segment",
        ),
        (
            &["--peers", "1", "--bitrate", "768k", "--streams", "2"],
            "streams",
        ),
    ] {
        let output = run(&[&["plan"], arguments].concat());
        assert_eq!(output.status.code(), Some(USAGE), "{arguments:?}");
        assert!(
            stderr(&output).contains(word) && stdout(&output).is_empty(),
            "{}",
            stderr(&output)
        );
    }
}
