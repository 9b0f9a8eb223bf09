//! Letting nodes in and shutting them out, with proof.

use super::Inner;
use super::busy::{Alone, Deed, NotAlone};
use super::directory::{Fault, called};
use super::exporter::{Grants, Shown};
use super::name::Part;
use super::record::{Phase, VolumeRecord};
use crate::{Grant, Item, Listing, Page, Revocation, TargetError};
use bowline_core::{Epoch, Export, NeverAgain, NodeId, VolumeId};
use bowline_failpoint::pass;
use bowline_host::Tag;
use bowline_host::file;
use bowline_host::loopdev::{FileIdentity, LoopDevice, LoopError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

fn unreachable(error: &dyn std::fmt::Display) -> TargetError {
    TargetError::Unreachable { error: error.to_string() }
}

fn told(fault: &Fault) -> TargetError {
    let error = fault.to_string();
    match fault {
        Fault::Io { .. } => TargetError::Unreachable { error },
        Fault::Damaged { .. } => TargetError::Refused { error },
    }
}

/// Whoever grants must have seen to it that nobody is in the way. If it has lost its record of who is, two would write.
fn in_the_way(grant: &Grant, epoch: Epoch, other: &Export) -> TargetError {
    let error = format!(
        "node {} can still reach volume {} at epoch {epoch}, in a mode that does not go with that of node {} at epoch {}",
        other.node, grant.volume, grant.node, grant.epoch
    );
    TargetError::Refused { error }
}

/// Whether a tag is of the same volume and node, and no newer.
fn covers(owner: &Tag, tag: &Tag) -> bool {
    tag.same_owner(owner) && tag.epoch() <= owner.epoch()
}

/// Whether a grant may have been shown before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Showing {
    /// It was stored just now.
    First,
    /// It was stored before: nobody knows what its node has done since.
    Again,
}

impl Inner {
    pub(super) fn allow(&self, grant: &Grant) -> Result<(), TargetError> {
        let item = Item::Volume(grant.volume.clone());
        let unknown =
            || TargetError::Refused { error: format!("volume {} is not on this target", grant.volume) };
        self.stuck(&grant.volume)?;
        let _alone = self.alone_for_access(&grant.volume)?.ok_or_else(unknown)?;
        let mut record = self.directory.volume(&item).map_err(|fault| told(&fault))?.ok_or_else(unknown)?;
        if record.phase != Phase::Ready {
            return Err(unknown());
        }
        let export = Export { node: grant.node.clone(), mode: grant.mode };
        if record.exports.open().get(&grant.epoch) == Some(&export)
            && self.close_elsewhere(&item, &mut record, grant.epoch)?.is_none()
        {
            // It was stored before, and a crash or a fault may have come before it was shown, or after.
            return self.let_in(&item, &record, grant.epoch, Showing::Again);
        }
        if grant.epoch <= record.exports.highest() {
            return Err(self.closed(&item, &mut record, &grant.node, grant.epoch));
        }
        if let Some((epoch, other)) = record.in_the_way(grant) {
            return Err(in_the_way(grant, epoch, &other));
        }
        self.prove_gone(&record)?;
        // Only to what is well: a device on another volume's bytes would be worse than none.
        self.directory.open_volume(&item, &record, false).map_err(|fault| told(&fault))?;
        record.exports.allow(&grant.node, grant.epoch, grant.mode)?;
        record.recent.insert(grant.epoch, export);
        pass("target.allow.before");
        self.directory.write_grant(&item, &record).map_err(|fault| told(&fault))?;
        pass("target.allow.after");
        self.let_in(&item, &record, grant.epoch, Showing::First)
    }

    /// Shows a volume to the node of a grant that is stored. One way to it is enough for that; which other is not there is told and tried again.
    fn let_in(
        &self,
        item: &Item,
        record: &VolumeRecord,
        epoch: Epoch,
        showing: Showing,
    ) -> Result<(), TargetError> {
        if let Some(lacking) = self.show(item, record, epoch, showing)? {
            self.miss(&record.volume, lacking);
        }
        Ok(())
    }

    /// Shows a volume to the node of a grant that is stored, and says where it could not be shown, if it is elsewhere.
    pub(super) fn show(
        &self,
        item: &Item,
        record: &VolumeRecord,
        epoch: Epoch,
        showing: Showing,
    ) -> Result<Option<String>, TargetError> {
        let file = self.directory.path(item, Part::Data);
        let Some(shown) = record.shown(epoch, &file).filter(|_| self.exporter.is_remote()) else {
            return Ok(None);
        };
        if self.cut_off.has(shown.volume, shown.node, epoch) {
            let error =
                format!("node {} is being shut out of epoch {epoch}, which is not stored yet", shown.node);
            return Err(TargetError::Refused { error });
        }
        // Only what is well, as above: time may have passed.
        self.directory.open_volume(item, record, false).map_err(|fault| told(&fault))?;
        self.exporter.open(&Shown { first: showing == Showing::First, ..shown })
    }

    /// What to say about an epoch that is closed: that it is gone only if it is.
    fn closed(&self, item: &Item, record: &mut VolumeRecord, node: &NodeId, epoch: Epoch) -> TargetError {
        if let Some(other) = record.exports.open().get(&epoch) {
            let error = format!("epoch {epoch} is that of node {} in another way", other.node);
            return TargetError::Refused { error };
        }
        match self.shut_out(item, record, node, epoch) {
            Err(error) => return error,
            Ok(Some(by)) => return TargetError::InUse { by },
            Ok(None) => {}
        }
        let before = record.draining.len();
        record.draining.retain(|granted, export| export.node != *node || *granted > epoch);
        if record.draining.contains_key(&epoch) {
            return TargetError::InUse { by: format!("epoch {epoch} of another node") };
        }
        // That it is closed may follow from what a loss of power undoes; what is told here must not.
        if (record.draining.len() != before
            || !record.recent.is_empty()
            || !self.directory.is_durable(record))
            && let Err(fault) = self.directory.write_closing(item, record)
        {
            return told(&fault);
        }
        NeverAgain { highest: record.exports.highest() }.into()
    }

    pub(super) fn revoke(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError> {
        let volume = &revocation.volume;
        let found = match self.stuck(volume) {
            Ok(()) => self.alone_for_access(volume).and_then(|alone| {
                let record = self.directory.volume(&Item::Volume(volume.clone()));
                Ok((alone, record.map_err(|fault| told(&fault))?))
            }),
            Err(stuck) => {
                self.note_somehow(revocation);
                Err(stuck)
            }
        };
        let (alone, record) = match found {
            Ok(found) => found,
            Err(error) => return Err(self.only_cut_off(revocation, error)),
        };
        match (alone, record) {
            (Some(alone), Some(record)) => {
                let done = self.revoke_alone(revocation, alone, record);
                match &done {
                    Ok(_) => self.cut_off.forget(revocation),
                    // What is shown may be gone and its record not be stored.
                    Err(_) => self.cut_off.note(revocation),
                }
                done
            }
            _ => self.never_here(revocation).map_err(|error| self.only_cut_off(revocation, error)),
        }
    }

    /// What keeps a revocation from being stored, a record that cannot be read too, does not keep the node in: what is shown to it is taken away all the
    /// same. It is not proven by that, because the record may let the node in still, and the next process that goes by it shows it again; so it is asked
    /// for again.
    fn only_cut_off(&self, revocation: &Revocation, error: TargetError) -> TargetError {
        let Revocation { volume, node, epoch, fence: _ } = revocation;
        self.cut_off.note(revocation);
        match self.exporter.cut_off(volume, node, *epoch) {
            Ok(()) => error,
            // A disk that does not finish what is in flight is the cause of the rest.
            Err(refused @ TargetError::Refused { .. }) => refused,
            Err(other) => {
                tracing::warn!(%volume, %node, %epoch, error = %other, "what is shown is not proven to be taken away");
                error
            }
        }
    }

    fn revoke_alone(
        &self,
        revocation: &Revocation,
        alone: Alone,
        mut record: VolumeRecord,
    ) -> Result<NeverAgain, TargetError> {
        let Revocation { volume, node, epoch, fence: _ } = revocation;
        let (item, alone) = (Item::Volume(volume.clone()), Arc::new(alone));
        let before = record.clone();
        let out_now = |granted: &Epoch, export: &Export| export.node == *node && granted <= epoch;
        let proof = record.close(node, *epoch);
        if self.exporter.is_remote() && record.exports != before.exports {
            // A disk that does not take it does not keep the node in: what is shown is taken away all the same.
            let (directory, item, record) = (self.directory.clone(), item.clone(), record.clone());
            self.late.store(volume, &alone, move || directory.note_closing(&item, &record));
        }
        // Nobody attaches while the lock is held alone, so what is seen now is all there will ever be. That it is
        // stored in the same write that shuts the node out saves one, and loses nothing: without the write there is
        // neither the answer nor the revocation.
        let lingering = self.shut_out(&item, &record, node, *epoch);
        if matches!(lingering, Ok(None)) {
            record.draining.retain(|granted, export| !out_now(granted, export));
        }
        if let Some(late) = self.late.told(volume) {
            return Err(lingering.err().unwrap_or(late));
        }
        if let Err(error @ TargetError::Refused { .. }) = lingering {
            self.write_somehow(item, record, &alone);
            return Err(error);
        }
        // As in `closed`: where nothing changes, the answer may still rest on what is not durable.
        if record != before || !record.recent.is_empty() || !self.directory.is_durable(&record) {
            pass("target.revoke.before");
            self.directory.write_closing(&item, &record).map_err(|fault| told(&fault))?;
            pass("target.revoke.after");
        }
        match lingering? {
            None => Ok(proof),
            Some(by) => Err(TargetError::InUse { by }),
        }
    }

    /// Has a volume alone, to let in or shut out.
    pub(super) fn alone_for_access(&self, volume: &VolumeId) -> Result<Option<Alone>, TargetError> {
        self.alone(volume, Deed::Access).map_err(|error| match error {
            // What is known of its disk says more.
            NotAlone::Taken(taken) => match self.stuck(volume) {
                Ok(()) => TargetError::Refused { error: taken.to_string() },
                Err(stuck) => stuck,
            },
            NotAlone::Fault(fault) => told(&fault),
        })
    }

    /// What to say of a volume whose disk is known not to do what was asked of it, and does not do so now.
    pub(super) fn stuck(&self, volume: &VolumeId) -> Result<(), TargetError> {
        self.exporter.stuck(volume).or_else(|| self.late.told(volume)).map_or(Ok(()), Err)
    }

    /// Stores that somebody is on his way out where the disk does not finish writes: it may not finish this one either, and whoever
    /// asked must hear of that all the same. A start would show again what is not stored, and nobody was told that it is gone.
    fn write_somehow(&self, item: Item, record: VolumeRecord, alone: &Arc<Alone>) {
        let (directory, volume) = (self.directory.clone(), record.volume.clone());
        self.late.store(&volume, alone, move || {
            if let Err(fault) = directory.write_closing(&item, &record) {
                tracing::warn!(item = called(&item), %fault, "not stored that it is draining");
            }
        });
    }

    /// As in [`Self::revoke_alone`], where the disk is known not to finish what others wrote: what is about to be taken away is not shown again by the
    /// next process, if the disk takes that much. The record is read there, too, since that may wait for the disk.
    fn note_somehow(&self, revocation: &Revocation) {
        let Revocation { volume, node, epoch, fence: _ } = revocation;
        let Ok(Some(alone)) = self.alone(volume, Deed::Access) else { return };
        let (directory, item) = (self.directory.clone(), Item::Volume(volume.clone()));
        let (node, epoch) = (node.clone(), *epoch);
        self.late.store(volume, &Arc::new(alone), move || {
            let Ok(Some(mut record)) = directory.volume(&item) else { return };
            let before = record.exports.clone();
            record.close(&node, epoch);
            if record.exports != before {
                directory.note_closing(&item, &record);
            }
        });
    }

    /// A volume that is not here: gone for good, if this is the directory it was in and no device of the grant is left.
    fn never_here(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError> {
        let Revocation { volume, node, epoch, fence: _ } = revocation;
        let item = Item::Volume(volume.clone());
        let here = self.directory.is_here().map_err(|fault| told(&fault))?;
        if !here {
            let error = format!("{} is not the directory that was opened", self.directory.path.display());
            return Err(TargetError::Unreachable { error });
        }
        if self.directory.exists(&item, Part::Data).map_err(|fault| told(&fault))? {
            return Err(TargetError::Refused { error: format!("the record of volume {volume} is missing") });
        }
        self.exporter.close(volume, &Grants::new(), &Grants::new())?;
        match self.tagged(volume, node, *epoch).map_err(|error| unreachable(&error))?.first() {
            None => Ok(NeverAgain { highest: *epoch }),
            Some(device) => Err(TargetError::InUse { by: self.user(device) }),
        }
    }

    /// Takes away what is shown of the grants of a node up to an epoch that are not open any more, and says what still
    /// reaches the bytes.
    pub(super) fn shut_out(
        &self,
        item: &Item,
        record: &VolumeRecord,
        node: &NodeId,
        epoch: Epoch,
    ) -> Result<Option<String>, TargetError> {
        let out = |granted: &Epoch, export: &Export| export.node == *node && *granted <= epoch;
        let (leaving, mut staying): (Grants, Grants) =
            record.draining.clone().into_iter().partition(|(granted, export)| out(granted, export));
        staying.extend(record.exports.open().clone());
        self.exporter.close(&record.volume, &staying, &leaving)?;
        self.lingering(item, record, node, epoch)
    }

    /// What still reaches the bytes and belongs to nobody who is listed besides this node up to this epoch; in words.
    fn lingering(
        &self,
        item: &Item,
        record: &VolumeRecord,
        node: &NodeId,
        epoch: Epoch,
    ) -> Result<Option<String>, TargetError> {
        let path = self.directory.path(item, Part::Data);
        let identity = match file::open_file(&path, false).and_then(|file| FileIdentity::of(&file)) {
            Ok(identity) => Some(identity),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unreachable(&format!("{}: {error}", path.display()))),
        };
        // A device of this grant on a file that has no name any more was there before the directory was restored or
        // cleaned up by hand, and may be mounted.
        let owner = Tag::new(&record.volume, node, epoch);
        let nameless = |device: &LoopDevice| {
            let deleted = device.backing_path.as_os_str().as_bytes().ends_with(b" (deleted)");
            (identity.is_none() || deleted) && device.tag.is_some_and(|tag| covers(&owner, &tag))
        };
        let devices = self.host.loops().map(|all| {
            let reaches = |device: &LoopDevice| Some(device.backing) == identity || nameless(device);
            all.into_iter().filter(reaches).collect::<Vec<_>>()
        });
        let devices = devices.map_err(|error| unreachable(&error))?;
        let stays = |(granted, export): (Epoch, Export)| {
            let stays = export.node != *node || granted > epoch;
            stays.then(|| Tag::new(&record.volume, &export.node, granted))
        };
        let staying: Vec<Tag> = record.reach().into_iter().filter_map(stays).collect();
        let stranger = devices.iter().find(|device| device.tag.is_none_or(|tag| !staying.contains(&tag)));
        Ok(stranger.map(|device| self.user(device)))
    }

    fn tagged(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Result<Vec<LoopDevice>, LoopError> {
        let owner = Tag::new(volume, node, epoch);
        let ours = |tag: Tag| covers(&owner, &tag);
        Ok(self.host.loops()?.into_iter().filter(|device| device.tag.is_some_and(ours)).collect())
    }

    /// A device and who has it, in words.
    pub(super) fn user(&self, device: &LoopDevice) -> String {
        if self.host.holders(device.number).is_empty() {
            return format!("{} (attached; nobody is seen to use it)", device.path.display());
        }
        format!("{} ({})", device.path.display(), self.host.users_of_device(device.number))
    }

    pub(super) fn exports(&self, after: Option<VolumeId>, limit: usize) -> Result<Page, TargetError> {
        let mut listings: Vec<Listing> = Vec::new();
        let mut after = after.map(Item::Volume);
        loop {
            let items = self.room.items(after.as_ref(), 256);
            let Some(last) = items.last().cloned() else { return Ok(Page { listings, next: None }) };
            for item in items {
                let Item::Volume(volume) = &item else { return Ok(Page { listings, next: None }) };
                let exports = match self.directory.volume(&item) {
                    Ok(record) => record.map(|record| record.reach()).unwrap_or_default(),
                    // Nobody can attach to it, and every command about it says what is wrong.
                    Err(fault @ Fault::Damaged { .. }) => {
                        tracing::warn!(%volume, %fault, "not listed: whom it lets in cannot be read");
                        continue;
                    }
                    Err(fault @ Fault::Io { .. }) => return Err(told(&fault)),
                };
                if exports.is_empty() {
                    continue;
                }
                if listings.len() == limit.max(1) {
                    let next = listings.last().map(|listing| listing.volume.clone());
                    return Ok(Page { listings, next });
                }
                listings.push(Listing { volume: volume.clone(), exports });
            }
            after = Some(last);
        }
    }
}
