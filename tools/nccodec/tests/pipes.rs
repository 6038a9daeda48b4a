//! Whoever reads the output may stop: the program then ends quietly.

use std::fs;
use std::io::pipe;
use std::process::{Command, Stdio};

#[expect(dead_code, reason = "shared with the tests of files, which need more of it")]
mod program;

/// 128 and SIGPIPE.
const CLOSED_PIPE: i32 = 141;

#[test]
fn a_closed_pipe_ends_every_command_quietly() {
    let place = tempfile::tempdir().unwrap();
    let (source, blocks) = (place.path().join("source"), place.path().join("blocks"));
    fs::write(&source, program::random(200_000, 7)).unwrap();
    let (source, blocks) = (source.to_str().unwrap(), blocks.to_str().unwrap());
    let coded = program::run(&["encode", source, "-o", blocks], &[]);
    assert!(coded.status.success(), "{}", program::text(&coded));
    for (arguments, code) in [
        (&["row", "--key", "0x1", "--generation", "0", "--seed", "1", "--n", "16"][..], CLOSED_PIPE),
        (&["decode", blocks, "-o", "-"], CLOSED_PIPE),
        (&["--help"], 0),
    ] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut command = Command::new(program::program());
        command.args(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let ended = command.output().unwrap();
        assert_eq!((ended.status.code(), program::text(&ended).as_str()), (Some(code), ""), "{arguments:?}");
    }
}
