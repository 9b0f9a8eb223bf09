//! Many callers at once, on real threads and a real disk.

use bowline_core::{AccessMode, Ticket};
use bowline_engine::{EngineError, Patience, Withdrawal, Withdrawn};
use bowline_store::RedbStore;
use bowline_testkit::{backup, csi, volume};
use std::sync::Arc;
use std::time::Duration;

use crate::world::{LONG, World, v, withdrawal};

const VOLUMES: u64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_of_callers_never_gets_two_in_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let facts = world.volumes.remove(&v()).unwrap();
    world.volumes.extend((0..VOLUMES).map(|n| (volume(&format!("v{n}")), facts.clone())));
    let store = Arc::new(RedbStore::open(directory.path()).unwrap());
    let running = world.engine_on(store, vec![Arc::clone(&world.target) as _]).await.unwrap();
    let callers: Vec<_> = (0..64_u64)
        .map(|seed| {
            let engine = running.engine.clone();
            tokio::spawn(async move {
                let mut state = seed + 1;
                for _ in 0..30 {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let draw = |shift: u32, below: u64| (state >> shift) % below;
                    let name = volume(&format!("v{}", draw(33, VOLUMES)));
                    let ticket = wish(draw(40, 9));
                    let short = Duration::from_millis(draw(20, 20));
                    let patience = if draw(50, 2) == 0 { Patience::Wait } else { Patience::Refuse };
                    let answer = match draw(55, 2) {
                        0 => engine.withdraw(&name, withdrawal(&ticket), short).await.map(|_| ()),
                        _ => engine.submit(&name, ticket, patience, short).await.map(|_| ()),
                    };
                    assert!(matches!(answer, Ok(()) | Err(EngineError::Withdrawn(_))), "{answer:?}");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    for n in 0..VOLUMES {
        let name = volume(&format!("v{n}"));
        let out = running.engine.withdraw(&name, Withdrawal::default(), LONG).await.unwrap();
        assert_eq!(out, Withdrawn::Out);
        assert_eq!(world.target.open(&name), [], "{name} is reached by nobody");
    }
    running.quiet().await;
    assert_eq!(world.target.violations(), [""; 0]);
    assert_eq!(running.metric("bowline_engine_queue "), "0");
}

fn wish(n: u64) -> Ticket {
    let on = ["a", "b", "c"][usize::try_from(n % 3).unwrap()];
    match n / 3 {
        0 => csi(on),
        1 => backup(on),
        _ => {
            let reader = Ticket { access: AccessMode::MultiNodeReaderOnly, ..csi(on) };
            Ticket { id: bowline_core::TicketId::new(format!("reader-{on}")).unwrap(), ..reader }
        }
    }
}
