//! The fence: a node that is alive, cut off from the controller and determined to write does not get one byte in after the next one was let in.

use crate::site::{Site, bring};
use bowline_testkit::driver::{BLOCK, MIB, RWO};
use bowline_testkit::lab::wait_for;
use bowline_testkit::say;
use bowline_testkit::vm::{Kernel, count_of};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
/// How many blocks the writers share.
const BLOCKS: u64 = 256;

fn rounds() -> u64 {
    if crate::is_thorough() { 100 } else { 3 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_determined_writer_does_not_pass_the_fence() {
    let Some(mut site) = Site::start(Kernel::Debian12) else { return };
    let lab = std::sync::Arc::clone(&site.lab);
    let (target, on_a, on_b) = (lab.vm("target"), lab.vm("a"), lab.vm("b"));
    let volume = site.control.create("fenced", 64 * MIB, BLOCK).await.unwrap();
    let file = Site::file(&volume.volume_id);
    let mut fences = vec![];
    for round in 0..rounds() {
        let (mine, theirs) = (2 * round + 1, 2 * round + 2);
        let disk = bring(&mut site.control, &mut site.a, &volume, BLOCK).await.unwrap();
        let options = if round % 2 == 0 { "direct threads=8 stubborn" } else { "threads=4 stubborn" };
        let mut writer = on_a.stamp(&disk, mine, &format!("{options} count={BLOCKS}"));
        writer.more(64);
        lab.cut("a", "control");
        // It may write until the very end, wherever that falls.
        writer.more((round % 7) as usize * 5);
        let begun = Instant::now();
        site.control.unpublish(&volume.volume_id, "a").await.unwrap();
        fences.push(begun.elapsed());
        let at_the_fence = target.stamps(&file, BLOCKS);
        writer.told().assert_kept(mine, &at_the_fence);
        assert_eq!(site.exports(), "", "nothing is exported while nobody is let in");

        let disk = bring(&mut site.control, &mut site.b, &volume, BLOCK).await.unwrap();
        assert_eq!(
            target.stamps(&file, BLOCKS),
            at_the_fence,
            "round {round}: something came after the fence"
        );
        let told = on_b.stamp(&disk, theirs, &format!("direct count={BLOCKS} writes={BLOCKS}")).finish();
        writer.must_fail_within(SOON);
        let now = target.stamps(&file, BLOCKS);
        told.assert_kept(theirs, &now);
        assert_eq!(count_of(mine, &now), 0, "round {round}");
        site.b.detach_all(&mut site.control, &volume.volume_id, "pod").await.unwrap();
        lab.mend("a", "control");
        // Its old disk is gone for good. The node takes down what is left of it, and only then the volume can come back.
        writer.stop();
        take_down(&mut site, &volume.volume_id).await;
    }
    let longest = fences.iter().max().unwrap();
    say(&format!("fence: {} rounds with a writer who goes on; the longest took {longest:?}", fences.len()));
}

/// What is left of a volume on node a, after its grant was taken away.
async fn take_down(site: &mut Site, volume: &str) {
    let begun = Instant::now();
    loop {
        let hidden = site.a.hide(volume, "pod").await;
        let done = match hidden {
            Ok(()) => site.a.unstage(volume).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => return,
            Err(error) => assert!(begun.elapsed() < SOON, "{error}\n{}", site.said("a")),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_dirty_pages_do_not_arrive_when_the_node_is_let_in_again() {
    let Some(mut site) = Site::start(Kernel::Debian12) else { return };
    let lab = std::sync::Arc::clone(&site.lab);
    let (target, on_a, on_b) = (lab.vm("target"), lab.vm("a"), lab.vm("b"));
    // An hour, in which nothing is written back on its own.
    on_a.sh("for name in writeback expire; do echo 360000 >/proc/sys/vm/dirty_${name}_centisecs; done");
    let volume = site.control.create("dirty", 64 * MIB, BLOCK).await.unwrap();
    let file = Site::file(&volume.volume_id);
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
    on_a.try_sh("timeout 20 sync");
    assert_eq!(count_of(2, &target.stamps(&file, 64)), 64, "nothing of the earlier time arrived");
    holder.signal("KILL");
    holder.wait();
    take_down(&mut site, &volume.volume_id).await;
    let disk = bring(&mut site.control, &mut site.a, &volume, BLOCK).await.unwrap();
    on_a.sh("sync");
    assert_eq!(count_of(2, &on_a.stamps(&disk, 64)), 64, "and the new disk shows what the other one wrote");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_holds_through_deaths_reboots_and_a_sleeping_node() {
    let Some(mut site) = Site::start(Kernel::Debian12) else { return };
    let lab = std::sync::Arc::clone(&site.lab);
    let (target, on_a, on_b) = (lab.vm("target"), lab.vm("a"), lab.vm("b"));
    let volume = site.control.create("mishaps", 320 * MIB, RWO.fs("xfs")).await.unwrap();
    for (round, mishap) in
        ["agent dies", "controller dies", "target loses power", "node sleeps"].into_iter().enumerate()
    {
        let epoch = round as u64 + 1;
        let pod = bring(&mut site.control, &mut site.a, &volume, RWO.fs("xfs")).await.unwrap();
        let path = format!("{pod}/stamps");
        on_a.sh(&format!("[ -e {path} ] || truncate -s 1M {path}"));
        let mut writer = on_a.stamp(&path, epoch, &format!("count={BLOCKS} stubborn"));
        writer.more(32);
        if mishap == "node sleeps" {
            on_a.suspend();
        }
        lab.cut("a", "control");
        let (mut caller, id) = (site.control.clone(), volume.volume_id.clone());
        let asked = tokio::spawn(async move { caller.unpublish(&id, "a").await });
        match mishap {
            "agent dies" => {
                site.kill("target");
                site.begin("target");
            }
            "controller dies" => {
                site.kill("control");
                lab.vm("control").sh("rm -f /var/bowline/csi.sock");
                site.begin("control");
            }
            "target loses power" => {
                target.power_cut();
                target.boot();
                site.bring_certificates("target");
                site.begin("target");
            }
            _ => {}
        }
        let _ = asked.await.unwrap();
        until_proven(&mut site, &volume.volume_id).await;
        assert_eq!(site.exports(), "", "{mishap}");
        let told = writer.told();
        if mishap == "node sleeps" {
            on_a.resume();
        }
        let pod = bring(&mut site.control, &mut site.b, &volume, RWO.fs("xfs")).await.unwrap();
        let now = on_b.stamps(&format!("{pod}/stamps"), BLOCKS);
        told.assert_kept(epoch, &now);
        on_b.stamp(&format!("{pod}/stamps"), 100 + epoch, &format!("count={BLOCKS} writes={BLOCKS}"))
            .finish();
        writer.must_fail_within(SOON);
        let now = on_b.stamps(&format!("{pod}/stamps"), BLOCKS);
        assert_eq!(count_of(100 + epoch, &now), BLOCKS as usize, "{mishap}");
        site.b.detach_all(&mut site.control, &volume.volume_id, "pod").await.unwrap();
        lab.mend("a", "control");
        writer.stop();
        take_down(&mut site, &volume.volume_id).await;
    }
    wait_for("the nodes to have no controllers", SOON, || {
        let left = |vm: &bowline_testkit::vm::Vm| vm.sh("ls /sys/class/nvme 2>/dev/null || :");
        (left(on_a).is_empty() && left(on_b).is_empty()).then_some(())
    });
    say("fence: held while the agent, the controller and the target's power went, and while the node slept");
}

/// Asks until the target has proven that the node is out.
async fn until_proven(site: &mut Site, volume: &str) {
    let begun = Instant::now();
    while let Err(error) = site.control.unpublish(volume, "a").await {
        assert!(begun.elapsed() < SOON, "{error}\n{}", site.said("control"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The steps in the kernels of a node and of a target that NVMe/TCP adds.
const STEPS: &[(&str, &str)] = &[
    ("a", "host.nvme-connect.before"),
    ("a", "host.nvme-connect.after"),
    ("target", "nvmet.step.before"),
    ("target", "nvmet.step.after"),
    ("a", "host.nvme-disconnect.before"),
    ("a", "host.nvme-disconnect.after"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_a_step_in_the_kernel_is_mended_by_the_same_call() {
    let Some(mut site) = Site::start(Kernel::Debian12) else { return };
    let lab = std::sync::Arc::clone(&site.lab);
    for (number, (machine, point)) in STEPS.iter().enumerate() {
        let (vm, epoch) = (lab.vm(machine), number as u64 + 1);
        let volume = site.control.create(&format!("v{number}"), 16 * MIB, BLOCK).await.unwrap();
        vm.sh(&format!("rm -f /run/points/stopped; echo '{point} 0' >/run/points/arm"));
        let there = std::sync::Arc::clone(&lab);
        let died = tokio::task::spawn_blocking(move || {
            wait_for("a death", SOON, || {
                Some(there.vm(machine).sh("cat /run/points/stopped 2>/dev/null || :"))
                    .filter(|point| !point.is_empty())
            })
        });
        tokio::select! {
            ended = live(&mut site, &volume, epoch) => panic!("{point} was not passed: {ended:?}"),
            died = died => assert_eq!(died.unwrap(), *point),
        }
        site.kill(machine);
        site.begin(machine);
        let begun = Instant::now();
        loop {
            match live(&mut site, &volume, epoch).await {
                Ok(()) => break,
                Err(error) => assert!(begun.elapsed() < SOON, "{point}: {error}\n{}", site.said(machine)),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(
            (site.exports(), lab.vm("a").sh("ls /sys/class/nvme")),
            (String::new(), String::new()),
            "{point}"
        );
    }
    say(&format!(
        "fence: {} deaths at steps in the kernels of a node and a target, mended by the same call",
        STEPS.len()
    ));
}

/// A volume's life on node a: asked for again, it goes on where it was.
async fn live(site: &mut Site, volume: &bowline_csi::wire::Volume, epoch: u64) -> Result<(), tonic::Status> {
    let disk = bring(&mut site.control, &mut site.a, volume, BLOCK).await?;
    let told = site.lab.vm("a").stamp(&disk, epoch, "direct count=16 writes=16").finish();
    site.control.grow(&volume.volume_id, 32 * MIB).await?;
    site.a.grow_here(&volume.volume_id, "pod", 32 * MIB).await?;
    told.assert_kept(epoch, &site.lab.vm("target").stamps(&Site::file(&volume.volume_id), 16));
    site.a.detach_all(&mut site.control, &volume.volume_id, "pod").await
}
