//! One page of a list.

use crate::field::{At, InvalidField, Problem};
use crate::id::STRING_BYTES;
use std::num::NonZeroU32;

/// Which part of a list is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Page {
    /// How many entries at most; as many as there are if not given.
    pub max_entries: Option<NonZeroU32>,
    /// Where to go on; from the beginning if not given. Opaque here: the one who made it reads it, and a token that
    /// cannot be read is `Aborted`, not `InvalidArgument`, because the caller is to start the list again.
    pub starting_token: Option<Vec<u8>>,
}

impl Page {
    pub(crate) fn parse(max_entries: i32, starting_token: String) -> Result<Self, InvalidField> {
        let max_entries = u32::try_from(max_entries)
            .map_err(|_| At::field("max_entries").is(Problem::Negative { value: max_entries.into() }))?;
        At::field("starting_token").at_most(STRING_BYTES, starting_token.len())?;
        let starting_token = Some(starting_token.into_bytes()).filter(|token| !token.is_empty());
        Ok(Self { max_entries: NonZeroU32::new(max_entries), starting_token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_given_is_the_whole_list() {
        assert_eq!(Page::parse(0, String::new()), Ok(Page::default()));
        let page = Page::parse(7, "t".to_owned()).unwrap();
        assert_eq!((page.max_entries, page.starting_token), (NonZeroU32::new(7), Some(b"t".to_vec())));
        assert_eq!(
            Page::parse(-1, String::new()).unwrap_err().to_string(),
            "max_entries is -1; it must not be negative"
        );
        assert!(Page::parse(0, "x".repeat(129)).is_err());
    }
}
