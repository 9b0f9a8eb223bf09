//! A node whose target is gone, with a filesystem that has dirty pages and a raw volume that somebody writes: what it does with them ends,
//! and so do its process and the machine.

use bowline_csi::wire;
use bowline_testkit::driver::{BLOCK, Driver, MIB, RWO};
use bowline_testkit::lab::wait_for;
use bowline_testkit::say;
use bowline_testkit::vm::{Site, Writer, bring, count_of, insist};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCKS: u64 = 64;
/// The kernel notices the silence after 14 s, fails what waits after 3 s more (`Site`), and a disconnect may take 30.
const SOON: Duration = Duration::from_secs(60);
/// What docs/nvme.md says of the node's process.
const PROCESS: Duration = Duration::from_secs(35);

pub(crate) async fn a_node_lets_go_of_a_target_that_is_gone(site: &mut Site) {
    let lab = Arc::clone(&site.lab);
    let (on_a, two) = (lab.vm("a"), Two::new(site).await);

    let writer = two.lose(site, 1).await;
    let begun = Instant::now();
    writer.stop();
    two.let_go(&site.a).await;
    let calls = begun.elapsed();
    nothing_left(site);
    two.move_on(site, 1).await;

    // Its process is told to end while an unstage waits for the target, as long as one does where nobody has said otherwise.
    site.stop("a");
    let quick = std::mem::take(&mut site.patience);
    site.begin("a");
    let writer = two.lose(site, 2).await;
    let unmounts = || site.points("a").iter().filter(|point| *point == "host.unmount.before").count();
    site.a.clone().hide(&two.mounted.volume_id, "pod").await.unwrap();
    let (before, mut a, id) = (unmounts(), site.a.clone(), two.mounted.volume_id.clone());
    let asked = tokio::spawn(async move { a.unstage(&id).await });
    wait_for("an unstage that unmounts", SOON, || (unmounts() > before).then_some(()));
    let begun = Instant::now();
    site.stop("a");
    let process = begun.elapsed();
    assert!(process <= PROCESS, "the node's process ended after {process:?}");
    let _ = tokio::time::timeout(SOON, asked).await.expect("a call that ends");
    site.patience = quick;
    site.begin("a");
    writer.stop();
    two.let_go(&site.a).await;
    nothing_left(site);
    two.move_on(site, 2).await;

    // And now all of it, as whoever administers the machine does; nobody has unstaged anything.
    let writer = two.lose(site, 3).await;
    let begun = Instant::now();
    on_a.shut_down();
    let machine = begun.elapsed();
    assert!(machine < SOON, "the machine ended after {machine:?}");
    drop(writer);
    on_a.boot();
    site.begin("a");
    two.move_on(site, 3).await;
    nothing_left(site);
    say(&format!(
        "gone: without its target a node let go of its volumes in {calls:.1?}, its process ended in {process:.1?} and its machine in {machine:.1?}"
    ));
}

/// A filesystem and a raw volume.
struct Two {
    mounted: wire::Volume,
    raw: wire::Volume,
}

impl Two {
    async fn new(site: &mut Site) -> Self {
        let mounted = site.control.create("gone-mounted", 32 * MIB, RWO).await.unwrap();
        let raw = site.control.create("gone-raw", 16 * MIB, BLOCK).await.unwrap();
        Self { mounted, raw }
    }

    /// On node a, one with blocks that were flushed and others that nobody flushes, the other with somebody who writes and does not stop; and
    /// then there is silence.
    async fn lose(&self, site: &mut Site, epoch: u64) -> Writer {
        let lab = Arc::clone(&site.lab);
        let on_a = lab.vm("a");
        // An hour, in which nothing is written back on its own.
        on_a.sh("for name in writeback expire; do echo 360000 >/proc/sys/vm/dirty_${name}_centisecs; done");
        let pod = bring(&mut site.control, &mut site.a, &self.mounted, RWO).await.unwrap();
        let disk = bring(&mut site.control, &mut site.a, &self.raw, BLOCK).await.unwrap();
        let options = format!("count={BLOCKS} writes={BLOCKS}");
        on_a.stamp(&format!("{pod}/stamps"), epoch, &options).finish();
        on_a.stamp(&format!("{pod}/dirt"), epoch, &format!("lazy {options}")).finish();
        let mut writer = on_a.stamp(&disk, epoch, &format!("direct threads=2 count={BLOCKS} stubborn"));
        writer.more(8);
        lab.cut("a", "target");
        writer
    }

    /// Asks the node to hide and unstage both, as a kubelet does.
    async fn let_go(&self, a: &Driver) {
        let one = |volume: &wire::Volume| {
            let (a, id) = (a.clone(), volume.volume_id.clone());
            async move {
                insist("a volume to be let go", || async {
                    let mut a = a.clone();
                    a.hide(&id, "pod").await?;
                    a.unstage(&id).await
                })
                .await;
            }
        };
        let both = async { tokio::join!(one(&self.mounted), one(&self.raw)) };
        tokio::time::timeout(SOON, both)
            .await
            .unwrap_or_else(|_| panic!("waited {SOON:?} for a node to let go"));
    }

    /// The target is back, node a is shut out, and the next node finds everything that was flushed.
    async fn move_on(&self, site: &mut Site, epoch: u64) {
        let lab = Arc::clone(&site.lab);
        lab.mend("a", "target");
        for volume in [&self.mounted, &self.raw] {
            let control = &site.control;
            insist("the proof that a is out", || async {
                control.clone().unpublish(&volume.volume_id, "a").await
            })
            .await;
        }
        let pod = bring(&mut site.control, &mut site.b, &self.mounted, RWO).await.unwrap();
        let found = lab.vm("b").stamps(&format!("{pod}/stamps"), BLOCKS);
        assert_eq!(count_of(epoch, &found), BLOCKS as usize, "{found:?}");
        site.b.detach_all(&mut site.control, &self.mounted.volume_id, "pod").await.unwrap();
    }
}

/// Neither connections nor mounts nor records of a volume on node a.
fn nothing_left(site: &Site) {
    wait_for("node a to have no controllers", SOON, || site.controllers("a").is_empty().then_some(()));
    let left = site.lab.vm("a").sh(
        "grep -E ' /(stage|pods)/' /proc/mounts || :; find /var/bowline -path '*/staging/*.json' 2>/dev/null || :",
    );
    assert_eq!(left, "");
}
