//! Processes and machines that end in the middle, and records that are not as they were left.

use crate::lab::{Lab, block, plain, refused, smallest, target};
use bowline_core::{AccessMode, Epoch};
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_host::Host;
use bowline_host::command::Programs;
use bowline_host::format::{FsType, FsUuid};
use bowline_node::Grant;
use bowline_node::staging::{Content, Phase, Record, decode, encode};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use tonic::Code;

#[test]
fn a_killed_mkfs_is_begun_again_and_an_unknown_one_is_not() {
    let Some(lab) = Lab::new(&[FsType::Ext4, FsType::Xfs]) else { return };
    for fs_type in [FsType::Ext4, FsType::Xfs] {
        let volume = fs_type.name();
        lab.volume(volume, 4 << 30);
        let context = lab.grant(volume, "a", 1, true);
        // Its time is over before mkfs has done anything worth mentioning, or in the middle.
        for limit in [0, 1, 4, 16] {
            let programs = Programs { time_limit: Duration::from_millis(limit), ..Programs::default() };
            let host = Host::new(lab.host.roots.clone(), programs);
            let node = lab.node_with("a", lab.devices(), &host, Duration::from_secs(60));
            let answer = node.stage(volume, &context, &plain(fs_type));
            if let Err(status) = &answer {
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                let record = decode(&fs::read(node.record(volume)).unwrap()).unwrap();
                assert!(matches!(record.phase, Phase::Making { .. } | Phase::Connecting), "{record:?}");
            }
        }
        let node = lab.node("a");
        node.up(volume, &context, fs_type);
        fs::write(node.at("pod/data"), "works").unwrap();
        node.down(volume);
        lab.assert_clean();
    }
}

/// A record of a staging that got as far as this.
fn record(lab: &Lab, volume: &str, epoch: u64, phase: Phase) -> Record {
    let grant = Grant {
        volume: volume.parse().unwrap(),
        node: "a".parse().unwrap(),
        epoch: Epoch::new(epoch),
        write: true,
        fabric: None,
    };
    Record {
        device: lab.devices().identity(&grant),
        fabric: None,
        volume: grant.volume,
        node: grant.node,
        target: target(),
        epoch: grant.epoch,
        write: true,
        path: lab.path(&format!("a/kubelet/stage-{volume}")),
        mode: AccessMode::SingleNodeWriter,
        content: Content::Filesystem { fs: FsType::Ext4, options: Vec::new() },
        phase,
        published: Vec::new(),
    }
}

#[test]
fn half_a_filesystem_is_erased_only_if_it_is_proven_ours() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let node = lab.node("a");
    let uuid = FsUuid::from_bytes([7; 16]);
    let half_made = |volume: &str| {
        let file = lab.volume(volume, smallest(FsType::Ext4));
        File::options().write(true).open(file).unwrap().write_all_at(&[7; 64], 1 << 20).unwrap();
    };
    for (volume, recorded, epoch, settled) in [
        ("same", Some(5), 5, true),
        ("next", Some(5), 6, true),
        ("later", Some(5), 7, false),
        ("unknown", None, 5, false),
    ] {
        half_made(volume);
        if let Some(recorded) = recorded {
            let record = record(&lab, volume, recorded, Phase::Making { uuid });
            fs::write(node.record(volume), encode(&record).unwrap()).unwrap();
        }
        let answer = node.stage(volume, &lab.grant(volume, "a", epoch, true), &plain(FsType::Ext4));
        assert_eq!(answer.is_ok(), settled, "{volume}: {answer:?}");
        if !settled {
            refused(answer, Code::FailedPrecondition, "left alone");
            let bytes = fs::read(lab.path("target").join(volume)).unwrap();
            assert_eq!(bytes[1 << 20..][..64], [7; 64], "{volume}");
        }
    }
    node.unstage("same").unwrap();
    node.unstage("next").unwrap();

    // Unstaged instead of staged: it is settled while this node may still reach it, or kept in mind.
    for granted in [true, false] {
        half_made("leaving");
        let making = record(&lab, "leaving", 1, Phase::Making { uuid });
        fs::write(node.record("leaving"), encode(&making).unwrap()).unwrap();
        if granted {
            lab.grant("leaving", "a", 1, true);
        } else {
            lab.revoke("leaving", "a");
        }
        node.unstage("leaving").unwrap();
        assert_eq!(node.record("leaving").exists(), !granted, "without its device nobody can tell");
        node.stage("leaving", &lab.grant("leaving", "a", 2, true), &plain(FsType::Ext4)).unwrap();
        node.unstage("leaving").unwrap();
        fs::remove_file(lab.path("target/leaving")).unwrap();
    }
    lab.assert_clean();
}

#[test]
fn half_a_filesystem_that_looked_whole_was_mounted_under_a_grant_that_only_reads() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let (node, uuid) = (lab.node("a"), FsUuid::from_bytes([7; 16]));
    let file = lab.volume("v", smallest(FsType::Ext4));
    let (id, path) = (uuid.to_string(), file.to_str().unwrap());
    lab.host.programs.run("mkfs.ext4", &["-q", "-b", "4096", "-U", &id, path]).unwrap();
    // An inode did not arrive; the superblock did.
    lab.host.programs.run("debugfs", &["-w", "-R", "clri <11>", path]).unwrap();
    let half_made = fs::read(&file).unwrap();
    let making = record(&lab, "v", 5, Phase::Making { uuid });
    fs::write(node.record("v"), encode(&making).unwrap()).unwrap();
    for epoch in [5, 6] {
        let reads = lab.grant("v", "a", epoch, false);
        refused(node.stage("v", &reads, &plain(FsType::Ext4)), Code::FailedPrecondition, "was interrupted");
        assert_eq!(lab.mounts_below(&node.pods).len(), 0);
        let kept = decode(&fs::read(node.record("v")).unwrap()).unwrap();
        assert_eq!((kept.phase, kept.epoch), (Phase::Making { uuid }, Epoch::new(epoch)));
        assert!(fs::read(&file).unwrap() == half_made);
    }
    let writes = lab.grant("v", "a", 7, true);
    node.stage("v", &writes, &plain(FsType::Ext4)).unwrap();
    let made = fs::read(&file).unwrap();
    assert_ne!(made[1024 + 0x68..][..16], [7; 16], "it is made anew");
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn a_path_that_was_claimed_before_a_crash_is_not_another_volumes_end() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let node = lab.node("a");
    for volume in ["v", "w"] {
        lab.volume(volume, smallest(FsType::Ext4));
        node.stage(volume, &lab.grant(volume, "a", 1, true), &plain(FsType::Ext4)).unwrap();
    }
    let claim = Record { published: vec![node.at("pod")], ..record(&lab, "w", 1, Phase::Staged) };
    fs::write(node.record("w"), encode(&claim).unwrap()).unwrap();
    node.publish("v", "pod", &lab.grant("v", "a", 1, true), &plain(FsType::Ext4), false).unwrap();
    refused(node.unpublish("w", "pod"), Code::Internal, "is not volume w");
    node.unstage("w").unwrap();
    assert_eq!(lab.mounts_below(&node.pods).len(), 2);
    node.down("v");
    lab.assert_clean();
}

#[test]
fn a_crash_between_any_two_steps_is_gone_on_from() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let context = lab.grant("v", "a", 1, true);
    let mut node = lab.node("a");
    for phase in [Phase::Connecting, Phase::Staged, Phase::Restaging] {
        for mounted in [true, false] {
            for unstage in [true, false] {
                node.stage("v", &context, &plain(FsType::Ext4)).unwrap();
                let bytes = encode(&record(&lab, "v", 1, phase.clone())).unwrap();
                fs::write(node.record("v"), bytes).unwrap();
                if !mounted {
                    lab.host.programs.run("umount", &[node.at("stage-v")]).unwrap();
                }
                node = node.restarted();
                if !unstage {
                    node.up("v", &context, FsType::Ext4);
                    assert_eq!(lab.mounts_below(&node.pods).len(), 2);
                    node.unpublish("v", "pod").unwrap();
                }
                node.unstage("v").unwrap();
                lab.assert_clean();
                assert!(!node.record("v").exists());
            }
        }
    }
}

#[test]
fn after_a_reboot_what_was_staged_is_staged_again() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    lab.volume("raw", 1 << 20);
    let (context, raw) = (lab.grant("v", "a", 1, true), lab.grant("raw", "a", 1, true));
    let mut node = lab.node("a");
    for again in ["stage", "publish", "unstage"] {
        node.up("v", &context, FsType::Ext4);
        fs::write(node.at("pod/data"), "kept").unwrap();
        node.stage("raw", &raw, &block(Mode::SingleNodeWriter)).unwrap();
        node.publish("raw", "dev", &raw, &block(Mode::SingleNodeWriter), false).unwrap();
        node = node.rebooted();
        lab.assert_clean();
        match again {
            "stage" => {
                node.stage("v", &context, &plain(FsType::Ext4)).unwrap();
                node.stage("raw", &raw, &block(Mode::SingleNodeWriter)).unwrap();
            }
            "publish" => {
                node.publish("v", "pod", &context, &plain(FsType::Ext4), false).unwrap();
                assert_eq!(fs::read_to_string(node.at("pod/data")).unwrap(), "kept");
                node.publish("raw", "dev", &raw, &block(Mode::SingleNodeWriter), false).unwrap();
            }
            _ => {}
        }
        node.unpublish("raw", "dev").unwrap();
        node.unstage("raw").unwrap();
        node.down("v");
        lab.assert_clean();
        assert!(!node.record("v").exists() && !node.record("raw").exists());
    }
}

#[test]
fn a_record_that_cannot_be_read_is_rebuilt_from_the_kernel() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (context, capability) = (lab.grant("v", "a", 1, true), plain(FsType::Ext4));
    let mut node = lab.node("a");
    node.stage("v", &context, &capability).unwrap();
    let good = fs::read(node.record("v")).unwrap();
    let mut other_volume = record(&lab, "w", 1, Phase::Staged);
    other_volume.path = lab.path("a/kubelet/stage-v");
    let damages: [Vec<u8>; 6] = [
        Vec::new(),
        good[..good.len() / 2].to_vec(),
        vec![0; good.len()],
        String::from_utf8(good.clone()).unwrap().replace("\"version\": 1", "\"version\": 0").into(),
        String::from_utf8(good.clone()).unwrap().replace("\"version\": 1", "\"version\": 2").into(),
        encode(&other_volume).unwrap(),
    ];
    for damage in &damages {
        fs::write(node.record("v"), damage).unwrap();
        node = node.restarted();
        node.stage("v", &context, &capability).unwrap();
        fs::write(node.record("v"), damage).unwrap();
        node.publish("v", "pod", &context, &capability, false).unwrap();
        fs::write(node.record("v"), damage).unwrap();
        node.unpublish("v", "pod").unwrap();
        fs::write(node.record("v"), damage).unwrap();
        node.unstage("v").unwrap();
        lab.assert_clean();
        assert!(!node.record("v").exists());
        node.stage("v", &context, &capability).unwrap();
    }
    node.unstage("v").unwrap();

    // Without a record, something that is not provably this volume's is left alone.
    lab.volume("w", smallest(FsType::Ext4));
    node.stage("w", &lab.grant("w", "a", 1, true), &capability).unwrap();
    fs::rename(node.record("w"), node.record("v")).unwrap();
    fs::remove_dir(node.at("stage-v")).unwrap();
    fs::create_dir(node.at("stage-v")).unwrap();
    let tmpfs = ["-t".to_owned(), "tmpfs".to_owned(), "none".to_owned(), node.text("stage-v")];
    lab.host.programs.run("mount", &tmpfs).unwrap();
    refused(node.unstage("v"), Code::Internal, "nothing was unmounted");
    assert_eq!(lab.mounts_below(&node.pods).len(), 2);
    lab.host.programs.run("umount", &[node.at("stage-v")]).unwrap();
    node.unstage("w").unwrap();
    lab.assert_clean();
}

#[test]
fn a_full_state_disk_fails_cleanly_and_keeps_the_old_record() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let state = lab.path("a/state");
    fs::create_dir_all(&state).unwrap();
    let tmpfs = ["-t", "tmpfs", "-o", "size=64k", "none", state.to_str().unwrap()];
    lab.host.programs.run("mount", &tmpfs).unwrap();
    for volume in ["v", "w"] {
        lab.volume(volume, smallest(FsType::Ext4));
    }
    let mut node = lab.node("a");
    let (v, w) = (lab.grant("v", "a", 1, true), lab.grant("w", "a", 1, true));
    node.stage("v", &v, &plain(FsType::Ext4)).unwrap();
    let before = fs::read(node.record("v")).unwrap();
    let fill = File::create(state.join("fill")).unwrap();
    let mut at = 0;
    while fill.write_all_at(&[1; 4096], at).is_ok() {
        at += 4096;
    }
    refused(node.stage("w", &w, &plain(FsType::Ext4)), Code::Unavailable, "w.json");
    refused(node.publish("v", "pod", &v, &plain(FsType::Ext4), false), Code::Unavailable, "v.json");
    assert_eq!(fs::read(node.record("v")).unwrap(), before);
    assert!(!node.at("pod").exists() && !node.record("w").exists());
    assert_eq!(lab.loops().len(), 1, "nothing was done before it could be recorded");
    drop(fill);
    fs::remove_file(state.join("fill")).unwrap();
    node = node.restarted();
    node.up("v", &v, FsType::Ext4);
    node.down("v");
    node.stage("w", &w, &plain(FsType::Ext4)).unwrap();
    node.unstage("w").unwrap();
    lab.host.programs.run("umount", &[&state]).unwrap();
    lab.assert_clean();
}
