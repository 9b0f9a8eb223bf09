//! How far a copy of a snapshot has come, noted on the copy itself.
//!
//! A snapshot never changes, so a copy of one that the end of the process interrupted can go on. (A copy of a volume cannot: its
//! bytes must be of one moment.) A mark is an attribute of the unfinished file: it goes with the file, also when an earlier Bowline,
//! which knows no marks, sweeps it.
//!
//! **A mark never says too much.** What is before it was synced before it was written, so a loss of power may cost the last mark, and
//! then a little is copied again. It names the volume, the snapshot and both files down to their inodes: a copy goes on only if all of
//! that is as it was, and whatever is not is begun anew.

use super::Inner;
use super::directory::{Directory, now};
use super::name::Part;
use super::record::{self, From, Phase, SnapshotRecord, VolumeRecord};
use crate::Item;
use bowline_core::{SnapshotId, Timestamp, VolumeId};
use bowline_failpoint::pass;
use bowline_host::file;
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// A sync for every so many bytes costs little beside copying them.
const MOST: u64 = 64 << 20;
/// Less than this is copied again sooner than it is synced.
const LEAST: u64 = 1 << 20;
/// A start keeps a copy that long for whoever asks for it again. Longer, and whoever wanted it has forgotten it.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How many bytes are copied between two marks, of a copy that carries so many.
pub(super) fn step(expected: u64) -> u64 {
    (expected / 4).clamp(LEAST, MOST)
}

/// How far a copy has come, and of what into what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Mark {
    installation: String,
    volume: VolumeId,
    /// The size that the volume will have.
    size: u64,
    /// The inode of the copy. One that was copied itself, by a backup say, may be older than its mark.
    part: u64,
    snapshot: SnapshotId,
    snapshot_size: u64,
    taken_at: Timestamp,
    /// The inode of the snapshot's file, and when that was last written: one that was put in its place is another.
    file: u64,
    written_at: (i64, i64),
    /// Everything before it is copied and durable.
    pub(super) offset: u64,
    /// When it was noted.
    at: Timestamp,
}

impl Mark {
    pub(super) fn new(
        volume: &VolumeRecord,
        part: &Metadata,
        snapshot: &SnapshotRecord,
        source: &Metadata,
    ) -> Self {
        Self {
            installation: volume.installation.clone(),
            volume: volume.volume.clone(),
            size: volume.size,
            part: part.ino(),
            snapshot: snapshot.snapshot.clone(),
            snapshot_size: snapshot.size,
            taken_at: snapshot.taken_at,
            file: source.ino(),
            written_at: (source.mtime(), source.mtime_nsec()),
            offset: 0,
            at: now(),
        }
    }

    /// Notes that everything before `offset` is copied, once it is durable.
    pub(super) fn set(&mut self, part: &File, offset: u64) -> io::Result<()> {
        pass("target.mark.before");
        part.sync_all()?;
        (self.offset, self.at) = (offset, now());
        let bytes = record::encode(self).map_err(io::Error::other)?;
        if let Err(error) = file::set_mark(part, &bytes) {
            // The copy is none the worse; only less of it is known.
            tracing::warn!(volume = %self.volume, %error, "how far its copy has come is not noted");
        }
        pass("target.mark.after");
        Ok(())
    }

    /// Whether it is about what `wanted` is about, and within a copy that is so long.
    fn fits(&self, wanted: &Self, length: u64) -> bool {
        let same = Self { offset: wanted.offset, at: wanted.at, ..self.clone() } == *wanted;
        same && self.offset <= self.snapshot_size.min(length)
    }

    fn is_forgotten(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).unsigned_abs() > KEPT
    }
}

/// A copy that was begun, as far as it came.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) part: File,
    /// Where it is: it may have been put in its place already.
    pub(super) place: Part,
    /// Nothing if it cannot go on should it be interrupted now.
    pub(super) mark: Option<Mark>,
}

impl Directory {
    /// A copy of this very snapshot into this very volume, if an earlier process left one. What cannot be read is none: it is only
    /// begun anew.
    pub(super) fn begun(
        &self,
        item: &Item,
        volume: &VolumeRecord,
        snapshot: &SnapshotRecord,
        source: &File,
    ) -> Option<Begun> {
        let place = [Part::Partial, Part::Data].into_iter().find(|part| self.path(item, *part).exists())?;
        let part = file::open_file(&self.path(item, place), true).ok()?;
        if file::label(&part).ok()? != Some(self.label(item)) {
            return None;
        }
        let mark: Mark = record::decode(&file::mark(&part).ok()??).ok()?;
        let found = part.metadata().ok()?;
        let wanted = Mark::new(volume, &found, snapshot, &source.metadata().ok()?);
        mark.fits(&wanted, found.len()).then_some(Begun { part, place, mark: Some(mark) })
    }
}

impl Inner {
    /// Whether a volume that is not whole is a copy that can go on when it is asked for again.
    pub(super) fn can_go_on(&self, item: &Item, volume: &VolumeRecord) -> bool {
        let Some(From::Snapshot(id)) = &volume.source else { return false };
        let source = Item::Snapshot(id.clone());
        let snapshot = self.directory.snapshot(&source).ok().flatten();
        let Some(snapshot) = snapshot.filter(|record| record.phase == Phase::Ready) else { return false };
        let Ok(file) = self.directory.open_data(&source, &[snapshot.size], false) else { return false };
        let begun = self.directory.begun(item, volume, &snapshot, &file);
        begun.and_then(|begun| begun.mark).is_some_and(|mark| !mark.is_forgotten(now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mark() -> Mark {
        Mark {
            installation: "i".to_owned(),
            volume: VolumeId::new("v").unwrap(),
            size: 400,
            part: 12,
            snapshot: SnapshotId::new("s").unwrap(),
            snapshot_size: 300,
            taken_at: Timestamp::UNIX_EPOCH,
            file: 34,
            written_at: (5, 6),
            offset: 200,
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_copy_goes_on_only_if_everything_is_as_it_was() {
        let wanted = Mark { offset: 0, at: now(), ..mark() };
        assert!(mark().fits(&wanted, 300));
        assert!(mark().fits(&wanted, 200), "all that is marked is there");
        assert!(!mark().fits(&wanted, 199), "it is longer than the file");
        assert!(Mark { offset: 300, ..mark() }.fits(&wanted, 400), "all of it is copied");
        assert!(!Mark { offset: 301, ..mark() }.fits(&wanted, 400), "it is longer than the snapshot");
        type Change = fn(&mut Mark);
        let rows: &[(&str, Change)] = &[
            ("directory", |mark| mark.installation = "j".to_owned()),
            ("volume", |mark| mark.volume = VolumeId::new("w").unwrap()),
            ("size", |mark| mark.size = 404),
            ("copy", |mark| mark.part = 13),
            ("snapshot", |mark| mark.snapshot = SnapshotId::new("t").unwrap()),
            ("size of the snapshot", |mark| mark.snapshot_size = 304),
            ("moment", |mark| mark.taken_at = now()),
            ("file of the snapshot", |mark| mark.file = 35),
            ("writing to the snapshot", |mark| mark.written_at = (5, 7)),
        ];
        for (what, change) in rows {
            let mut other = wanted.clone();
            change(&mut other);
            assert!(!mark().fits(&other, 400), "another {what}");
        }
    }

    #[test]
    fn a_copy_that_nobody_asked_for_in_a_week_is_forgotten() {
        let day = 24 * 3600;
        for (seconds, forgotten) in
            [(0, false), (6 * day, false), (8 * day, true), (-6 * day, false), (-8 * day, true)]
        {
            let now = Timestamp::from_second(seconds).unwrap();
            assert_eq!(mark().is_forgotten(now), forgotten, "after {seconds} seconds");
        }
    }

    #[test]
    fn marks_are_neither_many_nor_far_apart() {
        for (expected, bytes) in [(0, LEAST), (LEAST, LEAST), (40 << 20, 10 << 20), (1 << 40, MOST)] {
            assert_eq!(step(expected), bytes);
        }
    }

    #[test]
    fn no_changed_bit_of_a_mark_and_no_cut_is_overlooked() {
        let bytes = record::encode(&mark()).unwrap();
        assert!(bytes.len() < 1024, "some filesystems have little room for attributes");
        assert_eq!(record::decode::<Mark>(&bytes), Ok(mark()));
        for index in 0..bytes.len() {
            assert!(record::decode::<Mark>(&bytes[..index]).is_err(), "cut at {index}");
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[index] ^= 1 << bit;
                assert!(record::decode::<Mark>(&changed).is_err(), "bit {bit} of byte {index}");
            }
        }
    }

    proptest! {
        #[test]
        fn random_bytes_are_no_mark(bytes: Vec<u8>) {
            prop_assert!(record::decode::<Mark>(&bytes).is_err());
        }
    }
}
