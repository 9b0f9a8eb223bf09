//! Volumes of a directory, exported over NVMe/TCP by the kernel of this machine.
//!
//! The directory is that of [`crate::file`], with all it promises; this is only how nodes reach the bytes. **Every grant is a
//! subsystem of its own** ([`bowline_core::NvmeNames`]), with one host that may log in and one namespace over the volume's file, at
//! one port for each address. Nothing of it is ever used again: a node that is let in again gets another disk.
//!
//! **Who gets in.** `attr_allow_any_host` is 0 and only the host of the grant is in `allowed_hosts`; the ports come last. At the start,
//! every subsystem of this directory that its records do not name is taken away first, and then those that they do name are put
//! up again where they are missing; what is as it should be is not touched, so a new process disturbs nobody. Names that do
//! not begin as those of this directory are somebody else's, and so are ports at other addresses.
//!
//! **The fence.** See `subsystem.rs`, `hide`: it has happened when the kernel has come back from the last of its steps. A disk that does not
//! finish what is in flight keeps it from coming back; then that is what is told, and whoever asks again waits for the same work
//! (`work.rs`).
//!
//! **Readers.** A node that may only read gets a read-only loop device of this machine in front of the file: the kernel refuses its writes.

mod kernel;
mod port;
mod subsystem;
mod tree;
mod work;

pub use tree::{APART, Configfs, Tree, apart};

use crate::TargetError;
use crate::abreast::abreast;
use crate::file::exporter::{Exporter, Grants, Shown as Asked};
use bowline_core::{Epoch, NodeId, NvmeNames, SubsystemsOf, VolumeId};
use bowline_host::{Host, Tag};
use kernel::{Fault, Kernel};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use subsystem::{Bytes, Shown, Subsystem, hide, host_of};
use work::{Deed, Work};

/// How volumes are exported.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The kernel's NVMe target.
    pub tree: Arc<dyn Tree>,
    /// Where it listens, and where nodes are told to connect; at least one.
    pub addresses: Vec<SocketAddr>,
    /// Whether there are others that this machine does not have now, so that nobody knows them. What is shown at any besides stays then.
    pub lacks_addresses: bool,
    /// How long whoever shuts a node out waits for what is in flight before it is told that it goes on.
    pub patience: Duration,
}

impl Settings {
    /// How long a drain is waited for, if nothing else is said: less than a controller waits for an answer.
    pub const PATIENCE: Duration = Duration::from_secs(10);
}

/// The kernel's NVMe target, for the volumes of one directory.
#[derive(Debug)]
pub(crate) struct Nvmet {
    kernel: Kernel,
    addresses: Vec<SocketAddr>,
    lacks_addresses: bool,
    installation: String,
    host: Host,
    work: Work,
    /// One at a time looks for its ports and makes what is missing.
    ports: Arc<Mutex<()>>,
}

fn unreachable(fault: &Fault) -> TargetError {
    TargetError::Unreachable { error: format!("the kernel's NVMe target: {fault}") }
}

impl Nvmet {
    pub(crate) fn new(settings: Settings, installation: &str, host: Host) -> Self {
        let Settings { tree, addresses, lacks_addresses, patience } = settings;
        Self {
            kernel: Kernel(tree),
            addresses,
            lacks_addresses,
            installation: installation.to_owned(),
            host,
            work: Work::new(patience),
            ports: Arc::default(),
        }
    }

    fn shown(&self, asked: &Asked<'_>) -> Shown {
        let Asked { volume, node, epoch, write, alone, first, file } = *asked;
        Shown {
            names: NvmeNames::new(&self.installation, volume, node, epoch),
            file: file.to_owned(),
            write,
            may_be_blank: write && alone && first,
            stays_elsewhere: self.lacks_addresses,
            tag: Tag::new(volume, node, epoch),
        }
    }

    /// The subsystems of this directory that there are.
    fn subsystems(&self) -> Result<Vec<String>, Fault> {
        let ours = NvmeNames::prefix(&self.installation);
        let mut names = self.kernel.subsystems()?;
        names.retain(|name| name.starts_with(&ours));
        Ok(names)
    }

    fn hide(&self, name: &str, volume: &str, host: Option<String>) -> Result<(), TargetError> {
        // Before the look at the kernel: what is being shown may not be there yet, and be there when that has ended.
        let is_busy = self.work.is_busy(name);
        let is_gone = || -> Result<bool, Fault> {
            let is_left = match &host {
                Some(host) => self.kernel.exists(&host_of(host))?,
                None => false,
            };
            let is_there = self.kernel.exists(&Subsystem(name).directory())?;
            self.kernel.seen()?;
            Ok(!is_left && !is_there)
        };
        if !is_busy && is_gone().map_err(|fault| unreachable(&fault))? {
            return Ok(());
        }
        let (kernel, subsystem) = (self.kernel.clone(), name.to_owned());
        let work = move |job: &work::Job| hide(&kernel, &subsystem, host.as_deref(), job).map(|()| None);
        self.work.run(name, volume, Deed::Hide, work).map(drop)
    }

    /// Hides several side by side, and says what became of each: one that does not come back keeps the others neither from being begun nor, but for a
    /// great many of them, from being waited for no longer than one.
    fn hide_all(&self, all: Vec<Hidden>) -> Vec<(Hidden, Result<(), TargetError>)> {
        abreast(all, AT_ONCE, |hidden| {
            let result = self.hide(&hidden.name, &hidden.volume, hidden.host.clone());
            (hidden, result)
        })
    }

    /// As [`Self::hide_all`], for what is of one volume.
    fn hide_of(
        &self,
        volume: &VolumeId,
        all: impl IntoIterator<Item = (String, Option<String>)>,
    ) -> Result<(), TargetError> {
        let of_volume = |(name, host)| Hidden { volume: volume.to_string(), name, host, known: None };
        let hidden = self.hide_all(all.into_iter().map(of_volume).collect());
        hidden.into_iter().try_for_each(|(_, result)| result)
    }
}

/// How many subsystems are taken away at once: each has threads that may wait for its disk.
const AT_ONCE: usize = 128;

/// A subsystem that is to go.
struct Hidden {
    name: String,
    /// For people.
    volume: String,
    /// The volume, where that is not known otherwise.
    known: Option<VolumeId>,
    /// Its host, if that is known.
    host: Option<String>,
}

fn lost(error: &str) -> TargetError {
    TargetError::Unreachable { error: error.to_owned() }
}

impl Exporter for Nvmet {
    fn open(&self, asked: &Asked<'_>) -> Result<Option<String>, TargetError> {
        let shown = self.shown(asked);
        let (kernel, host, addresses) = (self.kernel.clone(), self.host.clone(), self.addresses.clone());
        let turn = Arc::clone(&self.ports);
        let name = shown.names.subsystem.clone();
        self.work.run(&name, asked.volume.as_str(), Deed::Show, move |job| {
            let ports = {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                let ports = addresses.iter().map(|address| port::ensure(&kernel, *address));
                ports.collect::<Result<Vec<_>, _>>()?
            };
            shown.show(&kernel, &host, &ports, job)
        })
    }

    fn close(&self, volume: &VolumeId, staying: &Grants, leaving: &Grants) -> Result<(), TargetError> {
        let named = |(epoch, export): (&_, &bowline_core::Export)| {
            let names = NvmeNames::new(&self.installation, volume, &export.node, *epoch);
            (names.subsystem, Some(names.host))
        };
        let mut out: BTreeMap<_, _> = leaving.iter().map(named).collect();
        // What nobody has asked for, too: no record names it.
        let of_volume = SubsystemsOf::new(volume);
        for name in self.subsystems().map_err(|fault| unreachable(&fault))? {
            let ours =
                of_volume.storage_and_epoch(&name).filter(|(storage, _)| *storage == self.installation);
            if ours.is_some_and(|(_, epoch)| !staying.contains_key(&epoch)) {
                out.entry(name).or_insert(None);
            }
        }
        self.hide_of(volume, out)
    }

    fn elsewhere(&self, asked: &Asked<'_>) -> Result<Option<String>, TargetError> {
        match self.shown(asked).bytes(&self.kernel, &self.host) {
            Ok(Bytes::Other(place)) => Ok(Some(place)),
            Ok(Bytes::None | Bytes::Unbound | Bytes::Own) => Ok(None),
            Err(error) => Err(lost(&format!("the kernel's NVMe target: {error}"))),
        }
    }

    fn cut_off(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Result<(), TargetError> {
        let of_volume = SubsystemsOf::new(volume);
        let mut out = Vec::new();
        for name in self.subsystems().map_err(|fault| unreachable(&fault))? {
            let ours =
                of_volume.storage_and_epoch(&name).filter(|(storage, _)| *storage == self.installation);
            let Some((_, granted)) = ours.filter(|(_, granted)| *granted <= epoch) else { continue };
            // It is there whenever it is allowed anywhere, and is no other node's. What is on its way out already is waited for by whoever
            // began that.
            let host = NvmeNames::new(&self.installation, volume, node, granted).host;
            let is_its = self.kernel.exists(&host_of(&host)).map_err(|fault| unreachable(&fault))?;
            if is_its && !self.work.is_hiding(&name) {
                out.push((name, Some(host)));
            }
        }
        self.hide_of(volume, out)
    }

    fn stuck(&self, volume: &VolumeId) -> Option<TargetError> {
        self.work.stuck(volume.as_str())
    }

    fn keep_only(
        &self,
        wanted: &[Asked<'_>],
        volumes: &[&VolumeId],
    ) -> Result<BTreeMap<VolumeId, TargetError>, TargetError> {
        let names_of: Vec<_> = volumes.iter().map(|volume| (*volume, SubsystemsOf::new(volume))).collect();
        let kept: BTreeSet<String> = wanted.iter().map(|asked| self.shown(asked).names.subsystem).collect();
        let mut out = Vec::new();
        for name in self.subsystems().map_err(|fault| unreachable(&fault))? {
            if kept.contains(&name) {
                continue;
            }
            tracing::warn!(subsystem = name, "taken away: no record names it");
            // By its id, which commands name: what stands in the subsystem's name may be a digest of it.
            let known = names_of.iter().find(|(_, names)| names.storage_and_epoch(&name).is_some());
            let known = known.map(|(volume, _)| (*volume).clone());
            let named = || name.rsplit(':').nth(1).unwrap_or(&name).to_owned();
            let volume = known.as_ref().map_or_else(named, ToString::to_string);
            out.push(Hidden { volume, known, name, host: None });
        }
        let mut left = BTreeMap::new();
        for (hidden, result) in self.hide_all(out) {
            let Err(error) = result else { continue };
            tracing::error!(subsystem = hidden.name, %error, "it is not proven gone; nobody new gets in");
            left.extend(hidden.known.map(|volume| (volume, error)));
        }
        Ok(left)
    }

    fn grown(&self, asked: &Asked<'_>) -> Result<(), String> {
        let shown = self.shown(asked);
        let namespace = Subsystem(&shown.names.subsystem).namespace();
        if !self.kernel.exists(&namespace).map_err(|fault| fault.to_string())? {
            return Ok(());
        }
        if !shown.write {
            let device =
                self.host.read_only_loop(&shown.file, &shown.tag).map_err(|error| error.to_string())?;
            let refreshed = device.map(|device| self.host.refresh_size(&device)).transpose();
            refreshed.map_err(|error| error.to_string())?;
        }
        subsystem::grown(&self.kernel, &namespace).map_err(|fault| fault.to_string())
    }

    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}
