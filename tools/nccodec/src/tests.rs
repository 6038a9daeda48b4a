//! Files by the CPU, by a GPU and by both: the same files, and back again.

use std::collections::BTreeMap;

use ncs_device::portions::Demand;
use ncs_device::{self as device, BackendChoice};
use ncs_proto::object::SegmentId;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::crew::Crew;
use crate::crew::tests::{Temper, crew_with};
use crate::flow::crew_of;
use crate::*;

/// A way to code a file.
#[derive(Debug, Clone, Copy)]
enum Case {
    Chunks(ChunkPlan),
    Blocks(Plan),
}

fn chunks(k: u16, n: u16, piece_bytes: u32) -> Case {
    Case::Chunks(ChunkPlan {
        matrix: Construction::default(),
        k,
        n,
        piece_bytes,
        set: [7; 16],
    })
}

fn blocks(code: Code, block_bytes: u32, n_max: u16, extra: u32) -> Case {
    Case::Blocks(Plan {
        code,
        block_bytes,
        n_max,
        first: 0,
        amount: Amount::Extra(extra),
    })
}

/// Those that GPUs are tried with, and bytes of a file for each, which are several portions.
fn cases() -> Vec<(Case, usize)> {
    let fountain = |fountain, block_bytes, n_max, extra| {
        blocks(Code::Fountain(fountain), block_bytes, n_max, extra)
    };
    vec![
        (chunks(4, 6, 4096), 1_000_001),
        (chunks(10, 14, 1000), 300_007),
        (chunks(4, 200, 1040), 40_000),
        (chunks(128, 192, 1040), 400_000),
        (chunks(230, 250, 64), 150_000),
        (chunks(3, 5, 64), 100),
        // Source blocks of symbols that are no whole strips, and a segment that ends early.
        (
            fountain(Fountain::RaptorQ, 4112, 300, 20),
            (8 << 20) + 100_000,
        ),
        // One source block a segment, more than fits into shared memory.
        (fountain(Fountain::RaptorQ, 4096, 56_403, 20), (8 << 20) + 1),
        (
            fountain(Fountain::Raptor10, 8192, 200, 40),
            (8 << 20) + 100_000,
        ),
        (fountain(Fountain::Raptor10, 1024, 8192, 40), 2_000_000),
        (blocks(Code::Rlnc, 4096, 128, 10), 3_000_000),
        (blocks(Code::Rlnc, 2048, 300, 10), 2_000_000),
    ]
}

type Crews<'a> = &'a dyn Fn(&Demand) -> Result<Crew, Error>;

impl Case {
    fn encode(&self, file: &Path, directory: &Path, crew: Crews<'_>) -> Option<Makers> {
        match self {
            Self::Chunks(plan) => {
                split::encode_by(plan, file, Some(directory), crew)
                    .unwrap()
                    .makers
            }
            Self::Blocks(plan) => {
                encode::encode_by(plan, file, directory, crew)
                    .unwrap()
                    .makers
            }
        }
    }

    fn decode(&self, directory: &Path, file: &Path, crew: Crews<'_>) -> Option<Makers> {
        match self {
            Self::Chunks(_) => {
                join::decode_by(directory, file, |_, demand| crew(demand))
                    .unwrap()
                    .makers
            }
            Self::Blocks(_) => decode::decode_by(directory, file, crew).unwrap().makers,
        }
    }

    /// Removes what is not needed: the first native chunks, or of each generation the first blocks
    /// but one.
    fn lose(&self, directory: &Path) {
        let names: Vec<String> = contents(directory).into_keys().collect();
        let (lost, each) = match self {
            Self::Chunks(plan) => (usize::from(plan.n - plan.k), names.len()),
            Self::Blocks(Plan {
                amount: Amount::Extra(extra),
                code,
                ..
            }) => {
                let spare = if *code == Code::Rlnc { 1 } else { 10 };
                (*extra as usize - spare, names[0].rfind('-').unwrap())
            }
            Self::Blocks(_) => unreachable!("cases have blocks to spare"),
        };
        let groups =
            names.chunk_by(|a, b| matches!(self, Self::Chunks(_)) || a[..each] == b[..each]);
        for name in groups.flat_map(|names| &names[..lost.min(names.len())]) {
            fs::remove_file(directory.join(name)).unwrap();
        }
    }
}

/// Files by their names.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(|item| item.unwrap());
    files
        .map(|item| {
            (
                item.file_name().into_string().unwrap(),
                fs::read(item.path()).unwrap(),
            )
        })
        .collect()
}

/// Codes a file by the CPU and by others, compares everything, and has both make the file again of
/// what is left after losses. Tells who of the others made what.
fn assert_same(case: &Case, bytes: usize, crew: Crews<'_>) -> [Option<Makers>; 2] {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let mut content = vec![0; bytes];
    SmallRng::seed_from_u64(bytes as u64).fill_bytes(&mut content);
    fs::write(path("file"), &content).unwrap();
    let by_cpu: Crews<'_> = &|demand| crew_of(Choice::CPU, demand);
    assert_eq!(case.encode(&path("file"), &path("cpu"), by_cpu), None);
    let encoded = case.encode(&path("file"), &path("other"), crew);
    assert!(
        contents(&path("cpu")) == contents(&path("other")),
        "{case:?}"
    );
    case.lose(&path("other"));
    assert_eq!(
        case.decode(&path("other"), &path("again-cpu"), by_cpu),
        None
    );
    let decoded = case.decode(&path("other"), &path("again"), crew);
    assert!(fs::read(path("again-cpu")).unwrap() == content, "{case:?}");
    assert!(fs::read(path("again")).unwrap() == content, "{case:?}");
    [encoded, decoded]
}

/// Skipped without a GPU, and failing without one if `NCTEST_REQUIRE_GPU` says that there is one.
#[test]
fn files_by_a_gpu_are_those_by_the_cpu() {
    let gpu = device::open_coder(
        0,
        &Demand {
            input_bytes: 1 << 20,
            output_bytes: 1 << 20,
            bite_bytes: 1 << 20,
        },
    );
    if let Err(absence) = gpu {
        assert!(
            std::env::var_os("NCTEST_REQUIRE_GPU").is_none(),
            "a GPU was to be here: {absence}"
        );
        return println!("skipped: no GPU");
    }
    for backend in [BackendChoice::Cuda, BackendChoice::Hybrid] {
        for (case, bytes) in cases() {
            for makers in assert_same(&case, bytes, &|demand| {
                crew_of(Choice { backend, gpu: 0 }, demand)
            }) {
                let Makers { cuda, cpu } = makers.expect("a GPU takes part");
                assert!(
                    backend == BackendChoice::Hybrid || (cuda > 0 && cpu == 0),
                    "{case:?}: {cuda} and {cpu}"
                );
            }
        }
    }
}

#[test]
fn files_are_the_same_whoever_codes() {
    for (case, bytes) in cases() {
        for backend in [BackendChoice::Cuda, BackendChoice::Hybrid] {
            let crew = |demand: &Demand| Ok(crew_with(backend, Temper::Good, demand));
            for makers in assert_same(&case, bytes, &crew) {
                let Makers { cuda, cpu } = makers.unwrap();
                assert!(
                    cuda + cpu > 0 && (backend == BackendChoice::Hybrid || cpu == 0),
                    "{case:?}"
                );
            }
        }
    }
}

#[test]
fn a_gpu_that_fails_costs_nothing_of_a_file() {
    let rlnc = blocks(Code::Rlnc, 1024, 64, 5);
    let raptorq = blocks(Code::Fountain(Fountain::RaptorQ), 16_384, 100, 12);
    for (case, bytes) in [
        (chunks(4, 6, 4096), 1_000_001),
        (rlnc, 500_000),
        (raptorq, 17 << 20),
    ] {
        for temper in [
            Temper::Fails(0),
            Temper::Fails(1),
            Temper::Refuses(1),
            Temper::Wrong,
        ] {
            let crew = |demand: &Demand| Ok(crew_with(BackendChoice::Cuda, temper, demand));
            for makers in assert_same(&case, bytes, &crew) {
                let Makers { cuda, cpu } = makers.unwrap();
                match temper {
                    Temper::Fails(1) => assert!(cuda > 0, "{case:?}"),
                    Temper::Refuses(_) => assert!(cuda + cpu > 0, "{case:?}"),
                    _ => assert!(
                        cuda == 0 && cpu > 0,
                        "{case:?} {temper:?}: {cuda} by the GPU"
                    ),
                }
            }
        }
    }
}

#[test]
fn a_gpu_that_is_not_there_is_missed() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("file"), [1; 1000]).unwrap();
    // No host has so many.
    let choice = |backend| Choice {
        backend,
        gpu: u16::MAX,
    };
    let Case::Chunks(plan) = chunks(4, 6, 64) else {
        unreachable!()
    };
    for backend in [BackendChoice::Cuda, BackendChoice::Hybrid] {
        let error =
            encode_chunks(&plan, &home.path().join("file"), None, choice(backend)).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("--backend {}: ", backend.name())),
            "{error}"
        );
        assert!(!home.path().join("file.chunks").exists());
    }
    encode_chunks(
        &plan,
        &home.path().join("file"),
        None,
        choice(BackendChoice::Auto),
    )
    .unwrap();
    let decoded = decode(
        &home.path().join("file.chunks"),
        &home.path().join("again"),
        choice(BackendChoice::Auto),
    )
    .unwrap();
    assert!(matches!(
        decoded,
        Decoded::Chunks(Joined { makers: None, .. })
    ));
}

/// Writing that fails ends reading, too.
#[test]
fn what_cannot_be_written_ends_all() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("file"), vec![1; 1_000_000]).unwrap();
    let Case::Blocks(plan) = blocks(Code::Rlnc, 1024, 64, 5) else {
        unreachable!()
    };
    let file = fs::read(home.path().join("file")).unwrap();
    // A directory has the name that a block is to have.
    let name = format!(
        "{}-s00000-g0007-00000000.ncb",
        &SegmentId::of(&file).to_string()[..12]
    );
    fs::create_dir_all(home.path().join("blocks").join(name)).unwrap();
    let error = encode(
        &plan,
        &home.path().join("file"),
        &home.path().join("blocks"),
        Choice::CPU,
    )
    .unwrap_err();
    assert!(matches!(error, Error::Write { .. }), "{error}");
}
