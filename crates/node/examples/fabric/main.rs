//! The node service on a real kernel, over real NVMe/TCP: node and target on one machine, as root, with nvmet and nvme-tcp.
//!
//! No test, because it would not run on most machines and seem to have passed: `bowline/tests/vm/fabric.rs` puts it into machines of
//! the VM lab and runs it there. Its program is also that of the process that writes to the kernel, so it has a `main` of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]
#![allow(clippy::print_stdout, reason = "it is a test")]

#[path = "../../tests/kernel/lab.rs"]
#[allow(dead_code, reason = "the tests of the kernel use all of it")]
mod lab;
mod scenario;
mod target;

use std::process::ExitCode;
use std::time::Instant;

/// All scenarios, or those whose name contains the word that is given; `--list` names them.
fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if args == ["kernel-write"] {
        bowline_host::helper::serve(bowline_host::nvme::write_for);
        return ExitCode::SUCCESS;
    }
    let wanted = args.first().filter(|arg| *arg != "--list");
    let scenarios = scenario::ALL.iter().filter(|(name, _)| wanted.is_none_or(|part| name.contains(part)));
    for (name, scenario) in scenarios {
        if args.iter().any(|arg| arg == "--list") {
            println!("{name}");
            continue;
        }
        target::assert_possible();
        let began = Instant::now();
        scenario();
        println!("test {name} ... ok ({:.1} s)", began.elapsed().as_secs_f32());
    }
    ExitCode::SUCCESS
}
