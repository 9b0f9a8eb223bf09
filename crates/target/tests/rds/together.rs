//! Two controllers at once, each sure that it leads, with a device that loses and delays commands.

use crate::device::{Device, Firmware, MISHAPS, PLAIN};
use crate::lab::{connect, cut, grant, lab, revocation, volume};
use bowline_target::rds::RdsTarget;
use bowline_target::{Progress, Provision, Target, TargetError};
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

async fn controller(device: Arc<Device>, target: RdsTarget, proofs: Arc<Mutex<Vec<Proof>>>) {
    for _ in 0..12 {
        let (node, epoch, what) = {
            let mut state = device.state();
            if state.random(4) == 0 {
                let (after, which) = (state.random(4), state.random(MISHAPS.len() as u64));
                state.mishap =
                    Some((usize::try_from(after).unwrap(), MISHAPS[usize::try_from(which).unwrap()]));
            }
            let node = ["a", "b", "c"][usize::try_from(state.random(3)).unwrap()];
            (node, 1 + state.random(8), state.random(5))
        };
        let prove = |epoch| {
            let at = device.state().admitted.len();
            proofs.lock().unwrap().push(Proof { node, epoch, at });
        };
        match what {
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
    let (device, first) = lab(firmware, &["v"]).await;
    let second = connect(&device).await;
    device.state().seed = seed;
    let proofs: Arc<Mutex<Vec<Proof>>> = Arc::default();
    let tasks = [first, second]
        .map(|target| tokio::spawn(controller(Arc::clone(&device), target, Arc::clone(&proofs))));
    for task in tasks {
        task.await.unwrap();
    }
    device.settle();
    let state = device.state();
    let mut newest = 0;
    for (at, (_, nqn, host)) in state.admitted.iter().enumerate() {
        assert!(!host.is_empty() || !firmware.hosts, "seed {seed}: open to all");
        let Some((node, epoch)) = granted(nqn) else {
            assert!(firmware.hosts && host.ends_with(":nobody"), "seed {seed}: {nqn} was exported to {host}");
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
        run(seed, PLAIN).await;
        run(seed, Firmware { complains: true, gentle: true, ..PLAIN }).await;
        run(seed, Firmware { hosts: false, ..PLAIN }).await;
    }
}

#[tokio::test]
async fn two_that_make_grow_copy_and_delete_the_same_agree() {
    for seed in 0..60 {
        let (device, first) = lab(PLAIN, &["v"]).await;
        let second = connect(&device).await;
        device.state().seed = seed;
        let progress = Progress::default();
        let order = crate::lab::order("n", 1 << 20, None);
        let (one, other) = tokio::join!(first.create(&order, &progress), second.create(&order, &progress));
        assert_eq!((one, other), (Ok(1 << 20), Ok(1 << 20)), "seed {seed}");
        let id = volume("n");
        let (one, other) = tokio::join!(first.grow(&id, 2 << 20), second.grow(&id, 3 << 20));
        assert!(one.unwrap() >= 2 << 20 && other.unwrap() == 3 << 20, "seed {seed}: never smaller again");
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
        let (disks, files) = device.kept();
        assert_eq!((disks.len(), files.len()), (0, 0), "seed {seed}");
    }
}

fn is_worth_a_retry(error: &bowline_target::ProvisionError) -> bool {
    matches!(
        error,
        bowline_target::ProvisionError::Unreachable { .. } | bowline_target::ProvisionError::InUse { .. }
    )
}
