//! How far another machine's clock is from this one's.

use bowline_core::Timestamp;
use std::time::Duration;

/// How wrong a clock is, seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockError {
    /// Milliseconds that it is ahead; behind, if below zero.
    pub ahead: i64,
    /// Milliseconds by which that may be wrong itself: the answer left somewhere in the time that the question took.
    pub doubt: i64,
}

impl ClockError {
    /// Of a clock that said `told` (milliseconds since 1970) to a question that was asked at `asked` and took so long.
    pub fn measure(asked: Timestamp, took: Duration, told: i64) -> Self {
        let doubt = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
        let ours = asked.as_millisecond().saturating_add(doubt);
        Self { ahead: told.saturating_sub(ours), doubt }
    }

    /// Whether it is further off than this for certain.
    pub fn exceeds(&self, tolerance: Duration) -> bool {
        let least = self.ahead.saturating_abs().saturating_sub(self.doubt);
        u128::try_from(least).is_ok_and(|least| least > tolerance.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_way_there_and_back_is_no_error_of_the_clock() {
        let asked = Timestamp::from_millisecond(1_000_000).unwrap();
        let tolerance = Duration::from_secs(5);
        for (took, told, ahead, exceeds) in [
            (0, 1_000_000, 0, false),
            (4_000, 1_002_000, 0, false),
            (0, 1_005_000, 5_000, false),
            (0, 1_005_001, 5_001, true),
            (0, 990_000, -10_000, true),
            // It may have left at the beginning, or at the end.
            (20_000, 1_020_000, 10_000, false),
            (20_000, 1_026_000, 16_000, true),
            (0, i64::MAX, i64::MAX - 1_000_000, true),
            (0, i64::MIN, i64::MIN, true),
        ] {
            let error = ClockError::measure(asked, Duration::from_millis(took), told);
            assert_eq!((error.ahead, error.exceeds(tolerance)), (ahead, exceeds), "{took} {told}");
        }
    }
}
