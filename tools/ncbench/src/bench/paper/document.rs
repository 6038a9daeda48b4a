//! The generated parts of the pages below `docs/benchmarks/`: each row's claim beside the results
//! of the records.
//!
//! The text between the two markers of a page is replaced, the rest stays. Figures come only from
//! records.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::catalogue::{Bar, Group, Row};
use super::record::{Point, Record, RowResult, SIDES, digits};
use super::{Error, all_rows};

/// A file of the document, and what stands there.
struct Page {
    file: &'static str,
    /// With their titles, where there are several.
    groups: &'static [(Group, &'static str)],
}

/// Writes the parts of all pages of this directory anew.
pub(super) fn write(directory: &Path, records: &[Record]) -> Result<(), Error> {
    PAGES
        .iter()
        .try_for_each(|page| page.write(directory, records))
}

impl Page {
    fn write(&self, directory: &Path, records: &[Record]) -> Result<(), Error> {
        let path = directory.join(self.file);
        let text = fs::read_to_string(&path)?;
        let refuse = || Error::Record {
            path: path.clone(),
            reason: format!("it has no lines `{BEGIN}` and `{END}`"),
        };
        let (head, rest) = text.split_once(BEGIN).ok_or_else(refuse)?;
        let (_, tail) = rest.split_once(END).ok_or_else(refuse)?;
        Ok(fs::write(
            &path,
            format!("{head}{BEGIN}\n\n{}\n{END}{tail}", self.body(records)),
        )?)
    }

    fn body(&self, records: &[Record]) -> String {
        let mut text = String::new();
        let records = self.records(records);
        self.write_body(&mut text, &records)
            .expect("a string takes everything");
        text
    }

    /// Those that have something of it.
    fn records<'a>(&self, records: &'a [Record]) -> Vec<&'a Record> {
        let is_here = |result: &RowResult| {
            let mut rows = all_rows().filter(|row| self.has(row.group));
            !result.points.is_empty() && rows.any(|row| row.id == result.row)
        };
        records
            .iter()
            .filter(|record| record.rows.iter().any(is_here))
            .collect()
    }

    fn has(&self, group: Group) -> bool {
        self.groups.iter().any(|(own, _)| *own == group)
    }

    fn write_body(&self, text: &mut String, records: &[&Record]) -> std::fmt::Result {
        for (index, record) in records.iter().enumerate() {
            let link = match record.name.as_str() {
                "" => format!("Record {}", index + 1),
                name => format!("[Record {}](../../benches/record/{name})", index + 1),
            };
            writeln!(text, "- {link}: {}", record.place())?;
        }
        for (group, title) in self.groups {
            if self.groups.len() > 1 {
                writeln!(text, "\n## {title}")?;
            }
            writeln!(text)?;
            let timers = timers(*group, records);
            if !timers.is_empty() {
                writeln!(text, "Each row names its timers. They cover:\n")?;
                timers
                    .iter()
                    .enumerate()
                    .try_for_each(|(index, timer)| writeln!(text, "- T{}: {timer}", index + 1))?;
                writeln!(text)?;
            }
            writeln!(
                text,
                "| row | what | paper | here |\n| --- | --- | --- | --- |"
            )?;
            for row in all_rows().filter(|row| row.group == *group) {
                write_row(text, row, records, &timers)?;
            }
        }
        Ok(())
    }
}

/// What is inside the timers of a group's rows, each once.
fn timers<'a>(group: Group, records: &[&'a Record]) -> Vec<&'a str> {
    let mut timers = Vec::new();
    for row in all_rows().filter(|row| row.group == group) {
        let results = records
            .iter()
            .flat_map(|record| &record.rows)
            .filter(|result| result.row == row.id && !result.points.is_empty());
        for timer in results
            .flat_map(|result| &result.timers)
            .map(String::as_str)
        {
            if !timers.contains(&timer) {
                timers.push(timer);
            }
        }
    }
    timers
}

fn write_row(
    text: &mut String,
    row: &Row,
    records: &[&Record],
    timers: &[&str],
) -> std::fmt::Result {
    let numbered = records.iter().enumerate();
    let found = numbered.flat_map(|(index, record)| {
        record
            .rows
            .iter()
            .map(move |result| (index + 1, *record, result))
    });
    let results: Vec<Found<'_>> = found
        .filter(|(.., result)| result.row == row.id && !result.points.is_empty())
        .collect();
    let is_inside = |timer: &&str| {
        results
            .iter()
            .any(|(.., result)| result.timers.iter().any(|own| own == timer))
    };
    let own = timers
        .iter()
        .enumerate()
        .filter(|(_, timer)| is_inside(timer))
        .map(|(index, _)| format!("T{}", index + 1));
    let own = own.collect::<Vec<_>>().join(", ");
    let has_gains = results.iter().any(|(.., result)| {
        let mut panels = result.panels().into_iter();
        panels.any(|(_, points)| {
            points
                .iter()
                .any(|point| result.gain(&points, &point.series, point.x).is_some())
        })
    });
    let base = if has_gains {
        format!("Multiples are over {}", row.base)
    } else {
        String::new()
    };
    let about: Vec<&str> = [own.as_str(), row.note, base.as_str()]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    writeln!(
        text,
        "| **{}** | {} | | {} |",
        row.id,
        row.title,
        about.join(". ")
    )?;
    for bar in row.bars {
        let answers: Vec<String> = results
            .iter()
            .flat_map(|found| answer(bar, found))
            .collect();
        let ours = if answers.is_empty() {
            "no record yet".to_owned()
        } else {
            answers.join("<br>")
        };
        writeln!(text, "| | {} | {} | {ours} |", bar.what, bar.paper)?;
    }
    Ok(())
}

/// A row in a record, with the record's number.
type Found<'a> = (usize, &'a Record, &'a RowResult);

/// Every series where the bar looks, and the ratio, or why there is none.
fn answer(bar: &Bar, (index, record, result): &Found<'_>) -> Vec<String> {
    let mut answers = Vec::new();
    for (_, points) in result
        .panels()
        .into_iter()
        .filter(|(name, _)| name.starts_with(bar.panel))
    {
        let mut names: Vec<&str> = Vec::new();
        for point in &points {
            if !names.contains(&point.series.as_str()) {
                names.push(&point.series);
            }
        }
        let values = names.into_iter().filter_map(|name| {
            let point = pick(
                bar,
                points.iter().copied().filter(|point| point.series == name),
            )?;
            let at = if bar.x.is_none() {
                format!(" at {}", point.x)
            } else {
                String::new()
            };
            let times = result
                .gain(&points, name, point.x)
                .map_or_else(String::new, |gain| format!(" ({}x)", digits(gain)));
            Some(format!(
                "{name} **{}** {}{at}{times}",
                digits(point.value),
                point.unit
            ))
        });
        let mut values: Vec<String> = values.collect();
        for (by, name) in SIDES {
            let ratio = bar
                .x
                .and_then(|x| result.ratio(&points, by, x, record.cores()));
            values.extend(ratio.map(|ratio| match ratio {
                Ok(ratio) => format!("{name} {}", digits(ratio)),
                Err(reason) => format!("no {name}: {reason}"),
            }));
        }
        if !values.is_empty() {
            answers.push(format!("{} [{index}]", values.join("; ")));
        }
    }
    answers
}

/// The point at the bar's x, or the best.
fn pick<'a>(bar: &Bar, points: impl Iterator<Item = &'a Point>) -> Option<&'a Point> {
    match bar.x {
        Some(x) => points.into_iter().find(|point| point.x == x),
        None => points
            .into_iter()
            .max_by(|a, b| a.value.total_cmp(&b.value)),
    }
}

const BEGIN: &str = "<!-- rows: written by `ncbench papers --from` -->";
const END: &str = "<!-- end of rows -->";
const PAGES: [Page; 6] = [
    Page {
        file: "s1.md",
        groups: &[(Group::S1, "")],
    },
    Page {
        file: "s2.md",
        groups: &[(Group::S2, "")],
    },
    Page {
        file: "s3.md",
        groups: &[(Group::S3, "")],
    },
    Page {
        file: "s4.md",
        groups: &[(Group::S4, "")],
    },
    Page {
        file: "s5.md",
        groups: &[(Group::S5, "")],
    },
    Page {
        file: "figures.md",
        groups: &[
            (
                Group::Claim,
                "The papers' claim: GPU beside all cores of its host",
            ),
            (Group::Figures, "The figures this program sets itself"),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::super::record::By;
    use super::*;

    /// The document in the tree says what the records in the tree say.
    #[test]
    fn figures_come_from_records() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let files = fs::read_dir(root.join("benches/record"))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let is_record = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("papers-") && name.ends_with(".json")
        };
        let mut files: Vec<_> = files.filter(is_record).collect();
        files.sort();
        if files.is_empty() {
            return;
        }
        let records: Vec<Record> = files
            .iter()
            .map(|path| Record::read(path).unwrap())
            .collect();
        for page in PAGES {
            let path = root.join("docs/benchmarks").join(page.file);
            let text = fs::read_to_string(path).unwrap();
            let generated = text
                .split_once(BEGIN)
                .and_then(|(_, rest)| rest.split_once(END))
                .map(|(generated, _)| generated.trim());
            assert!(
                generated == Some(page.body(&records).trim()),
                "{}: run `ncbench papers --from benches/record/papers-….json,… --document \
                 docs/benchmarks`",
                page.file
            );
        }
    }

    /// All pages in one text.
    fn body(records: &[Record]) -> String {
        PAGES.iter().map(|page| page.body(records)).collect()
    }

    fn result(row: &str, points: &[(&str, By, u32, f64)]) -> RowResult {
        let row = all_rows().find(|known| known.id == row).unwrap();
        // The first that looks where all of these are.
        let has_all = |bar: &&Bar| {
            points
                .iter()
                .all(|point| row.maker(bar.panel, point.0).is_some())
        };
        let bar = row.bars.iter().find(has_all).unwrap();
        let point = |&(series, by, generations, value): &(&str, By, u32, f64)| Point {
            case: String::new(),
            panel: bar.panel.into(),
            series: series.into(),
            x: bar.x.unwrap_or(1.0),
            value,
            best: value,
            worst: value,
            unit: "GB/s".into(),
            by,
            n: 128,
            k: 4096,
            rows: 128,
            generations,
            rounds: 1,
            repeats: 1,
            bytes: 1,
        };
        let points = points.iter().map(point).collect();
        RowResult {
            points,
            timers: vec!["kernel: from here to there".into()],
            ..RowResult::new(row, &[])
        }
    }

    fn said(result: RowResult) -> String {
        let machine = serde_json::json!({ "cores": 16 });
        let record = Record {
            name: String::new(),
            machine,
            gpus: Vec::new(),
            field: String::new(),
            quick: false,
            rows: vec![result],
        };
        body(&[record])
    }

    /// Papers' figures are quoted beside the same work only, and each measure is named with what
    /// its timer covers.
    #[test]
    fn only_the_same_work_is_compared() {
        let all = ("CPU, 16 threads", By::Cpu, 16, 12.0);
        let text = said(result(
            "S2-7",
            &[("table with forms and rows", By::Gpu, 16, 60.0), all],
        ));
        assert!(text.contains("GPU : CPU 5.000"), "{text}");
        let text = said(result("claim-encode", &[("table", By::Gpu, 64, 60.0), all]));
        assert!(
            !text.contains("GPU : CPU 5"),
            "64 generations beside 16: {text}"
        );
        let threads = ("CPU, a generation a thread, 16 threads", By::Cpu, 16, 4.0);
        let text = said(result(
            "claim-decode",
            &[("table decode, raw payloads", By::Gpu, 264, 60.0), threads],
        ));
        assert!(
            !text.contains("GPU : CPU 15"),
            "264 generations beside 16: {text}"
        );
        let (one, many) = (
            ("ours, GPU, 1 generations", By::Gpu, 1, 9.0),
            ("ours, GPU, 8 generations", By::Gpu, 8, 900.0),
        );
        let text = said(result(
            "S3-5",
            &[many, one, ("CPU, 16 threads", By::Cpu, 1, 3.0)],
        ));
        assert!(
            text.contains("GPU : CPU 3.000"),
            "8 generations beside one: {text}"
        );
        let few = ("fold, 16 threads", By::Cpu, 1, 12.0);
        let text = said(result(
            "S5-5",
            &[("rs-fold 1x256, GPU", By::Gpu, 1, 90.0), few],
        ));
        assert!(
            !text.contains("GPU : CPU 7"),
            "tables without vector instructions: {text}"
        );
    }

    /// Work that one side does before its timer begins is inside the timer of the other.
    #[test]
    fn prepared_work_is_not_compared() {
        let cores = ("inactivation, 16 threads", By::Cpu, 256, 30.0);
        for prepared in [
            "replayed, GPU",
            "scheme-1, GPU",
            "scheme-2, GPU",
            "replayed, through the GPU",
            "scheme-2 through the GPU",
        ] {
            let by = if prepared.contains("through") {
                By::GpuToHost
            } else {
                By::Gpu
            };
            let text = said(result("S4-12", &[(prepared, by, 256, 90.0), cores]));
            assert!(
                !text.contains(": CPU 3.000")
                    && text.contains(&format!("{prepared} **90.00** GB/s;")),
                "{text}"
            );
        }
        let whole = (
            "plans and replayed, through the GPU, 16 threads",
            By::GpuToHost,
            256,
            60.0,
        );
        let text = said(result(
            "S4-12",
            &[
                ("scheme-2 through the GPU", By::GpuToHost, 256, 90.0),
                whole,
                cores,
            ],
        ));
        assert!(text.contains("GPU to the host : CPU 2.000"), "{text}");
        let text = said(result(
            "S2-7",
            &[
                ("table", By::Gpu, 16, 60.0),
                ("CPU, 16 threads", By::Cpu, 16, 12.0),
            ],
        ));
        assert!(
            !text.contains("GPU : CPU 5"),
            "rows and forms made before: {text}"
        );
    }

    /// A CPU that has more threads than its work has parts is not at its best.
    #[test]
    fn idle_threads_are_not_compared() {
        let card = ("served by the GPU", By::GpuToHost, 1, 12.0);
        let text = said(result(
            "figure-prime",
            &[card, ("CPU, 16 threads", By::Cpu, 1, 0.8)],
        ));
        assert!(
            !text.contains(": CPU 15"),
            "128 blocks are four parts: {text}"
        );
        let text = said(result(
            "S3-2",
            &[
                ("ours, GPU", By::Gpu, 1, 12.0),
                ("CPU, 1 thread", By::Cpu, 1, 0.8),
            ],
        ));
        assert!(!text.contains(": CPU 15"), "one thread of sixteen: {text}");
        let few = [
            ("invert", By::Gpu, 1, 12.0),
            ("CPU, 16 threads", By::Cpu, 1, 0.8),
        ];
        assert!(
            !said(result("figure-invert", &few)).contains(": CPU 15"),
            "fewer threads are sooner there"
        );
    }

    /// A multiple over the row's base is one of the same work, too, and not of a GPU over a thread.
    #[test]
    fn only_the_same_work_is_a_multiple() {
        let base = ("CPU, 1 thread", By::Cpu, 1, 2.0);
        let many = ("ours, GPU, 132 generations", By::Gpu, 132, 700.0);
        let text = said(result("S3-4", &[many, base]));
        assert!(
            !text.contains("(350.0x)"),
            "132 generations beside one: {text}"
        );
        let text = said(result("S3-2", &[("ours, GPU", By::Gpu, 1, 24.0), base]));
        assert!(
            !text.contains("(12.00x)"),
            "a GPU over one thread of sixteen: {text}"
        );
        let text = said(result(
            "S3-3",
            &[("CPU, 16 threads", By::Cpu, 1, 6.0), base],
        ));
        assert!(
            !text.contains("(3.000x)"),
            "128 blocks are four parts: {text}"
        );
        let base = ("thesis-2, 1 thread", By::Cpu, 256, 2.0);
        let others = [
            ("scheme-2, GPU", By::Gpu, 256, 90.0),
            ("scheme-2, 1 thread", By::Cpu, 256, 8.0),
            ("thesis-2, 16 threads", By::Cpu, 256, 14.0),
            ("scheme-2, 16 threads", By::Cpu, 256, 50.0),
        ];
        let text = said(result("S4-11", &[&[base][..], &others].concat()));
        assert!(!text.contains("(45.00x)"), "matrices made before: {text}");
        assert!(
            text.contains("(4.000x)") && text.contains("(7.000x)"),
            "another contender, or more threads: {text}"
        );
        assert!(!text.contains("(25.00x)"), "both at once: {text}");
    }

    #[test]
    fn what_is_inside_a_timer_stands_above_the_table_and_notes_in_it() {
        let text = said(result(
            "S2-19",
            &[("table to the host", By::GpuToHost, 64, 60.0)],
        ));
        let (above, table) = text
            .split_once("- Record 1")
            .unwrap()
            .1
            .split_once("| row |")
            .unwrap();
        assert!(
            above.contains("- T1: kernel: from here to there"),
            "{above}"
        );
        assert!(
            table.contains("| **S2-19** | GPU and CPU together | | T1. One round of 0.7 s."),
            "{table}"
        );
    }

    /// The papers' words, as they stand in the papers.
    #[test]
    fn papers_are_quoted_right() {
        let bars = |id: &str| {
            let row = all_rows().find(|row| row.id == id).unwrap();
            row.bars
                .iter()
                .map(|bar| format!("{}: {}", bar.what, bar.paper))
                .collect::<Vec<_>>()
                .join("; ")
        };
        assert!(
            bars("S3-3").contains("above 66x for every K > 32")
                && !bars("S3-3").contains("800 Mbit/s, 66x")
        );
        assert!(bars("S4-13").contains("1.5 W in C, 1.4 W in OpenCL"));
        assert!(bars("S5-12").contains("of 1 MiB here"));
        assert!(bars("S4-11").contains("K=511: 5.9x"));
        let at = |id: &str| all_rows().find(|row| row.id == id).unwrap().bars[0].x;
        assert_eq!(
            [at("S2-19"), at("S3-9")],
            [Some(4096.0), Some(90.0)],
            "where the paper has its figure"
        );
    }

    #[test]
    fn a_document_keeps_what_is_written_by_hand() {
        let directory = tempfile::tempdir().unwrap();
        let path = |page: &Page| directory.path().join(page.file);
        for page in &PAGES {
            fs::write(
                path(page),
                format!("# Head\n\n{BEGIN}\nold\n{END}\n\ntail\n"),
            )
            .unwrap();
        }
        write(directory.path(), &[]).unwrap();
        for page in &PAGES {
            let text = fs::read_to_string(path(page)).unwrap();
            assert!(text.starts_with("# Head\n") && text.ends_with("\n\ntail\n"));
            assert!(!text.contains("old"));
            for row in all_rows() {
                let is_here = text.contains(&format!("| **{}** |", row.id));
                assert_eq!(is_here, page.has(row.group), "{} in {}", row.id, page.file);
            }
        }
        fs::write(path(&PAGES[3]), "nothing").unwrap();
        let refused = write(directory.path(), &[]);
        assert!(matches!(refused, Err(Error::Record { .. })));
    }
}
