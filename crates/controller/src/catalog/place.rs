//! On which target a new volume is made.

use bowline_core::TargetId;
use bowline_csi::{Topology, TopologyRequirement};
use bowline_target::{Capacity, Provision};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::storage::unanswered;
use super::{Inner, NewVolume, size};
use crate::failure::{Failure, Why};
use crate::record::Volume;

/// How long a target may take to say how much room it has before it counts as one that does not answer.
const ROOM: Duration = Duration::from_secs(5);

type Connected = Arc<dyn Provision>;

/// Whether what is on a target can be reached from a place.
pub(crate) fn reaches(target: &dyn Provision, place: &Topology) -> bool {
    target.topology().iter().all(|(domain, segment)| place.get(domain) == Some(segment))
}

/// Whether what is on a target can be reached from where it has to be.
pub(crate) fn is_reachable(target: &dyn Provision, requirement: &TopologyRequirement) -> bool {
    requirement.requisite.is_empty() || requirement.requisite.iter().any(|place| reaches(target, place))
}

/// Where a target comes in the order of preference: the first place that it can be reached from; last if from none.
fn preference(target: &dyn Provision, requirement: &TopologyRequirement) -> usize {
    let preferred = requirement.preferred.iter().position(|place| reaches(target, place));
    preferred.unwrap_or(requirement.preferred.len())
}

/// How near a target is to where a volume is wanted first: one that can be reached from there and not from everywhere is nearer. What
/// is wanted nowhere in particular is near to everything.
fn nearness(target: &dyn Provision, requirement: &TopologyRequirement) -> usize {
    if requirement.preferred.is_empty() { 0 } else { target.topology().len() }
}

/// Those of the kind that is asked for.
fn of_kind(candidates: Vec<Connected>, order: &NewVolume) -> Result<Vec<Connected>, Failure> {
    let Some(kind) = &order.kind else { return Ok(candidates) };
    let (right, others): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|one| one.kind() == kind);
    match (right.is_empty(), others.as_slice(), &order.source, &order.target) {
        (false, ..) => Ok(right),
        // The only one that could be meant, and no other will come.
        (true, [only], source, target) if source.is_some() || target.is_some() => {
            let sentence =
                format!("parameters[kind] is {kind}, but target {} is of kind {}", only.id(), only.kind());
            Err(Failure::new(Why::Unsupported, sentence))
        }
        (true, ..) => {
            let sentence = format!("no target of kind {kind} is connected; ask again when one is");
            Err(Failure::new(Why::Unreachable, sentence))
        }
    }
}

impl Inner {
    /// What is wrong with a volume that exists already for somebody who asks for it from elsewhere.
    pub(crate) fn out_of_reach(&self, volume: &Volume, order: &NewVolume) -> Option<String> {
        let target = self.target(&volume.target).ok()?;
        if order.kind.as_ref().is_some_and(|kind| kind != target.kind()) {
            return Some(format!("it is on target {}, which is of kind {}", volume.target, target.kind()));
        }
        let reachable = is_reachable(target.as_ref(), &order.place);
        (!reachable).then(|| {
            format!("it is on target {}, which cannot be reached from where it has to be", volume.target)
        })
    }

    /// The target for a new volume: the one that is named, the one of its source, or among those that can be reached from
    /// where it has to be and have room the most preferred one, then the nearest, and then the one with the most room.
    pub(crate) async fn choose_target(
        &self,
        order: &NewVolume,
        pinned: Option<&TargetId>,
        least: u64,
        full: &BTreeSet<TargetId>,
    ) -> Result<Connected, Failure> {
        let candidates = self.candidates(order, pinned, full)?;
        let fits = |target: &Connected| size::fit(target.sizes(), order.required, order.limit, least);
        let (fitting, unfit): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|one| fits(one).is_ok());
        match (fitting.as_slice(), unfit.first()) {
            // It says itself whether it has room.
            ([only], _) => return Ok(Arc::clone(only)),
            ([], Some(unfit)) => return fits(unfit).map(|_| Arc::clone(unfit)),
            _ => {}
        }
        let mut rooms = self.rooms(fitting).await?;
        rooms.sort_by_key(|(target, room)| {
            let (target, wanted) = (target.as_ref(), &order.place);
            let near = Reverse(nearness(target, wanted));
            (preference(target, wanted), near, Reverse(room.available), target.id().clone())
        });
        let roomy = rooms.iter().find(|(one, room)| fits(one).is_ok_and(|size| size <= room.available));
        if let Some((target, _)) = roomy {
            return Ok(Arc::clone(target));
        }
        let most = rooms.iter().map(|(_, room)| room.available).max().unwrap_or_default();
        let sentence = format!("none of {} targets has room for it: the most is {most} bytes", rooms.len());
        Err(Failure::new(Why::NoRoom, sentence))
    }

    fn candidates(
        &self,
        order: &NewVolume,
        pinned: Option<&TargetId>,
        full: &BTreeSet<TargetId>,
    ) -> Result<Vec<Connected>, Failure> {
        if let (Some(named), Some(pinned)) = (&order.target, pinned)
            && named != pinned
        {
            let sentence = format!(
                "parameters[target] is {named}, but what is copied into the volume is on target {pinned}; name that one, or none"
            );
            return Err(Failure::new(Why::Unsupported, sentence));
        }
        let candidates = match order.target.as_ref().or(pinned) {
            Some(target) => vec![self.target(target)?],
            None => self.connected(),
        };
        if candidates.is_empty() {
            return Err(Failure::new(Why::Unreachable, "no target is connected; ask again when one is"));
        }
        let candidates = of_kind(candidates, order)?;
        let names: Vec<String> = candidates.iter().map(|target| target.id().to_string()).collect();
        let reachable: Vec<_> =
            candidates.into_iter().filter(|one| is_reachable(one.as_ref(), &order.place)).collect();
        if reachable.is_empty() {
            let sentence =
                format!("target {} cannot be reached from where the volume has to be", names.join(", "));
            return Err(Failure::new(Why::NoRoom, sentence));
        }
        let open = self.open_to_new(reachable);
        if open.is_empty() {
            let sentence = format!("nothing new is made on target {}: it is being drained", names.join(", "));
            return Err(Failure::new(Why::NoRoom, sentence));
        }
        let left: Vec<_> = open.into_iter().filter(|one| !full.contains(one.id())).collect();
        if left.is_empty() {
            return Err(Failure::new(Why::NoRoom, "no target that can be reached has room"));
        }
        Ok(left)
    }

    /// How much room the targets have that answer; an error if there are some and none of them does.
    pub(crate) async fn rooms(&self, targets: Vec<Connected>) -> Result<Vec<(Connected, Capacity)>, Failure> {
        let asked = targets.into_iter().map(|target| async move {
            let answer = tokio::time::timeout(ROOM, target.capacity()).await;
            let room = match answer {
                Ok(room) => room.map_err(|error| unanswered(&error)),
                Err(_) => Err(Failure::new(Why::Unreachable, format!("no answer within {ROOM:?}"))),
            };
            (target, room)
        });
        let (mut rooms, mut silent) = (Vec::new(), None);
        for (target, room) in futures::future::join_all(asked).await {
            match room {
                Ok(room) => {
                    self.count_room(target.id(), &room);
                    rooms.push((target, room));
                }
                Err(failure) => {
                    tracing::warn!(target = %target.id(), failure = failure.sentence, "it does not say how much room it has");
                    let sentence = format!("target {}: {}", target.id(), failure.sentence);
                    silent = Some(Failure::new(Why::Unreachable, sentence));
                }
            }
        }
        match silent.filter(|_| rooms.is_empty()) {
            Some(failure) => Err(failure),
            None => Ok(rooms),
        }
    }
}
