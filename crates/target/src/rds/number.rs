//! Numbers as devices print them.

/// How many bytes something has, as far as the device says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many.
    Exact(u64),
    /// About so many: printed with a unit, so what is behind the last digit is lost. Good for people only.
    About(u64),
}

impl Size {
    /// The number of bytes, if it is known to the last one.
    pub fn exact(self) -> Option<u64> {
        match self {
            Self::Exact(bytes) => Some(bytes),
            Self::About(_) => None,
        }
    }
}

/// What may stand between groups of three digits, wherever a device was made or set up. The last one is what became of a character
/// that is not UTF-8.
const SEPARATORS: [char; 10] =
    [' ', '.', ',', '\'', '\u{2019}', '\u{a0}', '\u{2009}', '\u{202f}', '_', '\u{fffd}'];

/// A whole number, in groups or not. A line break may stand anywhere in it.
pub(super) fn count(text: &str) -> Option<u64> {
    ungrouped(&text.replace('\n', "")).or_else(|| ungrouped(&text.replace('\n', " ")))
}

fn ungrouped(text: &str) -> Option<u64> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(separator) = text.chars().find(|c| !c.is_ascii_digit()) else { return text.parse().ok() };
    if !SEPARATORS.contains(&separator) {
        return None;
    }
    let groups: Vec<&str> = text.split(separator).collect();
    let (first, others) = groups.split_first()?;
    let fits =
        digits(first) && first.len() <= 3 && others.iter().all(|group| digits(group) && group.len() == 3);
    fits.then(|| groups.concat()).and_then(|digits| digits.parse().ok())
}

const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("PiB", 50)];

/// A size: a whole number of bytes, or a number with a unit.
pub(super) fn size(text: &str) -> Option<Size> {
    if let Some(bytes) = count(text) {
        return Some(Size::Exact(bytes));
    }
    let text = text.replace('\n', "");
    if let Some(bytes) = text.strip_suffix('B').and_then(|digits| ungrouped(digits.trim_end())) {
        return Some(Size::Exact(bytes));
    }
    let (number, shift) =
        UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?.trim_end(), *shift)))?;
    let (whole, part) = number.split_once(['.', ',']).unwrap_or((number, "0"));
    if part.is_empty() || part.len() > 9 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let number = u128::from(ungrouped(whole)?).checked_mul(scale)?.checked_add(part.parse().ok()?)?;
    let bytes = number.checked_mul(1 << shift)? / scale;
    u64::try_from(bytes).ok().map(Size::About)
}

/// A size as a command says it: in a unit only if that loses nothing.
pub(super) fn exactly(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    let fits = |(_, shift): &&(&str, u32)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.iter().find(fits) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_however_they_are_grouped() {
        let bytes = Some(53_687_091_200);
        for text in [
            "53687091200",
            "53 687 091 200",
            "53.687.091.200",
            "53,687,091,200",
            "53'687'091'200",
            "53\u{a0}687\u{a0}091\u{a0}200",
            "53\u{202f}687\u{202f}091\u{202f}200",
            "53\u{2009}687\u{2009}091\u{2009}200",
            "53\u{fffd}687\u{fffd}091\u{fffd}200",
            "53 687\n091 200",
            "53 6\n87 091 200",
        ] {
            assert_eq!(count(text), bytes, "{text:?}");
        }
        for text in [
            "",
            " ",
            "5 3",
            "53 68",
            "1.5",
            "53 687,091",
            "1234 567",
            "-1",
            "+1",
            "0x10",
            "99999999999999999999",
            " 1",
        ] {
            assert_eq!(count(text), None, "{text:?}");
        }
        assert_eq!(count("007"), Some(7));
    }

    #[test]
    fn a_rounded_size_is_not_an_exact_one() {
        for (text, expected) in [
            ("50.0GiB", Some(Size::About(50 << 30))),
            ("1.5GiB", Some(Size::About(3 << 29))),
            ("1,5 GiB", Some(Size::About(3 << 29))),
            ("1024KiB", Some(Size::About(1 << 20))),
            ("1 610 612 736", Some(Size::Exact(3 << 29))),
            ("512B", Some(Size::Exact(512))),
            ("0", Some(Size::Exact(0))),
            ("-", None),
            ("", None),
            ("GiB", None),
            (".5GiB", None),
            ("1.GiB", None),
            ("1.5G", None),
            ("99999999999PiB", None),
        ] {
            assert_eq!(size(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_size_that_was_one_and_a_half_gigabytes_was_sent_as_one() {
        for (bytes, text) in [
            (3 << 29, "1536M"),
            (50 << 30, "50G"),
            (1 << 20, "1M"),
            ((1 << 30) + 512, "1073742336"),
            (1 << 40, "1T"),
            (1536, "1536"),
            (2048, "2K"),
            (0, "0"),
        ] {
            assert_eq!(exactly(bytes), text);
        }
    }
}
