use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::TicketKind;

/// Why a string is not an id. Names the field, shows the value (bounded and escaped) and the rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing was given.
    #[error("{field} is empty")]
    Empty {
        /// Which id it was meant to be.
        field: &'static str,
    },
    /// More bytes than the id may have.
    #[error("{field} has {bytes} bytes; at most {max} are allowed")]
    TooLong {
        /// Which id it was meant to be.
        field: &'static str,
        /// How many bytes it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// A character that would be unsafe in a path, a Kubernetes name, a log line or a device command.
    #[error("{field} {shown} contains {character:?}; allowed is printable ASCII without '^', '/' and spaces")]
    Character {
        /// Which id it was meant to be.
        field: &'static str,
        /// The value, escaped and cut to a bounded length.
        shown: String,
        /// The first offending character.
        character: char,
    },
    /// `.` or `..`, which a path would read as a directory.
    #[error("{field} {value:?} would be read as a directory")]
    Dots {
        /// Which id it was meant to be.
        field: &'static str,
        /// The value.
        value: String,
    },
}

fn validate(field: &'static str, max: usize, value: &str) -> Result<(), IdError> {
    if value.is_empty() {
        return Err(IdError::Empty { field });
    }
    if value.len() > max {
        return Err(IdError::TooLong { field, bytes: value.len(), max });
    }
    // Kubernetes splits "driver^volume" at '^'; '/' and dots would leave a directory; the rest would
    // break a line of output or a command sent to a device.
    if let Some(character) = value.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '^' | '/')) {
        let shown = format!("{:?}", value.chars().take(40).collect::<String>());
        return Err(IdError::Character { field, shown, character });
    }
    if matches!(value, "." | "..") {
        return Err(IdError::Dots { field, value: value.to_owned() });
    }
    Ok(())
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $field:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            #[doc = concat!("A ", $field, ", if `value` can be one.")]
            pub fn new(value: impl AsRef<str>) -> Result<Self, IdError> {
                let value = value.as_ref();
                validate($field, $max, value)?;
                Ok(Self(Arc::from(value)))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(value: &str) -> Result<Self, IdError> {
                Self::new(value)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(value: String) -> Result<Self, IdError> {
                Self::new(value)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

// CSI bounds a volume id at 128 bytes and a node id at 256; a ticket id is a Kubernetes object name (253).
id! {
    /// Names a volume, for ever and everywhere.
    VolumeId, "volume id", 128
}
id! {
    /// Names a node: a machine whose kernel may be let in to a volume.
    NodeId, "node id", 256
}
id! {
    /// Names a ticket within its volume.
    TicketId, "ticket id", 253
}
id! {
    /// Names a target: the storage that holds volumes.
    TargetId, "target id", 63
}

id! {
    /// Names a snapshot, for ever and everywhere.
    SnapshotId, "snapshot id", 128
}
id! {
    /// Names snapshots that were taken together.
    GroupSnapshotId, "group snapshot id", 128
}

/// The place that a caller's name for a volume (or a snapshot, or a group) has in a store: the name, or a digest of it. What
/// is made under the name gets an id that begins with it, so that one compare-and-swap on one record decides who
/// has the name, the record is found from the name and from the id alike, and no index stands beside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(String);

impl Slot {
    /// How many hexadecimal digits of a digest are kept: 96 bits.
    const DIGITS: usize = 24;
    /// How long a name may be that is its own place: what is made from it stays a name in Kubernetes, too.
    const LONGEST: usize = 63;

    /// The place of a name: the name itself if it is a plain one (small letters, digits and dashes), else a digest of it.
    pub fn of_name(name: &str) -> Self {
        if Self::is_plain(name) && !Self::is_digest(name) {
            return Self(name.to_owned());
        }
        let digest = Sha256::digest(name.as_bytes());
        Self(digest.iter().take(Self::DIGITS / 2).map(|byte| format!("{byte:02x}")).collect())
    }

    /// The place of an id that was made by [`Slot::id`], or of one of an older driver, which is the name itself; `None` for any other text.
    pub fn of_id(id: &str) -> Option<Self> {
        if Self::is_of_claim(id) {
            return Some(Self(id.to_owned()));
        }
        let (slot, unique) = id.rsplit_once('-')?;
        let fits = Self::is_plain(slot) && unique.len() == 8 && unique.bytes().all(Self::is_hex);
        fits.then(|| Self(slot.to_owned()))
    }

    /// Whether it is the name that Kubernetes gives to the volume of a claim, `pvc-` and a UUID. An older driver has that for an id; of ours none
    /// looks like that, because eight digits follow a name.
    fn is_of_claim(text: &str) -> bool {
        let parts: Vec<&str> = text.split('-').collect();
        let [pvc, uuid @ ..] = parts.as_slice() else { return false };
        let lengths = uuid.iter().map(|part| part.len());
        let fits = *pvc == "pvc" && lengths.eq([8, 4, 4, 4, 12]);
        fits && uuid.iter().all(|part| part.bytes().all(Self::is_hex))
    }

    fn is_plain(text: &str) -> bool {
        let plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'-');
        let fits = !text.is_empty() && text.len() <= Self::LONGEST && text.bytes().all(plain);
        fits && !text.starts_with('-') && !text.ends_with('-')
    }

    fn is_digest(text: &str) -> bool {
        text.len() == Self::DIGITS && text.bytes().all(Self::is_hex)
    }

    fn is_hex(byte: u8) -> bool {
        matches!(byte, b'0'..=b'9' | b'a'..=b'f')
    }

    /// An id for what is made here now. `unique` makes it differ from what was made and deleted under the same name
    /// before: a command about that one, arriving late, must never touch this one.
    pub fn id(&self, unique: u32) -> String {
        format!("{}-{unique:08x}", self.0)
    }

    /// The key of its record.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TicketId {
    /// The id of the ticket behind a CSI publish: the name that Kubernetes gives its own VolumeAttachment for the
    /// same volume, driver and node, so that both ways of asking make the same ticket.
    pub fn csi(volume: &VolumeId, driver: &str, node: &NodeId) -> Self {
        let mut hash = Sha256::new();
        for part in [volume.as_str(), driver, node.as_str()] {
            hash.update(part.as_bytes());
        }
        let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Self(Arc::from(format!("csi-{hex}")))
    }

    /// The id of a ticket that a controller or a person files: `<type>-<name>`.
    pub fn named(kind: TicketKind, name: &str) -> Result<Self, IdError> {
        Self::new(format!("{kind}-{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_found_from_the_name_and_from_the_id() {
        let (long, digest) = ("x".repeat(64), "0123456789abcdef01234567");
        let names = ["pvc-1", "a", "0", "PVC-1", "a b", "ä", "-a", "a-", "a.b", "db-000000ab", &long, digest];
        let mut slots = std::collections::BTreeSet::new();
        for name in names {
            let slot = Slot::of_name(name);
            let id = VolumeId::new(slot.id(0xab)).unwrap();
            assert_eq!(Slot::of_id(id.as_str()), Some(slot.clone()), "{name}");
            assert_ne!(slot.id(1), slot.id(2));
            let plain = matches!(name, "pvc-1" | "a" | "0" | "db-000000ab");
            assert_eq!(slot.as_str() == name, plain, "{name}: {slot:?}");
            assert!(slots.insert(slot), "{name}: its place is taken");
        }
        for other in ["", "pvc-1", "-", "-000000ab", "pvc-1-000000aB", "pvc-1-00000ab", "pvc_1-000000ab"] {
            assert_eq!(Slot::of_id(other), None, "{other}");
        }
    }

    #[test]
    fn the_id_that_an_older_driver_gave_is_its_own_place_and_that_of_its_name() {
        let id = "pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890";
        assert_eq!(Slot::of_id(id), Some(Slot::of_name(id)));
        assert_eq!(
            Slot::of_id(&Slot::of_name(id).id(7)),
            Some(Slot::of_name(id)),
            "what is made under that name"
        );
        for other in [
            "pvc-a1b2c3d4-e5f6-7890-abcd-ef123456789",
            "pvc-a1b2c3d4-e5f6-7890-abcd-ef123456789x",
            "pvc-A1b2c3d4-e5f6-7890-abcd-ef1234567890",
            "pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890-0",
            "pv-a1b2c3d4-e5f6-7890-abcd-ef1234567890",
            "a1b2c3d4-e5f6-7890-abcd-ef1234567890",
        ] {
            assert_eq!(Slot::of_id(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_made_under_a_plain_name_shows_it() {
        assert_eq!(Slot::of_name("pvc-1").id(0xab), "pvc-1-000000ab");
    }

    #[test]
    fn what_cannot_be_an_id_is_refused_by_name() {
        let long = "x".repeat(129);
        for (value, expected) in [
            ("", "volume id is empty"),
            (
                "a^b",
                r#"volume id "a^b" contains '^'; allowed is printable ASCII without '^', '/' and spaces"#,
            ),
            (
                "a/b",
                r#"volume id "a/b" contains '/'; allowed is printable ASCII without '^', '/' and spaces"#,
            ),
            (
                "a\0b",
                r#"volume id "a\0b" contains '\0'; allowed is printable ASCII without '^', '/' and spaces"#,
            ),
            (
                "a\nb",
                r#"volume id "a\nb" contains '\n'; allowed is printable ASCII without '^', '/' and spaces"#,
            ),
            (
                "a b",
                r#"volume id "a b" contains ' '; allowed is printable ASCII without '^', '/' and spaces"#,
            ),
            ("ä", r#"volume id "ä" contains 'ä'; allowed is printable ASCII without '^', '/' and spaces"#),
            (".", r#"volume id "." would be read as a directory"#),
            ("..", r#"volume id ".." would be read as a directory"#),
            (&long, "volume id has 129 bytes; at most 128 are allowed"),
        ] {
            assert_eq!(VolumeId::new(value).unwrap_err().to_string(), expected, "{value:?}");
            let json = serde_json::to_string(value).unwrap();
            assert!(serde_json::from_str::<VolumeId>(&json).is_err(), "{value:?} came in through serde");
        }
    }

    #[test]
    fn what_can_be_an_id_survives_a_round_trip() {
        for value in ["pvc-6f0c", "a.b_c~d:e", "...", "x"] {
            let id = NodeId::new(value).unwrap();
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<NodeId>(&json).unwrap(), id);
            assert_eq!(id.to_string(), value);
        }
    }

    #[test]
    fn a_csi_ticket_has_the_name_kubernetes_gives_its_volume_attachment() {
        // echo -n pvc-1bowline.storageworker-2 | sha256sum
        let id = TicketId::csi(
            &VolumeId::new("pvc-1").unwrap(),
            "bowline.storage",
            &NodeId::new("worker-2").unwrap(),
        );
        assert_eq!(id.as_str(), "csi-0b72c487d897c21ef8498ed924a8b64a07f7983c5824744a2ff099663ab0e98c");
    }

    #[test]
    fn a_named_ticket_shows_its_type() {
        let id = TicketId::named(TicketKind::BackupController, "nightly").unwrap();
        assert_eq!(id.as_str(), "backup-controller-nightly");
        assert!(TicketId::named(TicketKind::BowlineApi, "a/b").is_err());
    }
}
