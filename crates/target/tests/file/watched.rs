//! A simulated kernel that exports volumes, and looks at what is stored whenever a fence begins.

use crate::lab::GENEROUS;
use bowline_core::TargetId;
use bowline_host::Host;
use bowline_target::file::{FileTarget, Settings};
use bowline_target::nvmet::{self, Tree};
use bowline_testkit::SimNvmet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Two files as they were at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) record: Vec<u8>,
    pub(crate) recent: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Watched {
    kernel: SimNvmet,
    record: PathBuf,
    recent: PathBuf,
    seen: Mutex<Option<Seen>>,
}

impl Watched {
    /// Over these two files.
    pub(crate) fn new(root: PathBuf, record: PathBuf, recent: PathBuf) -> Arc<Self> {
        Arc::new(Self { kernel: SimNvmet::new(root), record, recent, seen: Mutex::default() })
    }

    /// What they were when the first fence since the last question began.
    pub(crate) fn seen(&self) -> Option<Seen> {
        self.seen.lock().unwrap().take()
    }

    pub(crate) fn open(self: &Arc<Self>, directory: &Path) -> FileTarget {
        let id = TargetId::new("file").unwrap();
        let (directory, host_name) = (directory.to_owned(), "here".to_owned());
        let settings = Settings { id, directory, host_name, policy: GENEROUS };
        let (tree, addresses) = (Arc::clone(self) as _, vec!["10.0.0.1:4420".parse().unwrap()]);
        let nvmet =
            nvmet::Settings { tree, addresses, lacks_addresses: false, patience: Duration::from_secs(60) };
        let target = FileTarget::open_exported(settings, nvmet, Host::default()).unwrap();
        self.seen();
        target
    }
}

impl Tree for Watched {
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        // Every fence begins with it, whether anybody is in or not.
        if directory == Path::new("subsystems")
            && let (Ok(record), Ok(recent)) = (fs::read(&self.record), fs::read(&self.recent))
        {
            self.seen.lock().unwrap().get_or_insert(Seen { record, recent });
        }
        self.kernel.list(directory)
    }
    fn make(&self, directory: &Path) -> io::Result<()> {
        self.kernel.make(directory)
    }
    fn remove(&self, directory: &Path) -> io::Result<()> {
        self.kernel.remove(directory)
    }
    fn remove_slowly(&self, directory: &Path) -> io::Result<()> {
        self.kernel.remove_slowly(directory)
    }
    fn write(&self, attribute: &Path, value: &str) -> io::Result<()> {
        self.kernel.write(attribute, value)
    }
    fn write_slowly(&self, attribute: &Path, value: &str) -> io::Result<()> {
        self.kernel.write_slowly(attribute, value)
    }
    fn read(&self, attribute: &Path) -> io::Result<String> {
        self.kernel.read(attribute)
    }
    fn link(&self, link: &Path, to: &Path) -> io::Result<()> {
        self.kernel.link(link, to)
    }
    fn unlink(&self, link: &Path) -> io::Result<()> {
        self.kernel.unlink(link)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.kernel.exists(path)
    }
}
