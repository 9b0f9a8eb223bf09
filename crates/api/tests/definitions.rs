//! Keeps `deploy/crds` what the types say, and the schemas what `core` says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a failed test")]

use bowline_core::{FenceReason, Phase, Share, TicketKind};
use serde_json::Value;
use std::path::Path;

const BLESS: &str = "BLESS=1 cargo test -p bowline-api --test definitions";

fn schema(kind: &str) -> Value {
    let found = bowline_api::definitions().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let schema = found.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
    serde_json::to_value(schema).unwrap()
}

#[test]
fn the_definitions_in_deploy_are_current() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let mut expected = Vec::new();
    for crd in bowline_api::definitions() {
        let name = format!("{}_{}.yaml", bowline_api::GROUP, crd.spec.names.plural);
        let yaml = serde_yaml_ng::to_string(&crd).unwrap();
        let path = directory.join(&name);
        let text = format!("# Written from crates/api: {BLESS}\n{yaml}");
        if std::env::var_os("BLESS").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "deploy/crds/{name} is not what crates/api says; write it again with `{BLESS}`"
        );
        expected.push(name);
    }
    let mut found: Vec<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "deploy/crds has a definition of each kind and nothing else");
}

#[test]
fn every_kind_is_found_as_bowline_and_by_its_short_name() {
    let short = bowline_api::definitions().into_iter().map(|crd| {
        assert_eq!(crd.spec.group, bowline_api::GROUP);
        assert_eq!(crd.spec.versions[0].name, bowline_api::VERSION);
        assert_eq!(crd.spec.scope, "Cluster");
        assert_eq!(crd.spec.names.categories.unwrap(), ["bowline"]);
        assert!(crd.spec.versions[0].subresources.as_ref().unwrap().status.is_some());
        crd.spec.names.short_names.unwrap().join(",")
    });
    assert_eq!(short.collect::<Vec<_>>(), ["bv", "bva", "bvs", "bvg", "bvt"]);
}

#[test]
fn the_words_in_the_schemas_are_those_of_core() {
    let schema = schema("VolumeAttachment");
    let types = serde_json::to_value(TicketKind::ALL).unwrap();
    let spec = &schema["properties"]["spec"]["properties"]["attachmentTickets"]["additionalProperties"]["properties"];
    let status = &schema["properties"]["status"]["properties"];
    let ticket = &status["tickets"]["additionalProperties"]["properties"];
    assert_eq!(spec["type"]["enum"], types);
    assert_eq!(ticket["type"]["enum"], types);

    let hold = &status["holds"]["additionalProperties"]["properties"];
    let share = [Share::Nobody, Share::Readers, Share::OneWriter, Share::Writers].map(|share| match share {
        Share::Nobody | Share::Readers | Share::OneWriter | Share::Writers => share,
    });
    assert_eq!(hold["mode"]["properties"]["share"]["enum"], serde_json::to_value(share).unwrap());
    use FenceReason::*;
    let why = [NodeSilent, NodeOutOfService, NodeGone, Forced, Unrecorded].map(|why| match why {
        NodeSilent | NodeOutOfService | NodeGone | Forced | Unrecorded => why,
    });
    assert_eq!(hold["why"]["enum"], serde_json::to_value(why).unwrap());
    let phases = [Phase::Granting, Phase::Held, Phase::Releasing, Phase::Fencing { why: Forced }];
    let phases: Vec<Value> = phases
        .map(|phase| match phase {
            Phase::Granting | Phase::Held | Phase::Releasing | Phase::Fencing { .. } => {
                serde_json::to_value(phase).unwrap()["phase"].clone()
            }
        })
        .to_vec();
    assert_eq!(hold["phase"]["enum"], Value::from(phases));
}
