//! The API lab itself: it starts, outlives its API server, and leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_testkit::lab::{Access, ApiLab};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams, PostParams, WatchParams};
use std::fs;
use std::path::Path;

/// Processes that were told of a directory.
fn processes_of(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().unwrap();
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(directory)).collect()
}

fn namespace(name: &str) -> Namespace {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    namespace
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_forgets_nothing_and_leaves_nothing() {
    let begun = std::time::Instant::now();
    let Some(lab) = ApiLab::start() else { return };
    bowline_testkit::say(&format!("API lab: ready after {:.1} s", begun.elapsed().as_secs_f64()));
    let directory = lab.directory().to_owned();
    assert!(processes_of(&directory).len() >= 3, "etcd, the API server and the janitor");

    let client = lab.client().await;
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.create(&PostParams::default(), &namespace("kept")).await.unwrap();

    // Whoever is nobody may nothing; the admin may everything.
    let nobody = lab.client_as(Access::User("nobody", &["system:authenticated"])).await;
    let refused = Api::<Namespace>::all(nobody).get("kept").await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");

    lab.stop_api_server();
    assert!(namespaces.get("kept").await.is_err(), "there is no API server to answer");
    lab.start_api_server();
    assert_eq!(namespaces.get("kept").await.unwrap().metadata.name.as_deref(), Some("kept"));

    drop(lab);
    assert_eq!(processes_of(&directory), [""; 0]);
    assert!(!directory.exists(), "{} is left", directory.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_compacted_is_gone() {
    let Some(lab) = ApiLab::start() else { return };
    let client = lab.client().await;
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    for name in ["a", "b", "c"] {
        lab.apply_text(&format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default}}"
        ));
    }
    let page = maps.list(&ListParams::default().limit(1)).await.unwrap();
    let version = page.metadata.resource_version.unwrap();
    let rest = ListParams::default().limit(1).continue_token(&page.metadata.continue_.unwrap());
    maps.list(&rest).await.unwrap();

    lab.apply_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d, namespace: default}");
    lab.compact();
    let gone = maps.list(&rest).await.unwrap_err();
    assert!(matches!(&gone, kube::Error::Api(status) if status.code == 410), "{gone}");

    lab.forget_history();
    let events = maps.watch(&WatchParams::default(), &version).await;
    let first = match events {
        Ok(events) => Box::pin(events).as_mut().next_event().await,
        Err(error) => error.to_string(),
    };
    assert!(first.contains("410") || first.contains("too old"), "{first}");
}

/// The first thing that a watch says.
trait NextEvent {
    async fn next_event(&mut self) -> String;
}

impl<S, K> NextEvent for std::pin::Pin<&mut S>
where
    S: futures::Stream<Item = kube::Result<kube::api::WatchEvent<K>>>,
    K: std::fmt::Debug,
{
    async fn next_event(&mut self) -> String {
        format!("{:?}", futures::StreamExt::next(self).await)
    }
}
