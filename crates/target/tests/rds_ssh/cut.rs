//! Sweeps: the connection is cut after every byte of a command, and of everything before it.

use bowline_target::rds::ssh::{SshConsole, SshSettings};
use bowline_target::rds::{Console, ConsoleError};
use bowline_testkit::routeros::{Firmware, Way};
use std::collections::BTreeMap;

use crate::lab::{Lab, add, said};

/// What became of commands, by how they ended and whether they were carried out.
type Tally = BTreeMap<(&'static str, bool), usize>;

/// Runs a command while the connection breaks, and looks whether what is told of it is true.
async fn run(lab: &Lab, console: &SshConsole, slot: &str, tally: &mut Tally) {
    let command = add(slot);
    let told = match console.run(&command).await {
        Ok(said) => {
            assert_eq!(said.status, Some(0), "{slot}: {said:?}");
            "answered"
        }
        Err(ConsoleError::NotSent { .. }) => "not sent",
        Err(ConsoleError::Unanswered { .. }) => "unanswered",
    };
    lab.server.mend();
    // Whatever of it is still on its way is there before the next answer.
    said(console, "/disk print detail where slot=nobody").await;
    let times = lab.device.carried_out().iter().filter(|carried_out| **carried_out == command).count();
    match told {
        "answered" => assert_eq!(times, 1, "{slot}"),
        "not sent" => assert_eq!(times, 0, "{slot}"),
        _ => assert!(times <= 1, "{slot}"),
    }
    *tally.entry((told, times == 1)).or_default() += 1;
}

fn calm(lab: &Lab) -> SshSettings {
    SshSettings { failures: u32::MAX, ..lab.settings() }
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_connection_is_cut_after_any_byte_is_never_misreported() {
    let lab = Lab::new(Firmware::default()).await;
    let console = lab.wired(calm(&lab));
    said(&console, "/disk print detail where slot=nobody").await;
    let mut tally = Tally::new();
    for way in [Way::In, Way::Out] {
        let before = lab.server.carried(way);
        said(&console, &add(&format!("pvc-{way:?}-whole"))).await;
        let bytes = lab.server.carried(way) - before;
        assert!((100..2000).contains(&bytes), "{bytes} bytes");
        for byte in 0..=bytes {
            lab.server.cut_after(way, byte);
            run(&lab, &console, &format!("pvc-{way:?}-{byte}"), &mut tally).await;
        }
    }
    // All that can happen did, and nothing else.
    let happened: Vec<_> = tally.keys().copied().collect();
    assert_eq!(
        happened,
        [("answered", true), ("unanswered", false), ("unanswered", true)],
        "what was not sent is sent again over the next connection: {tally:?}"
    );
    bowline_testkit::say(&format!(
        "rds: a connection was cut after each of {} bytes of a command; none was misreported",
        tally.values().sum::<usize>()
    ));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_cut_while_it_comes_about_sends_nothing() {
    let lab = Lab::new(Firmware::default()).await;
    let mut tally = Tally::new();
    for way in [Way::In, Way::Out] {
        let before = lab.server.carried(way);
        said(&lab.wired(calm(&lab)), "/disk print detail where slot=nobody").await;
        let bytes = lab.server.carried(way) - before;
        // Every 29th byte: a handshake is some thousand bytes, and each costs a handshake.
        for byte in (0..bytes).step_by(29) {
            lab.server.cut_after(way, byte);
            run(&lab, &lab.wired(calm(&lab)), &format!("pvc-{way:?}-{byte}"), &mut tally).await;
        }
    }
    assert!(tally[&("not sent", false)] > 50, "{tally:?}");
}
