//! Grants, carried out: look, decide, send, and look again until it is so.

use super::access::{self, Guarantee, Step};
use super::device::{Device, Slot, TRIES, in_vain};
use super::name::{self, ANYBODY, Seen};
use crate::{Grant, Item, Listing, Page, Revocation, TargetError};
use bowline_core::{Epoch, Export, Mode, NeverAgain, NodeId, VolumeId};
use std::collections::BTreeMap;

fn refused(error: String) -> TargetError {
    TargetError::Refused { error }
}

impl Device {
    /// Lets a node in. Two commands if the volume was seen before by this process: the grant, and the look that confirms it.
    pub(super) async fn allow(&self, grant: &Grant, trust_readers: bool) -> Result<(), TargetError> {
        self.names.check_grant(grant).map_err(refused)?;
        if !grant.mode.write && !trust_readers {
            return Err(refused(format!(
                "this device cannot keep node {} from writing to volume {}: it exports for reading and writing or not at all (the \
                 target's setting trustReaders leaves it to the node)",
                grant.node, grant.volume
            )));
        }
        let decide = |seen: &Seen| access::allow(&self.names, self.guarantee, seen, grant);
        let slot = name::slot(&Item::Volume(grant.volume.clone())).map_err(refused)?;
        let mut last = None;
        if let Some(Step::Send(command)) = self.hint(&slot).as_ref().map(decide) {
            self.forget(&slot);
            last = self.try_send(&command).await?;
        }
        for _ in 0..TRIES {
            let seen = match self.own::<TargetError>(&slot).await? {
                Slot::Ours(_, seen) => seen,
                Slot::Foreign => return Err(refused(format!("slot {slot} of the device is not Bowline's"))),
                Slot::Empty => {
                    return Err(refused(format!("volume {} is not on this target", grant.volume)));
                }
            };
            match decide(&seen) {
                Step::So(()) => return Ok(()),
                Step::No(error) => return Err(error),
                Step::Send(command) => {
                    self.report(&seen);
                    last = self.try_send(&command).await?;
                }
            }
        }
        Err(in_vain(last).into())
    }

    /// Shuts a node out, and proves it by a look.
    pub(super) async fn revoke(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError> {
        let gone = NeverAgain { highest: revocation.epoch };
        // What cannot be named here was never let in.
        let Ok(slot) = name::slot(&Item::Volume(revocation.volume.clone())) else { return Ok(gone) };
        let mut last = None;
        for _ in 0..TRIES {
            let seen = match self.own::<TargetError>(&slot).await? {
                Slot::Ours(_, seen) => seen,
                Slot::Empty if self.is_empty(&slot).await? => return Ok(gone),
                Slot::Empty => continue,
                Slot::Foreign => return Err(refused(format!("slot {slot} of the device is not Bowline's"))),
            };
            match access::revoke(&self.names, self.guarantee, &seen, revocation) {
                Step::So(proof) => return Ok(proof),
                Step::No(error) => return Err(error),
                Step::Send(command) => {
                    self.report(&seen);
                    last = self.try_send(&command).await?;
                }
            }
        }
        Err(in_vain(last).into())
    }

    /// Whom it lets in. An export that is open to others than it should be is closed at once, and listed as that of anybody, so that
    /// it is recorded and its holder let in anew.
    pub(super) async fn exports(&self, after: Option<&VolumeId>, limit: usize) -> Result<Page, TargetError> {
        let ours = self.ours(self.all().await?)?;
        let (mut listings, mut next): (Vec<Listing>, Option<VolumeId>) = (Vec::new(), None);
        for (_, seen) in &ours {
            let Item::Volume(volume) = &seen.item else {
                self.close_breach(seen).await?;
                continue;
            };
            if after.is_some_and(|after| volume <= after) {
                continue;
            }
            let Some(exports) = self.listed(seen).await? else { continue };
            if listings.len() == limit.max(1) {
                next = listings.last().map(|listing| listing.volume.clone());
                break;
            }
            listings.push(Listing { volume: volume.clone(), exports });
        }
        Ok(Page { listings, next })
    }

    async fn listed(&self, seen: &Seen) -> Result<Option<BTreeMap<Epoch, Export>>, TargetError> {
        if self.close_breach(seen).await? {
            let Ok(node) = NodeId::new(ANYBODY) else { return Ok(None) };
            return Ok(Some([(seen.epoch(), Export { node, mode: Mode::UNKNOWN })].into()));
        }
        let open = seen.lets_in(&self.names, self.guarantee);
        Ok(open.map(|(epoch, export)| [(epoch, export.clone())].into()))
    }

    /// Closes an export that is open to others than it should be; says whether it was.
    async fn close_breach(&self, seen: &Seen) -> Result<bool, TargetError> {
        if !seen.is_breach(&self.names, self.guarantee) {
            return Ok(false);
        }
        let mut seen = seen.clone();
        let mut last = None;
        for _ in 0..TRIES {
            self.report(&seen);
            last = self.try_send(&seen.switch_off()).await?;
            match self.look(&seen.slot).await? {
                Slot::Ours(_, now) if now.is_breach(&self.names, self.guarantee) => seen = now,
                Slot::Ours(..) | Slot::Empty | Slot::Foreign => return Ok(true),
            }
        }
        Err(in_vain(last).into())
    }

    /// Says it loudly if an export is open to others than it should be.
    fn report(&self, seen: &Seen) {
        if seen.is_breach(&self.names, self.guarantee) {
            let (slot, nqn, host) = (&seen.slot, &seen.nqn, seen.host.as_deref().unwrap_or_default());
            tracing::error!(%slot, %nqn, host, "exported to others than granted; it is closed");
        }
    }

    /// An error, with the weaker guarantee named where there is one.
    pub(super) fn told(&self, error: TargetError) -> TargetError {
        match (self.guarantee, error) {
            (Guarantee::OnOrOff, TargetError::Refused { error }) => {
                TargetError::Refused { error: format!("{error} ({})", self.guarantee) }
            }
            (Guarantee::OnOrOff, TargetError::Unreachable { error }) => {
                TargetError::Unreachable { error: format!("{error} ({})", self.guarantee) }
            }
            (_, error) => error,
        }
    }
}
