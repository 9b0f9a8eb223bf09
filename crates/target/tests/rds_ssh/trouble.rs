//! Devices that go away and come back.

use bowline_target::rds::Console;
use bowline_target::rds::ssh::{BreakerState, LinkError, SshSettings};
use bowline_testkit::routeros::{Breaks, Firmware, Latency, Sessions};
use std::time::Duration;
use tokio::time::Instant;

use crate::lab::{Lab, add, not_sent, said, unanswered};

fn slow() -> Firmware {
    Firmware { latency: Latency::RECORDED, ..Firmware::default() }
}

#[tokio::test]
async fn a_device_that_was_rebooted_since_is_connected_to_again() {
    let lab = Lab::new(Firmware::default()).await;
    let console = lab.over_tcp(lab.settings());
    said(&console, &add("pvc-1")).await;
    lab.server.switch_off(Sessions::Closed);
    not_sent(&console, &add("pvc-2")).await;
    lab.server.switch_on();
    assert_eq!(said(&console, &add("pvc-2")).await.status, Some(0));
    assert_eq!(lab.device.slots(), ["pvc-1", "pvc-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_reboot_in_the_middle_of_a_command_leaves_it_unanswered() {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(lab.settings());
    said(&console, "/disk print detail").await;
    let under_way = tokio::spawn({
        let console = console.clone();
        async move { unanswered(&console, &add("pvc-1")).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    lab.server.switch_off(Sessions::Closed);
    let error = under_way.await.unwrap();
    assert!(error.starts_with("the connection to the device at rds.example:22 was lost"), "{error}");
    lab.server.switch_on();
    said(&console, "/disk print detail").await;
    assert_eq!(lab.device.slots(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_fell_silent_is_noticed_before_the_time_of_the_command_is_over() {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(SshSettings { command: Duration::from_secs(600), ..lab.settings() });
    said(&console, "/disk print detail").await;
    let begun = Instant::now();
    lab.server.switch_off(Sessions::Silent);
    // It opens no session, so nothing of the command was sent; then it cannot be reached.
    let error = not_sent(&console, &add("pvc-1")).await;
    assert!(error.contains("cannot be reached"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    lab.server.switch_on();
    said(&console, &add("pvc-1")).await;

    let under_way = tokio::spawn({
        let console = console.clone();
        async move { unanswered(&console, &add("pvc-2")).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    lab.server.switch_off(Sessions::Silent);
    let error = under_way.await.unwrap();
    assert!(error.contains("nothing was heard of it any more"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_command_is_broken_off_before_or_after_it_is_carried_out() {
    let lab = Lab::new(Firmware::default()).await;
    let settings = SshSettings { first_pause: Duration::from_millis(1), ..lab.settings() };
    let console = lab.over_tcp(settings);
    for (number, breaks) in
        [Breaks::Before, Breaks::After, Breaks::Before, Breaks::After].into_iter().enumerate()
    {
        said(&console, "/disk print detail").await;
        lab.server.break_at(0, breaks);
        let slot = format!("pvc-{number}");
        unanswered(&console, &add(&slot)).await;
        assert_eq!(lab.device.slots().contains(&slot), breaks == Breaks::After, "{slot}");
    }
    assert_eq!(lab.server.connections(), 4, "the last one was not needed any more");
}

#[tokio::test(start_paused = true)]
async fn after_five_failures_nothing_is_tried_for_thirty_seconds() {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(lab.settings());
    lab.server.switch_off(Sessions::Closed);
    for number in 1..=5 {
        assert_eq!(console.state().breaker, BreakerState::Closed);
        let error = not_sent(&console, &add("pvc-1")).await;
        assert!(error.contains("cannot be reached"), "{error}");
        assert_eq!((lab.dials(), console.state().failures), (number, u32::try_from(number).unwrap()));
    }
    let BreakerState::Open { for_another } = console.state().breaker else { panic!("{:?}", console.state()) };
    assert_eq!(for_another, Duration::from_secs(30));
    let told = not_sent(&console, &add("pvc-1")).await;
    assert!(
        told.contains(
            "after 5 failures in a row nothing is sent to rds.example:22 but one command every 30 s"
        ),
        "{told}"
    );
    assert!(told.contains("cannot be reached"), "{told}");
    lab.server.switch_on();
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert_eq!(
        not_sent(&console, &add("pvc-1")).await,
        told,
        "what has not changed is not told in other words"
    );
    assert_eq!(lab.dials(), 5, "nobody has dialled meanwhile");

    tokio::time::sleep(Duration::from_secs(1)).await;
    let tried = tokio::spawn({
        let console = console.clone();
        async move { said(&console, &add("pvc-1")).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(not_sent(&console, &add("pvc-2")).await, told);
    assert_eq!(console.state().breaker, BreakerState::Trying);
    tried.await.unwrap();
    let state = console.state();
    assert_eq!((state.breaker, state.failures, state.error), (BreakerState::Closed, 0, None));
    said(&console, &add("pvc-2")).await;
    assert_eq!(lab.device.slots(), ["pvc-1", "pvc-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_fails_opens_the_breaker_again() {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(lab.settings());
    lab.server.switch_off(Sessions::Closed);
    for _ in 0..5 {
        not_sent(&console, &add("pvc-1")).await;
    }
    let told = not_sent(&console, &add("pvc-1")).await;
    for dials in [6, 7] {
        tokio::time::sleep(Duration::from_secs(30)).await;
        not_sent(&console, &add("pvc-1")).await;
        assert_eq!(not_sent(&console, &add("pvc-1")).await, told);
        assert_eq!(lab.dials(), dials, "one try, then a rest again");
    }
}

#[tokio::test(start_paused = true)]
async fn many_commands_lost_with_one_connection_are_one_failure() {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(SshSettings { sessions: 8, ..lab.settings() });
    said(&console, "/disk print detail").await;
    let under_way: Vec<_> = (0..8)
        .map(|number| {
            let console = console.clone();
            tokio::spawn(async move { unanswered(&console, &add(&format!("pvc-{number}"))).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    lab.server.switch_off(Sessions::Closed);
    for command in under_way {
        command.await.unwrap();
    }
    let state = console.state();
    assert_eq!((state.failures, state.breaker), (1, BreakerState::Closed));
    assert!(matches!(state.error, Some(LinkError::Lost { .. })), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_the_same_connection_share_its_failure() {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(SshSettings { sessions: 8, ..lab.settings() });
    lab.server.switch_off(Sessions::Closed);
    let all: Vec<_> = (0..8)
        .map(|_| {
            let console = console.clone();
            tokio::spawn(async move { not_sent(&console, &add("pvc-1")).await })
        })
        .collect();
    for one in all {
        one.await.unwrap();
    }
    assert_eq!((lab.dials(), console.state().failures), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn pauses_between_tries_grow_and_have_an_end() {
    let lab = Lab::new(slow()).await;
    let console = lab.wired(SshSettings { failures: 1000, ..lab.settings() });
    lab.server.switch_off(Sessions::Closed);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let begun = Instant::now();
        not_sent(&console, &add("pvc-1")).await;
        pauses.push(begun.elapsed().as_millis());
    }
    assert_eq!(pauses[0], 0);
    assert!((50..=101).contains(&pauses[1]), "{pauses:?}");
    assert!((400..=801).contains(&pauses[4]), "{pauses:?}");
    assert!(pauses[8..].iter().all(|pause| (2500..=5001).contains(pause)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_device_that_never_answers_a_connection_is_given_up_in_time() {
    let lab = Lab::new(Firmware {
        latency: Latency { handshake: Duration::from_secs(3600), ..Latency::NONE },
        ..Firmware::default()
    })
    .await;
    let console = lab.wired(lab.settings());
    let begun = Instant::now();
    let error = not_sent(&console, &add("pvc-1")).await;
    assert!(error.contains("there was no answer in time"), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 10);
    // The link can be asked for its state, and used, whatever became of others who waited.
    assert!(!console.state().is_connected);
    assert!(console.with_patience(Duration::from_millis(50)).run("/disk print detail").await.is_err());
}
