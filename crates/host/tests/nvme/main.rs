//! The node's side of NVMe/TCP, on trees of files and on a kernel that is made of them. What cannot run here says
//! `not run`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]
#![allow(clippy::print_stdout, reason = "it is a test")]

mod connect;
mod recorded;
mod resolve;
#[allow(dead_code, reason = "the tests of crates/node use the rest of it")]
mod tree;

use bowline_host::nvme::{Kernel, Nvme, Settings};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tree::Tree;

/// The machine of a tree, or nothing if this process may not make device nodes.
fn machine(text: &str) -> Option<Tree> {
    let tree = Tree::new(text);
    if tree.is_none() {
        let line = format!(
            "not run: {} (this process may not make device nodes)",
            std::thread::current().name().unwrap_or("a test of crates/host")
        );
        println!("{line}");
        if let Some(path) = std::env::var_os("BOWLINE_SUMMARY") {
            let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
            file.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
    }
    tree
}

/// With times that a test can wait for.
fn nvme(tree: &Tree, kernel: Arc<dyn Kernel>) -> Nvme {
    let settings = Settings {
        appear_within: Duration::from_millis(50),
        disconnect_within: Duration::from_secs(5),
        grow_within: Duration::from_secs(5),
        ..Settings::default()
    };
    Nvme::new(Arc::new(tree.host()), kernel, settings)
}
