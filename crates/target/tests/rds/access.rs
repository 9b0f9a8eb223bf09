//! Who is let in: round trips, order, breaches, late commands, and what the device cannot do.

use crate::lab::{
    NOBODY, careless, complaining, connect, connect_with, cut, grant, kept, lab, listed, order, plain,
    revocation, settings, shown, volume,
};
use bowline_core::{Epoch, Mode, NeverAgain, Share};
use bowline_target::rds::{ANYBODY, Guarantee, Settings};
use bowline_target::{Grant, Progress, Provision, ProvisionError, Target, TargetError};
use bowline_testkit::routeros::Firmware;

fn changes(commands: &[String]) -> Vec<String> {
    commands.iter().filter(|line| !line.contains(" print ")).cloned().collect()
}

#[tokio::test]
async fn a_publish_takes_two_round_trips_and_three_if_the_volume_was_never_seen() {
    let (link, target) = plain(&["v", "w"]).await;
    link.sent();
    target.allow(&grant("v", "a", 1)).await.unwrap();
    assert_eq!(link.sent().len(), 2, "after a creation");
    target.allow(&grant("v", "a", 1)).await.unwrap();
    assert_eq!(link.sent().len(), 1, "it is so already");
    target.revoke(&revocation("v", "a", 1)).await.unwrap();
    assert_eq!(link.sent().len(), 5, "look, off, look, closed, look");
    target.allow(&grant("v", "b", 2)).await.unwrap();
    assert_eq!(link.sent().len(), 2, "after a revocation");
    let fresh = connect(&link).await;
    link.sent();
    fresh.exports(None, 100).await.unwrap();
    assert_eq!(link.sent().len(), 1, "a list of everything");
    fresh.allow(&grant("w", "a", 1)).await.unwrap();
    assert_eq!(link.sent().len(), 2, "after a start");
    let (link, _) = plain(&["x"]).await;
    let cold = connect(&link).await;
    cold.create(&order("y", 1 << 20, None), &Progress::default()).await.unwrap();
    link.device.enter(r#"/disk add type=file file-path="/storage-pool/bowline/z.0123456789abcdef.img" file-size=1M slot="z" nvme-tcp-export=no nvme-tcp-server-nqn="nqn.2026-01.storage.bowline:lab-1:z:c0" nvme-tcp-server-allow-host-name="nqn.2026-01.storage.bowline:nobody""#);
    link.sent();
    cold.allow(&grant("z", "a", 1)).await.unwrap();
    assert_eq!(link.sent().len(), 3, "made by somebody else meanwhile");
}

#[tokio::test]
async fn a_grant_and_its_revocation_look_like_this() {
    let (link, target) = plain(&["v"]).await;
    link.sent();
    target.allow(&grant("v", "a", 1)).await.unwrap();
    target.revoke(&revocation("v", "a", 1)).await.unwrap();
    insta::assert_snapshot!(link.sent().join("\n"), @r#"
    /disk set [find slot="v" nvme-tcp-server-nqn="nqn.2026-01.storage.bowline:lab-1:v:c0" nvme-tcp-server-allow-host-name="nqn.2026-01.storage.bowline:nobody" nvme-tcp-export=no] nvme-tcp-server-nqn="nqn.2026-01.storage.bowline:lab-1:wfn:a:v:e1" nvme-tcp-server-allow-host-name="nqn.2014-08.org.nvmexpress:uuid:83904999-522b-88c2-bd7c-fe2ea76125ab" nvme-tcp-export=yes
    /disk print detail where slot="v"
    /disk print detail where slot="v"
    /disk set [find slot="v" nvme-tcp-server-nqn="nqn.2026-01.storage.bowline:lab-1:wfn:a:v:e1"] nvme-tcp-export=no
    /disk print detail where slot="v"
    /disk set [find slot="v" nvme-tcp-server-nqn="nqn.2026-01.storage.bowline:lab-1:wfn:a:v:e1" nvme-tcp-export=no] nvme-tcp-server-nqn="nqn.2026-01.storage.bowline:lab-1:v:c1" nvme-tcp-server-allow-host-name="nqn.2026-01.storage.bowline:nobody"
    /disk print detail where slot="v"
    "#);
}

#[tokio::test]
async fn at_no_moment_is_anybody_else_admitted_in_whatever_order_a_command_is_applied() {
    for backwards in [false, true] {
        let (link, target) = lab(Firmware { backwards, ..Firmware::default() }, &["v"]).await;
        let mut hosts = Vec::new();
        for (epoch, node) in [(1, "a"), (2, "b"), (3, "a")] {
            let grant = grant("v", node, epoch);
            let told = target.context(&grant);
            hosts.push(told["bowline.storage/host-nqn"].clone());
            let before = link.device.all_doors().len();
            target.allow(&grant).await.unwrap();
            target.revoke(&revocation("v", node, epoch)).await.unwrap();
            let allowed = [NOBODY, hosts.last().unwrap().as_str()];
            for door in &link.device.all_doors()[before..] {
                assert!(allowed.contains(&door.host.as_deref().unwrap_or("*")), "{door:?} at epoch {epoch}");
            }
        }
    }
}

#[tokio::test]
async fn a_late_command_of_an_ex_leader_matches_nothing() {
    for firmware in [Firmware::default(), complaining(), careless()] {
        let (link, target) = lab(firmware, &["v"]).await;
        let leader = connect(&link).await;
        link.sent();
        target.allow(&grant("v", "a", 1)).await.unwrap();
        target.revoke(&revocation("v", "a", 1)).await.unwrap();
        target.allow(&grant("v", "a", 2)).await.unwrap();
        target.grow(&volume("v"), 2 << 20).await.unwrap();
        target.revoke(&revocation("v", "a", 2)).await.unwrap();
        let old = changes(&link.sent());
        assert_eq!(old.len(), 7);
        leader.allow(&grant("v", "b", 3)).await.unwrap();
        leader.grow(&volume("v"), 3 << 20).await.unwrap();
        let before = kept(&link.device);
        for line in &old {
            link.device.enter(line);
        }
        assert_eq!(kept(&link.device), before);
        assert_eq!(listed(&leader).await, [("v".to_owned(), 3, "b".to_owned())]);
        leader.revoke(&revocation("v", "b", 3)).await.unwrap();
        for line in &old {
            link.device.enter(line);
        }
        assert_eq!(listed(&leader).await, []);
    }
}

#[tokio::test]
async fn a_second_host_is_refused_with_the_reason() {
    let (_, target) = plain(&["v"]).await;
    target.allow(&grant("v", "a", 1)).await.unwrap();
    let Err(TargetError::Refused { error }) = target.allow(&grant("v", "b", 2)).await else {
        panic!("let in")
    };
    assert_eq!(
        error,
        "this device exports a volume to one host only, and volume v is exported to node a at epoch 1"
    );
    let Err(TargetError::Refused { error }) = target.revoke(&revocation("v", "b", 2)).await else {
        panic!("proven")
    };
    assert!(error.contains("can be stored when node a (epoch 1) is out"), "{error}");
    let other = Grant { mode: Mode { frontend: false, ..grant("v", "a", 1).mode }, ..grant("v", "a", 1) };
    let Err(TargetError::Refused { error }) = target.allow(&other).await else { panic!("changed") };
    assert_eq!(error, "epoch 1 is that of node a in another way");
}

#[tokio::test]
async fn a_grant_for_reading_is_refused_unless_nodes_are_trusted() {
    let (link, target) = plain(&["v"]).await;
    let mode = Mode { write: false, frontend: true, share: Share::Readers };
    let reader = Grant { mode, ..grant("v", "a", 1) };
    let Err(TargetError::Refused { error }) = target.allow(&reader).await else { panic!("let in") };
    assert!(error.starts_with("this device cannot keep node a from writing to volume v"), "{error}");
    assert_eq!(link.device.doors(), []);
    let target = connect_with(&link, Settings { trust_readers: true, ..settings() }).await.unwrap();
    target.allow(&reader).await.unwrap();
    let page = target.exports(None, 10).await.unwrap();
    assert_eq!(page.listings[0].exports[&Epoch::new(1)].mode, mode, "the device knows it for a reader");
}

#[tokio::test]
async fn an_export_open_to_everybody_is_closed_listed_and_repaired() {
    let (link, target) = plain(&["v", "w"]).await;
    target.allow(&grant("v", "a", 1)).await.unwrap();
    link.device.enter(r#"/disk set [find slot="v"] nvme-tcp-server-allow-host-name="""#);
    link.device.enter(r#"/disk set [find slot="w"] nvme-tcp-export=yes"#);
    let anybody = |volume: &str, epoch| (volume.to_owned(), epoch, ANYBODY.to_owned());
    assert_eq!(listed(&target).await, [anybody("v", 1), anybody("w", 0)]);
    assert_eq!(link.device.doors(), [], "closed at once");
    assert_eq!(listed(&target).await, []);
    let proof = target.revoke(&revocation("v", ANYBODY, 2)).await;
    assert_eq!(proof, Ok(NeverAgain { highest: Epoch::new(1) }));
    target.allow(&grant("v", "a", 1)).await.unwrap();
    assert_eq!(listed(&target).await, [("v".to_owned(), 1, "a".to_owned())], "its holder is let in anew");
    assert!(target.allow(&grant("w", ANYBODY, 1)).await.is_err());
}

#[tokio::test]
async fn a_breach_is_closed_by_whoever_sees_it_first() {
    for by in ["allow", "revoke", "delete"] {
        let (link, target) = plain(&["v"]).await;
        target.allow(&grant("v", "a", 1)).await.unwrap();
        link.device.enter(r#"/disk set [find slot="v"] nvme-tcp-server-allow-host-name="""#);
        let before = link.device.all_doors().len();
        match by {
            "allow" => target.allow(&grant("v", "a", 1)).await.unwrap(),
            "revoke" => {
                target.revoke(&revocation("v", "a", 1)).await.unwrap();
            }
            _ => target.delete(&volume("v")).await.unwrap(),
        }
        assert!(link.device.all_doors()[before..].iter().all(|door| door.host.is_some()), "{by}");
        assert_eq!(listed(&target).await.len(), usize::from(by == "allow"));
    }
}

#[tokio::test]
async fn firmware_that_cannot_name_hosts_is_noticed_and_named() {
    let (link, target) = lab(Firmware { knows_allow_list: false, ..Firmware::default() }, &["v"]).await;
    assert_eq!(target.guarantee(), Guarantee::OnOrOff);
    link.sent();
    target.allow(&grant("v", "a", 1)).await.unwrap();
    let steps = changes(&link.sent());
    assert_eq!(steps.len(), 2, "the name before the export: {steps:?}");
    assert!(steps[0].ends_with(r#":wfn:a:v:e1""#) && steps[1].ends_with("nvme-tcp-export=yes"), "{steps:?}");
    let Err(TargetError::Refused { error }) = target.allow(&grant("v", "b", 2)).await else {
        panic!("let in")
    };
    assert!(error.contains("whoever knows the name of the export can connect"), "{error}");
    target.revoke(&revocation("v", "a", 1)).await.unwrap();
    link.device.set_firmware(|firmware| firmware.knows_allow_list = true);
    let target = connect(&link).await;
    assert_eq!(target.guarantee(), Guarantee::OneHost, "after an update");
    let before = link.device.all_doors().len();
    target.allow(&grant("v", "a", 2)).await.unwrap();
    let doors = link.device.all_doors().split_off(before);
    assert_eq!(doors.len(), 1, "{doors:?}");
}

#[tokio::test]
async fn what_is_not_ours_is_never_touched() {
    let (link, target) = plain(&[]).await;
    let foreign = r#"/disk add type=file file-path="/storage-pool/x.img" file-size=1M slot="v" nvme-tcp-export=yes nvme-tcp-server-nqn="nqn.2000-02.com.mikrotik:v""#;
    link.device.enter(foreign);
    let before = shown(&link.device);
    assert!(matches!(target.allow(&grant("v", "a", 1)).await, Err(TargetError::Refused { .. })));
    assert!(matches!(target.revoke(&revocation("v", "a", 1)).await, Err(TargetError::Refused { .. })));
    let made = target.create(&order("v", 1 << 20, None), &Progress::default()).await;
    assert!(matches!(made, Err(ProvisionError::Refused { .. })), "{made:?}");
    assert!(matches!(target.delete(&volume("v")).await, Err(ProvisionError::Refused { .. })));
    assert!(matches!(target.grow(&volume("v"), 2 << 20).await, Err(ProvisionError::Unknown { .. })));
    assert_eq!(target.volume(&volume("v")).await, Ok(None));
    let taken = target.snapshot(&[cut("s", "v")], &Progress::default()).await;
    assert!(matches!(taken, Err(ProvisionError::Unknown { .. })), "{taken:?}");
    assert_eq!(target.items(None, 10).await, Ok(Vec::new()));
    assert_eq!(listed(&target).await, []);
    assert_eq!(shown(&link.device), before);
}

#[tokio::test]
async fn what_somebody_may_write_to_is_not_copied() {
    let (link, target) = plain(&["v", "w"]).await;
    target.allow(&grant("v", "a", 1)).await.unwrap();
    for cuts in [vec![cut("s", "v")], vec![cut("t", "w"), cut("s", "v")]] {
        let taken = target.snapshot(&cuts, &Progress::default()).await;
        assert!(matches!(&taken, Err(ProvisionError::InUse { by }) if by.contains("node a")), "{taken:?}");
    }
    let from = Some(bowline_target::Source::Volume(volume("v")));
    let made = target.create(&order("clone", 1 << 20, from), &Progress::default()).await;
    assert!(matches!(made, Err(ProvisionError::InUse { .. })), "{made:?}");
    assert_eq!(link.device.slots(), ["v", "w"], "nothing was begun");
}
