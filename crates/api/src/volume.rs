use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Progress, SizeError, bytes_of, schema};

/// A volume: bytes that somebody asked for.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "bowline.storage",
    version = "v1beta1",
    kind = "Volume",
    plural = "volumes",
    shortname = "bv",
    category = "bowline",
    status = "VolumeStatus",
    derive = "PartialEq",
    doc = "A volume: bytes that somebody asked for. The status is its record: it is written by Bowline alone.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.capacity"),
    printcolumn(name = "Target", type_ = "string", json_path = ".status.target"),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0").message("size cannot be reduced: a volume never shrinks").field_path(".size"),
    validation = Rule::new("self.name == oldSelf.name").message("name cannot be changed"),
    validation = Rule::new("has(self.fs) == has(oldSelf.fs) && (!has(self.fs) || self.fs == oldSelf.fs)").message("fs cannot be changed"),
    validation = Rule::new("has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)").message("source cannot be changed"),
    validation = Rule::new("has(self.target) == has(oldSelf.target) && (!has(self.target) || self.target == oldSelf.target)").message("target cannot be changed"),
    validation = Rule::new("has(self.uses) == has(oldSelf.uses) && (!has(self.uses) || self.uses == oldSelf.uses)").message("uses cannot be changed")
)]
pub struct VolumeSpec {
    /// What it was asked for as; unique among volumes. The object is named so, or by a digest of it.
    #[schemars(length(min = 1, max = 1024))]
    pub name: String,
    /// How large it shall be at least: 10Gi, 10G or a number of bytes.
    #[schemars(schema_with = "schema::size")]
    pub size: IntOrString,
    /// The filesystem it gets when it is first mounted: ext4 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::fs")]
    pub fs: Option<String>,
    /// Every way in which it shall be usable: by one node as a filesystem, if none is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 14))]
    pub uses: Vec<VolumeUse>,
    /// What it holds from the start: nothing, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "source")]
    pub source: Option<VolumeSource>,
    /// What can be changed later.
    #[serde(default, skip_serializing_if = "VolumeSettings::is_default")]
    #[schemars(schema_with = "settings")]
    pub settings: VolumeSettings,
    /// The target that shall hold it: one that fits, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "target")]
    pub target: Option<String>,
}

/// A way in which a volume may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeUse {
    /// By whom at once.
    #[schemars(schema_with = "schema::access")]
    pub access: String,
    /// As what.
    #[schemars(schema_with = "schema::content")]
    pub content: String,
}

/// What a volume holds from the start: one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.snapshot) != has(self.volume)").message("source is a snapshot or a volume, one of them"))]
pub struct VolumeSource {
    /// The id of a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "id")]
    pub snapshot: Option<String>,
    /// The id of another volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "id")]
    pub volume: Option<String>,
}

/// What can be changed about a volume while it exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSettings {
    /// It may move between two nodes while both have it, for so many seconds at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count_or_null")]
    pub migratable: Option<u64>,
    /// It cannot be deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletion_protection: bool,
    /// What is deleted in its filesystem is given back to the storage at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard: bool,
}

impl VolumeSettings {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl VolumeSpec {
    /// How many bytes it shall have.
    ///
    /// # Errors
    ///
    /// When `spec.size` is no size.
    pub fn bytes(&self) -> Result<u64, SizeError> {
        bytes_of(&self.size)
    }
}

fn id(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "minLength": 1, "maxLength": 128, "pattern": schema::ID_PATTERN })
}

fn target(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": schema::ID_PATTERN })
}

fn source(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut source = generator.subschema_for::<VolumeSource>();
    source.insert("nullable".to_owned(), true.into());
    source
}

fn settings(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    generator.subschema_for::<VolumeSettings>()
}

/// The record of a volume, and what it means for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// The version of the record; without it there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub record_version: Option<u64>,
    /// Its id; the VolumeAttachment of this name says who has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// What it was asked for as.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where its bytes are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// How many bytes it has; while it is being made, how many it will have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub size: Option<u64>,
    /// The filesystem it gets when it is first mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::fs")]
    pub fs: Option<String>,
    /// Every way in which it was asked to be usable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<VolumeUse>,
    /// What it held from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "source")]
    pub source: Option<VolumeSource>,
    /// What can be changed later.
    #[serde(default, skip_serializing_if = "VolumeSettings::is_default")]
    #[schemars(schema_with = "settings")]
    pub settings: VolumeSettings,
    /// When it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub created_at: Option<String>,
    /// How far it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Progress>,

    /// For people: Creating, Ready, Growing or Deleting.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// For people: its size, as people write sizes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub capacity: String,
    /// For people: whether it can be used (`Ready`), and if not, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
