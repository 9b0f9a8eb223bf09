//! What people write into objects of Kubernetes and on the command line: sizes, and wishes for tickets. What is accepted is
//! shown as the same; a refusal names the field and stays short.
#![no_main]

use bowline::size::Size;
use bowline_api::{AttachmentTicket, bytes_of, size_of};
use bowline_core::Owner;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use libfuzzer_sys::fuzz_target;

fn size(written: IntOrString) {
    match bytes_of(&written) {
        Ok(bytes) => assert_eq!(bytes_of(&IntOrString::String(size_of(bytes))), Ok(bytes)),
        Err(error) => assert!(error.to_string().len() < 1024),
    }
}

fn wish(key: &str, under_its_name: bool, object: &[u8]) {
    let Ok(mut wish) = serde_json::from_slice::<AttachmentTicket>(object) else { return };
    if under_its_name {
        key.clone_into(&mut wish.id);
    }
    let seen = bowline_core::Timestamp::UNIX_EPOCH;
    match wish.ticket(key, Owner::Withdrawn, seen) {
        Ok(ticket) => {
            assert_eq!(ticket.id.as_str(), key);
            assert!(ticket.created_at <= seen, "nobody gets behind by a time to come");
        }
        Err(error) => {
            let told = error.to_string();
            assert!(told.starts_with("spec.attachmentTickets[") && told.len() < 8192, "{told}");
        }
    }
}

fuzz_target!(|input: (i32, bool, &str, &[u8])| {
    let (number, under_its_name, text, object) = input;
    size(IntOrString::Int(number));
    size(IntOrString::String(text.to_owned()));
    // Whatever an object may say can be typed, too.
    if let Ok(bytes) = bytes_of(&IntOrString::String(text.to_owned())) {
        assert_eq!(text.parse(), Ok(Size(bytes)));
    }
    if let Err(error) = text.parse::<Size>() {
        assert!(error.to_string().len() < 1024);
    }
    wish(text, under_its_name, object);
});
