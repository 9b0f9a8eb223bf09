//! Bowline in four machines: an agent over the kernel's NVMe target, a controller that is none of the others, two nodes.

use bowline_testkit::driver::{Driver, How};
use bowline_testkit::vm::{Kernel, Plan, Running, VmLab};
use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");
const SOON: Duration = Duration::from_secs(60);

pub(crate) struct Site {
    pub(crate) lab: Arc<VmLab>,
    pub(crate) control: Driver,
    pub(crate) a: Driver,
    pub(crate) b: Driver,
    certificates: tempfile::TempDir,
    running: HashMap<&'static str, Running>,
}

impl Site {
    /// Everything started; nothing where there are no machines to be had.
    pub(crate) fn start(kernel: Kernel) -> Option<Self> {
        Self::of(Plan::usual().kernel(kernel))
    }

    /// The same in the machines of a plan.
    pub(crate) fn of(plan: Plan) -> Option<Self> {
        let lab = Arc::new(plan.with(BOWLINE).start()?);
        let certificates = tempfile::tempdir().unwrap();
        let made = Command::new(BOWLINE).args(["target", "init"]).arg(certificates.path()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let driver = |machine: &str, socket: &str| {
            let local = lab.vm(machine).relay(socket);
            let (there, name) = (Arc::clone(&lab), machine.to_owned());
            let shell = Arc::new(move |line: &str| drop(there.vm(&name).sh(line)));
            Driver::elsewhere(machine, &local, "/stage", "/pods", shell)
        };
        let control = driver("control", "/var/bowline/csi.sock");
        let (a, b) = (driver("a", "/run/csi.sock"), driver("b", "/run/csi.sock"));
        let mut site = Self { lab, control, a, b, certificates, running: HashMap::new() };
        for machine in ["target", "control"] {
            site.bring_certificates(machine);
        }
        for machine in ["target", "control", "a", "b"] {
            site.begin(machine);
        }
        Some(site)
    }

    /// As its administrator would; a machine that was booted has forgotten them.
    pub(crate) fn bring_certificates(&self, machine: &str) {
        let who = if machine == "target" { "agent" } else { "controller" };
        self.lab.vm(machine).sh("mkdir -p /tls");
        for file in ["ca.crt", "tls.crt", "tls.key"] {
            let bytes = std::fs::read(self.certificates.path().join(who).join(file)).unwrap();
            self.lab.vm(machine).put(&format!("/tls/{file}"), &bytes);
        }
    }

    /// Starts the process of a machine and waits until it answers.
    pub(crate) fn begin(&mut self, machine: &'static str) {
        let command = match machine {
            "target" => {
                "bowline target --id nvme --directory /data/volumes --listen 10.77.0.1:9460 --tls /tls --export nvmet \
                 --nvme-listen 10.77.0.1:4420 --overcommit 10 --http off"
            }
            "control" => {
                "bowline up --data /var/bowline --node control --target none --agent nvme=10.77.0.1:9460 --tls /tls --peer a --peer b \
                 --http off"
            }
            node => {
                assert!(matches!(node, "a" | "b"), "{node} is no machine");
                "bowline node --data /var/bowline --node $(hostname) --csi unix:///run/csi.sock --fail-io-after 3s --give-up-after 8s"
            }
        };
        let mut running = self.lab.vm(machine).start_sh(&format!(
            "mkdir -p /run/points; export BOWLINE_FAILPOINTS=/run/points; exec {command} 2>&1"
        ));
        running.wait_until(&format!("the process of {machine}"), SOON, |out| out.contains("\"ready\""));
        self.running.insert(machine, running);
    }

    /// Ends the process of a machine in the middle of whatever it does.
    pub(crate) fn kill(&mut self, machine: &'static str) {
        let mut running = self.running.remove(machine).unwrap();
        running.signal("KILL");
        running.wait_for(Duration::from_secs(5));
    }

    /// What the process of a machine has written.
    pub(crate) fn said(&mut self, machine: &'static str) -> String {
        self.running.get_mut(machine).map(|running| running.so_far().out.clone()).unwrap_or_default()
    }

    /// Where a volume's bytes are at the target.
    pub(crate) fn file(volume: &str) -> String {
        format!("/data/volumes/vol-{volume}.data")
    }

    /// What the target's kernel exports now.
    pub(crate) fn exports(&self) -> String {
        self.lab.vm("target").sh("ls /sys/kernel/config/nvmet/subsystems")
    }
}

/// A volume on a node, for one pod.
pub(crate) async fn bring(
    control: &mut Driver,
    node: &mut Driver,
    volume: &bowline_csi::wire::Volume,
    how: How,
) -> Result<String, tonic::Status> {
    let context = control.publish(volume, &node.node.clone(), how, false).await?;
    node.stage(volume, &context, how).await?;
    node.expose(volume, &context, "pod", how, false).await?;
    Ok(node.target(&volume.volume_id, "pod").to_str().unwrap().to_owned())
}
