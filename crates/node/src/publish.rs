//! `NodePublishVolume`: show a staged volume to one workload; and mounting a stale one again, which happens only here.

use crate::answer::Fault;
use crate::devices::Device;
use crate::event::Event;
use crate::node::ThisNode;
use crate::seen::listed;
use crate::stage::Wish;
use crate::staging::{Content, Phase, Record};
use bowline_core::{AccessMode, VolumeId};
use bowline_csi::Access;
use bowline_csi::node::Publish;
use bowline_host::mountinfo::MountTable;
use bowline_host::path::Place;
use bowline_target::GrantContext;

const STAGING: &str = "staging_target_path";
const TARGET: &str = "target_path";

/// How often a stale volume is mounted again before it is left to a person.
const ATTEMPTS: u32 = 3;

impl ThisNode {
    pub(crate) fn publish(&self, request: &Publish) -> Result<(), Fault> {
        let volume = &request.volume;
        let staging = request.staging_path.as_ref();
        let staging = staging.ok_or_else(|| {
            Fault::NotReady(format!("{STAGING} is required: volume {volume} has to be staged first"))
        })?;
        let staging = self.place(STAGING, staging)?;
        let target = self.place(TARGET, &request.target_path)?;
        let mut record = self.staged_record(request, &staging)?;
        let wish = self.recorded_wish(&record, request)?;
        // May take long, so the device is looked for after it.
        self.restore_paths(&record)?;
        let mut table = self.host.mounts()?;
        let device = match self.look_in(&table, &record) {
            Ok(device) => device,
            Err(stale) => {
                let device = self.recover(&mut record, &wish, &staging, &target, &stale)?;
                table = self.host.mounts()?;
                device
            }
        };
        let mut others = self.published(&table, &record, Some(&device));
        others.retain(|path| path != target.path());
        let alone = AccessMode::SingleNodeSingleWriter;
        if !others.is_empty() && (record.mode == alone || request.capability.mode == alone) {
            return Err(Fault::NotReady(format!(
                "volume {volume} is for one workload alone, and is published at {}",
                listed(&others)
            )));
        }
        if !request.read_only {
            self.give_to_group(&staging, &wish)?;
        }
        self.clear_target(&table, &record, &device, &target)?;
        self.show(&mut record, &device, &staging, &target, request.read_only)?;
        tracing::info!(%volume, epoch = %record.epoch, read_only = request.read_only, "published");
        Ok(())
    }

    /// The record of a volume that is staged as the request says; rebuilt from the kernel and the request if it is lost.
    fn staged_record(&self, request: &Publish, staging: &Place) -> Result<Record, Fault> {
        let volume = &request.volume;
        let not_staged = || Fault::NotReady(format!("volume {volume} is not staged on this node"));
        let record = match self.usable_record(volume) {
            Some(record) => record,
            None => self.rebuilt(request, staging)?.ok_or_else(not_staged)?,
        };
        if record.phase != Phase::Staged {
            return Err(not_staged());
        }
        if record.path != staging.path() {
            let at = record.path.display();
            return Err(Fault::NotReady(format!("volume {volume} is staged at {at}, not at {STAGING}")));
        }
        if request.publish_context.get(bowline_target::context::EPOCH).is_some() {
            let context = GrantContext::parse(|key| request.publish_context.get(key))
                .map_err(|error| Fault::Unsupported(error.to_string()))?;
            if context.epoch != record.epoch || context.node != self.id || context.target != record.target {
                return Err(Fault::NotReady(format!(
                    "volume {volume} is staged at epoch {}, and the grant is for node {} at epoch {}; stage it again",
                    record.epoch, context.node, context.epoch
                )));
            }
        }
        Ok(record)
    }

    /// A lost record, if the kernel proves that the volume is staged there under the grant of the request.
    fn rebuilt(&self, request: &Publish, staging: &Place) -> Result<Option<Record>, Fault> {
        let Publish { volume, capability, publish_context, volume_context, .. } = request;
        let Ok(context) = GrantContext::parse(|key| publish_context.get(key)) else { return Ok(None) };
        let wish = self.wish(volume, context, capability, publish_context, volume_context)?;
        let devices = self.devices_of(&wish.context.target, &wish.grant)?;
        let mut record = Self::intent(devices, &wish, staging, None);
        if self.look(&record).is_err() {
            return Ok(None);
        }
        record.phase = Phase::Staged;
        self.begin_use(&record)?;
        self.state.save(&record)?;
        tracing::warn!(%volume, epoch = %record.epoch, "rebuilt a lost staging record from the kernel");
        Ok(Some(record))
    }

    /// How the volume is staged, and whether the request can be served by that.
    fn recorded_wish(&self, record: &Record, request: &Publish) -> Result<Wish, Fault> {
        let different = |how: &str| Fault::Different(format!("volume {} is staged as {how}", record.volume));
        let group = match (&record.content, &request.capability.access) {
            (Content::Block, Access::Block) => None,
            (Content::Block, Access::Mount(_)) => return Err(different("a block device")),
            (Content::Filesystem { fs, .. }, Access::Mount(mount)) => {
                if mount.fs_type.as_ref().is_some_and(|asked| asked.as_str() != fs.name()) {
                    return Err(different(fs.name()));
                }
                mount.group
            }
            (Content::Filesystem { fs, .. }, Access::Block) => return Err(different(fs.name())),
        };
        let Record { node, target, epoch, write, mode, content, .. } = record.clone();
        let context = GrantContext { target, node, epoch, write };
        Ok(Wish { context, grant: record.grant(), content, mode, group })
    }

    /// Unmounts what an outage left where a workload is to see the volume. Not before this can be replaced: a path with nothing mounted is a place
    /// on the node's own disk.
    fn clear_target(
        &self,
        table: &MountTable,
        record: &Record,
        device: &Device,
        target: &Place,
    ) -> Result<(), Fault> {
        if !self.is_left_at(table, target, record, Some(device)) {
            return Ok(());
        }
        let over = [(self.devices_of(&record.target, &record.grant())?, record.epoch)];
        self.take_off(TARGET, &record.volume, target, &over, false)?;
        tracing::info!(volume = %record.volume, "took away what a workload saw of a disk that is gone");
        Ok(())
    }

    /// Whether everything that is mounted where a workload is to see the volume is left from a disk that is gone.
    pub(crate) fn is_left_at(
        &self,
        table: &MountTable,
        target: &Place,
        record: &Record,
        device: Option<&Device>,
    ) -> bool {
        let mut mounts = table.at(target.path());
        table.is_mount_point(target.path())
            && mounts.all(|mount| self.shows_what_is_gone(table, mount, record, device))
    }

    /// Binds it, recorded before; a bind that failed is not in the record afterwards.
    fn show(
        &self,
        record: &mut Record,
        device: &Device,
        staging: &Place,
        target: &Place,
        read_only: bool,
    ) -> Result<(), Fault> {
        let path = target.path().to_owned();
        let is_new = !record.published.contains(&path);
        if is_new {
            record.published.push(path.clone());
            self.state.note(record)?;
        }
        let bound = self.bind(record, device, staging, target, read_only);
        if bound.is_err() && is_new {
            record.published.retain(|published| *published != path);
            self.state.note(record)?;
        }
        bound
    }

    fn bind(
        &self,
        record: &Record,
        device: &Device,
        staging: &Place,
        target: &Place,
        read_only: bool,
    ) -> Result<(), Fault> {
        let bound = match record.content {
            Content::Filesystem { .. } => self.host.bind(staging, target, read_only),
            Content::Block => {
                let grant = record.grant();
                let _kept = self.devices_of(&record.target, &grant)?.keep(&grant, device)?;
                self.host.bind_device(&device.path, target, read_only)
            }
        };
        bound.map(drop).map_err(|error| Fault::mount(TARGET, &error))
    }

    /// Whether connections of a volume are lost that could be had again.
    pub(crate) fn can_restore_paths(&self, volume: &VolumeId) -> Result<bool, Fault> {
        let Some(record) = self.usable_record(volume).filter(|record| record.phase == Phase::Staged) else {
            return Ok(false);
        };
        let grant = record.grant();
        Ok(self.devices_of(&record.target, &grant)?.can_reach_more(&grant)?)
    }

    pub(crate) fn restore_lost_paths(&self, volume: &VolumeId) -> Result<(), Fault> {
        match self.usable_record(volume) {
            Some(record) if record.phase == Phase::Staged => self.restore_paths(&record),
            Some(_) | None => Ok(()),
        }
    }

    /// Connects anew what was given up by the kernel while another connection served. That they serve is enough.
    fn restore_paths(&self, record: &Record) -> Result<(), Fault> {
        let grant = record.grant();
        let devices = self.devices_of(&record.target, &grant)?;
        if let Ok(Some(lost)) = devices.reaches(&grant) {
            let volume = &record.volume;
            match devices.connect(&grant) {
                Ok(_) => tracing::info!(%volume, lost, "connected again what can be"),
                Err(error) => tracing::warn!(%volume, lost, %error, "a connection stays lost"),
            }
        }
        Ok(())
    }

    /// Mounts a stale volume again: a few attempts, then the caller hears why. Nothing that is in use is unmounted.
    fn recover(
        &self,
        record: &mut Record,
        wish: &Wish,
        staging: &Place,
        target: &Place,
        stale: &Fault,
    ) -> Result<Device, Fault> {
        let volume = record.volume.clone();
        self.tell(&volume, &Event::StaleMount { why: stale.to_string() });
        let mut pause = self.timing.remount_pause;
        let mut last = stale.clone();
        for attempt in 1..=ATTEMPTS {
            match self.remount(record, wish, staging, target) {
                Ok(device) => {
                    self.tell(&volume, &Event::Remounted { attempt });
                    return Ok(device);
                }
                Err(fault) => {
                    self.tell(&volume, &Event::RemountFailed { attempt, why: fault.to_string() });
                    last = fault;
                }
            }
            if attempt < ATTEMPTS {
                std::thread::sleep(pause);
                pause *= 2;
            }
        }
        Err(Fault::Unreachable(format!("{stale}; it could not be mounted again: {last}")))
    }

    fn remount(
        &self,
        record: &mut Record,
        wish: &Wish,
        staging: &Place,
        target: &Place,
    ) -> Result<Device, Fault> {
        self.clear_left(record, staging, Some(target))?;
        let devices = self.devices_of(&record.target, &wish.grant)?;
        self.bring_up(devices, wish, record, staging, false)
    }
}
