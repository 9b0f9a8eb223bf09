//! The configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = bowline::config::FileConfig::parse("bowline.toml".as_ref(), text) {
        assert!(!error.to_string().is_empty());
    }
});
