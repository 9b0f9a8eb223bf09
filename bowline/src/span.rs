//! Spans of time, as people write and read them.

use jiff::Timestamp;
use std::str::FromStr;
use std::time::Duration;

/// A span of whole seconds, written `30s`, `5m`, `2h` or `7d`; several may follow each other: `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub u32);

/// Why a text is no span of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// No number, or no unit.
    #[error("{0:?} is no span of time; write 30s, 5m, 2h, 7d or 1h30m")]
    Form(String),
    /// More seconds than can be counted here: some 136 years.
    #[error("{0:?} is too long")]
    TooLong(String),
}

impl Span {
    /// As a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.0.into())
    }
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let shown = || text.chars().take(40).collect::<String>();
        let (mut total, mut rest, mut last) = (0_u32, text, u32::MAX);
        if rest.is_empty() {
            return Err(SpanError::Form(shown()));
        }
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| SpanError::Form(shown()))?;
            let (number, tail) = rest.split_at(end);
            let unit = match tail.chars().next() {
                Some('s') => 1,
                Some('m') => 60,
                Some('h') => 3600,
                Some('d') => 24 * 3600,
                _ => return Err(SpanError::Form(shown())),
            };
            // Larger units first and each once, so that a slip of the finger is not a span.
            if number.is_empty() || unit >= last {
                return Err(SpanError::Form(shown()));
            }
            let number: u32 = number.parse().map_err(|_| SpanError::TooLong(shown()))?;
            let seconds = number.checked_mul(unit).and_then(|seconds| seconds.checked_add(total));
            total = seconds.ok_or_else(|| SpanError::TooLong(shown()))?;
            (rest, last) = (&tail[1..], unit);
        }
        Ok(Self(total))
    }
}

/// How long it is from `then` to `now`, in one unit: `3 h`.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    shown(now.duration_since(then).as_secs())
}

/// The same, for a table: `3h ago`, or `in 3h` for what is to come.
pub fn relative(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs();
    let short = |seconds| shown(seconds).replace(' ', "");
    if seconds < 0 { format!("in {}", short(-seconds)) } else { format!("{} ago", short(seconds)) }
}

fn shown(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_are_read_strictly() {
        for (text, seconds) in [
            ("0s", 0),
            ("30s", 30),
            ("5m", 300),
            ("2h", 7200),
            ("7d", 604_800),
            ("1h30m", 5400),
            ("1d2h3m4s", 93_784),
        ] {
            assert_eq!(text.parse(), Ok(Span(seconds)), "{text}");
        }
        for text in
            ["", "30", "s", "1.5h", "-1s", "1h1h", "1m1h", "1w", "2 h", "99999999999s", "49711d", "1hä"]
        {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_past_and_the_future_are_told_in_one_unit() {
        let now: Timestamp = "2030-01-02T00:00:00Z".parse().unwrap();
        for (then, text) in [
            ("2030-01-01T23:59:59Z", "1s ago"),
            ("2030-01-01T23:30:00Z", "30min ago"),
            ("2030-01-01T21:00:00Z", "3h ago"),
            ("2029-12-20T00:00:00Z", "13d ago"),
            ("2030-01-02T02:00:00Z", "in 2h"),
        ] {
            assert_eq!(relative(then.parse().unwrap(), now), text);
        }
        assert_eq!(since("2030-01-01T21:00:00Z".parse().unwrap(), now), "3 h");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_never_a_panic(text in "([0-9]{0,12}[smhd]){0,5}|.{0,20}") {
            let _ = text.parse::<Span>();
        }
    }
}
