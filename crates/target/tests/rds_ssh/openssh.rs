//! The simulator is heard by another client than ours: OpenSSH's.

use bowline_testkit::routeros::Firmware;
use std::process::Stdio;

use crate::lab::{Lab, add};

#[tokio::test]
async fn a_real_ssh_client_gets_output_errors_and_statuses() {
    let lab = Lab::new(Firmware { errors_on_stdout: false, ..Firmware::default() }).await;
    let known = lab.file("known_hosts");
    let address = lab.server.address();
    let host_key = lab.server.host_key().public;
    std::fs::write(&known, format!("[{}]:{} {host_key}\n", address.ip(), address.port())).unwrap();
    let key = lab.file("openssh-key");
    std::fs::write(&key, &lab.key.private).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let ssh = async |command: &str| {
        let output = tokio::process::Command::new("ssh")
            .args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"])
            .args(["-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=20", "-p", &address.port().to_string()])
            .arg("-o")
            .arg(format!("UserKnownHostsFile={}", known.display()))
            .arg("-i")
            .arg(&key)
            .arg(format!("bowline@{}", address.ip()))
            .arg(command)
            .stdin(Stdio::null())
            .output();
        let output = tokio::time::timeout(std::time::Duration::from_secs(60), output).await;
        output.expect("ssh ends within a minute")
    };
    let made = match ssh(&add("pvc-1")).await {
        Ok(output) => output,
        Err(error) => {
            let name = "openssh::a_real_ssh_client_gets_output_errors_and_statuses";
            bowline_testkit::say(&format!("not run: {name} (there is no ssh: {error})"));
            return;
        }
    };
    assert_eq!((made.status.code(), made.stdout.as_slice()), (Some(0), b"".as_slice()), "{made:?}");
    let again = ssh(&add("pvc-1")).await.unwrap();
    assert_eq!(
        (again.status.code(), String::from_utf8_lossy(&again.stderr).trim_end()),
        (Some(1), "failure: already have such entry")
    );
    let printed = ssh(r#"/disk print detail where slot="pvc-1""#).await.unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(printed.starts_with("Flags: ") && printed.contains("slot=\"pvc-1\""), "{printed}");

    // It would ask a person; here it refuses.
    std::fs::write(&known, "").unwrap();
    assert_eq!(ssh("/disk print detail").await.unwrap().status.code(), Some(255));
}
