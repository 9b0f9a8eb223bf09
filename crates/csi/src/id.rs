//! Names and ids that a request gives. Volumes and nodes have theirs in `bowline_core`.

use crate::field::{At, InvalidField, Problem};
use bowline_core::{GroupSnapshotId, IdError, NodeId, SnapshotId, VolumeId};
use std::fmt;

/// The general limit of CSI for one string.
pub(crate) const STRING_BYTES: usize = 128;

/// The name that a caller chose for what it wants made; asking again with it means the same thing, not a second one.
///
/// Never empty, at most 128 bytes, without control characters other than tab and line ends. It is no path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A name given elsewhere than in a CSI request, by the same rules; `field` is what an error calls it.
    pub fn new(field: &'static str, value: &str) -> Result<Self, InvalidField> {
        Self::parse(At::field(field), value.to_owned())
    }

    pub(crate) fn parse(at: At<'_>, value: String) -> Result<Self, InvalidField> {
        if value.is_empty() {
            return Err(at.is(Problem::Missing));
        }
        at.at_most(STRING_BYTES, value.len())?;
        at.only(&value, "control characters are not allowed", |character| {
            !character.is_control() || matches!(character, '\t' | '\n' | '\r')
        })?;
        Ok(Self(value))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

fn named<T>(at: At<'_>, id: Result<T, IdError>) -> Result<T, InvalidField> {
    id.map_err(|error| at.is(error.into()))
}

pub(crate) fn volume_id(at: At<'_>, value: &str) -> Result<VolumeId, InvalidField> {
    named(at, VolumeId::new(value))
}

pub(crate) fn snapshot_id(at: At<'_>, value: &str) -> Result<SnapshotId, InvalidField> {
    named(at, SnapshotId::new(value))
}

pub(crate) fn group_snapshot_id(at: At<'_>, value: &str) -> Result<GroupSnapshotId, InvalidField> {
    named(at, GroupSnapshotId::new(value))
}

pub(crate) fn optional_volume_id(at: At<'_>, value: &str) -> Result<Option<VolumeId>, InvalidField> {
    if value.is_empty() { Ok(None) } else { volume_id(at, value).map(Some) }
}

pub(crate) fn node_id(at: At<'_>, value: &str) -> Result<NodeId, InvalidField> {
    named(at, NodeId::new(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_any_short_text_without_control_characters() {
        let name = |value: &str| Name::parse(At::field("name"), value.to_owned()).map_err(|e| e.to_string());
        for accepted in ["pvc-1", "ein Name", "名前", "a/b", "..", "a\tb", &"x".repeat(128)] {
            assert_eq!(name(accepted).unwrap().as_str(), accepted);
        }
        for (refused, why) in [
            ("", "name is required"),
            ("a\0b", "name contains '\\0'; control characters are not allowed"),
            ("a\u{85}b", "name contains '\\u{85}'; control characters are not allowed"),
            (&"x".repeat(129), "name has 129 bytes; at most 128 are allowed"),
        ] {
            assert_eq!(name(refused).unwrap_err(), why);
        }
    }

    #[test]
    fn ids_are_refused_by_the_path_of_their_field() {
        let at = At::field("volume_id");
        for (value, why) in [
            ("", "volume_id is required"),
            ("..", "volume_id would be read as a directory"),
            ("a^b", "volume_id contains '^'; allowed is printable ASCII without '^', '/' and spaces"),
            (&"x".repeat(129), "volume_id has 129 bytes; at most 128 are allowed"),
        ] {
            assert_eq!(volume_id(at, value).unwrap_err().to_string(), why);
            assert_eq!(snapshot_id(at, value).unwrap_err().to_string(), why);
        }
        assert!(node_id(at, &"x".repeat(256)).is_ok());
        assert!(node_id(at, &"x".repeat(257)).is_err());
        assert_eq!(optional_volume_id(at, "").unwrap(), None);
    }
}
