//! On a real kernel, over real NVMe/TCP: node and target on one machine, as root, with nvmet and nvme-tcp; in the VM lab,
//! or wherever both are there. Elsewhere it says `not run`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]
#![allow(clippy::print_stdout, reason = "it is a test")]

#[path = "../kernel/lab.rs"]
#[allow(dead_code, reason = "the tests of the kernel use all of it")]
mod lab;
mod scenario;
mod target;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if let [command, file, text] = args.as_slice()
        && command == "kernel-write"
    {
        return ExitCode::from(bowline_host::nvme::child(Path::new(file), text));
    }
    // What cargo and its users say to every test.
    let named = args.iter().find(|arg| !arg.starts_with('-'));
    let wanted = |name: &str| named.is_none_or(|part| name.contains(part.as_str()));
    if args.iter().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    if let Err(why) = target::is_possible() {
        lab::not_run(why);
        return ExitCode::SUCCESS;
    }
    for (name, scenario) in scenario::ALL.iter().filter(|(name, _)| wanted(name)) {
        let began = Instant::now();
        scenario();
        println!("test {name} ... ok ({:.1} s)", began.elapsed().as_secs_f32());
    }
    ExitCode::SUCCESS
}
