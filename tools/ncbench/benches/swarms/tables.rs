//! Which runs make which table and figure.

use std::path::PathBuf;
use std::time::Duration;

use ncbench::plot::{Figure, Panel, Series};

use crate::figures::Outcome;
use crate::setup::{Layout, Setup};
use crate::world::World;

/// What all tables share.
pub(crate) struct Bench {
    pub(crate) usual: Setup,
    pub(crate) peers: usize,
    pub(crate) plots: Option<PathBuf>,
}

/// Viewers of a network of their own.
const LAN: usize = 20;
/// Viewers by whom it is told what a viewer alone takes.
const ALONE: usize = 50;
/// Viewers on the server alone of whom it is shown that each takes the same.
const ALONE_MAX: usize = 1000;
/// Loss of a hop, and rate of a chain's lines in bitrates.
const HOP_LOSS: f64 = 0.05;
const HOP_RATE: f64 = 4.0;
/// Segments by which it is told what a chain carries.
const CHAIN_SEGMENTS: usize = 60;

impl Bench {
    pub(crate) fn sizes(&self) {
        let alone = self.alone();
        let mut sizes: Vec<usize> = [10, 50, 100, 1000]
            .into_iter()
            .filter(|size| *size < self.peers)
            .collect();
        sizes.push(self.peers);
        head("Viewers of a live stream", "viewers");
        let layouts = [
            ("the server alone", Layout::Star),
            ("each other", Layout::Swarm),
            ("their network", Layout::Lans(LAN)),
        ];
        let mut runs = layouts.map(|(name, _)| (name, Vec::new()));
        for viewers in sizes {
            for ((name, layout), (_, outcomes)) in layouts.iter().zip(&mut runs) {
                // A viewer alone costs as much however many there are.
                if *layout == Layout::Star && viewers > ALONE_MAX {
                    continue;
                }
                let outcome = World::new(Setup {
                    layout: *layout,
                    viewers,
                    ..self.usual.clone()
                })
                .run();
                row(&format!("{viewers}, on {name}"), &outcome, alone);
                outcomes.push((viewers as f64, outcome));
            }
        }
        let panel = |title: &str, y: &str, value: &dyn Fn(&Outcome) -> f64| {
            let series = runs.iter().map(|(name, outcomes)| {
                let points = outcomes
                    .iter()
                    .map(|(viewers, outcome)| (*viewers, value(outcome)))
                    .collect();
                Series {
                    name: format!("on {name}"),
                    points,
                }
            });
            let series = series.collect();
            Panel {
                title: title.to_owned(),
                x: "viewers".to_owned(),
                y: y.to_owned(),
                series,
                marks: Vec::new(),
            }
        };
        let mut first = panel("server's upload", "% of unicast", &|outcome| {
            100.0 * outcome.all() / alone
        });
        first.marks.push(("20 %".to_owned(), 20.0));
        let panels = vec![
            first,
            panel(
                "from publication to the last block",
                "s, 99th percentile",
                &|outcome| outcome.delay.1.as_secs_f64(),
            ),
            panel(
                "a viewer's upload",
                "bitrates, 90th percentile",
                &|outcome| outcome.upload[2],
            ),
        ];
        self.draw("swarm-sizes", "Live swarms in the simulator", panels);
    }

    pub(crate) fn uploads(&self) {
        let alone = self.alone();
        head(
            "50 viewers on each other, by what each sends at most",
            "upload, bitrates",
        );
        let rates = [0.25, 0.5, 1.0, 1.5, 2.0, 4.0];
        let outcomes = rates.map(|upload| {
            let setup = Setup {
                layout: Layout::Swarm,
                viewers: 50,
                upload,
                ..self.usual.clone()
            };
            let outcome = World::new(setup).run();
            row(&upload.to_string(), &outcome, alone);
            (upload, outcome)
        });
        let panel = |title: &str, y: &str, value: &dyn Fn(&Outcome) -> f64| {
            let points = outcomes
                .iter()
                .map(|(upload, outcome)| (*upload, value(outcome)))
                .collect();
            let series = vec![Series {
                name: "50 viewers".to_owned(),
                points,
            }];
            Panel {
                title: title.to_owned(),
                x: "upload, bitrates".to_owned(),
                y: y.to_owned(),
                series,
                marks: Vec::new(),
            }
        };
        let panels = vec![
            panel("server's upload", "% of unicast", &|outcome| {
                100.0 * outcome.all() / alone
            }),
            panel(
                "from publication to the last block",
                "s, median",
                &|outcome| outcome.delay.0.as_secs_f64(),
            ),
        ];
        self.draw(
            "swarm-uploads",
            "50 viewers that send little and much",
            panels,
        );
    }

    pub(crate) fn trouble(&self) {
        let alone = self.alone();
        let viewers = self.peers.min(1000);
        head(
            &format!("{viewers} viewers on each other, not all of them of use"),
            "what is wrong",
        );
        let usual = Setup {
            layout: Layout::Swarm,
            viewers,
            ..self.usual.clone()
        };
        let mut bars = Vec::new();
        let mut run = |name: &str, setup: Setup| {
            let outcome = World::new(setup).run();
            row(name, &outcome, alone);
            bars.push(Series {
                name: name.to_owned(),
                points: vec![(1.0, 100.0 * outcome.all() / alone)],
            });
            outcome
        };
        run("nothing", usual.clone());
        run(
            "5 % lost on every path",
            Setup {
                loss: 0.05,
                ..usual.clone()
            },
        );
        run(
            "half go within a minute, and others come",
            Setup {
                churn: 0.5,
                ..usual.clone()
            },
        );
        run(
            "all go within a minute, and others come",
            Setup {
                churn: 1.0,
                ..usual.clone()
            },
        );
        run(
            "10 % offer and send nothing",
            Setup {
                mute: 0.1,
                ..usual.clone()
            },
        );
        run(
            "30 % offer and send nothing",
            Setup {
                mute: 0.3,
                ..usual.clone()
            },
        );
        let polluted = run(
            "5 % send wrong blocks",
            Setup {
                polluters: 0.05,
                ..usual
            },
        );
        println!(
            "\nAmong the {viewers} with 5 % that send wrong blocks, one was found and dropped {} \
             times.",
            polluted.polluters
        );
        let (x, y) = (String::new(), "server's upload, % of unicast".to_owned());
        let panel = Panel {
            title: format!("{viewers} viewers"),
            x,
            y,
            series: bars,
            marks: Vec::new(),
        };
        self.draw(
            "swarm-trouble",
            "Swarms in which not all are of use",
            vec![panel],
        );
    }

    pub(crate) fn relays(&self) {
        println!(
            "\nOne viewer behind chains of lines that carry {HOP_RATE} bitrates and lose {:.0} % \
             each, as fast as they go\n",
            100.0 * HOP_LOSS
        );
        println!(
            "| hops | relays recode: goodput, % of the line | of one hop's | nodes keep nothing \
             and pass on: goodput, % | of one hop's |"
        );
        println!("|---|---:|---:|---:|---:|");
        let hops = [1, 2, 3, 4];
        let goodput = |layout| {
            let (interval, download) = (Duration::ZERO, HOP_RATE);
            let (viewers, segments, warm_up, loss) = (1, CHAIN_SEGMENTS, 0, HOP_LOSS);
            let setup = Setup {
                layout,
                viewers,
                segments,
                warm_up,
                loss,
                interval,
                download,
                ..self.usual.clone()
            };
            100.0 * World::new(setup).run().goodput / HOP_RATE
        };
        let coded = hops.map(|hops| goodput(Layout::Tree { hops, fan_out: 1 }));
        let passed = hops.map(|hops| goodput(Layout::Forwarded { hops }));
        for (place, hops) in hops.iter().enumerate() {
            let (coded_share, passed_share) = (
                100.0 * coded[place] / coded[0],
                100.0 * passed[place] / passed[0],
            );
            println!(
                "| {hops} | {:.1} | {coded_share:.0} % | {:.1} | {passed_share:.0} % |",
                coded[place], passed[place]
            );
        }
        let series =
            [("relays recode", coded), ("nodes pass on", passed)].map(|(name, goodputs)| {
                let points = hops
                    .iter()
                    .zip(goodputs)
                    .map(|(hops, goodput)| (*hops as f64, goodput))
                    .collect();
                Series {
                    name: name.to_owned(),
                    points,
                }
            });
        let (x, y) = ("hops".to_owned(), "goodput, % of a line".to_owned());
        let title = format!("{:.0} % lost a hop", 100.0 * HOP_LOSS);
        let panel = Panel {
            title,
            x,
            y,
            series: series.to_vec(),
            marks: Vec::new(),
        };
        self.draw("relay-chains", "Chains of relays", vec![panel]);

        let alone = self.alone();
        let viewers = self.peers.min(1000);
        head(
            &format!(
                "{viewers} viewers of a live stream, three hops away, {:.0} % lost a hop",
                100.0 * HOP_LOSS
            ),
            "on the way",
        );
        let usual = Setup {
            viewers,
            loss: HOP_LOSS,
            ..self.usual.clone()
        };
        let coded = World::new(Setup {
            layout: Layout::Tree {
                hops: 3,
                fan_out: 10,
            },
            ..usual.clone()
        })
        .run();
        row("10 relays, and 10 behind each, that recode", &coded, alone);
        let passed = World::new(Setup {
            layout: Layout::Forwarded { hops: 3 },
            ..usual
        })
        .run();
        row("nodes that keep nothing and pass on", &passed, alone);
    }

    /// What the server sends a viewer that has nobody else, in segments for each.
    fn alone(&self) -> f64 {
        World::new(Setup {
            layout: Layout::Star,
            viewers: ALONE,
            ..self.usual.clone()
        })
        .run()
        .all()
    }

    fn draw(&self, name: &str, title: &str, panels: Vec<Panel>) {
        let Some(directory) = &self.plots else { return };
        std::fs::create_dir_all(directory).expect("the directory for figures can be made");
        let path = directory.join(name).with_extension("svg");
        std::fs::write(
            &path,
            Figure {
                title: title.to_owned(),
                panels,
            }
            .svg(),
        )
        .expect("a figure can be written");
    }
}

fn head(title: &str, first: &str) {
    println!("\n{title}\n");
    println!(
        "| {first} | server's upload, % of unicast | of that no blocks, % | received / n, median | \
         most | useless, % | late, % | complete after, median s | 99th | upload, 10th percentile | \
         median | 90th | most |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
}

/// `alone`: what unicast takes.
fn row(what: &str, outcome: &Outcome, alone: f64) {
    let Outcome {
        received,
        useless,
        late,
        delay,
        upload,
        ..
    } = outcome;
    println!(
        "| {what} | {:.1} | {:.1} | {:.3} | {:.3} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} \
         | {:.2} | {:.2} |",
        100.0 * outcome.all() / alone,
        100.0 * outcome.control / outcome.all(),
        received.0,
        received.1,
        100.0 * useless,
        100.0 * late,
        delay.0.as_secs_f64(),
        delay.1.as_secs_f64(),
        upload[0],
        upload[1],
        upload[2],
        upload[3],
    );
}
