//! The facts about the kernel that the fence rests on, shown by hand: nothing of Bowline runs here.
//!
//! If one of them is not true of a kernel, the fence does not hold there.

use crate::by_hand::{
    Export, FENCE, Manner, SOON, Step, connect, disconnect_all, disk, export, fence, fencing, login, open,
    try_connect,
};
use bowline_testkit::lab::wait_for;
use bowline_testkit::say;
use bowline_testkit::vm::{Kernel, Machine, Plan, Speed, Vm, VmLab, count_of};
use std::time::{Duration, Instant};

type Row = (&'static str, fn(&VmLab));

const ROWS: &[Row] = &[
    ("a host that is not allowed any more goes on writing", unlinked_host_writes_on),
    (
        "a disabled namespace fails what is written, and takes it again without a login",
        disabled_fails_and_comes_back,
    ),
    ("dropping the port does not wait for what is on its way", dropped_port_does_not_wait),
    ("the whole fence leaves no write behind it and disturbs nobody else", fence_leaves_no_write),
    ("a disk that hangs keeps the fence waiting, and every new login", hung_disk_keeps_waiting),
    ("the old name gives the old disk back, with its dirty pages", same_name_merges),
    ("a new name and UUID are a new disk", new_name_does_not_merge),
];

#[test]
fn the_fence_rests_on_facts_of_linux_6_1() {
    show(Kernel::Debian12);
}

#[test]
#[ignore = "make test-vm has the time"]
fn the_fence_rests_on_facts_of_linux_6_12() {
    show(Kernel::Debian13);
}

fn show(kernel: Kernel) {
    let plan = Plan::of([Machine::target("target"), Machine::node("a"), Machine::node("b")]).kernel(kernel);
    let Some(lab) = plan.start() else { return };
    open(&lab);
    let only = std::env::var("BOWLINE_ROW").unwrap_or_default();
    let rows: Vec<&Row> = ROWS.iter().filter(|(name, _)| name.contains(&only)).collect();
    for (name, row) in &rows {
        let begun = Instant::now();
        let thread = std::thread::current();
        println!("{}: {name}", thread.name().unwrap_or_default());
        row(&lab);
        for node in ["a", "b"] {
            disconnect_all(lab.vm(node));
        }
        println!("  shown in {:.1} s", begun.elapsed().as_secs_f64());
    }
    say(&format!("kernel: {} facts shown on {}", rows.len(), lab.vm("a").sh("uname -r").trim()));
}

fn machines(lab: &VmLab) -> (&Vm, &Vm, &Vm) {
    (lab.vm("target"), lab.vm("a"), lab.vm("b"))
}

fn unlinked_host_writes_on(lab: &VmLab) {
    let (target, a, _) = machines(lab);
    let volume = Export::new("unlinked", 1);
    export(target, &volume);
    let disk = connect(a, target, &volume, Manner::Quick);
    let mut writer = a.stamp(&disk, 1, "direct");
    writer.more(10);
    fence(target, &volume, &[Step::UnlinkHost]);
    // Checked when a controller is created, and never again.
    writer.more(100);
    assert_eq!(writer.stop().errors, [0; 0]);
    disconnect_all(a);
    assert!(try_connect(a, target, &volume, Manner::Quick).is_none(), "a new login is refused");
    fence(target, &volume, &FENCE[1..]);
}

fn disabled_fails_and_comes_back(lab: &VmLab) {
    let (target, a, _) = machines(lab);
    let volume = Export::new("disabled", 1);
    export(target, &volume);
    // The very same controller all the time: whoever logs in anew is asked who it is.
    let disk = connect(a, target, &volume, Manner::Patient);
    let mut writer = a.stamp(&disk, 1, "direct stubborn");
    writer.more(10);
    fence(target, &volume, &[Step::UnlinkHost, Step::Disable]);
    writer.must_fail_within(SOON);
    let before = target.stamps(&volume.file, 256);
    target.sh(&format!("echo 1 >/sys/kernel/config/nvmet/subsystems/{}/namespaces/1/enable", volume.nqn));
    writer.more(10);
    assert_ne!(target.stamps(&volume.file, 256), before, "so a namespace is never enabled again");
    writer.stop();
    fence(target, &volume, &FENCE[1..]);
}

/// Sixteen writers and a disk that does two writes in a second: there is always much on its way.
fn busy<T>(target: &Vm, a: &Vm, volume: &Export, then: impl FnOnce() -> T) -> T {
    export(target, volume);
    target.sh(&format!("dd if=/dev/zero of={} bs=1M count=1 conv=notrunc,fsync 2>/dev/null", volume.file));
    // Sixteen writes shall be sixteen.
    target.sh("cd /sys/block/vdb/queue && echo none >scheduler && echo 2 >nomerges");
    let disk = connect(a, target, volume, Manner::Quick);
    let mut writer = a.stamp(&disk, 1, "direct threads=16");
    writer.more(64);
    target.set_disk_speed(Speed::WritesPerSecond(4));
    writer.more(1);
    let seen = then();
    target.set_disk_speed(Speed::Full);
    writer.must_fail_within(SOON);
    writer.stop();
    seen
}

/// Whether something reaches the file from this moment on.
fn changes_from_now(target: &Vm, volume: &Export) -> bool {
    let before = target.stamps(&volume.file, 256);
    // Sixteen writes need four seconds.
    std::thread::sleep(Duration::from_secs(5));
    target.stamps(&volume.file, 256) != before
}

fn dropped_port_does_not_wait(lab: &VmLab) {
    let (target, a, _) = machines(lab);
    let volume = Export::new("dropped", 1);
    let is_changed = busy(target, a, &volume, || {
        fence(target, &volume, &FENCE[..2]);
        changes_from_now(target, &volume)
    });
    assert!(is_changed, "if this kernel waits here, the fence may rest on less");
    fence(target, &volume, &FENCE[2..]);
}

fn fence_leaves_no_write(lab: &VmLab) {
    let (target, a, b) = machines(lab);
    let other = Export::new("other", 1);
    export(target, &other);
    let disk = connect(b, target, &other, Manner::Quick);
    let mut bystander = b.stamp(&disk, 1, "direct pause-ms=5");
    bystander.more(10);
    let rounds = if crate::is_thorough() { 5 } else { 1 };
    for round in 1..=rounds {
        let volume = Export::new("fenced", round);
        let is_changed = busy(target, a, &volume, || {
            fence(target, &volume, &FENCE);
            changes_from_now(target, &volume)
        });
        assert!(!is_changed, "round {round}: something was written after the fence");
        disconnect_all(a);
    }
    bystander.more(10);
    assert_eq!(bystander.stop().errors, [0; 0], "another volume on the same port");
    disconnect_all(b);
    fence(target, &other, &FENCE);
}

fn hung_disk_keeps_waiting(lab: &VmLab) {
    let (target, a, b) = machines(lab);
    let (volume, other) = (Export::new("hung", 1), Export::new("not-hung", 1));
    for volume in [&volume, &other] {
        export(target, volume);
    }
    let disk = connect(a, target, &volume, Manner::Patient);
    let mut writer = a.stamp(&disk, 1, "direct threads=4");
    writer.more(10);
    target.set_disk_speed(Speed::Hung);
    wait_for("the writer to stop", SOON, || {
        let before = writer.told();
        std::thread::sleep(Duration::from_secs(1));
        (writer.told() == before).then_some(())
    });
    let mut fenced = target.start_sh(&fencing(&volume, &FENCE));
    assert_eq!(fenced.wait_for(Duration::from_secs(3)), None, "what is not drained is not fenced");
    let mut login = b.start_sh(&login(target, &other, Manner::Quick));
    assert_eq!(
        login.wait_for(Duration::from_secs(3)),
        None,
        "a login waits for the drain of another's volume"
    );
    target.set_disk_speed(Speed::Full);
    fenced.succeed();
    login.wait();
    writer.stop();
    fence(target, &other, &FENCE);
}

const DIRTY: u64 = 64;

/// Node a has written and not flushed, is fenced, b writes the same blocks, is fenced too, and a is granted the volume again under a name. How
/// many of its old writes arrive?
fn old_writes_that_arrive(lab: &VmLab, old: &Export, new: &Export) -> usize {
    let (target, a, b) = machines(lab);
    // An hour, in which nothing is written back on its own.
    a.sh("for name in writeback expire; do echo 360000 >/proc/sys/vm/dirty_${name}_centisecs; done");
    export(target, old);
    let first = connect(a, target, old, Manner::Patient);
    // Somebody has the disk open all the time, as a mount would.
    let mut holder = a.start_sh(&format!("exec 3<>{first}; echo open; exec sleep 1000"));
    holder.wait_until("the disk to be open", SOON, |out| out.contains("open"));
    let dirty = a.stamp(&first, 1, &format!("lazy count={DIRTY} writes={DIRTY}")).finish();
    assert_eq!(dirty.count, DIRTY as usize);
    fence(target, old, &FENCE);

    let next = Export { file: old.file.clone(), ..Export::new("next-holder", old.disk_digits) };
    export(target, &next);
    let disk_of_b = connect(b, target, &next, Manner::Quick);
    b.stamp(&disk_of_b, 2, &format!("direct count={DIRTY} writes={DIRTY}")).finish();
    fence(target, &next, &FENCE);
    assert_eq!(count_of(2, &target.stamps(&old.file, DIRTY)), DIRTY as usize);

    export(target, new);
    try_connect(a, target, new, Manner::Patient).unwrap();
    wait_for("the disk to be there", SOON, || disk(a, &new.nqn));
    // All dirty pages are written, or as many as get anywhere: the others wait for the old disk, and nothing can interrupt that.
    a.start_sh("sync").wait_for(Duration::from_secs(5));
    let arrived = count_of(1, &target.stamps(&old.file, DIRTY));
    holder.signal("KILL");
    disconnect_all(a);
    fence(target, new, &FENCE);
    arrived
}

fn same_name_merges(lab: &VmLab) {
    let old = Export::new("merged", 1);
    // A controller with the number of one that the node still has is refused; that is luck, not a fence.
    let new = Export {
        nqn: old.nqn.clone(),
        disk_digits: old.disk_digits,
        controllers: 100,
        ..Export::new("merged", 3)
    };
    let arrived = old_writes_that_arrive(lab, &old, &new);
    println!("  {arrived} of {DIRTY} old writes arrived under the old name");
    assert_eq!(arrived, DIRTY as usize, "if this kernel does not merge, the fence may rest on less");
}

fn new_name_does_not_merge(lab: &VmLab) {
    let arrived = old_writes_that_arrive(lab, &Export::new("apart", 1), &Export::new("apart", 3));
    assert_eq!(arrived, 0);
}
