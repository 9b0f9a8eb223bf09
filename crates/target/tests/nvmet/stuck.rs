//! A disk that does not finish what is in flight.

use crate::lab::{Lab, grant, names, revocation};
use bowline_target::{Target, TargetError};

#[test]
fn a_disk_that_does_not_finish_is_told_and_no_fence_is_pretended() {
    let lab = Lab::impatient();
    let target = lab.with(&["v", "w"]);
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    lab.kernel.stick(true);
    for again in [false, true] {
        let told = lab.revoke(&target, &revocation("v", "a", 1));
        let Err(TargetError::Refused { error }) = told else { panic!("again {again}: {told:?}") };
        assert!(
            error.starts_with("the disk under volume v has not finished the writes in flight"),
            "{error}"
        );
    }
    let late = lab.allow(&target, &grant("v", "a", 1));
    assert!(matches!(late, Err(TargetError::Refused { .. })), "no proof while it drains: {late:?}");
    let listed = lab.runtime.block_on(target.exports(None, 10)).unwrap();
    assert_eq!(listed.listings.len(), 1, "what may still reach the bytes is listed");
    lab.only_these(&target, &[]);
    // Volumes that do not wait for that disk go on.
    lab.allow(&target, &grant("w", "b", 1)).unwrap();
    lab.only_these(&target, &[grant("w", "b", 1)]);

    lab.kernel.done();
    lab.kernel.stick(false);
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    let name = names(&target, &grant("v", "a", 1)).subsystem;
    let drains = lab.kernel.done().into_iter().filter(|step| step.contains(&name) && step.contains("enable"));
    assert_eq!(drains.count(), 1, "the one that was under way was joined");
    assert!(matches!(lab.allow(&target, &grant("v", "a", 1)), Err(TargetError::NeverAgain(_))));
}

#[test]
fn a_new_process_does_not_put_up_again_what_was_draining() {
    let lab = Lab::impatient();
    let target = lab.with(&["v"]);
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    lab.kernel.stick(true);
    assert!(lab.revoke(&target, &revocation("v", "a", 1)).is_err());
    drop(target);
    let target = lab.open();
    lab.only_these(&target, &[]);
    assert!(lab.revoke(&target, &revocation("v", "a", 1)).is_err(), "it drains still");
    lab.kernel.stick(false);
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.nothing_is_left();
}
