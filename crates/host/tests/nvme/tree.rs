//! Roots of a machine made from text, and a kernel that connects and disconnects in them.
//!
//! A tree is lines of `path = content`, `path -> target` and `path b major:minor`. Device numbers of 259, where disks are
//! on a real machine, become 3999, where nothing is: no test may reach a disk by accident. Tests of `crates/node` use this
//! page, too.

use bowline_host::nvme::{Kernel, WriteError};
use bowline_host::{Host, Roots, command::Programs};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const EIO: i32 = 5;
const ENODEV: i32 = 19;
const ENOENT: i32 = 2;
const EINVAL: i32 = 22;
const ECONNREFUSED: i32 = 111;
const EALREADY: i32 = 114;

pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    /// The machine that a text describes; nothing if this process may not make device nodes.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let tree = Self(tempfile::Builder::new().prefix("bowline-nvme-").tempdir().unwrap());
        for name in ["sys", "dev"] {
            fs::create_dir(tree.at(name)).unwrap();
        }
        let text = text.replace("259:", "3999:");
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (path, rest) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            match rest.split_once(' ').unwrap_or((rest, "")) {
                ("=", content) => put(&tree.at(path), content),
                ("->", target) => link(&tree.at(path), target),
                ("b", number) if node(&tree.at(path), number) => {}
                ("b", _) => return None,
                other => panic!("{other:?} in {line}"),
            }
        }
        Some(tree)
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn host(&self) -> Host {
        let roots = Roots { proc: "/proc".into(), sys: self.at("sys"), dev: self.at("dev") };
        Host::new(roots, Programs::default())
    }
}

fn put(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{content}\n")).unwrap();
}

fn link(path: &Path, target: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

/// Makes a device node, if this process may.
fn node(path: &Path, number: &str) -> bool {
    let (major, minor) = number.split_once(':').unwrap();
    Command::new("mknod").arg(path).args(["b", major, minor]).status().is_ok_and(|status| status.success())
}

/// A subsystem that a target somewhere exports.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) host: String,
    pub(crate) namespace: String,
    /// Which device its disk is here.
    pub(crate) number: String,
    pub(crate) sectors: u64,
    /// What its target says it is.
    pub(crate) model: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) exports: BTreeMap<String, Export>,
    /// Addresses that nobody answers at.
    pub(crate) silent: Vec<String>,
    /// A connect is made, and answered with an error all the same.
    pub(crate) connect_fails: bool,
    /// Connections come without a disk.
    pub(crate) without_disk: bool,
    /// Writes that were made, in order.
    pub(crate) written: Vec<String>,
    /// The subsystems whose connections were reset, each time.
    pub(crate) reset: Vec<String>,
    /// What a reset is answered with, if not with success.
    pub(crate) reset_fails: Option<i32>,
    /// The number that the next subsystem gets; controllers count from the other end.
    next: u32,
    /// What is connected: NQN, address, number of the controller, number of the subsystem.
    connected: Vec<(String, String, u32, u32)>,
}

impl World {
    /// Whose controller a file belongs to, and what that is called.
    fn controller(&self, file: &Path) -> Result<(String, String), i32> {
        let name = file.parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
        let found = self.connected.iter().find(|one| format!("nvme{}", one.2) == name);
        found.map(|found| (found.0.clone(), name)).ok_or(ENODEV)
    }
}

/// A kernel that answers as the real one does.
pub(crate) struct Fake {
    root: PathBuf,
    world: Mutex<World>,
}

impl Fake {
    pub(crate) fn new(tree: &Tree) -> Self {
        put(&tree.at("sys/module/nvme_core/parameters/multipath"), "Y");
        put(&tree.at("dev/nvme-fabrics"), "");
        Self { root: tree.at(""), world: Mutex::default() }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// A connect that somebody else made.
    pub(crate) fn command(&self, text: &str) {
        self.connect(text).unwrap();
    }

    /// Names and numbers are given out from the beginning again.
    pub(crate) fn restart_numbering(&self) {
        self.world().next = 0;
    }

    /// Whatever had the disk of a lost subsystem open has let go of it.
    pub(crate) fn forget(&self, nqn: &str) {
        for entry in fs::read_dir(self.sys("class/nvme-subsystem")).unwrap() {
            let class = entry.unwrap().path();
            if fs::read_to_string(class.join("subsysnqn")).unwrap().trim() == nqn {
                fs::remove_dir_all(class.canonicalize().unwrap()).unwrap();
                self.unlink(&class);
            }
        }
    }

    fn sys(&self, name: &str) -> PathBuf {
        self.root.join("sys").join(name)
    }

    /// Takes an entry of a class away. It is kept out of sight: sysfs gives no inode number out twice, and this filesystem would.
    fn unlink(&self, entry: &Path) {
        let gone = self.root.join("gone");
        fs::create_dir_all(&gone).unwrap();
        let count = fs::read_dir(&gone).unwrap().count();
        // Both connections of a subsystem end it.
        let _ = fs::rename(entry, gone.join(count.to_string()));
    }

    fn connect(&self, text: &str) -> Result<String, i32> {
        if !self.root.join("dev/nvme-fabrics").exists() {
            return Err(ENOENT);
        }
        let value = |key: &str| text.split(',').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let value = |key: &str| value(key).map(str::to_owned).ok_or(EINVAL);
        let (nqn, host) = (value("nqn")?, value("hostnqn")?);
        let address = format!("{}:{}", value("traddr")?, value("trsvcid")?);
        let mut world = self.world();
        if world.silent.contains(&address) {
            return Err(ECONNREFUSED);
        }
        let Some(export) = world.exports.get(&nqn).filter(|export| export.host == host).cloned() else {
            return Err(EIO);
        };
        if world.connected.iter().any(|(known, at, ..)| *known == nqn && *at == address) {
            return Err(EALREADY);
        }
        let known = world.connected.iter().find(|(known, ..)| *known == nqn).map(|known| known.3);
        world.next += 1;
        let (controller, subsystem) = (90 - world.next, known.unwrap_or(world.next));
        let above = format!("devices/virtual/nvme-subsystem/nvme-subsys{subsystem}");
        let control = format!("devices/virtual/nvme-fabrics/ctl/nvme{controller}");
        for (name, content) in [
            ("state", "live"),
            ("address", &text.replace("transport=tcp,", "")),
            ("hostnqn", &host),
            ("subsysnqn", &nqn),
            ("delete_controller", ""),
            ("rescan_controller", ""),
            ("reset_controller", ""),
        ] {
            put(&self.sys(&format!("{control}/{name}")), content);
        }
        let target = format!("../../nvme-fabrics/ctl/nvme{controller}");
        link(&self.sys(&format!("{above}/nvme{controller}")), &target);
        if known.is_none() {
            put(&self.sys(&format!("{above}/subsysnqn")), &nqn);
            // As the kernel pads it.
            put(&self.sys(&format!("{above}/model")), &format!("{:40}", export.model));
            let target = format!("../../{above}");
            link(&self.sys(&format!("class/nvme-subsystem/nvme-subsys{subsystem}")), &target);
        }
        if known.is_none() && !world.without_disk {
            self.add_disk(subsystem, &export);
        }
        world.connected.push((nqn, address, controller, subsystem));
        Ok(format!("instance={controller},cntlid=1\n"))
    }

    fn add_disk(&self, subsystem: u32, export: &Export) {
        let disk = format!("nvme{subsystem}n1");
        let at = format!("devices/virtual/nvme-subsystem/nvme-subsys{subsystem}/{disk}");
        for (name, content) in [
            ("dev", export.number.clone()),
            ("uuid", export.namespace.clone()),
            ("ro", "0".to_owned()),
            ("size", export.sectors.to_string()),
        ] {
            put(&self.sys(&format!("{at}/{name}")), &content);
        }
        link(&self.sys(&format!("{at}/device")), &format!("../../nvme-subsys{subsystem}"));
        link(&self.sys(&format!("dev/block/{}", export.number)), &format!("../../{at}"));
        assert!(node(&self.root.join("dev").join(&disk), &export.number));
    }

    /// The connection is gone, as after its time is over; what has its disk open keeps the subsystem if `held`.
    pub(crate) fn lose(&self, nqn: &str, held: bool) {
        let mut world = self.world();
        let number = world.exports.get(nqn).map(|export| export.number.clone());
        let (gone, left) = std::mem::take(&mut world.connected).into_iter().partition(|one| one.0 == nqn);
        world.connected = left;
        let gone: Vec<(String, String, u32, u32)> = gone;
        for (_, _, controller, subsystem) in gone {
            let above = self.sys(&format!("devices/virtual/nvme-subsystem/nvme-subsys{subsystem}"));
            fs::remove_dir_all(self.sys(&format!("devices/virtual/nvme-fabrics/ctl/nvme{controller}")))
                .unwrap();
            let _ = fs::remove_file(above.join(format!("nvme{controller}")));
            let disk = format!("nvme{subsystem}n1");
            let _ = fs::remove_dir_all(above.join(&disk));
            let _ = fs::remove_file(self.root.join("dev").join(&disk));
            let _ = number.as_ref().map(|number| fs::remove_file(self.sys(&format!("dev/block/{number}"))));
            if !held {
                self.unlink(&self.sys(&format!("class/nvme-subsystem/nvme-subsys{subsystem}")));
                let _ = fs::remove_dir_all(&above);
            }
        }
    }

    /// A connection that works is back at once.
    fn reset(&self, file: &Path) -> Result<String, i32> {
        let mut world = self.world();
        let (nqn, _) = world.controller(file)?;
        world.reset.push(nqn);
        world.reset_fails.map_or(Ok(String::new()), Err)
    }

    fn delete(&self, file: &Path) -> Result<String, i32> {
        let world = self.world();
        let (nqn, name) = world.controller(file)?;
        let last = world.connected.iter().filter(|one| one.0 == nqn).count() == 1;
        drop(world);
        if last {
            self.lose(&nqn, false);
        } else {
            self.world().connected.retain(|one| format!("nvme{}", one.2) != name);
            fs::remove_dir_all(self.sys(&format!("devices/virtual/nvme-fabrics/ctl/{name}"))).unwrap();
        }
        Ok(String::new())
    }

    /// Every disk has the size that its export has.
    fn rescan(&self) -> Result<String, i32> {
        let world = self.world();
        for (nqn, _, _, subsystem) in &world.connected {
            let at = format!("devices/virtual/nvme-subsystem/nvme-subsys{subsystem}/nvme{subsystem}n1/size");
            put(&self.sys(&at), &world.exports[nqn].sectors.to_string());
        }
        Ok(String::new())
    }
}

impl Kernel for Fake {
    fn write(&self, file: &Path, text: &str, _: Duration) -> Result<String, WriteError> {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let what = if name == "nvme-fabrics" { text.to_owned() } else { name.clone() };
        self.world().written.push(what);
        let done = match name.as_str() {
            "nvme-fabrics" => self
                .connect(text)
                .and_then(|answer| if self.world().connect_fails { Err(EIO) } else { Ok(answer) }),
            "delete_controller" => self.delete(file),
            "reset_controller" => self.reset(file),
            _ => self.rescan(),
        };
        done.map_err(|number| {
            let error = io::Error::from_raw_os_error(number);
            WriteError::Refused { file: file.to_owned(), error }
        })
    }

    fn answers(&self, address: SocketAddr, _: Duration) -> io::Result<()> {
        if self.world().silent.contains(&address.to_string()) {
            return Err(io::Error::from_raw_os_error(ECONNREFUSED));
        }
        Ok(())
    }
}
