//! The suites that every adapter passes, over a real kernel's NVMe target, a real disk and real logins over TCP: `crates/target/examples/nvmet_contract`.

use bowline_testkit::say;
use bowline_testkit::vm::{Kernel, Machine, Plan, example};
use std::time::Duration;

/// For both suites, on an emulated processor.
const LONG: Duration = Duration::from_secs(300);

#[test]
fn the_contract_of_targets_is_kept_over_nvme_on_linux_6_1() {
    run(Kernel::Debian12);
}

#[test]
#[ignore = "make test-vm has the time"]
fn the_contract_of_targets_is_kept_over_nvme_on_linux_6_12() {
    run(Kernel::Debian13);
}

fn run(kernel: Kernel) {
    let machine =
        Machine { memory: 512, modules: vec!["nvmet-tcp", "nvme-tcp"], ..Machine::target("target") };
    let plan = Plan::of([machine]).kernel(kernel);
    let Some(lab) = plan.with(example("nvmet_contract")).start() else { return };
    let vm = lab.vms().next().unwrap();
    let script = format!("exec nvmet_contract /data/volumes {}:4420 127.0.0.1:4421 2>&1", vm.address());
    let mut running = vm.start_sh(&script);
    let ended = running
        .wait_for(LONG)
        .unwrap_or_else(|| panic!("waited {LONG:?} for the suites: {}", running.so_far().out));
    assert_eq!(ended.code, Some(0), "{}", ended.out);
    for suite in ["access", "provision"] {
        assert!(ended.out.contains(&format!("test {suite} ... ok")), "{suite}:\n{}", ended.out);
    }
    println!("{}", ended.out);
    say(&format!("the contract of targets is kept over NVMe/TCP on {}", vm.sh("uname -r").trim()));
}
