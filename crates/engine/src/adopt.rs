//! Volumes that a target may let nodes in to already, made known while the engine runs.
//!
//! # Flow
//!
//! [`Engine::exports`] asks the target whom it lets in → the caller stores a ledger with the tickets of those who are in → [`Engine::adopt`] makes the
//! volume known.
//!
//! # Guarantees
//!
//! - While a volume is not known, nobody here lets anybody in to it or shuts anybody out: what the target said of it stays true.
//! - The list lies ready before the volume is known, and an actor reads it before it decides: whoever is in and wanted keeps its very grant, and nobody
//!   is let in beside it.

use bowline_core::{Ledger, TargetId, VolumeFacts, VolumeId};
use std::sync::Arc;

use crate::engine::{Known, lock};
use crate::link::Listings;
use crate::{CompareError, Engine};

/// Whom a target lets in, for every volume it exports.
pub struct Exports {
    target: TargetId,
    listings: Listings,
}

impl Engine {
    /// Whether a volume is known.
    pub fn knows(&self, volume: &VolumeId) -> bool {
        lock(&self.shared.volumes).contains_key(volume)
    }

    /// Asks a target whom it lets in, for volumes that are to be made known.
    pub async fn exports(&self, target: &TargetId) -> Result<Exports, CompareError> {
        let listed = self.shared.link(target).list(self.shared.clock.now()).await?;
        Ok(Exports { target: target.clone(), listings: listed.listings })
    }

    /// Makes a volume known that its target may export already. `ledger` is what is stored of it. Tells whether it was not known before; one that is
    /// known was compared already, and stays as it is.
    pub fn adopt(&self, volume: &VolumeId, facts: VolumeFacts, ledger: &Ledger, exports: &Exports) -> bool {
        let shared = &self.shared;
        if facts.target != exports.target || self.knows(volume) {
            return false;
        }
        lock(&shared.nodes).follow(volume, &Ledger::default(), ledger);
        let listed = exports.listings.get(volume).cloned().unwrap_or_default();
        if !listed.is_empty() {
            shared.link(&exports.target).has_one_stray_less();
        }
        lock(&shared.lists).insert(volume.clone(), listed);
        // The list lies ready, also for one that has no ledger yet.
        let past = (*ledger != Ledger::default()).then(|| ledger.epoch());
        // Last: from now on an actor may begin.
        lock(&shared.volumes).insert(volume.clone(), Known { past, ..Known::new(facts) });
        Arc::clone(shared).poke(volume);
        true
    }
}
