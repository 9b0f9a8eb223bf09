//! `~`: whether a text has a part that a pattern describes.

/// Whether `text` has a part that `pattern` describes: an extended regular expression without groups (`^ $ . * + ? [] | \`).
/// `None` if the device would not understand the pattern.
pub(super) fn matches(pattern: &str, text: &str) -> Option<bool> {
    let text: Vec<char> = text.chars().collect();
    let mut found = false;
    for way in pattern.split('|') {
        let (way, from_start) = way.strip_prefix('^').map_or((way, false), |rest| (rest, true));
        let pieces = pieces(way)?;
        let mut starts = if from_start { 0..=0 } else { 0..=text.len() };
        found |= starts.any(|start| here(&pieces, &text[start..]));
    }
    Some(found)
}

enum One {
    Any,
    Exactly(char),
    Set { of: Vec<(char, char)>, not: bool },
    End,
}

struct Piece {
    one: One,
    least: usize,
    most: usize,
}

fn pieces(way: &str) -> Option<Vec<Piece>> {
    let mut chars = way.chars().peekable();
    let mut pieces = Vec::new();
    while let Some(c) = chars.next() {
        let one = match c {
            '.' => One::Any,
            '\\' => One::Exactly(chars.next()?),
            '$' if chars.peek().is_none() => One::End,
            '[' => set(&mut chars)?,
            '*' | '+' | '?' | '(' | ')' | '{' | '}' => return None,
            c => One::Exactly(c),
        };
        let (least, most) = match chars.next_if(|c| matches!(c, '*' | '+' | '?')) {
            Some('*') => (0, usize::MAX),
            Some('+') => (1, usize::MAX),
            Some(_) => (0, 1),
            None => (1, 1),
        };
        pieces.push(Piece { one, least, most });
    }
    Some(pieces)
}

fn set(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<One> {
    let not = chars.next_if_eq(&'^').is_some();
    let mut of = Vec::new();
    loop {
        match chars.next()? {
            ']' if !of.is_empty() => return Some(One::Set { of, not }),
            from => {
                let mut ahead = chars.clone();
                let to = match (ahead.next(), ahead.next()) {
                    (Some('-'), Some(to)) if to != ']' => {
                        *chars = ahead;
                        to
                    }
                    _ => from,
                };
                of.push((from, to));
            }
        }
    }
}

fn here(pieces: &[Piece], text: &[char]) -> bool {
    let Some((piece, rest)) = pieces.split_first() else { return true };
    if matches!(piece.one, One::End) {
        return text.is_empty();
    }
    let fits = |c: &&char| match &piece.one {
        One::Any => true,
        One::Exactly(wanted) => *c == wanted,
        One::Set { of, not } => of.iter().any(|(from, to)| (from..=to).contains(c)) != *not,
        One::End => false,
    };
    let longest = text.iter().take(piece.most).take_while(fits).count();
    longest >= piece.least && (piece.least..=longest).rev().any(|taken| here(rest, &text[taken..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_find_parts() {
        for (pattern, text, found) in [
            ("pvc", "a-pvc-1", Some(true)),
            ("^pvc", "a-pvc-1", Some(false)),
            ("^pvc-.*$", "pvc-1", Some(true)),
            ("^pvc-[0-9]+$", "pvc-12", Some(true)),
            ("^pvc-[^0-9]+$", "pvc-12", Some(false)),
            ("^snap-|^pvc-", "snap-1", Some(true)),
            ("a\\.b", "axb", Some(false)),
            ("a.b", "axb", Some(true)),
            ("x?y", "y", Some(true)),
            ("", "anything", Some(true)),
            ("*", "x", None),
            ("[", "x", None),
        ] {
            assert_eq!(matches(pattern, text), found, "{pattern} in {text}");
        }
    }
}
