//! One machine: its power, its disk, and what runs in it.

use super::kernel::Booted;
use super::port::{Ended, Port, Running};
use super::switch::Switch;
use crate::lab::{Place, Process, installed, wait_for};
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a machine may take to boot. Emulated, and the others boot at the same time.
const BOOT: Duration = Duration::from_secs(180);

/// What a machine is to be.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What it is called.
    pub name: String,
    /// In MiB.
    pub memory: u32,
    /// A disk of its own, if it needs one.
    pub disk: Option<Disk>,
    /// What it loads when it boots.
    pub modules: Vec<&'static str>,
    /// More words for the kernel, such as `nvme_core.multipath=N`.
    pub words: Vec<&'static str>,
}

/// A disk of a machine: `/dev/vdb`, which keeps what was written to it when the power goes.
#[derive(Clone, Debug)]
pub struct Disk {
    /// In MiB; a hole until it is written.
    pub size: u64,
    /// It is mounted at `/data` with this filesystem, or left raw.
    pub filesystem: Option<&'static str>,
}

impl Machine {
    /// A machine with nothing special.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), memory: 256, disk: None, modules: vec![], words: vec![] }
    }

    /// A machine that exports storage from an xfs at `/data`.
    pub fn target(name: &str) -> Self {
        let disk = Disk { size: 4096, filesystem: Some("xfs") };
        Self { disk: Some(disk), modules: vec!["nvmet-tcp"], memory: 384, ..Self::new(name) }
    }

    /// A machine that uses storage of others.
    pub fn node(name: &str) -> Self {
        Self { modules: vec!["nvme-tcp"], memory: 384, ..Self::new(name) }
    }

    /// With more words for the kernel.
    #[must_use]
    pub fn words(mut self, words: &[&'static str]) -> Self {
        self.words.extend_from_slice(words);
        self
    }
}

/// A process and the way to talk to what runs in it.
pub(super) type Power = Option<(Process, Port)>;

/// A machine of the lab.
pub struct Vm {
    machine: Machine,
    /// One on each network.
    addresses: Vec<Ipv4Addr>,
    directory: PathBuf,
    line: Vec<String>,
    listener: UnixListener,
    /// Nothing while it has no power.
    power: Arc<Mutex<Power>>,
}

impl Vm {
    pub(super) fn new(
        machine: Machine,
        index: usize,
        lab: &Path,
        booted: &Booted,
        programs: &Path,
        networks: &[Switch],
    ) -> Self {
        let directory = lab.join(&machine.name);
        fs::create_dir(&directory).unwrap();
        let number = u8::try_from(index + 1).unwrap();
        let addresses: Vec<_> =
            (77..).zip(networks).map(|(network, _)| Ipv4Addr::new(10, network, 0, number)).collect();
        for (switch, address) in networks.iter().zip(&addresses) {
            switch.add(&machine.name, &directory.join(socket(*address)));
        }
        let listener = UnixListener::bind(directory.join("port.sock")).unwrap();
        if let Some(disk) = &machine.disk {
            make(disk, &directory.join("disk.img"));
        }
        let line = line(&machine, &addresses, &directory, booted, programs);
        Self { machine, addresses, directory, line, listener, power: Arc::default() }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.machine.name
    }

    /// Where it is on the first network.
    pub fn address(&self) -> Ipv4Addr {
        self.addresses[0]
    }

    /// Where it is on each network.
    pub fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }

    /// The file behind its disk.
    pub fn disk(&self) -> PathBuf {
        self.directory.join("disk.img")
    }

    /// What its kernel says.
    pub fn console(&self) -> PathBuf {
        self.directory.join("console.log")
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn power(&self) -> &Arc<Mutex<Power>> {
        &self.power
    }

    /// Gives it power and waits until it can be talked to.
    pub fn boot(&self) {
        let mut power = self.power.lock().unwrap();
        assert!(power.is_none(), "{} runs already", self.name());
        let place = Place::new(&self.directory);
        let qemu = place.start("qemu", &installed("qemu-system-x86_64"), &self.line);
        let until = Instant::now() + BOOT;
        let port = Port::accept(self.name(), &self.listener, until, || qemu.ended().is_none());
        let port = port.unwrap_or_else(|| {
            let console = fs::read(self.console()).unwrap_or_default();
            let end = &console[console.len().saturating_sub(3000)..];
            let said = String::from_utf8_lossy(end).into_owned();
            panic!("{} did not boot (waited at most {BOOT:?}): {}\n{said}", self.name(), qemu.log())
        });
        *power = Some((qemu, port));
    }

    fn port(&self) -> Port {
        let power = self.power.lock().unwrap();
        let (_, port) = power.as_ref().unwrap_or_else(|| panic!("{} has no power", self.name()));
        port.clone()
    }

    /// Starts a command and leaves it running.
    pub fn start(&self, words: &[&str]) -> Running {
        self.port().start(words)
    }

    /// Starts a line of shell and leaves it running.
    pub fn start_sh(&self, script: &str) -> Running {
        self.start(&["sh", "-c", script])
    }

    /// Runs a line of shell to its end, which must be a good one; what it wrote.
    pub fn sh(&self, script: &str) -> String {
        let mut running = self.start_sh(script);
        running.close();
        running.succeed()
    }

    /// Runs a line of shell to its end.
    pub fn try_sh(&self, script: &str) -> Ended {
        let mut running = self.start_sh(script);
        running.close();
        running.wait()
    }

    /// Writes a file of the machine.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let mut running = self.start(&["sh", "-c", "cat >\"$0\"", path]);
        running.write(bytes);
        running.close();
        running.succeed();
    }

    /// Stops it in the middle of whatever it does, as a host that has too much to do might.
    pub fn suspend(&self) {
        self.signal("STOP");
    }

    /// Lets it go on as if no time had passed.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let power = self.power.lock().unwrap();
        let (qemu, _) = power.as_ref().unwrap_or_else(|| panic!("{} has no power", self.name()));
        qemu.signal(signal);
    }

    /// Takes the power away.
    pub fn power_cut(&self) {
        let (qemu, _) =
            self.power.lock().unwrap().take().unwrap_or_else(|| panic!("{} has no power", self.name()));
        qemu.kill();
    }

    /// Ends it as its owner would: Bowline first, then everything is unmounted. What is in use stays, as ever.
    pub fn shut_down(&self) {
        self.start_sh("killall -q bowline; umount -a 2>/dev/null; sync; poweroff -f");
        let (qemu, _) =
            self.power.lock().unwrap().take().unwrap_or_else(|| panic!("{} has no power", self.name()));
        wait_for(&format!("the end of {}", self.name()), super::PATIENCE, || qemu.ended());
    }

    /// The end of the lab. The console of a test that failed is kept.
    pub(super) fn end(&self, is_failed: bool) {
        drop(self.power.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        if !is_failed {
            return;
        }
        let kept =
            std::env::temp_dir().join(format!("bowline-vm-{}-{}.log", std::process::id(), self.name()));
        if fs::copy(self.console(), &kept).is_ok() {
            crate::say(&format!("the console of {} is kept in {}", self.name(), kept.display()));
        }
    }
}

/// A sparse file with an empty filesystem.
fn make(disk: &Disk, file: &Path) {
    File::create(file).unwrap().set_len(disk.size << 20).unwrap();
    if let Some(filesystem) = disk.filesystem {
        crate::world::run(&format!("mkfs.{filesystem}"), ["-q".as_ref(), file.as_os_str()]);
    }
}

/// Where the card with an address is plugged in.
fn socket(address: Ipv4Addr) -> String {
    format!("network-{}.sock", address.octets()[1])
}

/// QEMU's command line.
fn line(
    machine: &Machine,
    addresses: &[Ipv4Addr],
    directory: &Path,
    booted: &Booted,
    programs: &Path,
) -> Vec<String> {
    let at = |name: &str| directory.join(name).display().to_string();
    let listed: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    // On a machine with much to do the timer may not tick while the kernel checks that it does, and it gives up.
    let mut words = vec![
        "console=ttyS0 loglevel=7 panic=-1 mitigations=off random.trust_cpu=on net.ifnames=0 no_timer_check"
            .to_owned(),
        format!("lab.name={} lab.addresses={}", machine.name, listed.join(",")),
        format!("lab.modules={}", machine.modules.join(",")),
    ];
    words.extend(machine.words.iter().map(ToString::to_string));
    if let Some(filesystem) = machine.disk.as_ref().and_then(|disk| disk.filesystem) {
        words.push(format!("lab.data={filesystem}"));
    }
    let mut line = format!(
        "-nodefaults -no-user-config -no-reboot -display none -machine q35 -accel tcg,thread=multi -cpu max -smp 1 -m {}",
        machine.memory
    )
    .split(' ')
    .map(str::to_owned)
    .collect::<Vec<_>>();
    let mut add = |option: &str, value: String| line.extend([option.to_owned(), value]);
    add("-kernel", booted.kernel.display().to_string());
    add("-initrd", booted.initrd.display().to_string());
    add("-append", words.join(" "));
    add("-serial", format!("file:{}", at("console.log")));
    add(
        "-drive",
        format!("if=none,id=programs,format=raw,readonly=on,file.locking=off,file={}", programs.display()),
    );
    add("-device", "virtio-blk-pci,drive=programs".to_owned());
    if machine.disk.is_some() {
        add(
            "-drive",
            format!("if=none,id=disk,format=raw,cache=unsafe,discard=unmap,file={}", at("disk.img")),
        );
        add("-device", "virtio-blk-pci,drive=disk".to_owned());
    }
    for address in addresses {
        let ([_, network, _, number], socket) = (address.octets(), at(&socket(*address)));
        add("-netdev", format!("stream,id=net{network},server=off,addr.type=unix,addr.path={socket}"));
        add("-device", format!("virtio-net-pci,netdev=net{network},mac=52:54:00:{network}:00:{number:02x}"));
    }
    add("-chardev", format!("socket,id=port,path={}", at("port.sock")));
    add("-device", "virtio-serial-pci".to_owned());
    add("-device", format!("virtserialport,chardev=port,name={}", bowline_vmtool::serve::PORT));
    add("-device", "virtio-rng-pci".to_owned());
    add("-qmp", format!("unix:{},server=on,wait=off", at("qmp.sock")));
    line
}
