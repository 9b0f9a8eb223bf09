//! What in Kubernetes counts on a volume, whether Bowline has a record of it or not: a PersistentVolume, or a VolumeAttachment into which the
//! volume is written.

use bowline_core::VolumeId;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use crate::pages::PAGE;
use crate::pv::{Pv, Pvs};

/// The PersistentVolume that is known to stand for a volume: without a question, so that many volumes do not list everything again and again.
pub(crate) fn known(pvs: &Pvs, volume: &VolumeId) -> Option<String> {
    Some(format!("PersistentVolume {}", pvs.of_volume(volume.as_str()).first()?.name))
}

/// Who counts on a volume, as the API server says now.
pub(crate) async fn live(client: &Client, volume: &VolumeId) -> Result<Option<String>, kube::Error> {
    let is_it = |pv: Option<Pv>| pv.is_some_and(|pv| pv.handle == volume.as_str());
    let pvs = Api::<PersistentVolume>::all(client.clone());
    if let Some(name) = first(&pvs, |object| is_it(Pv::of(object))).await? {
        return Ok(Some(format!("PersistentVolume {name}")));
    }
    let attachments = Api::<VolumeAttachment>::all(client.clone());
    let inline =
        |object: &VolumeAttachment| object.spec.source.inline_volume_spec.as_ref().and_then(Pv::of_spec);
    let name = first(&attachments, |object| is_it(inline(object))).await?;
    Ok(name.map(|name| format!("VolumeAttachment {name}")))
}

/// The name of the first object like this.
pub(crate) async fn first<K>(all: &Api<K>, is: impl Fn(&K) -> bool) -> Result<Option<String>, kube::Error>
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
