//! Which target the agent in a pod offers.

use bowline_api::{Target, TargetKind, TargetSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::BTreeMap;

use super::MANAGER;

/// Which pods of the controller's namespace run an agent.
pub(super) const PODS: &str =
    "app.kubernetes.io/name=bowline,app.kubernetes.io/component in (node,target,nvme-target,rds-target)";
/// On a pod: which part of Bowline it is.
const COMPONENT: &str = "app.kubernetes.io/component";
/// The agent of a storage machine that exports over NVMe/TCP.
const NVME: &str = "nvme-target";
/// The agent of a device.
const DEVICE: &str = "rds-target";
/// On a pod that serves a directory of several nodes, or a device: the name of its target.
const LABEL: &str = "bowline.storage/target";
/// The container that is the agent, and its port.
const CONTAINER: &str = "target";
const PORT: &str = "agent";

/// The target that a node's own agent serves.
pub fn of_node(node: &str) -> String {
    format!("file-{node}")
}

/// The target that the agent of a storage machine serves over NVMe/TCP.
fn of_machine(node: &str) -> String {
    format!("nvmet-{node}")
}

/// What the agent in a pod offers; nothing any more once it is being deleted: a Target that a person has deleted would come back
/// while Bowline is removed, and keep its finalizer for ever.
///
/// The files of a node are offered when the agent is ready. An agent for NVMe/TCP is offered at once: what it misses on its machine, or
/// why its device cannot be used, is told in the status of its Target.
pub(super) fn offered(pod: &Pod) -> Option<Target> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let container = spec.containers.iter().find(|one| one.name == CONTAINER)?;
    let port = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(PORT))?;
    let (node, address) = (spec.node_name.as_ref()?, status.pod_ip.as_ref()?);
    let component = pod.labels().get(COMPONENT).map(String::as_str);
    let (name, kind, topology) = if component == Some(NVME) {
        (of_machine(node), TargetKind::Nvmet, BTreeMap::new())
    } else if component == Some(DEVICE) {
        (pod.labels().get(LABEL)?.clone(), TargetKind::Rds, BTreeMap::new())
    } else {
        let mut all = status.container_statuses.iter().flatten();
        if !all.any(|one| one.name == CONTAINER && one.ready) {
            return None;
        }
        match pod.labels().get(LABEL) {
            // The agent itself says from where.
            Some(name) => (name.clone(), TargetKind::File, BTreeMap::new()),
            None => {
                let host = (bowline_api::keys::TOPOLOGY_HOST.to_owned(), node.clone());
                (of_node(node), TargetKind::File, BTreeMap::from([host]))
            }
        }
    };
    let address = if address.contains(':') { format!("[{address}]") } else { address.clone() };
    let address = format!("{address}:{}", port.container_port);
    let mut target = Target::new(&name, TargetSpec { kind, address, topology, drain: false });
    target.metadata.labels =
        Some(BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned())]));
    Some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(ready: bool, address: &str, container: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "bowline-node-x1" },
            "spec": { "nodeName": "worker-1", "containers": [
                { "name": "node" },
                { "name": container, "ports": [{ "name": "agent", "containerPort": 8470 }] },
            ]},
            "status": { "podIP": address, "containerStatuses": [
                { "name": "node", "ready": true, "image": "", "imageID": "", "restartCount": 0 },
                { "name": container, "ready": ready, "image": "", "imageID": "", "restartCount": 0 },
            ]},
        }))
        .unwrap_or_default()
    }

    #[test]
    fn only_an_agent_that_is_ready_offers_its_target() {
        let mut going = pod(true, "10.0.0.7", "target");
        going.metadata.deletion_timestamp = serde_json::from_str(r#""2026-01-01T00:00:00Z""#).ok();
        assert!(going.metadata.deletion_timestamp.is_some());
        let rows = [
            (going, None),
            (pod(true, "10.0.0.7", "target"), Some("10.0.0.7:8470")),
            (pod(true, "fd00::7", "target"), Some("[fd00::7]:8470")),
            (pod(false, "10.0.0.7", "target"), None),
            (pod(true, "10.0.0.7", "other"), None),
            (Pod::default(), None),
        ];
        let mut shared = pod(true, "10.0.0.8", "target");
        shared.labels_mut().insert(LABEL.to_owned(), "shared".to_owned());
        let shared = offered(&shared).map(|target| (target.name_any(), target.spec.topology));
        assert_eq!(shared, Some(("shared".to_owned(), BTreeMap::new())));
        for (pod, address) in rows {
            let target = offered(&pod);
            assert_eq!(target.as_ref().map(|one| one.spec.address.as_str()), address);
            if let Some(target) = target {
                assert_eq!(
                    (target.name_any().as_str(), target.spec.kind),
                    ("file-worker-1", TargetKind::File)
                );
                assert_eq!(target.spec.topology["topology.bowline.storage/host"], "worker-1");
            }
        }
    }

    #[test]
    fn the_agent_of_a_device_is_offered_under_the_name_in_its_label() {
        let mut pod = pod(false, "10.0.0.7", "target");
        pod.labels_mut().insert(COMPONENT.to_owned(), DEVICE.to_owned());
        assert_eq!(offered(&pod), None, "nobody says what it is called");
        pod.labels_mut().insert(LABEL.to_owned(), "box".to_owned());
        let offered = offered(&pod).map(|one| (one.name_any(), one.spec.kind, one.spec.topology.len()));
        assert_eq!(offered, Some(("box".to_owned(), TargetKind::Rds, 0)));
    }

    #[test]
    fn an_agent_for_nvme_is_offered_before_it_is_ready_so_that_its_target_can_say_why() {
        let exported = |ready, address: &str| {
            let mut pod = pod(ready, address, "target");
            pod.labels_mut().insert(COMPONENT.to_owned(), NVME.to_owned());
            offered(&pod).map(|one| (one.name_any(), one.spec))
        };
        for ready in [false, true] {
            let (name, spec) = exported(ready, "10.0.0.7").unwrap_or_else(|| panic!("ready: {ready}"));
            assert_eq!((name.as_str(), spec.kind), ("nvmet-worker-1", TargetKind::Nvmet));
            assert_eq!((spec.address.as_str(), spec.topology.len()), ("10.0.0.7:8470", 0));
        }
    }
}
