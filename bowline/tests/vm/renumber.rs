//! Disks that come back under each other's names: the right bytes are under the right path, whatever the kernel calls them.

use crate::by_hand::disconnect_all;
use bowline_csi::wire;
use bowline_testkit::driver::{BLOCK, Driver, How, MIB, RWO};
use bowline_testkit::say;
use bowline_testkit::vm::{Site, Vm, bring, insist};
use std::sync::Arc;
use tonic::Status;

/// What the kernel does with the names depends on who still has the old disks.
const ROUNDS: [Left; 5] = [Left::Mounts, Left::Nothing, Left::Mounts, Left::Nothing, Left::Pods];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The mounts keep the old names from being given out again.
    Mounts,
    /// The names are free, and whoever comes first takes the first.
    Nothing,
    /// The mounts, also that of the pod, which is shown the volume again at the same path.
    Pods,
}

pub(crate) async fn disks_that_swap_their_names_keep_their_bytes(site: &mut Site) {
    let lab = Arc::clone(&site.lab);
    let on_a = lab.vm("a");
    let mut volumes = vec![];
    for name in ["v", "w"] {
        let volume = site.control.create(name, 32 * MIB, RWO).await.unwrap();
        let pod = bring(&mut site.control, &mut site.a, &volume, RWO).await.unwrap();
        on_a.sh(&format!("echo {name} >{pod}/who && sync"));
        volumes.push((name, volume));
    }
    let mut swaps = 0;
    for (round, left) in ROUNDS.into_iter().enumerate() {
        let before = devices(&site.a, on_a, &volumes);
        disconnect_all(on_a);
        for (name, volume) in &volumes {
            let told = look(&site.a, volume).await.unwrap_err();
            assert_eq!(told.code(), tonic::Code::Unavailable, "{name}: {told}");
            if left != Left::Pods {
                site.a.hide(&volume.volume_id, "pod").await.unwrap();
            }
            if left == Left::Nothing {
                on_a.sh(&format!("umount {}", site.a.staging(&volume.volume_id).display()));
            }
        }
        // In the other order each time.
        let mut order: Vec<_> = volumes.iter().collect();
        if round / 2 % 2 == 0 {
            order.reverse();
        }
        for (name, volume) in order {
            let pod = recover(site, volume, RWO).await;
            assert_eq!(on_a.sh(&format!("cat {pod}/who")).trim(), *name, "round {round}, {left:?}");
            // It is as good as it was.
            on_a.sh(&format!("date >{pod}/round-{round} && sync"));
        }
        let after = devices(&site.a, on_a, &volumes);
        println!("round {round}, {left:?}: {before:?} became {after:?}");
        swaps += usize::from(after.iter().rev().eq(&before));
    }
    assert!(swaps > 0, "this is about names that move, and none did");
    for (_, volume) in &volumes {
        site.a.detach_all(&mut site.control, &volume.volume_id, "pod").await.unwrap();
    }
    raw(site).await;
    assert_eq!((site.exports(), site.controllers("a")), Default::default());
    say(&format!(
        "renumbering: {swaps} swaps of two mounted volumes and one of two raw ones, with the right bytes each time"
    ));
}

/// Raw disks, which workloads see as a device number: the number is now the other one's.
async fn raw(site: &mut Site) {
    let lab = Arc::clone(&site.lab);
    let on_a = lab.vm("a");
    let mut volumes = vec![];
    for (epoch, name) in [(1, "x"), (2, "y")] {
        let volume = site.control.create(name, 16 * MIB, BLOCK).await.unwrap();
        let pod = bring(&mut site.control, &mut site.a, &volume, BLOCK).await.unwrap();
        on_a.stamp(&pod, epoch, "direct count=1 writes=1").finish();
        volumes.push((epoch, volume, on_a.sh(&format!("stat -c %t:%T {pod}"))));
    }
    disconnect_all(on_a);
    for (_, volume, _) in &volumes {
        site.a.hide(&volume.volume_id, "pod").await.unwrap();
    }
    for (epoch, volume, _) in volumes.iter().rev() {
        let pod = recover(site, volume, BLOCK).await;
        let found = on_a.stamps(&pod, 1);
        assert_eq!(bowline_testkit::vm::count_of(*epoch, &found), 1, "{found:?} instead of {epoch}");
    }
    let numbers = volumes.iter().map(|(_, volume, _)| {
        on_a.sh(&format!("stat -c %t:%T {}", site.a.target(&volume.volume_id, "pod").display()))
    });
    let before = volumes.iter().rev().map(|(_, _, number)| number.clone());
    assert!(numbers.eq(before), "this is about numbers that move, and none did");
    for (_, volume, _) in &volumes {
        site.a.detach_all(&mut site.control, &volume.volume_id, "pod").await.unwrap();
    }
}

/// What the kubelet does for the next pod: NodePublish alone, and again if it is told so.
async fn recover(site: &mut Site, volume: &wire::Volume, how: How) -> String {
    let context = site.control.publish(volume, "a", how, false).await.unwrap();
    let a = &site.a;
    insist("a mount to be recovered", || async {
        a.clone().expose(volume, &context, "pod", how, false).await
    })
    .await
    .display()
    .to_string()
}

/// The devices that are mounted where volumes are staged.
fn devices(node: &Driver, on: &Vm, volumes: &[(&str, wire::Volume)]) -> Vec<String> {
    let device = |(_, volume): &(&str, wire::Volume)| {
        let staging = node.staging(&volume.volume_id);
        on.sh(&format!("awk '$2 == \"{}\" {{ print $1 }}' /proc/mounts", staging.display())).trim().to_owned()
    };
    volumes.iter().map(device).collect()
}

/// What the kubelet asks now and then.
async fn look(node: &Driver, volume: &wire::Volume) -> Result<(), Status> {
    let request = wire::NodeGetVolumeStatsRequest {
        volume_id: volume.volume_id.clone(),
        volume_path: node.target(&volume.volume_id, "pod").display().to_string(),
        staging_target_path: node.staging(&volume.volume_id).display().to_string(),
    };
    node.local.clone().node_get_volume_stats(request).await.map(drop)
}
