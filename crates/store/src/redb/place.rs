//! The directory of a store: its files, and how they come to be.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use ::redb::Database;

use super::disk::{Device, Disk};
use super::schema;
use crate::StoreError;

/// What redb may keep of the file in memory. Its default of 1 GiB is for databases, not for ledgers.
const CACHE: usize = 64 << 20;

/// A directory with the files of a store in it:
///
/// - `bowline.redb`: the database;
/// - `bowline.id`: written after the database was created, so that a database that has gone is told from one
///   that never was;
/// - `bowline.lock`: see [`super::lock`].
#[derive(Debug, Clone)]
pub(super) struct Place {
    dir: PathBuf,
}

impl Place {
    pub(super) fn new(dir: &Path) -> Place {
        Place { dir: dir.to_owned() }
    }

    pub(super) fn database(&self) -> PathBuf {
        self.dir.join("bowline.redb")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.dir.join("bowline.lock")
    }

    fn marker(&self) -> PathBuf {
        self.dir.join("bowline.id")
    }

    fn draft(&self) -> PathBuf {
        self.dir.join("bowline.redb.draft")
    }

    pub(super) fn make_directory(&self) -> Result<(), StoreError> {
        fs::create_dir_all(&self.dir).map_err(|error| self.unavailable(&error))
    }

    /// Opens the database, and makes it if this directory never had one.
    pub(super) fn open(&self, device: &Device) -> Result<Database, StoreError> {
        let known = match fs::read_to_string(self.marker()) {
            Ok(id) => Some(id),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(self.unavailable(&error)),
        };
        match (self.database().try_exists().map_err(|error| self.unavailable(&error))?, &known) {
            (true, _) => {}
            (false, None) => self.create(device)?,
            (false, Some(_)) => return Err(self.corrupt("bowline.id is there, but bowline.redb is gone")),
        }
        let database = self.open_existing(device)?;
        let id = schema::identity(&database).map_err(|error| self.open_fault(error))?;
        match known {
            None => write_whole(&self.marker(), |file| writeln!(file, "{id}"))
                .map_err(|error| self.fault(::redb::Error::Io(error)))?,
            Some(known) if known.trim() == id => {}
            Some(_) => return Err(self.corrupt("bowline.redb is not the database that bowline.id names")),
        }
        Ok(database)
    }

    /// Opens a database that must be there, checks it whole and brings it to the current format.
    pub(super) fn open_existing(&self, device: &Device) -> Result<Database, StoreError> {
        let path = self.database();
        let length = fs::metadata(&path).map_err(|error| self.open_fault(error.into()))?.len();
        if length == 0 {
            // redb would make a new database in an empty file. Ours is put in place only when it has data.
            return Err(self.corrupt("bowline.redb is empty"));
        }
        let (database, whole) = open_checked(device, &path).map_err(|error| self.open_fault(error))?;
        if !whole {
            drop(database);
            return Err(self.set_aside());
        }
        schema::migrate(&database, schema::STEPS, self)?;
        Ok(database)
    }

    /// A whole database with nothing in it, which appears under its name at once or not at all.
    fn create(&self, device: &Device) -> Result<(), StoreError> {
        let make = || -> Result<(), ::redb::Error> {
            let draft = self.draft();
            remove_if_there(&draft)?;
            let database = open_file(device, &draft, true)?;
            schema::create(&database, &fresh_id())?;
            drop(database);
            fs::rename(&draft, self.database())?;
            sync_directory(&self.dir)?;
            Ok(())
        };
        make().map_err(|error| self.open_fault(error))
    }

    /// Replaces the file by a copy of what can be read of it.
    ///
    /// After a failed fsync, Linux may show pages that are not on the disk and never will be: it marks them
    /// clean ("fsyncgate", 2018; still so in 6.x). A commit that failed there and is visible nevertheless is
    /// made durable by writing every byte anew.
    pub(super) fn rewrite(&self) -> Result<(), StoreError> {
        let copy = || -> io::Result<()> {
            let mut from = File::open(self.database())?;
            write_whole(&self.database(), |to| io::copy(&mut from, to).map(|_| ()))
        };
        copy().map_err(|error| self.fault(::redb::Error::Io(error)))
    }

    /// redb "repairs" a damaged tree by going back to the commit before, which would take back what was
    /// promised. So the file gets out of the way, and stays an error until somebody has looked.
    pub(super) fn set_aside(&self) -> StoreError {
        let aside = self.dir.join("bowline.redb.damaged");
        match fs::rename(self.database(), &aside).and_then(|()| sync_directory(&self.dir)) {
            Ok(()) => self.corrupt("its checksums do not match; it is now named bowline.redb.damaged"),
            Err(error) => {
                self.corrupt(&format!("its checksums do not match, and it cannot be renamed: {error}"))
            }
        }
    }

    /// What an error of redb's means while the database is in use.
    pub(super) fn fault(&self, error: ::redb::Error) -> StoreError {
        match error {
            ::redb::Error::Io(error) if is_full(&error) => {
                StoreError::Full { place: self.name(), reason: error.to_string() }
            }
            ::redb::Error::Corrupted(reason) => self.corrupt(&reason),
            ::redb::Error::DatabaseAlreadyOpen => StoreError::Locked {
                path: self.database(),
                holder: "a program that has the file itself open".to_owned(),
            },
            other => self.unavailable(&other),
        }
    }

    /// What an error of redb's means while the database is being opened: its bytes are what is wrong.
    pub(super) fn open_fault(&self, error: ::redb::Error) -> StoreError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match error {
            ::redb::Error::Io(error)
                if matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof) =>
            {
                self.corrupt(&error.to_string())
            }
            ::redb::Error::Io(error) if error.kind() == io::ErrorKind::NotFound => {
                self.corrupt("bowline.redb is gone")
            }
            ::redb::Error::UpgradeRequired(version) => {
                self.corrupt(&format!("it has redb's file format {version}, which no Bowline wrote"))
            }
            ::redb::Error::TableDoesNotExist(_)
            | ::redb::Error::TableTypeMismatch { .. }
            | ::redb::Error::TableIsMultimap(_)
            | ::redb::Error::TypeDefinitionChanged { .. } => {
                self.corrupt(&format!("no Bowline wrote it: {error}"))
            }
            other => self.fault(other),
        }
    }

    pub(super) fn unavailable(&self, reason: &dyn std::fmt::Display) -> StoreError {
        StoreError::Unavailable { place: self.name(), reason: reason.to_string() }
    }

    pub(super) fn corrupt(&self, reason: &str) -> StoreError {
        StoreError::Corrupt { place: self.name(), reason: reason.to_owned() }
    }

    /// What messages call it.
    pub(super) fn name(&self) -> String {
        self.database().display().to_string()
    }
}

fn open_file(device: &Device, path: &Path, new: bool) -> Result<Database, ::redb::Error> {
    let file = OpenOptions::new().read(true).write(true).create_new(new).open(path)?;
    let disk = Disk::new(device, file)?;
    Ok(Database::builder().set_cache_size(CACHE).create_with_backend(disk)?)
}

/// Also says whether it is whole.
///
/// redb checks its checksums by itself only after a crash. A ledger that was changed on the disk must never be
/// read, and reading all of them once per start is cheap.
fn open_checked(device: &Device, path: &Path) -> Result<(Database, bool), ::redb::Error> {
    let open = || {
        let mut database = open_file(device, path, false)?;
        let whole = database.check_integrity()?;
        Ok((database, whole))
    };
    // redb 4.4 trusts the allocator state that a clean close left, and panics when it is damaged
    // (`bitmap.rs`: an index out of range) before anything can be checked.
    panic::catch_unwind(AssertUnwindSafe(open))
        .unwrap_or_else(|_| Err(::redb::Error::Corrupted("redb cannot make sense of it".to_owned())))
}

/// Writes a file under its name at once or not at all, and durably.
pub(super) fn write_whole<T, E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<T, E>,
) -> Result<T, E> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let draft = PathBuf::from(name);
    let into_place = || -> Result<T, E> {
        let mut file = File::create(&draft)?;
        let written = write(&mut file)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        Ok(written)
    };
    let written = into_place().inspect_err(|_| {
        // What failed is told; that its remains could not be removed adds nothing.
        let _ = remove_if_there(&draft);
    })?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))?;
    Ok(written)
}

fn sync_directory(dir: &Path) -> io::Result<()> {
    // A path of one component has the empty path as its parent.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Not a secret and not a UUID: only different from that of other stores.
fn fresh_id() -> String {
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}
