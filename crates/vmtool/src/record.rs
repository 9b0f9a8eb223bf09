//! What the kernel shows of NVMe, as text that tests are made of.
//!
//! Lines of `path = content`, `path -> target` and `path b major:minor`, sorted. Only what does not change from one boot to the next.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Attributes of controllers, subsystems and disks.
const ATTRIBUTES: &[&str] = &[
    "address",
    "ana_grpid",
    "ana_state",
    "cntrltype",
    "ctrl_loss_tmo",
    "dev",
    "fast_io_fail_tmo",
    "hidden",
    "hostid",
    "hostnqn",
    "iopolicy",
    "kato",
    "multipath",
    "nsid",
    "reconnect_delay",
    "ro",
    "size",
    "state",
    "subsysnqn",
    "subsystype",
    "transport",
    "uuid",
    "wwid",
];

/// Where what belongs together hangs together.
const ROOTS: &[&str] = &[
    "/sys/block",
    "/sys/class/block",
    "/sys/class/nvme",
    "/sys/class/nvme-generic",
    "/sys/class/nvme-subsystem",
    "/sys/dev/block",
    "/sys/devices/virtual/nvme-fabrics",
    "/sys/devices/virtual/nvme-subsystem",
    "/sys/module/nvme_core/parameters",
];

/// Writes it all down.
///
/// # Errors
/// If it cannot be read or written.
pub fn record(out: &mut impl Write) -> io::Result<()> {
    let mut lines = BTreeSet::new();
    for root in ROOTS {
        walk(Path::new(root), &mut lines)?;
    }
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // What is one path of several has no number of its own.
        let Ok(number) = fs::read_to_string(format!("/sys/block/{name}/dev")) else { continue };
        if name.starts_with("nvme") && Path::new("/dev").join(&name).exists() {
            lines.insert(format!("dev/{name} b {}", number.trim()));
        }
    }
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn walk(directory: &Path, lines: &mut BTreeSet<String>) -> io::Result<()> {
    // What goes away meanwhile was on its way already.
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let shown = path.strip_prefix("/").unwrap_or(&path).display().to_string();
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            let target = fs::read_link(&path)?.display().to_string();
            let is_telling = matches!(name.as_str(), "device" | "subsystem") || target.contains("nvme");
            if is_telling && (name.contains("nvme") || target.contains("nvme")) {
                lines.insert(format!("{shown} -> {target}"));
            }
        } else if kind.is_dir() && (name.contains("nvme") || name.starts_with("ng") || name == "ctl") {
            walk(&path, lines)?;
        } else if kind.is_file() && ATTRIBUTES.contains(&name.as_str()) {
            // Some cannot be read in the state that something is in.
            let Ok(content) = fs::read_to_string(&path) else { continue };
            let content = content.trim();
            // The port of this end is another each time.
            let content = content.split(",src_addr").next().unwrap_or(content).trim_end();
            lines.insert(format!("{shown} = {content}").trim_end().to_owned());
        }
    }
    Ok(())
}
