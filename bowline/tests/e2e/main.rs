//! The real process, the real kernel, the real callers.
//!
//! Needs root, loop devices and mounts; where they cannot be had, each test says so and is counted as not run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a failed check is a panic")]

mod contents;
mod daemon;
mod driver;
mod faults;
mod sanity;
mod soak;
mod sweep;
mod two_nodes;

use std::io::Write;

/// Adds a line to what `make test` shows at its end.
fn tell(line: &str) {
    println!("{line}");
    if let Some(path) = std::env::var_os("BOWLINE_SUMMARY") {
        let summary = std::fs::OpenOptions::new().create(true).append(true).open(path);
        writeln!(summary.unwrap(), "{line}").unwrap();
    }
}

/// Whether this machine lets us mount; says so in the summary if it does not.
fn can_mount(test: &str) -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let can = is_root && std::path::Path::new("/dev/loop-control").exists();
    if !can {
        tell(&format!("not run: {test} (missing: root and loop devices)"));
    }
    can
}
