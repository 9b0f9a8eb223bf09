//! What `print detail` looks like.

use super::command::Condition;
use super::firmware::{Firmware, Wrap};
use super::state::{Disk, Pool};
use super::{pattern, size};

/// The flags of disks that there can be here, in the order of their columns.
const FLAGS: [(char, &str); 3] = [('B', "BLOCK-DEVICE"), ('M', "MOUNTED"), ('t', "NVME-TCP-EXPORT")];

/// What is printed of the export of a disk, besides that there is one.
const OF_EXPORT: [&str; 3] =
    ["nvme-tcp-server-port", "nvme-tcp-server-nqn", "nvme-tcp-server-allow-host-name"];

/// A value, and how it is written.
enum Plain {
    /// In quotes.
    Text(String),
    /// In quotes only if it must be.
    Word(String),
    /// Never in quotes, although there are spaces in it.
    Bare(String),
    /// All digits, in groups.
    Exact(u64),
    /// With a unit.
    Rounded(u64),
}

/// One entry.
pub(super) struct Row {
    flags: String,
    properties: Vec<(&'static str, Plain)>,
}

fn word(text: &str) -> Plain {
    Plain::Word(text.to_owned())
}

fn text(text: &str) -> Plain {
    Plain::Text(text.to_owned())
}

fn yes(yes: bool) -> Plain {
    word(if yes { "yes" } else { "no" })
}

/// What disks and pools have in common after the export, and what comes after that.
fn shared(end: Vec<(&'static str, Plain)>) -> Vec<(&'static str, Plain)> {
    let sharing =
        ["iscsi-export", "nfs-sharing", "smb-sharing", "media-sharing"].map(|key| (key, word("no")));
    let mut properties: Vec<_> = sharing.into();
    properties.extend([("media-interface", word("none")), ("swap", word("no"))]);
    properties.extend(end);
    properties
}

impl Row {
    pub(super) fn of_pool(pool: &Pool, free: u64) -> Self {
        let percent = (u128::from(pool.size - free) * 100).div_ceil(u128::from(pool.size.max(1)));
        let mut properties = vec![
            ("type", word("raid")),
            ("slot", text(&pool.slot)),
            ("slot-default", text("")),
            ("parent", text("")),
            ("fs-label", text(&pool.slot)),
            ("fs", word("btrfs")),
            ("model", text("RAID1 mirrored")),
            ("size", Plain::Exact(pool.size)),
            ("free", Plain::Exact(free)),
            ("use", Plain::Bare(format!("{percent}%"))),
            ("mount-point", text(&pool.slot)),
            ("mount-filesystem", yes(true)),
            ("mount-read-only", yes(false)),
            ("compress", yes(false)),
            ("sector-size", word("512")),
            ("raid-master", word("none")),
            ("nvme-tcp-export", yes(false)),
        ];
        properties.extend(shared(vec![]));
        Self { flags: "BM".into(), properties }
    }

    pub(super) fn of_disk(disk: &Disk) -> Self {
        let mut properties = vec![
            ("type", word("file")),
            ("slot", text(&disk.slot)),
            ("slot-default", text("")),
            ("parent", text("")),
            ("fs", word("-")),
            ("model", text(&disk.path)),
            ("size", Plain::Exact(disk.size)),
            ("mount-filesystem", yes(disk.mount)),
            ("mount-read-only", yes(false)),
            ("compress", yes(false)),
            ("sector-size", word("512")),
            ("raid-master", word("none")),
            ("nvme-tcp-export", yes(disk.export)),
            (OF_EXPORT[0], word(&disk.port.to_string())),
            (OF_EXPORT[1], text(&disk.nqn)),
            (OF_EXPORT[2], text(&disk.allow)),
        ];
        properties.extend(shared(vec![
            ("file-path", word(&disk.path)),
            ("file-size", Plain::Rounded(disk.size)),
            ("file-offset", word("0")),
        ]));
        Self { flags: if disk.export { "Bt" } else { "B" }.into(), properties }
    }

    pub(super) fn of_file(name: &str, size: u64, changed: String) -> Self {
        let kind = match name.rsplit_once('.') {
            Some((_, ending)) if !ending.contains('/') => format!(".{ending} file"),
            _ => "file".to_owned(),
        };
        let properties = vec![
            ("name", word(name)),
            ("type", Plain::Bare(kind)),
            ("size", Plain::Rounded(size)),
            ("last-modified", Plain::Bare(changed)),
        ];
        Self { flags: String::new(), properties }
    }

    /// Whether it meets a condition; `None` if the condition makes no sense.
    pub(super) fn meets(&self, condition: &Condition) -> Option<bool> {
        let Some((_, value)) = self.properties.iter().find(|(key, _)| *key == condition.key) else {
            return Some(false);
        };
        match value {
            Plain::Text(text) | Plain::Word(text) | Plain::Bare(text) if condition.is_pattern => {
                pattern::matches(&condition.value, text)
            }
            Plain::Text(text) | Plain::Word(text) | Plain::Bare(text) => Some(*text == condition.value),
            Plain::Exact(bytes) | Plain::Rounded(bytes) if condition.is_pattern => {
                pattern::matches(&condition.value, &bytes.to_string())
            }
            Plain::Exact(bytes) | Plain::Rounded(bytes) => {
                Some(size::parse(&condition.value) == Some(*bytes))
            }
        }
    }

    fn printed(&self, firmware: &Firmware) -> Vec<String> {
        let exported = self.flags.contains('t');
        let is_shown = |key: &str| {
            !(firmware.hidden.contains(&key)
                || key == OF_EXPORT[2] && !firmware.knows_allow_list
                || OF_EXPORT.contains(&key) && firmware.hides_export_when_off && !exported)
        };
        let shown = self.properties.iter().filter(|(key, _)| is_shown(key));
        shown.map(|(key, value)| format!("{key}={}", value.written(firmware))).collect()
    }
}

impl Plain {
    fn written(&self, firmware: &Firmware) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Word(text) => {
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
                if !text.is_empty() && text.chars().all(plain) { text.clone() } else { quoted(text) }
            }
            Self::Bare(text) => text.clone(),
            Self::Exact(bytes) => size::grouped(*bytes, firmware.between_groups),
            Self::Rounded(bytes) => size::rounded(*bytes),
        }
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' | '$' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Disks and pools, with their numbers. The header is there even if nothing else is.
pub(super) fn disks(rows: &[(usize, Row)], firmware: &Firmware) -> String {
    if !firmware.flags {
        return entries(rows, "", firmware);
    }
    let occurs = |flag: char| rows.is_empty() || rows.iter().any(|(_, row)| row.flags.contains(flag));
    let flags: Vec<(char, &str)> = FLAGS.into_iter().filter(|(flag, _)| occurs(*flag)).collect();
    let names: Vec<String> = flags.iter().map(|(flag, name)| format!("{flag} - {name}")).collect();
    let columns: String = flags.iter().map(|(flag, _)| *flag).collect();
    let header = format!("Flags: {}{}", names.join("; "), firmware.line_end);
    header + &entries(rows, &columns, firmware)
}

/// Files, with their numbers.
pub(super) fn files(rows: &[(usize, Row)], firmware: &Firmware) -> String {
    entries(rows, "", firmware)
}

fn entries(rows: &[(usize, Row)], columns: &str, firmware: &Firmware) -> String {
    let mut printed = String::new();
    for (number, row) in rows {
        let flags: String =
            columns.chars().map(|flag| if row.flags.contains(flag) { flag } else { ' ' }).collect();
        let head = format!("{number:>2} {flags} ");
        for line in broken(head, &row.printed(firmware), firmware) {
            printed += &line;
            printed += firmware.line_end;
        }
        printed += firmware.line_end;
    }
    printed
}

/// Breaks an entry into lines.
fn broken(head: String, properties: &[String], firmware: &Firmware) -> Vec<String> {
    let joined = properties.join(" ");
    let units: Vec<&str> = match firmware.wrap {
        Wrap::Properties => properties.iter().map(String::as_str).collect(),
        Wrap::Words => joined.split(' ').collect(),
        Wrap::Columns => vec![joined.as_str()],
    };
    let indent = " ".repeat(firmware.indent);
    let mut column = head.chars().count();
    let (mut lines, mut line, mut is_begun) = (Vec::new(), head, false);
    for unit in units {
        if is_begun && column + 1 + unit.chars().count() > firmware.width {
            lines.push(std::mem::replace(&mut line, indent.clone()));
            (column, is_begun) = (firmware.indent, false);
        }
        if is_begun {
            line.push(' ');
            column += 1;
        }
        let mut rest = unit.chars().peekable();
        while let Some(c) = rest.next() {
            line.push(c);
            column += 1;
            // A space at the end of a line stays there: what is cut is joined without one.
            let is_full = column >= firmware.width && rest.peek().is_some_and(|next| *next != ' ');
            if is_full {
                lines.push(std::mem::replace(&mut line, indent.clone()));
                column = firmware.indent;
            }
        }
        is_begun = true;
    }
    lines.push(line);
    lines
}
