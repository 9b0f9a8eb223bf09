//! What a process of Bowline lets a process of its own do, because it may wait for the kernel or a disk for ever. Somebody waits for each of them, and
//! there are several to an attach, so they are found before anything else is made: no command line is built, no thread is started.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The word for a write to a file of the kernel; the file and the text follow.
pub(crate) const KERNEL_WRITE: &str = "kernel-write";

/// Does it, if that is what was typed.
pub(crate) fn run(typed: &[OsString]) -> Option<ExitCode> {
    let words: Vec<&str> = typed.iter().skip(1).map_while(|word| word.to_str()).collect();
    match words.as_slice() {
        [KERNEL_WRITE, file, text] => Some(ExitCode::from(bowline_host::nvme::child(Path::new(file), text))),
        [target, apart, step @ ..] if [*target, *apart] == bowline_target::nvmet::APART => {
            let step: Vec<String> = step.iter().map(ToString::to_string).collect();
            let said = writeln!(std::io::stdout(), "{}", bowline_target::nvmet::apart(&step));
            Some(if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        _ => None,
    }
}
