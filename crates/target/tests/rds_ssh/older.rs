//! Disks of an older driver: left as they are until they are switched off and asked for, then volumes like any other.

use bowline_core::{Epoch, Mode, NeverAgain, NodeId, Share, SnapshotId, VolumeId};
use bowline_target::rds::{ConnectError, RdsTarget, Settings};
use bowline_target::{
    Cut, Grant, Item, NewVolume, Progress, Provision, ProvisionError, Revocation, Source, Target, TargetError,
};
use bowline_testkit::routeros::{Firmware, RouterOs};
use std::sync::Arc;

use crate::lab::Lab;
use crate::{contract, rack};

const ID: &str = "pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890";
const FILE: &str = "storage-pool/metal-csi/pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890.img";
const NODE: &str = "nqn.2014-08.org.nvmexpress:uuid:of-a-node-that-the-older-driver-has-connected";
const MIB: u64 = 1 << 20;

fn settings() -> Settings {
    Settings { take_over: Some("/storage-pool/metal-csi/".to_owned()), ..rack::settings() }
}

async fn connect_with(lab: &Lab, settings: Settings) -> Result<RdsTarget, ConnectError> {
    RdsTarget::connect(Arc::new(lab.over_tcp(lab.settings())), settings).await
}

async fn connect(lab: &Lab) -> RdsTarget {
    connect_with(lab, settings()).await.unwrap()
}

fn enter(device: &RouterOs, line: &str) {
    let printed = device.enter(line);
    assert_eq!(printed.status, Some(0), "{line}: {printed:?}");
}

/// What the older driver sends to make a volume.
fn add(slot: &str, nqn: &str, path: &str) -> String {
    format!(
        "/disk add type=file file-path={path} file-size=1M slot={slot} nvme-tcp-export=yes nvme-tcp-server-port=4421 nvme-tcp-server-nqn={nqn}"
    )
}

/// A device with one volume of the older driver, and a node that uses it.
async fn used() -> Lab {
    used_on(Firmware::default()).await
}

async fn used_on(firmware: Firmware) -> Lab {
    let lab = Lab::new(firmware).await;
    let nqn = format!("nqn.2000-02.com.mikrotik:{ID}");
    enter(&lab.device, &add(ID, &nqn, &format!("/{FILE}")));
    lab.device.write(FILE, 0, b"data");
    assert!(lab.device.connect(NODE, &nqn));
    lab
}

/// The same after its pods are gone and it was let go of.
async fn let_go() -> Lab {
    let_go_on(Firmware::default()).await
}

async fn let_go_on(firmware: Firmware) -> Lab {
    let lab = used_on(firmware).await;
    lab.device.disconnect(NODE);
    enter(&lab.device, &format!("/disk set [find slot=\"{ID}\"] nvme-tcp-export=no"));
    lab
}

fn shown(lab: &Lab) -> String {
    lab.device.enter("/disk print detail").out
}

fn changes(lab: &Lab, since: usize) -> Vec<String> {
    let all = lab.device.carried_out();
    all[since..].iter().filter(|line| !line.contains(" print ")).cloned().collect()
}

fn volume() -> VolumeId {
    VolumeId::new(ID).unwrap()
}

fn grant(node: &str, epoch: u64) -> Grant {
    let mode = Mode { write: true, frontend: true, share: Share::Nobody };
    Grant { volume: volume(), node: NodeId::new(node).unwrap(), epoch: Epoch::new(epoch), mode, beside: None }
}

fn revocation(node: &str, epoch: u64) -> Revocation {
    let Grant { volume, node, epoch, .. } = grant(node, epoch);
    Revocation { volume, node, epoch, fence: true }
}

fn order(id: &str, source: Option<Source>) -> NewVolume {
    NewVolume { volume: VolumeId::new(id).unwrap(), name: id.to_owned(), size: MIB, source }
}

fn cut() -> Cut {
    Cut { snapshot: SnapshotId::new("s").unwrap(), name: "s".to_owned(), volume: volume() }
}

#[tokio::test]
async fn while_it_is_exported_it_is_described_and_otherwise_left_exactly_as_it_is() {
    let lab = used().await;
    let before = (shown(&lab), lab.device.files());
    let target = connect(&lab).await;
    let progress = Progress::default();
    assert_eq!(target.volume(&volume()).await.unwrap().unwrap().size, MIB);
    assert_eq!(target.exports(None, 10).await.unwrap().listings, []);
    assert_eq!(target.items(None, 10).await, Ok(vec![]));
    assert_eq!(target.capacity().await.unwrap().promised, 0);
    let Err(TargetError::Refused { error }) = target.allow(&grant("a", 1)).await else { panic!("let in") };
    assert_eq!(
        error,
        format!(
            "volume {ID} is a disk of an older driver that is still exported as nqn.2000-02.com.mikrotik:{ID}: whoever uses it may be \
             writing, so nobody else is let in; when its pods are gone, let go of it on the device: /disk set [find slot=\"{ID}\"] \
             nvme-tcp-export=no"
        )
    );
    let unproven = target.revoke(&revocation("a", 1)).await;
    assert!(
        matches!(&unproven, Err(TargetError::Refused { error }) if error.contains("may be writing")),
        "{unproven:?}"
    );
    let from = Some(Source::Volume(volume()));
    for refused in [
        target.delete(&volume()).await,
        target.grow(&volume(), 2 * MIB).await.map(drop),
        target.snapshot(&[cut()], &progress).await.map(drop),
        target.create(&order("n", from), &progress).await.map(drop),
    ] {
        let Err(ProvisionError::InUse { by }) = &refused else { panic!("{refused:?}") };
        assert!(by.contains("an older driver exports it") && by.contains("nvme-tcp-export=no"), "{by}");
    }
    let made = target.create(&order(ID, None), &progress).await;
    assert!(
        matches!(&made, Err(ProvisionError::Refused { error }) if error.contains("is taken")),
        "{made:?}"
    );
    assert_eq!((shown(&lab), lab.device.files()), before);
    assert_eq!(lab.device.connected(ID), [NODE], "whoever uses it goes on");
}

#[tokio::test]
async fn a_start_changes_nothing_of_one_that_was_let_go_of_either() {
    let lab = let_go().await;
    let before = (shown(&lab), lab.device.files());
    let target = connect(&lab).await;
    assert_eq!(target.exports(None, 10).await.unwrap().listings, []);
    assert_eq!(target.items(None, 10).await, Ok(vec![]));
    assert_eq!(target.volume(&volume()).await.unwrap().unwrap().size, MIB);
    assert_eq!((shown(&lab), lab.device.files()), before);
}

#[tokio::test]
async fn one_that_was_let_go_of_is_taken_over_by_its_first_grant() {
    let lab = let_go().await;
    let (target, other) = (connect(&lab).await, connect(&lab).await);
    let (since, doors) = (lab.device.carried_out().len(), lab.device.all_doors().len());
    target.allow(&grant("a", 1)).await.unwrap();
    let sent = changes(&lab, since);
    insta::assert_snapshot!(sent.join("\n"), @r#"
    /disk set [find slot="pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890" nvme-tcp-server-nqn="nqn.2000-02.com.mikrotik:pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890" nvme-tcp-export=no] nvme-tcp-server-nqn="nqn.2026-01.storage.bowline:lab-1:pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890:c0" nvme-tcp-server-port=4420 nvme-tcp-server-allow-host-name="nqn.2026-01.storage.bowline:nobody"
    /disk set [find slot="pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890" nvme-tcp-server-nqn="nqn.2026-01.storage.bowline:lab-1:pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890:c0" nvme-tcp-server-allow-host-name="nqn.2026-01.storage.bowline:nobody" nvme-tcp-export=no] nvme-tcp-server-nqn="nqn.2026-01.storage.bowline:lab-1:wfn:a:pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890:e1" nvme-tcp-server-allow-host-name="nqn.2014-08.org.nvmexpress:uuid:8fb26019-c89c-8e91-bf10-dd24cf26674e" nvme-tcp-export=yes
    "#);
    let host = target.context(&grant("a", 1))["bowline.storage/host-nqn"].clone();
    for door in &lab.device.all_doors()[doors..] {
        assert_eq!(
            (door.host.as_deref(), door.port),
            (Some(host.as_str()), 4420),
            "nobody else, at no moment"
        );
    }
    // Both commands again, late, as of a controller that was paused.
    let now = shown(&lab);
    for line in &sent {
        enter(&lab.device, line);
    }
    assert_eq!(shown(&lab), now);
    let used = used().await;
    let before = shown(&used);
    enter(&used.device, &sent[0]);
    assert_eq!(shown(&used), before, "also where it was switched on in the last moment");
    assert!(matches!(other.allow(&grant("b", 2)).await, Err(TargetError::Refused { .. })), "one at a time");
    assert_eq!(other.exports(None, 10).await.unwrap().listings.len(), 1, "a volume of ours in every respect");
    assert_eq!(other.items(None, 10).await, Ok(vec![Item::Volume(volume())]));
    assert_eq!(other.revoke(&revocation("a", 1)).await, Ok(NeverAgain { highest: Epoch::new(1) }));
    assert_eq!(lab.device.read(FILE, 0, 4), b"data");
}

#[tokio::test]
async fn it_is_taken_over_with_every_firmware() {
    let each = Firmware::each().into_iter().filter(|(_, firmware)| contract::is_usable(firmware));
    let without_hosts = Firmware { knows_allow_list: false, ..Firmware::default() };
    for (name, firmware) in each.chain([("no names of hosts", without_hosts)]) {
        let lab = let_go_on(firmware).await;
        let target = connect(&lab).await;
        target.allow(&grant("a", 1)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(target.exports(None, 10).await.unwrap().listings.len(), 1, "{name}");
        assert_eq!(
            target.revoke(&revocation("a", 1)).await,
            Ok(NeverAgain { highest: Epoch::new(1) }),
            "{name}"
        );
        target.delete(&volume()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((lab.device.slots(), lab.device.files()), (vec![], vec![]), "{name}: nothing is left");
    }
}

#[tokio::test]
async fn what_was_let_go_of_is_proven_closed_grown_copied_and_deleted_with_its_file() {
    let lab = let_go().await;
    let target = connect(&lab).await;
    let progress = Progress::default();
    assert_eq!(target.revoke(&revocation("a", 4)).await, Ok(NeverAgain { highest: Epoch::new(4) }));
    assert!(matches!(target.allow(&grant("a", 4)).await, Err(TargetError::NeverAgain(_))));
    for deed in ["grow", "snapshot", "clone", "delete"] {
        let lab = let_go().await;
        let target = connect(&lab).await;
        let copy = match deed {
            "grow" => {
                assert_eq!(target.grow(&volume(), 2 * MIB).await, Ok(2 * MIB));
                None
            }
            "snapshot" => {
                target.snapshot(&[cut()], &progress).await.unwrap();
                Some("snap-s")
            }
            "clone" => {
                target.create(&order("n", Some(Source::Volume(volume()))), &progress).await.unwrap();
                Some("n")
            }
            _ => None,
        };
        if let Some(copy) = copy {
            assert_eq!(lab.device.read(&lab.device.file_of(copy).unwrap(), 0, 4), b"data", "{deed}");
        }
        target.delete(&volume()).await.unwrap();
        assert_eq!(lab.device.slots(), copy.into_iter().collect::<Vec<_>>(), "{deed}");
        assert!(lab.device.files().iter().all(|(name, _)| name != FILE), "{deed}");
        assert_eq!(lab.device.breaches().len(), 1, "{deed}: that of the older driver");
    }
}

#[tokio::test]
async fn a_file_whose_disk_is_gone_already_goes_with_its_volume_and_is_no_orphan() {
    let lab = let_go().await;
    let beside = format!("/{}", FILE.replace(".img", ".img.img"));
    enter(&lab.device, &add("beside", "x", &beside));
    enter(&lab.device, &format!("/disk remove [find slot={ID}]"));
    enter(&lab.device, "/disk remove [find slot=beside]");
    let target = connect(&lab).await;
    assert_eq!(target.items(None, 10).await, Ok(vec![]), "nobody knows whether it is ours");
    target.delete(&VolumeId::new("pvc-a1b2c3d4").unwrap()).await.unwrap();
    target.delete_snapshot(&SnapshotId::new(ID).unwrap()).await.unwrap();
    assert_eq!(lab.device.files().len(), 2, "asked for others");
    target.delete(&volume()).await.unwrap();
    let left: Vec<_> = lab.device.files().into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, [beside.trim_start_matches('/')]);
}

#[tokio::test]
async fn without_the_setting_nothing_is_seen_and_no_file_stays_behind_unsaid() {
    let lab = let_go().await;
    let before = shown(&lab);
    let plain = connect_with(&lab, rack::settings()).await.unwrap();
    assert_eq!(plain.volume(&volume()).await, Ok(None));
    assert!(
        matches!(plain.allow(&grant("a", 1)).await, Err(TargetError::Refused { error }) if error.contains("is not Bowline's"))
    );
    assert!(matches!(plain.delete(&volume()).await, Err(ProvisionError::Refused { .. })));
    assert_eq!(shown(&lab), before);

    let target = connect(&lab).await;
    target.allow(&grant("a", 1)).await.unwrap();
    target.revoke(&revocation("a", 1)).await.unwrap();
    let before = (shown(&lab), lab.device.files());
    plain.allow(&grant("a", 2)).await.unwrap();
    plain.revoke(&revocation("a", 2)).await.unwrap();
    let Err(ProvisionError::Refused { error }) = plain.delete(&volume()).await else { panic!("deleted") };
    assert!(error.contains(FILE) && error.contains("so it would stay behind; set take-over"), "{error}");
    assert_eq!(lab.device.files(), before.1);
    target.delete(&volume()).await.unwrap();
    assert_eq!((lab.device.slots(), lab.device.files()), (vec![], vec![]));
}

#[tokio::test]
async fn what_is_not_named_exactly_as_that_driver_does_is_not_touched() {
    let nqn = |id: &str| format!("nqn.2000-02.com.mikrotik:{id}");
    for (what, slot, nqn, path) in [
        ("another directory", "v", nqn("v"), "/storage-pool/elsewhere/v.img"),
        ("a directory in it", "v", nqn("v"), "/storage-pool/metal-csi/deep/v.img"),
        ("another file", "v", nqn("v"), "/storage-pool/metal-csi/w.img"),
        ("another name", "v", nqn("w"), "/storage-pool/metal-csi/v.img"),
        (
            "another's name",
            "v",
            "nqn.2026-01.storage.bowline:lab-2:v:c0".to_owned(),
            "/storage-pool/metal-csi/v.img",
        ),
        ("a snapshot", "snap-v", nqn("snap-v"), "/storage-pool/metal-csi/snap-v.img"),
    ] {
        let lab = Lab::new(Firmware::default()).await;
        enter(&lab.device, &add(slot, &nqn, path));
        enter(&lab.device, &format!("/disk set [find slot={slot}] nvme-tcp-export=no"));
        let before = (shown(&lab), lab.device.files());
        let target = connect(&lab).await;
        let volume = VolumeId::new(slot).unwrap();
        assert_eq!(target.volume(&volume).await, Ok(None), "{what}");
        let wanted = Grant { volume: volume.clone(), ..grant("a", 1) };
        assert!(matches!(target.allow(&wanted).await, Err(TargetError::Refused { .. })), "{what}");
        let grown = target.grow(&volume, 2 * MIB).await;
        assert!(matches!(grown, Err(ProvisionError::Unknown { .. })), "{what}: {grown:?}");
        let (_, _) =
            (target.delete(&volume).await, target.delete_snapshot(&SnapshotId::new("v").unwrap()).await);
        assert_eq!(target.items(None, 10).await, Ok(vec![]), "{what}");
        assert_eq!((shown(&lab), lab.device.files()), before, "{what}");
    }
}
