//! One grant as a subsystem of the kernel's target: shown in an order in which nobody but the granted host ever gets in, and taken
//! away in the order that proves that nobody is left.

use super::kernel::{Fault, Kernel, SUBSYSTEMS};
use super::port::{self, Port};
use super::work::Job;
use bowline_core::{MODEL, MODEL_OF_BLANK, NvmeNames};
use bowline_host::file;
use bowline_host::loopdev::{FileIdentity, LoopError};
use bowline_host::{Host, Tag};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// A subsystem, by its name.
pub(super) struct Subsystem<'a>(pub(super) &'a str);

impl Subsystem<'_> {
    pub(super) fn directory(&self) -> PathBuf {
        Path::new(SUBSYSTEMS).join(self.0)
    }

    fn attribute(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    fn allowed(&self) -> PathBuf {
        self.directory().join("allowed_hosts")
    }

    fn namespaces(&self) -> PathBuf {
        self.directory().join("namespaces")
    }

    /// The one that a grant has.
    pub(super) fn namespace(&self) -> PathBuf {
        self.namespaces().join("1")
    }
}

pub(super) fn host_of(name: &str) -> PathBuf {
    Path::new("hosts").join(name)
}

/// A grant as it is to be shown.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) names: NvmeNames,
    /// The volume's bytes.
    pub(super) file: PathBuf,
    pub(super) write: bool,
    /// Nobody else may write it, now or beside this grant, and it was never shown before. Said later, that it is blank would be a word
    /// about bytes that its node may have written and not sent yet.
    pub(super) may_be_blank: bool,
    /// Where it is shown besides it stays: it is not known which addresses there are.
    pub(super) stays_elsewhere: bool,
    /// What a device of this machine carries that stands between the file and a host that may only read.
    pub(super) tag: Tag,
}

impl Shown {
    /// Shows it at these ports and no others. What is so already stays as it is, whoever uses it.
    ///
    /// The host is let in to something that no port shows yet, and the ports come last: whenever this ends early, the
    /// host of the grant can log in, or nobody can.
    ///
    /// Says which port did not take it, if another one did: a node does with one path while the address of another is not there.
    pub(super) fn show(
        &self,
        kernel: &Kernel,
        host: &Host,
        ports: &[Port],
        job: &Job,
    ) -> Result<Option<String>, ShowError> {
        let subsystem = Subsystem(&self.names.subsystem);
        if !kernel.exists(&subsystem.directory())? {
            kernel.make(&subsystem.directory())?;
        }
        self.only_this_host(kernel, &subsystem)?;
        self.name(kernel, &subsystem)?;
        let namespace = subsystem.namespace();
        match self.bytes(kernel, host)? {
            Bytes::Own => {}
            Bytes::None | Bytes::Unbound => {
                // One that is not open may be closing still, for as long as its disk does not finish what is in flight. Opened again, nobody
                // would wait for that any more; its removal does.
                if kernel.exists(&namespace)? {
                    job.drains(true);
                    kernel.write_slowly(&namespace.join("enable"), "0")?;
                    kernel.remove_slowly(&namespace)?;
                    job.drains(false);
                }
                kernel.make(&namespace)?;
                self.fill(kernel, host, &namespace)?;
            }
            Bytes::Other(place) => return Err(ShowError::Elsewhere(place)),
        }
        kernel.make(&host_of(&self.names.host))?;
        kernel.link(&subsystem.allowed().join(&self.names.host), &host_of(&self.names.host))?;
        // All of them are tried before one is told.
        let (mut is_shown, mut left, mut lacking) = (false, Ok(()), None);
        for port in port::all(kernel)? {
            let link = port.link(subsystem.0);
            match (ports.contains(&port), kernel.exists(&link)?) {
                (true, true) => is_shown = true,
                (true, false) => match kernel.link(&link, &subsystem.directory()) {
                    Ok(()) => is_shown = true,
                    Err(fault) => lacking = lacking.or(Some(fault)),
                },
                (false, true) if !self.stays_elsewhere => left = left.and(kernel.unlink(&link)),
                (false, _) => {}
            }
        }
        left?;
        match lacking {
            Some(fault) if !is_shown => Err(fault.into()),
            lacking => Ok(lacking.map(|fault| fault.to_string())),
        }
    }

    fn only_this_host(&self, kernel: &Kernel, subsystem: &Subsystem<'_>) -> Result<(), Fault> {
        kernel.set(&subsystem.attribute("attr_allow_any_host"), "0")?;
        for other in kernel.list(&subsystem.allowed())?.iter().filter(|name| **name != self.names.host) {
            kernel.unlink(&subsystem.allowed().join(other))?;
        }
        Ok(())
    }

    /// What it is called. The kernel does not let that be changed once somebody has seen it.
    fn name(&self, kernel: &Kernel, subsystem: &Subsystem<'_>) -> Result<(), ShowError> {
        if kernel.exists(&subsystem.namespace())? {
            return Ok(());
        }
        if !self.is_own_serial(kernel, subsystem)? {
            kernel.set(&subsystem.attribute("attr_serial"), &self.serial()?)?;
        }
        let model = if self.may_be_blank && self.is_blank() { MODEL_OF_BLANK } else { MODEL };
        Ok(kernel.set(&subsystem.attribute("attr_model"), model)?)
    }

    /// Tells the volume's file from any other that was or is put in its place: a copy has another number, was made at another time, or, with its whole
    /// filesystem, is on another device. An export keeps its own filesystem mounted, so that has the same number as long as the export lasts.
    fn serial(&self) -> Result<String, LoopError> {
        let found = file::open_file(&self.file, false).and_then(|file| file.metadata());
        let found = found.map_err(|error| LoopError::Backing { path: self.file.clone(), error })?;
        let made = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        Ok(self.names.serial(&format!("{}/{}/{}", found.dev(), found.ino(), made.as_nanos())))
    }

    /// Whether the export was made over this very file, as far as its serial number tells: that of an earlier Bowline does not.
    fn is_own_serial(&self, kernel: &Kernel, subsystem: &Subsystem<'_>) -> Result<bool, ShowError> {
        let serial = kernel.read(&subsystem.attribute("attr_serial"))?;
        Ok(serial == self.names.earlier_serial() || serial == self.serial()?)
    }

    /// Whether the volume has not one byte in it. The node need not look all over it then, which nobody can do better than the storage.
    fn is_blank(&self) -> bool {
        file::open_file(&self.file, false).and_then(|file| file::is_all_hole(&file)).unwrap_or(false)
    }

    /// What its namespace has now.
    pub(super) fn bytes(&self, kernel: &Kernel, host: &Host) -> Result<Bytes, ShowError> {
        let subsystem = Subsystem(&self.names.subsystem);
        let namespace = subsystem.namespace();
        if !kernel.exists(&namespace)? || kernel.read(&namespace.join("enable"))? != "1" {
            return Ok(Bytes::None);
        }
        let device = PathBuf::from(kernel.read(&namespace.join("device_path"))?);
        let other = |place: &Path| Bytes::Other(place.display().to_string());
        if kernel.read(&namespace.join("device_uuid"))? != self.names.namespace {
            return Ok(other(&device));
        }
        if self.write {
            if device != self.file {
                return Ok(other(&device));
            }
            let replaced =
                || Bytes::Other(format!("{} (a file that another has replaced)", device.display()));
            return Ok(if self.is_own_serial(kernel, &subsystem)? { Bytes::Own } else { replaced() });
        }
        let Some(found) = host.loops()?.into_iter().find(|found| found.path == device) else {
            let name = device.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_loop = device.parent() == Some(&*host.roots.dev) && name.starts_with("loop");
            return Ok(if is_loop { Bytes::Unbound } else { other(&device) });
        };
        let file = file::open_file(&self.file, false).and_then(|file| FileIdentity::of(&file));
        let file = file.map_err(|error| LoopError::Backing { path: self.file.clone(), error })?;
        Ok(if found.read_only && found.backing == file { Bytes::Own } else { other(&found.backing_path) })
    }

    /// Puts the bytes into a namespace, and opens it.
    fn fill(&self, kernel: &Kernel, host: &Host, namespace: &Path) -> Result<(), ShowError> {
        let open = |device: &Path| -> Result<(), Fault> {
            let path = device.as_os_str().to_str().unwrap_or_default();
            kernel.write(&namespace.join("device_path"), path)?;
            kernel.set(&namespace.join("device_uuid"), &self.names.namespace)?;
            kernel.set(&namespace.join("buffered_io"), "0")?;
            kernel.write(&namespace.join("enable"), "1")
        };
        if self.write {
            return Ok(open(&self.file)?);
        }
        // nvmet opens what it exports for writing (Linux 6.1 … 6.18), and has no setting that a host could not undo; a loop device
        // that is read-only refuses to be opened like that, but not to be made read-only afterwards, and then refuses
        // every write and every discard itself. Its size is read again once it has one.
        let mut failed = None;
        let attached = host.attach_read_only_behind(&self.file, &self.tag, &mut |device| {
            let opened = kernel.write_slowly(&namespace.join("enable"), "0").and_then(|()| open(device));
            opened.map_err(|fault| io::Error::other(failed.insert(fault).to_string()))
        });
        match (attached, failed) {
            (Ok(()), _) => Ok(grown(kernel, namespace)?),
            (Err(_), Some(fault)) => Err(fault.into()),
            (Err(error), None) => Err(error.into()),
        }
    }
}

/// What a namespace has.
pub(super) enum Bytes {
    /// Nothing: it is not there, or not open.
    None,
    /// A loop device that is bound to nothing: an end came before that.
    Unbound,
    /// The volume's, in the way that its grant says.
    Own,
    /// Others, or the same in another way: this is where they are.
    Other(String),
}

/// Why a grant is not shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShowError {
    #[error(transparent)]
    Kernel(#[from] Fault),
    #[error(transparent)]
    Device(#[from] LoopError),
    #[error("{0} is exported under its names")]
    Elsewhere(String),
}

/// Tells hosts that a namespace has another size. Kernels without this attribute look when a host does, and one that is not open
/// yet has the size that it has then.
pub(super) fn grown(kernel: &Kernel, namespace: &Path) -> Result<(), Fault> {
    let attribute = namespace.join("revalidate_size");
    if !kernel.exists(&attribute)? || kernel.read(&namespace.join("enable"))? != "1" {
        return Ok(());
    }
    kernel.write(&attribute, "1")
}

/// Takes a subsystem away, with the host that was let in.
///
/// The order is what makes it a fence. nvmet looks at the allowed hosts only when a controller is made, so what is connected
/// writes on until its port goes; the port goes without waiting for what is in flight; disabling the namespace waits for
/// that, and is what proves it. A second one that disables it does not wait (Linux 6.1), but then the removal does: it waits
/// for whoever still writes that attribute. Removing the subsystem ends a controller that slipped in between.
pub(super) fn hide(kernel: &Kernel, name: &str, host: Option<&str>, job: &Job) -> Result<(), Fault> {
    let subsystem = Subsystem(name);
    let mut hosts = kernel.list(&subsystem.allowed())?;
    for host in &hosts {
        kernel.unlink(&subsystem.allowed().join(host))?;
    }
    for port in port::all(kernel)? {
        let link = port.link(name);
        if kernel.exists(&link)? {
            kernel.unlink(&link)?;
        }
    }
    job.drains(true);
    for namespace in kernel.list(&subsystem.namespaces())? {
        let namespace = subsystem.namespaces().join(namespace);
        kernel.write_slowly(&namespace.join("enable"), "0")?;
        kernel.remove_slowly(&namespace)?;
    }
    job.drains(false);
    kernel.remove(&subsystem.directory())?;
    // Every step takes what is not there for done.
    kernel.seen()?;
    hosts.extend(host.map(str::to_owned));
    hosts.sort();
    hosts.dedup();
    for host in hosts {
        if let Err(fault) = kernel.remove(&host_of(&host)) {
            // It lets nobody in by itself; somebody else uses the same name.
            tracing::warn!(%fault, "a host stays known to the kernel's NVMe target");
        }
    }
    Ok(())
}
