//! What is remembered beside the bytes: one small JSON file for each volume, snapshot and unfinished cut.

use super::exporter::Shown;
use crate::{Grant, Item, NewVolume, Source};
use bowline_core::{Epoch, Export, Exports, NeverAgain, NodeId, Share, SnapshotId, Timestamp, VolumeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The version that is written. Readers refuse newer ones.
const VERSION: u32 = 1;

/// How far something has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Phase {
    /// Asked for; its bytes are not in place. Cleared away by the next start, unless it is a copy that can go on.
    Making,
    /// Whole.
    Ready,
    /// On its way out. Completed by the next start.
    Deleting,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum From {
    Snapshot(SnapshotId),
    Volume(VolumeId),
}

impl From {
    pub(super) fn of(source: &Source) -> Self {
        match source {
            Source::Snapshot(id) => Self::Snapshot(id.clone()),
            Source::Volume(id) => Self::Volume(id.clone()),
        }
    }
}

/// How often it was stored who is shut out, and who wrote the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Closings {
    pub(super) count: u64,
    pub(super) writer: u64,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct VolumeRecord {
    pub(super) installation: String,
    pub(super) volume: VolumeId,
    pub(super) name: String,
    pub(super) phase: Phase,
    pub(super) size: u64,
    /// The size it was made with: what a repeated order names, also after it has grown.
    pub(super) ordered: u64,
    /// Set while it is being made larger.
    pub(super) growing: Option<u64>,
    pub(super) source: Option<From>,
    pub(super) created_at: Timestamp,
    pub(super) exports: Exports,
    /// Shut out, but not proven gone: devices of these grants may still reach the bytes.
    pub(super) draining: BTreeMap<Epoch, Export>,
    /// The number of what it says above. One that was written in place counts only above it; a record of an earlier Bowline, which does not
    /// look there, has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) closings: Option<Closings>,
    /// Those of the exports that are not in the file of this record yet; a loss of power may undo them.
    #[serde(skip)]
    pub(super) recent: BTreeMap<Epoch, Export>,
    /// Where the next of them is to be written.
    #[serde(skip)]
    pub(super) recent_at: u64,
}

impl VolumeRecord {
    pub(super) fn new(installation: &str, order: &NewVolume, now: Timestamp, writer: u64) -> Self {
        Self {
            installation: installation.to_owned(),
            volume: order.volume.clone(),
            name: order.name.clone(),
            phase: Phase::Making,
            size: order.size,
            ordered: order.size,
            growing: None,
            source: order.source.as_ref().map(From::of),
            created_at: now,
            exports: Exports::default(),
            draining: BTreeMap::new(),
            closings: Some(Closings { count: 0, writer }),
            recent: BTreeMap::new(),
            recent_at: 0,
        }
    }

    /// What makes it another volume than the one that is ordered.
    pub(super) fn difference(&self, order: &NewVolume) -> Option<String> {
        let source = order.source.as_ref().map(From::of);
        if self.name != order.name {
            Some(format!("its name is {:?}", self.name))
        } else if self.ordered != order.size {
            Some(format!("it was made with {} bytes", self.ordered))
        } else if self.source != source {
            Some(match &self.source {
                None => "it was made empty".to_owned(),
                Some(From::Snapshot(id)) => format!("it was made from snapshot {id}"),
                Some(From::Volume(id)) => format!("it was made from volume {id}"),
            })
        } else {
            None
        }
    }

    /// Everyone who may reach the bytes: who is let in, and who is not proven gone.
    pub(super) fn reach(&self) -> BTreeMap<Epoch, Export> {
        let mut reach = self.draining.clone();
        reach.extend(self.exports.open().iter().map(|(epoch, export)| (*epoch, export.clone())));
        reach
    }

    /// Shuts a node out of everything up to an epoch; what it was let in to drains until that is proven to reach nothing.
    pub(super) fn close(&mut self, node: &NodeId, epoch: Epoch) -> NeverAgain {
        let open = self.exports.open().iter();
        let out = open.filter(|(granted, export)| export.node == *node && **granted <= epoch);
        self.draining.extend(out.map(|(granted, export)| (*granted, export.clone())));
        self.exports.revoke(node, epoch)
    }

    /// Who keeps a grant from being let in: somebody who may reach the bytes in a mode that does not go with it.
    pub(super) fn in_the_way(&self, grant: &Grant) -> Option<(Epoch, Export)> {
        let clashes = |(epoch, export): &(Epoch, Export)| {
            grant.beside != Some(*epoch) && !export.mode.admits(grant.mode)
        };
        self.reach().into_iter().find(clashes)
    }

    /// A grant that is open, as it is shown over this file again.
    pub(super) fn shown<'a>(&'a self, epoch: Epoch, file: &'a Path) -> Option<Shown<'a>> {
        let Export { node, mode } = self.exports.open().get(&epoch)?;
        let alone = mode.share == Share::Nobody && self.reach().len() == 1;
        Some(Shown { volume: &self.volume, node, epoch, write: mode.write, alone, first: false, file })
    }

    /// How many bytes are promised to it.
    pub(super) fn promised(&self) -> u64 {
        self.growing.unwrap_or(self.size).max(self.size)
    }
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SnapshotRecord {
    pub(super) installation: String,
    pub(super) snapshot: SnapshotId,
    pub(super) name: String,
    pub(super) phase: Phase,
    pub(super) volume: VolumeId,
    pub(super) size: u64,
    /// The most room it can ever take: it never changes, whatever becomes of the volume.
    pub(super) promised: u64,
    pub(super) taken_at: Timestamp,
}

/// Snapshots that are taken together, until all of them have records of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CutRecord {
    pub(super) installation: String,
    /// Whether all are taken: the one moment that decides between all and none.
    pub(super) taken: bool,
    pub(super) snapshots: Vec<SnapshotRecord>,
}

/// The directory itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DirectoryRecord {
    pub(super) installation: String,
    pub(super) created_at: Timestamp,
}

/// A record that says which installation and what it is about.
pub(super) trait Record: Serialize + DeserializeOwned {
    fn installation(&self) -> &str;
    /// What it is about; nothing for records that are found by other ways.
    fn item(&self) -> Option<Item>;
}

impl Record for VolumeRecord {
    fn installation(&self) -> &str {
        &self.installation
    }
    fn item(&self) -> Option<Item> {
        Some(Item::Volume(self.volume.clone()))
    }
}

impl Record for SnapshotRecord {
    fn installation(&self) -> &str {
        &self.installation
    }
    fn item(&self) -> Option<Item> {
        Some(Item::Snapshot(self.snapshot.clone()))
    }
}

impl Record for CutRecord {
    fn installation(&self) -> &str {
        &self.installation
    }
    fn item(&self) -> Option<Item> {
        None
    }
}

impl Record for DirectoryRecord {
    fn installation(&self) -> &str {
        &self.installation
    }
    fn item(&self) -> Option<Item> {
        None
    }
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    version: u32,
    record: T,
}

const HEAD: &str = "{\"crc32\":\"";

/// As a file's bytes. The checksum stands first and covers every byte after it: an epoch that a failing disk changed
/// must not let anybody in.
pub(super) fn encode<T: Serialize>(record: &T) -> Result<Vec<u8>, String> {
    let text =
        serde_json::to_string(&Envelope { version: VERSION, record }).map_err(|error| error.to_string())?;
    let rest = format!("\",{}\n", text.trim_start_matches('{'));
    Ok(format!("{HEAD}{:08x}{rest}", crc32(rest.as_bytes())).into_bytes())
}

/// From a file's bytes.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    let sum_and_rest = text.strip_prefix(HEAD).and_then(|rest| rest.split_at_checked(8));
    let (sum, rest) = sum_and_rest.ok_or("it does not begin with its checksum")?;
    if sum != format!("{:08x}", crc32(rest.as_bytes())) {
        return Err("its checksum does not match".to_owned());
    }
    let body = rest.strip_prefix("\",").ok_or("it does not begin with its checksum")?;
    let json = format!("{{{body}");
    let Versioned { version } = serde_json::from_str(&json).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("it has version {version}, and this Bowline reads version {VERSION}"));
    }
    let deserializer = &mut serde_json::Deserializer::from_str(&json);
    let envelope: Envelope<T> =
        serde_path_to_error::deserialize(deserializer).map_err(|error| error.to_string())?;
    Ok(envelope.record)
}

/// The CRC-32 of Ethernet and gzip.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { (sum >> 1) ^ 0xEDB8_8320 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_core::Mode;
    use proptest::prelude::*;

    fn record() -> VolumeRecord {
        let order = NewVolume {
            volume: VolumeId::new("{\"v\"").unwrap(),
            name: "a \"name\"\n".to_owned(),
            size: 4096,
            source: Some(Source::Volume(VolumeId::new("w").unwrap())),
        };
        let mut record = VolumeRecord::new("i", &order, Timestamp::UNIX_EPOCH, 7);
        record.exports.allow(&NodeId::new("n").unwrap(), Epoch::new(3), Mode::UNKNOWN).unwrap();
        record
    }

    #[test]
    fn what_is_written_is_read_and_is_json() {
        let bytes = encode(&record()).unwrap();
        assert_eq!(decode::<VolumeRecord>(&bytes), Ok(record()));
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&json["version"], &json["record"]["volume"]), (&1.into(), &"{\"v\"".into()));
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926, "the check value of the standard");
    }

    #[test]
    fn no_changed_bit_and_no_cut_is_overlooked() {
        let bytes = encode(&record()).unwrap();
        for index in 0..bytes.len() {
            assert!(decode::<VolumeRecord>(&bytes[..index]).is_err(), "cut at {index}");
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[index] ^= 1 << bit;
                assert!(decode::<VolumeRecord>(&changed).is_err(), "bit {bit} of byte {index}");
            }
        }
    }

    #[test]
    fn a_newer_version_is_told_and_not_read() {
        let text = "\",\"version\":2,\"record\":{}}\n";
        let bytes = format!("{HEAD}{:08x}{text}", crc32(text.as_bytes()));
        let told = decode::<VolumeRecord>(bytes.as_bytes()).unwrap_err();
        assert_eq!(told, "it has version 2, and this Bowline reads version 1");
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            prop_assert!(decode::<VolumeRecord>(&bytes).is_err());
            let mut headed = HEAD.as_bytes().to_vec();
            headed.extend(&bytes);
            prop_assert!(decode::<VolumeRecord>(&headed).is_err());
            let text = format!("\",{}", String::from_utf8_lossy(&bytes));
            let summed = format!("{HEAD}{:08x}{text}", crc32(text.as_bytes()));
            prop_assert!(decode::<SnapshotRecord>(summed.as_bytes()).is_err());
        }
    }
}
