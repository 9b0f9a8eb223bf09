//! The units for systemd say what the processes do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::Command;

const UNITS: [&str; 2] = ["bowline.service", "bowline-target.service"];

fn unit(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd").join(name)
}

fn setting<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

#[test]
fn mounts_and_exports_survive_a_stop_and_are_seen_by_everybody() {
    for name in UNITS {
        survives_a_stop(name);
    }
    let text = std::fs::read_to_string(unit("bowline.service")).unwrap();
    assert!(setting(&text, "CapabilityBoundingSet").join(" ").contains("CAP_SYS_RESOURCE"));
}

fn survives_a_stop(name: &str) {
    let text = std::fs::read_to_string(unit(name)).unwrap();
    assert_eq!(setting(&text, "Type"), ["notify"]);
    assert_eq!(setting(&text, "KillMode"), ["process"]);
    assert_eq!(setting(&text, "MountFlags"), ["shared"]);
    // systemd.exec(5): each of these gives the service a mount namespace of its own, or takes the
    // set-group-id bit from it.
    for private in [
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "PrivateMounts",
        "ProtectKernelTunables",
        "ProtectKernelModules",
        "ProtectKernelLogs",
        "ProtectControlGroups",
        "ProtectProc",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "InaccessiblePaths",
        "BindPaths",
        "RootDirectory",
        "DynamicUser",
        "RestrictSUIDSGID",
    ] {
        assert_eq!(
            setting(&text, private),
            [""; 0],
            "{private} would hide mounts, or keep a volume from having a group"
        );
    }
    let capabilities = setting(&text, "CapabilityBoundingSet").join(" ");
    assert!(capabilities.contains("CAP_SYS_ADMIN"), "{name}");
}

#[test]
fn systemd_understands_the_units() {
    for name in UNITS {
        let place = tempfile::tempdir().unwrap();
        // The program need not be installed where the unit looks for it.
        let text = std::fs::read_to_string(unit(name)).unwrap();
        let text = text.replace("/usr/bin/bowline", env!("CARGO_BIN_EXE_bowline"));
        let copy = place.path().join(name);
        std::fs::write(&copy, text).unwrap();
        let Ok(output) = Command::new("systemd-analyze").arg("verify").arg(&copy).output() else {
            bowline_testkit::say("not run: systemd_understands_the_units (there is no systemd-analyze here)");
            return;
        };
        let told = String::from_utf8_lossy(&output.stderr);
        let about_us: Vec<&str> = told.lines().filter(|line| line.contains(name)).collect();
        assert!(output.status.success() && about_us.is_empty(), "{told}");
    }
}
