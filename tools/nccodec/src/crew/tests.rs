//! Crews with a stand-in for a GPU: the CPU's results, or mistakes, or failures.

use ncs_device::portions::Work;
use ncs_gf::gf256;

use super::*;

/// What becomes of a stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Temper {
    Good,
    /// One byte of every portion is another.
    Wrong,
    /// So many bites are begun, and no more.
    Refuses(usize),
    /// So many bites end well, and no more.
    Fails(usize),
}

/// Opens one.
pub(crate) fn opener(temper: Temper) -> Opener {
    Box::new(move || {
        Ok(Box::new(StandIn {
            temper,
            bites: VecDeque::new(),
            begun: 0,
            ended: 0,
        }))
    })
}

/// A crew with such a GPU.
pub(crate) fn crew_with(backend: BackendChoice, temper: Temper, demand: &Demand) -> Crew {
    Crew::with(backend, Some(opener(temper)), demand, CORES).unwrap()
}

struct StandIn {
    temper: Temper,
    bites: VecDeque<Vec<Portion>>,
    begun: usize,
    ended: usize,
}

impl Coder for StandIn {
    fn depth(&self) -> usize {
        LANES
    }

    fn begin(&mut self, bite: Vec<Portion>) -> Result<(), Spat> {
        assert!(
            self.bites.len() < LANES
                && bite
                    .iter()
                    .all(|portion| bite[0].work.goes_with(&portion.work))
        );
        if self.temper == Temper::Refuses(self.begun) {
            return Err(Spat {
                bite,
                error: Error::Lost("it does not begin".into()),
            });
        }
        self.begun += 1;
        self.bites.push_back(bite);
        Ok(())
    }

    fn end(&mut self) -> (Vec<Portion>, Result<(), Error>) {
        let mut bite = self.bites.pop_front().unwrap();
        for Portion {
            work,
            input,
            output,
        } in &mut bite
        {
            output.fill(0xA5);
            if self.temper == Temper::Fails(self.ended) {
                continue;
            }
            work.run(Kernels::detect(), NonZeroUsize::MIN, input, output);
            if self.temper == Temper::Wrong {
                output[0] ^= 1;
            }
        }
        let result = if self.temper == Temper::Fails(self.ended) {
            Err(Error::Lost("it does not end".into()))
        } else {
            Ok(())
        };
        self.ended += usize::from(result.is_ok());
        (bite, result)
    }

    fn pinner(&self) -> Option<Pinner> {
        None
    }
}

const CORES: usize = 3;
const N: usize = 3;
const BYTES: usize = 40;
const DEMAND: Demand = Demand {
    input_bytes: N * BYTES,
    output_bytes: 2 * BYTES,
    bite_bytes: 3 * N * BYTES,
};

/// So many portions of random bytes through a crew, each of which has to be right and in its place.
fn assert_right(crew: &Crew, count: usize) {
    let rows: Arc<[u8]> = vec![1, 2, 3, 4, 5, 6].into();
    let byte = |index: usize, at: usize| u8::try_from((index * 31 + at * 7) % 251).unwrap();
    let mut begun = 0;
    let mut begin = |portion: Option<Portion>| {
        let new = || Portion {
            work: Work::Nothing,
            input: crew.memory(N * BYTES),
            output: crew.memory(2 * BYTES),
        };
        let mut portion = portion.unwrap_or_else(new);
        portion
            .input
            .iter_mut()
            .enumerate()
            .for_each(|(at, place)| *place = byte(begun, at));
        // Every seventh has nothing to be done.
        let is_nothing = begun % 7 == 3;
        let work = Work::Product {
            rows: Arc::clone(&rows),
            n: N,
            bytes: BYTES,
        };
        portion.work = if is_nothing { Work::Nothing } else { work };
        crew.begin(portion);
        begun += 1;
    };
    (0..count.min(crew.portions())).for_each(|_| begin(None));
    for index in 0..count {
        let portion = crew.next().unwrap();
        assert!(
            portion
                .input
                .iter()
                .enumerate()
                .all(|(at, found)| *found == byte(index, at)),
            "portion {index}"
        );
        if index % 7 != 3 {
            let product = |row: usize, at: usize| {
                let terms = (0..N).map(|source| {
                    gf256::mul(rows[row * N + source], byte(index, source * BYTES + at))
                });
                terms.fold(0, |sum, term| sum ^ term)
            };
            let expected = (0..2).flat_map(|row| (0..BYTES).map(move |at| product(row, at)));
            assert!(
                portion.output.iter().copied().eq(expected),
                "portion {index}"
            );
        }
        if index + crew.portions() < count {
            begin(Some(portion));
        }
    }
    crew.close();
    assert!(crew.next().is_none());
}

/// Portions of 100 in which something is to be done.
const WORKED: u64 = 100 - 14;

#[test]
fn portions_come_back_in_order_whoever_makes_them() {
    let crew = Crew::with(BackendChoice::Cpu, None, &DEMAND, CORES).unwrap();
    assert_right(&crew, 100);
    assert_eq!(crew.makers(), None);
    let crew = crew_with(BackendChoice::Cuda, Temper::Good, &DEMAND);
    assert_right(&crew, 100);
    assert_eq!(
        crew.makers(),
        Some(Makers {
            cuda: WORKED,
            cpu: 0
        })
    );
    let crew = crew_with(BackendChoice::Hybrid, Temper::Good, &DEMAND);
    assert_right(&crew, 100);
    let Makers { cuda, cpu } = crew.makers().unwrap();
    assert_eq!(cuda + cpu, WORKED);
}

#[test]
fn a_gpu_that_fails_loses_nothing() {
    for backend in [BackendChoice::Cuda, BackendChoice::Hybrid] {
        for temper in [0, 1, 5]
            .into_iter()
            .flat_map(|count| [Temper::Refuses(count), Temper::Fails(count)])
        {
            let crew = crew_with(backend, temper, &DEMAND);
            assert_right(&crew, 100);
            let Makers { cuda, cpu } = crew.makers().unwrap();
            assert_eq!(cuda + cpu, WORKED, "{backend:?} {temper:?}");
            // In a hybrid it may not come to it.
            let is_lost = cpu > 0 && crew.lost().is_some();
            assert!(backend == BackendChoice::Hybrid || is_lost, "{temper:?}");
            assert!(
                backend == BackendChoice::Hybrid || temper != Temper::Fails(1) || cuda > 0,
                "{temper:?}"
            );
        }
    }
}

#[test]
fn a_gpu_that_is_wrong_at_first_makes_nothing() {
    for backend in [BackendChoice::Cuda, BackendChoice::Hybrid] {
        let crew = crew_with(backend, Temper::Wrong, &DEMAND);
        assert_right(&crew, 100);
        assert_eq!(
            crew.makers(),
            Some(Makers {
                cuda: 0,
                cpu: WORKED
            }),
            "{backend:?}"
        );
    }
}

#[test]
fn who_is_asked_for_and_not_there_is_missed() {
    let opener = || -> Opener { Box::new(|| Err(Error::Unavailable("none here".into()))) };
    for backend in [BackendChoice::Cuda, BackendChoice::Hybrid] {
        let error = Crew::with(backend, Some(opener()), &DEMAND, CORES).unwrap_err();
        assert_eq!(error, Error::Unavailable("none here".into()));
    }
    // No host has so many.
    let choice = Choice {
        backend: BackendChoice::Cuda,
        gpu: u16::MAX,
    };
    assert!(matches!(
        Crew::open(choice, &DEMAND),
        Err(Error::Unavailable(_))
    ));
    let crew = Crew::open(
        Choice {
            backend: BackendChoice::Auto,
            ..choice
        },
        &DEMAND,
    )
    .unwrap();
    assert_right(&crew, 10);
    assert_eq!(crew.makers(), None);
}

#[test]
fn memory_is_bounded_whatever_a_portion_takes() {
    for (input_bytes, output_bytes) in [
        (1, 1),
        (1 << 20, 1 << 19),
        (16 << 20, 17 << 20),
        (200 << 20, 56 << 20),
    ] {
        let demand = Demand {
            input_bytes,
            output_bytes,
            bite_bytes: 64 << 20,
        };
        for crew in [
            Crew::with(BackendChoice::Cpu, None, &demand, CORES).unwrap(),
            crew_with(BackendChoice::Hybrid, Temper::Good, &demand),
        ] {
            let (count, each) = (crew.portions(), input_bytes + output_bytes);
            assert!(
                count == 2 || (count > 2 && count * each <= MEMORY_BYTES),
                "{count} portions of {each}"
            );
        }
    }
}

#[test]
#[should_panic(expected = "a coding thread died")]
fn a_thread_that_dies_is_noticed() {
    struct Dies;
    impl Coder for Dies {
        fn depth(&self) -> usize {
            1
        }

        fn begin(&mut self, _: Vec<Portion>) -> Result<(), Spat> {
            panic!("on purpose")
        }

        fn end(&mut self) -> (Vec<Portion>, Result<(), Error>) {
            unreachable!("nothing begins")
        }

        fn pinner(&self) -> Option<Pinner> {
            None
        }
    }
    let crew = Crew::with(
        BackendChoice::Cuda,
        Some(Box::new(|| Ok(Box::new(Dies)))),
        &DEMAND,
        CORES,
    )
    .unwrap();
    assert_right(&crew, 1);
}
