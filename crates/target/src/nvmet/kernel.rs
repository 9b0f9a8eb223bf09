//! Steps in the kernel's tree: each can be repeated, and each has a place where a test ends the process.

use super::tree::Tree;
use bowline_failpoint::pass;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the kernel did not do, and where.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub(super) struct Fault {
    /// Below the root of the tree.
    path: PathBuf,
    error: io::Error,
}

type Done<T> = Result<T, Fault>;

/// What every tree has, whatever is in it.
pub(super) const SUBSYSTEMS: &str = "subsystems";

/// The tree, step by step. What is so already is not done again.
#[derive(Clone, Debug)]
pub(super) struct Kernel(pub(super) Arc<dyn Tree>);

impl Kernel {
    fn step(
        &self,
        path: &Path,
        already: ErrorKind,
        act: impl FnOnce(&dyn Tree, &Path) -> io::Result<()>,
    ) -> Done<()> {
        pass("nvmet.step.before");
        match act(self.0.as_ref(), path) {
            Err(error) if error.kind() == already => {}
            Err(error) => return Err(Fault { path: path.to_owned(), error }),
            Ok(()) => pass("nvmet.step.after"),
        }
        Ok(())
    }

    pub(super) fn make(&self, directory: &Path) -> Done<()> {
        self.step(directory, ErrorKind::AlreadyExists, Tree::make)
    }

    pub(super) fn remove(&self, directory: &Path) -> Done<()> {
        self.step(directory, ErrorKind::NotFound, Tree::remove)
    }

    pub(super) fn remove_slowly(&self, directory: &Path) -> Done<()> {
        self.step(directory, ErrorKind::NotFound, Tree::remove_slowly)
    }

    pub(super) fn link(&self, link: &Path, to: &Path) -> Done<()> {
        self.step(link, ErrorKind::AlreadyExists, |tree, path| tree.link(path, to))
    }

    pub(super) fn unlink(&self, link: &Path) -> Done<()> {
        self.step(link, ErrorKind::NotFound, Tree::unlink)
    }

    /// Writes an attribute, unless it has that value.
    pub(super) fn set(&self, attribute: &Path, value: &str) -> Done<()> {
        if self.read(attribute)? == value {
            return Ok(());
        }
        self.write(attribute, value)
    }

    pub(super) fn write(&self, attribute: &Path, value: &str) -> Done<()> {
        pass("nvmet.step.before");
        self.0.write(attribute, value).map_err(|error| Fault { path: attribute.to_owned(), error })?;
        pass("nvmet.step.after");
        Ok(())
    }

    /// Writes an attribute that is gone with its directory if that is gone.
    pub(super) fn write_slowly(&self, attribute: &Path, value: &str) -> Done<()> {
        self.step(attribute, ErrorKind::NotFound, |tree, path| tree.write_slowly(path, value))
    }

    pub(super) fn read(&self, attribute: &Path) -> Done<String> {
        let read = self.0.read(attribute).map_err(|error| Fault { path: attribute.to_owned(), error })?;
        Ok(read.trim().to_owned())
    }

    /// The names in a directory; none if it is not there.
    pub(super) fn list(&self, directory: &Path) -> Done<Vec<String>> {
        match self.0.list(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(|error| Fault { path: directory.to_owned(), error }),
        }
    }

    pub(super) fn exists(&self, path: &Path) -> Done<bool> {
        self.0.exists(path).map_err(|error| Fault { path: path.to_owned(), error })
    }

    /// The names of all subsystems.
    pub(super) fn subsystems(&self) -> Done<Vec<String>> {
        let names = self.list(Path::new(SUBSYSTEMS))?;
        self.seen()?;
        Ok(names)
    }

    /// Makes sure that there is a tree: one that is not mounted any more has nothing in it, and the kernel serves all that it
    /// served. Whoever has found that something is gone asks this afterwards.
    pub(super) fn seen(&self) -> Done<()> {
        let place = Path::new(SUBSYSTEMS);
        if self.exists(place)? {
            return Ok(());
        }
        let why = "it is not there, so nobody knows what the kernel exports; is configfs mounted?";
        Err(Fault { path: place.to_owned(), error: io::Error::new(ErrorKind::NotFound, why) })
    }
}
