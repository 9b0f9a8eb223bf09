//! `cargo run --release -p xtask -- bench`: what things cost, as ratios.

mod bench;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bench"] => bench::run(""),
        ["bench", only] => bench::run(only),
        ["bench-start", directory] => bench::start::child(std::path::Path::new(directory)),
        _ => bail!("usage: xtask bench [part of a name]"),
    }
}
