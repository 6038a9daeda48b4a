//! The energy of decoding: by Linux' counters of a processor (RAPL), and by a card's own counters
//! (NVML), where this process may read them.
//!
//! A processor's counter covers a whole package, in microjoules, and wraps at a value that it
//! names. A card's is in millijoules, and updates some ten times a second; its power is read beside
//! it. The one includes everything on the machine, the other everything on the card, with their
//! idle power: on a busy machine the figures include other work.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{Gauge, Lab};

/// Something whose energy is counted.
pub(super) trait Meter: Sync {
    type Counters;
    /// What the counters say.
    fn counters(&self) -> Result<Self::Counters, String>;
    /// Joules from one reading to the next.
    fn joules(&self, before: &Self::Counters, after: &Self::Counters) -> f64;
    /// Watts, after waiting for as long as it takes to know.
    fn watts(&self) -> Result<f64, String>;

    /// Repeats the work for at least `lasting` while a thread samples the power. Work has completed
    /// when it returns.
    fn measure(&self, work: &mut dyn FnMut(), lasting: Duration) -> Result<Taken, String> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let sampler = scope.spawn(|| self.sample(&stop));
            let (before, start, mut repeats) = (self.counters(), Instant::now(), 0_u32);
            while start.elapsed() < lasting {
                work();
                repeats += 1;
            }
            let after = self.counters();
            stop.store(true, Ordering::Relaxed);
            let (watts_max, watts_mean) = sampler.join().expect("a sampler does not panic")?;
            let joules = self.joules(&before?, &after?) / f64::from(repeats);
            Ok(Taken {
                joules,
                watts_max,
                watts_mean,
                repeats,
            })
        })
    }

    /// The most watts and the mean of all samples, until it is told to stop; of one at least.
    fn sample(&self, stop: &AtomicBool) -> Result<(f64, f64), String> {
        let (mut most, mut sum, mut count) = (0.0_f64, 0.0, 0.0);
        loop {
            let watts = self.watts()?;
            (most, sum, count) = (most.max(watts), sum + watts, count + 1.0);
            if stop.load(Ordering::Relaxed) {
                return Ok((most, sum / count));
            }
        }
    }
}

/// The packages of this machine.
#[derive(Debug)]
pub(super) struct Packages {
    zones: Vec<Zone>,
}

#[derive(Debug)]
struct Zone {
    counter: PathBuf,
    /// The counter's largest value.
    range: u64,
}

/// A card.
pub(super) struct Card(Gauge);

/// What a loop took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Taken {
    /// For one repetition.
    pub(super) joules: f64,
    /// Of all samples.
    pub(super) watts_max: f64,
    pub(super) watts_mean: f64,
    pub(super) repeats: u32,
}

impl Packages {
    pub(super) fn here() -> Result<Self, String> {
        Self::at(Path::new("/sys/class/powercap"))
    }

    /// Packages are zones such as `intel-rapl:0`; what stands below them is part of them.
    fn at(directory: &Path) -> Result<Self, String> {
        let entries =
            fs::read_dir(directory).map_err(|error| refused(directory, &error.to_string()))?;
        let is_package = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("intel-rapl:") && name.matches(':').count() == 1
        };
        let mut paths: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(is_package)
            .collect();
        paths.sort();
        if paths.is_empty() {
            return Err(refused(directory, "no packages"));
        }
        let zones = paths.iter().map(|path| {
            let range = read(&path.join("max_energy_range_uj"))?;
            let counter = path.join("energy_uj");
            read(&counter).map(|_| Zone { counter, range })
        });
        Ok(Self {
            zones: zones.collect::<Result<_, _>>()?,
        })
    }

    /// Microjoules from one reading to the next.
    fn between(&self, before: &[u64], after: &[u64]) -> u64 {
        let step = |((zone, before), after): ((&Zone, &u64), &u64)| match after.checked_sub(*before)
        {
            Some(step) => step,
            None => zone.range.saturating_sub(*before) + after,
        };
        self.zones.iter().zip(before).zip(after).map(step).sum()
    }
}

impl Meter for Packages {
    type Counters = Vec<u64>;

    fn counters(&self) -> Result<Vec<u64>, String> {
        self.zones.iter().map(|zone| read(&zone.counter)).collect()
    }

    fn joules(&self, before: &Vec<u64>, after: &Vec<u64>) -> f64 {
        as_f64(self.between(before, after)) / 1e6
    }

    /// Over an interval.
    fn watts(&self) -> Result<f64, String> {
        let (before, start) = (self.counters()?, Instant::now());
        thread::sleep(INTERVAL);
        let after = self.counters()?;
        Ok(self.joules(&before, &after) / start.elapsed().as_secs_f64())
    }
}

impl Card {
    pub(super) fn of(lab: &Lab) -> Result<Self, String> {
        let gauge = lab.gauge().map_err(unreadable)?;
        gauge
            .millijoules()
            .and_then(|_| gauge.milliwatts())
            .map_err(unreadable)?;
        Ok(Self(gauge))
    }
}

impl Meter for Card {
    type Counters = u64;

    fn counters(&self) -> Result<u64, String> {
        self.0.millijoules().map_err(unreadable)
    }

    fn joules(&self, before: &u64, after: &u64) -> f64 {
        joules_between(*before, *after)
    }

    fn watts(&self) -> Result<f64, String> {
        thread::sleep(INTERVAL_OF_CARD);
        self.0.milliwatts().map(watts_of).map_err(unreadable)
    }
}

/// Joules from one reading of a card's counter, in millijoules, to the next.
fn joules_between(before: u64, after: u64) -> f64 {
    as_f64(after.saturating_sub(before)) / 1e3
}

fn watts_of(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1e3
}

fn read(path: &Path) -> Result<u64, String> {
    let text = fs::read_to_string(path).map_err(|error| refused(path, &error.to_string()))?;
    text.trim().parse().map_err(|_| refused(path, "no number"))
}

fn refused(path: &Path, reason: &str) -> String {
    unreadable(format!("{}: {reason}", path.display()))
}

fn unreadable(reason: impl std::fmt::Display) -> String {
    format!("energy is not readable here: {reason}")
}

#[expect(clippy::cast_precision_loss, reason = "what some seconds take")]
fn as_f64(parts: u64) -> f64 {
    parts as f64
}

/// Counters of a processor change each millisecond.
const INTERVAL: Duration = Duration::from_millis(50);
const INTERVAL_OF_CARD: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use super::*;

    fn zone(directory: &Path, name: &str, energy: u64) -> PathBuf {
        let path = directory.join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("max_energy_range_uj"), "1000000\n").unwrap();
        fs::write(path.join("energy_uj"), format!("{energy}\n")).unwrap();
        path.join("energy_uj")
    }

    #[test]
    fn packages_add_up_and_counters_begin_again() {
        let directory = tempfile::tempdir().unwrap();
        let first = zone(directory.path(), "intel-rapl:0", 999_900);
        zone(directory.path(), "intel-rapl:1", 5000);
        zone(directory.path(), "intel-rapl:0:0", 1);
        let meter = Packages::at(directory.path()).unwrap();
        let before = meter.counters().unwrap();
        assert_eq!(before, [999_900, 5000]);
        fs::write(first, "400").unwrap();
        assert_eq!(meter.between(&before, &meter.counters().unwrap()), 500);
    }

    #[test]
    fn a_loop_takes_what_counters_say() {
        let directory = tempfile::tempdir().unwrap();
        let counter = zone(directory.path(), "intel-rapl:0", 0);
        let meter = Packages::at(directory.path()).unwrap();
        let mut microjoules = 0_u64;
        let mut run = || {
            microjoules = (microjoules + 2000) % 1_000_000;
            // A counter that is written is whole when it is read.
            let draft = counter.with_extension("draft");
            fs::write(&draft, microjoules.to_string()).unwrap();
            fs::rename(&draft, &counter).unwrap();
            thread::sleep(Duration::from_millis(1));
        };
        let taken = meter.measure(&mut run, Duration::from_millis(120)).unwrap();
        assert!(
            (taken.joules - 0.002).abs() < 1e-9 && taken.repeats > 1,
            "{taken:?}"
        );
        assert!(
            taken.watts_max >= taken.watts_mean && taken.watts_mean > 0.0,
            "{taken:?}"
        );
    }

    /// Has the counters of a card: 100, 200, 300, 100 … watts.
    #[derive(Default)]
    struct Counted {
        millijoules: AtomicU64,
        samples: AtomicU32,
    }

    impl Meter for Counted {
        type Counters = u64;

        fn counters(&self) -> Result<u64, String> {
            Ok(self.millijoules.load(Ordering::Relaxed))
        }

        fn joules(&self, before: &u64, after: &u64) -> f64 {
            joules_between(*before, *after)
        }

        fn watts(&self) -> Result<f64, String> {
            thread::sleep(INTERVAL_OF_CARD);
            Ok(watts_of(
                (self.samples.fetch_add(1, Ordering::Relaxed) % 3 + 1) * 100_000,
            ))
        }
    }

    #[test]
    fn a_card_says_what_it_takes() {
        let counted = Counted::default();
        // Two joules a call.
        let mut work = || {
            counted.millijoules.fetch_add(2000, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
        };
        let taken = counted.measure(&mut work, 8 * INTERVAL_OF_CARD).unwrap();
        assert!(
            (taken.joules - 2.0).abs() < 1e-9 && taken.repeats > 1,
            "{taken:?}"
        );
        assert!((taken.watts_max - 300.0).abs() < 1e-9, "{taken:?}");
        assert!(
            (100.0..300.0).contains(&taken.watts_mean)
                && counted.samples.load(Ordering::Relaxed) > 3,
            "{taken:?}"
        );
    }

    struct Silent;

    impl Meter for Silent {
        type Counters = u64;

        fn counters(&self) -> Result<u64, String> {
            Err(unreadable("not supported"))
        }

        fn joules(&self, before: &u64, after: &u64) -> f64 {
            joules_between(*before, *after)
        }

        fn watts(&self) -> Result<f64, String> {
            Ok(watts_of(1))
        }
    }

    #[test]
    fn a_card_that_says_nothing_ends_the_measurement() {
        let error = Silent.measure(&mut || {}, Duration::ZERO).unwrap_err();
        assert_eq!(error, "energy is not readable here: not supported");
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let none = Packages::at(&directory.path().join("missing")).unwrap_err();
        assert!(none.starts_with("energy is not readable here: "), "{none}");
        assert!(
            Packages::at(directory.path())
                .unwrap_err()
                .ends_with("no packages")
        );
        fs::create_dir(directory.path().join("intel-rapl:0")).unwrap();
        assert!(Packages::at(directory.path()).is_err());
    }
}
