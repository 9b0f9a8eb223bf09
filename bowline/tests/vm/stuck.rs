//! A disk under the agent and its records that does nothing of what is asked of it.

use crate::fence::{must_fail, take_down, until_proven};
use bowline_csi::wire;
use bowline_testkit::driver::{BLOCK, MIB};
use bowline_testkit::say;
use bowline_testkit::vm::{Kernel, Site, Speed, bring, count_of};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
const BLOCKS: u64 = 64;

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_over_a_dead_disk_is_told_and_not_pretended() {
    fence_over_a_dead_disk(Kernel::Debian12).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-vm has the time"]
async fn a_fence_over_a_dead_disk_is_told_and_not_pretended_on_linux_6_12() {
    fence_over_a_dead_disk(Kernel::Debian13).await;
}

async fn fence_over_a_dead_disk(kernel: Kernel) {
    let Some(mut site) = crate::site(kernel) else { return };
    let lab = Arc::clone(&site.lab);
    let (target, on_a, on_b) = (lab.vm("target"), lab.vm("a"), lab.vm("b"));

    let volume = site.control.create("in-flight", 64 * MIB, BLOCK).await.unwrap();
    let disk = bring(&mut site.control, &mut site.a, &volume, BLOCK).await.unwrap();
    let mut writer = on_a.stamp(&disk, 1, &format!("direct count={BLOCKS} threads=4 stubborn"));
    writer.more(32);
    target.set_disk_speed(Speed::Hung);
    let drain = until_told(&site, &volume.volume_id, "has not finished the writes in flight").await;
    nobody_gets_in(&site, &volume).await;
    target.set_disk_speed(Speed::Full);
    until_proven(&mut site, &volume.volume_id).await;
    let told = writer.told();
    let theirs = bring(&mut site.control, &mut site.b, &volume, BLOCK).await.unwrap();
    told.assert_kept(1, &on_b.stamps(&theirs, BLOCKS));
    on_b.stamp(&theirs, 2, &format!("direct count={BLOCKS} writes={BLOCKS}")).finish();
    must_fail(on_a, &mut writer);
    assert_eq!(count_of(2, &on_b.stamps(&theirs, BLOCKS)), BLOCKS as usize, "nothing of a arrived later");
    writer.stop();
    take_down(&mut site, &volume.volume_id).await;

    // Nothing is in flight, and no record can be written: neither that the node is on its way out nor that it is gone.
    let idle = site.control.create("idle", 64 * MIB, BLOCK).await.unwrap();
    bring(&mut site.control, &mut site.a, &idle, BLOCK).await.unwrap();
    target.sh("sync; busybox fsfreeze --freeze /data");
    let record = until_told(&site, &idle.volume_id, "has not taken the record").await;
    assert!(!site.exports().contains(&idle.volume_id), "the export goes all the same: {}", site.exports());
    nobody_gets_in(&site, &idle).await;
    target.sh("busybox fsfreeze --unfreeze /data");
    until_proven(&mut site, &idle.volume_id).await;
    bring(&mut site.control, &mut site.b, &idle, BLOCK).await.unwrap();
    say(&format!(
        "dead disk: told after {drain:.1?} with writes in flight and {record:.1?} without, and proven when it was well"
    ));
}

/// Asks for the node to be shut out until the reason why it is not is heard.
async fn until_told(site: &Site, volume: &str, reason: &str) -> Duration {
    let begun = Instant::now();
    loop {
        let told = site.control.clone().unpublish(volume, "a").await.unwrap_err();
        if told.message().contains("the disk under volume") {
            assert!(told.message().contains(reason), "{told}");
            return begun.elapsed();
        }
        assert!(begun.elapsed() < SOON, "{told}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn nobody_gets_in(site: &Site, volume: &wire::Volume) {
    let refused = site.control.clone().publish(volume, "b", BLOCK, false).await.unwrap_err();
    assert!(refused.message().contains("held by a") || refused.message().contains("disk"), "{refused}");
}
