//! What people write into `spec`, made true: a Volume that has no record yet is made, one whose size was raised is grown,
//! one that was deleted is deleted; a Snapshot and a SnapshotGroup likewise; a ticket in `spec.attachmentTickets` is filed,
//! and one that was taken out is withdrawn.
//!
//! **Flow.** What to do follows from the object alone (`volume`, `snapshot`, `group`: pure); the catalog does it, and it is
//! the catalog that remembers how far it came. What cannot be done is said in an event on the object and tried again later.
//!
//! What can be changed about a volume later (`settings`) is changed by CSI or the command line: a spec that was written
//! once must not undo what somebody asked for since.
//!
//! **Guarantees.** An object that was deleted is kept by its finalizer until the catalog has deleted what it stands for; a
//! volume that somebody has is not deleted, nor one that a PersistentVolume stands for (`spared`).

mod spared;
mod tickets;

use bowline_api::{Progress, Snapshot, SnapshotGroup, Volume, VolumeAttachment};
use bowline_controller::{Catalog, NewVolume, Source, Use};
use bowline_core::{GroupSnapshotId, Slot, SnapshotId, TargetId, VolumeId};
use bowline_csi::{Name, TopologyRequirement};
use bowline_store::{Key, Kind, KubeStore};
use kube::{Api, Client, Resource, ResourceExt};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use crate::attacher::PersistentVolumes;
use crate::desk::{self, Clerk};
use crate::events::{Remark, Speaker};

/// How long one order is waited for; it goes on after that, and the next look joins it.
const WAIT: Duration = Duration::from_secs(30);
/// When something that could not be done is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// What an object's spec asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    /// All is as it says.
    Nothing,
    Make(NewVolume),
    Grow(VolumeId, u64),
    /// Also if it is begun already, which cannot be taken back.
    Delete(VolumeId, Begun),
    Take(Name, String),
    DeleteSnapshot(SnapshotId, Begun),
    TakeTogether(Name, Vec<String>),
    /// With its snapshots.
    DeleteGroup(GroupSnapshotId, Vec<SnapshotId>, Begun),
    /// It was deleted before anything was made.
    Forget,
}

/// Whether something is being deleted already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Begun(bool);

impl Begun {
    fn of(state: Option<&Progress>) -> Self {
        Self(is(state, "deleting"))
    }
}

/// Whether the record says so. What is beside it (`phase`) is for people, who may change it.
fn is(state: Option<&Progress>, word: &str) -> bool {
    state.is_some_and(|state| state.is == word)
}

/// Why a wish was not granted.
#[derive(Debug, thiserror::Error)]
enum WishFailure {
    /// A field that cannot be so.
    #[error("{0}")]
    Field(String),
    /// The catalog.
    #[error("{0}")]
    Catalog(String),
    /// The object was deleted, but its data is somebody's still, or may be.
    #[error("its data is not deleted: {0}")]
    Spared(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] bowline_store::StoreError),
    /// The API server.
    #[error(transparent)]
    Api(#[from] Box<kube::Error>),
}

fn field(name: &str, error: impl Display) -> WishFailure {
    WishFailure::Field(format!("{name}: {error}"))
}

fn refused(error: impl Display) -> WishFailure {
    WishFailure::Catalog(error.to_string())
}

struct Context {
    client: Client,
    store: Arc<KubeStore>,
    catalog: Catalog,
    pvs: Arc<PersistentVolumes>,
    speaker: Speaker,
}

/// Grants wishes until it is dropped. Only the leader runs this.
pub async fn run(
    client: Client,
    store: Arc<KubeStore>,
    catalog: Catalog,
    pvs: Arc<PersistentVolumes>,
    speaker: Speaker,
) {
    let context = Arc::new(Context { client: client.clone(), store, catalog, pvs, speaker });
    let volumes = desk::serve(Api::<Volume>::all(client.clone()), Grants(Arc::clone(&context)), AGAIN);
    let snapshots = desk::serve(Api::<Snapshot>::all(client.clone()), Grants(Arc::clone(&context)), AGAIN);
    let groups = desk::serve(Api::<SnapshotGroup>::all(client.clone()), Grants(Arc::clone(&context)), AGAIN);
    let tickets = desk::serve(Api::<VolumeAttachment>::all(client), Grants(context), AGAIN);
    futures::future::join4(volumes, snapshots, groups, tickets).await;
}

/// Whoever grants the wishes of one kind.
struct Grants(Arc<Context>);

impl Clerk<Volume> for Grants {
    fn is_asked(&self, object: &Volume) -> bool {
        !matches!(volume(object), Ok(Wish::Nothing))
    }

    async fn serve(&self, object: Arc<Volume>) -> bool {
        let done = match volume(&object) {
            Ok(Wish::Forget) => self.0.release(Kind::Volume, &object.name_any()).await,
            Ok(wish) => self.0.grant(wish).await,
            Err(failure) => Err(failure),
        };
        self.0.told(&*object, "VolumeNotAsWished", done).await
    }
}

impl Clerk<Snapshot> for Grants {
    fn is_asked(&self, object: &Snapshot) -> bool {
        !matches!(snapshot(object), Ok(Wish::Nothing))
    }

    async fn serve(&self, object: Arc<Snapshot>) -> bool {
        let done = match snapshot(&object) {
            Ok(Wish::Forget) => self.0.release(Kind::Snapshot, &object.name_any()).await,
            Ok(wish) => self.0.grant(wish).await,
            Err(failure) => Err(failure),
        };
        self.0.told(&*object, "SnapshotNotAsWished", done).await
    }
}

impl Clerk<SnapshotGroup> for Grants {
    fn is_asked(&self, object: &SnapshotGroup) -> bool {
        !matches!(group(object), Ok(Wish::Nothing))
    }

    async fn serve(&self, object: Arc<SnapshotGroup>) -> bool {
        let done = match group(&object) {
            Ok(Wish::Forget) => self.0.release(Kind::Group, &object.name_any()).await,
            Ok(wish) => self.0.grant(wish).await,
            Err(failure) => Err(failure),
        };
        self.0.told(&*object, "SnapshotGroupNotAsWished", done).await
    }
}

impl Clerk<VolumeAttachment> for Grants {
    fn is_asked(&self, object: &VolumeAttachment) -> bool {
        tickets::are_asked(object)
    }

    async fn serve(&self, object: Arc<VolumeAttachment>) -> bool {
        let done = tickets::follow(&object, &self.0).await;
        self.0.told(&*object, "TicketNotFiled", done).await
    }
}

impl Context {
    /// Says on the object why its wish is not granted.
    async fn tell<K>(&self, object: &K, reason: &str, failure: &WishFailure)
    where
        K: Resource<DynamicType = ()>,
    {
        let remark = Remark::warning("Reconcile", reason, failure.to_string());
        self.speaker.say(&object.object_ref(&()), &remark).await;
    }

    /// Whether it is done; if not, the object says why.
    async fn told<K>(&self, object: &K, reason: &str, done: Result<(), WishFailure>) -> bool
    where
        K: Resource<DynamicType = ()>,
    {
        match done {
            Ok(()) => true,
            Err(failure) => {
                self.tell(object, reason, &failure).await;
                false
            }
        }
    }

    async fn grant(&self, wish: Wish) -> Result<(), WishFailure> {
        match wish {
            Wish::Nothing | Wish::Forget => Ok(()),
            Wish::Make(order) => self.catalog.create_volume(order, WAIT).await.map(drop).map_err(refused),
            Wish::Grow(id, to) => {
                self.catalog.grow_volume(&id, to, None, WAIT).await.map(drop).map_err(refused)
            }
            Wish::Delete(id, Begun(begun)) => {
                if !begun {
                    spared::volume(&self.client, &self.pvs.known, &id).await?;
                }
                self.catalog.delete_volume(&id, WAIT).await.map_err(refused)
            }
            Wish::Take(name, volume) => {
                let volume =
                    self.catalog.find_volume(&volume).await.map_err(|error| field("spec.volume", error))?;
                self.catalog.create_snapshot(name, &volume.id, WAIT).await.map(drop).map_err(refused)
            }
            Wish::DeleteSnapshot(id, Begun(begun)) => {
                if !begun {
                    spared::snapshot(&self.client, &id).await?;
                }
                self.catalog.delete_snapshot(&id, WAIT).await.map_err(refused)
            }
            Wish::TakeTogether(name, volumes) => {
                let mut ids = vec![];
                for volume in &volumes {
                    let found = self.catalog.find_volume(volume).await;
                    ids.push(found.map_err(|error| field("spec.volumes", error))?.id);
                }
                self.catalog.create_group(name, &ids, WAIT).await.map(drop).map_err(refused)
            }
            Wish::DeleteGroup(id, snapshots, Begun(begun)) => {
                if !begun {
                    spared::group(&self.client, &snapshots).await?;
                }
                self.catalog.delete_group(&id, WAIT).await.map_err(refused)
            }
        }
    }

    /// Lets go of an object that was deleted before it had a record.
    async fn release(&self, kind: Kind, object: &str) -> Result<(), WishFailure> {
        self.store.let_go(&Key::new(kind, object)).await?;
        Ok(())
    }
}

/// Whether the object's name is the place of what it was asked for as.
fn placed(object: &str, name: &str) -> Result<Name, WishFailure> {
    let place = Slot::of_name(name);
    if place.as_str() != object {
        let error = format!("an object for {name:?} must be named {}", place.as_str());
        return Err(field("metadata.name", error));
    }
    Name::new("spec.name", name).map_err(refused)
}

/// Whether Bowline itself made the object, for somebody who asked it to: it comes with the finalizer, and its record follows.
fn is_being_made(object: &impl ResourceExt) -> bool {
    object.finalizers().iter().any(|one| one == bowline_api::keys::FINALIZER)
}

/// What a Volume asks for.
fn volume(object: &Volume) -> Result<Wish, WishFailure> {
    let deleted = object.metadata.deletion_timestamp.is_some();
    let status = object.status.clone().unwrap_or_default();
    if status.record_version.is_none() {
        return match (deleted, is_being_made(object)) {
            (true, _) => Ok(Wish::Forget),
            (false, true) => Ok(Wish::Nothing),
            (false, false) => new_volume(object).map(Wish::Make),
        };
    }
    let id = VolumeId::new(&status.id).map_err(|error| field("status.id", error))?;
    if deleted {
        return Ok(Wish::Delete(id, Begun::of(status.state.as_ref())));
    }
    let wanted = object.spec.bytes().map_err(|error| field("spec.size", error))?;
    if status.size.is_some_and(|size| wanted > size) && is(status.state.as_ref(), "ready") {
        return Ok(Wish::Grow(id, wanted));
    }
    Ok(Wish::Nothing)
}

/// The catalog's form of what has the same form in an object.
fn same<T: serde::de::DeserializeOwned>(name: &str, value: &impl serde::Serialize) -> Result<T, WishFailure> {
    let value = serde_json::to_value(value).map_err(|error| field(name, error))?;
    serde_json::from_value(value).map_err(|error| field(name, error))
}

fn new_volume(object: &Volume) -> Result<NewVolume, WishFailure> {
    let spec = &object.spec;
    let uses: Vec<Use> = same("spec.uses", &spec.uses)?;
    let default = || Use {
        access: bowline_core::AccessMode::SingleNodeWriter,
        content: bowline_core::Content::Filesystem,
    };
    let source = spec.source.as_ref().map(|source| match (&source.snapshot, &source.volume) {
        (Some(id), None) => {
            SnapshotId::new(id).map(Source::Snapshot).map_err(|error| field("spec.source.snapshot", error))
        }
        (None, Some(id)) => {
            VolumeId::new(id).map(Source::Volume).map_err(|error| field("spec.source.volume", error))
        }
        _ => Err(field("spec.source", "is a snapshot or a volume, one of them")),
    });
    Ok(NewVolume {
        name: placed(&object.name_any(), &spec.name)?,
        required: Some(spec.bytes().map_err(|error| field("spec.size", error))?),
        limit: None,
        fs: spec.fs.as_deref().map(str::parse).transpose().map_err(|error| field("spec.fs", error))?,
        uses: if uses.is_empty() { vec![default()] } else { uses },
        source: source.transpose()?,
        settings: same("spec.settings", &spec.settings)?,
        target: spec
            .target
            .as_deref()
            .map(TargetId::new)
            .transpose()
            .map_err(|error| field("spec.target", error))?,
        kind: None,
        place: TopologyRequirement::default(),
    })
}

/// What a Snapshot asks for.
fn snapshot(object: &Snapshot) -> Result<Wish, WishFailure> {
    let deleted = object.metadata.deletion_timestamp.is_some();
    let status = object.status.clone().unwrap_or_default();
    if status.record_version.is_some() {
        let id = SnapshotId::new(&status.id).map_err(|error| field("status.id", error))?;
        let begun = Begun::of(status.state.as_ref());
        return Ok(if deleted { Wish::DeleteSnapshot(id, begun) } else { Wish::Nothing });
    }
    if deleted {
        return Ok(Wish::Forget);
    }
    if is_being_made(object) {
        return Ok(Wish::Nothing);
    }
    Ok(Wish::Take(placed(&object.name_any(), &object.spec.name)?, object.spec.volume.clone()))
}

/// What a SnapshotGroup asks for.
fn group(object: &SnapshotGroup) -> Result<Wish, WishFailure> {
    let deleted = object.metadata.deletion_timestamp.is_some();
    let status = object.status.clone().unwrap_or_default();
    if status.record_version.is_some() {
        if !deleted {
            return Ok(Wish::Nothing);
        }
        let id = GroupSnapshotId::new(&status.id).map_err(|error| field("status.id", error))?;
        let snapshots = status.snapshots.iter().map(SnapshotId::new);
        let snapshots =
            snapshots.collect::<Result<_, _>>().map_err(|error| field("status.snapshots", error))?;
        return Ok(Wish::DeleteGroup(id, snapshots, Begun::of(status.state.as_ref())));
    }
    if deleted {
        return Ok(Wish::Forget);
    }
    if is_being_made(object) {
        return Ok(Wish::Nothing);
    }
    Ok(Wish::TakeTogether(placed(&object.name_any(), &object.spec.name)?, object.spec.volumes.clone()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_only_for_people_decided_whether_data_was_spared() {
        let id = VolumeId::new("v-00000001").unwrap();
        for (state, phase, deleted, expected) in [
            ("ready", "Deleting", true, Wish::Delete(id.clone(), Begun(false))),
            ("deleting", "Ready", true, Wish::Delete(id.clone(), Begun(true))),
            ("ready", "Growing", false, Wish::Grow(id.clone(), 2 << 20)),
            ("growing", "Ready", false, Wish::Nothing),
        ] {
            let object: Volume = serde_json::from_value(json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Volume",
                "metadata": {"name": "v", "deletionTimestamp": deleted.then_some("2026-01-01T12:00:00Z")},
                "spec": {"name": "v", "size": "2Mi"},
                "status": {"recordVersion": 1, "id": id.as_str(), "size": 1 << 20, "state": {"is": state}, "phase": phase}}))
            .unwrap();
            assert_eq!(volume(&object).unwrap(), expected, "{state} {phase}");
        }
    }
}
