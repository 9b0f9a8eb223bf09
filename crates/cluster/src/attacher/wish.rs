//! What a VolumeAttachment asks for: the same request that a CSI call would carry, and so the same ticket.

use bowline_core::Owner;
use bowline_csi::controller::ControllerPublish;
use bowline_csi::wire;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_csi::wire::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use k8s_openapi::api::storage::v1::VolumeAttachment;

use crate::pv::Pv;

/// Why a VolumeAttachment cannot be made a ticket as it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WishError {
    /// Neither a PersistentVolume nor a volume of its own.
    #[error(
        "the VolumeAttachment names no volume: spec.source has neither persistentVolumeName nor inlineVolumeSpec"
    )]
    NoVolume,
    /// The volume written into it is another driver's.
    #[error("spec.source.inlineVolumeSpec is no volume of this driver")]
    OtherDriver,
    /// Access modes that CSI cannot say together, or none.
    #[error("the access modes {0:?} of the volume cannot be asked for together; give it exactly one")]
    AccessModes(Vec<String>),
    /// A value that CSI does not allow.
    #[error(transparent)]
    Field(#[from] bowline_csi::InvalidField),
}

/// Where the volume of a VolumeAttachment is described.
pub(crate) enum Source<'a> {
    /// In the PersistentVolume of that name.
    Named(&'a str),
    /// In itself.
    Inline(Box<Pv>),
}

pub(crate) fn source(object: &VolumeAttachment) -> Result<Source<'_>, WishError> {
    let source = &object.spec.source;
    match (&source.persistent_volume_name, &source.inline_volume_spec) {
        (Some(name), _) => Ok(Source::Named(name)),
        (None, Some(spec)) => {
            Pv::of_spec(spec).map(Box::new).map(Source::Inline).ok_or(WishError::OtherDriver)
        }
        (None, None) => Err(WishError::NoVolume),
    }
}

/// The access mode of CSI for those of a PersistentVolume: as Kubernetes' own provisioner and kubelet map them for a driver that tells
/// single and multiple writers on one node apart.
fn mode(modes: &[String]) -> Result<Mode, WishError> {
    let has = |mode: &str| modes.iter().any(|one| one == mode);
    let cannot = || Err(WishError::AccessModes(modes.to_vec()));
    match (has("ReadWriteMany"), has("ReadOnlyMany"), has("ReadWriteOnce"), has("ReadWriteOncePod")) {
        (false, false, false, true) => Ok(Mode::SingleNodeSingleWriter),
        (_, _, _, true) => cannot(),
        (true, _, _, false) => Ok(Mode::MultiNodeMultiWriter),
        (false, true, true, false) => cannot(),
        (false, true, false, false) => Ok(Mode::MultiNodeReaderOnly),
        (false, false, true, false) => Ok(Mode::SingleNodeMultiWriter),
        (false, false, false, false) => cannot(),
    }
}

/// The request that the volume and the node make.
pub(crate) fn request(pv: &Pv, node_id: &str) -> Result<ControllerPublish, WishError> {
    let access_type = if pv.block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume { fs_type: pv.fs_type.clone(), ..MountVolume::default() })
    };
    let capability = wire::VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode(&pv.access_modes)?.into() }),
    };
    let request = wire::ControllerPublishVolumeRequest {
        volume_id: pv.handle.clone(),
        node_id: node_id.to_owned(),
        volume_capability: Some(capability),
        readonly: pv.read_only,
        volume_context: pv.attributes.clone().into_iter().collect(),
        ..wire::ControllerPublishVolumeRequest::default()
    };
    Ok(ControllerPublish::try_from(request)?)
}

/// The owner of the ticket: this very object, and not a later one of the same name.
pub(crate) fn owner(name: &str, uid: &str) -> Owner {
    Owner::ObjectGone { object: format!("VolumeAttachment {name} (uid {uid})") }
}

/// The name and uid in such an owner; `None` if it is something else.
pub(crate) fn owned_by(owner: &Owner) -> Option<(&str, &str)> {
    let Owner::ObjectGone { object } = owner else { return None };
    let (name, uid) = object.strip_prefix("VolumeAttachment ")?.split_once(" (uid ")?;
    Some((name, uid.strip_suffix(')')?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use bowline_core::{AccessMode as Access, Content};

    #[test]
    fn access_modes_are_asked_for_as_kubernetes_does() {
        for (modes, expected) in [
            (&["ReadWriteOnce"][..], Some(Access::SingleNodeMultiWriter)),
            (&["ReadWriteOncePod"], Some(Access::SingleNodeSingleWriter)),
            (&["ReadOnlyMany"], Some(Access::MultiNodeReaderOnly)),
            (&["ReadWriteMany"], Some(Access::MultiNodeMultiWriter)),
            (&["ReadWriteOnce", "ReadWriteMany"], Some(Access::MultiNodeMultiWriter)),
            (&["ReadWriteOnce", "ReadOnlyMany"], None),
            (&["ReadWriteOnce", "ReadWriteOncePod"], None),
            (&[], None),
        ] {
            let pv = Pv {
                handle: "v".to_owned(),
                access_modes: modes.iter().map(ToString::to_string).collect(),
                block: true,
                ..Pv::default()
            };
            match (request(&pv, "n"), expected) {
                (Ok(request), Some(mode)) => {
                    assert_eq!(
                        (request.capability.mode, request.capability.content()),
                        (mode, Content::Block)
                    );
                }
                (Err(WishError::AccessModes(told)), None) => assert_eq!(told, pv.access_modes),
                (got, _) => panic!("{modes:?}: {got:?}"),
            }
        }
    }

    #[test]
    fn a_bad_field_is_told_by_its_name() {
        let pv =
            Pv { handle: "a^b".to_owned(), access_modes: vec!["ReadWriteOnce".to_owned()], ..Pv::default() };
        assert!(request(&pv, "n").unwrap_err().to_string().starts_with("volume_id contains '^'"));
        let pv = Pv { handle: "v".to_owned(), ..pv };
        assert_eq!(request(&pv, "").unwrap_err().to_string(), "node_id is required");
    }

    #[test]
    fn an_owner_is_found_again() {
        let ticket = owner("csi-1", "u-2");
        assert_eq!(owned_by(&ticket), Some(("csi-1", "u-2")));
        for other in ["Snapshot a (uid b)", "VolumeAttachment a", "VolumeAttachment a (uid b"] {
            assert_eq!(owned_by(&Owner::ObjectGone { object: other.to_owned() }), None, "{other}");
        }
        assert_eq!(owned_by(&Owner::Withdrawn), None);
    }
}
