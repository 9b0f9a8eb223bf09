//! Where a list goes on: a short text that says which list it is of and after which record it goes on. Records that come
//! and go do not move it.

use bowline_core::Slot;
use bowline_csi::code::ListError;

/// No token is longer.
pub const BYTES: usize = 72;

/// Which list a token is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Volumes.
    Volumes,
    /// Snapshots.
    Snapshots,
}

impl List {
    fn letter(self) -> &'static str {
        match self {
            Self::Volumes => "v",
            Self::Snapshots => "s",
        }
    }
}

/// The token to go on after the record at `slot`.
pub fn write(list: List, slot: &Slot) -> String {
    format!("{}.{}", list.letter(), slot.as_str())
}

/// The place after which a list goes on, if `token` is one of this list. Never panics, whatever it is given.
pub fn parse(list: List, token: &[u8]) -> Option<Slot> {
    let token = std::str::from_utf8(token).ok().filter(|token| token.len() <= BYTES)?;
    let slot = token.strip_prefix(list.letter())?.strip_prefix('.')?;
    Slot::of_id(&format!("{slot}-00000000"))
}

/// The key to go on after, from a token.
pub(crate) fn after(list: List, token: Option<&str>) -> Result<Option<String>, ListError> {
    let Some(token) = token else { return Ok(None) };
    match parse(list, token.as_bytes()) {
        Some(slot) => Ok(Some(slot.as_str().to_owned())),
        None => Err(unknown()),
    }
}

pub(crate) fn unknown() -> ListError {
    ListError::UnknownToken("starting_token is none of ours; begin the list again without it".to_owned())
}

/// The token that goes on after a key.
pub(crate) fn next(list: List, key: Option<String>) -> Option<String> {
    key.map(|key| format!("{}.{key}", list.letter()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_tokens_of_the_same_list_are_taken() {
        let slot = Slot::of_name("pvc-1");
        let token = write(List::Volumes, &slot);
        assert!(token.len() <= BYTES, "{token}");
        assert_eq!(parse(List::Volumes, token.as_bytes()), Some(slot));
        assert_eq!(parse(List::Snapshots, token.as_bytes()), None);
        for bad in [
            "",
            "v",
            "v.",
            "invalid-token",
            &token[1..],
            &format!("{token}-"),
            "v.PVC",
            "v.\u{e9}",
            &"v".repeat(4096),
        ] {
            assert_eq!(parse(List::Volumes, bad.as_bytes()), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_token_or_none(bytes: Vec<u8>) {
            if let Some(slot) = parse(List::Volumes, &bytes) {
                prop_assert_eq!(write(List::Volumes, &slot).into_bytes(), bytes);
            }
        }
    }
}
