//! What is remembered of each VolumeAttachment, and who has to look at it: in memory only, made again at every start.

use bowline_core::{NodeId, TicketId, VolumeId};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;

use super::status::{is_going, uid};
use crate::packed::Packed;

/// The ticket that was filed for a VolumeAttachment, or may have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filed {
    /// For which object of that name; `None` where a CSI call has filed it.
    pub(crate) uid: Option<String>,
    pub(crate) volume: VolumeId,
    pub(crate) node: NodeId,
    pub(crate) ticket: TicketId,
    pub(crate) generation: u64,
}

/// How a ticket stood when somebody last looked: news is what differs from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) reason: &'static str,
    pub(crate) epoch: Option<u64>,
    /// A digest of a verdict that stays as it is until somebody does something: whom it names matters. The words of one that is still being worked on
    /// change by themselves.
    pub(crate) detail: Option<u64>,
}

/// What a VolumeAttachment waits for, beside its ticket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Need {
    Pv(String),
    Node(String),
}

/// An object as it was last seen.
pub(crate) struct Seen {
    uid: String,
    version: Option<u64>,
    going: bool,
    /// The name of its Node.
    node: Box<str>,
    object: Packed<VolumeAttachment>,
}

impl Seen {
    fn new(object: &VolumeAttachment) -> Option<Self> {
        let (uid, version, going) = (uid(object).to_owned(), version(object), is_going(object));
        let node = object.spec.node_name.as_str().into();
        Some(Self { uid, version, going, node, object: Packed::new(object)? })
    }
}

#[derive(Default)]
pub(crate) struct Entry {
    /// `None` if it does not show.
    seen: Option<Seen>,
    pub(crate) filed: Option<Filed>,
    /// The Node under which it is noted as one without a ticket.
    unfiled_on: Option<String>,
    pub(crate) standing: Option<Standing>,
    /// What the engine has told of it since somebody began to look.
    pub(crate) heard: Option<Option<Standing>>,
    /// A digest of the context that the object was told when it was satisfied: while it says so, and nothing is heard, nobody needs to be asked. A
    /// second wish would make the engine write at once what it may write later.
    pub(crate) shown: Option<u64>,
    /// The object of this name that is gone: an answer about it that comes late does not bring it back.
    pub(crate) gone: Option<String>,
    /// The kind of the error that was told last: another text of the same kind is no news, unless it is a verdict.
    pub(crate) told: Option<&'static str>,
    pub(crate) needs: Vec<Need>,
    /// Whether the last answer was a refusal that stays until somebody does something.
    pub(crate) refused: bool,
    pub(crate) failures: u32,
    /// Somebody is at it.
    pub(crate) busy: bool,
    /// It has changed since that one began.
    pub(crate) dirty: bool,
    /// That one has nothing to do but to wait before it tries again.
    pub(crate) resting: bool,
    /// Wakes that one from waiting for a grant that nobody wants any more.
    pub(crate) overtaken: Arc<Notify>,
}

impl Entry {
    /// As it was last seen; `None` if it does not show.
    pub(crate) fn object(&self) -> Option<Arc<VolumeAttachment>> {
        Some(Arc::new(self.seen.as_ref()?.object.open()?))
    }

    /// Notes how the ticket stands, as far as was answered. What the engine has told meanwhile may be newer, and is compared when the look is over.
    pub(crate) fn answered(&mut self, standing: Option<Standing>) {
        (self.standing, self.shown) = (standing, None);
    }

    /// Whether the engine has told something else than what was last answered.
    pub(crate) fn hears_other_than_stands(&self) -> bool {
        self.heard.as_ref().is_some_and(|heard| *heard != self.standing)
    }
}

#[derive(Default)]
pub(crate) struct Book {
    entries: HashMap<String, Entry>,
    /// Nearly always one, and never many.
    by_volume: HashMap<VolumeId, Vec<String>>,
    waiting: HashMap<Need, BTreeSet<String>>,
    /// Objects that have no ticket as far as is known, by Node: there may be thousands, and few on one.
    unfiled: HashMap<String, BTreeSet<String>>,
    /// Tickets that CSI calls have filed, and those that were withdrawn and whose nodes are not proven out: they belong to the VolumeAttachment of the
    /// same name, if there is one.
    strays: HashMap<String, Filed>,
}

fn version(object: &VolumeAttachment) -> Option<u64> {
    object.metadata.resource_version.as_deref()?.parse().ok()
}

impl Book {
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.get_mut(name)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    /// A ticket that is in a ledger, found at the start. `mine`: a VolumeAttachment owns it.
    pub(crate) fn found(&mut self, name: &str, filed: Filed, mine: bool) {
        if mine {
            self.file(name, filed);
        } else {
            self.strays.insert(name.to_owned(), filed);
        }
    }

    /// Takes the answer to a write, unless the object is known to be gone by now.
    pub(crate) fn see_answer(&mut self, name: &str, object: VolumeAttachment) {
        let gone = self.entries.get(name).is_some_and(|entry| entry.gone.as_deref() == Some(uid(&object)));
        if !gone {
            self.see(name, object);
        }
    }

    /// Takes the newest form of an object; tells whether it is one. An older one may come late from the watch, after our own write told more.
    pub(crate) fn see(&mut self, name: &str, mut object: VolumeAttachment) -> bool {
        object.metadata.managed_fields = None;
        let stray = self.strays.remove(name);
        let entry = self.entries.entry(name.to_owned()).or_default();
        entry.gone = None;
        if let Some(known) = &entry.seen {
            let same = known.uid == uid(&object);
            let older = version(&object).zip(known.version).is_some_and(|(new, known)| new <= known);
            if older {
                return false;
            }
            if !same || (is_going(&object) && !known.going) {
                entry.overtaken.notify_one();
                // The answer to a write may be the first to tell it, and what the watch tells then is no news.
                entry.dirty = true;
            }
        }
        entry.seen = Seen::new(&object);
        if let (Some(stray), None) = (stray, &entry.filed) {
            self.file(name, stray);
        }
        self.note_unfiled(name);
        true
    }

    /// It does not show any more.
    pub(crate) fn unsee(&mut self, name: &str) {
        if let Some(entry) = self.entries.get_mut(name) {
            if let Some(seen) = entry.seen.take() {
                entry.gone = Some(seen.uid);
            }
            entry.overtaken.notify_one();
        }
        self.note_unfiled(name);
    }

    fn note_unfiled(&mut self, name: &str) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let node = entry.seen.as_ref().filter(|_| entry.filed.is_none()).map(|seen| seen.node.to_string());
        if entry.unfiled_on == node {
            return;
        }
        if let Some(before) = std::mem::replace(&mut entry.unfiled_on, node.clone())
            && let Some(names) = self.unfiled.get_mut(&before)
        {
            names.remove(name);
            if names.is_empty() {
                self.unfiled.remove(&before);
            }
        }
        if let Some(node) = node {
            self.unfiled.entry(node).or_default().insert(name.to_owned());
        }
    }

    pub(crate) fn file(&mut self, name: &str, filed: Filed) {
        self.unfile(name);
        self.by_volume.entry(filed.volume.clone()).or_default().push(name.to_owned());
        self.entries.entry(name.to_owned()).or_default().filed = Some(filed);
        self.note_unfiled(name);
    }

    pub(crate) fn unfile(&mut self, name: &str) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(filed) = entry.filed.take() else { return };
        // What was told is about a ticket that is nobody's now.
        entry.heard = None;
        if let Some(names) = self.by_volume.get_mut(&filed.volume) {
            names.retain(|one| one != name);
            if names.is_empty() {
                self.by_volume.remove(&filed.volume);
            }
        }
        self.note_unfiled(name);
    }

    /// Another object that has the same ticket and is not going: the same volume on the same node.
    pub(crate) fn sharing(&self, name: &str, volume: &VolumeId, ticket: &TicketId) -> Option<&str> {
        let shares = |other: &&String| {
            // One that was never answered may have asked for something else under that name, and been refused.
            let entry = self.entries.get(*other).filter(|entry| entry.standing.is_some());
            entry.is_some_and(|entry| {
                let same = entry.filed.as_ref().is_some_and(|filed| filed.ticket == *ticket);
                same && entry.seen.as_ref().is_some_and(|seen| !seen.going)
            })
        };
        let mut names = self.by_volume.get(volume)?.iter().filter(|other| *other != name);
        names.find(shares).map(String::as_str)
    }

    /// Objects on a Node that are not going and of which nobody knows yet what becomes of them: after a start, one of them may have asked for a
    /// ticket that another one's name is on.
    pub(crate) fn unanswered(&self, name: &str, volume: &VolumeId, node: &str) -> Vec<Arc<VolumeAttachment>> {
        let unfiled = self.unfiled.get(node).into_iter().flatten();
        let others = self.by_volume.get(volume).into_iter().flatten().chain(unfiled);
        let open = |other: &String| {
            let entry = self.entries.get(other)?;
            // One that was refused for good may wait for just that ticket to go.
            let unanswered = entry.standing.is_none() && !entry.refused;
            let seen = entry.seen.as_ref().filter(|seen| unanswered && !seen.going && *seen.node == *node)?;
            seen.object.open().map(Arc::new)
        };
        others.filter(|other| *other != name).filter_map(open).collect()
    }

    /// Who waits for this.
    pub(crate) fn waiting_for(&self, need: &Need) -> Vec<String> {
        self.waiting.get(need).into_iter().flatten().cloned().collect()
    }

    /// What it waits for from now on. What is still among it is heard of without a gap.
    pub(crate) fn needs(&mut self, name: &str, needs: Vec<Need>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let before = std::mem::replace(&mut entry.needs, needs.clone());
        for old in before.iter().filter(|old| !needs.contains(old)) {
            let Some(names) = self.waiting.get_mut(old) else { continue };
            names.remove(name);
            if names.is_empty() {
                self.waiting.remove(old);
            }
        }
        for need in needs.into_iter().filter(|need| !before.contains(need)) {
            self.waiting.entry(need).or_default().insert(name.to_owned());
        }
    }

    /// Takes what the engine tells of a volume. Returns those whose tickets do not stand as they did when somebody last looked; whoever is at one
    /// of them compares that itself when it is done.
    pub(crate) fn with_news(
        &mut self,
        volume: &VolumeId,
        now: impl Fn(&TicketId) -> Option<Standing>,
    ) -> Vec<String> {
        let Self { entries, by_volume, .. } = self;
        let names = by_volume.get(volume).into_iter().flatten();
        let differs = |name: &&String| {
            let Some(entry) = entries.get_mut(*name) else { return false };
            let Some(filed) = &entry.filed else { return false };
            let heard = now(&filed.ticket);
            let differs = heard != entry.standing;
            entry.heard = Some(heard);
            if differs {
                entry.shown = None;
            }
            differs && (!entry.busy || entry.resting)
        };
        names.filter(differs).cloned().collect()
    }

    /// Forgets what is gone and has no ticket.
    pub(crate) fn forget_if_done(&mut self, name: &str) {
        if self.entries.get(name).is_some_and(|entry| entry.seen.is_none() && entry.filed.is_none()) {
            self.needs(name, Vec::new());
            self.entries.remove(name);
            self.unfiled.remove(name);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;

    fn standing(reason: &'static str) -> Option<Standing> {
        Some(Standing { reason, epoch: None, detail: None })
    }

    #[test]
    fn a_deletion_that_the_answer_to_a_write_told_first_was_news_to_nobody() {
        let object = |version: &str, going: bool| -> VolumeAttachment {
            let gone = going.then_some("2026-01-01T10:00:00Z");
            serde_json::from_value(serde_json::json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": {"name": "va", "uid": "u", "resourceVersion": version, "deletionTimestamp": gone},
                "spec": {"attacher": "bowline.storage", "nodeName": "n", "source": {"persistentVolumeName": "p"}}}))
            .unwrap()
        };
        let mut book = Book::default();
        assert!(book.see("va", object("1", false)));
        let entry = book.get_mut("va").unwrap();
        (entry.busy, entry.dirty) = (true, false);
        book.see_answer("va", object("3", true));
        assert!(!book.see("va", object("2", true)), "the watch tells nothing new");
        assert!(book.get_mut("va").unwrap().dirty, "or nobody would look again");
    }

    #[test]
    fn only_what_has_no_ticket_on_the_same_node_is_looked_at() {
        let object = |name: &str, node: &str| -> VolumeAttachment {
            serde_json::from_value(serde_json::json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
                "spec": {"attacher": "bowline.storage", "nodeName": node, "source": {"persistentVolumeName": "p"}}}))
            .unwrap()
        };
        let volume = VolumeId::new("v").unwrap();
        let mut book = Book::default();
        for (name, node) in [("a", "n"), ("b", "n"), ("c", "other")] {
            book.see(name, object(name, node));
        }
        let found = |book: &Book| -> Vec<String> {
            let all = book.unanswered("a", &volume, "n");
            all.iter().map(|one| one.metadata.name.clone().unwrap()).collect()
        };
        assert_eq!(found(&book), ["b"]);
        let ticket = TicketId::new("t").unwrap();
        let (other, node) = (VolumeId::new("w").unwrap(), NodeId::new("n").unwrap());
        book.file("b", Filed { uid: None, volume: other, node, ticket, generation: 1 });
        assert_eq!(found(&book), [""; 0]);
        book.unfile("b");
        assert_eq!(found(&book), ["b"]);
        book.unsee("b");
        assert_eq!(found(&book), [""; 0]);
        assert_eq!(book.unfiled.len(), 2);
    }

    #[test]
    fn what_was_told_before_an_answer_was_noted_was_forgotten() {
        let (volume, node) = (VolumeId::new("v").unwrap(), NodeId::new("n").unwrap());
        let ticket = TicketId::new("t").unwrap();
        let mut book = Book::default();
        book.file("va", Filed { uid: None, volume: volume.clone(), node, ticket, generation: 1 });
        book.get_mut("va").unwrap().busy = true;
        // The engine answers, then tells more, and only then is the answer noted.
        assert!(book.with_news(&volume, |_| standing("Satisfied")).is_empty(), "somebody is at it");
        let entry = book.get_mut("va").unwrap();
        entry.answered(standing("HeldElsewhere"));
        assert!(entry.hears_other_than_stands(), "or nobody would look again");
        entry.answered(standing("Satisfied"));
        assert!(!entry.hears_other_than_stands());
    }
}
