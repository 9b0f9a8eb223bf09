//! The directory in which the records are.
//!
//! **Guarantees.** A record is replaced whole or not at all: it is written beside, synced, and renamed over the old one.
//! A full disk leaves the old one. When [`State::save`] returns, the new one survives a loss of power; when
//! [`State::note`] returns, it survives the end of this process, and a loss of power leaves it or the old one. The latter
//! is enough for whatever a loss of power undoes anyway: devices and mounts.

use crate::staging::{self, DecodeError, Record};
use crate::used::Used;
use bowline_core::{NodeId, VolumeId};
use bowline_failpoint::pass;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why a record is not read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("the staging record {}: {error}", path.display())]
    Decode { path: PathBuf, error: DecodeError },
    #[error("the staging record {} is one of volume {volume} on node {node}", path.display())]
    Other { path: PathBuf, volume: VolumeId, node: NodeId },
}

#[derive(Debug)]
pub(crate) struct State {
    directory: PathBuf,
    node: NodeId,
    /// Which grants were used here.
    used: Used,
}

const SUFFIX: &str = ".json";

impl State {
    /// Opens the directory, makes it if need be, and takes away what an interrupted write left.
    pub(crate) fn open(state: &Path, node: &NodeId) -> Result<Self, StateError> {
        let directory = state.join("staging");
        let fault = |error| StateError::Io { path: directory.clone(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(fault)?;
        for entry in fs::read_dir(&directory).map_err(fault)? {
            let path = entry.map_err(fault)?.path();
            if path.extension().is_some_and(|extension| extension == "tmp") {
                fs::remove_file(&path).map_err(fault)?;
            }
        }
        Ok(Self { directory, node: node.clone(), used: Used::new(state) })
    }

    /// Notes that the grant of a record is used; says whether this is certainly the first time.
    pub(crate) fn begin_use(&self, record: &Record) -> Result<bool, StateError> {
        self.used
            .begin(&record.device, || self.grants_beside(&record.volume))
            .map_err(|error| StateError::Io { path: self.used.path().to_owned(), error })
    }

    /// The grants of all records but that of one volume, which is just being staged; nothing if one of them cannot be read.
    fn grants_beside(&self, volume: &VolumeId) -> Option<Vec<String>> {
        let others = self.volumes().ok()?.into_iter().filter(|other| other != volume);
        let records = others.map(|other| self.load(&other)).collect::<Result<Vec<_>, _>>().ok()?;
        Some(records.into_iter().flatten().map(|record| record.device).collect())
    }

    /// Comes back when every such note survives a loss of power.
    pub(crate) fn keep_uses(&self) -> Result<(), StateError> {
        self.used.keep().map_err(|error| StateError::Io { path: self.used.path().to_owned(), error })
    }

    fn path(&self, volume: &VolumeId) -> PathBuf {
        // An id has no '/' and is neither `.` nor `..`.
        self.directory.join(format!("{volume}{SUFFIX}"))
    }

    /// The record of a volume; `None` if there is none.
    pub(crate) fn load(&self, volume: &VolumeId) -> Result<Option<Record>, StateError> {
        let path = self.path(volume);
        let read = File::open(&path).and_then(|file| {
            let mut bytes = Vec::new();
            file.take(staging::MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map(|_| bytes)
        });
        let bytes = match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| StateError::Io { path: path.clone(), error })?,
        };
        let record =
            staging::decode(&bytes).map_err(|error| StateError::Decode { path: path.clone(), error })?;
        if record.volume != *volume || record.node != self.node {
            return Err(StateError::Other { path, volume: record.volume, node: record.node });
        }
        Ok(Some(record))
    }

    /// Replaces the record of a volume, durably.
    pub(crate) fn save(&self, record: &Record) -> Result<(), StateError> {
        self.note(record)?;
        pass("node.record.sync.before");
        let fault = |error| StateError::Io { path: self.directory.clone(), error };
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(fault)?;
        pass("node.record.sync.after");
        Ok(())
    }

    /// Replaces the record of a volume.
    pub(crate) fn note(&self, record: &Record) -> Result<(), StateError> {
        let path = self.path(&record.volume);
        let temporary = self.directory.join(format!(".{}.tmp", record.volume));
        let bytes =
            staging::encode(record).map_err(|error| StateError::Decode { path: path.clone(), error })?;
        let write = || {
            pass("node.record.write.before");
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            pass("node.record.rename.before");
            fs::rename(&temporary, &path)?;
            pass("node.record.rename.after");
            Ok(())
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&temporary);
            StateError::Io { path: path.clone(), error }
        })
    }

    /// Forgets a volume. None there is fine.
    pub(crate) fn remove(&self, volume: &VolumeId) -> Result<(), StateError> {
        let path = self.path(volume);
        let remove = || {
            pass("node.record.remove.before");
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
            File::open(&self.directory)?.sync_all()?;
            pass("node.record.remove.after");
            Ok(())
        };
        remove().map_err(|error| StateError::Io { path: path.clone(), error })
    }

    /// Every volume that has a record, readable or not.
    pub(crate) fn volumes(&self) -> Result<Vec<VolumeId>, StateError> {
        let fault = |error| StateError::Io { path: self.directory.clone(), error };
        let mut volumes = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(fault)? {
            let name = entry.map_err(fault)?.file_name();
            let volume = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            volumes.extend(volume.and_then(|volume| VolumeId::new(volume).ok()));
        }
        volumes.sort();
        Ok(volumes)
    }
}
