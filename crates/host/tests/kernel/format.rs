//! mkfs, interrupted and not.

use crate::lab::{Lab, making, smallest};
use bowline_host::check::{CheckError, Checked};
use bowline_host::command::CommandError;
use bowline_host::device::DeviceError;
use bowline_host::format::{FsType, FsUuid, MakeError, Making, Probed, Settled, State, Unclear, probe};
use bowline_host::mount::{Change, Unmount};
use bowline_host::options::MountOptions;
use bowline_host::usage::usage;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What interrupted makings left behind.
#[derive(Debug, Default)]
struct Left {
    blank: usize,
    unclear: usize,
    whole: usize,
    broken: usize,
}

impl Left {
    /// Looks at what an interrupted making left, settles it, and makes it anew if it was not made.
    fn settle(&mut self, lab: &Lab, device: &Path, making: &Making) {
        let state = probe(device).unwrap();
        let settled = lab.host.settle(device, making).unwrap();
        match (state, settled) {
            (State::Blank, Settled::Blank) => self.blank += 1,
            (State::Unclear(_), Settled::Blank) => self.unclear += 1,
            (State::Formatted { .. }, Settled::Made) => self.whole += 1,
            (State::Formatted { .. }, Settled::Blank) => self.broken += 1,
            (state, settled) => panic!("{state:?} was settled as {settled:?}"),
        }
        if settled == Settled::Blank {
            assert_eq!(probe(device).unwrap(), State::Blank);
            lab.host.make(device, making).unwrap();
        }
        assert_eq!(lab.host.settle(device, making).unwrap(), Settled::Made);
    }
}

/// Kills mkfs a little later each time, until it is too late; then takes up what is left.
fn killed_at_every_length(fs: FsType) {
    let Some(lab) = Lab::new(&[fs]) else { return };
    let mut left = Left::default();
    for step in 0..400 {
        let device = lab.device("volume", smallest(fs));
        let making = making(fs);
        let mut hasty = lab.host.clone();
        hasty.programs.time_limit = Duration::from_micros(500 * (1 + step + step * step / 8));
        match hasty.make(&device.path, &making) {
            Ok(()) => break,
            Err(MakeError::Command(CommandError::TimedOut { .. })) => {}
            Err(other) => panic!("{other}"),
        }
        left.settle(&lab, &device.path, &making);
        lab.host.detach(device.backing, &device.tag.unwrap()).unwrap();
        std::fs::remove_file(lab.path("volume")).unwrap();
    }
    assert_eq!(left.broken, 0, "killed, but with its device intact, it does not claim more than it did");
    assert!(left.blank + left.unclear > 0, "{fs}: {left:?}: not one of them was killed in time");
}

/// Lets the disk under the device fill up a little later each time: some of mkfs's writes are lost, at random.
fn out_of_room_at_every_length(fs: FsType) {
    let Some(lab) = Lab::new(&[fs]) else { return };
    let size = |kib: u64| CString::new(format!("size={kib}k")).unwrap();
    let mut left = Left::default();
    for step in 0..100 {
        // Another disk each time: a file that is removed and detached may be open in the kernel a moment longer, and a
        // tmpfs does not shrink below what it holds.
        let name = format!("disk-{step}");
        let disk = lab.path(&name);
        std::fs::create_dir(&disk).unwrap();
        let small = size(16 + 128 * step * step);
        rustix::mount::mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), Some(small.as_c_str())).unwrap();
        let device = lab.device(&format!("{name}/volume"), smallest(fs));
        let making = making(fs);
        let made = lab.host.make(&device.path, &making);
        rustix::mount::mount_remount(&disk, MountFlags::empty(), size(400 << 10).as_c_str()).unwrap();
        if made.is_ok() {
            assert_eq!(
                lab.host.settle(&device.path, &making).unwrap(),
                Settled::Made,
                "step {step}: it said so"
            );
            break;
        }
        left.settle(&lab, &device.path, &making);
        lab.host.detach(device.backing, &device.tag.unwrap()).unwrap();
        rustix::mount::unmount(&disk, UnmountFlags::DETACH).unwrap();
    }
    assert!(left.blank + left.unclear + left.broken > 0, "{fs}: {left:?}: not one of them was out of room");
}

#[test]
fn an_ext4_whose_disk_was_full_is_not_taken_for_made() {
    out_of_room_at_every_length(FsType::Ext4);
}

#[test]
fn an_xfs_whose_disk_was_full_is_not_taken_for_made() {
    out_of_room_at_every_length(FsType::Xfs);
}

#[test]
fn a_btrfs_whose_disk_was_full_is_not_taken_for_made() {
    out_of_room_at_every_length(FsType::Btrfs);
}

#[test]
fn an_ext4_whose_mkfs_was_killed_is_not_taken_for_formatted() {
    killed_at_every_length(FsType::Ext4);
}

#[test]
fn an_xfs_whose_mkfs_was_killed_is_not_taken_for_formatted() {
    killed_at_every_length(FsType::Xfs);
}

#[test]
fn a_btrfs_whose_mkfs_was_killed_is_not_taken_for_formatted() {
    killed_at_every_length(FsType::Btrfs);
}

#[test]
fn a_uuid_that_another_program_saw_before_it_was_erased_is_free_again() {
    let Some(lab) = Lab::new(&[FsType::Btrfs]) else { return };
    let device = lab.device("volume", smallest(FsType::Btrfs));
    let making = making(FsType::Btrfs);
    // The machine's list of devices, for this test's programs only: the device with the UUID, seen a moment ago.
    std::fs::create_dir_all("/run/blkid").unwrap();
    rustix::mount::mount("tmpfs", "/run/blkid", "tmpfs", MountFlags::empty(), None).unwrap();
    let number = std::fs::metadata(&device.path).unwrap().rdev();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let (path, uuid) = (device.path.display(), making.uuid);
    let seen = format!(
        "<device DEVNO=\"{number:#06x}\" TIME=\"{now:.6}\" UUID=\"{uuid}\" TYPE=\"btrfs\">{path}</device>\n"
    );
    std::fs::write("/run/blkid/blkid.tab", seen).unwrap();
    lab.host.make(&device.path, &making).unwrap();
}

fn overwrite(device: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(device).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_filesystem_whose_superblock_outlived_the_rest_is_made_anew_only_with_the_record() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.device("volume", smallest(FsType::Ext4));
    let ours = making(FsType::Ext4);
    lab.host.make(&device.path, &ours).unwrap();
    // The group descriptors and all that follows were lost with the power.
    overwrite(&device.path, 4096, &vec![0; 1 << 20]);
    assert!(matches!(probe(&device.path).unwrap(), State::Formatted { .. }), "it still says so");

    for other in [Making { uuid: FsUuid::from_bytes([7; 16]), ..ours }, Making { fs: FsType::Xfs, ..ours }] {
        let refused = lab.host.settle(&device.path, &other).unwrap_err();
        assert!(matches!(refused, MakeError::NotOurs { .. }), "{refused}");
    }
    assert_eq!(lab.host.settle(&device.path, &ours).unwrap(), Settled::Blank);
    lab.host.make(&device.path, &ours).unwrap();
    assert_eq!(lab.host.settle(&device.path, &ours).unwrap(), Settled::Made, "and a whole one is kept");
}

#[test]
fn what_other_programs_made_is_left_alone() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let rows: &[(&str, &[&str], &str)] = &[
        ("mkswap", &[], "a swap area"),
        ("mke2fs", &["-q", "-t", "ext2"], "an ext2 filesystem"),
        ("mke2fs", &["-q", "-t", "ext3"], "an ext3 filesystem"),
        ("mke2fs", &["-q", "-O", "journal_dev"], "a journal of an ext4 filesystem"),
    ];
    for (index, (program, args, name)) in rows.iter().enumerate() {
        let device = lab.device(&format!("volume-{index}"), 32 << 20);
        let args: Vec<_> = args.iter().copied().chain([device.path.to_str().unwrap()]).collect();
        lab.host.programs.run(program, &args).unwrap();
        let expected = State::Unclear(Unclear::SomethingElse(name));
        assert_eq!(probe(&device.path).unwrap(), expected);
        let made = lab.host.make(&device.path, &making(FsType::Ext4)).unwrap_err();
        assert!(matches!(&made, MakeError::NotBlank { state, .. } if *state == expected), "{made}");
        let settled = lab.host.settle(&device.path, &making(FsType::Ext4)).unwrap_err();
        assert!(matches!(&settled, MakeError::NotOurs { state, .. } if *state == expected), "{settled}");
    }
}

#[test]
fn a_filesystem_with_a_signature_in_its_users_data_is_still_itself() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.formatted("volume", FsType::Ext4);
    overwrite(&device.path, (32 << 20) - 512, b"EFI PART");
    assert!(matches!(probe(&device.path).unwrap(), State::Formatted { fs: FsType::Ext4, .. }));
    // Before the superblock is nobody's data.
    overwrite(&device.path, 0, b"LUKS\xBA\xBE");
    let expected = Unclear::Several { fs: FsType::Ext4, other: "a LUKS encrypted volume" };
    assert_eq!(probe(&device.path).unwrap(), State::Unclear(expected));
}

#[test]
fn what_lies_behind_a_filesystem_that_does_not_fill_its_device_is_seen() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.device("volume", 32 << 20);
    let path = device.path.to_str().unwrap();
    for size in ["3M", "16M"] {
        lab.host.programs.run("mkfs.ext4", &["-q", "-F", path, size]).unwrap();
        assert!(matches!(probe(&device.path).unwrap(), State::Formatted { fs: FsType::Ext4, .. }), "{size}");
        overwrite(&device.path, (32 << 20) - 512, b"EFI PART");
        let expected = Unclear::Several { fs: FsType::Ext4, other: "a GPT partition table" };
        assert_eq!(probe(&device.path).unwrap(), State::Unclear(expected), "{size}");
        overwrite(&device.path, (32 << 20) - 512, &[0; 8]);
    }
}

#[test]
fn a_device_that_somebody_has_to_himself_is_not_formatted() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.device("volume", 32 << 20);
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
    let held = rustix::fs::open(&device.path, flags, rustix::fs::Mode::empty()).unwrap();
    let refused = lab.host.make(&device.path, &making(FsType::Ext4)).unwrap_err();
    assert!(matches!(refused, MakeError::Device(DeviceError::Busy { .. })), "{refused}");
    drop(held);
    lab.host.make(&device.path, &making(FsType::Ext4)).unwrap();
}

#[test]
fn ext4_is_repaired_where_that_is_safe_and_refused_where_it_is_not() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.formatted("volume", FsType::Ext4);
    assert_eq!(lab.host.check(&device.path, FsType::Ext4).unwrap(), Checked::Clean);
    // debugfs marks the filesystem as having errors, without any: e2fsck -p looks, and takes the mark away.
    let path = device.path.to_str().unwrap();
    lab.host.programs.run("debugfs", &["-w", "-R", "set_super_value state 2", path]).unwrap();
    assert_eq!(lab.host.check(&device.path, FsType::Ext4).unwrap(), Checked::Repaired);
    // The root directory's inode is gone: a person has to decide.
    lab.host.programs.run("debugfs", &["-w", "-R", "clri <2>", path]).unwrap();
    lab.host.programs.run("debugfs", &["-w", "-R", "set_super_value state 2", path]).unwrap();
    let refused = lab.host.check(&device.path, FsType::Ext4).unwrap_err();
    assert!(matches!(refused, CheckError::Uncorrected { .. }), "{refused}");
}

#[test]
fn ext4_grows_before_it_is_mounted_and_keeps_its_files() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.formatted("volume", FsType::Ext4);
    let (stage, options) = (lab.place("stage"), MountOptions::new(FsType::Ext4));
    lab.host.mount(&device.path, &stage, &options).unwrap();
    std::fs::write(stage.path().join("data"), "kept").unwrap();
    let before = usage(&stage).unwrap().bytes.total;
    lab.host.unmount(&stage, Unmount::WhenUnused).unwrap();
    assert_eq!(lab.host.grow_before_mount(FsType::Ext4, &device.path).unwrap(), Change::Nothing);

    lab.file("volume", smallest(FsType::Ext4) + (64 << 20));
    lab.host.refresh_size(&device).unwrap();
    assert_eq!(lab.host.grow_before_mount(FsType::Ext4, &device.path).unwrap(), Change::Made);
    assert_eq!(lab.host.grow_before_mount(FsType::Ext4, &device.path).unwrap(), Change::Nothing);
    lab.host.mount(&device.path, &stage, &options).unwrap();
    assert!(usage(&stage).unwrap().bytes.total > before + (50 << 20));
    assert_eq!(std::fs::read_to_string(stage.path().join("data")).unwrap(), "kept");
}

#[test]
fn a_device_that_nobody_used_is_looked_at_where_filesystems_begin() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let device = lab.device("volume", 64 << 20);
    let file = File::options().write(true).open(&device.path).unwrap();
    let mut states = vec![];
    for at in [None, Some(300 << 10), Some(60 << 10)] {
        if let Some(at) = at {
            file.write_all_at(&[7; 4096], at).unwrap();
            file.sync_all().unwrap();
        }
        let unused = Probed::unused(&device.path).unwrap().state().clone();
        states.push((unused, probe(&device.path).unwrap()));
    }
    let unclear = |at| State::Unclear(Unclear::Unknown { at });
    let expected = [
        (State::Blank, State::Blank),
        (State::Blank, unclear(300 << 10)),
        (unclear(60 << 10), unclear(60 << 10)),
    ];
    assert_eq!(states, expected);
}

#[test]
fn a_filesystem_on_a_device_that_nobody_used_is_whole() {
    for fs in FsType::ALL {
        let Some(lab) = Lab::new(&[fs]) else { return };
        let device = lab.device("volume", smallest(fs));
        let making = making(fs);
        lab.host.make_on(Probed::unused(&device.path).unwrap(), &making).unwrap();
        assert_eq!(lab.host.settle(&device.path, &making).unwrap(), Settled::Made, "{fs}");
        assert_ne!(lab.host.check(&device.path, fs).unwrap(), Checked::Repaired, "{fs}");
    }
}
