//! A mishap at every command of every deed: the connection lost before it, after it, in the middle of it, or the command late. Whatever
//! was answered, the same deed again brings it to its end, also from another process, and what comes late then changes nothing.

use crate::lab::{
    MIB, careless, complaining, connect, cut, grant, lab, leave_older, listed, order, revocation, snapshot,
    volume,
};
use crate::rack::Raw;
use bowline_target::contract::provision::Bytes;
use bowline_target::rds::RdsTarget;
use bowline_target::{Progress, Provision, ProvisionError, Source, Target, TargetError};
use bowline_testkit::routeros::{Firmware, RouterOs};
use bowline_testkit::{FaultyConsole, Mishap};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Create,
    Clone,
    Restore,
    Grow,
    Allow,
    Revoke,
    RaiseEpoch,
    Delete,
    Snapshot,
    DeleteSnapshot,
    AllowOlder,
    RevokeOlder,
    GrowOlder,
    CopyOlder,
    DeleteOlder,
}

const DEEDS: [Deed; 15] = [
    Deed::Create,
    Deed::Clone,
    Deed::Restore,
    Deed::Grow,
    Deed::Allow,
    Deed::Revoke,
    Deed::RaiseEpoch,
    Deed::Delete,
    Deed::Snapshot,
    Deed::DeleteSnapshot,
    Deed::AllowOlder,
    Deed::RevokeOlder,
    Deed::GrowOlder,
    Deed::CopyOlder,
    Deed::DeleteOlder,
];

/// Whether it was done; `false` if nobody knows. Any other answer would be wrong.
fn known<T: std::fmt::Debug>(deed: Deed, answer: Result<T, ProvisionError>) -> bool {
    match answer {
        Ok(_) => true,
        Err(ProvisionError::Unreachable { .. }) => false,
        Err(error) => panic!("{deed:?}: {error:?}"),
    }
}

async fn carry_out(deed: Deed, target: &RdsTarget) -> bool {
    let progress = Progress::default();
    let access = |answer: Result<(), TargetError>| match answer {
        Ok(()) => true,
        Err(TargetError::Unreachable { .. }) => false,
        Err(error) => panic!("{deed:?}: {error:?}"),
    };
    match deed {
        Deed::Create => known(deed, target.create(&order("n", MIB, None), &progress).await),
        Deed::Clone => {
            let from = Some(Source::Volume(volume("v")));
            known(deed, target.create(&order("n", 2 * MIB, from), &progress).await)
        }
        Deed::Restore => {
            let from = Some(Source::Snapshot(snapshot("s")));
            known(deed, target.create(&order("n", MIB, from), &progress).await)
        }
        Deed::Grow => known(deed, target.grow(&volume("v"), 2 * MIB).await),
        Deed::Allow => access(target.allow(&grant("v", "a", 1)).await),
        Deed::Revoke => access(target.revoke(&revocation("v", "a", 1)).await.map(|_| ())),
        Deed::RaiseEpoch => access(target.revoke(&revocation("w", "a", 7)).await.map(|_| ())),
        Deed::Delete => known(deed, target.delete(&volume("w")).await),
        Deed::Snapshot => known(deed, target.snapshot(&[cut("s1", "v"), cut("s2", "w")], &progress).await),
        Deed::DeleteSnapshot => known(deed, target.delete_snapshot(&snapshot("s")).await),
        Deed::AllowOlder => access(target.allow(&grant("o", "a", 1)).await),
        Deed::RevokeOlder => access(target.revoke(&revocation("o", "a", 3)).await.map(|_| ())),
        Deed::GrowOlder => known(deed, target.grow(&volume("o"), 2 * MIB).await),
        Deed::CopyOlder => {
            let from = Some(Source::Volume(volume("o")));
            known(deed, target.create(&order("n", MIB, from), &progress).await)
        }
        Deed::DeleteOlder => known(deed, target.delete(&volume("o")).await),
    }
}

async fn prepare(deed: Deed, firmware: &Firmware) -> (FaultyConsole, RdsTarget) {
    let (link, target) = lab(firmware.clone(), &["v", "w"]).await;
    leave_older(&link.device, "o");
    let raw = Raw(link.device.clone());
    raw.write(&volume("o"), 0, b"older");
    raw.write(&volume("v"), 0, b"data");
    target.snapshot(&[cut("s", "v")], &Progress::default()).await.unwrap();
    if deed == Deed::Revoke {
        target.allow(&grant("v", "a", 1)).await.unwrap();
    }
    (link, target)
}

async fn check(deed: Deed, device: &RouterOs, target: &RdsTarget) {
    let raw = Raw(device.clone());
    let size = async |id: &str| target.volume(&volume(id)).await.unwrap().map(|stored| stored.size);
    let mut open = Vec::new();
    match deed {
        Deed::Create => assert_eq!(size("n").await, Some(MIB)),
        Deed::Clone => {
            assert_eq!(size("n").await, Some(2 * MIB));
            assert_eq!(raw.read(&volume("n"), 0, 4), b"data");
        }
        Deed::Restore => {
            assert_eq!(size("n").await, Some(MIB));
            assert_eq!(raw.read(&volume("n"), 0, 4), b"data");
        }
        Deed::Grow => assert_eq!(size("v").await, Some(2 * MIB)),
        Deed::Allow => open.push(("v".to_owned(), 1, "a".to_owned())),
        Deed::Revoke | Deed::RaiseEpoch => {
            let late = if deed == Deed::Revoke { grant("v", "a", 1) } else { grant("w", "a", 7) };
            let late = target.allow(&late).await;
            assert!(matches!(late, Err(TargetError::NeverAgain(_))), "{late:?}");
        }
        Deed::Delete => assert_eq!(size("w").await, None),
        Deed::Snapshot => {
            let s1 = target.stored_snapshot(&snapshot("s1")).await.unwrap().unwrap();
            let s2 = target.stored_snapshot(&snapshot("s2")).await.unwrap().unwrap();
            assert_eq!(s1.taken_at, s2.taken_at);
            assert_eq!(raw.read(&volume("snap-s1"), 0, 4), b"data");
        }
        Deed::DeleteSnapshot => assert_eq!(target.stored_snapshot(&snapshot("s")).await, Ok(None)),
        Deed::AllowOlder => open.push(("o".to_owned(), 1, "a".to_owned())),
        Deed::RevokeOlder => {
            let late = target.allow(&grant("o", "a", 3)).await;
            assert!(matches!(late, Err(TargetError::NeverAgain(_))), "{late:?}");
        }
        Deed::GrowOlder => assert_eq!(size("o").await, Some(2 * MIB)),
        Deed::CopyOlder => assert_eq!(raw.read(&volume("n"), 0, 5), b"older"),
        Deed::DeleteOlder => assert_eq!(size("o").await, None),
    }
    if deed != Deed::DeleteOlder {
        assert_eq!(raw.read(&volume("o"), 0, 5), b"older");
    }
    assert_eq!(raw.read(&volume("v"), 0, 4), b"data", "nothing happens to what was there");
    assert_eq!(listed(target).await, open);
    let mut files: Vec<_> = device.slots().iter().map(|slot| device.file_of(slot).unwrap()).collect();
    files.sort();
    let there: Vec<_> = device.files().into_iter().map(|(name, _)| name).collect();
    assert_eq!(files, there, "no file without its disk, no disk without its file");
    assert_eq!(device.breaches(), [""; 0], "open to all");
}

/// Returns how many commands the deed takes.
async fn sweep(deed: Deed, mishap: Mishap, firmware: &Firmware, another: bool) -> usize {
    for at in 0..100 {
        let (link, target) = prepare(deed, firmware).await;
        link.go_wrong(at, mishap);
        let done = carry_out(deed, &target).await;
        let over = link.calm();
        if done {
            check(deed, &link.device, &target).await;
        }
        if over {
            assert!(done);
            return at;
        }
        let target = if another { connect(&link).await } else { target };
        assert!(carry_out(deed, &target).await, "{deed:?} again after {mishap:?} at {at}");
        link.settle();
        check(deed, &link.device, &target).await;
    }
    panic!("{deed:?} never ends");
}

async fn sweep_all(firmware: &Firmware) -> usize {
    let mut points = 0;
    for deed in DEEDS {
        for mishap in Mishap::ALL {
            for another in [false, true] {
                points += sweep(deed, mishap, firmware, another).await;
            }
        }
    }
    points
}

#[tokio::test]
async fn a_mishap_at_every_command_of_every_deed() {
    let mut points = 0;
    for firmware in [
        Firmware::default(),
        careless(),
        complaining(),
        Firmware { backwards: true, status_of_errors: 0, ..complaining() },
        Firmware { knows_allow_list: false, ..Firmware::default() },
    ] {
        points += sweep_all(&firmware).await;
    }
    bowline_testkit::say(&format!("rds: {points} mishaps at every command of every deed"));
}
