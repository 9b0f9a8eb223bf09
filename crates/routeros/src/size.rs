//! Sizes as the device reads and prints them.

/// The bytes that a size means: a number, or a number with a unit. Units are powers of 1024, as `file-size=50G` is printed as
/// `50.0GiB`. That fractions are refused is assumed.
pub(super) fn parse(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then_some(())?;
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// As in `file-size`: one digit after the point, so some of it may be lost; GiB is the largest unit that was seen (`1024.0GiB`).
pub(super) fn rounded(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..=1023 => return bytes.to_string(),
        1024..=1_048_575 => (1_u64 << 10, "KiB"),
        1_048_576..=1_073_741_823 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    format!("{}.{}{name}", tenths / 10, tenths % 10)
}

/// As in `size`: all digits, in groups of three with this between them.
pub(super) fn grouped(bytes: u64, between: &str) -> String {
    let digits = bytes.to_string();
    let first = digits.len() % 3;
    let groups: Vec<&str> = [&digits[..first]]
        .into_iter()
        .filter(|group| !group.is_empty())
        .chain((first..digits.len()).step_by(3).map(|at| &digits[at..at + 3]))
        .collect();
    groups.join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_device_reads_them() {
        for (text, bytes) in [
            ("53687091200", Some(53_687_091_200)),
            ("50G", Some(53_687_091_200)),
            ("1T", Some(1 << 40)),
            ("512K", Some(524_288)),
            ("1.5G", None),
            ("G", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("99999999999T", None),
        ] {
            assert_eq!(parse(text), bytes, "{text}");
        }
    }

    #[test]
    fn sizes_are_printed_as_the_device_prints_them() {
        for (bytes, short, long) in [
            (53_687_091_200, "50.0GiB", "53 687 091 200"),
            (1 << 40, "1024.0GiB", "1 099 511 627 776"),
            (1_610_612_736, "1.5GiB", "1 610 612 736"),
            (1_000_000, "976.6KiB", "1 000 000"),
            (512, "512", "512"),
            (0, "0", "0"),
        ] {
            assert_eq!((rounded(bytes).as_str(), grouped(bytes, " ").as_str()), (short, long));
        }
    }
}
