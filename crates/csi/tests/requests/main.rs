//! Every request, made up by reflection over the contract: whatever arrives is parsed without a panic, what is accepted
//! keeps the rules, and no secret is shown by anyone.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed check is a panic")]

mod made_up;
mod rows;
mod rules;

use bowline_csi::{InvalidField, controller, node, snapshot, wire};
use made_up::{Choices, Kind};
use proptest::prelude::*;
use prost::Message;
use protox::prost_reflect::{DescriptorPool, MessageDescriptor, ReflectMessage};
use std::fmt::Debug;
use std::sync::LazyLock;
use tonic::Code;

/// What became of a request: how its message shows itself, and how the parsed request does, or why there is none.
struct Seen {
    message: String,
    parsed: Result<String, InvalidField>,
}

/// None if the bytes are no such message; that is refused before anything of this crate sees it.
fn see<W, R>(bytes: &[u8]) -> Option<Seen>
where
    W: Message + Default + Debug,
    R: TryFrom<W, Error = InvalidField> + Debug,
{
    let message = W::decode(bytes).ok()?;
    let shown = format!("{message:?} {message:#?}");
    let parsed = R::try_from(message).map(|request| format!("{request:?} {request:#?}"));
    Some(Seen { message: shown, parsed })
}

struct Call {
    message: &'static str,
    see: fn(&[u8]) -> Option<Seen>,
    required: &'static [&'static str],
}

macro_rules! calls {
    ($($message:ident => $request:ty, $required:expr;)*) => {
        [$(Call { message: stringify!($message), see: see::<wire::$message, $request>, required: &$required },)*]
    };
}

const CALLS: [Call; 27] = calls! {
    CreateVolumeRequest => controller::CreateVolume, ["name", "volume_capabilities"];
    DeleteVolumeRequest => controller::DeleteVolume, ["volume_id"];
    ControllerPublishVolumeRequest => controller::ControllerPublish, ["volume_id", "node_id", "volume_capability"];
    ControllerUnpublishVolumeRequest => controller::ControllerUnpublish, ["volume_id"];
    ValidateVolumeCapabilitiesRequest => controller::ValidateCapabilities, ["volume_id", "volume_capabilities"];
    ListVolumesRequest => controller::ListVolumes, [];
    ControllerListVolumeHealthRequest => controller::ListVolumeHealth, [];
    ControllerGetVolumeHealthRequest => controller::ControllerGetVolumeHealth, ["volume_id"];
    GetCapacityRequest => controller::GetCapacity, [];
    ControllerExpandVolumeRequest => controller::ControllerExpand, ["volume_id", "capacity_range"];
    ControllerGetVolumeRequest => controller::ControllerGetVolume, ["volume_id"];
    ControllerModifyVolumeRequest => controller::ControllerModify, ["volume_id", "mutable_parameters"];
    CreateSnapshotRequest => snapshot::CreateSnapshot, ["name", "source_volume_id"];
    DeleteSnapshotRequest => snapshot::DeleteSnapshot, ["snapshot_id"];
    ListSnapshotsRequest => snapshot::ListSnapshots, [];
    GetSnapshotRequest => snapshot::GetSnapshot, ["snapshot_id"];
    CreateVolumeGroupSnapshotRequest => snapshot::CreateGroupSnapshot, ["name", "source_volume_ids"];
    DeleteVolumeGroupSnapshotRequest => snapshot::DeleteGroupSnapshot, ["group_snapshot_id"];
    GetVolumeGroupSnapshotRequest => snapshot::GetGroupSnapshot, ["group_snapshot_id"];
    NodeStageVolumeRequest => node::Stage, ["volume_id", "staging_target_path", "volume_capability"];
    NodeUnstageVolumeRequest => node::Unstage, ["volume_id", "staging_target_path"];
    NodePublishVolumeRequest => node::Publish, ["volume_id", "target_path", "volume_capability"];
    NodeUnpublishVolumeRequest => node::Unpublish, ["volume_id", "target_path"];
    NodeGetVolumeStatsRequest => node::VolumeStats, ["volume_id", "volume_path"];
    NodeGetVolumeHealthRequest => node::NodeVolumeHealth, ["volume_id"];
    NodeGetStorageHealthRequest => node::StorageHealth, [];
    NodeExpandVolumeRequest => node::NodeExpand, ["volume_id", "volume_path"];
};

fn descriptor(pool: &DescriptorPool, message: &str) -> MessageDescriptor {
    pool.get_message_by_name(&format!("csi.v1.{message}")).unwrap()
}

fn pool() -> DescriptorPool {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(wire::DESCRIPTOR).unwrap());
    POOL.clone()
}

#[test]
fn every_call_that_has_fields_and_is_served_is_here() {
    let pool = pool();
    let served = ["Identity", "Controller", "GroupController", "Node"].map(|name| format!("csi.v1.{name}"));
    let services = pool.services().filter(|service| served.contains(&service.full_name().to_owned()));
    let mut expected: Vec<String> = services
        .flat_map(|service| service.methods().map(|method| method.input()).collect::<Vec<_>>())
        .filter(|message| message.fields().len() > 0)
        .map(|message| message.name().to_owned())
        .collect();
    let mut here: Vec<String> = CALLS.iter().map(|call| call.message.to_owned()).collect();
    expected.sort();
    here.sort();
    assert_eq!(here, expected);
}

#[test]
fn a_good_request_is_accepted_and_without_a_required_field_it_is_not() {
    let pool = pool();
    for call in &CALLS {
        let good = made_up::message(&descriptor(&pool, call.message), &mut Choices::none(), Kind::Good);
        let seen = (call.see)(&good.encode_to_vec()).unwrap();
        assert!(seen.parsed.is_ok(), "{}: {:?}", call.message, seen.parsed);
        for field in good.descriptor().fields() {
            let mut without = good.clone();
            without.clear_field(&field);
            let parsed = (call.see)(&without.encode_to_vec()).unwrap().parsed;
            let is_required = call.required.contains(&field.name());
            assert_eq!(parsed.is_err(), is_required, "{} without {}: {parsed:?}", call.message, field.name());
            if let Err(error) = parsed {
                assert_eq!(error.to_string(), format!("{} is required", field.name()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_good_request_is_accepted(call in 0..CALLS.len(), choices in choices()) {
        let call = &CALLS[call];
        let good = made_up::message(&descriptor(&pool(), call.message), &mut Choices::of(&choices), Kind::Good);
        let seen = (call.see)(&good.encode_to_vec()).unwrap();
        prop_assert!(seen.parsed.is_ok(), "{good}: {:?}", seen.parsed);
        prop_assert_eq!(rules::broken(&good), None, "the rules and the good values disagree");
    }

    #[test]
    fn what_is_accepted_keeps_the_rules_and_nobody_shows_a_secret(call in 0..CALLS.len(), choices in choices()) {
        let call = &CALLS[call];
        let any = made_up::message(&descriptor(&pool(), call.message), &mut Choices::of(&choices), Kind::Any);
        let seen = (call.see)(&any.encode_to_vec()).unwrap();
        prop_assert!(!seen.message.contains("SECRET"), "{}", seen.message);
        match seen.parsed {
            Ok(request) => {
                prop_assert!(!request.contains("SECRET"), "{request}");
                prop_assert_eq!(rules::broken(&any), None, "{} was accepted: {}", call.message, any);
                for required in call.required {
                    prop_assert!(any.has_field_by_name(required), "{} without {required}", call.message);
                }
            }
            Err(error) => {
                let status = tonic::Status::from(bowline_csi::code::CreateVolumeError::from(error.clone()));
                prop_assert_eq!(status.code(), Code::InvalidArgument);
                let told = format!("{error} {error:?} {status} {status:?}");
                prop_assert!(!told.contains("SECRET") && !told.contains("MISPLACED"), "{told}");
                let first = error.field.split(['.', '[']).next().unwrap();
                prop_assert!(any.descriptor().get_field_by_name(first).is_some(), "{told} names no field");
            }
        }
    }

    #[test]
    fn bytes_that_happen_to_be_a_message_are_parsed_without_a_panic(
        call in 0..CALLS.len(),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = (CALLS[call].see)(&bytes);
    }
}

fn choices() -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::vec(any::<u16>(), 0..80)
}
