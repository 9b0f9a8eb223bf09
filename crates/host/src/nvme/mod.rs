//! Volumes over NVMe/TCP, seen from the node: connect, find the device, rescan, reset, disconnect.
//!
//! **Identity.** A device is known by the NQN of its subsystem and the UUID of its namespace, looked up in sysfs each
//! time; never by its name, and never by the number of a controller, which says nothing about the number of the disk.
//! What was found is remembered for half a minute, and proven again before it is used.
//!
//! **Guarantees.** Nothing is changed, and nothing but its NQN is read, of a subsystem whose NQN does not begin with
//! Bowline's prefix: a machine may have its own root on NVMe. A disk that is in use is not disconnected. Every write
//! that the kernel may keep is made by another process within a deadline ([`Kernel`]), connects one at a time on the machine.
//!
//! **Caveats.** A write that was given up on may still happen: a connection can appear after its connect has failed. It is
//! found by its NQN by whoever comes next.
//!
//! Below injected roots: sysfs is [`crate::Roots::sys`], nodes are in [`crate::Roots::dev`].

mod cache;
mod connect;
mod reset;
mod sysfs;
mod write;

pub use connect::{Answer, Connected, Failure, Login};
pub use sysfs::{Address, Controller, ControllerState, Namespace, Subsystem, SysfsError};
pub use write::{Kernel, WriteError, write_for};

use crate::device::{BlockDevice, DeviceError, DeviceNumber, Open};
use crate::holders::Holder;
use crate::host::Host;
use bowline_core::ONLY_NAMESPACE;
use bowline_failpoint::pass;
use cache::{Cache, Hint};
use connect::Turn;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use sysfs::{Seen, attribute, uuid};

/// How long the kernel tries, and how long we do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How the NQN of every subsystem begins that may be touched.
    pub prefix: String,
    /// How long the target may be silent (`keep_alive_tmo`), in seconds. Linux 6.1 gives the connection up after less than
    /// three of these: it waits for the lost question twice.
    pub keep_alive: u32,
    /// How long to wait before the next attempt to get a lost connection back (`reconnect_delay`), in seconds.
    pub reconnect_delay: u32,
    /// How long after the loss of the last connection I/O waits before it fails (`fast_io_fail_tmo`), in seconds. A
    /// fenced node gets its errors after this time; the kernel's default is never.
    pub fail_io_after: u32,
    /// How long after the loss of a connection it is given up and its device goes (`ctrl_loss_tmo`), in seconds.
    pub give_up_after: u32,
    /// How long a connect may take. The kernel tries an address for some seconds.
    pub connect_within: Duration,
    /// How long an address may take to answer, where a target has several. The kernel would be at a dead one for as long as it is given, and
    /// nobody else on the machine could connect meanwhile.
    pub answer_within: Duration,
    /// How long a connection may take to be taken down.
    pub disconnect_within: Duration,
    /// How long a device may take to appear once it is connected.
    pub appear_within: Duration,
    /// How long a new size may take to be seen.
    pub grow_within: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: bowline_core::NQN_PREFIX.to_owned(),
            keep_alive: 5,
            reconnect_delay: 2,
            fail_io_after: 15,
            give_up_after: 60,
            connect_within: Duration::from_secs(20),
            answer_within: Duration::from_secs(2),
            disconnect_within: Duration::from_secs(30),
            appear_within: Duration::from_secs(10),
            grow_within: Duration::from_secs(10),
        }
    }
}

/// Why a device is not as asked for.
#[derive(Debug, thiserror::Error)]
pub enum NvmeError {
    /// It is not one that this driver manages.
    #[error("{nqn} does not begin with {prefix}; it is left alone")]
    Foreign {
        /// Its NQN.
        nqn: String,
        /// How those begin that are managed.
        prefix: String,
    },
    /// A name would say more to the kernel than a name.
    #[error("{0:?} cannot be part of a connect")]
    Word(String),
    /// The subsystem is connected already, as somebody else.
    #[error("{nqn} is connected as {found}, not as {expected}")]
    OtherHost {
        /// Its NQN.
        nqn: String,
        /// As whom.
        found: String,
        /// As whom it should be.
        expected: String,
    },
    /// sysfs.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// The kernel has nowhere to write a connect to.
    #[error("{} is not there: the module nvme_tcp is not loaded on this machine; modprobe nvme_tcp", file.display())]
    NoModule {
        /// Where it would be.
        file: PathBuf,
    },
    /// No address let us in.
    #[error("{nqn} could not be connected: {}", connect::listed(failures))]
    Connect {
        /// Its NQN.
        nqn: String,
        /// Each address, and what came of it.
        failures: Vec<Failure>,
    },
    /// It was connected and had no device; it was disconnected, so that the next connect begins anew.
    #[error("{nqn} was connected, but had no device within {} s; it was disconnected, try again", waited.as_secs_f32())]
    Orphaned {
        /// Its NQN.
        nqn: String,
        /// How long the device was waited for.
        waited: Duration,
    },
    /// It is still in use, so it stays.
    #[error("{} is still in use: {by}", device.display())]
    InUse {
        /// The device.
        device: PathBuf,
        /// By what, for people.
        by: String,
    },
    /// A write to the kernel.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It was told to go, and is still there.
    #[error("{nqn} still has {left} connections {} s after they were told to go", waited.as_secs_f32())]
    Lingers {
        /// Its NQN.
        nqn: String,
        /// How many.
        left: usize,
        /// How long they were waited for.
        waited: Duration,
    },
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The device of a namespace, just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockNode {
    /// Its node.
    pub path: PathBuf,
    /// Its device number; the node has it, too.
    pub number: DeviceNumber,
    /// Whether the kernel refuses writes.
    pub read_only: bool,
}

/// NVMe over fabrics on one machine. Blocks.
pub struct Nvme {
    host: Arc<Host>,
    kernel: Arc<dyn Kernel>,
    settings: Settings,
    cache: Mutex<Cache>,
    seen: Seen,
    turn: Turn,
}

impl std::fmt::Debug for Nvme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvme").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// How long somebody (udev, a listing) may look at a disk that is to go.
const LINGER: Duration = Duration::from_secs(2);

impl Nvme {
    /// On this machine, with this way to write to its kernel.
    pub fn new(host: Arc<Host>, kernel: Arc<dyn Kernel>, settings: Settings) -> Self {
        Self { host, kernel, settings, cache: Mutex::default(), seen: Seen::default(), turn: Turn::default() }
    }

    /// Every subsystem that this driver manages and whose NQN is wanted.
    pub fn subsystems(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<Subsystem>, NvmeError> {
        let wanted = |nqn: &str| self.is_ours(nqn).is_ok() && wanted(nqn);
        Ok(self.seen.subsystems(&self.host.roots.sys, wanted)?)
    }

    /// One of them.
    pub fn subsystem(&self, nqn: &str) -> Result<Option<Subsystem>, NvmeError> {
        self.is_ours(nqn)?;
        if let Some(connected) = self.seen.connected(&self.host.roots.sys, nqn)? {
            return Ok(Some(connected));
        }
        // For a moment there can be two: one that only its last user keeps, and the one that was connected since.
        Ok(self.subsystems(|one| one == nqn)?.into_iter().max_by_key(|one| one.controllers.len()))
    }

    /// The device of a namespace; `None` if there is none that can be opened.
    pub fn resolve(&self, nqn: &str, namespace: &str) -> Result<Option<BlockNode>, NvmeError> {
        self.resolve_at(nqn, namespace, Instant::now())
    }

    fn resolve_at(&self, nqn: &str, namespace: &str, now: Instant) -> Result<Option<BlockNode>, NvmeError> {
        self.is_ours(nqn)?;
        // Whether it is the only one is not seen by looking at it alone.
        let hint = self.cache().get(nqn, now).filter(|_| namespace != ONLY_NAMESPACE);
        if let Some(hint) = hint {
            if let Some(node) = self.proven(&hint, nqn, namespace)? {
                return Ok(Some(node));
            }
            self.cache().forget(nqn);
        }
        let Some(subsystem) = self.subsystem(nqn)? else { return Ok(None) };
        let mut found = subsystem.named(namespace);
        let found = found.find_map(|one| Some((one, self.node_of(one)?)));
        if let Some((namespace, _)) = &found {
            let (name, number) = (namespace.name.clone(), namespace.number);
            self.cache().put(nqn, Hint { name, number, noted: now });
        }
        Ok(found.map(|(_, node)| node))
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a device that was right once still is: names and numbers are given to others.
    fn proven(&self, hint: &Hint, nqn: &str, namespace: &str) -> Result<Option<BlockNode>, NvmeError> {
        let directory = self.host.roots.sys.join(format!("dev/block/{}", hint.number));
        let Ok(link) = std::fs::read_link(&directory) else { return Ok(None) };
        // Both the subsystem above a multipath disk and the controller above a plain one say whose they are.
        let same = link.file_name().is_some_and(|name| name == hint.name.as_str())
            && attribute(&directory.join("device"), "subsysnqn")?.as_deref() == Some(nqn)
            && uuid(&directory)?.is_some_and(|uuid| uuid.eq_ignore_ascii_case(namespace));
        if !same {
            return Ok(None);
        }
        let read_only = attribute(&directory, "ro")?.is_some_and(|text| text == "1");
        let Hint { name, number, .. } = hint.clone();
        Ok(self.node_of(&Namespace { name, number, uuid: None, read_only }))
    }

    /// The node of a disk, if it is there and is that disk's.
    pub fn node_of(&self, namespace: &Namespace) -> Option<BlockNode> {
        let path = self.host.roots.dev.join(&namespace.name);
        let Namespace { number, read_only, .. } = *namespace;
        (self.host.node_number(&path) == Some(number)).then_some(BlockNode { path, number, read_only })
    }

    /// Whether the kernel makes one disk of several connections.
    pub fn is_multipath(&self) -> bool {
        let parameters = self.host.roots.sys.join("module/nvme_core/parameters");
        attribute(&parameters, "multipath").ok().flatten().is_some_and(|value| value == "Y")
    }

    /// Whether connects can be asked for at all.
    pub fn fabrics(&self) -> Result<(), SysfsError> {
        let path = self.host.roots.dev.join(write::FABRICS);
        std::fs::metadata(&path).map(drop).map_err(|error| SysfsError { path, error })
    }

    fn is_ours(&self, nqn: &str) -> Result<(), NvmeError> {
        let prefix = &self.settings.prefix;
        // An empty prefix would mean everything.
        if !prefix.is_empty() && nqn.starts_with(prefix) {
            return Ok(());
        }
        Err(NvmeError::Foreign { nqn: nqn.to_owned(), prefix: prefix.clone() })
    }

    /// Takes down every connection that was made as this host. None there is fine; a disk in use stays.
    pub fn disconnect(&self, nqn: &str, host_nqn: &str) -> Result<(), NvmeError> {
        let Some(subsystem) = self.subsystem(nqn)? else { return Ok(()) };
        self.cache().forget(nqn);
        let controllers = || subsystem.controllers.iter().filter(|one| one.host_nqn == host_nqn);
        if controllers().next().is_none() {
            return Ok(());
        }
        // Kept until they are gone, so that nobody mounts one in between.
        let held = subsystem.namespaces.iter().map(|one| self.hold(one)).collect::<Result<Vec<_>, _>>()?;
        pass("host.nvme-disconnect.before");
        for controller in controllers() {
            let file = controller.directory.join("delete_controller");
            match self.kernel.write(&file, "1", self.settings.disconnect_within) {
                Ok(_) => {}
                Err(WriteError::Refused { error, .. }) if sysfs::is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        pass("host.nvme-disconnect.after");
        drop(held);
        let left = || -> Result<usize, NvmeError> {
            let subsystem = self.subsystem(nqn)?;
            let controllers = subsystem.iter().flat_map(|subsystem| &subsystem.controllers);
            Ok(controllers.filter(|one| one.host_nqn == host_nqn).count())
        };
        let waited = self.settings.disconnect_within;
        match until(waited, || Ok(Some(left()?).filter(|left| *left == 0)))? {
            Some(_) => Ok(()),
            None => Err(NvmeError::Lingers { nqn: nqn.to_owned(), left: left()?, waited }),
        }
    }

    /// Keeps a disk from everybody else; nothing to keep where it has no node.
    fn hold(&self, namespace: &Namespace) -> Result<Option<BlockDevice>, NvmeError> {
        let device = self.host.roots.dev.join(&namespace.name);
        let others = || -> Result<Option<()>, NvmeError> {
            let own = std::process::id();
            let mut holders = self.host.holders(namespace.number);
            holders.retain(|holder| !matches!(holder, Holder::Process { pid, .. } if *pid == own));
            Ok(holders.is_empty().then_some(()))
        };
        let in_use =
            || NvmeError::InUse { device: device.clone(), by: self.host.users_of_device(namespace.number) };
        if until(LINGER, others)?.is_none() {
            return Err(in_use());
        }
        if self.node_of(namespace).is_none() {
            return Ok(None);
        }
        match BlockDevice::open(&device, Open::ReadAlone) {
            Ok(open) if open.number == namespace.number => Ok(Some(open)),
            Ok(_) => Ok(None),
            Err(DeviceError::Busy { .. }) => Err(in_use()),
            Err(DeviceError::Io { error, .. }) if sysfs::is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the target for the sizes of its namespaces again, and says which one this namespace has: at once if that is
    /// enough, otherwise when it is, or when the time is over.
    pub fn rescan(&self, nqn: &str, namespace: &str, at_least: u64) -> Result<Option<u64>, NvmeError> {
        let size = || self.size(nqn, namespace);
        let enough = |size: &u64| at_least > 0 && *size >= at_least;
        let Some(subsystem) = self.subsystem(nqn)? else { return Ok(None) };
        let before = size()?;
        if let Some(size) = before.filter(enough) {
            return Ok(Some(size));
        }
        pass("host.nvme-rescan.before");
        for controller in subsystem.controllers.iter().filter(|one| one.state == ControllerState::Live) {
            let file = controller.directory.join("rescan_controller");
            match self.kernel.write(&file, "1", self.settings.grow_within) {
                Ok(_) => {}
                Err(WriteError::Refused { error, .. }) if sysfs::is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        pass("host.nvme-rescan.after");
        let changed = |size: &u64| if at_least > 0 { enough(size) } else { Some(*size) != before };
        // Without a size to wait for, the scan gets a moment.
        let time = if at_least > 0 { self.settings.grow_within } else { LINGER };
        match until(time, || Ok(size()?.filter(changed)))? {
            Some(size) => Ok(Some(size)),
            None => size(),
        }
    }

    fn size(&self, nqn: &str, namespace: &str) -> Result<Option<u64>, NvmeError> {
        let Some(node) = self.resolve(nqn, namespace)? else { return Ok(None) };
        let directory = self.host.roots.sys.join(format!("dev/block/{}", node.number));
        let sectors = attribute(&directory, "size")?.and_then(|text| text.parse::<u64>().ok());
        // sysfs counts in these, whatever the disk's blocks are.
        Ok(sectors.and_then(|sectors| sectors.checked_mul(512)))
    }
}

impl Subsystem {
    /// The disks of the namespace with that UUID, or of the only one there is ([`ONLY_NAMESPACE`]): of several, none.
    pub fn named(&self, namespace: &str) -> impl Iterator<Item = &Namespace> {
        let only = namespace == ONLY_NAMESPACE && self.namespaces.len() == 1;
        let is = move |one: &&Namespace| {
            only || one.uuid.as_deref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(namespace))
        };
        self.namespaces.iter().filter(is)
    }
}

impl Controller {
    /// Whether it leads there.
    fn leads_to(&self, address: std::net::SocketAddr) -> bool {
        let there = connect::words(address);
        self.address.as_ref().is_some_and(|known| *known == there)
    }
}

/// Looks again and again, until it is there or the time is over. sysfs tells nobody of changes; so that little is added to what
/// something takes, each pause is a part of it.
fn until<T>(
    time: Duration,
    mut look: impl FnMut() -> Result<Option<T>, NvmeError>,
) -> Result<Option<T>, NvmeError> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        let waited = begun.elapsed();
        let left = time.saturating_sub(waited);
        if left.is_zero() {
            return Ok(None);
        }
        let pause = (waited / 8).clamp(Duration::from_millis(1), Duration::from_millis(100));
        std::thread::sleep(pause.min(left));
    }
}
