//! What the ports promise, and what becomes of it when somebody dies.

use crate::lab::{Lab, MIB, connect, grant, order, revocation, until, volume};
use bowline_core::{Epoch, NeverAgain};
use bowline_target::agent::{
    AgentClient, AgentServer, ClientSettings, ConnectError, ExportsShown, Listener, Place, refuse,
};
use bowline_target::{Item, Progress, Provision, ProvisionError, Source, Target, TargetError, contract};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_of_targets_is_kept_across_the_wire() {
    let lab = Lab::new().await;
    let volumes: Vec<_> = (1..=5).map(|number| volume(&format!("v{number}"))).collect();
    contract::run(&lab.client, &volumes).await;
    assert_eq!(lab.target.violations(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_is_told_as_it_is() {
    let lab = Lab::new().await;
    let client = &lab.client;
    assert_eq!((client.id().as_str(), client.kind(), client.version()), ("sim", "sim", "1.2.3"));
    assert_eq!(client.installation(), "first-sim");
    assert_eq!(client.sizes(), lab.target.sizes());
    let topology = client.topology();
    assert_eq!(topology.get("zone").map(String::as_str), Some("z1"));
    assert_eq!(topology.get("topology.bowline.storage/host").map(String::as_str), Some("here"));
    let size = client.create(&order("v", None), &Progress::default()).await.unwrap();
    assert_eq!(size, MIB);
    assert_eq!(client.items(None, 9).await.unwrap(), [Item::Volume(volume("v"))]);
    lab.target.set_fault(&volume("v"), "a bad block");
    assert_eq!(client.volume(&volume("v")).await.unwrap().unwrap().fault.as_deref(), Some("a bad block"));
    assert_eq!(client.volume(&volume("x")).await, Ok(None));
    assert_eq!(client.capacity().await, lab.target.capacity().await);
    lab.target.set_room(MIB);
    let full = client.create(&order("w", None), &Progress::default()).await;
    assert_eq!(full, Err(ProvisionError::NoRoom { needed: MIB, available: 0 }));
    let context = client.context(&grant("v", "n", 7));
    assert_eq!(context["bowline.storage/target"], "sim");
    assert_eq!(context["bowline.storage/epoch"], "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_shown_is_told_at_every_look_and_is_no_reason_to_connect_anew() {
    let mut lab = Lab::new().await;
    let of_it = async |client: &AgentClient| {
        let look = client.look().await;
        assert!(look.as_it_was);
        look.exports
    };
    assert_eq!(of_it(&lab.client).await, Ok(ExportsShown::NotTold), "as one of an earlier version");
    let socket = lab.socket.with_extension("telling");
    let listener = Listener::Unix(tokio::net::UnixListener::bind(&socket).unwrap());
    let (shown, says) = tokio::sync::watch::channel(ExportsShown::All);
    let server = AgentServer::new(Arc::clone(&lab.target) as _, "sim", "1.2.3");
    tokio::spawn(server.showing(move || says.borrow().clone()).run(listener, std::future::pending()));
    let client = connect(Place::Unix(socket)).await.unwrap();
    let missing = |why: &str| ExportsShown::Missing { volumes: 7, why: why.to_owned() };
    for told in [ExportsShown::All, missing("v (no such address)"), ExportsShown::All] {
        shown.send_replace(told.clone());
        assert_eq!(of_it(&client).await, Ok(told));
    }
    // A sentence of any length and kind is told as far as it can be.
    shown.send_replace(missing(&"no\n".repeat(100_000)));
    let told = of_it(&client).await;
    assert!(matches!(&told, Ok(ExportsShown::Missing { volumes: 7, why }) if why.len() <= 2048), "{told:?}");
    lab.kill();
    assert_eq!(of_it(&lab.client).await, Ok(ExportsShown::NotTold), "it does not answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_serve_says_why_and_proves_nothing() {
    let mut lab = Lab::new().await;
    lab.client.allow(&grant("v", "a", 1)).await.unwrap();
    lab.kill();
    std::fs::remove_file(&lab.socket).unwrap();
    let listener = tokio::net::UnixListener::bind(&lab.socket).unwrap();
    let (_why, said) = tokio::sync::watch::channel("the disk is not mounted".to_owned());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let refusing = tokio::spawn(refuse(said, Listener::Unix(listener), async move {
        let _ = stopped.await;
    }));
    let error = connect(Place::Unix(lab.socket.clone())).await.unwrap_err();
    assert!(
        matches!(&error, ConnectError::NotServing { error, .. } if error == "the disk is not mounted"),
        "{error}"
    );
    // One that was connected before hears the same, and takes it for no answer.
    let refused = TargetError::Unreachable { error: "the disk is not mounted".to_owned() };
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut told = lab.client.revoke(&revocation("v", "a", 1)).await;
    while told != Err(refused.clone()) {
        assert!(Instant::now() < deadline, "waited for the reason: {told:?}");
        told = lab.client.revoke(&revocation("v", "a", 1)).await;
    }
    assert!(lab.client.look().await.as_it_was, "it says nothing of itself");
    stop.send(()).unwrap();
    refusing.await.unwrap().unwrap();
    lab.restart();
    while let Err(error) = lab.client.revoke(&revocation("v", "a", 1)).await {
        assert!(Instant::now() < deadline, "waited for the agent to serve: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_command_of_an_earlier_time_opens_nothing() {
    let lab = Lab::new().await;
    let (old, new) = (connect(Place::Unix(lab.socket.clone())).await.unwrap(), &lab.client);
    new.allow(&grant("v", "b", 5)).await.unwrap();
    let late = old.allow(&grant("v", "a", 4)).await;
    assert_eq!(late, Err(TargetError::NeverAgain(NeverAgain { highest: Epoch::new(5) })));
    assert_eq!(old.revoke(&revocation("v", "b", 4)).await, Ok(NeverAgain { highest: Epoch::new(5) }));
    assert_eq!(lab.target.open(&volume("v")).len(), 1, "what was granted later stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_in_the_middle_of_a_call_proves_nothing_and_is_found_again() {
    let mut lab = Lab::new().await;
    lab.client.allow(&grant("v", "a", 1)).await.unwrap();
    lab.target.set_silent(true);
    let client = lab.client.clone();
    let asked = Instant::now();
    let revoking = tokio::spawn(async move { client.revoke(&revocation("v", "a", 1)).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    lab.kill();
    let lost = revoking.await.unwrap();
    assert!(matches!(lost, Err(TargetError::Unreachable { .. })), "{lost:?}");
    assert!(asked.elapsed() < Duration::from_secs(15), "noticed only after {:?}", asked.elapsed());
    assert_eq!(lab.target.open(&volume("v")).len(), 1, "it is still in");
    let gone = lab.client.allow(&grant("v", "a", 1)).await;
    assert!(matches!(gone, Err(TargetError::Unreachable { .. })), "{gone:?}");
    lab.target.set_silent(false);
    lab.restart();
    let deadline = Instant::now() + Duration::from_secs(60);
    while lab.client.revoke(&revocation("v", "a", 1)).await.is_err() {
        assert!(Instant::now() < deadline, "it was not found again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lab.target.open(&volume("v")).len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_shows_how_far_it_is_and_outlives_its_caller() {
    let lab = Lab::new().await;
    lab.client.create(&order("source", None), &Progress::default()).await.unwrap();
    lab.target.set_copying(false);
    let (client, progress) = (lab.client.clone(), Arc::new(Progress::default()));
    let shown = Arc::clone(&progress);
    let from = Some(Source::Volume(volume("source")));
    let copy = order("copy", from);
    let asked = copy.clone();
    let copying = tokio::spawn(async move { client.create(&asked, &shown).await });
    until("the size of the copy to be told", || progress.read() == (0, MIB)).await;
    copying.abort();
    assert!(copying.await.unwrap_err().is_cancelled());
    lab.target.set_copying(true);
    let is_there = || lab.target.items().contains(&Item::Volume(volume("copy")));
    until("the copy to be completed", is_there).await;
    assert_eq!(lab.client.create(&copy, &progress).await, Ok(MIB), "asked again, it is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_takes_longer_than_any_time_out_is_not_cut() {
    let lab = Lab::new().await;
    lab.client.create(&order("source", None), &Progress::default()).await.unwrap();
    let impatient = ClientSettings {
        silence: Duration::from_secs(5),
        short: Duration::from_secs(5),
        ..ClientSettings::default()
    };
    let client = AgentClient::connect(Place::Unix(lab.socket.clone()), None, impatient).await.unwrap();
    lab.target.set_copying(false);
    let copy = order("copy", Some(Source::Volume(volume("source"))));
    let copying = tokio::spawn(async move { client.create(&copy, &Progress::default()).await });
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(!copying.is_finished());
    lab.target.set_copying(true);
    assert_eq!(copying.await.unwrap(), Ok(MIB));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_answers_must_be_the_target_that_is_meant() {
    let mut lab = Lab::new().await;
    let other = bowline_core::TargetId::new("other").unwrap();
    let place = Place::Unix(lab.socket.clone());
    let refused = AgentClient::connect(place, Some(&other), ClientSettings::default()).await;
    assert!(matches!(refused, Err(ConnectError::Another { .. })), "{refused:?}");
    lab.client.allow(&grant("v", "a", 1)).await.unwrap();
    // Another target comes to answer at the same place. It never let anybody in, and would prove it.
    lab.kill();
    let stranger = Arc::new(bowline_testkit::SimTarget::new("stranger"));
    lab.agent = Some(crate::lab::Agent::on_socket(&stranger, &lab.socket));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match lab.client.revoke(&revocation("v", "a", 1)).await {
            Err(TargetError::Unreachable { error }) if error.contains("this is target stranger") => break,
            Err(TargetError::Unreachable { .. }) => {}
            taken => panic!("the word of a stranger was taken: {taken:?}"),
        }
        assert!(Instant::now() < deadline, "it was not found");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_came_back_over_an_empty_directory_proves_nothing() {
    let mut lab = Lab::new().await;
    lab.client.allow(&grant("v", "a", 1)).await.unwrap();
    // The disk is not mounted: the same name, the same place, and nobody was ever let in there.
    lab.kill();
    let empty = Arc::new(bowline_testkit::SimTarget::new("sim").of_installation("empty"));
    lab.agent = Some(crate::lab::Agent::on_socket(&empty, &lab.socket));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match lab.client.revoke(&revocation("v", "a", 1)).await {
            Err(TargetError::Unreachable { error }) if error.contains("other storage than before") => break,
            Err(TargetError::Unreachable { .. }) => {}
            taken => panic!("the word of an empty directory was taken: {taken:?}"),
        }
        assert!(Instant::now() < deadline, "it was not found");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let listed = lab.client.exports(None, 10).await;
    assert!(matches!(listed, Err(TargetError::Unreachable { .. })), "nobody is listed there: {listed:?}");
    // Whoever connects now hears what it is, and can compare it with what it remembers.
    let anew = connect(Place::Unix(lab.socket.clone())).await.unwrap();
    assert_eq!(anew.installation(), "empty");
    let told = anew.must_be(lab.client.installation()).unwrap_err();
    assert!(matches!(told, ConnectError::OtherStorage { .. }), "{told:?}");
    let words = "serves target sim from other storage than before (it says empty, and it was first-sim)";
    assert!(told.to_string().contains(words), "{told}");
    assert_eq!(anew.must_be("empty"), Ok(()));
    assert_eq!(anew.must_be(""), Ok(()), "nothing is remembered of a target that is new");
    // It is mounted: the same connection goes on by itself.
    drop(lab.agent.take());
    lab.restart();
    let deadline = Instant::now() + Duration::from_secs(60);
    while lab.client.revoke(&revocation("v", "a", 1)).await.is_err() {
        assert!(Instant::now() < deadline, "it was not found again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lab.target.open(&volume("v")).len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_say_what_storage_it_has_is_not_the_one_that_did() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("agent.sock");
    let nameless = Arc::new(bowline_testkit::SimTarget::new("sim").of_installation(""));
    let _agent = crate::lab::Agent::on_socket(&nameless, &socket);
    let client = connect(Place::Unix(socket)).await.unwrap();
    client.allow(&grant("v", "a", 1)).await.unwrap();
    let told = client.must_be("first-sim").unwrap_err().to_string();
    assert!(told.contains("it says nothing, and it was first-sim"), "{told}");
}
