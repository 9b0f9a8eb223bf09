//! What to adopt, from what is found: pure, so that every combination can be a row of a test.

use bowline_api::keys::{ANNOTATIONS, ATTACHED_NODE, DRIVER, EARLIER_ANNOTATIONS, EARLIER_DRIVER};
use bowline_controller::csi::{FS, ticket_of};
use bowline_controller::{Settings, Use, Volume, VolumeState};
use bowline_core::{FsType, Ledger, NodeId, Owner, Slot, TargetId, Ticket, Timestamp, VolumeId};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::attacher::{Source, owner, request, source};
use crate::pv::Pv;

/// Everything that can tell where a volume is attached.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The volumes that have a record already.
    pub volumes: BTreeSet<VolumeId>,
    /// The ledgers that are there already, of volumes that are not settled.
    pub ledgers: BTreeMap<VolumeId, Ledger>,
    /// The volumes that have a record and somebody in their ledger, as far as a PersistentVolume or a VolumeAttachment names them: nothing more is
    /// said of them here.
    pub settled: BTreeSet<VolumeId>,
    /// Who owns the tickets in the ledgers of all that are.
    pub owners: Vec<Owner>,
    /// The PersistentVolumes of this driver.
    pub pvs: Vec<Pv>,
    /// The volumes of PersistentVolumes of an earlier driver.
    pub earlier: Vec<String>,
    /// The VolumeAttachments of Kubernetes.
    pub attachments: Vec<VolumeAttachment>,
    /// The driver's name for each node, from CSINode.
    pub node_ids: BTreeMap<String, NodeId>,
    /// The volumes without a record that targets hold: which, and with how many bytes. More than one only where somebody has copied one.
    pub stored: BTreeMap<VolumeId, BTreeMap<TargetId, u64>>,
    /// Targets that could not be asked, and why: one of them may hold what no other does.
    pub silent: Vec<String>,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// Records to be made.
    pub volumes: Vec<Volume>,
    /// Tickets to be put into ledgers, before anybody can decide to detach.
    pub tickets: Vec<(VolumeId, Ticket)>,
    /// Where the sources disagree, and what to do. Nothing is guessed.
    pub refused: Vec<Contradiction>,
    /// Volumes of an earlier driver, and what to do if they are to be Bowline's. They may stay what they are.
    pub earlier: Vec<Contradiction>,
    /// The volumes of PersistentVolumes for which there is nothing left to do.
    pub known: Vec<VolumeId>,
}

/// A volume about which the sources disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The volume, as its PersistentVolume calls it.
    pub volume: String,
    /// What is wrong, and what to do about it.
    pub sentence: String,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.volume, self.sentence)
    }
}

impl fmt::Display for Adoption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for volume in &self.volumes {
            writeln!(f, "adopt volume {} ({} bytes on {})", volume.id, volume.size, volume.target)?;
        }
        for (volume, ticket) in &self.tickets {
            writeln!(f, "adopt attachment of {volume} on {} as {}", ticket.node, ticket.id)?;
        }
        for refused in &self.refused {
            writeln!(f, "refused {refused}")?;
        }
        if self.is_done() {
            writeln!(f, "nothing to adopt")?;
        }
        Ok(())
    }
}

impl Adoption {
    /// Whether nothing is left to do, for anybody.
    pub fn is_done(&self) -> bool {
        self.volumes.is_empty() && self.tickets.is_empty() && self.refused.is_empty()
    }
}

/// One attachment that says it is in force.
struct Attached<'a> {
    object: &'a VolumeAttachment,
    name: &'a str,
}

impl Attached<'_> {
    fn node(&self) -> &str {
        &self.object.spec.node_name
    }
}

/// Decides what to adopt. A ledger with anybody in it is left alone, whatever others say: it is the record, the rest is not.
pub fn plan(found: &Found, now: Timestamp) -> Adoption {
    let mut adoption = Adoption {
        known: found.settled.iter().cloned().collect(),
        earlier: found.earlier.iter().map(|volume| of_earlier_driver(volume)).collect(),
        ..Adoption::default()
    };
    let by_name: BTreeMap<&str, &Pv> = found.pvs.iter().map(|pv| (pv.name.as_str(), pv)).collect();
    let mut volumes: BTreeMap<String, (Pv, Vec<Attached<'_>>)> = BTreeMap::new();
    for pv in &found.pvs {
        volumes.entry(pv.handle.clone()).or_insert_with(|| (pv.clone(), Vec::new()));
    }
    let ours = found.attachments.iter().filter(|one| one.spec.attacher == DRIVER);
    for object in ours.filter(|one| one.status.as_ref().is_some_and(|status| status.attached)) {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let pv = match source(object) {
            Ok(Source::Named(pv)) => by_name.get(pv).map(|pv| (*pv).clone()).ok_or_else(|| {
                format!("VolumeAttachment {name} is attached, but its PersistentVolume {pv} is not there; restore it")
            }),
            Ok(Source::Inline(pv)) => Ok(*pv),
            Err(error) => Err(error.to_string()),
        };
        match pv {
            // Its detach may be done but for the object: a ticket would let the node in anew. Without records nobody would know that it is in.
            Ok(pv) if object.metadata.deletion_timestamp.is_some() && is_recorded(found, &pv) => {}
            Ok(pv) => {
                let place = volumes.entry(pv.handle.clone()).or_insert_with(|| (pv, Vec::new()));
                place.1.push(Attached { object, name });
            }
            Err(sentence) if !owns_a_ticket(found, object) => {
                adoption.refused.push(Contradiction { volume: name.to_owned(), sentence });
            }
            Err(_) => {}
        }
    }
    let slots = found.volumes.iter().filter_map(|id| Some((Slot::of_id(id.as_str())?, id)));
    let taken: Taken<'_> = slots.collect();
    for (handle, (pv, attached)) in volumes {
        match adopt(found, &taken, &pv, &attached, now) {
            Ok((None, tickets)) if tickets.is_empty() => adoption.known.extend(VolumeId::new(&handle)),
            Ok((volume, tickets)) => {
                adoption.tickets.extend(tickets);
                adoption.volumes.extend(volume);
            }
            Err(sentence) => adoption.refused.push(Contradiction { volume: handle, sentence }),
        }
    }
    adoption
}

fn of_earlier_driver(volume: &str) -> Contradiction {
    let sentence = format!(
        "its PersistentVolume is of the driver {EARLIER_DRIVER}, and that cannot be changed; docs/rds.md says how it gets one of Bowline"
    );
    Contradiction { volume: volume.to_owned(), sentence }
}

/// Whether somebody has it, or asks for it.
pub(super) fn is_in_use(ledger: &Ledger) -> bool {
    !ledger.tickets().is_empty() || !ledger.holds().is_empty()
}

/// Whether the records say who has it.
fn is_recorded(found: &Found, pv: &Pv) -> bool {
    let id = VolumeId::new(&pv.handle);
    id.is_ok_and(|id| found.volumes.contains(&id) && found.ledgers.contains_key(&id))
}

fn owns_a_ticket(found: &Found, object: &VolumeAttachment) -> bool {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let owner = owner(name, object.metadata.uid.as_deref().unwrap_or_default());
    let tickets = found.ledgers.values().flat_map(|ledger| ledger.tickets().values());
    found.owners.contains(&owner) || tickets.into_iter().any(|ticket| ticket.owner == owner)
}

type Adopted = (Option<Volume>, Vec<(VolumeId, Ticket)>);

/// Who has the place that a name gives.
type Taken<'a> = BTreeMap<Slot, &'a VolumeId>;

fn adopt(
    found: &Found,
    taken: &Taken<'_>,
    pv: &Pv,
    attached: &[Attached<'_>],
    now: Timestamp,
) -> Result<Adopted, String> {
    let id = VolumeId::new(&pv.handle).ok().filter(|id| Slot::of_id(id.as_str()).is_some());
    let id =
        id.ok_or("its volumeHandle is no id that Bowline gives; make a volume for it and copy the data")?;
    let known = found.ledgers.get(&id);
    let volume = if found.volumes.contains(&id) { None } else { Some(record(found, taken, pv, &id, now)?) };
    if known.is_some_and(is_in_use) {
        return Ok((volume, Vec::new()));
    }
    let tickets = tickets(found, pv, attached, now)?;
    // What has a record is compared with its target in any case, and whoever has no ticket then is shut out: nobody would be spared by a refusal.
    if volume.is_some() {
        agree(pv, attached, &tickets)?;
    }
    Ok((volume, tickets.into_iter().map(|ticket| (id.clone(), ticket)).collect()))
}

/// The record of a volume that has none.
fn record(
    found: &Found,
    taken: &Taken<'_>,
    pv: &Pv,
    id: &VolumeId,
    now: Timestamp,
) -> Result<Volume, String> {
    let mut holders = found.stored.get(id).into_iter().flatten();
    let Some((target, size)) = holders.next() else {
        if !found.silent.is_empty() {
            return Err(format!(
                "no target that answers holds it ({}); adopt again when all do",
                found.silent.join("; ")
            ));
        }
        return Err(
            "no target holds it; connect the target that does, or delete the PersistentVolume".to_owned()
        );
    };
    if let Some((other, _)) = holders.next() {
        return Err(format!(
            "targets {target} and {other} both hold it, and only one of them is the one that is used; find out which, delete the volume at the other one or that Target, and adopt again"
        ));
    }
    let slot = Slot::of_id(id.as_str());
    if let Some(other) = slot.as_ref().and_then(|slot| taken.get(slot)) {
        return Err(format!(
            "volume {other} was made under the same name since; copy what is needed to it, or delete it"
        ));
    }
    let slot = slot.as_ref().map_or("", Slot::as_str);
    let name = [pv.name.as_str(), slot].into_iter().find(|name| Slot::of_name(name).as_str() == slot);
    let name = name.ok_or(
        "the name it was made under is not known, since its PersistentVolume has another; restore its record",
    )?;
    let fs = [pv.attributes.get(FS).map(String::as_str), Some(pv.fs_type.as_str())];
    let fs = fs.into_iter().flatten().find(|fs| !fs.is_empty());
    let fs = fs.map_or(Ok(FsType::Ext4), |fs| fs.parse().map_err(|error| format!("{error}")))?;
    let wish = request(pv, "any").map_err(|error| error.to_string())?;
    Ok(Volume {
        id: id.clone(),
        name: name.to_owned(),
        target: target.clone(),
        size: *size,
        fs,
        uses: vec![Use { access: wish.capability.mode, content: wish.capability.content() }],
        source: None,
        settings: Settings::default(),
        created_at: now,
        state: VolumeState::Ready,
    })
}

fn tickets(found: &Found, pv: &Pv, attached: &[Attached<'_>], now: Timestamp) -> Result<Vec<Ticket>, String> {
    let ticket = |one: &Attached<'_>| {
        let annotations = one.object.metadata.annotations.as_ref();
        let remembered = annotations.and_then(|all| all.get(bowline_api::keys::NODE_ID));
        let id = remembered
            .and_then(|id| NodeId::new(id).ok())
            .or_else(|| found.node_ids.get(one.node()).cloned());
        let id = id.ok_or_else(|| {
            format!(
                "VolumeAttachment {} is attached to {}, and nobody knows the driver's name for that node; start the driver there, or delete the VolumeAttachment",
                one.name,
                one.node()
            )
        })?;
        let wish = request(pv, id.as_str()).map_err(|error| error.to_string())?;
        let uid = one.object.metadata.uid.as_deref().unwrap_or_default();
        Ok(ticket_of(&wish, owner(one.name, uid), now))
    };
    attached.iter().map(ticket).collect()
}

/// Whether all that is said of a volume can be true at once.
fn agree(pv: &Pv, attached: &[Attached<'_>], tickets: &[Ticket]) -> Result<(), String> {
    for (index, one) in tickets.iter().enumerate() {
        let beside =
            tickets[..index].iter().find(|other| other.node != one.node && !other.mode().admits(one.mode()));
        if let Some(other) = beside {
            return Err(format!(
                "two VolumeAttachments say that it is attached, to {} and to {}, and it is for one node at a time; find out which one uses it, and delete the other VolumeAttachment",
                other.node, one.node
            ));
        }
    }
    let said = [ANNOTATIONS, EARLIER_ANNOTATIONS]
        .map(|prefix| pv.annotations.get(&format!("{prefix}{ATTACHED_NODE}")));
    for said in said.into_iter().flatten().flat_map(|nodes| nodes.split(',')).filter(|node| !node.is_empty())
    {
        let fits =
            |(one, ticket): (&Attached<'_>, &Ticket)| one.node() == said || ticket.node.as_str() == said;
        if attached.iter().zip(tickets).any(fits) {
            continue;
        }
        let rest = match attached.first() {
            Some(one) => format!("VolumeAttachment {} says {}", one.name, one.node()),
            None => "no VolumeAttachment says so".to_owned(),
        };
        return Err(format!(
            "its annotation says that it is attached to {said}, but {rest}; find out whether {said} still uses it, and when it does not, remove the annotation {ATTACHED_NODE} from PersistentVolume {}",
            pv.name
        ));
    }
    Ok(())
}
