//! A target that the controller cannot reach, while a node that it let in can.

use crate::fence::{must_fail, take_down, until_proven};
use bowline_csi::wire;
use bowline_testkit::driver::{BLOCK, How, MIB};
use bowline_testkit::say;
use bowline_testkit::vm::{Site, bring, count_of};
use std::sync::Arc;
use std::time::Instant;

const BLOCKS: u64 = 64;

pub(crate) async fn a_hold_stays_while_the_target_is_not_heard(site: &mut Site) {
    let lab = Arc::clone(&site.lab);
    let (on_a, on_b) = (lab.vm("a"), lab.vm("b"));
    let volume = site.control.create("unheard", 16 * MIB, BLOCK).await.unwrap();
    let disk = bring(&mut site.control, &mut site.a, &volume, BLOCK).await.unwrap();
    // One that gets an error ends with it.
    let mut writer = on_a.stamp(&disk, 1, &format!("direct threads=2 count={BLOCKS}"));
    writer.more(10);

    lab.cut("control", "target");
    let (begun, before) = (Instant::now(), site.exports());
    // Asked again, it is no other answer; each takes as long as a caller waits.
    for _ in 0..if crate::is_thorough() { 2 } else { 1 } {
        not_out(site, &volume, BLOCK).await;
        writer.more(10);
        assert_eq!(writer.told().errors, [0; 0], "nobody has shut it out");
        assert_eq!(site.exports(), before, "one node is let in, and it is a");
    }
    let told = begun.elapsed();

    lab.mend("control", "target");
    until_proven(site, &volume.volume_id).await;
    assert_eq!(site.exports(), "");
    let theirs = bring(&mut site.control, &mut site.b, &volume, BLOCK).await.unwrap();
    writer.told().assert_kept(1, &on_b.stamps(&theirs, BLOCKS));
    on_b.stamp(&theirs, 2, &format!("direct count={BLOCKS} writes={BLOCKS}")).finish();
    must_fail(on_a, &mut writer);
    assert_eq!(count_of(2, &on_b.stamps(&theirs, BLOCKS)), BLOCKS as usize, "nothing of a arrived later");
    writer.stop();
    take_down(site, &volume.volume_id).await;
    site.b.detach_all(&mut site.control, &volume.volume_id, "pod").await.unwrap();
    say(&format!(
        "unheard: the hold stayed for {told:.1?} without the target, and was ended when it answered"
    ));
}

/// Panics unless a cannot be shut out, and nobody else is let in because of a.
pub(crate) async fn not_out(site: &Site, volume: &wire::Volume, how: How) {
    let told = site.control.clone().unpublish(&volume.volume_id, "a").await.unwrap_err();
    assert!(told.message().contains("a is not proven out"), "{told}");
    let refused = site.control.clone().publish(volume, "b", how, false).await.unwrap_err();
    let names_a = |text: &str| text.contains("asked about a ") || text.contains(": a is being shut out");
    assert!(names_a(refused.message()), "{refused}");
}
