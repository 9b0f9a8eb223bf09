//! What is remembered in names, because a device has no other place for it.
//!
//! A disk of ours is known by the name of its export, which stays with it also while it is not exported:
//!
//! | name, after `nqn.2026-01.storage.bowline:<installation>:` | what it says |
//! |---|---|
//! | `<volume>:c7` | a volume; nobody is let in, and nobody ever again up to epoch 7 |
//! | `<mode>:<node>:<volume>:e8` | a volume; the node is let in at epoch 8 while the export is on |
//! | `<volume>:m<moment>` | a copy that may not be whole |
//! | `<volume>:s<moment>` | a snapshot of that volume, of that moment |
//!
//! A volume's slot is its id, a snapshot's `snap-` and its id. The file is `<directory>/<slot>.<digest>.img`, with a digest of
//! what was asked for, so that a repeated order is told from another one. Nothing that is not named exactly so is ever touched; but for disks
//! of an older driver that are asked for by their ids, if that is wanted (`older.rs`).

use super::disk::Disk;
use super::fault::Fault;
use crate::{Cut, Grant, Item, NewVolume, Source};
use bowline_core::{Epoch, Export, Mode, NodeId, NvmeNames, Share, SnapshotId, Timestamp, VolumeId};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The host that may connect while nobody is let in. There is none of this name; that the list is empty would let all in.
pub(super) const NOBODY: &str = "nqn.2026-01.storage.bowline:nobody";

/// Stands for whoever got in where the device let in anybody. No machine can have this name.
pub const ANYBODY: &str = "*anybody*";

const SNAPSHOT: &str = "snap-";
/// As long as any name on a fabric may be.
const LONGEST_NQN: usize = 223;
/// As long as an id may be that stands in it as it is.
const LONGEST_ID: usize = 100;
const DIGITS: usize = 16;

/// What a disk of ours is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A volume to which nobody is let in, up to an epoch.
    Closed(Epoch),
    /// A volume to which a node is let in, if it is exported.
    Granted(Epoch, Export),
    /// A copy that may not be whole: of a volume, or with the moment of the snapshot that it shall be.
    Making(Timestamp),
    /// A snapshot of a volume.
    Snapshot(VolumeId, Timestamp),
}

/// A disk of ours, in the state in which it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) item: Item,
    pub(super) mark: Mark,
    pub(super) slot: String,
    pub(super) nqn: String,
    pub(super) export: bool,
    /// Who may connect; `None` if the firmware does not know of this.
    pub(super) host: Option<String>,
}

/// How names are made and understood.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) installation: String,
    /// Without slashes at its ends.
    pub(super) directory: String,
    /// The directory of an older driver, likewise.
    pub(super) take_over: Option<String>,
}

pub(super) fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.bytes().all(plain)
}

fn check(what: &str, id: &str) -> Result<(), String> {
    if is_plain(id) && id.len() <= LONGEST_ID {
        return Ok(());
    }
    Err(format!(
        "{what} {id} cannot be named on this device: only letters, digits, '-', '.' and '_', beginning with a letter or digit, at \
         most {LONGEST_ID} of them"
    ))
}

/// A volume or snapshot, in words.
pub(super) fn called(item: &Item) -> String {
    match item {
        Item::Volume(id) => format!("volume {id}"),
        Item::Snapshot(id) => format!("snapshot {id}"),
    }
}

/// The slot of a volume or snapshot, or why it cannot have one.
pub(super) fn slot(item: &Item) -> Result<String, String> {
    match item {
        Item::Volume(id) if id.as_str().starts_with(SNAPSHOT) => Err(format!(
            "volume {id} cannot be named on this device: what begins with {SNAPSHOT:?} is a snapshot"
        )),
        Item::Volume(id) => check("volume", id.as_str()).map(|()| id.to_string()),
        Item::Snapshot(id) => check("snapshot", id.as_str()).map(|()| format!("{SNAPSHOT}{id}")),
    }
}

pub(super) fn item_in(slot: &str) -> Option<Item> {
    let item = match slot.strip_prefix(SNAPSHOT) {
        Some(id) => Item::Snapshot(SnapshotId::new(id).ok()?),
        None => Item::Volume(VolumeId::new(slot).ok()?),
    };
    (self::slot(&item).as_deref() == Ok(slot)).then_some(item)
}

fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().take(DIGITS / 2).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Tells an order from another one for the same volume.
pub(super) fn digest_of_order(order: &NewVolume) -> String {
    let (kind, source) = match &order.source {
        None => ("empty", ""),
        Some(Source::Volume(id)) => ("volume", id.as_str()),
        Some(Source::Snapshot(id)) => ("snapshot", id.as_str()),
    };
    digest(&[&order.name, &order.size.to_string(), kind, source])
}

/// Tells a cut from another one for the same snapshot.
pub(super) fn digest_of_cut(cut: &Cut) -> String {
    digest(&[&cut.name, "cut", cut.volume.as_str()])
}

fn mode_letters(mode: Mode) -> String {
    let share = match mode.share {
        Share::Nobody => 'n',
        Share::Readers => 'r',
        Share::OneWriter => 'o',
        Share::Writers => 'w',
    };
    [if mode.write { 'w' } else { 'r' }, if mode.frontend { 'f' } else { 'n' }, share].iter().collect()
}

fn mode_of(letters: &str) -> Option<Mode> {
    let share = [Share::Nobody, Share::Readers, Share::OneWriter, Share::Writers];
    let modes = [true, false].into_iter().flat_map(|write| [true, false].map(|frontend| (write, frontend)));
    let mut modes = modes.flat_map(|(write, frontend)| share.map(|share| Mode { write, frontend, share }));
    modes.find(|mode| mode_letters(*mode) == letters)
}

/// The names of a grant on the fabric. Node and mode are in the name of the subsystem, where whoever knows the names of other targets takes them
/// for a part of the storage's name: the device must be able to say whom it lets in.
pub(crate) fn fabric(installation: &str, grant: &Grant) -> NvmeNames {
    let storage = format!("{installation}:{}:{}", mode_letters(grant.mode), grant.node);
    NvmeNames::new(&storage, &grant.volume, &grant.node, grant.epoch)
}

impl Names {
    fn prefix(&self) -> String {
        NvmeNames::prefix(&self.installation)
    }

    pub(super) fn fabric(&self, grant: &Grant) -> NvmeNames {
        fabric(&self.installation, grant)
    }

    /// Why a grant cannot be named on the device.
    pub(super) fn check_grant(&self, grant: &Grant) -> Result<(), String> {
        slot(&Item::Volume(grant.volume.clone()))?;
        check("node", grant.node.as_str())?;
        let length = self.fabric(grant).subsystem.len();
        if length > LONGEST_NQN {
            let (volume, node) = (&grant.volume, &grant.node);
            return Err(format!(
                "the export of volume {volume} for node {node} would have a name of {length} bytes; a fabric takes {LONGEST_NQN}"
            ));
        }
        Ok(())
    }

    pub(super) fn closed(&self, volume: &VolumeId, epoch: Epoch) -> String {
        format!("{}{volume}:c{epoch}", self.prefix())
    }

    pub(super) fn making(&self, of: &VolumeId, moment: Timestamp) -> String {
        format!("{}{of}:m{}", self.prefix(), moment.as_nanosecond())
    }

    pub(super) fn snapshot(&self, of: &VolumeId, moment: Timestamp) -> String {
        format!("{}{of}:s{}", self.prefix(), moment.as_nanosecond())
    }

    /// What a disk is, if it is ours.
    pub(super) fn seen(&self, disk: &Disk) -> Result<Option<Seen>, Fault> {
        let nqn = disk.nqn();
        let known = self.parse(&disk.slot, &nqn).filter(|_| disk.is_file());
        let Some((item, mark)) = known else { return Ok(None) };
        let (slot, export, host) = (disk.slot.clone(), disk.export()?, disk.host());
        Ok(Some(Seen { item, mark, slot, nqn, export, host }))
    }

    fn parse(&self, slot: &str, nqn: &str) -> Option<(Item, Mark)> {
        let item = item_in(slot)?;
        let (rest, last) = nqn.strip_prefix(&self.prefix())?.rsplit_once(':')?;
        let kind = last.chars().next()?;
        let digits = last.get(kind.len_utf8()..)?;
        let epoch = || digits.parse().ok().map(Epoch::new);
        let moment = || Timestamp::from_nanosecond(digits.parse().ok()?).ok();
        let mark = match kind {
            'c' => Mark::Closed(epoch()?),
            'e' => {
                let (letters, rest) = rest.split_once(':')?;
                let (node, _) = rest.rsplit_once(':')?;
                let export = Export { node: NodeId::new(node).ok()?, mode: mode_of(letters)? };
                Mark::Granted(epoch()?, export)
            }
            'm' => Mark::Making(moment()?),
            's' => Mark::Snapshot(VolumeId::new(rest).ok()?, moment()?),
            _ => return None,
        };
        // What is not spelled exactly as we would is not ours.
        let again = match (&item, &mark) {
            (Item::Volume(id), Mark::Closed(epoch)) => self.closed(id, *epoch),
            (Item::Volume(id), Mark::Granted(epoch, Export { node, mode })) => {
                let grant = Grant {
                    volume: id.clone(),
                    node: node.clone(),
                    epoch: *epoch,
                    mode: *mode,
                    beside: None,
                };
                self.fabric(&grant).subsystem
            }
            (Item::Volume(id), Mark::Making(moment)) => self.making(id, *moment),
            (Item::Snapshot(_), Mark::Making(moment)) => self.making(&VolumeId::new(rest).ok()?, *moment),
            (Item::Snapshot(_), Mark::Snapshot(of, moment)) => self.snapshot(of, *moment),
            (Item::Volume(_), Mark::Snapshot(..))
            | (Item::Snapshot(_), Mark::Closed(_) | Mark::Granted(..)) => {
                return None;
            }
        };
        (again == nqn).then_some((item, mark))
    }

    /// Where the file of a disk lies.
    pub(super) fn path(&self, slot: &str, digest: &str) -> String {
        format!("/{}/{slot}.{digest}.img", self.directory)
    }

    /// What the files of a slot have in their names. Others may have it too.
    pub(super) fn files_of(&self, slot: &str) -> String {
        format!("{}/{slot}.", self.directory)
    }

    /// What a file is of, if it is one of ours; its name may have a slash before it.
    pub(super) fn owner(&self, file: &str) -> Option<(Item, String)> {
        let name = file.trim_start_matches('/').strip_prefix(&self.directory)?.strip_prefix('/')?;
        let (slot, digest) = name.strip_suffix(".img")?.rsplit_once('.')?;
        let hex = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        let fits = digest.len() == DIGITS && digest.bytes().all(hex);
        Some((item_in(slot)?, digest.to_owned())).filter(|_| fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names {
            installation: "lab-1".to_owned(),
            directory: "storage-pool/bowline".to_owned(),
            take_over: None,
        }
    }

    fn volume(id: &str) -> VolumeId {
        VolumeId::new(id).unwrap()
    }

    fn grant(node: &str, epoch: u64, share: Share) -> Grant {
        let mode = Mode { write: true, frontend: false, share };
        Grant {
            volume: volume("pvc-1"),
            node: NodeId::new(node).unwrap(),
            epoch: Epoch::new(epoch),
            mode,
            beside: None,
        }
    }

    #[test]
    fn names_look_like_this_for_ever() {
        let (names, moment) = (names(), Timestamp::from_nanosecond(1_700_000_000_000_000_001).unwrap());
        let order = NewVolume { volume: volume("pvc-1"), name: "db".to_owned(), size: 1 << 30, source: None };
        insta::assert_snapshot!([
            names.closed(&volume("pvc-1"), Epoch::new(7)),
            names.fabric(&grant("worker-1", 8, Share::Nobody)).subsystem,
            names.making(&volume("pvc-1"), moment),
            names.snapshot(&volume("pvc-1"), moment),
            names.path("pvc-1", &digest_of_order(&order)),
        ].join("\n"), @r"
        nqn.2026-01.storage.bowline:lab-1:pvc-1:c7
        nqn.2026-01.storage.bowline:lab-1:wnn:worker-1:pvc-1:e8
        nqn.2026-01.storage.bowline:lab-1:pvc-1:m1700000000000000001
        nqn.2026-01.storage.bowline:lab-1:pvc-1:s1700000000000000001
        /storage-pool/bowline/pvc-1.90928a5a5acceafc.img
        ");
    }

    #[test]
    fn what_is_named_is_understood() {
        let names = names();
        let (one, moment) = (Item::Volume(volume("pvc-1")), Timestamp::from_nanosecond(-5).unwrap());
        for share in [Share::Nobody, Share::Readers, Share::OneWriter, Share::Writers] {
            for node in ["worker-1", "a.b", "e8"] {
                let grant = grant(node, 8, share);
                let export = Export { node: grant.node.clone(), mode: grant.mode };
                let expected = Some((one.clone(), Mark::Granted(Epoch::new(8), export)));
                assert_eq!(names.parse("pvc-1", &names.fabric(&grant).subsystem), expected);
            }
        }
        let closed = names.closed(&volume("pvc-1"), Epoch::new(u64::MAX));
        assert_eq!(names.parse("pvc-1", &closed), Some((one.clone(), Mark::Closed(Epoch::new(u64::MAX)))));
        let making = names.making(&volume("pvc-1"), moment);
        assert_eq!(names.parse("pvc-1", &making), Some((one, Mark::Making(moment))));
        let snapshot = Item::Snapshot(SnapshotId::new("s1").unwrap());
        assert_eq!(names.parse("snap-s1", &making), Some((snapshot.clone(), Mark::Making(moment))));
        let taken = names.snapshot(&volume("pvc-1"), moment);
        assert_eq!(names.parse("snap-s1", &taken), Some((snapshot, Mark::Snapshot(volume("pvc-1"), moment))));
    }

    #[test]
    fn what_others_have_is_not_ours() {
        let names = names();
        for (slot, nqn) in [
            ("pvc-1", "nqn.2000-02.com.mikrotik:pvc-1"),
            ("pvc-1", ""),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-2:pvc-1:c7"),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-1:pvc-2:c7"),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-1:pvc-1:c07"),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-1:pvc-1:c+7"),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-1:pvc-1:x7"),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-1:pvc-1:ä7"),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-1:pvc-1:s7"),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-1:worker-1:pvc-1:e7"),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-1:wfx:worker-1:pvc-1:e7"),
            ("pvc-1", "nqn.2026-01.storage.bowline:lab-1:wfn:worker-1:pvc-2:e7"),
            ("snap-1", "nqn.2026-01.storage.bowline:lab-1:pvc-1:c7"),
            ("a b", "nqn.2026-01.storage.bowline:lab-1:a b:c7"),
        ] {
            assert_eq!(names.parse(slot, nqn), None, "{slot} {nqn}");
        }
        for file in [
            "storage-pool/bowline/pvc-1.img",
            "storage-pool/bowline/pvc-1.0123456789abcde.img",
            "storage-pool/bowline/pvc-1.0123456789ABCDEF.img",
            "storage-pool/bowlines/pvc-1.0123456789abcdef.img",
            "storage-pool/bowline/x/pvc-1.0123456789abcdef.img",
            "storage-pool/bowline/pvc-1.0123456789abcdef.raw",
        ] {
            assert_eq!(names.owner(file), None, "{file}");
        }
        let ours = names.owner("storage-pool/bowline/a.b.0123456789abcdef.img");
        assert_eq!(ours, Some((Item::Volume(volume("a.b")), "0123456789abcdef".to_owned())));
    }

    #[test]
    fn what_cannot_be_named_is_refused() {
        for id in ["a,b", "a\"b", "$a", "snap-1", "-a", &"x".repeat(101)] {
            assert!(slot(&Item::Volume(volume(id))).is_err(), "{id}");
        }
        let names = names();
        assert!(names.check_grant(&grant("worker-1", 8, Share::Nobody)).is_ok());
        for node in ["a:b", ANYBODY, &"x".repeat(101)] {
            assert!(names.check_grant(&grant(node, 8, Share::Nobody)).is_err(), "{node}");
        }
        let long = Grant { volume: volume(&"v".repeat(100)), ..grant(&"n".repeat(100), 8, Share::Nobody) };
        assert!(names.check_grant(&long).unwrap_err().contains("bytes; a fabric takes 223"));
        assert!(!is_plain(ANYBODY));
    }

    #[test]
    fn every_mode_is_told_from_every_other() {
        for mode in ["wfn", "rfn", "wnn", "wfr", "wfo", "rnw"] {
            assert_eq!(mode_letters(mode_of(mode).unwrap()), mode);
        }
        assert_eq!((mode_of("wf"), mode_of("nfw")), (None, None));
    }
}
