//! What a target on a simulated device is told of it, and where the device keeps the bytes. The tests over SSH have it too.

use bowline_core::{TargetId, VolumeId};
use bowline_target::contract::provision::Bytes;
use bowline_target::rds::Settings;
use bowline_testkit::routeros::{POOL, RouterOs};

pub(crate) fn settings() -> Settings {
    Settings {
        id: TargetId::new("rds-1").unwrap(),
        installation: "lab-1".to_owned(),
        pool: POOL.to_owned(),
        directory: format!("/{POOL}/bowline"),
        addresses: vec!["10.0.0.1:4420".parse().unwrap()],
        take_over: None,
        trust_readers: false,
    }
}

/// A volume's bytes, where the device keeps them.
pub(crate) struct Raw(pub(crate) RouterOs);

impl Bytes for Raw {
    fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
        self.0.write(&self.0.file_of(volume.as_str()).unwrap(), offset, bytes);
    }

    fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
        self.0.read(&self.0.file_of(volume.as_str()).unwrap(), offset, length)
    }
}
