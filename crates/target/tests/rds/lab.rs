//! A simulated device, and targets on it.

use crate::rack;
use bowline_core::{Epoch, Mode, NodeId, Share, SnapshotId, VolumeId};
use bowline_target::rds::{ConnectError, RdsTarget, Settings};
use bowline_target::{Cut, Grant, NewVolume, Progress, Provision, Revocation, Source, Target};
use bowline_testkit::FaultyConsole;
use bowline_testkit::routeros::{Firmware, Nothing, POOL, RouterOs};
use std::sync::Arc;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const NOBODY: &str = "nqn.2026-01.storage.bowline:nobody";

pub(crate) fn settings() -> Settings {
    Settings { take_over: Some(format!("/{POOL}/older")), ..rack::settings() }
}

pub(crate) async fn connect(link: &FaultyConsole) -> RdsTarget {
    connect_with(link, settings()).await.unwrap()
}

pub(crate) async fn connect_with(
    link: &FaultyConsole,
    settings: Settings,
) -> Result<RdsTarget, ConnectError> {
    RdsTarget::connect(Arc::new(link.clone()), settings).await
}

/// A way to a device, and a target on it with volumes of these names.
pub(crate) async fn lab(firmware: Firmware, volumes: &[&str]) -> (FaultyConsole, RdsTarget) {
    let link = FaultyConsole::new(RouterOs::new(firmware));
    link.device.leave_free(POOL, 64 * MIB);
    let target = connect(&link).await;
    for id in volumes {
        target.create(&order(id, MIB, None), &Progress::default()).await.unwrap();
    }
    (link, target)
}

pub(crate) async fn plain(volumes: &[&str]) -> (FaultyConsole, RdsTarget) {
    lab(Firmware::default(), volumes).await
}

/// Whatever finds nothing is an error.
pub(crate) fn complaining() -> Firmware {
    Firmware { set_of_nothing: Nothing::NoSuchItem, ..Firmware::default() }
}

/// Whatever finds nothing says nothing, disks become smaller when they are told to, and copies have the bytes and no settings.
pub(crate) fn careless() -> Firmware {
    let remove_of_nothing = Nothing::Silent;
    Firmware { remove_of_nothing, shrinks: true, copies_settings: false, ..Firmware::default() }
}

/// Everything that the device keeps: its disks, and its files with their bytes.
pub(crate) fn kept(device: &RouterOs) -> (String, Vec<(String, Vec<u8>)>) {
    let bytes = |(name, size): (String, u64)| {
        let bytes = device.read(&name, 0, usize::try_from(size).unwrap());
        (name, bytes)
    };
    (shown(device), device.files().into_iter().map(bytes).collect())
}

pub(crate) fn shown(device: &RouterOs) -> String {
    device.enter("/disk print detail").out
}

pub(crate) fn volume(id: &str) -> VolumeId {
    VolumeId::new(id).unwrap()
}

pub(crate) fn snapshot(id: &str) -> SnapshotId {
    SnapshotId::new(id).unwrap()
}

pub(crate) fn grant(id: &str, to: &str, epoch: u64) -> Grant {
    let mode = Mode { write: true, frontend: true, share: Share::Nobody };
    Grant { volume: volume(id), node: NodeId::new(to).unwrap(), epoch: Epoch::new(epoch), mode, beside: None }
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
pub(crate) fn leave_older(device: &RouterOs, id: &str) {
    let (size, nqn) = (MIB, format!("nqn.2000-02.com.mikrotik:{id}"));
    let said = device.enter(&format!(
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
