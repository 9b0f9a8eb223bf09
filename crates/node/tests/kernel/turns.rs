//! Calls at the same time, callers that do not wait, and time that is over.

use crate::device::Troubled;
use crate::lab::{Lab, plain, refused, smallest};
use bowline_csi::wire;
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

/// xorshift: a seed is enough to play it again, as far as threads can be.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn a_crowd_hears_only_legal_codes_and_leaves_nothing() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let (node, capability) = (lab.node("a"), plain(FsType::Ext4));
    let volumes: Vec<_> = (0..4).map(|index| format!("v{index}")).collect();
    for volume in &volumes {
        lab.volume(volume, smallest(FsType::Ext4));
    }
    let contexts: Vec<_> = volumes.iter().map(|volume| lab.grant(volume, "a", 1, true)).collect();
    let client = |seed: u64| {
        let (service, mut dice) = (node.service.clone(), Dice(seed));
        let mut calls = Vec::new();
        for _ in 0..24 {
            let index = usize::try_from(dice.below(4)).unwrap();
            let (volume, context) = (&volumes[index], &contexts[index]);
            let pod = format!("{volume}-{}", dice.below(2));
            let unstage = wire::NodeUnstageVolumeRequest {
                volume_id: volume.clone(),
                staging_target_path: node.text(&format!("stage-{volume}")),
            };
            let unpublish =
                wire::NodeUnpublishVolumeRequest { volume_id: volume.clone(), target_path: node.text(&pod) };
            let stats = wire::NodeGetVolumeStatsRequest {
                volume_id: volume.clone(),
                volume_path: node.text(&pod),
                ..Default::default()
            };
            let stage = node.stage_request(volume, context, &capability);
            let publish = node.publish_request(volume, &pod, context, &capability, false);
            calls.push((dice.below(5), stage, publish, unpublish, unstage, stats));
        }
        async move {
            let mut codes = Vec::new();
            for (which, stage, publish, unpublish, unstage, stats) in calls {
                let answer = match which {
                    0 => service.node_stage_volume(Request::new(stage)).await.map(drop),
                    1 => service.node_publish_volume(Request::new(publish)).await.map(drop),
                    2 => service.node_unpublish_volume(Request::new(unpublish)).await.map(drop),
                    3 => service.node_unstage_volume(Request::new(unstage)).await.map(drop),
                    _ => service.node_get_volume_stats(Request::new(stats)).await.map(drop),
                };
                codes.push((which, answer.err()));
            }
            codes
        }
    };
    let clients: Vec<_> = (1..=8_u64).map(|seed| lab.runtime.spawn(client(seed * 7919))).collect();
    let mut done = 0;
    for client in clients {
        for (which, answer) in lab.runtime.block_on(client).unwrap() {
            let Some(status) = answer else {
                done += 1;
                continue;
            };
            let legal = [Code::Aborted, Code::FailedPrecondition, Code::NotFound];
            // A question takes no turn: it can see a volume that is just being unstaged.
            let midway = which == 4 && status.code() == Code::Unavailable;
            assert!(legal.contains(&status.code()) || midway, "{status}");
        }
    }
    assert!(done > 0);
    for volume in &volumes {
        node.unpublish(volume, &format!("{volume}-0")).unwrap();
        node.unpublish(volume, &format!("{volume}-1")).unwrap();
        node.unstage(volume).unwrap();
        assert!(!node.record(volume).exists());
    }
    lab.assert_clean();
}
