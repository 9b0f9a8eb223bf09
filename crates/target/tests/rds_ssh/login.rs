//! Who the device is, and who logs in.

use bowline_target::rds::ssh::{
    BreakerState, Credentials, HOST_KEY_SETTING, LinkError, SshConsole, SshSettings,
};
use bowline_testkit::routeros::{Firmware, KeyPair};
use std::time::Duration;
use tokio::net::TcpListener;

use crate::lab::{Lab, PASSWORD, add, not_sent, said};

#[tokio::test]
async fn a_command_is_answered_after_a_login_with_a_password_or_a_key() {
    let lab = Lab::new(Firmware::default()).await;
    for (number, credentials) in
        [Credentials::Password(lab.file("password")), Credentials::Key(lab.file("key"))]
            .into_iter()
            .enumerate()
    {
        let console = lab.over_tcp(SshSettings { credentials, ..lab.settings() });
        let made = said(&console, &add(&format!("pvc-{number}"))).await;
        assert_eq!((made.text.as_str(), made.status), ("", Some(0)));
        let again = said(&console, &add(&format!("pvc-{number}"))).await;
        assert_eq!((again.text.as_str(), again.status), ("failure: already have such entry\r\n", Some(1)));
        assert!(console.state().is_connected);
    }
    assert_eq!(lab.server.connections(), 2, "one connection each");
}

#[tokio::test]
async fn both_streams_are_heard_and_a_status_may_be_missing() {
    for (firmware, status) in [
        (Firmware { errors_on_stdout: false, ..Firmware::default() }, Some(1)),
        (Firmware { exit_status: false, ..Firmware::default() }, None),
    ] {
        let lab = Lab::new(firmware).await;
        let told = said(&lab.over_tcp(lab.settings()), "/disk remove [find slot=nobody]").await;
        assert_eq!((told.text.as_str(), told.status), ("failure: no such item\r\n", status));
    }
}

#[tokio::test]
async fn a_host_key_that_is_not_pinned_is_refused_and_the_message_says_what_to_pin() {
    let lab = Lab::new(Firmware::default()).await;
    let shown = lab.server.host_key().fingerprint();
    let console = lab.over_tcp(SshSettings { host_key: None, ..lab.settings() });
    let error = not_sent(&console, &add("pvc-1")).await;
    assert!(error.contains(&shown) && error.contains(HOST_KEY_SETTING), "{error}");
    assert!(matches!(console.state().error, Some(LinkError::HostKeyUnknown { .. })));

    for pin in [shown, lab.server.host_key().public] {
        let host_key = Some(pin.parse().unwrap());
        said(&lab.over_tcp(SshSettings { host_key, ..lab.settings() }), "/disk print detail").await;
    }
}

#[tokio::test]
async fn a_device_with_another_host_key_hears_neither_password_nor_command() {
    let lab = Lab::new(Firmware::default()).await;
    let pinned = lab.server.host_key().fingerprint();
    let console = lab.over_tcp(lab.settings());
    said(&console, "/disk print detail").await;
    let other = KeyPair::new();
    lab.server.set_host_key(other.clone());
    // The connection that there is stays good; the next one is not made.
    said(&console, "/disk print detail").await;
    let careful = SshSettings { host_key: Some(pinned.parse().unwrap()), ..lab.settings() };
    let error = not_sent(&lab.over_tcp(careful), &add("pvc-1")).await;
    for part in [pinned.as_str(), &other.fingerprint(), HOST_KEY_SETTING] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(lab.device.slots(), [""; 0]);
}

#[tokio::test]
async fn a_device_with_an_rsa_key_is_known_by_it() {
    let lab = Lab::new(Firmware::default()).await;
    lab.server.set_host_key(KeyPair::rsa());
    said(&lab.over_tcp(lab.settings()), "/disk print detail").await;
    let other = SshSettings { host_key: Some(KeyPair::new().public.parse().unwrap()), ..lab.settings() };
    let error = not_sent(&lab.over_tcp(other), "/disk print detail").await;
    assert!(error.contains(&lab.server.host_key().fingerprint()), "{error}");
}

#[tokio::test]
async fn a_refused_login_is_told_without_the_secret() {
    let lab = Lab::new(Firmware::default()).await;
    let wrong = "hunter2-hunter2";
    std::fs::write(lab.file("wrong"), wrong).unwrap();
    std::fs::write(lab.file("stranger"), KeyPair::new().private).unwrap();
    for settings in [
        SshSettings { credentials: Credentials::Password(lab.file("wrong")), ..lab.settings() },
        SshSettings { credentials: Credentials::Key(lab.file("stranger")), ..lab.settings() },
        SshSettings { user: "nobody".into(), ..lab.settings() },
    ] {
        let console = lab.over_tcp(settings.clone());
        let error = not_sent(&console, &add("pvc-1")).await;
        assert!(error.contains("refused the login of"), "{error}");
        let state = console.state();
        assert!(matches!(state.error, Some(LinkError::Login { .. })), "{state:?}");
        for secret in [wrong, PASSWORD, "PRIVATE KEY"] {
            assert!(!format!("{error} {settings:?} {state:?}").contains(secret));
        }
    }
    let missing = SshSettings { credentials: Credentials::Key(lab.file("missing")), ..lab.settings() };
    let error = not_sent(&lab.over_tcp(missing), &add("pvc-1")).await;
    assert!(error.contains("missing cannot be read"), "{error}");
    assert_eq!(lab.device.slots(), [""; 0]);
}

#[tokio::test]
async fn a_new_password_counts_without_a_restart() {
    let lab = Lab::new(Firmware::default()).await;
    std::fs::write(lab.file("late"), "not yet").unwrap();
    let settings = SshSettings {
        credentials: Credentials::Password(lab.file("late")),
        first_pause: Duration::from_millis(1),
        ..lab.settings()
    };
    let console = lab.over_tcp(settings);
    not_sent(&console, "/disk print detail").await;
    std::fs::write(lab.file("late"), PASSWORD).unwrap();
    said(&console, "/disk print detail").await;
    assert_eq!(console.state().error, None);
}

#[tokio::test]
async fn nobody_at_the_address_is_unreachable_and_not_an_answer() {
    let lab = Lab::new(Firmware::default()).await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let console = SshConsole::new(&free.to_string(), lab.settings());
    let error = not_sent(&console, &add("pvc-1")).await;
    assert!(error.starts_with(&format!("the device at {free} cannot be reached: ")), "{error}");
    let state = console.state();
    assert_eq!((state.is_connected, state.failures, state.breaker), (false, 1, BreakerState::Closed));

    let nowhere = SshConsole::new("no.such.host.invalid:22", lab.settings());
    not_sent(&nowhere, &add("pvc-1")).await;
}

#[tokio::test]
async fn somebody_who_does_not_speak_ssh_is_unreachable() {
    let lab = Lab::new(Firmware::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let web = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        stream.writable().await.unwrap();
        stream.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = not_sent(&SshConsole::new(&address.to_string(), lab.settings()), &add("pvc-1")).await;
    assert!(error.contains("cannot be reached"), "{error}");
    web.await.unwrap();
}
