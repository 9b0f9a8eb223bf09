//! What kernels show of NVMe, written down for the tests of the node's side, which run without machines.
//!
//! `BLESS=1` writes the files of `crates/host/tests/nvme/trees` again; without it they must still be true.

use crate::by_hand::{self, Export, Manner, SOON, Step, disconnect_all, fence, open_port, try_connect};
use bowline_testkit::lab::wait_for;
use bowline_testkit::vm::{Kernel, Machine, Plan, Vm, VmLab};
use std::fs;
use std::path::Path;

/// Compares what a kernel shows now with what was written down.
fn check(name: &str, about: &str, node: &Vm) {
    let file = format!("../crates/host/tests/nvme/trees/{name}.txt");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
    let now = format!("# {about}\n{}", node.sh("vmtool record"));
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, now).unwrap();
        return;
    }
    let written = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert!(
        now == written,
        "{file} is not what the kernel shows now:\n{now}\nread it and write it again with BLESS=1"
    );
}

fn state(node: &Vm, controller: &str) -> String {
    node.sh(&format!("cat /sys/class/nvme/{controller}/state 2>/dev/null || :")).trim().to_owned()
}

#[test]
#[ignore = "make test-vm has the time"]
fn trees_of_linux_6_1_are_true() {
    trees(Kernel::Debian12, "6.1");
}

#[test]
#[ignore = "make test-vm has the time"]
fn trees_of_linux_6_12_are_true() {
    trees(Kernel::Debian13, "6.12");
}

fn trees(kernel: Kernel, version: &str) {
    let plain = Machine::node("plain").words(&["nvme_core.multipath=N"]);
    let plan = Plan::of([Machine::target("target"), Machine::node("a"), plain]).kernel(kernel);
    let Some(lab) = plan.start() else { return };
    open_port(lab.vm("target"));
    for (node, layout) in [("a", "multipath"), ("plain", "plain")] {
        layouts(
            &lab,
            lab.vm(node),
            &format!("linux-{version}-{layout}"),
            &format!("Linux {version}, {layout}"),
        );
    }
}

/// Goes through the states that a node can be in.
fn layouts(lab: &VmLab, node: &Vm, name: &str, about: &str) {
    let target = lab.vm("target");
    let volume = |letter: &str, epoch| Export::new(&format!("{}-{letter}", node.name()), epoch);
    let (a, b, c, d) = (volume("a", 1), volume("b", 7), volume("c", 2), volume("d", 1));
    let export = |volume: &Export| by_hand::export(target, volume);
    let connect = |volume: &Export| by_hand::connect(node, target, volume, Manner::Patient);

    export(&a);
    connect(&a);
    check(&format!("{name}-one"), &format!("{about}: one volume."), node);

    // A subsystem keeps its number when the controller that brought it goes.
    try_connect(node, target, &a, Manner::Second).unwrap();
    wait_for("the second path of a", SOON, || (state(node, "nvme1") == "live").then_some(()));
    check(&format!("{name}-paths"), &format!("{about}: one volume over two connections."), node);
    node.sh("echo 1 >/sys/class/nvme/nvme0/delete_controller");
    wait_for("the controller nvme0 to go", SOON, || state(node, "nvme0").is_empty().then_some(()));
    for volume in [&b, &c] {
        export(volume);
        connect(volume);
    }
    check(
        &format!("{name}-crossed"),
        &format!("{about}: three volumes; the subsystem 0 has no controller 0 any more."),
        node,
    );

    // The namespace goes, and the controller stays.
    export(&d);
    connect(&d);
    fence(target, &d, &[Step::Disable]);
    let nqn = &d.nqn;
    wait_for("the disk of d to go", SOON, || by_hand::disk(node, nqn).is_none().then_some(()));
    check(&format!("{name}-orphan"), &format!("{about}: a controller whose namespace has gone."), node);

    // The target is not there any more: the controllers try, and their disks wait.
    lab.cut(node.name(), "target");
    let controllers = node.sh("ls /sys/class/nvme");
    wait_for("every controller to notice", std::time::Duration::from_secs(60), || {
        controllers.split_whitespace().all(|one| state(node, one) == "connecting").then_some(())
    });
    check(&format!("{name}-connecting"), &format!("{about}: the target does not answer."), node);
    lab.mend(node.name(), "target");
    wait_for("every controller to be back", std::time::Duration::from_secs(60), || {
        controllers.split_whitespace().all(|one| state(node, one) == "live").then_some(())
    });
    disconnect_all(node);

    // Given up by the kernel, but somebody has it open.
    let disk = by_hand::connect(node, target, &b, Manner::Quick);
    let mut holder = node.start_sh(&format!("exec <{disk}; echo open; exec sleep 1000"));
    holder.wait_until("the disk to be open", SOON, |out| out.contains("open"));
    fence(target, &b, &by_hand::FENCE);
    wait_for("the controllers to go", SOON, || node.sh("ls /sys/class/nvme").is_empty().then_some(()));
    check(
        &format!("{name}-lost"),
        &format!("{about}: the target is gone for good, and a program has its disk open."),
        node,
    );
    holder.signal("KILL");
    holder.wait();
}
