//! `--fence-not-ready-after`: takes the pods of a node that stayed silent away from it, so that they can run elsewhere. Off unless asked for.
//!
//! Pods go first, then the VolumeAttachments of the volumes that they used; the rest is the usual path, in which the target shuts the node out
//! and proves it before anybody else is let in. A pod is touched only if all that it keeps is on volumes of this driver, and all of those are
//! healthy: what is on the node itself, or elsewhere, would be lost or used twice.

use bowline_api::keys::{DRIVER, FENCED};
use bowline_controller::Catalog;
use bowline_core::{Timestamp, VolumeId};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, Volume as PodVolume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::attacher::PersistentVolumes;
use crate::nodes::Nodes;
use crate::writes::Writes;

/// What a pod keeps in one of its volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Keeps {
    /// Nothing that outlives it.
    Nothing,
    /// What is behind this claim.
    Claim(String),
    /// Something that is not ours to judge.
    Something,
}

fn keeps(pod: &str, volume: &PodVolume) -> Keeps {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Keeps::Claim(claim.claim_name.clone());
    }
    if volume.ephemeral.is_some() {
        // A claim of the pod's own, which has a name that follows from both.
        return Keeps::Claim(format!("{pod}-{}", volume.name));
    }
    let of_the_pod = volume.empty_dir.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some()
        || volume.image.is_some();
    if of_the_pod { Keeps::Nothing } else { Keeps::Something }
}

/// The claims of a pod, and whether they are all that it keeps.
pub(crate) fn claims(pod: &Pod) -> (Vec<String>, bool) {
    let name = pod.name_any();
    let (mut claims, mut is_all) = (Vec::new(), true);
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        match keeps(&name, volume) {
            Keeps::Nothing => {}
            Keeps::Claim(claim) => claims.push(claim),
            Keeps::Something => is_all = false,
        }
    }
    is_all &= !claims.is_empty();
    (claims, is_all)
}

/// A pod on a silent node.
struct Judged<'a> {
    pod: &'a Pod,
    /// Its volumes that are of this driver.
    volumes: BTreeSet<VolumeId>,
    /// Whether it is left alone.
    stays: bool,
    /// Whether that is only for how one of its volumes is now: that may change while the node stays silent.
    for_now: bool,
}

/// What a look at a silent node came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fenced {
    /// All that may be taken from it is, or it is silent no more.
    All,
    /// Something was left alone that may be taken from it later.
    ForNow,
}

/// Whatever shares a volume with a pod that is left alone is left alone too: the volume stays where it is.
fn spare_together(pods: &mut [Judged<'_>]) {
    loop {
        let kept: BTreeSet<VolumeId> =
            pods.iter().filter(|pod| pod.stays).flat_map(|pod| pod.volumes.clone()).collect();
        let mut more = pods.iter_mut().filter(|pod| !pod.stays && !pod.volumes.is_disjoint(&kept)).peekable();
        if more.peek().is_none() {
            return;
        }
        more.for_each(|pod| pod.stays = true);
    }
}

/// Fences silent nodes. It runs until the last handle is dropped.
#[derive(Clone)]
pub struct Fence {
    _inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    catalog: Catalog,
    pvs: Arc<PersistentVolumes>,
    nodes: Nodes,
    writes: Writes,
    after: Duration,
    /// The nodes that are silent, each with the alarm that ends its time.
    waiting: Mutex<HashMap<String, (Timestamp, tokio::task::AbortHandle)>>,
}

impl Fence {
    /// Begins to count for every node that does not report now, and for those that stop later. Time is counted here, from the moment the silence was
    /// noticed: the clocks of nodes have no say in it.
    pub fn start(
        client: Client,
        catalog: Catalog,
        pvs: Arc<PersistentVolumes>,
        nodes: &Nodes,
        writes: Writes,
        after: Duration,
    ) -> Self {
        let nodes = nodes.clone();
        let inner =
            Inner { client, catalog, pvs, nodes: nodes.clone(), writes, after, waiting: Mutex::default() };
        let inner = Arc::new(inner);
        let weak = Arc::downgrade(&inner);
        nodes.on_change(move |node| {
            if let Some(inner) = weak.upgrade() {
                inner.node_changed(node);
            }
        });
        for node in nodes.names() {
            inner.node_changed(&node);
        }
        Self { _inner: inner }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (_, (_, alarm)) in self.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            alarm.abort();
        }
    }
}

impl Inner {
    fn node_changed(self: &Arc<Self>, node: &str) {
        let silent = self.nodes.not_ready(node);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match (silent, waiting.get(node)) {
            (Some(since), Some((known, _))) if since == *known => return,
            (None, None) => return,
            _ => {}
        }
        if let Some((_, alarm)) = waiting.remove(node) {
            alarm.abort();
        }
        let Some(since) = silent else { return };
        let (weak, name, after) = (Arc::downgrade(self), node.to_owned(), self.after);
        let alarm = tokio::spawn(async move {
            let mut failures = 0;
            tokio::time::sleep(after).await;
            while let Some(inner) = weak.upgrade() {
                match inner.fence(&name).await {
                    Ok(Fenced::All) => return,
                    Ok(Fenced::ForNow) => {
                        tracing::debug!(node = name, "not all of it is fenced; looked at again");
                    }
                    Err(error) => tracing::warn!(node = name, %error, "not fenced yet; tried again"),
                }
                drop(inner);
                tokio::time::sleep(crate::pause::pause(&name, failures, Duration::from_secs(30))).await;
                failures += 1;
            }
        });
        waiting.insert(node.to_owned(), (since, alarm.abort_handle()));
    }

    async fn fence(&self, node: &str) -> Result<Fenced, kube::Error> {
        // A look at the server itself: a watch that hangs must not cost a healthy node its pods.
        let live = Api::<Node>::all(self.client.clone()).get_opt(node).await?;
        let Some(live) = live else { return Ok(Fenced::All) };
        let conditions = live.status.iter().flat_map(|status| status.conditions.iter().flatten());
        if conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True") {
            return Ok(Fenced::All);
        }
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = Api::<Pod>::all(self.client.clone()).list(&params).await?;
        let mut judged = Vec::new();
        for pod in &pods.items {
            judged.push(self.judge(pod).await?);
        }
        spare_together(&mut judged);
        for one in judged.iter().filter(|one| !one.stays) {
            self.remove(node, one.pod, &one.volumes).await?;
        }
        let for_now = judged.iter().any(|one| one.for_now);
        let kept = judged.into_iter().filter(|one| one.stays).flat_map(|one| one.volumes).collect();
        self.detach(node, &kept).await?;
        Ok(if for_now { Fenced::ForNow } else { Fenced::All })
    }

    /// Looks at a pod: it goes if all that it keeps is on healthy volumes of this driver.
    async fn judge<'a>(&self, pod: &'a Pod) -> Result<Judged<'a>, kube::Error> {
        let (claims, is_all) = claims(pod);
        let namespace = pod.namespace().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        let mut judged = Judged { pod, volumes: BTreeSet::new(), stays: !is_all, for_now: false };
        let mut ill = false;
        for claim in claims {
            let bound = api.get_opt(&claim).await?.and_then(|claim| claim.spec?.volume_name);
            let pv = bound.and_then(|pv| self.pvs.known.get(&pv));
            let Some(volume) = pv.and_then(|pv| VolumeId::new(&pv.handle).ok()) else {
                judged.stays = true;
                continue;
            };
            match self.catalog.volume_fault(&volume).await {
                Ok(None) => {}
                Ok(Some(fault)) => {
                    tracing::warn!(%volume, fault, pod = pod.name_any(), "not fenced: a volume is not healthy");
                    ill = true;
                }
                Err(error) => {
                    tracing::warn!(%volume, %error, pod = pod.name_any(), "not fenced: nobody knows how a volume is");
                    ill = true;
                }
            }
            judged.volumes.insert(volume);
        }
        judged.for_now = ill && !judged.stays;
        judged.stays |= ill;
        Ok(judged)
    }

    async fn remove(&self, node: &str, pod: &Pod, volumes: &BTreeSet<VolumeId>) -> Result<(), kube::Error> {
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let label = json!({"metadata": {"uid": pod.metadata.uid, "labels": {FENCED: "true"}}});
        self.writes.count("pod", "fence");
        match api.patch(&name, &PatchParams::default(), &Patch::Merge(&label)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            labelled => labelled?,
        };
        let precondition = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        // Nobody is there who could end it in good order.
        let params =
            DeleteParams { preconditions: Some(precondition), ..DeleteParams::default().grace_period(0) };
        match api.delete(&name, &params).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            deleted => drop(deleted?),
        }
        for volume in volumes {
            let sentence = format!(
                "Node {node} did not report for {:?}: pod {namespace}/{name} was taken from it, and the volume is shut out there.",
                self.after
            );
            self.catalog.tell(Some(volume), "NodeFenced", sentence);
        }
        Ok(())
    }

    /// Detaches what no pod on the node needs any more, also what an earlier try freed and did not come to detach.
    async fn detach(&self, node: &str, kept: &BTreeSet<VolumeId>) -> Result<(), kube::Error> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        for object in api.list(&ListParams::default()).await?.items {
            if object.spec.attacher != DRIVER || object.spec.node_name != node {
                continue;
            }
            let pv =
                object.spec.source.persistent_volume_name.as_deref().and_then(|pv| self.pvs.known.get(pv));
            let volume = pv.and_then(|pv| VolumeId::new(&pv.handle).ok());
            if volume.is_none_or(|volume| kept.contains(&volume)) {
                continue;
            }
            let precondition = Preconditions { uid: object.metadata.uid.clone(), resource_version: None };
            let params = DeleteParams { preconditions: Some(precondition), ..DeleteParams::default() };
            self.writes.count("volumeattachment", "fence");
            match api.delete(&object.name_any(), &params).await {
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                deleted => drop(deleted?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_judged_by_what_it_keeps() {
        for (volumes, expected) in [
            (json!([]), None),
            (json!([{"name": "x", "emptyDir": {}}]), None),
            (json!([{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}]), Some(vec!["c"])),
            (
                json!([{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "y", "configMap": {"name": "m"}}]),
                Some(vec!["c"]),
            ),
            (json!([{"name": "x", "ephemeral": {}}]), Some(vec!["p-x"])),
            (
                json!([{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "y", "hostPath": {"path": "/"}}]),
                None,
            ),
            (
                json!([{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "y", "csi": {"driver": "d"}}]),
                None,
            ),
        ] {
            let pod: Pod =
                serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                "spec": {"containers": [], "volumes": volumes}}))
                .unwrap();
            let (found, is_all) = claims(&pod);
            let found = is_all.then(|| found.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(found, expected, "{volumes}");
        }
    }

    #[test]
    fn a_pod_that_shares_a_volume_with_one_that_is_left_alone_is_left_alone_too() {
        let pod = Pod::default();
        let ids = |names: &[&str]| names.iter().map(|name| VolumeId::new(*name).unwrap()).collect();
        let judged =
            |volumes: &[&str], stays| Judged { pod: &pod, volumes: ids(volumes), stays, for_now: false };
        let mut pods = [
            judged(&["a"], false),
            judged(&["b", "c"], false),
            judged(&["c", "d"], true),
            judged(&["a", "b"], false),
        ];
        spare_together(&mut pods[..3]);
        assert_eq!(pods.each_ref().map(|one| one.stays), [false, true, true, false]);
        spare_together(&mut pods);
        assert_eq!(pods.each_ref().map(|one| one.stays), [true; 4], "through a third one");
    }
}
