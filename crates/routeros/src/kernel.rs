//! The exports of a device as those of this machine's kernel: what initiators reach over NVMe/TCP is real.

use super::{Door, RouterOs};
use bowline_target::nvmet::Tree;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl RouterOs {
    /// From now on a kernel exports the disks, at an address of its machine. A command that changes an export is answered when the
    /// kernel has come back: whoever was connected to one that is no more has nothing in flight then.
    ///
    /// # Panics
    /// If the files of the device are in memory; and a command does, if the kernel refuses.
    pub fn export_by(&self, tree: Arc<dyn Tree>, address: IpAddr) {
        let state = self.inner.state.lock().unwrap();
        let directory = state.files.directory().expect("the files are in a directory").to_owned();
        drop(state);
        let mut kernel = Kernel { tree, address, directory, shown: vec![] };
        self.watch_doors(move |doors| {
            kernel.follow(doors).unwrap_or_else(|error| panic!("the kernel's NVMe target: {error}"));
        });
    }
}

/// A kernel, and what it exports.
struct Kernel {
    tree: Arc<dyn Tree>,
    address: IpAddr,
    directory: PathBuf,
    shown: Vec<Door>,
}

fn subsystem(door: &Door) -> PathBuf {
    Path::new("subsystems").join(&door.nqn)
}

fn namespace(door: &Door) -> PathBuf {
    subsystem(door).join("namespaces/1")
}

fn shown_at(door: &Door) -> PathBuf {
    Path::new("ports").join(door.port.to_string()).join("subsystems").join(&door.nqn)
}

/// Whether a connection to the one is a connection to the other.
fn is_same(a: &Door, b: &Door) -> bool {
    (&a.slot, &a.nqn, a.port, &a.file) == (&b.slot, &b.nqn, b.port, &b.file)
}

impl Kernel {
    /// Exports these and no others. What goes is gone before anything comes.
    fn follow(&mut self, doors: &[Door]) -> io::Result<()> {
        let (stay, go): (Vec<Door>, Vec<Door>) =
            self.shown.drain(..).partition(|shown| doors.iter().any(|door| is_same(door, shown)));
        go.iter().try_for_each(|door| self.hide(door))?;
        for door in doors {
            let Some(before) = stay.iter().find(|shown| is_same(door, shown)) else {
                self.show(door)?;
                continue;
            };
            if before.host != door.host {
                self.admit(door)?;
            }
            if before.size != door.size {
                self.tell_size(door)?;
            }
        }
        self.shown = doors.to_vec();
        Ok(())
    }

    fn show(&self, door: &Door) -> io::Result<()> {
        let (tree, namespace) = (&self.tree, namespace(door));
        tree.make(&subsystem(door))?;
        tree.make(&namespace)?;
        let file = self.directory.join(&door.file);
        tree.write(&namespace.join("device_path"), file.to_str().ok_or(io::ErrorKind::InvalidFilename)?)?;
        tree.write(&namespace.join("enable"), "1")?;
        self.admit(door)?;
        self.listen(door.port)?;
        tree.link(&shown_at(door), &subsystem(door))
    }

    /// Lets in whom the door names, or everybody. The kernel asks when somebody connects, and not later.
    fn admit(&self, door: &Door) -> io::Result<()> {
        let allowed = subsystem(door).join("allowed_hosts");
        self.shut(&allowed)?;
        let any = subsystem(door).join("attr_allow_any_host");
        let Some(host) = &door.host else { return self.tree.write(&any, "1") };
        self.tree.write(&any, "0")?;
        let known = Path::new("hosts").join(host);
        if !self.tree.exists(&known)? {
            self.tree.make(&known)?;
        }
        self.tree.link(&allowed.join(host), &known)
    }

    fn shut(&self, allowed: &Path) -> io::Result<()> {
        for host in self.tree.list(allowed)? {
            self.tree.unlink(&allowed.join(&host))?;
            match self.tree.remove(&Path::new("hosts").join(host)) {
                // It is let in to another disk, too.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn listen(&self, port: u16) -> io::Result<()> {
        let directory = Path::new("ports").join(port.to_string());
        if self.tree.exists(&directory)? {
            return Ok(());
        }
        self.tree.make(&directory)?;
        let family = if self.address.is_ipv4() { "ipv4" } else { "ipv6" };
        for (name, value) in [
            ("addr_traddr", self.address.to_string()),
            ("addr_trsvcid", port.to_string()),
            ("addr_adrfam", family.to_owned()),
            ("addr_trtype", "tcp".to_owned()),
        ] {
            self.tree.write(&directory.join(name), &value)?;
        }
        Ok(())
    }

    /// Kernels without this attribute look when a host does.
    fn tell_size(&self, door: &Door) -> io::Result<()> {
        let attribute = namespace(door).join("revalidate_size");
        if self.tree.exists(&attribute)? { self.tree.write(&attribute, "1") } else { Ok(()) }
    }

    /// Ends every connection: the port goes first, so that nobody comes back, and then the namespace, which waits for what is in
    /// flight.
    fn hide(&self, door: &Door) -> io::Result<()> {
        self.shut(&subsystem(door).join("allowed_hosts"))?;
        self.tree.unlink(&shown_at(door))?;
        self.tree.write(&namespace(door).join("enable"), "0")?;
        self.tree.remove(&namespace(door))?;
        self.tree.remove(&subsystem(door))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Firmware;
    use bowline_testkit::SimNvmet;
    use std::collections::{BTreeMap, BTreeSet};

    const SIZE: u64 = 1 << 20;

    /// Who could log in, by subsystem.
    fn admitted(expected: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
        expected.iter().map(|(nqn, host)| ((*nqn).to_owned(), [(*host).to_owned()].into())).collect()
    }

    #[test]
    fn a_kernel_exports_what_the_device_does_when_a_command_is_answered() {
        let place = tempfile::tempdir().unwrap();
        let device = RouterOs::in_directory(Firmware::default(), place.path().join("files"));
        let kernel = Arc::new(SimNvmet::new(place.path().join("nvmet")));
        device.export_by(kernel.clone(), [10, 77, 0, 1].into());
        let add = format!("/disk add type=file file-path=/storage-pool/a.img file-size={SIZE} slot=a");
        let set = |what: &str| format!("/disk set [find slot=a] {what}");
        let changed_name = set("nvme-tcp-server-nqn=nqn.two");
        let off = [
            "write \"0\" to subsystems/nqn.one/namespaces/1/enable",
            "remove subsystems/nqn.one/namespaces/1",
        ];
        for (line, expected, done) in [
            (add, &[][..], &[][..]),
            (
                set("nvme-tcp-server-nqn=nqn.one nvme-tcp-server-allow-host-name=nqn.a nvme-tcp-export=yes"),
                &[("nqn.one", "nqn.a")],
                // The port is last: whoever is shown it finds the list of hosts.
                &["link subsystems/nqn.one/allowed_hosts/nqn.a", "link ports/4420/subsystems/nqn.one"],
            ),
            (
                set(&format!("file-size={}", 2 * SIZE)),
                &[("nqn.one", "nqn.a")],
                &["write \"1\" to subsystems/nqn.one/namespaces/1/revalidate_size"],
            ),
            (
                set("nvme-tcp-server-allow-host-name=nqn.b"),
                &[("nqn.one", "nqn.b")],
                &[
                    "unlink subsystems/nqn.one/allowed_hosts/nqn.a",
                    "link subsystems/nqn.one/allowed_hosts/nqn.b",
                ],
            ),
            (changed_name, &[("nqn.two", "nqn.b")], &off),
            (set("nvme-tcp-server-allow-host-name=\"\""), &[("nqn.two", "*")], &[]),
            (
                set("nvme-tcp-export=no"),
                &[],
                &["unlink ports/4420/subsystems/nqn.two", "remove subsystems/nqn.two"],
            ),
        ] {
            assert_eq!(device.enter(&line).status, Some(0), "{line}");
            assert_eq!(kernel.admitted(), admitted(expected), "{line}");
            let steps = kernel.done();
            let mut left = steps.iter();
            for step in done {
                assert!(
                    left.any(|found| found == step),
                    "{line}: {step} is not there, or too early: {steps:#?}"
                );
            }
        }
        assert_eq!((kernel.names("subsystems"), kernel.names("hosts")), (vec![], vec![]));
    }
}
