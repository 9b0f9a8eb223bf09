//! The network of a cluster lab: one switch to which this machine, the control plane and the nodes are connected.
//!
//! The switch is in a network namespace of its own. All that the machine sees of it is one end of a cable.

use super::process::{Place, Process};
use super::programs::installed;
use super::wait_for;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The switch, and the addresses that belong to it.
pub(super) struct Network {
    /// Sets this lab's addresses apart from those of another.
    number: u8,
    holder: Option<Process>,
}

impl Network {
    /// A switch to which only this machine is connected.
    pub(super) fn new(directory: &Path, place: &Place) -> Self {
        let number = (0..=255)
            .find(|number| !Path::new(&format!("/sys/class/net/bowlab{number}")).exists())
            .unwrap_or_else(|| panic!("256 labs run on this machine: end one (make lab-down)"));
        let arguments = ["--net", "--", "sleep", "infinity"].map(str::to_owned);
        let holder = place.start("network", &installed("unshare"), &arguments);
        let pid = holder.pid();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        wait_for("the lab's network namespace", Duration::from_secs(20), || {
            std::fs::read_link(format!("/proc/{pid}/ns/net")).ok().filter(|theirs| *theirs != own)
        });
        let network = Self { number, holder: Some(holder) };
        let cable = format!("bowlab{number}");
        // For lab/clean.sh.
        std::fs::write(directory.join("cable"), &cable).unwrap();
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "machine", "netns", &pid.to_string()]);
        ip(&["address", "add", &format!("{}/24", network.machine()), "dev", &cable]);
        ip(&["link", "set", &cable, "up"]);
        let control = format!("{}/24", network.control());
        network.switch(&["link", "set", "lo", "up"]);
        network.switch(&["link", "add", "switch", "type", "bridge"]);
        network.switch(&["address", "add", &control, "dev", "switch"]);
        network.switch(&["link", "set", "switch", "up"]);
        network.switch(&["link", "set", "machine", "master", "switch", "up"]);
        network
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.number, host)
    }

    /// Where this machine is.
    pub(super) fn machine(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// Where the control plane is.
    pub(super) fn control(&self) -> Ipv4Addr {
        self.address(2)
    }

    /// Where a node is.
    pub(super) fn node(&self, index: u8) -> Ipv4Addr {
        self.address(11 + index)
    }

    /// The addresses of all pods.
    pub(super) fn pods(&self) -> String {
        format!("10.214.{}.0/24", self.number)
    }

    /// The addresses of a node's pods: up to four nodes.
    pub(super) fn pods_of(&self, index: u8) -> String {
        format!("10.214.{}.{}/26", self.number, index * 64)
    }

    fn pid(&self) -> u32 {
        self.holder.as_ref().map_or(0, Process::pid)
    }

    /// What a command line begins with to run beside the switch.
    pub(super) fn enter(&self) -> Vec<String> {
        let nsenter = installed("nsenter").display().to_string();
        vec![nsenter, format!("--net=/proc/{}/ns/net", self.pid()), "--".to_owned()]
    }

    fn switch(&self, arguments: &[&str]) {
        let enter = self.enter();
        let mut command = Command::new(&enter[0]);
        run(command.args(&enter[1..]).arg(installed("ip")).args(arguments));
    }

    /// Connects a node, given by its first process, and tells everybody where its pods are.
    pub(super) fn connect(&self, index: u8, init: u32, nodes: u8) {
        let init = init.to_string();
        let port = format!("node{index}");
        self.switch(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &init]);
        self.switch(&["link", "set", &port, "master", "switch", "up"]);
        let own = format!("{}/24", self.node(index));
        in_node(&init, &["address", "add", &own, "dev", "eth0"]);
        in_node(&init, &["link", "set", "eth0", "up"]);
        in_node(&init, &["route", "add", "default", "via", &self.control().to_string()]);
        for other in (0..nodes).filter(|other| *other != index) {
            let (pods, via) = (self.pods_of(other), self.node(other).to_string());
            in_node(&init, &["route", "add", &pods, "via", &via]);
        }
        let (pods, via) = (self.pods_of(index), self.node(index).to_string());
        self.switch(&["route", "replace", &pods, "via", &via]);
        ip(&["route", "replace", &pods, "via", &via]);
    }

    /// Pulls a node's cable, or puts it back.
    pub(super) fn set_connected(&self, index: u8, is_connected: bool) {
        self.switch(&["link", "set", &format!("node{index}"), if is_connected { "up" } else { "down" }]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A namespace outlives its processes while a connection waits for its end, so the cable is not left to the kernel.
        let _ = Command::new(installed("ip"))
            .args(["link", "delete", &format!("bowlab{}", self.number)])
            .output();
        drop(self.holder.take());
    }
}

fn in_node(init: &str, arguments: &[&str]) {
    let mut command = Command::new(installed("nsenter"));
    run(command.args([&format!("--net=/proc/{init}/ns/net"), "--"]).arg(installed("ip")).args(arguments));
}

fn ip(arguments: &[&str]) {
    run(Command::new(installed("ip")).args(arguments));
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
