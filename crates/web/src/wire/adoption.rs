use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What became of volumes that were there before Bowline, or would become of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Adoption {
    /// Whether it was only looked.
    pub dry_run: bool,
    /// The volumes of every PersistentVolume of this driver, by id.
    pub volumes: Vec<AdoptedVolume>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedVolume {
    /// Its id, as its PersistentVolume says it; the name of the VolumeAttachment where there is no PersistentVolume.
    pub volume: String,
    /// What became of it.
    pub state: AdoptionState,
    /// The nodes that have it and keep it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Why it is refused, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What became of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum AdoptionState {
    /// It was known already.
    Known,
    /// It would be adopted.
    Adoptable,
    /// It was adopted.
    Adopted,
    /// It was not: the sources disagree, or something does not answer.
    Refused,
}

impl AdoptionState {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Adoptable => "to adopt",
            Self::Adopted => "adopted",
            Self::Refused => "refused",
        }
    }
}
