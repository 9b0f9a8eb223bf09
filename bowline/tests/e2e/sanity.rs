//! The public conformance suite, csi-sanity, against the real process: for mount and for block, on fresh data and
//! again on the same.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{BOWLINE, can_mount};
use bowline_testkit::sanity::{ALL, Place, Summary, count};
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
    let world = World::new(BOWLINE);
    for round in ["fresh", "used"] {
        let daemon = world.up(&["--max-volumes", "24"]);
        let summary = sanity(&world, &daemon.socket, access, round);
        assert_eq!(summary, ALL, "{}", world.log("worker-1"));
        daemon.stop();
        world.assert_nothing_left();
    }
    say(&format!(
        "csi-sanity 5.6.0, {access}: 102 passed, 0 failed, 0 skipped, on fresh data and again on the same"
    ));
}

fn sanity(world: &World, socket: &Path, access: &str, round: &str) -> Summary {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let tools = Command::new("sh").arg(root.join("lab/tools.sh")).arg("sanity").output().unwrap();
    assert!(tools.status.success(), "{}", String::from_utf8_lossy(&tools.stderr));
    let program = Path::new(String::from_utf8(tools.stdout).unwrap().trim()).join("csi-sanity");
    let text = |name: &str| world.path(name).to_str().unwrap().to_owned();
    let (directory, pods, stage) = (text(&format!("sanity-{round}")), text("pods"), text("stage"));
    let socket = socket.to_str().unwrap();
    let place = Place { socket, directory: &directory, mounts: [&pods, &stage], access };
    fs::create_dir(&directory).unwrap();
    for (name, content) in place.files() {
        fs::write(Path::new(&directory).join(name), content).unwrap();
    }
    let output = Command::new(program).args(place.arguments()).output().unwrap();
    let summary = count(&fs::read_to_string(place.report()).unwrap_or_default());
    if summary != ALL || !output.status.success() {
        println!("{}", String::from_utf8_lossy(&output.stdout));
    }
    for place in ["pods", "stage"] {
        let _ = fs::remove_dir(world.path(place).join("sanity"));
    }
    summary
}
