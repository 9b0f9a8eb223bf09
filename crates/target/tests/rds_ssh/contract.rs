//! The suites that every adapter passes, over SSH, on every device that the simulator knows.

use bowline_core::VolumeId;
use bowline_target::rds::print::entries;
use bowline_target::rds::{ConnectError, Guarantee, RdsTarget};
use bowline_target::{NewVolume, Progress, Provision, ProvisionError, contract};
use bowline_testkit::routeros::{Firmware, POOL, RouterOs, Wrap};
use std::sync::Arc;

use crate::lab::Lab;
use crate::rack::{Raw, settings};

async fn connect(lab: &Lab) -> Result<RdsTarget, ConnectError> {
    RdsTarget::connect(Arc::new(lab.over_tcp(lab.settings())), settings()).await
}

async fn suites(name: &str, firmware: Firmware) {
    let lab = Lab::new(firmware).await;
    lab.device.leave_free(POOL, 64 << 20);
    let target = connect(&lab).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let volumes = ["v1", "v2", "V.3_x"].map(|id| VolumeId::new(id).unwrap());
    for volume in volumes.clone() {
        let order = NewVolume { name: volume.to_string(), volume, size: 1 << 20, source: None };
        let made = target.create(&order, &Progress::default()).await;
        assert_eq!(made, Ok(1 << 20), "{name}");
    }
    contract::run_for_one_host(&target, &volumes).await;
    for volume in &volumes {
        target.delete(volume).await.unwrap();
    }
    contract::provision::run(&target, &Raw(lab.device.clone()), "plain-").await;
    assert_eq!((lab.device.slots(), lab.device.files()), (vec![], vec![]), "{name}: nothing is left");
    if target.guarantee() == Guarantee::OneHost {
        assert_eq!(lab.device.breaches(), [""; 0], "{name}");
        assert!(lab.device.all_doors().iter().all(|door| door.host.is_some()), "{name}: never open to all");
    }
}

/// What becomes of those that cannot be used is told below.
pub(crate) fn is_usable(firmware: &Firmware) -> bool {
    firmware.exit_status && !firmware.hides_export_when_off && firmware.hidden.is_empty()
}

#[tokio::test]
async fn the_contract_is_kept_with_every_firmware() {
    for (name, firmware) in Firmware::each().into_iter().filter(|(_, firmware)| is_usable(firmware)) {
        suites(name, firmware).await;
    }
}

#[tokio::test]
async fn a_device_that_does_not_tell_how_commands_end_is_not_used() {
    let lab = Lab::new(Firmware { exit_status: false, ..Firmware::default() }).await;
    let error = connect(&lab).await.err().unwrap().to_string();
    assert!(error.contains("ended without a status"), "{error}");
}

#[tokio::test]
async fn the_contract_is_kept_without_names_of_hosts() {
    suites("no names of hosts", Firmware { knows_allow_list: false, ..Firmware::default() }).await;
}

#[tokio::test]
async fn a_device_that_does_not_show_the_name_of_an_export_that_is_off_gets_no_volumes() {
    let lab = Lab::new(Firmware { hides_export_when_off: true, ..Firmware::default() }).await;
    let target = connect(&lab).await.unwrap();
    let order =
        NewVolume { volume: VolumeId::new("v").unwrap(), name: "v".to_owned(), size: 1 << 20, source: None };
    let refused = target.create(&order, &Progress::default()).await;
    assert!(matches!(refused, Err(ProvisionError::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_device_that_does_not_show_sizes_in_bytes_gets_no_volumes() {
    let lab = Lab::new(Firmware { hidden: vec!["size"], ..Firmware::default() }).await;
    let target = connect(&lab).await.unwrap();
    let order =
        NewVolume { volume: VolumeId::new("v").unwrap(), name: "v".to_owned(), size: 1 << 20, source: None };
    let refused = target.create(&order, &Progress::default()).await.unwrap_err().to_string();
    assert!(refused.contains("shown without its size in bytes"), "{refused}");
    assert_eq!(lab.device.slots(), [""; 0], "nothing was begun");
}

#[test]
fn wherever_a_device_breaks_its_lines_the_same_is_read() {
    let add = "/disk add type=file file-path=/storage-pool/bowline/plain-deleted.0123456789abcdef.img file-size=1M slot=plain-deleted \
               nvme-tcp-export=no nvme-tcp-server-nqn=\"nqn.2026-01.storage.bowline:lab-1:plain-deleted:c0\" \
               nvme-tcp-server-allow-host-name=\"nqn.2026-01.storage.bowline:nobody\"";
    for wrap in [Wrap::Properties, Wrap::Words, Wrap::Columns] {
        for width in 40..200 {
            let device = RouterOs::new(Firmware { width, wrap, ..Firmware::default() });
            assert_eq!(device.enter(add).status, Some(0));
            let out = device.enter("/disk print detail where slot=plain-deleted").out;
            let read = entries(&out).unwrap_or_else(|fault| panic!("{fault}\n{out}"));
            let text = |key: &str| read[0].text(key).unwrap_or_default();
            assert_eq!(
                text("file-path"),
                "/storage-pool/bowline/plain-deleted.0123456789abcdef.img",
                "{out}"
            );
            assert_eq!(
                text("nvme-tcp-server-nqn"),
                "nqn.2026-01.storage.bowline:lab-1:plain-deleted:c0",
                "{out}"
            );
            assert_eq!(
                (text("slot").as_str(), text("nvme-tcp-export").as_str()),
                ("plain-deleted", "no"),
                "{out}"
            );
            assert_eq!(read[0].count("size"), Ok(Some(1 << 20)), "{out}");
        }
    }
}
