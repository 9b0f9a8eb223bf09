//! Exports and connections made by hand, with a shell: what the kernel does when nobody of Bowline is there.

use bowline_testkit::lab::wait_for;
use bowline_testkit::vm::{Vm, VmLab};
use std::time::Duration;

/// How long a disk may take to appear or to go.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A volume that is exported to one host.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    /// The subsystem.
    pub(crate) nqn: String,
    /// The one host that may connect.
    pub(crate) host: String,
    /// The last digits of that host's id.
    pub(crate) host_digits: u16,
    /// The last digits of the namespace's UUID.
    pub(crate) disk_digits: u16,
    /// The lowest number that the target gives to a controller.
    pub(crate) controllers: u16,
    /// The file at the target.
    pub(crate) file: String,
}

impl Export {
    /// A volume of a row, granted at an epoch: everything of it is its own.
    pub(crate) fn new(volume: &str, epoch: u16) -> Self {
        let digits = volume.bytes().fold(epoch, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        Self {
            nqn: format!("nqn.2026-01.storage.bowline:lab:{volume}:e{epoch}"),
            host: format!("nqn.2026-01.storage.bowline:lab:host-of-{volume}:e{epoch}"),
            host_digits: digits,
            disk_digits: digits,
            controllers: 1,
            file: format!("/data/{volume}"),
        }
    }

    pub(crate) fn uuid(&self) -> String {
        format!("5d8b0a4e-2b1f-4a3e-9a53-6f2f6d1c{:04x}", self.disk_digits)
    }

    pub(crate) fn host_id(&self) -> String {
        format!("71d6e5ac-8f0a-4d7e-8f3b-0b3c2a9e{:04x}", self.host_digits)
    }
}

/// The port that all volumes share.
pub(crate) fn open_port(target: &Vm) {
    target.sh(&format!(
        "mkdir /sys/kernel/config/nvmet/ports/1 && cd /sys/kernel/config/nvmet/ports/1 && \
         echo tcp >addr_trtype && echo ipv4 >addr_adrfam && echo {} >addr_traddr && echo 4420 >addr_trsvcid",
        target.address()
    ));
}

/// Exports a file of 16 MiB, which is made if it is not there.
pub(crate) fn export(target: &Vm, export: &Export) {
    let Export { nqn, host, file, controllers, .. } = export;
    let uuid = export.uuid();
    target.sh(&format!(
        "set -e; [ -e {file} ] || truncate -s 16M {file}; cd /sys/kernel/config/nvmet
         mkdir -p hosts/{host} subsystems/{nqn}/namespaces/1; cd subsystems/{nqn}
         echo 0 >attr_allow_any_host; echo 1234 >attr_serial; echo {controllers} >attr_cntlid_min
         echo -n {file} >namespaces/1/device_path; echo {uuid} >namespaces/1/device_uuid; echo 1 >namespaces/1/enable
         ln -s /sys/kernel/config/nvmet/hosts/{host} allowed_hosts/
         ln -s /sys/kernel/config/nvmet/subsystems/{nqn} /sys/kernel/config/nvmet/ports/1/subsystems/"
    ));
}

/// How a host behaves when its connection breaks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Manner {
    /// Fails what it cannot write within a second, and gives up after two.
    Quick,
    /// Tries for ten minutes, as the kernel does when it is not told otherwise.
    Patient,
    /// The same, as a second connection to what it is connected to already.
    Second,
}

/// The shell that connects.
pub(crate) fn login(target: &Vm, export: &Export, manner: Manner) -> String {
    let manner = match manner {
        Manner::Quick => "ctrl_loss_tmo=2,fast_io_fail_tmo=1",
        Manner::Patient => "ctrl_loss_tmo=600",
        Manner::Second => "ctrl_loss_tmo=600,duplicate_connect",
    };
    let (address, nqn, host, id) = (target.address(), &export.nqn, &export.host, export.host_id());
    format!(
        "echo 'transport=tcp,traddr={address},trsvcid=4420,nqn={nqn},hostnqn={host},hostid={id},reconnect_delay=1,{manner}' >/dev/nvme-fabrics"
    )
}

/// Connects; nothing if the target refuses.
pub(crate) fn try_connect(node: &Vm, target: &Vm, export: &Export, manner: Manner) -> Option<()> {
    let ended = node.try_sh(&login(target, export, manner));
    (ended.code == Some(0)).then_some(())
}

/// Connects and waits for the disk.
pub(crate) fn connect(node: &Vm, target: &Vm, export: &Export, manner: Manner) -> String {
    try_connect(node, target, export, manner)
        .unwrap_or_else(|| panic!("{} is refused {}", node.name(), export.nqn));
    wait_for(&format!("the disk of {} on {}", export.nqn, node.name()), SOON, || disk(node, &export.nqn))
}

/// The disk of a subsystem, in both layouts.
pub(crate) fn disk(node: &Vm, nqn: &str) -> Option<String> {
    let found = node.sh(&format!(
        "for s in /sys/class/nvme-subsystem/*; do [ \"$(cat $s/subsysnqn)\" = {nqn} ] || continue
         for d in $s/nvme*n* $s/nvme*/nvme*n*; do d=${{d##*/}}; [ -b /dev/$d ] && echo /dev/$d; done; done 2>/dev/null || :"
    ));
    found.lines().next().map(str::to_owned)
}

/// Disconnects every controller, whatever state it is in.
pub(crate) fn disconnect_all(node: &Vm) {
    node.sh("for c in /sys/class/nvme/*/delete_controller; do [ -e $c ] && timeout 60 sh -c \"echo 1 >$c\"; done 2>/dev/null; :");
    let what = format!("{} to have no controllers", node.name());
    wait_for(&what, SOON, || node.sh("ls /sys/class/nvme 2>/dev/null || :").is_empty().then_some(()));
}

/// One step of a fence.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    UnlinkHost,
    UnlinkPort,
    Disable,
    Remove,
}

/// The order that attachments are fenced in.
pub(crate) const FENCE: [Step; 4] = [Step::UnlinkHost, Step::UnlinkPort, Step::Disable, Step::Remove];

/// The shell that takes steps of a fence.
pub(crate) fn fencing(export: &Export, steps: &[Step]) -> String {
    let Export { nqn, host, .. } = export;
    let words = steps.iter().map(|step| match step {
        Step::UnlinkHost => format!("rm subsystems/{nqn}/allowed_hosts/{host}"),
        Step::UnlinkPort => format!("rm ports/1/subsystems/{nqn}"),
        Step::Disable => format!("echo 0 >subsystems/{nqn}/namespaces/1/enable"),
        Step::Remove => format!("rmdir subsystems/{nqn}/namespaces/1 subsystems/{nqn}"),
    });
    format!("cd /sys/kernel/config/nvmet && {}", words.collect::<Vec<_>>().join(" && "))
}

/// Takes steps of a fence, and comes back when the kernel does.
pub(crate) fn fence(target: &Vm, export: &Export, steps: &[Step]) {
    target.sh(&fencing(export, steps));
}

/// A target with its port open, and two nodes.
pub(crate) fn open(lab: &VmLab) -> (&Vm, &Vm, &Vm) {
    let target = lab.vm("target");
    open_port(target);
    (target, lab.vm("a"), lab.vm("b"))
}
