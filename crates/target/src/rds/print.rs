//! What `print detail` prints, as entries with keys and values.
//!
//! ```text
//! Flags: B - block-device; M - mounted
//!  0 BM type=file slot="pvc-1" size=53 687 091 200 model="/pool/pv
//!                c-1.img" file-size=50.0GiB
//! ```
//!
//! The flags header may be missing, and may be all there is. An entry begins with its index near the edge; what is indented further
//! goes on with it. A line may end between two keys, between two groups of digits, or anywhere in a value or a key. A value without
//! quotes ends where the next key begins. What cannot be read so is an error and never an empty list.

use super::fault::Fault;
use super::number::{self, Size};
use super::quote::unquote;
use std::collections::BTreeMap;

/// One thing the device has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its number in this output, and in no other.
    pub index: u64,
    /// The letters after the index.
    pub flags: String,
    /// What a person has written beside it.
    pub comment: Option<String>,
    values: BTreeMap<String, Value>,
}

/// A value as it stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    /// What stood between quotes.
    Quoted(String),
    /// Words, with a line break wherever a line ended.
    Bare(String),
}

impl Entry {
    /// A value as text. One without quotes that a line break has split is whole again.
    pub fn text(&self, key: &str) -> Option<String> {
        self.values.get(key).map(|value| match value {
            Value::Quoted(text) => text.clone(),
            Value::Bare(words) => words.replace('\n', ""),
        })
    }

    /// A value as a whole number.
    pub fn count(&self, key: &str) -> Result<Option<u64>, Fault> {
        self.typed(key, number::count)
    }

    /// A value as a size.
    pub fn size(&self, key: &str) -> Result<Option<Size>, Fault> {
        self.typed(key, number::size)
    }

    /// A value that is `yes` or `no`.
    pub fn yes(&self, key: &str) -> Result<Option<bool>, Fault> {
        self.typed(key, |text| match text.replace('\n', "").as_str() {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        })
    }

    /// Its keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    fn typed<T>(&self, key: &str, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Fault> {
        let Some(Value::Quoted(value) | Value::Bare(value)) = self.values.get(key) else { return Ok(None) };
        if value.is_empty() {
            return Ok(None);
        }
        read(value).map(Some).ok_or_else(|| Fault::unparseable(&format!("{key}={value}")))
    }
}

/// How far at most an index stands from the edge; what goes on with an entry stands further in.
const EDGE: usize = 3;

/// An entry as its lines: what follows the index, and the lines that go on with it.
struct Lines<'a> {
    index: u64,
    lines: Vec<&'a str>,
}

/// All entries of an output.
pub fn entries(text: &str) -> Result<Vec<Entry>, Fault> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    if !text.ends_with('\n') {
        // Complaints may come without a line end; anything else was cut off.
        return Err(complaint(text.lines().next_back().unwrap_or_default()));
    }
    let (mut found, mut in_header): (Vec<Lines<'_>>, bool) = (Vec::new(), false);
    for line in text.lines().map(|line| line.trim_end_matches('\r')) {
        if is_blank(line) && (found.is_empty() || line.len() <= EDGE) {
            continue;
        }
        let indent = indent_of(line);
        if let Some((index, rest)) = begins(line).filter(|_| indent <= EDGE) {
            found.push(Lines { index, lines: vec![rest] });
        } else if let Some(entry) = found.last_mut().filter(|_| indent > EDGE) {
            entry.lines.push(line);
        } else if found.is_empty() && (line.starts_with("Flags:") || in_header && line.contains(" - ")) {
            in_header = true;
        } else {
            return Err(complaint(line));
        }
    }
    // All lines that go on are indented alike. One that looks deeper goes on with a space of its value.
    let further = found.iter().flat_map(|entry| entry.lines.iter().skip(1));
    let indent = further.filter(|line| !is_blank(line)).map(|line| indent_of(line)).min().unwrap_or_default();
    found.iter().map(|entry| entry.read(indent)).collect()
}

/// What to say of a line that is no part of an entry. Only one that stands alone is a complaint: the words of one may be in any value.
fn complaint(line: &str) -> Fault {
    let alone = line.starts_with(|c: char| c.is_ascii_alphabetic()) && !line.contains('=');
    let complaint = Fault::of(line).filter(|_| alone);
    complaint.unwrap_or_else(|| Fault::unparseable(&format!("at {line}")))
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn is_blank(line: &str) -> bool {
    line.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
}

/// What stands between words. Other blanks may stand between digits.
fn is_gap(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\t')
}

fn first_word(text: &str) -> &str {
    text.split(is_gap).find(|word| !word.is_empty()).unwrap_or_default()
}

/// The index a line begins with, and the rest of it.
fn begins(line: &str) -> Option<(u64, &str)> {
    let line = line.trim_start_matches(' ');
    let end = line.find(|c: char| !c.is_ascii_digit()).unwrap_or(line.len());
    let (index, rest) = line.split_at_checked(end)?;
    let rest = if rest.is_empty() { rest } else { rest.strip_prefix(' ')? };
    let first = first_word(rest);
    let fits = first.is_empty() || first.starts_with(";;;") || is_flags(first) || key(first).is_some();
    Some((index.parse().ok()?, rest)).filter(|_| fits)
}

fn is_flags(word: &str) -> bool {
    !word.is_empty() && word.len() <= 16 && word.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// The key that a text begins with, and how much of the text it is, up to its `=`: a line may end in it.
fn split_key(text: &str) -> Option<(String, usize)> {
    if let Some(key) = key(first_word(text)) {
        return Some((key.to_owned(), key.len()));
    }
    // No key is longer, and a value may be.
    let (end, _) = text.char_indices().take(64).find(|(_, c)| *c == '=')?;
    // Two words: `type=.img file size=10.0GiB`.
    let cut = text.get(..end).filter(|cut| *cut != "file\nsize")?;
    let whole = cut.replace('\n', "");
    key(&format!("{whole}=")).map(|whole| (whole.to_owned(), end))
}

/// The key that a word begins with.
fn key(word: &str) -> Option<&str> {
    let (key, _) = word.split_once('=')?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let fits = key.starts_with(|c: char| c.is_ascii_alphabetic()) && key.bytes().all(plain);
    fits.then_some(key)
}

impl Lines<'_> {
    fn read(&self, indent: usize) -> Result<Entry, Fault> {
        let mut entry = Entry { index: self.index, ..Entry::default() };
        let mut lines = self.lines.iter();
        let mut first = lines.next().copied().unwrap_or_default();
        loop {
            let rest = first.trim_start_matches(is_gap);
            let word = first_word(rest);
            if let Some(comment) = rest.strip_prefix(";;;") {
                entry.comment = Some(comment.trim().to_owned());
                first = "";
            } else if is_flags(word) {
                entry.flags.push_str(word);
                first = rest.get(word.len()..).unwrap_or_default();
            } else {
                break;
            }
        }
        let mut text = first.to_owned();
        for line in lines {
            text.push('\n');
            text.push_str(line.get(indent..).unwrap_or_default());
        }
        entry.values = values(&text)?;
        Ok(entry)
    }
}

/// Keys and values, with a line break wherever a line ended.
fn values(text: &str) -> Result<BTreeMap<String, Value>, Fault> {
    let mut values: BTreeMap<String, Value> = BTreeMap::new();
    let mut last: Option<String> = None;
    let mut rest = text.trim_start_matches(is_gap);
    while !rest.is_empty() {
        let wrong = || Fault::unparseable(rest);
        let (mut name, length) = split_key(rest).ok_or_else(wrong)?;
        let after = rest.get(length + 1..).ok_or_else(wrong)?;
        // `type=.img file size=10.0GiB`: the word belongs to the key.
        if name == "size"
            && let Some(Value::Bare(before)) = last.as_ref().and_then(|last| values.get_mut(last))
            && let Some(value) = before.strip_suffix("file").filter(|value| value.ends_with(is_gap))
        {
            *before = value.trim_end_matches(is_gap).to_owned();
            name.insert_str(0, "file ");
        }
        let (value, left) = match after.strip_prefix('\n').unwrap_or(after).strip_prefix('"') {
            Some(quoted) => quoted_value(quoted).ok_or_else(wrong)?,
            None => bare_value(after),
        };
        if values.insert(name.clone(), value).is_some() {
            return Err(wrong());
        }
        (last, rest) = (Some(name), left.trim_start_matches(is_gap));
    }
    Ok(values)
}

/// What stands before the closing quote, and what follows it. `None` if it is not closed: it was cut off.
fn quoted_value(text: &str) -> Option<(Value, &str)> {
    let mut escaped = false;
    let end = text.char_indices().find_map(|(at, c)| match c {
        '\n' => None,
        _ if escaped => {
            escaped = false;
            None
        }
        '\\' => {
            escaped = true;
            None
        }
        '"' => Some(at),
        _ => None,
    })?;
    let (value, rest) = text.split_at_checked(end)?;
    let rest = rest.get(1..)?;
    // Lists of quoted values are in no key that matters here, and must not keep the others from being read.
    let (more, rest) = rest.split_at_checked(rest.find(is_gap).unwrap_or(rest.len()))?;
    Some((Value::Quoted(unquote(&value.replace('\n', "")) + more), rest))
}

/// Words up to the next key.
fn bare_value(text: &str) -> (Value, &str) {
    let mut end = 0;
    loop {
        let rest = text.get(end..).unwrap_or_default();
        let word = rest.trim_start_matches(is_gap);
        let gap = rest.len() - word.len();
        // Directly after the `=` there is no gap, and a word is part of the value whatever it looks like. A key in which a line ends has begun on the line
        // before, after a space; what begins a line may be the rest of a value.
        let between = rest.get(..gap).unwrap_or_default();
        let is_key = key(first_word(word)).is_some() || (between.ends_with(' ') && split_key(word).is_some());
        if word.is_empty() || (end + gap > 0 && is_key) {
            let value = text.get(..end).unwrap_or_default();
            return (Value::Bare(value.to_owned()), rest);
        }
        end += gap + word.find(is_gap).unwrap_or(word.len());
    }
}
