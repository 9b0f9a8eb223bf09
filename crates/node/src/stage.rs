//! `NodeStageVolume`: connect, make the filesystem if there is none, mount; each step recorded before it is done.

use crate::answer::Fault;
use crate::devices::{Device, Devices, Grant};
use crate::event::Event;
use crate::node::{ThisNode, usable};
use crate::seen::listed;
use crate::staging::{Content, Phase, Record};
use bowline_core::{AccessMode, FsType};
use bowline_csi::node::Stage;
use bowline_csi::{Access, Attributes, VolumeCapability};
use bowline_failpoint::pass;
use bowline_host::check::CheckError;
use bowline_host::format::{FsUuid, MakeError, Making, Probed, Settled, State};
use bowline_host::grow::GrowError;
use bowline_host::mount::MountError;
use bowline_host::options::{MountOptions, OptionError, allowed};
use bowline_host::path::Place;
use bowline_target::{GrantContext, NvmeContext};

/// `true`: freed blocks are given back to the target.
const DISCARD: &str = "bowline.storage/discard";
/// The filesystem, where the capability names none.
const FS: &str = "bowline.storage/fs";

const STAGING: &str = "staging_target_path";

/// A grant, and how the volume is to be used under it.
pub(crate) struct Wish {
    pub(crate) context: GrantContext,
    pub(crate) grant: Grant,
    pub(crate) content: Content,
    pub(crate) mode: AccessMode,
    pub(crate) group: Option<u32>,
}

impl Wish {
    /// Whether it is mounted without writing: by the grant, by the access mode or by a mount option.
    fn read_only(&self) -> bool {
        let asked = match &self.content {
            Content::Block => false,
            Content::Filesystem { options, .. } => options.iter().any(|option| option == "ro"),
        };
        let reads = match self.mode {
            AccessMode::SingleNodeReaderOnly | AccessMode::MultiNodeReaderOnly => true,
            AccessMode::SingleNodeWriter
            | AccessMode::SingleNodeSingleWriter
            | AccessMode::SingleNodeMultiWriter
            | AccessMode::MultiNodeSingleWriter
            | AccessMode::MultiNodeMultiWriter => false,
        };
        reads || asked || !self.grant.write
    }
}

impl ThisNode {
    pub(crate) fn stage(&self, request: &Stage) -> Result<(), Fault> {
        let Stage { volume, capability, publish_context, volume_context, .. } = request;
        let context = GrantContext::parse(|key| publish_context.get(key))
            .map_err(|error| Fault::Unsupported(error.to_string()))?;
        let wish = self.wish(volume, context, capability, publish_context, volume_context)?;
        let devices = self.devices_of(&wish.context.target, &wish.grant)?;
        let place = self.place(STAGING, &request.staging_path)?;
        let earlier = self.state.load(volume);
        // A record that cannot be read may be one of this very grant.
        let is_first = earlier
            .as_ref()
            .is_ok_and(|earlier| earlier.as_ref().is_none_or(|earlier| earlier.epoch != wish.grant.epoch));
        let earlier = usable(volume, earlier);
        if let Some(earlier) = &earlier
            && self.is_staged(earlier, &wish, &place)?
        {
            return self.give_to_group(&place, &wish);
        }
        self.clear_older(devices, &wish, earlier.as_ref())?;
        if let Some(earlier) = earlier.as_ref().filter(|earlier| earlier.epoch == wish.grant.epoch)
            && let Some(place) = self.recorded_place(&earlier.path)
        {
            self.clear_left(earlier, &place, None)?;
        }
        let mut record = Self::intent(devices, &wish, &place, earlier);
        self.state.note(&record)?;
        let done = self.bring_up(devices, &wish, &mut record, &place, is_first);
        done.map_err(|fault| self.give_up(devices, &record, &place, fault))?;
        tracing::info!(%volume, epoch = %wish.grant.epoch, write = wish.grant.write, "staged");
        Ok(())
    }

    /// What a request asks for, checked against what this node and its filesystems can do.
    pub(crate) fn wish(
        &self,
        volume: &bowline_core::VolumeId,
        context: GrantContext,
        capability: &VolumeCapability,
        publish_context: &Attributes,
        volume_context: &Attributes,
    ) -> Result<Wish, Fault> {
        if context.node != self.id {
            let said = format!("the grant is for node {}, and this is node {}", context.node, self.id);
            return Err(Fault::NotReady(said));
        }
        let fabric = NvmeContext::parse(|key| publish_context.get(key))
            .map_err(|error| Fault::Unsupported(error.to_string()))?;
        let grant = Grant {
            volume: volume.clone(),
            node: self.id.clone(),
            epoch: context.epoch,
            write: context.write,
            fabric,
        };
        let (content, group) = match &capability.access {
            Access::Block => (Content::Block, None),
            Access::Mount(mount) => {
                let named = mount.fs_type.as_ref().map(|fs| ("volume_capability.mount.fs_type", fs.as_str()));
                let named = named.or_else(|| Some((FS, volume_context.get(FS)?)));
                let fs = named.map_or(Ok(FsType::Ext4), |(field, name)| {
                    name.parse().map_err(|error| Fault::Unsupported(format!("{field}: {error}")))
                })?;
                let discard = publish_context.get(DISCARD) == Some("true");
                let mut options: Vec<_> = mount.flags.expose().flat_map(|flag| flag.split(',')).collect();
                options.extend(discard.then_some("discard"));
                options.sort_unstable();
                options.dedup();
                let options: Vec<_> = options.into_iter().map(str::to_owned).collect();
                (Content::Filesystem { fs, options }, mount.group)
            }
        };
        let wish = Wish { context, grant, content, mode: capability.mode, group };
        if let Content::Filesystem { fs, options } = &wish.content {
            mount_options(*fs, options, wish.read_only())?;
        }
        Ok(wish)
    }

    /// Whether it is staged in this way already. In another way is an error, while it is still there.
    fn is_staged(&self, earlier: &Record, wish: &Wish, place: &Place) -> Result<bool, Fault> {
        if earlier.epoch != wish.grant.epoch || earlier.phase != Phase::Staged || self.look(earlier).is_err()
        {
            return Ok(false);
        }
        let same = earlier.path == place.path()
            && earlier.content == wish.content
            && earlier.mode == wish.mode
            && earlier.write == wish.grant.write;
        if same {
            return Ok(true);
        }
        Err(Fault::Different(format!(
            "volume {} is staged at {} in another way",
            earlier.volume,
            earlier.path.display()
        )))
    }

    /// Makes sure that nothing of an earlier grant is left on this node. What nobody uses is taken away; what is used
    /// is named. A block of an old grant's page cache must never meet a new grant's device.
    fn clear_older(&self, devices: &dyn Devices, wish: &Wish, earlier: Option<&Record>) -> Result<(), Fault> {
        let Grant { volume, epoch, .. } = &wish.grant;
        if let Some(newer) = earlier.filter(|earlier| earlier.epoch > *epoch) {
            let newer = newer.epoch;
            return Err(Fault::NotReady(format!(
                "epoch {newer} of volume {volume} is known here already; the grant at epoch {epoch} is out of date"
            )));
        }
        if let Some(earlier) = earlier.filter(|earlier| earlier.epoch < *epoch) {
            let table = self.host.mounts()?;
            let mut seen = self.published(&table, earlier, None);
            let top = table.top(&earlier.path).filter(|top| crate::seen::is_content(top, earlier));
            if top.is_some() && seen.is_empty() && earlier.published.is_empty() {
                self.clear_unused(wish, earlier)?;
            } else {
                seen.extend(top.map(|top| top.at.clone()));
            }
            if !seen.is_empty() {
                return Err(in_the_way(wish, earlier.epoch, &format!("mounted at {}", listed(&seen))));
            }
        }
        for device in devices.find(volume, &self.id)? {
            if device.epoch > *epoch {
                let newer = device.epoch;
                return Err(Fault::NotReady(format!(
                    "this node has a device of volume {volume} at epoch {newer}; the grant at epoch {epoch} is out of date"
                )));
            }
            if device.epoch < *epoch {
                let table = self.host.mounts()?;
                let shown: Vec<_> = table
                    .iter()
                    .filter(|mount| self.shows(mount, &device))
                    .map(|mount| mount.at.clone())
                    .collect();
                if !shown.is_empty() {
                    return Err(in_the_way(wish, device.epoch, &format!("mounted at {}", listed(&shown))));
                }
                let holders = self.host.holders(device.number);
                if !holders.is_empty() {
                    self.reset_under_a_program(volume, (devices, device.epoch), device.number);
                    let holders: Vec<_> = holders.iter().take(5).map(ToString::to_string).collect();
                    return Err(in_the_way(wish, device.epoch, &holders.join(", ")));
                }
                tracing::info!(%volume, epoch = %device.epoch, "taking away an unused device of an earlier grant");
                self.disconnect(devices, volume, &device)?;
            }
        }
        for left in devices.remains(volume, &self.id)?.into_iter().filter(|left| left.epoch < *epoch) {
            if left.held {
                let by = "its device is gone, and something still has it open";
                return Err(in_the_way(wish, left.epoch, by));
            }
            devices.disconnect(volume, &self.id, left.epoch)?;
            self.tell(volume, &Event::OrphanCleaned { epoch: left.epoch });
        }
        Ok(())
    }

    /// Takes down a mount of an earlier grant that no workload was shown, or whose last one is gone. That it can be unmounted is the proof that
    /// nobody uses it. Its record stays until the next one replaces it, which goes on from what it knows.
    fn clear_unused(&self, wish: &Wish, earlier: &Record) -> Result<(), Fault> {
        let at = earlier.path.display();
        let stays = |why: &str| in_the_way(wish, earlier.epoch, &format!("mounted at {at}: {why}"));
        let place = self.recorded_place(&earlier.path).ok_or_else(|| stays("it cannot be reached"))?;
        let devices = self.devices_of(&earlier.target, &earlier.grant())?;
        self.take_down(devices, earlier, Some(&place)).map_err(|fault| stays(&fault.to_string()))?;
        tracing::info!(volume = %earlier.volume, epoch = %earlier.epoch, "took down an unused mount of an earlier grant");
        Ok(())
    }

    pub(crate) fn intent(
        devices: &dyn Devices,
        wish: &Wish,
        place: &Place,
        earlier: Option<Record>,
    ) -> Record {
        let fs = |content: &Content| match content {
            Content::Block => None,
            Content::Filesystem { fs, .. } => Some(*fs),
        };
        // A making that was interrupted under this grant, or under the one just before it, is settled: nobody else was
        // given the volume since. After any other grant that is not proven, and what is there is left alone.
        let follows =
            |epoch: bowline_core::Epoch| epoch == wish.grant.epoch || epoch.next() == wish.grant.epoch;
        let (phase, published) = match earlier {
            None => (Phase::Connecting, Vec::new()),
            Some(earlier) => {
                let phase = match earlier.phase {
                    Phase::Making { uuid }
                        if follows(earlier.epoch) && fs(&earlier.content) == fs(&wish.content) =>
                    {
                        Phase::Making { uuid }
                    }
                    // It had a filesystem, which is not made anew if it is not there any more: not until somebody had the volume raw.
                    Phase::Staged if fs(&earlier.content).is_some() => Phase::Restaging,
                    Phase::Restaging => Phase::Restaging,
                    Phase::Making { .. } | Phase::Connecting | Phase::Staged => Phase::Connecting,
                };
                (phase, if earlier.epoch == wish.grant.epoch { earlier.published } else { Vec::new() })
            }
        };
        Record {
            volume: wish.grant.volume.clone(),
            node: wish.grant.node.clone(),
            target: wish.context.target.clone(),
            epoch: wish.grant.epoch,
            write: wish.grant.write,
            device: devices.identity(&wish.grant),
            fabric: wish.grant.fabric.clone(),
            path: place.path().to_owned(),
            mode: wish.mode,
            content: wish.content.clone(),
            phase,
            published,
        }
    }

    /// From a recorded intent to a staged volume. Run again, it goes on where it was interrupted. No record tells of an earlier use of the grant
    /// if it `is_first`.
    pub(crate) fn bring_up(
        &self,
        devices: &dyn Devices,
        wish: &Wish,
        record: &mut Record,
        place: &Place,
        is_first: bool,
    ) -> Result<Device, Fault> {
        pass("node.connect.before");
        let (device, table) = self.connect(devices, record)?;
        pass("node.connect.after");
        // What was begun here before is judged by what is found; so is what an earlier use of the grant may have left.
        let is_unused = self.begin_use(record)? && is_first && record.phase == Phase::Connecting;
        let is_new = device.was_blank && is_unused;
        if let Content::Filesystem { fs, options } = &wish.content {
            let mounted =
                table.top(place.path()).is_some_and(|top| self.host.is_mount_of(top, device.number));
            let options = mount_options(*fs, options, wish.read_only())?;
            let over = (devices, device.epoch);
            let mount = || {
                let _kept = devices.keep(&wish.grant, &device)?;
                // Whoever mounted it may have ended before it was grown; one that has its size already is left alone. ext4 was grown before that.
                let is_to_grow = if mounted {
                    *fs != FsType::Ext4 && !wish.read_only()
                } else {
                    self.prepare(&device, *fs, is_new, wish, record)? > 0
                };
                let done = self.host.mount(&device.path, place, &options);
                done.map_err(|error| mount_fault(wish, &error))?;
                if is_to_grow {
                    let grown = self.host.grow(*fs, &device.path, place);
                    grown.map_err(|error| Fault::command(&error))?;
                }
                Ok(())
            };
            let volume = &wish.grant.volume;
            let done: Result<(), Fault> = self.watched(volume, &[over], mount);
            done.inspect_err(|_| self.reset_under_a_program(volume, over, device.number))?;
            self.give_to_group(place, wish)?;
        }
        // A filesystem shows by itself that the volume was used, also after a loss of power; bytes of a workload may lie where a short look misses them.
        if record.is_noted() && (device.was_blank || wish.content == Content::Block) {
            self.state.keep_uses()?;
        }
        // Durably, if something was made: a workload's first write must not meet a record that says "half made".
        match std::mem::replace(&mut record.phase, Phase::Staged) {
            Phase::Making { .. } => self.state.save(record)?,
            Phase::Connecting | Phase::Restaging => self.state.note(record)?,
            Phase::Staged => {}
        }
        Ok(device)
    }

    /// Notes that the grant of a record is used, if it is one whose volume may have been called blank by its target; says whether it is for the first
    /// time.
    pub(crate) fn begin_use(&self, record: &Record) -> Result<bool, Fault> {
        Ok(record.is_noted() && self.state.begin_use(record)?)
    }

    /// Gets a device ready to be mounted, and says how much of it its filesystem is to be grown by afterwards. One that `is_new` was blank
    /// before its grant, which nobody has used yet.
    fn prepare(
        &self,
        device: &Device,
        fs: FsType,
        is_new: bool,
        wish: &Wish,
        record: &mut Record,
    ) -> Result<u64, Fault> {
        let read_only = wish.read_only();
        let volume = &wish.grant.volume;
        if let Phase::Making { uuid } = record.phase.clone() {
            if read_only {
                // What looks whole may not be, and to find out and to erase it takes a device that can be written.
                return Err(Fault::NotReady(format!(
                    "the making of a filesystem on volume {volume} was interrupted, and this node may only read it; \
                     use it for writing once first"
                )));
            }
            match self.host.settle(&device.path, &Making { fs, uuid }) {
                Ok(Settled::Made) => {}
                // What is there is not what was begun: it is judged below like anything else.
                Ok(Settled::Blank) | Err(MakeError::NotOurs { .. }) => {
                    record.phase = Phase::Connecting;
                    self.state.save(record)?;
                }
                Err(error) => return Err(make_fault(&error)),
            }
        }
        let probed = if is_new { Probed::unused(&device.path)? } else { Probed::new(&device.path)? };
        match probed.state() {
            State::Formatted { fs: found, .. } if *found == fs => {}
            State::Formatted { fs: found, .. } => {
                return Err(Fault::Unsupported(format!(
                    "volume {volume} has a filesystem {found}, and {fs} was asked for; it is not formatted anew"
                )));
            }
            State::Unclear(why) => {
                return Err(Fault::NotReady(format!("volume {volume} is left alone: {why}")));
            }
            // A final answer: after another one the kubelet unstages by itself when the pod goes, and the next pod would have it formatted.
            State::Blank if matches!(record.phase, Phase::Staged | Phase::Restaging) => {
                return Err(Fault::NotReady(format!(
                    "volume {volume} was staged with a filesystem, and is blank now; it is left alone until it was unstaged"
                )));
            }
            State::Blank if read_only => {
                return Err(Fault::NotReady(format!(
                    "volume {volume} is blank, and this node may only read it; use it for writing once first"
                )));
            }
            State::Blank => return self.make(probed, fs, record).map(|()| 0),
        }
        drop(probed);
        if read_only {
            return Ok(0);
        }
        self.host.check(&device.path, fs).map_err(|error| check_fault(&error))?;
        self.host.grow_before_mount(fs, &device.path).map_err(|error| match error {
            GrowError::Device(error) => error.into(),
            GrowError::Check(error) => check_fault(&error),
            GrowError::Command(error) => Fault::command(&error),
        })?;
        Ok(self.host.room_to_grow(&device.path)?)
    }

    fn make(&self, probed: Probed, fs: FsType, record: &mut Record) -> Result<(), Fault> {
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes).map_err(|error| Fault::Unreachable(error.to_string()))?;
        // RFC 9562, version 4.
        bytes[6] = (bytes[6] & 0x0F) | 0x40;
        bytes[8] = (bytes[8] & 0x3F) | 0x80;
        let uuid = FsUuid::from_bytes(bytes);
        record.phase = Phase::Making { uuid };
        self.state.save(record)?;
        self.host.make_on(probed, &Making { fs, uuid }).map_err(|error| make_fault(&error))?;
        tracing::info!(volume = %record.volume, %fs, "made a filesystem");
        Ok(())
    }

    pub(crate) fn give_to_group(&self, place: &Place, wish: &Wish) -> Result<(), Fault> {
        let Some(group) = wish.group.filter(|_| !wish.read_only()) else { return Ok(()) };
        let Wish { context, grant, .. } = wish;
        let over = [(self.devices_of(&context.target, grant)?, grant.epoch)];
        let given = self.watched(&grant.volume, &over, || self.host.give_to_group(place, group));
        given.map(drop).map_err(|error| Fault::place("volume_capability.mount.volume_mount_group", &error))
    }

    /// After a final error the caller may never come back, so what was begun is taken back; where that cannot be
    /// done, the error is one after which it does come back. That there was a filesystem was not begun now, and stays known until an unstage.
    fn give_up(&self, devices: &dyn Devices, record: &Record, place: &Place, fault: Fault) -> Fault {
        if !fault.is_final() {
            return fault;
        }
        let taken_back = self.take_down(devices, record, Some(place)).and_then(|is_over| {
            if is_over && record.phase != Phase::Restaging {
                self.state.remove(&record.volume)?;
            }
            Ok(())
        });
        match taken_back {
            Ok(()) => fault,
            Err(undone) => Fault::Unreachable(format!("{fault}; and what was begun stays for now: {undone}")),
        }
    }
}

fn in_the_way(wish: &Wish, epoch: bowline_core::Epoch, by: &str) -> Fault {
    let volume = &wish.grant.volume;
    Fault::NotReady(format!(
        "this node still uses volume {volume} through an earlier grant (epoch {epoch}): {by}; \
         unpublish and unstage that first"
    ))
}

/// The options for a mount. A flag is never told: CSI lets it hold what nobody should see.
pub(crate) fn mount_options(fs: FsType, options: &[String], read_only: bool) -> Result<MountOptions, Fault> {
    let flags = "volume_capability.mount.mount_flags";
    // A clone has the id of its origin, and xfs refuses to mount both unless told to.
    let always = if fs == FsType::Xfs { &["nouuid"][..] } else { &[] };
    // Said to the parser, because some options are allowed only then; `rw` is overruled below.
    let ro = (read_only && !options.iter().any(|option| option == "rw")).then_some("ro");
    let all = options.iter().map(String::as_str).chain(always.iter().copied()).chain(ro);
    let parsed = MountOptions::parse(fs, all).map_err(|error| {
        Fault::Unsupported(match error {
            OptionError::Unknown { .. } | OptionError::Refused(_) => {
                format!("{flags} has an option that is not allowed for {fs}; allowed are {}", allowed(fs))
            }
            OptionError::Contradiction(..) | OptionError::NeedsReadOnly => format!("{flags}: {error}"),
        })
    })?;
    Ok(if read_only { parsed.read_only() } else { parsed })
}

fn mount_fault(wish: &Wish, error: &MountError) -> Fault {
    match error {
        // ext4 and xfs refuse to be read while their log has to be replayed, which needs a device that can be written.
        MountError::Kernel { error: kernel, .. }
            if wish.read_only() && kernel.kind() == std::io::ErrorKind::ReadOnlyFilesystem =>
        {
            Fault::NotReady(format!(
                "{error}; volume {} was not unmounted cleanly: stage it for writing once, or with the mount option \
                 `norecovery`",
                wish.grant.volume
            ))
        }
        error => Fault::mount(STAGING, error),
    }
}

fn make_fault(error: &MakeError) -> Fault {
    let said = error.to_string();
    match error {
        MakeError::Device(_) | MakeError::Check(_) => Fault::Unreachable(said),
        MakeError::NotBlank { .. } | MakeError::NotOurs { .. } => Fault::NotReady(said),
        MakeError::Command(error) => Fault::command(error),
        MakeError::Unfinished { .. } => Fault::Broken(said),
    }
}

fn check_fault(error: &CheckError) -> Fault {
    let said = error.to_string();
    match error {
        CheckError::Uncorrected { .. } => Fault::NotReady(said),
        CheckError::WhileInUse { .. } | CheckError::Operational { .. } => Fault::Broken(said),
        CheckError::Device(_) => Fault::Unreachable(said),
        CheckError::Command(error) => Fault::command(error),
    }
}
