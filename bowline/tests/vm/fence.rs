//! The fence: a node that is alive, cut off from the controller and determined to write does not get one byte in after the next one was let in.

use crate::by_hand::disk;
use crate::unheard::not_out;
use bowline_csi::wire;
use bowline_testkit::driver::{BLOCK, How, MIB, RWO};
use bowline_testkit::lab::wait_for;
use bowline_testkit::say;
use bowline_testkit::vm::{Kernel, Site, Vm, Writer, bring, count_of, insist};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
/// How many blocks the writers share.
const BLOCKS: u64 = 256;
/// How the volume of the mishaps is used.
const XFS: How = RWO.fs("xfs");

/// What is left of a volume on node a, after its grant was taken away.
pub(crate) async fn take_down(site: &mut Site, volume: &str) {
    let a = &site.a;
    insist("the old disk to be taken down", || async {
        let mut a = a.clone();
        a.hide(volume, "pod").await?;
        a.unstage(volume).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_dirty_pages_do_not_arrive_when_the_node_is_let_in_again() {
    let_in_again(Kernel::Debian12).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-vm has the time"]
async fn old_dirty_pages_do_not_arrive_when_the_node_is_let_in_again_on_linux_6_12() {
    let_in_again(Kernel::Debian13).await;
}

async fn let_in_again(kernel: Kernel) {
    let Some(mut site) = crate::site(kernel) else { return };
    let lab = Arc::clone(&site.lab);
    let (target, on_a, on_b) = (lab.vm("target"), lab.vm("a"), lab.vm("b"));
    // As nodes are when they are told nothing: the old connection is tried again for a minute.
    site.patience = "";
    site.again("a");
    // An hour, in which nothing is written back on its own.
    on_a.sh("for name in writeback expire; do echo 360000 >/proc/sys/vm/dirty_${name}_centisecs; done");
    let volume = site.control.create("dirty", 64 * MIB, BLOCK).await.unwrap();
    let file = site.file(&volume.volume_id);
    let disk = bring(&mut site.control, &mut site.a, &volume, BLOCK).await.unwrap();
    let mut holder = on_a.start_sh(&format!("exec 3<>{disk}; echo open; exec sleep 1000"));
    holder.wait_until("the disk to be open", SOON, |out| out.contains("open"));
    let dirty = on_a.stamp(&disk, 1, "lazy count=64 writes=64").finish();
    assert_eq!(
        (dirty.count, count_of(1, &target.stamps(&file, 64))),
        (64, 0),
        "they wait in the node's memory"
    );

    lab.cut("a", "control");
    site.control.unpublish(&volume.volume_id, "a").await.unwrap();
    let theirs = bring(&mut site.control, &mut site.b, &volume, BLOCK).await.unwrap();
    on_b.stamp(&theirs, 2, "direct count=64 writes=64").finish();
    site.b.detach_all(&mut site.control, &volume.volume_id, "pod").await.unwrap();
    lab.mend("a", "control");

    // Let in again, while the old disk is open and its blocks are dirty: refused on the node, and merged with nothing.
    let context = site.control.publish(&volume, "a", BLOCK, false).await.unwrap();
    let refused = site.a.stage(&volume, &context, BLOCK).await.unwrap_err();
    assert!(refused.message().contains("epoch"), "{refused}");
    // Newer kernels give up at once when the target says that they are not let in.
    let states = on_a.sh("cat /sys/class/nvme/*/state 2>/dev/null || :");
    assert!(
        kernel == Kernel::Debian13 || states == "connecting\n",
        "the old connection is tried again: {states:?}"
    );
    connected_by_hand_it_does_not_merge(on_a, &context, &disk);
    on_a.try_sh("timeout 20 sync");
    assert_eq!(count_of(2, &target.stamps(&file, 64)), 64, "nothing of the earlier time arrived");
    holder.signal("KILL");
    holder.wait();
    take_down(&mut site, &volume.volume_id).await;
    let disk = bring(&mut site.control, &mut site.a, &volume, BLOCK).await.unwrap();
    on_a.sh("sync");
    assert_eq!(count_of(2, &on_a.stamps(&disk, 64)), 64, "and the new disk shows what the other one wrote");
}

/// The new grant, taken by a node that does not refuse it: its kernel makes another disk of it and puts nothing of the old one there.
fn connected_by_hand_it_does_not_merge(node: &Vm, context: &HashMap<String, String>, old: &str) {
    let of = |key: &str| context[&format!("bowline.storage/{key}")].as_str();
    let (nqn, address) = (of("nqn"), of("addresses").split_once(':').unwrap().0);
    let login = format!(
        "transport=tcp,traddr={address},trsvcid=4420,nqn={nqn},hostnqn={},hostid={},reconnect_delay=1",
        of("host-nqn"),
        of("host-id")
    );
    node.sh(&format!("echo '{login}' >/dev/nvme-fabrics"));
    let new = wait_for("the disk of the new grant", SOON, || disk(node, nqn));
    let number = |path: &str| node.sh(&format!("stat -c %t:%T {path}"));
    assert_ne!(number(&new), number(old), "one disk of two grants");
    node.try_sh("timeout 20 sync");
    assert_eq!(count_of(2, &node.stamps(&new, 64)), 64, "what is old arrived through the new disk");
    node.sh(&format!(
        "for s in /sys/class/nvme-subsystem/*; do [ $(cat $s/subsysnqn) = {nqn} ] || continue
         for c in $s/nvme*/delete_controller; do echo 1 >$c; done; done"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_holds_through_deaths_reboots_and_a_sleeping_node() {
    live_through_mishaps(Kernel::Debian12).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-vm has the time"]
async fn the_fence_holds_through_deaths_reboots_and_a_sleeping_node_on_linux_6_12() {
    live_through_mishaps(Kernel::Debian13).await;
}

/// What happens while a node is shut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    AgentDies,
    ControllerDies,
    TargetLosesPower,
    NodeSleeps,
    /// Somebody says that it is out of service while it is well and writes on; nobody asks for it to be detached.
    DeclaredDead,
}

const MISHAPS: [Mishap; 5] = [
    Mishap::AgentDies,
    Mishap::ControllerDies,
    Mishap::TargetLosesPower,
    Mishap::NodeSleeps,
    Mishap::DeclaredDead,
];

/// What somebody types on the machine of the controller.
fn peer(site: &Site, words: &str) {
    site.lab.vm("control").sh(&format!("bowline --data /var/bowline peer {words}"));
}

async fn live_through_mishaps(kernel: Kernel) {
    let Some(mut site) = crate::site(kernel) else { return };
    let lab = Arc::clone(&site.lab);
    let (on_a, on_b) = (lab.vm("a"), lab.vm("b"));
    let volume = site.control.create("mishaps", 320 * MIB, XFS).await.unwrap();
    for (mishap, epoch) in MISHAPS.into_iter().zip(1..) {
        println!("{mishap:?}");
        let pod = bring(&mut site.control, &mut site.a, &volume, XFS).await.unwrap();
        let path = format!("{pod}/stamps");
        on_a.sh(&format!("[ -e {path} ] || truncate -s 1M {path}"));
        let mut writer = on_a.stamp(&path, epoch, &format!("count={BLOCKS} stubborn"));
        writer.more(32);
        lab.cut("a", "control");
        shut_out(&mut site, &volume, mishap).await;
        let told = writer.told();
        if mishap == Mishap::NodeSleeps {
            on_a.resume();
        }
        let pod = bring(&mut site.control, &mut site.b, &volume, XFS).await.unwrap();
        let now = on_b.stamps(&format!("{pod}/stamps"), BLOCKS);
        told.assert_kept(epoch, &now);
        on_b.stamp(&format!("{pod}/stamps"), 100 + epoch, &format!("count={BLOCKS} writes={BLOCKS}"))
            .finish();
        must_fail(on_a, &mut writer);
        let now = on_b.stamps(&format!("{pod}/stamps"), BLOCKS);
        assert_eq!(count_of(100 + epoch, &now), BLOCKS as usize, "{mishap:?}");
        site.b.detach_all(&mut site.control, &volume.volume_id, "pod").await.unwrap();
        if mishap == Mishap::DeclaredDead {
            assert_eq!(site.exports(), "", "it still asks, and is not let in");
            site.control.unpublish(&volume.volume_id, "a").await.unwrap();
            peer(&site, "back-in-service a");
        }
        lab.mend("a", "control");
        writer.stop();
        take_down(&mut site, &volume.volume_id).await;
    }
    wait_for("the nodes to have no controllers", SOON, || {
        (site.controllers("a").is_empty() && site.controllers("b").is_empty()).then_some(())
    });
    say(
        "fence: held while the agent, the controller and the target's power went, while the node slept, and while it was well and declared dead",
    );
}

/// Asks for node a to be shut out while something happens, and until it is out.
async fn shut_out(site: &mut Site, volume: &wire::Volume, mishap: Mishap) {
    let lab = Arc::clone(&site.lab);
    let target = lab.vm("target");
    if mishap == Mishap::DeclaredDead {
        peer(site, "out-of-service a");
        return wait_for("the node to be shut out", SOON, || site.exports().is_empty().then_some(()));
    }
    if mishap == Mishap::NodeSleeps {
        lab.vm("a").suspend();
    }
    if mishap == Mishap::TargetLosesPower {
        // After it has begun, and before it can be done.
        site.arm("target", "nvmet.step.after 0");
    }
    let (mut caller, id) = (site.control.clone(), volume.volume_id.clone());
    let asked = tokio::spawn(async move { caller.unpublish(&id, "a").await });
    match mishap {
        Mishap::AgentDies => site.again("target"),
        Mishap::ControllerDies => site.again("control"),
        Mishap::TargetLosesPower => {
            wait_for("a fence that has begun", SOON, || site.stopped("target"));
            target.power_cut();
        }
        Mishap::NodeSleeps | Mishap::DeclaredDead => {}
    }
    let answer = asked.await.unwrap();
    match mishap {
        Mishap::TargetLosesPower => {
            answer.expect_err("nobody can have proven it");
            not_out(site, volume, XFS).await;
            target.boot();
            site.bring_certificates("target");
            site.begin("target");
        }
        Mishap::NodeSleeps => answer.unwrap(),
        // Whoever is told that it is out is told the truth.
        Mishap::AgentDies | Mishap::ControllerDies if answer.is_ok() => {
            assert_eq!(site.exports(), "", "{mishap:?}");
        }
        Mishap::AgentDies | Mishap::ControllerDies | Mishap::DeclaredDead => {}
    }
    until_proven(site, &volume.volume_id).await;
    assert_eq!(site.exports(), "", "{mishap:?}");
}

/// Waits until a node that was shut out hears of it.
///
/// Linux 6.1 does not notice a fence that comes while it reconnects: the connection counts as live, is not there, and every write is sent
/// again at once, for ever, and reaches nothing. Who takes the connection away, as unstaging does, ends that; here it is done by hand.
pub(crate) fn must_fail(node: &Vm, writer: &mut Writer) {
    let until = Instant::now() + SOON / 2;
    while writer.told().errors.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(200));
    }
    if writer.told().errors.is_empty() {
        let console = std::fs::read_to_string(node.console()).unwrap_or_default();
        let vain = console.matches("failed to send request -32").count();
        assert!(vain > 1000, "no error after {:?}, and {vain} writes that were sent in vain", SOON / 2);
        say(&format!("fence: it came while {} reconnected, whose kernel did not notice", node.name()));
        node.sh("for one in /sys/class/nvme/*/delete_controller; do echo 1 >$one; done");
    }
    writer.must_fail_within(SOON);
}

/// Asks until the target has proven that the node is out.
pub(crate) async fn until_proven(site: &mut Site, volume: &str) {
    let control = &site.control;
    insist("the proof that a is out", || async { control.clone().unpublish(volume, "a").await }).await;
}
