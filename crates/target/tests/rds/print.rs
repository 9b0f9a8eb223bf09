//! Whatever a device prints, however it breaks its lines and groups its digits, is read as it was meant.

use bowline_target::rds::fault::Fault;
use bowline_target::rds::print::entries;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Clone, Debug)]
enum Value {
    Quoted(String),
    Bare(String),
    Count(u64, char),
    Yes(bool),
}

#[derive(Clone, Debug)]
struct Entry {
    flags: String,
    comment: Option<String>,
    values: BTreeMap<String, Value>,
}

#[derive(Clone, Debug)]
struct Style {
    width: usize,
    indent: usize,
    crlf: bool,
    header: usize,
    blank: bool,
}

impl Value {
    fn render(&self) -> String {
        match self {
            Self::Quoted(text) => {
                let mut quoted = String::from('"');
                for c in text.chars() {
                    match c {
                        '"' | '\\' | '$' => quoted.extend(['\\', c]),
                        '\n' => quoted.push_str("\\n"),
                        '\r' => quoted.push_str("\\r"),
                        '\t' => quoted.push_str("\\t"),
                        c if c.is_ascii_control() => {
                            let _ = write!(quoted, "\\{:02X}", u32::from(c));
                        }
                        c => quoted.push(c),
                    }
                }
                quoted + "\""
            }
            Self::Bare(text) => text.clone(),
            Self::Count(number, separator) => grouped(*number, *separator),
            Self::Yes(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        }
    }
}

fn grouped(number: u64, separator: char) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(separator);
        }
        text.push(digit);
    }
    text
}

/// Lines of a width. A key stays whole, and so does the quote that follows it; anything else may be broken, but no line begins with a
/// space of a value.
fn render(all: &[Entry], style: &Style) -> String {
    let end = if style.crlf { "\r\n" } else { "\n" };
    let header =
        ["", "Flags: X - disabled", "Flags: B - BLOCK-DEVICE; M, F - FORMATTING,\nE - EMPTY; r - RAID"];
    let mut text = header[style.header].replace('\n', end);
    if style.header > 0 {
        text.push_str(end);
    }
    for (index, entry) in all.iter().enumerate() {
        let mut line = format!("{index:>2} {} ", entry.flags);
        if let Some(comment) = &entry.comment {
            let _ = write!(text, "{line};;; {comment}{end}");
            line = " ".repeat(style.indent);
        }
        for (key, value) in &entry.values {
            let value = value.render();
            if line.chars().count() + key.len() + 2 > style.width && !line.trim().is_empty() {
                text.push_str(line.trim_end());
                text.push_str(end);
                line = " ".repeat(style.indent);
            } else if !line.ends_with(' ') {
                line.push(' ');
            }
            let _ = write!(line, "{key}=");
            for (at, c) in value.chars().enumerate() {
                if at > 0 && line.chars().count() >= style.width && c != ' ' {
                    text.push_str(&line);
                    text.push_str(end);
                    line = " ".repeat(style.indent);
                }
                line.push(c);
            }
        }
        text.push_str(&line);
        text.push_str(end);
        if style.blank {
            text.push_str(end);
        }
    }
    text
}

fn value() -> impl Strategy<Value = Value> {
    let separators = prop::sample::select(vec![' ', '.', ',', '\'', '\u{a0}', '\u{202f}', '\u{2009}']);
    prop_oneof![
        "[ -~]{0,120}".prop_map(Value::Quoted),
        "\\PC{0,20}".prop_map(Value::Quoted),
        "[a-z\\x01-\\x1f]{0,20}".prop_map(Value::Quoted),
        "[a-zA-Z/_.:-][a-zA-Z0-9/_.:%-]{0,80}".prop_map(Value::Bare),
        (any::<u64>(), separators).prop_map(|(number, separator)| Value::Count(number, separator)),
        any::<bool>().prop_map(Value::Yes),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let values = prop::collection::btree_map("[a-z][a-z0-9-]{0,20}", value(), 1..12);
    let comment = prop::option::of("[!-~][ -~]{0,40}[!-~]");
    ("[A-Z]{0,3}", comment, values).prop_map(|(flags, comment, values)| Entry { flags, comment, values })
}

fn style() -> impl Strategy<Value = Style> {
    (40_usize..160, 4_usize..16, any::<bool>(), 0_usize..3, any::<bool>())
        .prop_map(|(width, indent, crlf, header, blank)| Style { width, indent, crlf, header, blank })
}

proptest! {
    #[test]
    fn what_is_printed_is_read(all in prop::collection::vec(entry(), 0..5), style in style()) {
        let text = render(&all, &style);
        let read = entries(&text).map_err(|fault| TestCaseError::fail(format!("{fault}\n{text}")))?;
        prop_assert_eq!(read.len(), all.len(), "{}", text);
        for (index, (read, meant)) in read.iter().zip(&all).enumerate() {
            prop_assert_eq!(read.index, index as u64);
            prop_assert_eq!(&read.flags, &meant.flags, "{}", text);
            prop_assert_eq!(&read.comment, &meant.comment, "{}", text);
            prop_assert_eq!(read.keys().collect::<Vec<_>>(), meant.values.keys().collect::<Vec<_>>(), "{}", text);
            for (key, value) in &meant.values {
                match value {
                    Value::Quoted(meant) | Value::Bare(meant) => {
                        prop_assert_eq!(read.text(key), Some(meant.clone()), "{}", text);
                    }
                    Value::Count(meant, _) => prop_assert_eq!(read.count(key), Ok(Some(*meant)), "{}", text),
                    Value::Yes(meant) => prop_assert_eq!(read.yes(key), Ok(Some(*meant)), "{}", text),
                }
            }
        }
    }

    #[test]
    fn what_is_cut_off_is_never_read_as_something_else(entry in entry(), style in style(), at in any::<prop::sample::Index>()) {
        let text = render(std::slice::from_ref(&entry), &style);
        let mut at = at.index(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let Ok(read) = entries(&text[..at]) else { return Ok(()) };
        // Cut between two lines: keys may be missing, which whoever needs them notices, but what is there is true; only the value
        // at the cut may be shorter than it was, if it has no quotes.
        for entry_read in &read {
            let whole = entries(&text).unwrap();
            let wrong = entry_read.keys().filter(|key| entry_read.text(key) != whole[0].text(key)).count();
            prop_assert!(wrong <= 1, "{}", text);
        }
    }

    #[test]
    fn no_text_breaks_it(text in "\\PC{0,200}|([ 0-9a-z=\"\\\\\r\n;]{0,200})") {
        if let Err(Fault::Unparseable { said }) = entries(&text) {
            prop_assert!(said.len() <= 2000);
        }
    }
}

#[test]
fn a_line_may_end_anywhere_in_a_line_of_a_disk() {
    let line = "type=file slot=\"pvc-1\" size=53 687 091 200 free=1 024 mount-point=pool nvme-tcp-export=yes nvme-tcp-server-port=4420 \
                nvme-tcp-server-nqn=\"nqn.a:b\" nvme-tcp-server-allow-host-name=\"\" file-path=/pool/x.img";
    let whole = entries(&format!(" 0  {line}\n")).unwrap();
    for at in line.find("slot").unwrap()..line.len() {
        let (before, after) = line.split_at(at);
        // Of a word that matters to nobody, or between digits, a part may be lost; never of what is asked for.
        let cut = entries(&format!(" 0  {before}\n               {after}\n"));
        let cut = cut.unwrap_or_else(|fault| panic!("{at}: {fault}"));
        for key in
            ["slot", "mount-point", "nvme-tcp-server-nqn", "nvme-tcp-server-allow-host-name", "file-path"]
        {
            assert_eq!(cut[0].text(key), whole[0].text(key), "{key}, cut after {before:?}");
        }
        assert_eq!(cut[0].yes("nvme-tcp-export"), Ok(Some(true)), "cut after {before:?}");
        for key in ["size", "free"] {
            let found = cut[0].size(key).ok().flatten().and_then(bowline_target::rds::Size::exact);
            assert_eq!(found, whole[0].size(key).unwrap().unwrap().exact(), "{key}, cut after {before:?}");
        }
    }
}
