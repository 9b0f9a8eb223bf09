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
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, CustomResourceExt};
use serde_json::Value;

use super::WishFailure;
use crate::claims::{self, first};
use crate::pv::Pvs;

/// Whether a volume whose object was deleted may go.
pub(super) async fn volume(client: &Client, known: &Pvs, id: &VolumeId) -> Result<(), WishFailure> {
    if let Some(who) = claims::known(known, id) {
        return Err(stands(&who));
    }
    definition::<Volume>(client).await?;
    match claims::live(client, id).await {
        Ok(None) => Ok(()),
        Ok(Some(who)) => Err(stands(&who)),
        Err(error) => Err(unknown("what stands for it", &error)),
    }
}

fn stands(who: &str) -> WishFailure {
    WishFailure::Spared(format!("{who} stands for it; delete its claim, or that object if nothing needs it"))
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
