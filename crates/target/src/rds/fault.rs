//! What a device says when it does not do what it was told. The only place that knows its words.

use super::console::Said;

/// Why a command was not carried out, or its answer is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The pool is full.
    #[error("the device says that there is not enough space")]
    NoSpace,
    /// What it is about is not there.
    #[error("the device says that there is no such item")]
    NoSuchItem,
    /// Something uses it.
    #[error("the device says that it is in use")]
    InUse,
    /// There is one already.
    #[error("the device says that it exists already")]
    Exists,
    /// The user may not do that.
    #[error("the device does not let this user in, or does not let it do that: {said}")]
    Auth {
        /// Its words.
        said: String,
    },
    /// A word that this firmware does not know, or does not take here.
    #[error("the device does not take the command: {said}")]
    Invalid {
        /// Its words.
        said: String,
    },
    /// What it says cannot be understood.
    #[error("what the device says cannot be understood: {said}")]
    Unparseable {
        /// Its words, escaped and cut to a bounded length.
        said: String,
    },
}

/// Words that tell what is wrong, in small letters, and what that is.
type Word = (&'static str, fn(String) -> Fault);

/// The first that fits counts.
const WORDS: [Word; 18] = [
    ("not enough space", |_| Fault::NoSpace),
    ("no space left", |_| Fault::NoSpace),
    ("disk is full", |_| Fault::NoSpace),
    ("no such item", |_| Fault::NoSuchItem),
    ("no such file", |_| Fault::NoSuchItem),
    ("already exists", |_| Fault::Exists),
    ("already have", |_| Fault::Exists),
    ("in use", |_| Fault::InUse),
    ("busy", |_| Fault::InUse),
    ("authentication failed", |said| Fault::Auth { said }),
    ("not permitted", |said| Fault::Auth { said }),
    ("not enough permissions", |said| Fault::Auth { said }),
    ("invalid parameter", |said| Fault::Invalid { said }),
    ("unknown parameter", |said| Fault::Invalid { said }),
    ("expected end of command", |said| Fault::Invalid { said }),
    ("syntax error", |said| Fault::Invalid { said }),
    ("bad command name", |said| Fault::Invalid { said }),
    ("invalid value", |said| Fault::Invalid { said }),
];

/// How much of a device's words is told on.
const SHOWN: usize = 160;

fn shown(text: &str) -> String {
    let mut shown = String::new();
    let mut chars = text.trim().chars();
    for c in chars.by_ref().take(SHOWN) {
        if c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric() {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    if chars.next().is_some() { shown + "…" } else { shown }
}

impl Fault {
    /// What a line of output complains of, if it is a complaint.
    pub fn of(line: &str) -> Option<Self> {
        let said = line.to_lowercase();
        let (_, fault) = WORDS.iter().find(|(words, _)| said.contains(words))?;
        Some(fault(shown(line)))
    }

    /// Text that means nothing here.
    pub fn unparseable(text: &str) -> Self {
        Self::Unparseable { said: shown(text) }
    }
}

/// Whether a command that changes something was carried out. One that was says nothing, or names what it has made.
pub fn done(said: &Said) -> Result<(), Fault> {
    let words = said.text.trim();
    let made = words.strip_prefix('*').is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if said.status == Some(0) && (words.is_empty() || made) {
        return Ok(());
    }
    let complaint = words.lines().find_map(Fault::of);
    let ended = said.status.map_or_else(
        || "the command ended without a status, so what it said may be cut off:".to_owned(),
        |status| format!("status {status},"),
    );
    Err(complaint.unwrap_or_else(|| Fault::unparseable(&format!("{ended} {words}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str, status: Option<u32>) -> Said {
        Said { text: text.to_owned(), status }
    }

    #[test]
    fn complaints_are_known_on_whichever_stream_they_come() {
        for status in [Some(0), Some(1), None] {
            for (text, fault) in [
                ("failure: not enough space\r\n", Fault::NoSpace),
                ("no such item\n", Fault::NoSuchItem),
                ("failure: no such item (4)", Fault::NoSuchItem),
                ("failure: file already exists\n", Fault::Exists),
                ("failure: disk is in use\n", Fault::InUse),
            ] {
                assert_eq!(done(&said(text, status)), Err(fault), "{text}");
            }
            let invalid = done(&said("invalid parameter nvme-tcp-server-allow-host-name\n", status));
            assert!(matches!(invalid, Err(Fault::Invalid { .. })), "{invalid:?}");
            let auth = done(&said("authentication failed\n", status));
            assert!(matches!(auth, Err(Fault::Auth { .. })), "{auth:?}");
        }
    }

    #[test]
    fn silence_is_success_only_with_a_status() {
        assert_eq!(done(&said("", Some(0))), Ok(()));
        assert_eq!(done(&said("*1F\r\n", Some(0))), Ok(()), "what an addition made");
        for silent in [said("", None), said("", Some(1)), said("hello", Some(0))] {
            assert!(matches!(done(&silent), Err(Fault::Unparseable { .. })), "{silent:?}");
        }
    }

    #[test]
    fn words_without_end_are_cut() {
        let fault = Fault::unparseable(&"\u{1b}[0m".repeat(100_000)).to_string();
        assert!(fault.len() < 2000 && fault.chars().all(|c| !c.is_control()), "{fault}");
    }
}
