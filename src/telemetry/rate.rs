//! The line that says how fast the encoder was.

use std::time::Duration;

use prometheus::Registry;
use tokio::time::{Instant, MissedTickBehavior};

/// Writes a line every `interval` for as long as it is polled.
pub(super) async fn log(registry: Registry, interval: Duration) {
    let mut timer = tokio::time::interval_at(Instant::now() + interval, interval);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut then, mut before) = (Instant::now(), coded_bytes(&registry));
    loop {
        let now = timer.tick().await;
        let total = coded_bytes(&registry);
        let rate = megabytes_per_second(total - before, now - then);
        tracing::info!(encode_mb_per_s = rate, coded_bytes_total = total, "encoded {rate:.1} MB/s");
        (then, before) = (now, total);
    }
}

/// The counter of the encoder over all back ends and kernels, read where everybody else reads it.
fn coded_bytes(registry: &Registry) -> f64 {
    let families = registry.gather();
    let counters = families.iter().filter(|family| family.name() == CODED_BYTES).flat_map(|family| family.get_metric());
    counters.map(|counter| counter.get_counter().get_value()).sum()
}

fn megabytes_per_second(bytes: f64, time: Duration) -> f64 {
    bytes / 1e6 / time.as_secs_f64().max(1e-3)
}

const CODED_BYTES: &str = "ncserverd_encoder_coded_bytes_total";

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{IntCounterVec, Opts};

    #[test]
    fn the_rate_adds_up_all_kernels() {
        let registry = Registry::new();
        assert_eq!(coded_bytes(&registry), 0.0);
        let counter = IntCounterVec::new(Opts::new(CODED_BYTES, "help"), &["kernel"]).unwrap();
        registry.register(Box::new(counter.clone())).unwrap();
        counter.with_label_values(&["avx2"]).inc_by(90_000_000);
        counter.with_label_values(&["table"]).inc_by(30_000_000);
        assert_eq!(megabytes_per_second(coded_bytes(&registry), Duration::from_secs(60)), 2.0);
    }
}
