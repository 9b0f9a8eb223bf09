//! An engine with many volumes on a target that answers at once.

use anyhow::{Result, bail};
use bowline_core::{NodeId, TargetId, VolumeFacts, VolumeId};
use bowline_engine::{
    Engine, Metrics, Parts, Patience, Settings, Submitted, SystemClock, Withdrawal, Withdrawn, start,
};
use bowline_store::Store;
use bowline_testkit::{SimTarget, csi};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn volume(n: usize) -> Result<VolumeId> {
    Ok(VolumeId::new(format!("pvc-{n:05}"))?)
}

/// An engine that knows this many volumes. What is not urgent is written after `write_within`.
pub(crate) async fn engine(
    store: Arc<dyn Store>,
    target: Arc<SimTarget>,
    volumes: usize,
    write_within: Duration,
) -> Result<Engine> {
    let facts = VolumeFacts::new(TargetId::new("sim")?);
    let volumes = (0..volumes).map(|n| Ok((volume(n)?, facts.clone()))).collect::<Result<_>>()?;
    let parts = Parts {
        store,
        targets: vec![target],
        volumes,
        nodes: Vec::new(),
        clock: Arc::new(SystemClock),
        settings: Settings { write_within, ..Settings::default() },
        metrics: Metrics::new(&mut Registry::default()),
    };
    Ok(start(parts).await?)
}

pub(crate) async fn attach(engine: &Engine, volume: &VolumeId) -> Result<()> {
    let wait = Duration::from_secs(60);
    match engine.submit(volume, csi("a"), Patience::Refuse, wait).await? {
        Submitted::Satisfied { .. } => Ok(()),
        other => bail!("not attached: {other:?}"),
    }
}

pub(crate) async fn detach(engine: &Engine, volume: &VolumeId) -> Result<()> {
    let withdrawal = Withdrawal { node: Some(NodeId::new("a")?), ..Withdrawal::default() };
    match engine.withdraw(volume, withdrawal, Duration::from_secs(60)).await? {
        Withdrawn::Out => Ok(()),
        other => bail!("not detached: {other:?}"),
    }
}
