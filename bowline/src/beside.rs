//! What a process of Bowline lets a second process of its own do, because it may wait for the kernel or a disk for ever ([`bowline_host::helper`]). These are
//! found before anything else is made: no command line is built, no thread is started.

use std::ffi::OsString;
use std::process::ExitCode;

/// The word for writes to files of the kernel.
pub(crate) const KERNEL_WRITE: &str = "kernel-write";

/// Does them, if that is what was typed.
pub(crate) fn run(typed: &[OsString]) -> Option<ExitCode> {
    let words: Vec<&str> = typed.iter().skip(1).map_while(|word| word.to_str()).collect();
    let work = match words.as_slice() {
        [KERNEL_WRITE] => bowline_host::nvme::write_for,
        words if words == bowline_target::nvmet::APART => bowline_target::nvmet::apart,
        _ => return None,
    };
    bowline_host::helper::serve(work);
    Some(ExitCode::SUCCESS)
}
