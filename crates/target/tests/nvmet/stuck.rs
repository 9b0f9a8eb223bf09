//! A disk that does not finish what is in flight.

use crate::lab::{Lab, grant, names, revocation};
use bowline_target::nvmet::Tree;
use bowline_target::{Target, TargetError};
use bowline_testkit::world::wait_until;
use std::path::Path;

#[test]
fn a_disk_that_does_not_finish_is_told_and_no_fence_is_pretended() {
    let lab = Lab::impatient();
    let target = lab.with(&["v", "w"]);
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    lab.kernel.stick(true);
    for again in [false, true] {
        let told = lab.revoke(&target, &revocation("v", "a", 1));
        let Err(TargetError::Refused { error }) = told else { panic!("again {again}: {told:?}") };
        // However long it has been: other words are written wherever people see them.
        let words = "the disk under volume v has not finished the writes in flight for more than 300ms; ";
        assert!(error.starts_with(words), "{error}");
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

/// What stands for it in the names of its subsystems is a digest.
#[test]
fn a_disk_that_drains_since_the_last_process_is_told_by_the_name_of_an_odd_volume() {
    let lab = Lab::impatient();
    let target = lab.with(&["odd!#v"]);
    lab.allow(&target, &grant("odd!#v", "a", 1)).unwrap();
    lab.kernel.stick(true);
    assert!(lab.revoke(&target, &revocation("odd!#v", "a", 1)).is_err());
    drop(target);
    let target = lab.open();
    let told = lab.revoke(&target, &revocation("odd!#v", "a", 1));
    let Err(TargetError::Refused { error }) = told else { panic!("{told:?}") };
    assert!(error.starts_with("the disk under volume odd!#v has not finished"), "{error}");
    lab.kernel.stick(false);
    lab.revoke(&target, &revocation("odd!#v", "a", 1)).unwrap();
    lab.nothing_is_left();
}

/// A test that fails does not wait for a disk that answers nobody.
struct Heals<'a>(&'a Lab);

impl Drop for Heals<'_> {
    fn drop(&mut self) {
        self.0.kernel.stick(false);
    }
}

#[test]
fn of_several_exports_that_drain_none_waits_for_another_to_be_begun() {
    let lab = Lab::endlessly_patient();
    let target = lab.with(&["v"]);
    for epoch in 1..=3 {
        lab.allow(&target, &grant("v", "a", epoch)).unwrap();
    }
    lab.kernel.stick(true);
    std::thread::scope(|threads| {
        let fence = threads.spawn(|| lab.revoke(&target, &revocation("v", "a", 3)));
        let _heals = Heals(&lab);
        wait_until("all of them to be taken from their ports", || {
            lab.kernel.names("ports/4421/subsystems").is_empty().then_some(())
        });
        lab.kernel.stick(false);
        fence.join().unwrap().unwrap();
    });
    lab.nothing_is_left();
}

/// The disk under its volume does not finish what another node wrote, and is told by its name.
#[test]
fn whoever_is_shut_out_of_a_volume_whose_disk_is_known_to_be_stuck_gets_at_it_no_more() {
    let lab = Lab::impatient();
    let target = lab.with(&["v"]);
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    lab.allow(&target, &grant("v", "b", 2)).unwrap();
    lab.kernel.stick(true);
    for from in ["a", "b"] {
        let told = lab.revoke(&target, &revocation("v", from, 2));
        let Err(TargetError::Refused { error }) = told else { panic!("{from}: {told:?}") };
        assert!(error.starts_with("the disk under volume v has not finished"), "{error}");
    }
    lab.only_these(&target, &[]);
    lab.kernel.stick(false);
    for from in ["a", "b"] {
        lab.revoke(&target, &revocation("v", from, 2)).unwrap();
    }
    lab.nothing_is_left();
}

/// The record let it in still, and a namespace that is closing says that it is not open.
#[test]
fn a_new_process_does_not_put_up_again_what_was_cut_off_from_a_stuck_disk() {
    let lab = Lab::impatient();
    let target = lab.with(&["v"]);
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    lab.allow(&target, &grant("v", "b", 2)).unwrap();
    lab.kernel.stick(true);
    let _heals = Heals(&lab);
    for from in ["a", "b"] {
        lab.revoke(&target, &revocation("v", from, 2)).unwrap_err();
    }
    drop(target);
    lab.kernel.done();
    let target = lab.open();
    lab.only_these(&target, &[]);
    lab.kernel.stick(false);
    // As every few seconds: what the record lets in is shown if it is not.
    wait_until("what drains to be gone", || lab.kernel.names("subsystems").is_empty().then_some(()));
    lab.runtime.block_on(target.show_missing());
    lab.only_these(&target, &[]);
    for from in ["a", "b"] {
        lab.revoke(&target, &revocation("v", from, 2)).unwrap();
    }
    lab.nothing_is_left();
    let opened = lab.kernel.done().into_iter().filter(|step| step.starts_with("write \"1\""));
    assert_eq!(opened.collect::<Vec<_>>(), [""; 0]);
}

/// Each was waited for before the next one was begun, and nobody was answered meanwhile.
#[test]
fn a_start_with_many_volumes_of_a_stuck_disk_waits_for_all_of_them_at_once() {
    let lab = Lab::endlessly_patient();
    let names: Vec<String> = (0..12).map(|number| format!("v{number}")).collect();
    let target = lab.with(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for name in &names {
        lab.allow(&target, &grant(name, "a", 1)).unwrap();
    }
    drop(target);
    // As an earlier process left them: being closed, and their records let the node in.
    for name in lab.kernel.names("subsystems") {
        let enable = format!("subsystems/{name}/namespaces/1/enable");
        lab.kernel.write(Path::new(&enable), "0").unwrap();
    }
    lab.kernel.stick(true);
    std::thread::scope(|threads| {
        let opening = threads.spawn(|| lab.open());
        let _heals = Heals(&lab);
        wait_until("all of them to be begun", || (lab.kernel.waiting() == names.len()).then_some(()));
        lab.kernel.stick(false);
        assert!(opening.join().unwrap().missing().is_empty());
    });
    assert_eq!(lab.kernel.admitted().len(), names.len());
}

/// The kernel counts what is in flight anew for one that is opened, and whoever closes that does not wait for what was in flight before.
#[test]
fn a_namespace_that_is_closing_is_not_opened_again() {
    let lab = Lab::impatient();
    let target = lab.with(&["v"]);
    let grant = grant("v", "a", 1);
    lab.allow(&target, &grant).unwrap();
    let namespace = format!("subsystems/{}/namespaces/1", names(&target, &grant).subsystem);
    lab.kernel.stick(true);
    lab.kernel.done();
    let enable = format!("{namespace}/enable");
    std::thread::scope(|threads| {
        let _heals = Heals(&lab);
        let closing = threads.spawn(|| lab.kernel.write(Path::new(&enable), "0").unwrap());
        wait_until("it to be closing", || (lab.kernel.attribute(&enable) == "0").then_some(()));
        let told = lab.allow(&target, &grant);
        assert!(matches!(&told, Err(TargetError::Refused { .. })), "{told:?}");
        assert_eq!(lab.kernel.attribute(&enable), "0");
        lab.kernel.stick(false);
        closing.join().unwrap();
    });
    lab.allow(&target, &grant).unwrap();
    lab.only_these(&target, &[grant]);
    let done = lab.kernel.done();
    let at = |step: &str| done.iter().position(|done| *done == step);
    let (removed, opened) = (format!("remove {namespace}"), format!("write \"1\" to {namespace}/enable"));
    assert!(at(&removed).is_some() && at(&removed) < at(&opened), "{done:?}");
}

/// It took as long as all of them one after the other, and nobody could ask the agent anything meanwhile.
#[test]
fn a_start_begins_to_take_away_all_that_drains_before_it_waits_for_one() {
    let lab = Lab::endlessly_patient();
    let target = lab.with(&["v", "w", "x"]);
    for id in ["v", "w", "x"] {
        lab.allow(&target, &grant(id, "a", 1)).unwrap();
    }
    drop(target);
    for id in ["v", "w", "x"] {
        std::fs::write(lab.directory.join(format!("vol-{id}.json")), "damaged").unwrap();
    }
    lab.kernel.stick(true);
    std::thread::scope(|threads| {
        let start = threads.spawn(|| drop(lab.open()));
        let _heals = Heals(&lab);
        wait_until("all of them to be taken from their ports", || {
            lab.kernel.names("ports/4421/subsystems").is_empty().then_some(())
        });
        assert_eq!(lab.kernel.names("subsystems").len(), 3, "they drain");
        lab.kernel.stick(false);
        start.join().unwrap();
    });
    lab.nothing_is_left();
}
