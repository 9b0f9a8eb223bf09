//! Grants that need not survive a loss of power: a page or two beside a volume's record.
//!
//! A loss of power ends every loop device, so a grant that it undoes is only asked for again. It must survive the end of
//! this process, and for that the kernel's page cache is enough: letting in syncs nothing.
//!
//! **What keeps a closed epoch closed** is the record alone. Before anybody is told that an epoch is closed, the record
//! names, durably, one as high ([`bowline_core::Exports::highest`]). A grant in this file counts only if it is above that,
//! so whatever a loss of power leaves of the file, old, new, torn or nothing, opens nothing that was closed.
//!
//! **Two places, written in turns.** Each holds every grant that the record does not know, with a checksum. A write that
//! is interrupted spoils one of them, and the other still has all that was told before.

use super::directory::{Directory, Fault};
use super::name::Part;
use super::record::{self, VolumeRecord};
use crate::Item;
use bowline_core::{Epoch, Export, Timestamp, VolumeId};
use bowline_failpoint::pass;
use bowline_host::file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// A page: written whole or hardly at all, and never shared by two places.
const PLACE: usize = 4096;

/// What one place holds.
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
        self.installation == record.installation
            && self.volume == record.volume
            && self.created_at == record.created_at
    }

    fn newest(&self) -> Option<Epoch> {
        self.open.last_key_value().map(|(epoch, _)| *epoch)
    }
}

/// Both places. One that cannot be understood holds nothing.
type Places = [Option<Recent>; 2];

impl Directory {
    /// The record of a volume, with the grants that it does not know yet.
    pub(super) fn volume(&self, item: &Item) -> Result<Option<VolumeRecord>, Fault> {
        // Before the record, which somebody without the lock may see replaced meanwhile: a later record says about
        // every earlier grant whether it is still open.
        let places = self.places(item)?;
        let Some(mut record) = self.read::<VolumeRecord>(item)? else { return Ok(None) };
        let [first, second] = places.map(|place| place.filter(|place| place.is_of(&record)));
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
        Ok(Some(record))
    }

    /// Makes room for grants, so that the first of them need not wait for it, and finds some on a full disk.
    pub(super) fn make_places(&self, item: &Item) -> Result<(), Fault> {
        self.remove(item, Part::Recent)?;
        let path = self.path(item, Part::Recent);
        let made = file::create_new(&path).and_then(|file| file.write_all_at(&[0; 2 * PLACE], 0));
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
        let mut bytes = record::encode(&recent).map_err(|error| fault(io::Error::other(error)))?;
        if bytes.len() > PLACE {
            return self.write(item, record);
        }
        bytes.resize(PLACE, 0);
        let file = match file::open_file(&path, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => file::create_new(&path),
            other => other,
        };
        pass("target.grant.before");
        file.and_then(|file| file.write_all_at(&bytes, record.recent_at)).map_err(fault)?;
        pass("target.grant.after");
        Ok(())
    }

    fn places(&self, item: &Item) -> Result<Places, Fault> {
        let path = self.path(item, Part::Recent);
        let mut bytes = Vec::with_capacity(2 * PLACE);
        let read = file::open_file(&path, false)
            .and_then(|file| file.take(2 * PLACE as u64).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => drop(other.map_err(|error| Fault::io(&path, error))?),
        }
        let mut places = bytes.chunks(PLACE).map(|place| {
            let end = place.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            record::decode(place.get(..end).unwrap_or_default()).ok()
        });
        Ok([places.next().flatten(), places.next().flatten()])
    }
}
