use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Why something is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No whole number, or no unit that is known.
    #[error("size is {0:?}; write 10Gi, 10G or a number of bytes")]
    Form(String),
    /// More bytes than Kubernetes can count.
    #[error("size is {0:?}, which is larger than any size can be")]
    TooLarge(String),
}

/// Suffix and bytes; the longer suffixes first.
const UNITS: &[(&str, u64)] = &[
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];

/// What stands before a unit, and how many bytes the unit has; all of it, and one, where there is none.
pub fn unit_of(text: &str) -> (&str, u64) {
    let unit = UNITS.iter().find_map(|(suffix, bytes)| Some((text.strip_suffix(suffix)?, *bytes)));
    unit.unwrap_or((text, 1))
}

/// The binary units, the largest first.
pub fn binary_units() -> impl Iterator<Item = (&'static str, u64)> {
    UNITS.iter().rev().copied().filter(|(suffix, _)| suffix.ends_with('i'))
}

/// How many bytes somebody wrote: `10Gi`, `10G` or a number.
///
/// # Errors
///
/// When it is no whole number with a known unit, or more than 2^63 - 1 bytes.
pub fn bytes_of(size: &IntOrString) -> Result<u64, SizeError> {
    let text = match size {
        IntOrString::Int(number) => {
            return u64::try_from(*number).map_err(|_| SizeError::Form(number.to_string()));
        }
        IntOrString::String(text) => text,
    };
    let shown = || text.chars().take(40).collect::<String>();
    let (number, unit) = unit_of(text);
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SizeError::Form(shown()));
    }
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| i64::try_from(*bytes).is_ok()).ok_or_else(|| SizeError::TooLarge(shown()))
}

/// The shortest exact text for so many bytes.
pub fn size_of(bytes: u64) -> String {
    let exact = binary_units().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    exact.map_or_else(|| bytes.to_string(), |(suffix, unit)| format!("{}{suffix}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_people_write() {
        for (text, bytes) in
            [("0", 0), ("1048576", 1 << 20), ("10Gi", 10 << 30), ("10G", 10_000_000_000), ("7Ei", 7 << 60)]
        {
            assert_eq!(bytes_of(&IntOrString::String(text.to_owned())), Ok(bytes), "{text}");
        }
        assert_eq!(bytes_of(&IntOrString::Int(4096)), Ok(4096));
        for text in ["", "Gi", "1.5Gi", "-1", "1 Gi", "1gi", "8Ei", "99999999999999999999", "1GiB", "٣"] {
            assert!(bytes_of(&IntOrString::String(text.to_owned())).is_err(), "{text}");
        }
        assert!(bytes_of(&IntOrString::Int(-1)).is_err());
    }

    #[test]
    fn what_is_shown_is_read_as_the_same() {
        for bytes in [0, 1, 1023, 1024, 1 << 30, 3 << 29, (1 << 40) + 1, i64::MAX as u64] {
            assert_eq!(bytes_of(&IntOrString::String(size_of(bytes))), Ok(bytes));
        }
        assert_eq!(size_of(3 << 29), "1536Mi");
    }
}
