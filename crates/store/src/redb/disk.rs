//! The file under the database.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

use ::redb::backends::FileBackend;
use ::redb::{BackendError, StorageBackend};

/// Makes the lowest layer out of an open file. Tests put one in between that counts, fails or loses power.
pub(super) type Device = Arc<dyn Fn(File) -> io::Result<Box<dyn StorageBackend>> + Send + Sync>;

pub(super) fn plain_file() -> Device {
    Arc::new(|file| {
        let backend = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Box::new(backend))
    })
}

/// A file that has its blocks before it is used.
///
/// redb grows a file by its length alone, which leaves holes: a full disk then shows in the middle of a
/// commit, and again in the repair when the database is opened anew. Filling what is added makes a full disk
/// show at the growth, where the transaction has touched nothing yet, and leaves the file readable; and what
/// fits into the file goes on being written while others fill the disk. The price: redb doubles the file, so
/// a store is full when the disk cannot hold it twice.
pub(super) struct Disk(Box<dyn StorageBackend>);

impl Disk {
    pub(super) fn new(device: &Device, file: File) -> io::Result<Disk> {
        device(file).map(Disk)
    }

    fn fill(&self, from: u64, to: u64) -> io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = from;
        while at < to {
            let length = usize::try_from(to - at).unwrap_or(usize::MAX).min(ZEROS.len());
            self.0.write(at, &ZEROS[..length])?;
            at += length as u64;
        }
        Ok(())
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Disk").field(&self.0).finish()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.0.len()?;
        if len <= before {
            return self.0.set_len(len);
        }
        let grown = self.0.set_len(len).and_then(|()| self.fill(before, len));
        if grown.is_err() {
            // Give back what was taken, or the disk stays full.
            self.0.set_len(before)?;
        }
        grown
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    // The store has a lock of its own (`lock.rs`), which can name its holder. redb's lock on the file itself
    // still guards against a program that does not know ours, and against a lock file that was removed.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}
