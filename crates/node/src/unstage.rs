//! `NodeUnstageVolume`, and taking back what staging began.

use crate::answer::Fault;
use crate::devices::{Device, Devices, DevicesError};
use crate::event::Event;
use crate::node::ThisNode;
use crate::seen::listed;
use crate::staging::{Content, Phase, Record};
use crate::watch::Way;
use bowline_core::VolumeId;
use bowline_csi::node::Unstage;
use bowline_failpoint::pass;
use bowline_host::format::{MakeError, Making};
use bowline_host::mount::{MountError, Unmount};
use bowline_host::mountinfo::Mount;
use bowline_host::path::{Place, PlaceError};

const STAGING: &str = "staging_target_path";

impl ThisNode {
    pub(crate) fn unstage(&self, request: &Unstage) -> Result<(), Fault> {
        let volume = &request.volume;
        let place = match self.try_place(&request.staging_path) {
            Ok(place) => Some(place),
            // Where there is no directory, nothing is mounted.
            Err(PlaceError::NoParent { .. }) => None,
            Err(error) => return Err(Fault::place(STAGING, &error)),
        };
        match self.usable_record(volume) {
            Some(record) if place.as_ref().is_none_or(|place| place.path() == record.path) => {
                let devices = self.devices_of(&record.target, &record.grant())?;
                if self.take_down(devices, &record, place.as_ref())? {
                    self.state.remove(volume)?;
                }
            }
            Some(record) => return self.is_elsewhere(&record, place.as_ref()),
            None => self.take_down_unrecorded(volume, place.as_ref())?,
        }
        tracing::info!(%volume, "unstaged");
        Ok(())
    }

    /// It is staged at another path. Nothing at this one is what was asked for; something is not ours to judge.
    fn is_elsewhere(&self, record: &Record, place: Option<&Place>) -> Result<(), Fault> {
        let table = self.host.mounts()?;
        match place.and_then(|place| table.top(place.path())) {
            None => Ok(()),
            Some(top) => Err(Fault::Broken(format!(
                "volume {} is staged at {}; {} is left alone",
                record.volume,
                record.path.display(),
                top.describe()
            ))),
        }
    }

    /// Unmounts and disconnects a volume, in this order; refused while a workload can see it. Says whether it may be forgotten: a making that
    /// could not be looked at is kept in mind for the next grant.
    pub(crate) fn take_down(
        &self,
        devices: &dyn Devices,
        record: &Record,
        place: Option<&Place>,
    ) -> Result<bool, Fault> {
        let volume = &record.volume;
        let mut found = devices.find(volume, &self.id)?;
        if matches!(record.phase, Phase::Making { .. }) && !found.iter().any(|one| one.epoch == record.epoch)
        {
            // The grant is mostly still in force: a volume is unpublished at its controller after this.
            if let Err(fault) = self.connect(devices, record) {
                tracing::info!(%volume, %fault, "an interrupted mkfs cannot be looked at");
            }
            found = devices.find(volume, &self.id)?;
        }
        let device = found.iter().find(|device| device.epoch == record.epoch);
        let table = self.host.mounts()?;
        let mut published = self.published(&table, record, device);
        for other in found.iter().filter(|other| other.epoch != record.epoch) {
            let shown = table.iter().filter(|mount| self.shows(mount, other) && mount.at != record.path);
            published.extend(shown.map(|mount| mount.at.clone()));
        }
        if !published.is_empty() {
            return Err(Fault::NotReady(format!(
                "volume {volume} is still published at {}; unpublish it first",
                listed(&published)
            )));
        }
        if let (Content::Filesystem { .. }, Some(place)) = (&record.content, place) {
            let is_ours = |mount: &Mount| {
                found.iter().any(|device| self.host.is_mount_of(mount, device.number))
                    || self.is_left(&table, mount, record, device)
            };
            if let Some(other) = table.at(place.path()).find(|mount| !is_ours(mount)) {
                return Err(Fault::Broken(format!(
                    "{} is not volume {volume}; nothing was unmounted",
                    other.describe()
                )));
            }
            let is_there =
                |one: &&Device| table.at(place.path()).any(|mount| self.host.is_mount_of(mount, one.number));
            let over: Vec<_> = found.iter().filter(is_there).map(|one| (devices, one.epoch)).collect();
            let is_left = table.at(place.path()).any(|mount| self.is_left(&table, mount, record, device));
            self.take_off(STAGING, volume, place, &over, !is_left)?;
        }
        let settle = |device: &Device| {
            self.watched(volume, &[(devices, device.epoch)], || self.settle(devices, record, device))
        };
        let settled = device.is_none_or(settle);
        pass("node.disconnect.before");
        for found in &found {
            self.disconnect(devices, volume, found)?;
        }
        self.clear_remains(devices, volume)?;
        pass("node.disconnect.after");
        Ok(settled && !(device.is_none() && matches!(record.phase, Phase::Making { .. })))
    }

    /// Takes a device away, whose connections are reset where a program is stuck on it.
    pub(crate) fn disconnect(
        &self,
        devices: &dyn Devices,
        volume: &VolumeId,
        device: &Device,
    ) -> Result<(), DevicesError> {
        let gone = devices.disconnect(volume, &self.id, device.epoch);
        if matches!(gone, Err(DevicesError::InUse(_))) {
            self.reset_under_a_program(volume, (devices, device.epoch), device.number);
        }
        gone
    }

    /// Unmounts what the devices of these grants are mounted as.
    pub(crate) fn take_off(
        &self,
        field: &'static str,
        volume: &VolumeId,
        place: &Place,
        over: &[Way<'_>],
        alive: bool,
    ) -> Result<(), Fault> {
        match self.watched(volume, over, || self.host.unmount(place, Unmount::WhenUnused)) {
            Ok(_) => Ok(()),
            Err(MountError::Kernel { error, .. })
                if !alive && error.kind() != std::io::ErrorKind::ResourceBusy =>
            {
                // Nobody holds it, and its device is gone: there is nothing to wait for.
                let unmounted = self.host.unmount(place, Unmount::Lazily);
                unmounted.map(drop).map_err(|error| Fault::mount(field, &error))
            }
            Err(error @ MountError::Kernel { .. }) => Err(Fault::NotReady(error.to_string())),
            Err(error) => Err(Fault::mount(field, &error)),
        }
    }

    /// Unmounts what an outage left of a volume where it is staged, unless a workload sees it elsewhere than at `target`. What is in use, or
    /// anything else, is left alone.
    pub(crate) fn clear_left(
        &self,
        record: &Record,
        staging: &Place,
        target: Option<&Place>,
    ) -> Result<(), Fault> {
        let Content::Filesystem { .. } = record.content else { return Ok(()) };
        let grant = record.grant();
        let devices = self.devices_of(&record.target, &grant)?;
        let device = devices.get(&grant)?;
        let table = self.host.mounts()?;
        let is_there = |mount: &Mount| device.iter().any(|one| self.host.is_mount_of(mount, one.number));
        if table.top(staging.path()).is_some_and(is_there) {
            return Ok(());
        }
        let is_left = |mount: &Mount| self.is_left(&table, mount, record, device.as_ref());
        if let Some(other) = table.at(staging.path()).find(|mount| !is_left(mount)) {
            return Err(Fault::NotReady(format!("{} is left alone", other.describe())));
        }
        let mut published = self.published(&table, record, device.as_ref());
        if let Some(target) = target
            && self.is_left_at(&table, target, record, device.as_ref())
        {
            published.retain(|path| path != target.path());
        }
        if !published.is_empty() {
            let listed = listed(&published);
            return Err(Fault::NotReady(format!("workloads still see what was there before: {listed}")));
        }
        self.take_off(STAGING, &record.volume, staging, &[(devices, record.epoch)], false)
    }

    /// Ends an interrupted making before the volume leaves this node: nobody else could. Says whether it is ended.
    fn settle(&self, devices: &dyn Devices, record: &Record, device: &Device) -> bool {
        let (Phase::Making { uuid }, Content::Filesystem { fs, .. }) = (&record.phase, &record.content)
        else {
            return true;
        };
        let fault = match devices.keep(&record.grant(), device) {
            Ok(_kept) => match self.host.settle(&device.path, &Making { fs: *fs, uuid: *uuid }) {
                Ok(_) | Err(MakeError::NotOurs { .. }) => return true,
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        tracing::warn!(volume = %record.volume, fault, "an interrupted mkfs could not be settled");
        false
    }

    /// Without a record: what the kernel knows to be this volume's is taken down, and nothing else.
    fn take_down_unrecorded(&self, volume: &VolumeId, place: Option<&Place>) -> Result<(), Fault> {
        let mut found = Vec::new();
        for devices in self.all_devices() {
            found.extend(devices.find(volume, &self.id)?.into_iter().map(|device| (devices, device)));
        }
        let table = self.host.mounts()?;
        let at = place.map(Place::path);
        let is_volumes = |mount: &&Mount| found.iter().any(|(_, device)| self.shows(mount, device));
        let published: Vec<_> = table.iter().filter(is_volumes).map(|mount| mount.at.clone()).collect();
        let published: Vec<_> = published.into_iter().filter(|path| Some(path.as_path()) != at).collect();
        if !published.is_empty() {
            return Err(Fault::NotReady(format!(
                "volume {volume} is still published at {}; unpublish it first",
                listed(&published)
            )));
        }
        if let Some(place) = place {
            if let Some(other) = table.at(place.path()).find(|mount| !is_volumes(mount)) {
                return Err(Fault::Broken(format!(
                    "{}: nothing says that this is volume {volume}; nothing was unmounted",
                    other.describe()
                )));
            }
            let over: Vec<_> = found.iter().map(|(devices, device)| (*devices, device.epoch)).collect();
            self.take_off(STAGING, volume, place, &over, true)?;
        }
        pass("node.disconnect.before");
        for (devices, device) in &found {
            self.disconnect(*devices, volume, device)?;
        }
        for devices in self.all_devices() {
            self.clear_remains(devices, volume)?;
        }
        pass("node.disconnect.after");
        Ok(self.state.remove(volume)?)
    }

    /// Takes away what leads to the storage without a device. What is only held by its last user ends with that one.
    fn clear_remains(&self, devices: &dyn Devices, volume: &VolumeId) -> Result<(), Fault> {
        for left in devices.remains(volume, &self.id)? {
            if !left.held {
                devices.disconnect(volume, &self.id, left.epoch)?;
                self.tell(volume, &Event::OrphanCleaned { epoch: left.epoch });
            }
        }
        Ok(())
    }
}
