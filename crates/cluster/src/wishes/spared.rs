//! What keeps data when the object that stands for it was deleted: that alone does not prove that somebody wants the data gone.
//!
//! Deleting the definition of a kind (`kubectl delete -f` of the manifests does) deletes every object of it; and somebody who tidies up
//! objects may not know that a claim lives on one of them.
//!
//! **Guarantees.** Data goes only after all of it was asked of the API server just now. What cannot be asked spares the data, and so does a
//! PersistentVolume that is known, without a question: many objects that are deleted at once shall not list everything again and again.

use bowline_api::keys::DRIVER;
use bowline_api::{Snapshot, SnapshotGroup, Volume};
use bowline_core::{SnapshotId, VolumeId};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Debug;

use super::WishFailure;
use crate::pv::{Pv, Pvs};

/// So many objects are asked for at once.
const PAGE: u32 = 500;

/// Whether a volume whose object was deleted may go.
pub(super) async fn volume(client: &Client, known: &Pvs, id: &VolumeId) -> Result<(), WishFailure> {
    if let Some(pv) = known.of_volume(id.as_str()).first() {
        return Err(stands(&pv.name));
    }
    definition::<Volume>(client).await?;
    let all: Api<PersistentVolume> = Api::all(client.clone());
    let stands_for = |object: &PersistentVolume| Pv::of(object).is_some_and(|pv| pv.handle == id.as_str());
    match first(&all, stands_for).await {
        Ok(None) => Ok(()),
        Ok(Some(name)) => Err(stands(&name)),
        Err(error) => Err(unknown("PersistentVolumes", &error)),
    }
}

fn stands(pv: &str) -> WishFailure {
    WishFailure::Spared(format!(
        "PersistentVolume {pv} stands for it; delete its claim, or the PersistentVolume if nothing needs it"
    ))
}

/// Whether a snapshot whose object was deleted may go.
pub(super) async fn snapshot(client: &Client, id: &SnapshotId) -> Result<(), WishFailure> {
    definition::<Snapshot>(client).await?;
    contents(client, std::slice::from_ref(id)).await
}

/// Whether a group whose object was deleted may go with these snapshots. Whatever stands for a group in Kubernetes has a VolumeSnapshotContent for
/// each of them.
pub(super) async fn group(client: &Client, snapshots: &[SnapshotId]) -> Result<(), WishFailure> {
    definition::<SnapshotGroup>(client).await?;
    contents(client, snapshots).await
}

async fn contents(client: &Client, snapshots: &[SnapshotId]) -> Result<(), WishFailure> {
    let kind = ApiResource {
        group: "snapshot.storage.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "snapshot.storage.k8s.io/v1".to_owned(),
        kind: "VolumeSnapshotContent".to_owned(),
        plural: "volumesnapshotcontents".to_owned(),
    };
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let stands_for = |object: &DynamicObject| {
        let handles =
            ["/status/snapshotHandle", "/spec/source/snapshotHandle"].map(|path| object.data.pointer(path));
        let mut handles = handles.into_iter().flatten().filter_map(Value::as_str);
        object.data["spec"]["driver"] == DRIVER
            && handles.any(|handle| snapshots.iter().any(|id| id.as_str() == handle))
    };
    match first(&all, stands_for).await {
        Ok(None) => Ok(()),
        // The kind does not exist here.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Ok(Some(name)) => Err(WishFailure::Spared(format!(
            "VolumeSnapshotContent {name} stands for it; delete its VolumeSnapshot, or the content if nothing needs it"
        ))),
        Err(error) => Err(unknown("VolumeSnapshotContents", &error)),
    }
}

/// Refuses while the definition of the kind itself is being deleted: then nobody meant this object.
async fn definition<K: CustomResourceExt>(client: &Client) -> Result<(), WishFailure> {
    let name = K::crd_name();
    let all: Api<CustomResourceDefinition> = Api::all(client.clone());
    match all.get(name).await {
        Ok(definition) if definition.metadata.deletion_timestamp.is_none() => Ok(()),
        Ok(_) => Err(WishFailure::Spared(format!(
            "the CustomResourceDefinition {name} is being deleted, and every object of it with it; \
             docs/install.md says how to go on"
        ))),
        Err(error) => Err(unknown(name, &error)),
    }
}

fn unknown(what: &str, error: &kube::Error) -> WishFailure {
    WishFailure::Spared(format!("{what} could not be looked at: {error}"))
}

/// The name of the first object like this.
async fn first<K>(all: &Api<K>, is: impl Fn(&K) -> bool) -> Result<Option<String>, kube::Error>
where
    K: Clone + Debug + DeserializeOwned + ResourceExt,
{
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = all.list(&page).await?;
        if let Some(object) = list.items.iter().find(|object| is(object)) {
            return Ok(Some(object.name_any()));
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(None),
        }
    }
}
