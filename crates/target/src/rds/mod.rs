//! Volumes on a MikroTik ROSE Data Server, told what to do over SSH.
//!
//! Every volume and snapshot is a disk of type `file`, known by its slot and by the name of its export (`name.rs` says what is
//! remembered there, and why nothing is remembered elsewhere). A disk that is not named so is somebody else's and is left alone; but for those of
//! an older driver, in a directory that the settings name (`older.rs`).
//!
//! **Who is let in.** A disk has one export: one name, one host that may connect, on or off. So one node at a time is let in, and the name
//! carries node, mode and epoch; while nobody is let in, it carries the newest epoch that is closed, and the host that may connect is
//! nobody. Every change names the slot and the export's name that it expects, so a command that comes late finds nothing: the device
//! compares and sets. After every change it is looked at, and only what is seen is told. A grant takes **two commands**, the change
//! and the look (three, if this process has not seen the volume before); see `access.rs` for the order.
//!
//! **An export that is open to others than it should be** (switched on by hand, an empty list of hosts) is closed as soon as it is seen, told
//! loudly, and listed as that of [`ANYBODY`].
//!
//! **What the device cannot do.** It cannot keep a host from writing: grants for reading are refused unless the nodes are trusted with that
//! ([`Settings::trust_readers`]). It copies without a moment: what somebody may write to is not copied. If its firmware cannot name the
//! host that may connect, exports are only switched on and off ([`Guarantee`]), and every error says so.
//!
//! **A lost connection** leaves it open what came of a command. So does silence without a status. Then it is looked at, and decided anew;
//! a copy of which nobody knows whether it is whole is made again.

mod access;
pub mod command;
pub mod console;
mod cut;
mod device;
pub mod disk;
pub mod fault;
mod grants;
mod make;
mod name;
mod number;
mod older;
pub mod print;
mod quote;
pub mod ssh;
mod stored;

pub use access::Guarantee;
pub use console::{Console, ConsoleError, Said};
pub use name::ANYBODY;
pub(crate) use name::fabric;
pub use number::Size;
pub use quote::quote;

use crate::turns::Turns;
use crate::{
    Capacity, Cut, Grant, Item, NewVolume, Page, Progress, Provision, ProvisionError, RDS, Revocation, Sizes,
    StoredSnapshot, StoredVolume, Target, TargetError, context,
};
use async_trait::async_trait;
use bowline_core::{NeverAgain, SnapshotId, TargetId, VolumeId};
use device::{Device, Trouble};
use name::{Mark, Names};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

/// Every size is a multiple of this. The device takes any, but a whole number of units reads better in its lists.
const MULTIPLE: u64 = 1 << 20;
const SIZES: Sizes = Sizes { minimum: MULTIPLE, maximum: 1 << 50, multiple: MULTIPLE };

/// Which device, and what of it is used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the target is called.
    pub id: TargetId,
    /// Tells Bowline's own disks from those of another installation on the same device: 1 to 32 small letters, digits and `-`.
    pub installation: String,
    /// What the pool is mounted as, in which the files lie.
    pub pool: String,
    /// The directory in which they lie, from the root; it begins with the pool.
    pub directory: String,
    /// The directory of an older driver (`rds.csi.srvlab.io`) whose disks are taken over when they are asked for; none are if there is none.
    pub take_over: Option<String>,
    /// Where nodes reach the exports; at least one, all with the same port.
    pub addresses: Vec<SocketAddr>,
    /// Whether nodes are trusted not to write where they may only read: the device cannot keep them from it.
    pub trust_readers: bool,
}

/// Why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// A setting cannot be so.
    #[error("{setting} must be {must}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What it must be.
        must: &'static str,
    },
    /// It does not answer, or not so that it can be understood.
    #[error("{error}")]
    Device {
        /// What was seen instead.
        error: String,
    },
}

impl Settings {
    /// Whether they can be so; the device is not asked.
    pub fn check(&self) -> Result<(), ConnectError> {
        self.names().map(drop)
    }

    fn names(&self) -> Result<(Names, u16), ConnectError> {
        let wrong = |setting, must| Err(ConnectError::Setting { setting, must });
        let small = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let installation = &self.installation;
        if installation.is_empty() || installation.len() > 32 || !installation.bytes().all(small) {
            return wrong("installation", "1 to 32 small letters, digits and dashes");
        }
        if !name::is_plain(&self.pool) || self.pool.len() > 64 {
            return wrong("pool", "letters, digits, '-', '.' and '_', at most 64");
        }
        const PATH: &str = "a path that begins with the pool, of letters, digits, '-', '.', '_' and spaces";
        let directory = self.directory.trim_matches('/').to_owned();
        if !is_in(&self.pool, &directory) {
            return wrong("directory", PATH);
        }
        let take_over = self.take_over.as_ref().map(|path| path.trim_matches('/').to_owned());
        if take_over.as_ref().is_some_and(|path| !is_in(&self.pool, path)) {
            return wrong("take-over", PATH);
        }
        if take_over.as_ref() == Some(&directory) {
            return wrong("take-over", "another directory than Bowline's own");
        }
        let mut ports = self.addresses.iter().map(SocketAddr::port);
        let Some(port) = ports.next().filter(|port| ports.all(|other| other == *port)) else {
            return wrong("addresses", "at least one address, and all with the same port");
        };
        Ok((Names { installation: installation.clone(), directory, take_over }, port))
    }
}

/// Whether it is a directory of a pool that can be written as it is.
fn is_in(pool: &str, directory: &str) -> bool {
    // It becomes part of a pattern, in which only a dot means more than itself.
    let part = |part: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b' ');
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
    };
    directory.split('/').next() == Some(pool) && directory.len() <= 128 && directory.split('/').all(part)
}

/// The disks of one installation on one device.
#[derive(Clone)]
pub struct RdsTarget {
    settings: Arc<Settings>,
    device: Arc<Device>,
    turns: Arc<Turns<String>>,
}

impl RdsTarget {
    /// Looks at the device, finds out what its firmware can keep, and says so if that is less than it should be.
    pub async fn connect(console: Arc<dyn Console>, settings: Settings) -> Result<Self, ConnectError> {
        let (names, port) = settings.names()?;
        let mut device = Device::new(console, names, settings.pool.clone(), port);
        device.examine().await.map_err(|trouble| ConnectError::Device { error: trouble.to_string() })?;
        if device.guarantee == Guarantee::OnOrOff {
            tracing::warn!(target = %settings.id, "{}", device.guarantee);
        }
        Ok(Self { settings: Arc::new(settings), device: Arc::new(device), turns: Arc::default() })
    }

    /// What the firmware can keep.
    pub fn guarantee(&self) -> Guarantee {
        self.device.guarantee
    }

    /// Does it to its end, whether anybody waits for it or not, in the turn of each of these slots.
    async fn carry_out<T, F>(
        &self,
        slots: Vec<String>,
        work: impl FnOnce(Arc<Device>) -> F + Send + 'static,
    ) -> Result<T, ProvisionError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ProvisionError>> + Send + 'static,
    {
        let (device, turns) = (Arc::clone(&self.device), Arc::clone(&self.turns));
        let done = tokio::spawn(async move {
            let mut held = Vec::new();
            for slot in slots {
                held.push(turns.take(&slot).await);
            }
            work(device).await
        });
        done.await.unwrap_or_else(|error| {
            Err(ProvisionError::Unreachable { error: format!("the work on it ended early: {error}") })
        })
    }
}

#[async_trait]
impl Target for RdsTarget {
    fn id(&self) -> &TargetId {
        &self.settings.id
    }

    async fn allow(&self, grant: &Grant) -> Result<(), TargetError> {
        let allowed = self.device.allow(grant, self.settings.trust_readers).await;
        allowed.map_err(|error| self.device.told(error))
    }

    async fn revoke(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError> {
        self.device.revoke(revocation).await.map_err(|error| self.device.told(error))
    }

    async fn exports(&self, after: Option<&VolumeId>, limit: usize) -> Result<Page, TargetError> {
        self.device.exports(after, limit).await.map_err(|error| self.device.told(error))
    }

    fn context(&self, grant: &Grant) -> BTreeMap<String, String> {
        let Settings { id, installation, addresses, .. } = &*self.settings;
        context::of_grant(id, RDS, installation, addresses, grant)
    }
}

#[async_trait]
impl Provision for RdsTarget {
    fn sizes(&self) -> Sizes {
        SIZES
    }

    fn kind(&self) -> &str {
        RDS
    }

    fn topology(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn installation(&self) -> &str {
        &self.settings.installation
    }

    fn addresses(&self) -> &[SocketAddr] {
        &self.settings.addresses
    }

    async fn create(&self, order: &NewVolume, _: &Progress) -> Result<u64, ProvisionError> {
        let order = order.clone();
        let turn = vec![order.volume.to_string()];
        self.carry_out(turn, |device| async move { device.create(&order).await }).await
    }

    async fn delete(&self, volume: &VolumeId) -> Result<(), ProvisionError> {
        let item = Item::Volume(volume.clone());
        let turn = vec![volume.to_string()];
        self.carry_out(turn, |device| async move { device.delete(&item).await }).await
    }

    async fn grow(&self, volume: &VolumeId, size: u64) -> Result<u64, ProvisionError> {
        let volume = volume.clone();
        let turn = vec![volume.to_string()];
        self.carry_out(turn, move |device| async move { device.grow(&volume, size).await }).await
    }

    async fn volume(&self, volume: &VolumeId) -> Result<Option<StoredVolume>, ProvisionError> {
        self.device.volume(volume).await
    }

    async fn snapshot(&self, cuts: &[Cut], _: &Progress) -> Result<Vec<StoredSnapshot>, ProvisionError> {
        let (slots, cuts) = (cut::slots(cuts)?.into_iter().collect(), cuts.to_vec());
        let now = crate::file::now();
        self.carry_out(slots, move |device| async move { device.snapshot(&cuts, now).await }).await
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProvisionError> {
        let item = Item::Snapshot(snapshot.clone());
        let turn = name::slot(&item).ok().into_iter().collect();
        self.carry_out(turn, |device| async move { device.delete(&item).await }).await
    }

    async fn stored_snapshot(&self, snapshot: &SnapshotId) -> Result<Option<StoredSnapshot>, ProvisionError> {
        self.device.stored_snapshot(snapshot).await
    }

    async fn capacity(&self) -> Result<Capacity, ProvisionError> {
        let all = self.device.all().await?;
        let (total, free) = self.device.room_in(&all)?;
        let mut promised = 0_u64;
        for (disk, seen) in self.device.ours(all)? {
            if !matches!(seen.mark, Mark::Making(_)) {
                promised = promised.saturating_add(disk.bytes().map_err(Trouble::from)?);
            }
        }
        Ok(Capacity { total, free, promised, available: free })
    }

    /// Also a file whose disk is gone, and a disk whose file is: to delete the item removes what is left of it.
    async fn items(&self, after: Option<&Item>, limit: usize) -> Result<Vec<Item>, ProvisionError> {
        let files = self.device.files(&format!("{}/", self.device.names.directory)).await?;
        let disks = self.device.all().await?;
        let items = stored::items(&self.device.names, &disks, &files).map_err(Trouble::from)?;
        Ok(items.into_iter().filter(|item| after.is_none_or(|after| item > after)).take(limit).collect())
    }
}
