//! The instants that callers hand in. Nothing in this crate reads a clock.
//!
//! It is the standard library's type wherever that can be made. On `wasm32-unknown-unknown` it has
//! no clock and `Instant::now` panics, so there an instant is a distance from a moment of the
//! caller's choice, for example from `performance.timeOrigin`.

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub use std::time::Instant;

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub use since_epoch::Instant;

/// Compiled everywhere, so that its tests run everywhere.
#[cfg(any(test, all(target_family = "wasm", target_os = "unknown")))]
#[allow(unreachable_pub, reason = "it is reached where it is the crate's type")]
mod since_epoch {
    use std::ops::{Add, AddAssign, Sub, SubAssign};
    use std::time::Duration;

    /// A moment, by its distance from another one that the caller has chosen. It has what this
    /// crate needs of [`std::time::Instant`], with the same meaning.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Instant(Duration);

    impl Instant {
        /// The instant this long after the chosen moment.
        pub const fn from_epoch(distance: Duration) -> Self {
            Self(distance)
        }

        /// How long after `earlier` this is; zero if it is before it.
        pub const fn duration_since(&self, earlier: Self) -> Duration {
            self.saturating_duration_since(earlier)
        }

        /// How long after `earlier` this is; zero if it is before it.
        pub const fn saturating_duration_since(&self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }

        /// How long after `earlier` this is; `None` if it is before it.
        pub const fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
            self.0.checked_sub(earlier.0)
        }

        /// The instant this much later, if it can be represented.
        pub const fn checked_add(&self, duration: Duration) -> Option<Self> {
            match self.0.checked_add(duration) {
                Some(distance) => Some(Self(distance)),
                None => None,
            }
        }

        /// The instant this much earlier, if it is not before the chosen moment.
        pub const fn checked_sub(&self, duration: Duration) -> Option<Self> {
            match self.0.checked_sub(duration) {
                Some(distance) => Some(Self(distance)),
                None => None,
            }
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;

        fn add(self, duration: Duration) -> Self {
            Self(self.0 + duration)
        }
    }

    impl AddAssign<Duration> for Instant {
        fn add_assign(&mut self, duration: Duration) {
            *self = *self + duration;
        }
    }

    impl Sub<Duration> for Instant {
        type Output = Self;

        fn sub(self, duration: Duration) -> Self {
            Self(self.0 - duration)
        }
    }

    impl SubAssign<Duration> for Instant {
        fn sub_assign(&mut self, duration: Duration) {
            *self = *self - duration;
        }
    }

    impl Sub for Instant {
        type Output = Duration;

        fn sub(self, earlier: Self) -> Duration {
            self.duration_since(earlier)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::since_epoch::Instant;

    #[test]
    fn an_instant_from_an_epoch_reckons_like_the_standard_one() {
        let seconds = Duration::from_secs;
        let (now, std_now) = (Instant::from_epoch(seconds(100)), std::time::Instant::now());
        let (later, std_later) = (now + seconds(3), std_now + seconds(3));
        assert_eq!(
            (later - now, now - later),
            (std_later - std_now, std_now - std_later)
        );
        assert_eq!(now.saturating_duration_since(later), Duration::ZERO);
        assert_eq!(now.checked_duration_since(later), None);
        assert_eq!(later.checked_duration_since(now), Some(seconds(3)));
        assert_eq!(now.checked_add(Duration::MAX), None);
        assert_eq!(now.checked_sub(seconds(101)), None);
        assert_eq!(later - seconds(3), now);
        assert!(now < later && std_now < std_later);
        let mut moved = now;
        moved += seconds(5);
        moved -= seconds(2);
        assert_eq!(moved, later);
    }
}
