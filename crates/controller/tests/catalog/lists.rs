//! Lists, page by page, while others come and go.

use bowline_csi::wire;
use bowline_csi::wire::controller_server::Controller;
use std::collections::BTreeSet;
use tonic::{Code, Request};

use crate::csi::Plugin;
use crate::world::World;

async fn volumes(plugin: &Plugin, max_entries: i32, token: &str) -> wire::ListVolumesResponse {
    let request = wire::ListVolumesRequest { max_entries, starting_token: token.to_owned() };
    plugin.controller.list_volumes(Request::new(request)).await.unwrap().into_inner()
}

#[tokio::test(start_paused = true)]
async fn a_list_shows_each_once_though_others_come_and_go() {
    let plugin = Plugin::on(&World::new()).await;
    let mut stays = BTreeSet::new();
    let mut goes = Vec::new();
    for number in 0..20 {
        let id = plugin.create(&format!("v-{number}")).await.volume_id;
        if number % 2 == 0 { stays.extend([id]) } else { goes.push(id) }
    }
    let (mut seen, mut token) = (Vec::new(), String::new());
    for round in 0.. {
        let page = volumes(&plugin, 3, &token).await;
        assert!(page.entries.len() <= 3 && page.next_token.len() <= 128);
        seen.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
        plugin.create(&format!("new-{round}")).await;
        if let Some(volume_id) = goes.pop() {
            let delete = wire::DeleteVolumeRequest { volume_id, ..Default::default() };
            plugin.controller.delete_volume(Request::new(delete)).await.unwrap();
        }
    }
    let once: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "one was shown twice");
    assert!(stays.is_subset(&once), "one was left out");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_none_of_ours_begins_the_list_again() {
    let plugin = Plugin::on(&World::new()).await;
    plugin.create("v").await;
    let snapshots = "s.0123456789abcdef01234567";
    for token in ["invalid-token", "1", snapshots] {
        let request = wire::ListVolumesRequest { max_entries: 0, starting_token: token.to_owned() };
        let status = plugin.controller.list_volumes(Request::new(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{token}: {}", status.message());
    }
    let request = wire::ListSnapshotsRequest { starting_token: "v.x".to_owned(), ..Default::default() };
    let status = plugin.controller.list_snapshots(Request::new(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    let health = wire::ControllerListVolumeHealthRequest::default();
    let listed = plugin.controller.controller_list_volume_health(Request::new(health)).await.unwrap();
    assert_eq!(listed.into_inner().entries.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_listed_by_volume_by_id_and_page_by_page() {
    let plugin = Plugin::on(&World::new()).await;
    let (one, two) = (plugin.create("one").await.volume_id, plugin.create("two").await.volume_id);
    let mut ids = BTreeSet::new();
    for number in 0..5 {
        let request = wire::CreateSnapshotRequest {
            name: format!("s-{number}"),
            source_volume_id: if number == 0 { two.clone() } else { one.clone() },
            ..Default::default()
        };
        let taken = plugin.controller.create_snapshot(Request::new(request)).await.unwrap();
        ids.insert(taken.into_inner().snapshot.unwrap().snapshot_id);
    }
    let list = async |request: wire::ListSnapshotsRequest| {
        let listed = plugin.controller.list_snapshots(Request::new(request)).await.unwrap().into_inner();
        let ids: Vec<String> =
            listed.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect();
        (ids, listed.next_token)
    };
    let of = |volume: &str| wire::ListSnapshotsRequest {
        source_volume_id: volume.to_owned(),
        ..Default::default()
    };
    assert_eq!(list(of(&one)).await.0.len(), 4);
    assert_eq!(list(of(&two)).await.0.len(), 1);
    assert_eq!(list(of("none-exist-id")).await.0.len(), 0);
    let first = ids.first().unwrap().clone();
    let by_id = |snapshot_id: &str| wire::ListSnapshotsRequest {
        snapshot_id: snapshot_id.to_owned(),
        ..Default::default()
    };
    assert_eq!(list(by_id(&first)).await.0, [first]);
    assert_eq!(list(by_id("none-exist-id")).await.0, [""; 0]);
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let request =
            wire::ListSnapshotsRequest { max_entries: 2, starting_token: token, ..Default::default() };
        let (page, next) = list(request).await;
        assert!(page.len() <= 2);
        seen.extend(page);
        token = next;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ids.into_iter().collect::<Vec<_>>());
}
