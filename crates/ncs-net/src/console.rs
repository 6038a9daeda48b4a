//! What the programs say on standard output and standard error.
//!
//! The runtime ignores SIGPIPE, so a reader that has seen enough (`| head`) shows up as an error of the next write. On standard output
//! that error ends the program at once and quietly, with [`CLOSED_PIPE`], as the signal would. On standard error it is ignored: what
//! the program does goes on without its notes. `print!` and its like would panic in both cases, and are refused by a lint.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

/// The exit code of a program whose output nobody reads any more: what a shell shows of a process that SIGPIPE has ended.
pub const CLOSED_PIPE: u8 = 128 + 13;

/// Writes text to standard output, without waiting for the end of a line.
pub fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()
}

/// Writes a line to standard error; one that nobody reads is lost.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether somebody may be looking at standard error: progress is shown then, and only then.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Whether the reader of a pipe has gone.
pub fn is_closed_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
