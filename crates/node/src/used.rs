//! Which grants were used on this node: what a target says of a volume before its first use is believed at that use, and never again.
//!
//! **Guarantees.** A grant that was used is known to be for ever, also after a loss of power once [`Used::keep`] has returned. One that was not may be
//! taken for used: then its volume is looked at as if nothing had been said of it. Every use for writing is noted, whatever the target said at that
//! one: it may say another thing at the next.
//!
//! **Caveats.** Where the file is lost, what is left of the uses before that are the staging records.
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
    notes: Mutex<Notes>,
}

/// How many notes were made, and how many of those a flush has come after.
#[derive(Debug)]
struct Notes {
    made: u64,
    kept: u64,
}

impl Used {
    /// In a node's directory. The file is made when it is first needed: a node without room for it still starts.
    pub(crate) fn new(directory: &Path) -> Self {
        // The process before this one may have ended between its last note and the flush.
        let notes = Notes { made: 1, kept: 0 };
        Self { path: directory.join("used-grants"), notes: Mutex::new(notes) }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where there is none, those were used that are known from elsewhere, and all if that cannot be told; one that is not as it was made says so
    /// of everything.
    fn file(&self, known: impl FnOnce() -> Option<Vec<String>>) -> io::Result<File> {
        let known = match file::open_file(&self.path, true) {
            Ok(file) if file.metadata()?.len() == u64::from(BYTES) => return Ok(file),
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => known(),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; BYTES as usize];
        if let Some(known) = known {
            for (at, bit) in known.iter().map(|grant| place(grant)) {
                let byte = usize::try_from(at).ok().and_then(|at| bytes.get_mut(at));
                byte.into_iter().for_each(|byte| *byte |= bit);
            }
        } else {
            bytes.fill(0xff);
            let path = self.path.display();
            tracing::warn!(%path, "which grants were used is not known: every device is looked at all over from now on");
        }
        file::write_whole(&self.path, &self.path.with_extension("draft"), &bytes)?;
        file::open_file(&self.path, true)
    }

    /// Notes that a grant is used; says whether this is certainly the first time. A loss of power may undo the note. Asks for the grants that are
    /// `known` to be used if there is no file yet, or not any more.
    pub(crate) fn begin(&self, grant: &str, known: impl FnOnce() -> Option<Vec<String>>) -> io::Result<bool> {
        let (at, bit) = place(grant);
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.file(known)?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        if byte[0] & bit != 0 {
            return Ok(false);
        }
        pass("node.used.before");
        notes.made += 1;
        file.write_all_at(&[byte[0] | bit], at)?;
        pass("node.used.after");
        Ok(true)
    }

    /// Comes back when every note survives a loss of power. Flushes nothing if there was none since the last time.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let notes = || self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let Notes { made, kept } = *notes();
        if kept < made {
            // Without the lock: many volumes may be staged at once.
            File::open(&self.path)?.sync_data()?;
            let mut notes = notes();
            notes.kept = notes.kept.max(made);
        }
        Ok(())
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

    #[allow(clippy::unnecessary_wraps, reason = "a node that knows its records, and has none")]
    fn nothing() -> Option<Vec<String>> {
        Some(vec![])
    }

    #[test]
    fn a_grant_is_new_once_whoever_asks_again() {
        let directory = tempfile::tempdir().unwrap();
        let used = Used::new(directory.path());
        assert!(used.begin(&grant(1), nothing).unwrap());
        assert!(!used.begin(&grant(1), nothing).unwrap());
        assert!(used.begin(&grant(2), nothing).unwrap());
        used.keep().unwrap();
        let again = Used::new(directory.path());
        assert_eq!(
            [1, 2, 3].map(|number| again.begin(&grant(number), nothing).unwrap()),
            [false, false, true]
        );
        assert_eq!(place(&grant(1)), (35_666, 4), "where it is must never change");
    }

    #[test]
    fn many_grants_leave_most_new_ones_new_and_no_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let used = Used::new(directory.path());
        for number in 0..20_000 {
            used.begin(&grant(number), nothing).unwrap();
        }
        assert!((0..20_000).all(|number| !used.begin(&grant(number), nothing).unwrap()));
        let new = (20_000..21_000).filter(|number| used.begin(&grant(*number), nothing).unwrap()).count();
        assert!(new > 900, "{new} of 1,000");
    }

    #[test]
    fn what_is_damaged_says_that_everything_was_used() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Used::new(directory.path()).begin(&grant(1), nothing).unwrap());
        std::fs::write(directory.path().join("used-grants"), "cut").unwrap();
        for _ in 0..2 {
            assert!(!Used::new(directory.path()).begin(&grant(2), nothing).unwrap());
        }
    }

    #[test]
    fn a_file_that_was_lost_begins_with_what_is_known_from_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("used-grants");
        let used = Used::new(directory.path());
        let known = || Some(vec![grant(1), grant(2)]);
        assert_eq!([2, 3].map(|number| used.begin(&grant(number), known).unwrap()), [false, true]);
        assert!(!used.begin(&grant(1), || panic!("it is there")).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(
            !used.begin(&grant(9), || None).unwrap(),
            "a record that nobody can read may be that of this grant"
        );
        assert_eq!(std::fs::read(&path).unwrap(), vec![0xff; BYTES as usize]);
    }

    #[test]
    fn a_note_is_flushed_once_and_every_process_flushes_what_the_one_before_may_have_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("used-grants");
        let used = Used::new(directory.path());
        used.begin(&grant(1), nothing).unwrap();
        used.keep().unwrap();
        // A flush opens the file, and this shows whether it does.
        let away = |is_away: bool| {
            let aside = path.with_extension("aside");
            let (from, to) = if is_away { (&path, &aside) } else { (&aside, &path) };
            std::fs::rename(from, to).unwrap();
        };
        away(true);
        used.keep().unwrap();
        let another = Used::new(directory.path());
        another.keep().unwrap_err();
        away(false);
        assert!(!used.begin(&grant(1), nothing).unwrap());
        another.keep().unwrap();
        assert!(used.begin(&grant(2), nothing).unwrap());
        away(true);
        used.keep().unwrap_err();
        another.keep().unwrap();
    }
}
