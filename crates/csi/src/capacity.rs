//! How many bytes are asked for.

use crate::field::{At, InvalidField, Problem};
use crate::wire;

/// At least `required` and at most `limit` bytes; one of them is given, and neither exceeds what a file offset can
/// hold, so that adding to one cannot overflow 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapacityRange {
    required: u64,
    limit: Option<u64>,
}

impl CapacityRange {
    /// The least number of bytes that will do; 0 if any will.
    pub fn required(&self) -> u64 {
        self.required
    }

    /// The greatest number of bytes that will do.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Whether `bytes` will do.
    pub fn contains(&self, bytes: u64) -> bool {
        self.required <= bytes && self.limit.is_none_or(|limit| bytes <= limit)
    }

    pub(crate) fn parse(at: At<'_>, range: wire::CapacityRange) -> Result<Self, InvalidField> {
        let bytes = |name, value: i64| {
            u64::try_from(value).map_err(|_| at.child(name).is(Problem::Negative { value }))
        };
        let required = bytes("required_bytes", range.required_bytes)?;
        let limit = Some(bytes("limit_bytes", range.limit_bytes)?).filter(|limit| *limit != 0);
        match limit {
            None if required == 0 => Err(at.is(Problem::Form("has neither required_bytes nor limit_bytes"))),
            Some(limit) if limit < required => Err(at.is(Problem::EmptyRange { required, limit })),
            _ => Ok(Self { required, limit }),
        }
    }

    pub(crate) fn parse_optional(range: Option<wire::CapacityRange>) -> Result<Option<Self>, InvalidField> {
        // Some callers send the empty message where they mean none at all.
        let given = range.filter(|range| range.required_bytes != 0 || range.limit_bytes != 0);
        given.map(|range| Self::parse(At::field("capacity_range"), range)).transpose()
    }

    pub(crate) fn parse_required(range: Option<wire::CapacityRange>) -> Result<Self, InvalidField> {
        let at = At::field("capacity_range");
        at.required(range).and_then(|range| Self::parse(at, range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_something_in_it() {
        let parse = |required_bytes, limit_bytes| {
            let range = wire::CapacityRange { required_bytes, limit_bytes };
            CapacityRange::parse(At::field("capacity_range"), range).map_err(|error| error.to_string())
        };
        for (required, limit, expected) in [
            (1, 0, (1, None)),
            (0, 5, (0, Some(5))),
            (5, 5, (5, Some(5))),
            (i64::MAX, 0, (i64::MAX as u64, None)),
        ] {
            let range = parse(required, limit).unwrap();
            assert_eq!((range.required(), range.limit()), expected);
        }
        for (required, limit, why) in [
            (0, 0, "capacity_range has neither required_bytes nor limit_bytes"),
            (-1, 0, "capacity_range.required_bytes is -1; it must not be negative"),
            (1, i64::MIN, "capacity_range.limit_bytes is -9223372036854775808; it must not be negative"),
            (6, 5, "capacity_range asks for at least 6 and at most 5 bytes"),
        ] {
            assert_eq!(parse(required, limit).unwrap_err(), why);
        }
        let range = parse(2, 4).unwrap();
        assert_eq!([1, 2, 4, 5].map(|bytes| range.contains(bytes)), [false, true, true, false]);
        assert_eq!(CapacityRange::parse_optional(Some(wire::CapacityRange::default())), Ok(None));
        assert!(CapacityRange::parse_required(None).is_err());
    }
}
