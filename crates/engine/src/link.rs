use bowline_core::{Contact, Effect, Epoch, Export, Outcome, TargetId, Timestamp, VolumeId};
use bowline_target::{Grant, Page, Revocation, Target, TargetError};
use prometheus_client::metrics::gauge::Gauge;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

use crate::{Metrics, Settings};

/// Whom a target lets in, for every volume it exports.
pub(crate) type Listings = HashMap<VolumeId, BTreeMap<Epoch, Export>>;

/// A target's whole list, and whom it is of.
pub(crate) struct Listed {
    pub(crate) listings: Listings,
    pub(crate) asked: Arc<dyn Target>,
}

/// A target as the engine deals with it: a bounded number of questions at once, each with a time-out. What one
/// silent target holds up are its own volumes. One that is not connected is one that does not answer.
pub(crate) struct Link {
    pub(crate) id: TargetId,
    target: Mutex<Option<Arc<dyn Target>>>,
    permits: Semaphore,
    timeout: Duration,
    page: usize,
    contact: Mutex<Contact>,
    /// Whether it did not answer when it was last asked for its list.
    silent: Gauge,
    /// How many volumes its list had that nobody knows.
    strays: Gauge,
    /// Whether somebody compares it now and then.
    kept: AtomicBool,
    /// Numbers moments in their order.
    moments: AtomicU64,
    /// The list that was asked for last because a ledger was lost, and when that began: where many were lost, one list is enough for all.
    looked: tokio::sync::Mutex<Option<(u64, Listings)>>,
}

fn not_compared(since: Timestamp, error: &str) -> Contact {
    Contact::NotCompared { since, error: error.to_owned() }
}

impl Link {
    pub(crate) fn new(id: TargetId, settings: &Settings, metrics: &Metrics, now: Timestamp) -> Self {
        let contact = not_compared(now, "it is not connected");
        let (silent, strays) = (metrics.silent(&id), metrics.strays(&id));
        silent.set(1);
        Self {
            id,
            target: Mutex::default(),
            permits: Semaphore::new(settings.asks_per_target),
            timeout: settings.ask_timeout,
            page: settings.page,
            contact: Mutex::new(contact),
            silent,
            strays,
            kept: AtomicBool::new(false),
            moments: AtomicU64::new(0),
            looked: tokio::sync::Mutex::default(),
        }
    }

    /// From now on it is asked here. Nobody new is let in before it was compared.
    pub(crate) fn connect(&self, target: Arc<dyn Target>, now: Timestamp) {
        let mut place = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(target);
        *self.contact.lock().unwrap_or_else(PoisonError::into_inner) =
            not_compared(now, "it has not been asked yet");
    }

    /// The target, if it is connected.
    pub(crate) fn target(&self) -> Option<Arc<dyn Target>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn connected(&self) -> Result<Arc<dyn Target>, TargetError> {
        let absent = || TargetError::Unreachable { error: format!("target {} is not connected", self.id) };
        self.target().ok_or_else(absent)
    }

    /// Whether whoever asks this is the first, and so the one to compare it from now on.
    pub(crate) fn is_to_be_kept(&self) -> bool {
        !self.kept.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn contact(&self) -> Contact {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn is_compared(&self) -> bool {
        self.contact() == Contact::Compared
    }

    /// Asks for one effect, which may let a node in beside the grant of another epoch. Never longer than the time-out, once it is its turn.
    pub(crate) async fn ask(
        &self,
        volume: &VolumeId,
        effect: &Effect,
        beside: Option<Epoch>,
    ) -> Result<Outcome, TargetError> {
        let _permit = self.permits.acquire().await.map_err(closed)?;
        let target = self.connected()?;
        let answer = async {
            match effect.clone() {
                Effect::Allow { node, epoch, mode } => {
                    let grant = Grant { volume: volume.clone(), node, epoch, mode, beside };
                    target.allow(&grant).await.map(|()| Outcome::Allowed)
                }
                Effect::Revoke { node, epoch, fence } => {
                    let revocation = Revocation { volume: volume.clone(), node, epoch, fence };
                    let proof = target.revoke(&revocation).await?;
                    Ok(Outcome::Gone { highest: proof.highest })
                }
            }
        };
        tokio::time::timeout(self.timeout, answer).await.map_err(|_| self.silent())?
    }

    /// Reads the target's whole list. It counts as compared only when whoever asked has handed the list on and says so.
    pub(crate) async fn list(&self, now: Timestamp) -> Result<Listed, TargetError> {
        let listed = match self.connected() {
            Ok(asked) => self.pages(asked.as_ref()).await.map(|listings| Listed { listings, asked }),
            Err(error) => Err(error),
        };
        self.silent.set(i64::from(listed.is_err()));
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Err(error), Contact::NotCompared { since, .. }) = (&listed, &*contact) {
            *contact = not_compared((*since).min(now), &error.to_string());
        }
        listed
    }

    /// The list of `asked` has reached the volumes that differ from it. Says nothing of another connection that has taken
    /// its place meanwhile.
    pub(crate) fn compared(&self, asked: &Arc<dyn Target>) {
        let place = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_some_and(|now| Arc::ptr_eq(now, asked)) {
            *self.contact.lock().unwrap_or_else(PoisonError::into_inner) = Contact::Compared;
        }
    }

    /// Of the volumes in its list, nobody knows these. They are left alone.
    pub(crate) fn has_strays(&self, strays: &[VolumeId]) {
        let count = i64::try_from(strays.len()).unwrap_or(i64::MAX);
        if self.strays.set(count) != count {
            for volume in strays {
                tracing::warn!(%volume, target = %self.id, "a target exports this volume, and nobody knows it; left alone");
            }
        }
    }

    /// One of them has become known.
    pub(crate) fn has_one_stray_less(&self) {
        if self.strays.get() > 0 {
            self.strays.dec();
        }
    }

    /// This moment: later than every one before.
    pub(crate) fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    /// Whom the target lets in to one volume, asked at a later moment than `noticed`.
    pub(crate) async fn look(
        &self,
        volume: &VolumeId,
        noticed: u64,
        now: Timestamp,
    ) -> Result<BTreeMap<Epoch, Export>, TargetError> {
        let mut looked = self.looked.lock().await;
        let listings = match looked.take() {
            Some((begun, listings)) if begun > noticed => &looked.insert((begun, listings)).1,
            Some(_) | None => {
                let begun = self.moment();
                let listed = self.list(now).await?;
                &looked.insert((begun, listed.listings)).1
            }
        };
        Ok(listings.get(volume).cloned().unwrap_or_default())
    }

    async fn pages(&self, target: &dyn Target) -> Result<Listings, TargetError> {
        let (mut listings, mut after) = (Listings::new(), None);
        loop {
            let _permit = self.permits.acquire().await.map_err(closed)?;
            let page = target.exports(after.as_ref(), self.page);
            let Page { listings: some, next } =
                tokio::time::timeout(self.timeout, page).await.map_err(|_| self.silent())??;
            listings.extend(some.into_iter().map(|listing| (listing.volume, listing.exports)));
            match next {
                Some(next) => after = Some(next),
                None => return Ok(listings),
            }
        }
    }

    fn silent(&self) -> TargetError {
        TargetError::Unreachable { error: format!("no answer within {:?}", self.timeout) }
    }
}

fn closed<E>(_: E) -> TargetError {
    TargetError::Unreachable { error: "the engine is stopping".to_owned() }
}
