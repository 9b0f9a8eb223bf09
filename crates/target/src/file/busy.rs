//! Who of this process has a volume to itself, and for what.
//!
//! The lock of a volume keeps other processes out, too, and is waited for without a bound. A copy may have it for hours, and whoever waits for a
//! dead disk for ever. So within this process a volume is had here first: whoever lets in or shuts out waits for a while only, and tells
//! then what is under way.

use super::directory::{Claim, Fault};
use super::{Inner, PATIENCE};
use crate::Item;
use bowline_core::{Timestamp, VolumeId};
use bowline_host::file::{PathLock, Sharing};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is being done to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Somebody is let in or shut out.
    Access,
    Make,
    Copy,
    Snapshot,
    Grow,
    Delete,
}

impl Deed {
    fn words(self) -> &'static str {
        match self {
            Self::Access => "another order about who is let in",
            Self::Make => "the making of it",
            Self::Copy => "a copy of it",
            Self::Snapshot => "a snapshot of it",
            Self::Grow => "its growth",
            Self::Delete => "its deletion",
        }
    }
}

/// Why a volume is not had now, in words that stay the same as long as it is for this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    volume: VolumeId,
    deed: Deed,
    since: Timestamp,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volume, deed, since } = self;
        match deed {
            // Whoever asks again and again meets another one each time.
            Deed::Access => write!(f, "volume {volume} is busy: {} has not ended", deed.words()),
            deed => write!(f, "volume {volume} is busy: {}, under way since {since:.0}", deed.words()),
        }
    }
}

/// Why there is no lock.
#[derive(Debug)]
pub(super) enum NotAlone {
    Taken(Taken),
    Fault(Fault),
}

type All = BTreeMap<VolumeId, (Deed, Timestamp)>;

#[derive(Debug, Default)]
struct Shared {
    all: Mutex<All>,
    bell: Condvar,
}

impl Shared {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All the volumes that this process has to itself.
#[derive(Debug, Default)]
pub(super) struct Busy(Arc<Shared>);

/// One of them, until this is dropped.
#[derive(Debug)]
struct Had {
    volume: VolumeId,
    shared: Arc<Shared>,
}

impl Drop for Had {
    fn drop(&mut self) {
        self.shared.all().remove(&self.volume);
        self.shared.bell.notify_all();
    }
}

impl Busy {
    /// Has a volume as soon as nobody else has it, if that is soon enough.
    fn take(&self, volume: &VolumeId, deed: Deed, patience: Option<Duration>) -> Result<Had, Taken> {
        let until = patience.map(|patience| Instant::now() + patience);
        let mut all = self.0.all();
        while let Some((deed, since)) = all.get(volume).copied() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            all = match left {
                None => self.0.bell.wait(all).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Err(Taken { volume: volume.clone(), deed, since }),
                Some(left) => self.0.bell.wait_timeout(all, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        all.insert(volume.clone(), (deed, super::now()));
        Ok(Had { volume: volume.clone(), shared: Arc::clone(&self.0) })
    }
}

/// A volume that nobody else has, in this process or another, until this is dropped.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) lock: PathLock,
    _had: Had,
}

/// The locks of several items.
#[derive(Debug, Default)]
pub(super) struct Locks {
    locks: BTreeMap<Item, PathLock>,
    had: Vec<Had>,
}

impl Inner {
    /// Has a volume alone; nothing where there is none. Waits for whatever else this process does to it, for a while.
    pub(super) fn alone(&self, volume: &VolumeId, deed: Deed) -> Result<Option<Alone>, NotAlone> {
        let had = self.busy.take(volume, deed, Some(PATIENCE)).map_err(NotAlone::Taken)?;
        let lock = self.directory.lock(&Item::Volume(volume.clone()), Sharing::Alone, false);
        Ok(lock.map_err(NotAlone::Fault)?.map(|lock| Alone { lock, _had: had }))
    }

    /// Waits for the locks of several items, in the one order in which everybody does.
    pub(super) fn lock_all(&self, wanted: &BTreeMap<Item, Claim>, deed: Deed) -> Result<Locks, Fault> {
        let mut locks = Locks::default();
        for (item, claim) in wanted {
            let (deed, sharing, make) = match claim {
                Claim::New => (Deed::Make, Sharing::Alone, true),
                Claim::Alone => (deed, Sharing::Alone, false),
                Claim::Shared => (deed, Sharing::Shared, false),
            };
            if let (Item::Volume(volume), Sharing::Alone) = (item, sharing) {
                // Without a bound it is never told that it is taken.
                locks.had.extend(self.busy.take(volume, deed, None));
            }
            let lock = self.directory.lock(item, sharing, make)?;
            locks.locks.extend(lock.map(|lock| (item.clone(), lock)));
        }
        Ok(locks)
    }

    /// Gives locks back, and removes those of items of which nothing is left.
    pub(super) fn unlock(&self, locks: Locks) {
        for (item, lock) in locks.locks {
            self.directory.unlock(&item, lock);
        }
    }
}
