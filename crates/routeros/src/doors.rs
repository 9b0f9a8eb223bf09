//! Who can get in to what, and whether that was ever more than it may be.

use std::collections::BTreeSet;

use super::firmware::Firmware;
use super::state::Disk;

/// A disk that is exported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Door {
    /// The disk.
    pub slot: String,
    /// What initiators ask for.
    pub nqn: String,
    /// Where they ask.
    pub port: u16,
    /// Who may; `None` is everybody.
    pub host: Option<String>,
    /// The file with the bytes, without a leading slash.
    pub file: String,
    /// How many bytes there are.
    pub size: u64,
}

/// The exports, how they came about, and who is connected.
#[derive(Debug, Default)]
pub(super) struct Doors {
    open: Vec<Door>,
    history: Vec<Door>,
    standing: BTreeSet<String>,
    breaches: Vec<String>,
    /// Disk, NQN and host.
    connected: BTreeSet<(String, String, String)>,
}

impl Doors {
    pub(super) fn open(&self) -> Vec<Door> {
        self.open.clone()
    }

    pub(super) fn history(&self) -> Vec<Door> {
        self.history.clone()
    }

    pub(super) fn breaches(&self) -> Vec<String> {
        self.breaches.clone()
    }

    pub(super) fn is_used(&self, slot: &str) -> bool {
        self.connected.iter().any(|(used, ..)| used == slot)
    }

    pub(super) fn connected(&self, slot: &str) -> Vec<String> {
        self.connected.iter().filter(|(used, ..)| used == slot).map(|(_, _, host)| host.clone()).collect()
    }

    /// An initiator asks for an NQN.
    pub(super) fn connect(&mut self, host: &str, nqn: &str) -> bool {
        let may = |door: &&Door| door.nqn == nqn && door.host.as_ref().is_none_or(|allowed| allowed == host);
        let slots: Vec<String> = self.open.iter().filter(may).map(|door| door.slot.clone()).collect();
        let in_at_all = !slots.is_empty();
        self.connected.extend(slots.into_iter().map(|slot| (slot, nqn.to_owned(), host.to_owned())));
        in_at_all
    }

    pub(super) fn disconnect(&mut self, host: &str) {
        self.connected.retain(|(_, _, connected)| connected != host);
    }

    pub(super) fn disconnect_all(&mut self) {
        self.connected.clear();
    }

    /// Notes what has changed.
    pub(super) fn look(&mut self, disks: &[Disk], firmware: &Firmware) {
        let exported = disks.iter().filter(|disk| disk.export);
        let now: Vec<Door> = exported
            .map(|disk| Door {
                slot: disk.slot.clone(),
                nqn: disk.nqn.clone(),
                port: disk.port,
                host: Some(disk.allow.clone()).filter(|allow| !allow.is_empty()),
                file: disk.file.clone(),
                size: disk.size,
            })
            .collect();
        self.history.extend(now.iter().filter(|door| !self.open.contains(door)).cloned());
        // As in Linux, the allow list is asked when somebody connects and not later; whoever asked for an NQN that is
        // no more, or for a disk that is exported no more, is cut off (assumed).
        self.connected.retain(|(slot, nqn, _)| now.iter().any(|door| door.slot == *slot && door.nqn == *nqn));
        let breaches = breaches(&now, firmware);
        self.breaches.extend(breaches.difference(&self.standing).cloned());
        (self.open, self.standing) = (now, breaches);
    }
}

fn breaches(now: &[Door], firmware: &Firmware) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, door) in now.iter().enumerate() {
        let (slot, nqn) = (&door.slot, &door.nqn);
        match &door.host {
            None if firmware.knows_allow_list => {
                found.insert(format!("{slot} is exported as {nqn} to everybody"));
            }
            Some(hosts) if hosts.contains([',', ' ']) => {
                found.insert(format!("{slot} is exported as {nqn} to more than one host: {hosts}"));
            }
            _ => {}
        }
        if let Some(other) = now[..at].iter().find(|other| other.nqn == *nqn) {
            found.insert(format!("{} and {slot} are both exported as {nqn}", other.slot));
        }
    }
    found
}
