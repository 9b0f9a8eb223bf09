//! A volume's life, twice over.

use crate::lab::{Lab, identity, making, smallest, tag};
use bowline_core::{Epoch, NodeId, VolumeId};
use bowline_host::check::Checked;
use bowline_host::command::Programs;
use bowline_host::format::{FsType, MakeError, State, probe};
use bowline_host::freeze::{FreezeError, thaw};
use bowline_host::loopdev::LoopError;
use bowline_host::mount::{Change, Unmount};
use bowline_host::options::MountOptions;
use bowline_host::usage::usage;
use bowline_host::{Host, Roots, Tag};
use std::fs;

fn life(fs: FsType) {
    let Some(lab) = Lab::new(&[fs]) else { return };
    let (host, making, tag) = (&lab.host, making(fs), tag("life", 1));
    let mut size = smallest(fs);
    let file = lab.file("volume", size);
    let (stage, pod, reader) = (lab.place("stage"), lab.place("pod"), lab.place("reader"));
    for round in 0..2 {
        let device = lab.attach(&file, &tag);
        assert_eq!(lab.attach(&file, &tag), device, "attached twice is one device");
        if round == 0 {
            assert_eq!(probe(&device.path).unwrap(), State::Blank);
            host.make(&device.path, &making).unwrap();
        }
        assert_eq!(probe(&device.path).unwrap(), State::Formatted { fs, uuid: making.uuid });
        assert!(matches!(host.make(&device.path, &making), Err(MakeError::NotBlank { .. })));
        let checked = host.check(&device.path, fs).unwrap();
        assert!(matches!(checked, Checked::Clean | Checked::AtMount), "{checked:?}");

        let options = MountOptions::parse(fs, ["noatime", "discard"]).unwrap();
        assert_eq!(host.mount(&device.path, &stage, &options).unwrap(), Change::Made);
        assert_eq!(host.mount(&device.path, &stage, &options).unwrap(), Change::Nothing);
        assert_eq!(host.bind(&stage, &pod, false).unwrap(), Change::Made);
        assert_eq!(host.bind(&stage, &pod, false).unwrap(), Change::Nothing);
        assert_eq!(host.bind(&stage, &reader, true).unwrap(), Change::Made);
        assert_eq!(host.bind(&stage, &reader, true).unwrap(), Change::Nothing);
        let table = host.mounts().unwrap();
        assert_eq!(table.of_device(device.number, |_| Some(device.number)).count(), 3, "nothing is stacked");

        let content = format!("written in round {round}");
        if round == 1 {
            assert_eq!(fs::read_to_string(pod.path().join("data-0")).unwrap(), "written in round 0");
        }
        fs::write(pod.path().join(format!("data-{round}")), &content).unwrap();
        let refused = fs::write(reader.path().join("x"), "").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

        let before = usage(&stage).unwrap();
        size += 128 << 20;
        lab.file("volume", size);
        assert_eq!(host.refresh_size(&device).unwrap(), size);
        if lab.grows_mounted(fs) {
            for _ in 0..2 {
                host.grow(fs, &device.path, &stage).unwrap();
            }
            assert!(usage(&stage).unwrap().bytes.total >= before.bytes.total + (100 << 20), "it grew");
        }
        assert_eq!(fs::read_to_string(reader.path().join(format!("data-{round}"))).unwrap(), content);

        let mounted = host.mounted(device.number).unwrap().remove(0);
        let frozen = mounted.freeze().unwrap();
        assert!(matches!(mounted.freeze(), Err(FreezeError::Already { .. })));
        frozen.thaw().unwrap();
        drop(mounted.freeze().unwrap());
        assert!(!thaw(&stage).unwrap(), "a dropped freeze is thawed");
        fs::write(pod.path().join("after"), "thawed").unwrap();

        let refused = host.detach(identity(&file), &tag).unwrap_err();
        assert!(matches!(&refused, LoopError::InUse { by, .. } if by.contains("mounted at")), "{refused}");
        for place in [&pod, &reader, &stage] {
            assert_eq!(host.unmount_and_remove(place, Unmount::WhenUnused).unwrap(), Change::Made);
            assert_eq!(host.unmount_and_remove(place, Unmount::WhenUnused).unwrap(), Change::Nothing);
            assert!(!place.path().exists());
        }
        for _ in 0..2 {
            host.detach(identity(&file), &tag).unwrap();
        }
        assert_eq!(host.loops_of(identity(&file)).unwrap(), []);
    }
}

#[test]
fn ext4_lives_twice() {
    life(FsType::Ext4);
}

#[test]
fn xfs_lives_twice() {
    life(FsType::Xfs);
}

#[test]
fn btrfs_lives_twice() {
    life(FsType::Btrfs);
}

#[test]
fn two_nodes_on_one_machine_read_one_volume_and_neither_can_write() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let writer = lab.formatted("volume", FsType::Ext4);
    let (stage, plain) = (lab.place("stage"), MountOptions::new(FsType::Ext4));
    lab.host.mount(&writer.path, &stage, &plain).unwrap();
    fs::write(stage.path().join("data"), "for all").unwrap();
    lab.host.unmount_and_remove(&stage, Unmount::WhenUnused).unwrap();
    lab.host.detach(writer.backing, &writer.tag.unwrap()).unwrap();

    let volume = VolumeId::new("volume").unwrap();
    let nodes = ["node-a", "node-b"].map(|node| {
        fs::create_dir(lab.path(node)).unwrap();
        let tag = Tag::new(&volume, &NodeId::new(node).unwrap(), Epoch::new(2));
        let host = Host::new(Roots::default(), Programs::default());
        let device = host.attach(&lab.path("volume"), &tag, true).unwrap();
        let stage = lab.place(&format!("{node}/stage"));
        host.mount(&device.path, &stage, &plain.clone().read_only()).unwrap();
        (host, device, stage, tag)
    });
    assert_ne!(nodes[0].1.number, nodes[1].1.number);
    for (host, device, stage, tag) in &nodes {
        assert_eq!(fs::read_to_string(stage.path().join("data")).unwrap(), "for all");
        assert!(fs::write(stage.path().join("data"), "mine").is_err());
        host.unmount_and_remove(stage, Unmount::WhenUnused).unwrap();
        host.detach(device.backing, tag).unwrap();
    }
    assert_eq!(lab.host.loops_of(writer.backing).unwrap(), []);
}
