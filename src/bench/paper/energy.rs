//! What decoding takes of a processor's energy: the counters that Linux has of it (RAPL), where this process may read them.
//!
//! A counter is of a whole package, in microjoules, and begins again at a value that it names. Everything on the machine is in it: on a
//! machine with other work, figures are not of the case alone. Cards have counters of their own (NVML), which are not read yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Run;

/// The packages of this machine.
#[derive(Debug)]
pub(super) struct Meter {
    zones: Vec<Zone>,
}

#[derive(Debug)]
struct Zone {
    counter: PathBuf,
    /// The counter's largest value.
    range: u64,
}

/// What a loop took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Taken {
    /// For one repetition.
    pub(super) joules: f64,
    /// The most over a sampling interval.
    pub(super) watts_max: f64,
    pub(super) repeats: u32,
}

impl Meter {
    pub(super) fn here() -> Result<Self, String> {
        Self::at(Path::new("/sys/class/powercap"))
    }

    /// Packages are zones such as `intel-rapl:0`; what stands below them is part of them.
    fn at(directory: &Path) -> Result<Self, String> {
        let entries = fs::read_dir(directory).map_err(|error| refused(directory, &error.to_string()))?;
        let is_package = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("intel-rapl:") && name.matches(':').count() == 1
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_package).collect();
        paths.sort();
        if paths.is_empty() {
            return Err(refused(directory, "no packages"));
        }
        let zones = paths.iter().map(|path| {
            let range = read(&path.join("max_energy_range_uj"))?;
            let counter = path.join("energy_uj");
            read(&counter).map(|_| Zone { counter, range })
        });
        Ok(Self { zones: zones.collect::<Result<_, _>>()? })
    }

    fn counters(&self) -> Result<Vec<u64>, String> {
        self.zones.iter().map(|zone| read(&zone.counter)).collect()
    }

    /// Microjoules from one reading to the next.
    fn between(&self, before: &[u64], after: &[u64]) -> u64 {
        let step = |((zone, before), after): ((&Zone, &u64), &u64)| match after.checked_sub(*before) {
            Some(step) => step,
            None => zone.range.saturating_sub(*before) + after,
        };
        self.zones.iter().zip(before).zip(after).map(step).sum()
    }

    /// Repeats the work for at least so long while a thread samples the counters.
    pub(super) fn measure(&self, run: &mut Run, lasting: Duration) -> Result<Taken, String> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let sampler = scope.spawn(|| self.sample(&stop));
            let (before, start, mut repeats) = (self.counters(), Instant::now(), 0_u32);
            while start.elapsed() < lasting {
                run(1);
                repeats += 1;
            }
            let after = self.counters();
            stop.store(true, Ordering::Relaxed);
            let watts_max = sampler.join().expect("a sampler does not panic")?;
            let joules = joules(self.between(&before?, &after?)) / f64::from(repeats);
            Ok(Taken { joules, watts_max, repeats })
        })
    }

    /// The most watts over an interval, until it is told to stop; over one at least.
    fn sample(&self, stop: &AtomicBool) -> Result<f64, String> {
        let (mut before, mut last, mut most) = (self.counters()?, Instant::now(), 0.0_f64);
        loop {
            thread::sleep(INTERVAL);
            let (after, now) = (self.counters()?, Instant::now());
            most = most.max(joules(self.between(&before, &after)) / (now - last).as_secs_f64());
            (before, last) = (after, now);
            if stop.load(Ordering::Relaxed) {
                return Ok(most);
            }
        }
    }
}

fn read(path: &Path) -> Result<u64, String> {
    let text = fs::read_to_string(path).map_err(|error| refused(path, &error.to_string()))?;
    text.trim().parse().map_err(|_| refused(path, "no number"))
}

fn refused(path: &Path, reason: &str) -> String {
    format!("energy is not readable here: {}: {reason}", path.display())
}

#[expect(clippy::cast_precision_loss, reason = "microjoules of some seconds")]
fn joules(micro: u64) -> f64 {
    micro as f64 / 1e6
}

/// Counters change each millisecond.
const INTERVAL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
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
        let meter = Meter::at(directory.path()).unwrap();
        let before = meter.counters().unwrap();
        assert_eq!(before, [999_900, 5000]);
        fs::write(first, "400").unwrap();
        assert_eq!(meter.between(&before, &meter.counters().unwrap()), 500);
    }

    #[test]
    fn a_loop_takes_what_counters_say() {
        let directory = tempfile::tempdir().unwrap();
        let counter = zone(directory.path(), "intel-rapl:0", 0);
        let meter = Meter::at(directory.path()).unwrap();
        let mut microjoules = 0_u64;
        let mut run: Run = Box::new(move |_| {
            microjoules = (microjoules + 2000) % 1_000_000;
            // A counter that is written is whole when it is read.
            let draft = counter.with_extension("draft");
            fs::write(&draft, microjoules.to_string()).unwrap();
            fs::rename(&draft, &counter).unwrap();
            thread::sleep(Duration::from_millis(1));
            Duration::ZERO
        });
        let taken = meter.measure(&mut run, Duration::from_millis(120)).unwrap();
        assert!((taken.joules - 0.002).abs() < 1e-9 && taken.repeats > 1, "{taken:?}");
        assert!(taken.watts_max > 0.0);
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let none = Meter::at(&directory.path().join("missing")).unwrap_err();
        assert!(none.starts_with("energy is not readable here: "), "{none}");
        assert!(Meter::at(directory.path()).unwrap_err().ends_with("no packages"));
        fs::create_dir(directory.path().join("intel-rapl:0")).unwrap();
        assert!(Meter::at(directory.path()).is_err());
    }
}
