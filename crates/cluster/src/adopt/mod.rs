//! Adoption: what Kubernetes knows of attached volumes becomes tickets, before the engine compares its ledgers with the targets.
//!
//! # Flow
//!
//! [`find`] reads PersistentVolumes, VolumeAttachments, CSINodes, the store and the targets → [`plan`] says what to adopt and where the sources
//! disagree → [`execute`] writes records and ledgers by compare-and-swap. It runs on the store, *before* the catalog is opened: the engine's start then
//! finds a ticket for every node that a target lets in, and takes the grant over instead of fencing it. While the engine runs, [`Adopter`] follows the
//! same plan through the catalog.
//!
//! # Guarantees
//!
//! - A volume whose ledger has anybody in it is left alone, so running it again does nothing.
//! - Where the sources disagree nothing is written about that volume; the others are adopted all the same.

mod live;
mod plan;

pub use live::{Adopter, AdopterParts};
pub use plan::{Adoption, Contradiction, Found, plan};

use bowline_api::keys::{DRIVER, EARLIER_DRIVER};
use bowline_controller::Volume;
use bowline_core::{Ledger, NodeId, Slot, Timestamp, VolumeId};
use bowline_store::{Expected, Key, Kind, Record, RecordError, Store, StoreError, record};
use bowline_target::Provision;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::{Api, Client, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::attacher::{Source, source};
use crate::pages::{PAGE, for_each};
use crate::pv::Pv;
use plan::is_in_use;

/// Why nothing could be adopted. What was written before stays, and running it again goes on.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The API server.
    #[error("what is attached cannot be read from the API server: {0}")]
    Api(#[from] kube::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The process ends.
    #[error("the adoption was ended: {0}")]
    Ended(String),
}

/// How long a target may take to say whether it holds a volume.
const ANSWER: std::time::Duration = std::time::Duration::from_secs(10);

/// Finds what there is to adopt, and adopts it unless this is only to show the plan. Returns the plan.
pub async fn adopt(
    client: &Client,
    store: &dyn Store,
    targets: &[Arc<dyn Provision>],
    dry_run: bool,
) -> Result<Adoption, AdoptError> {
    let now = Timestamp::now();
    let found = find(client, store, targets, |_| true).await?;
    let adoption = plan(&found, now);
    for refused in &adoption.refused {
        tracing::warn!(volume = refused.volume, reason = refused.sentence, "not adopted");
    }
    if !dry_run {
        execute(store, &adoption, now).await?;
    }
    Ok(adoption)
}

/// Reads everything that can tell where a volume is attached. `counts` says whether a record makes its volume a known one.
pub async fn find(
    client: &Client,
    store: &dyn Store,
    targets: &[Arc<dyn Provision>],
    counts: impl Fn(&Volume) -> bool,
) -> Result<Found, AdoptError> {
    let mut found = Found::default();
    read(store, |_, volume: Volume| {
        if counts(&volume) {
            found.volumes.insert(volume.id);
        }
    })
    .await?;
    // Of those that are known and in use nothing is adopted, whatever others say. They are nearly all, at every start but the first, so nothing more
    // is kept of them than their names.
    let mut in_use = BTreeSet::new();
    read(store, |name, ledger: Ledger| {
        let Ok(volume) = VolumeId::new(name) else { return };
        if found.volumes.contains(&volume) && is_in_use(&ledger) {
            found.owners.extend(ledger.tickets().values().map(|ticket| ticket.owner.clone()));
            in_use.insert(volume);
        } else {
            found.ledgers.insert(volume, ledger);
        }
    })
    .await?;
    let Found { pvs, attachments, node_ids, settled, earlier, .. } = &mut found;
    let mut is_settled = |pv: &Pv| {
        let id = VolumeId::new(&pv.handle).ok().filter(|id| in_use.contains(id));
        id.map(|id| settled.insert(id)).is_some()
    };
    let mut passed = BTreeSet::new();
    let volumes = for_each(Api::<PersistentVolume>::all(client.clone()), |object| match Pv::of(&object) {
        Some(pv) if is_settled(&pv) => {
            passed.insert(pv.name);
        }
        Some(pv) => pvs.push(pv),
        None => earlier.extend(handle_of(&object, EARLIER_DRIVER)),
    });
    let nodes = for_each(Api::<CSINode>::all(client.clone()), |object| {
        let driver = object.spec.drivers.iter().find(|driver| driver.name == DRIVER);
        if let Some(Ok(id)) = driver.map(|driver| NodeId::new(&driver.node_id)) {
            node_ids.insert(object.name_any(), id);
        }
    });
    futures::try_join!(volumes, nodes)?;
    for_each(Api::<VolumeAttachment>::all(client.clone()), |mut object: VolumeAttachment| {
        let settled = match source(&object) {
            Ok(Source::Named(pv)) => passed.contains(pv),
            Ok(Source::Inline(pv)) => is_settled(&pv),
            Err(_) => false,
        };
        if !settled && object.spec.attacher == DRIVER {
            object.metadata.managed_fields = None;
            attachments.push(object);
        }
    })
    .await?;
    ask_targets(&mut found, targets).await;
    Ok(found)
}

/// What a driver calls the volume, if it is that driver's.
fn handle_of(object: &PersistentVolume, driver: &str) -> Option<String> {
    let csi = object.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == driver).then(|| csi.volume_handle.clone())
}

/// Which of the volumes that have no record are on a target. One that does not answer holds up nothing but what it may hold.
async fn ask_targets(found: &mut Found, targets: &[Arc<dyn Provision>]) {
    let inline = found.attachments.iter().filter_map(|one| one.spec.source.inline_volume_spec.as_ref());
    let handles = found.pvs.iter().map(|pv| pv.handle.clone());
    let handles = handles.chain(inline.filter_map(Pv::of_spec).map(|pv| pv.handle));
    let ids = handles.filter_map(|handle| VolumeId::new(&handle).ok());
    let unknown = |id: &VolumeId| !found.volumes.contains(id) && Slot::of_id(id.as_str()).is_some();
    let ids: BTreeSet<VolumeId> = ids.filter(unknown).collect();
    for target in targets {
        for id in &ids {
            match tokio::time::timeout(ANSWER, target.volume(id)).await {
                Ok(Ok(Some(volume))) => {
                    found.stored.entry(id.clone()).or_default().insert(target.id().clone(), volume.size);
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => {
                    found.silent.push(format!("{}: {error}", target.id()));
                    break;
                }
                Err(_) => {
                    found.silent.push(format!("{} does not answer", target.id()));
                    break;
                }
            }
        }
    }
}

/// Writes what the plan says. Whatever is there already stays as it is.
pub async fn execute(store: &dyn Store, adoption: &Adoption, now: Timestamp) -> Result<(), AdoptError> {
    // Ledgers first: a volume that is known without its ticket would be fenced.
    let mut by_volume: BTreeMap<&VolumeId, Vec<_>> = BTreeMap::new();
    for (volume, ticket) in &adoption.tickets {
        by_volume.entry(volume).or_default().push(ticket.clone());
    }
    for (volume, tickets) in by_volume {
        let key = Key::ledger(volume);
        loop {
            let entry = store.get(&key).await?;
            let (mut ledger, expected) = match &entry {
                Some(entry) => (record::decode::<Ledger>(&entry.value)?, Expected::At(entry.revision)),
                None => (Ledger::default(), Expected::Absent),
            };
            let before = ledger.clone();
            for ticket in &tickets {
                if let Err(error) = ledger.submit(ticket.clone(), now) {
                    tracing::warn!(%volume, %error, "a ticket of that name is there already");
                }
            }
            if ledger == before {
                break;
            }
            match store.put(&key, record::encode(&ledger)?, expected).await {
                Ok(_) => {
                    tracing::info!(%volume, tickets = tickets.len(), "adopted");
                    break;
                }
                // Decided anew with what is there now.
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    for volume in &adoption.volumes {
        let key = Key::new(Kind::Volume, Slot::of_name(&volume.name).as_str());
        match store.put(&key, record::encode(volume)?, Expected::Absent).await {
            // Somebody else has made it known meanwhile.
            Ok(_) | Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn read<R: Record>(store: &dyn Store, mut visit: impl FnMut(&str, R)) -> Result<(), AdoptError> {
    let mut after = None;
    loop {
        let page = store.recall(R::KIND, after.as_deref(), PAGE as usize).await?;
        for entry in page.entries {
            visit(&entry.key.name, record::decode(&entry.value)?);
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}
