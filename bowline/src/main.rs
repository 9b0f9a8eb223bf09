//! The binary: see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    bowline::run(std::env::args_os())
}
