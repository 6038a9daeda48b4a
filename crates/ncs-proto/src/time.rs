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
    use std::num::NonZeroU64;
    use std::ops::{Add, AddAssign, Sub, SubAssign};
    use std::time::Duration;

    /// A moment, by its distance from another one that the caller has chosen: 584 years at most. It
    /// has what this crate needs of [`std::time::Instant`], with the same meaning.
    ///
    /// It is one number, and so is an `Option` of it. Times are compared everywhere, and with the
    /// two numbers of a `Duration` instead, and a third for the `Option`, the module of web pages
    /// is larger by a twentieth.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Instant(NonZeroU64);

    const NANOS: u64 = 1_000_000_000;

    /// So many nanoseconds, if they can be counted.
    #[inline(never)]
    const fn nanos(duration: Duration) -> Option<u64> {
        if duration.as_secs() >= u64::MAX / NANOS {
            return None;
        }
        Some(duration.as_secs() * NANOS + duration.subsec_nanos() as u64)
    }

    impl Instant {
        /// The instant this long after the chosen moment.
        ///
        /// # Panics
        /// If it is 584 years.
        pub const fn from_epoch(distance: Duration) -> Self {
            // The first moment is 1, so that 0 is none.
            Self(NonZeroU64::MIN)
                .checked_add(distance)
                .expect("a time in this era")
        }

        /// How long after `earlier` this is; zero if it is before it.
        pub const fn duration_since(&self, earlier: Self) -> Duration {
            self.saturating_duration_since(earlier)
        }

        /// How long after `earlier` this is; zero if it is before it.
        #[inline(never)]
        pub const fn saturating_duration_since(&self, earlier: Self) -> Duration {
            Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
        }

        /// How long after `earlier` this is; `None` if it is before it.
        pub const fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
            if self.0.get() < earlier.0.get() {
                return None;
            }
            Some(self.saturating_duration_since(earlier))
        }

        /// The instant this much later, if it can be represented.
        #[inline(never)]
        pub const fn checked_add(&self, duration: Duration) -> Option<Self> {
            match nanos(duration) {
                Some(nanos) => match self.0.checked_add(nanos) {
                    Some(distance) => Some(Self(distance)),
                    None => None,
                },
                None => None,
            }
        }

        /// The instant this much earlier, if it is not before the chosen moment.
        #[inline(never)]
        pub const fn checked_sub(&self, duration: Duration) -> Option<Self> {
            match nanos(duration) {
                Some(nanos) if nanos < self.0.get() => {
                    match NonZeroU64::new(self.0.get() - nanos) {
                        Some(distance) => Some(Self(distance)),
                        None => None,
                    }
                }
                _ => None,
            }
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;

        fn add(self, duration: Duration) -> Self {
            self.checked_add(duration).expect("a time in this era")
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
            self.checked_sub(duration)
                .expect("a time after the chosen moment")
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
        assert_eq!(now.checked_add(seconds(u64::MAX / 1_000_000_000 - 1)), None);
        assert_eq!(now.checked_sub(seconds(101)), None);
        let first = Instant::from_epoch(Duration::ZERO);
        assert_eq!(now.checked_sub(seconds(100)), Some(first));
        assert_eq!(now - first, seconds(100));
        assert_eq!(later - seconds(3), now);
        assert!(now < later && std_now < std_later);
        let mut moved = now;
        moved += seconds(5);
        moved -= seconds(2);
        assert_eq!(moved, later);
    }
}
