use bowline_controller as catalog;
use bowline_core::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A node that may ask for volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its id.
    pub id: String,
    /// How many volumes it can have at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Set while somebody declares it out of service: what it has is taken from it.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_service: Option<Timestamp>,
    /// When it became known.
    #[schema(value_type = String, format = DateTime)]
    pub added_at: Timestamp,
}

impl From<catalog::Node> for Node {
    fn from(node: catalog::Node) -> Self {
        let catalog::Node { id, limit, out_of_service, added_at } = node;
        Self { id: id.into(), limit, out_of_service, added_at }
    }
}

/// Every node that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// The nodes.
    pub nodes: Vec<Node>,
}

/// A node is to be known, or its limit changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AddNode {
    /// How many volumes it can have at once; not there: any number.
    pub limit: Option<u32>,
}
