//! Bowline in four machines: storage over the kernel's NVMe target, a controller that is none of the others, two nodes.

use super::{Plan, Running, VmLab};
use crate::driver::{Driver, How};
use bowline_csi::wire;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

/// Who exports volumes on the machine `target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    /// `bowline target`.
    Agent,
    /// A simulated RouterOS device, which the controller tells what to do over SSH. It forgets everything when it ends.
    Device,
}

/// Nobody waits longer than a test has to.
const QUICK: &str = "--fail-io-after 3s --give-up-after 8s";
/// Where a device has its files, on the machine `target`.
const DEVICE: &str = "/data/device";
const PASSWORD: &str = "open, sesame";
/// What a device says before its fingerprint.
const HOST_KEY: &str = "host key  ";

/// The machines and the processes in them: `target`, `control`, `a` and `b`.
pub struct Site {
    /// The machines.
    pub lab: Arc<VmLab>,
    /// The controller's calls.
    pub control: Driver,
    /// The calls of the nodes.
    pub a: Driver,
    /// The other node's.
    pub b: Driver,
    /// How long the nodes that are begun from now on let a workload wait for a lost target.
    pub patience: &'static str,
    storage: Storage,
    certificates: tempfile::TempDir,
    running: HashMap<&'static str, Running>,
}

impl Site {
    /// Everything started in the machines of a plan, which are the usual ones or like them; nothing where there are no machines to be had.
    pub fn start(plan: Plan, bowline: &Path) -> Option<Self> {
        Self::start_over(Storage::Agent, plan, bowline)
    }

    /// The same, with a simulated RouterOS device instead of an agent.
    pub fn with_device(plan: Plan, bowline: &Path) -> Option<Self> {
        Self::start_over(Storage::Device, plan, bowline)
    }

    fn start_over(storage: Storage, plan: Plan, bowline: &Path) -> Option<Self> {
        let lab = Arc::new(plan.with(bowline).start()?);
        let certificates = tempfile::tempdir().unwrap();
        let made = Command::new(bowline).args(["target", "init"]).arg(certificates.path()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let driver = |machine: &str, socket: &str| {
            let local = lab.vm(machine).relay(socket);
            let (there, name) = (Arc::clone(&lab), machine.to_owned());
            let shell = Arc::new(move |line: &str| drop(there.vm(&name).sh(line)));
            Driver::elsewhere(machine, &local, "/stage", "/pods", shell)
        };
        let control = driver("control", "/var/bowline/csi.sock");
        let (a, b) = (driver("a", "/run/csi.sock"), driver("b", "/run/csi.sock"));
        let (patience, running) = (QUICK, HashMap::new());
        let mut site = Self { lab, control, a, b, patience, storage, certificates, running };
        for machine in ["target", "control"] {
            site.bring_certificates(machine);
        }
        if storage == Storage::Device {
            site.lab.vm("target").put("/run/password", PASSWORD.as_bytes());
        }
        site.begin("target");
        if storage == Storage::Device {
            site.introduce_device("control", "/var/bowline");
        }
        for machine in ["control", "a", "b"] {
            site.begin(machine);
        }
        Some(site)
    }

    /// As its administrator would; a machine that was booted has forgotten them.
    pub fn bring_certificates(&self, machine: &str) {
        let who = if machine == "target" { "agent" } else { "controller" };
        self.lab.vm(machine).sh("mkdir -p /tls");
        for file in ["ca.crt", "tls.crt", "tls.key"] {
            let bytes = std::fs::read(self.certificates.path().join(who).join(file)).unwrap();
            self.lab.vm(machine).put(&format!("/tls/{file}"), &bytes);
        }
    }

    /// Tells a `bowline up` of a machine, by its data directory, how the device is reached. It is an installation of its own there.
    pub fn introduce_device(&mut self, machine: &str, data: &str) {
        let said = &self.running.get_mut("target").unwrap().so_far().out;
        let key = said.lines().find_map(|line| line.strip_prefix(HOST_KEY)).unwrap();
        let vm = self.lab.vm(machine);
        vm.sh(&format!("mkdir -p {data}"));
        vm.put("/run/password", PASSWORD.as_bytes());
        let table = format!(
            "[rds.box]\naddress = \"10.77.0.1\"\nuser = \"bowline\"\npassword-file = \"/run/password\"\nhost-key = \"{key}\"\n\
             pool = \"storage-pool\"\ndirectory = \"/storage-pool/bowline\"\nexports = [\"10.77.0.1:4420\"]\ninstallation = \"{machine}\"\n"
        );
        vm.put(&format!("{data}/bowline.toml"), table.as_bytes());
    }

    fn command(&self, machine: &str) -> String {
        let agent = match self.storage {
            Storage::Agent => "--agent nvme=10.77.0.1:9460 --tls /tls",
            Storage::Device => "",
        };
        match (machine, self.storage) {
            ("target", Storage::Agent) => {
                let listen =
                    self.lab.vm("target").addresses().iter().map(|address| format!("{address}:4420"));
                format!(
                    "bowline target --id nvme --directory /data/volumes --listen 10.77.0.1:9460 --tls /tls --export nvmet \
                     --nvme-listen {} --overcommit 10 --http off",
                    listen.collect::<Vec<_>>().join(",")
                )
            }
            ("target", Storage::Device) => format!(
                "bowline lab routeros --fast --listen 10.77.0.1:22 --directory {DEVICE} --password-file /run/password --export 10.77.0.1"
            ),
            ("control", _) => format!(
                "bowline up --data /var/bowline --node control --target none {agent} --peer a --peer b --max-volumes 256 --http off"
            ),
            ("a" | "b", _) => format!(
                "bowline node --data /var/bowline --node $(hostname) --csi unix:///run/csi.sock --max-volumes 256 {}",
                self.patience
            ),
            _ => panic!("{machine} is no machine"),
        }
    }

    /// Starts the process of a machine and waits until it answers; the controller, until it has found its target, too.
    pub fn begin(&mut self, machine: &'static str) {
        let command = self.command(machine);
        let mut running = self.lab.vm(machine).start_sh(&format!(
            "mkdir -p /run/points; export BOWLINE_FAILPOINTS=/run/points; exec {command} 2>&1"
        ));
        let is_device = machine == "target" && self.storage == Storage::Device;
        let is_there = if is_device { |out: &str| out.contains("Ctrl-C ends it") } else { is_up };
        running.wait_until(&format!("the process of {machine}"), SOON, is_there);
        self.running.insert(machine, running);
    }

    /// Ends the process of a machine in the middle of whatever it does.
    pub fn kill(&mut self, machine: &'static str) {
        let mut running = self.running.remove(machine).unwrap();
        running.signal("KILL");
        running.wait_for(Duration::from_secs(5));
    }

    /// Ends the process of a machine as whoever upgrades it does.
    pub fn stop(&mut self, machine: &'static str) {
        let mut running = self.running.remove(machine).unwrap();
        running.signal("TERM");
        let ended = running.wait_for(SOON);
        let ended = ended.unwrap_or_else(|| panic!("waited {SOON:?} for the process of {machine} to end"));
        assert_eq!(ended.code, Some(0), "{machine}: {}", ended.out);
    }

    /// Ends the process of a machine in the middle of whatever it does, and starts another.
    pub fn again(&mut self, machine: &'static str) {
        self.kill(machine);
        self.begin(machine);
    }

    /// Where a volume's bytes are at the target.
    pub fn file(&self, volume: &str) -> String {
        match self.storage {
            Storage::Agent => format!("/data/volumes/vol-{volume}.data"),
            Storage::Device => {
                let found = self
                    .lab
                    .vm("target")
                    .sh(&format!("ls {DEVICE}/files/storage-pool/bowline/{volume}.*.img"));
                found.trim().to_owned()
            }
        }
    }

    /// The names of the failpoints that the processes of a machine have passed.
    pub fn points(&self, machine: &str) -> Vec<String> {
        let log = self.lab.vm(machine).sh("cat /run/points/log 2>/dev/null || :");
        log.lines().map(str::to_owned).collect()
    }

    /// Has the process of a machine stop at a failpoint: `NUMBER` of others later, or `NAME NUMBER`.
    pub fn arm(&self, machine: &str, at: &str) {
        self.lab.vm(machine).sh(&format!("rm -f /run/points/stopped; echo '{at}' >/run/points/arm"));
    }

    /// Takes that back. It may have happened.
    pub fn disarm(&self, machine: &str) {
        self.lab.vm(machine).sh("rm -f /run/points/arm");
    }

    /// Where the process of a machine has stopped.
    pub fn stopped(&self, machine: &str) -> Option<String> {
        let at = self.lab.vm(machine).sh("cat /run/points/stopped 2>/dev/null || :");
        Some(at).filter(|at| !at.is_empty())
    }

    /// What the target's kernel exports now.
    pub fn exports(&self) -> String {
        self.lab.vm("target").sh("ls /sys/kernel/config/nvmet/subsystems")
    }

    /// The controllers of a node's kernel.
    pub fn controllers(&self, node: &str) -> String {
        self.lab.vm(node).sh("ls /sys/class/nvme 2>/dev/null || :")
    }
}

impl Drop for Site {
    /// A test that failed shows what the processes have said at last.
    #[allow(clippy::print_stdout, reason = "that is what it is for")]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for (machine, running) in &mut self.running {
            let out = &running.so_far().out;
            let lines: Vec<&str> = out.lines().collect();
            println!("{machine}:\n{}\n", lines[lines.len().saturating_sub(25)..].join("\n"));
        }
    }
}

/// Whether a Bowline that has said this serves, and has found its target if it has one.
pub fn is_up(said: &str) -> bool {
    let is_connected = !said.contains("\"not connected yet\"") || said.contains("\"connected\"");
    said.contains("\"ready\"") && is_connected
}

/// Asks until it is granted, as orchestrators do.
pub async fn insist<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, tonic::Status>>,
{
    let begun = Instant::now();
    loop {
        match ask().await {
            Ok(done) => return done,
            Err(error) => assert!(begun.elapsed() < SOON, "asked {SOON:?} for {what}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A volume on a node, for one pod.
pub async fn bring(
    control: &mut Driver,
    node: &mut Driver,
    volume: &wire::Volume,
    how: How,
) -> Result<String, tonic::Status> {
    let context = control.publish(volume, &node.node.clone(), how, false).await?;
    node.stage(volume, &context, how).await?;
    node.expose(volume, &context, "pod", how, false).await?;
    Ok(node.target(&volume.volume_id, "pod").to_str().unwrap().to_owned())
}
