//! Tables for people, JSON and YAML for programs.

use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write;

use crate::args::Format;
use crate::failure::Failure;

/// Whether there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Plain text.
    Plain,
    /// With colours.
    Coloured,
}

/// What a word means to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// It is as it should be.
    Good,
    /// It waits, or is under way.
    Waiting,
    /// It is wrong.
    Bad,
    /// The name of something.
    Strong,
}

impl Style {
    /// Colours on a terminal, unless `NO_COLOR` is set to anything.
    pub fn detect(terminal: bool, no_color: Option<&OsStr>) -> Self {
        if terminal && no_color.is_none_or(OsStr::is_empty) { Self::Coloured } else { Self::Plain }
    }

    /// A text in its colour.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Waiting => "33",
            Tone::Bad => "31",
            Tone::Strong => "1",
        };
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

/// A table: what is in the first row is in capitals.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<(String, Option<Tone>)>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[&str]) -> Self {
        Self { rows: vec![columns.iter().map(|column| ((*column).to_owned(), None)).collect()] }
    }

    /// One more row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = (String, Option<Tone>)>) {
        self.rows.push(cells.into_iter().map(|(text, tone)| (one_line(&text), tone)).collect());
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// The table as text. Widths are counted before colours are.
    pub fn show(&self, style: Style) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| text.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (text, tone)) in row.iter().enumerate() {
                let shown = tone.map_or_else(|| text.clone(), |tone| style.paint(tone, text));
                line.push_str(&shown);
                if column + 1 < row.len() {
                    let gap = widths.get(column).copied().unwrap_or_default() - text.chars().count() + 3;
                    line.push_str(&" ".repeat(gap));
                }
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }
}

/// A text that cannot break a line or move the cursor: names are any text.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '�' } else { c }).collect()
}

/// A cell without a colour.
pub fn cell(text: impl Into<String>) -> (String, Option<Tone>) {
    (text.into(), None)
}

/// A cell with one.
pub fn toned(tone: Tone, text: impl Into<String>) -> (String, Option<Tone>) {
    (text.into(), Some(tone))
}

/// Writes a value as JSON or YAML, or lets it be shown.
pub fn write(
    out: &mut dyn Write,
    format: Format,
    value: &impl Serialize,
    show: impl FnOnce(bool) -> String,
) -> Result<(), Failure> {
    let failed = |error: String| Failure::failed(error);
    let text = match format {
        Format::Table => show(false),
        Format::Wide => show(true),
        Format::Json => {
            let json = serde_json::to_string_pretty(value).map_err(|error| failed(error.to_string()))?;
            format!("{json}\n")
        }
        Format::Yaml => {
            // By way of JSON, so that both say the same: YAML by itself writes enums as tags, which few programs read.
            let json = serde_json::to_value(value).map_err(|error| failed(error.to_string()))?;
            serde_yaml_ng::to_string(&json).map_err(|error| failed(error.to_string()))?
        }
    };
    out.write_all(text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_and_never_move_a_column() {
        let none = |value: &'static str| Some(OsStr::new(value));
        assert_eq!(Style::detect(true, None), Style::Coloured);
        assert_eq!(Style::detect(true, none("")), Style::Coloured);
        assert_eq!(Style::detect(true, none("1")), Style::Plain);
        assert_eq!(Style::detect(false, None), Style::Plain);
        let mut table = Table::new(&["NAME", "STATE", "X"]);
        table.row([cell("a"), toned(Tone::Good, "attached"), cell("1")]);
        table.row([cell("longer\n\x1b[31m"), toned(Tone::Bad, "ä"), cell("2")]);
        let plain = table.show(Style::Plain);
        assert_eq!(plain.lines().count(), 3);
        let column = |line: &str, word: &str| line.split(word).next().map(|before| before.chars().count());
        let states = ["STATE", "attached", "ä"];
        let places: Vec<_> = plain.lines().zip(states).map(|(line, word)| column(line, word)).collect();
        assert!(places.iter().all(|place| *place == places[0]), "{plain}");
        assert!(!plain.contains('\x1b'), "a name moves the cursor");
        let coloured = table.show(Style::Coloured);
        let stripped = coloured.replace("\x1b[32m", "").replace("\x1b[31m", "").replace("\x1b[0m", "");
        assert_eq!(stripped, plain);
        assert_ne!(coloured, plain);
    }
}
