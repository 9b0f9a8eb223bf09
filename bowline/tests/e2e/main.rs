//! The real process, the real kernel, the real callers.
//!
//! Needs root, loop devices and mounts; where they cannot be had, each test says so and is counted as not run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed check is a panic"
)]

mod contents;
mod death;
mod faults;
mod rds;
mod rds_sweep;
mod sanity;
mod soak;
mod sweep;
mod two_nodes;

use bowline_testkit::say;
use std::path::Path;

/// The process under test.
const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

/// Whether this machine lets us mount; says so in the summary if it does not.
fn can_mount(test: &str) -> bool {
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let can = is_root && Path::new("/dev/loop-control").exists();
    if !can {
        say(&format!("not run: {test} (missing: root and loop devices)"));
    }
    can
}

/// The bytes of a file.
fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
