//! `nccodec`, as a user runs it: known answers, round trips with losses, and what it says when
//! blocks are short or bad; the same with encoding symbols.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde_json::Value;
use tempfile::TempDir;

mod program;

use nctest::shake256::shake256;
use program::{INCOMPLETE, program, random, run, text};

const USAGE: i32 = 2;
const NO_DEVICE: i32 = 5;

/// Standard output of a run that has to succeed.
fn succeed(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let output = run(arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    output.stdout
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn known_answers() -> Value {
    serde_json::from_str(include_str!("../../../tests/vectors/rlnc.json")).unwrap()
}

fn key(case: &Value) -> String {
    format!("0x{}", case["key"].as_str().unwrap())
}

/// A file, and a directory that it has been coded into.
struct Coded {
    bytes: Vec<u8>,
    home: TempDir,
}

impl Coded {
    fn new(bytes: Vec<u8>, options: &[&str]) -> Self {
        let coded = Self {
            bytes,
            home: tempfile::tempdir().unwrap(),
        };
        fs::write(coded.path("source"), &coded.bytes).unwrap();
        coded.encode("source", options);
        coded
    }

    fn encode(&self, file: &str, options: &[&str]) {
        let (source, blocks) = (self.path(file), self.path("blocks"));
        let arguments = [
            &["encode", text_of(&source), "-o", text_of(&blocks)],
            options,
        ]
        .concat();
        succeed(&arguments, &[]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Block files in an order that is the same in every run.
    fn blocks(&self) -> Vec<PathBuf> {
        let mut blocks: Vec<_> = fs::read_dir(self.path("blocks"))
            .unwrap()
            .map(|item| item.unwrap().path())
            .collect();
        blocks.sort();
        blocks
    }

    /// Removes `count` block files at random.
    fn lose(&self, count: usize) {
        let mut blocks = self.blocks();
        blocks.shuffle(&mut SmallRng::seed_from_u64(3));
        blocks
            .iter()
            .take(count)
            .for_each(|path| fs::remove_file(path).unwrap());
    }

    fn decode(&self) -> Output {
        run(
            &[
                "decode",
                text_of(&self.path("blocks")),
                "-o",
                text_of(&self.path("out")),
            ],
            &[],
        )
    }

    fn assert_decodes(&self) -> String {
        let output = self.decode();
        assert!(output.status.success(), "{}", text(&output));
        assert!(
            fs::read(self.path("out")).unwrap() == self.bytes,
            "other bytes"
        );
        text(&output)
    }

    /// What it says; nothing may have been left behind.
    fn assert_incomplete(&self) -> String {
        let output = self.decode();
        assert_eq!(output.status.code(), Some(INCOMPLETE), "{}", text(&output));
        let mut names: Vec<_> = fs::read_dir(self.home.path())
            .unwrap()
            .map(|item| item.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["blocks", "source"]);
        text(&output)
    }
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn rows_are_the_known_ones() {
    for case in known_answers()["rows"].as_array().unwrap() {
        let [generation, seed, n] =
            ["generation", "seed", "n"].map(|field| case[field].to_string());
        let arguments = [
            "row",
            "--key",
            &key(case),
            "--generation",
            &generation,
            "--seed",
            &seed,
            "--n",
            &n,
        ];
        let row = succeed(&arguments, &[]);
        assert_eq!(
            row,
            format!("{}\n", case["row"].as_str().unwrap()).into_bytes()
        );
    }
}

#[test]
fn raw_blocks_are_the_known_ones() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("data");
    for case in known_answers()["small"].as_array().unwrap() {
        let data = unhex(case["data"].as_str().unwrap());
        fs::write(&file, &data).unwrap();
        let blocks = case["blocks"].as_array().unwrap();
        let payloads: Vec<u8> = blocks
            .iter()
            .flat_map(|block| unhex(block["payload"].as_str().unwrap()))
            .collect();
        let options = [
            ["--codec", "rlnc"],
            ["--k", &case["k"].to_string()],
            ["--n", &case["n"].to_string()],
            ["--key", &key(case)],
            ["--generation", &case["generation"].to_string()],
            ["--seed", &blocks[0]["seed"].to_string()],
            ["--count", &blocks.len().to_string()],
        ];
        let arguments = [
            &["encode", text_of(&file), "-o", "-"][..],
            options.as_flattened(),
        ]
        .concat();
        assert_eq!(hex(&succeed(&arguments, &[])), hex(&payloads));
        // From standard input, into a file, n from the length: it is the same for all cases, whose
        // last block is never empty.
        let into = home.path().join("raw");
        let shorter = [&options[..2], &options[3..]].concat();
        let arguments = [
            &["encode", "-", "-o", text_of(&into)][..],
            shorter.as_flattened(),
        ]
        .concat();
        assert!(succeed(&arguments, &data).is_empty());
        assert_eq!(hex(&fs::read(&into).unwrap()), hex(&payloads));
    }
}

/// The command of the documentation, on 512 KiB.
#[test]
fn a_whole_generation_of_raw_blocks_is_the_known_one() {
    let answers = known_answers();
    let large = &answers["large"];
    let data = shake256(b"ncserverd rlnc kat v1", 128 * 4096);
    let rest = [
        "--key",
        &key(large),
        "--generation",
        "42",
        "--seed",
        "0",
        "--count",
        "128",
        "-",
        "-o",
        "-",
    ];
    let blocks = succeed(
        &[&["encode", "--codec", "rlnc", "--k", "4096"], &rest[..]].concat(),
        &data,
    );
    assert_eq!(
        hex(&shake256(&blocks, 16)),
        large["blocks_digest"].as_str().unwrap()
    );
    let one = succeed(
        &[
            "encode",
            "--k",
            "4096",
            "--key",
            &key(large),
            "--generation",
            "42",
            "--seed",
            "5",
            "-",
            "-o",
            "-",
        ],
        &data,
    );
    assert!(
        one == blocks[5 * 4096..6 * 4096],
        "one block, if no count is given"
    );
}

#[test]
fn files_survive_the_loss_of_blocks() {
    // Odd lengths; one block; several generations of two lengths. As many blocks are left as are
    // needed, and by chance one in 255 generations needs another: so the seeds are fixed.
    for (length, options, lost) in [
        (1, &["--seed", "1"][..], 4),
        (4096, &["--extra", "1", "--seed", "1"], 1),
        (
            100_001,
            &["--k", "1088", "--n", "16", "--extra", "5", "--seed", "1"],
            5,
        ),
        (300_000, &["--seed", "1"], 5),
        (
            50_000,
            &["--k", "64", "--n", "1024", "--seed", "4294967290"],
            60,
        ),
    ] {
        let coded = Coded::new(random(length, length as u64), options);
        coded.lose(lost);
        let report = coded.assert_decodes();
        assert!(
            report.contains(&format!("{length} bytes")) && report.contains("verified"),
            "{report}"
        );
    }
}

#[test]
fn files_larger_than_a_segment_are_cut() {
    let coded = Coded::new(
        random((8 << 20) + 70_000, 5),
        &["--k", "65536", "--extra", "2", "--seed", "1"],
    );
    assert!(
        coded
            .blocks()
            .iter()
            .any(|path| text_of(path).contains("-s00001-"))
    );
    coded.lose(2);
    coded.assert_decodes();
    let segment_1 = |path: &&PathBuf| text_of(path).contains("-s00001-");
    coded
        .blocks()
        .iter()
        .filter(segment_1)
        .for_each(|path| fs::remove_file(path).unwrap());
    fs::remove_file(coded.path("out")).unwrap();
    let report = coded.assert_incomplete();
    assert!(
        report.contains("2 more independent blocks")
            && report.contains("segment 1: no blocks found"),
        "{report}"
    );
}

#[test]
fn two_runs_make_blocks_that_work_together() {
    let coded = Coded::new(random(100_000, 6), &["--k", "1024", "--count", "60"]);
    coded.assert_incomplete();
    coded.encode("source", &["--k", "1024", "--count", "60"]);
    assert_eq!(coded.blocks().len(), 120);
    coded.assert_decodes();
}

#[test]
fn short_generations_are_counted() {
    let coded = Coded::new(
        random(64 * 30, 7),
        &["--k", "64", "--n", "10", "--count", "8", "--seed", "1"],
    );
    let report = coded.assert_incomplete();
    assert!(
        report.contains("6 more independent blocks are needed"),
        "{report}"
    );
    for generation in 0..3 {
        let line =
            format!("segment 0, generation {generation}: 8 independent blocks of 10, 2 missing");
        assert!(report.contains(&line), "{report}");
    }
    // Copies are not independent.
    for path in coded.blocks() {
        fs::copy(&path, path.with_extension("copy")).unwrap();
    }
    assert!(
        coded
            .assert_incomplete()
            .contains("6 more independent blocks are needed")
    );
    // Standard output gets nothing of what is short.
    let output = run(&["decode", text_of(&coded.path("blocks")), "-o", "-"], &[]);
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(INCOMPLETE), 0)
    );
}

/// Changes a file, and tells its name.
fn damage<'a>(path: &'a Path, change: &dyn Fn(&mut Vec<u8>)) -> &'a str {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    path.file_name().unwrap().to_str().unwrap()
}

/// Files by their names, and why each is said to be skipped.
fn assert_skipped(report: &str, bad: &[(&str, &str)]) {
    for (name, reason) in bad {
        let line = report
            .lines()
            .find(|line| line.contains(name))
            .unwrap_or_else(|| panic!("{name}: {report}"));
        assert!(line.contains("skipped") && line.contains(reason), "{line}");
    }
}

#[test]
fn bad_files_are_named_and_skipped() {
    let coded = Coded::new(
        random(20_000, 8),
        &["--k", "1024", "--extra", "6", "--seed", "1"],
    );
    let blocks = coded.blocks();
    let damage = |index: usize, change: &dyn Fn(&mut Vec<u8>)| damage(&blocks[index], change);
    let bad = [
        (damage(0, &|bytes| bytes[700] ^= 1), "damaged"),
        (damage(3, &|bytes| bytes[20] ^= 1), "damaged"),
        (damage(5, &|bytes| bytes.truncate(200)), "damaged"),
        (damage(7, &|bytes| bytes.truncate(40)), "damaged"),
        (damage(9, &|bytes| bytes.clear()), "not a block file"),
        ("notes.txt", "not a block file"),
        ("folder", "not a block file"),
    ];
    fs::write(coded.path("blocks/notes.txt"), "not a block").unwrap();
    fs::create_dir(coded.path("blocks/folder")).unwrap();
    let report = coded.assert_decodes();
    assert_skipped(&report, &bad);
    assert!(report.contains("files skipped: 7"), "{report}");
    fs::remove_file(coded.path("out")).unwrap();
    damage(10, &|bytes| bytes[700] ^= 1);
    damage(11, &|bytes| bytes[700] ^= 1);
    assert!(
        coded
            .assert_incomplete()
            .contains("1 more independent blocks")
    );
}

/// Whoever made the files has chosen their names.
#[test]
fn names_of_files_do_nothing_to_a_terminal() {
    let coded = Coded::new(random(20_000, 8), &["--k", "1024", "--extra", "6"]);
    fs::write(coded.path("blocks/\u{1b}[2Jgone\n"), "not a block").unwrap();
    let report = coded.assert_decodes();
    assert!(
        report.contains("\u{fffd}[2Jgone\u{fffd}: skipped, "),
        "{report:?}"
    );
    assert!(!report.contains('\u{1b}'), "{report:?}");
}

#[test]
fn blocks_of_another_file_are_named_and_skipped() {
    let coded = Coded::new(random(10_000, 9), &["--k", "1024", "--extra", "1"]);
    let foreign = random(3000, 10);
    fs::write(coded.path("other"), foreign).unwrap();
    coded.encode("other", &["--k", "1024", "--count", "3", "--seed", "77"]);
    let report = coded.assert_decodes();
    assert_eq!(
        report
            .lines()
            .filter(|line| line.contains("skipped, a block of file"))
            .count(),
        3,
        "{report}"
    );
    // With as many blocks of each it cannot tell which one is meant.
    coded.encode("other", &["--k", "1024", "--count", "11", "--seed", "77"]);
    assert_eq!(coded.decode().status.code(), Some(INCOMPLETE));
}

#[test]
fn standard_input_and_output() {
    let bytes = random(77_777, 11);
    let home = tempfile::tempdir().unwrap();
    let blocks = home.path().join("new/blocks");
    succeed(&["encode", "-", "-o", text_of(&blocks)], &bytes);
    assert!(
        fs::read_dir(&blocks)
            .unwrap()
            .all(|item| item.unwrap().path().extension().unwrap() == "ncb")
    );
    assert!(
        succeed(&["decode", text_of(&blocks), "-o", "-"], &[]) == bytes,
        "other bytes"
    );
}

/// Files of several times what may be on the way at once, with address space for much less than
/// them, there and back. On one core: each more has a portion more.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap()
        .trim();
    let core = allowed.split([',', '-']).next().unwrap();
    let home = tempfile::tempdir().unwrap();
    let (file, blocks) = (home.path().join("source"), home.path().join("blocks"));
    let bytes = random(144 << 20, 21);
    fs::write(&file, &bytes).unwrap();
    let limited = |command: &str| {
        let codec = format!("exec taskset -c {core} {} {command}", program().display());
        let script = format!("ulimit -v {ADDRESS_SPACE_KB}; {codec}");
        let output = Command::new("sh")
            .args(["-c", &script])
            .env("MALLOC_ARENA_MAX", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {}", text(&output));
        output.stdout
    };
    for codec in ["rlnc", "raptorq", "raptor10"] {
        limited(&format!(
            "encode --codec {codec} --k 65520 --extra 12 {} -o {}",
            file.display(),
            blocks.display()
        ));
        // The first symbol of each source block is made again.
        for item in fs::read_dir(&blocks).unwrap() {
            let path = item.unwrap().path();
            if text_of(&path).ends_with("-00000000.ncb") {
                fs::remove_file(path).unwrap();
            }
        }
        assert!(
            limited(&format!("decode {} -o -", blocks.display())) == bytes,
            "{codec}"
        );
        fs::remove_dir_all(&blocks).unwrap();
    }
}

/// A part of the file above.
#[cfg(target_os = "linux")]
const ADDRESS_SPACE_KB: u32 = 140_000;

#[test]
fn who_codes_is_asked_for_by_name() {
    let home = tempfile::tempdir().unwrap();
    let (file, blocks) = (home.path().join("source"), home.path().join("blocks"));
    fs::write(&file, random(10_000, 22)).unwrap();
    let (file, blocks) = (text_of(&file), text_of(&blocks));
    // Whether there is a GPU or not.
    succeed(&["encode", file, "-o", blocks, "--backend", "auto"], b"");
    succeed(
        &[
            "decode",
            blocks,
            "-o",
            "-",
            "--backend",
            "auto",
            "--gpu",
            "0",
        ],
        b"",
    );
    for (arguments, code, reason) in [
        (
            &[
                "encode",
                file,
                "-o",
                blocks,
                "--backend",
                "cuda",
                "--gpu",
                "65535",
            ][..],
            NO_DEVICE,
            "--backend cuda: ",
        ),
        (
            &[
                "encode",
                "--codec",
                "rs",
                file,
                "-o",
                blocks,
                "--backend",
                "hybrid",
                "--gpu",
                "65535",
            ],
            NO_DEVICE,
            "--backend hybrid: ",
        ),
        (
            &[
                "decode",
                blocks,
                "-o",
                "-",
                "--backend",
                "cuda",
                "--gpu",
                "65535",
            ],
            NO_DEVICE,
            "--backend cuda: ",
        ),
        (
            &["decode", blocks, "-o", "-", "--gpu", "0"],
            USAGE,
            "--gpu selects a GPU",
        ),
        (
            &["encode", file, "-o", blocks, "--backend", "gpu"],
            USAGE,
            "--backend",
        ),
        (
            &["encode", "--key", "1", file, "-o", "-", "--backend", "auto"],
            USAGE,
            "only the CPU makes raw blocks",
        ),
    ] {
        let output = run(arguments, b"");
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            text(&output)
        );
        assert!(
            text(&output).contains(reason),
            "{arguments:?}: {}",
            text(&output)
        );
    }
}

#[test]
fn what_cannot_be_coded_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let directory = text_of(home.path());
    for (arguments, input, code, reason) in [
        (
            &["encode", "-", "--key", "1", "-o", "-"][..],
            &[][..],
            1,
            "empty",
        ),
        (
            &[
                "encode", "-", "--key", "1", "--k", "64", "--n", "2", "-o", "-",
            ],
            &[0; 129],
            1,
            "more than the 128 bytes",
        ),
        (
            &["encode", "-", "--key", "1", "--k", "0", "-o", "-"],
            &[1],
            1,
            "0 bytes",
        ),
        (&["encode", "-", "-o", directory], &[], 1, "empty"),
        (&["encode", "-", "-o", "-"], &[1], 1, "need a directory"),
        (
            &["encode", "-", "--k", "100", "-o", directory],
            &[1],
            1,
            "100 bytes",
        ),
        (
            &["encode", "/does/not/exist", "-o", directory],
            &[],
            1,
            "/does/not/exist",
        ),
        (
            &["encode", "-", "--generation", "1", "-o", directory],
            &[],
            2,
            "--key",
        ),
        (
            &["encode", "-", "--codec", "none", "-o", directory],
            &[],
            2,
            "possible values: rlnc, rs, raptorq, raptor10",
        ),
        (
            &["encode", "-", "--n", "1025", "-o", directory],
            &[1],
            2,
            "at most 1024 blocks",
        ),
        (
            &["encode", "-", "--esi", "1", "-o", directory],
            &[1],
            2,
            "--codec raptorq",
        ),
        (&["encode", "-", "--codec", "raptorq"], &[1], 2, "--output"),
        (
            &[
                "encode", "-", "--codec", "raptorq", "--seed", "1", "-o", directory,
            ],
            &[1],
            2,
            "--esi",
        ),
        (
            &[
                "encode", "-", "--codec", "raptorq", "--key", "1", "-o", directory,
            ],
            &[1],
            2,
            "--esi",
        ),
        (
            &[
                "encode", "-", "--codec", "raptorq", "--piece", "64", "-o", directory,
            ],
            &[1],
            2,
            "they need --codec rs",
        ),
        (
            &["encode", "-", "--codec", "raptorq", "-o", "-"],
            &[1],
            1,
            "need a directory",
        ),
        (
            &["encode", "-", "--codec", "raptorq", "-o", directory],
            &[],
            1,
            "empty",
        ),
        (
            &[
                "encode", "-", "--codec", "raptorq", "--k", "65536", "-o", directory,
            ],
            &[1],
            1,
            "65536 bytes",
        ),
        (
            &[
                "encode", "-", "--codec", "raptorq", "--n", "56404", "-o", directory,
            ],
            &[1],
            1,
            "1 to 56403",
        ),
        (
            &[
                "encode", "-", "--codec", "raptorq", "--n", "3", "--k", "64", "-o", directory,
            ],
            &[0; 50_000],
            1,
            "255 source blocks",
        ),
        (
            &[
                "encode", "-", "--codec", "raptorq", "--esi", "16777212", "-o", directory,
            ],
            &[1],
            1,
            "below 16777216",
        ),
        (
            &[
                "encode", "-", "--codec", "raptor10", "--k", "65536", "-o", directory,
            ],
            &[1],
            1,
            "65536 bytes",
        ),
        (
            &[
                "encode", "-", "--codec", "raptor10", "--n", "3", "-o", directory,
            ],
            &[1],
            1,
            "raptor10 allows 4 to 8192",
        ),
        (
            &[
                "encode", "-", "--codec", "raptor10", "--n", "8193", "-o", directory,
            ],
            &[1],
            1,
            "raptor10 allows 4 to 8192",
        ),
        (
            &[
                "encode", "-", "--codec", "raptor10", "--esi", "65514", "-o", directory,
            ],
            &[1],
            1,
            "below 65518",
        ),
        (
            &["decode", directory, "-o", "-"],
            &[],
            INCOMPLETE,
            "no block files",
        ),
        (
            &["decode", "/does/not/exist", "-o", "-"],
            &[],
            1,
            "/does/not/exist",
        ),
    ] {
        let output = run(arguments, input);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            text(&output)
        );
        assert!(
            text(&output).contains(reason),
            "{arguments:?}: {}",
            text(&output)
        );
        assert!(output.stdout.is_empty());
    }
    assert_eq!(
        fs::read_dir(home.path()).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

/// A code whose blocks are encoding symbols.
struct Fountain {
    name: &'static str,
    /// Ids that a test may begin with, far from the source symbols.
    far: &'static str,
}

const FOUNTAINS: [Fountain; 2] = [
    Fountain {
        name: "raptorq",
        far: "16777000",
    },
    Fountain {
        name: "raptor10",
        far: "65000",
    },
];

impl Fountain {
    fn coded(&self, bytes: Vec<u8>, options: &[&str]) -> Coded {
        Coded::new(bytes, &[&["--codec", self.name], options].concat())
    }
}

#[test]
fn files_survive_the_loss_of_symbols() {
    for code in FOUNTAINS {
        // A byte; a symbol; several source blocks of two lengths; symbols of repair alone; many.
        for (length, options, lost) in [
            (1, &[][..], 3),
            (4096, &["--extra", "6"], 3),
            (100_001, &["--k", "1088", "--n", "16", "--extra", "9"], 3),
            (300_000, &[], 5),
            (
                20_000,
                &["--k", "1024", "--esi", code.far, "--count", "40"],
                8,
            ),
            (50_000, &["--k", "64", "--count", "1000"], 190),
        ] {
            let coded = code.coded(random(length, length as u64), options);
            coded.lose(lost);
            let report = coded.assert_decodes();
            assert!(
                report.contains(&format!("{length} bytes")) && report.contains("verified"),
                "{report}"
            );
        }
    }
}

#[test]
fn files_larger_than_a_segment_are_objects_one_behind_the_other() {
    for code in FOUNTAINS {
        let coded = code.coded(
            random((8 << 20) + 70_000, 5),
            &["--k", "65520", "--extra", "12"],
        );
        coded.lose(4);
        coded.assert_decodes();
        let segment_1 = |path: &&PathBuf| text_of(path).contains("-s00001-");
        coded
            .blocks()
            .iter()
            .filter(segment_1)
            .for_each(|path| fs::remove_file(path).unwrap());
        fs::remove_file(coded.path("out")).unwrap();
        let report = coded.assert_incomplete();
        assert!(
            report.contains("at least 2 more symbols are needed")
                && report.contains("segment 1: no blocks found"),
            "{report}"
        );
    }
}

#[test]
fn two_runs_make_symbols_that_work_together() {
    for code in FOUNTAINS {
        let coded = code.coded(random(100_000, 6), &["--k", "1024", "--count", "60"]);
        let report = coded.assert_incomplete();
        assert!(
            report.contains("at least 38 more symbols are needed"),
            "{report}"
        );
        assert!(
            report.contains("segment 0, source block 0: 60 of 98 symbols, at least 38 missing"),
            "{report}"
        );
        // The same symbols again bring nothing.
        for path in coded.blocks() {
            fs::copy(&path, path.with_extension("copy")).unwrap();
        }
        assert!(
            coded
                .assert_incomplete()
                .contains("at least 38 more symbols are needed")
        );
        coded.encode(
            "source",
            &[
                "--codec", code.name, "--k", "1024", "--esi", "5000", "--count", "60",
            ],
        );
        coded.assert_decodes();
        // Standard output gets nothing of what is short.
        coded.lose(120);
        let output = run(&["decode", text_of(&coded.path("blocks")), "-o", "-"], &[]);
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(INCOMPLETE), 0)
        );
    }
}

#[test]
fn bad_symbols_are_named_and_skipped() {
    for code in FOUNTAINS {
        let coded = code.coded(random(20_000, 8), &["--k", "1024", "--extra", "12"]);
        let blocks = coded.blocks();
        let damage = |index: usize, change: &dyn Fn(&mut Vec<u8>)| damage(&blocks[index], change);
        let bad = [
            (
                damage(0, &|bytes| bytes[700] ^= 1),
                "damaged: its block check",
            ),
            (
                damage(3, &|bytes| bytes[111] ^= 1),
                "damaged: its head check",
            ),
            (
                damage(5, &|bytes| bytes.truncate(200)),
                "damaged: it ends early",
            ),
            (damage(9, &|bytes| bytes.clear()), "not a block file"),
            ("notes.txt", "not a block file"),
        ];
        fs::write(coded.path("blocks/notes.txt"), "not a block").unwrap();
        // A random linear block of the same file, and symbols of another one.
        coded.encode("source", &["--k", "1024", "--count", "1"]);
        fs::write(coded.path("other"), random(3000, 10)).unwrap();
        coded.encode(
            "other",
            &["--codec", code.name, "--k", "1024", "--count", "3"],
        );
        let report = coded.assert_decodes();
        assert_skipped(&report, &bad);
        let symbols = format!("bytes in {} symbols of 1024", code.name);
        assert_eq!(
            report
                .lines()
                .filter(|line| line.contains("skipped, a block of file") && line.contains(&symbols))
                .count(),
            3
        );
        assert!(
            report.contains("bytes in blocks of 1024, 128 a generation")
                && report.contains("files skipped: 9"),
            "{report}"
        );
    }
}

/// A symbol with good checks that is not what its id says.
#[test]
fn forged_symbols_do_not_pass() {
    for code in FOUNTAINS {
        let coded = code.coded(random(20_000, 12), &["--k", "1024", "--extra", "0"]);
        let path = &coded.blocks()[7];
        let mut bytes = fs::read(path).unwrap();
        let end = bytes.len() - 16;
        bytes[end - 1] ^= 1;
        let check = *blake3::hash(&bytes[..end]).as_bytes();
        bytes[end..].copy_from_slice(&check[..16]);
        fs::write(path, bytes).unwrap();
        assert!(
            coded
                .assert_incomplete()
                .contains("at least one of its blocks was forged")
        );
    }
}

/// Block files carry what another implementation of RFC 6330 makes of each segment.
#[test]
fn symbols_are_those_of_the_rfc() {
    let bytes = random(100_001, 13);
    let coded = Coded::new(
        bytes.clone(),
        &[
            "--codec", "raptorq", "--k", "1088", "--n", "40", "--extra", "4",
        ],
    );
    let oti = raptorq::ObjectTransmissionInformation::new(bytes.len() as u64, 1088, 3, 1, 16);
    let mut packets: Vec<_> = raptorq::Encoder::new(&bytes, oti).get_encoded_packets(4);
    packets.sort_by_key(|packet| packet.payload_id().serialize());
    let blocks = coded.blocks();
    assert_eq!(blocks.len(), packets.len());
    for (path, packet) in blocks.iter().zip(packets) {
        let block = fs::read(path).unwrap();
        assert!(
            block[108..112] == packet.payload_id().serialize()
                && block[128..1216] == *packet.data(),
            "{}",
            path.display()
        );
    }
}

/// The same for RFC 5053. Three symbols are a block of four, of which the last one is zeros that
/// nobody writes.
#[test]
fn symbols_are_those_of_the_older_rfc() {
    for (symbols, n, blocks) in [(40, "20", 2), (3, "8192", 1)] {
        let bytes = random(symbols * 64, 14);
        let coded = Coded::new(
            bytes.clone(),
            &["--codec", "raptor10", "--k", "64", "--n", n, "--extra", "5"],
        );
        let mut files = coded.blocks().into_iter();
        for (index, block) in (0_u16..).zip(bytes.chunks(symbols / blocks * 64)) {
            let (n, mut block) = (block.len() / 64, block.to_vec());
            block.resize(n.max(4) * 64, 0);
            let (theirs, k) = raptor_code::encode_source_block(&block, n.max(4), 5).unwrap();
            assert_eq!(k as usize, n.max(4));
            for (esi, symbol) in (0_u16..)
                .zip(theirs)
                .filter(|(esi, _)| usize::from(*esi) < n || *esi >= 4)
            {
                let file = fs::read(files.next().unwrap()).unwrap();
                assert!(
                    file[108..110] == index.to_be_bytes() && file[110..112] == esi.to_be_bytes(),
                    "{index} {esi}"
                );
                assert!(file[128..192] == symbol, "{index} {esi}");
            }
        }
        assert_eq!(files.next(), None);
    }
}
