//! Volumes that no record knows of.

use async_trait::async_trait;
use bowline_controller::{Catalog, FirstSeen, OrphanRecord, OrphanRules};
use bowline_core::{Ledger, SnapshotId, TargetId, VolumeId};
use bowline_store::{Expected, Key, record};
use bowline_target::{Cut, NewVolume, Progress, Provision};
use bowline_testkit::SimTarget;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::world::{World, create};

const HOUR: Duration = Duration::from_secs(3600);
const REPORT: OrphanRules = OrphanRules { delete: false, grace: HOUR, at_most: 10 };
const DELETE: OrphanRules = OrphanRules { delete: true, ..REPORT };

/// What outlives a catalog, and may not be readable.
#[derive(Default)]
struct Paper {
    written: Mutex<FirstSeen>,
    torn: Mutex<bool>,
    /// Who counts on every volume.
    claimed: Mutex<Option<Result<String, String>>>,
}

#[async_trait]
impl OrphanRecord for Paper {
    async fn read(&self) -> Result<FirstSeen, String> {
        if *self.torn.lock().unwrap() {
            Err("it is torn".to_owned())
        } else {
            Ok(self.written.lock().unwrap().clone())
        }
    }

    async fn claimed(&self, _: &VolumeId) -> Result<Option<String>, String> {
        self.claimed.lock().unwrap().clone().transpose()
    }

    async fn write(&self, first_seen: &FirstSeen) -> Result<(), String> {
        *self.written.lock().unwrap() = first_seen.clone();
        Ok(())
    }
}

async fn leave(world: &World, id: &str) -> VolumeId {
    leave_on(&world.target, id).await
}

async fn leave_on(target: &SimTarget, id: &str) -> VolumeId {
    let volume = VolumeId::new(id).unwrap();
    let order = NewVolume { volume: volume.clone(), name: id.to_owned(), size: 1 << 30, source: None };
    target.create(&order, &Progress::default()).await.unwrap();
    volume
}

/// Volumes that were found, whether their time was over, and whether they were deleted.
async fn look(catalog: &Catalog, paper: &Paper, rules: OrphanRules) -> Vec<(String, bool, bool)> {
    let found = catalog.look_for_orphans(paper, rules).await.unwrap();
    found.into_iter().map(|one| (one.volume.to_string(), one.ripe, one.deleted)).collect()
}

fn row(volume: &str, ripe: bool, deleted: bool) -> (String, bool, bool) {
    (volume.to_owned(), ripe, deleted)
}

#[tokio::test]
async fn an_orphan_goes_after_its_grace_period_by_the_recorded_time_and_only_if_asked_for() {
    let (mut world, paper) = (World::new(), Paper::default());
    leave(&world, "left-1").await;
    let catalog = world.catalog().await;
    let known = create(&catalog, "known").await;
    assert_eq!(look(&catalog, &paper, DELETE).await, [row("left-1", false, false)], "just seen");
    catalog.close().await;
    world.later += HOUR * 2;
    let catalog = world.catalog().await;
    leave(&world, "left-2").await;
    assert_eq!(
        look(&catalog, &paper, REPORT).await,
        [row("left-1", true, false), row("left-2", false, false)],
        "a restart forgets nothing, and nobody asked for more than to be told"
    );
    assert_eq!(catalog.orphans().await.unwrap().len(), 2);
    assert_eq!(
        look(&catalog, &paper, DELETE).await,
        [row("left-1", true, true), row("left-2", false, false)]
    );
    assert_eq!(catalog.orphans().await.unwrap().len(), 1);
    let reasons: Vec<_> = catalog.events(None, 100).into_iter().map(|event| event.reason).collect();
    assert!(
        reasons.contains(&"OrphanFound".to_owned()) && reasons.contains(&"OrphanDeleted".to_owned()),
        "{reasons:?}"
    );
    assert!(world.target.volume(&known.id).await.unwrap().is_some());
}

#[tokio::test]
async fn the_orphan_reconciler_deleted_snapshots() {
    let (mut world, paper) = (World::new(), Paper::default());
    let volume = leave(&world, "left").await;
    let cut = Cut { snapshot: SnapshotId::new("last-copy").unwrap(), name: "copy".to_owned(), volume };
    world.target.snapshot(std::slice::from_ref(&cut), &Progress::default()).await.unwrap();
    look(&world.catalog().await, &paper, DELETE).await;
    world.later += HOUR * 2;
    let catalog = world.catalog().await;
    look(&catalog, &paper, DELETE).await;
    assert!(world.target.stored_snapshot(&cut.snapshot).await.unwrap().is_some());
}

#[tokio::test]
async fn few_go_at_a_time_and_what_is_gone_is_forgotten() {
    let (mut world, paper) = (World::new(), Paper::default());
    for id in ["a", "b", "c"] {
        leave(&world, id).await;
    }
    look(&world.catalog().await, &paper, DELETE).await;
    world.later += HOUR * 2;
    let catalog = world.catalog().await;
    let gone = look(&catalog, &paper, OrphanRules { at_most: 2, ..DELETE }).await;
    assert_eq!(gone.iter().filter(|(.., deleted)| *deleted).count(), 2, "{gone:?}");
    let left = look(&catalog, &paper, REPORT).await;
    let [(id, true, false)] = &left[..] else { panic!("{left:?}") };
    let volume = VolumeId::new(id).unwrap();
    world.target.delete(&volume).await.unwrap();
    assert_eq!(look(&catalog, &paper, REPORT).await, []);
    assert_eq!(paper.written.lock().unwrap().len(), 0, "should it come back, its time begins anew");
}

#[tokio::test]
async fn whoever_has_a_ledger_may_have_somebody_in_it() {
    let (mut world, paper) = (World::new(), Paper::default());
    let volume = leave(&world, "left").await;
    look(&world.catalog().await, &paper, DELETE).await;
    world.later += HOUR * 2;
    let catalog = world.catalog().await;
    let ledger = record::encode(&Ledger::default()).unwrap();
    world.store.put(&Key::ledger(&volume), ledger, Expected::Absent).await.unwrap();
    assert_eq!(look(&catalog, &paper, DELETE).await, [row("left", true, false)]);
    assert!(world.target.volume(&volume).await.unwrap().is_some());
}

#[tokio::test]
async fn a_volume_that_a_persistent_volume_stood_for_was_deleted_as_an_orphan() {
    let (mut world, paper) = (World::new(), Paper::default());
    let volume = leave(&world, "left").await;
    look(&world.catalog().await, &paper, DELETE).await;
    world.later += HOUR * 2;
    let catalog = world.catalog().await;
    for claimed in [Ok("PersistentVolume db".to_owned()), Err("the API server does not answer".to_owned())] {
        *paper.claimed.lock().unwrap() = Some(claimed);
        assert_eq!(look(&catalog, &paper, DELETE).await, [row("left", true, false)]);
        assert!(world.target.volume(&volume).await.unwrap().is_some());
    }
    *paper.claimed.lock().unwrap() = None;
    assert_eq!(look(&catalog, &paper, DELETE).await, [row("left", true, true)]);
}

#[tokio::test]
async fn without_its_record_nothing_is_taken_for_old_or_new() {
    let (world, paper) = (World::new(), Paper::default());
    leave(&world, "left").await;
    *paper.torn.lock().unwrap() = true;
    let catalog = world.catalog().await;
    let error = catalog.look_for_orphans(&paper, DELETE).await.unwrap_err();
    assert!(error.to_string().contains("it is torn"), "{error}");
    assert_eq!(paper.written.lock().unwrap().len(), 0);
}

/// A look at two targets of which one does not answer, or is not connected.
async fn look_without_the_other(is_connected: bool) {
    let (mut world, paper) = (World::new(), Paper::default());
    let other = Arc::new(SimTarget::new("other"));
    let both = async |world: &World| {
        world.catalog_on(vec![Arc::clone(&world.target) as _, Arc::clone(&other) as _]).await.unwrap()
    };
    leave(&world, "left-1").await;
    leave_on(&other, "left-2").await;
    let catalog = both(&world).await;
    assert_eq!(look(&catalog, &paper, DELETE).await.len(), 2);
    catalog.close().await;
    let first = paper.written.lock().unwrap().clone();
    world.later += HOUR * 2;
    let catalog = if is_connected {
        let catalog = both(&world).await;
        other.set_silent(true);
        catalog
    } else {
        let catalog = world.catalog().await;
        catalog.expect_target(&TargetId::new("other").unwrap());
        catalog
    };
    // The other one counts as tried, unless it is left out.
    let one = OrphanRules { at_most: 1, ..DELETE };
    let found = look(&catalog, &paper, one).await;
    assert_eq!(found, [row("left-2", true, false), row("left-1", true, true)]);
    assert!(catalog.look_for_orphans(&paper, REPORT).await.is_ok());
    let kept: FirstSeen = first.into_iter().filter(|((target, _), _)| target.as_str() == "other").collect();
    assert_eq!(*paper.written.lock().unwrap(), kept, "its time goes on");
    other.set_silent(false);
    catalog.add_target(Arc::clone(&other) as _).await.unwrap();
    assert_eq!(look(&catalog, &paper, one).await, [row("left-2", true, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_target_held_up_the_orphans_of_all_others() {
    look_without_the_other(true).await;
}

#[tokio::test(start_paused = true)]
async fn the_grace_began_anew_where_a_target_was_away_when_the_leader_changed() {
    look_without_the_other(false).await;
}

#[tokio::test]
async fn an_orphan_of_an_unconnected_target_that_was_adopted_or_whose_target_is_forgotten_is_none() {
    let (world, paper) = (World::new(), Paper::default());
    let catalog = world.catalog().await;
    let known = create(&catalog, "known").await;
    let (away, gone) = (TargetId::new("away").unwrap(), TargetId::new("gone").unwrap());
    catalog.expect_target(&away);
    let since = "2026-01-01T00:00:00Z".parse().unwrap();
    for one in [(away, known.id), (gone, VolumeId::new("left").unwrap())] {
        paper.written.lock().unwrap().insert(one, since);
    }
    assert_eq!(look(&catalog, &paper, DELETE).await, []);
    assert_eq!(*paper.written.lock().unwrap(), FirstSeen::new());
}

/// A record that has room for nothing.
struct Full;

#[async_trait]
impl OrphanRecord for Full {
    async fn read(&self) -> Result<FirstSeen, String> {
        Ok(FirstSeen::new())
    }

    async fn claimed(&self, _: &VolumeId) -> Result<Option<String>, String> {
        Ok(None)
    }

    async fn write(&self, _: &FirstSeen) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_into_the_record_is_told_once_and_never_deleted() {
    let world = World::new();
    // More than the catalog remembers having told.
    for number in 0..1100 {
        let volume = VolumeId::new(format!("left-{number:04}")).unwrap();
        let order = NewVolume { name: volume.to_string(), volume, size: 1 << 20, source: None };
        world.target.create(&order, &Progress::default()).await.unwrap();
    }
    let catalog = world.catalog().await;
    let told = async || {
        let found = catalog.look_for_orphans(&Full, DELETE).await.unwrap();
        assert!(found.len() == 1100 && found.iter().all(|one| !one.ripe));
        let events = catalog.events(None, usize::MAX);
        events.into_iter().map(|event| (event.at, event.message)).collect::<Vec<_>>()
    };
    let first = told().await;
    tokio::time::advance(HOUR * 2).await;
    assert_eq!(told().await, first, "nothing is news");
}
