//! Chunk files, as a user makes and joins them: any k of n, damage in parts, what is refused and
//! why.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use reed_solomon_erasure::galois_8::ReedSolomon;
use tempfile::TempDir;

mod program;

use program::{INCOMPLETE, program, random, run, text};

const USAGE: i32 = 2;
/// Bytes of a chunk file's head, and of the check behind a piece.
const HEAD: usize = 96;
const CHECK: usize = 16;
const LEOPARD: &[&str] = &["--matrix", "leopard"];

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A file beside its chunks.
struct Split {
    bytes: Vec<u8>,
    home: TempDir,
    said: String,
}

impl Split {
    fn new(bytes: Vec<u8>, options: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("film"), &bytes).unwrap();
        let mut split = Self {
            bytes,
            home,
            said: String::new(),
        };
        split.said = split.encode("film", options);
        split
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn encode(&self, file: &str, options: &[&str]) -> String {
        let (file, chunks) = (self.path(file), self.path("film.chunks"));
        let output = run(
            &[
                &[
                    "encode",
                    "--codec",
                    "rs",
                    text_of(&file),
                    "-o",
                    text_of(&chunks),
                ],
                options,
            ]
            .concat(),
            &[],
        );
        assert!(output.status.success(), "{options:?}: {}", text(&output));
        text(&output)
    }

    /// In their order.
    fn chunks(&self) -> Vec<PathBuf> {
        let mut chunks: Vec<_> = fs::read_dir(self.path("film.chunks"))
            .unwrap()
            .map(|item| item.unwrap().path())
            .collect();
        chunks.sort();
        chunks
    }

    fn lose(&self, indices: &[usize]) {
        let chunks = self.chunks();
        indices
            .iter()
            .for_each(|&index| fs::remove_file(&chunks[index]).unwrap());
    }

    /// Changes a chunk file.
    fn change(&self, index: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.path(&format!(
            "film.chunks/film.{index:03}-{}.ncc",
            if index < 4 { "native" } else { "code" }
        ));
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
    }

    fn decode(&self) -> Output {
        run(
            &[
                "decode",
                text_of(&self.path("film.chunks")),
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
        fs::remove_file(self.path("out")).unwrap();
        assert!(
            text(&output).contains(&format!("{} bytes from chunks", self.bytes.len())),
            "{}",
            text(&output)
        );
        text(&output)
    }

    /// What it says; nothing may have been left behind.
    fn assert_refused(&self) -> String {
        let output = self.decode();
        assert_eq!(output.status.code(), Some(INCOMPLETE), "{}", text(&output));
        assert!(!self.path("out").exists() && fs::read_dir(self.home.path()).unwrap().count() == 2);
        text(&output)
    }
}

/// Where stripe `index` begins in a chunk file, if it is not the last one or all are of this
/// length.
fn stripe(index: usize, piece: usize) -> usize {
    HEAD + index * (piece + CHECK)
}

#[test]
fn any_four_of_six_rebuild_a_file() {
    let split = Split::new(random(1500, 1), &["--piece", "100"]);
    let chunks: Vec<(PathBuf, Vec<u8>)> = split
        .chunks()
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    assert_eq!(chunks.len(), 6);
    for first in 0..6 {
        for second in 0..first {
            split.lose(&[second, first]);
            let said = split.assert_decodes();
            let rebuilt = 4 * u8::from(first < 4) + 4 * u8::from(second < 4);
            assert_eq!(
                said.contains(&format!("native pieces rebuilt: {rebuilt}")),
                rebuilt > 0,
                "{said}"
            );
            for (path, bytes) in &chunks {
                fs::write(path, bytes).unwrap();
            }
        }
    }
}

#[test]
fn files_of_every_length_survive() {
    let mut rng = SmallRng::seed_from_u64(2);
    let cases = [
        (0, &[][..], 6),
        (1, &[], 6),
        (3, &["--k", "5", "--n", "6"], 6),
        (400, &["--piece", "100"], 6),
        (401, &["--piece", "100"], 6),
        (800, &["--piece", "100", "--matrix", "vand-bb"], 6),
        (1199, &["--piece", "100", "--matrix", "vand-jerasure"], 6),
        (100_001, &["--k", "10", "--n", "14", "--piece", "1000"], 14),
        (
            50_000,
            &[
                "--k", "3", "--n", "200", "--matrix", "isal-rs", "--piece", "64",
            ],
            200,
        ),
        (70_000, &["--k", "255", "--n", "256"], 256),
        (0, LEOPARD, 6),
        (1, LEOPARD, 6),
        (1000, LEOPARD, 6),
        (3_000_001, LEOPARD, 6),
        (3, &["--matrix", "leopard", "--k", "5", "--n", "6"], 6),
        (
            99_999,
            &[
                "--matrix", "leopard", "--k", "100", "--n", "256", "--piece", "66",
            ],
            256,
        ),
        (
            5_000_000,
            &["--matrix", "leopard", "--k", "200", "--n", "256"],
            256,
        ),
        (
            2_000_003,
            &[
                "--matrix", "leopard", "--k", "3", "--n", "200", "--piece", "70000",
            ],
            200,
        ),
        (3_000_001, &[], 6),
        (2 << 20, &["--k", "1", "--n", "2", "--piece", "1048576"], 2),
    ];
    for (length, options, n) in cases {
        let split = Split::new(random(length, length as u64), options);
        let k = options
            .iter()
            .position(|option| *option == "--k")
            .map_or(4, |at| options[at + 1].parse().unwrap());
        let mut order: Vec<usize> = (0..n).collect();
        order.shuffle(&mut rng);
        split.lose(&order[k..]);
        split.assert_decodes();
    }
}

#[test]
fn what_is_stored_is_told_beside_three_copies() {
    let split = Split::new(random(120_000, 3), &["--k", "4", "--n", "6"]);
    let expected = "stored: 180672 bytes, 1.51x the file, and any 2 chunks may be lost; three \
                    copies: 360000 bytes, 3.00x the file, and any 2";
    assert!(split.said.contains(expected), "{}", split.said);
    let bytes: u64 = split
        .chunks()
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert_eq!(bytes, 180_672);
    let names: Vec<_> = split
        .chunks()
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        (names[0].as_str(), names[3].as_str(), names[4].as_str()),
        (
            "film.000-native.ncc",
            "film.003-native.ncc",
            "film.004-code.ncc"
        )
    );
    let large = Split::new(random(4_000_000, 3), &[]);
    assert!(
        large.said.contains("1.50x the file") && large.said.contains("3.00x the file"),
        "{}",
        large.said
    );
}

/// Without software: a stripe of a native chunk is the file's, and code chunks are what another
/// library makes of them.
#[test]
fn chunks_hold_the_files_bytes_and_the_bytes_of_other_libraries() {
    let split = Split::new(
        random(4 * 1000, 4),
        &["--piece", "1000", "--matrix", "vand-bb"],
    );
    let piece = |path: &PathBuf| fs::read(path).unwrap()[HEAD..HEAD + 1000].to_vec();
    let chunks: Vec<Vec<u8>> = split.chunks().iter().map(piece).collect();
    assert!(chunks[..4].concat() == split.bytes);
    let mut theirs: Vec<Vec<u8>> = split.bytes.chunks(1000).map(<[u8]>::to_vec).collect();
    theirs.resize(6, vec![0; 1000]);
    ReedSolomon::new(4, 2).unwrap().encode(&mut theirs).unwrap();
    assert!(chunks == theirs);
}

#[test]
fn fewer_are_refused_with_what_is_missing() {
    let split = Split::new(random(5000, 5), &["--piece", "500"]);
    split.lose(&[0, 3]);
    split.change(4, |bytes| bytes[40] ^= 1);
    let said = split.assert_refused();
    assert!(
        said.contains("3 chunks of file") && said.contains("any 4 of its 6 are needed: 1 more"),
        "{said}"
    );
    assert!(
        said.contains("found: chunks 1, 2, 5; missing: chunks 0, 3, 4"),
        "{said}"
    );
    assert!(
        said.contains("film.004-code.ncc: damaged: its head checksum is wrong"),
        "{said}"
    );
    // Standard output gets nothing.
    let output = run(
        &["decode", text_of(&split.path("film.chunks")), "-o", "-"],
        &[],
    );
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(INCOMPLETE), 0)
    );
    // A copy is not another chunk.
    fs::copy(&split.chunks()[0], split.path("film.chunks/copy")).unwrap();
    assert!(split.assert_refused().contains("3 chunks of file"));
}

/// Stripes of 4 x 100 bytes: each of five chunks is damaged, no two of them too much in one stripe.
#[test]
fn chunks_that_are_damaged_in_part_are_used_for_the_rest() {
    let split = Split::new(random(6 * 400, 6), &["--piece", "100"]);
    for index in 0..5 {
        split.change(index, |bytes| bytes[stripe(index, 100) + 50] ^= 1);
    }
    split.change(5, |bytes| bytes.truncate(stripe(3, 100) + 10));
    let said = split.assert_decodes();
    for index in 0..4 {
        let line = said
            .lines()
            .find(|line| line.contains(&format!("film.{index:03}-native.ncc")))
            .unwrap_or_else(|| panic!("{said}"));
        assert!(
            line.contains(&format!(
                "1 pieces are damaged (that of stripe {index} first"
            )),
            "{said}"
        );
    }
    assert!(
        said.contains("film.005-code.ncc: ends early with 3 of its 6 pieces"),
        "{said}"
    );
    // A check that is damaged is as bad as a piece; this is the third in one stripe.
    split.change(0, |bytes| bytes[stripe(2, 100) + 100 + 3] ^= 1);
    split.change(4, |bytes| bytes[stripe(2, 100)] ^= 1);
    let said = split.assert_refused();
    assert!(
        said.contains("1 of the 6 stripes of file")
            && said.contains("have fewer than 4 intact pieces"),
        "{said}"
    );
    assert!(
        said.contains(
            "stripe 2, from byte 800 on: 3 intact pieces; damaged pieces in chunks 0, 2, 4"
        ),
        "{said}"
    );
    assert!(said.contains("found: chunks 0, 1, 2, 3, 4, 5"), "{said}");
}

#[test]
fn chunks_that_end_early_are_short_at_the_end() {
    let split = Split::new(random(10 * 400 - 7, 7), &["--piece", "100"]);
    for (index, length) in [(0, 95), (1, stripe(4, 100)), (3, stripe(7, 100) - 1)] {
        split.change(index, |bytes| bytes.truncate(length));
    }
    let said = split.assert_refused();
    assert!(
        said.contains("stripes 6 to 9, from byte 2400 on: chunks 1, 3 end earlier"),
        "{said}"
    );
    assert!(
        said.contains("found: chunks 1, 2, 3, 4, 5; missing: chunks 0"),
        "{said}"
    );
    assert!(
        said.contains("film.000-native.ncc: damaged: it ends early"),
        "{said}"
    );
    // The whole of a piece and its check is there, or it is not.
    let split = Split::new(random(10 * 400 - 7, 7), &["--piece", "100"]);
    split.lose(&[0]);
    split.change(1, |bytes| bytes.truncate(bytes.len() - 1));
    assert!(
        split
            .assert_decodes()
            .contains("film.001-native.ncc: ends early with 9 of its 10 pieces")
    );
    // What is behind the end means nothing.
    let split = Split::new(random(700, 7), &["--piece", "100"]);
    (0..6).for_each(|index| split.change(index, |bytes| bytes.push(0)));
    split.assert_decodes();
}

/// A copy of a chunk makes good what is damaged in the other one.
#[test]
fn copies_help_each_other() {
    let split = Split::new(random(800, 8), &["--piece", "100"]);
    split.lose(&[1, 5]);
    fs::copy(
        split.path("film.chunks/film.000-native.ncc"),
        split.path("film.chunks/copy"),
    )
    .unwrap();
    split.change(0, |bytes| bytes[stripe(0, 100)] ^= 1);
    let copy = split.path("film.chunks/copy");
    let mut bytes = fs::read(&copy).unwrap();
    bytes[stripe(1, 100)] ^= 1;
    fs::write(&copy, bytes).unwrap();
    split.assert_decodes();
}

#[test]
fn pieces_in_the_wrong_place_are_damage() {
    let split = Split::new(random(1600, 9), &["--piece", "100"]);
    // Each piece with its check: two stripes of one chunk, and one stripe of two chunks.
    split.change(0, |bytes| {
        bytes[stripe(0, 100)..stripe(2, 100)].rotate_left(116)
    });
    let third = fs::read(&split.chunks()[2]).unwrap();
    split.change(1, |bytes| {
        bytes[stripe(3, 100)..stripe(4, 100)]
            .copy_from_slice(&third[stripe(3, 100)..stripe(4, 100)])
    });
    let said = split.assert_decodes();
    assert!(
        said.contains("film.000-native.ncc: 2 pieces are damaged")
            && said.contains("film.001-native.ncc: 1 pieces"),
        "{said}"
    );
}

#[test]
fn encodings_are_not_mixed() {
    let split = Split::new(random(3000, 10), &[]);
    let first: Vec<(PathBuf, Vec<u8>)> = split
        .chunks()
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    // The same file again: the bytes are the same, but nobody can know that of a chunk.
    split.encode("film", &[]);
    for (path, bytes) in &first[..2] {
        fs::write(path, bytes).unwrap();
    }
    let said = split.assert_decodes();
    assert_eq!(
        said.lines()
            .filter(|line| line.contains("skipped, a chunk of file"))
            .count(),
        2,
        "{said}"
    );
    assert!(said.contains("files skipped: 2"), "{said}");
    fs::write(&first[2].0, &first[2].1).unwrap();
    let said = split.assert_refused();
    assert!(
        said.contains("as much of file") && said.contains("separate directories"),
        "{said}"
    );
    split.lose(&[0]);
    let said = split.assert_refused();
    assert!(
        said.contains("found: chunks 3, 4, 5; missing: chunks 0, 1, 2"),
        "{said}"
    );
    assert!(
        said.contains("film.001-native.ncc: a chunk of file"),
        "the reason is in the list: {said}"
    );
}

#[test]
fn other_files_are_named_and_skipped() {
    let split = Split::new(random(3000, 11), &[]);
    fs::write(split.path("film.chunks/notes.txt"), "not a chunk").unwrap();
    fs::create_dir(split.path("film.chunks/folder")).unwrap();
    split.change(0, Vec::clear);
    let said = split.assert_decodes();
    assert_eq!(
        said.lines()
            .filter(|line| line.contains("skipped, not a chunk file"))
            .count(),
        3,
        "{said}"
    );
    let blocks = run(
        &["encode", "-", "-o", text_of(&split.path("film.chunks"))],
        b"blocks",
    );
    assert!(blocks.status.success());
    assert!(
        split
            .assert_refused()
            .contains("contains both block files and chunk files")
    );
}

/// A head's check can be made by anybody.
#[test]
fn forged_chunks_do_not_pass() {
    let forge = |bytes: &mut Vec<u8>, at: usize, value: u8| {
        bytes[at] = value;
        let check = *blake3::hash(&bytes[..HEAD - CHECK]).as_bytes();
        bytes[HEAD - CHECK..HEAD].copy_from_slice(&check[..CHECK]);
    };
    // Another index than the pieces are bound to.
    let split = Split::new(random(3000, 12), &[]);
    split.change(0, |bytes| forge(bytes, 17, 1));
    split.lose(&[1]);
    assert!(split.assert_decodes().contains("1 pieces are damaged"));
    // A longer file than there can be, and one of 2^60 bytes, by all chunks.
    let split = Split::new(random(3000, 12), &[]);
    (0..6).for_each(|index| split.change(index, |bytes| forge(bytes, 24, 0x11)));
    let said = split.assert_refused();
    let named = said
        .lines()
        .filter(|line| line.contains("  ") && line.contains("invalid: a length out of range"))
        .count();
    assert!(
        said.contains("no chunk can be used") && named == 6,
        "{said}"
    );
    (0..6).for_each(|index| split.change(index, |bytes| forge(bytes, 24, 0x0F)));
    let said = split.assert_refused();
    assert!(
        said.contains("stripes 0 to") && said.contains("chunks 0, 1, 2, 3, 4, 5 end earlier"),
        "{said}"
    );
    // A piece with a good check.
    let split = Split::new(random(3000, 12), &[]);
    split.change(0, |bytes| {
        bytes[HEAD] ^= 1;
        let set: [u8; 16] = bytes[32..48].try_into().unwrap();
        let parts = [
            &set[..],
            &[0; 2],
            &[0; 8],
            &bytes[HEAD..bytes.len() - CHECK],
        ]
        .concat();
        let end = bytes.len();
        bytes[end - CHECK..].copy_from_slice(&blake3::hash(&parts).as_bytes()[..CHECK]);
    });
    assert!(
        split
            .assert_refused()
            .contains("at least one chunk was forged")
    );
    split.lose(&[0]);
    split.assert_decodes();
}

#[test]
fn standard_input_and_output() {
    let bytes = random(77_777, 13);
    let home = tempfile::tempdir().unwrap();
    let chunks = home.path().join("new/chunks");
    let output = run(
        &[
            "encode",
            "--codec",
            "rs",
            "--piece",
            "1024",
            "-",
            "-o",
            text_of(&chunks),
        ],
        &bytes,
    );
    assert!(output.status.success(), "{}", text(&output));
    fs::remove_file(chunks.join("standard-input.002-native.ncc")).unwrap();
    let output = run(&["decode", text_of(&chunks), "-o", "-"], &[]);
    assert!(
        output.status.success() && output.stdout == bytes,
        "{}",
        text(&output)
    );
}

#[test]
fn chunks_go_beside_the_file_if_nothing_else_is_said() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("film.mp4");
    fs::write(&file, random(1000, 14)).unwrap();
    assert!(
        run(
            &[
                "encode",
                "--codec",
                "rs",
                "--k",
                "4",
                "--n",
                "6",
                text_of(&file)
            ],
            &[]
        )
        .status
        .success()
    );
    assert_eq!(
        fs::read_dir(home.path().join("film.mp4.chunks"))
            .unwrap()
            .count(),
        6
    );
}

/// 256 MiB with address space for much less, there and back.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded() {
    let bytes = random(256 << 20, 15);
    let split = Split::new(Vec::new(), &[]);
    fs::write(split.path("film"), &bytes).unwrap();
    let (program, film, chunks) = (program(), split.path("film"), split.path("film.chunks"));
    let limited = |command: &str| {
        let script = format!("ulimit -v 140000; exec {} {command}", program.display());
        let output = Command::new("sh")
            .args(["-c", &script])
            .env("MALLOC_ARENA_MAX", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {}", text(&output));
        output.stdout
    };
    limited(&format!(
        "encode --codec rs --piece 65536 {} -o {}",
        film.display(),
        chunks.display()
    ));
    split.lose(&[1, 2]);
    assert!(limited(&format!("decode {} -o -", chunks.display())) == bytes);
}

/// What an encoding leaves behind that was killed is taken for no chunks.
#[test]
fn an_encoding_that_was_killed_spoils_no_other() {
    let split = Split::new(random(100_000, 18), &[]);
    let chunks = split.path("film.chunks");
    let mut killed = Command::new(program())
        .args(["encode", "--codec", "rs", "-", "-o", text_of(&chunks)])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // So much that each chunk has begun to be written.
    let mut input = killed.stdin.take().unwrap();
    input.write_all(&random(60_000_000, 19)).unwrap();
    let has_begun = || {
        let files = fs::read_dir(&chunks).unwrap();
        let lengths = files.map(|file| file.unwrap().metadata().unwrap().len());
        lengths.filter(|length| *length > 1_000_000).count() == 6
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !has_begun() {
        assert!(Instant::now() < end, "nothing is written");
        std::thread::sleep(Duration::from_millis(20));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let left = fs::read_dir(&chunks).unwrap().count();
    assert_eq!(left, 12, "it could not clean up");
    fs::remove_file(chunks.join("film.001-native.ncc")).unwrap();
    split.assert_decodes();
}

/// A write that fails is named, and leaves nothing behind.
#[cfg(target_os = "linux")]
#[test]
fn files_that_cannot_be_written_do_not_appear() {
    let split = Split::new(random(100_000_000, 17), &[]);
    let (film, chunks, again) = ("film", "film.chunks", "again");
    // In blocks of 512 bytes: each chunk has 25,000,000 bytes, the file four times as many.
    for (limit, command) in [
        (20_000, format!("encode --codec rs {film} -o new")),
        (100, format!("encode --codec rs {film} -o new")),
        (150_000, format!("decode {chunks} -o {again}")),
    ] {
        let script = format!(
            "trap '' XFSZ; ulimit -f {limit}; exec {} {command}",
            program().display()
        );
        let output = Command::new("sh")
            .args(["-c", &script])
            .current_dir(split.home.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("File too large"), "{said}");
        let new = split.path("new");
        assert_eq!(fs::read_dir(&new).unwrap().count(), 0, "{limit}: {said}");
        assert!(!split.path(again).exists());
    }
    let left = fs::read_dir(split.home.path()).unwrap();
    let mut left: Vec<_> = left.map(|item| item.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [film, chunks, "new"]);
}

/// Chunks of other files are not kept open.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_may_have_many_chunks() {
    let split = Split::new(random(5000, 16), &["--k", "4", "--n", "8"]);
    for file in 0..10 {
        let name = format!("other-{file}");
        fs::write(split.path(&name), random(100, file)).unwrap();
        split.encode(&name, &[]);
    }
    assert_eq!(split.chunks().len(), 68);
    let script = format!(
        "ulimit -n 32; exec {} decode {} -o -",
        program().display(),
        split.path("film.chunks").display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(
        output.status.success() && output.stdout == split.bytes,
        "{}",
        text(&output)
    );
}

#[test]
fn what_cannot_be_coded_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let directory = text_of(home.path());
    let rs = ["encode", "--codec", "rs", "-o", directory];
    for (arguments, input, code, reason) in [
        (
            &["--k", "6", "--n", "6", "-"][..],
            &b"x"[..],
            1,
            "k = 6, n = 6: k must be at least 1 and less than n",
        ),
        (&["--k", "0", "-"], b"x", 1, "k must be at least 1"),
        (&["--k", "4", "--n", "257", "-"], b"x", 1, "n at most 256"),
        (&["--k", "70000", "-"], b"x", USAGE, "--k"),
        (
            &["--k", "9", "--n", "18", "--matrix", "isal-rs", "-"],
            b"x",
            1,
            "isal-rs does not rebuild from every 9 of 18 chunks",
        ),
        (&["--piece", "63", "-"], b"x", 1, "pieces of 63 bytes"),
        (
            &["--piece", "1048577", "-"],
            b"x",
            1,
            "pieces of 1048577 bytes",
        ),
        (
            &["--matrix", "zfec", "-"],
            b"x",
            USAGE,
            "unknown matrix `zfec`: expected cauchy, vand-bb, vand-jerasure, isal-rs or leopard",
        ),
        (
            &["--matrix", "leopard", "--piece", "65", "-"],
            b"x",
            1,
            "an even number of bytes",
        ),
        (
            &["--matrix", "leopard", "--n", "257", "-"],
            b"x",
            1,
            "n at most 256",
        ),
        (
            &["--matrix", "leopard", "--backend", "cuda", "-"],
            b"x",
            1,
            "only the CPU codes chunks of leopard",
        ),
        (&["--count", "3", "-"], b"x", USAGE, "--count"),
        (&["--key", "3", "-"], b"x", USAGE, "--key"),
        (&["--extra", "3", "-"], b"x", USAGE, "--extra"),
        (&["/does/not/exist"], b"", 1, "/does/not/exist"),
    ] {
        let output = run(&[&rs, arguments].concat(), input);
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
    for (arguments, code, reason) in [
        (
            &["encode", "--codec", "rs", "-"][..],
            1,
            "chunk files need a directory",
        ),
        (
            &["encode", "--codec", "rs", "-", "-o", "-"],
            1,
            "chunk files need a directory",
        ),
        (
            &["encode", "--matrix", "cauchy", "-", "-o", "-"],
            USAGE,
            "they need --codec rs",
        ),
        (
            &["encode", "--piece", "100", "-", "-o", "-"],
            USAGE,
            "they need --codec rs",
        ),
        (&["encode", "-"], USAGE, "--output"),
        (
            &["decode", directory, "-o", "-"],
            INCOMPLETE,
            "no block files and no chunk files",
        ),
    ] {
        let output = run(arguments, b"x");
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
    assert_eq!(
        fs::read_dir(home.path()).unwrap().count(),
        0,
        "nothing is left behind"
    );
}
