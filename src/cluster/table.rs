//! `ncserverd cluster status`: the fleet as a table.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::beat::Beat;
use super::engine::{self, Engine, Heard, Kind};
use super::roster::{INTERVAL, Roster};
use super::{Config, REACHED_WITHIN};
use crate::console;

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to look at.
    #[error("`cluster.engine` is \"none\": the server knows no other")]
    Alone,
    /// The engine cannot be opened.
    #[error("the engine: {0}")]
    Engine(#[from] engine::Error),
    /// It cannot be reached.
    #[error("the engine is not reached: {0}")]
    Unreached(String),
    /// The table cannot be printed.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

/// Prints the servers that beat within two intervals. On a terminal, unless `once`, it goes on
/// until the process is interrupted.
pub async fn status(config: &Config, once: bool) -> Result<(), Error> {
    if config.engine == Kind::None {
        return Err(Error::Alone);
    }
    let mut engine = Engine::listen(config, "ncserverd cluster status").await?;
    let (mut roster, mut complaint) = (Roster::new(), None);
    let is_live = !once && io::stdout().is_terminal();
    let begun = Instant::now();
    let (mut reached_at, mut shown) = (None, 0);
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            heard = engine.hear() => {
                match heard {
                    Heard::Beat(beat) => drop(roster.hear(Instant::now(), *beat)),
                    Heard::Complaint(text) => complaint = Some(text),
                    Heard::News | Heard::Unfit(_) | Heard::Message(_) => {}
                }
                continue;
            }
            _ = tick.tick() => {}
        }
        let now = Instant::now();
        roster.expire(now);
        let reached = engine.reached();
        if reached.is_ok() {
            reached_at.get_or_insert(now);
        }
        let beats: Vec<_> = roster.members().map(|member| &member.beat).collect();
        let mut text = table(&beats);
        if is_live {
            if let Err(reason) = reached {
                let _ = writeln!(text, "the engine is not reached: {reason}");
            } else if let Some(complaint) = complaint.take() {
                let _ = writeln!(text, "the engine complains: {complaint}");
            }
            print_over(&text, &mut shown)?;
        } else if reached_at.is_some_and(|at| now - at >= 2 * INTERVAL) {
            return Ok(console::print(text)?);
        } else if let (Err(reason), None) = (reached, reached_at)
            && now - begun >= REACHED_WITHIN
        {
            return Err(Error::Unreached(complaint.unwrap_or(reason)));
        }
    }
}

/// Prints a text over the last one, of so many lines.
fn print_over(text: &str, shown: &mut usize) -> io::Result<()> {
    let back = match *shown {
        0 => String::new(),
        lines => format!("\x1b[{lines}A"),
    };
    *shown = text.lines().count();
    console::print(format_args!("{back}\x1b[J{text}"))
}

/// The fleet, one server a line.
fn table(beats: &[&Beat]) -> String {
    let widest = |of: fn(&Beat) -> usize, head: &str| {
        let widest = beats.iter().map(|beat| of(beat)).max().unwrap_or(0);
        widest.max(head.len())
    };
    let server = widest(|beat| beat.server.as_str().len(), "SERVER");
    let zone = widest(|beat| beat.zone.as_str().len(), "ZONE");
    let version = widest(|beat| beat.version.as_str().len(), "VERSION");
    let has_config = beats.iter().any(|beat| beat.config.is_some());
    let sets: BTreeSet<_> = beats
        .iter()
        .filter_map(|beat| beat.streams.as_ref())
        .collect();
    let head = format!(
        "{:server$}  {:zone$}  {:version$}  {:8}  {:BAR$}  {:>15}  BUSY{}{}",
        "SERVER",
        "ZONE",
        "VERSION",
        "STATE",
        "VIEWERS",
        "",
        if sets.len() > 1 {
            "   STREAMS        "
        } else {
            ""
        },
        if has_config { "   CONFIG" } else { "" },
    );
    let mut text = format!("{}\n", head.trim_end());
    for beat in beats {
        let load = &beat.load;
        let part = f64::from(load.viewers) / f64::from(load.viewers_max.max(1));
        let count = format!("{}/{}", load.viewers, load.viewers_max);
        let streams = match &beat.streams {
            _ if sets.len() < 2 => String::new(),
            Some(hash) => format!("  {hash}"),
            None => format!("  {:16}", "-"),
        };
        let config = match (beat.config, &beat.config_hash) {
            _ if !has_config => String::new(),
            (Some(revision), Some(hash)) => format!("  {revision} {hash}"),
            (Some(revision), None) => format!("  {revision}"),
            (None, _) => "  -".to_owned(),
        };
        let line = format!(
            "{:server$}  {:zone$}  {:version$}  {:8}  {}  {count:>15}  {:3.0} %{streams}{config}",
            beat.server.as_str(),
            beat.zone.as_str(),
            beat.version.as_str(),
            state(beat),
            bar(part),
            load.busy * 100.0,
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let viewers: u64 = beats.iter().map(|beat| u64::from(beat.load.viewers)).sum();
    let servers = match beats.len() {
        1 => "1 server".to_owned(),
        count => format!("{count} servers"),
    };
    let _ = writeln!(text, "{servers}, {viewers} viewers");
    text
}

fn state(beat: &Beat) -> &'static str {
    match (beat.is_draining, beat.load.is_full) {
        (true, _) => "draining",
        (false, true) => "full",
        (false, false) => "serving",
    }
}

/// A part as a bar.
fn bar(part: f64) -> String {
    let filled = (0..BAR)
        .filter(|cell| part * BAR as f64 >= *cell as f64 + 0.5)
        .count();
    "█".repeat(filled) + &"░".repeat(BAR - filled)
}

const BAR: usize = 20;
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::super::beat::tests::beat;
    use super::super::beat::{Load, StreamsHash};
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_server() {
        let load = |viewers, busy, is_full| Load {
            viewers,
            viewers_max: 35_000,
            busy,
            wait_s: 0.0,
            is_full,
        };
        let one = Beat {
            load: load(17_500, 0.41, false),
            ..beat("a-1")
        };
        let other = Beat {
            load: load(35_000, 0.9, true),
            zone: "west".parse().unwrap(),
            ..beat("edge-12")
        };
        let last = Beat {
            is_draining: true,
            load: load(3, 0.0, false),
            ..beat("b")
        };
        let expected = "\
SERVER   ZONE  VERSION  STATE     VIEWERS                                BUSY
a-1      east  0.1.0    serving   ██████████░░░░░░░░░░      17500/35000   41 %
edge-12  west  0.1.0    full      ████████████████████      35000/35000   90 %
b        east  0.1.0    draining  ░░░░░░░░░░░░░░░░░░░░          3/35000    0 %
3 servers, 52503 viewers
";
        assert_eq!(table(&[&one, &other, &last]), expected);
        assert!(table(&[]).ends_with("0 servers, 0 viewers\n"));
    }

    #[test]
    fn a_table_shows_which_configuration_is_in_force() {
        let one = Beat {
            config: Some(12),
            config_hash: Some("af1349b9f5f9a1a6".parse().unwrap()),
            ..beat("a")
        };
        // An older version tells no hash.
        let older = Beat {
            config: Some(12),
            ..beat("c")
        };
        let expected = "\
SERVER  ZONE  VERSION  STATE     VIEWERS                                BUSY   CONFIG
a       east  0.1.0    serving   ░░░░░░░░░░░░░░░░░░░░           0/1000    0 %  12 af1349b9f5f9a1a6
b       east  0.1.0    serving   ░░░░░░░░░░░░░░░░░░░░           0/1000    0 %  -
c       east  0.1.0    serving   ░░░░░░░░░░░░░░░░░░░░           0/1000    0 %  12
3 servers, 0 viewers
";
        assert_eq!(table(&[&one, &beat("b"), &older]), expected);
    }

    #[test]
    fn a_table_shows_who_has_other_streams() {
        let with = |name, streams: &[&str]| Beat {
            streams: Some(StreamsHash::of(
                &streams.iter().map(ToString::to_string).collect::<Vec<_>>(),
            )),
            ..beat(name)
        };
        let expected = "\
SERVER  ZONE  VERSION  STATE     VIEWERS                                BUSY   STREAMS
a       east  0.1.0    serving   ░░░░░░░░░░░░░░░░░░░░           0/1000    0 %  50745dd48d0eac72
b       east  0.1.0    serving   ░░░░░░░░░░░░░░░░░░░░           0/1000    0 %  c80e31d49ed4a48f
c       east  0.1.0    serving   ░░░░░░░░░░░░░░░░░░░░           0/1000    0 %  -
3 servers, 0 viewers
";
        let (one, other) = (with("a", &["live"]), with("b", &["live", "more"]));
        assert_eq!(table(&[&one, &other, &beat("c")]), expected);
        let [one, other] = [one, other].map(|beat| Beat {
            config: Some(3),
            ..beat
        });
        let shown = table(&[&one, &other, &beat("c")]);
        for line in [
            "BUSY   STREAMS           CONFIG\n",
            "0 %  50745dd48d0eac72  3\n",
            "0 %  -                 -\n",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
        // Where all have the same, there is nothing to see.
        assert!(!table(&[&one, &with("b", &["live"])]).contains("STREAMS"));
    }
}
