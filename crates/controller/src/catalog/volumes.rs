//! Making, deleting, growing and changing volumes. What is to be done is stored before it is done.

use bowline_core::{AccessMode, Content, FsType, Ledger, Slot, TargetId, Ticket, VolumeId};
use bowline_csi::code::{ControllerExpandError, ControllerModifyError, CreateVolumeError, DeleteVolumeError};
use bowline_engine::EngineError;
use bowline_store::{Key, Kind, record};
use bowline_target::{Progress, Provision, ProvisionError};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Catalog, Change, Inner, NewVolume, attach, fresh_id, lock, made, size};
use crate::failure::{Failure, Why};
use crate::operations::{Done, Order, Told, Touches};
use crate::record::{Source, Use, Volume, VolumeState};
use crate::shelf::Put;

impl Catalog {
    /// Makes a volume, or joins whoever is making it. Beyond `wait` the work goes on and the answer is `TimedOut`.
    pub async fn create_volume(&self, order: NewVolume, wait: Duration) -> Result<Volume, CreateVolumeError> {
        supported(&order.uses)?;
        let slot = Slot::of_name(order.name.as_str());
        let touches = Touches {
            changes: vec![Key::new(Kind::Volume, slot.as_str())],
            copies: order.source.as_ref().and_then(source_key).into_iter().collect(),
        };
        let (inner, asked) = (Arc::clone(&self.inner), order.clone());
        let work = move || async move { inner.create(&asked).await };
        match self.inner.perform(Order::Create(order), touches, wait, work).await? {
            Done::Volume(volume) => Ok(volume),
            other => Err(odd(&other).into()),
        }
    }

    /// Deletes a volume; one that is not there is deleted.
    pub async fn delete_volume(&self, volume: &VolumeId, wait: Duration) -> Result<(), DeleteVolumeError> {
        let Some(slot) = Slot::of_id(volume.as_str()) else { return Ok(()) };
        let touches = Touches { changes: vec![Key::new(Kind::Volume, slot.as_str())], copies: vec![] };
        let (inner, id) = (Arc::clone(&self.inner), volume.clone());
        let work = move || async move { inner.delete(&id).await };
        self.inner.perform(Order::Delete(volume.clone()), touches, wait, work).await?;
        Ok(())
    }

    /// Makes a volume larger: at least `required` bytes, at most `limit`.
    pub async fn grow_volume(
        &self,
        volume: &VolumeId,
        required: u64,
        limit: Option<u64>,
        wait: Duration,
    ) -> Result<Volume, ControllerExpandError> {
        let slot = slot_of(volume)?;
        let touches = Touches { changes: vec![Key::new(Kind::Volume, slot.as_str())], copies: vec![] };
        let (inner, id) = (Arc::clone(&self.inner), volume.clone());
        let work = move || async move { inner.grow(&id, required, limit).await };
        let order = Order::Grow { volume: volume.clone(), required, limit };
        match self.inner.perform(order, touches, wait, work).await? {
            Done::Volume(volume) => Ok(volume),
            other => Err(odd(&other).into()),
        }
    }

    /// Changes a volume's settings.
    pub async fn modify_volume(
        &self,
        volume: &VolumeId,
        change: Change,
    ) -> Result<Volume, ControllerModifyError> {
        let slot = slot_of(volume)?;
        let touches = Touches { changes: vec![Key::new(Kind::Volume, slot.as_str())], copies: vec![] };
        let (inner, id, wanted) = (Arc::clone(&self.inner), volume.clone(), change.clone());
        let work = move || async move { inner.modify(&id, &wanted).await };
        match self.inner.perform(Order::Modify(volume.clone(), change), touches, MODIFY, work).await? {
            Done::Volume(volume) => Ok(volume),
            other => Err(odd(&other).into()),
        }
    }
}

/// One write: longer than that the store does not answer.
const MODIFY: Duration = Duration::from_secs(15);

fn slot_of(volume: &VolumeId) -> Result<Slot, Failure> {
    Slot::of_id(volume.as_str())
        .ok_or_else(|| Failure::new(Why::Unknown, format!("there is no volume {volume}")))
}

/// Where the record of a source is; none for an id that is none of ours.
pub(crate) fn source_key(source: &Source) -> Option<Key> {
    let (kind, id) = match source {
        Source::Snapshot(id) => (Kind::Snapshot, id.as_str()),
        Source::Volume(id) => (Kind::Volume, id.as_str()),
    };
    Slot::of_id(id).map(|slot| Key::new(kind, slot.as_str()))
}

fn supported(uses: &[Use]) -> Result<(), Failure> {
    let shared =
        |one: &Use| one.access == AccessMode::MultiNodeMultiWriter && one.content == Content::Filesystem;
    let sentence = if uses.is_empty() {
        "a volume must be usable in at least one way"
    } else if uses.iter().any(shared) {
        "a filesystem that several nodes write needs a server in front of it, and no target here has one: use block access, or one writing node"
    } else {
        return Ok(());
    };
    Err(Failure::new(Why::Unsupported, sentence))
}

/// A piece of work never tells another's outcome; should it ever, nobody acts on it.
pub(crate) fn odd(done: &Done) -> Failure {
    Failure::new(Why::Busy, format!("unexpected outcome {done:?}; ask again"))
}

fn set(uses: &[Use]) -> BTreeSet<Use> {
    uses.iter().copied().collect()
}

/// What differs between a volume and an order of the same name.
fn difference(volume: &Volume, order: &NewVolume) -> Option<String> {
    let (required, limit) = (order.required.unwrap_or_default(), order.limit);
    if order.target.as_ref().is_some_and(|target| *target != volume.target) {
        return Some(format!("it is on target {}", volume.target));
    }
    if volume.name != order.name.as_str() {
        return Some(format!("its name is {:?}, whose digest is the same", volume.name));
    }
    if volume.size < required || limit.is_some_and(|limit| volume.size > limit) {
        return Some(format!("it has {} bytes", volume.size));
    }
    if volume.source != order.source {
        return Some("it was made from something else".to_owned());
    }
    if volume.fs != order.fs.unwrap_or(FsType::Ext4) {
        return Some(format!("its filesystem is {}", volume.fs));
    }
    if set(&volume.uses) != set(&order.uses) {
        return Some("it was made to be used in other ways".to_owned());
    }
    (volume.settings != order.settings).then(|| "its mutable parameters are others".to_owned())
}

impl Inner {
    async fn create(self: &Arc<Self>, order: &NewVolume) -> Told {
        let slot = Slot::of_name(order.name.as_str());
        // Targets that said, when it came to it, that they have no room; and what the first of them said.
        let (mut full, mut no_room) = (BTreeSet::new(), None);
        loop {
            let Some((volume, _)) = self.shelf.get::<Volume>(slot.as_str()).await? else {
                let volume = match (self.planned(order, &slot, &full).await, no_room.take()) {
                    (Ok(volume), _) => volume,
                    (Err(_), Some(no_room)) => return Err(no_room),
                    (Err(failure), None) => return Err(failure),
                };
                match self.shelf.add(slot.as_str(), &volume).await? {
                    Put::Done => self.metrics.volumes.inc(),
                    Put::Stale => continue,
                };
                match self.finish_create(&volume).await {
                    // Nothing was begun there, and its record is gone: the next one may have room.
                    Err(failure) if failure.why == Why::NoRoom && full.insert(volume.target.clone()) => {
                        no_room = Some(failure);
                        continue;
                    }
                    told => return told,
                }
            };
            if volume.state == VolumeState::Deleting {
                let sentence =
                    format!("volume {:?} is being deleted; ask again when it is gone", volume.name);
                return Err(Failure::new(Why::Busy, sentence));
            }
            if let Some(difference) = difference(&volume, order).or_else(|| self.out_of_reach(&volume, order))
            {
                let sentence = format!("volume {:?} exists and is not like this: {difference}", volume.name);
                return Err(Failure::new(Why::Different, sentence));
            }
            return match volume.state {
                VolumeState::Creating => self.finish_create(&volume).await,
                VolumeState::Ready | VolumeState::Growing { .. } | VolumeState::Deleting => {
                    Ok(Done::Volume(volume))
                }
            };
        }
    }

    /// The record of a volume that is asked for now. Where it will be is chosen here, once.
    async fn planned(
        &self,
        order: &NewVolume,
        slot: &Slot,
        full: &BTreeSet<TargetId>,
    ) -> Result<Volume, Failure> {
        let (pinned, least) = match &order.source {
            None => (None, 0),
            Some(Source::Volume(id)) => {
                let source = self.volume(id).await?;
                if !source.is_usable() {
                    return Err(not_usable(&source));
                }
                (Some(source.target.clone()), source.most())
            }
            Some(Source::Snapshot(id)) => {
                let source = self.snapshot(id).await?;
                let Some((size, _)) = source.taken() else {
                    return Err(Failure::new(Why::Unknown, format!("snapshot {id} cannot be used")));
                };
                (Some(source.target), size)
            }
        };
        let chosen = self.choose_target(order, pinned.as_ref(), least, full).await?;
        Ok(Volume {
            id: made(VolumeId::new(fresh_id(slot)?))?,
            name: order.name.as_str().to_owned(),
            size: size::fit(chosen.sizes(), order.required, order.limit, least)?,
            target: chosen.id().clone(),
            fs: order.fs.unwrap_or(FsType::Ext4),
            uses: set(&order.uses).into_iter().collect(),
            source: order.source.clone(),
            settings: order.settings.clone(),
            created_at: self.clock.now(),
            state: VolumeState::Creating,
        })
    }

    /// Makes the bytes of a volume whose name is taken, or clears all of it away if that cannot be done.
    pub(crate) async fn finish_create(self: &Arc<Self>, volume: &Volume) -> Told {
        let target = self.target(&volume.target)?;
        if self.has_outgrown(volume).await? {
            let sentence = "what it is to be copied from has grown meanwhile; ask again";
            return Err(self.undo_create(volume, Failure::new(Why::Busy, sentence)).await?);
        }
        let Err(error) = self.make(target.as_ref(), volume).await else {
            return Ok(Done::Volume(self.made_ready(volume).await?));
        };
        let failure = match error {
            ProvisionError::Unreachable { .. } => return Err(error.into()),
            // Whatever has that id there is not ours to delete.
            ProvisionError::Different { .. } => {
                let slot = slot_of(&volume.id)?;
                self.shelf.remove(slot.as_str(), |found: &Volume| found.id == volume.id).await?;
                self.metrics.volumes.dec();
                return Err(error.into());
            }
            // Somebody uses the source in a way that the target cannot copy beside.
            ProvisionError::InUse { .. } => Failure::new(Why::Busy, format!("the source: {error}")),
            // Its own words name what is missing; nothing but a source can be.
            ProvisionError::Unknown { .. }
            | ProvisionError::NoRoom { .. }
            | ProvisionError::Refused { .. }
            | ProvisionError::Damaged { .. } => Failure::from(error),
        };
        Err(self.undo_create(volume, failure).await?)
    }

    /// Clears away a volume that cannot be made, and says why.
    async fn undo_create(&self, volume: &Volume, failure: Failure) -> Result<Failure, Failure> {
        self.change_volume(&volume.id, |found| Volume { state: VolumeState::Deleting, ..found.clone() })
            .await?;
        self.finish_delete(volume).await.map_err(unfinished)?;
        self.tell(
            None,
            "NotCreated",
            format!("Volume {:?} was not made: {}.", volume.name, failure.sentence),
        );
        Ok(failure)
    }

    /// Whether the volume to be copied has become larger than the copy was planned: between a crash and the next try.
    async fn has_outgrown(&self, volume: &Volume) -> Result<bool, Failure> {
        let Some(Source::Volume(source)) = &volume.source else { return Ok(false) };
        match self.volume(source).await {
            Ok(source) => Ok(source.most() > volume.size),
            // The target says so, if that matters.
            Err(Failure { why: Why::Unknown, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    async fn make(&self, target: &dyn Provision, volume: &Volume) -> Result<u64, ProvisionError> {
        let order = bowline_target::NewVolume {
            volume: volume.id.clone(),
            name: volume.name.clone(),
            size: volume.size,
            source: volume.source.clone().map(|source| match source {
                Source::Snapshot(id) => bowline_target::Source::Snapshot(id),
                Source::Volume(id) => bowline_target::Source::Volume(id),
            }),
        };
        let progress = Arc::new(Progress::default());
        lock(&self.progress).insert(volume.id.clone(), Arc::clone(&progress));
        let made = target.create(&order, &progress).await;
        lock(&self.progress).remove(&volume.id);
        made.map(|size| size.max(volume.size))
    }

    async fn made_ready(&self, volume: &Volume) -> Result<Volume, Failure> {
        // Before anybody can ask for the volume: so that the first to do so waits for no more than the others.
        let empty = record::encode(&Ledger::default())?;
        self.shelf.store.prepare(&Key::ledger(&volume.id), empty).await?;
        let ready = |found: &Volume| Volume { state: VolumeState::Ready, ..found.clone() };
        let ready = self.change_volume(&volume.id, ready).await?;
        self.engine.observe_new_volume(&ready.id, ready.facts());
        let sentence =
            format!("Volume {:?} has {} bytes on target {}.", ready.name, ready.size, ready.target);
        self.tell(Some(&ready.id), "Created", sentence);
        Ok(ready)
    }

    /// Changes the record of this very volume.
    pub(crate) async fn change_volume(
        &self,
        volume: &VolumeId,
        change: impl Fn(&Volume) -> Volume,
    ) -> Result<Volume, Failure> {
        self.try_change_volume(volume, |found| Ok(change(found))).await
    }

    async fn try_change_volume(
        &self,
        volume: &VolumeId,
        change: impl Fn(&Volume) -> Result<Volume, Failure>,
    ) -> Result<Volume, Failure> {
        let gone = || Failure::new(Why::Unknown, format!("there is no volume {volume}"));
        let slot = slot_of(volume)?;
        let this_one = |found: &Volume| {
            if found.id == *volume { change(found).map(Some) } else { Err(gone()) }
        };
        self.shelf.change(slot.as_str(), this_one).await?.ok_or_else(gone)
    }

    async fn delete(self: &Arc<Self>, id: &VolumeId) -> Told {
        let volume = match self.volume(id).await {
            Ok(volume) => volume,
            Err(Failure { why: Why::Unknown, .. }) => return Ok(Done::Nothing),
            Err(failure) => return Err(failure),
        };
        if volume.state == VolumeState::Deleting {
            return self.resume_delete(&volume).await;
        }
        if let Some(failure) = self.who_has(&volume).await? {
            return Err(failure);
        }
        let volume = self
            .try_change_volume(id, |found| match found.settings.deletion_protection {
                false => Ok(Volume { state: VolumeState::Deleting, ..found.clone() }),
                true => Err(Failure::new(
                    Why::InUse,
                    format!("volume {id} is protected; set deletionProtection to false first"),
                )),
            })
            .await?;
        match self.finish_delete(&volume).await {
            Err(failure) if failure.why == Why::InUse => Err(self.put_back(&volume, failure).await?),
            told => told,
        }
    }

    /// Goes on with a deletion that was begun before. Whoever came to need the volume meanwhile keeps it.
    pub(crate) async fn resume_delete(self: &Arc<Self>, volume: &Volume) -> Told {
        match self.forget_in_engine(volume).await {
            Err(failure) if failure.why == Why::InUse => return Err(self.put_back(volume, failure).await?),
            told => told?,
        }
        // From here on it is not known whether its bytes were ever whole, so it is not put back.
        self.finish_delete(volume).await.map_err(unfinished)
    }

    /// Who holds or wants a volume, if anybody does. A node that is on its way out does not need it any more.
    async fn who_has(&self, volume: &Volume) -> Result<Option<Failure>, Failure> {
        let view = match self.engine.view(&volume.id).await {
            Ok(view) => view,
            Err(EngineError::UnknownVolume(_)) => return Ok(None),
            Err(error) => return Err(attach::trouble(&error)),
        };
        let id = &volume.id;
        if view.lost {
            let sentence = format!(
                "the ledger of volume {id} was lost, and target {} has not said yet whom it lets in; ask again",
                volume.target
            );
            return Ok(Some(Failure::new(Why::Busy, sentence)));
        }
        let in_use = |sentence| Ok(Some(Failure::new(Why::InUse, sentence)));
        if let Some((node, _)) = view.ledger.holds().iter().find(|(_, hold)| hold.is_open()) {
            return in_use(format!("volume {id} is attached to node {node}; detach it first"));
        }
        if let Some(Ticket { id: ticket, node, .. }) = view.ledger.tickets().values().next() {
            return in_use(format!("volume {id} is wanted on node {node} by {ticket}; withdraw that first"));
        }
        Ok(view.ledger.holds().keys().next().map(|node| {
            let sentence = format!("volume {id} is still being taken from node {node}; ask again");
            Failure::new(Why::Busy, sentence)
        }))
    }

    /// A deletion that cannot go on while somebody needs the volume: it is as it was.
    async fn put_back(&self, volume: &Volume, failure: Failure) -> Result<Failure, Failure> {
        let back = |found: &Volume| Volume { state: VolumeState::Ready, ..found.clone() };
        let volume = self.change_volume(&volume.id, back).await?;
        self.observe(&volume);
        Ok(failure)
    }

    /// Takes the volume out of the engine, unless somebody has it.
    async fn forget_in_engine(&self, volume: &Volume) -> Result<(), Failure> {
        // One that the engine does not know was never let in to, or was forgotten before.
        if matches!(self.engine.view(&volume.id).await, Err(EngineError::UnknownVolume(_))) {
            return self.forget_prepared(volume).await;
        }
        self.observe(volume);
        match self.engine.remove_volume(&volume.id).await {
            Ok(()) | Err(EngineError::UnknownVolume(_)) => Ok(()),
            Err(error @ EngineError::InUse { .. }) => match self.who_has(volume).await? {
                Some(failure) => Err(failure),
                // It has come free just now.
                None => Err(Failure::new(Why::Busy, error.to_string())),
            },
            Err(error) => Err(attach::trouble(&error)),
        }
    }

    /// A volume that was never ready may have a ledger already, with nobody in it.
    async fn forget_prepared(&self, volume: &Volume) -> Result<(), Failure> {
        let nobody = |ledger: &Ledger| ledger.tickets().is_empty() && ledger.holds().is_empty();
        self.shelf.remove(volume.id.as_str(), nobody).await
    }

    /// Removes what is left of a volume whose deletion is stored.
    pub(crate) async fn finish_delete(&self, volume: &Volume) -> Told {
        self.forget_in_engine(volume).await?;
        let target = self.target(&volume.target)?;
        match target.delete(&volume.id).await {
            Ok(()) | Err(ProvisionError::Unknown { .. }) => {}
            Err(error @ ProvisionError::InUse { .. }) => {
                return Err(Failure::new(Why::InUse, format!("volume {}: {error}", volume.id)));
            }
            // The record says what is to be done, so it is tried again; meanwhile its cause can be mended.
            Err(error) => {
                let sentence =
                    format!("target {} has not deleted volume {}: {error}", volume.target, volume.id);
                return Err(Failure::new(Why::Unreachable, sentence));
            }
        }
        let slot = slot_of(&volume.id)?;
        self.shelf.remove(slot.as_str(), |found: &Volume| found.id == volume.id).await?;
        lock(&self.faults).remove(&volume.id);
        self.metrics.volumes.dec();
        self.tell(Some(&volume.id), "Deleted", format!("Volume {:?} is gone.", volume.name));
        Ok(Done::Nothing)
    }

    async fn grow(self: &Arc<Self>, id: &VolumeId, required: u64, limit: Option<u64>) -> Told {
        let mut volume = self.volume(id).await?;
        if !volume.is_usable() {
            return Err(not_usable(&volume));
        }
        if let Some(limit) = limit.filter(|limit| *limit < volume.size) {
            let sentence = format!("volume {id} has {} bytes; it never shrinks to {limit}", volume.size);
            return Err(Failure::new(Why::Size, sentence));
        }
        if let VolumeState::Growing { .. } = volume.state {
            let Done::Volume(grown) = self.finish_grow(&volume).await? else { return Ok(Done::Nothing) };
            volume = grown;
        }
        if required <= volume.size {
            return Ok(Done::Volume(volume));
        }
        let to = size::fit(self.target(&volume.target)?.sizes(), Some(required), limit, 0)?;
        let growing = |found: &Volume| Volume { state: VolumeState::Growing { to }, ..found.clone() };
        let volume = self.change_volume(id, growing).await?;
        self.finish_grow(&volume).await
    }

    /// Grows a volume of which that is stored, or says why it stays as it is.
    pub(crate) async fn finish_grow(&self, volume: &Volume) -> Told {
        let VolumeState::Growing { to } = volume.state else { return Ok(Done::Volume(volume.clone())) };
        let answer = self.target(&volume.target)?.grow(&volume.id, to).await;
        let (size, failure) = match answer {
            Ok(size) => (size.max(to), None),
            Err(error @ ProvisionError::Unreachable { .. }) => return Err(error.into()),
            Err(ProvisionError::Unknown { what }) => {
                let sentence = format!("{what} is not on target {}, though it should be", volume.target);
                (volume.size, Some(Failure::new(Why::Broken, sentence)))
            }
            Err(error) => (volume.size, Some(error.into())),
        };
        let ready = |found: &Volume| Volume { state: VolumeState::Ready, size, ..found.clone() };
        let ready = self.change_volume(&volume.id, ready).await?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let sentence = format!("Volume {:?} has grown from {} to {size} bytes.", ready.name, volume.size);
        self.tell(Some(&ready.id), "Grown", sentence);
        Ok(Done::Volume(ready))
    }

    async fn modify(&self, id: &VolumeId, change: &Change) -> Told {
        let changed = |found: &Volume| {
            if found.state == VolumeState::Deleting {
                return Err(not_usable(found));
            }
            let mut volume = found.clone();
            let settings = &mut volume.settings;
            settings.migratable = change.migratable.unwrap_or(settings.migratable);
            settings.deletion_protection = change.deletion_protection.unwrap_or(settings.deletion_protection);
            settings.discard = change.discard.unwrap_or(settings.discard);
            Ok(volume)
        };
        let volume = self.try_change_volume(id, changed).await?;
        if volume.is_usable() {
            self.observe(&volume);
        }
        self.tell(Some(id), "Changed", format!("The settings of volume {:?} are others now.", volume.name));
        Ok(Done::Volume(volume))
    }
}

/// A deletion that is to be completed, whatever is in its way now.
fn unfinished(failure: Failure) -> Failure {
    if failure.may_land() { failure } else { Failure::new(Why::Unreachable, failure.sentence) }
}

/// What is said of a volume that is on its way to being there, or to being gone.
pub(crate) fn not_usable(volume: &Volume) -> Failure {
    Failure::new(Why::Busy, format!("volume {} is {}; ask again", volume.id, volume.stage()))
}
