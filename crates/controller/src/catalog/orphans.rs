//! Volumes on targets that no record knows of: left behind by records that were lost or restored from long ago, or by somebody's hand.
//!
//! They are told; they are deleted only where that was asked for, after they were seen for a long time, a few at a time. That time counts from a moment
//! that was recorded: a restart does not begin it anew, and what was no orphan for a while begins anew. Snapshots are never taken for orphans: one may be
//! the last copy of something. A target refuses to delete what somebody is let in to, and lists nothing of other installations.

use async_trait::async_trait;
use bowline_core::{TargetId, Timestamp, VolumeId};
use bowline_csi::code::ListError;
use bowline_store::Key;
use bowline_target::{Item, Provision};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::storage::unanswered;
use super::{Catalog, Inner, lock};
use crate::failure::{Failure, Why};
use crate::record::Volume;
use crate::shelf::PAGE;

/// How long a target may take to list a page of what it holds.
const ANSWER: Duration = Duration::from_secs(60);

/// When each orphan was first seen.
pub type FirstSeen = BTreeMap<(TargetId, VolumeId), Timestamp>;

/// What is known of orphans outside of the catalog: when they were first seen, and who counts on one all the same.
#[async_trait]
pub trait OrphanRecord: Send + Sync {
    /// What was recorded; an error is never taken for "nothing".
    async fn read(&self) -> Result<FirstSeen, String>;
    /// Records it, in the place of what was.
    async fn write(&self, first_seen: &FirstSeen) -> Result<(), String>;
    /// Who counts on a volume although no record knows it. To be asked just before it is deleted; an error is never taken for "nobody".
    async fn claimed(&self, volume: &VolumeId) -> Result<Option<String>, String>;
}

/// What becomes of orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanRules {
    /// Whether they are deleted; if not, it is only told that they would be.
    pub delete: bool,
    /// How long one must have been seen.
    pub grace: Duration,
    /// How many are deleted in one run.
    pub at_most: usize,
}

/// A volume that no record knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Where it is.
    pub target: TargetId,
    /// Which it is.
    pub volume: VolumeId,
    /// Since when that is known.
    pub first_seen: Timestamp,
    /// Whether its time is over.
    pub ripe: bool,
    /// Whether it was deleted in this run.
    pub deleted: bool,
}

/// What a look at all targets came to.
struct Found {
    /// What they hold and no record knows of.
    orphans: BTreeSet<(TargetId, VolumeId)>,
    /// Everything that records know of.
    known: BTreeSet<VolumeId>,
    /// Targets that could not be asked, and why.
    silent: BTreeMap<TargetId, Failure>,
}

impl Found {
    /// When each was first seen, by what was recorded before.
    fn first_seen(self, before: &FirstSeen, now: Timestamp) -> FirstSeen {
        let still = |(target, volume): &(TargetId, VolumeId)| {
            self.silent.contains_key(target) && !self.known.contains(volume)
        };
        let kept = before.keys().filter(|one| still(one)).cloned();
        let all: BTreeSet<_> = kept.chain(self.orphans.iter().cloned()).collect();
        all.into_iter().map(|one| (one.clone(), before.get(&one).copied().unwrap_or(now))).collect()
    }
}

impl Catalog {
    /// Looks for orphans on all targets, records when each was first seen, and deletes those whose time is over, if that is asked for.
    pub async fn look_for_orphans(
        &self,
        record: &dyn OrphanRecord,
        rules: OrphanRules,
    ) -> Result<Vec<Orphan>, ListError> {
        Ok(self.inner.look_for_orphans(record, rules).await?)
    }

    /// What was found when it was last looked, or what is found now if it never was; then nobody knows since when.
    pub async fn orphans(&self) -> Result<Vec<Orphan>, ListError> {
        if let Some(last) = lock(&self.inner.orphans).clone() {
            return Ok(last);
        }
        let now = self.inner.clock.now();
        let mut found = self.inner.find_orphans().await?;
        // Nothing was recorded that could be told instead.
        match found.silent.pop_first() {
            Some((_, failure)) => Err(failure.into()),
            None => Ok(ripened(found.first_seen(&FirstSeen::new(), now), now, Duration::MAX)),
        }
    }
}

impl Inner {
    async fn look_for_orphans(
        &self,
        record: &dyn OrphanRecord,
        rules: OrphanRules,
    ) -> Result<Vec<Orphan>, Failure> {
        let found = self.find_orphans().await?;
        let unrecorded = |error: String| Failure::new(Why::Unreachable, error);
        let before = record.read().await.map_err(unrecorded)?;
        let now = self.clock.now();
        for (target, failure) in &found.silent {
            tracing::warn!(%target, error = failure.sentence, "its orphans could not be looked for");
        }
        let silent: BTreeSet<TargetId> = found.silent.keys().cloned().collect();
        let first_seen = found.first_seen(&before, now);
        if first_seen != before {
            record.write(&first_seen).await.map_err(unrecorded)?;
        }
        let told = self.told_orphans();
        let is_new = |one: &&(TargetId, VolumeId)| !before.contains_key(one) && !told.contains(one);
        for (target, volume) in first_seen.keys().filter(is_new) {
            let message = format!("Volume {volume} is on target {target}, and no record knows it.");
            self.tell(Some(volume), "OrphanFound", message);
        }
        let mut orphans = ripened(first_seen, now, rules.grace);
        self.metrics.orphans.set(i64::try_from(orphans.len()).unwrap_or(i64::MAX));
        let mut left = if rules.delete { rules.at_most } else { 0 };
        // One that its target does not delete does not use up the place of another; but so many are not asked for in vain.
        let mut vain = left;
        for orphan in orphans.iter_mut().filter(|orphan| orphan.ripe && !silent.contains(&orphan.target)) {
            if left == 0 || vain == 0 {
                break;
            }
            // Those that stay do not hold up the others.
            if self.is_nobodys(record, orphan).await {
                orphan.deleted = self.delete_orphan(orphan).await;
                *(if orphan.deleted { &mut left } else { &mut vain }) -= 1;
            }
        }
        *lock(&self.orphans) = Some(orphans.iter().filter(|orphan| !orphan.deleted).cloned().collect());
        Ok(orphans)
    }

    /// Those that were told in an earlier run. What does not fit into the record any more is found anew each time.
    fn told_orphans(&self) -> BTreeSet<(TargetId, VolumeId)> {
        let last = lock(&self.orphans);
        last.iter().flatten().map(|orphan| (orphan.target.clone(), orphan.volume.clone())).collect()
    }

    /// Everything that targets hold and no record knows of. Records are read last: what is made meanwhile is in them.
    async fn find_orphans(&self) -> Result<Found, Failure> {
        // These first: one that is connected meanwhile is asked all the same.
        let away = |target| (target, Failure::new(Why::Unreachable, "it is not connected".to_owned()));
        let mut silent: BTreeMap<TargetId, Failure> =
            self.engine.unconnected().into_iter().map(away).collect();
        let mut orphans = BTreeSet::new();
        for target in self.connected() {
            match volumes_on(target.as_ref()).await {
                Ok(volumes) => orphans.extend(volumes.into_iter().map(|one| (target.id().clone(), one))),
                Err(failure) => drop(silent.insert(target.id().clone(), failure)),
            }
        }
        let mut known = BTreeSet::new();
        let mut learn = |_, volume: Volume| {
            known.insert(volume.id);
        };
        self.shelf.for_each(&mut learn).await?;
        orphans.retain(|(_, volume)| !known.contains(volume));
        Ok(Found { orphans, known, silent })
    }

    /// Whether nobody counts on it and nobody knows it. Not what was listed, which may be a moment old: an adoption may have made a record since. And
    /// whoever has a ledger may have somebody in it. The records are asked last, because a claim may take long to look for.
    async fn is_nobodys(&self, record: &dyn OrphanRecord, orphan: &Orphan) -> bool {
        let Orphan { target, volume, .. } = orphan;
        match record.claimed(volume).await {
            Ok(None) => {}
            Ok(Some(who)) => {
                tracing::warn!(%target, %volume, who, "an orphan was not deleted: somebody counts on it");
                return false;
            }
            Err(error) => {
                tracing::warn!(%target, %volume, error, "an orphan was not deleted: it is not known who counts on it");
                return false;
            }
        }
        let unrecorded = matches!(self.volume(volume).await, Err(failure) if failure.why == Why::Unknown);
        let ledger = self.shelf.store.get(&Key::ledger(volume)).await;
        unrecorded && matches!(ledger, Ok(None))
    }

    async fn delete_orphan(&self, orphan: &Orphan) -> bool {
        let Orphan { target, volume, first_seen, .. } = orphan;
        let deleted = match self.target(target) {
            Ok(there) => there.delete(volume).await.map_err(|error| error.to_string()),
            Err(failure) => Err(failure.sentence),
        };
        match deleted {
            Ok(()) => {
                self.metrics.orphans_deleted.inc();
                let message = format!(
                    "Volume {volume} was deleted from target {target}: no record knew it since {first_seen:.0}."
                );
                self.tell(Some(volume), "OrphanDeleted", message);
                true
            }
            Err(error) => {
                tracing::warn!(%target, %volume, error, "an orphan was not deleted");
                false
            }
        }
    }
}

/// All volumes that a target holds.
async fn volumes_on(target: &dyn Provision) -> Result<Vec<VolumeId>, Failure> {
    let (mut volumes, mut after) = (Vec::new(), None);
    loop {
        let page = tokio::time::timeout(ANSWER, target.items(after.as_ref(), PAGE)).await;
        let items = match page {
            Ok(items) => items.map_err(|error| unanswered(&error))?,
            Err(_) => return Err(Failure::new(Why::Unreachable, format!("no answer within {ANSWER:?}"))),
        };
        after = items.last().cloned();
        volumes.extend(items.into_iter().filter_map(|item| match item {
            Item::Volume(volume) => Some(volume),
            Item::Snapshot(_) => None,
        }));
        if after.is_none() {
            return Ok(volumes);
        }
    }
}

/// The orphans, the oldest first, and whether the time of each is over.
fn ripened(first_seen: FirstSeen, now: Timestamp, grace: Duration) -> Vec<Orphan> {
    let is_over = |since: Timestamp| since.checked_add(grace).is_ok_and(|end| end <= now);
    let orphan = |((target, volume), first_seen)| Orphan {
        target,
        volume,
        first_seen,
        ripe: is_over(first_seen),
        deleted: false,
    };
    let mut orphans: Vec<Orphan> = first_seen.into_iter().map(orphan).collect();
    orphans.sort_by_key(|orphan| orphan.first_seen);
    orphans
}
