//! Sizes, as people write and read them.

use bowline_api::{binary_units, unit_of};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::str::FromStr;

/// A number of bytes, written `10Gi`, `10G`, `1.5Ti` or `1048576`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No number, or no unit that is known.
    #[error("{0:?} is no size; write 10Gi, 10G, 1.5Ti or a number of bytes")]
    Form(String),
    /// Not a whole number of bytes.
    #[error("{0:?} is not a whole number of bytes")]
    Fraction(String),
    /// More bytes than anybody can have.
    #[error("{0:?} is larger than any size can be")]
    TooLarge(String),
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let shown = || text.chars().take(40).collect::<String>();
        let plain = text.strip_suffix('B').unwrap_or(text);
        // More is read here than in objects, which are not typed by hand: "10KB", and fractions.
        let thousand = plain.strip_suffix('K').map(|number| (number, 1_000));
        let (number, unit) = thousand.unwrap_or_else(|| unit_of(plain));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let has_dot = number.contains('.');
        if whole.is_empty() || !digits(whole) || !digits(fraction) || (has_dot && fraction.is_empty()) {
            return Err(SizeError::Form(shown()));
        }
        let too_large = || SizeError::TooLarge(shown());
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let mut bytes = whole.checked_mul(unit).ok_or_else(too_large)?;
        if has_dot {
            bytes = bytes
                .checked_add(part(fraction, unit).ok_or_else(|| SizeError::Fraction(shown()))?)
                .ok_or_else(too_large)?;
        }
        Ok(Self(bytes))
    }
}

/// What `0.fraction` of a unit is, if that is a whole number of bytes and no more digits than anybody writes.
fn part(fraction: &str, unit: u64) -> Option<u64> {
    let fraction = fraction.trim_end_matches('0');
    let mut parts = u128::from(unit);
    let (mut numerator, mut scale) = (0_u128, 1_u128);
    for digit in fraction.bytes() {
        numerator = numerator.checked_mul(10)?.checked_add(u128::from(digit - b'0'))?;
        scale = scale.checked_mul(10)?;
    }
    parts = parts.checked_mul(numerator)?;
    (parts % scale == 0).then(|| u64::try_from(parts / scale).ok()).flatten()
}

impl fmt::Display for Size {
    /// The shortest text with at most one digit after the point; exact where that is possible.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((suffix, unit)) = binary_units().find(|(_, unit)| self.0 >= *unit) else {
            return f.pad(&format!("{}", self.0));
        };
        let tenths = u128::from(self.0) * 10 / u128::from(unit);
        let text = match (tenths / 10, tenths % 10) {
            (whole, 0) => format!("{whole}{suffix}"),
            (whole, tenth) => format!("{whole}.{tenth}{suffix}"),
        };
        f.pad(&text)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(from)? {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_strictly() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("10Gi", 10 << 30),
            ("10GiB", 10 << 30),
            ("10G", 10_000_000_000),
            ("10GB", 10_000_000_000),
            ("1.5Gi", 3 << 29),
            ("0.5k", 500),
            ("2K", 2000),
            ("2KB", 2000),
            ("1.50Ki", 1536),
            ("15Ei", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for (text, why) in [
            ("", "is no size"),
            ("Gi", "is no size"),
            ("-1", "is no size"),
            ("+1", "is no size"),
            ("1 Gi", "is no size"),
            ("1gi", "is no size"),
            ("1.Gi", "is no size"),
            (".5Gi", "is no size"),
            ("1e3", "is no size"),
            ("0x10", "is no size"),
            ("1_000", "is no size"),
            ("1.5", "not a whole number"),
            ("0.3Ki", "not a whole number"),
            ("16Ei", "larger than any"),
            ("18446744073709551616", "larger than any"),
            ("99999999999999999999999Ti", "larger than any"),
        ] {
            let told = text.parse::<Size>().unwrap_err().to_string();
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1536, "1.5Ki"),
            (10 << 30, "10Gi"),
            ((10 << 30) + 1, "10Gi"),
            (u64::MAX, "15.9Ei"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_never_a_panic(text in "[0-9.]{0,40}[kKMGTPEi]{0,2}B?|.{0,30}") {
            let _ = text.parse::<Size>();
        }

        #[test]
        fn a_number_is_read_as_it_was_written(bytes: u64) {
            prop_assert_eq!(bytes.to_string().parse(), Ok(Size(bytes)));
        }

        #[test]
        fn what_is_shown_is_never_more_than_there_is_and_hardly_less(bytes: u64) {
            let shown = Size(bytes).to_string();
            if let Ok(Size(read)) = shown.parse::<Size>() {
                prop_assert!(read <= bytes && bytes - read <= bytes / 10 + 1, "{} as {}", bytes, shown);
            }
        }
    }
}
