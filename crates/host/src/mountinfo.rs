//! `/proc/…/mountinfo`, as proc(5) describes it: what is mounted where.
//!
//! Read from an injected path, so that recorded tables and other processes' can be read as well. Names are bytes:
//! a mount point need not be UTF-8.

use crate::device::DeviceNumber;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number for it, unique while it exists.
    pub id: u64,
    /// The mount it is mounted on.
    pub parent: u64,
    /// The device of its superblock. btrfs shows a number that is no device's: see [`Mount::source`].
    pub device: DeviceNumber,
    /// Which directory or file of the filesystem is mounted; `/` unless it is a bind mount or a subvolume.
    pub root: OsString,
    /// Where.
    pub at: PathBuf,
    /// Options of this mount alone: `ro`, `nosuid`, ….
    pub options: Options,
    /// Propagation tags, in the kernel's order.
    pub tags: Vec<Propagation>,
    /// The type of the filesystem.
    pub fs_type: OsString,
    /// What was mounted, as whoever mounted it called it; may be empty.
    pub source: OsString,
    /// Options of the filesystem, shared by all its mounts.
    pub super_options: Options,
}

/// Options as the kernel shows them, between commas, with their escapes: filesystems write them, each in its own way. Taken apart when somebody asks,
/// because a table has hundreds of lines, and of most of them nobody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options(OsString);

impl Options {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &OsStr> {
        self.0.as_bytes().split(|byte| *byte == b',').map(OsStr::from_bytes)
    }
}

/// An optional field: how mounts and unmounts here are told to other mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// In this peer group.
    Shared(u64),
    /// Receives from this peer group.
    Master(u64),
    /// The nearest group it receives from that can be seen from here.
    PropagateFrom(u64),
    /// Cannot be bind mounted.
    Unbindable,
    /// One that this version does not know; proc(5) asks readers to ignore those.
    Unknown(OsString),
}

impl Mount {
    /// Whether this mount has an option of its own.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|have| have == option)
    }

    /// Whether its filesystem has an option.
    pub fn super_has(&self, option: &str) -> bool {
        self.super_options.iter().any(|have| have == option)
    }

    /// Whether nothing can be written through it.
    pub fn is_read_only(&self) -> bool {
        self.has("ro") || self.super_has("ro")
    }

    /// In one line, for people: `ext4 /dev/loop3 (7:3) at /mnt`.
    pub fn describe(&self) -> String {
        let root = if self.root == "/" { String::new() } else { format!("{} of ", self.root.display()) };
        let Self { fs_type, source, device, at, .. } = self;
        format!("{root}{} {} ({device}) at {}", fs_type.display(), source.display(), at.display())
    }
}

/// Why a table could not be read.
#[derive(Debug, thiserror::Error)]
pub enum MountInfoError {
    /// The file.
    #[error("{}: {error}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        error: io::Error,
    },
    /// A line.
    #[error(transparent)]
    Parse(#[from] ParseError),
}

/// Why a line is not a mount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the mount table: {what}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: Fault,
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It ends too early.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field is not what it should be.
    #[error("{0} cannot be read")]
    Unreadable(&'static str),
    /// A `\` without three octal digits below 256 after it: the kernel writes no such thing.
    #[error("{0} has a broken escape")]
    Escape(&'static str),
    /// It goes on after the last field.
    #[error("there is more after the last field")]
    TooLong,
}

/// All mounts of one namespace, in the kernel's order: a later one at the same place lies over an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the table in a file.
    pub fn read(path: &Path) -> Result<Self, MountInfoError> {
        let bytes =
            std::fs::read(path).map_err(|error| MountInfoError::Io { path: path.to_owned(), error })?;
        Ok(Self::parse(&bytes)?)
    }

    /// Parses the text of a table.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let lines = bytes.split(|byte| *byte == b'\n').enumerate();
        let mounts = lines
            .filter(|(_, line)| !line.is_empty())
            .map(|(index, line)| parse_line(line).map_err(|what| ParseError { line: index + 1, what }))
            .collect::<Result<_, _>>()?;
        Ok(Self { mounts })
    }

    /// Every mount.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// All layers mounted at a path, the visible one last.
    pub fn at<'a>(&'a self, path: &Path) -> impl DoubleEndedIterator<Item = &'a Mount> + use<'a> {
        let path = path.to_owned();
        self.mounts.iter().filter(move |mount| mount.at == path)
    }

    /// What is seen at a path, if it is a mount point.
    pub fn top(&self, path: &Path) -> Option<&Mount> {
        self.at(path).next_back()
    }

    /// Whether something is mounted at this very path.
    pub fn is_mount_point(&self, path: &Path) -> bool {
        self.top(path).is_some()
    }

    /// All mounts of a device. `node` says which device a source's node is, for filesystems (btrfs) whose own
    /// number is not that of the device under them.
    pub fn of_device<'a>(
        &'a self,
        device: DeviceNumber,
        node: impl Fn(&Path) -> Option<DeviceNumber> + 'a,
    ) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().filter(move |mount| {
            mount.device == device
                || (mount.device.major == 0
                    && mount.source.as_bytes().starts_with(b"/")
                    && node(Path::new(&mount.source)) == Some(device))
        })
    }

    /// The mount that a path lies in, and which file of its filesystem the path is, if no symlink is in it.
    pub fn covering(&self, path: &Path) -> Option<(&Mount, PathBuf)> {
        let depth = |mount: &Mount| mount.at.components().count();
        // `max_by_key` takes the last of equals: the visible layer.
        let mount =
            self.mounts.iter().filter(|mount| path.starts_with(&mount.at)).max_by_key(|m| depth(m))?;
        let rest = path.strip_prefix(&mount.at).ok()?;
        let root = Path::new(&mount.root);
        Some((mount, if rest.as_os_str().is_empty() { root.to_owned() } else { root.join(rest) }))
    }
}

fn parse_line(line: &[u8]) -> Result<Mount, Fault> {
    // Every separator is one space: an empty source shows as two.
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = |name| fields.next().ok_or(Fault::Missing(name));
    let id = number(next("the mount id")?).ok_or(Fault::Unreadable("the mount id"))?;
    let parent = number(next("the parent id")?).ok_or(Fault::Unreadable("the parent id"))?;
    let device = std::str::from_utf8(next("the device number")?).ok().and_then(|text| text.parse().ok());
    let device = device.ok_or(Fault::Unreadable("the device number"))?;
    let root = unescape(next("the root")?).ok_or(Fault::Escape("the root"))?;
    let at = PathBuf::from(unescape(next("the mount point")?).ok_or(Fault::Escape("the mount point"))?);
    let options = options_of(next("the options")?);
    let mut tags = Vec::new();
    loop {
        match next("the separator")? {
            b"-" => break,
            field => tags.push(tag(field)?),
        }
    }
    let fs_type = unescape(next("the filesystem type")?).ok_or(Fault::Escape("the filesystem type"))?;
    let source = unescape(next("the source")?).ok_or(Fault::Escape("the source"))?;
    let super_options = options_of(next("the filesystem's options")?);
    if fields.next().is_some() {
        return Err(Fault::TooLong);
    }
    Ok(Mount { id, parent, device, root, at, options, tags, fs_type, source, super_options })
}

fn number(field: &[u8]) -> Option<u64> {
    if field.iter().all(u8::is_ascii_digit) { std::str::from_utf8(field).ok()?.parse().ok() } else { None }
}

fn options_of(field: &[u8]) -> Options {
    Options(OsStr::from_bytes(field).to_owned())
}

fn tag(field: &[u8]) -> Result<Propagation, Fault> {
    let value = |prefix: &str| field.strip_prefix(prefix.as_bytes()).map(number);
    let known =
        |group: Option<u64>, make: fn(u64) -> Propagation| group.map(make).ok_or(Fault::Unreadable("a tag"));
    if let Some(group) = value("shared:") {
        known(group, Propagation::Shared)
    } else if let Some(group) = value("master:") {
        known(group, Propagation::Master)
    } else if let Some(group) = value("propagate_from:") {
        known(group, Propagation::PropagateFrom)
    } else if field == b"unbindable" {
        Ok(Propagation::Unbindable)
    } else {
        Ok(Propagation::Unknown(OsStr::from_bytes(field).to_owned()))
    }
}

/// The kernel writes space, tab, newline, `\` and (since 6.8) `#` as `\` and three octal digits.
fn unescape(field: &[u8]) -> Option<OsString> {
    if !field.contains(&b'\\') {
        return Some(OsStr::from_bytes(field).to_owned());
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'\\' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let (digits, tail) = tail.split_at_checked(3)?;
        let digits = digits.iter().all(|b| matches!(b, b'0'..=b'7')).then_some(digits)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()?);
        rest = tail;
    }
    Some(OsString::from_vec(bytes))
}

/// Writes a name as the kernel would: for messages and recorded tables.
pub fn escape(name: &OsStr) -> String {
    let mut text = String::new();
    for chunk in name.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                ' ' | '\t' | '\n' | '\\' | '#' => {
                    let _ = write!(text, "\\{:03o}", u32::from(character));
                }
                other => text.push(other),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\{byte:03o}");
        }
    }
    text
}

#[cfg(test)]
#[path = "mountinfo_tests.rs"]
mod tests;
