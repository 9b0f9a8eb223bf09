//! Exports under the names of this directory over other bytes than its own.
//!
//! Exports outlive the process, and a directory can be copied while there is none: its installation comes along, and with it the names of every grant. A
//! node that writes to the old place must not find itself over the copy under the same names, without what it has written since. So such an export
//! is not put right: its epoch is closed, which is stored first, and it is taken away. It is listed until somebody asks for that, and whoever is let in
//! after that gets another disk.

use super::Inner;
use super::directory::called;
use super::name::Part;
use super::record::VolumeRecord;
use crate::{Item, TargetError};
use bowline_core::{Epoch, NodeId};

/// A grant whose export was over other bytes.
pub(super) struct Closed {
    pub(super) node: NodeId,
    pub(super) epoch: Epoch,
    /// Where those are.
    place: String,
}

impl Closed {
    /// For people.
    pub(super) fn words(&self) -> String {
        let Self { node, epoch, place } = self;
        format!(
            "node {node} was given {place} at epoch {epoch}, which is not in this directory, and is shut out; it gets the volume again when it is \
             detached and attached"
        )
    }
}

/// What is said of a grant that is closed and listed, if nothing better is known.
pub(super) fn draining(record: &VolumeRecord) -> Option<String> {
    let (epoch, export) = record.draining.first_key_value()?;
    Some(format!(
        "node {} is shut out at epoch {epoch}, and that is not proven yet; it gets the volume again when it is detached and attached",
        export.node
    ))
}

impl Inner {
    /// Closes a grant that is open if it is exported over other bytes. What is shown of it is still to be taken away.
    pub(super) fn close_elsewhere(
        &self,
        item: &Item,
        record: &mut VolumeRecord,
        epoch: Epoch,
    ) -> Result<Option<Closed>, TargetError> {
        let file = self.directory.path(item, Part::Data);
        let Some(shown) = record.shown(epoch, &file) else { return Ok(None) };
        let Some(place) = self.exporter.elsewhere(&shown)? else { return Ok(None) };
        let closed = Closed { node: shown.node.clone(), epoch, place };
        tracing::error!(item = called(item), node = %closed.node, %epoch, place = closed.place, "exported over other bytes; it is shut out");
        let mut next = record.clone();
        next.close(&closed.node, epoch);
        // Until it is stored, the export is all that tells of it: it must not be taken away as one that no record names.
        let stored = self.directory.write_closing(item, &next);
        let closings = stored.map_err(|fault| TargetError::Unreachable { error: fault.to_string() })?;
        *record = VolumeRecord { closings: Some(closings), ..next };
        Ok(Some(closed))
    }
}
