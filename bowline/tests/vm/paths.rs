//! Two networks between a node and its target: whoever writes does not notice the loss of one.

use bowline_csi::wire;
use bowline_testkit::driver::{BLOCK, Driver, MIB};
use bowline_testkit::lab::wait_for;
use bowline_testkit::say;
use bowline_testkit::vm::{Plan, Site, Vm, bring, count_of};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCKS: u64 = 256;
/// Linux 6.1 notices that nobody answers after less than three times five seconds, and then gives up when it was told to.
const SOON: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_does_not_notice_the_loss_of_a_network() {
    let Some(mut site) = Site::start(Plan::usual().networks(2), Path::new(crate::BOWLINE)) else { return };
    let lab = Arc::clone(&site.lab);
    let (target, on_a, on_b) = (lab.vm("target"), lab.vm("a"), lab.vm("b"));
    let volume = site.control.create("two-ways", 16 * MIB, BLOCK).await.unwrap();
    let file = site.file(&volume.volume_id);

    // One is away when the volume is staged: the other is enough, and what is missing is told.
    lab.cut_on(1, "a", "target");
    let begun = Instant::now();
    let disk = bring(&mut site.control, &mut site.a, &volume, BLOCK).await.unwrap();
    let staged = begun.elapsed();
    assert_eq!(live(on_a), ["10.77.0.1"]);
    assert_eq!(ailments(&site.a, &volume).await, ["PathLost"]);
    let mut writer = on_a.stamp(&disk, 1, &format!("direct threads=2 count={BLOCKS}"));
    writer.more(10);
    lab.mend("a", "target");
    both(&site, &volume).await;

    let lost = [(0, "10.78.0.1"), (1, "10.77.0.1")];
    let lost = if crate::is_thorough() { &lost[..] } else { &lost[..1] };
    for (network, other) in lost {
        lab.cut_on(*network, "a", "target");
        // Until the kernel has given it up for good: nothing but being asked how it is brings it back.
        wait_for(&format!("network {network} to be given up"), SOON, || {
            // One may go while it is looked at.
            let known = on_a.sh("cat /sys/class/nvme/*/address 2>/dev/null || :");
            (known.lines().count() == 1 && live(on_a) == [*other]).then_some(())
        });
        writer.more(10);
        assert_eq!(ailments(&site.a, &volume).await, ["PathLost"]);
        lab.mend("a", "target");
        both(&site, &volume).await;
        writer.more(10);
        assert_eq!(writer.told().errors, [0; 0], "network {network}");
    }

    // The fence closes both ways at once.
    lab.cut("a", "control");
    site.control.unpublish(&volume.volume_id, "a").await.unwrap();
    assert_eq!(site.exports(), "");
    let theirs = bring(&mut site.control, &mut site.b, &volume, BLOCK).await.unwrap();
    writer.told().assert_kept(1, &target.stamps(&file, BLOCKS));
    on_b.stamp(&theirs, 2, &format!("direct count={BLOCKS} writes={BLOCKS}")).finish();
    writer.must_fail_within(SOON);
    let writes = writer.stop().count;
    assert_eq!(count_of(2, &target.stamps(&file, BLOCKS)), BLOCKS as usize, "nothing of a arrived after b's");
    say(&format!(
        "paths: {writes} writes without an error while {} of two networks was lost and came back; staged over one in {staged:.1?}",
        lost.len()
    ));
}

/// The target's addresses to which a node has a connection that works.
fn live(node: &Vm) -> Vec<String> {
    let said = node.sh("for c in /sys/class/nvme/*; do echo $(cat $c/state $c/address 2>/dev/null); done");
    let mut live: Vec<_> = said
        .lines()
        .filter_map(|line| line.strip_prefix("live traddr=")?.split(',').next().map(str::to_owned))
        .collect();
    live.sort();
    live
}

/// Asks how the volume is, as the kubelet does every minute, until it is well and both networks are used.
async fn both(site: &Site, volume: &wire::Volume) {
    let begun = Instant::now();
    loop {
        let (ailing, live) = (ailments(&site.a, volume).await, live(site.lab.vm("a")));
        if ailing.is_empty() && live == ["10.77.0.1", "10.78.0.1"] {
            return;
        }
        assert!(begun.elapsed() < SOON, "waited {SOON:?} for both networks: {ailing:?}, {live:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What a node says is wrong with a volume.
async fn ailments(node: &Driver, volume: &wire::Volume) -> Vec<String> {
    let request = wire::NodeGetVolumeHealthRequest {
        volume_id: volume.volume_id.clone(),
        volume_publish_path: node.target(&volume.volume_id, "pod").display().to_string(),
        staging_target_path: node.staging(&volume.volume_id).display().to_string(),
    };
    let answer = node.local.clone().node_get_volume_health(request).await.unwrap().into_inner();
    let health = answer.volume_health.unwrap();
    health.health_statuses.into_iter().map(|entry| entry.reason).collect()
}
