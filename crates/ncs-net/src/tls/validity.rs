//! The validity of certificates (RFC 5280, section 4.1.2.5).
//!
//! The TLS library checks the other side's certificates, never its own, and does not expose the
//! dates. These are at a fixed place in the DER, so the fields before them are skipped, and those
//! after them not read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use time::{Date, Month, Time, UtcDateTime};

/// A period of validity in seconds since 1970, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from: i64,
    /// The last second.
    pub until: i64,
}

/// The state of a certificate at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Valid for a while.
    Good,
    /// Valid, but ends soon: in less than two weeks and less than a third of its life.
    Ending,
    /// Expired.
    Expired,
    /// Not yet valid.
    Early,
}

impl Validity {
    /// The validity of a whole chain: the time in which all certificates are valid. `None` if one
    /// cannot be read, or for an empty chain.
    pub fn of_chain(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let each = chain
            .iter()
            .map(|certificate| Self::of(certificate))
            .collect::<Option<Vec<_>>>()?;
        each.into_iter().reduce(|one, other| Self {
            from: one.from.max(other.from),
            until: one.until.min(other.until),
        })
    }

    /// The validity of one certificate.
    fn of(certificate: &[u8]) -> Option<Self> {
        let (certificate, _) = element(certificate, SEQUENCE)?;
        let (mut fields, _) = element(certificate, SEQUENCE)?;
        // Version 1 is omitted.
        if let Some((_, rest)) = element(fields, VERSION) {
            fields = rest;
        }
        for tag in [INTEGER, SEQUENCE, SEQUENCE] {
            // Serial number, algorithm, issuer.
            fields = element(fields, tag)?.1;
        }
        let (times, _) = element(fields, SEQUENCE)?;
        let (from, times) = seconds(times)?;
        Some(Self {
            from,
            until: seconds(times)?.0,
        })
    }

    /// The state at `now`, in seconds since 1970.
    pub fn standing(&self, now: i64) -> Standing {
        let (life, left) = (
            self.until.saturating_sub(self.from),
            self.until.saturating_sub(now),
        );
        if now > self.until {
            Standing::Expired
        } else if now < self.from {
            Standing::Early
        } else if left < ENDING && left < life / 3 {
            Standing::Ending
        } else {
            Standing::Good
        }
    }

    /// A complaint at `now`, if there is a reason.
    pub fn complaint(&self, now: i64) -> Option<String> {
        match self.standing(now) {
            Standing::Good => None,
            Standing::Ending => {
                let days = self.until.saturating_sub(now) / DAY;
                Some(format!("expires at {}, in {days} days", date(self.until)))
            }
            Standing::Expired => Some(format!(
                "expired at {}: peers that do not pin it refuse it",
                date(self.until)
            )),
            Standing::Early => Some(format!(
                "is not valid before {}: until then peers that do not pin it refuse it",
                date(self.from)
            )),
        }
    }
}

/// Seconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// A readable time.
pub fn date(seconds: i64) -> String {
    match u64::try_from(seconds)
        .ok()
        .and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))
    {
        Some(time) => humantime::format_rfc3339_seconds(time).to_string(),
        None => "a time before 1970".to_owned(),
    }
}

/// The content of the first element, if it has this tag, and the rest.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, bytes) = bytes.split_first()?;
    let (&length, bytes) = bytes.split_first()?;
    let (length, bytes) = match length {
        0..=0x7f => (usize::from(length), bytes),
        // The length is in as many further bytes; no certificate needs more than three.
        0x81..=0x83 => {
            let (digits, rest) = bytes.split_at_checked(usize::from(length & 0x7f))?;
            (
                digits
                    .iter()
                    .fold(0, |length, digit| (length << 8) | usize::from(*digit)),
                rest,
            )
        }
        _ => return None,
    };
    (first == tag).then_some(())?;
    bytes.split_at_checked(length)
}

/// The time in the first element, in seconds since 1970, and the rest.
fn seconds(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (text, century, rest) = match element(bytes, UTC_TIME) {
        Some((text, rest)) => (text, true, rest),
        None => element(bytes, GENERALIZED_TIME).map(|(text, rest)| (text, false, rest))?,
    };
    let digits = text
        .strip_suffix(b"Z")
        .filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let (year, digits) = digits.split_at_checked(if century { 2 } else { 4 })?;
    let number = |digits: &[u8]| {
        digits
            .iter()
            .fold(0_u16, |number, digit| number * 10 + u16::from(digit - b'0'))
    };
    let [month, day, hour, minute, second] =
        <[_; 5]>::try_from(digits.chunks(2).map(number).collect::<Vec<_>>()).ok()?;
    let year = match (century, number(year)) {
        (true, year @ 0..50) => 2000 + year,
        (true, year) => 1900 + year,
        (false, year) => year,
    };
    let byte = |number: u16| u8::try_from(number).ok();
    let date =
        Date::from_calendar_date(year.into(), Month::try_from(byte(month)?).ok()?, byte(day)?)
            .ok()?;
    let time = Time::from_hms(byte(hour)?, byte(minute)?, byte(second)?).ok()?;
    Some((UtcDateTime::new(date, time).unix_timestamp(), rest))
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

const DAY: i64 = 86_400;
/// How long before the end an operator is warned.
const ENDING: i64 = 14 * DAY;

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(from: i32, until: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["media.example".into()]).unwrap();
        (params.not_before, params.not_after) =
            (date_time_ymd(from, 1, 1), date_time_ymd(until, 12, 31));
        params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .clone()
    }

    #[test]
    fn the_dates_of_a_certificate_are_read() {
        // Years up to 2049 have two digits, later ones four.
        for (from, until) in [(1970, 1999), (2020, 2049), (2020, 2050), (2049, 2120)] {
            let validity = Validity::of(&certificate(from, until)).unwrap();
            let expected = [date_time_ymd(from, 1, 1), date_time_ymd(until, 12, 31)]
                .map(|time| time.unix_timestamp());
            assert_eq!([validity.from, validity.until], expected);
        }
        let chain = [certificate(2020, 2030), certificate(2022, 2040)];
        let whole = Validity::of_chain(&chain).unwrap();
        assert_eq!(
            (date(whole.from).as_str(), date(whole.until).as_str()),
            ("2022-01-01T00:00:00Z", "2030-12-31T00:00:00Z")
        );
        assert_eq!(Validity::of_chain(&[]), None);
    }

    #[test]
    fn what_is_no_certificate_has_no_dates() {
        let whole = certificate(2020, 2049);
        for length in 0..whole.len() {
            assert_eq!(Validity::of(&whole[..length]), None, "{length}");
        }
        // No byte value causes a panic.
        for index in 0..whole.len() {
            for value in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut bytes = whole.to_vec();
                bytes[index] = value;
                let _ = Validity::of(&bytes);
            }
        }
    }

    #[test]
    fn an_operator_is_told_in_time() {
        let year = Validity {
            from: 0,
            until: 365 * DAY,
        };
        assert_eq!(year.standing(-1), Standing::Early);
        assert_eq!(year.standing(350 * DAY), Standing::Good);
        assert_eq!(year.standing(352 * DAY), Standing::Ending);
        assert_eq!(year.standing(366 * DAY), Standing::Expired);
        assert!(
            year.complaint(352 * DAY)
                .unwrap()
                .contains("1971-01-01T00:00:00Z, in 13 days")
        );
        // A certificate for six days is good on its first day.
        assert_eq!(
            Validity {
                from: 0,
                until: 6 * DAY
            }
            .standing(DAY),
            Standing::Good
        );
    }
}
