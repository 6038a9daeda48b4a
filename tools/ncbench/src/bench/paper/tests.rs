use ncserverd::device::{self, Threads};

use super::load::{Coded, Load};
use super::*;
use crate::bench::Set;

fn options() -> Options {
    Options {
        set: Set::All,
        filter: None,
        list: false,
        quick: true,
        n: Vec::new(),
        k: Vec::new(),
        isas: Vec::new(),
        threads: Threads::Count(2.try_into().unwrap()),
        json: None,
        papers: None,
        command: "ncbench cases".into(),
    }
}

fn all() -> Papers {
    Papers {
        groups: Group::ALL.to_vec(),
        backend: Backend::Cpu,
        ..Papers::default()
    }
}

fn text(options: &Options, papers: &Papers) -> String {
    let mut out = Vec::new();
    run(options, papers, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_rows_of_all_papers_are_there() {
    let ids: Vec<&str> = all_rows().map(|row| row.id).collect();
    let papers = [("S1", 15), ("S2", 25), ("S3", 11), ("S4", 16), ("S5", 17)];
    let expected = papers
        .into_iter()
        .flat_map(|(paper, rows)| (1..=rows).map(move |row| format!("{paper}-{row}")));
    assert_eq!(ids[..84], expected.collect::<Vec<_>>());
    let unique: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(unique.len(), ids.len());
    let elsewhere: Vec<&str> = all_rows()
        .filter(|row| row.sweeps.is_empty())
        .map(|row| row.id)
        .collect();
    let expected = "S2-5 S2-24 S3-1 S3-8 S4-1 S4-2 S4-16";
    assert_eq!(elsewhere.join(" "), expected);
    assert!(all_rows().all(|row| row.sweeps.is_empty() || !row.bars.is_empty()));
}

/// Every bar has a panel and an x among the cases of its row; otherwise the document could not
/// answer it.
#[test]
fn every_claim_has_a_case_that_answers_it() {
    let scope = scope(false);
    for row in all_rows() {
        let cases = row.cases(&scope);
        for bar in row.bars {
            let fits = |case: &&Case| {
                case.panel.starts_with(bar.panel) && bar.x.is_none_or(|x| x == case.x)
            };
            assert!(
                cases.iter().any(|case| fits(&case)),
                "{}: {}",
                row.id,
                bar.what
            );
        }
        for case in &cases {
            let unit = |other: &&Case| {
                other.panel == case.panel && other.measure.unit() != case.measure.unit()
            };
            assert_eq!(
                cases.iter().find(unit).map(|other| &other.series),
                None,
                "{}: one unit in {}",
                row.id,
                case.panel
            );
        }
    }
}

#[test]
fn sweeps_spread_out_as_the_figures_have_them() {
    let scope = scope(false);
    let row = all_rows().find(|row| row.id == "S1-6").unwrap();
    let cases = row.cases(&scope);
    assert_eq!(cases.len(), 3 * 8 * (2 * 3 + 1));
    let names: Vec<String> = cases.iter().map(|case| case.name(row)).collect();
    assert!(
        names.contains(&"S1-6/n=512/table/33-SMs/2048".to_owned()),
        "{names:?}"
    );
    assert!(names.contains(&"S1-6/n=128/CPU/16-threads/16".to_owned()));
    let narrowed = Scope {
        n: vec![64],
        kernels: vec!["table".into()],
        ..scope
    };
    assert_eq!(row.cases(&narrowed).len(), 8 * (3 + 1));
}

fn scope(is_full: bool) -> Scope {
    Scope {
        threads: 16,
        gpus: 1,
        sms: 132,
        n: Vec::new(),
        k: Vec::new(),
        kernels: Vec::new(),
        is_quick: false,
        is_full,
    }
}

#[test]
fn all_gpus_are_those_of_the_host() {
    let row = all_rows().find(|row| row.id == "S5-15").unwrap();
    let names = |gpus| -> Vec<String> {
        row.cases(&Scope {
            gpus,
            ..scope(false)
        })
        .iter()
        .map(|case| case.name(row))
        .collect()
    };
    assert!(names(1) == names(0) && names(1).iter().all(|name| !name.contains("GPUs")));
    assert!(
        names(8).len() > names(1).len()
            && names(8)
                .iter()
                .any(|name| name.contains("stripes-through-the-GPU/3-streams/8-GPUs"))
    );
}

#[test]
fn all_sizes_of_a_figure_are_there_when_they_are_asked_for() {
    let row = all_rows().find(|row| row.id == "S4-9").unwrap();
    let lists = |is_full| {
        let cases = row.cases(&scope(is_full));
        let of_scheme = cases
            .iter()
            .filter(|case| case.kernel == "scheme-2")
            .map(|case| (case.k, case.n));
        of_scheme.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!((lists(false).len(), lists(true).len()), (3 * 4, 9 * 10));
    assert!(lists(true).is_superset(&lists(false)));
    let asked = Scope {
        n: vec![77],
        k: vec![8],
        ..scope(true)
    };
    assert!(
        row.cases(&asked)
            .iter()
            .all(|case| (case.n, case.k, case.rows) == (77, 8, 1))
    );
}

/// A speed-up needs what it is over, at the same x of the same panel.
#[test]
fn every_speed_up_has_a_base() {
    for row in all_rows().filter(|row| !row.base.is_empty()) {
        let cases = row.cases(&scope(false));
        for case in &cases {
            let is_base = |other: &&Case| {
                (&other.panel, other.x) == (&case.panel, case.x)
                    && other.series.starts_with(row.base)
            };
            assert!(
                cases.iter().any(|other| is_base(&other)),
                "{}: {} in {}",
                row.id,
                case.series,
                case.panel
            );
        }
    }
}

#[test]
fn gains_are_of_times_and_of_rates() {
    let row = all_rows().find(|row| row.id == "S4-9").unwrap();
    let case = row.cases(&scope(false)).remove(0);
    let point = |series: &str, value: f64, unit: &str| {
        let sample = Sample {
            value,
            best: value,
            worst: value,
            rounds: 1,
            repeats: 1,
            bytes: 0,
        };
        let point = Point::new(
            row,
            &Case {
                series: series.into(),
                ..case.clone()
            },
            "",
            sample,
        );
        Point {
            unit: unit.into(),
            ..point
        }
    };
    let gain = |unit| {
        let points = [
            point("scheme-1, 1 thread", 8.0, unit),
            point("scheme-2, 1 thread", 2.0, unit),
        ];
        let points: Vec<&Point> = points.iter().collect();
        let result = RowResult::new(row, &[]);
        assert_eq!(
            RowResult {
                base: String::new(),
                ..result.clone()
            }
            .gain(&points, "scheme-2, 1 thread", case.x),
            None
        );
        assert_eq!(result.gain(&points, "scheme-1, 1 thread", case.x), None);
        assert_eq!(
            result.gain(&points, "scheme-2, 1 thread", case.x + 1.0),
            None
        );
        result.gain(&points, "scheme-2, 1 thread", case.x)
    };
    assert_eq!((gain("us"), gain("GB/s")), (Some(4.0), Some(0.25)));
}

/// Records say what was measured by the names of their series alone.
#[test]
fn every_series_is_known_by_its_name() {
    for row in all_rows() {
        for case in row.cases(&scope(true)) {
            for suffix in ["", ", median", ", mean"] {
                let series = format!("{}{suffix}", case.series);
                assert_eq!(
                    row.maker(&case.panel, &series),
                    Some((case.measure, case.kernel)),
                    "{}: {series}",
                    row.id
                );
            }
        }
    }
    let row = all_rows().find(|row| row.id == "S4-12").unwrap();
    assert_eq!(row.maker("256 blocks, 10 % lost", "nothing"), None);
}

#[test]
fn what_cannot_be_is_left_out_with_a_reason() {
    let refusal = |row: &str, kernel: &str, n: u16, k: u32, is_full: bool| {
        let row = all_rows().find(|other| other.id == row).unwrap();
        let cases = row.cases(&Scope {
            n: vec![n],
            k: vec![k],
            ..scope(is_full)
        });
        let case = cases
            .into_iter()
            .find(|case| case.kernel == kernel)
            .unwrap();
        case.refusal(is_full).unwrap_or_default()
    };
    assert_eq!(refusal("S4-9", "inactivation", 56_403, 8, false), "");
    assert!(refusal("S4-9", "scheme-2", 4097, 8, true).starts_with("dense matrices serve 4096"));
    assert_eq!(refusal("S4-9", "scheme-2", 4096, 8, false), "");
    assert!(refusal("S4-9", "thesis-1", 2005, 1024, false).ends_with("--full measures them"));
    assert_eq!(refusal("S4-9", "thesis-1", 2005, 1024, true), "");
    assert_eq!(refusal("S4-8", "thesis", 2000, 1, true), "");
    assert!(refusal("S4-8", "thesis", 2000, 1, false).ends_with("--full measures them"));
    assert!(refusal("S5-7", "zero", 255, 64, false).starts_with("codes have 256 chunks"));
    assert!(refusal("S1-5", "tiled", 1025, 64, false).starts_with("generations have 1024"));
    assert!(refusal("S5-7", "zero", 4, 0, false).starts_with("there is nothing"));
}

/// Which is also a check of everything that the CPU does for the papers.
#[test]
fn what_needs_no_gpu_runs_in_seconds() {
    let directory = tempfile::tempdir().unwrap();
    let (json, plots) = (
        directory.path().join("papers.json"),
        directory.path().join("plots"),
    );
    let papers = Papers {
        plots: Some(plots.clone()),
        ..all()
    };
    let text_of_run = text(
        &Options {
            json: Some(json.clone()),
            ..options()
        },
        &papers,
    );
    assert!(
        text_of_run.contains("# S2-18: ")
            && text_of_run.contains("CPU, partitioned blocks, 2 threads"),
        "{text_of_run}"
    );
    assert!(
        text_of_run.contains("# blocks beyond n, n=24; blocks")
            && text_of_run.contains("blocks beyond n, 99.9th percentile")
    );
    let energy = text_of_run.contains("energy is not readable here")
        || text_of_run.contains("# energy, 20 % lost; mJ");
    assert!(energy, "{text_of_run}");
    assert!(
        text_of_run.contains("thesis-2, 2 threads: times as fast")
            && text_of_run.contains("bytes stored for a byte")
    );
    assert!(text_of_run.contains("no GPU") && text_of_run.contains("figures mean nothing"));
    let svg = fs::read_to_string(plots.join("S1-10.svg")).unwrap();
    assert!(svg.contains("<svg") && svg.contains("CPU, 2 threads"));
    let again = text(
        &options(),
        &Papers {
            from: vec![json],
            ..Papers::default()
        },
    );
    let different = again
        .lines()
        .zip(text_of_run.lines())
        .find(|(read, measured)| read != measured);
    assert_eq!(different, None);
}

/// The sizes that `--quick` cuts down: a case whose bytes are wrong ends the run.
#[test]
#[ignore = "minutes: cargo test --release --lib sizes_of_their_papers -- --ignored --nocapture"]
fn codes_are_right_at_the_sizes_of_their_papers() {
    let papers = Papers {
        groups: vec![Group::S4, Group::S5],
        backend: Backend::Cpu,
        ..Papers::default()
    };
    let text = text(
        &Options {
            quick: false,
            ..options()
        },
        &papers,
    );
    println!("{text}");
    let reasons = text
        .lines()
        .filter(|line| line.starts_with("# not measured"));
    let is_known = |line: &str| {
        line.ends_with("--full measures them") || line.contains("energy is not readable here")
    };
    assert_eq!(
        reasons.filter(|line| !is_known(line)).collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
}

/// Measures on the cards of this host, two at most; nothing without a GPU, which is a failure if
/// `NCTEST_REQUIRE_GPU` promises one.
fn on_cards(papers: &Papers) -> Option<(Record, Vec<lab::Card>)> {
    if !lab::is_here() {
        return None;
    }
    let most = device::cuda::count().expect("there is one").min(2);
    let labs: Vec<Lab> = (0..most)
        .map(|gpu| lab::open(gpu).expect("a GPU that works"))
        .collect();
    let cards = labs.iter().map(|lab| lab.card().clone()).collect();
    let record = measure(
        &options(),
        papers,
        &papers.wanted().unwrap(),
        Gpus::new(labs),
        &mut Vec::new(),
    );
    Some((record.unwrap(), cards))
}

#[test]
fn a_lab_is_measured_beside_the_cpu() {
    let mut papers = Papers {
        backend: Backend::All,
        ..all()
    };
    // The other figures take long.
    papers.groups.retain(|group| *group != Group::Figures);
    papers.rows = [
        "figure-crossover",
        "figure-gpus",
        "figure-to-host",
        "figure-chunks",
        "figure-prime",
    ]
    .map(str::to_owned)
    .into();
    let Some((record, cards)) = on_cards(&papers) else {
        return println!("skipped: no GPU");
    };
    let quarter = format!("table, {} SMs", cards[0].sms / 4);
    // Kernels with `tensor` in their names are for Hopper, some rows need two GPUs, and NVML may be
    // missing.
    let has_tensor = cards[0].compute_capability == (9, 0);
    let is_skipped = |result: &RowResult, series: &str| {
        let is_unreadable = |(case, reason): &(String, String)| {
            case.contains("GPU") && reason.starts_with("energy is not readable")
        };
        (series.contains("tensor") && !has_tensor)
            || (series.ends_with("2 GPUs") && cards.len() < 2)
            || (result.row == "S4-13" && result.skipped.iter().any(is_unreadable))
    };
    for (row, series) in [
        ("S1-6", quarter.as_str()),
        ("S1-9", "t_o"),
        ("S1-15", "invert"),
        ("S2-4", "progressive"),
        ("S2-15", "table share of inversion"),
        ("S2-19", "table with the CPU, to the host, 2 threads"),
        ("S2-25", "tensor recode"),
        ("figure-gpus", "tensor to the host, 2 GPUs"),
        ("figure-chunks", "tensor, GPU"),
        ("figure-prime", "served by the GPU"),
        ("S3-3", "paper-64, GPU"),
        ("S3-4", "ours, GPU, 3 generations"),
        ("S3-4", "paper, GPU"),
        ("S3-5", "ours, GPU, 3 generations"),
        ("S3-6", "ours, GPU, 1 generations"),
        ("S3-7", "window-8, GPU"),
        ("S3-9", "TB=128, GPU"),
        ("S3-9", "lanes, GPU"),
        ("S3-10", "p2048, GPU, 1 generations"),
        ("S3-10", "CPU p1024, 2 threads"),
        ("S4-6", "thesis through the GPU"),
        ("S4-7", "thesis 16x16, GPU"),
        ("S4-11", "replayed, GPU"),
        ("S4-11", "scheme-1, GPU"),
        ("S4-11", "scheme-2 by the decoder with the GPU"),
        ("S4-12", "plans and replayed, through the GPU, 2 threads"),
        ("S4-12", "scheme-2 through the GPU"),
        ("S4-14", "for dense systems, GPU"),
        ("figure-crossover", "crossover, 2 threads"),
        ("S4-13", "replayed, through the GPU, mean"),
        ("S5-7", "copy on the GPU"),
        ("S5-8", "rs-zero-constant 1x256, GPU"),
        ("S5-14", "stripes through the GPU, 3 streams"),
        ("S5-15", "stripes through the GPU, 3 streams, 2 GPUs"),
        ("S5-16", "stripes, GPU"),
        ("S5-17", "chunks by the CPU, 2 threads"),
        ("S5-17", "chunks by the GPU, 2 threads"),
        ("S5-17", "chunks by CPU and GPU together, 2 threads"),
    ] {
        let result = record.rows.iter().find(|result| result.row == row).unwrap();
        if is_skipped(result, series) {
            println!("skipped: {row}, {series}");
            continue;
        }
        let known = || {
            result
                .points
                .iter()
                .map(|point| &point.series)
                .collect::<Vec<_>>()
        };
        let point = result.points.iter().find(|point| point.series == series);
        let value = point
            .unwrap_or_else(|| panic!("{row}: no {series} in {:?}", known()))
            .value;
        // A difference of two times.
        let is_nothing = value == 0.0 && (row, series) == ("S1-9", "t_o");
        assert!(
            value.is_finite() && (value > 0.0 || is_nothing),
            "{row}: {series}: {value}"
        );
    }
}

/// What a row has come to if all of its cases measured the same.
fn measured_alike(id: &str) -> RowResult {
    let row = all_rows().find(|row| row.id == id).unwrap();
    let cases = row.cases(&Scope {
        threads: 2,
        gpus: 2,
        sms: 8,
        is_quick: true,
        ..scope(false)
    });
    let point = |case| Point::new(row, case, "", Sample::once(1.0, 1));
    RowResult {
        points: cases.iter().map(point).collect(),
        ..RowResult::new(row, &cases)
    }
}

#[test]
fn tables_have_a_gpu_beside_the_cpu() {
    let table = |row: &str| measured_alike(row).table(Some(2));
    assert!(table("claim-decode").contains("tensor decode to the host"));
    let claim = table("claim-encode");
    assert!(
        table("S2-7").contains("\nGPU : CPU") && !claim.contains(": CPU"),
        "{claim}"
    );
}

#[test]
fn the_other_field_is_checked_by_its_own_definition() {
    let papers = Papers {
        rows: vec!["S2-2".into()],
        field: Field::Rijndael,
        ..Papers::default()
    };
    let Some((record, _)) = on_cards(&papers) else {
        return println!("skipped: no GPU");
    };
    assert!(
        record.rows[0]
            .points
            .iter()
            .all(|point| point.series == "loop")
    );
    assert!(!record.rows[0].points.is_empty() && record.field == "0x11b");
}

/// The block or the bytes that were to be made, or these with a mistake in the last byte.
fn made(expected: &[u8], out: &mut [u8], is_wrong: bool) -> Result<(), device::Error> {
    out.copy_from_slice(expected);
    *out.last_mut().unwrap() ^= u8::from(is_wrong);
    Ok(())
}

#[test]
fn wrong_bytes_end_the_run() {
    let scope = Scope {
        threads: 1,
        gpus: 1,
        sms: 8,
        is_quick: true,
        ..scope(false)
    };
    let case = all_rows()
        .find(|row| row.id == "S1-5")
        .unwrap()
        .cases(&scope)
        .remove(0);
    let case = Case {
        kernel: "wrong",
        n: 1,
        k: 64,
        rows: 3,
        generations: 2,
        ..case
    };
    let load = Load::new(&case, Field::Standard);
    // The row of the last generation that is wrong, or none.
    let check = |wrong: Option<u32>| {
        let read = |generation: u32, row: u32, block: &mut [u8]| {
            made(
                &load.expected(generation as usize, row as usize),
                block,
                generation == 1 && wrong == Some(row),
            )
        };
        gpu::check(read, &load, &case, &load.expectations())
    };
    assert!(check(None).is_ok());
    for row in 0..3 {
        let found = check(Some(row)).unwrap_err();
        assert!(matches!(
            found,
            Error::Wrong { case }
                if case == format!("wrong on 1x64, block {row} of generation 1")
        ));
    }

    let coded = Coded::new(&Case {
        n: 5,
        ..case.clone()
    });
    let check = |wrong: Option<u32>| {
        let read = |generation: u32, row: u32, block: &mut [u8]| {
            let source = &coded.load.source(generation as usize)[row as usize * 64..][..64];
            made(source, block, generation == 1 && wrong == Some(row))
        };
        gpu::check_sources(read, &coded, &case)
    };
    assert!(check(None).is_ok());
    assert!(matches!(
        check(Some(4)),
        Err(Error::Wrong { case }) if case.starts_with("wrong decoding 5x64, block 4")
    ));

    let mut cases = all_rows()
        .find(|row| row.id == "S5-16")
        .unwrap()
        .cases(&scope);
    cases.retain(|case| !case.measure.is_cpu() && case.measure != Measure::ChunksThroughCopy);
    assert!(cases.len() > 3);
    for case in cases {
        let (job, bytes) = (stripes::ChunkProduct::new(&case).unwrap(), case.k as usize);
        let last = job.expected.len() / bytes - 1;
        let check = |is_wrong: bool| {
            let read = |row: usize, at: usize, out: &mut [u8]| {
                made(
                    &job.expected[row * bytes + at..][..out.len()],
                    out,
                    is_wrong && row == last,
                )
            };
            card::check(read, &job, bytes, 16)
        };
        assert!(
            check(false).is_some() && check(true).is_none(),
            "{}",
            case.series
        );
    }
}

#[test]
fn unknown_rows_are_refused_and_cuda_needs_a_gpu() {
    let papers = Papers {
        rows: vec!["S6-1".into()],
        ..Papers::default()
    };
    assert!(matches!(papers.wanted(), Err(Error::Row(row)) if row == "S6-1"));
    let papers = Papers {
        rows: vec!["s1-6".into()],
        backend: Backend::Cuda,
        ..Papers::default()
    };
    let rows = papers.wanted().unwrap();
    assert_eq!(rows[0].id, "S1-6");
    let record = measure(
        &options(),
        &papers,
        &rows,
        Gpus::new(Vec::new()),
        &mut Vec::new(),
    )
    .unwrap();
    let reasons: Vec<&str> = record.rows[0]
        .skipped
        .iter()
        .map(|(_, reason)| reason.as_str())
        .collect();
    assert!(record.rows[0].points.is_empty());
    assert!(
        ["no GPU", "the CPU does not take part"]
            .iter()
            .all(|reason| reasons.contains(reason)),
        "{reasons:?}"
    );
    if lab::open(0).is_err() {
        assert!(matches!(
            run(&options(), &papers, &mut Vec::new()),
            Err(Error::Device(_))
        ));
    }
}
