//! The suites that every adapter passes.

use crate::lab::{EMPTY, Lab, MIB, Raw, lab, listed, open, order, volume};
use bowline_target::contract;
use bowline_target::file::Policy;
use bowline_target::{Provision, Target};
use std::path::Path;

fn suites(lab: &Lab, directory: &Path) {
    let policy = Policy { overcommit: 100, reserve: 8 * MIB };
    let target = open(directory, policy).unwrap();
    for id in ["v1", "v2", ".V3"] {
        lab.create(&target, &order(id, MIB, None)).unwrap();
    }
    let volumes = [volume("v1"), volume("v2"), volume(".V3")];
    lab.runtime.block_on(contract::run(&target, &volumes));
    for id in &volumes {
        lab.runtime.block_on(target.delete(id)).unwrap();
    }
    for prefix in ["plain-", "Odd.!#"] {
        lab.runtime.block_on(contract::provision::run(&target, &Raw(&target), prefix));
    }
    drop(target);
    assert_eq!(listed(directory), EMPTY, "nothing is left");
}

#[test]
fn the_contract_is_kept_on_the_disk() {
    lab("contract::the_contract_is_kept_on_the_disk", &[], |lab| suites(lab, &lab.path("volumes")));
}

#[test]
fn the_contract_is_kept_in_memory() {
    lab("contract::the_contract_is_kept_in_memory", &[], |lab| suites(lab, &lab.scratch("tmpfs", 64)));
}

#[test]
fn the_contract_is_kept_on_xfs() {
    lab("contract::the_contract_is_kept_on_xfs", &["mkfs.xfs"], |lab| {
        suites(lab, &lab.scratch("xfs", 320).join("v"));
    });
}

#[test]
fn the_contract_is_kept_on_btrfs() {
    lab("contract::the_contract_is_kept_on_btrfs", &["mkfs.btrfs"], |lab| {
        suites(lab, &lab.scratch("btrfs", 256).join("v"));
    });
}

#[test]
fn the_target_says_where_and_what_it_is() {
    lab("contract::the_target_says_where_and_what_it_is", &[], |lab| {
        let target = lab.open(&lab.path("volumes"));
        assert_eq!(target.id().as_str(), "file");
        let topology: Vec<_> = target.topology().into_iter().collect();
        assert_eq!(topology, [("topology.bowline.storage/host".to_owned(), "here".to_owned())]);
        let sizes = target.sizes();
        assert_eq!((sizes.minimum, sizes.multiple), (MIB, 4096));
        assert!(sizes.maximum <= i64::MAX.unsigned_abs() && sizes.maximum >= 1 << 40);
        lab.create(&target, &order("largest", sizes.maximum, None)).unwrap();
    });
}

#[test]
fn the_contract_is_kept_behind_an_agent() {
    use bowline_target::agent::{AgentClient, AgentServer, ClientSettings, Listener, Place};
    use std::sync::Arc;
    lab("contract::the_contract_is_kept_behind_an_agent", &[], |lab| {
        let (directory, socket) = (lab.path("volumes"), lab.path("agent.sock"));
        let target = Arc::new(open(&directory, Policy { overcommit: 100, reserve: 8 * MIB }).unwrap());
        lab.runtime.block_on(async {
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            let server = AgentServer::new(Arc::clone(&target) as _, "file", "1");
            let serving = tokio::spawn(server.run(Listener::Unix(listener), std::future::pending()));
            let client = AgentClient::connect(Place::Unix(socket.clone()), None, ClientSettings::default());
            let client = client.await.unwrap();
            let volumes = [volume("v1"), volume("v2"), volume(".V3")];
            for id in &volumes {
                let order = order(id.as_str(), MIB, None);
                client.create(&order, &bowline_target::Progress::default()).await.unwrap();
            }
            contract::run(&client, &volumes).await;
            for id in &volumes {
                client.delete(id).await.unwrap();
            }
            contract::provision::run(&client, &Raw(&target), "far-").await;
            serving.abort();
        });
        drop(target);
        assert_eq!(listed(&directory), EMPTY, "nothing is left");
    });
}

#[test]
fn a_directory_is_told_from_an_empty_one_in_its_place() {
    lab("contract::a_directory_is_told_from_an_empty_one_in_its_place", &[], |lab| {
        let there = lab.path("volumes");
        let first = lab.open(&there).installation().to_owned();
        assert!(!first.is_empty());
        assert_eq!(lab.open(&there).installation(), first, "it is the same for ever");
        assert_ne!(lab.open(&lab.path("empty")).installation(), first);
    });
}
