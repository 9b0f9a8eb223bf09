//! One process at a time, and the name of the one that has the store.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use jiff::{Timestamp, Unit};

use super::place::Place;
use crate::StoreError;

/// A lock on a store's directory, held until it is dropped.
///
/// The operating system's lock decides; the text in the file only names the holder. So what a dead process
/// left there blocks nobody.
#[derive(Debug)]
pub(super) struct Lock {
    // Closing the file gives the lock back.
    _file: File,
}

impl Lock {
    pub(super) fn take(place: &Place) -> Result<Lock, StoreError> {
        let path = place.lock();
        let unavailable = |error: io::Error| place.unavailable(&error);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(unavailable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(path, &mut file)),
            Err(TryLockError::Error(error)) => return Err(place.unavailable(&error)),
        }
        // The name is a courtesy: on a full disk the store must still open.
        if let Err(error) = file.set_len(0).and_then(|()| file.write_all(me().as_bytes())) {
            tracing::warn!(path = %path.display(), %error, "lock file does not name its holder");
        }
        Ok(Lock { _file: file })
    }
}

fn locked(path: PathBuf, file: &mut File) -> StoreError {
    let mut text = String::new();
    // The holder may be about to write its name, or could not.
    let named = file.read_to_string(&mut text).is_ok() && !text.trim().is_empty();
    let holder = if named { text.trim().to_owned() } else { "another process".to_owned() };
    StoreError::Locked { path, holder }
}

fn me() -> String {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Only the subcommand: later arguments may hold what should not be in a file.
    let command = words.next().map(|word| format!(" {}", word.to_string_lossy())).unwrap_or_default();
    let since = Timestamp::now();
    let since = since.round(Unit::Second).unwrap_or(since);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "an unnamed host" } else { host.trim() };
    format!("pid {} ({program}{command}) on {host}, since {since}\n", std::process::id())
}
