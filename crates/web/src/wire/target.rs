use bowline_controller as catalog;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Storage that holds volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Its name.
    pub id: String,
    /// Of which kind it is: `file`, `nvmet`, `rds`; not there while it is not connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whether it is connected.
    pub connected: bool,
    /// Whether nothing new is made there.
    pub draining: bool,
}

impl From<catalog::KnownTarget> for Target {
    fn from(target: catalog::KnownTarget) -> Self {
        let catalog::KnownTarget { id, kind, is_draining } = target;
        Self { id: id.into(), connected: kind.is_some(), kind, draining: is_draining }
    }
}

/// Every target that is connected or awaited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Targets {
    /// The targets.
    pub targets: Vec<Target>,
}
