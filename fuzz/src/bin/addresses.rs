//! What the kernel says of this machine's addresses.
#![no_main]

use bowline_host::interface::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(part) = parse(bytes) {
        // A header, what is told about an address, and an attribute with one.
        assert!(part.addresses.len() * 32 <= bytes.len());
        assert!(!part.is_last || bytes.len() >= 20);
    }
});
