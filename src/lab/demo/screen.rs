//! What the demo shows while it runs: one line a peer, redrawn on a terminal, printed once in a while elsewhere.

use std::io::{self, IsTerminal};
use std::time::Duration;

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
        let style = ProgressStyle::with_template("{prefix} [{bar:20}] {msg}").expect("the template is valid");
        self.bar.set_style(style.progress_chars("=> "));
        let bar = self.bar.clone();
        Watching { peer, bar, task: tokio::spawn(self.follow(stats)) }
    }

    async fn follow(self, mut stats: watch::Receiver<Stats>) {
        let every = if self.printed { PRINT_EVERY } else { DRAW_EVERY };
        while stats.wait_for(|stats| stats.blocks_received > 0).await.is_ok() {
            let text = {
                let stats = stats.borrow_and_update();
                let (rank, n) = rank(&stats);
                self.bar.set_length(n.max(1).into());
                self.bar.set_position(rank.into());
                describe(&stats)
            };
            if self.printed {
                println!("{}  {text}", self.bar.prefix());
            }
            self.bar.set_message(text);
            tokio::time::sleep(every).await;
        }
    }
}

/// Ends the line when dropped.
#[derive(Debug)]
pub(super) struct Watching {
    peer: u16,
    bar: ProgressBar,
    task: JoinHandle<()>,
}

impl Watching {
    /// The peer is at this segment, the first being 1.
    pub(super) fn at(&self, segment: usize, of: usize) {
        self.bar.set_prefix(format!("peer {}  segment {segment}/{of}", self.peer));
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn describe(stats: &Stats) -> String {
    let (rank, n) = rank(stats);
    let Stats { blocks_received, blocks_innovative, blocks_useless, .. } = stats;
    let rate = stats.rate / 1e6;
    format!(
        "rank {rank:>2}/{n:<2}  blocks {blocks_received:>4}  innovative {blocks_innovative:>4}  useless {blocks_useless:>2}  {rate:5.2} MB/s"
    )
}

/// Rank and size of the generation that is asked for with most urgency.
fn rank(stats: &Stats) -> (u16, u16) {
    stats.progress.first().map_or((0, 0), |progress| (progress.rank, progress.n))
}

const DRAW_EVERY: Duration = Duration::from_millis(50);
const PRINT_EVERY: Duration = Duration::from_secs(1);
