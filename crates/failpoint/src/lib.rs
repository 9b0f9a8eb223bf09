//! Places where a test can end the process: before and after every step that is persisted or seen from outside.
//!
//! Without the feature `enabled`, [`pass`] is nothing at all. With it, a process that was started with
//! `BOWLINE_FAILPOINTS=DIR` appends the name of every point it passes to `DIR/log`. When a test has written a number
//! *n* to `DIR/arm`, the point that is passed after *n* others writes its name to `DIR/stopped` and never returns: what
//! comes after it does not happen, and the test ends the process with SIGKILL, the way machines do. With a name and a
//! number, only points of that name count.

/// Passes a point. Its name is `<crate>.<step>.before` or `.after`.
#[cfg(not(feature = "enabled"))]
#[inline(always)]
pub fn pass(_name: &'static str) {}

#[cfg(feature = "enabled")]
pub use enabled::pass;

#[cfg(feature = "enabled")]
mod enabled {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::{LazyLock, Mutex, PoisonError};

    static DIRECTORY: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("BOWLINE_FAILPOINTS").map(PathBuf::from));
    /// One point at a time, so that the log has whole lines and the count is exact.
    static TURN: Mutex<()> = Mutex::new(());

    /// Passes a point. Its name is `<crate>.<step>.before` or `.after`.
    pub fn pass(name: &'static str) {
        let Some(directory) = DIRECTORY.as_ref() else { return };
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let log = OpenOptions::new().create(true).append(true).open(directory.join("log"));
        // A test that took its directory away is over.
        let Ok(mut log) = log else { return };
        let _ = writeln!(log, "{name}");
        let armed = directory.join("arm");
        let Ok(text) = fs::read_to_string(&armed) else { return };
        let (wanted, left) = match text.trim().split_once(' ') {
            Some((wanted, left)) => (Some(wanted), left),
            None => (None, text.trim()),
        };
        let Ok(left) = left.parse::<u64>() else { return };
        if wanted.is_some_and(|wanted| wanted != name) {
            return;
        }
        if left > 0 {
            let left = left - 1;
            let _ = fs::write(&armed, wanted.map_or(left.to_string(), |wanted| format!("{wanted} {left}")));
            return;
        }
        let _ = fs::remove_file(&armed);
        // By renaming: who sees the file reads the whole name.
        let whole = directory.join("stopping");
        let _ = fs::write(&whole, name).and_then(|()| fs::rename(&whole, directory.join("stopped")));
        drop(turn);
        loop {
            std::thread::park();
        }
    }
}
