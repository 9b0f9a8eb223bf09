//! The start: everything is read back and checked, the engine is started, and what was begun is completed.

use bowline_core::{NodeId, Notice, Slot, VolumeId};
use bowline_engine::Metrics as EngineMetrics;
use bowline_store::{Key, Kind, Record, Store, record};
use bowline_target::Target;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::broadcast;

use super::{Inner, OpenError, Parts, faults, lock, nodes};
use crate::events::{Events, notice};
use crate::metrics::Metrics;
use crate::operations::Operations;
use crate::record::{Group, Node, Snapshot, SnapshotState, Volume, VolumeState};
use crate::shelf::{PAGE, Shelf};

/// What is read back.
#[derive(Default)]
struct Stored {
    volumes: Vec<Volume>,
    snapshots: i64,
    nodes: BTreeMap<NodeId, Node>,
    unfinished: Vec<Key>,
}

pub(crate) async fn open(parts: Parts) -> Result<Arc<Inner>, OpenError> {
    let Parts { store, targets, nodes: given, reports, clock, settings, registry } = parts;
    let mut stored = read(store.as_ref()).await?;
    for node in given {
        // What is given now counts, but for what was declared later and is stored.
        let declared = stored.nodes.get(&node.id).and_then(|known| known.out_of_service);
        let node = Node { out_of_service: node.out_of_service.or(declared), ..node };
        stored.nodes.insert(node.id.clone(), node);
    }
    let (metrics, engine_metrics) = {
        let mut registry = lock(&registry);
        (Metrics::new(&mut registry), EngineMetrics::new(&mut registry))
    };
    metrics.volumes.set(i64::try_from(stored.volumes.len()).unwrap_or(i64::MAX));
    metrics.snapshots.set(stored.snapshots);
    let known = stored.volumes.iter().filter(|volume| volume.state != VolumeState::Creating);
    let engine = bowline_engine::start(bowline_engine::Parts {
        store: Arc::clone(&store),
        targets: targets.iter().map(|target| Arc::clone(target) as Arc<dyn Target>).collect(),
        volumes: known.map(|volume| (volume.id.clone(), volume.facts())).collect(),
        nodes: stored
            .nodes
            .values()
            .map(|node| (node.id.clone(), nodes::report(node)))
            .chain(reports)
            .collect(),
        clock: Arc::clone(&clock),
        settings: settings.clone(),
        metrics: engine_metrics,
    })
    .await?;
    let (notices, refusals) = (engine.notices(), engine.refusals());
    let inner = Arc::new(Inner {
        shelf: Shelf { store },
        engine,
        targets: Mutex::new(targets.into_iter().map(|target| (target.id().clone(), target)).collect()),
        draining: Mutex::default(),
        leaving: Mutex::default(),
        faults: Mutex::default(),
        nodes: Mutex::new(stored.nodes),
        clock,
        settings,
        operations: Arc::new(Operations::default()),
        progress: Mutex::default(),
        pursued: Mutex::default(),
        followed: Mutex::default(),
        orphans: Mutex::default(),
        events: Events::new(),
        metrics,
    });
    tokio::spawn(hear(Arc::downgrade(&inner), notices));
    tokio::spawn(faults::look_when_refused(Arc::downgrade(&inner), refusals));
    tokio::spawn(faults::look_for_ever(Arc::downgrade(&inner)));
    for key in stored.unfinished {
        inner.pursue(key);
    }
    Ok(inner)
}

async fn read(store: &dyn Store) -> Result<Stored, OpenError> {
    let mut stored = Stored::default();
    for volume in read_all::<Volume>(store, |volume| (volume.id.as_str(), volume.name.as_str())).await? {
        if volume.state != VolumeState::Ready {
            stored.unfinished.push(Key::new(Kind::Volume, Slot::of_name(&volume.name).as_str()));
        }
        stored.volumes.push(volume);
    }
    for snapshot in read_all::<Snapshot>(store, |one| (one.id.as_str(), one.name.as_str())).await? {
        stored.snapshots += 1;
        if !matches!(snapshot.state, SnapshotState::Ready { .. }) {
            stored.unfinished.push(Key::new(Kind::Snapshot, Slot::of_name(&snapshot.name).as_str()));
        }
    }
    for group in read_all::<Group>(store, |one| (one.id.as_str(), one.name.as_str())).await? {
        if !matches!(group.state, SnapshotState::Ready { .. }) {
            stored.unfinished.push(Key::new(Kind::Group, Slot::of_name(&group.name).as_str()));
        }
    }
    for (key, node) in read_kind::<Node>(store).await? {
        if key.name != node.id.as_str() {
            return Err(OpenError::Misplaced { key, id: node.id.to_string() });
        }
        stored.nodes.insert(node.id.clone(), node);
    }
    Ok(stored)
}

async fn read_kind<R: Record>(store: &dyn Store) -> Result<Vec<(Key, R)>, OpenError> {
    let (mut records, mut after) = (Vec::new(), None);
    loop {
        let page = store.recall(R::KIND, after.as_deref(), PAGE).await?;
        for entry in page.entries {
            match record::decode(&entry.value) {
                Ok(record) => records.push((entry.key, record)),
                Err(error) => return Err(OpenError::Record { key: entry.key, error }),
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(records);
        }
    }
}

/// Every record that is kept by its name; its key, its name and its id must go together.
async fn read_all<R: Record>(
    store: &dyn Store,
    names: impl Fn(&R) -> (&str, &str),
) -> Result<Vec<R>, OpenError> {
    let records = read_kind::<R>(store).await?;
    let checked = records.into_iter().map(|(key, record)| {
        let (id, name) = names(&record);
        let belongs = |slot: &Slot| slot.as_str() == key.name;
        if Slot::of_id(id).as_ref().is_some_and(belongs) && belongs(&Slot::of_name(name)) {
            Ok(record)
        } else {
            let id = id.to_owned();
            Err(OpenError::Misplaced { key, id })
        }
    });
    checked.collect()
}

/// What the engine does unasked becomes an event.
async fn hear(catalog: Weak<Inner>, mut notices: broadcast::Receiver<(VolumeId, Notice)>) {
    loop {
        let heard = notices.recv().await;
        let Some(inner) = catalog.upgrade() else { return };
        match heard {
            Ok((volume, told)) => {
                let (reason, sentence) = notice(&told);
                inner.tell(Some(&volume), reason, sentence);
            }
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                tracing::warn!(missed, "too much happened at once; some events are missing");
            }
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}
