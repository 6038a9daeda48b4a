//! The generated part of `docs/benchmarks.md`: each row's claim beside what the records say.
//!
//! What stands between the two markers is replaced, everything else is left alone. Figures come from records and nowhere else.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::catalogue::{Bar, Group, Row};
use super::record::{By, Point, Record, RowResult, digits, gain, ratio};
use super::{Error, all_rows};

/// Writes the part anew.
pub(super) fn write(path: &Path, records: &[Record]) -> Result<(), Error> {
    let text = fs::read_to_string(path)?;
    let refuse = || Error::Record { path: path.into(), reason: format!("it has no lines `{BEGIN}` and `{END}`") };
    let (head, rest) = text.split_once(BEGIN).ok_or_else(refuse)?;
    let (_, tail) = rest.split_once(END).ok_or_else(refuse)?;
    Ok(fs::write(path, format!("{head}{BEGIN}\n\n{}\n{END}{tail}", body(records)))?)
}

fn body(records: &[Record]) -> String {
    let mut text = String::new();
    write_body(&mut text, records).expect("a string takes everything");
    text
}

fn write_body(text: &mut String, records: &[Record]) -> std::fmt::Result {
    for (index, record) in records.iter().enumerate() {
        writeln!(text, "- Record {}: {}", index + 1, record.place())?;
    }
    for (group, title) in TITLES {
        writeln!(text, "\n## {title}\n")?;
        writeln!(text, "| row | what | paper | here |\n| --- | --- | --- | --- |")?;
        for row in all_rows().filter(|row| row.group == group) {
            write_row(text, row, records)?;
        }
    }
    Ok(())
}

fn write_row(text: &mut String, row: &Row, records: &[Record]) -> std::fmt::Result {
    let found = records.iter().enumerate().flat_map(|(index, record)| record.rows.iter().map(move |result| (index + 1, result)));
    let results: Vec<(usize, &RowResult)> =
        found.filter(|(_, result)| result.row == row.id && !result.points.is_empty()).collect();
    writeln!(text, "| **{}** | {} | | {} |", row.id, row.title, if row.sweeps.is_empty() { row.note } else { "" })?;
    for bar in row.bars {
        let answers: Vec<String> = results.iter().flat_map(|(index, result)| answer(bar, *index, result)).collect();
        let ours = if answers.is_empty() { "no record yet".to_owned() } else { answers.join("<br>") };
        writeln!(text, "| | {} | {} | {ours} |", bar.what, bar.paper)?;
    }
    Ok(())
}

/// Every series where the bar looks, and the ratio.
fn answer(bar: &Bar, record: usize, result: &RowResult) -> Vec<String> {
    let mut answers = Vec::new();
    for (_, points) in result.panels().into_iter().filter(|(name, _)| name.starts_with(bar.panel)) {
        let mut names: Vec<&str> = Vec::new();
        for point in &points {
            if !names.contains(&point.series.as_str()) {
                names.push(&point.series);
            }
        }
        let values = names.into_iter().filter_map(|name| {
            let point = pick(bar, points.iter().copied().filter(|point| point.series == name))?;
            let at = if bar.x.is_none() { format!(" at {}", point.x) } else { String::new() };
            let times =
                gain(&points, &result.base, name, point.x).map_or_else(String::new, |gain| format!(" ({}x)", digits(gain)));
            Some(format!("{name} **{}** {}{at}{times}", digits(point.value), point.unit))
        });
        let mut values: Vec<String> = values.collect();
        for (by, name) in [(By::Gpu, "GPU : CPU"), (By::GpuToHost, "GPU to the host : CPU")] {
            let ratio = bar.x.and_then(|x| ratio(&points, by, x));
            values.extend(ratio.map(|ratio| format!("{name} {}", digits(ratio))));
        }
        if !values.is_empty() {
            answers.push(format!("{} [{record}]", values.join("; ")));
        }
    }
    answers
}

/// The point at the bar's x, or the best.
fn pick<'a>(bar: &Bar, points: impl Iterator<Item = &'a Point>) -> Option<&'a Point> {
    match bar.x {
        Some(x) => points.into_iter().find(|point| point.x == x),
        None => points.into_iter().max_by(|a, b| a.value.total_cmp(&b.value)),
    }
}

const BEGIN: &str = "<!-- rows: written by `ncserverd bench --from` -->";
const END: &str = "<!-- end of rows -->";
const TITLES: [(Group, &str); 7] = [
    (Group::S1, "S1: Chu, Zhao and Wang 2009"),
    (Group::S2, "S2: Shojania and Li 2009"),
    (Group::S3, "S3: Chu, Zhao and Wang 2009, GF(q) and homomorphic hashes"),
    (Group::S4, "S4: Vicente 2015, RaptorQ"),
    (Group::S5, "S5: the talk on Reed-Solomon"),
    (Group::Claim, "The papers' claim: GPU beside all cores of its host"),
    (Group::Figures, "The figures this program sets itself"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The document in the tree says what the records in the tree say.
    #[test]
    fn figures_come_from_records() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = fs::read_dir(root.join("benches/record")).unwrap().map(|entry| entry.unwrap().path());
        let is_record = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("papers-") && name.ends_with(".json")
        };
        let mut files: Vec<_> = files.filter(is_record).collect();
        files.sort();
        if files.is_empty() {
            return;
        }
        let records: Vec<Record> = files.iter().map(|path| Record::read(path).unwrap()).collect();
        let text = fs::read_to_string(root.join("docs/benchmarks.md")).unwrap();
        let generated = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map(|(generated, _)| generated.trim());
        assert!(
            generated == Some(body(&records).trim()),
            "run `ncserverd bench --from benches/record/papers-….json,… --document docs/benchmarks.md`"
        );
    }

    #[test]
    fn a_document_keeps_what_is_written_by_hand() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("benchmarks.md");
        fs::write(&path, format!("# Head\n\n{BEGIN}\nold\n{END}\n\ntail\n")).unwrap();
        write(&path, &[]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# Head\n") && text.ends_with("\n\ntail\n") && !text.contains("old"));
        assert!(all_rows().all(|row| text.contains(&format!("| **{}** |", row.id))));
        fs::write(&path, "nothing").unwrap();
        assert!(matches!(write(&path, &[]), Err(Error::Record { .. })));
    }
}
