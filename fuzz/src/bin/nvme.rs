//! What the kernel says about NVMe: the answer to a connect, the address of a controller.
#![no_main]

use bowline_host::nvme::{Address, Answer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Some(Answer { instance, cntlid }) = Answer::parse(text) {
        let again = format!("instance={instance},cntlid={cntlid}");
        assert_eq!(Answer::parse(&again), Some(Answer { instance, cntlid }));
    }
    if let Some(Address { traddr, trsvcid }) = Address::parse(text) {
        assert!(!traddr.contains(',') && !trsvcid.contains(','));
    }
});
