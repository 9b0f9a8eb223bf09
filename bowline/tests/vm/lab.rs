//! The lab itself does what the scenarios rely on.

use bowline_testkit::say;
use bowline_testkit::vm::Plan;
use std::time::{Duration, Instant};

#[test]
fn machines_boot_run_commands_and_lose_their_power() {
    let begun = Instant::now();
    let Some(lab) = Plan::usual().start() else { return };
    say(&format!("VM lab: four machines after {:.1} s", begun.elapsed().as_secs_f64()));
    let (target, a, b) = (lab.vm("target"), lab.vm("a"), lab.vm("b"));

    for vm in lab.vms() {
        assert_eq!(vm.sh("hostname").trim(), vm.name());
    }
    let failed = a.try_sh("echo said; echo complained >&2; exit 3");
    assert_eq!((failed.code, failed.out.as_str(), failed.err.as_str()), (Some(3), "said\n", "complained\n"));

    // Many at once: the first ends last.
    let mut slow = a.start_sh("read word; echo $word");
    assert_eq!(a.sh("echo quick"), "quick\n");
    slow.write(b"slow\n");
    assert_eq!(slow.succeed(), "slow\n");

    // What was synced is there after a power cut.
    target.sh("echo kept >/data/file && sync");
    target.power_cut();
    target.boot();
    assert_eq!(target.sh("cat /data/file"), "kept\n");
    target.sh("echo kept too >>/data/file");
    target.shut_down();
    target.boot();
    assert_eq!(target.sh("cat /data/file"), "kept\nkept too\n");

    let ping = |from: &str, to: &str| {
        let address = lab.vm(to).address();
        lab.vm(from).try_sh(&format!("ping -c 1 -W 1 {address}")).code == Some(0)
    };
    assert!(ping("a", "b") && ping("a", "target") && ping("b", "control"));
    lab.cut("a", "b");
    assert!(!ping("a", "b") && !ping("b", "a"));
    assert!(ping("a", "target") && ping("b", "target"));
    lab.mend("a", "b");
    assert!(ping("a", "b"));

    b.suspend();
    assert!(!ping("a", "b"));
    b.resume();
    bowline_testkit::lab::wait_for("b to answer again", Duration::from_secs(20), || {
        ping("a", "b").then_some(())
    });
}
