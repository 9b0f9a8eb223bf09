//! What was begun is brought to an end, whoever began it: after a crash, or when a target was away.

use bowline_core::Slot;
use bowline_store::{Key, Kind};
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::volumes::source_key;
use super::{Inner, lock};
use crate::failure::Failure;
use crate::operations::{Done, Order, Told, Touches};
use crate::record::{Group, Snapshot, SnapshotState, Volume, VolumeState};

impl Inner {
    /// As [`Operations::perform`](crate::operations::Operations::perform); what may still land afterwards is pursued.
    pub(crate) async fn perform<W, F>(
        self: &Arc<Self>,
        order: Order,
        touches: Touches,
        wait: Duration,
        work: W,
    ) -> Told
    where
        W: FnOnce() -> F,
        F: Future<Output = Told> + Send + 'static,
    {
        let (inner, key) = (Arc::downgrade(self), touches.changes.first().cloned());
        let watched = move || {
            let work = work();
            async move {
                let told = work.await;
                if let (Err(failure), Some(inner), Some(key)) = (&told, inner.upgrade(), key)
                    && failure.may_land()
                {
                    inner.pursue(key);
                }
                told
            }
        };
        self.operations.perform(order, touches, wait, watched).await
    }

    /// Brings one thing to its end in the background: again and again, with pauses, until it is settled.
    pub(crate) fn pursue(self: &Arc<Self>, key: Key) {
        if lock(&self.pursued).insert(key.clone()) {
            tokio::spawn(pursue(Arc::downgrade(self), key));
        }
    }

    /// One try. `Ok` if nothing is left to do.
    async fn settle(self: &Arc<Self>, key: &Key, wait: Duration) -> Result<(), Failure> {
        let Some(touches) = self.unsettled(key).await? else { return Ok(()) };
        let (inner, key) = (Arc::clone(self), key.clone());
        let order = Order::Settle(key.clone());
        let work = move || async move {
            match key.kind {
                Kind::Volume => inner.settle_volume(&key.name).await,
                Kind::Snapshot => inner.settle_snapshot(&key.name).await,
                Kind::Group => inner.settle_group(&key.name).await,
                Kind::Ledger | Kind::Node => Ok(Done::Nothing),
            }
        };
        self.operations.perform(order, touches, wait, work).await.map(|_| ())
    }

    /// What settling it touches; `None` if it is settled.
    async fn unsettled(&self, key: &Key) -> Result<Option<Touches>, Failure> {
        let mut touches = Touches { changes: vec![key.clone()], copies: vec![] };
        let settled = match key.kind {
            Kind::Volume => match self.shelf.get::<Volume>(&key.name).await? {
                Some((volume, _)) => {
                    if volume.state == VolumeState::Creating {
                        touches.copies.extend(volume.source.as_ref().and_then(source_key));
                    }
                    volume.state == VolumeState::Ready
                }
                None => true,
            },
            Kind::Snapshot => match self.shelf.get::<Snapshot>(&key.name).await? {
                Some((snapshot, _)) => is_settled(&snapshot.state),
                None => true,
            },
            Kind::Group => match self.shelf.get::<Group>(&key.name).await? {
                Some((group, _)) => {
                    let slots = group.snapshots.iter().filter_map(|id| Slot::of_id(id.as_str()));
                    touches.changes.extend(slots.map(|slot| Key::new(Kind::Snapshot, slot.as_str())));
                    is_settled(&group.state)
                }
                None => true,
            },
            Kind::Ledger | Kind::Node => true,
        };
        Ok(Some(touches).filter(|_| !settled))
    }

    async fn settle_volume(self: &Arc<Self>, name: &str) -> Told {
        let Some((volume, _)) = self.shelf.get::<Volume>(name).await? else { return Ok(Done::Nothing) };
        match volume.state {
            VolumeState::Creating => self.finish_create(&volume).await,
            VolumeState::Growing { .. } => self.finish_grow(&volume).await,
            VolumeState::Deleting => self.resume_delete(&volume).await,
            VolumeState::Ready => Ok(Done::Volume(volume)),
        }
    }
}

fn is_settled(state: &SnapshotState) -> bool {
    match state {
        SnapshotState::Ready { .. } => true,
        SnapshotState::Taking | SnapshotState::Deleting => false,
    }
}

/// How long one try may take before it is looked at again; it goes on meanwhile.
const TRY: Duration = Duration::from_secs(600);

async fn pursue(catalog: Weak<Inner>, key: Key) {
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        let Some(inner) = catalog.upgrade() else { return };
        pause = (pause * 2).clamp(inner.settings.first_pause, inner.settings.longest_pause);
        match inner.settle(&key, TRY).await {
            Err(failure) if !inner.operations.is_closed() && failure.may_land() => {
                tracing::warn!(%key, failure = failure.sentence, "not settled yet");
            }
            told => {
                if let Err(failure) = told {
                    tracing::warn!(%key, failure = failure.sentence, "settled");
                }
                lock(&inner.pursued).remove(&key);
                return;
            }
        }
    }
}
