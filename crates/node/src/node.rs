//! This node: its parts, and what every operation on it begins with.

use crate::answer::Fault;
use crate::devices::{Device, Devices, Grant};
use crate::event::Told;
use crate::metrics::Metrics;
use crate::staging::{Content, Phase, Record};
use crate::state::{State, StateError};
use bowline_core::{NodeId, TargetId, VolumeId};
use bowline_csi::AbsolutePath;
use bowline_host::Host;
use bowline_host::freeze::thaw;
use bowline_host::path::{Base, Kind, Place, PlaceError, RequestPath};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// After this a caller is told that the work goes on, and to ask again.
    pub answer_within: Duration,
    /// The pause before the second attempt to mount a stale volume again; the next one is twice as long.
    pub remount_pause: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        // The kubelet gives a call two minutes.
        Self { answer_within: Duration::from_secs(110), remount_pause: Duration::from_millis(200) }
    }
}

/// What a node is made of.
pub struct Parts {
    /// Its id.
    pub node: NodeId,
    /// Where devices come from, target by target.
    pub devices: BTreeMap<TargetId, Arc<dyn Devices>>,
    /// Where devices come from whose grant says how to get there, whatever their target.
    pub fabric: Arc<dyn Devices>,
    /// Its kernel.
    pub host: Arc<Host>,
    /// Where it keeps its records: a directory of its own.
    pub state: PathBuf,
    /// Directories below which requests may name paths.
    pub bases: Vec<Base>,
    /// How many volumes it may have at once; as many as it likes if not given.
    pub attach_limit: Option<u32>,
    /// Where it is: for each domain the segment.
    pub topology: BTreeMap<String, String>,
    /// How long things may take.
    pub timing: Timing,
    /// Who is told what happens to volumes here, as far as he keeps up.
    pub events: Option<tokio::sync::mpsc::Sender<Told>>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("node", &self.node).field("state", &self.state).finish_non_exhaustive()
    }
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
#[error("the node's records cannot be used: {0}")]
pub struct StartError(pub(crate) String);

pub(crate) struct ThisNode {
    pub(crate) id: NodeId,
    pub(crate) devices: BTreeMap<TargetId, Arc<dyn Devices>>,
    pub(crate) fabric: Arc<dyn Devices>,
    pub(crate) host: Arc<Host>,
    pub(crate) state: State,
    pub(crate) bases: Vec<Base>,
    pub(crate) attach_limit: Option<u32>,
    pub(crate) topology: BTreeMap<String, String>,
    pub(crate) timing: Timing,
    pub(crate) events: Option<tokio::sync::mpsc::Sender<Told>>,
    pub(crate) metrics: Metrics,
}

impl ThisNode {
    pub(crate) fn start(parts: Parts, metrics: Metrics) -> Result<Self, StartError> {
        let Parts { node: id, devices, fabric, host, state, bases, attach_limit, topology, timing, events } =
            parts;
        let state = State::open(&state, &id).map_err(|error| StartError(error.to_string()))?;
        let node =
            Self { id, devices, fabric, host, state, bases, attach_limit, topology, timing, events, metrics };
        node.find_again()?;
        Ok(node)
    }

    /// Looks at every record once. What is mounted stays as it is, but is thawed: a freeze outlives whoever asked for it.
    fn find_again(&self) -> Result<(), StartError> {
        let volumes = self.state.volumes().map_err(|error| StartError(error.to_string()))?;
        for volume in volumes {
            let record = match self.state.load(&volume) {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(%volume, %error, "a staging record cannot be used");
                    continue;
                }
            };
            if record.phase != Phase::Staged {
                tracing::info!(%volume, epoch = %record.epoch, "found a volume whose staging was interrupted");
                continue;
            }
            match self.look(&record) {
                Ok(_) => tracing::info!(%volume, epoch = %record.epoch, "found a staged volume again"),
                Err(fault) => {
                    tracing::info!(%volume, epoch = %record.epoch, %fault, "a staged volume is to be staged again");
                    continue;
                }
            }
            let is_filesystem = matches!(record.content, Content::Filesystem { .. });
            if let Some(place) = self.recorded_place(&record.path).filter(|_| is_filesystem) {
                match thaw(&place) {
                    Ok(false) => {}
                    Ok(true) => tracing::warn!(%volume, "thawed a filesystem that was left frozen"),
                    Err(error) => tracing::warn!(%volume, %error, "cannot tell whether it is frozen"),
                }
            }
        }
        Ok(())
    }

    /// A path that a request names in this field.
    pub(crate) fn place(&self, field: &'static str, path: &AbsolutePath) -> Result<Place, Fault> {
        self.try_place(path).map_err(|error| Fault::place(field, &error))
    }

    pub(crate) fn try_place(&self, path: &AbsolutePath) -> Result<Place, PlaceError> {
        let outside = || PlaceError::Outside { path: path.as_path().to_owned(), base: PathBuf::new() };
        // The parser of the request and this one agree on what a path is; if not, the path is refused.
        let path = RequestPath::parse(path.as_str()).map_err(|_| outside())?;
        let mut last = outside();
        for base in &self.bases {
            match base.place(&path) {
                Err(error @ PlaceError::Outside { .. }) => last = error,
                Ok(place) if place.kind()? == Kind::Symlink => {
                    return Err(PlaceError::Symlink { path: place.path().to_owned() });
                }
                other => return other,
            }
        }
        Err(last)
    }

    /// A path out of a record; `None` if it cannot be reached any more.
    pub(crate) fn recorded_place(&self, path: &Path) -> Option<Place> {
        let path = RequestPath::parse(path.to_str()?).ok()?;
        self.bases.iter().find_map(|base| base.place(&path).ok())
    }

    /// Where the device of a grant comes from.
    pub(crate) fn devices_of(&self, target: &TargetId, grant: &Grant) -> Result<&dyn Devices, Fault> {
        if grant.fabric.is_some() {
            return Ok(self.fabric.as_ref());
        }
        let unknown = || {
            Fault::NotReady(format!(
                "this node has no way to target {target}; was it started with that target?"
            ))
        };
        self.devices.get(target).map(AsRef::as_ref).ok_or_else(unknown)
    }

    /// Everywhere that devices come from.
    pub(crate) fn all_devices(&self) -> impl Iterator<Item = &dyn Devices> {
        self.devices.values().chain([&self.fabric]).map(AsRef::as_ref)
    }

    /// The device of a record's grant, if it is there.
    pub(crate) fn device(&self, record: &Record) -> Result<Option<Device>, Fault> {
        let grant = record.grant();
        let found = self.devices_of(&record.target, &grant)?.get(&grant);
        let result = match &found {
            Ok(Some(_)) => "found",
            Ok(None) => "missing",
            Err(_) => "error",
        };
        self.metrics.resolution(result);
        Ok(found?)
    }

    /// The record of a volume; one that cannot be used counts as none, because the kernel knows more than it.
    pub(crate) fn usable_record(&self, volume: &VolumeId) -> Option<Record> {
        usable(volume, self.state.load(volume))
    }
}

/// A record that was read; one that cannot be used counts as none.
pub(crate) fn usable(volume: &VolumeId, read: Result<Option<Record>, StateError>) -> Option<Record> {
    read.unwrap_or_else(|error| {
        tracing::warn!(%volume, %error, "a staging record cannot be used");
        None
    })
}
