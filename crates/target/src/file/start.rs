//! Opening a directory: whose it is, and what a crash left in it.

use super::busy::Busy;
use super::cut::first_of;
use super::cut_off::CutOff;
use super::directory::{Directory, Fault, called, now, write_file};
use super::exporter::{Exporter, Loops};
use super::holder;
use super::late::Late;
use super::name::{self, Ours, Part};
use super::recent::Writer;
use super::record::{DirectoryRecord, From, Phase, SnapshotRecord, VolumeRecord};
use super::room::Room;
use super::{FileTarget, Inner, Settings};
use crate::nvmet::{self, Nvmet};
use crate::turns::Turns;
use crate::{Item, Sizes};
use bowline_core::SnapshotId;
use bowline_host::Host;
use bowline_host::file;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Why a directory of volumes cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by {holder}", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// Who has it.
        holder: String,
    },
    /// The kernel said no.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        error: String,
    },
    /// Another machine had it, and may have devices on its files.
    #[error(
        "{} is on a network filesystem, and another machine had it, or this one before it was started again; nodes were let in to {item} then. \
         If that machine was started again or is switched off, remove {}/directory.lock",
        path.display(),
        path.display()
    )]
    Elsewhere {
        /// The directory.
        path: PathBuf,
        /// What somebody was let in to.
        item: String,
    },
    /// What is shown of it cannot be seen, so it could be anything.
    #[error("{error}")]
    Export {
        /// What was seen instead.
        error: String,
    },
    /// What tells whose directory it is cannot be understood.
    #[error("{}: {error}", path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// What was seen.
        error: String,
    },
    /// No target has made a directory of volumes there.
    #[error("{} is not a directory of volumes: it has no directory.json", path.display())]
    NotADirectory {
        /// The directory.
        path: PathBuf,
    },
}

impl OpenError {
    pub(super) fn io(path: &Path, error: &std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error: error.to_string() }
    }

    pub(super) fn of(directory: &Path, fault: &Fault) -> Self {
        match fault {
            Fault::Io { path, error } => Self::io(path, error),
            Fault::Damaged { .. } => Self::Damaged { path: directory.to_owned(), error: fault.to_string() },
        }
    }
}

const MULTIPLE: u64 = 4096;
const MINIMUM: u64 = 1 << 20;
/// How long a record is waited for that must not keep a fence waiting.
const RECORD_PATIENCE: Duration = Duration::from_secs(1);

/// Files of ours, by what they belong to.
#[derive(Debug, Default)]
struct Found {
    items: BTreeMap<Item, BTreeSet<Part>>,
    cuts: BTreeMap<SnapshotId, BTreeSet<Part>>,
}

impl FileTarget {
    /// Opens a directory, made if it is not there, for this process alone. What a crash left half made is cleared
    /// away or completed, filesystems that it left frozen are thawed. A volume that is damaged stays, and says so.
    ///
    /// Blocks.
    pub fn open(settings: Settings, host: Host) -> Result<Self, OpenError> {
        Self::open_with(settings, host, |_, _| Box::new(Loops))
    }

    /// As [`Self::open`], for a directory whose volumes are exported over NVMe/TCP. Comes back when nobody gets at a volume who is
    /// not in its record, and whoever is in one gets at it again, but for what [`Self::missing`] tells.
    ///
    /// Blocks.
    pub fn open_exported(settings: Settings, nvmet: nvmet::Settings, host: Host) -> Result<Self, OpenError> {
        Self::open_with(settings, host, |installation, host| Box::new(Nvmet::new(nvmet, installation, host)))
    }

    fn open_with(
        settings: Settings,
        host: Host,
        exporter: impl FnOnce(&str, Host) -> Box<dyn Exporter>,
    ) -> Result<Self, OpenError> {
        let Settings { id, directory: path, host_name, policy } = settings;
        let io = |error: std::io::Error| OpenError::io(&path, &error);
        fs::create_dir_all(&path).map_err(io)?;
        let path = path.canonicalize().map_err(io)?;
        let held = holder::take(&path, &host)?;
        let found = scan(&path)?;
        let installation = installation(&path, &found)?;
        let maximum = file::longest(&path, MULTIPLE).map_err(io)?;
        // On a full disk it cannot be tried out, and files may share blocks all the same.
        let reflink = file::abilities(&path).map_or(true, |found| found.reflink);
        let directory = Directory { path, installation, writer: Writer::new() };
        if held.was_elsewhere {
            alone(&directory, found.items.keys())?;
        }
        // On a full disk the directory must still open, unless it says that another machine's nodes may attach.
        if let Err(error) = held.say(&host) {
            if held.was_elsewhere {
                return Err(OpenError::io(&directory.path.join("directory.lock"), &error));
            }
            tracing::warn!(path = %directory.path.display(), %error, "directory.lock does not say who has it; nodes beside it attach nothing");
        }
        let exporter = exporter(&directory.installation, host.clone());
        let inner = Inner {
            id,
            host_name,
            host,
            exporter,
            sizes: Sizes { minimum: MINIMUM, maximum, multiple: MULTIPLE },
            directory,
            room: Room::new(policy, reflink),
            turns: Turns::default(),
            busy: Busy::default(),
            late: Late::new(RECORD_PATIENCE),
            unfinished: Mutex::default(),
            missing: Mutex::default(),
            unproven: Mutex::default(),
            cut_off: CutOff::default(),
            _lock: held.lock,
        };
        inner.recover(&found);
        inner.show_again(found.items.keys())?;
        inner.directory.keep_spare();
        Ok(Self { inner: Arc::new(inner) })
    }
}

fn scan(path: &Path) -> Result<Found, OpenError> {
    let io = |error: std::io::Error| OpenError::io(path, &error);
    let mut found = Found::default();
    for entry in fs::read_dir(path).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        match name.to_str().and_then(name::parse) {
            Some(Ours::Of(item, part)) => found.items.entry(item).or_default().insert(part),
            Some(Ours::Cut(first, part)) => found.cuts.entry(first).or_default().insert(part),
            None => continue,
        };
    }
    Ok(found)
}

/// Another machine had the directory, or this one before it was started again. Only the second ends what was attached then: where both can be,
/// whoever was let in may still have a device, on a kernel that cannot be looked at from here.
fn alone<'a>(directory: &Directory, items: impl Iterator<Item = &'a Item>) -> Result<(), OpenError> {
    let io = |error: std::io::Error| OpenError::io(&directory.path, &error);
    if file::is_local(&directory.path).map_err(io)? {
        return Ok(());
    }
    let lets_in = |item: &Item| match item {
        Item::Volume(_) => directory
            .volume(item)
            .map_or(true, |record| record.is_some_and(|found| !found.reach().is_empty())),
        Item::Snapshot(_) => false,
    };
    match items.into_iter().find(|item| lets_in(item)) {
        None => Ok(()),
        Some(item) => Err(OpenError::Elsewhere { path: directory.path.clone(), item: called(item) }),
    }
}

/// Which installation's directory it is. One that lost its own record is known by those of its volumes.
fn installation(path: &Path, found: &Found) -> Result<String, OpenError> {
    let of = |fault: Fault| OpenError::of(path, &fault);
    if let Some(record) = Directory::identity(path).map_err(of)? {
        return Ok(record.installation);
    }
    let any = Directory { path: path.to_owned(), installation: String::new(), writer: Writer::new() };
    let mut named = BTreeSet::new();
    for item in found.items.keys() {
        named.extend(any.installation_of(item));
    }
    let installation = match (named.pop_first(), named.is_empty()) {
        // Not a secret and not a UUID: only different from that of others.
        (None, _) => {
            format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
        }
        (Some(one), true) => one,
        (Some(_), false) => {
            let error =
                "directory.json is missing, and the volumes here are of several directories".to_owned();
            return Err(OpenError::Damaged { path: path.to_owned(), error });
        }
    };
    let record = DirectoryRecord { installation, created_at: now() };
    let place = Directory::record_of(path);
    write_file(&place, &place.with_extension("json-draft"), &record).map_err(of)?;
    Ok(record.installation)
}

impl Directory {
    /// The installation that an item's record names, if it can be read.
    fn installation_of(&self, item: &Item) -> Option<String> {
        let bytes = fs::read(self.path(item, Part::Record)).ok()?;
        match item {
            Item::Volume(_) => {
                super::record::decode::<VolumeRecord>(&bytes).ok().map(|record| record.installation)
            }
            Item::Snapshot(_) => {
                super::record::decode::<SnapshotRecord>(&bytes).ok().map(|record| record.installation)
            }
        }
    }
}

impl Inner {
    /// Completes or clears away what a crash left. What fails is told and left for the next start: it does not keep
    /// the others from being used.
    fn recover(&self, found: &Found) {
        let mut settling = BTreeSet::new();
        for first in found.cuts.keys() {
            settling.extend(self.recover_cut(first));
        }
        for (item, parts) in &found.items {
            let recovered = match item {
                Item::Volume(_) => self.recover_volume(item, parts),
                Item::Snapshot(id) if settling.contains(id) => Ok(()),
                Item::Snapshot(_) => self.recover_snapshot(item, parts),
            };
            if let Err(fault) = recovered {
                tracing::warn!(item = called(item), %fault, "needs a look");
                self.room.set(item, self.directory.length(item));
            }
        }
    }

    /// Says which snapshots are to be left alone for now.
    fn recover_cut(&self, first: &SnapshotId) -> Vec<SnapshotId> {
        let cut = match self.directory.read_cut(first) {
            Ok(Some(cut)) => cut,
            Ok(None) => {
                // A draft: it was never begun.
                let _ = self.directory.remove_cut(first);
                return Vec::new();
            }
            Err(fault) => {
                tracing::warn!(snapshot = %first, %fault, "a cut whose record cannot be read stays as it is");
                return vec![first.clone()];
            }
        };
        let ids: Vec<SnapshotId> = cut.snapshots.iter().map(|record| record.snapshot.clone()).collect();
        for record in &cut.snapshots {
            let volume = self.directory.path(&Item::Volume(record.volume.clone()), Part::Data);
            if let Err(error) = self.thaw_left(&volume) {
                tracing::warn!(volume = %record.volume, %error, "it may still be frozen");
            }
        }
        if !cut.taken || first_of(&cut) != Some(first) {
            let removed = ids
                .iter()
                .try_for_each(|id| self.directory.remove(&Item::Snapshot(id.clone()), Part::Partial));
            if let Err(fault) = removed.and_then(|()| self.directory.remove_cut(first)) {
                tracing::warn!(snapshot = %first, %fault, "not taken, and not cleared away yet");
            }
            return Vec::new();
        }
        match self.settle(&cut) {
            Ok(()) => Vec::new(),
            Err(fault) => {
                tracing::warn!(snapshot = %first, %fault, "taken, and not settled yet");
                self.remember_unfinished(cut);
                ids
            }
        }
    }

    fn recover_volume(&self, item: &Item, parts: &BTreeSet<Part>) -> Result<(), Fault> {
        let Some(mut record) = self.directory.volume(item)? else { return self.recover_orphan(item, parts) };
        if parts.contains(&Part::Draft) {
            self.directory.remove(item, Part::Draft)?;
        }
        match record.phase {
            // Whoever asks for it again gets the rest copied, and a deletion removes it; its room is its own meanwhile.
            Phase::Making if self.can_go_on(item, &record) => {
                self.room.set(item, record.promised());
                Ok(())
            }
            Phase::Making => {
                if let Some(From::Volume(id)) = &record.source {
                    let source = self.directory.path(&Item::Volume(id.clone()), Part::Data);
                    if let Err(error) = self.thaw_left(&source) {
                        tracing::warn!(volume = %id, %error, "it may still be frozen");
                    }
                }
                self.sweep(item)
            }
            Phase::Deleting => match self.refuse_if_attached(item) {
                Ok(()) => self.sweep(item),
                Err(error) => {
                    tracing::warn!(item = called(item), %error, "its deletion waits");
                    self.room.set(item, record.promised());
                    Ok(())
                }
            },
            Phase::Ready => {
                self.room.set(item, record.promised());
                if parts.contains(&Part::Partial) {
                    self.directory.remove(item, Part::Partial)?;
                }
                self.finish_growth(item, &mut record)
            }
        }
    }

    fn recover_snapshot(&self, item: &Item, parts: &BTreeSet<Part>) -> Result<(), Fault> {
        let Some(record) = self.directory.snapshot(item)? else { return self.recover_orphan(item, parts) };
        if parts.contains(&Part::Draft) {
            self.directory.remove(item, Part::Draft)?;
        }
        match record.phase {
            Phase::Making | Phase::Deleting => self.sweep(item),
            Phase::Ready => {
                self.room.set(item, record.promised);
                Ok(())
            }
        }
    }

    /// Bytes without a record stay, and are told; anything less is what a crash left.
    fn recover_orphan(&self, item: &Item, parts: &BTreeSet<Part>) -> Result<(), Fault> {
        if self.directory.exists(item, Part::Data)? {
            tracing::warn!(item = called(item), "its record is missing");
            self.room.set(item, self.directory.length(item));
            return Ok(());
        }
        for part in parts {
            self.directory.remove(item, *part)?;
        }
        Ok(())
    }

    fn sweep(&self, item: &Item) -> Result<(), Fault> {
        self.erase(item)?;
        self.directory.remove(item, Part::Lock)
    }
}
