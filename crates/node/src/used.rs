//! Which grants were used on this node: what a target says of a volume before its first use is believed at that use, and never again.
//!
//! **Guarantees.** A grant that was used is known to be for ever, also after a loss of power once [`Used::keep`] has returned. One that was not may be
//! taken for used: then its volume is looked at as if nothing had been said of it.
//!
//! Grants come and go for years and nobody tells a node that one is over, so they are not listed: each is a bit of a file that never grows, at a place
//! that follows from its name, and may share that with others. After 100,000 grants a new one is taken for used in one of six cases.

use bowline_failpoint::pass;
use bowline_host::file;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// How long the file is.
const BYTES: u32 = 1 << 16;

#[derive(Debug)]
pub(crate) struct Used {
    path: PathBuf,
    /// One at a time changes a byte.
    turn: Mutex<()>,
}

impl Used {
    /// In a node's directory. The file is made when it is first needed: a node without room for it still starts.
    pub(crate) fn new(directory: &Path) -> Self {
        Self { path: directory.join("used-grants"), turn: Mutex::default() }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where there is none, nothing was used; one that is not as it was made says so of everything.
    fn file(&self) -> io::Result<File> {
        let begin = match file::open_file(&self.path, true) {
            Ok(file) if file.metadata()?.len() == u64::from(BYTES) => return Ok(file),
            Ok(_) => 0xff,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        if begin != 0 {
            tracing::warn!(path = %self.path.display(), "it is damaged: every device is looked at all over from now on");
        }
        file::write_whole(&self.path, &self.path.with_extension("draft"), &[begin; BYTES as usize])?;
        file::open_file(&self.path, true)
    }

    /// Notes that a grant is used; says whether this is certainly the first time. A loss of power may undo the note.
    pub(crate) fn begin(&self, grant: &str) -> io::Result<bool> {
        let (at, bit) = place(grant);
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.file()?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        if byte[0] & bit != 0 {
            return Ok(false);
        }
        pass("node.used.before");
        file.write_all_at(&[byte[0] | bit], at)?;
        pass("node.used.after");
        Ok(true)
    }

    /// Comes back when every note survives a loss of power.
    pub(crate) fn keep(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_data()
    }
}

/// Where the bit of a grant is: FNV-1a of its name, which must be the same in every version of this program.
fn place(grant: &str) -> (u64, u8) {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = grant.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    // Its low bits alone follow too closely from those of the last bytes.
    let hash = hash ^ (hash >> 32);
    ((hash >> 3) % u64::from(BYTES), 1 << (hash & 7))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(number: u32) -> String {
        format!("nqn.2026-01.storage.bowline:0123456789abcdef:pvc-{number}:e1")
    }

    #[test]
    fn a_grant_is_new_once_whoever_asks_again() {
        let directory = tempfile::tempdir().unwrap();
        let used = Used::new(directory.path());
        assert!(used.begin(&grant(1)).unwrap());
        assert!(!used.begin(&grant(1)).unwrap());
        assert!(used.begin(&grant(2)).unwrap());
        used.keep().unwrap();
        let again = Used::new(directory.path());
        assert_eq!([1, 2, 3].map(|number| again.begin(&grant(number)).unwrap()), [false, false, true]);
        assert_eq!(place(&grant(1)), (35_666, 4), "where it is must never change");
    }

    #[test]
    fn many_grants_leave_most_new_ones_new_and_no_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let used = Used::new(directory.path());
        for number in 0..20_000 {
            used.begin(&grant(number)).unwrap();
        }
        assert!((0..20_000).all(|number| !used.begin(&grant(number)).unwrap()));
        let new = (20_000..21_000).filter(|number| used.begin(&grant(*number)).unwrap()).count();
        assert!(new > 900, "{new} of 1,000");
    }

    #[test]
    fn what_is_damaged_says_that_everything_was_used() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Used::new(directory.path()).begin(&grant(1)).unwrap());
        std::fs::write(directory.path().join("used-grants"), "cut").unwrap();
        for _ in 0..2 {
            assert!(!Used::new(directory.path()).begin(&grant(2)).unwrap());
        }
    }
}
