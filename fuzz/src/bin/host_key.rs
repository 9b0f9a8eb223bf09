//! The host key that a setting pins.
#![no_main]

use bowline_target::rds::ssh::HostKey;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(key) = text.parse::<HostKey>() {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
});
