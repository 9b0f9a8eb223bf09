//! Checking a filesystem before it is mounted, and after an interrupted mkfs.

use crate::command::{CommandError, Finished};
use crate::device::{BlockDevice, DeviceError};
use crate::format::FsType;
use crate::host::Host;
use std::ffi::OsStr;
use std::path::Path;

/// What a check before mounting found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Nothing wrong.
    Clean,
    /// Something that could be repaired without a question, and was.
    Repaired,
    /// The filesystem needs no check: it brings itself in order when it is mounted.
    AtMount,
}

/// Why a filesystem must not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A person has to decide; nothing was changed that could not be without one.
    #[error("the filesystem has errors that are not repaired without a person: {said}")]
    Uncorrected {
        /// What the program said.
        said: String,
    },
    /// Something had the device mounted meanwhile.
    #[error("the filesystem was repaired while it was in use: {said}")]
    WhileInUse {
        /// What the program said.
        said: String,
    },
    /// It could not be checked.
    #[error("the filesystem could not be checked (exit code {code}): {said}")]
    Operational {
        /// The program's exit code.
        code: i32,
        /// What it said.
        said: String,
    },
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The program.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// e2fsck(8): the exit code is a sum of 1 corrected, 2 corrected and reboot, 4 left uncorrected, 8 operational error,
/// 16 usage, 32 cancelled, 128 library.
fn decode(finished: &Finished) -> Result<Checked, CheckError> {
    let said = format!("{} {}", finished.stdout.trim(), finished.stderr.trim()).trim().to_owned();
    match finished.code {
        0 => Ok(Checked::Clean),
        1 => Ok(Checked::Repaired),
        code if code & !0x7 != 0 => Err(CheckError::Operational { code, said }),
        code if code & 0x4 != 0 => Err(CheckError::Uncorrected { said }),
        _ => Err(CheckError::WhileInUse { said }),
    }
}

impl Host {
    /// Checks an unmounted filesystem before it is mounted, and repairs what is safe to.
    pub fn check(&self, device: &Path, fs: FsType) -> Result<Checked, CheckError> {
        match fs {
            FsType::Ext4 => {
                BlockDevice::await_free(device)?;
                decode(&self.programs.run_any("e2fsck", &[OsStr::new("-p"), device.as_os_str()])?)
            }
            // Both replay their log when they are mounted; their own checkers say not to be run before that.
            FsType::Xfs | FsType::Btrfs => Ok(Checked::AtMount),
        }
    }

    /// The same for ext4, all of it, even if nothing looks wrong.
    pub(crate) fn check_fully(&self, device: &Path) -> Result<Checked, CheckError> {
        BlockDevice::await_free(device)?;
        let args = [OsStr::new("-f"), OsStr::new("-p"), device.as_os_str()];
        decode(&self.programs.run_any("e2fsck", &args)?)
    }

    /// Whether every part of an unmounted filesystem is in order. Changes nothing.
    pub(crate) fn is_whole(&self, device: &Path, fs: FsType) -> Result<bool, CheckError> {
        let (program, args): (_, &[&str]) = match fs {
            FsType::Ext4 => ("e2fsck", &["-f", "-n"]),
            FsType::Xfs => ("xfs_repair", &["-n"]),
            FsType::Btrfs => ("btrfs", &["check", "--readonly"]),
        };
        let mut args: Vec<_> = args.iter().map(OsStr::new).collect();
        args.push(device.as_os_str());
        BlockDevice::await_free(device)?;
        Ok(self.programs.run_any(program, &args)?.code == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_of_e2fsck_has_a_meaning() {
        for (code, expected) in [
            (0, "clean"),
            (1, "repaired"),
            (2, "in use"),
            (3, "in use"),
            (4, "uncorrected"),
            (5, "uncorrected"),
            (6, "uncorrected"),
            (8, "operational"),
            (12, "operational"),
            (16, "operational"),
            (32, "operational"),
            (33, "operational"),
            (128, "operational"),
        ] {
            let finished = Finished { code, stdout: "out".into(), stderr: "err".into() };
            let meaning = match decode(&finished) {
                Ok(Checked::Clean) => "clean",
                Ok(Checked::Repaired) => "repaired",
                Ok(Checked::AtMount) => "at mount",
                Err(CheckError::WhileInUse { .. }) => "in use",
                Err(CheckError::Uncorrected { said }) if said == "out err" => "uncorrected",
                Err(CheckError::Operational { .. }) => "operational",
                Err(other) => panic!("{other}"),
            };
            assert_eq!(meaning, expected, "{code}");
        }
    }
}
