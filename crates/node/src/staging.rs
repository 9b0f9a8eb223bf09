//! What is remembered about a volume on this node: one record per volume, written before the deed it tells of.
//!
//! A device path is not in it: names move. Neither is anything that the kernel can tell, except where a dead device keeps
//! it from telling: where the volume was published.

use crate::devices::Grant;
use bowline_core::{AccessMode, Epoch, FsType, NodeId, TargetId, VolumeId};
use bowline_host::format::FsUuid;
use bowline_target::NvmeContext;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The newest version that is read. A record is written in the oldest that can say it, so that an older program, which a
/// machine may go back to, reads it: 2 has `fabric`, 3 has [`Phase::Restaging`].
pub const VERSION: u32 = 3;

/// More than this is no record: a record has a few hundred bytes, and a path or two for each workload.
pub const MAX_BYTES: usize = 1 << 20;

/// A volume that is staged here, or is about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// Which volume.
    pub volume: VolumeId,
    /// On which node: a state directory that was copied to another machine is recognised.
    pub node: NodeId,
    /// Which target holds it.
    pub target: TargetId,
    /// The grant's epoch.
    pub epoch: Epoch,
    /// Whether the grant lets it be written.
    pub write: bool,
    /// What its device is known by.
    pub device: String,
    /// How to get there, if it comes over NVMe/TCP: as the target told it.
    #[serde(default, with = "fabric", skip_serializing_if = "Option::is_none")]
    pub fabric: Option<NvmeContext>,
    /// Where it is staged, without symlinks.
    pub path: PathBuf,
    /// By whom it may be used at once.
    pub mode: AccessMode,
    /// As what it is used.
    pub content: Content,
    /// How far it got.
    pub phase: Phase,
    /// Where it is published, or was about to be.
    pub published: Vec<PathBuf>,
}

impl Record {
    /// The grant it was made under.
    pub fn grant(&self) -> Grant {
        let Self { volume, node, epoch, write, fabric, .. } = self.clone();
        Grant { volume, node, epoch, write, fabric }
    }

    /// Whether its use is noted beyond its end: a target may have said of the volume that it is blank, and this use can change that.
    pub(crate) fn is_noted(&self) -> bool {
        self.fabric.is_some() && self.write
    }

    fn version(&self) -> u32 {
        match (&self.phase, &self.fabric) {
            (Phase::Restaging, _) => 3,
            (_, Some(_)) => 2,
            (_, None) => 1,
        }
    }
}

/// As what a volume is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Content {
    /// As a device.
    Block,
    /// As a filesystem.
    Filesystem {
        /// Which.
        fs: FsType,
        /// Mount options, all of them from the list of those allowed; sorted.
        options: Vec<String>,
    },
}

/// How far staging got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Phase {
    /// Its device may be there.
    Connecting,
    /// Its device was blank, and a filesystem with this id may have been begun on it.
    Making {
        /// Chosen for this one making.
        #[serde(with = "text")]
        uuid: FsUuid,
    },
    /// It is mounted, and the caller was told so, or is about to be. What was being made is made: a filesystem is never settled again after this,
    /// because a workload may have written to it, nor made anew.
    Staged,
    /// It was staged with a filesystem, was not unstaged, and is being staged once more, or could not be. What is there is not made anew, but may
    /// still have to be mounted and grown.
    Restaging,
}

mod text {
    use super::FsUuid;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(uuid: &FsUuid, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(uuid)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FsUuid, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// With the keys of the publish context, and checked like them.
mod fabric {
    use super::NvmeContext;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use std::collections::BTreeMap;

    pub(super) fn serialize<S: Serializer>(
        fabric: &Option<NvmeContext>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        fabric.as_ref().map(NvmeContext::to_map).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<NvmeContext>, D::Error> {
        let map = Option::<BTreeMap<String, String>>::deserialize(deserializer)?.unwrap_or_default();
        let fabric = NvmeContext::parse(|key| map.get(key).map(String::as_str)).map_err(D::Error::custom)?;
        match &fabric {
            Some(fabric) if fabric.to_map() == map => {}
            None if map.is_empty() => {}
            _ => return Err(D::Error::custom("the keys of the fabric are not those that are known")),
        }
        Ok(fabric)
    }
}

/// Why bytes are not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too many.
    #[error("it has {0} bytes, more than any record")]
    TooLong(usize),
    /// Written by another version of this program.
    #[error("it has version {found}; this program knows versions up to {VERSION}")]
    Version {
        /// The version it says it has.
        found: u32,
    },
    /// Damaged, or none of ours.
    #[error("it cannot be read: {0}")]
    Damaged(String),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    version: u32,
    record: &'a Record,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    #[allow(dead_code, reason = "looked at before, by itself")]
    version: u32,
    record: Record,
}

/// Reads a record, whatever the bytes are.
pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let damaged = |error: serde_json::Error| DecodeError::Damaged(error.to_string());
    let Version { version } = serde_json::from_slice(bytes).map_err(damaged)?;
    if !(1..=VERSION).contains(&version) {
        return Err(DecodeError::Version { found: version });
    }
    let record = serde_json::from_slice::<Read>(bytes).map_err(damaged)?.record;
    if record.version() > version {
        return Err(DecodeError::Damaged(format!("version {version} cannot say what it says")));
    }
    Ok(record)
}

/// Writes a record.
pub fn encode(record: &Record) -> Result<Vec<u8>, DecodeError> {
    let written = Written { version: record.version(), record };
    serde_json::to_vec_pretty(&written).map_err(|error| DecodeError::Damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(phase: Phase, content: Content) -> Record {
        Record {
            volume: VolumeId::new("pvc-1").unwrap(),
            node: NodeId::new("worker-1").unwrap(),
            target: TargetId::new("file").unwrap(),
            epoch: Epoch::new(7),
            write: true,
            device: "bowline1:00:e7".to_owned(),
            fabric: None,
            path: "/var/lib/kubelet/stage".into(),
            mode: AccessMode::SingleNodeWriter,
            content,
            phase,
            published: vec!["/pods/a".into()],
        }
    }

    fn rows() -> Vec<Record> {
        let uuid = FsUuid::from_bytes([9; 16]);
        let fs = Content::Filesystem { fs: FsType::Xfs, options: vec!["noatime".to_owned()] };
        let phases = [Phase::Connecting, Phase::Making { uuid }, Phase::Staged, Phase::Restaging];
        phases
            .into_iter()
            .flat_map(|phase| {
                let plain = record(phase.clone(), fs.clone());
                [record(phase, Content::Block), plain.clone(), Record { fabric: Some(fabric()), ..plain }]
            })
            .collect()
    }

    fn fabric() -> NvmeContext {
        let (volume, node) = (VolumeId::new("pvc-1").unwrap(), NodeId::new("worker-1").unwrap());
        let names = bowline_core::NvmeNames::new("storage", &volume, &node, Epoch::new(7));
        NvmeContext { names, addresses: vec!["10.0.0.1:4420".parse().unwrap()] }
    }

    #[test]
    fn what_is_written_is_read() {
        for record in rows() {
            assert_eq!(decode(&encode(&record).unwrap()), Ok(record));
        }
    }

    #[test]
    fn the_form_of_version_1_is_kept() {
        let uuid = FsUuid::from_bytes([9; 16]);
        let content = Content::Filesystem { fs: FsType::Ext4, options: vec!["discard".to_owned()] };
        let text = String::from_utf8(encode(&record(Phase::Making { uuid }, content)).unwrap()).unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_form_of_version_2_is_kept() {
        let record = Record { fabric: Some(fabric()), ..record(Phase::Staged, Content::Block) };
        insta::assert_snapshot!(String::from_utf8(encode(&record).unwrap()).unwrap());
    }

    #[test]
    fn the_form_of_version_3_is_kept() {
        let content = Content::Filesystem { fs: FsType::Ext4, options: vec![] };
        let text = String::from_utf8(encode(&record(Phase::Restaging, content)).unwrap()).unwrap();
        insta::assert_snapshot!(text);
        for version in ["1", "2"] {
            let older = text.replace("\"version\": 3", &format!("\"version\": {version}"));
            assert!(matches!(decode(older.as_bytes()), Err(DecodeError::Damaged(_))), "{older}");
        }
    }

    #[test]
    fn a_fabric_that_says_more_to_the_kernel_than_names_is_damage() {
        let record = Record { fabric: Some(fabric()), ..record(Phase::Staged, Content::Block) };
        let text = String::from_utf8(encode(&record).unwrap()).unwrap();
        for (from, to) in [
            ("10.0.0.1:4420", "10.0.0.1:4420,transport=x"),
            ("nqn.2026", "nqn,hostnqn=a.2026"),
            ("bowline.storage/host-id", "bowline.storage/other"),
            ("\"version\": 2", "\"version\": 1"),
        ] {
            let changed = text.replace(from, to);
            assert!(matches!(decode(changed.as_bytes()), Err(DecodeError::Damaged(_))), "{changed}");
        }
    }

    #[test]
    fn a_record_that_was_cut_anywhere_is_damaged() {
        let whole = encode(&rows()[1]).unwrap();
        for length in 0..whole.len() {
            assert!(matches!(decode(&whole[..length]), Err(DecodeError::Damaged(_))), "{length}");
        }
    }

    #[test]
    fn other_versions_are_told_apart_from_damage() {
        let text = String::from_utf8(encode(&rows()[0]).unwrap()).unwrap();
        for found in [0, 4, u32::MAX] {
            let other = text.replace("\"version\": 1", &format!("\"version\": {found}"));
            assert_eq!(decode(other.as_bytes()), Err(DecodeError::Version { found }));
        }
        let unknown = text.replace("\"epoch\"", "\"shape\": 1, \"epoch\"");
        assert!(matches!(decode(unknown.as_bytes()), Err(DecodeError::Damaged(_))));
        assert_eq!(decode(&vec![b' '; MAX_BYTES + 1]), Err(DecodeError::TooLong(MAX_BYTES + 1)));
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn a_changed_record_is_read_or_refused(at in 0..2000_usize, byte in any::<u8>(), row in 0..12_usize) {
            let mut bytes = encode(&rows()[row]).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(record) = decode(&bytes) {
                prop_assert_eq!(decode(&encode(&record).unwrap()), Ok(record));
            }
        }
    }
}
