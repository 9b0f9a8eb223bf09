//! The kernel's mount table, and mount options from requests.
#![no_main]

use bowline_host::format::FsType;
use bowline_host::mountinfo::MountTable;
use bowline_host::options::MountOptions;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(table) = MountTable::parse(bytes) {
        for mount in table.iter() {
            assert!(!mount.describe().is_empty());
            assert!(table.is_mount_point(&mount.at));
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        for fs in FsType::ALL {
            let _ = MountOptions::parse(fs, [text]);
        }
    }
});
