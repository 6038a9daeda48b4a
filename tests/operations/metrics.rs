//! The metrics of a started server, their table in `docs/metrics.md`, and their uses in `deploy/`:
//! all have the same names.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use crate::server::Server;

/// A family of series without its values.
#[derive(Debug, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
    help: String,
}

/// The metrics page of a server without configuration.
fn exposition() -> String {
    let (status, body) = Server::start(&[]).get("/metrics");
    assert_eq!(status, 200);
    body
}

fn families(exposition: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    for line in exposition.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            families.get_mut(name).expect("help comes before type").kind = kind.into();
        } else if let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        {
            families.insert(
                name.into(),
                Family {
                    kind: String::new(),
                    labels: BTreeSet::new(),
                    help: help.into(),
                },
            );
        } else if let Some((series, _)) = line.rsplit_once(' ') {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let family = families
                .iter_mut()
                .find(|(known, family)| is_series_of(name, known, &family.kind));
            let (_, family) = family.unwrap_or_else(|| panic!("{line} belongs to no family"));
            let names = labels
                .split("\",")
                .filter_map(|label| Some(label.split_once("=\"")?.0.to_owned()));
            family.labels.extend(names.filter(|label| label != "le"));
        }
    }
    families
}

fn is_series_of(series: &str, family: &str, kind: &str) -> bool {
    let suffixes: &[&str] = if kind == "histogram" {
        &["_bucket", "_sum", "_count"]
    } else {
        &[""]
    };
    suffixes
        .iter()
        .any(|suffix| series.strip_suffix(suffix) == Some(family))
}

/// The table in the document: name to (type, labels).
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let rows = include_str!("../../docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (name, rest) = row.split_once("` | ").unwrap();
        let cells: Vec<_> = rest.split(" | ").collect();
        let labels = cells[1]
            .split(", ")
            .filter(|label| *label != "-")
            .map(str::to_owned)
            .collect();
        (name.to_owned(), (cells[0].to_owned(), labels))
    })
    .collect()
}

#[test]
fn every_series_is_documented_and_every_documented_series_is_there() {
    let shown = families(&exposition());
    let documented = documented();
    let mut faults = Vec::new();
    for (name, family) in &shown {
        let labels = family.labels.iter().cloned().collect::<Vec<_>>().join(", ");
        let labels = if labels.is_empty() { "-" } else { &labels };
        match documented.get(name) {
            None => faults.push(format!(
                "not documented:\n| `{name}` | {} | {labels} | UNIT | {} |",
                family.kind, family.help
            )),
            Some((kind, known)) if (kind, known) != (&family.kind, &family.labels) => {
                faults.push(format!(
                    "documented otherwise:\n| `{name}` | {} | {labels} |",
                    family.kind
                ));
            }
            Some(_) => {}
        }
    }
    let absent = documented.keys().filter(|name| !shown.contains_key(*name));
    faults.extend(absent.map(|name| format!("documented and not there from the start: {name}")));
    assert!(
        faults.is_empty(),
        "docs/metrics.md and the server differ:\n{}",
        faults.join("\n")
    );
}

#[test]
fn counters_and_histograms_begin_at_zero() {
    let exposition = exposition();
    let families = families(&exposition);
    for line in exposition
        .lines()
        .filter(|line| line.starts_with("ncserverd_"))
    {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let is_gauge = families
            .get(name)
            .is_some_and(|family| family.kind == "gauge");
        assert!(is_gauge || value == "0", "{line}");
    }
}

#[test]
fn rules_and_dashboards_use_series_that_exist() {
    let documented = documented();
    let rules = include_str!("../../deploy/prometheus/rules.yml");
    let recorded: BTreeSet<_> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- record: "))
        .collect();
    for text in [
        rules,
        include_str!("../../deploy/prometheus/rules_test.yml"),
        include_str!("../../deploy/grafana/ncserverd.json"),
        include_str!("../../deploy/grafana/fleet.json"),
    ] {
        let words = text.split(|letter: char| {
            !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':')
        });
        for word in words.filter(|word| {
            word.starts_with("ncserverd_")
                || word.starts_with("ncserverd:")
                || word.starts_with("process_")
        }) {
            let is_series = documented
                .iter()
                .any(|(name, (kind, _))| is_series_of(word, name, kind));
            assert!(
                is_series || recorded.contains(word),
                "deploy/ speaks of {word}, which is not there"
            );
        }
    }
}

#[test]
fn the_dashboard_begins_with_the_viewers_and_what_they_feel() {
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../deploy/grafana/ncserverd.json")).unwrap();
    let mut panels: Vec<_> = dashboard["panels"].as_array().unwrap().iter().collect();
    let place = |panel: &serde_json::Value, axis: &str| panel["gridPos"][axis].as_u64().unwrap();
    panels.sort_by_key(|panel| (place(panel, "y"), place(panel, "x")));
    let queries = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let all: String = queries
        .map(|target| target["expr"].as_str().unwrap().to_owned() + "\n")
        .collect();
    let first = |name: &str| {
        all.find(name)
            .unwrap_or_else(|| panic!("no panel shows {name}"))
    };
    let wanted = [
        "ncserverd_session_stream_viewers",
        "ncserverd_session_late_requests_total",
        "ncserverd_session_stream_late_requests_total",
        "ncserverd_endpoint_busy_ratio",
        "ncserverd_endpoint_wait_seconds",
        "ncserverd_session_stream_refused_total",
        "ncserverd_endpoint_handshakes_total",
    ];
    assert_eq!(first(wanted[0]), all.find("ncserverd").unwrap());
    let encoder = first("ncserverd:encode").min(first("ncserverd_ring"));
    wanted
        .iter()
        .for_each(|name| assert!(first(name) < encoder, "{name} comes after the encoder"));
}

/// One refusal counts in several series, so their sum would be too high.
#[test]
fn the_dashboard_shows_each_stream_and_adds_up_no_refusals() {
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../deploy/grafana/ncserverd.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let exprs = |panel: &serde_json::Value| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets
            .iter()
            .map(|target| target["expr"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let refused = exprs(
        panels
            .iter()
            .find(|panel| panel["title"] == "Refused")
            .unwrap(),
    );
    assert!(
        refused.len() > 1 && refused.iter().all(|expr| expr.matches("sum(").count() == 1),
        "{refused:?}"
    );
    // Late requests are among these.
    assert!(
        !refused
            .iter()
            .any(|expr| expr.contains("ncserverd_session_refused_total")),
        "{refused:?}"
    );
    let all = panels.iter().flat_map(exprs).collect::<String>();
    let by_stream = [
        "viewers",
        "sent_bytes_total",
        "coded_blocks_total",
        "repair_blocks_total",
        "late_requests_total",
    ];
    for name in by_stream.map(|name| format!("ncserverd_session_stream_{name}")) {
        assert!(all.contains(&name), "no panel shows {name}");
    }
    assert!(
        all.contains("sum by (status) (rate(ncserverd_ingest_responses_total"),
        "no panel shows the answers of origins"
    );
}

#[test]
fn promtool_finds_nothing_to_say() {
    if Command::new("promtool").arg("--version").output().is_err() {
        assert!(
            std::env::var_os("NCTEST_REQUIRE_ALL").is_none(),
            "promtool is not installed"
        );
        return eprintln!("skipped: promtool is not installed");
    }
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check
        .stdin
        .take()
        .unwrap()
        .write_all(exposition().as_bytes())
        .unwrap();
    let output = check.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}
