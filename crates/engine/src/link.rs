use bowline_core::{Contact, Effect, Epoch, Export, Outcome, Timestamp, VolumeId};
use bowline_target::{Grant, Page, Revocation, Target, TargetError};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

use crate::Settings;

/// Whom a target lets in, for every volume it exports.
pub(crate) type Listings = HashMap<VolumeId, BTreeMap<Epoch, Export>>;

/// A target as the engine deals with it: a bounded number of questions at once, each with a time-out. What one
/// silent target holds up are its own volumes.
pub(crate) struct Link {
    pub(crate) target: Arc<dyn Target>,
    permits: Semaphore,
    timeout: Duration,
    page: usize,
    contact: Mutex<Contact>,
}

impl Link {
    pub(crate) fn new(target: Arc<dyn Target>, settings: &Settings, now: Timestamp) -> Self {
        let contact = Contact::NotCompared { since: now, error: "it has not been asked yet".to_owned() };
        Self {
            target,
            permits: Semaphore::new(settings.asks_per_target),
            timeout: settings.ask_timeout,
            page: settings.page,
            contact: Mutex::new(contact),
        }
    }

    pub(crate) fn contact(&self) -> Contact {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn is_compared(&self) -> bool {
        self.contact() == Contact::Compared
    }

    /// Asks for one effect. Never longer than the time-out, once it is its turn.
    pub(crate) async fn ask(&self, volume: &VolumeId, effect: &Effect) -> Result<Outcome, TargetError> {
        let _permit = self.permits.acquire().await.map_err(closed)?;
        let answer = async {
            match effect.clone() {
                Effect::Allow { node, epoch, mode } => {
                    let grant = Grant { volume: volume.clone(), node, epoch, mode };
                    self.target.allow(&grant).await.map(|()| Outcome::Allowed)
                }
                Effect::Revoke { node, epoch, fence } => {
                    let revocation = Revocation { volume: volume.clone(), node, epoch, fence };
                    let proof = self.target.revoke(&revocation).await?;
                    Ok(Outcome::Gone { highest: proof.highest })
                }
            }
        };
        tokio::time::timeout(self.timeout, answer).await.map_err(|_| self.silent())?
    }

    /// Reads the target's whole list, and remembers whether that worked.
    pub(crate) async fn list(&self, now: Timestamp) -> Result<Listings, TargetError> {
        let listed = self.pages().await;
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        *contact = match (&listed, &*contact) {
            (Ok(_), _) | (Err(_), Contact::Compared) => Contact::Compared,
            (Err(error), Contact::NotCompared { since, .. }) => {
                Contact::NotCompared { since: (*since).min(now), error: error.to_string() }
            }
        };
        listed
    }

    async fn pages(&self) -> Result<Listings, TargetError> {
        let (mut listings, mut after) = (Listings::new(), None);
        loop {
            let _permit = self.permits.acquire().await.map_err(closed)?;
            let page = self.target.exports(after.as_ref(), self.page);
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
