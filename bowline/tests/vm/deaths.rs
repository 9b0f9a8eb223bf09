//! A node or an agent that dies at a step in its kernel.

use bowline_csi::wire;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_testkit::driver::{BLOCK, MIB};
use bowline_testkit::lab::wait_for;
use bowline_testkit::say;
use bowline_testkit::vm::{Site, bring, insist};
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

const SOON: Duration = Duration::from_secs(60);

/// What a volume goes through on node a.
#[derive(Clone, Copy, Debug)]
enum Life {
    Writer,
    Reader,
}

/// The steps in the kernels of a node and of a target that NVMe/TCP adds.
const STEPS: &[(&str, &str, Life)] = &[
    ("a", "host.nvme-connect.before", Life::Writer),
    ("a", "host.nvme-connect.after", Life::Writer),
    ("a", "node.used.before", Life::Writer),
    ("a", "node.used.after", Life::Writer),
    ("a", "host.nvme-rescan.before", Life::Writer),
    ("a", "host.nvme-rescan.after", Life::Writer),
    ("target", "nvmet.step.before", Life::Writer),
    ("target", "nvmet.step.after", Life::Writer),
    ("a", "host.nvme-disconnect.before", Life::Writer),
    ("a", "host.nvme-disconnect.after", Life::Writer),
    ("a", "host.refuse-writes.before", Life::Reader),
    ("a", "host.refuse-writes.after", Life::Reader),
];

pub(crate) async fn a_death_at_a_step_in_the_kernel_is_mended_by_the_same_call(site: &mut Site) {
    for (number, (machine, point, life)) in STEPS.iter().enumerate() {
        let epoch = number as u64 + 1;
        let volume = site.control.create(&format!("v{number}"), 16 * MIB, BLOCK).await.unwrap();
        site.arm(machine, &format!("{point} 0"));
        let there = Arc::clone(&site.lab);
        let died = tokio::task::spawn_blocking(move || {
            let stopped = || there.vm(machine).sh("cat /run/points/stopped 2>/dev/null || :");
            wait_for("a death", SOON, || Some(stopped()).filter(|point| !point.is_empty()))
        });
        tokio::select! {
            ended = live(site, &volume, *life, epoch) => panic!("{point} was not passed: {ended:?}"),
            died = died => assert_eq!(died.unwrap(), *point),
        }
        site.again(machine);
        insist(point, || live(site, &volume, *life, epoch)).await;
        assert_eq!((site.exports(), site.controllers("a")), (String::new(), String::new()), "{point}");
    }
    say(&format!(
        "deaths: {} at steps in the kernels of a node and a target, mended by the same call",
        STEPS.len()
    ));
}

/// A volume's life on node a: asked for again, it goes on where it was.
async fn live(site: &Site, volume: &wire::Volume, life: Life, epoch: u64) -> Result<(), Status> {
    match life {
        Life::Writer => write(site, volume, epoch).await,
        Life::Reader => read(site, volume).await,
    }
}

async fn write(site: &Site, volume: &wire::Volume, epoch: u64) -> Result<(), Status> {
    let (mut control, mut a, id) = (site.control.clone(), site.a.clone(), &volume.volume_id);
    let disk = bring(&mut control, &mut a, volume, BLOCK).await?;
    let told = site.lab.vm("a").stamp(&disk, epoch, "direct count=16 writes=16").finish();
    control.grow(id, 32 * MIB).await?;
    // Without a size the kernel is always asked to look; the target may have told it before it is asked for this one.
    a.grow_here(id, "pod", 0).await?;
    assert_eq!(a.grow_here(id, "pod", 32 * MIB).await?, 32 * MIB);
    told.assert_kept(epoch, &site.lab.vm("target").stamps(&site.file(id), 16));
    a.detach_all(&mut control, id, "pod").await
}

async fn read(site: &Site, volume: &wire::Volume) -> Result<(), Status> {
    let (mut control, mut a, id) = (site.control.clone(), site.a.clone(), &volume.volume_id);
    let how = BLOCK.mode(Mode::MultiNodeReaderOnly);
    let context = control.publish(volume, "a", how, true).await?;
    a.stage(volume, &context, how).await?;
    let disk = a.expose(volume, &context, "pod", how, true).await?;
    let written = site.lab.vm("a").try_sh(&format!("echo no >{}", disk.display()));
    assert_ne!(written.code, Some(0), "a reader writes");
    a.detach_all(&mut control, id, "pod").await
}
