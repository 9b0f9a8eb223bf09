//! What files are called: ids in a safe spelling, never as they came.

use crate::Item;
use bowline_core::{SnapshotId, VolumeId};

/// The name that all files of one volume or snapshot begin with.
///
/// Ids of small letters, digits and `-` are spelled as they are (`vol-4f2a`), all others in base 32 (`vol_mfrgg`), so
/// that no two ids share a name, also where capitals and small letters are the same, none is hidden, and the longest
/// id fits: 128 bytes are 205 letters, and Linux takes 255.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Stem(String);

/// What a file of a volume or snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The record.
    Record,
    /// A record that is being written.
    Draft,
    /// The bytes.
    Data,
    /// Bytes that are not whole yet.
    Partial,
    /// Grants that the record does not know yet.
    Recent,
    /// Locked while the rest is read or changed.
    Lock,
}

impl Part {
    const ALL: [Self; 6] = [Self::Record, Self::Draft, Self::Data, Self::Partial, Self::Recent, Self::Lock];

    fn suffix(self) -> &'static str {
        match self {
            Self::Record => ".json",
            Self::Draft => ".json-draft",
            Self::Data => ".data",
            Self::Partial => ".part",
            Self::Recent => ".recent",
            Self::Lock => ".lock",
        }
    }
}

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl Stem {
    pub(super) fn of(item: &Item) -> Self {
        match item {
            Item::Volume(id) => Self::spelled("vol", id.as_str()),
            Item::Snapshot(id) => Self::spelled("snap", id.as_str()),
        }
    }

    /// Of snapshots that are taken together, called by the first of them.
    pub(super) fn of_cut(first: &SnapshotId) -> Self {
        Self::spelled("cut", first.as_str())
    }

    fn spelled(kind: &str, id: &str) -> Self {
        if is_plain(id) {
            Self(format!("{kind}-{id}"))
        } else {
            Self(format!("{kind}_{}", encode(id.as_bytes())))
        }
    }

    pub(super) fn file(&self, part: Part) -> String {
        format!("{}{}", self.0, part.suffix())
    }
}

/// A file that is ours, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    Of(Item, Part),
    Cut(SnapshotId, Part),
}

/// Whose file it is. What is not spelled exactly as we would is not ours.
pub(super) fn parse(name: &str) -> Option<Ours> {
    let (stem, part) = Part::ALL.iter().find_map(|part| Some((name.strip_suffix(part.suffix())?, *part)))?;
    let at = stem.find(['-', '_'])?;
    let (kind, rest) = stem.split_at_checked(at)?;
    let spelled = rest.get(1..)?;
    let id = if rest.starts_with('-') { spelled.to_owned() } else { decode(spelled)? };
    let found = match kind {
        "vol" => Ours::Of(Item::Volume(VolumeId::new(&id).ok()?), part),
        "snap" => Ours::Of(Item::Snapshot(SnapshotId::new(&id).ok()?), part),
        "cut" => Ours::Cut(SnapshotId::new(&id).ok()?, part),
        _ => return None,
    };
    let again = match &found {
        Ours::Of(item, part) => Stem::of(item).file(*part),
        Ours::Cut(first, part) => Stem::of_cut(first).file(*part),
    };
    (again == name).then_some(found)
}

fn is_plain(id: &str) -> bool {
    id.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    let (mut held, mut bits) = (0_u32, 0);
    let letter = |value: u32| LETTERS.get(value as usize & 31).map_or('a', |byte| char::from(*byte));
    for byte in bytes {
        held = (held << 8) | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(letter(held >> bits));
        }
        held &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(letter(held << (5 - bits)));
    }
    text
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let (mut held, mut bits) = (0_u32, 0);
    for byte in text.bytes() {
        let value = LETTERS.iter().position(|letter| *letter == byte)?;
        held = (held << 5) | u32::try_from(value).ok()?;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits).ok()?);
            held &= (1 << bits) - 1;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn volume(id: &str) -> Item {
        Item::Volume(VolumeId::new(id).unwrap())
    }

    #[test]
    fn names_are_safe_whatever_the_id() {
        let longest = "!".repeat(128);
        for (id, name) in [
            ("4f2a-01", "vol-4f2a-01.data"),
            ("DB-0", "vol_irbc2ma.data"),
            (".hidden", "vol_fzugszdemvxa.data"),
            ("...", "vol_fyxc4.data"),
            ("a.json", "vol_mexgu43pny.data"),
            (&longest, ""),
        ] {
            let file = Stem::of(&volume(id)).file(Part::Data);
            assert!(name.is_empty() || file == name, "{id}: {file}");
            assert!(file.len() <= 255, "{file}");
            assert_eq!(parse(&file), Some(Ours::Of(volume(id), Part::Data)));
        }
    }

    #[test]
    fn what_others_left_here_is_not_ours() {
        for name in [
            "vol-.data",
            "vol_.data",
            "vol-A.data",
            "vol_MFRGG.data",
            "vol_a.data",
            "vol-a",
            "vol-a.data~",
            "vol-a.b.data",
            "volume-a.data",
            "snap-a.txt",
            "directory.json",
            "lost+found",
            ".vol-a.data",
            "vol_mfrgg.data",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_two_ids_share_a_name_even_without_capitals(a in "[!-.0-\\]_-~]{1,128}", b in "[!-.0-\\]_-~]{1,128}") {
            prop_assume!(VolumeId::new(&a).is_ok() && VolumeId::new(&b).is_ok());
            let (one, other) = (Stem::of(&volume(&a)).file(Part::Record), Stem::of(&volume(&b)).file(Part::Record));
            prop_assert_eq!(one.to_lowercase() == other.to_lowercase(), a == b);
            prop_assert_eq!(parse(&one), Some(Ours::Of(volume(&a), Part::Record)));
            let flipped = a.to_uppercase();
            prop_assert_eq!(Stem::of(&volume(&flipped)).file(Part::Lock).to_lowercase() == Stem::of(&volume(&a)).file(Part::Lock), flipped == a);
        }

        #[test]
        fn random_names_never_panic(name in "\\PC*") {
            let _ = parse(&name);
        }
    }
}
