//! Who leads, among processes that come, go, and are cut off.

use bowline_cluster::lease::{LeaseSettings, acquire};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::time::{Duration, Instant};

use crate::world::{LONG, TURN, lab};

fn settings(name: &str, identity: &str) -> LeaseSettings {
    LeaseSettings {
        duration: Duration::from_secs(6),
        renew_deadline: Duration::from_secs(4),
        period: Duration::from_millis(500),
        ..LeaseSettings::new("default", name, identity)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_given_back_is_taken_within_a_second() {
    let Some(lab) = lab() else { return };
    let _turn = TURN.lock().await;
    let client = lab.client().await;
    let (first, _lost) = acquire(client.clone(), settings("handover", "one")).await.unwrap();
    assert_eq!(first.may_write(), Ok(()));
    let second = tokio::spawn(acquire(client.clone(), settings("handover", "two")));
    // Longer than its duration: whoever renews keeps it.
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(!second.is_finished(), "two lead at once");
    let began = Instant::now();
    first.release().await;
    assert!(first.may_write().is_err());
    let (second, _lost) = tokio::time::timeout(LONG, second).await.unwrap().unwrap().unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(second.may_write(), Ok(()));
    let lease = Api::<Lease>::namespaced(client, "default").get("handover").await.unwrap();
    let spec = lease.spec.unwrap();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("two"), Some(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_taken_by_another_is_lost() {
    let Some(lab) = lab() else { return };
    let _turn = TURN.lock().await;
    let client = lab.client().await;
    let (one, mut lost) = acquire(client.clone(), settings("stolen", "one")).await.unwrap();
    let api = Api::<Lease>::namespaced(client, "default");
    let theft = json!({"spec": {"holderIdentity": "thief"}});
    api.patch("stolen", &PatchParams::default(), &Patch::Merge(&theft)).await.unwrap();
    let reason = tokio::time::timeout(LONG, lost.lost()).await.unwrap();
    assert!(reason.contains("thief"), "{reason}");
    assert!(one.may_write().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_dies_is_followed_when_its_lease_is_over() {
    let Some(lab) = lab() else { return };
    let _turn = TURN.lock().await;
    let client = lab.client().await;
    let dead = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // Its tasks end with its runtime, as they do with a process.
    let death = std::thread::spawn(move || {
        let led = dead.block_on(async {
            let client = lab.client().await;
            acquire(client, settings("dead", "one")).await.unwrap()
        });
        dead.shutdown_background();
        led
    });
    let (held, lost) = death.join().unwrap();
    let began = Instant::now();
    let (second, _lost) =
        tokio::time::timeout(LONG, acquire(client, settings("dead", "two"))).await.unwrap().unwrap();
    assert!(began.elapsed() >= Duration::from_secs(5), "it was taken while it was another's");
    assert_eq!(second.may_write(), Ok(()));
    assert!(held.may_write().is_err(), "the one that was cut off refuses by itself");
    drop(lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_renew_stops_before_another_may_lead() {
    let Some(lab) = lab() else { return };
    let _turn = TURN.lock().await;
    let client = lab.client().await;
    let (one, mut lost) = acquire(client, settings("frozen", "one")).await.unwrap();
    let began = Instant::now();
    lab.freeze_api_server(true);
    let reason = tokio::time::timeout(LONG, lost.lost()).await;
    let (took, refused) = (began.elapsed(), one.may_write());
    lab.freeze_api_server(false);
    assert!(reason.is_ok(), "the lease is still held after {took:?}");
    assert!(took < Duration::from_secs(6), "{took:?} is longer than others wait");
    assert!(refused.is_err());
}
