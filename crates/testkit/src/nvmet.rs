//! A kernel's NVMe target, simulated in a directory: it survives the process, as configfs does, and obeys the rules that a real
//! one was seen to obey (Linux 6.1 and 6.12).

use bowline_target::nvmet::Tree;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

const EACCES: i32 = 13;
const EADDRNOTAVAIL: i32 = 99;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOTEMPTY: i32 = 39;
const EPERM: i32 = 1;

fn refused<T>(errno: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}

/// The tree, and what was done to it.
#[derive(Debug)]
pub struct SimNvmet {
    root: PathBuf,
    done: Mutex<Vec<String>>,
    /// What a namespace has open.
    open: Mutex<BTreeMap<PathBuf, File>>,
    /// One change at a time, as in the kernel.
    turn: Mutex<()>,
    /// Whether the disk does not finish what is in flight.
    stuck: Mutex<bool>,
    /// Namespaces that somebody is closing.
    closing: Mutex<BTreeSet<PathBuf>>,
    closed: Condvar,
    moves: Condvar,
    /// Addresses that the machine does not have.
    absent: Mutex<BTreeSet<String>>,
    /// How many wait for what is in flight.
    waiting: AtomicUsize,
}

/// Which part of the tree a path is.
enum Part<'a> {
    Subsystem,
    Namespace,
    Host,
    Port,
    Allowed,
    Shown,
    Attribute(&'a str),
}

fn part(path: &Path) -> Option<Part<'_>> {
    let names: Vec<&str> = path.iter().filter_map(|name| name.to_str()).collect();
    Some(match names.as_slice() {
        ["subsystems", _] => Part::Subsystem,
        ["subsystems", _, "namespaces", _] => Part::Namespace,
        ["subsystems", _, "allowed_hosts", _] => Part::Allowed,
        ["hosts", _] => Part::Host,
        ["ports", _] => Part::Port,
        ["ports", _, "subsystems", _] => Part::Shown,
        ["subsystems", _, name] | ["subsystems", _, "namespaces", _, name] | ["ports", _, name] => {
            Part::Attribute(name)
        }
        _ => return None,
    })
}

impl SimNvmet {
    /// The one in this directory, made if it is not there.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        for group in ["subsystems", "hosts", "ports"] {
            fs::create_dir_all(root.join(group)).unwrap();
        }
        Self {
            root,
            done: Mutex::default(),
            open: Mutex::default(),
            turn: Mutex::default(),
            stuck: Mutex::default(),
            closing: Mutex::default(),
            closed: Condvar::new(),
            moves: Condvar::new(),
            absent: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// What was changed since the last question, in order.
    pub fn done(&self) -> Vec<String> {
        std::mem::take(&mut self.done.lock().unwrap())
    }

    /// Whether what is in flight is never finished from now on.
    pub fn stick(&self, stuck: bool) {
        *self.stuck.lock().unwrap() = stuck;
        self.moves.notify_all();
    }

    /// How many wait for what is in flight.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Whether the machine has an address from now on. The kernel listens at a port, or says that it cannot, when something is shown there.
    pub fn has_address(&self, address: &str, has: bool) {
        let mut absent = self.absent.lock().unwrap();
        if has {
            absent.remove(address)
        } else {
            absent.insert(address.to_owned())
        };
    }

    /// Who could log in now, by subsystem; `*` stands for everybody.
    pub fn admitted(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut admitted = BTreeMap::new();
        for subsystem in self.names("subsystems") {
            let place = self.root.join("subsystems").join(&subsystem);
            let shown = self.names("ports").iter().any(|port| {
                fs::symlink_metadata(self.root.join("ports").join(port).join("subsystems").join(&subsystem))
                    .is_ok()
            });
            let open = fs::read_to_string(place.join("namespaces/1/enable")).is_ok_and(|text| text == "1");
            if !shown || !open {
                continue;
            }
            let any = fs::read_to_string(place.join("attr_allow_any_host")).unwrap() != "0";
            let hosts = self.names(&format!("subsystems/{subsystem}/allowed_hosts"));
            admitted
                .insert(subsystem, if any { ["*".to_owned()].into() } else { hosts.into_iter().collect() });
        }
        admitted
    }

    /// The names in a directory of the tree, in order.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let mut names = self.list(Path::new(directory)).unwrap();
        names.sort();
        names
    }

    /// What an attribute says.
    pub fn attribute(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap()
    }

    fn note(&self, what: &str, path: &Path) {
        self.done.lock().unwrap().push(format!("{what} {}", path.display()));
    }

    fn is_linked(&self, path: &Path) -> bool {
        let (group, name) = (path.parent().unwrap(), path.file_name().unwrap());
        let (holders, links) = if group == Path::new("hosts") {
            ("subsystems", "allowed_hosts")
        } else {
            ("ports", "subsystems")
        };
        let leads = |holder: &String| {
            fs::symlink_metadata(self.root.join(holders).join(holder).join(links).join(name)).is_ok()
        };
        self.names(holders).iter().any(leads)
    }

    fn enable(&self, namespace: &Path, value: &str) -> io::Result<()> {
        if value != "1" {
            self.open.lock().unwrap().remove(namespace);
            return Ok(());
        }
        let device = fs::read_to_string(self.root.join(namespace).join("device_path"))?;
        let device = File::options().read(true).write(true).open(device)?;
        self.open.lock().unwrap().insert(namespace.to_owned(), device);
        Ok(())
    }

    /// One that is closing says already that it is not open, and a second one that closes it does not wait. Says whether it was open.
    fn begin_to_close(&self, enable: &Path) -> io::Result<bool> {
        let _turn = self.turn.lock().unwrap();
        let place = self.root.join(enable);
        let was_open = fs::read_to_string(&place)? == "1";
        if was_open {
            fs::write(place, "0")?;
            self.closing.lock().unwrap().insert(enable.to_owned());
        }
        Ok(was_open)
    }

    /// Whoever removes a namespace waits for whoever closes it.
    fn wait_for_closing(&self, namespace: &Path) {
        let enable = namespace.join("enable");
        let closing = self.closing.lock().unwrap();
        drop(self.closed.wait_while(closing, |closing| closing.contains(&enable)).unwrap());
    }

    /// Waits for what is in flight.
    fn drain(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let stuck = self.stuck.lock().unwrap();
        drop(self.moves.wait_while(stuck, |stuck| *stuck).unwrap());
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Tree for SimNvmet {
    fn make(&self, directory: &Path) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap();
        let place = self.root.join(directory);
        let (attributes, groups): (&[(&str, &str)], &[&str]) = match part(directory) {
            Some(Part::Subsystem) => (
                &[
                    ("attr_allow_any_host", "0"),
                    ("attr_serial", "1f702f857ffac1878cc5"),
                    ("attr_model", "Linux"),
                ],
                &["namespaces", "allowed_hosts"],
            ),
            Some(Part::Namespace) => (
                &[
                    ("device_path", "(null)"),
                    ("device_uuid", "00000000-0000-0000-0000-000000000000"),
                    ("buffered_io", "0"),
                    ("enable", "0"),
                    ("revalidate_size", ""),
                ],
                &[],
            ),
            Some(Part::Host) => (&[], &[]),
            Some(Part::Port) => {
                let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                if name.parse::<u16>().is_err() {
                    return refused(EINVAL);
                }
                (
                    &[("addr_traddr", ""), ("addr_trsvcid", ""), ("addr_adrfam", ""), ("addr_trtype", "")],
                    &["subsystems"],
                )
            }
            _ => return refused(EPERM),
        };
        fs::create_dir(&place)?;
        for (name, value) in attributes {
            fs::write(place.join(name), value)?;
        }
        groups.iter().try_for_each(|group| fs::create_dir(place.join(group)))?;
        self.note("make", directory);
        Ok(())
    }

    fn remove(&self, directory: &Path) -> io::Result<()> {
        if matches!(part(directory), Some(Part::Namespace)) {
            self.wait_for_closing(directory);
            self.drain();
        }
        let _turn = self.turn.lock().unwrap();
        let place = self.root.join(directory);
        fs::symlink_metadata(&place)?;
        let used = ["namespaces", "allowed_hosts", "subsystems"]
            .iter()
            .any(|group| fs::read_dir(place.join(group)).is_ok_and(|mut entries| entries.next().is_some()));
        if used {
            return refused(ENOTEMPTY);
        }
        if matches!(part(directory), Some(Part::Host | Part::Subsystem)) && self.is_linked(directory) {
            return refused(EBUSY);
        }
        if matches!(part(directory), Some(Part::Namespace)) {
            self.enable(directory, "0")?;
        }
        fs::remove_dir_all(&place)?;
        self.note("remove", directory);
        Ok(())
    }

    fn remove_slowly(&self, directory: &Path) -> io::Result<()> {
        self.remove(directory)
    }

    fn write(&self, attribute: &Path, value: &str) -> io::Result<()> {
        let place = self.root.join(attribute);
        if attribute.ends_with("enable") && value == "0" && self.begin_to_close(attribute)? {
            self.drain();
            self.enable(attribute.parent().unwrap(), "0")?;
            self.note("write \"0\" to", attribute);
            self.closing.lock().unwrap().remove(attribute);
            self.closed.notify_all();
            return Ok(());
        }
        let _turn = self.turn.lock().unwrap();
        fs::symlink_metadata(&place)?;
        let group = attribute.parent().unwrap();
        let beside = |name: &str| fs::read_to_string(self.root.join(group).join(name)).unwrap_or_default();
        let Some(Part::Attribute(name)) = part(attribute) else { return refused(EINVAL) };
        match name {
            "device_path" | "device_uuid" if beside("enable") == "1" => return refused(EBUSY),
            "buffered_io" if beside("enable") == "1" => return refused(EINVAL),
            "revalidate_size" if beside("enable") != "1" => return refused(EINVAL),
            "attr_serial" if value.len() > 20 || value.is_empty() => return refused(EINVAL),
            "attr_allow_any_host"
                if value != "0"
                    && !self.names(&group.join("allowed_hosts").display().to_string()).is_empty() =>
            {
                return refused(EINVAL);
            }
            "enable" if value != beside("enable") => self.enable(group, value)?,
            name if name.starts_with("addr_")
                && !self.names(&group.join("subsystems").display().to_string()).is_empty() =>
            {
                return refused(EACCES);
            }
            _ => {}
        }
        fs::write(&place, value)?;
        self.note(&format!("write {value:?} to"), attribute);
        Ok(())
    }

    fn write_slowly(&self, attribute: &Path, value: &str) -> io::Result<()> {
        self.write(attribute, value)
    }

    fn read(&self, attribute: &Path) -> io::Result<String> {
        fs::read_to_string(self.root.join(attribute)).map(|text| format!("{text}\n"))
    }

    fn link(&self, link: &Path, to: &Path) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap();
        fs::symlink_metadata(self.root.join(to))?;
        match part(link) {
            Some(Part::Allowed) => {
                let subsystem = link.parent().and_then(Path::parent).unwrap();
                if fs::read_to_string(self.root.join(subsystem).join("attr_allow_any_host"))? != "0" {
                    return refused(EINVAL);
                }
            }
            Some(Part::Shown) => {
                let port = link.parent().and_then(Path::parent).unwrap();
                if fs::read_to_string(self.root.join(port).join("addr_trtype"))? != "tcp" {
                    return refused(EINVAL);
                }
                let address = fs::read_to_string(self.root.join(port).join("addr_traddr"))?;
                if self.absent.lock().unwrap().contains(&address) {
                    return refused(EADDRNOTAVAIL);
                }
            }
            _ => return refused(EPERM),
        }
        std::os::unix::fs::symlink(self.root.join(to), self.root.join(link))?;
        self.note("link", link);
        Ok(())
    }

    fn unlink(&self, link: &Path) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap();
        fs::remove_file(self.root.join(link))?;
        self.note("unlink", link);
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(self.root.join(directory))?
            .map(|entry| entry.map(|entry| entry.file_name().into_string().unwrap()))
            .collect()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(fs::symlink_metadata(self.root.join(path)).is_ok())
    }
}
