//! `vmtool serve`: the lab's hand inside a virtual machine.

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["serve"] => bowline_vmtool::serve::serve().map_err(|error| error.to_string()),
        _ => Err("usage: vmtool serve".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmtool: {error}");
            ExitCode::FAILURE
        }
    }
}
