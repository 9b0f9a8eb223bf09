//! `vmtool serve`: the lab's hand inside a virtual machine. The rest is for tests to run there.

use bowline_vmtool::blocks::{self, Writing};
use bowline_vmtool::drive::{self, Driving};
use bowline_vmtool::{record, relay, serve};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage: vmtool serve
       vmtool relay SOCKET|ADDRESS
       vmtool record
       vmtool write PATH epoch=N [first=N] [count=N] [threads=N] [writes=N] [pause-ms=N] [direct] [lazy] [stubborn]
       vmtool stamps PATH [count=N] [direct]
       vmtool sum PATH
       vmtool drive PATH [bytes=N] [span=N] [ms=N] [random] [write]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["serve"] => serve::serve().map_err(|error| error.to_string()),
        ["relay", place] => relay::relay(place).map_err(|error| format!("{place}: {error}")),
        ["record"] => record::record(&mut io::stdout()).map_err(|error| error.to_string()),
        ["write", path, options @ ..] => write(path, options),
        ["stamps", path, options @ ..] => stamps(path, options),
        ["sum", path] => sum(path),
        ["drive", path, options @ ..] => drive(path, options),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmtool: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(path: &str, options: &[&str]) -> Result<(), String> {
    let mut writing = Writing {
        path: PathBuf::from(path),
        epoch: 0,
        first: 0,
        count: 256,
        is_direct: false,
        is_lazy: false,
        threads: 1,
        writes: 0,
        pause: Duration::ZERO,
        is_stubborn: false,
    };
    for option in options {
        match option
            .split_once('=')
            .map(|(name, value)| number(value).map(|value| (name, value)))
            .transpose()?
        {
            Some(("epoch", value)) => writing.epoch = value,
            Some(("first", value)) => writing.first = value,
            Some(("count", value @ 1..)) => writing.count = value,
            Some(("threads", value @ 1..)) => writing.threads = value,
            Some(("writes", value)) => writing.writes = value,
            Some(("pause-ms", value)) => writing.pause = Duration::from_millis(value),
            None if *option == "direct" => writing.is_direct = true,
            None if *option == "lazy" => writing.is_lazy = true,
            None if *option == "stubborn" => writing.is_stubborn = true,
            _ => return Err(format!("{option} is not known\n{USAGE}")),
        }
    }
    blocks::write(&writing, &mut io::stdout()).map_err(|error| format!("{path}: {error}"))
}

fn stamps(path: &str, options: &[&str]) -> Result<(), String> {
    let (mut count, mut is_direct) = (None, false);
    for option in options {
        match option.split_once('=') {
            Some(("count", value)) => count = Some(number(value)?),
            None if *option == "direct" => is_direct = true,
            _ => return Err(format!("{option} is not known\n{USAGE}")),
        }
    }
    let mut out = BufWriter::new(io::stdout());
    let read = blocks::read(Path::new(path), is_direct, count, &mut out).and_then(|()| out.flush());
    read.map_err(|error| format!("{path}: {error}"))
}

fn sum(path: &str) -> Result<(), String> {
    let sum = blocks::sum(Path::new(path)).map_err(|error| format!("{path}: {error}"))?;
    writeln!(io::stdout(), "{sum:016x}").map_err(|error| error.to_string())
}

fn drive(path: &str, options: &[&str]) -> Result<(), String> {
    let mut driving = Driving {
        path: PathBuf::from(path),
        bytes: 4096,
        span: 16 << 20,
        time: Duration::from_secs(1),
        is_random: false,
        is_writing: false,
    };
    for option in options {
        match option.split_once('=') {
            Some(("bytes", value)) => driving.bytes = number(value)?.max(1) as usize,
            Some(("span", value)) => driving.span = number(value)?,
            Some(("ms", value)) => driving.time = Duration::from_millis(number(value)?),
            None if *option == "random" => driving.is_random = true,
            None if *option == "write" => driving.is_writing = true,
            _ => return Err(format!("{option} is not known\n{USAGE}")),
        }
    }
    let (count, micros) = drive::drive(&driving).map_err(|error| format!("{path}: {error}"))?;
    writeln!(io::stdout(), "{count} {micros}").map_err(|error| error.to_string())
}

fn number(value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{value} is not a number"))
}
