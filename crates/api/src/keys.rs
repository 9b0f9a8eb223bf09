//! Every name that Bowline gives to something in Kubernetes, and every name of others that it reads, in one place.

/// The API group of Bowline's kinds.
pub const GROUP: &str = "bowline.storage";
/// The version of Bowline's kinds.
pub const VERSION: &str = "v1beta1";
/// The name of the CSI driver.
pub const DRIVER: &str = "bowline.storage";

/// Keeps an object of ours that has a record, until the record is deleted by Bowline itself.
pub const FINALIZER: &str = "bowline.storage/held";
/// Keeps a VolumeAttachment of Kubernetes until the node is proven out: the name that the upstream attacher would use for
/// this driver, because autoscalers and the provisioner know it.
pub const ATTACHER_FINALIZER: &str = "external-attacher/bowline-storage";

/// The id of a node, remembered on a VolumeAttachment of Kubernetes for the time when Node and CSINode are gone.
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// Before the annotations that say where a volume is attached.
pub const ANNOTATIONS: &str = "csi.bowline.storage/";
/// The name of an earlier CSI driver, whose volumes on MikroTik devices can be taken over.
pub const EARLIER_DRIVER: &str = "rds.csi.srvlab.io";
/// The same as [`ANNOTATIONS`], as that driver wrote them; read when its volumes are adopted, never written.
pub const EARLIER_ANNOTATIONS: &str = "csi.rds.srvlab.io/";
/// After either prefix: the node that has the volume.
pub const ATTACHED_NODE: &str = "attached-node";
/// After either prefix: since when.
pub const ATTACH_TIME: &str = "attach-time";
/// After either prefix: whether for reading only.
pub const READ_ONLY: &str = "readonly";

/// The label of a pod that is deleted because its node was silent for too long: it may have been writing.
pub const FENCED: &str = "bowline.storage/fenced";
/// The taint by which somebody declares that a node is out of service.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Before the topology segments of Bowline's own.
pub const TOPOLOGY: &str = "topology.bowline.storage/";
/// The machine whose own files hold a volume.
pub const TOPOLOGY_HOST: &str = "topology.bowline.storage/host";

/// The lease that chooses the controller which leads.
pub const LEASE: &str = "bowline-controller";
/// The Secret with which agents prove who they are.
pub const AGENT_TLS: &str = "bowline-agent-tls";
/// The Secret with which the controller proves who it is to agents.
pub const CONTROLLER_TLS: &str = "bowline-controller-tls";
/// The name that an agent's certificate carries.
pub const AGENT_NAME: &str = "agent.bowline.storage";
/// The name that the controller's certificate carries.
pub const CONTROLLER_NAME: &str = "controller.bowline.storage";

/// The parameters of a ticket in `spec.attachmentTickets`.
pub mod parameter {
    /// One of the CSI access modes, in small letters with dashes; `single-node-writer` if it is not given.
    pub const ACCESS: &str = "access";
    /// `block` or `filesystem`; `filesystem` if it is not given.
    pub const CONTENT: &str = "content";
    /// `true` if it only reads.
    pub const READ_ONLY: &str = "readOnly";
    /// `true`, `false` or `any`: whether workloads on the node must not see the volume.
    pub const DISABLE_FRONTEND: &str = "disableFrontend";
    /// What for, in the words of whoever filed it.
    pub const REASON: &str = "reason";
    /// Who attached it last: shown as the reason where there is no other.
    pub const LAST_ATTACHED_BY: &str = "lastAttachedBy";
    /// All of them.
    pub const ALL: [&str; 6] = [ACCESS, CONTENT, READ_ONLY, DISABLE_FRONTEND, REASON, LAST_ATTACHED_BY];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attachers_finalizer_is_the_drivers_name_with_dashes() {
        assert_eq!(ATTACHER_FINALIZER, format!("external-attacher/{}", DRIVER.replace('.', "-")));
    }
}
