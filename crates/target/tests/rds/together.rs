//! Two controllers at once, each sure that it leads, with a device that loses and delays commands.

use crate::lab::{careless, complaining, connect, cut, grant, lab, revocation, volume};
use bowline_target::rds::RdsTarget;
use bowline_target::{Progress, Provision, Target, TargetError};
use bowline_testkit::routeros::{Door, Firmware};
use bowline_testkit::{Dice, FaultyConsole, Mishap};
use std::sync::{Arc, Mutex};

/// A proof that a node reaches nothing up to an epoch, and how much had been seen of who could connect when it was given.
struct Proof {
    node: &'static str,
    epoch: u64,
    at: usize,
}

/// The node and epoch in the name of an export.
fn granted(nqn: &str) -> Option<(&str, u64)> {
    let mut parts = nqn.rsplit(':');
    let epoch = parts.next()?.strip_prefix('e')?.parse().ok()?;
    Some((parts.nth(1)?, epoch))
}

async fn controller(mut dice: Dice, link: FaultyConsole, target: RdsTarget, proofs: Arc<Mutex<Vec<Proof>>>) {
    for _ in 0..12 {
        if dice.below(4) == 0 {
            link.go_wrong(dice.pick(&[0, 1, 2, 3]), dice.pick(&Mishap::ALL));
        }
        let (node, epoch) = (dice.pick(&["a", "b", "c"]), 1 + dice.below(8));
        let prove = |epoch| {
            let standing = link.device.doors();
            let is_in = |door: &Door| granted(&door.nqn).is_some_and(|(to, at)| to == node && at <= epoch);
            assert!(!standing.iter().any(is_in), "node {node} was proven out up to {epoch}: {standing:?}");
            let at = link.device.all_doors().len();
            proofs.lock().unwrap().push(Proof { node, epoch, at });
        };
        match dice.below(5) {
            0 | 1 => {
                if let Err(TargetError::NeverAgain(_)) = target.allow(&grant("v", node, epoch)).await {
                    prove(epoch);
                }
            }
            2 | 3 => {
                if target.revoke(&revocation("v", node, epoch)).await.is_ok() {
                    prove(epoch);
                }
            }
            _ => drop(target.exports(None, 10).await),
        }
    }
}

async fn run(seed: u64, firmware: Firmware) {
    let knows_hosts = firmware.knows_allow_list;
    let (link, first) = lab(firmware, &["v"]).await;
    let second = connect(&link).await;
    link.seed(seed);
    let proofs: Arc<Mutex<Vec<Proof>>> = Arc::default();
    let tasks = [(first, 1), (second, 2)].map(|(target, of)| {
        let dice = Dice::new(seed + (of << 32));
        tokio::spawn(controller(dice, link.clone(), target, Arc::clone(&proofs)))
    });
    for task in tasks {
        task.await.unwrap();
    }
    link.settle();
    assert_eq!(link.device.breaches(), [""; 0], "seed {seed}: open to all");
    let mut newest = 0;
    for (at, door) in link.device.all_doors().iter().enumerate() {
        let Some((node, epoch)) = granted(&door.nqn) else {
            let to_nobody = door.host.as_ref().is_some_and(|host| host.ends_with(":nobody"));
            assert!(knows_hosts && to_nobody, "seed {seed}: {door:?}");
            continue;
        };
        assert!(epoch >= newest, "seed {seed}: epoch {epoch} after {newest}");
        newest = epoch;
        let broken = proofs
            .lock()
            .unwrap()
            .iter()
            .any(|proof: &Proof| proof.node == node && proof.epoch >= epoch && proof.at <= at);
        assert!(!broken, "seed {seed}: node {node} was proven out up to epoch {epoch}");
    }
}

#[tokio::test]
async fn no_proof_is_ever_broken() {
    for seed in 0..100 {
        run(seed, Firmware::default()).await;
        run(seed, Firmware { status_of_errors: 0, ..complaining() }).await;
        run(seed, Firmware { knows_allow_list: false, ..Firmware::default() }).await;
    }
}

#[tokio::test]
async fn two_that_make_grow_copy_and_delete_the_same_agree() {
    for seed in 0..60 {
        let (link, first) = lab(careless(), &["v"]).await;
        let second = connect(&link).await;
        link.seed(seed);
        let progress = Progress::default();
        let order = crate::lab::order("n", 1 << 20, None);
        let (one, other) = tokio::join!(first.create(&order, &progress), second.create(&order, &progress));
        assert_eq!((one, other), (Ok(1 << 20), Ok(1 << 20)), "seed {seed}");
        let id = volume("n");
        let (one, other) = tokio::join!(first.grow(&id, 2 << 20), second.grow(&id, 3 << 20));
        assert!(one.unwrap() >= 2 << 20 && other.unwrap() == 3 << 20, "seed {seed}");
        let grown = first.volume(&id).await.unwrap().unwrap();
        assert_eq!(grown.size, 3 << 20, "seed {seed}: never smaller again");
        let cuts = [cut("s", "v")];
        let (one, other) = tokio::join!(first.snapshot(&cuts, &progress), second.snapshot(&cuts, &progress));
        // One may have cleared away what the other had begun; then the other asks again.
        for answer in [one, other] {
            assert!(
                answer.is_ok() || answer.as_ref().is_err_and(is_worth_a_retry),
                "seed {seed}: {answer:?}"
            );
        }
        first.snapshot(&cuts, &progress).await.unwrap();
        let (one, other) = tokio::join!(first.delete(&id), second.delete(&id));
        assert_eq!((one, other), (Ok(()), Ok(())), "seed {seed}");
        first.delete(&volume("v")).await.unwrap();
        first.delete_snapshot(&cuts[0].snapshot).await.unwrap();
        assert_eq!((link.device.slots(), link.device.files()), (vec![], vec![]), "seed {seed}");
    }
}

fn is_worth_a_retry(error: &bowline_target::ProvisionError) -> bool {
    matches!(
        error,
        bowline_target::ProvisionError::Unreachable { .. } | bowline_target::ProvisionError::InUse { .. }
    )
}
