//! Who cleans up after a lab when the process that started it does not get to.

use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// A shell that waits until the lab's process is gone, in whatever way, and then cleans. A lab that is kept in a static is never
/// dropped, and one whose process is killed neither.
#[derive(Debug)]
pub(crate) struct Janitor {
    shell: Child,
    /// Closed by the kernel when our process ends.
    leash: Option<ChildStdin>,
}

impl Janitor {
    /// Removes a directory in the end. The script, if there is one, runs before; its first argument is the directory.
    pub(crate) fn of(directory: &Path, script: Option<&Path>) -> Self {
        let order = r#"read -r _; if [ -n "$1" ]; then sh "$1" "$0" || exit; fi; rm -rf -- "$0""#;
        // A session of its own: the interrupt from a terminal that ends the test must not end the cleaning.
        let mut shell = Command::new("setsid")
            .args(["sh", "-c", order])
            .arg(directory)
            .arg(script.unwrap_or(Path::new("")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let leash = shell.stdin.take();
        Self { shell, leash }
    }

    /// Cleans now.
    pub(crate) fn clean(&mut self) {
        drop(self.leash.take());
        let _ = self.shell.wait();
    }
}
