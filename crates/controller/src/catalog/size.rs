//! Which size a volume gets.

use bowline_target::Sizes;

use crate::failure::{Failure, Why};

/// What a volume gets if nobody says how large it is to be.
const DEFAULT: u64 = 1 << 30;

/// The size for at least `required` and at most `limit` bytes, with room for what is copied into it.
pub(crate) fn fit(
    sizes: Sizes,
    required: Option<u64>,
    limit: Option<u64>,
    source: u64,
) -> Result<u64, Failure> {
    let no = |sentence: String| Err(Failure::new(Why::Size, sentence));
    let required = required.filter(|required| *required > 0);
    if let Some(too_small) = required.or(limit).filter(|most| *most < source) {
        return no(format!("{too_small} bytes are asked for, but what is copied into it has {source}"));
    }
    let wanted = required.unwrap_or_else(|| match source {
        0 => DEFAULT.min(limit.unwrap_or(DEFAULT)),
        source => source,
    });
    let multiple = sizes.multiple.max(1);
    let Some(mut size) = wanted.max(sizes.minimum).checked_next_multiple_of(multiple) else {
        return no(format!("{wanted} bytes are more than the {} that a volume can have", sizes.maximum));
    };
    if let Some(limit) = limit.filter(|limit| *limit < size) {
        // Nobody asked for a least size, so a smaller one will do if it can be had.
        let smaller = limit / multiple * multiple;
        if required.is_some() || smaller < sizes.minimum.max(source).max(1) {
            return no(format!(
                "a volume of {wanted} bytes has {size} here (multiples of {multiple}, at least {}), above the limit of {limit}",
                sizes.minimum
            ));
        }
        size = smaller;
    }
    if size > sizes.maximum {
        return no(format!("{size} bytes are more than the {} that a volume can have", sizes.maximum));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_rounded_up_and_within_its_limits() {
        let sizes = Sizes { minimum: 1 << 20, maximum: 1 << 40, multiple: 4096 };
        let gib = 1_u64 << 30;
        for (required, limit, source, expected) in [
            (None, None, 0, Ok(gib)),
            (Some(0), None, 0, Ok(gib)),
            (Some(1), None, 0, Ok(1 << 20)),
            (Some(gib + 1), None, 0, Ok(gib + 4096)),
            (Some(gib + 1), Some(gib + 2), 0, Err("above the limit of 1073741826")),
            (None, Some(gib / 2 + 1), 0, Ok(gib / 2)),
            (None, Some(100), 0, Err("above the limit of 100")),
            (None, None, 2 * gib, Ok(2 * gib)),
            (Some(gib), None, 2 * gib, Err("what is copied into it has 2147483648")),
            (None, Some(gib), 2 * gib, Err("what is copied into it has 2147483648")),
            (Some(1 << 41), None, 0, Err("more than the 1099511627776")),
            (Some(u64::MAX), None, 0, Err("more than the 1099511627776")),
        ] {
            let fits = fit(sizes, required, limit, source).map_err(|failure| failure.sentence);
            match expected {
                Ok(size) => assert_eq!(fits, Ok(size), "{required:?} {limit:?} {source}"),
                Err(part) => assert!(fits.as_ref().is_err_and(|told| told.contains(part)), "{fits:?}"),
            }
        }
    }
}
