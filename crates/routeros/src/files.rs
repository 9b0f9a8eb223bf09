//! What lies in the pools: in memory, or in a directory where it can be exported for real.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The files, by name without a leading slash.
#[derive(Debug, Default)]
pub(super) struct Files {
    kept: BTreeMap<String, Kept>,
    directory: Option<PathBuf>,
    /// Counts changes, and stands for the time of day.
    changes: u64,
}

#[derive(Clone, Debug)]
struct Kept {
    size: u64,
    /// What was written into it, if it is in memory.
    bytes: Vec<u8>,
    changed: u64,
}

impl Files {
    pub(super) fn in_directory(directory: PathBuf) -> Self {
        Self { directory: Some(directory), ..Self::default() }
    }

    /// Where they are, unless in memory.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The name of the file at a path, if it is one that a file can have.
    pub(super) fn name(path: &str) -> Option<String> {
        let name = path.strip_prefix('/').unwrap_or(path);
        let good = |part: &str| !part.is_empty() && part != "." && part != "..";
        (name.contains('/') && name.split('/').all(good) && !name.contains('\0')).then(|| name.to_owned())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.kept.keys().map(String::as_str)
    }

    pub(super) fn size(&self, name: &str) -> Option<u64> {
        self.kept.get(name).map(|kept| kept.size)
    }

    /// How much the files of a pool take. A file takes all of its size: whether a device counts holes is not known.
    pub(super) fn taken(&self, pool: &str) -> u64 {
        let inside = |name: &str| name.split('/').next() == Some(pool);
        self.kept.iter().filter(|(name, _)| inside(name)).map(|(_, kept)| kept.size).sum()
    }

    /// When it was changed last, as the device says it.
    pub(super) fn changed(&self, name: &str) -> String {
        let seconds = self.kept.get(name).map_or(0, |kept| kept.changed);
        format!("2025-11-11 {:02}:{:02}:{:02}", 14 + seconds / 3600, seconds / 60 % 60, seconds % 60)
    }

    /// Makes an empty file.
    pub(super) fn make(&mut self, name: &str, size: u64) -> io::Result<()> {
        if let Some(place) = self.place(name) {
            fs::create_dir_all(place.parent().unwrap_or(&place))?;
            if let Err(error) = File::create(&place)?.set_len(size) {
                fs::remove_file(place)?;
                return Err(error);
            }
        }
        let kept = Kept { size, bytes: vec![], changed: self.tick() };
        self.kept.insert(name.to_owned(), kept);
        Ok(())
    }

    /// Makes a copy, which may be larger.
    pub(super) fn copy(&mut self, from: &str, to: &str, size: u64) -> io::Result<()> {
        let bytes = self.kept[from].bytes.clone();
        self.make(to, size)?;
        if let (Some(from), Some(place)) = (self.place(from), self.place(to))
            && let Err(error) = copy_bytes(&from, &place, size)
        {
            self.remove(to)?;
            return Err(error);
        }
        self.kept.get_mut(to).unwrap().bytes = bytes;
        Ok(())
    }

    pub(super) fn resize(&mut self, name: &str, size: u64) -> io::Result<()> {
        if let Some(place) = self.place(name) {
            File::options().write(true).open(place)?.set_len(size)?;
        }
        let changed = self.tick();
        let kept = self.kept.get_mut(name).unwrap();
        (kept.size, kept.changed) = (size, changed);
        kept.bytes.truncate(usize::try_from(size).unwrap());
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        if let Some(place) = self.place(name) {
            fs::remove_file(place)?;
        }
        self.kept.remove(name);
        Ok(())
    }

    pub(super) fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) {
        if let Some(place) = self.place(name) {
            File::options().write(true).open(place).unwrap().write_all_at(bytes, offset).unwrap();
            return;
        }
        let (kept, at) = (self.kept.get_mut(name).unwrap(), usize::try_from(offset).unwrap());
        let length = kept.bytes.len().max(at + bytes.len());
        kept.bytes.resize(length, 0);
        kept.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn read(&self, name: &str, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        if let Some(place) = self.place(name) {
            File::open(place).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        } else {
            let written = self.kept[name].bytes.iter().skip(usize::try_from(offset).unwrap());
            bytes.iter_mut().zip(written).for_each(|(to, from)| *to = *from);
        }
        bytes
    }

    fn place(&self, name: &str) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.join(name))
    }

    fn tick(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }
}

fn copy_bytes(from: &Path, to: &Path, size: u64) -> io::Result<()> {
    fs::copy(from, to)?;
    File::options().write(true).open(to)?.set_len(size)
}
