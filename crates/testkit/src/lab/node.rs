//! A node of the cluster lab: a containerd, a kubelet and a kube-proxy in namespaces of their own.

use super::api::{ApiLab, certificate_fields};
use super::process::{Place, Process};
use super::programs::{installed, project, tools};
use super::{BUSYBOX, PATIENCE, wait_for};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;

const SOCKET: &str = "/run/containerd/containerd.sock";

/// What tells nodes apart.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    pub(super) pods: String,
    pub(super) all_pods: String,
}

/// One node. Inside, the usual directories (`/var/lib`, `/var/log`, `/run`, `/opt`) are its own.
pub struct Node {
    plan: Plan,
    directory: PathBuf,
    init: u32,
    place: Place,
    daemons: Mutex<Vec<(String, Process)>>,
    namespaces: Option<Process>,
}

impl Node {
    /// Makes the namespaces. Nothing runs in them yet.
    pub(super) fn new(api: &ApiLab, plan: Plan) -> Self {
        let directory = api.directory().join(&plan.name);
        fs::create_dir_all(&directory).unwrap();
        let ready = directory.join("ready");
        let _ = fs::remove_file(&ready);
        let group = format!("{}/{}", api.directory().file_name().unwrap_or_default().display(), plan.name);
        let logs = directory.join("daemons");
        let machine = Place::new(&logs);
        let script = project().join("lab/node.sh");
        let namespaces = machine.start("node", &script, &[directory.display().to_string(), group]);
        wait_for(&format!("the namespaces of {}", plan.name), PATIENCE, || {
            namespaces.assert_running();
            ready.exists().then_some(())
        });
        let pid = namespaces.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let init: u32 = children.trim().parse().unwrap();
        let enter = [&init.to_string(), "--mount", "--net", "--pid", "--ipc", "--cgroup", "--"];
        let mut words = vec![installed("nsenter").display().to_string(), "--target".to_owned()];
        words.extend(enter.map(str::to_owned));
        let place = Place { logs, enter: words };
        Self { plan, directory, init, place, daemons: Mutex::new(vec![]), namespaces: Some(namespaces) }
    }

    /// Its name in the cluster.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Its address, which this machine can reach.
    pub fn address(&self) -> Ipv4Addr {
        self.plan.address
    }

    /// The directory on this machine that the node has as `/var/lib`.
    pub fn var_lib(&self) -> PathBuf {
        self.directory.join("lib")
    }

    /// The first process in its namespaces, as this machine counts.
    pub(super) fn init(&self) -> u32 {
        self.init
    }

    /// Starts containerd, and then the others.
    pub(super) fn start(&self, api: &ApiLab, images: &[PathBuf]) {
        self.write_settings(api);
        let config = self.directory.join("containerd.toml");
        self.daemon(
            "containerd",
            &installed("containerd"),
            &["--config".into(), config.display().to_string()],
        );
        wait_for(&format!("containerd on {}", self.plan.name), PATIENCE, || {
            self.assert_running();
            self.run(&["ctr", "--address", SOCKET, "version"]).status.success().then_some(())
        });
        for image in images {
            self.load_image(image);
        }
        let config = self.directory.join("proxy.yaml");
        self.daemon(
            "kube-proxy",
            &tools("kubernetes").join("kube-proxy"),
            &[format!("--config={}", config.display())],
        );
        self.start_kubelet();
    }

    fn daemon(&self, name: &str, program: &Path, arguments: &[String]) {
        let script = project().join("lab/enter.sh");
        let mut words = vec![name.to_owned(), program.display().to_string()];
        words.extend_from_slice(arguments);
        let process = self.place.start(name, &script, &words);
        self.daemons.lock().unwrap().push((name.to_owned(), process));
    }

    /// Panics with its log if something of the node ended that should run.
    pub fn assert_running(&self) {
        for (_, process) in &*self.daemons.lock().unwrap() {
            process.assert_running();
        }
    }

    /// Runs a program of this machine in the node, as root.
    pub fn run(&self, words: &[&str]) -> Output {
        let (program, rest) = self.place.enter.split_first().unwrap();
        Command::new(program).args(rest).args(words).output().unwrap()
    }

    /// The same for a program that must succeed: what it printed.
    pub fn run_well(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(
            output.status.success(),
            "{} on {}: {}",
            words.join(" "),
            self.plan.name,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The end of the log of `containerd`, `kubelet` or `kube-proxy`.
    pub fn log(&self, name: &str) -> String {
        let log = fs::read(self.place.logs.join(format!("{name}.log"))).unwrap_or_default();
        let text = String::from_utf8_lossy(&log).into_owned();
        text[text.ceil_char_boundary(text.len().saturating_sub(8000))..].to_owned()
    }

    pub(super) fn load_image(&self, archive: &Path) {
        let archive = archive.to_str().unwrap();
        self.run_well(&["ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "import", archive]);
    }

    pub(super) fn tag_image(&self, image: &str, name: &str) {
        self.run_well(&["ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "tag", image, name]);
    }

    /// Starts the kubelet.
    pub(super) fn start_kubelet(&self) {
        let file = |name: &str| self.directory.join(name).display().to_string();
        self.daemon(
            "kubelet",
            &tools("kubernetes").join("kubelet"),
            &[
                format!("--config={}", file("kubelet.yaml")),
                format!("--kubeconfig={}", file("kubelet.kubeconfig")),
                format!("--hostname-override={}", self.plan.name),
                format!("--node-ip={}", self.plan.address),
                "--root-dir=/var/lib/kubelet".to_owned(),
                "--cert-dir=/var/lib/kubelet/pki".to_owned(),
            ],
        );
    }

    /// Ends everything on the node at once, as a power cut does. What it wrote to its disk is kept, what the kernel knew is gone.
    pub(super) fn crash(&mut self) -> Plan {
        let devices = self.mounted_loops();
        self.daemons.lock().unwrap().clear();
        drop(self.namespaces.take());
        let group = self.directory.iter().rev().take(2).collect::<Vec<_>>();
        let group: PathBuf = group.into_iter().rev().collect();
        let clean = project().join("lab/clean.sh");
        let output = Command::new("sh").arg(clean).arg(&self.directory).arg(group).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // Of files that nodes share, the script cannot know whose device it was.
        for device in devices {
            let _ = Command::new(installed("losetup")).args(["--detach", &device]).output().unwrap();
        }
        self.plan.clone()
    }

    /// The loop devices that it has mounted, on files of the lab.
    fn mounted_loops(&self) -> Vec<String> {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", self.init)).unwrap_or_default();
        let numbers = mounts.lines().filter_map(|line| line.split(' ').nth(2)?.strip_prefix("7:"));
        let numbers: std::collections::BTreeSet<&str> = numbers.collect();
        let is_ours = |number: &&str| {
            let file = fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file"));
            file.is_ok_and(|file| {
                self.directory.parent().is_some_and(|lab| Path::new(&file).starts_with(lab))
            })
        };
        numbers.into_iter().filter(is_ours).map(|number| format!("/dev/loop{number}")).collect()
    }

    /// Ends the kubelet, and it alone: pods run on.
    pub(super) fn stop_kubelet(&self) {
        self.stop("kubelet");
    }

    fn stop(&self, name: &str) {
        let mut daemons = self.daemons.lock().unwrap();
        let at = daemons.iter().position(|(daemon, _)| daemon == name);
        let (_, process) = daemons.remove(at.unwrap_or_else(|| panic!("{name} does not run")));
        drop(daemons);
        self.run_well(&["sh", "-c", &format!("kill -KILL \"$(cat /run/{name}.pid)\"")]);
        wait_for(&format!("the end of {name}"), Duration::from_secs(20), || process.ended());
    }

    fn write_settings(&self, api: &ApiLab) {
        let name = &self.plan.name;
        let write = |file: &str, text: &str| fs::write(self.directory.join(file), text).unwrap();
        let user = format!("system:node:{name}");
        let identity = api.authority.issue(name, &user, Some("system:nodes"), &[]);
        write("kubelet.kubeconfig", &api.kubeconfig_text(&certificate_fields(&identity)));
        let identity = api.authority.issue(&format!("{name}-proxy"), "system:kube-proxy", None, &[]);
        write("proxy.kubeconfig", &api.kubeconfig_text(&certificate_fields(&identity)));
        write("resolv.conf", "");
        let directory = self.directory.display();
        write(
            "proxy.yaml",
            &format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
                 clientConnection: {{kubeconfig: {directory}/proxy.kubeconfig}}\nhostnameOverride: {name}\n\
                 clusterCIDR: {}\n\
                 conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n",
                self.plan.all_pods
            ),
        );
        write("kubelet.yaml", &kubelet_settings(&directory.to_string()));
        write("containerd.toml", &containerd_settings(&directory.to_string()));
        fs::create_dir_all(self.directory.join("cni")).unwrap();
        // Every pod has a cable of its own to its node: what goes from pod to pod passes the node's packet filter, as services need.
        let pods = &self.plan.pods;
        write(
            "cni/lab.conflist",
            &format!(
                r#"{{"cniVersion": "0.4.0", "name": "lab", "plugins": [
                    {{"type": "ptp", "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{pods}"}}]],
                      "routes": [{{"dst": "0.0.0.0/0"}}], "dataDir": "/run/cni"}}}},
                    {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}"#
            ),
        );
    }
}

fn kubelet_settings(directory: &str) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         containerRuntimeEndpoint: unix://{SOCKET}\n\
         authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}\n\
         authorization: {{mode: AlwaysAllow}}\n\
         failCgroupV1: false\ncgroupDriver: cgroupfs\ncgroupsPerQOS: false\nenforceNodeAllocatable: []\n\
         failSwapOn: false\nreadOnlyPort: 0\nhealthzPort: 0\nmakeIPTablesUtilChains: false\n\
         resolvConf: {directory}/resolv.conf\nvolumePluginDir: /var/lib/kubelet/volumeplugins\n\
         nodeStatusUpdateFrequency: 2s\nnodeLeaseDurationSeconds: 10\nsyncFrequency: 5s\n\
         imageGCHighThresholdPercent: 100\nmaxPods: 50\n\
         crashLoopBackOff: {{maxContainerRestartPeriod: 5s}}\n\
         evictionHard: {{memory.available: \"0%\", nodefs.available: \"0%\", nodefs.inodesFree: \"0%\", imagefs.available: \"0%\"}}\n\
         registerNode: true\n"
    )
}

fn containerd_settings(directory: &str) -> String {
    format!(
        "version = 2\nroot = \"/var/lib/containerd\"\nstate = \"/run/containerd\"\noom_score = 0\n\
         [grpc]\naddress = \"{SOCKET}\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{BUSYBOX}\"\nrestrict_oom_score_adj = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"overlayfs\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/usr/lib/cni\"\nconf_dir = \"{directory}/cni\"\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"/var/lib/containerd-opt\"\n"
    )
}
