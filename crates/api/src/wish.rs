use bowline_core::{
    AccessMode, Content, Frontend, IdError, NodeId, Owner, ParseError, Ticket, TicketId, TicketKind,
    Timestamp,
};
use serde::Serialize;

use crate::AttachmentTicket;
use crate::keys::parameter;

/// Why a wish in `spec.attachmentTickets` is no ticket. Names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WishError {
    /// It stands under another's name.
    #[error("spec.attachmentTickets[{key}].id is {id:?}; it must equal its key")]
    OtherKey {
        /// Where it stands.
        key: String,
        /// What it says.
        id: String,
    },
    /// An id that cannot be one.
    #[error("spec.attachmentTickets[{key}].{field}: {error}")]
    Id {
        /// Where it stands.
        key: String,
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        error: IdError,
    },
    /// An id that is kept for the VolumeAttachments of Kubernetes.
    #[error(
        "spec.attachmentTickets[{key}].id begins with csi-, as the tickets of Kubernetes' own VolumeAttachments do; choose another"
    )]
    Reserved {
        /// Where it stands.
        key: String,
    },
    /// A word that is none of the allowed ones.
    #[error("spec.attachmentTickets[{key}].{field}: {error}")]
    Word {
        /// Where it stands.
        key: String,
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        error: ParseError,
    },
    /// A parameter with a value that it cannot have.
    #[error("spec.attachmentTickets[{key}].parameters.{name} is {value:?}; it must be one of {allowed}")]
    Value {
        /// Where it stands.
        key: String,
        /// Which parameter.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        allowed: String,
    },
    /// A parameter that does not exist.
    #[error("spec.attachmentTickets[{key}].parameters.{name} is unknown; there are {}", parameter::ALL.join(", "))]
    Parameter {
        /// Where it stands.
        key: String,
        /// Which parameter.
        name: String,
    },
    /// A time that is none.
    #[error(
        "spec.attachmentTickets[{key}].createdAt is {value:?}, which is no time such as 2026-01-01T12:00:00Z"
    )]
    Time {
        /// Where it stands.
        key: String,
        /// What it says.
        value: String,
    },
}

impl AttachmentTicket {
    /// The ticket that this wish stands for. `owner` is who must still want it, `seen` when the wish was first seen: its
    /// age, if it does not tell one itself. A time to come does not count: nobody gets ahead by it, or behind.
    ///
    /// # Errors
    ///
    /// When a field is not what it should be. The schema lets none of these in; objects of an older one may have them.
    pub fn ticket(&self, key: &str, owner: Owner, seen: Timestamp) -> Result<Ticket, WishError> {
        let key = shown(key);
        if self.id != key {
            return Err(WishError::OtherKey { key, id: shown(&self.id) });
        }
        if key.starts_with("csi-") {
            return Err(WishError::Reserved { key });
        }
        let id = |field| move |error| WishError::Id { key: shown(&self.id), field, error };
        let word = |field| move |error| WishError::Word { key: shown(&self.id), field, error };
        if let Some(name) = self.parameters.keys().find(|name| !parameter::ALL.contains(&name.as_str())) {
            return Err(WishError::Parameter { key, name: shown(name) });
        }
        let given = |name: &str| self.parameters.get(name).map(String::as_str);
        let said = self.created_at.as_deref().map(|text| {
            text.parse::<Timestamp>().map_err(|_| WishError::Time { key: key.clone(), value: shown(text) })
        });
        Ok(Ticket {
            id: TicketId::new(&self.id).map_err(id("id"))?,
            kind: self.kind.parse::<TicketKind>().map_err(word("type"))?,
            node: NodeId::new(&self.node_id).map_err(id("nodeID"))?,
            access: self.choice(parameter::ACCESS, AccessMode::SingleNodeWriter, &AccessMode::ALL)?,
            content: self.choice(
                parameter::CONTENT,
                Content::Filesystem,
                &[Content::Block, Content::Filesystem],
            )?,
            read_only: self.choice(parameter::READ_ONLY, "false", &["true", "false"])? == "true",
            frontend: Frontend::from_parameter(given(parameter::DISABLE_FRONTEND))
                .map_err(word("parameters.disableFrontend"))?,
            generation: self.generation.unwrap_or_default(),
            created_at: said.transpose()?.unwrap_or(seen).min(seen),
            owner,
            reason: given(parameter::REASON).or(given(parameter::LAST_ATTACHED_BY)).map(str::to_owned),
        })
    }

    fn choice<T: Copy + Serialize>(&self, name: &'static str, default: T, all: &[T]) -> Result<T, WishError> {
        let Some(given) = self.parameters.get(name) else { return Ok(default) };
        let text = |value: &T| match serde_json::to_value(value) {
            Ok(serde_json::Value::String(text)) => text,
            _ => String::new(),
        };
        all.iter().copied().find(|value| text(value) == *given).ok_or_else(|| WishError::Value {
            key: shown(&self.id),
            name,
            value: shown(given),
            allowed: all.iter().map(text).collect::<Vec<_>>().join(", "),
        })
    }
}

fn shown(text: &str) -> String {
    text.chars().take(256).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: serde_json::Value) -> AttachmentTicket {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_wish_becomes_a_ticket() {
        let seen: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let wish = read(json!({
            "id": "a", "type": "bowline-api", "nodeID": "n1", "generation": 3, "createdAt": "2025-12-31T00:00:00Z",
            "parameters": { "access": "multi-node-reader-only", "content": "block", "readOnly": "true", "disableFrontend": "any", "reason": "a look" }
        }));
        let ticket = wish.ticket("a", Owner::Withdrawn, seen).unwrap();
        assert_eq!((ticket.access, ticket.content), (AccessMode::MultiNodeReaderOnly, Content::Block));
        assert_eq!((ticket.read_only, ticket.frontend, ticket.generation), (true, Frontend::Any, 3));
        assert_eq!(ticket.created_at.to_string(), "2025-12-31T00:00:00Z");
        assert_eq!(ticket.reason.as_deref(), Some("a look"));

        let least = read(
            json!({ "id": "a", "type": "csi-attacher", "nodeID": "n1", "createdAt": "2099-01-01T00:00:00Z" }),
        );
        let ticket = least.ticket("a", Owner::Withdrawn, seen).unwrap();
        assert_eq!(
            (ticket.access, ticket.created_at),
            (AccessMode::SingleNodeWriter, seen),
            "the future is not waited for"
        );
    }

    #[test]
    fn a_wish_that_is_none_names_its_field() {
        let rows = [
            (json!({ "id": "b" }), "[a].id is \"b\"; it must equal its key"),
            (json!({ "type": "longhorn-ui" }), "[a].type: ticket type is \"longhorn-ui\""),
            (json!({ "nodeID": "a/b" }), "[a].nodeID: node id \"a/b\""),
            (json!({ "createdAt": "today" }), "[a].createdAt is \"today\""),
            (
                json!({ "parameters": { "access": "rwo" } }),
                "[a].parameters.access is \"rwo\"; it must be one of single-node-writer",
            ),
            (
                json!({ "parameters": { "readOnly": "yes" } }),
                "[a].parameters.readOnly is \"yes\"; it must be one of true, false",
            ),
            (
                json!({ "parameters": { "disableFrontend": "yes" } }),
                "[a].parameters.disableFrontend: disableFrontend is \"yes\"",
            ),
            (
                json!({ "parameters": { "colour": "red" } }),
                "[a].parameters.colour is unknown; there are access, ",
            ),
        ];
        for (change, expected) in rows {
            let mut value = json!({ "id": "a", "type": "bowline-api", "nodeID": "n1" });
            value.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            let error =
                read(value).ticket("a", Owner::Withdrawn, Timestamp::UNIX_EPOCH).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
