//! The programs that machines have: a disk that all of them read.

use crate::lab::{installed, project};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What makes, checks, grows and reads filesystems, and what that reads.
const FILESYSTEMS: &[&str] = &[
    "mkfs.ext4",
    "e2fsck",
    "fsck.ext4",
    "resize2fs",
    "dumpe2fs",
    "mkfs.xfs",
    "xfs_repair",
    "xfs_growfs",
    "xfs_io",
    "mkfs.btrfs",
    "btrfs",
    "blkid",
    "/etc/mke2fs.conf",
];

/// Puts programs with their libraries on a disk. Each is `FILE` or `FILE=PLACE`.
pub(super) fn disk(directory: &Path, more: &[String]) -> PathBuf {
    let image = directory.join("programs.img");
    let mut programs = vec![format!("{}=/bin/vmtool", vmtool().display())];
    programs.extend(FILESYSTEMS.iter().map(ToString::to_string));
    programs.extend(more.iter().cloned());
    let script = project().join("lab/vm/programs.sh");
    let output = Command::new("sh").arg(script).arg(&image).args(programs).output().unwrap();
    assert!(output.status.success(), "lab/vm/programs.sh: {}", String::from_utf8_lossy(&output.stderr));
    image
}

/// Builds the lab's hand. Without libraries, so that it runs also where there are none.
fn vmtool() -> PathBuf {
    let target = target_directory().join("vmtool");
    let output = Command::new(installed("cargo"))
        .args([
            "build",
            "--quiet",
            "--locked",
            "-p",
            "bowline-vmtool",
            "--target",
            "x86_64-unknown-linux-gnu",
        ])
        .args(["--release", "--target-dir"])
        .arg(&target)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .current_dir(project())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo build vmtool: {}", String::from_utf8_lossy(&output.stderr));
    target.join("x86_64-unknown-linux-gnu/release/vmtool")
}

/// A program of this project that only machines run: an example. Cargo builds those with the tests, and is asked in the same words as by
/// `make test`: in others it would choose other features and build half of everything once more.
pub fn example(name: &str) -> PathBuf {
    let target = target_directory();
    let output = Command::new(installed("cargo"))
        .args(["test", "--no-run", "--quiet", "--workspace", "--all-features", "--locked"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(project())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo build {name}: {}", String::from_utf8_lossy(&output.stderr));
    target.join("debug/examples").join(name)
}

/// Where this very program was built: `TARGET/debug/deps/NAME` or `TARGET/debug/NAME`.
fn target_directory() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    // Cargo writes this one always, and its CACHEDIR.TAG only into a directory that it has made itself.
    let found =
        own.ancestors().find(|directory| fs::exists(directory.join(".rustc_info.json")).unwrap_or(false));
    found.unwrap_or_else(|| panic!("{} is in no target directory", own.display())).to_owned()
}
