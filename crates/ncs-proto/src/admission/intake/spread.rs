//! Spreading what would happen at once.

const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// A fraction for each number, 0 to 1: multiples of the golden ratio are spread evenly.
pub(super) fn spread(number: u64) -> f64 {
    (number as f64 * GOLDEN).fract()
}
