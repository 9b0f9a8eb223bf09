//! The token that callers over TCP have to show.

use async_trait::async_trait;
use axum::http::Method;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::gate::{Gate, Refusal};

/// Random bytes in a token.
const BYTES: usize = 32;

/// A secret that cannot be printed.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Others than its owner can read it, or write it.
    #[error("{} has mode {mode:03o}; others must not read it: chmod 600 {}", path.display(), path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// What is in it is no token.
    #[error("{} holds no token: {why}; remove it to have a new one made", path.display())]
    NotOne {
        /// The file.
        path: PathBuf,
        /// What is the matter.
        why: &'static str,
    },
    /// The filesystem, or the source of randomness, refused.
    #[error("cannot {deed} {}: {error}", path.display())]
    Io {
        /// What was tried.
        deed: &'static str,
        /// With which file.
        path: PathBuf,
        /// What was the matter.
        error: io::Error,
    },
}

impl Token {
    /// Reads the token of a file, or makes the file, mode 0600, with a new one. A file is there whole or not at all: one
    /// that a crash left half written would keep the next start from starting.
    pub fn load(path: &Path) -> Result<Self, TokenError> {
        match std::fs::symlink_metadata(path) {
            Ok(_) => Self::read(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let draft = path.with_extension("new");
                let made = Self::make(&draft, path);
                let _ = std::fs::remove_file(&draft);
                match made {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::read(path),
                    made => {
                        made.map_err(|error| TokenError::Io { deed: "make", path: path.to_owned(), error })
                    }
                }
            }
            Err(error) => Err(TokenError::Io { deed: "look at", path: path.to_owned(), error }),
        }
    }

    fn make(draft: &Path, path: &Path) -> io::Result<Self> {
        let mut bytes = [0_u8; BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // Left by a process that was killed here.
        if let Err(error) = std::fs::remove_file(draft)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
        file.write_all(format!("{text}\n").as_bytes())?;
        file.sync_all()?;
        std::fs::hard_link(draft, path)?;
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(directory)?.sync_all()?;
        }
        Ok(Self(text))
    }

    fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |deed| move |error| TokenError::Io { deed, path: path.to_owned(), error };
        let file = File::open(path).map_err(failed("open"))?;
        let mode = file.metadata().map_err(failed("look at"))?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Open { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        file.take(4096).read_to_string(&mut text).map_err(failed("read"))?;
        let text = text.trim();
        let no_token = |why| TokenError::NotOne { path: path.to_owned(), why };
        if text.len() < BYTES {
            return Err(no_token("it is shorter than 32 characters"));
        }
        if !text.chars().all(|c| c.is_ascii_graphic()) {
            return Err(no_token("it has characters that a header cannot have"));
        }
        Ok(Self(text.to_owned()))
    }

    /// Whether this token is shown. Takes as long whatever is shown, as long as it is as long.
    pub fn is(&self, shown: &str) -> bool {
        if shown.len() != self.0.len() {
            return false;
        }
        let differs = shown.bytes().zip(self.0.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
        std::hint::black_box(differs) == 0
    }
}

/// Whoever shows it may do everything.
#[async_trait]
impl Gate for Token {
    async fn admit(&self, token: &str, _method: &Method) -> Result<(), Refusal> {
        if self.is(token) {
            return Ok(());
        }
        let how = "show the token of this data directory: Authorization: Bearer $(cat <data>/api.token)";
        Err(Refusal::Unknown(how.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_and_only_its_owner_can_read_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        let made = Token::load(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.trim().len(), 64);
        assert!(made.is(text.trim()));
        assert!(Token::load(&path).unwrap().is(text.trim()));
        assert!(!format!("{made:?}").contains(text.trim()), "a secret is printed");
        let left: Vec<_> =
            fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["token"], "nothing is left over");
        assert!(!Token::load(&place.path().join("other")).unwrap().is(text.trim()));
    }

    #[test]
    fn a_process_that_died_while_it_made_the_token_does_not_keep_the_next_one_from_starting() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("api.new"), "half a tok").unwrap();
        Token::load(&place.path().join("api.token")).unwrap();
        assert!(!place.path().join("api.new").exists());
    }

    #[test]
    fn what_shows_another_token_or_none_is_not_let_in() {
        let token = Token("x".repeat(64));
        for (text, shown) in [
            ("x".repeat(64), true),
            ("x".repeat(63), false),
            (format!("{}y", "x".repeat(63)), false),
            ("x".repeat(65), false),
            (String::new(), false),
        ] {
            assert_eq!(token.is(&text), shown, "{text}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_or_that_holds_no_token_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        for (text, mode, why) in [
            ("x".repeat(64), 0o644, "has mode 644; others must not read it: chmod 600"),
            ("short".to_owned(), 0o600, "holds no token: it is shorter"),
            ("ä".repeat(64), 0o600, "characters that a header cannot have"),
            (String::new(), 0o600, "holds no token"),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let told = Token::load(&path).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        }
    }
}
