//! Looking at the device and sending it commands.

use super::access::Guarantee;
use super::command::{self, Find, Property};
use super::console::{Console, ConsoleError};
use super::disk::{Disk, StoredFile, disks, files};
use super::fault::{self, Fault};
use super::name::{Mark, NOBODY, Names, Seen};
use crate::{ProvisionError, TargetError};
use bowline_failpoint::pass;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why something is not known, or not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nothing was sent.
    NotSent(String),
    /// Something was sent, and it is not known what came of it.
    Unanswered(String),
    /// The device said no, or said something that cannot be understood.
    Fault(Fault),
}

impl Trouble {
    /// Whether looking tells what came of a command.
    pub(super) fn is_for_a_look(&self) -> bool {
        match self {
            Self::NotSent(_) => false,
            Self::Unanswered(_) => true,
            // What was looked for is not so any more; or it was done, and a word about it was added.
            Self::Fault(Fault::NoSuchItem | Fault::Exists | Fault::Unparseable { .. }) => true,
            Self::Fault(Fault::NoSpace | Fault::InUse | Fault::Auth { .. } | Fault::Invalid { .. }) => false,
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotSent(error) | Self::Unanswered(error) => f.write_str(error),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<ConsoleError> for Trouble {
    fn from(error: ConsoleError) -> Self {
        match error {
            ConsoleError::NotSent { error } => Self::NotSent(error),
            ConsoleError::Unanswered { error } => Self::Unanswered(error),
        }
    }
}

impl From<Trouble> for TargetError {
    fn from(trouble: Trouble) -> Self {
        let error = trouble.to_string();
        match trouble {
            Trouble::Fault(Fault::NoSpace | Fault::Invalid { .. } | Fault::InUse | Fault::Exists) => {
                Self::Refused { error }
            }
            // That nothing is there, and that the user may not look, say nothing of who is let in.
            Trouble::Fault(Fault::NoSuchItem | Fault::Auth { .. } | Fault::Unparseable { .. })
            | Trouble::NotSent(_)
            | Trouble::Unanswered(_) => Self::Unreachable { error },
        }
    }
}

impl From<Trouble> for ProvisionError {
    fn from(trouble: Trouble) -> Self {
        let error = trouble.to_string();
        match trouble {
            Trouble::Fault(Fault::InUse) => Self::InUse { by: "something on the device".to_owned() },
            Trouble::Fault(Fault::Invalid { .. }) => Self::Refused { error },
            Trouble::Fault(
                Fault::NoSpace
                | Fault::Exists
                | Fault::NoSuchItem
                | Fault::Auth { .. }
                | Fault::Unparseable { .. },
            )
            | Trouble::NotSent(_)
            | Trouble::Unanswered(_) => Self::Unreachable { error },
        }
    }
}

/// How often something is tried that others change meanwhile.
pub(super) const TRIES: usize = 6;

/// What to say when it was tried that often.
pub(super) fn in_vain(last: Option<Trouble>) -> Trouble {
    let why = last.map(|trouble| format!(": {trouble}")).unwrap_or_default();
    Trouble::Unanswered(format!("the device is not as it was told to be after {TRIES} commands{why}"))
}

/// What is in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Empty,
    /// A disk that is not ours.
    Foreign,
    Ours(Box<Disk>, Seen),
}

/// One device.
pub(super) struct Device {
    pub(super) console: Arc<dyn Console>,
    pub(super) names: Names,
    pub(super) pool: String,
    /// Where it exports what is made now.
    pub(super) port: u16,
    pub(super) guarantee: Guarantee,
    /// How volumes were last seen that let nobody in, by slot. A hint and no more: a command that goes by it finds nothing if it is
    /// wrong.
    hints: Mutex<HashMap<String, Seen>>,
}

impl Device {
    pub(super) fn new(console: Arc<dyn Console>, names: Names, pool: String, port: u16) -> Self {
        Self { console, names, pool, port, guarantee: Guarantee::OneHost, hints: Mutex::default() }
    }

    /// Finds out what the firmware can keep, and whether it understands what is asked of it. Changes nothing.
    pub(super) async fn examine(&mut self) -> Result<(), Trouble> {
        let nothing = Find { slot: "bowline-probe", nqn: NOBODY, also: &[] };
        self.guarantee = match self.send(&command::set(&nothing, &[Property::AllowHost(NOBODY)])).await {
            Ok(()) | Err(Trouble::Fault(Fault::NoSuchItem)) => Guarantee::OneHost,
            Err(Trouble::Fault(Fault::Invalid { .. })) => Guarantee::OnOrOff,
            Err(trouble) => return Err(trouble),
        };
        let all = self.all().await?;
        // "It is not there" is believed of a device only if it finds by its slot what is there.
        if let Some(pool) = all.iter().find(|disk| self.is_pool(disk))
            && self.look(&pool.slot).await? != Slot::Foreign
        {
            return Err(Fault::unparseable(&format!(
                "slot {} is in the list of disks, but not found",
                pool.slot
            ))
            .into());
        }
        if self.ours(all)?.iter().any(|(_, seen)| seen.host.is_none()) {
            self.guarantee = Guarantee::OnOrOff;
        }
        Ok(())
    }

    async fn shown(&self, command: &str) -> Result<String, Trouble> {
        let said = self.console.run(command).await?;
        match said.status {
            Some(0) => Ok(said.text),
            // Whether this is all of it, nobody knows.
            None => Err(Trouble::Unanswered("the output of the device ended without a status".to_owned())),
            Some(status) => {
                let complaint = said.text.lines().find_map(Fault::of);
                let fault = complaint
                    .unwrap_or_else(|| Fault::unparseable(&format!("status {status}, {}", said.text)));
                Err(fault.into())
            }
        }
    }

    /// Sends a command that changes something.
    pub(super) async fn send(&self, command: &str) -> Result<(), Trouble> {
        tracing::debug!(command, "sent to the device");
        pass("rds.command.before");
        let said = self.console.run(command).await;
        pass("rds.command.after");
        let said = said?;
        fault::done(&said).map_err(Trouble::from)
    }

    /// Sends one after which a look tells what came of it; says why that may be nothing.
    pub(super) async fn try_send(&self, command: &str) -> Result<Option<Trouble>, Trouble> {
        match self.send(command).await {
            Ok(()) => Ok(None),
            Err(trouble) if trouble.is_for_a_look() => Ok(Some(trouble)),
            Err(trouble) => Err(trouble),
        }
    }

    /// The disk in a slot now, whosever it is.
    pub(super) async fn disk_in(&self, slot: &str) -> Result<Option<Disk>, Trouble> {
        let found = match self.shown(&command::print_slot(slot)).await {
            Ok(text) => disks(&text)?,
            Err(Trouble::Fault(Fault::NoSuchItem)) => Vec::new(),
            Err(trouble) => return Err(trouble),
        };
        let mut found = found.into_iter().filter(|disk| disk.slot == slot);
        let disk = found.next();
        if found.next().is_some() {
            return Err(Fault::unparseable(&format!("two disks are shown in slot {slot}")).into());
        }
        Ok(disk)
    }

    /// What is in a slot now.
    pub(super) async fn look(&self, slot: &str) -> Result<Slot, Trouble> {
        let disk = self.disk_in(slot).await?;
        self.understand(slot, disk)
    }

    /// What a disk is that was found in a slot, or that none was.
    pub(super) fn understand(&self, slot: &str, disk: Option<Disk>) -> Result<Slot, Trouble> {
        let Some(disk) = disk else {
            self.forget(slot);
            return Ok(Slot::Empty);
        };
        let Some(seen) = self.names.seen(&disk)? else { return Ok(Slot::Foreign) };
        self.note(&seen);
        Ok(Slot::Ours(Box::new(disk), seen))
    }

    /// Makes sure that a slot is empty, by a list that is known to be whole: what follows from "it is not there" cannot be taken back.
    pub(super) async fn is_empty(&self, slot: &str) -> Result<bool, Trouble> {
        Ok(self.all().await?.iter().all(|disk| disk.slot != slot))
    }

    /// All disks. A list in which the pool is not cannot be all.
    pub(super) async fn all(&self) -> Result<Vec<Disk>, Trouble> {
        let all = disks(&self.shown(&command::print_all()).await?)?;
        if all.iter().any(|disk| self.is_pool(disk)) {
            return Ok(all);
        }
        Err(Fault::unparseable(&format!("pool {} is not in the list of disks", self.pool)).into())
    }

    fn is_pool(&self, disk: &Disk) -> bool {
        !disk.is_file() && (disk.mount_point().as_deref() == Some(&self.pool) || disk.slot == self.pool)
    }

    /// The disks of ours in a list, with what they are.
    pub(super) fn ours(&self, all: Vec<Disk>) -> Result<Vec<(Disk, Seen)>, Trouble> {
        let mut ours = Vec::new();
        for disk in all {
            if let Some(seen) = self.names.seen(&disk)? {
                self.note(&seen);
                ours.push((disk, seen));
            }
        }
        ours.sort_by(|(_, one), (_, other)| one.item.cmp(&other.item));
        Ok(ours)
    }

    /// How large the pool is, and how much of it is free.
    pub(super) async fn room(&self) -> Result<(u64, u64), Trouble> {
        let found = disks(&self.shown(&command::print_pool(&self.pool)).await?)?;
        let pool = found.iter().find(|disk| self.is_pool(disk));
        let missing = || Fault::unparseable(&format!("the device shows no pool {}", self.pool));
        let pool = pool.ok_or_else(missing)?;
        Ok((pool.bytes()?, pool.free()?))
    }

    /// The pool in a list of all disks.
    pub(super) fn room_in(&self, all: &[Disk]) -> Result<(u64, u64), Trouble> {
        let missing = || Fault::unparseable(&format!("pool {} is not in the list of disks", self.pool));
        let pool = all.iter().find(|disk| self.is_pool(disk)).ok_or_else(missing)?;
        Ok((pool.bytes()?, pool.free()?))
    }

    /// The files that have this in their names, and perhaps others.
    pub(super) async fn files(&self, with: &str) -> Result<Vec<StoredFile>, Trouble> {
        match self.shown(&command::print_files(with)).await {
            Ok(text) => Ok(files(&text)?),
            Err(Trouble::Fault(Fault::NoSuchItem)) => Ok(Vec::new()),
            Err(trouble) => Err(trouble),
        }
    }

    fn hints(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, seen: &Seen) {
        if matches!(seen.mark, Mark::Closed(_)) && !seen.export {
            self.hints().insert(seen.slot.clone(), seen.clone());
        } else {
            self.forget(&seen.slot);
        }
    }

    pub(super) fn forget(&self, slot: &str) {
        self.hints().remove(slot);
    }

    /// How a volume was last seen, if it let nobody in.
    pub(super) fn hint(&self, slot: &str) -> Option<Seen> {
        self.hints().get(slot).cloned()
    }
}
