//! Something is done to a volume that takes long.

use crate::lab::{Lab, cut, grant, node, revocation, volume};
use bowline_core::Epoch;
use bowline_target::file::FileTarget;
use bowline_target::{BackingFiles, Progress, Provision, ProvisionError, Target, TargetError};
use bowline_testkit::world::wait_until;
use futures::FutureExt;
use std::time::Duration;

/// While a snapshot has volume `v`, and waits for `w`, which somebody attaches.
fn while_a_snapshot_is_taken(lab: &Lab, target: &FileTarget, deed: impl Fn()) {
    let attaching = grant("w", "w", 1);
    lab.allow(target, &attaching).unwrap();
    let cuts = [cut("sv", "v"), cut("sw", "w")];
    let attach = &mut |_: &std::path::Path, _| {
        let progress = Progress::default();
        let mut taking = Box::pin(target.snapshot(&cuts, &progress));
        lab.runtime.block_on(async { assert!((&mut taking).now_or_never().is_none(), "it waits") });
        wait_until("the snapshot to have the volume", || {
            let again = grant("v", "a", 1);
            // Whoever waits for the snapshot would wait for ever.
            let told = async { tokio::time::timeout(Duration::from_secs(20), target.allow(&again)).await };
            lab.runtime.block_on(told).unwrap().is_err().then_some(())
        });
        deed();
    };
    target.with_grant(&volume("w"), &node("w"), Epoch::new(1), attach).unwrap();
    // What waited goes on, and is waited for.
    for id in ["sv", "sw"] {
        lab.runtime.block_on(target.delete_snapshot(&cut(id, "v").snapshot)).unwrap();
    }
    lab.revoke(target, &revocation("w", "w", 1)).unwrap();
}

#[test]
fn what_is_asked_of_a_volume_that_is_being_copied_is_not_kept_waiting_and_told_why() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    let kept = grant("v", "a", 1);
    lab.allow(&target, &kept).unwrap();
    while_a_snapshot_is_taken(&lab, &target, || {
        let (v, beside) = (volume("v"), grant("v", "b", 2));
        let asked =
            async { tokio::join!(target.allow(&beside), target.grow(&v, 2 << 20), target.delete(&v)) };
        let (allowed, grown, deleted) = lab.runtime.block_on(asked);
        let is_told =
            |error: &str| error.starts_with("volume v is busy: a snapshot of it, under way since 2");
        assert!(matches!(&allowed, Err(TargetError::Refused { error }) if is_told(error)), "{allowed:?}");
        for told in [grown.map(|_| ()), deleted] {
            assert!(
                matches!(&told, Err(ProvisionError::Unreachable { error }) if is_told(error)),
                "{told:?}"
            );
        }
    });
    lab.allow(&target, &grant("v", "b", 2)).unwrap();
    lab.only_these(&target, &[kept, grant("v", "b", 2)]);
}

/// What keeps a record from being written does not keep the node in; without the record it is not proven.
#[test]
fn a_fence_of_a_volume_that_is_being_copied_takes_the_export_away_and_is_not_proven() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    let (fenced, others) = (grant("v", "a", 1), [grant("v", "b", 2), grant("v", "a", 3)]);
    // What is looked at every now and then, to be shown there, too.
    lab.kernel.has_address("10.0.0.1", false);
    lab.allow(&target, &fenced).unwrap();
    for other in &others {
        lab.allow(&target, other).unwrap();
    }
    while_a_snapshot_is_taken(&lab, &target, || {
        let told = lab.revoke(&target, &revocation("v", "a", 1));
        let Err(TargetError::Refused { error }) = told else { panic!("{told:?}") };
        assert!(error.starts_with("volume v is busy: a snapshot of it, under way since 2"), "{error}");
        lab.only_these(&target, &[others[0].clone(), others[1].clone(), grant("w", "w", 1)]);
        let listed = lab.runtime.block_on(target.exports(None, 10)).unwrap();
        let of_v = listed.listings.iter().find(|listing| listing.volume == volume("v")).unwrap();
        assert_eq!(of_v.exports.len(), 3, "not proven");
    });
    lab.runtime.block_on(target.show_missing());
    lab.only_these(&target, &others);
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.only_these(&target, &others);
}

/// Whom the record lets in is not known; whom the controller names is.
#[test]
fn a_fence_of_a_volume_whose_record_cannot_be_read_takes_the_export_away_and_is_not_proven() {
    let lab = Lab::new();
    let mut target = lab.with(&["v", "w"]);
    let others = [grant("v", "b", 2), grant("v", "a", 3), grant("w", "a", 1)];
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    for other in &others {
        lab.allow(&target, other).unwrap();
    }
    let record = lab.directory.join("vol-v.json");
    let good = std::fs::read(&record).unwrap();
    for (spoilt, words) in [
        (Some("damaged"), "the record of volume v is damaged: "),
        (Some(""), "the record of volume v is damaged: "),
        (None, "the record of volume v is missing"),
    ] {
        match spoilt {
            Some(bytes) => std::fs::write(&record, bytes).unwrap(),
            None => std::fs::remove_file(&record).unwrap(),
        }
        for again in [false, true] {
            let told = lab.revoke(&target, &revocation("v", "a", 1));
            let Err(TargetError::Refused { error }) = told else { panic!("again {again}: {told:?}") };
            assert!(error.starts_with(words), "{error}");
            lab.only_these(&target, &others);
        }
        // For the next way of not being there.
        std::fs::write(&record, &good).unwrap();
        lab.allow(&target, &grant("v", "a", 1)).expect_err("it was to be shut out");
        // The next process goes by the record.
        drop(target);
        target = lab.open();
        assert_eq!(lab.kernel.admitted().len(), 4);
    }
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.only_these(&target, &others);
}
