//! The suites that every adapter passes, over the kernel of this machine: its NVMe target, its loop devices, a filesystem with shared blocks.
//!
//! No test, because it would not run on most machines and seem to have passed: `bowline/tests/vm/contract.rs` puts it into a machine of
//! the VM lab and runs it there. Its program is also that of the processes that do slow steps, so it has a `main` of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]
#![allow(clippy::print_stdout, reason = "it is a test")]

mod looked_at;
mod wire;

use bowline_core::{TargetId, VolumeId};
use bowline_host::Host;
use bowline_target::contract;
use bowline_target::file::{FileTarget, Policy, Settings};
use bowline_target::nvmet::{self, Configfs};
use bowline_target::{NewVolume, Progress, Provision};
use looked_at::{LookedAt, NVMET, nothing_is_left};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use wire::{WRITES, Wire};

const MIB: u64 = 1 << 20;
/// As long as any machine may take, however busy it is.
const PATIENT: std::time::Duration = std::time::Duration::from_secs(120);

/// `DIRECTORY ADDRESS…`: a place for volumes, and where the kernel is to listen.
fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if args == nvmet::APART {
        bowline_host::helper::serve(nvmet::apart);
        return ExitCode::SUCCESS;
    }
    if args == WRITES {
        bowline_host::helper::serve(bowline_host::nvme::write_for);
        return ExitCode::SUCCESS;
    }
    let (directory, addresses) = args.split_first().expect("DIRECTORY ADDRESS…");
    assert!(Path::new(NVMET).exists(), "this kernel has no NVMe target; modprobe nvmet_tcp");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let began = Instant::now();
    let target = open(Path::new(directory), addresses);
    runtime.block_on(access(&target));
    println!("test access ... ok ({:.1} s)", began.elapsed().as_secs_f32());
    let began = Instant::now();
    let wire = Wire::new(target.clone());
    for prefix in ["plain-", "Odd.!#,"] {
        runtime.block_on(contract::provision::run(&target, &wire, prefix));
    }
    nothing_is_left();
    println!("test provision ... ok ({:.1} s)", began.elapsed().as_secs_f32());
    ExitCode::SUCCESS
}

fn open(directory: &Path, addresses: &[String]) -> FileTarget {
    let settings = Settings {
        id: TargetId::new("nvme-1").unwrap(),
        directory: directory.to_owned(),
        host_name: "here".to_owned(),
        policy: Policy { overcommit: 100, reserve: 8 * MIB },
    };
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    let tree = Arc::new(Configfs::new(NVMET));
    let nvmet = nvmet::Settings { tree, addresses, lacks_addresses: false, patience: PATIENT };
    FileTarget::open_exported(settings, nvmet, Host::default()).unwrap()
}

/// Whom it lets in, with a look at the kernel after every answer.
async fn access(target: &FileTarget) {
    let volumes = ["v1", "v2", ".V3"].map(|id| VolumeId::new(id).unwrap());
    for volume in &volumes {
        let order = NewVolume { volume: volume.clone(), name: volume.to_string(), size: MIB, source: None };
        target.create(&order, &Progress::default()).await.unwrap();
    }
    let looked_at = LookedAt::new(target.clone());
    contract::run(&looked_at, &volumes).await;
    let (shown, gone) = looked_at.looks();
    assert!(shown > 5 && gone > 5, "the kernel was hardly looked at: {shown} shown, {gone} gone");
    nothing_is_left();
    for volume in &volumes {
        target.delete(volume).await.unwrap();
    }
}
