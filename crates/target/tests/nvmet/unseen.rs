//! The kernel's tree is not to be seen, and the kernel serves what was in it all the same.

use crate::lab::{Lab, grant, revocation};
use bowline_target::TargetError;
use bowline_testkit::world::wait_until;
use std::fs;
use std::path::PathBuf;

/// The tree, taken away from where it is looked for.
struct Unmounted {
    root: PathBuf,
    away: PathBuf,
}

impl Unmounted {
    fn of(lab: &Lab, leaves_mount_point: bool) -> Self {
        let unmounted = Self { root: lab.directory.join("../nvmet"), away: lab.directory.join("../away") };
        fs::rename(&unmounted.root, &unmounted.away).unwrap();
        if leaves_mount_point {
            fs::create_dir(&unmounted.root).unwrap();
        }
        unmounted
    }

    fn mount(self) {
        let _ = fs::remove_dir(&self.root);
        fs::rename(self.away, self.root).unwrap();
    }
}

fn is_not_proven(told: &Result<(), TargetError>, what: &str) {
    let Err(TargetError::Unreachable { error }) = told else { panic!("{what}: {told:?}") };
    assert!(error.contains("is configfs mounted?"), "{what}: {error}");
}

#[test]
fn a_fence_whose_tree_is_not_mounted_is_not_proven() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    let kept = grant("v", "a", 1);
    lab.allow(&target, &kept).unwrap();
    for leaves_mount_point in [false, true] {
        let unmounted = Unmounted::of(&lab, leaves_mount_point);
        for (volume, again) in [("v", false), ("v", true), ("w", false), ("never-here", false)] {
            let told = lab.revoke(&target, &revocation(volume, "a", 1));
            is_not_proven(&told, &format!("{volume}, again {again}, mount point {leaves_mount_point}"));
        }
        let late = lab.allow(&target, &kept);
        is_not_proven(&late, "the proof that an answer to a late grant is");
        unmounted.mount();
        lab.only_these(&target, std::slice::from_ref(&kept));
    }
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.nothing_is_left();
}

#[test]
fn a_fence_whose_tree_goes_in_the_middle_of_it_is_not_proven() {
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    lab.kernel.stick(true);
    let told = std::thread::scope(|threads| {
        let fence = threads.spawn(|| lab.revoke(&target, &revocation("v", "a", 1)));
        wait_until("the fence to begin", || {
            lab.kernel.done().iter().any(|step| step.starts_with("unlink ports/4421")).then_some(())
        });
        let unmounted = Unmounted::of(&lab, false);
        lab.kernel.stick(false);
        let told = fence.join().unwrap();
        unmounted.mount();
        told
    });
    is_not_proven(&told, "every step found nothing to do");
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.nothing_is_left();
}

#[test]
fn no_target_is_opened_over_a_tree_that_is_not_mounted() {
    let lab = Lab::new();
    drop(lab.with(&["v"]));
    let unmounted = Unmounted::of(&lab, true);
    let told = crate::lab::open(&lab.directory, std::sync::Arc::clone(&lab.kernel)).unwrap_err();
    assert!(told.to_string().contains("is configfs mounted?"), "{told}");
    unmounted.mount();
}
