//! Time as the core sees it: an argument, counted from the start of the process.

use std::fmt;

/// Milliseconds since the coordinator started.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Millis(pub u64);

impl Millis {
    /// Milliseconds from `earlier` to this moment; 0 when it lies before.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// This moment and so much later.
    #[must_use]
    pub const fn plus(self, later: Self) -> Self {
        Self(self.0.saturating_add(later.0))
    }

    /// As seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

/// Seconds with one digit: `5.2 s`.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.seconds())
    }
}

/// The time of day in UTC of a moment in milliseconds since 1970: `12:03:04 UTC`.
pub fn time_of_day(unix_millis: u64) -> String {
    let seconds = unix_millis / 1000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Date and time in UTC as RFC 3339 has it: `2026-11-30T12:03:04.567Z`.
pub fn rfc3339(unix_millis: u64) -> String {
    let seconds = unix_millis / 1000 % 86_400;
    // Days to year, month, day (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms"):
    // years start in March, so that the leap day is the last of its year.
    let days = unix_millis / 86_400_000 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        unix_millis % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Right: what `date -u -d @SECONDS` says.
    #[test]
    fn dates_agree_with_the_calendar() {
        let check = |seconds: u64, expected: &str| {
            assert_eq!(rfc3339(seconds * 1000 + 7), format!("{expected}.007Z"));
        };
        check(0, "1970-01-01T00:00:00");
        check(951_782_400, "2000-02-29T00:00:00");
        check(1_709_251_199, "2024-02-29T23:59:59");
        check(1_796_040_184, "2026-11-30T12:03:04");
        check(4_107_542_400, "2100-03-01T00:00:00");
        assert_eq!(time_of_day(1_796_040_184_999), "12:03:04 UTC");
    }
}
