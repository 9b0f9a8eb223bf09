//! How those who are let in reach the bytes: the seam between a directory of volumes and what shows them to nodes.

use crate::TargetError;
use bowline_core::{Epoch, Export, NodeId, VolumeId};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

/// Grants of one volume.
pub(crate) type Grants = BTreeMap<Epoch, Export>;

/// A grant that is stored, with the file it is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) volume: &'a VolumeId,
    pub(crate) node: &'a NodeId,
    pub(crate) epoch: Epoch,
    pub(crate) write: bool,
    /// Nobody else may write it, now or beside this grant.
    pub(crate) alone: bool,
    /// It was never shown before: whoever it is about has not seen the bytes under this grant.
    pub(crate) first: bool,
    pub(crate) file: &'a Path,
}

/// What shows volumes to nodes. Blocks. Whoever calls holds the lock of the volume alone.
///
/// Whatever it does, devices of this machine count besides: see [`super::access`].
pub(crate) trait Exporter: fmt::Debug + Send + Sync {
    /// Shows a volume to the node of a grant, and to nobody else. Again for the same grant changes nothing. Says where it is not shown, if it is elsewhere:
    /// the node reaches it by another way.
    fn open(&self, shown: &Shown<'_>) -> Result<Option<String>, TargetError>;

    /// Takes away everything that is shown of a volume but these grants. Comes back with success only when nothing that was
    /// shown otherwise reaches the bytes, and nothing of it is on its way. `leaving` are those that are known to go. Refused if a disk
    /// does not finish what is in flight.
    fn close(&self, volume: &VolumeId, staying: &Grants, leaving: &Grants) -> Result<(), TargetError>;

    /// Where the bytes are that are shown under the names of a grant, if they are others than those of its file.
    fn elsewhere(&self, _: &Shown<'_>) -> Result<Option<String>, TargetError> {
        Ok(None)
    }

    /// Takes away what is shown to a node up to an epoch, whatever any record says. Proves nothing: it may be shown again. Asked without the volume's
    /// lock.
    fn cut_off(&self, _: &VolumeId, _: &NodeId, _: Epoch) -> Result<(), TargetError> {
        Ok(())
    }

    /// Why nothing can be done to a volume now: its disk does not finish what is in flight. Asked without the volume's lock, which
    /// whoever waits for that disk may have.
    fn stuck(&self, _: &VolumeId) -> Option<TargetError> {
        None
    }

    /// Takes away everything that is shown of this directory but these grants. Says of which volumes something is not proven gone. `volumes` are all
    /// that are there.
    fn keep_only(
        &self,
        wanted: &[Shown<'_>],
        volumes: &[&VolumeId],
    ) -> Result<BTreeMap<VolumeId, TargetError>, TargetError>;

    /// Tells the node of a grant that the volume is larger now.
    fn grown(&self, shown: &Shown<'_>) -> Result<(), String>;

    /// Where nodes reach it over the network; nowhere if it is of this machine alone.
    fn addresses(&self) -> &[SocketAddr];

    /// Whether nodes write without a device of this machine that could be held still.
    fn is_remote(&self) -> bool {
        !self.addresses().is_empty()
    }
}

/// A node of this very machine attaches a loop device itself, while it is let in.
#[derive(Debug)]
pub(crate) struct Loops;

impl Exporter for Loops {
    fn open(&self, _: &Shown<'_>) -> Result<Option<String>, TargetError> {
        Ok(None)
    }

    fn close(&self, _: &VolumeId, _: &Grants, _: &Grants) -> Result<(), TargetError> {
        Ok(())
    }

    fn keep_only(
        &self,
        _: &[Shown<'_>],
        _: &[&VolumeId],
    ) -> Result<BTreeMap<VolumeId, TargetError>, TargetError> {
        Ok(BTreeMap::new())
    }

    fn grown(&self, _: &Shown<'_>) -> Result<(), String> {
        Ok(())
    }

    fn addresses(&self) -> &[SocketAddr] {
        &[]
    }
}
