//! Standard output and standard error of the programs.
//!
//! The runtime ignores SIGPIPE, so a reader that has seen enough (`| head`) causes an error of the
//! next write. On standard output that error ends the program at once and quietly, with
//! [`CLOSED_PIPE`], as the signal would. On standard error it is ignored, and the program
//! continues. `print!` and the like would panic in both cases; a lint forbids them.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

/// The exit code after the reader of standard output has gone: the one that a shell shows for
/// SIGPIPE.
pub const CLOSED_PIPE: u8 = 128 + 13;

/// Writes text to standard output, unbuffered.
pub fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()
}

/// Writes a line to standard error; errors are ignored.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether standard error is a terminal; only then progress is shown.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Whether the reader of a pipe has gone.
pub fn is_closed_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
