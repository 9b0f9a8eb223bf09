//! A target on this machine: nvmet through configfs, in the order that fences.

use bowline_core::NvmeNames;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const NVMET: &str = "/sys/kernel/config/nvmet";
const PORT: &str = "/sys/kernel/config/nvmet/ports/4421";

/// Where it listens.
pub(crate) const ADDRESS: &str = "127.0.0.1:4421";

/// Panics unless this machine can be node and target at once.
pub(crate) fn assert_possible() {
    assert!(Path::new(NVMET).exists(), "this kernel has no NVMe target; modprobe nvmet_tcp");
    assert!(
        Path::new("/dev/nvme-fabrics").exists(),
        "this kernel has no NVMe over fabrics; modprobe nvme_tcp"
    );
}

/// Exports files; takes everything back when it goes.
pub(crate) struct Nvmet {
    directory: PathBuf,
    exported: Vec<NvmeNames>,
}

fn subsystem(names: &NvmeNames) -> PathBuf {
    Path::new(NVMET).join("subsystems").join(&names.subsystem)
}

impl Nvmet {
    pub(crate) fn new(directory: &Path) -> Self {
        fs::create_dir_all(directory).unwrap();
        let port = Path::new(PORT);
        if !port.exists() {
            fs::create_dir(port).unwrap();
            let (address, service) = ADDRESS.split_once(':').unwrap();
            for (name, value) in [
                ("addr_trtype", "tcp"),
                ("addr_adrfam", "ipv4"),
                ("addr_traddr", address),
                ("addr_trsvcid", service),
            ] {
                fs::write(port.join(name), value).unwrap();
            }
        }
        Self { directory: directory.to_owned(), exported: Vec::new() }
    }

    pub(crate) fn file(&self, volume: &str) -> PathBuf {
        self.directory.join(volume)
    }

    /// Makes a volume, or grows it.
    pub(crate) fn volume(&self, volume: &str, size: u64) {
        let file =
            fs::File::options().create(true).truncate(false).write(true).open(self.file(volume)).unwrap();
        file.set_len(size).unwrap();
    }

    pub(crate) fn export(&mut self, volume: &str, names: &NvmeNames) {
        let at = subsystem(names);
        let host = Path::new(NVMET).join("hosts").join(&names.host);
        fs::create_dir(&at).unwrap();
        fs::write(at.join("attr_allow_any_host"), "0").unwrap();
        let namespace = at.join("namespaces/1");
        fs::create_dir(&namespace).unwrap();
        fs::write(namespace.join("device_path"), self.file(volume).to_str().unwrap()).unwrap();
        fs::write(namespace.join("device_uuid"), &names.namespace).unwrap();
        fs::write(namespace.join("enable"), "1").unwrap();
        fs::create_dir(&host).unwrap();
        symlink(&host, at.join("allowed_hosts").join(&names.host)).unwrap();
        symlink(&at, Path::new(PORT).join("subsystems").join(&names.subsystem)).unwrap();
        self.exported.push(names.clone());
    }

    /// Whether the namespace can be seen; without it a connection has no disk.
    pub(crate) fn enable(&self, names: &NvmeNames, yes: bool) {
        fs::write(subsystem(names).join("namespaces/1/enable"), if yes { "1" } else { "0" }).unwrap();
    }

    /// Tells connected hosts that the file has another size.
    pub(crate) fn revalidate(&self, names: &NvmeNames) {
        fs::write(subsystem(names).join("namespaces/1/revalidate_size"), "1").unwrap();
    }

    /// Nobody is told anything any more, and nobody new is let in: a target that is away.
    pub(crate) fn leave(&self, names: &NvmeNames) {
        let _ = fs::remove_file(Path::new(PORT).join("subsystems").join(&names.subsystem));
    }

    /// Shuts the host out, and says so only when it is out.
    pub(crate) fn fence(&mut self, names: &NvmeNames) {
        let at = subsystem(names);
        let _ = fs::remove_file(at.join("allowed_hosts").join(&names.host));
        self.leave(names);
        let _ = fs::write(at.join("namespaces/1/enable"), "0");
        let _ = fs::remove_dir(at.join("namespaces/1"));
        let _ = fs::remove_dir(&at);
        let _ = fs::remove_dir(Path::new(NVMET).join("hosts").join(&names.host));
        assert!(!at.exists(), "{} is still there", at.display());
        self.exported.retain(|other| other != names);
    }
}

impl Drop for Nvmet {
    fn drop(&mut self) {
        for names in self.exported.clone() {
            self.fence(&names);
        }
        let _ = fs::remove_dir(PORT);
    }
}
