//! Volumes that others know and the catalog does not, taken over as they are while it runs.

use bowline_core::{Ledger, Slot, SubmitError, TargetId, Ticket, VolumeId};
use bowline_engine::{CompareError, Exports};
use bowline_store::{Expected, Key, RecordError, StoreError, record};

use super::Catalog;
use crate::failure::Failure;
use crate::record::Volume;
use crate::shelf::Put;

/// Why a volume was not taken over. It is not known here, and asking again goes on where this stopped.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Another volume has its place.
    #[error("volume {0} has the same name; delete one of them, or restore the record of this one")]
    Taken(VolumeId),
    /// There is a ticket of that name that asks for something else.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record of the volume.
    #[error("{0}")]
    Failed(String),
}

impl From<Failure> for AdoptError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.sentence)
    }
}

impl Catalog {
    /// Asks a target whom it lets in, for [`Catalog::adopt`].
    pub async fn exports(&self, target: &TargetId) -> Result<Exports, CompareError> {
        self.inner.engine.exports(target).await
    }

    /// Makes a volume known that has no record, together with the tickets of those who have it already. `exports` was asked for while nobody here
    /// knew the volume, and nobody does until the end: so what it says is still true then, and whoever is in keeps its grant.
    ///
    /// The ledger is written first, then the record: one that is known without its tickets would be shut to everybody by the next start.
    pub async fn adopt(
        &self,
        volume: &Volume,
        tickets: &[Ticket],
        exports: &Exports,
    ) -> Result<(), AdoptError> {
        let inner = &self.inner;
        let slot = Slot::of_name(&volume.name);
        self.check(slot.as_str(), volume).await?;
        let ledger = self.file_all(&volume.id, tickets).await?;
        match inner.shelf.add(slot.as_str(), volume).await? {
            Put::Done => {
                inner.metrics.volumes.inc();
            }
            // Written by an earlier try, perhaps: then it is only not known yet.
            Put::Stale => self.check(slot.as_str(), volume).await?,
        }
        inner.engine.adopt(&volume.id, volume.facts(), &ledger, exports);
        let nodes: Vec<&str> = tickets.iter().map(|ticket| ticket.node.as_str()).collect();
        let sentence = match nodes.as_slice() {
            [] => format!("Volume {:?} on target {} is known now.", volume.name, volume.target),
            nodes => format!("Volume {:?} stays on {}; nobody was cut off.", volume.name, nodes.join(", ")),
        };
        inner.tell(Some(&volume.id), "Adopted", sentence);
        Ok(())
    }

    /// Whether the volume is known: only then anybody can be let in to it here.
    pub fn knows(&self, volume: &VolumeId) -> bool {
        self.inner.engine.knows(volume)
    }

    /// The place is free, or the volume has it already.
    async fn check(&self, slot: &str, volume: &Volume) -> Result<(), AdoptError> {
        match self.inner.shelf.get::<Volume>(slot).await? {
            Some((found, _)) if found.id != volume.id => Err(AdoptError::Taken(found.id)),
            _ => Ok(()),
        }
    }

    /// Puts tickets into the ledger of a volume that the engine does not know, and of which it writes nothing therefore.
    async fn file_all(&self, volume: &VolumeId, tickets: &[Ticket]) -> Result<Ledger, AdoptError> {
        let (store, key) = (&self.inner.shelf.store, Key::ledger(volume));
        loop {
            let entry = store.get(&key).await?;
            let (before, expected) = match &entry {
                Some(entry) => (record::decode::<Ledger>(&entry.value)?, Expected::At(entry.revision)),
                None => (Ledger::default(), Expected::Absent),
            };
            let mut ledger = before.clone();
            for ticket in tickets {
                ledger.submit(ticket.clone(), self.inner.clock.now())?;
            }
            if ledger == before {
                return Ok(ledger);
            }
            match store.put(&key, record::encode(&ledger)?, expected).await {
                Ok(_) => return Ok(ledger),
                // Decided anew with what is there now.
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
