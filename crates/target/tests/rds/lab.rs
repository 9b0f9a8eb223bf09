//! A device in memory and targets on it.

use crate::device::{Device, Firmware, PLAIN, POOL};
use bowline_core::{Epoch, Mode, NodeId, Share, SnapshotId, TargetId, VolumeId};
use bowline_target::contract::provision::Bytes;
use bowline_target::rds::{Console, RdsTarget, Settings};
use bowline_target::{Cut, Grant, NewVolume, Progress, Provision, Revocation, Source, Target};
use std::sync::Arc;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const NOBODY: &str = "nqn.2026-01.storage.bowline:nobody";

pub(crate) fn settings() -> Settings {
    Settings {
        id: TargetId::new("rds-1").unwrap(),
        installation: "lab-1".to_owned(),
        pool: POOL.to_owned(),
        directory: format!("/{POOL}/bowline"),
        addresses: vec!["10.0.0.1:4420".parse().unwrap()],
        take_over: Some(format!("/{POOL}/older")),
        trust_readers: false,
    }
}

pub(crate) async fn connect(device: &Arc<Device>) -> RdsTarget {
    RdsTarget::connect(Arc::clone(device) as Arc<dyn Console>, settings()).await.unwrap()
}

/// A device, and a target on it with volumes of these names.
pub(crate) async fn lab(firmware: Firmware, volumes: &[&str]) -> (Arc<Device>, RdsTarget) {
    let device = Arc::new(Device::new(firmware));
    let target = connect(&device).await;
    for id in volumes {
        target.create(&order(id, MIB, None), &Progress::default()).await.unwrap();
    }
    (device, target)
}

pub(crate) async fn plain(volumes: &[&str]) -> (Arc<Device>, RdsTarget) {
    lab(PLAIN, volumes).await
}

pub(crate) fn volume(id: &str) -> VolumeId {
    VolumeId::new(id).unwrap()
}

pub(crate) fn snapshot(id: &str) -> SnapshotId {
    SnapshotId::new(id).unwrap()
}

pub(crate) fn grant(id: &str, to: &str, epoch: u64) -> Grant {
    let mode = Mode { write: true, frontend: true, share: Share::Nobody };
    Grant { volume: volume(id), node: NodeId::new(to).unwrap(), epoch: Epoch::new(epoch), mode }
}

pub(crate) fn revocation(id: &str, from: &str, epoch: u64) -> Revocation {
    Revocation { volume: volume(id), node: NodeId::new(from).unwrap(), epoch: Epoch::new(epoch), fence: true }
}

pub(crate) fn order(id: &str, size: u64, source: Option<Source>) -> NewVolume {
    NewVolume { volume: volume(id), name: format!("the {id}"), size, source }
}

pub(crate) fn cut(id: &str, of: &str) -> Cut {
    Cut { snapshot: snapshot(id), name: format!("the {id}"), volume: volume(of) }
}

/// A disk as an older driver leaves it, but that its export is off.
pub(crate) fn leave_older(device: &Device, id: &str) {
    let (size, nqn) = (MIB, format!("nqn.2000-02.com.mikrotik:{id}"));
    let said = device.tell(&format!(
        r#"/disk add type=file file-path="/{POOL}/older/{id}.img" file-size={size} slot="{id}" nvme-tcp-export=no nvme-tcp-server-nqn="{nqn}""#
    ));
    assert_eq!(said.status, Some(0), "{said:?}");
}

/// Who is let in, as the target lists it: volume, epoch, node.
pub(crate) async fn listed(target: &dyn Target) -> Vec<(String, u64, String)> {
    let page = target.exports(None, 1000).await.unwrap();
    let all = page.listings.into_iter().flat_map(|listing| {
        let volume = listing.volume.to_string();
        listing
            .exports
            .into_iter()
            .map(move |(epoch, export)| (volume.clone(), epoch.number(), export.node.to_string()))
    });
    all.collect()
}

/// A volume's bytes, where the device keeps them.
pub(crate) struct Raw(pub(crate) Arc<Device>);

impl Raw {
    fn with<T>(&self, volume: &VolumeId, work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut state = self.0.state();
        let path = state.disks.iter().find(|disk| disk.slot == volume.as_str()).unwrap().path.clone();
        work(state.files.get_mut(path.trim_start_matches('/')).unwrap())
    }
}

impl Bytes for Raw {
    fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
        let at = usize::try_from(offset).unwrap();
        self.with(volume, |file| file[at..at + bytes.len()].copy_from_slice(bytes));
    }
    fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
        let at = usize::try_from(offset).unwrap();
        self.with(volume, |file| file[at..at + length].to_vec())
    }
}
