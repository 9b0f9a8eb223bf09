//! What machines boot.

use crate::lab::project;
use std::path::PathBuf;
use std::process::Command;

/// A kernel of Debian's, as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Linux 6.1.
    Debian12,
    /// Linux 6.12: the kernel of Debian 13, as Debian 12 has it too.
    Debian13,
}

impl Kernel {
    const fn package(self) -> &'static str {
        match self {
            Self::Debian12 => "linux-image-amd64",
            Self::Debian13 => "linux-image-6.12-amd64",
        }
    }
}

/// A kernel and the small system it starts with.
#[derive(Clone, Debug)]
pub(super) struct Booted {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
}

/// Finds a kernel, or what is missing for it. The first call on a machine downloads it.
pub(super) fn find(kernel: Kernel) -> Result<Booted, String> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        return Err("qemu-system-x86_64: run make setup".to_owned());
    }
    let script = project().join("lab/vm/kernel.sh");
    let output =
        Command::new("sh").arg(script).arg(kernel.package()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => {}
        Some(3) => return Err(format!("the kernel {}: {said}", kernel.package())),
        _ => panic!("lab/vm/kernel.sh {}: {said}", kernel.package()),
    }
    let directory = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(Booted { kernel: directory.join("vmlinuz"), initrd: directory.join("initrd") })
}
