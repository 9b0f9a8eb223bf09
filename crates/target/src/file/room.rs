//! How much room there is, and to whom it is promised.

use super::blocks;
use super::directory::Directory;
use crate::{Capacity, Item};
use bowline_host::file;
use bowline_host::usage::Amount;
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much may be promised of what there is.
///
/// Volumes are thin: they take up room as they are written. What is promised is the size of every volume, and of every
/// snapshot the bytes it held when it was taken, which is the most it can ever take. New promises are made while all of
/// them together stay within `overcommit` percent of what the filesystem has, less `reserve` and less what others keep
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Percent of the room that may be promised. 100: never more than there is, so that a volume that was made can
    /// always be written full. 300: three times as much, in the hope that most volumes stay mostly empty.
    pub overcommit: u32,
    /// Bytes that are never promised: for the filesystem's own bookkeeping and for records.
    pub reserve: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { overcommit: 100, reserve: 64 << 20 }
    }
}

impl Policy {
    /// The sum of all promises that may be made.
    fn limit(self, total: u64, others: u64) -> u64 {
        let ours = total.saturating_sub(others).saturating_sub(self.reserve);
        u64::try_from(u128::from(ours) * u128::from(self.overcommit) / 100).unwrap_or(u64::MAX)
    }
}

/// Everything that is stored here, and how many bytes each was promised.
#[derive(Debug)]
pub(super) struct Room {
    policy: Policy,
    /// Whether files may share blocks here.
    reflink: bool,
    promises: Mutex<BTreeMap<Item, u64>>,
    others: Mutex<Option<Others>>,
    /// Whether somebody looks what others keep: many at once would only make each other slower.
    is_looked_at: Mutex<bool>,
    /// Rings when that one has seen it.
    bell: Condvar,
}

/// The one who looks, until this is dropped.
struct Looking<'a>(&'a Room);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        *lock(&self.0.is_looked_at) = false;
        self.0.bell.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What others kept on the filesystem.
#[derive(Clone, Copy, Debug)]
struct Others {
    bytes: u64,
    began: Instant,
    took: Duration,
}

/// How old the knowledge of what others keep may be when something is promised.
const FRESH: Duration = Duration::from_secs(5);
/// How long whoever asks waits for a look that another one has begun. Less than a controller waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// A look that took longer is not repeated until [`REST`] times as long has passed: volumes of millions of shared pieces
/// would be looked at all the time.
const LONG: Duration = Duration::from_secs(1);
const REST: u32 = 10;

impl Others {
    /// Whether it will do for one who asked at a moment, and would have it no older than `age`.
    fn will_do(self, asked: Instant, age: Duration) -> bool {
        let age = if self.took > LONG { age.max(self.took.saturating_mul(REST)) } else { age };
        self.began >= asked || asked.duration_since(self.began) < age
    }
}

/// A look at the filesystem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    total: u64,
    free: u64,
    limit: u64,
}

fn sum<'a>(promises: impl Iterator<Item = &'a u64>) -> u64 {
    promises.fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

impl Room {
    pub(super) fn new(policy: Policy, reflink: bool) -> Self {
        Self {
            policy,
            reflink,
            promises: Mutex::default(),
            others: Mutex::default(),
            is_looked_at: Mutex::default(),
            bell: Condvar::new(),
        }
    }

    fn promises(&self) -> MutexGuard<'_, BTreeMap<Item, u64>> {
        lock(&self.promises)
    }

    /// Looks at the filesystem. How much others keep there may be as old as [`FRESH`]: to know it, every file of ours
    /// must be asked.
    pub(super) fn look(&self, directory: &Directory) -> io::Result<Seen> {
        self.look_within(directory, FRESH)
    }

    /// As [`Self::look`], with what others keep now.
    pub(super) fn look_closely(&self, directory: &Directory) -> io::Result<Seen> {
        self.look_within(directory, Duration::ZERO)
    }

    fn look_within(&self, directory: &Directory, age: Duration) -> io::Result<Seen> {
        let asked = Instant::now();
        let others = match self.known(asked, age) {
            Some(bytes) => bytes,
            None => {
                let _alone = self.alone(asked + PATIENCE)?;
                // Somebody may have looked while we waited.
                self.known(asked, age).map_or_else(|| self.others(directory), Ok)?
            }
        };
        Ok(self.seen(file::space(&directory.path)?, others))
    }

    /// Waits until nobody else looks. On a dead disk one look never ends, and whoever asks after it must not be kept for ever, too: an agent answers so
    /// many callers at once, and others want to shut nodes out.
    fn alone(&self, until: Instant) -> io::Result<Looking<'_>> {
        let mut is_looked_at = lock(&self.is_looked_at);
        while *is_looked_at {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let said = "a look at the room here has not ended; its disk may not answer";
                return Err(io::Error::new(io::ErrorKind::TimedOut, said));
            }
            let waited = self.bell.wait_timeout(is_looked_at, left);
            is_looked_at = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *is_looked_at = true;
        drop(is_looked_at);
        Ok(Looking(self))
    }

    fn known(&self, asked: Instant, age: Duration) -> Option<u64> {
        let others = *lock(&self.others);
        others.filter(|others| others.will_do(asked, age)).map(|others| others.bytes)
    }

    fn others(&self, directory: &Directory) -> io::Result<u64> {
        let began = Instant::now();
        // What is deleted during a long look is counted among ours; it must not make others seem smaller.
        let before = file::space(&directory.path)?.used;
        let items: Vec<Item> = self.promises().keys().cloned().collect();
        let ours = if self.reflink {
            blocks::together(directory, &items)
        } else {
            // Asking for every extent would tell the same, and cost more.
            items.iter().fold(0_u64, |sum, item| sum.saturating_add(directory.allocated(item)))
        };
        let used = file::space(&directory.path)?.used.max(before);
        let bytes = used.saturating_sub(ours);
        let others = Others { bytes, began, took: began.elapsed() };
        *lock(&self.others) = Some(others);
        Ok(bytes)
    }

    fn seen(&self, space: Amount, others: u64) -> Seen {
        // Without what is kept for root: a volume could not be written full there by the rules of the filesystem.
        let total = space.used.saturating_add(space.available);
        Seen { total, free: space.available, limit: self.policy.limit(total, others) }
    }

    /// Promises all of these or, if there is not enough, none and says how much can be had. What an item was promised
    /// before is given back with it.
    pub(super) fn promise(&self, wanted: &[(Item, u64)], seen: Seen) -> Result<(), u64> {
        let mut promises = self.promises();
        let others = sum(promises
            .iter()
            .filter(|(item, _)| wanted.iter().all(|(one, _)| one != *item))
            .map(|(_, bytes)| bytes));
        let available = seen.limit.saturating_sub(others);
        if sum(wanted.iter().map(|(_, bytes)| bytes)) > available {
            return Err(available);
        }
        promises.extend(wanted.iter().cloned());
        Ok(())
    }

    /// What is there already is promised, whatever the policy says.
    pub(super) fn set(&self, item: &Item, bytes: u64) {
        self.promises().insert(item.clone(), bytes);
    }

    pub(super) fn forget(&self, item: &Item) {
        self.promises().remove(item);
    }

    pub(super) fn capacity(&self, seen: Seen) -> Capacity {
        let promised = sum(self.promises().values());
        let available = seen.limit.saturating_sub(promised);
        Capacity { total: seen.total, free: seen.free, promised, available }
    }

    /// What is stored here, from the one after `after`, at most `limit`.
    pub(super) fn items(&self, after: Option<&Item>, limit: usize) -> Vec<Item> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.promises().range((from, Bound::Unbounded)).map(|(item, _)| item.clone()).take(limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_core::VolumeId;

    fn item(id: &str) -> Item {
        Item::Volume(VolumeId::new(id).unwrap())
    }

    #[test]
    fn promises_stay_within_the_policy() {
        for (overcommit, reserve, others, limit) in [
            (100, 0, 0, 1000),
            (100, 100, 300, 600),
            (300, 100, 300, 1800),
            (50, 0, 0, 500),
            (100, 5000, 0, 0),
        ] {
            assert_eq!(Policy { overcommit, reserve }.limit(1000, others), limit);
        }
        assert_eq!(Policy { overcommit: u32::MAX, reserve: 0 }.limit(u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn a_look_that_took_long_is_not_repeated_at_once() {
        let began = Instant::now();
        let seconds = Duration::from_secs;
        for (took, age, later, will_do) in [
            (0, 0, 0, true),
            (0, 0, 1, false),
            (1, 0, 1, false),
            (0, 5, 4, true),
            (0, 5, 5, false),
            (2, 5, 19, true),
            (2, 0, 19, true),
            (2, 5, 20, false),
        ] {
            let others = Others { bytes: 0, began, took: seconds(took) };
            let found = others.will_do(began + seconds(later), seconds(age));
            assert_eq!(found, will_do, "took {took} s, may be {age} s old, asked {later} s later");
        }
        let others = Others { bytes: 0, began: began + seconds(3), took: seconds(0) };
        assert!(others.will_do(began, Duration::ZERO), "it was begun after it was asked for");
    }

    #[test]
    fn a_look_that_never_ended_kept_everybody_who_asked_for_ever() {
        let room = Room::new(Policy::default(), true);
        let now = Instant::now();
        let looks = room.alone(now).unwrap();
        let told = room.alone(now).err().map(|error| error.kind());
        assert_eq!(told, Some(io::ErrorKind::TimedOut));
        drop(looks);
        assert!(room.alone(now).is_ok(), "it has ended");
    }

    #[test]
    fn the_last_room_goes_to_one_of_two_and_comes_back() {
        let room = Room::new(Policy::default(), false);
        let seen = Seen { total: 100, free: 100, limit: 100 };
        assert_eq!(room.promise(&[(item("a"), 60)], seen), Ok(()));
        assert_eq!(room.promise(&[(item("b"), 60)], seen), Err(40));
        assert_eq!(room.promise(&[(item("a"), 100)], seen), Ok(()), "an item grows into its own promise");
        assert_eq!(room.promise(&[(item("b"), 1), (item("c"), 1)], seen), Err(0));
        room.forget(&item("a"));
        assert_eq!(room.promise(&[(item("b"), 50), (item("c"), 50)], seen), Ok(()));
        assert_eq!(room.items(Some(&item("b")), 5), [item("c")]);
    }
}
