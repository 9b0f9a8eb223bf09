//! `bowline node` beside a kubelet: the real process, and a caller that does what a kubelet does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed check is a panic"
)]

use bowline_csi::wire::NodeGetInfoRequest;
use bowline_csi::wire::node_client::NodeClient;
use bowline_csi::wire::registration::registration_client::RegistrationClient;
use bowline_csi::wire::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use bowline_testkit::driver::channel;
use bowline_testkit::world::{Daemon, PATIENCE, World};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

struct Machine {
    world: World,
    _up: Daemon,
}

impl Machine {
    fn new() -> Self {
        let world = World::new(BOWLINE);
        std::fs::create_dir(world.path("kubelet")).unwrap();
        let up = world.up(&[]);
        Self { world, _up: up }
    }

    fn start(&self) -> Daemon {
        let kubelet = self.world.path("kubelet");
        self.world.beside_kubelet("worker-2", &kubelet, &[], &["--http", "127.0.0.1:0"])
    }

    fn registry(&self) -> PathBuf {
        self.world.path("kubelet/plugins_registry/bowline.storage-reg.sock")
    }

    fn csi(&self) -> PathBuf {
        self.world.path("kubelet/plugins/bowline.storage/csi.sock")
    }

    /// The address that the process said last.
    fn address(&self) -> SocketAddr {
        let log = self.world.log("worker-2");
        let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let address = lines.filter_map(|line| Some(line.get("address")?.as_str()?.to_owned())).next();
        address.expect("an address in the log").parse().unwrap()
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = tokio::net::TcpStream::connect(self.address()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// What a kubelet does with a socket it finds: asks who is there, calls the driver, tells what came of it.
    async fn register(&self, error: &str) -> PluginInfo {
        let mut plugin = RegistrationClient::new(channel(&self.registry()));
        let info = plugin.get_info(InfoRequest {}).await.unwrap().into_inner();
        let mut driver = NodeClient::new(channel(info.endpoint.as_ref()));
        let node = driver.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
        assert_eq!(node.node_id, "worker-2");
        let status = RegistrationStatus { plugin_registered: error.is_empty(), error: error.to_owned() };
        plugin.notify_registration_status(status).await.unwrap();
        info
    }

    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        let begun = Instant::now();
        while !is_so().await {
            assert!(
                begun.elapsed() < PATIENCE,
                "waited {PATIENCE:?} for {what}:\n{}",
                self.world.log("worker-2")
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn the_kubelet_registers_the_driver_and_readiness_says_what_it_said() {
    let machine = Machine::new();
    let daemon = machine.start();
    assert_eq!(machine.get("/healthz").await.0, 200);
    let (status, why) = machine.get("/readyz").await;
    assert_eq!(
        (status, why.as_str()),
        (503, "not ready: the kubelet has not registered bowline.storage yet\n")
    );

    let info = machine.register("the version is not known").await;
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "bowline.storage"));
    assert_eq!(PathBuf::from(&info.endpoint), machine.csi());
    assert_eq!(info.supported_versions, ["1.0.0"]);
    let (status, why) = machine.get("/readyz").await;
    assert_eq!(status, 503);
    assert!(why.contains("the version is not known"), "{why}");

    // A kubelet that starts anew asks again, on the same socket.
    for _ in 0..2 {
        machine.register("").await;
        assert_eq!(machine.get("/readyz").await.0, 200);
    }
    let (status, metrics) = machine.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(metrics.contains("bowline_stale_mounts_detected_total"), "{metrics}");

    tokio::task::spawn_blocking(|| daemon.stop()).await.unwrap();
    assert!(!machine.registry().exists() && !machine.csi().exists(), "a stop takes the sockets away");
}

#[tokio::test]
async fn sockets_that_a_crash_left_are_replaced_and_one_that_was_removed_comes_back() {
    let machine = Machine::new();
    machine.start().kill();
    for left in [machine.registry(), machine.csi()] {
        assert!(std::fs::metadata(&left).unwrap().file_type().is_socket(), "{}", left.display());
    }
    let _daemon = machine.start();
    machine.register("").await;
    let names = |directory: &str| -> Vec<_> {
        let entries = std::fs::read_dir(machine.world.path("kubelet").join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(
        names("plugins_registry"),
        ["bowline.storage-reg.sock"],
        "the kubelet takes what it finds for plugins"
    );

    let inode = || std::fs::symlink_metadata(machine.registry()).map(|found| found.ino()).ok();
    std::fs::remove_file(machine.registry()).unwrap();
    machine.until("the registration socket to come back", async || inode().is_some()).await;
    assert_eq!(machine.get("/readyz").await.0, 503, "the kubelet has to register it again");
    machine.register("").await;
    assert_eq!(machine.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn a_second_process_does_not_take_the_sockets_of_the_first() {
    let machine = Machine::new();
    let _daemon = machine.start();
    let data = machine.world.path("data");
    let kubelet = machine.world.path("kubelet");
    let output = std::process::Command::new(BOWLINE)
        .args(["node", "--node", "worker-3", "--data"])
        .arg(&data)
        .arg("--kubelet")
        .arg(&kubelet)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("is in use: another process answers on it"), "{told}");
    machine.register("").await;
}
