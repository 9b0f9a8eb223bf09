//! What a node on the same machine sees of a directory of volumes.

use super::directory::{Directory, Fault};
use super::holder;
use super::name::Part;
use super::recent::Writer;
use super::record::Phase;
use super::start::OpenError;
use crate::{BackingError, BackingFiles, Item};
use bowline_core::{Epoch, NodeId, VolumeId};
use bowline_host::Host;
use bowline_host::file::Sharing;
use std::path::{Path, PathBuf};

/// A directory of volumes as a node uses it, maybe in another process than the target: it takes no lock but those of
/// single volumes, and changes nothing.
#[derive(Debug)]
pub struct Shelf {
    directory: Directory,
    host: Host,
}

impl Shelf {
    /// Opens a directory that a [`super::FileTarget`] has made, for a node of this machine.
    pub fn open(path: &Path, host: &Host) -> Result<Self, OpenError> {
        let path = path.canonicalize().map_err(|error| OpenError::io(path, &error))?;
        let identity = Directory::identity(&path).map_err(|fault| OpenError::of(&path, &fault))?;
        let installation =
            identity.ok_or_else(|| OpenError::NotADirectory { path: path.clone() })?.installation;
        let directory = Directory { path, installation, writer: Writer::new() };
        Ok(Self { directory, host: host.clone() })
    }
}

impl BackingFiles for Shelf {
    fn with_grant(
        &self,
        volume: &VolumeId,
        node: &NodeId,
        epoch: Epoch,
        attach: &mut dyn FnMut(&Path, bool),
    ) -> Result<(), BackingError> {
        let path = self.directory.path.display();
        let said = holder::elsewhere(&self.directory.path, &self.host)
            .map_err(|error| BackingError::Unreadable { error: format!("{path}/directory.lock: {error}") })?;
        if let Some(why) = said {
            // A device on this kernel would be out of the sight of whoever proves that this node is out.
            return Err(BackingError::Unreadable { error: format!("nothing of {path} is attached: {why}") });
        }
        self.directory.with_grant(volume, node, epoch, attach)
    }

    fn backing(&self, volume: &VolumeId) -> Result<Option<PathBuf>, BackingError> {
        self.directory.backing(volume)
    }
}

fn unreadable(fault: &Fault) -> BackingError {
    BackingError::Unreadable { error: fault.to_string() }
}

impl Directory {
    pub(super) fn with_grant(
        &self,
        volume: &VolumeId,
        node: &NodeId,
        epoch: Epoch,
        attach: &mut dyn FnMut(&Path, bool),
    ) -> Result<(), BackingError> {
        let item = Item::Volume(volume.clone());
        let unknown = || BackingError::Unknown(volume.clone());
        // Shared: nodes do not wait for each other, and whoever revokes waits for all of them.
        let lock = self.lock(&item, Sharing::Shared, false).map_err(|fault| unreadable(&fault))?;
        let _lock = lock.ok_or_else(unknown)?;
        let record = self.volume(&item).map_err(|fault| unreadable(&fault))?.ok_or_else(unknown)?;
        let granted = record.exports.open().get(&epoch).filter(|export| export.node == *node);
        let Some(export) = granted.filter(|_| record.phase == Phase::Ready) else {
            return Err(BackingError::NotGranted { volume: volume.clone(), node: node.clone(), epoch });
        };
        self.open_volume(&item, &record, false).map_err(|fault| unreadable(&fault))?;
        attach(&self.path(&item, Part::Data), export.mode.write);
        Ok(())
    }

    pub(super) fn backing(&self, volume: &VolumeId) -> Result<Option<PathBuf>, BackingError> {
        let item = Item::Volume(volume.clone());
        let exists = self.exists(&item, Part::Data).map_err(|fault| unreadable(&fault))?;
        Ok(exists.then(|| self.path(&item, Part::Data)))
    }
}
