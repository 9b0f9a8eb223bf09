//! A cluster of two nodes that run real pods.

use super::api::{ApiLab, Site};
use super::image::{Image, cache};
use super::janitor::Janitor;
use super::network::Network;
use super::node::{Node, Plan};
use super::process::{Place, Process};
use super::programs::{project, tools};
use super::{Access, not_run};
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// Where Bowline is installed.
pub const NAMESPACE: &str = "bowline-system";

/// How long a node or a pod may take to get ready.
pub const NODE_PATIENCE: Duration = Duration::from_secs(180);

/// What a cluster lab shall have.
#[derive(Clone, Debug)]
pub struct Options {
    /// The names of its nodes, four at most.
    pub nodes: Vec<String>,
    /// Images that its nodes have from the start, besides busybox. Nothing can be pulled.
    pub images: Vec<Image>,
    /// Whether VolumeSnapshots are known and the snapshot-controller runs.
    pub snapshots: bool,
    /// Where it keeps everything; a temporary directory if nothing is said. Removed at its end.
    pub directory: Option<PathBuf>,
    /// Whether the API server writes down what pods ask of it: see [`ClusterLab::audit`].
    pub audit: bool,
    /// Whether it waits until no other test has a cluster: they share the machine.
    pub alone: bool,
}

impl Default for Options {
    fn default() -> Self {
        let nodes = ["lab-a", "lab-b"].map(str::to_owned).to_vec();
        Self { nodes, images: vec![], snapshots: false, directory: None, audit: false, alone: true }
    }
}

/// A cluster: everything that [`ApiLab`] has, and kube-controller-manager, kube-scheduler and nodes with containerd, kubelet and
/// kube-proxy.
///
/// There is no DNS: pods find services by their address or by the variables that the kubelet sets.
pub struct ClusterLab {
    nodes: Vec<Node>,
    snapshot_controller: Mutex<Option<Process>>,
    api: ApiLab,
    network: Network,
    _turn: Option<File>,
}

impl Deref for ClusterLab {
    type Target = ApiLab;

    fn deref(&self) -> &ApiLab {
        &self.api
    }
}

impl ClusterLab {
    /// Starts a cluster and waits until its nodes are ready, or says what this machine lacks.
    pub fn start(options: &Options) -> Option<Self> {
        let missing = missing();
        if !missing.is_empty() {
            not_run(&missing.join(", "));
            return None;
        }
        let turn = options.alone.then(take_turn);
        let directory = options
            .directory
            .clone()
            .unwrap_or_else(|| tempfile::Builder::new().prefix("bowline-cluster-").tempdir().unwrap().keep());
        fs::create_dir_all(&directory).unwrap();
        let janitor = Janitor::of(&directory, Some(&project().join("lab/clean.sh")));
        let mut place = Place::new(&directory.join("log"));
        let network = Network::new(&directory, &place);
        place.enter = network.enter();
        let audit = options.audit.then(|| super::audit::write_policy(&directory));
        let api = ApiLab::at(Site { directory, place, address: network.control(), audit, janitor });
        let mut lab =
            Self { nodes: vec![], snapshot_controller: Mutex::new(None), api, network, _turn: turn };
        lab.api.controller_manager();
        lab.api.scheduler();
        let count = u8::try_from(options.nodes.len()).unwrap();
        let mut images = vec![Image::busybox().archive];
        images.extend(options.images.iter().map(|image| image.archive.clone()));
        for (index, name) in (0..count).zip(&options.nodes) {
            let plan = Plan {
                name: name.clone(),
                address: lab.network.node(index),
                pods: lab.network.pods_of(index),
                all_pods: lab.network.pods(),
            };
            let node = Node::new(&lab.api, plan);
            lab.network.connect(index, node.init(), count);
            lab.nodes.push(node);
        }
        std::thread::scope(|scope| {
            for node in &lab.nodes {
                scope.spawn(|| node.start(&lab.api, &images));
            }
        });
        if options.snapshots {
            lab.api.apply_snapshot_definitions();
            let process = lab.api.sidecar("snapshot-controller", None, Access::Admin, &[]);
            *lab.snapshot_controller.lock().unwrap() = Some(process);
        }
        for name in &options.nodes {
            lab.wait_for_node(name, true);
        }
        Some(lab)
    }

    /// Where its nodes and pods reach what this process serves.
    pub fn machine(&self) -> Ipv4Addr {
        self.network.machine()
    }

    /// A node by its name.
    pub fn node(&self, name: &str) -> &Node {
        &self.nodes[self.index(name)]
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn index(&self, name: &str) -> usize {
        let found = self.nodes.iter().position(|node| node.name() == name);
        found.unwrap_or_else(|| panic!("there is no node {name}"))
    }

    /// Waits until a node is ready, or is not.
    pub fn wait_for_node(&self, name: &str, is_ready: bool) {
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let what = format!("{name} to be {}", if is_ready { "ready" } else { "not ready" });
        let node = self.node(name);
        self.explained(node, || {
            self.api.wait_for(&what, NODE_PATIENCE, || {
                node.assert_running();
                let status = self.api.try_kubectl(&["get", "node", name, "-o", path]).ok()?;
                ((status == "True") == is_ready && !status.is_empty()).then_some(())
            });
        });
    }

    /// If something takes too long on a node, its kubelet usually said why.
    fn explained<T>(&self, node: &Node, work: impl FnOnce() -> T) -> T {
        struct Explain<'a>(&'a Node);
        impl Drop for Explain<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    let (kubelet, containerd) = (self.0.log("kubelet"), self.0.log("containerd"));
                    eprintln!("kubelet of {}:\n{kubelet}\ncontainerd:\n{containerd}", self.0.name());
                }
            }
        }
        let _explain = Explain(node);
        work()
    }

    /// Gives all nodes an image.
    pub fn load_image(&self, archive: &Path) {
        for node in &self.nodes {
            node.load_image(archive);
        }
    }

    /// Gives an image that all nodes have another name as well.
    pub fn tag_image(&self, image: &str, name: &str) {
        for node in &self.nodes {
            node.tag_image(image, name);
        }
    }

    /// Waits until a pod has this phase, such as `Running` or `Succeeded`.
    pub fn wait_for_pod(&self, namespace: &str, pod: &str, phase: &str) {
        let what = format!("pod {namespace}/{pod} to be {phase}");
        let path = "jsonpath={.status.phase}";
        let begun = std::time::Instant::now();
        self.api.wait_for(&what, NODE_PATIENCE, || {
            for node in &self.nodes {
                node.assert_running();
            }
            if begun.elapsed() > NODE_PATIENCE.saturating_sub(Duration::from_secs(3)) {
                eprintln!("{}", self.api.kubectl(&["-n", namespace, "describe", "pod", pod]));
            }
            let seen = self.api.try_kubectl(&["-n", namespace, "get", "pod", pod, "-o", path]).ok()?;
            (seen == phase).then_some(())
        });
    }

    /// What a pod wrote.
    pub fn pod_logs(&self, namespace: &str, pod: &str) -> String {
        self.api.kubectl(&["-n", namespace, "logs", pod, "--all-containers", "--prefix=false"])
    }

    /// Runs a command in a pod: what it printed, or what it complained about.
    pub fn exec(&self, namespace: &str, pod: &str, words: &[&str]) -> Result<String, String> {
        self.api.try_kubectl(&[&["-n", namespace, "exec", pod, "--"], words].concat())
    }

    /// Ends a node's kubelet with SIGKILL. Its pods run on, and what is mounted stays mounted.
    pub fn stop_kubelet(&self, node: &str) {
        self.node(node).stop_kubelet();
    }

    /// Starts it again.
    pub fn start_kubelet(&self, node: &str) {
        self.node(node).start_kubelet();
    }

    /// Cuts a node's power: its pods, mounts and devices are gone, its disk is not.
    pub fn crash_node(&mut self, node: &str) {
        let index = self.index(node);
        self.nodes[index].crash();
    }

    /// Starts a node again after its power was cut.
    pub fn restart_node(&mut self, node: &str) {
        let (index, count) = (self.index(node), u8::try_from(self.nodes.len()).unwrap());
        let plan = self.nodes[index].crash();
        let node = Node::new(&self.api, plan);
        self.network.connect(u8::try_from(index).unwrap(), node.init(), count);
        node.start(&self.api, &[]);
        self.nodes[index] = node;
    }

    /// Pulls a node's network cable, or puts it back. Its pods run on.
    pub fn set_connected(&self, node: &str, is_connected: bool) {
        self.network.set_connected(u8::try_from(self.index(node)).unwrap(), is_connected);
    }

    /// Installs Bowline from the chart, or changes what is installed, and waits until it is ready. More flags may set values.
    /// If it does not get ready, the error says what its pods and their events say.
    pub fn install_chart(&self, more: &[&str]) -> Result<(), String> {
        let chart = project().join("deploy/chart");
        let fixed = ["upgrade", "--install", "bowline", chart.to_str().unwrap(), "--namespace", NAMESPACE];
        let result =
            self.helm(&[&fixed[..], &["--create-namespace", "--wait", "--timeout", "5m"], more].concat());
        result.map(drop).map_err(|error| {
            let look = |words: &[&str]| {
                let words = [&["--namespace", NAMESPACE], words].concat();
                self.api.try_kubectl(&words).unwrap_or_else(|error| error)
            };
            let logs = ["logs", "--selector=app.kubernetes.io/name=bowline", "--all-containers", "--prefix"];
            let said = [&["get", "pods", "-o", "wide"][..], &["get", "events"], &logs].map(look);
            format!("{error}\n{}", said.join("\n"))
        })
    }

    /// `helm` as admin: what it printed, or what it complained about.
    pub fn helm(&self, arguments: &[&str]) -> Result<String, String> {
        let home = self.api.directory().join("helm");
        let mut command = Command::new(tools("helm").join("helm"));
        command.arg("--kubeconfig").arg(self.api.kubeconfig()).args(arguments);
        // What it finds out about the server would go to the home directory, too, and kubectl would believe it before there are our kinds.
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECACHEDIR"] {
            command.env(name, &home);
        }
        let output = command.output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("helm {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)))
        }
    }

    /// Deletes a Node object.
    pub fn delete_node(&self, node: &str) {
        self.api.kubectl(&["delete", "node", node, "--wait=false"]);
    }
}

/// What this machine cannot do that a cluster lab needs.
fn missing() -> Vec<&'static str> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let rows = [
        ("root", is_root),
        ("overlayfs", filesystems.contains("\toverlay\n")),
        ("cgroups", Path::new("/sys/fs/cgroup").read_dir().is_ok_and(|mut entries| entries.next().is_some())),
        ("network namespaces", Path::new("/proc/self/ns/net").exists()),
        ("process namespaces", Path::new("/proc/self/ns/pid").exists()),
        ("the packet filter (iptables, nat)", can_filter()),
        ("pairs of network devices (veth)", can_add(&["veth", "peer", "name", "bowline-probe-b"])),
        ("bridges", can_add(&["bridge"])),
        ("loop devices", Path::new("/dev/loop-control").exists()),
    ];
    rows.into_iter().filter(|(_, has)| !has).map(|(what, _)| what).collect()
}

/// Whether a network namespace can have rules that change addresses.
fn can_filter() -> bool {
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "iptables",
        "-t",
        "nat",
        "-A",
        "OUTPUT",
        "-p",
        "tcp",
        "-d",
        "10.96.0.1",
        "-j",
        "DNAT",
    ]);
    command.args(["--to-destination", "10.96.0.2:80"]);
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).output().is_ok_and(|output| output.status.success())
}

/// Whether a network namespace can have a device of this kind.
fn can_add(kind: &[&str]) -> bool {
    let mut command = Command::new("unshare");
    command.args(["--net", "ip", "link", "add", "bowline-probe", "type"]).args(kind);
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).output().is_ok_and(|output| output.status.success())
}

/// Waits until no other test on this machine has a cluster.
fn take_turn() -> File {
    let path = cache().join("cluster-lab.lock");
    fs::create_dir_all(cache()).unwrap();
    let file = File::create(path).unwrap();
    file.lock().unwrap();
    file
}
