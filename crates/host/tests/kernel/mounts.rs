//! Mounting what is asked for, once, where it is asked for, and nothing else.

use crate::lab::{Lab, making, smallest, tag};
use bowline_host::format::FsType;
use bowline_host::mount::{Change, MountError, Unmount};
use bowline_host::options::MountOptions;
use bowline_host::path::PlaceError;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};

fn plain() -> MountOptions {
    MountOptions::new(FsType::Ext4)
}

fn tmpfs(lab: &Lab, name: &str) {
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", lab.path(name), "tmpfs", flags, Some(c"size=1m")).unwrap();
}

#[test]
fn a_volume_is_never_mounted_over_something_else() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let (one, two) = (lab.formatted("one", FsType::Ext4), lab.device("two", 32 << 20));
    lab.host.make(&two.path, &making(FsType::Ext4)).unwrap();
    let (stage, pod) = (lab.place("stage"), lab.place("pod"));
    lab.host.mount(&one.path, &stage, &plain()).unwrap();
    let occupied = lab.host.mount(&two.path, &stage, &plain()).unwrap_err();
    assert!(
        matches!(&occupied, MountError::Occupied { found, .. } if found.contains(one.path.to_str().unwrap())),
        "{occupied}"
    );

    pod.ensure_directory().unwrap();
    tmpfs(&lab, "pod");
    let occupied = lab.host.bind(&stage, &pod, false).unwrap_err();
    assert!(matches!(&occupied, MountError::Occupied { found, .. } if found.contains("tmpfs")), "{occupied}");
    assert_eq!(lab.host.mounts().unwrap().at(pod.path()).count(), 1, "nothing was stacked");
}

#[test]
fn mounted_in_another_way_is_an_error_not_a_yes() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.formatted("volume", FsType::Ext4);
    let (stage, pod) = (lab.place("stage"), lab.place("pod"));
    lab.host.mount(&device.path, &stage, &plain()).unwrap();
    for options in [plain().read_only(), MountOptions::parse(FsType::Ext4, ["noexec"]).unwrap()] {
        let differs = lab.host.mount(&device.path, &stage, &options).unwrap_err();
        assert!(matches!(differs, MountError::Differs { .. }), "{differs}");
    }
    lab.host.bind(&stage, &pod, false).unwrap();
    assert!(matches!(lab.host.bind(&stage, &pod, true), Err(MountError::Differs { .. })));
    lab.host.unmount(&pod, Unmount::WhenUnused).unwrap();
    assert_eq!(lab.host.bind(&stage, &pod, true).unwrap(), Change::Made);
    assert_eq!(lab.host.bind(&stage, &pod, true).unwrap(), Change::Nothing);
    std::fs::write(stage.path().join("x"), "the stage is still writable").unwrap();
    assert!(std::fs::write(pod.path().join("x"), "").is_err());
}

#[test]
fn setuid_programs_and_device_nodes_of_a_volume_are_nothing_special() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.formatted("volume", FsType::Ext4);
    let (stage, pod) = (lab.place("stage"), lab.place("pod"));
    lab.host.mount(&device.path, &stage, &plain()).unwrap();
    lab.host.bind(&stage, &pod, false).unwrap();
    let null = rustix::fs::makedev(1, 3);
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    let node = stage.path().join("null");
    rustix::fs::mknodat(rustix::fs::CWD, &node, rustix::fs::FileType::CharacterDevice, mode, null).unwrap();
    for place in [&stage, &pod] {
        assert!(File::open(place.path().join("null")).is_err());
        let table = lab.host.mounts().unwrap();
        let top = table.top(place.path()).unwrap();
        assert!(top.has("nosuid") && top.has("nodev"), "{top:?}");
    }
}

#[test]
fn a_block_volume_is_its_device_byte_for_byte() {
    let Some(lab) = Lab::new(&[]) else { return };
    let device = lab.device("volume", 8 << 20);
    let target = lab.place("block");
    assert!(matches!(lab.host.bind_device(&device.path, &target, true), Err(MountError::Writable { .. })));
    assert_eq!(lab.host.bind_device(&device.path, &target, false).unwrap(), Change::Made);
    assert_eq!(lab.host.bind_device(&device.path, &target, false).unwrap(), Change::Nothing);
    let file = File::options().write(true).open(target.path()).unwrap();
    file.write_all_at(b"block mode", 12_288).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut read = [0; 10];
    File::open(lab.path("volume")).unwrap().read_exact_at(&mut read, 12_288).unwrap();
    assert_eq!(&read, b"block mode");

    let other = lab.device("other", 8 << 20);
    let occupied = lab.host.bind_device(&other.path, &target, false).unwrap_err();
    assert!(matches!(occupied, MountError::Occupied { .. }), "{occupied}");
    lab.host.unmount_and_remove(&target, Unmount::WhenUnused).unwrap();
    assert!(!target.path().exists());
    let reader = lab.host.attach(&lab.path("volume"), &tag("reader", 1), true).unwrap();
    lab.host.bind_device(&reader.path, &target, true).unwrap();
    assert!(File::options().write(true).open(target.path()).and_then(|f| f.write_all_at(b"x", 0)).is_err());
    File::open(target.path()).unwrap().read_exact(&mut read).unwrap();
}

#[test]
fn every_layer_is_unmounted_and_content_below_is_kept() {
    let Some(lab) = Lab::new(&[]) else { return };
    let place = lab.place("target");
    place.ensure_directory().unwrap();
    std::fs::write(lab.path("target/below"), "precious").unwrap();
    for _ in 0..3 {
        tmpfs(&lab, "target");
        std::fs::write(lab.path("target/above"), "").unwrap();
    }
    let refused = lab.host.unmount_and_remove(&place, Unmount::WhenUnused).unwrap_err();
    assert!(matches!(refused, MountError::Place(PlaceError::NotEmpty { .. })), "{refused}");
    assert!(!lab.host.mounts().unwrap().is_mount_point(place.path()));
    assert_eq!(std::fs::read_to_string(lab.path("target/below")).unwrap(), "precious");
}

#[test]
fn a_mount_in_use_is_named_with_its_user_and_taken_lazily_only_when_asked() {
    let Some(lab) = Lab::new(&[]) else { return };
    let place = lab.place("target");
    place.ensure_directory().unwrap();
    tmpfs(&lab, "target");
    let open = File::create(lab.path("target/open")).unwrap();
    let busy = lab.host.unmount(&place, Unmount::WhenUnused).unwrap_err();
    assert!(busy.to_string().contains(&format!("process {}", std::process::id())), "{busy}");
    assert!(lab.host.mounts().unwrap().is_mount_point(place.path()));
    assert_eq!(lab.host.unmount(&place, Unmount::Lazily).unwrap(), Change::Made);
    assert!(!lab.host.mounts().unwrap().is_mount_point(place.path()));
    drop(open);
}

#[test]
fn a_symlink_swapped_in_at_the_target_leads_nowhere() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.formatted("volume", FsType::Ext4);
    std::fs::create_dir(lab.path("victim")).unwrap();
    let (stage, pod) = (lab.place("stage"), lab.place("pod"));
    symlink(lab.path("victim"), lab.path("pod")).unwrap();
    let symlinked = |result: Result<Change, MountError>| {
        matches!(result, Err(MountError::Place(PlaceError::Symlink { .. })))
    };
    assert!(symlinked(lab.host.mount(&device.path, &pod, &plain())));
    lab.host.mount(&device.path, &stage, &plain()).unwrap();
    assert!(symlinked(lab.host.bind(&stage, &pod, false)));
    assert!(symlinked(lab.host.bind(&pod, &stage, false)), "nor as a source");
    assert!(symlinked(lab.host.bind_device(&device.path, &pod, false)));
    tmpfs(&lab, "victim");
    lab.host.unmount(&pod, Unmount::WhenUnused).unwrap();
    assert!(lab.host.unmount_and_remove(&pod, Unmount::WhenUnused).is_err());
    assert!(
        lab.host.mounts().unwrap().is_mount_point(&lab.path("victim")),
        "what it points to is not unmounted"
    );
}

#[test]
fn a_copy_of_an_xfs_is_mounted_beside_it_with_nouuid() {
    let Some(lab) = Lab::new(&[FsType::Xfs]) else { return };
    let one = lab.formatted("one", FsType::Xfs);
    std::fs::copy(lab.path("one"), lab.path("two")).unwrap();
    let two = lab.attach(&lab.file("two", smallest(FsType::Xfs)), &tag("two", 1));
    lab.host.mount(&one.path, &lab.place("first"), &MountOptions::new(FsType::Xfs)).unwrap();
    let refused = lab.host.mount(&two.path, &lab.place("second"), &MountOptions::new(FsType::Xfs));
    assert!(matches!(refused, Err(MountError::Kernel { .. })), "{refused:?}");
    let options = MountOptions::parse(FsType::Xfs, ["nouuid"]).unwrap();
    assert_eq!(lab.host.mount(&two.path, &lab.place("second"), &options).unwrap(), Change::Made);
}

#[test]
fn a_volume_whose_device_lost_its_bytes_is_unmounted_without_hanging() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.formatted("volume", FsType::Ext4);
    let stage = lab.place("stage");
    lab.host.mount(&device.path, &stage, &plain()).unwrap();
    std::fs::write(stage.path().join("data"), vec![7; 1 << 20]).unwrap();
    File::options().write(true).open(lab.path("volume")).unwrap().set_len(0).unwrap();
    lab.host.refresh_size(&device).unwrap();
    bowline_host::usage::usage(&stage).unwrap();
    lab.host.unmount_and_remove(&stage, Unmount::WhenUnused).unwrap();
    lab.host.detach(device.backing, &device.tag.unwrap()).unwrap();
}
