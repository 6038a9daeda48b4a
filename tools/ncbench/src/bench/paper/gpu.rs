//! What a GPU does, through its lab.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{BatchJob, Card, Coefficients, Decode, Decoder, Encode, Lab, Stage};
use ncs_gf::Kernels;
use ncserverd::bench::clock::Lap;
use ncserverd::device::{self, BackendChoice, Config, Field, Kernel, KernelChoice};

use super::catalogue::{Case, Kind};
use super::load::{Coded, FIRST_SEED, Load, SEED, invertible};
use super::measure::Measure;
use super::{Error, Outcome, Sample, Settings, card, cpu, field_name};
use crate::bench::rounds::Pace;

/// The GPUs, and what has been seen of their kernels.
pub(super) struct Gpus {
    labs: Vec<Lab>,
    /// Kernels whose whole output on small shapes has been right.
    checked: HashSet<String>,
}

impl Gpus {
    pub(super) fn new(labs: Vec<Lab>) -> Self {
        Self {
            labs,
            checked: HashSet::new(),
        }
    }

    /// Those that there are.
    pub(super) fn cards(&self) -> Vec<String> {
        let describe = |card: &Card| {
            let (major, minor) = card.compute_capability;
            let memory = card.memory_bytes >> 30;
            let (name, sms, mhz) = (&card.name, card.sms, card.clock_mhz);
            format!(
                "{name}, {sms} SMs to {mhz} MHz, {memory} GiB, compute capability {major}.{minor}, \
                 driver {}",
                card.driver
            )
        };
        self.labs.iter().map(|lab| describe(lab.card())).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.labs.len()
    }

    pub(super) fn sms(&self) -> Option<u32> {
        self.labs.first().map(|lab| lab.card().sms)
    }

    /// Checks bytes and measures, or says why not.
    pub(super) fn measure(&mut self, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
        if self.labs.len() < case.gpus {
            return Ok(Outcome::skipped(format!("{} GPUs are needed", case.gpus)));
        }
        if case.measure.is_of_codes() {
            if settings.field != Field::Standard {
                return Ok(Outcome::skipped(format!(
                    "not in {}",
                    field_name(settings.field)
                )));
            }
            return card::measure(&mut self.labs[0], case, settings);
        }
        if case.gpus > 1 {
            return self.several(case, settings);
        }
        let lab = &mut self.labs[0];
        if !case.kernel.is_empty() && !lab.has(case.kernel, case.n) {
            return Ok(Outcome::skipped(format!("no kernel {} here", case.kernel)));
        }
        let is_other_field = settings.field != Field::Standard;
        if is_other_field
            && !matches!(
                case.measure,
                Measure::Multiply | Measure::InTurn | Measure::Fresh
            )
        {
            return Ok(Outcome::skipped(format!(
                "not in {}",
                field_name(settings.field)
            )));
        }
        if matches!(case.measure, Measure::Multiply | Measure::InTurn)
            && !is_made_up(case)
            && self.checked.insert(case.kernel.to_owned())
        {
            whole_output(lab, case, settings.field)?;
        }
        match case.measure {
            Measure::Multiply
            | Measure::InTurn
            | Measure::Fresh
            | Measure::Store
            | Measure::RowRate
            | Measure::RowShare => encode(lab, case, settings),
            Measure::ToHost | Measure::Copy => to_host(lab, case, settings),
            Measure::DecodeToHost => decode_to_host(lab, case, settings),
            Measure::AnswerCopy | Measure::AnswerStore => answer(lab, case, settings),
            Measure::Recode => recode(lab, case, settings),
            Measure::Invert => invert(lab, case, settings),
            Measure::Decode | Measure::DecodeRaw | Measure::InvertShare | Measure::Progressive => {
                decode(lab, case, settings)
            }
            Measure::SplitDecode
            | Measure::SplitInverse
            | Measure::SplitMultiply
            | Measure::SplitOverhead => split(lab, case, settings),
            Measure::Together => together(lab, case, settings),
            Measure::AnswerDevice | Measure::AnswerTurnaround => answer_of_device(case, settings),
            _ => unreachable!("measures of the CPU are made elsewhere"),
        }
    }

    /// The same on several GPUs at once: what all of them made in the time of the slowest.
    fn several(&mut self, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
        if !self
            .labs
            .iter()
            .take(case.gpus)
            .all(|lab| lab.has(case.kernel, case.n))
        {
            return Ok(Outcome::skipped(format!("no kernel {} here", case.kernel)));
        }
        let case = &fitting(case);
        let repeats = if settings.is_quick {
            1
        } else {
            SEVERAL_REPEATS
        };
        let (start, load) = (Barrier::new(case.gpus), Load::new(case, settings.field));
        let one = |lab: &mut Lab| -> Result<Vec<Duration>, Error> {
            let mut work = lab.encode(&plan(case, &load))?;
            prepare_chunks(&mut work, case, &load)?;
            (0..settings.pace.rounds)
                .map(|_| {
                    start.wait();
                    overlap(&mut work, case, repeats)
                })
                .collect()
        };
        let times: Result<Vec<Vec<Duration>>, Error> = thread::scope(|scope| {
            let one = &one;
            let threads: Vec<_> = self
                .labs
                .iter_mut()
                .take(case.gpus)
                .map(|lab| scope.spawn(move || one(lab)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a lab does not panic"))
                .collect()
        });
        let times = times?;
        let rounds = (0..times[0].len())
            .map(|round| times.iter().map(|gpu| gpu[round]).max().unwrap_or_default());
        let bytes = case.bytes() * case.gpus as u64;
        Ok(Outcome::of(Sample::of_times(
            case,
            rounds.collect(),
            repeats,
            bytes,
        )))
    }
}

/// Whether the kernel makes up its input, which leaves no definition to compare its output with.
fn is_made_up(case: &Case) -> bool {
    case.kernel.ends_with("-dummy")
}

/// Everything a kernel makes on shapes that exercise its edges.
fn whole_output(lab: &mut Lab, case: &Case, field: Field) -> Result<(), Error> {
    for (n, k, rows, generations) in SMALL {
        let small = Case {
            n,
            k,
            rows,
            generations,
            sms: None,
            coefficients: Kind::Dense,
            ..case.clone()
        };
        let load = Load::new(&small, field);
        let mut work = lab.encode(&plan(&small, &load))?;
        work.poison()?;
        work.time(&[Stage::Form, Stage::Rows, Stage::Multiply], 1)?;
        let all = (0..load.generations)
            .flat_map(|generation| (0..load.rows).map(move |row| (generation, row)));
        let all: Vec<_> = all
            .map(|place| (place, load.expected(place.0, place.1)))
            .collect();
        check(
            |generation, row, block| work.read(generation, row, false, block),
            &load,
            case,
            &all,
        )?;
    }
    Ok(())
}

fn plan<'a>(case: &'a Case, load: &'a Load) -> Encode<'a> {
    let coefficients = match &load.given {
        None => Coefficients::Seeded {
            key: SEED,
            first_seed: FIRST_SEED,
        },
        Some(given) => Coefficients::Explicit(given),
    };
    Encode {
        kernel: case.kernel,
        field: load.field,
        n: case.n,
        k: case.k,
        generations: case.generations,
        rows: case.rows,
        sources: &load.sources,
        coefficients,
        sms: case.sms,
    }
}

/// Compares blocks with the expected ones. `read` takes a generation and a row, and fills in the
/// block that was made.
pub(super) fn check(
    mut read: impl FnMut(u32, u32, &mut [u8]) -> Result<(), device::Error>,
    load: &Load,
    case: &Case,
    blocks: &[((usize, usize), Vec<u8>)],
) -> Result<(), Error> {
    let mut block = vec![0; load.k];
    for ((generation, row), expected) in blocks {
        read(count(*generation), count(*row), &mut block)?;
        if block != *expected {
            let (kernel, n, k) = (case.kernel, load.n, load.k);
            return Err(Error::Wrong {
                case: format!("{kernel} on {n}x{k}, block {row} of generation {generation}"),
            });
        }
    }
    Ok(())
}

fn check_sample(
    work: &mut BatchJob<'_>,
    load: &Load,
    on_host: bool,
    case: &Case,
) -> Result<(), Error> {
    check(
        |generation, row, block| work.read(generation, row, on_host, block),
        load,
        case,
        &load.expectations(),
    )
}

/// Rounds of stages, by the card's clock.
fn rounds(work: &mut BatchJob<'_>, stages: &[Stage], pace: Pace) -> (Vec<Duration>, u32) {
    rounds_of(pace, |repeats| work.time(stages, repeats))
}

/// Rounds of what says itself how long so many repeats took, which has succeeded once.
pub(super) fn rounds_of<E: Debug>(
    pace: Pace,
    mut time: impl FnMut(u32) -> Result<Duration, E>,
) -> (Vec<Duration>, u32) {
    let run = |repeats: u32| {
        let wall = time(repeats).expect("it has done the same before");
        Lap {
            cpu: Duration::ZERO,
            wall,
        }
    };
    let laps = pace.run(&mut [run]).pop().expect("one runner");
    (
        laps.laps.into_iter().map(|lap| lap.wall).collect(),
        laps.repeats,
    )
}

fn encode(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let load = Load::new(case, settings.field);
    let mut work = lab.encode(&plan(case, &load))?;
    let is_stored = case.measure == Measure::Store;
    let last = if is_stored {
        Stage::Store
    } else {
        Stage::Multiply
    };
    work.poison()?;
    work.time(&[Stage::Form, Stage::Rows, last], 1)?;
    if !is_made_up(case) {
        check_sample(&mut work, &load, is_stored, case)?;
    }
    if case.measure == Measure::InTurn {
        let (times, repeats) =
            rounds_of(settings.short_pace(), |repeats| work.time_in_turn(repeats));
        check_sample(&mut work, &load, false, case)?;
        return Ok(Outcome::of(Sample::of_times(
            case,
            times,
            repeats,
            case.bytes(),
        )));
    }
    let mut of = |stages: &[Stage]| rounds(&mut work, stages, settings.short_pace());
    let sample = match case.measure {
        Measure::Fresh => of(&[Stage::Form, Stage::Rows, Stage::Multiply]),
        Measure::RowRate | Measure::RowShare => of(&[Stage::Rows]),
        _ => of(&[last]),
    };
    let bytes = if case.measure == Measure::RowRate {
        case.bytes() / u64::from(case.k) * u64::from(case.n)
    } else {
        case.bytes()
    };
    if case.measure == Measure::RowShare {
        let all = of(&[Stage::Rows, Stage::Multiply]);
        return Ok(Outcome::of(Sample::share(case, &sample, &all)));
    }
    Ok(Outcome::of(Sample::of_times(
        case, sample.0, sample.1, bytes,
    )))
}

/// The case with so few generations that what it makes fits into pinned memory.
fn fitting(case: &Case) -> Case {
    let most = (PINNED_BYTES / (u64::from(case.rows) * u64::from(case.k))).max(2);
    Case {
        generations: case
            .generations
            .min(u32::try_from(most).unwrap_or(u32::MAX)),
        ..case.clone()
    }
}

/// Generations in a chunk of about 16 MiB, at least two chunks.
fn chunk(case: &Case) -> u32 {
    let each = u64::from(case.rows) * u64::from(case.k);
    let fit = u32::try_from(CHUNK_BYTES / each).unwrap_or(u32::MAX);
    fit.clamp(1, case.generations.div_ceil(2))
}

fn overlap(work: &mut BatchJob<'_>, case: &Case, repeats: u32) -> Result<Duration, Error> {
    Ok(work.overlap(chunk(case), case.measure != Measure::Copy, repeats)?)
}

fn prepare_chunks(work: &mut BatchJob<'_>, case: &Case, load: &Load) -> Result<(), Error> {
    work.poison()?;
    work.time(&[Stage::Form, Stage::Rows], 1)?;
    work.overlap(chunk(case), true, 1)?;
    check_sample(work, load, true, case)
}

fn to_host(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let case = &fitting(case);
    let load = Load::new(case, settings.field);
    let mut work = lab.encode(&plan(case, &load))?;
    prepare_chunks(&mut work, case, &load)?;
    let (times, repeats) = rounds_of(settings.long_pace(), |repeats| {
        overlap(&mut work, case, repeats)
    });
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

/// One request after the other, each by itself.
fn answer(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let load = Load::new(case, settings.field);
    let mut work = lab.encode(&plan(case, &load))?;
    let stages: &[Stage] = match case.measure {
        Measure::AnswerStore => &[Stage::Rows, Stage::Store],
        _ => &[Stage::Rows, Stage::Multiply, Stage::Download],
    };
    work.poison()?;
    work.time(&[Stage::Form], 1)?;
    work.answer(stages)?;
    check_sample(&mut work, &load, true, case)?;
    let (warm, counted) = if settings.is_quick {
        (2, 20)
    } else {
        (100, 1000)
    };
    for _ in 0..warm {
        work.answer(stages)?;
    }
    let times: Result<Vec<Duration>, _> = (0..counted).map(|_| work.answer(stages)).collect();
    Ok(median_and_p99(case, times?))
}

fn median_and_p99(case: &Case, mut times: Vec<Duration>) -> Outcome {
    times.sort_unstable();
    let p99 = times[times.len() * 99 / 100];
    let samples = [(", median", times), (", p99", vec![p99])];
    let samples =
        samples.map(|(name, times)| (name, Sample::of_times(case, times, 1, case.bytes())));
    Outcome {
        samples: samples.into(),
        skipped: None,
    }
}

/// One request after the other through the daemon's own device.
fn answer_of_device(case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let Ok(kernel) = case.kernel.parse::<Kernel>() else {
        return Ok(Outcome::skipped(format!(
            "no daemon launches the kernel {}",
            case.kernel
        )));
    };
    let load = Load::new(case, settings.field);
    let config = Config {
        backend: BackendChoice::Cuda,
        kernel: KernelChoice::Named(kernel),
        ..Config::default()
    };
    let mut bed = cpu::Bed::open(&config, &load)?;
    bed.combine()?;
    if !bed.is_right(&load) {
        return Err(Error::Wrong {
            case: format!("the device with the kernel {}", case.kernel),
        });
    }
    let (warm, counted) = if settings.is_quick {
        (2, 20)
    } else {
        (100, 1000)
    };
    for _ in 0..warm {
        bed.combine()?;
    }
    let times: Result<Vec<Duration>, Error> = (0..counted)
        .map(|_| match case.measure {
            Measure::AnswerDevice => bed.combine_timed().map(|(_, elapsed)| elapsed),
            _ => bed.combine(),
        })
        .collect();
    Ok(median_and_p99(case, times?))
}

/// Rows [C|x] as source blocks of n + k bytes: each new block is one combination of them.
fn recode(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let held = Case {
        k: case.k + u32::from(case.n).next_multiple_of(16),
        measure: Measure::Multiply,
        ..case.clone()
    };
    let load = Load::new(&held, settings.field);
    let mut work = lab.encode(&plan(&held, &load))?;
    work.poison()?;
    work.time(&[Stage::Form, Stage::Rows, Stage::Multiply], 1)?;
    check_sample(&mut work, &load, false, &held)?;
    let (times, repeats) = rounds(&mut work, &[Stage::Multiply], settings.short_pace());
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

fn invert(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let n = usize::from(case.n);
    let (matrix, inverse) = invertible(n, 0, case.coefficients, Kernels::detect());
    // The payloads are the unit matrix, so that what is decoded is the inverse itself.
    let k = case.n.next_multiple_of(16).max(64);
    let unit: Vec<u8> = (0..n * usize::from(k))
        .map(|i| u8::from(i / usize::from(k) == i % usize::from(k)))
        .collect();
    let plan = Decode {
        kernel: "table",
        decoder: Decoder::Invert(case.kernel),
        n: case.n,
        k: k.into(),
        generations: case.generations,
        matrices: &matrix,
        payloads: &unit,
        sms: case.sms,
    };
    let mut work = lab.decode(&plan)?;
    work.poison()?;
    work.time(
        &[Stage::Form, Stage::Invert, Stage::Rows, Stage::Multiply],
        1,
    )?;
    let mut row = vec![0; k.into()];
    for index in 0..n {
        work.read(0, count(index), false, &mut row)?;
        if row[..n] != inverse[index * n..][..n] {
            return Err(Error::Wrong {
                case: format!("{} of {n}x{n}, row {index}", case.kernel),
            });
        }
    }
    let (times, repeats) = rounds(&mut work, &[Stage::Invert], settings.short_pace());
    Ok(Outcome::of(Sample::of_times(case, times, repeats, 0)))
}

fn decode_plan<'a>(case: &'a Case, coded: &'a Coded, decoder: Decoder<'a>) -> Decode<'a> {
    let is_given = decoder == Decoder::Given;
    Decode {
        kernel: case.kernel,
        decoder,
        n: case.n,
        k: case.k,
        generations: case.generations,
        matrices: if is_given {
            &coded.inverses
        } else {
            &coded.matrices
        },
        payloads: &coded.payloads,
        sms: case.sms,
    }
}

fn check_decoded(
    work: &mut BatchJob<'_>,
    coded: &Coded,
    on_host: bool,
    case: &Case,
) -> Result<(), Error> {
    check_sources(
        |generation, row, block| work.read(generation, row, on_host, block),
        coded,
        case,
    )
}

/// Compares whole decoded blocks of some generations with the source. `read` is that of [`check`].
pub(super) fn check_sources(
    mut read: impl FnMut(u32, u32, &mut [u8]) -> Result<(), device::Error>,
    coded: &Coded,
    case: &Case,
) -> Result<(), Error> {
    let load = &coded.load;
    let mut block = vec![0; load.k];
    for (generation, row) in load.sample() {
        read(count(generation), count(row), &mut block)?;
        if block != load.source(generation)[row * load.k..][..load.k] {
            let (n, k) = (load.n, load.k);
            return Err(Error::Wrong {
                case: format!(
                    "{} decoding {n}x{k}, block {row} of generation {generation}",
                    case.kernel
                ),
            });
        }
    }
    Ok(())
}

fn decode(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let coded = Coded::new(case);
    let is_progressive = case.measure == Measure::Progressive;
    let decoder = if is_progressive {
        Decoder::Progressive(case.kernel)
    } else {
        Decoder::Invert(INVERTER)
    };
    let mut work = lab.decode(&decode_plan(case, &coded, decoder))?;
    let all: &[Stage] = match case.measure {
        Measure::Progressive => &[Stage::Progressive],
        Measure::DecodeRaw => &[Stage::Form, Stage::Invert, Stage::Rows, Stage::Multiply],
        _ => &[Stage::Invert, Stage::Rows, Stage::Multiply],
    };
    work.poison()?;
    if case.measure != Measure::Progressive {
        work.time(&[Stage::Form], 1)?;
    }
    work.time(all, 1)?;
    check_decoded(&mut work, &coded, false, case)?;
    let sample = rounds(&mut work, all, settings.short_pace());
    if case.measure == Measure::InvertShare {
        let inversion = rounds(&mut work, &[Stage::Invert], settings.short_pace());
        return Ok(Outcome::of(Sample::share(case, &inversion, &sample)));
    }
    Ok(Outcome::of(Sample::of_times(
        case,
        sample.0,
        sample.1,
        case.bytes(),
    )))
}

/// Inverts all generations, then multiplies in chunks that are copied while the next is made.
fn decode_to_host(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let case = &fitting(case);
    let coded = Coded::new(case);
    let mut work = lab.decode(&decode_plan(case, &coded, Decoder::Invert(INVERTER)))?;
    let stages = [Stage::Form, Stage::Invert, Stage::Rows];
    work.poison()?;
    work.time(&stages, 1)?;
    overlap(&mut work, case, 1)?;
    check_decoded(&mut work, &coded, true, case)?;
    let (times, repeats) = rounds_of(settings.long_pace(), |repeats| -> Result<Duration, Error> {
        Ok(work.time(&stages, repeats)? + overlap(&mut work, case, repeats)?)
    });
    Ok(Outcome::of(Sample::of_times(
        case,
        times,
        repeats,
        case.bytes(),
    )))
}

/// The CPU inverts, then the GPU gets inverse and payloads, multiplies, and gives the source back.
fn split(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let coded = Coded::new(case);
    let (n, matrix) = (coded.load.n, coded.matrix(0));
    let mut work = lab.decode(&decode_plan(case, &coded, Decoder::Given))?;
    let stages = [
        Stage::Upload,
        Stage::Form,
        Stage::Rows,
        Stage::Multiply,
        Stage::Download,
    ];
    work.poison()?;
    work.answer(&stages)?;
    check_decoded(&mut work, &coded, true, case)?;
    let (mut inverse, mut multiply, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.pace.rounds {
        let (elapsed, made) = cpu::timed_inverse(n, matrix, case.threads);
        if made != coded.inverse(0) {
            return Err(Error::Wrong {
                case: format!("the inverse of {n}x{n} by {} threads", case.threads),
            });
        }
        let answer = work.answer(&stages)?;
        inverse.push(elapsed);
        multiply.push(work.time(&[Stage::Form, Stage::Multiply], 1)?);
        all.push(answer);
    }
    let times = match case.measure {
        Measure::SplitInverse => inverse,
        Measure::SplitMultiply => multiply,
        Measure::SplitOverhead => all
            .iter()
            .zip(&multiply)
            .map(|(all, multiply)| all.saturating_sub(*multiply))
            .collect(),
        _ => all
            .iter()
            .zip(&inverse)
            .map(|(all, inverse)| *all + *inverse)
            .collect(),
    };
    Ok(Outcome::of(Sample::of_times(case, times, 1, case.bytes())))
}

/// The CPU's device in a thread of its own while the GPU works.
fn together(lab: &mut Lab, case: &Case, settings: &Settings) -> Result<Outcome, Error> {
    let load = Load::new(case, settings.field);
    let on_cpu = Load::new(
        &Case {
            generations: case.generations.min(TOGETHER_CPU),
            ..case.clone()
        },
        settings.field,
    );
    let mut work = lab.encode(&plan(case, &load))?;
    prepare_chunks(&mut work, case, &load)?;
    // One thread is left to the GPU.
    let config = cpu::config("simd", case.threads.saturating_sub(1).max(1));
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(2));
    let cpu_rate = || -> Result<f64, Error> {
        let bed = cpu::Bed::open(&config, &on_cpu).and_then(|mut bed| bed.combine().map(|_| bed));
        ready.wait();
        let mut bed = bed?;
        let (start, mut batches) = (Instant::now(), 0.0);
        while !stop.load(Ordering::Relaxed) {
            bed.combine()?;
            batches += 1.0;
        }
        if !bed.is_right(&on_cpu) {
            return Err(Error::Wrong {
                case: "the CPU beside the GPU".into(),
            });
        }
        Ok(
            batches * as_f64((on_cpu.generations * on_cpu.rows * on_cpu.k) as u64)
                / start.elapsed().as_secs_f64(),
        )
    };
    let lasting = if settings.is_quick {
        Duration::from_millis(5)
    } else {
        Duration::from_millis(700)
    };
    let (gpu, cpu) = thread::scope(|scope| {
        let cpu = scope.spawn(cpu_rate);
        ready.wait();
        let (start, mut batches) = (Instant::now(), 0.0);
        let mut result = Ok(());
        while start.elapsed() < lasting && result.is_ok() {
            result = overlap(&mut work, case, 1).map(|_| batches += 1.0);
        }
        let rate = batches * as_f64(case.bytes()) / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        (
            result.map(|()| rate),
            cpu.join().expect("the CPU's device does not panic"),
        )
    });
    let seconds = as_f64(case.bytes()) / (gpu? + cpu?);
    Ok(Outcome::of(Sample::of_times(
        case,
        vec![Duration::from_secs_f64(seconds)],
        1,
        case.bytes(),
    )))
}

fn count(index: usize) -> u32 {
    u32::try_from(index).expect("a count")
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a batch")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

/// n, k, rows, generations.
const SMALL: [(u16, u32, u32, u32); 5] = [
    (1, 64, 1, 1),
    (2, 16, 3, 2),
    (5, 80, 17, 3),
    (37, 1104, 33, 2),
    (129, 4112, 3, 2),
];
const CHUNK_BYTES: u64 = 16 << 20;
const INVERTER: &str = "invert";
/// Times that each GPU makes everything in a round: some tens of milliseconds.
const SEVERAL_REPEATS: u32 = 40;
/// Pinned memory of one case at most.
const PINNED_BYTES: u64 = 256 << 20;
const TOGETHER_CPU: u32 = 16;
