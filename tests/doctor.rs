//! `ncserverd doctor`, as an operator runs it.

use std::net::UdpSocket;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

mod program;

use program::program;

const CONFIG: i32 = 3;
const UNFIT: i32 = 8;

/// Without an environment; its state is in a directory of its own.
fn run(arguments: &[&str]) -> Output {
    let state = TempDir::new().unwrap();
    let output = Command::new(program("ncserverd")).args(arguments).env_clear().env("STATE_DIRECTORY", state.path()).output();
    assert_eq!(state.path().read_dir().unwrap().count(), 0, "nothing is left behind");
    output.unwrap()
}

/// On addresses that are free, whatever else runs here.
fn doctor(arguments: &[&str]) -> Output {
    run(&[&["doctor", "--set", "telemetry.listen=127.0.0.1:0", "--set", "endpoint.listen=127.0.0.1:0"], arguments].concat())
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
        "segmentation offload",
        "open files",
        "memory",
        "clock",
        "processor",
        "device",
        "certificate",
    ] {
        let line = text.lines().find(|line| line.contains(&format!(" {name}: ")));
        let line = line.unwrap_or_else(|| panic!("no line for {name}:\n{text}"));
        assert!(line.starts_with("ok   ") || line.starts_with("warn ") && line.contains(" => "), "{line}");
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
    assert!(line.contains(&address) && line.contains("`endpoint.listen`"), "{line}");
}

#[test]
fn buffers_beyond_the_kernels_limit_name_the_sysctl() {
    let output = doctor(&["--set", "endpoint.receive_buffer=1GiB"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let line = text.lines().find(|line| line.contains("receive buffer:")).unwrap();
    assert!(line.starts_with("warn ") && line.contains("sysctl -w net.core.rmem_max=1073741824"), "{line}");
}

#[test]
fn scripts_read_json() {
    let output = doctor(&["--json", "--set", "device.backend=cuda", "--set", "device.gpus=15"]);
    assert_eq!(output.status.code(), Some(UNFIT));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verdict"], "fail");
    let checks = report["checks"].as_array().unwrap();
    let device = checks.iter().find(|check| check["name"] == "device").unwrap();
    assert_eq!(device["verdict"], "fail");
    assert!(device["change"].as_str().unwrap().contains("device.backend"), "{device}");
}

#[test]
fn a_configuration_that_is_refused_is_not_looked_at() {
    let output = run(&["doctor", "--set", "ring.max_reuse=0"]);
    assert_eq!(output.status.code(), Some(CONFIG), "{}", stderr(&output));
    assert!(stdout(&output).is_empty());
}
