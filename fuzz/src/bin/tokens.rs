//! Small texts from outside: page tokens, ids, publish contexts, sizes and durations.
#![no_main]

use bowline_controller::token::{self, List};
use bowline_target::GrantContext;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], Vec<(String, String)>)| {
    let (bytes, map) = input;
    for list in [List::Volumes, List::Snapshots] {
        if let Some(slot) = token::parse(list, bytes) {
            assert_eq!(token::write(list, &slot).as_bytes(), bytes);
        }
    }
    let get = |key: &str| map.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
    if let Ok(context) = GrantContext::parse(get) {
        let again = context.to_map();
        assert_eq!(GrantContext::parse(|key| again.get(key).map(String::as_str)), Ok(context));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = bowline_core::Slot::of_id(text);
        if let Ok(id) = bowline_core::VolumeId::new(text) {
            assert!(!id.as_str().contains(['/', '^', '\0', '\n']));
        }
    }
});
