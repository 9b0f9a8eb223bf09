//! Over real NVMe/TCP, in machines with kernels of their own, beside the same by hand in the same machines.

use anyhow::{Context, Result};
use bowline_csi::wire;
use bowline_target::NvmeContext;
use bowline_testkit::driver::{BLOCK, Driver, MIB, RWO};
use bowline_testkit::vm::{Machine, Plan, Site, Vm, Writer, bring, insist};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

use super::driver::binary;
use super::{Row, median, paired, ratio, say, shown};

/// How often a fence is watched.
const TIMES: usize = 11;
/// How often that is done which has a goal: on emulated processors single times swing by more than the goals allow for.
const OFTEN: usize = 31;
/// How many volumes a busy node has.
const MANY: usize = 199;
/// How long the machines of the lab may take to boot.
const BOOT: Duration = Duration::from_secs(60);
/// Where the kernel is told what it exports.
const NVMET: &str = "/sys/kernel/config/nvmet";

pub(crate) fn rows() -> Result<Vec<Row>> {
    let node = |name| Machine { memory: 1024, ..Machine::node(name) };
    let machines = [Machine::target("target"), node("a"), Machine::node("b"), Machine::new("control")];
    let runtime = Runtime::new()?;
    let started = {
        // The connections to the machines are made on it.
        let _inside = runtime.enter();
        Site::start(Plan::of(machines), &binary()?)
    };
    let Some(mut site) = started else { return Ok(vec![]) };
    let mut rows = runtime.block_on(async {
        let mut rows = fences(&mut site).await?;
        rows.push(staging(&mut site).await?);
        rows.extend(driving(&mut site).await?);
        rows.extend(attaching(&mut site).await?);
        anyhow::Ok(rows)
    })?;
    drop(site);
    rows.extend(booting());
    Ok(rows)
}

/// What `make lab-vm` boots, when everything that is built once is there.
fn booting() -> Option<Row> {
    let machines = [Machine::target("target"), Machine::node("a"), Machine::node("b")];
    let begun = Instant::now();
    let lab = Plan::of(machines).start()?;
    let time = begun.elapsed();
    drop(lab);
    Some(Row {
        what: "boot of three machines of the VM lab".to_owned(),
        measured: shown(time),
        beside: format!("goal: {}", shown(BOOT)),
        ratio: Some(ratio(time, BOOT)),
        goal: Some(1.0),
    })
}

fn row(what: &str, times: Vec<Duration>, beside: &str, others: Vec<Duration>, goal: Option<f64>) -> Row {
    let ratio = paired(&times, &others);
    Row {
        what: what.to_owned(),
        measured: shown(median(times)),
        beside: format!("{beside}: {}", shown(median(others))),
        ratio: Some(ratio),
        goal,
    }
}

/// How a fence went, from the command on.
struct Fence {
    answered: Duration,
    last_write: Duration,
    first_error: Duration,
}

/// A node that writes is shut out: by the controller, and by hand with what the kernel has for it.
async fn fences(site: &mut Site) -> Result<Vec<Row>> {
    let (mut ours, mut hands) = (vec![], vec![]);
    let volume = site.control.create("fenced", 16 * MIB, BLOCK).await?;
    for _ in 0..TIMES {
        for (is_by_hand, fences) in [(false, &mut ours), (true, &mut hands)] {
            let disk = bring(&mut site.control, &mut site.a, &volume, BLOCK).await?;
            let mut writer = site.lab.vm("a").stamp(&disk, 1, "direct count=256 stubborn");
            writer.more(50);
            fences.push(if is_by_hand {
                by_hand(site, &mut writer)?
            } else {
                ours_of(site, &volume, &mut writer).await?
            });
            writer.stop();
            let (a, control, id) = (&site.a, &site.control, &volume.volume_id);
            insist("the fenced disk to be taken down", || async {
                a.clone().hide(id, "pod").await?;
                a.clone().unstage(id).await?;
                control.clone().unpublish(id, "a").await
            })
            .await;
        }
    }
    site.control.delete(&volume.volume_id).await?;
    let beside = "the kernel's own teardown by hand";
    let pick =
        |part: fn(&Fence) -> Duration| (ours.iter().map(part).collect(), hands.iter().map(part).collect());
    let line = |what: &str, (times, others): (Vec<_>, Vec<_>)| row(what, times, beside, others, None);
    Ok(vec![
        line("fence: command → proven", pick(|fence| fence.answered)),
        line("fence: command → the node's last write", pick(|fence| fence.last_write)),
        line("fence: command → the node's first error", pick(|fence| fence.first_error)),
    ])
}

async fn ours_of(site: &Site, volume: &wire::Volume, writer: &mut Writer) -> Result<Fence> {
    let (mut control, id) = (site.control.clone(), volume.volume_id.clone());
    let begun = Instant::now();
    let asked = tokio::spawn(async move { control.unpublish(&id, "a").await.map(|()| begun.elapsed()) });
    let (last_write, first_error) = watch(writer, begun)?;
    Ok(Fence { answered: asked.await??, last_write, first_error })
}

fn by_hand(site: &Site, writer: &mut Writer) -> Result<Fence> {
    let target = site.lab.vm("target");
    let name = target.sh(&format!("ls {NVMET}/subsystems"));
    let name = name.trim();
    let host = target.sh(&format!("ls {NVMET}/subsystems/{name}/allowed_hosts"));
    let link = target.sh(&format!("ls -d {NVMET}/ports/*/subsystems/{name}"));
    let at = format!("{NVMET}/subsystems/{name}");
    let begun = Instant::now();
    let mut fence = target.start_sh(&format!(
        "rm {at}/allowed_hosts/{} {} && echo 0 >{at}/namespaces/1/enable && rmdir {at}/namespaces/1 {at}",
        host.trim(),
        link.trim()
    ));
    let ending = std::thread::spawn(move || {
        fence.succeed();
        begun.elapsed()
    });
    let (last_write, first_error) = watch(writer, begun)?;
    let answered = ending.join().map_err(|_| anyhow::anyhow!("the teardown by hand failed"))?;
    Ok(Fence { answered, last_write, first_error })
}

/// When the last write was acknowledged, and when the first failed.
fn watch(writer: &mut Writer, begun: Instant) -> Result<(Duration, Duration)> {
    let (mut count, mut last) = (writer.told().count, Duration::ZERO);
    loop {
        let (told, now) = (writer.told(), begun.elapsed());
        if !told.errors.is_empty() {
            return Ok((last, now));
        }
        anyhow::ensure!(now < Duration::from_secs(60), "a fenced writer has no error after {now:?}");
        if told.count > count {
            (count, last) = (told.count, now);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A fresh volume with a filesystem, shown to a pod. Calls and commands come into the machine through its serial port, which is the lab's
/// affair: what empty ones take is taken off.
async fn staging(site: &mut Site) -> Result<Row> {
    let (mut ours, mut hands) = (vec![], vec![]);
    let (mut calls, mut commands) = (vec![], vec![]);
    for _ in 0..OFTEN {
        let begun = Instant::now();
        site.a.local.node_get_capabilities(wire::NodeGetCapabilitiesRequest {}).await?;
        calls.push(begun.elapsed());
        let begun = Instant::now();
        site.lab.vm("a").sh(":");
        commands.push(begun.elapsed());
    }
    let (call, command) = (median(calls), median(commands));
    say(&format!("an empty call takes {}, an empty command {}", shown(call), shown(command)));
    for number in 0..OFTEN {
        // Now one first and now the other.
        for is_by_hand in [number % 2 == 1, number % 2 == 0] {
            let volume = site.control.create(&format!("staged-{number}-{is_by_hand}"), 64 * MIB, RWO).await?;
            let context = site.control.publish(&volume, "a", RWO, false).await?;
            if is_by_hand {
                hands.push(stage_by_hand(site.lab.vm("a"), &context)?.saturating_sub(command));
                site.control.unpublish(&volume.volume_id, "a").await?;
            } else {
                let begun = Instant::now();
                site.a.stage(&volume, &context, RWO).await?;
                site.a.expose(&volume, &context, "pod", RWO, false).await?;
                ours.push(begun.elapsed().saturating_sub(2 * call));
                site.a.detach_all(&mut site.control, &volume.volume_id, "pod").await?;
            }
            site.control.delete(&volume.volume_id).await?;
        }
    }
    let beside = "connect, mkfs, mount, bind by hand";
    Ok(row("stage and publish a fresh ext4 volume over NVMe/TCP", ours, beside, hands, Some(1.15)))
}

/// What a node writes to connect.
fn login(context: &HashMap<String, String>) -> Result<String> {
    let NvmeContext { names, addresses } = NvmeContext::parse(|key| context.get(key).map(String::as_str))?
        .context("a grant over NVMe/TCP says how to log in")?;
    let address = addresses.first().context("a target has an address")?;
    Ok(format!(
        "transport=tcp,traddr={},trsvcid={},nqn={},hostnqn={},hostid={}",
        address.ip(),
        address.port(),
        names.subsystem,
        names.host,
        names.host_id
    ))
}

fn stage_by_hand(node: &Vm, context: &HashMap<String, String>) -> Result<Duration> {
    let words = login(context)?;
    let begun = Instant::now();
    // The machine has no other disk, so that its name is known.
    node.sh(&format!(
        "mkdir -p /by-hand/stage /by-hand/pod && echo '{words}' >/dev/nvme-fabrics && \
         until [ -b /dev/nvme0n1 ]; do :; done && mkfs.ext4 -q /dev/nvme0n1 && \
         mount -t ext4 /dev/nvme0n1 /by-hand/stage && mount -o bind /by-hand/stage /by-hand/pod"
    ));
    let time = begun.elapsed();
    node.sh(
        "umount /by-hand/pod && umount /by-hand/stage && echo 1 >/sys/class/nvme/nvme0/delete_controller",
    );
    Ok(time)
}

/// Reads and writes of a raw volume as a pod sees it, beside a file that is exported and connected by hand.
async fn driving(site: &mut Site) -> Result<Vec<Row>> {
    let lab = Arc::clone(&site.lab);
    let (target, node) = (lab.vm("target"), lab.vm("a"));
    let nqn = "nqn.2014-08.org.nvmexpress:bare";
    target.sh(&format!(
        "set -e; truncate -s 64M /data/bare; cd {NVMET}; mkdir -p subsystems/{nqn}/namespaces/1; cd subsystems/{nqn}
         echo 1 >attr_allow_any_host; echo -n /data/bare >namespaces/1/device_path; echo 1 >namespaces/1/enable
         for port in {NVMET}/ports/*; do ln -s {NVMET}/subsystems/{nqn} $port/subsystems/; done"
    ));
    node.sh(&format!(
        "echo 'transport=tcp,traddr={},trsvcid=4420,nqn={nqn}' >/dev/nvme-fabrics && until [ -b /dev/nvme0n1 ]; do :; done",
        target.address()
    ));
    let volume = site.control.create("driven", 64 * MIB, BLOCK).await?;
    let disk = bring(&mut site.control, &mut site.a, &volume, BLOCK).await?;
    let places = [disk.as_str(), "/dev/nvme0n1"];
    for place in places {
        // Everything is written once: what was never written is another way through the filesystem below.
        node.sh(&format!("vmtool drive {place} write bytes=131072 span={} ms=8000", 64 << 20));
    }
    let mut rows = vec![];
    for (what, options) in [
        ("sequential reads of 128 KiB", "bytes=131072"),
        ("sequential writes of 128 KiB", "bytes=131072 write"),
        ("random reads of 4 KiB", "random"),
        ("random writes of 4 KiB", "random write"),
    ] {
        let mut times = [vec![], vec![]];
        for turn in 0..OFTEN {
            // Now one first and now the other.
            for which in [turn % 2, 1 - turn % 2] {
                let (Some(place), Some(times)) = (places.get(which), times.get_mut(which)) else { continue };
                times.push(drive(node, place, options)?);
            }
        }
        let [ours, bare] = times;
        let what = format!("{what} of a raw volume, each");
        rows.push(row(&what, ours, "a file exported and connected by hand", bare, Some(1.02)));
    }
    site.a.detach_all(&mut site.control, &volume.volume_id, "pod").await?;
    node.sh("for c in /sys/class/nvme/*/delete_controller; do echo 1 >$c; done");
    Ok(rows)
}

/// The time of one request.
fn drive(node: &Vm, place: &str, options: &str) -> Result<Duration> {
    let said = node.sh(&format!("vmtool drive {place} {options} span={} ms=400", 48 << 20));
    let (count, micros) = said.trim().split_once(' ').context("vmtool drive says two numbers")?;
    Ok(Duration::from_micros(micros.parse()?).div_f64(count.parse::<f64>()?))
}

/// A volume's attach on a node that has none, and on the same when it has many: what grows at the target and at the controller counts, too. Minutes lie
/// between the two, and a machine with many connections has more to do in all it does; so what the kernel does of it is done by hand, too.
async fn attaching(site: &mut Site) -> Result<Vec<Row>> {
    let volume = site.control.create("one-more", MIB, BLOCK).await?;
    let (first, first_by_hand) = attaches(site, &volume).await?;
    for number in 0..MANY {
        let volume = site.control.create(&format!("many-{number}"), MIB, BLOCK).await?;
        bring(&mut site.control, &mut site.a, &volume, BLOCK).await?;
    }
    let (last, last_by_hand) = attaches(site, &volume).await?;
    let row = |what: &str, last: Duration, first: Duration, goal| Row {
        what: format!("{what} of volume {} of a node over NVMe/TCP", MANY + 1),
        measured: shown(last),
        beside: format!("volume 1 of the same, before the others: {}", shown(first)),
        ratio: Some(ratio(last, first)),
        goal,
    };
    Ok(vec![
        row("attach (let in, stage, publish)", last, first, Some(1.2)),
        row("connect and bind by hand", last_by_hand, first_by_hand, None),
    ])
}

/// What an attach takes, and what a connect by hand of the same takes.
async fn attaches(site: &mut Site, volume: &wire::Volume) -> Result<(Duration, Duration)> {
    let (mut times, mut hands) = (vec![], vec![]);
    for _ in 0..OFTEN {
        times.push(attach(&mut site.control, &mut site.a, volume).await?);
        let context = site.control.publish(volume, "a", BLOCK, false).await?;
        hands.push(attach_by_hand(site.lab.vm("a"), &context)?);
        site.control.unpublish(&volume.volume_id, "a").await?;
    }
    Ok((median(times), median(hands)))
}

/// The kernel says which controller it made, and that one knows its disk.
fn attach_by_hand(node: &Vm, context: &HashMap<String, String>) -> Result<Duration> {
    let words = login(context)?;
    let begun = Instant::now();
    let controller = node.sh(&format!(
        "exec 3<>/dev/nvme-fabrics; echo '{words}' >&3; read -r made <&3; made=${{made#instance=}}; at=/sys/class/nvme/nvme${{made%%,*}}
         until disk=$(ls $at | grep -E '^nvme[0-9]+c[0-9]+n1$'); do :; done; disk=/dev/${{disk%%c*}}n1; until [ -b $disk ]; do :; done
         mkdir -p /by-hand; >>/by-hand/raw; mount -o bind $disk /by-hand/raw; echo $at"
    ));
    let time = begun.elapsed();
    node.sh(&format!("umount /by-hand/raw && echo 1 >{}/delete_controller", controller.trim()));
    Ok(time)
}

async fn attach(control: &mut Driver, node: &mut Driver, volume: &wire::Volume) -> Result<Duration> {
    let begun = Instant::now();
    bring(control, node, volume, BLOCK).await?;
    let time = begun.elapsed();
    node.detach_all(control, &volume.volume_id, "pod").await?;
    Ok(time)
}
