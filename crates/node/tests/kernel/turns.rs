//! Calls at the same time, callers that do not wait, and time that is over.

use crate::device::Troubled;
use crate::lab::{Lab, plain, refused, smallest};
use bowline_csi::wire::node_server::Node as _;
use bowline_host::format::FsType;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Request};

#[test]
fn the_second_call_for_a_volume_is_aborted_and_the_first_is_done() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    for volume in ["v", "w"] {
        lab.volume(volume, smallest(FsType::Ext4));
    }
    let devices = Troubled::new(lab.devices());
    let node = lab.node_with("a", Arc::clone(&devices) as _, &lab.host, Duration::from_secs(60));
    let (context, capability) = (lab.grant("v", "a", 1, true), plain(FsType::Ext4));
    devices.shut();
    let request = node.stage_request("v", &context, &capability);
    let service = node.service.clone();
    let first = lab.runtime.spawn(async move { service.node_stage_volume(Request::new(request)).await });
    lab.runtime.block_on(tokio::task::yield_now());
    devices.await_visitor();
    refused(node.stage("v", &context, &capability), Code::Aborted, "volume v");
    refused(node.publish("v", "pod", &context, &capability, false), Code::Aborted, "volume v");
    refused(node.unstage("v"), Code::Aborted, "volume v");
    let mut other = node.stage_request("w", &lab.grant("w", "a", 1, true), &capability);
    other.staging_target_path = node.text("stage-v");
    let other = lab.runtime.block_on(node.service.node_stage_volume(Request::new(other)));
    refused(other, Code::Aborted, "stage-v");
    devices.open();
    lab.runtime.block_on(first).unwrap().unwrap();
    node.stage("v", &context, &capability).unwrap();
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn work_goes_on_without_its_caller_and_keeps_its_turn() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let devices = Troubled::new(lab.devices());
    // A caller that gives up, and one that is told that its time is over.
    for answer_within in [Duration::from_secs(60), Duration::from_millis(1)] {
        let node = lab.node_with("a", Arc::clone(&devices) as _, &lab.host, answer_within);
        let (context, capability) = (lab.grant("v", "a", 1, true), plain(FsType::Ext4));
        devices.shut();
        let request = node.stage_request("v", &context, &capability);
        if answer_within < Duration::from_secs(1) {
            refused(node.stage("v", &context, &capability), Code::DeadlineExceeded, "it goes on");
        } else {
            let service = node.service.clone();
            let call =
                lab.runtime.spawn(async move { service.node_stage_volume(Request::new(request)).await });
            lab.runtime.block_on(tokio::task::yield_now());
            devices.await_visitor();
            call.abort();
            assert!(lab.runtime.block_on(call).unwrap_err().is_cancelled());
        }
        refused(node.unstage("v"), Code::Aborted, "volume v");
        devices.open();
        let patient = |call: &dyn Fn() -> Result<(), tonic::Status>| loop {
            match call() {
                Err(status) if matches!(status.code(), Code::Aborted | Code::DeadlineExceeded) => {
                    std::thread::yield_now();
                }
                other => break other.unwrap(),
            }
        };
        patient(&|| node.stage("v", &context, &capability));
        fs::write(node.at("stage-v/data"), "done").unwrap();
        patient(&|| node.unstage("v"));
        lab.assert_clean();
    }
}
