//! A device in memory: its disks and files, what it does with a command line, and who could connect at any moment.

use crate::words::{Word, pairs, size, words};
use async_trait::async_trait;
use bowline_target::rds::{Console, ConsoleError, Said};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

pub(crate) const POOL: &str = "storage-pool";
const HOST: &str = "nvme-tcp-server-allow-host-name";
const NQN: &str = "nvme-tcp-server-nqn";
const EXPORT: &str = "nvme-tcp-export";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) slot: String,
    pub(crate) path: String,
    pub(crate) export: bool,
    pub(crate) nqn: String,
    pub(crate) host: String,
}

/// What a firmware does in its own way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Firmware {
    /// Whether it knows of hosts that may connect.
    pub(crate) hosts: bool,
    /// Whether a command that finds nothing is an error.
    pub(crate) complains: bool,
    /// Whether the parts of a command are applied from the last to the first.
    pub(crate) backwards: bool,
    /// Whether errors leave the status at 0.
    pub(crate) gentle: bool,
    /// How wide its lines are.
    pub(crate) width: usize,
}

pub(crate) const PLAIN: Firmware =
    Firmware { hosts: true, complains: false, backwards: false, gentle: false, width: 80 };

/// What becomes of the command with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// It is not sent.
    NotSent,
    /// It is lost on its way.
    Lost,
    /// It is carried out, and the answer is lost.
    NoAnswer,
    /// A part of it is carried out.
    Half,
    /// It is carried out after the next one.
    Late,
    /// It is carried out, and the output is cut off in the middle.
    CutOff,
}

pub(crate) const MISHAPS: [Mishap; 6] =
    [Mishap::NotSent, Mishap::Lost, Mishap::NoAnswer, Mishap::Half, Mishap::Late, Mishap::CutOff];

pub(crate) struct State {
    pub(crate) disks: Vec<Disk>,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) room: u64,
    /// What its pool is called.
    pub(crate) pool: String,
    pub(crate) firmware: Firmware,
    /// Every command that was carried out.
    pub(crate) done: Vec<String>,
    /// Who could connect to what after each change: slot, name of the export, host.
    pub(crate) admitted: Vec<(String, String, String)>,
    /// The mishap to come, and after how many commands.
    pub(crate) mishap: Option<(usize, Mishap)>,
    late: Vec<String>,
    pub(crate) reachable: bool,
    pub(crate) seed: u64,
}

pub(crate) struct Device(pub(crate) Mutex<State>);

impl Device {
    pub(crate) fn new(firmware: Firmware) -> Self {
        Self(Mutex::new(State {
            disks: Vec::new(),
            files: BTreeMap::new(),
            room: 64 << 20,
            pool: POOL.to_owned(),
            firmware,
            done: Vec::new(),
            admitted: Vec::new(),
            mishap: None,
            late: Vec::new(),
            reachable: true,
            seed: 1,
        }))
    }

    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Everything that it keeps.
    pub(crate) fn kept(&self) -> (Vec<Disk>, BTreeMap<String, Vec<u8>>) {
        let state = self.state();
        (state.disks.clone(), state.files.clone())
    }

    /// A command, as somebody else could send it.
    pub(crate) fn tell(&self, line: &str) -> Said {
        self.state().tell(line)
    }

    /// Carries out what is still on its way.
    pub(crate) fn settle(&self) {
        let late = std::mem::take(&mut self.state().late);
        for line in late {
            self.tell(&line);
        }
    }
}

#[async_trait]
impl Console for Device {
    async fn run(&self, command: &str) -> Result<Said, ConsoleError> {
        // Others get their turn between any two commands, or several.
        let others = self.state().random(3);
        for _ in 0..=others {
            tokio::task::yield_now().await;
        }
        let mut state = self.state();
        let unanswered = || Err(ConsoleError::Unanswered { error: "the connection was lost".to_owned() });
        if !state.reachable {
            return Err(ConsoleError::NotSent { error: "no route to host".to_owned() });
        }
        let now = match &mut state.mishap {
            Some((0, mishap)) => Some(*mishap),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        if now.is_some() {
            state.mishap = None;
        }
        let late = std::mem::take(&mut state.late);
        let answer = match now {
            None => Ok(state.tell(command)),
            Some(Mishap::NotSent) => {
                Err(ConsoleError::NotSent { error: "the connection is down".to_owned() })
            }
            Some(Mishap::Lost) => unanswered(),
            Some(Mishap::NoAnswer) => {
                state.tell(command);
                unanswered()
            }
            Some(Mishap::Half) => {
                state.do_it(command, true);
                unanswered()
            }
            Some(Mishap::Late) => {
                state.late.push(command.to_owned());
                unanswered()
            }
            Some(Mishap::CutOff) => {
                let mut said = state.tell(command);
                said.text.truncate(said.text.len() / 2);
                Ok(Said { status: None, ..said })
            }
        };
        for line in late {
            state.tell(&line);
        }
        answer
    }
}

impl State {
    /// A number below a bound.
    pub(crate) fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    fn tell(&mut self, line: &str) -> Said {
        self.do_it(line, false)
    }

    /// Carries a command out, or a part of it: the first of several changes, the file without its disk, a copy without its bytes.
    fn do_it(&mut self, line: &str, half: bool) -> Said {
        self.done.push(line.to_owned());
        match self.carry_out(line, half) {
            Ok(text) => Said { text, status: Some(0) },
            Err(error) => {
                Said { text: format!("failure: {error}\r\n"), status: Some(u32::from(!self.firmware.gentle)) }
            }
        }
    }

    fn carry_out(&mut self, line: &str, half: bool) -> Result<String, String> {
        let all = words(line)?;
        let bare: Vec<&str> = all
            .iter()
            .map_while(|word| match word {
                Word::Bare(word) => Some(word.as_str()),
                _ => None,
            })
            .collect();
        let rest = &all[bare.len()..];
        self.check(rest)?;
        match bare.as_slice() {
            ["/disk", "print", "detail", ..] => Ok(self.print_disks(rest)),
            ["/file", "print", "detail", "where"] => Ok(self.print_files(rest)),
            ["/disk", "add"] => self.add(rest, half).map(|()| String::new()),
            ["/disk", "set"] => self.set(rest, half).map(|()| String::new()),
            ["/disk", "remove"] => {
                let found = self.found(rest)?;
                self.disks.retain(|disk| !found.contains(&disk.slot));
                Ok(String::new())
            }
            ["/file", "remove"] => {
                let Some(Word::Find(_, conditions)) = rest.first() else {
                    return Err("expected find".to_owned());
                };
                let [Word::Pair(key, '=', name)] = conditions.as_slice() else {
                    return Err("syntax error".to_owned());
                };
                assert_eq!(key, "name");
                if self.disks.iter().any(|disk| disk.path.trim_start_matches('/') == name) {
                    return Err("file is in use".to_owned());
                }
                match self.files.remove(name) {
                    None if self.firmware.complains => Err("no such item".to_owned()),
                    _ => Ok(String::new()),
                }
            }
            other => Err(format!("bad command name {other:?}")),
        }
    }

    /// Refuses words that the firmware does not know, before anything is done.
    fn check(&self, words: &[Word]) -> Result<(), String> {
        let known = |key: &str| match key {
            HOST => self.firmware.hosts,
            NQN
            | EXPORT
            | "slot"
            | "type"
            | "file-path"
            | "file-size"
            | "size"
            | "nvme-tcp-server-port"
            | "name"
            | "mount-point"
            | "copy-from"
            | "" => true,
            _ => false,
        };
        words.iter().try_for_each(|word| match word {
            Word::Bare(_) => Ok(()),
            Word::Pair(key, ..) if known(key) => Ok(()),
            Word::Find(key, inner) if known(key) => self.check(inner),
            Word::Pair(key, ..) | Word::Find(key, _) => Err(format!("invalid parameter {key}")),
        })
    }

    fn length(&self, disk: &Disk) -> u64 {
        self.files.get(disk.path.trim_start_matches('/')).map_or(0, |file| file.len() as u64)
    }

    fn free(&self) -> u64 {
        self.room.saturating_sub(self.files.values().map(|file| file.len() as u64).sum())
    }

    fn fits(&self, disk: &Disk, conditions: &[Word]) -> bool {
        let pair = |key: &str| match key {
            "slot" => disk.slot.clone(),
            NQN => disk.nqn.clone(),
            HOST => disk.host.clone(),
            EXPORT => if disk.export { "yes" } else { "no" }.to_owned(),
            "size" => self.length(disk).to_string(),
            _ => String::new(),
        };
        conditions.iter().all(|word| matches!(word, Word::Pair(key, '=', value) if pair(key) == *value))
    }

    fn found(&self, rest: &[Word]) -> Result<Vec<String>, String> {
        let Some(Word::Find(_, conditions)) = rest.first() else { return Err("expected find".to_owned()) };
        let fits = self.disks.iter().filter(|disk| self.fits(disk, conditions));
        let found: Vec<_> = fits.map(|disk| disk.slot.clone()).collect();
        if found.is_empty() && self.firmware.complains { Err("no such item".to_owned()) } else { Ok(found) }
    }

    fn add(&mut self, rest: &[Word], half: bool) -> Result<(), String> {
        let pairs = pairs(rest)?;
        let text = |key: &str| pairs.get(key).cloned().unwrap_or_default();
        let copied = rest.iter().find_map(|word| match word {
            Word::Find(key, conditions) if key == "copy-from" => Some(conditions),
            _ => None,
        });
        let source = match copied {
            None => None,
            Some(conditions) => {
                let source =
                    self.disks.iter().find(|disk| self.fits(disk, conditions)).ok_or("no such item")?;
                Some(self.files[source.path.trim_start_matches('/')].clone())
            }
        };
        let length = match &source {
            None => size(&text("file-size"))?,
            Some(bytes) => bytes.len() as u64,
        };
        let name = text("file-path").trim_start_matches('/').to_owned();
        if self.files.contains_key(&name) {
            return Err("file already exists".to_owned());
        }
        if self.disks.iter().any(|disk| disk.slot == text("slot")) {
            return Err("already have device with such slot".to_owned());
        }
        if length > self.free() {
            return Err("not enough space".to_owned());
        }
        let is_copy = source.is_some();
        let bytes = source.filter(|_| !half).unwrap_or_else(|| vec![0; usize::try_from(length).unwrap()]);
        self.files.insert(name, bytes);
        if half && !is_copy {
            return Ok(());
        }
        self.disks.push(Disk {
            slot: text("slot"),
            path: text("file-path"),
            export: text(EXPORT) == "yes",
            nqn: text(NQN),
            host: text(HOST),
        });
        self.observe(&text("slot"));
        Ok(())
    }

    fn set(&mut self, rest: &[Word], half: bool) -> Result<(), String> {
        let found = self.found(rest)?;
        pairs(rest)?;
        let mut changes: Vec<_> = rest
            .iter()
            .filter_map(|word| match word {
                Word::Pair(key, _, value) => Some((key.clone(), value.clone())),
                _ => None,
            })
            .collect();
        if self.firmware.backwards {
            changes.reverse();
        }
        if half {
            changes.truncate(1);
        }
        for slot in found {
            for (key, value) in &changes {
                self.change(&slot, key, value)?;
                self.observe(&slot);
            }
        }
        Ok(())
    }

    fn change(&mut self, slot: &str, key: &str, value: &str) -> Result<(), String> {
        let free = self.free();
        let disk = self.disks.iter_mut().find(|disk| disk.slot == slot).unwrap();
        match key {
            EXPORT => disk.export = value == "yes",
            NQN => value.clone_into(&mut disk.nqn),
            HOST => value.clone_into(&mut disk.host),
            "file-size" => {
                let file = self.files.get_mut(disk.path.trim_start_matches('/')).ok_or("no such file")?;
                let wanted = size(value)?;
                if wanted.saturating_sub(file.len() as u64) > free {
                    return Err("not enough space".to_owned());
                }
                file.resize(usize::try_from(wanted).unwrap(), 0);
            }
            "nvme-tcp-server-port" => {}
            other => return Err(format!("invalid parameter {other}")),
        }
        Ok(())
    }

    /// Notes who could connect to a disk now.
    fn observe(&mut self, slot: &str) {
        let open = self.disks.iter().filter(|disk| disk.slot == slot && disk.export);
        self.admitted.extend(open.map(|disk| (disk.slot.clone(), disk.nqn.clone(), disk.host.clone())));
    }

    fn print_disks(&self, conditions: &[Word]) -> String {
        let mut text = "Flags: B - BLOCK-DEVICE; M - MOUNTED\r\n".to_owned();
        let pool = || {
            vec![
                "type=raid".to_owned(),
                format!("slot={}", self.pool),
                format!("mount-point={}", self.pool),
                format!("size={}", grouped(self.room)),
                format!("free={}", grouped(self.free())),
                "use=25%".to_owned(),
            ]
        };
        let is_pool = match conditions {
            [] => true,
            [Word::Pair(key, '=', value)] => {
                matches!(key.as_str(), "mount-point" | "slot") && *value == self.pool
            }
            _ => false,
        };
        let mut entries: Vec<Vec<String>> = is_pool.then(pool).into_iter().collect();
        let by_mount =
            conditions.iter().any(|word| matches!(word, Word::Pair(key, ..) if key == "mount-point"));
        let shown = self.disks.iter().filter(|disk| !by_mount && self.fits(disk, conditions));
        entries.extend(shown.map(|disk| self.shown(disk)));
        for (index, entry) in entries.iter().enumerate() {
            text.push_str(&wrapped(index, entry, self.firmware.width));
        }
        text
    }

    fn shown(&self, disk: &Disk) -> Vec<String> {
        let bytes = self.length(disk);
        let mut words = vec![
            "type=file".to_owned(),
            format!("slot=\"{}\"", disk.slot),
            "slot-default=\"\"".to_owned(),
            "fs=-".to_owned(),
            format!("model=\"{}\"", disk.path),
            format!("size={}", grouped(bytes)),
            format!("{EXPORT}={}", if disk.export { "yes" } else { "no" }),
            "nvme-tcp-server-port=4420".to_owned(),
            format!("{NQN}=\"{}\"", disk.nqn),
        ];
        if self.firmware.hosts {
            words.push(format!("{HOST}=\"{}\"", disk.host));
        }
        words.push(format!(
            "file-path={}",
            if disk.path.contains(' ') { format!("{:?}", disk.path) } else { disk.path.clone() }
        ));
        words.push(format!("file-size={}.0MiB", bytes >> 20));
        words
    }

    fn print_files(&self, conditions: &[Word]) -> String {
        let [Word::Pair(key, '~', with)] = conditions else { panic!("{conditions:?}") };
        assert_eq!(key, "name");
        let mut text = String::new();
        for (index, (name, bytes)) in self.files.iter().filter(|(name, _)| name.contains(with)).enumerate() {
            let name = if name.contains(' ') { format!("{name:?}") } else { name.clone() };
            let words = [
                format!("name={name}"),
                "type=.img file".to_owned(),
                format!("size={}.0MiB", bytes.len() >> 20),
                "last-modified=2025-11-11 14:32:41".to_owned(),
            ];
            text.push_str(&wrapped(index, &words, self.firmware.width));
        }
        text
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// An entry in lines of a width; what does not fit is broken wherever the line ends.
pub(crate) fn wrapped(index: usize, words: &[String], width: usize) -> String {
    const INDENT: usize = 15;
    let mut text = String::new();
    let mut line = format!("{index:>2}  ");
    let mut is_fresh = true;
    for word in words {
        if !is_fresh && line.chars().count() + 1 + word.chars().count() > width {
            let _ = write!(text, "{line}\r\n");
            line = " ".repeat(INDENT);
        } else if !is_fresh {
            line.push(' ');
        }
        is_fresh = false;
        for c in word.chars() {
            if line.chars().count() >= width.max(INDENT + 8) {
                let _ = write!(text, "{line}\r\n");
                line = " ".repeat(INDENT);
            }
            line.push(c);
        }
    }
    let _ = write!(text, "{line}\r\n");
    text
}
