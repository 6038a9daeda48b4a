//! Whoever reads the output may stop: the program then ends quietly.

mod program;

use program::{CLOSED_PIPE, into_a_closed_pipe};

#[tokio::test]
async fn a_closed_pipe_ends_every_command_quietly() {
    for (arguments, code) in [
        (&["cases", "--list"][..], CLOSED_PIPE),
        (&["cpu", "--list"], CLOSED_PIPE),
        (&["papers", "--paper", "all", "--list"], CLOSED_PIPE),
        (&["--help"], 0),
    ] {
        assert_eq!(
            into_a_closed_pipe(arguments).await,
            (Some(code), String::new()),
            "{arguments:?}"
        );
    }
}
