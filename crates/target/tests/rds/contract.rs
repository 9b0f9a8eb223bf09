//! The suites that every adapter passes, on devices of several kinds.

use crate::lab::{MIB, careless, complaining, connect_with, grant, lab, order, plain, settings, volume};
use crate::rack::Raw;
use bowline_core::NvmeNames;
use bowline_target::rds::{Guarantee, Settings};
use bowline_target::{NvmeContext, Progress, Provision, RDS, Target, contract};
use bowline_testkit::routeros::Firmware;

async fn suites(firmware: Firmware) {
    let ids = ["v1", "v2", "V.3_x"];
    let (link, target) = lab(firmware, &ids).await;
    contract::run_for_one_host(&target, &ids.map(volume)).await;
    for id in ids {
        target.delete(&volume(id)).await.unwrap();
    }
    for prefix in ["plain-", "Odd._"] {
        contract::provision::run(&target, &Raw(link.device.clone()), prefix).await;
    }
    assert_eq!((link.device.slots(), link.device.files()), (vec![], vec![]), "nothing is left");
    assert_eq!(link.device.breaches(), [""; 0], "never open to all");
}

#[tokio::test]
async fn the_contract_is_kept() {
    suites(Firmware::default()).await;
    suites(careless()).await;
}

#[tokio::test]
async fn the_contract_is_kept_where_what_finds_nothing_is_an_error() {
    suites(complaining()).await;
    suites(Firmware { status_of_errors: 0, width: 64, ..complaining() }).await;
}

#[tokio::test]
async fn the_contract_is_kept_where_commands_are_applied_from_their_end() {
    suites(Firmware { backwards: true, width: 200, ..Firmware::default() }).await;
}

#[tokio::test]
async fn the_contract_is_kept_without_names_of_hosts() {
    suites(Firmware { knows_allow_list: false, ..Firmware::default() }).await;
}

#[tokio::test]
async fn what_is_told_of_a_grant_is_what_the_node_expects() {
    let (link, target) = plain(&["v"]).await;
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
    let door = &link.device.doors()[0];
    assert_eq!((&door.nqn, &door.host), (&names.subsystem, &Some(names.host)));
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let (link, _) = plain(&[]).await;
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
        let error = connect_with(&link, bad).await.err().unwrap().to_string();
        assert!(error.starts_with(&format!("{setting} must be ")), "{error}");
    }
    let other =
        Settings { pool: "other".to_owned(), directory: "/other/x".to_owned(), take_over: None, ..good };
    let error = connect_with(&link, other).await.err().unwrap();
    assert!(error.to_string().contains("pool other is not in the list of disks"), "{error}");
}

#[tokio::test]
async fn a_directory_with_a_space_is_one_directory() {
    let (link, _) = plain(&[]).await;
    let spaced = Settings { directory: "/storage-pool/my volumes/".to_owned(), ..settings() };
    let target = connect_with(&link, spaced).await.unwrap();
    for _ in 0..2 {
        assert_eq!(target.create(&order("v", MIB, None), &Progress::default()).await, Ok(MIB));
    }
    assert!(link.device.file_of("v").unwrap().starts_with("storage-pool/my volumes/v."));
    target.delete(&volume("v")).await.unwrap();
    assert_eq!(link.device.files(), []);
}
