//! Volumes over NVMe/TCP: a connection, or several, for each grant.

use crate::devices::{Device, Devices, DevicesError, Grant, Remains};
use bowline_core::{Epoch, NodeId, NvmeNames, SubsystemsOf, VolumeId};
use bowline_host::nvme::{BlockNode, ControllerState, Login, Nvme, NvmeError, Subsystem};
use bowline_target::NvmeContext;
use std::sync::Arc;
use std::time::Duration;

/// The devices of every target that exports over NVMe/TCP. It need not know them: each grant says how to get there.
///
/// A volume is recognised by the name of its subsystem, from which volume and epoch follow, and by the name under which
/// this node logs in. So everything of a volume is found without a record and without asking anybody.
#[derive(Clone, Debug)]
pub struct NvmeDevices {
    nvme: Arc<Nvme>,
}

/// One grant's subsystem on this machine.
struct Found {
    subsystem: Subsystem,
    names: NvmeNames,
    epoch: Epoch,
}

impl Found {
    /// Whether this node is connected to it.
    fn is_connected(&self) -> bool {
        self.subsystem.controllers.iter().any(|one| one.host_nqn == self.names.host)
    }

    fn devices(&self, nvme: &Nvme) -> Vec<Device> {
        let ours = self.subsystem.named(&self.names.namespace);
        ours.filter_map(|one| nvme.node_of(one)).map(|node| device(node, self.epoch)).collect()
    }
}

fn device(node: BlockNode, epoch: Epoch) -> Device {
    let BlockNode { path, number, read_only } = node;
    Device { path, number, epoch, read_only, was_blank: false }
}

impl NvmeDevices {
    /// Through this machine's kernel.
    pub fn new(nvme: Arc<Nvme>) -> Self {
        Self { nvme }
    }

    /// Everything of a volume that may be this node's, of whatever epoch.
    fn found(&self, volume: &VolumeId, node: &NodeId) -> Result<Vec<Found>, DevicesError> {
        let of_volume = SubsystemsOf::new(volume);
        let all = self.nvme.subsystems(|nqn| of_volume.storage_and_epoch(nqn).is_some());
        let all = all.map_err(|error| fault(&error))?;
        let ours = |subsystem: Subsystem| {
            let (installation, epoch) = of_volume.storage_and_epoch(&subsystem.nqn)?;
            let names = NvmeNames::new(installation, volume, node, epoch);
            Some(Found { subsystem, names, epoch })
        };
        Ok(all.into_iter().filter_map(ours).collect())
    }
}

fn fault(error: &NvmeError) -> DevicesError {
    let said = error.to_string();
    match error {
        NvmeError::InUse { .. } => DevicesError::InUse(said),
        NvmeError::Orphaned { .. } => DevicesError::Orphaned(said),
        NvmeError::Foreign { .. } | NvmeError::Word(_) | NvmeError::OtherHost { .. } => {
            DevicesError::NotGranted(said)
        }
        // A target that does not let this node in says the same as one that is not there.
        NvmeError::Sysfs(_)
        | NvmeError::NoModule { .. }
        | NvmeError::Connect { .. }
        | NvmeError::Write(_)
        | NvmeError::Lingers { .. }
        | NvmeError::Device(_) => DevicesError::Unreachable(said),
    }
}

/// How to get there, if the names in it are those of this very grant.
fn fabric(grant: &Grant) -> Result<&NvmeContext, DevicesError> {
    let Grant { volume, node, epoch, fabric, .. } = grant;
    let none =
        || DevicesError::NotGranted(format!("the grant of volume {volume} does not say how to get there"));
    let fabric = fabric.as_ref().ok_or_else(none)?;
    let nqn = &fabric.names.subsystem;
    let found = SubsystemsOf::new(volume).storage_and_epoch(nqn);
    let expected = found.map(|(installation, _)| NvmeNames::new(installation, volume, node, *epoch));
    if expected.as_ref() == Some(&fabric.names) {
        return Ok(fabric);
    }
    Err(DevicesError::NotGranted(format!(
        "{nqn} and the names that come with it are not those of volume {volume} on node {node} at epoch {epoch}"
    )))
}

impl Devices for NvmeDevices {
    fn identity(&self, grant: &Grant) -> String {
        grant.fabric.as_ref().map(|fabric| fabric.names.subsystem.clone()).unwrap_or_default()
    }

    fn connect(&self, grant: &Grant) -> Result<Device, DevicesError> {
        self.connect_while(grant, &|_| true)
    }

    fn connect_while(
        &self,
        grant: &Grant,
        is_wanted: &dyn Fn(&Device) -> bool,
    ) -> Result<Device, DevicesError> {
        let NvmeContext { names, addresses } = fabric(grant)?.clone();
        let is_wanted = |node: &BlockNode| is_wanted(&device(node.clone(), grant.epoch));
        let connected = self.nvme.connect_while(&Login { names, addresses }, &is_wanted);
        let connected = connected.map_err(|error| fault(&error))?;
        let Grant { volume, node, epoch, write, .. } = grant;
        for failure in &connected.failures {
            let (address, why) = (failure.address, &failure.why);
            tracing::warn!(%volume, %epoch, %address, why, "one of the ways to a volume is shut; the others do");
        }
        let mut device = Device { was_blank: connected.was_blank, ..device(connected.node, *epoch) };
        if *write && device.read_only {
            return Err(DevicesError::NotGranted(format!(
                "the device of volume {volume} on node {node} at epoch {epoch} refuses writes"
            )));
        }
        if !*write && !device.read_only {
            let _kept = self.keep(grant, &device)?;
            // The target's file can be written; that this node must not is the node's own affair.
            bowline_host::device::refuse_writes(&device.path, device.number)
                .map_err(|error| DevicesError::Unreachable(error.to_string()))?;
            device.read_only = true;
        }
        Ok(device)
    }

    fn find(&self, volume: &VolumeId, node: &NodeId) -> Result<Vec<Device>, DevicesError> {
        let found = self.found(volume, node)?;
        let connected = found.iter().filter(|found| found.is_connected());
        Ok(connected.flat_map(|found| found.devices(&self.nvme)).collect())
    }

    fn get(&self, grant: &Grant) -> Result<Option<Device>, DevicesError> {
        let names = &fabric(grant)?.names;
        let node = self.nvme.resolve(&names.subsystem, &names.namespace).map_err(|error| fault(&error))?;
        Ok(node.map(|node| device(node, grant.epoch)))
    }

    fn remains(&self, volume: &VolumeId, node: &NodeId) -> Result<Vec<Remains>, DevicesError> {
        let left = |found: Found| {
            // Without a connection nobody knows any more whose it was, so it counts for every node of this machine.
            let held = found.subsystem.controllers.is_empty();
            let orphaned = found.is_connected() && found.devices(&self.nvme).is_empty();
            (held || orphaned).then_some(Remains { epoch: found.epoch, held })
        };
        Ok(self.found(volume, node)?.into_iter().filter_map(left).collect())
    }

    fn reaches(&self, grant: &Grant) -> Result<Option<String>, DevicesError> {
        let NvmeContext { names, addresses } = fabric(grant)?;
        let subsystem = self.nvme.subsystem(&names.subsystem).map_err(|error| fault(&error))?;
        let controllers = subsystem.map(|subsystem| subsystem.controllers).unwrap_or_default();
        let live = controllers.iter().filter(|one| one.state == ControllerState::Live).count();
        let wanted = if self.nvme.is_multipath() { addresses.len() } else { 1 };
        if live >= wanted {
            return Ok(None);
        }
        let Grant { volume, epoch, .. } = grant;
        let states: Vec<_> = controllers.iter().map(|one| one.state.to_string()).collect();
        let states = if states.is_empty() { "none".to_owned() } else { states.join(", ") };
        let said = format!(
            "of {wanted} connections of volume {volume} (epoch {epoch}) to its target {live} work; connections: {states}"
        );
        if live == 0 { Err(DevicesError::Unreachable(said)) } else { Ok(Some(said)) }
    }

    fn can_reach_more(&self, grant: &Grant) -> Result<bool, DevicesError> {
        let NvmeContext { names, addresses } = fabric(grant)?.clone();
        self.nvme.is_worth_another_connect(&Login { names, addresses }).map_err(|error| fault(&error))
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.nvme.patience())
    }

    fn reset(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Result<usize, DevicesError> {
        let mut reset = 0;
        for found in self.found(volume, node)?.into_iter().filter(|found| found.epoch == epoch) {
            let names = &found.names;
            reset += self.nvme.reset(&names.subsystem, &names.host).map_err(|error| fault(&error))?;
        }
        Ok(reset)
    }

    fn disconnect(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Result<(), DevicesError> {
        for found in self.found(volume, node)?.into_iter().filter(|found| found.epoch == epoch) {
            let names = &found.names;
            self.nvme.disconnect(&names.subsystem, &names.host).map_err(|error| fault(&error))?;
        }
        Ok(())
    }

    fn refresh(&self, grant: &Grant, _: &Device, at_least: u64) -> Result<u64, DevicesError> {
        let names = &fabric(grant)?.names;
        let size = self.nvme.rescan(&names.subsystem, &names.namespace, at_least);
        let volume = &grant.volume;
        let gone = || DevicesError::Unreachable(format!("the device of volume {volume} is gone"));
        size.map_err(|error| fault(&error))?.ok_or_else(gone)
    }

    fn check(&self) -> Result<(), DevicesError> {
        self.nvme.fabrics().map_err(|error| {
            DevicesError::Unreachable(format!("NVMe over fabrics is not there ({error}); modprobe nvme_tcp"))
        })
    }
}
