//! The real process and a simulated RouterOS device, over real SSH.

use bowline_csi::wire;
use bowline_target::context;
use bowline_testkit::driver::{Driver, MIB, RWO, from_snapshot, refusal};
use bowline_testkit::routeros::{Firmware, KeyPair, Login, RouterOs, Sessions, SshServer};
use bowline_testkit::world::{Daemon, Running, World, wait_until};
use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use tonic::Code;

use crate::BOWLINE;

/// A world with a device beside it.
pub(crate) struct Rack {
    pub(crate) world: World,
    pub(crate) device: RouterOs,
    server: SshServer,
}

impl Rack {
    pub(crate) async fn new(firmware: Firmware) -> Self {
        let (world, key) = (World::new(BOWLINE), KeyPair::new());
        fs::create_dir_all(world.path("data")).unwrap();
        fs::write(world.path("key"), &key.private).unwrap();
        let device = RouterOs::new(firmware);
        let login = Login { user: "bowline".to_owned(), password: None, keys: vec![key.public] };
        let server = SshServer::start(device.clone(), login).await;
        Self { world, device, server }
    }

    /// What is said of the device, with this host key pinned, or none.
    fn table(&self, host_key: Option<&str>) -> String {
        let pinned = host_key.map(|key| format!("host-key = \"{key}\"\n")).unwrap_or_default();
        format!(
            "address = \"{}\"\nuser = \"bowline\"\nkey-file = \"{}\"\n{pinned}pool = \"storage-pool\"\n\
             directory = \"/storage-pool/bowline\"\nexports = [\"192.0.2.9:4420\"]\ninstallation = \"lab-1\"\n",
            self.server.address(),
            self.world.path("key").display(),
        )
    }

    /// Starts `bowline up` with the device in its configuration.
    pub(crate) fn up(&self, host_key: Option<&str>) -> Daemon {
        self.up_with(host_key, &[])
    }

    fn up_with(&self, host_key: Option<&str>, more: &[&str]) -> Daemon {
        let text = format!("target = \"none\"\n\n[rds.box]\n{}", self.table(host_key));
        fs::write(self.world.path("data").join("bowline.toml"), text).unwrap();
        self.world.up(more)
    }

    /// What `bowline doctor --orphans` says.
    fn orphans(&self) -> String {
        let told = Command::new(BOWLINE)
            .args(["--data".as_ref(), self.world.path("data").as_os_str()])
            .args(["doctor", "--orphans"])
            .output()
            .unwrap();
        String::from_utf8(told.stdout).unwrap()
    }

    /// Starts an agent in front of the device, and `bowline up` that asks it.
    fn agent(&self) -> (Running, Daemon) {
        (self.agent_alone(), self.up_with_agent())
    }

    fn up_with_agent(&self) -> Daemon {
        let agent = format!("box=unix://{}", self.world.path("agent.sock").display());
        self.world.up(&["--target", "none", "--agent", &agent])
    }

    fn agent_alone(&self) -> Running {
        let (file, socket) = (self.world.path("device.toml"), self.world.path("agent.sock"));
        fs::write(&file, self.table(Some(&self.pinned()))).unwrap();
        let listen = format!("unix://{}", socket.display());
        let child = Command::new(BOWLINE)
            .args(["target", "--id", "box", "--http", "off", "--listen", &listen, "--device"])
            .arg(&file)
            .spawn()
            .unwrap();
        let agent = Running(child);
        wait_until("the agent to listen", || UnixStream::connect(&socket).ok());
        agent
    }

    pub(crate) fn pinned(&self) -> String {
        self.server.host_key().fingerprint()
    }

    /// What the link to the device is like, as `bowline doctor` tells it.
    fn link(&self) -> (bool, String) {
        let told = Command::new(BOWLINE)
            .args(["--data".as_ref(), self.world.path("data").as_os_str()])
            .args(["doctor", "-o", "json"])
            .output()
            .unwrap();
        let report: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let link = findings.iter().find(|one| one["what"] == "the link to the device of target box").unwrap();
        (link["present"].as_bool().unwrap(), link["detail"].as_str().unwrap().to_owned())
    }

    fn metric(&self, name: &str) -> String {
        let mut api = UnixStream::connect(self.world.path("data").join("api.sock")).unwrap();
        api.write_all(b"GET /metrics HTTP/1.1\r\nHost: bowline\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        api.read_to_string(&mut text).unwrap();
        let of = format!("{name}{{target=\"box\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&of));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).to_owned()
    }
}

pub(crate) async fn create(
    driver: &mut Driver,
    name: &str,
    from: Option<&str>,
) -> Result<wire::Volume, tonic::Status> {
    let request = wire::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(wire::CapacityRange { required_bytes: 64 * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![RWO.capability()],
        parameters: HashMap::from([("kind".to_owned(), "rds".to_owned())]),
        volume_content_source: from.map(|from| wire::VolumeContentSource { r#type: from_snapshot(from) }),
        ..Default::default()
    };
    Ok(driver.controller.create_volume(request).await?.into_inner().volume.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_on_a_device_is_let_in_to_by_one_node_at_a_time_over_every_restart() {
    let rack = Rack::new(Firmware::default()).await;
    let daemon = rack.up(Some(&rack.pinned()));
    let mut driver = Driver::connect(&rack.world, &daemon).await;
    let volume = create(&mut driver, "db", None).await.unwrap();
    let id = &volume.volume_id;

    let context = driver.publish(&volume, "worker-1", RWO, false).await.unwrap();
    let [door] = &rack.device.doors()[..] else { panic!("{:?}", rack.device.doors()) };
    assert_eq!((&door.nqn, door.host.as_ref()), (&context[context::NQN], Some(&context[context::HOST_NQN])));
    assert_eq!(context[context::ADDRESSES], "192.0.2.9:4420");
    assert_eq!(context[context::NAMESPACE], bowline_core::ONLY_NAMESPACE, "the device cannot be told a UUID");
    let (code, why) = refusal(driver.publish(&volume, "worker-2", RWO, false).await);
    assert_eq!(code, Code::FailedPrecondition, "{why}");
    let (code, why) = refusal(driver.snapshot("early", id).await);
    assert_ne!(code, Code::Ok, "somebody may write while it is copied: {why}");

    daemon.kill();
    let daemon = rack.up(Some(&rack.pinned()));
    let mut driver = Driver::connect(&rack.world, &daemon).await;
    assert_eq!(rack.device.doors(), std::slice::from_ref(door), "a restart closes nothing and opens nothing");
    assert_eq!(driver.grow(id, 96 * MIB).await.unwrap(), 96 * MIB);
    driver.unpublish(id, "worker-1").await.unwrap();
    assert_eq!(rack.device.doors(), []);
    let next = driver.publish(&volume, "worker-2", RWO, false).await.unwrap();
    assert_ne!(next[context::NQN], context[context::NQN]);
    driver.unpublish(id, "worker-2").await.unwrap();

    let snapshot = driver.snapshot("late", id).await.unwrap();
    let clone = create(&mut driver, "copy", Some(&snapshot.snapshot_id)).await;
    let (code, why) = refusal(clone);
    assert_eq!(code, Code::OutOfRange, "a copy is as large as its source now: {why}");
    assert_eq!(rack.link(), (true, "connected, 0 commands under way".to_owned()));
    assert_eq!(rack.metric("bowline_rds_connected"), "1");
    driver.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    driver.delete(id).await.unwrap();
    assert_eq!((rack.device.slots(), rack.device.files()), (vec![], vec![]));
    assert_eq!(rack.device.breaches(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_in_front_of_a_device_names_its_exports_as_the_device_does() {
    let rack = Rack::new(Firmware::default()).await;
    let (agent, daemon) = rack.agent();
    let mut driver = Driver::connect(&rack.world, &daemon).await;
    let volume = create(&mut driver, "db", None).await.unwrap();
    let context = driver.publish(&volume, "worker-1", RWO, false).await.unwrap();
    let [door] = &rack.device.doors()[..] else { panic!("{:?}", rack.device.doors()) };
    assert_eq!((&door.nqn, door.host.as_ref()), (&context[context::NQN], Some(&context[context::HOST_NQN])));
    assert_eq!(context[context::NAMESPACE], bowline_core::ONLY_NAMESPACE);
    driver.unpublish(&volume.volume_id, "worker-1").await.unwrap();
    driver.delete(&volume.volume_id).await.unwrap();
    assert_eq!((rack.device.slots(), rack.device.breaches()), (vec![], vec![]));
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_was_replaced_behind_its_agent_proves_nothing() {
    let rack = Rack::new(Firmware::default()).await;
    let (agent, daemon) = rack.agent();
    let mut driver = Driver::connect(&rack.world, &daemon).await;
    let volume = create(&mut driver, "db", None).await.unwrap();
    driver.publish(&volume, "worker-1", RWO, false).await.unwrap();
    let doors = rack.device.doors();

    // Somebody pins the key of the new device, under the old name and with the old installation.
    drop(agent);
    rack.server.set_host_key(KeyPair::new());
    let agent = rack.agent_alone();
    let (code, why) = refusal(driver.unpublish(&volume.volume_id, "worker-1").await);
    assert!(code == Code::Unavailable && why.contains("other storage than before"), "{code}: {why}");
    assert_eq!(rack.device.doors(), doors, "it may be another device, whose word is no proof about this one");
    daemon.stop();
    let daemon = rack.up_with_agent();
    let log = rack.world.log("worker-1");
    assert!(log.contains("if the storage was replaced on purpose"), "{log}");
    let mut driver = Driver::connect(&rack.world, &daemon).await;
    let (code, why) = refusal(driver.publish(&volume, "worker-2", RWO, false).await);
    assert!(code == Code::Unavailable && why.contains("whom target box lets in"), "{code}: {why}");
    assert_eq!(rack.device.doors(), doors);
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_away_is_not_taken_for_one_that_lets_nobody_in() {
    let rack = Rack::new(Firmware::default()).await;
    let daemon = rack.up(Some(&rack.pinned()));
    let mut driver = Driver::connect(&rack.world, &daemon).await;
    let volume = create(&mut driver, "db", None).await.unwrap();
    driver.publish(&volume, "worker-1", RWO, false).await.unwrap();

    rack.server.switch_off(Sessions::Closed);
    let mut request = tonic::Request::new(wire::ControllerUnpublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        node_id: "worker-1".to_owned(),
        ..Default::default()
    });
    request.set_timeout(std::time::Duration::from_secs(3));
    let refused = driver.controller.controller_unpublish_volume(request).await.unwrap_err();
    assert!(
        matches!(
            refused.code(),
            Code::DeadlineExceeded | Code::Aborted | Code::Cancelled | Code::Unavailable
        ),
        "{refused}"
    );
    let (code, why) = refusal(driver.publish(&volume, "worker-2", RWO, false).await);
    assert!(code != Code::Ok && why.contains("worker-1"), "{code}: {why}");
    let (present, detail) =
        wait_until("the link to be told lost", || Some(rack.link()).filter(|(present, _)| !present));
    assert!(!present && detail.contains("failure"), "{detail}");
    assert_ne!(rack.metric("bowline_rds_failures"), "0");

    rack.server.switch_on();
    // As an orchestrator would: again, until the device is tried again and proves it.
    let mut tries = 0;
    while let Err(status) = driver.unpublish(&volume.volume_id, "worker-1").await {
        tries += 1;
        assert!(status.code() == Code::Unavailable && tries < 20, "{status}");
    }
    driver.publish(&volume, "worker-2", RWO, false).await.unwrap();
    driver.unpublish(&volume.volume_id, "worker-2").await.unwrap();
    driver.delete(&volume.volume_id).await.unwrap();
    assert_eq!(rack.device.breaches(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_record_was_lost_is_told_and_deleted_only_where_that_is_asked_for() {
    let (rack, grace) = (Rack::new(Firmware::default()).await, ["--orphan-grace", "1s"]);
    let daemon = rack.up(Some(&rack.pinned()));
    let volume = create(&mut Driver::connect(&rack.world, &daemon).await, "db", None).await.unwrap();
    assert!(rack.orphans().contains("Every volume on every target has a record"), "{}", rack.orphans());
    daemon.stop();
    fs::remove_dir_all(rack.world.path("data/store")).unwrap();

    let daemon = rack.up_with(Some(&rack.pinned()), &[&["--orphans", "report"][..], &grace].concat());
    let told = wait_until("its time to be over", || {
        Some(rack.orphans()).filter(|told| told.contains("long enough"))
    });
    assert!(told.contains(&format!("{} on box has no record", volume.volume_id)), "{told}");
    assert_eq!(
        rack.device.slots(),
        std::slice::from_ref(&volume.volume_id),
        "nobody asked for more than to be told"
    );
    daemon.stop();

    let daemon = rack.up_with(Some(&rack.pinned()), &[&["--orphans", "delete"][..], &grace].concat());
    wait_until("it to be gone, file and all", || {
        (rack.device.slots().is_empty() && rack.device.files().is_empty()).then_some(())
    });
    assert_eq!(rack.device.breaches(), [""; 0]);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_whose_key_is_not_pinned_or_another_than_before_gets_no_command() {
    let rack = Rack::new(Firmware::default()).await;
    let daemon = rack.up(None);
    let mut driver = Driver::connect(&rack.world, &daemon).await;
    let (code, why) = refusal(create(&mut driver, "db", None).await);
    assert_ne!(code, Code::Ok, "{why}");
    let log = rack.world.log("worker-1");
    assert!(log.contains(&rack.pinned()) && log.contains("host-key in bowline.toml"), "{log}");
    assert_eq!(rack.device.carried_out(), [""; 0]);
    daemon.stop();

    let daemon = rack.up(Some(&rack.pinned()));
    create(&mut Driver::connect(&rack.world, &daemon).await, "db", None).await.unwrap();
    daemon.stop();
    let before = rack.device.carried_out().len();
    rack.server.set_host_key(KeyPair::new());
    let daemon = rack.up(Some(&rack.pinned()));
    let log = rack.world.log("worker-1");
    assert!(log.contains("if the storage was replaced on purpose"), "{log}");
    assert_eq!(rack.device.carried_out().len(), before, "pinned anew by mistake, it may be another device");
    daemon.stop();
}
