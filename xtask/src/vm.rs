//! `xtask vm up`: machines with kernels of their own, for people to try things. It runs until it is interrupted, and everything goes
//! with it.

use anyhow::{Context, Result, bail, ensure};
use bowline_testkit::vm::{Kernel, Machine, Plan, control};
use std::path::PathBuf;
use std::time::Instant;

/// Where the lab that runs listens; `BOWLINE_VM_LAB` names another for a second lab.
fn socket() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("BOWLINE_VM_LAB") {
        return Ok(named.into());
    }
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("bowline/vm/lab.sock"))
}

/// Boots a target, two nodes and a machine for the controller, with the given programs in each of them, and says how to use them.
#[allow(clippy::print_stdout, reason = "that is what it is for")]
pub(crate) fn up(words: &[&str]) -> Result<()> {
    let socket = socket()?;
    if socket.exists() {
        ensure!(
            std::os::unix::net::UnixStream::connect(&socket).is_err(),
            "a lab runs already: {} (BOWLINE_VM_LAB=… names another)",
            socket.display()
        );
        std::fs::remove_file(&socket)?;
    }
    let (mut kernel, mut multipath, mut programs) = (Kernel::Debian12, &[][..], vec![]);
    for word in words {
        match *word {
            "--kernel=12" => kernel = Kernel::Debian12,
            "--kernel=13" => kernel = Kernel::Debian13,
            "--no-multipath" => multipath = &["nvme_core.multipath=N"],
            flag if flag.starts_with('-') => {
                bail!("flags are --kernel=12, --kernel=13 and --no-multipath, not {flag}")
            }
            program => programs.push(program),
        }
    }
    let node = |name| Machine::node(name).words(multipath);
    let plan =
        Plan::of([Machine::target("target"), node("a"), node("b"), Machine::new("control")]).kernel(kernel);
    let plan = Plan { alone: false, ..programs.iter().fold(plan, Plan::with) };
    let begun = Instant::now();
    let Some(lab) = plan.start() else { bail!("this machine cannot run the lab") };
    println!(
        "The lab runs after {:.0} s. Everything of it is in {}.\n",
        begun.elapsed().as_secs_f64(),
        lab.directory().display()
    );
    for vm in lab.vms() {
        println!("  {:8} {}  console: {}", vm.name(), vm.address(), vm.console().display());
    }
    let own = std::env::current_exe()?;
    println!(
        "\nIn another terminal:\n\n  alias vm='{} vm'\n  vm run a sh -c 'ping -c 1 10.77.0.1'\n  vm run target sh        # a shell, without a prompt\n  \
         vm run a sh -c 'cat >/tmp/file' <file\n  vm cut a control; vm mend a control\n  vm suspend a; vm resume a; vm power-cut a; vm boot a\n\n\
         Ctrl-C ends it and leaves nothing behind.",
        own.display()
    );
    control::serve(lab, &socket)?;
    Ok(())
}

/// Asks the lab that runs for something.
pub(crate) fn ask(words: &[&str]) -> Result<()> {
    let socket = socket()?;
    let (out, err) = (&mut std::io::stdout(), &mut std::io::stderr());
    let code = control::ask(&socket, words, std::io::stdin(), out, err)
        .with_context(|| format!("no lab answers at {}: make lab-vm", socket.display()))?;
    std::process::exit(code.into());
}
