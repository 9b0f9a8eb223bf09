//! Many volumes on one node: everything converges after restarts, and nothing is left when they go.

use bowline_csi::wire;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_testkit::driver::{BLOCK, How, MIB, RWO};
use bowline_testkit::lab::wait_for;
use bowline_testkit::say;
use bowline_testkit::vm::{Site, Vm, bring, count_of, insist};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

fn number() -> usize {
    if crate::is_thorough() { 100 } else { 20 }
}

/// Every fifth is only read: those have a loop device at the target. Every fifth is mounted.
fn how(number: usize) -> How {
    match number % 5 {
        4 => BLOCK.mode(Mode::MultiNodeReaderOnly),
        3 => RWO.fs("ext4"),
        _ => BLOCK,
    }
}

pub(crate) async fn many_volumes_converge_and_leave_nothing(site: &mut Site) {
    let lab = Arc::clone(&site.lab);
    let (target, on_a) = (lab.vm("target"), lab.vm("a"));
    // One that came and went: what is made once and kept is there.
    let first = site.control.create("first", 4 * MIB, BLOCK).await.unwrap();
    bring(&mut site.control, &mut site.a, &first, BLOCK).await.unwrap();
    release(site, &first).await;
    let before = Traces::of(site);

    let begun = Instant::now();
    let mut volumes = vec![];
    for number in 0..number() {
        let how = how(number);
        let size = if how.block { 4 * MIB } else { 16 * MIB };
        let volume = site.control.create(&format!("v{number}"), size, how).await.unwrap();
        let stamp =
            |on: &Vm, path: &str| drop(on.stamp(path, number as u64 + 1, "direct count=1 writes=1").finish());
        if how.block {
            stamp(target, &site.file(&volume.volume_id));
        }
        attach(site, &volume, number).await;
        if !how.block {
            let path = shown(site, &volume, number);
            on_a.sh(&format!("dd if=/dev/zero of={path} bs=4096 count=1 conv=fsync 2>/dev/null"));
            stamp(on_a, &path);
        }
        volumes.push(volume);
    }
    let loops = target.sh("ls -d /sys/block/loop*/loop 2>/dev/null || :").lines().count();
    assert_eq!((live(on_a), loops), (volumes.len(), volumes.len() / 5));
    println!("{} volumes attached in {:?}", volumes.len(), begun.elapsed());

    site.stop("target");
    site.kill("a");
    site.begin("target");
    site.begin("a");
    // All at once, as after a reboot of the control plane: nobody waits for anybody else.
    let begun = Instant::now();
    for (number, volume) in volumes.iter().enumerate() {
        attach(site, volume, number).await;
    }
    println!("the same again after restarts in {:?}", begun.elapsed());
    assert_eq!(live(on_a), volumes.len());
    for (number, volume) in volumes.iter().enumerate() {
        let found = on_a.stamps(&shown(site, volume, number), 1);
        assert_eq!(count_of(number as u64 + 1, &found), 1, "volume {number} shows {found:?}");
    }
    site.again("target");
    site.again("a");
    for volume in &volumes {
        release(site, volume).await;
    }
    let after = wait_for("nothing to be left", SOON, || {
        let now = Traces::of(site);
        (now.sockets == before.sockets).then_some(now)
    });
    assert_eq!(after, before);
    say(&format!(
        "many: {} volumes on one node, through restarts of agent and node; nothing left",
        volumes.len()
    ));
}

/// Let in, staged and shown, or found to be so.
async fn attach(site: &Site, volume: &wire::Volume, number: usize) {
    let how = how(number);
    let is_reader = how.mode == Mode::MultiNodeReaderOnly;
    insist("a volume to be attached", || async {
        site.a.clone().attach_all(&mut site.control.clone(), volume, "pod", how, is_reader).await
    })
    .await;
}

/// Where a volume's stamp is on the node.
fn shown(site: &Site, volume: &wire::Volume, number: usize) -> String {
    let pod = site.a.target(&volume.volume_id, "pod");
    let path = if how(number).block { pod } else { pod.join("stamp") };
    path.display().to_string()
}

async fn release(site: &mut Site, volume: &wire::Volume) {
    site.a.detach_all(&mut site.control, &volume.volume_id, "pod").await.unwrap();
    site.control.delete(&volume.volume_id).await.unwrap();
}

/// How many connections work.
fn live(node: &Vm) -> usize {
    node.sh("cat /sys/class/nvme/*/state").lines().filter(|state| *state == "live").count()
}

/// Everything that a volume leaves somewhere while it is used.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    /// On the node.
    controllers: String,
    mounts: String,
    records: String,
    /// Of the node and of the target: connections between the two.
    sockets: [String; 2],
    /// At the target.
    exports: String,
    loops: String,
    files: String,
}

impl Traces {
    fn of(site: &Site) -> Self {
        let (on_a, target) = (site.lab.vm("a"), site.lab.vm("target"));
        // 4420, to or from; one that only waits for its time to be over is not one any more.
        let sockets = "awk '($2 ~ /:1144$/ || $3 ~ /:1144$/) && $4 != \"06\" { print $4 }' /proc/net/tcp";
        Self {
            controllers: site.controllers("a"),
            mounts: on_a.sh("grep -E ' /(stage|pods)/' /proc/mounts || :"),
            records: on_a
                .sh("find /var/bowline /stage /pods -mindepth 1 | grep -v -E '\\.(lock|sock)$' | sort"),
            sockets: [on_a.sh(sockets), target.sh(sockets)],
            exports: target.sh("cd /sys/kernel/config/nvmet && ls subsystems hosts ports/*/subsystems"),
            loops: target.sh("ls -d /sys/block/loop*/loop 2>/dev/null || :"),
            files: target.sh("ls -A /data/volumes"),
        }
    }
}
