//! Many commands at once.

use bowline_target::rds::ssh::{SshConsole, SshSettings};
use bowline_target::rds::{Console, ConsoleError, Said};
use bowline_testkit::routeros::{Firmware, Latency};
use futures::future::join_all;
use std::time::Duration;
use tokio::task::JoinHandle;

use crate::lab::{Lab, add, said, unanswered};

fn slow() -> Firmware {
    Firmware { latency: Latency::RECORDED, ..Firmware::default() }
}

#[tokio::test]
async fn every_command_gets_its_own_answer() {
    let lab = Lab::new(Firmware { latency: Latency::RECORDED.scaled(0.01), ..Firmware::default() }).await;
    let slots: Vec<String> = (0..40).map(|number| format!("pvc-{number}")).collect();
    for slot in &slots {
        lab.device.enter(&add(slot));
    }
    let console = lab.over_tcp(lab.settings());
    let answers = slots.iter().map(|slot| {
        let console = console.clone();
        async move { said(&console, &format!("/disk print detail where slot={slot}")).await.text }
    });
    for (slot, text) in slots.iter().zip(join_all(answers).await) {
        assert!(text.contains(&format!("slot=\"{slot}\"")), "{slot}: {text}");
        assert_eq!(text.matches(" slot=").count(), 1, "{slot}: {text}");
    }
    assert_eq!((lab.server.connections(), lab.server.most_sessions()), (1, 4));
    assert_eq!(console.state().commands, 0);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_opens_no_further_session_has_heard_nothing() {
    let lab = Lab::new(Firmware { sessions: 2, ..slow() }).await;
    let console = lab.wired(lab.settings());
    said(&console, "/disk print detail").await;
    let slots: Vec<String> = (0..4).map(|number| format!("pvc-{number}")).collect();
    let answers = join_all(slots.iter().map(|slot| {
        let (console, command) = (console.clone(), add(slot));
        async move { console.run(&command).await }
    }));
    let answers = answers.await;
    let mut made: Vec<String> = Vec::new();
    for (slot, answer) in slots.iter().zip(answers) {
        match answer {
            Ok(said) => {
                assert_eq!(said.status, Some(0));
                made.push(slot.clone());
            }
            Err(ConsoleError::NotSent { error }) => assert!(error.contains("too many sessions"), "{error}"),
            Err(other) => panic!("{slot}: {other:?}"),
        }
    }
    assert_eq!(made.len(), 2);
    assert_eq!(lab.device.slots(), made, "who was told that nothing was sent, has nothing");
    assert_eq!(console.state().failures, 0, "a device that is busy is not ill");
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_takes_no_answer_away_from_others() {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(lab.settings());
    said(&console, &add("pvc-0")).await;
    // The command was sent, and its answer is on its way.
    let gone = tokio::time::timeout(Duration::from_millis(100), console.run(&add("pvc-1"))).await;
    assert!(gone.is_err());
    let others = (0..8).map(|_| {
        let console = console.clone();
        async move { said(&console, "/disk print detail where slot=pvc-0").await.text }
    });
    for text in join_all(others).await {
        assert!(text.contains("slot=\"pvc-0\"") && !text.contains("pvc-1"), "{text}");
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(lab.device.slots(), ["pvc-0", "pvc-1"]);
    assert_eq!((console.state().commands, lab.server.sessions(), lab.dials()), (0, 0, 1));
}

/// A device with one session, which a command takes that makes `pvc-1`.
async fn taken() -> (Lab, SshConsole, JoinHandle<Said>) {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(SshSettings { sessions: 1, ..lab.settings() });
    said(&console, "/disk print detail").await;
    let first = tokio::spawn({
        let console = console.clone();
        async move { said(&console, &add("pvc-1")).await }
    });
    tokio::task::yield_now().await;
    (lab, console, first)
}

#[tokio::test(start_paused = true)]
async fn a_command_that_nobody_waits_for_is_not_sent_any_more() {
    let (lab, console, first) = taken().await;
    let gone = tokio::time::timeout(Duration::from_millis(10), console.run(&add("pvc-2"))).await;
    assert!(gone.is_err(), "the only session is taken");
    first.await.unwrap();
    said(&console, "/disk print detail").await;
    assert_eq!(lab.device.slots(), ["pvc-1"]);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_session_is_not_sending() {
    let (lab, console, first) = taken().await;
    let impatient = console.with_patience(Duration::from_millis(200));
    let error = crate::lab::not_sent(&impatient, &add("pvc-2")).await;
    assert!(error.contains("none of the 1 sessions"), "{error}");
    first.await.unwrap();
    assert_eq!(lab.device.slots(), ["pvc-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_command_is_unanswered_and_may_be_carried_out_later() {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(SshSettings { command: Duration::from_secs(2), ..lab.settings() });
    said(&console, "/disk print detail").await;
    let large = "/disk add type=file file-path=/storage-pool/large.img file-size=100G slot=large";
    let error = unanswered(&console, large).await;
    assert_eq!(error, "the device at rds.example:22 did not answer within 2 s");
    assert_eq!(lab.device.slots(), [""; 0]);
    // Others are not held up, and the link is not given up.
    said(&console, &add("pvc-1")).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lab.device.slots(), ["pvc-1", "large"]);
    assert_eq!((lab.dials(), lab.server.sessions(), console.state().failures), (1, 0, 0));
    let patient = console.with_patience(Duration::from_secs(60));
    said(
        &patient,
        "/disk add type=file copy-from=[find slot=large] file-path=/storage-pool/copy.img slot=copy",
    )
    .await;
}

#[tokio::test]
async fn more_output_than_a_command_may_print_is_no_answer() {
    let lab = Lab::new(Firmware::default()).await;
    for number in 0..100 {
        lab.device.enter(&add(&format!("pvc-{number}")));
    }
    let console = lab.over_tcp(SshSettings { output: 10_000, ..lab.settings() });
    let error = unanswered(&console, "/disk print detail").await;
    assert_eq!(error, "the command printed more than 10000 bytes");
    assert!(said(&console, "/disk print detail where slot=pvc-7").await.text.len() < 10_000);
    let text = said(&lab.over_tcp(lab.settings()), "/disk print detail").await.text;
    assert_eq!(text.matches("slot=\"pvc-").count(), 100);
}
