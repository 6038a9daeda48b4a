//! What the demo shows while it runs: one line a peer, redrawn on a terminal, printed once in a while elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::peer::Stats;

/// Where the demo speaks. Standard output carries lines and the table, standard error the moving ones.
#[derive(Debug, Clone)]
pub(super) struct Screen {
    quiet: bool,
    bars: MultiProgress,
}

impl Screen {
    pub(super) fn start(quiet: bool) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        Self { quiet, bars: MultiProgress::with_draw_target(target) }
    }

    pub(super) fn say(&self, text: &str) {
        if !self.quiet {
            self.bars.suspend(|| print!("{text}"));
        }
    }

    /// A line for one peer.
    pub(super) fn line(&self) -> Line {
        Line { bar: self.bars.add(ProgressBar::new(0)), printed: !self.quiet && !io::stderr().is_terminal() }
    }

    /// Ends the moving lines and says the last word.
    pub(super) fn end(&self, text: &str) {
        let _ = self.bars.clear();
        self.say(text);
    }
}

/// The line of one peer.
#[derive(Debug)]
pub(super) struct Line {
    bar: ProgressBar,
    printed: bool,
}

impl Line {
    /// Shows what the peer's statistics say until the guard is dropped.
    pub(super) fn watch(self, peer: u16, stats: watch::Receiver<Stats>) -> Watching {
        let style = ProgressStyle::with_template("{prefix} [{bar:24}] {msg}").expect("the template is valid");
        self.bar.set_style(style.progress_chars("=> "));
        self.bar.set_prefix(format!("peer {peer}"));
        Watching { task: tokio::spawn(self.follow(peer, stats)) }
    }

    async fn follow(self, peer: u16, mut stats: watch::Receiver<Stats>) {
        let begun = Instant::now();
        let every = if self.printed { PRINT_EVERY } else { DRAW_EVERY };
        while stats.changed().await.is_ok() {
            let text = {
                let stats = stats.borrow_and_update();
                let (rank, n) = rank(&stats);
                self.bar.set_length(n.into());
                self.bar.set_position(rank.into());
                describe(&stats, begun.elapsed())
            };
            if self.printed {
                println!("peer {peer}  {text}");
            }
            self.bar.set_message(text);
            tokio::time::sleep(every).await;
        }
    }
}

/// Ends the line when dropped.
#[derive(Debug)]
pub(super) struct Watching {
    task: JoinHandle<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn describe(stats: &Stats, time: Duration) -> String {
    let (rank, n) = rank(stats);
    let rate = stats.bytes as f64 / 1e6 / time.as_secs_f64().max(0.001);
    format!(
        "rank {rank:>3}/{n:<3}  blocks {:>5}  innovative {:>5}  useless {:>3}  {rate:6.2} MB/s",
        stats.blocks_received, stats.blocks_innovative, stats.blocks_useless
    )
}

/// Rank and size of the generation that is asked for with most urgency.
fn rank(stats: &Stats) -> (u16, u16) {
    stats.progress.first().map_or((0, 0), |progress| (progress.rank, progress.n))
}

const DRAW_EVERY: Duration = Duration::from_millis(50);
const PRINT_EVERY: Duration = Duration::from_secs(1);
