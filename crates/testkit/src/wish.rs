use bowline_core::{
    AccessMode, Content, Frontend, NodeId, Owner, Ticket, TicketId, TicketKind, Timestamp, VolumeId,
};

/// A node, by name.
pub fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// A volume, by name.
pub fn volume(name: &str) -> VolumeId {
    VolumeId::new(name).unwrap()
}

/// A ticket as a pod's would be: one node, read-write, a filesystem, until it is withdrawn. Tests change what they need.
pub fn csi(on: &str) -> Ticket {
    wish(TicketKind::CsiAttacher, &format!("csi-{on}"), on)
}

/// A backup's ticket: reads only, and does not care for the frontend.
pub fn backup(on: &str) -> Ticket {
    Ticket {
        read_only: true,
        frontend: Frontend::Any,
        ..wish(TicketKind::BackupController, &format!("backup-{on}"), on)
    }
}

/// A ticket of any kind.
pub fn wish(kind: TicketKind, id: &str, on: &str) -> Ticket {
    Ticket {
        id: TicketId::new(id).unwrap(),
        kind,
        node: node(on),
        access: AccessMode::SingleNodeWriter,
        content: Content::Filesystem,
        read_only: false,
        frontend: Frontend::On,
        generation: 1,
        created_at: Timestamp::UNIX_EPOCH,
        owner: Owner::Withdrawn,
        reason: None,
    }
}
