//! The public conformance suite, csi-sanity, over real NVMe/TCP.

use bowline_testkit::lab::tools;
use bowline_testkit::sanity::{ALL, Place, count};
use bowline_testkit::say;
use bowline_testkit::vm::{Machine, Plan, Site, is_up};
use std::path::Path;
use std::time::Duration;

/// An emulated processor takes its time.
const LONG: Duration = Duration::from_secs(1200);

/// The usual machines, with room for the suite on node a.
pub(crate) fn plan() -> Plan {
    let node = Machine { memory: 768, ..Machine::node("a") };
    let machines = [Machine::target("target"), node, Machine::node("b"), Machine::new("control")];
    Plan::of(machines).with(tools("sanity").join("csi-sanity"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-vm has the time"]
async fn csi_sanity_passes_over_nvme() {
    let Some(mut site) = Site::start(plan(), Path::new(crate::BOWLINE)) else { return };
    // It is its own controller.
    site.bring_certificates("a");
    passes(&mut site, "--agent nvme=10.77.0.1:9460 --tls /tls", "over NVMe/TCP");
}

/// The data of the process that the suite asks.
pub(crate) const ALONE: &str = "/var/alone";

/// Runs the suite on node a, for mounted and for raw volumes.
pub(crate) fn passes(site: &mut Site, target: &str, how: &str) {
    site.kill("a");
    let a = site.lab.vm("a");
    let mut up = a.start_sh(&format!(
        "exec bowline up --data {ALONE} --node a --target none {target} --max-volumes 24 --http off 2>&1"
    ));
    up.wait_until("bowline up", Duration::from_secs(60), is_up);
    for access in ["mount", "block"] {
        let directory = format!("/run/{access}");
        let socket = format!("{ALONE}/csi.sock");
        let place = Place { socket: &socket, directory: &directory, mounts: ["/pods", "/stage"], access };
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
        say(&format!("csi-sanity 5.6.0 {how}, {access}: 102 passed, 0 failed, 0 skipped"));
    }
}
