//! Where a volume's block device on this node comes from.

use bowline_core::{Epoch, NodeId, VolumeId};
use bowline_host::DeviceNumber;
use bowline_host::device::Kept;
use bowline_target::NvmeContext;
use std::path::PathBuf;

/// What lets a node in to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Which volume.
    pub volume: VolumeId,
    /// Which node.
    pub node: NodeId,
    /// The grant's epoch.
    pub epoch: Epoch,
    /// Whether it may write.
    pub write: bool,
    /// How to get there, if the volume comes over NVMe/TCP.
    pub fabric: Option<NvmeContext>,
}

/// A block device of a volume on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its node. Good while the volume is locked; found again after that.
    pub path: PathBuf,
    /// Its device number.
    pub number: DeviceNumber,
    /// Through which grant it reaches the volume.
    pub epoch: Epoch,
    /// Whether the kernel refuses writes.
    pub read_only: bool,
    /// Whether its target says that it was blank before it was shown for this grant; only [`Devices::connect`] asks.
    pub was_blank: bool,
}

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// The target has no such volume.
    #[error("{0}")]
    UnknownVolume(String),
    /// This node is not let in, or not so.
    #[error("{0}")]
    NotGranted(String),
    /// It is still in use, so it stays.
    #[error("{0}")]
    InUse(String),
    /// It was connected without being of any use, and is not connected any more: the next attempt begins anew.
    #[error("{0}")]
    Orphaned(String),
    /// The storage, or the kernel, does not give it now.
    #[error("{0}")]
    Unreachable(String),
}

/// What is left of a grant on this node without a device that could be used or looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Of which grant.
    pub epoch: Epoch,
    /// Nothing leads to the storage any more, but somebody still has what was the device: a mount, most likely.
    pub held: bool,
}

/// Makes, finds and takes away the devices of one target's volumes on this node. Blocks; called with the volume locked.
///
/// # Guarantees that an adapter gives
///
/// - A device is recognised by its grant, never by its name. What is done to it by its name is done while it is kept ([`Devices::keep`]).
/// - `connect` succeeds only while the grant is in force, and twice is one device.
/// - `disconnect` succeeds only when no device of that grant is left, and touches none that is in use.
pub trait Devices: Send + Sync + 'static {
    /// What the device of a grant is known by, for ever: it is kept in the staging record.
    fn identity(&self, grant: &Grant) -> String;

    /// The device of a grant, connected if it is not yet.
    fn connect(&self, grant: &Grant) -> Result<Device, DevicesError>;

    /// The same. Once there is a device, further ways to it, each of which may take long, are connected only if it `is_wanted`.
    fn connect_while(
        &self,
        grant: &Grant,
        _is_wanted: &dyn Fn(&Device) -> bool,
    ) -> Result<Device, DevicesError> {
        self.connect(grant)
    }

    /// Every device of a volume on this node, of whatever epoch.
    fn find(&self, volume: &VolumeId, node: &NodeId) -> Result<Vec<Device>, DevicesError>;

    /// The device of one grant, if it is there.
    fn get(&self, grant: &Grant) -> Result<Option<Device>, DevicesError> {
        let found = self.find(&grant.volume, &grant.node)?;
        Ok(found.into_iter().find(|device| device.epoch == grant.epoch))
    }

    /// Keeps the device of a grant, so that its node leads to no other while that lives; to be let go before [`Self::disconnect`].
    fn keep(&self, grant: &Grant, device: &Device) -> Result<Kept, DevicesError> {
        let kept = Kept::open(&device.path).map_err(|error| DevicesError::Unreachable(error.to_string()))?;
        // Asked only now: when it was opened, its name and its number could have been another's since they were found.
        let found = self.get(grant)?.is_some_and(|found| found.number == device.number);
        if found && kept.number() == device.number {
            return Ok(kept);
        }
        let Grant { volume, epoch, .. } = grant;
        Err(DevicesError::Unreachable(format!(
            "the device of volume {volume} (epoch {epoch}) is another by now"
        )))
    }

    /// What is left of grants of a volume on this node without a device.
    fn remains(&self, _volume: &VolumeId, _node: &NodeId) -> Result<Vec<Remains>, DevicesError> {
        Ok(Vec::new())
    }

    /// Whether something leads from the device of a grant to its storage just now, and what does not as it should. Asks
    /// neither: it answers at once.
    fn reaches(&self, _grant: &Grant) -> Result<Option<String>, DevicesError> {
        Ok(None)
    }

    /// Whether a way to the storage is lost that would be found again by another [`Self::connect`]. Changes nothing.
    fn can_reach_more(&self, _grant: &Grant) -> Result<bool, DevicesError> {
        Ok(false)
    }

    /// How long somebody may wait for a device before a [`Self::reset`] is due; `None` where none would help.
    fn patience(&self) -> Option<std::time::Duration> {
        None
    }

    /// Makes what leads from the device of a grant to its storage anew, as far as it seems to work, and says how many ways that are. Whoever uses
    /// the device loses nothing by it that he would not lose anyway.
    fn reset(&self, _volume: &VolumeId, _node: &NodeId, _epoch: Epoch) -> Result<usize, DevicesError> {
        Ok(0)
    }

    /// Takes the device of a grant away. None there is fine.
    fn disconnect(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Result<(), DevicesError>;

    /// Takes over a size that has grown, and says what it is now. One that is known to be `at_least` this much by now is
    /// waited for, within bounds.
    fn refresh(&self, grant: &Grant, device: &Device, at_least: u64) -> Result<u64, DevicesError>;

    /// Whether this node can get devices of this target at all.
    fn check(&self) -> Result<(), DevicesError>;
}
