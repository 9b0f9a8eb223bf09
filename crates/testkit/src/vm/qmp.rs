//! What QEMU itself can be asked for: a disk that is slow, or does not answer.

use super::Vm;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How fast a machine's disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// As fast as it can be.
    Full,
    /// It does that many writes in a second; it reads as fast as it can.
    WritesPerSecond(u32),
    /// It takes orders and does none.
    Hung,
}

impl Vm {
    /// Makes its disk slow, or fast again. What was asked of a hung disk is done when it gets well.
    pub fn set_disk_speed(&self, speed: Speed) {
        let (bytes, writes) = match speed {
            Speed::Full => (0, 0),
            Speed::WritesPerSecond(writes) => (0, writes),
            // A block takes more than an hour.
            Speed::Hung => (1, 0),
        };
        self.ask_qemu(&format!(
            r#"{{"execute": "block_set_io_throttle", "arguments": {{"device": "disk", "bps": {bytes}, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": {writes}}}}}"#
        ));
    }

    fn ask_qemu(&self, order: &str) {
        let mut stream = UnixStream::connect(self.directory().join("qmp.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
        for order in [r#"{"execute": "qmp_capabilities"}"#, order] {
            stream.write_all(order.as_bytes()).unwrap();
            let answer = answers.by_ref().map_while(Result::ok).find(|line| {
                // It greets and tells of events as well.
                line.starts_with(r#"{"return""#) || line.starts_with(r#"{"error""#)
            });
            let answer = answer.unwrap_or_else(|| panic!("QEMU of {} did not answer {order}", self.name()));
            assert!(answer.starts_with(r#"{"return""#), "{}: {order}: {answer}", self.name());
        }
    }
}
