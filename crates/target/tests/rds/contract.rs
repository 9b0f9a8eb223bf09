//! The suites that every adapter passes, on devices of several kinds.

use crate::device::{Firmware, PLAIN};
use crate::lab::{MIB, Raw, grant, lab, order, plain, settings, volume};
use bowline_core::NvmeNames;
use bowline_target::rds::{Console, Guarantee, RdsTarget, Settings};
use bowline_target::{NvmeContext, Progress, Provision, RDS, Target, contract};
use std::sync::Arc;

async fn suites(firmware: Firmware) {
    let ids = ["v1", "v2", "V.3_x"];
    let (device, target) = lab(firmware, &ids).await;
    contract::run_for_one_host(&target, &ids.map(volume)).await;
    for id in ids {
        target.delete(&volume(id)).await.unwrap();
    }
    for prefix in ["plain-", "Odd._"] {
        contract::provision::run(&target, &Raw(Arc::clone(&device)), prefix).await;
    }
    let state = device.state();
    assert_eq!((state.disks.len(), state.files.len()), (0, 0), "nothing is left");
    assert!(!firmware.hosts || state.admitted.iter().all(|(.., host)| !host.is_empty()), "never open to all");
}

#[tokio::test]
async fn the_contract_is_kept() {
    suites(PLAIN).await;
}

#[tokio::test]
async fn the_contract_is_kept_where_what_finds_nothing_is_an_error() {
    suites(Firmware { complains: true, ..PLAIN }).await;
    suites(Firmware { complains: true, gentle: true, width: 64, ..PLAIN }).await;
}

#[tokio::test]
async fn the_contract_is_kept_where_commands_are_applied_from_their_end() {
    suites(Firmware { backwards: true, width: 200, ..PLAIN }).await;
}

#[tokio::test]
async fn the_contract_is_kept_without_names_of_hosts() {
    suites(Firmware { hosts: false, ..PLAIN }).await;
}

#[tokio::test]
async fn what_is_told_of_a_grant_is_what_the_node_expects() {
    let (device, target) = plain(&["v"]).await;
    assert_eq!(
        (target.kind(), target.installation(), target.guarantee()),
        (RDS, "lab-1", Guarantee::OneHost)
    );
    let grant = grant("v", "worker-1", 7);
    target.allow(&grant).await.unwrap();
    let told = target.context(&grant);
    let nvme = NvmeContext::parse(|key| told.get(key).map(String::as_str)).unwrap().unwrap();
    // As the node computes them again: everything before the volume is the storage's name.
    let names = NvmeNames::new("lab-1:wfn:worker-1", &grant.volume, &grant.node, grant.epoch);
    assert_eq!(nvme.names, names);
    let state = device.state();
    assert_eq!((&state.disks[0].nqn, &state.disks[0].host), (&names.subsystem, &names.host));
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let (device, _) = plain(&[]).await;
    let good = settings();
    for (bad, setting) in [
        (Settings { installation: String::new(), ..good.clone() }, "installation"),
        (Settings { installation: "a:b".to_owned(), ..good.clone() }, "installation"),
        (Settings { pool: "a b".to_owned(), ..good.clone() }, "pool"),
        (Settings { directory: "/elsewhere/x".to_owned(), ..good.clone() }, "directory"),
        (Settings { directory: "/storage-pool/../x".to_owned(), ..good.clone() }, "directory"),
        (Settings { directory: "/storage-pool/a*".to_owned(), ..good.clone() }, "directory"),
        (Settings { take_over: Some("/elsewhere/x".to_owned()), ..good.clone() }, "take-over"),
        (Settings { take_over: Some(String::new()), ..good.clone() }, "take-over"),
        (Settings { take_over: Some("storage-pool/bowline/".to_owned()), ..good.clone() }, "take-over"),
        (Settings { addresses: Vec::new(), ..good.clone() }, "addresses"),
        (
            Settings {
                addresses: vec!["10.0.0.1:1".parse().unwrap(), "10.0.0.1:2".parse().unwrap()],
                ..good.clone()
            },
            "addresses",
        ),
    ] {
        let console = Arc::clone(&device) as Arc<dyn Console>;
        let error = RdsTarget::connect(console, bad).await.err().unwrap().to_string();
        assert!(error.starts_with(&format!("{setting} must be ")), "{error}");
    }
    let other =
        Settings { pool: "other".to_owned(), directory: "/other/x".to_owned(), take_over: None, ..good };
    let error = RdsTarget::connect(Arc::clone(&device) as Arc<dyn Console>, other).await.err().unwrap();
    assert!(error.to_string().contains("pool other is not in the list of disks"), "{error}");
}

#[tokio::test]
async fn a_directory_with_a_space_is_one_directory() {
    let (device, _) = plain(&[]).await;
    let spaced = Settings { directory: "/storage-pool/my volumes/".to_owned(), ..settings() };
    let target = RdsTarget::connect(Arc::clone(&device) as Arc<dyn Console>, spaced).await.unwrap();
    for _ in 0..2 {
        assert_eq!(target.create(&order("v", MIB, None), &Progress::default()).await, Ok(MIB));
    }
    assert!(device.state().disks[0].path.starts_with("/storage-pool/my volumes/v."));
    target.delete(&volume("v")).await.unwrap();
    assert!(device.state().files.is_empty());
}
