//! Progress of the demo: one line per peer of at most 80 columns, redrawn on a terminal, printed
//! from time to time elsewhere.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Error, table};
use crate::console;
use crate::peer::Stats;

/// Output of the demo: lines and the table to standard output, moving lines to standard error.
#[derive(Debug, Clone)]
pub(super) struct Screen {
    quiet: bool,
    bars: MultiProgress,
    /// Whether the reader of standard output is gone.
    unread: Arc<AtomicBool>,
}

impl Screen {
    pub(super) fn start(quiet: bool) -> Self {
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        Self {
            quiet,
            bars: MultiProgress::with_draw_target(target),
            unread: Arc::default(),
        }
    }

    pub(super) fn say(&self, text: &str) -> Result<(), Error> {
        if self.quiet {
            Ok(())
        } else {
            self.bars
                .suspend(|| console::print(text))
                .map_err(Error::Output)
        }
    }

    /// A line for one peer.
    pub(super) fn line(&self) -> Line {
        let bar = self.bars.add(ProgressBar::new(0));
        Line {
            bar,
            printed: !self.quiet && !console::is_watched(),
            unread: Arc::clone(&self.unread),
        }
    }

    /// Ends the moving lines, and prints the final text.
    pub(super) fn end(&self, text: &str) -> Result<(), Error> {
        let _ = self.bars.clear();
        self.say(text)
    }
}

/// The line of one peer.
#[derive(Debug)]
pub(super) struct Line {
    bar: ProgressBar,
    printed: bool,
    unread: Arc<AtomicBool>,
}

impl Line {
    /// Shows the peer's statistics until the guard is dropped.
    pub(super) fn watch(self, peer: u16, stats: watch::Receiver<Stats>) -> Watching {
        self.bar
            .set_style(ProgressStyle::with_template("{msg}").expect("the template is valid"));
        let place = Arc::new(Place {
            peer,
            segment: AtomicUsize::new(0),
            of: AtomicUsize::new(0),
        });
        let unread = Arc::clone(&self.unread);
        Watching {
            place: Arc::clone(&place),
            unread,
            task: tokio::spawn(self.follow(place, stats)),
        }
    }

    async fn follow(self, place: Arc<Place>, mut stats: watch::Receiver<Stats>) {
        let every = if self.printed {
            PRINT_EVERY
        } else {
            DRAW_EVERY
        };
        let mut rank = (0, 0);
        while stats
            .wait_for(|stats| stats.blocks_received > 0)
            .await
            .is_ok()
        {
            let text = {
                let stats = stats.borrow_and_update();
                // Between two generations, the last one is complete.
                rank = stats
                    .progress
                    .first()
                    .map_or((rank.1, rank.1), |progress| (progress.rank, progress.n));
                describe(&place, rank, &stats)
            };
            if self.printed && console::print(format_args!("{text}\n")).is_err() {
                self.unread.store(true, Ordering::Relaxed);
                return;
            }
            self.bar.set_message(text);
            tokio::time::sleep(every).await;
        }
    }
}

/// The position of a peer.
#[derive(Debug)]
struct Place {
    peer: u16,
    segment: AtomicUsize,
    of: AtomicUsize,
}

/// Ends the line when dropped.
#[derive(Debug)]
pub(super) struct Watching {
    place: Arc<Place>,
    unread: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Watching {
    /// Sets the peer's position, counted from 1. Fails if the reader of the output is gone.
    pub(super) fn at(&self, segment: usize, of: usize) -> io::Result<()> {
        self.place.segment.store(segment, Ordering::Relaxed);
        self.place.of.store(of, Ordering::Relaxed);
        if self.unread.load(Ordering::Relaxed) {
            Err(io::ErrorKind::BrokenPipe.into())
        } else {
            Ok(())
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `rank`: rank and size of the most urgent generation.
fn describe(place: &Place, (rank, n): (u16, u16), stats: &Stats) -> String {
    let loss = table::loss(stats);
    format!(
        "peer {:>2} {}/{}  rank [{}] {rank:>2}/{n:<2}  loss [{}] {:>3.0} %  {:>6.2} MB/s",
        place.peer,
        place.segment.load(Ordering::Relaxed),
        place.of.load(Ordering::Relaxed),
        cells(f64::from(rank) / f64::from(n.max(1)), 18),
        cells(loss / LOSS_SHOWN, 8),
        loss * 100.0,
        stats.rate / 1e6,
    )
}

/// A bar of `cells` cells, filled by this share.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of few cells"
)]
fn cells(share: f64, cells: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * cells as f64).round() as usize;
    format!("{:<cells$}", "=".repeat(full))
}

const DRAW_EVERY: Duration = Duration::from_millis(50);
const PRINT_EVERY: Duration = Duration::from_secs(1);
/// The loss at which the bar is full.
const LOSS_SHOWN: f64 = 0.2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_two_bars_and_fits_80_columns() {
        let place = Place {
            peer: 64,
            segment: AtomicUsize::new(7),
            of: AtomicUsize::new(7),
        };
        let half = Stats {
            datagrams_lost: 10,
            blocks_received: 90,
            ..Stats::default()
        };
        let line = describe(&place, (32, 64), &half);
        assert!(
            line.contains("[=========         ] 32/64") && line.contains("[====    ]  10 %"),
            "{line}"
        );
        let most = describe(
            &place,
            (64, 64),
            &Stats {
                datagrams_lost: 1,
                rate: 999e6,
                ..Stats::default()
            },
        );
        assert!(most.len() <= 80, "{most}");
        assert!(describe(&place, (0, 0), &Stats::default()).len() <= 80);
    }
}
