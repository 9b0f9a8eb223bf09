//! What went wrong in the driver before this one, each by its name.

use crate::lab::{MIB, connect, cut, grant, listed, order, plain, revocation, shown, snapshot, volume};
use bowline_target::{Item, Progress, Provision, ProvisionError, Target, TargetError};
use bowline_testkit::Mishap;
use bowline_testkit::routeros::{POOL, POOL_SIZE};

#[tokio::test]
async fn size_truncation_one_and_a_half_gigabytes_became_one() {
    let (link, target) = plain(&[]).await;
    link.device.leave_free(POOL, 4 << 30);
    for size in [3 << 29, 3 * MIB, 37 * MIB] {
        let id = format!("v{size}");
        assert_eq!(target.create(&order(&id, size, None), &Progress::default()).await, Ok(size));
        assert_eq!(target.grow(&volume(&id), size + MIB).await, Ok(size + MIB));
        assert_eq!(target.volume(&volume(&id)).await.unwrap().unwrap().size, size + MIB);
        target.delete(&volume(&id)).await.unwrap();
    }
    let odd = target.create(&order("odd", 3 * MIB / 2, None), &Progress::default()).await;
    assert!(matches!(odd, Err(ProvisionError::Refused { .. })), "refused, never rounded: {odd:?}");
}

#[tokio::test]
async fn grace_period_double_attach_two_nodes_had_it_at_once() {
    let (link, target) = plain(&["v"]).await;
    target.allow(&grant("v", "a", 1)).await.unwrap();
    // However long ago the first was last heard of: it is in until it is proven out.
    for _ in 0..3 {
        assert!(matches!(target.allow(&grant("v", "b", 2)).await, Err(TargetError::Refused { .. })));
    }
    assert_eq!(listed(&target).await, [("v".to_owned(), 1, "a".to_owned())]);
    target.revoke(&revocation("v", "a", 1)).await.unwrap();
    target.allow(&grant("v", "b", 2)).await.unwrap();
    assert!(matches!(target.allow(&grant("v", "a", 1)).await, Err(TargetError::NeverAgain(_))));
    let mut hosts: Vec<_> = link.device.all_doors().into_iter().map(|door| door.host).collect();
    hosts.dedup();
    assert_eq!(hosts.len(), 2, "first the one, then the other: {hosts:?}");
}

#[tokio::test]
async fn unreachable_was_reported_as_not_found() {
    let (link, target) = plain(&["v"]).await;
    link.set_up(false);
    assert!(matches!(target.volume(&volume("v")).await, Err(ProvisionError::Unreachable { .. })));
    assert!(matches!(target.delete(&volume("v")).await, Err(ProvisionError::Unreachable { .. })));
    assert!(matches!(target.grow(&volume("v"), 2 * MIB).await, Err(ProvisionError::Unreachable { .. })));
    assert!(matches!(target.stored_snapshot(&snapshot("s")).await, Err(ProvisionError::Unreachable { .. })));
    assert!(matches!(target.delete_snapshot(&snapshot("s")).await, Err(ProvisionError::Unreachable { .. })));
    assert!(matches!(target.capacity().await, Err(ProvisionError::Unreachable { .. })));
    let taken = target.snapshot(&[cut("s", "v")], &Progress::default()).await;
    assert!(matches!(taken, Err(ProvisionError::Unreachable { .. })));
    assert!(matches!(target.allow(&grant("v", "a", 1)).await, Err(TargetError::Unreachable { .. })));
    assert!(matches!(target.revoke(&revocation("v", "a", 1)).await, Err(TargetError::Unreachable { .. })));
    assert!(matches!(target.revoke(&revocation("gone", "a", 1)).await, Err(TargetError::Unreachable { .. })));
    link.set_up(true);
    assert_eq!(target.volume(&volume("v")).await.unwrap().unwrap().size, MIB);
}

#[tokio::test]
async fn an_export_was_open_to_everybody() {
    let (link, target) = plain(&["v"]).await;
    for (epoch, node) in [(1, "a"), (2, "b")] {
        target.allow(&grant("v", node, epoch)).await.unwrap();
        target.revoke(&revocation("v", node, epoch)).await.unwrap();
    }
    target.snapshot(&[cut("s", "v")], &Progress::default()).await.unwrap();
    assert_eq!(link.device.breaches(), [""; 0]);
    assert_eq!(link.device.doors(), []);
    let shown = shown(&link.device);
    assert_eq!(shown.matches("allow-host-name=").count(), 2, "{shown}");
    assert!(!shown.contains("allow-host-name=\"\""), "also what is not exported: {shown}");
}

#[tokio::test]
async fn state_was_rebuilt_empty_after_a_failed_list() {
    let (link, target) = plain(&["v"]).await;
    target.allow(&grant("v", "a", 1)).await.unwrap();
    link.set_up(false);
    assert!(matches!(target.exports(None, 10).await, Err(TargetError::Unreachable { .. })));
    assert!(matches!(target.items(None, 10).await, Err(ProvisionError::Unreachable { .. })));
    link.set_up(true);
    for cut_after in 0..20 {
        link.go_wrong(0, Mishap::CutOff);
        let page = target.exports(None, 10).await;
        assert!(matches!(page, Err(TargetError::Unreachable { .. })), "{cut_after}: {page:?}");
    }
    // A list of another device, or of one whose pool is not there, is no list of ours.
    link.device.lose_pool(POOL);
    link.device.add_pool("another", POOL_SIZE);
    assert!(matches!(target.exports(None, 10).await, Err(TargetError::Unreachable { .. })));
    assert!(matches!(
        target.revoke(&revocation("other", "a", 1)).await,
        Err(TargetError::Unreachable { .. })
    ));
    link.device.add_pool(POOL, POOL_SIZE);
    assert_eq!(listed(&connect(&link).await).await, [("v".to_owned(), 1, "a".to_owned())]);
    assert_eq!(target.items(None, 10).await, Ok(vec![Item::Volume(volume("v"))]));
}

#[tokio::test]
async fn a_space_in_a_path_became_a_second_parameter() {
    let (link, target) = plain(&[]).await;
    for id in ["a\"b", "a$b", "a;b", "a[b]", "a=b", "a?b", "a~b"] {
        let made = target.create(&order(id, MIB, None), &Progress::default()).await;
        assert!(matches!(made, Err(ProvisionError::Refused { .. })), "{id}: {made:?}");
        assert!(matches!(target.allow(&grant(id, "a", 1)).await, Err(TargetError::Refused { .. })));
        assert!(matches!(target.allow(&grant("v", id, 1)).await, Err(TargetError::Refused { .. })));
        target.revoke(&revocation(id, "a", 1)).await.expect("what cannot be there lets nobody in");
        target.delete(&volume(id)).await.expect("what cannot be there is deleted");
        assert_eq!(target.volume(&volume(id)).await, Ok(None));
    }
    assert_eq!(link.device.slots(), [""; 0]);
}
