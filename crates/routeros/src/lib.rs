//! A MikroTik ROSE Data Server, simulated.
//!
//! **No real device was at hand.** What is here was built from recorded facts: the commands, the output of `print detail`, the
//! error texts, the exit statuses and the latencies that others wrote down. Where nothing was recorded, the code says "assumed",
//! and where devices differ or may differ, [`Firmware`] has a switch; [`Firmware::each`] lists devices that a client should cope
//! with. What the real thing does in those places is not proven by any test against this one.
//!
//! [`RouterOs`] is the device: pools with a capacity, disks that are files, exports with their allow lists. It understands the
//! commands that the adapter sends and says so of all others. It notes every moment at which more than one host could get in
//! ([`RouterOs::breaches`]). Its files are in memory, or in a directory where the bytes are real; then a kernel can export them
//! ([`RouterOs::export_by`]).
//!
//! Commands reach it in three ways: [`RouterOs::enter`] carries one out at once; as a [`Console`] it takes as long as a device
//! would, without a network; and `SshServer` (feature `ssh`) is the device as it is in the rack, behind SSH, with
//! connections that break.
//!
//! # What is recorded, and what is assumed
//!
//! | | |
//! |---|---|
//! | recorded | `print detail`: header with the flags that occur, number, flags, properties and their order, quotes, lines continued with an indent, groups of digits, sizes rounded to one digit; files without a leading slash |
//! | recorded | errors: `not enough space`, `invalid parameter`, `no such item`, `file already exists`, `disk is in use`, with or without `failure: `, on either stream, status 1 |
//! | recorded | `remove` of a disk leaves its file; `remove` that finds nothing says `no such item` |
//! | seen elsewhere in RouterOS | complaints with line and column; `$` in quotes is a variable; `;` and the end of a line end a command; a line is understood whole before anything is done |
//! | assumed | `set` that finds nothing says nothing; its settings take effect one after the other; a disk is not made smaller; a slot is not taken twice; a file in use is not removed; switching the export off, or another NQN, cuts connected hosts off, another allow list does not; commands whose connection is lost are carried out all the same |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a simulated device that is broken shall stop at once; what comes over its wire is answered, not unwrapped"
)]

mod command;
mod doors;
mod files;
mod firmware;
mod kernel;
mod pattern;
mod print;
mod size;
#[cfg(feature = "ssh")]
mod ssh;
mod state;
#[cfg(feature = "ssh")]
mod wire;

pub use doors::Door;
pub use firmware::{Firmware, Latency, Nothing, Wrap};
#[cfg(feature = "ssh")]
pub use ssh::{Breaks, KeyPair, Login, Sessions, SshServer};
#[cfg(feature = "ssh")]
pub use wire::Way;

use async_trait::async_trait;
use bowline_target::rds::{Console, ConsoleError, Said};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use command::Command;
use files::Files;
use state::{Pool, State};

/// The pool that a new device has, and its size: those of the recorded one.
pub const POOL: &str = "storage-pool";
/// Bytes of [`POOL`].
pub const POOL_SIZE: u64 = 7_949_127_950_336;

/// What one command printed, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// On the output.
    pub out: String,
    /// On the error stream.
    pub err: String,
    /// How it ended; `None` from a firmware that does not tell.
    pub status: Option<u32>,
}

type Watcher = Box<dyn FnMut(&[Door]) + Send>;

/// A device. A handle: clones are the same device.
#[derive(Clone)]
pub struct RouterOs {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    firmware: Mutex<Firmware>,
    carried_out: Mutex<Vec<String>>,
    watcher: Mutex<Option<Watcher>>,
    boots: AtomicU64,
}

impl RouterOs {
    /// A device with one empty pool, in memory.
    pub fn new(firmware: Firmware) -> Self {
        Self::with(firmware, Files::default())
    }

    /// The same with its files in a directory: what is written into them is real, and holes stay holes.
    pub fn in_directory(firmware: Firmware, directory: impl Into<PathBuf>) -> Self {
        Self::with(firmware, Files::in_directory(directory.into()))
    }

    fn with(firmware: Firmware, files: Files) -> Self {
        let device = Self {
            inner: Arc::new(Inner {
                state: Mutex::new(State { files, ..State::default() }),
                firmware: Mutex::new(firmware),
                carried_out: Mutex::default(),
                watcher: Mutex::default(),
                boots: AtomicU64::new(0),
            }),
        };
        device.add_pool(POOL, POOL_SIZE);
        device
    }

    /// One more pool.
    pub fn add_pool(&self, slot: &str, size: u64) {
        self.inner.state.lock().unwrap().pools.push(Pool { slot: slot.to_owned(), size, others: 0 });
    }

    /// A pool fails: it is not there any more, and neither is room in it. Its disks are.
    pub fn lose_pool(&self, slot: &str) {
        self.inner.state.lock().unwrap().pools.retain(|pool| pool.slot != slot);
    }

    /// Somebody else fills a pool, so that this much is left for new files.
    pub fn leave_free(&self, slot: &str, free: u64) {
        let mut state = self.inner.state.lock().unwrap();
        let taken = state.files.taken(slot);
        let pool = state.pools.iter_mut().find(|pool| pool.slot == slot).expect("there is such a pool");
        pool.others = pool.size - taken - free;
    }

    /// How it behaves.
    pub fn firmware(&self) -> Firmware {
        self.inner.firmware.lock().unwrap().clone()
    }

    /// It behaves differently from now on.
    pub fn set_firmware(&self, change: impl FnOnce(&mut Firmware)) {
        change(&mut self.inner.firmware.lock().unwrap());
    }

    /// Is told whenever the exports have changed, before the command is answered.
    fn watch_doors(&self, watcher: impl FnMut(&[Door]) + Send + 'static) {
        *self.inner.watcher.lock().unwrap() = Some(Box::new(watcher));
    }

    /// Carries out a line at once.
    pub fn enter(&self, line: &str) -> Printed {
        self.begin(line, false)
    }

    /// Carries out half of a line, as a device that loses its power: of several settings one, of a new disk the file, of a copy
    /// everything but the bytes.
    pub fn enter_half(&self, line: &str) {
        self.begin(line, true);
    }

    fn begin(&self, line: &str, half: bool) -> Printed {
        let firmware = self.firmware();
        let commands = command::parse(line);
        let commands = match commands {
            Ok(commands) => commands,
            Err(complaint) => return printed(String::new(), Some(complaint), &firmware),
        };
        let mut state = self.inner.state.lock().unwrap();
        self.inner.carried_out.lock().unwrap().push(line.to_owned());
        let (mut out, mut error) = (String::new(), None);
        for command in &commands {
            let before = state.doors.open();
            let done = state.carry_out(command, half, &firmware);
            let after = state.doors.open();
            if before != after
                && let Some(watcher) = &mut *self.inner.watcher.lock().unwrap()
            {
                watcher(&after);
            }
            match done {
                Ok(text) => out += &text,
                Err(refusal) => {
                    error = Some(refusal.text(&firmware));
                    break;
                }
            }
        }
        printed(out, error, &firmware)
    }

    /// Carries out a line in the time that a device needs; whoever waits may go away meanwhile. `None` if the device was rebooted
    /// before it was done: then it never will be.
    pub async fn carry_out(&self, line: &str) -> Option<Printed> {
        let (device, line) = (self.clone(), line.to_owned());
        let before = self.inner.boots.load(Ordering::SeqCst);
        let work = tokio::spawn(async move {
            tokio::time::sleep(device.takes(&line)).await;
            let is_up = device.inner.boots.load(Ordering::SeqCst) == before;
            is_up.then(|| device.enter(&line))
        });
        work.await.expect("the simulator does not panic")
    }

    /// Reboots it: what is under way is not carried out, and initiators lose their connections. Disks, files and exports stay.
    pub fn reboot(&self) {
        let mut state = self.inner.state.lock().unwrap();
        self.inner.boots.fetch_add(1, Ordering::SeqCst);
        state.doors.disconnect_all();
    }

    fn takes(&self, line: &str) -> Duration {
        let latency = self.firmware().latency;
        let state = self.inner.state.lock().unwrap();
        let takes = |command: &Command| {
            let gibibytes = state.weight(command) as f64 / f64::from(1 << 30);
            match command {
                Command::PrintDisks(_) | Command::PrintFiles(_) => latency.print,
                Command::SetDisks { .. } => latency.set,
                Command::RemoveDisks(_) | Command::RemoveFiles(_) => latency.remove,
                Command::AddDisk(_) => latency.add + latency.add_per_gib.mul_f64(gibibytes),
            }
        };
        command::parse(line).unwrap_or_default().iter().map(takes).sum()
    }

    /// Every line that was carried out, also those that were refused.
    pub fn carried_out(&self) -> Vec<String> {
        self.inner.carried_out.lock().unwrap().clone()
    }

    /// The disks that are exported now.
    pub fn doors(&self) -> Vec<Door> {
        self.inner.state.lock().unwrap().doors.open()
    }

    /// Every export that there ever was, in order.
    pub fn all_doors(&self) -> Vec<Door> {
        self.inner.state.lock().unwrap().doors.history()
    }

    /// Every moment at which more than one host could get in.
    pub fn breaches(&self) -> Vec<String> {
        self.inner.state.lock().unwrap().doors.breaches()
    }

    /// An initiator asks for an NQN; returns whether it is let in.
    pub fn connect(&self, host: &str, nqn: &str) -> bool {
        self.inner.state.lock().unwrap().doors.connect(host, nqn)
    }

    /// An initiator lets go of everything.
    pub fn disconnect(&self, host: &str) {
        self.inner.state.lock().unwrap().doors.disconnect(host);
    }

    /// Which initiators use a disk.
    pub fn connected(&self, slot: &str) -> Vec<String> {
        self.inner.state.lock().unwrap().doors.connected(slot)
    }

    /// The slots of its disks, in order.
    pub fn slots(&self) -> Vec<String> {
        self.inner.state.lock().unwrap().disks.iter().map(|disk| disk.slot.clone()).collect()
    }

    /// The names of its files, in order, and their sizes.
    pub fn files(&self) -> Vec<(String, u64)> {
        let state = self.inner.state.lock().unwrap();
        state.files.names().map(|name| (name.to_owned(), state.files.size(name).unwrap())).collect()
    }

    /// The file of the disk in a slot.
    pub fn file_of(&self, slot: &str) -> Option<String> {
        let state = self.inner.state.lock().unwrap();
        state.disks.iter().find(|disk| disk.slot == slot).map(|disk| disk.file.clone())
    }

    /// Writes into a file, as an initiator would.
    pub fn write(&self, file: &str, offset: u64, bytes: &[u8]) {
        self.inner.state.lock().unwrap().files.write(file, offset, bytes);
    }

    /// Reads from a file.
    pub fn read(&self, file: &str, offset: u64, length: usize) -> Vec<u8> {
        self.inner.state.lock().unwrap().files.read(file, offset, length)
    }
}

fn printed(mut out: String, error: Option<String>, firmware: &Firmware) -> Printed {
    let status = if error.is_some() { firmware.status_of_errors } else { 0 };
    let status = firmware.exit_status.then_some(status);
    let mut err = String::new();
    if let Some(error) = error {
        let stream = if firmware.errors_on_stdout { &mut out } else { &mut err };
        stream.push_str(&error);
        stream.push_str(firmware.line_end);
    }
    Printed { out, err, status }
}

#[async_trait]
impl Console for RouterOs {
    async fn run(&self, command: &str) -> Result<Said, ConsoleError> {
        let lost = || ConsoleError::Unanswered { error: "the device was rebooted".to_owned() };
        self.carry_out(command).await.map(Said::from).ok_or_else(lost)
    }
}

impl From<Printed> for Said {
    fn from(Printed { out, err, status }: Printed) -> Self {
        Self { text: out + &err, status }
    }
}

#[cfg(test)]
mod tests;
