//! The public conformance suite, csi-sanity, over real NVMe/TCP.

use bowline_testkit::lab::tools;
use bowline_testkit::sanity::{ALL, Place, count};
use bowline_testkit::say;
use bowline_testkit::vm::{Machine, Plan, Site};
use std::path::Path;
use std::time::Duration;

/// An emulated processor takes its time.
const LONG: Duration = Duration::from_secs(1200);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-vm has the time"]
async fn csi_sanity_passes_over_nvme() {
    let node = Machine { memory: 768, ..Machine::node("a") };
    let machines = [Machine::target("target"), node, Machine::node("b"), Machine::new("control")];
    let plan = Plan::of(machines).with(tools("sanity").join("csi-sanity"));
    let Some(mut site) = Site::start(plan, Path::new(crate::BOWLINE)) else { return };
    site.kill("a");
    // It is its own controller.
    site.bring_certificates("a");
    let a = site.lab.vm("a");
    let mut up = a.start_sh(
        "exec bowline up --data /var/alone --node a --target none --agent nvme=10.77.0.1:9460 --tls /tls --max-volumes 24 --http off 2>&1",
    );
    up.wait_until("bowline up", Duration::from_secs(60), |out| out.contains("\"ready\""));
    for access in ["mount", "block"] {
        let directory = format!("/run/{access}");
        let place = Place {
            socket: "/var/alone/csi.sock",
            directory: &directory,
            mounts: ["/pods", "/stage"],
            access,
        };
        a.sh(&format!("mkdir -p {directory} /pods /stage"));
        for (name, content) in place.files() {
            a.put(&format!("{directory}/{name}"), content.as_bytes());
        }
        let mut suite =
            a.start_sh(&format!("csi-sanity {} >{directory}/log 2>&1", place.arguments().join(" ")));
        assert!(suite.wait_for(LONG).is_some(), "csi-sanity did not end within {LONG:?}");
        let summary = count(&a.sh(&format!("cat {} 2>/dev/null || :", place.report())));
        assert_eq!(summary, ALL, "{access}:\n{}", a.sh(&format!("tail -c 6000 {directory}/log")));
        assert_eq!(a.sh("ls /sys/class/nvme"), "", "{access}: nothing is left on the node");
        assert_eq!(site.exports(), "", "{access}: nothing is left at the target");
        say(&format!("csi-sanity 5.6.0 over NVMe/TCP, {access}: 102 passed, 0 failed, 0 skipped"));
    }
}
