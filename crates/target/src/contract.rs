//! The suite that every adapter passes: what the engine relies on. It panics where it finds a fault.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

pub mod provision;

use crate::{Grant, Revocation, Target, TargetError};
use bowline_core::{Epoch, Mode, NodeId, Share, VolumeId};

/// Runs every check. `volumes` must exist on the target, with nobody let in yet; at least three.
pub async fn run(target: &dyn Target, volumes: &[VolumeId]) {
    let [first, second, third, ..] = volumes else { panic!("the suite needs three volumes") };
    a_node_is_let_in_listed_and_shut_out(target, first).await;
    a_revoked_epoch_is_never_let_in_again(target, second).await;
    one_of_several_holders_is_shut_out_alone(target, third).await;
    pages_show_every_volume_once(target, volumes).await;
}

/// As [`run`], for storage that lets one node in to a volume and no second.
pub async fn run_for_one_host(target: &dyn Target, volumes: &[VolumeId]) {
    let [first, second, third, ..] = volumes else { panic!("the suite needs three volumes") };
    a_node_is_let_in_listed_and_shut_out(target, first).await;
    a_revoked_epoch_is_never_let_in_again(target, second).await;
    a_second_holder_is_refused_and_the_first_stays(target, third).await;
    pages_show_every_volume_once(target, volumes).await;
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn grant(volume: &VolumeId, name: &str, epoch: u64) -> Grant {
    let mode = Mode { write: true, frontend: true, share: Share::Writers };
    Grant { volume: volume.clone(), node: node(name), epoch: Epoch::new(epoch), mode, beside: None }
}

fn revocation(volume: &VolumeId, name: &str, epoch: u64) -> Revocation {
    Revocation { volume: volume.clone(), node: node(name), epoch: Epoch::new(epoch), fence: true }
}

async fn open_epochs(target: &dyn Target, volume: &VolumeId) -> Vec<u64> {
    let page = target.exports(None, 10_000).await.unwrap();
    let listing = page.listings.iter().find(|listing| listing.volume == *volume);
    listing.map(|found| found.exports.keys().map(|epoch| epoch.number()).collect()).unwrap_or_default()
}

async fn a_node_is_let_in_listed_and_shut_out(target: &dyn Target, volume: &VolumeId) {
    assert_eq!(open_epochs(target, volume).await, [0; 0], "nobody is let in to begin with");
    target.allow(&grant(volume, "a", 1)).await.unwrap();
    target.allow(&grant(volume, "a", 1)).await.expect("the same grant again is the same grant");
    assert_eq!(open_epochs(target, volume).await, [1]);
    let context = target.context(&grant(volume, "a", 1));
    assert_eq!(context, target.context(&grant(volume, "a", 1)), "a context follows from its grant");
    target.revoke(&revocation(volume, "a", 1)).await.unwrap();
    target.revoke(&revocation(volume, "a", 1)).await.expect("what is gone can be revoked again");
    assert_eq!(open_epochs(target, volume).await, [0; 0]);
}

async fn a_revoked_epoch_is_never_let_in_again(target: &dyn Target, volume: &VolumeId) {
    target.revoke(&revocation(volume, "a", 3)).await.unwrap();
    for epoch in [3, 2] {
        let late = target.allow(&grant(volume, "a", epoch)).await;
        assert!(matches!(late, Err(TargetError::NeverAgain(_))), "epoch {epoch} is closed: {late:?}");
    }
    target.allow(&grant(volume, "a", 4)).await.unwrap();
    target.revoke(&revocation(volume, "a", 3)).await.unwrap();
    assert_eq!(open_epochs(target, volume).await, [4], "a late revocation closes nothing newer");
    target.revoke(&revocation(volume, "a", 4)).await.unwrap();
}

async fn one_of_several_holders_is_shut_out_alone(target: &dyn Target, volume: &VolumeId) {
    for (name, epoch) in [("a", 1), ("b", 2), ("c", 3)] {
        target.allow(&grant(volume, name, epoch)).await.unwrap();
    }
    target.revoke(&revocation(volume, "b", 2)).await.unwrap();
    assert_eq!(open_epochs(target, volume).await, [1, 3]);
    for (name, epoch) in [("a", 1), ("c", 3)] {
        target.revoke(&revocation(volume, name, epoch)).await.unwrap();
    }
}

async fn a_second_holder_is_refused_and_the_first_stays(target: &dyn Target, volume: &VolumeId) {
    target.allow(&grant(volume, "a", 1)).await.unwrap();
    let second = target.allow(&grant(volume, "b", 2)).await;
    assert!(matches!(second, Err(TargetError::Refused { .. })), "{second:?}");
    assert_eq!(open_epochs(target, volume).await, [1]);
    // That the second never gets in may be proven now or when the first is out, but not wrongly.
    let proven = target.revoke(&revocation(volume, "b", 2)).await.is_ok();
    assert_eq!(open_epochs(target, volume).await, [1], "the first stays");
    target.revoke(&revocation(volume, "a", 1)).await.unwrap();
    if !proven {
        target.revoke(&revocation(volume, "b", 2)).await.unwrap();
    }
    let late = target.allow(&grant(volume, "b", 2)).await;
    assert!(matches!(late, Err(TargetError::NeverAgain(_))), "{late:?}");
    target.allow(&grant(volume, "b", 3)).await.unwrap();
    target.revoke(&revocation(volume, "b", 3)).await.unwrap();
}

async fn pages_show_every_volume_once(target: &dyn Target, volumes: &[VolumeId]) {
    for volume in volumes {
        target.allow(&grant(volume, "a", 9)).await.unwrap();
    }
    let (mut shown, mut after) = (Vec::new(), None);
    loop {
        let page = target.exports(after.as_ref(), 2).await.unwrap();
        shown.extend(page.listings.into_iter().map(|listing| listing.volume));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut expected = volumes.to_vec();
    expected.sort();
    assert_eq!(shown, expected);
    for volume in volumes {
        target.revoke(&revocation(volume, "a", 9)).await.unwrap();
    }
}
