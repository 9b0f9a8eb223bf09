//! The kernel's NVMe target as a tree of files: `/sys/kernel/config/nvmet`.

use bowline_host::helper::Helper;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What can be done with the tree. Every path is below its root. Blocks, some of it for as long as a disk does not answer.
///
/// In configfs a directory comes with its attributes, goes with them, and cannot go while something was made or linked in it
/// or a link leads to it; a link is what makes one part known to another.
pub trait Tree: fmt::Debug + Send + Sync + 'static {
    /// Makes a directory.
    fn make(&self, directory: &Path) -> io::Result<()>;
    /// Removes a directory.
    fn remove(&self, directory: &Path) -> io::Result<()>;
    /// As [`Self::remove`], for one that may wait until a disk has finished.
    fn remove_slowly(&self, directory: &Path) -> io::Result<()>;
    /// Writes an attribute.
    fn write(&self, attribute: &Path, value: &str) -> io::Result<()>;
    /// As [`Self::write`], for one that may wait until a disk has finished.
    fn write_slowly(&self, attribute: &Path, value: &str) -> io::Result<()>;
    /// Reads an attribute.
    fn read(&self, attribute: &Path) -> io::Result<String>;
    /// Makes `link` lead to the directory `to`.
    fn link(&self, link: &Path, to: &Path) -> io::Result<()>;
    /// Removes a link.
    fn unlink(&self, link: &Path) -> io::Result<()>;
    /// The names in a directory.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Whether there is such a file or directory.
    fn exists(&self, path: &Path) -> io::Result<bool>;
}

/// The tree of the kernel that runs. Steps that may take long are done by another process of the same program, started with [`APART`], whose work is
/// [`apart`]. One that waits in the kernel for a disk cannot be ended, and keeps every lock it has: so it is one that has none, and this process can be
/// ended and started again meanwhile.
#[derive(Clone, Debug)]
pub struct Configfs {
    root: PathBuf,
    apart: Arc<Helper>,
}

impl Configfs {
    /// Where the kernel shows it, `/sys/kernel/config/nvmet` as a rule.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), apart: Arc::new(Helper::new("/proc/self/exe", APART)) }
    }
}

/// What is said of a step when it is done.
const DONE: &str = "done";

/// With which words this program is started to do steps of [`Configfs`] apart.
pub const APART: [&str; 2] = ["target", "apart"];

/// Does one step in this process, which was started for such, and says what became of it.
pub fn apart(words: &[&str]) -> String {
    let done = match words {
        ["remove", path] => fs::remove_dir(path),
        ["write", path, value] => write(Path::new(path), value),
        _ => Err(io::Error::from_raw_os_error(EINVAL)),
    };
    match done {
        Ok(()) => DONE.to_owned(),
        Err(error) => error.raw_os_error().unwrap_or(EINVAL).to_string(),
    }
}

const EINVAL: i32 = 22;

fn write(attribute: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(attribute)?.write_all(value.as_bytes())
}

impl Configfs {
    fn elsewhere(&self, what: &str, path: &Path, value: Option<&str>) -> io::Result<()> {
        let path = self.root.join(path).to_string_lossy().into_owned();
        let words: Vec<_> = [what, &path].into_iter().chain(value).collect();
        let said = self.apart.ask(&words, None).map_err(io::Error::other)?;
        match said.as_str() {
            DONE => Ok(()),
            other => Err(match other.parse() {
                Ok(number) => io::Error::from_raw_os_error(number),
                // Never taken for "it is gone already".
                Err(_) => io::Error::other(format!("the process that did this said {other:?}")),
            }),
        }
    }
}

impl Tree for Configfs {
    fn make(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir(self.root.join(directory))
    }

    fn remove(&self, directory: &Path) -> io::Result<()> {
        fs::remove_dir(self.root.join(directory))
    }

    fn remove_slowly(&self, directory: &Path) -> io::Result<()> {
        self.elsewhere("remove", directory, None)
    }

    fn write(&self, attribute: &Path, value: &str) -> io::Result<()> {
        write(&self.root.join(attribute), value)
    }

    fn write_slowly(&self, attribute: &Path, value: &str) -> io::Result<()> {
        self.elsewhere("write", attribute, Some(value))
    }

    fn read(&self, attribute: &Path) -> io::Result<String> {
        fs::read_to_string(self.root.join(attribute))
    }

    fn link(&self, link: &Path, to: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(self.root.join(to), self.root.join(link))
    }

    fn unlink(&self, link: &Path) -> io::Result<()> {
        fs::remove_file(self.root.join(link))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let names =
            fs::read_dir(self.root.join(directory))?.map(|entry| entry.map(|entry| entry.file_name()));
        // Nothing of ours has another name than text.
        names.filter_map(|name| name.map(|name| name.into_string().ok()).transpose()).collect()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match fs::symlink_metadata(self.root.join(path)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_that_it_is_done_or_why_not_and_nothing_else_counts() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name).display().to_string();
        fs::write(at("enable"), "1").unwrap();
        fs::create_dir(at("namespace")).unwrap();
        assert_eq!(apart(&["write", &at("enable"), "0"]), "done");
        assert_eq!(fs::read_to_string(at("enable")).unwrap(), "0");
        assert_eq!(apart(&["write", &at("missing"), "0"]), "2", "ENOENT: nothing is made");
        assert_eq!(apart(&["remove", &at("namespace")]), "done");
        assert_eq!(apart(&["remove", &at("namespace")]), "2");
        assert_eq!(apart(&["remove"]), "22");
        // This very test program does not know those words.
        let told = Configfs::new(place.path()).write_slowly(Path::new("enable"), "1").unwrap_err();
        assert_eq!(told.kind(), io::ErrorKind::Other, "{told}");
    }
}
