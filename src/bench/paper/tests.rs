use super::stand_in::StandIn;
use super::*;
use crate::bench::Set;
use crate::device::Threads;

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
        command: "ncserverd bench".into(),
    }
}

fn all() -> Papers {
    Papers { groups: Group::ALL.to_vec(), backend: Backend::Cpu, ..Papers::default() }
}

fn text(options: &Options, papers: &Papers) -> String {
    let mut out = Vec::new();
    run(options, papers, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_rows_of_both_papers_are_all_there() {
    let ids: Vec<&str> = all_rows().map(|row| row.id).collect();
    let expected: Vec<String> = (1..=15).map(|row| format!("S1-{row}")).chain((1..=25).map(|row| format!("S2-{row}"))).collect();
    assert_eq!(ids[..40], expected);
    let unique: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(unique.len(), ids.len());
    let elsewhere: Vec<&str> = all_rows().filter(|row| row.sweeps.is_empty()).map(|row| row.id).collect();
    assert_eq!(elsewhere, ["S2-5", "S2-24"]);
    assert!(all_rows().all(|row| row.sweeps.is_empty() || !row.bars.is_empty()));
}

/// Every bar has to find a panel and an x among the cases of its row, or the document would leave it unanswered.
#[test]
fn every_claim_has_a_case_that_answers_it() {
    let scope = Scope { threads: 16, sms: 132, n: Vec::new(), k: Vec::new(), kernels: Vec::new(), is_quick: false };
    for row in all_rows() {
        let cases = row.cases(&scope);
        for bar in row.bars {
            let fits = |case: &&Case| case.panel.starts_with(bar.panel) && bar.x.is_none_or(|x| x == case.x);
            assert!(cases.iter().any(|case| fits(&case)), "{}: {}", row.id, bar.what);
        }
        for case in &cases {
            let unit = |other: &&Case| other.panel == case.panel && other.measure.unit() != case.measure.unit();
            assert_eq!(cases.iter().find(unit).map(|other| &other.series), None, "{}: one unit in {}", row.id, case.panel);
        }
    }
}

#[test]
fn sweeps_spread_out_as_the_figures_have_them() {
    let scope = Scope { threads: 16, sms: 132, n: Vec::new(), k: Vec::new(), kernels: Vec::new(), is_quick: false };
    let row = all_rows().find(|row| row.id == "S1-6").unwrap();
    let cases = row.cases(&scope);
    assert_eq!(cases.len(), 3 * 8 * (2 * 3 + 1));
    let names: Vec<String> = cases.iter().map(|case| case.name(row)).collect();
    assert!(names.contains(&"S1-6/n=512/table/33-SMs/2048".to_owned()), "{names:?}");
    assert!(names.contains(&"S1-6/n=128/CPU/16-threads/16".to_owned()));
    let narrowed = Scope { n: vec![64], kernels: vec!["table".into()], ..scope };
    assert_eq!(row.cases(&narrowed).len(), 8 * (3 + 1));
}

/// Which is also a check of everything that the CPU does for the papers.
#[test]
fn what_needs_no_gpu_runs_in_seconds() {
    let directory = tempfile::tempdir().unwrap();
    let (json, plots) = (directory.path().join("papers.json"), directory.path().join("plots"));
    let papers = Papers { plots: Some(plots.clone()), ..all() };
    let text_of_run = text(&Options { json: Some(json.clone()), ..options() }, &papers);
    assert!(text_of_run.contains("# S2-18: ") && text_of_run.contains("CPU, partitioned blocks, 2 threads"), "{text_of_run}");
    assert!(
        text_of_run.contains("# blocks beyond n, n=24; blocks") && text_of_run.contains("blocks beyond n, 99.9th percentile")
    );
    assert!(text_of_run.contains("no GPU") && text_of_run.contains("figures mean nothing"));
    let svg = fs::read_to_string(plots.join("S1-10.svg")).unwrap();
    assert!(svg.contains("<svg") && svg.contains("CPU, 2 threads"));
    let again = text(&options(), &Papers { from: vec![json], ..Papers::default() });
    let different = again.lines().zip(text_of_run.lines()).find(|(read, measured)| read != measured);
    assert_eq!(different, None);
}

fn with_stand_in(papers: &Papers) -> Result<Record, Error> {
    let rows = papers.wanted().unwrap();
    measure(&options(), papers, &rows, Gpus::new(vec![Box::new(StandIn::new()), Box::new(StandIn::new())]), &mut Vec::new())
}

#[test]
fn a_lab_is_measured_beside_the_cpu() {
    let mut papers = Papers { backend: Backend::All, ..all() };
    // The answer of the device needs a real one.
    papers.groups.retain(|group| *group != Group::Figures);
    papers.rows = ["figure-gpus", "figure-to-host"].map(str::to_owned).into();
    let record = with_stand_in(&papers).unwrap();
    for (row, series) in [
        ("S1-6", "table, 2 SMs"),
        ("S1-9", "t_o"),
        ("S1-15", "invert"),
        ("S2-4", "progressive"),
        ("S2-15", "table share of inversion"),
        ("S2-19", "table with the CPU, to the host, 2 threads"),
        ("S2-25", "tensor recode"),
        ("figure-gpus", "tensor to the host, 2 GPUs"),
    ] {
        let result = record.rows.iter().find(|result| result.row == row).unwrap();
        let known = || result.points.iter().map(|point| &point.series).collect::<Vec<_>>();
        let point = result.points.iter().find(|point| point.series == series);
        // A difference of two times, such as t_o, may come out as nothing.
        assert!(point.is_some_and(|point| point.value >= 0.0), "{row}: {:?}", known());
    }
    let decode = record.rows.iter().find(|result| result.row == "claim-decode").unwrap().table();
    assert!(decode.contains("tensor decode to the host") && decode.contains("GPU to the host : CPU"), "{decode}");
    let claim = record.rows.iter().find(|result| result.row == "claim-encode").unwrap().table();
    assert!(claim.contains("GPU : CPU") && claim.contains("GPU to the host : CPU"), "{claim}");
}

#[test]
fn the_other_field_is_checked_by_its_own_definition() {
    let papers = Papers { rows: vec!["S2-2".into()], field: Field::Rijndael, ..Papers::default() };
    let record = with_stand_in(&papers).unwrap();
    assert!(record.rows[0].points.iter().all(|point| point.series == "loop"));
    assert!(!record.rows[0].points.is_empty() && record.field == "0x11b");
}

#[test]
fn wrong_bytes_end_the_run() {
    let mut gpus = Gpus::new(vec![Box::new(StandIn::new())]);
    let scope = Scope { threads: 1, sms: 8, n: Vec::new(), k: Vec::new(), kernels: Vec::new(), is_quick: true };
    let case = all_rows().find(|row| row.id == "S1-5").unwrap().cases(&scope).remove(0);
    let wrong = Case { kernel: "wrong", ..case };
    let result = gpus.measure(&wrong, &all().settings(&options()));
    assert!(matches!(result, Err(Error::Wrong { case }) if case.starts_with("wrong on 1x64")));
}

#[test]
fn unknown_rows_are_refused_and_cuda_needs_a_gpu() {
    let papers = Papers { rows: vec!["S3-1".into()], ..Papers::default() };
    assert!(matches!(papers.wanted(), Err(Error::Row(row)) if row == "S3-1"));
    assert_eq!(Papers { rows: vec!["s1-6".into()], ..Papers::default() }.wanted().unwrap()[0].id, "S1-6");
}
