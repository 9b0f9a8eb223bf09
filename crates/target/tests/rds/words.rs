//! Command lines as the device reads them. On purpose not the code that writes them.

use std::collections::BTreeMap;

/// One word: a key with a value, conditions in brackets, or just a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Bare(String),
    Pair(String, char, String),
    Find(String, Vec<Word>),
}

/// The words of a line; why it is none.
pub(crate) fn words(line: &str) -> Result<Vec<Word>, String> {
    let mut chars = line.chars().peekable();
    let mut words = Vec::new();
    loop {
        while chars.next_if_eq(&' ').is_some() {}
        if chars.peek().is_none() {
            return Ok(words);
        }
        let mut key = String::new();
        while let Some(c) = chars.next_if(|c| !matches!(c, ' ' | '=' | '~' | '[' | ']' | '"' | ';' | '$')) {
            key.push(c);
        }
        words.push(match chars.peek().copied() {
            None | Some(' ') => Word::Bare(key),
            Some('[') => Word::Find(key, find(&mut chars)?),
            Some(sign @ ('=' | '~')) => {
                chars.next();
                if chars.peek() == Some(&'[') {
                    Word::Find(key, find(&mut chars)?)
                } else {
                    Word::Pair(key, sign, value(&mut chars)?)
                }
            }
            Some(other) => return Err(format!("syntax error at {other:?} of {line}")),
        });
    }
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn find(chars: &mut Chars<'_>) -> Result<Vec<Word>, String> {
    let (mut inner, mut quoted, mut escaped) = (String::new(), false, false);
    chars.next();
    loop {
        let c = chars.next().ok_or("expected a closing bracket")?;
        match c {
            ']' if !quoted => break,
            '"' if !escaped => quoted = !quoted,
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        inner.push(c);
    }
    let mut words = words(&inner)?;
    if words.first() != Some(&Word::Bare("find".to_owned())) {
        return Err("bad command name".to_owned());
    }
    words.remove(0);
    Ok(words)
}

fn value(chars: &mut Chars<'_>) -> Result<String, String> {
    let mut bytes: Vec<u8> = Vec::new();
    if chars.next_if_eq(&'"').is_none() {
        let mut text = String::new();
        while let Some(c) = chars.next_if(|c| *c != ' ') {
            if matches!(c, '"' | '[' | ']' | ';' | '$') {
                return Err(format!("syntax error at {c:?}"));
            }
            text.push(c);
        }
        return Ok(text);
    }
    loop {
        match chars.next().ok_or("expected a closing quote")? {
            '"' => break,
            '$' => return Err("a variable".to_owned()),
            '\\' => match chars.next().ok_or("expected a closing quote")? {
                'n' => bytes.push(b'\n'),
                'r' => bytes.push(b'\r'),
                't' => bytes.push(b'\t'),
                c @ ('"' | '\\' | '$' | '?') => bytes.push(u8::try_from(c).unwrap()),
                high => {
                    let low = chars.next().ok_or("half an escape")?;
                    bytes.push(u8::from_str_radix(&format!("{high}{low}"), 16).map_err(|_| "no escape")?);
                }
            },
            c => bytes.extend(c.to_string().bytes()),
        }
    }
    if chars.peek().is_some_and(|c| *c != ' ') {
        return Err("expected a space after a quote".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// The pairs of a command, by key.
pub(crate) fn pairs(words: &[Word]) -> Result<BTreeMap<String, String>, String> {
    let mut pairs = BTreeMap::new();
    for word in words {
        match word {
            Word::Pair(key, '=', value) => {
                if pairs.insert(key.clone(), value.clone()).is_some() {
                    return Err(format!("invalid parameter {key}: given twice"));
                }
            }
            Word::Find(..) => {}
            other => return Err(format!("expected end of command (at {other:?})")),
        }
    }
    Ok(pairs)
}

/// A size with or without a unit.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    let unit = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    digits.parse::<u64>().map(|number| number << shift).map_err(|_| format!("invalid value {text}"))
}
