//! What a ROSE Data Server prints about disks and files: a refusal stays short, what is understood is true to its own words, and whatever
//! is put between quotes stays one line.
#![no_main]

use bowline_target::rds::disk::{disks, files};
use bowline_target::rds::fault::{Fault, done};
use bowline_target::rds::print::entries;
use bowline_target::rds::{Said, quote};
use libfuzzer_sys::fuzz_target;

fn is_short(fault: &Fault) {
    let said = fault.to_string();
    assert!(!said.is_empty() && said.len() < 4096, "{}", said.len());
}

fuzz_target!(|input: (Option<u32>, &str)| {
    let (status, text) = input;
    match entries(text) {
        Ok(all) => assert!(all.len() <= text.lines().count()),
        Err(fault) => is_short(&fault),
    }
    match disks(text) {
        Ok(all) => {
            for disk in all {
                let _ = (disk.is_file(), disk.nqn(), disk.host(), disk.mount_point());
                for fault in [disk.bytes().err(), disk.free().err(), disk.export().err(), disk.path().err()] {
                    fault.iter().for_each(is_short);
                }
            }
        }
        Err(fault) => is_short(&fault),
    }
    if let Err(fault) = files(text) {
        is_short(&fault);
    }
    if let Err(fault) = done(&Said { text: text.to_owned(), status }) {
        is_short(&fault);
    }
    assert!(quote(text).bytes().all(|byte| (0x20..0x7f).contains(&byte)));
});
