//! Holding volumes still: the moment whose bytes a snapshot or clone has.

use super::Inner;
use super::directory::Fault;
use super::mark::{Mark, step};
use super::record::VolumeRecord;
use crate::{Progress, ProvisionError};
use bowline_failpoint::pass;
use bowline_host::file::{self, Reflink};
use bowline_host::freeze::{FreezeError, Frozen};
use bowline_host::loopdev::{FileIdentity, LoopDevice};
use std::fs::File;
use std::io;
use std::path::Path;

/// Volumes at rest until this is dropped.
#[derive(Debug, Default)]
pub(super) struct Still {
    frozen: Vec<Frozen>,
    /// Writers that could not be frozen, in words: devices without a filesystem, and nodes elsewhere.
    raw: Vec<String>,
}

impl Still {
    /// Lets writers go on. Fails if somebody else let them go on before: then it was not one moment.
    pub(super) fn thaw(self) -> Result<(), ProvisionError> {
        pass("target.thaw.before");
        let thawed: Vec<_> = self.frozen.into_iter().map(Frozen::thaw).collect();
        pass("target.thaw.after");
        match thawed.into_iter().find_map(Result::err) {
            None => Ok(()),
            Some(error) => Err(ProvisionError::Unreachable { error: error.to_string() }),
        }
    }
}

fn unreachable(error: &dyn std::fmt::Display) -> ProvisionError {
    ProvisionError::Unreachable { error: error.to_string() }
}

impl Inner {
    /// The devices that can reach any of these files.
    pub(super) fn devices_of(&self, files: &[&File]) -> Result<Vec<LoopDevice>, ProvisionError> {
        let identities = files.iter().map(|file| FileIdentity::of(file)).collect::<Result<Vec<_>, _>>();
        let identities = identities.map_err(|error| unreachable(&error))?;
        let devices = self.host.loops().map_err(|error| unreachable(&error))?;
        Ok(devices.into_iter().filter(|device| identities.contains(&device.backing)).collect())
    }

    /// Who may write to a volume from elsewhere, in words.
    pub(super) fn remote_writer(&self, record: &VolumeRecord) -> Option<String> {
        let reach = record.reach();
        let writer = reach.iter().find(|(_, export)| self.exporter.is_remote() && export.mode.write);
        writer.map(|(epoch, export)| format!("node {} at epoch {epoch}, over the network,", export.node))
    }

    /// Freezes every filesystem that lies on one of these files. The caller holds their locks alone. Those who write from
    /// `elsewhere` cannot be frozen: a single volume has one moment all the same, where it is taken at once.
    pub(super) fn hold_still(
        &self,
        files: &[&File],
        elsewhere: Vec<String>,
    ) -> Result<Still, ProvisionError> {
        if let [by, _, ..] = elsewhere.as_slice() {
            let by = format!("{by} which cannot be held still together with another volume,");
            return Err(ProvisionError::InUse { by });
        }
        let mut still = Still { raw: elsewhere, ..Still::default() };
        for device in self.devices_of(files)?.iter().filter(|device| !device.read_only) {
            let mounted = self.host.mounted(device.number).map_err(|error| unreachable(&error))?;
            if mounted.is_empty() {
                // What was written through the device's cache goes to the file.
                let synced = File::open(&device.path).and_then(|open| open.sync_all());
                synced.map_err(|error| unreachable(&format!("{}: {error}", device.path.display())))?;
                still.raw.push(self.user(device));
                continue;
            }
            pass("target.freeze.before");
            let mut last = None;
            for place in &mounted {
                match place.freeze() {
                    Ok(frozen) => {
                        still.frozen.push(frozen);
                        last = None;
                        break;
                    }
                    Err(error @ FreezeError::Already { .. }) => {
                        return Err(ProvisionError::InUse { by: error.to_string() });
                    }
                    // Another mount of it may be one that can be reached.
                    Err(error) => last = Some(error),
                }
            }
            if let Some(error) = last {
                return Err(unreachable(&error));
            }
            pass("target.freeze.after");
        }
        Ok(still)
    }

    /// Thaws what a crash of ours left frozen on a volume.
    pub(super) fn thaw_left(&self, path: &Path) -> Result<(), ProvisionError> {
        let Ok(file) = file::open_file(path, false) else { return Ok(()) };
        for device in self.devices_of(&[&file])? {
            let mut thawed = Ok(false);
            for place in self.host.mounted(device.number).map_err(|error| unreachable(&error))? {
                thawed = place.thaw();
                // All of them are one filesystem; one that can be reached is enough.
                if thawed.is_ok() {
                    break;
                }
            }
            if thawed.map_err(|error| unreachable(&error))? {
                tracing::warn!(device = %device.path.display(), "thawed what a crash left frozen");
            }
        }
        Ok(())
    }

    /// Gives a new file the bytes of another that is held still. One with a mark has those before it already.
    pub(super) fn fill(
        &self,
        (from, size): (&File, u64),
        (to, path): (&File, &Path),
        still: &Still,
        mark: Option<&mut Mark>,
        progress: &Progress,
    ) -> Result<(), ProvisionError> {
        let fault = |error| self.told(Fault::io(path, error), size);
        pass("target.fill.before");
        // Nothing here may take longer than it must: writers are waiting.
        let expected = file::allocated(&from.metadata().map_err(fault)?);
        let shared = match &mark {
            // Where it was begun, blocks could not be shared.
            Some(mark) if mark.offset > 0 => Reflink::Unsupported,
            Some(_) | None => file::reflink(from, to).map_err(fault)?,
        };
        match shared {
            Reflink::Shared => progress.add(expected),
            Reflink::Unsupported => {
                if let Some(device) = still.raw.first() {
                    let by = format!(
                        "{device}, which could be written while this filesystem copies without reflinks,"
                    );
                    return Err(ProvisionError::InUse { by });
                }
                copy((from, size, expected), to, mark, progress).map_err(fault)?;
            }
        }
        pass("target.fill.after");
        Ok(())
    }
}

/// Copies what is not copied yet, and notes from time to time how far it has come, if it can go on from there.
fn copy(
    (from, size, expected): (&File, u64, u64),
    to: &File,
    mut mark: Option<&mut Mark>,
    progress: &Progress,
) -> io::Result<()> {
    let begin = mark.as_ref().map_or(0, |mark| mark.offset);
    pass("target.copy.before");
    // What was written behind the mark may be anything; a hole is what the rest goes into.
    to.set_len(begin)?;
    to.set_len(size)?;
    let before = file::data_bytes(from, begin)?.min(expected);
    progress.add(before);
    let (mut left, mut unmarked) = (expected - before, 0);
    let mut copied = |end: u64, bytes: u64| {
        progress.add(bytes.min(left));
        left = left.saturating_sub(bytes);
        unmarked += bytes;
        match mark.as_mut().filter(|_| unmarked >= step(expected)) {
            Some(mark) => {
                unmarked = 0;
                mark.set(to, end)
            }
            None => Ok(()),
        }
    };
    file::copy_sparse(from, to, begin..size, &mut copied)?;
    // Only what was marked before is long enough for the end to be worth a mark.
    if let Some(mark) = mark.filter(|mark| mark.offset > 0) {
        mark.set(to, size)?;
    }
    progress.add(left);
    pass("target.copy.after");
    Ok(())
}
