//! A bar on a terminal, and notes that do not break it.

use indicatif::{ProgressBar, ProgressStyle};
use ncs_net::console;

/// Shows how far the work is, on standard error and only if that is a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of `bytes` bytes.
    pub(super) fn new(verb: &'static str, bytes: u64) -> Self {
        let style = ProgressStyle::with_template(
            "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
        );
        let bar = ProgressBar::new(bytes).with_style(style.expect("the template is a valid one"));
        Self {
            bar: bar.with_message(verb),
        }
    }

    /// For work of which nobody knows how much it is.
    pub(super) fn open(verb: &'static str) -> Self {
        let style = ProgressStyle::with_template("{msg} {spinner} {bytes} {binary_bytes_per_sec}");
        let bar = ProgressBar::no_length().with_style(style.expect("the template is a valid one"));
        Self {
            bar: bar.with_message(verb),
        }
    }

    pub(super) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// A line for the user, terminal or not.
    pub(super) fn note(&self, text: &str) {
        self.bar.suspend(|| console::note(text));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
