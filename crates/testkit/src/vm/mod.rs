//! Machines with a kernel of their own, for tests of what this machine's kernel has not or what would break it: NVMe over TCP, power cuts,
//! partitions.
//!
//! [`VmLab`] boots Debian's stock kernel in QEMU, with no more than a shell, the tools for filesystems and Bowline. The machines are on a
//! network of their own, [`VmLab::cut`] and [`VmLab::mend`] it; [`Vm`] runs commands in a machine, many at once, and takes its power away.
//!
//! Nothing needs root, and nothing is left behind: all state is in one temporary directory, and the machines end with the process that
//! started them. Only the console logs of a test that failed are kept.

pub mod control;
mod kernel;
mod machine;
mod port;
mod programs;
mod qmp;
mod relay;
mod site;
mod stamping;
mod switch;

pub use bowline_vmtool::stamp::{Found, Stamp};
pub use kernel::Kernel;
pub use machine::{Disk, Machine, Vm};
pub use port::{Ended, PATIENCE, Running};
pub use programs::example;
pub use qmp::Speed;
pub use site::{Site, bring, insist, is_up};
pub use stamping::{Told, Writer, count_of};

use crate::lab::{Janitor, cache, not_run};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;
use switch::Switch;
use tempfile::TempDir;

/// Machines on a network, or on several.
pub struct VmLab {
    /// Ended before the directory goes.
    machines: BTreeMap<String, Vm>,
    networks: Vec<Switch>,
    directory: Option<TempDir>,
    janitor: Janitor,
    /// The machine is small: tests with a lab wait for each other.
    _turn: Option<File>,
}

/// What a lab is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The machines.
    pub machines: Vec<Machine>,
    /// What they boot.
    pub kernel: Kernel,
    /// How many networks every machine is on.
    pub networks: usize,
    /// More programs for them, each `FILE` or `FILE=PLACE`.
    pub programs: Vec<String>,
    /// Wait until no other test has a lab.
    pub alone: bool,
}

impl Plan {
    /// Machines with the kernel of Debian 12 and nothing special.
    pub fn of(machines: impl IntoIterator<Item = Machine>) -> Self {
        Self {
            machines: machines.into_iter().collect(),
            kernel: Kernel::Debian12,
            networks: 1,
            programs: vec![],
            alone: true,
        }
    }

    /// The usual four: `target` with a disk, the nodes `a` and `b`, and `control`.
    pub fn usual() -> Self {
        Self::of([Machine::target("target"), Machine::node("a"), Machine::node("b"), Machine::new("control")])
    }

    /// With a built program in every machine, called as its file.
    #[must_use]
    pub fn with(mut self, program: impl AsRef<Path>) -> Self {
        let program = program.as_ref();
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.programs.push(format!("{}=/bin/{name}", program.display()));
        self
    }

    /// With every machine on so many networks.
    #[must_use]
    pub fn networks(mut self, networks: usize) -> Self {
        self.networks = networks;
        self
    }

    /// With another kernel.
    #[must_use]
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = kernel;
        self
    }

    /// Boots the machines. Nothing, and a word in the summary, where there is no QEMU or no kernel to be had.
    pub fn start(self) -> Option<VmLab> {
        VmLab::start(self)
    }
}

impl VmLab {
    /// Boots machines, all at once.
    pub fn start(plan: Plan) -> Option<Self> {
        let booted = match kernel::find(plan.kernel) {
            Ok(booted) => booted,
            Err(missing) => {
                not_run(&missing);
                return None;
            }
        };
        let turn = plan.alone.then(|| {
            let file = File::create(cache().join("vm/lab.lock")).unwrap();
            file.lock().unwrap();
            file
        });
        let directory = tempfile::Builder::new().prefix("bowline-vm-").tempdir().unwrap();
        let janitor = Janitor::of(directory.path(), None);
        let programs = programs::disk(directory.path(), &plan.programs);
        let networks: Vec<_> = (0..plan.networks).map(|_| Switch::default()).collect();
        let mut machines = BTreeMap::new();
        for (index, machine) in plan.machines.into_iter().enumerate() {
            let name = machine.name.clone();
            let vm = Vm::new(machine, index, directory.path(), &booted, &programs, &networks);
            assert!(machines.insert(name.clone(), vm).is_none(), "two machines are called {name}");
        }
        let lab = Self { machines, networks, directory: Some(directory), janitor, _turn: turn };
        thread::scope(|scope| {
            for vm in lab.machines.values() {
                scope.spawn(|| vm.boot());
            }
        });
        Some(lab)
    }

    /// A machine.
    pub fn vm(&self, name: &str) -> &Vm {
        self.machines.get(name).unwrap_or_else(|| panic!("there is no machine {name}"))
    }

    /// All machines, by name.
    pub fn vms(&self) -> impl Iterator<Item = &Vm> {
        self.machines.values()
    }

    /// Where everything of this lab is.
    pub fn directory(&self) -> PathBuf {
        self.directory.as_ref().map(|directory| directory.path().to_owned()).unwrap_or_default()
    }

    /// From now on two machines do not hear each other.
    pub fn cut(&self, a: &str, b: &str) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
    }

    /// From now on one machine does not hear the other, but the other way it works.
    pub fn cut_one_way(&self, from: &str, to: &str) {
        assert!(
            self.machines.contains_key(from) && self.machines.contains_key(to),
            "{from} or {to} is no machine"
        );
        for network in &self.networks {
            network.cut(from, to);
        }
    }

    /// From now on two machines do not hear each other on one of the networks.
    pub fn cut_on(&self, network: usize, a: &str, b: &str) {
        assert!(self.machines.contains_key(a) && self.machines.contains_key(b), "{a} or {b} is no machine");
        self.networks[network].cut(a, b);
        self.networks[network].cut(b, a);
    }

    /// Two machines hear each other again, on every network.
    pub fn mend(&self, a: &str, b: &str) {
        for network in &self.networks {
            network.mend(a, b);
            network.mend(b, a);
        }
    }
}

impl Drop for VmLab {
    fn drop(&mut self) {
        for vm in self.machines.values() {
            vm.end(thread::panicking());
        }
        drop(self.directory.take());
        self.janitor.clean();
    }
}
