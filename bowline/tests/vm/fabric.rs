//! The node service over real NVMe/TCP, with a machine that is node and target at once: `crates/node/examples/fabric`.

use bowline_testkit::say;
use bowline_testkit::vm::{Kernel, Machine, Plan, Vm, example};
use std::time::Duration;

/// For all scenarios in one machine, on an emulated processor.
const LONG: Duration = Duration::from_secs(480);

#[test]
fn the_node_service_holds_over_nvme_on_linux_6_1() {
    run(Kernel::Debian12);
}

#[test]
#[ignore = "make test-vm has the time"]
fn the_node_service_holds_over_nvme_on_linux_6_12() {
    run(Kernel::Debian13);
}

fn run(kernel: Kernel) {
    let machine =
        |name: &str| Machine { modules: vec!["nvme-tcp", "nvmet-tcp"], memory: 512, ..Machine::target(name) };
    let machines = [machine("multipath"), machine("plain").words(&["nvme_core.multipath=N"])];
    let Some(lab) = Plan::of(machines).kernel(kernel).with(example("fabric")).start() else { return };
    std::thread::scope(|scope| {
        for vm in lab.vms() {
            scope.spawn(|| scenarios(vm));
        }
    });
}

/// Every scenario that the program names, and nothing counts that did not say so.
fn scenarios(vm: &Vm) {
    let has_multipath = vm.sh("cat /sys/module/nvme_core/parameters/multipath").trim() == "Y";
    assert_eq!(has_multipath, vm.name() == "multipath");
    let mut running = vm.start_sh("exec fabric 2>&1");
    let ended = running.wait_for(LONG).unwrap_or_else(|| {
        panic!("{}: waited {LONG:?} for the scenarios: {}", vm.name(), running.so_far().out)
    });
    assert_eq!(ended.code, Some(0), "{}:\n{}", vm.name(), ended.out);
    let names = vm.sh("fabric --list");
    for name in names.lines() {
        assert!(
            ended.out.contains(&format!("test {name} ... ok")),
            "{name} on {}:\n{}",
            vm.name(),
            ended.out
        );
    }
    let (count, release) = (names.lines().count(), vm.sh("uname -r"));
    assert!(count > 0, "{} knows no scenarios", vm.name());
    println!("{}:\n{}", vm.name(), ended.out);
    say(&format!("fabric: {count} scenarios on {}, {}", release.trim(), vm.name()));
}
