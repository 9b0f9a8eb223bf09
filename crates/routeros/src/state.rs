//! What the device has, and what commands do to it.

use super::command::{Command, Condition, Setting, Value};
use super::doors::Doors;
use super::files::Files;
use super::firmware::{Firmware, Nothing};
use super::print::{self, Row};
use super::size;
use std::io;

/// What NQNs of exports begin with unless the command names one.
const NQN: &str = "nqn.2000-02.com.mikrotik:";

/// A filesystem that files can be in; its name is its slot and its mount point.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) slot: String,
    pub(super) size: u64,
    /// What others have in it.
    pub(super) others: u64,
}

/// A disk that is a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) slot: String,
    pub(super) path: String,
    pub(super) file: String,
    pub(super) size: u64,
    pub(super) mount: bool,
    pub(super) export: bool,
    pub(super) port: u16,
    pub(super) nqn: String,
    pub(super) allow: String,
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NoSpace,
    Invalid,
    NoSuchItem,
    FileExists,
    InUse,
    /// A slot twice (the text is assumed: it is that of other menus).
    Taken,
    /// Not understood; said without `failure: `.
    Complaint(String),
}

impl Refusal {
    pub(super) fn text(&self, firmware: &Firmware) -> String {
        let what = match self {
            Self::NoSpace => "not enough space",
            Self::Invalid => "invalid parameter",
            Self::NoSuchItem => "no such item",
            Self::FileExists => "file already exists",
            Self::InUse => "disk is in use",
            Self::Taken => "already have such entry",
            Self::Complaint(text) => return text.clone(),
        };
        format!("{}{what}", if firmware.says_failure { "failure: " } else { "" })
    }
}

/// What the machine says that stands for the device, where that has real files.
impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::NoSpace
            }
            _ => Self::Complaint(error.to_string()),
        }
    }
}

/// Everything that outlives a reboot, and who is connected.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pools: Vec<Pool>,
    pub(super) disks: Vec<Disk>,
    pub(super) files: Files,
    pub(super) doors: Doors,
}

/// What a command wants of a disk.
#[derive(Default)]
struct Wish<'a> {
    slot: Option<&'a str>,
    path: Option<&'a str>,
    size: Option<u64>,
    from: Option<&'a [Condition]>,
    mount: Option<bool>,
    export: Option<bool>,
    port: Option<u16>,
    nqn: Option<&'a str>,
    allow: Option<&'a str>,
}

impl<'a> Wish<'a> {
    fn read(settings: &'a [Setting], of_new: bool, firmware: &Firmware) -> Result<Self, Refusal> {
        let mut wish = Self::default();
        for Setting { key, value, column } in settings {
            let unknown = || Refusal::Complaint(format!("expected end of command (line 1 column {column})"));
            let text = match value {
                Value::Found(found) if key == "copy-from" && of_new => {
                    wish.from = Some(found);
                    continue;
                }
                Value::Found(_) => return Err(Refusal::Invalid),
                Value::Text(text) => text.as_str(),
            };
            match key.as_str() {
                "type" if of_new && text == "file" => {}
                "slot" if of_new && !text.is_empty() => wish.slot = Some(text),
                "file-path" if of_new => wish.path = Some(text),
                "type" | "slot" | "file-path" => return Err(Refusal::Invalid),
                "file-size" => wish.size = Some(size::parse(text).ok_or(Refusal::Invalid)?),
                "mount-filesystem" => wish.mount = Some(yes(text)?),
                "mount-read-only" | "compress" => {
                    yes(text)?;
                }
                "nvme-tcp-export" => wish.export = Some(yes(text)?),
                "nvme-tcp-server-port" => {
                    let port = text.parse::<u16>().ok().filter(|port| *port > 0);
                    wish.port = Some(port.ok_or(Refusal::Invalid)?);
                }
                // 223 bytes is the longest name that NVMe knows.
                "nvme-tcp-server-nqn" if text.len() <= 223 => wish.nqn = Some(text),
                "nvme-tcp-server-nqn" => return Err(Refusal::Invalid),
                "nvme-tcp-server-allow-host-name" if firmware.knows_allow_list => wish.allow = Some(text),
                _ => return Err(unknown()),
            }
        }
        Ok(wish)
    }

    /// What does not concern the bytes.
    fn apply(&self, disk: &mut Disk) {
        disk.mount = self.mount.unwrap_or(disk.mount);
        disk.export = self.export.unwrap_or(disk.export);
        disk.port = self.port.unwrap_or(disk.port);
        if let Some(nqn) = self.nqn {
            disk.nqn = if nqn.is_empty() { format!("{NQN}{}", disk.slot) } else { nqn.to_owned() };
        }
        if let Some(allow) = self.allow {
            allow.clone_into(&mut disk.allow);
        }
    }
}

fn yes(text: &str) -> Result<bool, Refusal> {
    match text {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err(Refusal::Invalid),
    }
}

impl State {
    /// Carries out one command, or half of it; returns what is printed.
    pub(super) fn carry_out(
        &mut self,
        command: &Command,
        half: bool,
        firmware: &Firmware,
    ) -> Result<String, Refusal> {
        let printed = match command {
            Command::AddDisk(settings) => self.add(settings, half, firmware).map(|()| String::new()),
            Command::SetDisks { of, to } => self.set(of, to, half, firmware).map(|()| String::new()),
            Command::RemoveDisks(of) => self.remove(of, firmware).map(|()| String::new()),
            Command::RemoveFiles(of) => self.remove_files(of, firmware).map(|()| String::new()),
            Command::PrintDisks(of) => Ok(print::disks(&self.chosen(self.disk_rows(), of)?, firmware)),
            Command::PrintFiles(of) => Ok(print::files(&self.chosen(self.file_rows(), of)?, firmware)),
        };
        self.doors.look(&self.disks, firmware);
        printed
    }

    /// How many bytes a command will move, as far as that can be told before.
    pub(super) fn weight(&self, command: &Command) -> u64 {
        let (Command::AddDisk(settings) | Command::SetDisks { to: settings, .. }) = command else { return 0 };
        let weights = settings.iter().map(|setting| match &setting.value {
            Value::Text(text) if setting.key == "file-size" => size::parse(text).unwrap_or_default(),
            Value::Found(of) => {
                self.found(of).map_or(0, |found| found.iter().map(|at| self.disks[*at].size).sum())
            }
            Value::Text(_) => 0,
        });
        weights.max().unwrap_or_default()
    }

    pub(super) fn free(&self, pool: &Pool) -> u64 {
        pool.size.saturating_sub(pool.others).saturating_sub(self.files.taken(&pool.slot))
    }

    fn disk_rows(&self) -> Vec<Row> {
        let pools = self.pools.iter().map(|pool| Row::of_pool(pool, self.free(pool)));
        pools.chain(self.disks.iter().map(Row::of_disk)).collect()
    }

    fn file_rows(&self) -> Vec<Row> {
        let row =
            |name| Row::of_file(name, self.files.size(name).unwrap_or_default(), self.files.changed(name));
        self.files.names().map(row).collect()
    }

    /// The rows that meet the conditions, each with its number.
    fn chosen(&self, rows: Vec<Row>, of: &[Condition]) -> Result<Vec<(usize, Row)>, Refusal> {
        let mut chosen = Vec::new();
        for (number, row) in rows.into_iter().enumerate() {
            let mut fits = true;
            for condition in of {
                let met = row.meets(condition);
                fits &= met.ok_or_else(|| Refusal::Complaint("bad regular expression".to_owned()))?;
            }
            if fits {
                chosen.push((number, row));
            }
        }
        Ok(chosen)
    }

    /// Which disks meet the conditions. A pool is not among them: nobody may change it.
    fn found(&self, of: &[Condition]) -> Result<Vec<usize>, Refusal> {
        let chosen = self.chosen(self.disk_rows(), of)?;
        chosen.iter().map(|(number, _)| number.checked_sub(self.pools.len()).ok_or(Refusal::InUse)).collect()
    }

    fn add(&mut self, settings: &[Setting], half: bool, firmware: &Firmware) -> Result<(), Refusal> {
        let wish = Wish::read(settings, true, firmware)?;
        let slot = wish.slot.ok_or(Refusal::Invalid)?;
        let taken = self.disks.iter().any(|disk| disk.slot == slot)
            || self.pools.iter().any(|pool| pool.slot == slot);
        if taken {
            return Err(Refusal::Taken);
        }
        let source = match wish.from.map(|of| self.found(of)).transpose()?.as_deref() {
            None => None,
            Some([]) => return Err(Refusal::NoSuchItem),
            Some([at]) => Some(self.disks[*at].clone()),
            Some(_) => return Err(Refusal::Invalid),
        };
        let path = wish.path.ok_or(Refusal::Invalid)?;
        let file = Files::name(path).ok_or(Refusal::Invalid)?;
        let size = self.lay(&file, wish.size, source.as_ref(), half)?;
        if half && source.is_none() {
            return Ok(());
        }
        let mut disk = Disk {
            slot: slot.to_owned(),
            path: path.to_owned(),
            file,
            size,
            mount: true,
            export: false,
            port: 4420,
            nqn: format!("{NQN}{slot}"),
            allow: String::new(),
        };
        if let Some(source) = source.filter(|_| firmware.copies_settings) {
            disk = Disk { slot: disk.slot, path: disk.path, file: disk.file, size, ..source };
        }
        wish.apply(&mut disk);
        self.disks.push(disk);
        Ok(())
    }

    /// Puts a disk's bytes where they belong, or only makes room for them; returns how many there are.
    fn lay(
        &mut self,
        file: &str,
        size: Option<u64>,
        source: Option<&Disk>,
        half: bool,
    ) -> Result<u64, Refusal> {
        let pool = file.split('/').next().and_then(|name| self.pools.iter().find(|pool| pool.slot == name));
        let room = self.free(pool.ok_or(Refusal::Invalid)?);
        if let Some(there) = self.files.size(file) {
            let used = self.disks.iter().any(|disk| disk.file == file);
            return match (size, source) {
                // A file without its disk becomes a disk again (assumed).
                (None, None) if used => Err(Refusal::InUse),
                (None, None) => Ok(there),
                _ => Err(Refusal::FileExists),
            };
        }
        let size = size.or(source.map(|source| source.size)).filter(|size| *size > 0);
        let size = size.ok_or(Refusal::Invalid)?;
        if source.is_some_and(|source| source.size > size) {
            return Err(Refusal::Invalid);
        }
        if size > room {
            return Err(Refusal::NoSpace);
        }
        match source {
            Some(source) if !half => self.files.copy(&source.file, file, size)?,
            _ => self.files.make(file, size)?,
        }
        Ok(size)
    }

    fn set(
        &mut self,
        of: &[Condition],
        to: &[Setting],
        half: bool,
        firmware: &Firmware,
    ) -> Result<(), Refusal> {
        Wish::read(to, false, firmware)?;
        let found = self.found(of)?;
        if found.is_empty() {
            return nothing(firmware.set_of_nothing);
        }
        let mut settings: Vec<&Setting> = to.iter().collect();
        if firmware.backwards {
            settings.reverse();
        }
        if half {
            settings.truncate(1);
        }
        for at in found {
            for setting in &settings {
                self.change(at, &Wish::read(std::slice::from_ref(*setting), false, firmware)?, firmware)?;
                self.doors.look(&self.disks, firmware);
            }
        }
        Ok(())
    }

    fn change(&mut self, at: usize, wish: &Wish<'_>, firmware: &Firmware) -> Result<(), Refusal> {
        let disk = self.disks[at].clone();
        let size = wish.size.unwrap_or(disk.size);
        if size < disk.size && !firmware.shrinks {
            return Err(Refusal::Invalid);
        }
        let pool = self.pools.iter().find(|pool| disk.file.split('/').next() == Some(pool.slot.as_str()));
        if size.saturating_sub(disk.size) > pool.map_or(0, |pool| self.free(pool)) {
            return Err(Refusal::NoSpace);
        }
        if size != disk.size {
            self.files.resize(&disk.file, size)?;
        }
        let disk = &mut self.disks[at];
        disk.size = size;
        wish.apply(disk);
        Ok(())
    }

    /// Removes disks; their files stay.
    fn remove(&mut self, of: &[Condition], firmware: &Firmware) -> Result<(), Refusal> {
        let found = self.found(of)?;
        if found.is_empty() {
            return nothing(firmware.remove_of_nothing);
        }
        if found.iter().any(|at| self.doors.is_used(&self.disks[*at].slot)) {
            return Err(Refusal::InUse);
        }
        let mut number = 0;
        self.disks.retain(|_| {
            number += 1;
            !found.contains(&(number - 1))
        });
        Ok(())
    }

    fn remove_files(&mut self, of: &[Condition], firmware: &Firmware) -> Result<(), Refusal> {
        let names: Vec<String> = self.files.names().map(str::to_owned).collect();
        let chosen = self.chosen(self.file_rows(), of)?;
        if chosen.is_empty() {
            return nothing(firmware.remove_of_nothing);
        }
        let chosen: Vec<&String> = chosen.iter().map(|(number, _)| &names[*number]).collect();
        // Whether a real device refuses this is assumed.
        if self.disks.iter().any(|disk| chosen.contains(&&disk.file)) {
            return Err(Refusal::InUse);
        }
        for name in chosen {
            self.files.remove(name)?;
        }
        Ok(())
    }
}

fn nothing(said: Nothing) -> Result<(), Refusal> {
    match said {
        Nothing::Silent => Ok(()),
        Nothing::NoSuchItem => Err(Refusal::NoSuchItem),
    }
}
