//! The process is killed at every point it passes, and another goes on from what is on disk and in the kernel.

use crate::lab::{Lab, block, smallest};
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_host::format::FsType;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Set for the process that is to be killed: the directory of the lab.
const LAB: &str = "BOWLINE_NODE_SWEEP";

/// A filesystem and a block volume, from nothing to nothing.
fn life(lab: &Lab) {
    let (v, raw) = (lab.grant("v", "a", 1, true), lab.grant("raw", "a", 1, true));
    let node = lab.node("a");
    node.up("v", &v, FsType::Ext4);
    node.stage("raw", &raw, &block(Mode::SingleNodeWriter)).unwrap();
    node.publish("raw", "dev", &raw, &block(Mode::SingleNodeWriter), false).unwrap();
    for (path, marker) in [("pod/data", "written-v"), ("dev", "written-raw")] {
        let mut file = File::options().create(true).truncate(false).write(true).open(node.at(path)).unwrap();
        file.write_all(b"acknowledged").unwrap();
        file.sync_all().unwrap();
        File::create(lab.path(marker)).unwrap();
    }
    node.unpublish("raw", "dev").unwrap();
    node.unstage("raw").unwrap();
    node.down("v");
}

fn started(lab: &Lab, points: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sweep::killed_at_every_point_another_process_goes_on", "--nocapture"])
        .env(LAB, lab.path(""))
        .env("BOWLINE_FAILPOINTS", points)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Where it stopped; `None` if it came to its end.
fn stopped(child: &mut Child, points: &Path) -> Option<String> {
    loop {
        if let Ok(name) = fs::read_to_string(points.join("stopped"))
            && !name.is_empty()
        {
            child.kill().unwrap();
            child.wait().unwrap();
            return Some(name);
        }
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return None;
        }
        // Another process is waited for: there is nothing to be woken by.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Begins anew, or gives up, with a fresh process.
fn go_on(lab: &Lab, retry: bool) {
    let (v, raw) = (lab.grant("v", "a", 1, true), lab.grant("raw", "a", 1, true));
    let node = lab.node("a");
    if retry {
        node.up("v", &v, FsType::Ext4);
        node.stage("raw", &raw, &block(Mode::SingleNodeWriter)).unwrap();
        node.publish("raw", "dev", &raw, &block(Mode::SingleNodeWriter), false).unwrap();
        assert_eq!(lab.mounts_below(&node.pods).len(), 3, "nothing is stacked");
        assert_eq!(node.health("v").unwrap(), []);
        if lab.path("written-v").exists() {
            assert_eq!(fs::read(node.at("pod/data")).unwrap(), b"acknowledged");
        }
        if lab.path("written-raw").exists() {
            assert_eq!(fs::read(node.at("dev")).unwrap()[..12], *b"acknowledged");
        }
    }
    let node = node.restarted();
    node.unpublish("raw", "dev").unwrap();
    node.unstage("raw").unwrap();
    node.down("v");
    lab.assert_clean();
    assert!(!node.at("pod").exists() && !node.at("dev").exists());
    assert!(!node.record("raw").exists());
}

#[test]
fn killed_at_every_point_another_process_goes_on() {
    if let Some(dir) = std::env::var_os(LAB) {
        return life(&Lab::within(dir.into()));
    }
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let points = lab.path("points");
    let mut seen = BTreeSet::new();
    for number in 0.. {
        let _ = fs::remove_dir_all(&points);
        fs::create_dir(&points).unwrap();
        for name in ["target/v", "target/raw", "written-v", "written-raw"] {
            let _ = fs::remove_file(lab.path(name));
        }
        let _ = fs::remove_dir_all(lab.path("a"));
        lab.volume("v", smallest(FsType::Ext4));
        lab.volume("raw", 1 << 20);
        fs::write(points.join("arm"), number.to_string()).unwrap();
        let mut child = started(&lab, &points);
        let Some(name) = stopped(&mut child, &points) else { break };
        // Both ways out of every point would be twice the time; neighbours are alike enough.
        go_on(&lab, number % 2 == 0);
        if number % 2 == 1 {
            go_on(&lab, true);
        }
        seen.insert(name);
    }
    for step in ["attach", "make", "mount", "bind", "bind-device", "unmount", "remove", "detach"] {
        for side in ["before", "after"] {
            assert!(seen.contains(&format!("host.{step}.{side}")), "{step}.{side} is not among {seen:?}");
        }
    }
    for step in ["record.rename", "record.sync", "record.remove", "connect", "disconnect"] {
        for side in ["before", "after"] {
            assert!(seen.contains(&format!("node.{step}.{side}")), "{step}.{side} is not among {seen:?}");
        }
    }
}
