//! What one grant is called on an NVMe fabric. Derived from the grant alone, so that whoever knows the grant knows the names.

use sha2::{Digest, Sha256};
use std::fmt::Write;

use crate::{Epoch, NodeId, VolumeId};

/// How the name of every subsystem that Bowline exports begins. Nothing that begins otherwise is ever touched.
pub const NQN_PREFIX: &str = "nqn.2026-01.storage.bowline:";

/// Stands for the UUID of a namespace where the storage cannot set it: the only namespace that the subsystem has, whatever its UUID.
pub const ONLY_NAMESPACE: &str = "only";

/// What a subsystem says it is, for people who list their disks.
pub const MODEL: &str = "Bowline";

/// What it says instead where the volume had not one byte in it, and nobody else could write it, when this grant was first shown. Whoever
/// was let in may have written since.
pub const MODEL_OF_BLANK: &str = "Bowline (blank at first)";

/// How long a serial number may be.
const SERIAL: usize = 20;

/// The longest volume id that stands in a name as it is: a whole name has at most 223 bytes.
const PLAIN: usize = 100;

/// The names of one grant.
///
/// The epoch is in all of them: a node that is let in again gets a new disk, never another path to the old one, on which
/// blocks of its earlier time may still wait to be written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NvmeNames {
    /// The subsystem that exports the volume for this grant and no other.
    pub subsystem: String,
    /// As whom the node must log in. Goes with `host_id` one to one, as newer kernels insist.
    pub host: String,
    /// As whom the node must log in, as a UUID.
    pub host_id: String,
    /// The namespace's UUID, or [`ONLY_NAMESPACE`].
    pub namespace: String,
}

impl NvmeNames {
    /// The names of a grant of a volume that lies on the storage called `installation`. A ':' in that is only in the names of devices that remember
    /// nothing but names, and cannot be told a namespace's UUID either.
    pub fn new(installation: &str, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Self {
        // Neither an id nor an installation contains a '/', so the parts cannot run into each other.
        let grant = format!("{installation}/{volume}/{node}/{epoch}");
        let host_id = uuid("host", &grant);
        let namespace =
            if installation.contains(':') { ONLY_NAMESPACE.to_owned() } else { uuid("namespace", &grant) };
        Self {
            subsystem: SubsystemsOf::new(volume).name(installation, epoch),
            host: format!("nqn.2014-08.org.nvmexpress:uuid:{host_id}"),
            host_id,
            namespace,
        }
    }

    /// A serial number for the namespace over one file, told apart from others of its name by `file`. Hosts do not look at it, and it lasts as long as
    /// the export.
    pub fn serial(&self, file: &str) -> String {
        let mut serial = hex(&digest("file", &format!("{}/{file}", self.namespace)));
        serial.truncate(SERIAL);
        serial
    }

    /// The serial number that an earlier Bowline gave it, whatever the file.
    pub fn earlier_serial(&self) -> String {
        self.namespace.chars().filter(|c| *c != '-').take(SERIAL).collect()
    }

    /// How the names of all subsystems of a storage begin, and those of no other.
    pub fn prefix(installation: &str) -> String {
        format!("{NQN_PREFIX}{installation}:")
    }
}

/// The subsystems of one volume, whatever the storage and the grant. Made once where there are many names to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemsOf {
    /// What stands for the volume in a name.
    word: String,
}

impl SubsystemsOf {
    /// Those of this volume.
    pub fn new(volume: &VolumeId) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let volume = volume.as_str();
        if volume.len() <= PLAIN && volume.chars().all(plain) {
            return Self { word: volume.to_owned() };
        }
        // A ',' would end the name where a node connects, a ':' would end the id. '~' is in no id that stands as it is.
        Self { word: format!("~{}", hex(&digest("volume", volume))) }
    }

    fn name(&self, installation: &str, epoch: Epoch) -> String {
        format!("{}{}:e{epoch}", NvmeNames::prefix(installation), self.word)
    }

    /// The storage and the epoch in the name of a subsystem, if it is one of them.
    pub fn storage_and_epoch<'a>(&self, subsystem: &'a str) -> Option<(&'a str, Epoch)> {
        // From the end: neither epoch nor volume have a ':' in a name.
        let mut parts = subsystem.strip_prefix(NQN_PREFIX)?.rsplitn(3, ':');
        let (epoch, volume, installation) = (parts.next()?, parts.next()?, parts.next()?);
        if volume != self.word {
            return None;
        }
        let digits = epoch.strip_prefix('e')?;
        let epoch = Epoch::new(digits.parse().ok()?);
        // Other spellings of the same number are not ours.
        (epoch.to_string() == digits).then_some((installation, epoch))
    }
}

fn digest(what: &str, of: &str) -> [u8; 16] {
    let all = Sha256::digest(format!("bowline/{what}/{of}"));
    let mut half = [0; 16];
    half.iter_mut().zip(all.iter()).for_each(|(to, from)| *to = *from);
    half
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A UUID of version 8, the one for rules of one's own.
fn uuid(what: &str, of: &str) -> String {
    let mut bytes = digest(what, of);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text = hex(&bytes);
    let part = |range| text.get(range).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORAGE: &str = "0123456789abcdef0123456789abcdef";

    fn names(volume: &str, node: &str, epoch: u64) -> NvmeNames {
        let (volume, node) = (VolumeId::new(volume).unwrap(), NodeId::new(node).unwrap());
        NvmeNames::new(STORAGE, &volume, &node, Epoch::new(epoch))
    }

    #[test]
    fn the_names_of_a_grant_look_like_this_for_ever() {
        insta::assert_debug_snapshot!(names("pvc-4f2a", "worker-1", 7), @r#"
        NvmeNames {
            subsystem: "nqn.2026-01.storage.bowline:0123456789abcdef0123456789abcdef:pvc-4f2a:e7",
            host: "nqn.2014-08.org.nvmexpress:uuid:1b2b64c9-a30e-8c21-bf65-f074a3e06c81",
            host_id: "1b2b64c9-a30e-8c21-bf65-f074a3e06c81",
            namespace: "3a6e169d-dd35-8ed9-aa8e-a9df274f8cc7",
        }
        "#);
    }

    #[test]
    fn a_serial_number_is_that_of_one_file_under_one_grant() {
        let names = |epoch| names("pvc-4f2a", "worker-1", epoch);
        assert_eq!(names(7).serial("9/1"), "565dcdcff1cf63b700de", "for ever");
        assert_eq!(names(7).earlier_serial(), "3a6e169ddd358ed9aa8e");
        assert_ne!(names(7).serial("9/1"), names(7).serial("9/2"));
        assert_ne!(names(7).serial("9/1"), names(8).serial("9/1"));
    }

    #[test]
    fn a_device_that_only_remembers_names_has_one_namespace_in_a_subsystem() {
        let (volume, node) = (VolumeId::new("a").unwrap(), NodeId::new("n").unwrap());
        let names = NvmeNames::new("lab-1:wfn:n", &volume, &node, Epoch::new(1));
        assert_eq!(names.namespace, ONLY_NAMESPACE);
    }

    #[test]
    fn no_two_grants_share_a_name() {
        let one = names("a", "n", 1);
        for other in [names("a", "n", 2), names("b", "n", 1), names("a", "m", 1)] {
            assert!(
                one.host != other.host && one.host_id != other.host_id && one.namespace != other.namespace
            );
        }
        assert_ne!(one.subsystem, names("a", "n", 2).subsystem);
        assert_ne!(one.subsystem, names("b", "n", 1).subsystem);
    }

    #[test]
    fn a_subsystem_is_known_by_its_volume_and_no_other() {
        for volume in ["a", "a,b", "a:e1", &"v".repeat(128), "~a"] {
            let subsystem = names(volume, "n", 12).subsystem;
            assert!(subsystem.len() <= 223 && !subsystem.contains(','), "{subsystem}");
            let id = VolumeId::new(volume).unwrap();
            let found = SubsystemsOf::new(&id);
            let ours = found.storage_and_epoch(&subsystem);
            assert_eq!(ours, Some((STORAGE, Epoch::new(12))), "{volume}");
            for other in ["b", "a:e1:", "av"] {
                let other = VolumeId::new(other).unwrap();
                assert_eq!(SubsystemsOf::new(&other).storage_and_epoch(&subsystem), None, "{volume}");
            }
            for wrong in
                [format!("{subsystem} "), format!("x{subsystem}"), subsystem.replace(":e12", ":e012")]
            {
                assert_eq!(found.storage_and_epoch(&wrong), None, "{wrong}");
            }
        }
    }

    #[test]
    fn a_subsystem_tells_on_which_storage_its_volume_lies() {
        for volume in ["a", "a:b", &"long".repeat(30)] {
            let (id, node) = (VolumeId::new(volume).unwrap(), NodeId::new("n").unwrap());
            for installation in ["0123abcd", "with:colon"] {
                let subsystem = NvmeNames::new(installation, &id, &node, Epoch::new(3)).subsystem;
                let found = SubsystemsOf::new(&id).storage_and_epoch(&subsystem);
                assert_eq!(found, Some((installation, Epoch::new(3))), "{subsystem}");
            }
        }
        let ours = SubsystemsOf::new(&VolumeId::new("a").unwrap());
        for foreign in ["nqn.2014-08.org.nvmexpress.discovery", NQN_PREFIX, ""] {
            assert_eq!(ours.storage_and_epoch(foreign), None, "{foreign}");
        }
    }
}
