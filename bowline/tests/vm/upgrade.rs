//! New programs under a workload: it notices nothing.

use bowline_testkit::driver::{BLOCK, MIB, RWO};
use bowline_testkit::say;
use bowline_testkit::vm::{Site, Vm, bring, insist};
use std::sync::Arc;

const BLOCKS: u64 = 256;

/// Who ends, and whether it is asked to.
const UPGRADES: [(&str, bool); 5] =
    [("a", true), ("a", false), ("target", true), ("target", false), ("control", true)];

pub(crate) async fn a_writer_notices_nothing_of_an_upgrade(site: &mut Site) {
    let lab = Arc::clone(&site.lab);
    let (target, on_a) = (lab.vm("target"), lab.vm("a"));
    let raw = site.control.create("raw", 16 * MIB, BLOCK).await.unwrap();
    let mounted = site.control.create("mounted", 32 * MIB, RWO).await.unwrap();
    let disk = bring(&mut site.control, &mut site.a, &raw, BLOCK).await.unwrap();
    let pod = bring(&mut site.control, &mut site.a, &mounted, RWO).await.unwrap();
    let (file, before) = (format!("{pod}/stamps"), connections(on_a));
    // One that gets an error ends with it.
    let mut direct = on_a.stamp(&disk, 1, &format!("direct threads=2 count={BLOCKS}"));
    let mut flushed = on_a.stamp(&file, 2, &format!("threads=2 count={BLOCKS}"));
    for (machine, is_asked) in UPGRADES {
        if is_asked {
            site.stop(machine);
        } else {
            site.kill(machine);
        }
        for writer in [&mut direct, &mut flushed] {
            writer.more(10);
        }
        site.begin(machine);
        for writer in [&mut direct, &mut flushed] {
            writer.more(10);
            assert_eq!(writer.told().errors, [0; 0], "{machine}");
        }
        // The same calls again, as a kubelet that has just found the driver makes them.
        for (volume, how) in [(&raw, BLOCK), (&mounted, RWO)] {
            let (control, a) = (&site.control, &site.a);
            insist("the same as before", || async {
                bring(&mut control.clone(), &mut a.clone(), volume, how).await
            })
            .await;
        }
    }
    assert_eq!(connections(on_a), before, "no connection was made anew");
    let (direct, flushed) = (direct.stop(), flushed.stop());
    assert_eq!((direct.errors.len(), flushed.errors.len()), (0, 0));
    direct.assert_kept(1, &target.stamps(&site.file(&raw.volume_id), BLOCKS));
    flushed.assert_kept(2, &on_a.stamps(&file, BLOCKS));
    for volume in [&raw, &mounted] {
        site.a.detach_all(&mut site.control, &volume.volume_id, "pod").await.unwrap();
    }
    // Not only in the node's memory.
    let pod = bring(&mut site.control, &mut site.b, &mounted, RWO).await.unwrap();
    flushed.assert_kept(2, &lab.vm("b").stamps(&format!("{pod}/stamps"), BLOCKS));
    site.b.detach_all(&mut site.control, &mounted.volume_id, "pod").await.unwrap();
    say(&format!(
        "upgrade: {} writes without an error while node, agent and controller were stopped, killed and started",
        direct.count + flushed.count
    ));
}

/// The node's ends of its connections to the target's port 4420: one that was lost and made again has another port.
fn connections(node: &Vm) -> String {
    node.sh("awk '$3 ~ /:1144$/ { print $2 }' /proc/net/tcp | sort")
}
