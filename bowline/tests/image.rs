//! The container image: everything that Bowline runs is in it and starts there, and whoever starts it is nobody special.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_testkit::lab::{Image, not_run};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What each program is asked so that it only says who it is.
const PROGRAMS: &[(&str, &str)] = &[
    ("bowline", "--version"),
    ("mkfs.ext4", "-V"),
    ("e2fsck", "-V"),
    ("mkfs.xfs", "-V"),
    ("xfs_repair", "-V"),
    ("xfs_growfs", "-V"),
    ("mkfs.btrfs", "--version"),
    ("btrfs", "--version"),
    ("blkid", "--version"),
    ("modprobe", "--version"),
];

fn tar(arguments: &[&str]) -> String {
    let output = Command::new("tar").args(arguments).output().unwrap();
    assert!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The files of an image, and what it says of itself.
fn unpack(image: &Image, into: &Path) -> (PathBuf, serde_json::Value) {
    let (parts, root) = (into.join("parts"), into.join("root"));
    fs::create_dir(&parts).unwrap();
    fs::create_dir(&root).unwrap();
    tar(&["-xf", image.archive.to_str().unwrap(), "-C", parts.to_str().unwrap()]);
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(parts.join(name)).unwrap()).unwrap()
    };
    let manifest = read("manifest.json");
    for layer in manifest[0]["Layers"].as_array().unwrap() {
        let layer = parts.join(layer.as_str().unwrap());
        tar(&["-xf", layer.to_str().unwrap(), "-C", root.to_str().unwrap()]);
    }
    (root, read(manifest[0]["Config"].as_str().unwrap()))
}

#[test]
fn everything_that_bowline_runs_is_in_the_image() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return not_run("root, to start programs in another root directory");
    }
    let scratch = tempfile::tempdir().unwrap();
    let (root, config) = unpack(&Image::bowline(Path::new(env!("CARGO_BIN_EXE_bowline"))), scratch.path());
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/bowline"]));
    // A container gets its devices from who runs it; e2fsck wants this one.
    fs::create_dir(root.join("dev")).unwrap();
    let null = root.join("dev/null");
    assert!(Command::new("mknod").arg(&null).args(["c", "1", "3"]).status().unwrap().success());
    for (program, question) in PROGRAMS {
        let output = Command::new("chroot")
            .arg(&root)
            .args([program, question])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .output()
            .unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // resize2fs has no question that does nothing; that it starts is all that can be seen.
    let output = Command::new("chroot").arg(&root).arg("resize2fs").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage"), "{output:?}");
    for shell in ["bin/sh", "usr/bin/sh", "bin/bash"] {
        assert!(!root.join(shell).exists(), "an image without a shell: {shell}");
    }
}
