//! A directory, a simulated kernel, and a target over both.

use bowline_core::{Epoch, Mode, NodeId, NvmeNames, Share, SnapshotId, TargetId, VolumeId};
use bowline_host::Host;
use bowline_target::contract::provision::Bytes;
use bowline_target::file::{FileTarget, OpenError, Policy, Settings};
use bowline_target::{
    BackingFiles, Cut, Grant, NewVolume, Progress, Provision, Revocation, Source, Target, TargetError, nvmet,
};
use bowline_testkit::SimNvmet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const ADDRESSES: [&str; 2] = ["10.0.0.1:4420", "[fd00::1]:4420"];

pub(crate) struct Lab {
    _place: TempDir,
    pub(crate) directory: PathBuf,
    pub(crate) kernel: Arc<SimNvmet>,
    pub(crate) runtime: Runtime,
    patience: Duration,
}

/// As long as any machine may take, however busy it is.
const PATIENT: Duration = Duration::from_secs(20);

pub(crate) fn open(directory: &Path, kernel: Arc<SimNvmet>) -> Result<FileTarget, OpenError> {
    open_at(directory, kernel, &ADDRESSES)
}

pub(crate) fn open_at(
    directory: &Path,
    kernel: Arc<SimNvmet>,
    addresses: &[&str],
) -> Result<FileTarget, OpenError> {
    open_with(directory, kernel, addresses, false, PATIENT)
}

/// As on a machine that has not all its addresses yet.
pub(crate) fn open_lacking(
    directory: &Path,
    kernel: Arc<SimNvmet>,
    addresses: &[&str],
) -> Result<FileTarget, OpenError> {
    open_with(directory, kernel, addresses, true, PATIENT)
}

fn open_with(
    directory: &Path,
    kernel: Arc<SimNvmet>,
    addresses: &[&str],
    lacks_addresses: bool,
    patience: Duration,
) -> Result<FileTarget, OpenError> {
    let settings = Settings {
        id: TargetId::new("nvme-1").unwrap(),
        directory: directory.to_owned(),
        host_name: "here".to_owned(),
        policy: Policy { overcommit: 100, reserve: 8 * MIB },
    };
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    let nvmet = nvmet::Settings { tree: kernel, addresses, lacks_addresses, patience };
    FileTarget::open_exported(settings, nvmet, Host::default())
}

pub(crate) fn volume(id: &str) -> VolumeId {
    VolumeId::new(id).unwrap()
}

pub(crate) fn node(id: &str) -> NodeId {
    NodeId::new(id).unwrap()
}

pub(crate) fn grant(id: &str, to: &str, epoch: u64) -> Grant {
    let mode = Mode { write: true, frontend: true, share: Share::Writers };
    Grant { volume: volume(id), node: node(to), epoch: Epoch::new(epoch), mode, beside: None }
}

pub(crate) fn revocation(id: &str, from: &str, epoch: u64) -> Revocation {
    Revocation { volume: volume(id), node: node(from), epoch: Epoch::new(epoch), fence: true }
}

pub(crate) fn order(id: &str, size: u64, source: Option<Source>) -> NewVolume {
    NewVolume { volume: volume(id), name: format!("the {id}"), size, source }
}

pub(crate) fn cut(id: &str, of: &str) -> Cut {
    Cut { snapshot: SnapshotId::new(id).unwrap(), name: format!("the {id}"), volume: volume(of) }
}

impl Lab {
    pub(crate) fn new() -> Self {
        let place = tempfile::Builder::new().prefix("bowline-nvmet-").tempdir().unwrap();
        let path = place.path().canonicalize().unwrap();
        Self {
            _place: place,
            directory: path.join("volumes"),
            kernel: Arc::new(SimNvmet::new(path.join("nvmet"))),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap(),
            patience: PATIENT,
        }
    }

    /// One that does not wait long for a disk.
    pub(crate) fn impatient() -> Self {
        Self { patience: Duration::from_millis(300), ..Self::new() }
    }

    /// One that waits for a disk for as long as any test may take.
    pub(crate) fn endlessly_patient() -> Self {
        Self { patience: Duration::from_secs(3600), ..Self::new() }
    }

    pub(crate) fn open(&self) -> FileTarget {
        open_with(&self.directory, Arc::clone(&self.kernel), &ADDRESSES, false, self.patience).unwrap()
    }

    /// With volumes of these names.
    pub(crate) fn with(&self, volumes: &[&str]) -> FileTarget {
        let target = self.open();
        for id in volumes {
            self.runtime.block_on(target.create(&order(id, MIB, None), &Progress::default())).unwrap();
        }
        target
    }

    pub(crate) fn allow(&self, target: &FileTarget, grant: &Grant) -> Result<(), TargetError> {
        self.runtime.block_on(target.allow(grant))
    }

    pub(crate) fn revoke(&self, target: &FileTarget, revocation: &Revocation) -> Result<(), TargetError> {
        self.runtime.block_on(target.revoke(revocation)).map(|_| ())
    }

    /// Who is let in by the kernel, as (subsystem, host) of these grants.
    pub(crate) fn only_these(&self, target: &FileTarget, grants: &[Grant]) {
        let expected = grants.iter().map(|grant| {
            let names = names(target, grant);
            (names.subsystem, [names.host].into())
        });
        assert_eq!(self.kernel.admitted(), expected.collect());
    }

    /// Nothing is left in the kernel but ports.
    pub(crate) fn nothing_is_left(&self) {
        for group in ["subsystems", "hosts"] {
            assert_eq!(self.kernel.names(group), [""; 0], "{group}");
        }
    }
}

pub(crate) fn names(target: &FileTarget, grant: &Grant) -> NvmeNames {
    NvmeNames::new(target.installation(), &grant.volume, &grant.node, grant.epoch)
}

/// A volume's bytes through its file, where the kernel reads and writes them.
pub(crate) struct Raw<'a>(pub(crate) &'a FileTarget);

impl Bytes for Raw<'_> {
    fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
        let path = self.0.backing(volume).unwrap().unwrap();
        File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
    }
    fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
        let path = self.0.backing(volume).unwrap().unwrap();
        let mut bytes = vec![0; length];
        File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }
}
