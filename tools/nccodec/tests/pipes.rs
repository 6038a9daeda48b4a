//! Whoever reads the output may stop: the program then ends quietly.

use std::fs;
use std::process::Command;

use nctest::pipes::{CLOSED_PIPE, into_a_closed_pipe};

#[expect(
    dead_code,
    reason = "shared with the tests of files, which need more of it"
)]
mod program;

#[test]
fn a_closed_pipe_ends_every_command_quietly() {
    let place = tempfile::tempdir().unwrap();
    let (source, blocks) = (place.path().join("source"), place.path().join("blocks"));
    fs::write(&source, program::random(200_000, 7)).unwrap();
    let (source, blocks) = (source.to_str().unwrap(), blocks.to_str().unwrap());
    let coded = program::run(&["encode", source, "-o", blocks], &[]);
    assert!(coded.status.success(), "{}", program::text(&coded));
    for (arguments, code) in [
        (
            &[
                "row",
                "--key",
                "0x1",
                "--generation",
                "0",
                "--seed",
                "1",
                "--n",
                "16",
            ][..],
            CLOSED_PIPE,
        ),
        (&["decode", blocks, "-o", "-"], CLOSED_PIPE),
        (&["--help"], 0),
    ] {
        let (ended, said) = into_a_closed_pipe(Command::new(program::program()).args(arguments));
        assert_eq!((ended, said.as_str()), (Some(code), ""), "{arguments:?}");
    }
}
