//! A node of this very machine: it logs in to its own target over TCP, as any other would.

use bowline_core::{Epoch, Mode, NodeId, NvmeNames, Share, VolumeId};
use bowline_host::Host;
use bowline_host::helper::Helper;
use bowline_host::nvme::{Connected, Login, Nvme, NvmeError, Settings};
use bowline_target::contract::provision::Bytes;
use bowline_target::file::FileTarget;
use bowline_target::{Grant, Provision, Revocation, Target};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

/// What the program is told whose process writes to the kernel.
pub(crate) const WRITES: [&str; 1] = ["kernel-write"];

pub(crate) struct Wire {
    target: FileTarget,
    nvme: Nvme,
    /// The last epoch that a volume's bytes were reached under.
    epochs: Mutex<HashMap<VolumeId, Epoch>>,
}

impl Wire {
    pub(crate) fn new(target: FileTarget) -> Self {
        let helper = Helper::new("/proc/self/exe", WRITES);
        let nvme = Nvme::new(Arc::new(Host::default()), Arc::new(helper), Settings::default());
        Self { target, nvme, epochs: Mutex::default() }
    }

    pub(crate) fn names(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> NvmeNames {
        NvmeNames::new(self.target.installation(), volume, node, epoch)
    }

    fn login(&self, names: &NvmeNames) -> Result<Connected, NvmeError> {
        self.nvme.connect(&Login { names: names.clone(), addresses: self.target.addresses().to_vec() })
    }

    /// Logs in at every address; what is done with the disk, and out again.
    pub(crate) fn with_disk<T>(&self, names: &NvmeNames, using: impl FnOnce(&Connected) -> T) -> T {
        let connected = self.login(names).unwrap_or_else(|error| panic!("{} is let in: {error}", names.host));
        assert_eq!(connected.failures, [], "{names:?}");
        let done = using(&connected);
        self.nvme.disconnect(&names.subsystem, &names.host).unwrap();
        done
    }

    /// Nobody can log in like this.
    pub(crate) fn is_refused(&self, names: &NvmeNames, when: &str) {
        match self.login(names) {
            Err(NvmeError::Connect { failures, .. }) => {
                assert_eq!(failures.len(), self.target.addresses().len(), "{when}: {failures:?}");
            }
            other => panic!("{when}: {names:?} got {other:?}"),
        }
    }

    /// Lets a node in, does something with its disk, and shuts it out again.
    fn with_volume<T>(&self, volume: &VolumeId, using: impl FnOnce(&File) -> T) -> T {
        let epoch = {
            // Above those of the suite, which begin at one: it does not use them on a volume whose bytes it has written.
            let mut epochs = self.epochs.lock().unwrap();
            let epoch = epochs.get(volume).map_or(Epoch::new(100), |last| last.next());
            epochs.insert(volume.clone(), epoch);
            epoch
        };
        let (volume, node) = (volume.clone(), NodeId::new("wire").unwrap());
        let names = self.names(&volume, &node, epoch);
        let mode = Mode { write: true, frontend: true, share: Share::Nobody };
        let asked = Grant { volume: volume.clone(), node: node.clone(), epoch, mode, beside: None };
        block_in_place(|| Handle::current().block_on(self.target.allow(&asked))).unwrap();
        let done = block_in_place(|| {
            self.with_disk(&names, |connected| {
                let disk = File::options().read(true).write(true).open(&connected.node.path).unwrap();
                let done = using(&disk);
                disk.sync_all().unwrap();
                done
            })
        });
        let out = Revocation { volume, node, epoch, fence: true };
        block_in_place(|| Handle::current().block_on(self.target.revoke(&out))).unwrap();
        done
    }
}

impl Bytes for Wire {
    fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
        self.with_volume(volume, |disk| disk.write_all_at(bytes, offset).unwrap());
    }

    fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
        self.with_volume(volume, |disk| {
            let mut bytes = vec![0; length];
            disk.read_exact_at(&mut bytes, offset).unwrap();
            bytes
        })
    }
}
