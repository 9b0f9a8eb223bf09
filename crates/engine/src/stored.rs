//! Reading a ledger back, and noticing that it was lost.
//!
//! What has no ledger has nobody in, as long as it never had one: a grant is stored before the target hears of it. So of every volume the newest epoch that was
//! seen stored is remembered ([`Known::past`]), and a record that is gone, or is older, is a lost one: see [`Executor::lose`](crate::Executor::lose).

use bowline_core::{Epoch, Ledger, VolumeId};
use bowline_store::{Key, Revision, StoreError, record};
use tokio::sync::watch;

use crate::Status;
use crate::actor::{guarded, lost};
use crate::engine::{Known, Shared, lock};

pub(crate) type Stored = (Ledger, Option<Revision>);

pub(crate) enum ReadError {
    Store(StoreError),
    Unreadable(String),
}

pub(crate) async fn read(shared: &Shared, volume: &VolumeId) -> Result<Stored, ReadError> {
    let entry = guarded(shared.store.get(&Key::ledger(volume))).await;
    match entry.unwrap_or_else(|error| Err(lost(error))).map_err(ReadError::Store)? {
        None => Ok((Ledger::default(), None)),
        Some(entry) => {
            let ledger =
                record::decode(&entry.value).map_err(|error| ReadError::Unreadable(error.to_string()))?;
            Ok((ledger, Some(entry.revision)))
        }
    }
}

/// Reads until it works: without its ledger, nothing is decided about a volume.
pub(crate) async fn read_at_last(
    shared: &Shared,
    volume: &VolumeId,
    status: &watch::Sender<Status>,
) -> Result<Stored, String> {
    let mut failures = 0;
    loop {
        match read(shared, volume).await {
            Ok(stored) => return Ok(stored),
            Err(ReadError::Unreadable(error)) => return Err(error),
            Err(ReadError::Store(error)) => {
                tracing::warn!(%volume, %error, attempt = failures, "the ledger cannot be read yet");
                status.send_modify(|status| status.trouble = Some(error.to_string()));
                tokio::time::sleep(shared.settings.pause(volume, failures)).await;
                failures += 1;
            }
        }
    }
}

impl Known {
    /// Whether less is stored than there was; then, the newest epoch that is known of it.
    pub(crate) fn lacks(&self, stored: &Stored) -> Option<Epoch> {
        let (ledger, revision) = stored;
        self.past.filter(|past| revision.is_none() || ledger.epoch() < *past)
    }
}

impl Shared {
    /// A ledger with this epoch was read or written.
    pub(crate) fn remember(&self, volume: &VolumeId, epoch: Epoch) {
        if let Some(known) = lock(&self.volumes).get_mut(volume) {
            known.past = known.past.max(Some(epoch));
        }
    }

    /// The targets of these volumes were asked while they had no ledgers, and what they said lies ready: from now on, to have no ledger means to have nobody in.
    pub(crate) fn have_no_ledger(&self, counts: impl Fn(&VolumeId, &Known) -> bool) {
        for (volume, known) in lock(&self.volumes).iter_mut() {
            // One that has come to have a ledger meanwhile has one.
            if known.past == Some(Epoch::default()) && counts(volume, known) {
                known.past = None;
            }
        }
    }
}
