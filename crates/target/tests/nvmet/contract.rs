//! The suites that every adapter passes, and what is told of a grant.

use crate::lab::{ADDRESSES, Lab, MIB, Raw, cut, grant, names, open_at, order, revocation, volume};
use bowline_target::agent::{AgentClient, AgentServer, ClientSettings, Listener, Place};
use bowline_target::file::FileTarget;
use bowline_target::{NvmeContext, Progress, Provision, ProvisionError, Target, contract};
use bowline_testkit::world::wait_until;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn the_contract_is_kept() {
    let lab = Lab::new();
    let target = lab.with(&["v1", "v2", ".V3"]);
    let volumes = [volume("v1"), volume("v2"), volume(".V3")];
    lab.runtime.block_on(contract::run(&target, &volumes));
    for id in &volumes {
        lab.runtime.block_on(target.delete(id)).unwrap();
    }
    for prefix in ["plain-", "Odd.!#,"] {
        lab.runtime.block_on(contract::provision::run(&target, &Raw(&target), prefix));
    }
    lab.nothing_is_left();
}

#[test]
fn the_contract_is_kept_behind_an_agent_and_the_same_is_told() {
    let lab = Lab::new();
    let target = Arc::new(lab.with(&["v1", "v2", "v3"]));
    let socket = lab.directory.join("../agent.sock");
    lab.runtime.block_on(async {
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let server = AgentServer::new(Arc::clone(&target) as _, "nvmet", "1");
        let serving = tokio::spawn(server.run(Listener::Unix(listener), std::future::pending()));
        let client =
            AgentClient::connect(Place::Unix(socket), None, ClientSettings::default()).await.unwrap();
        assert_eq!((client.kind(), client.topology().len()), ("nvmet", 0), "reached from everywhere");
        let grant = grant("v1", "worker-1", 7);
        let told = client.context(&grant);
        assert_eq!(told, target.context(&grant), "whoever knows the target tells the same");
        let nvme = NvmeContext::parse(|key| told.get(key).map(String::as_str)).unwrap().unwrap();
        assert_eq!(nvme.names, names(&target, &grant));
        assert_eq!(nvme.addresses, ADDRESSES.map(|text| text.parse().unwrap()));
        contract::run(&client, &[volume("v1"), volume("v2"), volume("v3")]).await;
        contract::provision::run(&client, &Raw(&target), "far-").await;
        serving.abort();
    });
    lab.nothing_is_left();
}

#[test]
fn an_agent_that_came_back_at_another_address_is_noticed() {
    let lab = Lab::new();
    let socket = lab.directory.join("../agent.sock");
    // In a runtime of its own, that ends as a process does.
    let serve = |target: FileTarget| {
        let _ = std::fs::remove_file(&socket);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = AgentServer::new(Arc::new(target), "nvmet", "1");
        let listener = runtime.block_on(async { tokio::net::UnixListener::bind(&socket).unwrap() });
        runtime.spawn(server.run(Listener::Unix(listener), std::future::pending()));
        runtime
    };
    let first = serve(lab.open());
    let settings = ClientSettings { short: Duration::from_secs(2), ..ClientSettings::default() };
    let client =
        lab.runtime.block_on(AgentClient::connect(Place::Unix(socket.clone()), None, settings)).unwrap();
    let is_as_it_was = || lab.runtime.block_on(client.look()).as_it_was;
    assert!(is_as_it_was());
    first.shutdown_timeout(Duration::from_secs(5));
    assert!(is_as_it_was(), "silence says nothing");
    let moved = wait_until("the directory to be free", || {
        open_at(&lab.directory, Arc::clone(&lab.kernel), &["10.0.0.9:4420"]).ok()
    });
    let second = serve(moved);
    wait_until("the other address to be told", || (!is_as_it_was()).then_some(()));
    second.shutdown_background();
}

#[test]
fn growth_is_told_to_whoever_is_let_in() {
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    for (to, epoch) in [("a", 1), ("b", 2)] {
        lab.allow(&target, &grant("v", to, epoch)).unwrap();
    }
    lab.kernel.done();
    assert_eq!(lab.runtime.block_on(target.grow(&volume("v"), 2 * MIB)), Ok(2 * MIB));
    let told: Vec<_> = [("a", 1), ("b", 2)]
        .map(|(to, epoch)| names(&target, &grant("v", to, epoch)).subsystem)
        .map(|name| format!("write \"1\" to subsystems/{name}/namespaces/1/revalidate_size"))
        .into();
    assert_eq!(lab.kernel.done(), told);
}

#[test]
fn two_volumes_that_nodes_write_cannot_have_one_moment() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w", "idle"]);
    let take = |cuts: &[_]| lab.runtime.block_on(target.snapshot(cuts, &Progress::default()));
    for id in ["v", "w"] {
        lab.allow(&target, &grant(id, "a", 1)).unwrap();
    }
    let refused = take(&[cut("s1", "v"), cut("s2", "w")]);
    assert!(matches!(&refused, Err(ProvisionError::InUse { by }) if by.contains("node a")), "{refused:?}");
    lab.revoke(&target, &revocation("w", "a", 1)).unwrap();
    let taken = take(&[cut("s1", "v"), cut("s2", "w")]);
    // Where blocks are not shared, a copy of what is being written would have no moment at all.
    match taken {
        Ok(taken) => assert_eq!(taken.len(), 2),
        Err(ProvisionError::InUse { by }) => assert!(by.contains("copies without reflinks"), "{by}"),
        other => panic!("{other:?}"),
    }
    let clone = order("clone", MIB, Some(bowline_target::Source::Volume(volume("idle"))));
    assert_eq!(lab.runtime.block_on(target.create(&clone, &Progress::default())), Ok(MIB));
}
