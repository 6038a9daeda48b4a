//! Processor time of the calling thread as criterion's clock: what runs beside the benchmark on a shared machine counts less.

use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};

/// Time that this thread has run, from the kernel's scheduler; wall time where there is no such file.
#[derive(Debug)]
pub struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        now()
    }

    fn end(&self, start: Duration) -> Duration {
        now().saturating_sub(start)
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn now() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    let wall = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    nanoseconds.map_or_else(wall, Duration::from_nanos)
}
