//! A disk that counts, fills up and fails, for tests.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use ::redb::StorageBackend;
use ::redb::backends::FileBackend;

use super::disk::Device;

/// What the disk does, shared by every file opened on it.
#[derive(Debug)]
pub(super) struct Faults {
    /// No file may be longer than this.
    pub(super) quota: AtomicU64,
    /// How many syncs there were.
    pub(super) syncs: AtomicU64,
    /// Syncs fail, after the writes before them became visible.
    pub(super) fail_syncs: AtomicBool,
    /// Writes fail.
    pub(super) fail_writes: AtomicBool,
    /// Syncs wait while somebody else holds this.
    pub(super) slow_syncs: Mutex<()>,
    /// The thread of the last one.
    pub(super) synced_by: Mutex<Option<thread::ThreadId>>,
}

impl Faults {
    pub(super) fn none() -> Arc<Faults> {
        Arc::new(Faults {
            quota: AtomicU64::new(u64::MAX),
            syncs: AtomicU64::new(0),
            fail_syncs: AtomicBool::new(false),
            fail_writes: AtomicBool::new(false),
            slow_syncs: Mutex::new(()),
            synced_by: Mutex::new(None),
        })
    }

    pub(super) fn device(self: &Arc<Faults>) -> Device {
        let faults = Arc::clone(self);
        Arc::new(move |file: File| {
            let file = FileBackend::new(file).map_err(io::Error::other)?;
            Ok(Box::new(FaultyFile { file, faults: Arc::clone(&faults) }))
        })
    }
}

#[derive(Debug)]
struct FaultyFile {
    file: FileBackend,
    faults: Arc<Faults>,
}

fn broken(what: &str) -> io::Error {
    io::Error::other(format!("{what} failed on purpose"))
}

impl StorageBackend for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.syncs.fetch_add(1, SeqCst);
        drop(self.faults.slow_syncs.lock().unwrap());
        *self.faults.synced_by.lock().unwrap() = Some(thread::current().id());
        self.file.sync_data()?;
        if self.faults.fail_syncs.load(SeqCst) { Err(broken("sync")) } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.faults.fail_writes.load(SeqCst) {
            return Err(broken("write"));
        }
        if offset + data.len() as u64 > self.faults.quota.load(SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write(offset, data)
    }
}
