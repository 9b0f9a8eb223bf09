//! Loop devices and who uses them.

use crate::lab::{Lab, identity, tag};
use bowline_host::device;
use bowline_host::file::Reflink;
use bowline_host::format::FsType;
use bowline_host::loopdev::{LoopDevice, LoopError};
use bowline_host::options::MountOptions;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SIZE: u64 = 8 << 20;

#[test]
fn a_device_is_found_by_its_file_and_tag_not_by_a_name() {
    let Some(lab) = Lab::new(&[]) else { return };
    let file = lab.file("volume", SIZE);
    let device = lab.attach(&file, &tag("v", 1));
    let moved = lab.path("moved");
    std::fs::rename(&file, &moved).unwrap();
    assert_eq!(lab.attach(&moved, &tag("v", 1)).number, device.number, "renamed, still the same file");

    let other = lab.attach(&lab.file("volume", SIZE), &tag("v", 1));
    assert_ne!(other.number, device.number, "the old name is another file now");
    let newer = lab.attach(&moved, &tag("v", 2));
    assert_ne!(newer.number, device.number, "another epoch is another grant");

    let mut numbers: Vec<_> =
        lab.host.loops_of(identity(&moved)).unwrap().into_iter().map(|d| d.number).collect();
    numbers.sort_unstable();
    let mut expected = [device.number, newer.number];
    expected.sort_unstable();
    assert_eq!(numbers, expected);

    lab.host.detach(identity(&moved), &tag("v", 1)).unwrap();
    let left = lab.host.loops_of(identity(&moved)).unwrap();
    assert_eq!(
        left.iter().map(|d| d.tag).collect::<Vec<_>>(),
        [Some(tag("v", 2))],
        "the other grant is untouched"
    );
    assert_eq!(lab.host.find_loop(identity(&lab.path("volume")), &tag("v", 1)).unwrap().len(), 1);
}

#[test]
fn a_device_is_as_it_was_asked_for() {
    let Some(lab) = Lab::new(&[]) else { return };
    let file = lab.file("volume", SIZE);
    let device = lab.attach(&file, &tag("v", 1));
    assert_eq!((device.read_only, device.vanishing, device.tag), (false, false, Some(tag("v", 1))));
    assert_eq!((device.backing, &device.backing_path), (identity(&file), &file));
    assert_eq!(device::size(&device.path).unwrap(), SIZE);
    assert_eq!(device::number(&device.path).unwrap(), device.number);

    let reader = lab.host.attach(&file, &tag("v", 2), true).unwrap();
    assert!(reader.read_only && device::is_read_only(&reader.path).unwrap());
    assert!(!device::is_read_only(&device.path).unwrap());
    let differs = lab.host.attach(&file, &tag("v", 2), false).unwrap_err();
    assert!(matches!(differs, LoopError::Differs { wanted_read_only: false, .. }), "{differs}");
    assert!(File::options().write(true).open(&reader.path).and_then(|f| f.write_all_at(b"x", 0)).is_err());
}

#[test]
fn a_device_that_was_read_only_is_not_given_to_somebody_who_opens_it_for_writing() {
    let Some(lab) = Lab::new(&[]) else { return };
    let file = lab.file("volume", SIZE);
    lab.host.attach(&file, &tag("v", 1), true).unwrap();
    lab.host.detach(identity(&file), &tag("v", 1)).unwrap();
    let mut held = None;
    let mut open = |device: &Path| {
        assert!(!device::is_read_only(device).unwrap(), "{} would be refused to nvmet", device.display());
        held = Some(File::options().read(true).write(true).open(device)?);
        Ok(())
    };
    lab.host.attach_read_only_behind(&file, &tag("v", 2), &mut open).unwrap();
    assert!(lab.host.read_only_loop(&file, &tag("v", 2)).unwrap().is_some());
    drop(held);
}

#[test]
fn direct_io_is_used_where_the_filesystem_can_and_done_without_where_it_cannot() {
    let Some(lab) = Lab::new(&[]) else { return };
    let data = lab.path("memory");
    std::fs::create_dir(&data).unwrap();
    rustix::mount::mount("tmpfs", &data, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=32m"))
        .unwrap();
    let on_memory = lab.attach(&lab.file("memory/volume", SIZE), &tag("m", 1));
    File::options().write(true).open(&on_memory.path).unwrap().write_all_at(b"works", 4096).unwrap();
    let on_disk = lab.attach(&lab.file("volume", SIZE), &tag("d", 1));
    let disk =
        lab.host.mounts().unwrap().covering(&lab.path("volume")).map(|(mount, _)| mount.fs_type.clone());
    if disk.as_deref() == Some("ext4".as_ref()) {
        assert!(on_disk.direct_io, "ext4 can");
    }
    lab.host.detach(on_memory.backing, &tag("m", 1)).unwrap();
}

#[test]
fn a_filesystem_can_be_mounted_again_after_its_file_was_reflinked() {
    let Some(lab) = Lab::new(&[FsType::Xfs]) else { return };
    let below = lab.formatted("below", FsType::Xfs);
    let place = lab.place("data");
    lab.host.mount(&below.path, &place, &MountOptions::new(FsType::Xfs)).unwrap();
    let file = lab.file("data/volume", SIZE);
    let block_size = |device: &LoopDevice| {
        let queue = format!("/sys/dev/block/{}/queue/logical_block_size", device.number);
        std::fs::read_to_string(queue).unwrap().trim().to_owned()
    };
    let before = lab.attach(&file, &tag("v", 1));
    assert_eq!((block_size(&before).as_str(), before.direct_io), ("4096", true));
    lab.host.detach(before.backing, &tag("v", 1)).unwrap();
    File::options().write(true).open(&file).unwrap().write_all_at(&[1; 8192], 0).unwrap();
    let copy = bowline_host::file::create_new(&lab.path("data/copy")).unwrap();
    let shared = bowline_host::file::reflink(&File::open(&file).unwrap(), &copy).unwrap();
    assert_eq!(shared, Reflink::Shared);
    let after = lab.attach(&file, &tag("v", 1));
    assert_eq!((block_size(&after).as_str(), after.direct_io), ("4096", true), "as before");
    lab.host.detach(after.backing, &tag("v", 1)).unwrap();
}

#[test]
fn a_device_that_is_open_is_not_reported_as_detached() {
    let Some(lab) = Lab::new(&[]) else { return };
    let file = lab.file("volume", SIZE);
    let device = lab.attach(&file, &tag("v", 1));
    let open = File::open(&device.path).unwrap();
    let refused = lab.host.detach(identity(&file), &tag("v", 1)).unwrap_err();
    let process = format!("open in process {}", std::process::id());
    assert!(matches!(&refused, LoopError::InUse { by, .. } if by.contains(&process)), "{refused}");
    assert_eq!(lab.host.loops_of(identity(&file)).unwrap().len(), 1, "it can still reach the bytes");
    drop(open);
    lab.host.detach(identity(&file), &tag("v", 1)).unwrap();
    assert_eq!(lab.host.loops_of(identity(&file)).unwrap(), []);
}

#[test]
fn growth_is_taken_over_only_from_the_same_file() {
    let Some(lab) = Lab::new(&[]) else { return };
    let file = lab.file("volume", SIZE);
    let device = lab.attach(&file, &tag("v", 1));
    lab.file("volume", 2 * SIZE);
    assert_eq!(device::size(&device.path).unwrap(), SIZE, "not by itself");
    assert_eq!(lab.host.refresh_size(&device).unwrap(), 2 * SIZE);
    let mut stale = device;
    stale.tag = Some(tag("v", 2));
    assert!(matches!(lab.host.refresh_size(&stale), Err(LoopError::Device(_))));
}

#[test]
fn what_is_not_a_file_is_not_attached() {
    let Some(lab) = Lab::new(&[]) else { return };
    std::fs::create_dir(lab.path("directory")).unwrap();
    std::os::unix::fs::symlink(lab.file("volume", SIZE), lab.path("link")).unwrap();
    for name in ["directory", "link", "missing"] {
        let refused = lab.host.attach(&lab.path(name), &tag("v", 1), true).unwrap_err();
        assert!(
            matches!(refused, LoopError::Backing { .. } | LoopError::NotAFile { .. }),
            "{name}: {refused}"
        );
    }
}

#[test]
fn many_attach_at_once_and_each_gets_its_own() {
    let Some(lab) = Lab::new(&[]) else { return };
    let numbers: Vec<_> = std::thread::scope(|scope| {
        let lab = &lab;
        let one = |index: u64| {
            let file = lab.file(&format!("volume-{index}"), SIZE);
            let device = lab.attach(&file, &tag("v", index));
            assert_eq!(device.backing, identity(&file));
            if index.is_multiple_of(2) {
                lab.host.detach(device.backing, &tag("v", index)).unwrap();
                assert_eq!(lab.host.loops_of(device.backing).unwrap(), []);
                return None;
            }
            Some(device.number)
        };
        let threads: Vec<_> = (0..12).map(|index| scope.spawn(move || one(index))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    let distinct: std::collections::BTreeSet<_> = numbers.iter().collect();
    assert_eq!((numbers.len(), distinct.len()), (6, 6), "{numbers:?}");
}
