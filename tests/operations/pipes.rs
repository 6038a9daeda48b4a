//! The reader of the output may stop: then a program ends quietly.

use std::fs;
use std::io::pipe;
use std::process::Command;

use nctest::pipes::{CLOSED_PIPE, into_a_closed_pipe};
use tempfile::TempDir;

use crate::program::program;
use crate::server::{Server, command};

#[test]
fn a_closed_pipe_ends_every_command_of_the_server_quietly() {
    let place = TempDir::new().unwrap();
    for arguments in [
        &["config", "check"][..],
        &["config", "print"],
        &["doctor"],
        &["doctor", "--json"],
        &["bench"],
        &["demo"],
    ] {
        let (code, said) = into_a_closed_pipe(&mut command(&place, arguments));
        assert_eq!(
            (code, said.as_str()),
            (Some(CLOSED_PIPE), ""),
            "{arguments:?}"
        );
    }
    let (code, said) = into_a_closed_pipe(&mut command(&place, &["--help"]));
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

#[test]
fn a_closed_pipe_ends_every_command_of_the_peer_quietly() {
    let media = TempDir::new().unwrap();
    fs::write(media.path().join("clip.mp4"), vec![7; 3_000_000]).unwrap();
    let server = Server::start(&["--directory", &format!("media={}", media.path().display())]);
    let (url, fingerprint) = server.peers_connect_with();
    server.wait_for_status("/readyz", 200);
    for (arguments, code) in [
        (&["info", &url][..], CLOSED_PIPE),
        (&["info", &url, "/media/clip.mp4"], CLOSED_PIPE),
        (&["fetch", &url, "/media/clip.mp4", "-o", "-"], CLOSED_PIPE),
        (&["--help"], 0),
    ] {
        let mut peer = Command::new(program("ncpeer"));
        let (ended, said) =
            into_a_closed_pipe(peer.args(arguments).args(["--fingerprint", &fingerprint]));
        assert_eq!((ended, said.as_str()), (Some(code), ""), "{arguments:?}");
    }
}

#[test]
fn a_closed_standard_error_changes_no_exit_code() {
    let place = TempDir::new().unwrap();
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut refused = command(&place, &["--set", "ring.byte=1"]);
    assert_eq!(
        refused
            .stderr(writer.try_clone().unwrap())
            .status()
            .unwrap()
            .code(),
        Some(3)
    );
    let mut unconnected = Command::new(program("ncpeer"));
    assert_eq!(
        unconnected
            .args(["info", "ncs://no-such-host.invalid"])
            .stderr(writer)
            .status()
            .unwrap()
            .code(),
        Some(3)
    );
}
