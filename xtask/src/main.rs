//! `cargo run --release -p xtask -- bench`: what things cost, as ratios. `image`: Bowline as a container image. `lab`: a cluster on
//! this machine with Bowline in it. `suites`: the tests, and what else must hold. `vm`: machines with kernels of their own.

mod bench;
mod image;
mod lab;
mod suites;
mod vm;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bench"] => bench::run(""),
        ["bench", only] => bench::run(only),
        ["bench-start", directory] => bench::start::child(std::path::Path::new(directory)),
        ["image", rest @ ..] => image(is_release(rest)?),
        ["lab", "up", rest @ ..] => lab::up(is_release(rest)?),
        ["lab", "down"] => lab::down(),
        ["lab", "status"] => lab::status(),
        ["lab", "hold", archive] => lab::hold(std::path::Path::new(archive)),
        ["suites", logs] => suites::run(std::io::stdin().lock(), std::path::Path::new(logs)),
        ["vm", "up", rest @ ..] => vm::up(rest),
        ["vm", words @ ..] => vm::ask(words),
        _ => bail!(
            "usage: xtask bench [part of a name] | image [--release] | lab up [--release] | lab down | lab status | suites LOGS <MESSAGES | vm up"
        ),
    }
}

fn is_release(flags: &[&str]) -> Result<bool> {
    match flags {
        [] => Ok(false),
        ["--release"] => Ok(true),
        _ => bail!("the only flag here is --release, not {}", flags.join(" ")),
    }
}

#[allow(clippy::print_stdout, reason = "that is what it is for")]
fn image(is_release: bool) -> Result<()> {
    let image = image::build(is_release)?;
    println!("{} is in {}", image.name, image.archive.display());
    Ok(())
}
