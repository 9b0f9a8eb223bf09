//! What the kernel says about a volume: is it mounted, from its own device, and where else?

use crate::answer::Fault;
use crate::devices::Device;
use crate::node::ThisNode;
use crate::staging::{Content, Record};
use bowline_host::DeviceNumber;
use bowline_host::mountinfo::{Mount, MountTable};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

impl ThisNode {
    /// The device of a staged volume, if it is there and is what is mounted; otherwise what is stale: nothing is
    /// mounted, the device is gone, or another device is mounted.
    pub(crate) fn look(&self, record: &Record) -> Result<Device, Fault> {
        self.look_in(&self.host.mounts()?, record)
    }

    /// The same by a table that was just read.
    pub(crate) fn look_in(&self, table: &MountTable, record: &Record) -> Result<Device, Fault> {
        let device = self.device(record)?;
        let Record { volume, epoch, path, .. } = record;
        let gone = || Fault::Unreachable(format!("the device of volume {volume} (epoch {epoch}) is gone"));
        let device = device.ok_or_else(gone)?;
        let Content::Filesystem { fs, .. } = &record.content else { return Ok(device) };
        let Some(top) = table.top(path) else {
            return Err(Fault::Unreachable(format!(
                "volume {volume} is staged, but not mounted at {}",
                path.display()
            )));
        };
        if !self.host.is_mount_of(top, device.number) || top.fs_type != fs.name() {
            return Err(Fault::Unreachable(format!(
                "{} is not volume {volume}, whose device is {}",
                top.describe(),
                device.number
            )));
        }
        Ok(device)
    }

    /// Where else than at its staging path a volume can be seen on this node.
    pub(crate) fn published(
        &self,
        table: &MountTable,
        record: &Record,
        device: Option<&Device>,
    ) -> Vec<PathBuf> {
        // Seen through its mount, the filesystem of a device that is gone is still itself.
        let left = table.at(&record.path).filter(|mount| self.is_left(table, mount, record, device));
        let left: Vec<_> = left.map(|mount| mount.device).collect();
        let is_published = |mount: &&Mount| {
            mount.at != record.path
                && (device.is_some_and(|device| self.shows(mount, device))
                    || left.contains(&mount.device)
                    || self.is_claimed(table, mount, record))
        };
        let mut paths: Vec<_> = table.iter().filter(is_published).map(|mount| mount.at.clone()).collect();
        paths.dedup();
        paths
    }

    /// Whether a mount is where a record says that its volume was published, and can be that volume: its device may be
    /// gone by now. What is provably another volume's is not.
    pub(crate) fn is_claimed(&self, table: &MountTable, mount: &Mount, record: &Record) -> bool {
        record.published.contains(&mount.at)
            && is_content(mount, record)
            && !self.is_anothers(table, mount, record)
    }

    /// Whether a mount where a volume is staged is what an outage left of it: its disk is gone, whether the volume has another `device` by now
    /// or none.
    pub(crate) fn is_left(
        &self,
        table: &MountTable,
        mount: &Mount,
        record: &Record,
        device: Option<&Device>,
    ) -> bool {
        mount.at == record.path
            && is_content(mount, record)
            && (device.is_none() || self.host.has_lost_its_disk(mount))
            && !self.is_anothers(table, mount, record)
    }

    /// Whether a mount is where a record says that its volume was published, and shows a disk that is gone: the volume has another `device` by now, or
    /// none.
    pub(crate) fn shows_what_is_gone(
        &self,
        table: &MountTable,
        mount: &Mount,
        record: &Record,
        device: Option<&Device>,
    ) -> bool {
        let is_gone = match &record.content {
            Content::Filesystem { .. } => self.host.has_lost_its_disk(mount),
            Content::Block => device.is_none_or(|device| !self.shows(mount, device)),
        };
        is_gone && self.is_claimed(table, mount, record)
    }

    fn is_anothers(&self, table: &MountTable, mount: &Mount, record: &Record) -> bool {
        let others = self.state.volumes().unwrap_or_default();
        others.iter().filter(|other| **other != record.volume).any(|other| {
            let staged = self.state.load(other).ok().flatten().map(|other| other.path);
            let staged = staged.filter(|path| *path != record.path).and_then(|path| table.top(&path));
            let found = self.all_devices().filter_map(|devices| devices.find(other, &self.id).ok());
            staged.is_some_and(|staged| staged.device == mount.device)
                || found.flatten().any(|device| self.shows(mount, &device))
        })
    }

    /// Whether a mount shows a device: its filesystem, or its node.
    pub(crate) fn shows(&self, mount: &Mount, device: &Device) -> bool {
        self.host.is_mount_of(mount, device.number) || is_node_of(mount, device)
    }
}

/// Whether a mount is of the kind that a volume's mounts are.
pub(crate) fn is_content(mount: &Mount, record: &Record) -> bool {
    match &record.content {
        Content::Filesystem { fs, .. } => mount.fs_type == fs.name(),
        Content::Block => node_at(&mount.at).is_some(),
    }
}

/// Block mode: a file of /dev, mounted on a file. That of a disk that is gone was deleted, and another one of its name and number is another file.
pub(crate) fn is_node_of(mount: &Mount, device: &Device) -> bool {
    let name = Path::new(&mount.root).file_name();
    name.is_some() && name == device.path.file_name() && node_at(&mount.at) == Some(device.number)
}

/// Which block device is seen at a path.
pub(crate) fn node_at(path: &Path) -> Option<DeviceNumber> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    metadata.file_type().is_block_device().then(|| DeviceNumber::from_stat(metadata.rdev()))
}

/// Paths, for people.
pub(crate) fn listed(paths: &[PathBuf]) -> String {
    let shown: Vec<_> = paths.iter().take(5).map(|path| path.display().to_string()).collect();
    let more = if paths.len() > 5 { format!(" and {} more", paths.len() - 5) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
