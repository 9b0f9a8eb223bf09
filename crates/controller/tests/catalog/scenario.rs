//! Stories that must come to the same end, whatever happens on the way.

use bowline_controller::{Catalog, NewVolume, Snapshot, SnapshotState, Source, Volume, VolumeState};
use bowline_core::{TicketId, VolumeId};
use bowline_csi::code::{GetSnapshotError, Reason};
use bowline_engine::{Patience, Submitted, Withdrawal};
use bowline_store::{Kind, record};
use bowline_target::Item;
use bowline_testkit::sweep::{Story, live};
use bowline_testkit::{Fate, csi, node};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::world::{World, name, order};

/// Longer than any answer takes that comes at all, shorter than a slow one: time-outs are part of the story.
const PATIENCE: Duration = Duration::from_secs(20);

/// One thing that somebody does, and repeats until it is done.
#[derive(Clone, Debug)]
pub(crate) enum Do {
    Create(&'static str),
    Copy { from: &'static str, to: &'static str },
    Restore { from: &'static str, to: &'static str },
    Delete(&'static str),
    Grow(&'static str, u64),
    Snapshot(&'static str, &'static str),
    DeleteSnapshot(&'static str),
    Group(&'static str, &'static [&'static str]),
    DeleteGroup,
    Attach(&'static str, &'static str),
    Detach(&'static str, &'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Do>,
    /// The volumes and snapshots that are there at the end.
    pub(crate) ends: &'static [&'static str],
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    use Do::*;
    let story = |name, steps, ends| Scenario { name, steps, ends };
    vec![
        story("create", vec![Create("v")], &["v"]),
        story("create, delete, create anew", vec![Create("v"), Delete("v"), Create("v")], &["v"]),
        story("grow", vec![Create("v"), Grow("v", 3 << 30)], &["v"]),
        story("copy", vec![Create("v"), Copy { from: "v", to: "w" }, Delete("v")], &["w"]),
        story(
            "snapshot and restore",
            vec![
                Create("v"),
                Snapshot("s", "v"),
                Delete("v"),
                Restore { from: "s", to: "w" },
                DeleteSnapshot("s"),
            ],
            &["w"],
        ),
        story("group", vec![Create("v"), Create("w"), Group("g", &["v", "w"])], &["g/v", "g/w", "v", "w"]),
        story(
            "group, deleted",
            vec![Create("v"), Create("w"), Group("g", &["v", "w"]), DeleteGroup, Delete("v")],
            &["w"],
        ),
        story(
            "attach, move, delete",
            vec![
                Create("v"),
                Attach("v", "a"),
                Detach("v", "a"),
                Attach("v", "b"),
                Detach("v", "b"),
                Delete("v"),
            ],
            &[],
        ),
    ]
}

/// What the callers of a story remember, whichever process answered them.
#[derive(Default)]
pub(crate) struct Told {
    volumes: BTreeMap<&'static str, VolumeId>,
}

impl Story for Scenario {
    type World = (World, Told, usize);

    fn name(&self) -> &str {
        self.name
    }

    fn world(&self) -> Self::World {
        (World::new(), Told::default(), 0)
    }

    fn play(&self, (world, told, done): &mut Self::World, fate: &Arc<Fate>) -> bool {
        let (finished, took) = live(fate, async {
            let catalog = world.catalog_with(Arc::clone(fate)).await.unwrap();
            while let Some(step) = self.steps.get(*done) {
                perform(&catalog, told, step).await;
                *done += 1;
            }
            quiet(world).await;
            catalog.close().await;
        });
        world.later += took;
        finished
    }

    /// The end that every way must come to: nothing half done, nothing leaked, nothing lost.
    fn check_end(&self, (world, ..): &Self::World, how: &str) {
        let told = format!("{}, {how}", self.name);
        assert_eq!(world.target.violations(), [""; 0], "{told}");
        let (volumes, snapshots) = futures_now(records(world));
        let mut names: Vec<String> = volumes.iter().map(|volume| volume.name.clone()).collect();
        for snapshot in &snapshots {
            let of = |id: &VolumeId| volumes.iter().find(|one| one.id == *id).map(|one| one.name.clone());
            match &snapshot.group {
                Some(_) => names.push(format!("g/{}", of(&snapshot.volume).unwrap())),
                None => names.push(snapshot.name.clone()),
            }
        }
        names.sort();
        assert_eq!(names, self.ends, "{told}: what there is at the end");
        let mut items: Vec<Item> = volumes.iter().map(|one| Item::Volume(one.id.clone())).collect();
        items.extend(snapshots.iter().map(|one| Item::Snapshot(one.id.clone())));
        items.sort();
        assert_eq!(world.target.items(), items, "{told}: what is stored is what is recorded");
        for volume in &volumes {
            assert_eq!(volume.state, VolumeState::Ready, "{told}");
            assert_eq!(world.target.open(&volume.id), [], "{told}");
        }
        assert!(snapshots.iter().all(|one| one.taken().is_some()), "{told}: {snapshots:?}");
    }
}

/// The memory store answers at once.
fn futures_now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

pub(crate) async fn records(world: &World) -> (Vec<Volume>, Vec<Snapshot>) {
    let volumes = world.store.list(Kind::Volume, None, 1000).await.unwrap().entries;
    let snapshots = world.store.list(Kind::Snapshot, None, 1000).await.unwrap().entries;
    (
        volumes.iter().map(|entry| record::decode(&entry.value).unwrap()).collect(),
        snapshots.iter().map(|entry| record::decode(&entry.value).unwrap()).collect(),
    )
}

/// Waits until every record is settled.
pub(crate) async fn quiet(world: &World) {
    for _ in 0..10_000 {
        let (volumes, snapshots) = records(world).await;
        let groups = world.store.list(Kind::Group, None, 1000).await.unwrap().entries;
        let mut groups = groups
            .iter()
            .map(|entry| record::decode::<bowline_controller::Group>(&entry.value).unwrap().state);
        let settled = |state: &SnapshotState| state.taken().is_some();
        if volumes.iter().all(|one| one.state == VolumeState::Ready)
            && snapshots.iter().all(|one| settled(&one.state))
            && groups.all(|state| settled(&state))
        {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("it does not come to rest: {:?}", records(world).await);
}

/// Whether it is done. An error that a caller would take as final ends the story badly.
fn done<T, E: Reason>(step: &Do, answer: Result<T, E>) -> Option<T> {
    match answer {
        Ok(done) => Some(done),
        Err(error) => {
            assert!(!error.is_final(), "{step:?}: {error}");
            None
        }
    }
}

/// Does one thing as a patient caller would: asks again until it is done.
async fn perform(catalog: &Catalog, told: &mut Told, step: &Do) {
    for _ in 0..1000 {
        if attempt(catalog, told, step).await.is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("{step:?} is never done");
}

async fn make(
    catalog: &Catalog,
    told: &mut Told,
    step: &Do,
    wanted: NewVolume,
    called: &'static str,
) -> Option<()> {
    let volume = done(step, catalog.create_volume(wanted, PATIENCE).await)?;
    told.volumes.insert(called, volume.id);
    Some(())
}

async fn attempt(catalog: &Catalog, told: &mut Told, step: &Do) -> Option<()> {
    let id = |called: &str| told.volumes[called].clone();
    match step {
        Do::Create(called) => make(catalog, told, step, order(called), called).await,
        Do::Copy { from, to } => {
            let wanted = NewVolume { source: Some(Source::Volume(id(from))), ..order(to) };
            make(catalog, told, step, wanted, to).await
        }
        Do::Restore { from, to } => {
            let snapshot = done(step, catalog.find_snapshot(from).await)?;
            let wanted = NewVolume { source: Some(Source::Snapshot(snapshot.id)), ..order(to) };
            make(catalog, told, step, wanted, to).await
        }
        Do::Delete(called) => done(step, catalog.delete_volume(&id(called), PATIENCE).await),
        Do::Grow(called, size) => {
            let grown = done(step, catalog.grow_volume(&id(called), *size, None, PATIENCE).await)?;
            assert_eq!(grown.size, *size);
            Some(())
        }
        Do::Snapshot(called, of) => {
            done(step, catalog.create_snapshot(name(called), &id(of), PATIENCE).await).map(|_| ())
        }
        Do::DeleteSnapshot(called) => match catalog.find_snapshot(called).await {
            Err(GetSnapshotError::UnknownSnapshot(_)) => Some(()),
            found => {
                let found = done(step, found)?;
                done(step, catalog.delete_snapshot(&found.id, PATIENCE).await)
            }
        },
        Do::Group(called, of) => {
            let volumes: Vec<VolumeId> = of.iter().map(|one| id(one)).collect();
            done(step, catalog.create_group(name(called), &volumes, PATIENCE).await).map(|_| ())
        }
        Do::DeleteGroup => {
            let listed = done(step, catalog.snapshots(None, None, 100).await)?;
            let group = listed.entries.into_iter().find_map(|one| one.group);
            let Some(group) = group else { return Some(()) };
            done(step, catalog.delete_group(&group, PATIENCE).await)
        }
        Do::Attach(called, on) => {
            let answer = catalog.attach(&id(called), csi(on), Patience::Refuse, PATIENCE).await;
            matches!(done(step, answer)?, Submitted::Satisfied { .. }).then_some(())
        }
        Do::Detach(called, on) => {
            let ticket = Some(TicketId::new(format!("csi-{on}")).unwrap());
            let withdrawal = Withdrawal { ticket, node: Some(node(on)), force: false };
            done(step, catalog.detach(&id(called), withdrawal, PATIENCE).await)
        }
    }
}
