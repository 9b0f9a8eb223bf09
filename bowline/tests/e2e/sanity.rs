//! The public conformance suite, csi-sanity, against the real process: for mount and for block, on fresh data and
//! again on the same.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{BOWLINE, can_mount};
use bowline_testkit::say;
use bowline_testkit::world::World;

#[test]
fn csi_sanity_passes_for_mounts_fresh_and_again() {
    if can_mount("csi-sanity, mount") {
        twice("mount");
    }
}

#[test]
fn csi_sanity_passes_for_block_devices_fresh_and_again() {
    if can_mount("csi-sanity, block") {
        twice("block");
    }
}

fn twice(access: &str) {
    // xfs grows while it is mounted with the rights that every test machine has; ext4 needs one more.
    let world = World::new(BOWLINE);
    for round in ["fresh", "used"] {
        let daemon = world.up(&["--max-volumes", "24"]);
        let summary = sanity(&world, &daemon.socket, access, round);
        assert_eq!(summary, Summary { passed: 102, failed: 0, skipped: 0 }, "{}", world.log("worker-1"));
        daemon.stop();
        world.assert_nothing_left();
    }
    say(&format!(
        "csi-sanity 5.6.0, {access}: 102 passed, 0 failed, 0 skipped, on fresh data and again on the same"
    ));
}

#[derive(Debug, PartialEq, Eq)]
struct Summary {
    passed: usize,
    failed: usize,
    skipped: usize,
}

fn sanity(world: &World, socket: &Path, access: &str, round: &str) -> Summary {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let tools = Command::new("sh").arg(root.join("lab/tools.sh")).arg("sanity").output().unwrap();
    assert!(tools.status.success(), "{}", String::from_utf8_lossy(&tools.stderr));
    let program = Path::new(String::from_utf8(tools.stdout).unwrap().trim()).join("csi-sanity");
    let report = world.path(&format!("{access}-{round}.xml"));
    let (parameters, mutable) = (world.path("parameters.yaml"), world.path("mutable.yaml"));
    fs::write(&parameters, if access == "mount" { "fsType: xfs\n" } else { "{}\n" }).unwrap();
    fs::write(&mutable, "deletionProtection: \"false\"\n").unwrap();
    let endpoint = format!("unix://{}", socket.display());
    // xfs is never smaller than 300 MiB.
    let (size, larger) = (320_u64 << 20, 640_u64 << 20);
    let output = Command::new(program)
        .arg(format!("--csi.endpoint={endpoint}"))
        .arg(format!("--csi.controllerendpoint={endpoint}"))
        .arg(format!("--csi.mountdir={}", world.path("pods").join("sanity").display()))
        .arg(format!("--csi.stagingdir={}", world.path("stage").join("sanity").display()))
        .arg(format!("--csi.testvolumeaccesstype={access}"))
        .arg(format!("--csi.testvolumesize={size}"))
        .arg(format!("--csi.testvolumeexpandsize={larger}"))
        .arg(format!("--csi.testvolumeparameters={}", parameters.display()))
        .arg(format!("--csi.testvolumemutableparameters={}", mutable.display()))
        .arg("--csi.testnodevolumeattachlimit")
        .arg(format!("--ginkgo.junit-report={}", report.display()))
        .arg("--ginkgo.no-color")
        .output()
        .unwrap();
    let report = fs::read_to_string(&report).unwrap_or_default();
    let summary = count(&report);
    if summary.failed > 0 || summary.skipped > 0 || !output.status.success() {
        println!("{}", String::from_utf8_lossy(&output.stdout));
    }
    for place in ["pods", "stage"] {
        let _ = fs::remove_dir(world.path(place).join("sanity"));
    }
    summary
}

/// Counts the cases of a junit report. Those disabled by the suite itself (`status="pending"`) count as nothing.
fn count(report: &str) -> Summary {
    let mut summary = Summary { passed: 0, failed: 0, skipped: 0 };
    for case in report.split("<testcase ").skip(1) {
        let head = case.split('>').next().unwrap();
        // What runs before and after the suite is no spec.
        if !head.contains("name=\"[It]") {
            continue;
        }
        match head.split("status=\"").nth(1).and_then(|rest| rest.split('"').next()) {
            Some("passed") => summary.passed += 1,
            Some("skipped") => summary.skipped += 1,
            Some("pending") => {}
            _ => summary.failed += 1,
        }
    }
    summary
}
