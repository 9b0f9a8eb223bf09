//! What changes with every grant, in four pages beside a volume's record that are written in place.
//!
//! **Grants need not survive a loss of power.** It ends every loop device, and what is shown over a network is shown again from the
//! records, so a grant that it undoes is only asked for again. It must survive the end of this process, and for that the kernel's page cache
//! is enough: letting in syncs nothing.
//!
//! **Closings must.** Before anybody is told that an epoch is closed, an [`Exports`] with one as high is durable: in the record, or here, by
//! one write to a page that exists and one flush, where a new record costs two commits of the filesystem's journal. Closings are numbered, in
//! the record, too, and the highest number counts. A grant counts only if it is above what is closed, so whatever a loss of
//! power leaves of it, old, new, torn or nothing, opens nothing that was closed.
//!
//! **Two places for each, written in turns.** Every place holds all that there is to say, with a checksum. A write that is interrupted
//! spoils one of them, and the other still has what was told before. Once a closing is flushed, it is copied to the other place, too, where
//! the next one will be written: a disk that spoils one of them later opens nothing.
//!
//! **Nothing rests on what may not be durable.** A closing that can be read, in the record or here, may never have been flushed: its writer
//! died, or the flush failed. So each names its [`Writer`]: every process is another one, and so is this one after a failure. What another
//! writer has closed is stored anew, with the whole record, before anybody hears of it and before anything is written in place.

use super::directory::{Directory, Fault, called};
use super::name::Part;
use super::record::{self, Closings, Phase, VolumeRecord};
use crate::Item;
use bowline_core::{Epoch, Export, Exports, Timestamp, VolumeId};
use bowline_failpoint::pass;
use bowline_host::file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A page: written whole or hardly at all, and never shared by two places.
const PLACE: usize = 4096;
/// Two for grants, two for closings.
const ALL: usize = 4 * PLACE;

/// Who writes closings: a process, until one of its writes fails.
#[derive(Clone, Debug)]
pub(super) struct Writer(Arc<AtomicU64>);

impl Writer {
    /// Stands for whoever has not flushed what was written.
    const NOBODY: u64 = 0;

    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(fresh())))
    }

    pub(super) fn id(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn renew(&self) {
        self.0.store(fresh(), Ordering::SeqCst);
    }
}

fn fresh() -> u64 {
    RandomState::new().hash_one(0).max(Writer::NOBODY + 1)
}

/// What a place for grants holds: every one that the record and the closings do not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Recent {
    installation: String,
    volume: VolumeId,
    /// Tells a volume from an earlier one of the same id.
    created_at: Timestamp,
    open: BTreeMap<Epoch, Export>,
}

impl Recent {
    fn is_of(&self, record: &VolumeRecord) -> bool {
        (&self.installation, &self.volume, self.created_at)
            == (&record.installation, &record.volume, record.created_at)
    }

    fn newest(&self) -> Option<Epoch> {
        self.open.last_key_value().map(|(epoch, _)| *epoch)
    }
}

/// What a place for closings holds: all that the record says of who may reach the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Closing {
    installation: String,
    volume: VolumeId,
    created_at: Timestamp,
    closings: Closings,
    exports: Exports,
    draining: BTreeMap<Epoch, Export>,
}

impl Closing {
    /// Whether it is one of this volume, and newer than its record.
    fn is_news_of(&self, record: &VolumeRecord) -> bool {
        let same = (&self.installation, &self.volume, self.created_at)
            == (&record.installation, &record.volume, record.created_at);
        same && record.closings.is_some_and(|known| self.closings.count > known.count)
    }
}

/// All places. One that cannot be understood holds nothing.
struct Places {
    grants: [Option<Recent>; 2],
    closings: [Option<Closing>; 2],
}

impl Directory {
    /// The record of a volume, with what was closed and granted since it was written.
    pub(super) fn volume(&self, item: &Item) -> Result<Option<VolumeRecord>, Fault> {
        loop {
            // Before the record, which somebody without the lock may see replaced meanwhile: a later record says about
            // every earlier grant and closing what became of it.
            let places = self.places(item)?;
            let Some(mut record) = self.read::<VolumeRecord>(item)? else { return Ok(None) };
            let Some(places) = places else {
                if record.phase != Phase::Ready || record.closings.is_none() {
                    return Ok(Some(record));
                }
                // It was made after the first look, together with its places; or somebody took them away, and what was closed is not known.
                if self.exists(item, Part::Recent)? {
                    continue;
                }
                let path = self.path(item, Part::Recent);
                let error = format!("{} is missing, so it cannot be told who was shut out", path.display());
                return Err(Fault::Damaged { what: called(item), error });
            };
            places.complete(&mut record);
            return Ok(Some(record));
        }
    }

    /// Makes room for grants and closings, so that the first of them need not wait for it, and finds some on a full disk.
    pub(super) fn make_places(&self, item: &Item) -> Result<(), Fault> {
        self.remove(item, Part::Recent)?;
        let path = self.path(item, Part::Recent);
        let made = file::create_new(&path).and_then(|file| file.write_all_at(&[0; ALL], 0));
        made.map_err(|error| Fault::io(&path, error))?;
        pass("target.places.after");
        Ok(())
    }

    /// Stores a record, as [`Self::volume`] read it and with one grant more, so that it survives the end of this process.
    pub(super) fn write_grant(&self, item: &Item, record: &VolumeRecord) -> Result<(), Fault> {
        let path = self.path(item, Part::Recent);
        let fault = |error| Fault::io(&path, error);
        let recent = Recent {
            installation: record.installation.clone(),
            volume: record.volume.clone(),
            created_at: record.created_at,
            open: record.recent.clone(),
        };
        let bytes = record::encode(&recent).map_err(|error| fault(io::Error::other(error)))?;
        let Some(bytes) = padded(bytes) else { return self.write(item, record) };
        let file = match file::open_file(&path, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => file::create_new(&path),
            other => other,
        };
        pass("target.grant.before");
        file.and_then(|file| file.write_all_at(&bytes, record.recent_at)).map_err(fault)?;
        pass("target.grant.after");
        Ok(())
    }

    /// Stores what a record says of who may reach the bytes, durably, and so that it finds room on a full disk: in place, if the
    /// newest of it is known to be durable, and with the whole record otherwise. Says which closing it is now.
    pub(super) fn write_closing(&self, item: &Item, record: &VolumeRecord) -> Result<Closings, Fault> {
        let count = record.closings.map_or(0, |known| known.count) + 1;
        if !self.is_durable(record) || !self.write_in_place(item, record, count)? {
            let closings = Closings { count, writer: self.writer.id() };
            self.write_pressing(item, &VolumeRecord { closings: Some(closings), ..record.clone() })?;
            return Ok(closings);
        }
        Ok(Closings { count, writer: self.writer.id() })
    }

    /// Whether what was closed last survives a loss of power, as far as is known.
    pub(super) fn is_durable(&self, record: &VolumeRecord) -> bool {
        record.closings.is_some_and(|known| known.writer == self.writer.id())
    }

    /// Stores that somebody is about to be shut out, so that it survives the end of this process: the next one goes on with that, and shows
    /// nothing again of what is on its way out. Whoever is told that it is done waits for [`Self::write_closing`], which takes the same place.
    /// Nothing depends on this, so it may fail.
    pub(super) fn note_closing(&self, item: &Item, record: &VolumeRecord) {
        let path = self.path(item, Part::Recent);
        // The newest may be a note that is in memory only, and this place the only one on the disk that has what was told.
        if !self.is_durable(record) {
            if let Err(fault) = self.write_closing(item, record) {
                tracing::warn!(path = %path.display(), %fault, "not stored that somebody is on the way out");
            }
            return;
        }
        let Some(count) = record.closings.map(|known| known.count + 1) else { return };
        let Ok(Some(bytes)) = self.closing(item, record, Closings { count, writer: Writer::NOBODY }) else {
            return;
        };
        pass("target.closing-note.before");
        let written =
            file::open_file(&path, true).and_then(|file| file.write_all_at(&bytes, place_of(count)));
        pass("target.closing-note.after");
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "not noted that somebody is on the way out");
        }
    }

    /// A closing as it is in its place; nothing if it is too long for one.
    fn closing(
        &self,
        item: &Item,
        record: &VolumeRecord,
        closings: Closings,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let closing = Closing {
            installation: record.installation.clone(),
            volume: record.volume.clone(),
            created_at: record.created_at,
            closings,
            exports: record.exports.clone(),
            draining: record.draining.clone(),
        };
        let fault = |error| Fault::io(&self.path(item, Part::Recent), io::Error::other(error));
        record::encode(&closing).map(padded).map_err(fault)
    }

    /// Says whether it could be done. Where it could not, whatever is in the place now is not relied upon.
    fn write_in_place(&self, item: &Item, record: &VolumeRecord, count: u64) -> Result<bool, Fault> {
        let path = self.path(item, Part::Recent);
        let Some(bytes) = self.closing(item, record, Closings { count, writer: self.writer.id() })? else {
            return Ok(false);
        };
        let write = || {
            let file = file::open_file(&path, true)?;
            pass("target.closing.before");
            file.write_all_at(&bytes, place_of(count))?;
            pass("target.closing-sync.before");
            file.sync_data()?;
            pass("target.closing-sync.after");
            // Only in case: it is durable without.
            let _ = file.write_all_at(&bytes, place_of(count + 1));
            Ok(())
        };
        let written: io::Result<()> = write();
        if let Err(error) = &written {
            self.writer.renew();
            tracing::warn!(path = %path.display(), %error, "not written in place; the whole record is");
        }
        Ok(written.is_ok())
    }

    fn places(&self, item: &Item) -> Result<Option<Places>, Fault> {
        let path = self.path(item, Part::Recent);
        let mut bytes = Vec::with_capacity(ALL);
        let read =
            file::open_file(&path, false).and_then(|file| file.take(ALL as u64).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => drop(other.map_err(|error| Fault::io(&path, error))?),
        }
        bytes.resize(ALL, 0);
        let (grants, closings) = bytes.split_at(2 * PLACE);
        Ok(Some(Places { grants: both(grants), closings: both(closings) }))
    }
}

fn both<T: DeserializeOwned>(bytes: &[u8]) -> [Option<T>; 2] {
    let decoded = |place: &[u8]| {
        let end = place.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        record::decode(place.get(..end).unwrap_or_default()).ok()
    };
    let (first, second) = bytes.split_at(PLACE);
    [decoded(first), decoded(second)]
}

/// Where the closing of this number is written: not where the one before it is durable.
fn place_of(count: u64) -> u64 {
    (2 + count % 2) * PLACE as u64
}

/// As long as a place; nothing if it does not fit.
fn padded(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    if bytes.len() > PLACE {
        return None;
    }
    bytes.resize(PLACE, 0);
    Some(bytes)
}

impl Places {
    /// Adds to a record what happened since it was written, and where the next grant is to be written.
    fn complete(self, record: &mut VolumeRecord) {
        let news = self.closings.into_iter().flatten().filter(|place| place.is_news_of(record));
        if let Some(newest) = news.max_by_key(|closing| closing.closings.count) {
            let Closing { closings, exports, draining, .. } = newest;
            (record.closings, record.exports, record.draining) = (Some(closings), exports, draining);
        }
        let [first, second] = self.grants.map(|place| place.filter(|place| place.is_of(record)));
        let newest = |place: &Option<Recent>| place.as_ref().and_then(Recent::newest);
        let first_is_older = newest(&first) <= newest(&second);
        record.recent_at = if first_is_older { 0 } else { PLACE as u64 };
        let in_order = if first_is_older { [first, second] } else { [second, first] };
        let recent: BTreeMap<_, _> = in_order.into_iter().flatten().flat_map(|place| place.open).collect();
        for (epoch, export) in recent {
            let known = record.exports.open().contains_key(&epoch);
            if !known && record.exports.allow(&export.node, epoch, export.mode).is_ok() {
                record.recent.insert(epoch, export);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewVolume;
    use bowline_core::{Mode, NodeId};
    use std::fs;

    fn directory(path: &std::path::Path) -> (Directory, Item) {
        let directory =
            Directory { path: path.to_owned(), installation: "i".to_owned(), writer: Writer::new() };
        let volume = VolumeId::new("v").unwrap();
        let order = NewVolume { volume: volume.clone(), name: "v".to_owned(), size: 4096, source: None };
        let item = Item::Volume(volume);
        let mut record = VolumeRecord::new("i", &order, Timestamp::UNIX_EPOCH, directory.writer.id());
        record.phase = Phase::Ready;
        directory.write(&item, &record).unwrap();
        directory.make_places(&item).unwrap();
        (directory, item)
    }

    /// Closes the next epoch; says whether that changed the record's own file.
    fn close(directory: &Directory, item: &Item, epoch: u64) -> bool {
        let before = fs::read(directory.path(item, Part::Record)).unwrap();
        let mut record = directory.volume(item).unwrap().unwrap();
        assert_eq!(record.exports.highest(), Epoch::new(epoch - 1));
        record.exports.revoke(&NodeId::new("a").unwrap(), Epoch::new(epoch));
        directory.write_closing(item, &record).unwrap();
        assert_eq!(directory.volume(item).unwrap().unwrap().exports, record.exports);
        fs::read(directory.path(item, Part::Record)).unwrap() != before
    }

    #[test]
    fn after_a_failure_nothing_is_closed_in_place_before_the_record_is_whole() {
        let place = tempfile::tempdir().unwrap();
        let (directory, item) = directory(place.path());
        assert!(!close(&directory, &item, 1));
        assert!(!close(&directory, &item, 2));
        // What a flush that failed leads to: it may be in memory only, whatever is read.
        directory.writer.renew();
        assert!(close(&directory, &item, 3));
        assert!(!close(&directory, &item, 4));
        // A record that is not written may have taken its place all the same.
        let draft = directory.path(&item, Part::Draft);
        fs::create_dir(&draft).unwrap();
        let record = directory.volume(&item).unwrap().unwrap();
        directory.write(&item, &record).unwrap_err();
        fs::remove_dir(&draft).unwrap();
        assert!(close(&directory, &item, 5));
        assert!(!close(&directory, &item, 6));
    }

    #[test]
    fn a_closing_that_a_disk_spoils_is_known_from_its_copy() {
        let place = tempfile::tempdir().unwrap();
        let (directory, item) = directory(place.path());
        let path = directory.path(&item, Part::Recent);
        for epoch in 1..6 {
            close(&directory, &item, epoch);
            let whole = fs::read(&path).unwrap();
            for place in [2, 3] {
                let mut spoiled = whole.clone();
                spoiled[place * PLACE + 99] ^= 1;
                fs::write(&path, spoiled).unwrap();
                let known = directory.volume(&item).unwrap().unwrap();
                assert_eq!(known.exports.highest(), Epoch::new(epoch), "place {place}");
            }
            fs::write(&path, whole).unwrap();
        }
    }

    #[test]
    fn what_is_noted_is_known_and_not_relied_upon() {
        let place = tempfile::tempdir().unwrap();
        let (directory, item) = directory(place.path());
        close(&directory, &item, 1);
        let (node, path) = (NodeId::new("a").unwrap(), directory.path(&item, Part::Recent));
        let before = directory.volume(&item).unwrap().unwrap();
        let mut leaving = before.clone();
        leaving.exports.revoke(&node, Epoch::new(2));
        leaving.draining.insert(Epoch::new(2), Export { node, mode: Mode::UNKNOWN });
        directory.note_closing(&item, &leaving);
        let noted = directory.volume(&item).unwrap().unwrap();
        assert_eq!((&noted.exports, &noted.draining), (&leaving.exports, &leaving.draining));
        assert!(!directory.is_durable(&noted), "a loss of power may undo it");
        let whole = fs::read(&path).unwrap();
        let mut spoiled = whole.clone();
        spoiled[2 * PLACE + 99] ^= 1;
        fs::write(&path, spoiled).unwrap();
        assert_eq!(directory.volume(&item).unwrap().unwrap(), before, "what was told is where it was");
        fs::write(&path, whole).unwrap();
        // The proof takes the place of the note.
        leaving.draining.clear();
        directory.write_closing(&item, &leaving).unwrap();
        let proven = directory.volume(&item).unwrap().unwrap();
        assert_eq!((&proven.exports, proven.draining.len()), (&leaving.exports, 0));
        assert!(directory.is_durable(&proven));
    }

    #[test]
    fn too_many_for_a_place_are_stored_with_the_record() {
        let place = tempfile::tempdir().unwrap();
        let (directory, item) = directory(place.path());
        let mut record = directory.volume(&item).unwrap().unwrap();
        for epoch in 1..100 {
            record.exports.allow(&NodeId::new("node").unwrap(), Epoch::new(epoch), Mode::UNKNOWN).unwrap();
        }
        directory.write_closing(&item, &record).unwrap();
        let read = directory.volume(&item).unwrap().unwrap();
        assert_eq!((read.exports, read.recent.len()), (record.exports, 0));
        assert!(close(&directory, &item, 100), "still too many");
    }
}
