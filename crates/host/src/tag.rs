//! What a loop device is for: one grant of one volume to one node.

use bowline_core::{Epoch, NodeId, VolumeId};
use sha2::{Digest, Sha256};
use std::fmt;

/// A mark carried by a loop device in `lo_file_name`, the 64 bytes the kernel keeps and hands back untouched.
///
/// Ids can be longer than that, so volume and node are in it as a digest. A device is recognised by its tag
/// *and* the identity of its backing file: the tag alone is text that anybody may write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    owner: [u8; 16],
    epoch: Epoch,
}

const PREFIX: &str = "bowline1:";

impl Tag {
    /// The tag of a grant.
    pub fn new(volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Self {
        // An id contains no '/', so the two cannot run into each other.
        let digest = Sha256::digest(format!("{volume}/{node}"));
        let mut owner = [0; 16];
        owner.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
        Self { owner, epoch }
    }

    /// The grant's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether both are of the same volume and node, at whatever epochs.
    pub fn same_owner(&self, other: &Self) -> bool {
        self.owner == other.owner
    }

    /// As the kernel keeps it, the terminating NUL included.
    pub(crate) fn to_field(self) -> [u8; 64] {
        let mut field = [0; 64];
        let text = self.to_string();
        field.iter_mut().zip(text.as_bytes()).for_each(|(to, from)| *to = *from);
        field
    }

    /// What a device carries, if it is ours.
    pub(crate) fn from_field(field: &[u8; 64]) -> Option<Self> {
        let length = field.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(field.get(..length)?).ok()?;
        let (owner, epoch) = text.strip_prefix(PREFIX)?.split_once(":e")?;
        let mut bytes = [0; 16];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(owner.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        let tag = Self { owner: bytes, epoch: Epoch::new(epoch.parse().ok()?) };
        // Other spellings of the same numbers are not ours.
        (tag.to_string() == text).then_some(tag)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.owner.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ":e{}", self.epoch)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(volume: &str, node: &str, epoch: u64) -> Tag {
        Tag::new(&VolumeId::new(volume).unwrap(), &NodeId::new(node).unwrap(), Epoch::new(epoch))
    }

    #[test]
    fn a_tag_fits_the_kernels_field_and_comes_back() {
        for epoch in [0, 7, u64::MAX] {
            let tag = tag("pvc-4f2a", "worker-2", epoch);
            assert!(tag.to_string().len() < 64, "the kernel sets the last byte to zero");
            assert_eq!(Tag::from_field(&tag.to_field()), Some(tag));
        }
    }

    #[test]
    fn volume_node_and_epoch_all_count() {
        let one = tag("a", "b", 1);
        assert!(one != tag("a", "b", 2) && one.same_owner(&tag("a", "b", 2)));
        assert!(one != tag("a", "c", 1) && one != tag("c", "b", 1) && !one.same_owner(&tag("a", "c", 1)));
    }

    #[test]
    fn other_peoples_names_are_not_tags() {
        let good = tag("a", "b", 1).to_string();
        let rows =
            ["", "/var/lib/disk.img", "bowline1:", &good.to_uppercase(), &format!("{good} "), &good[1..]];
        for text in
            rows.into_iter().chain([good.replace(":e1", ":e01").as_str(), &good.replace(":e1", ":e+1")])
        {
            let mut field = [0; 64];
            field[..text.len()].copy_from_slice(text.as_bytes());
            assert_eq!(Tag::from_field(&field), None, "{text}");
        }
        assert_eq!(Tag::from_field(&[b'x'; 64]), None, "without an end");
    }
}
