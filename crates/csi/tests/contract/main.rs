//! The contract as a list of facts, one per line, so that an accidental change of `proto/` is seen even offline.
//! `published` compares the same facts with the files that others publish.

#![allow(clippy::unwrap_used, reason = "a failed check is a panic")]

mod facts;

use facts::facts;
use protox::prost_reflect::DescriptorPool;

#[test]
fn the_contract_is_what_it_was() {
    let pool = DescriptorPool::decode(bowline_csi::wire::DESCRIPTOR).unwrap();
    for file in ["csi.proto", "pluginregistration.proto"] {
        insta::assert_snapshot!(file, facts(&pool, file).join("\n"));
    }
}

#[test]
fn every_call_that_brings_secrets_is_known() {
    let pool = DescriptorPool::decode(bowline_csi::wire::DESCRIPTOR).unwrap();
    let facts = facts(&pool, "csi.proto");
    let secrets = facts.iter().filter(|fact| fact.contains("(csi.v1.csi_secret)=true")).count();
    // Those of the twenty calls in `requests`, and of the two of `SnapshotMetadata`, which is not served.
    assert_eq!(secrets, 22);
}
