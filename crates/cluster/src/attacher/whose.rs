//! Whose a ticket is when its object goes: another one's that asks for the same, or one that the object names only by what it says.

use bowline_core::{NodeId, TicketId, VolumeId};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use std::sync::Arc;
use std::time::Duration;

use super::status::{has_finalizer, is_attached, node_id};
use super::wish::{self, Source};
use super::{Inner, ticket_id};

/// Who has a ticket when the object is gone that it was filed for.
pub(super) enum Heir {
    /// Another object, which was told.
    Found,
    /// Maybe another one, which nobody has answered yet.
    Unclear,
    None,
}

/// What an object stands for of which no ticket is known.
pub(super) enum Named {
    /// This volume on this node.
    As(VolumeId, NodeId),
    /// Nothing that anybody could have.
    Nobody,
    /// Nobody knows: why, and what to do.
    Unknown(String),
}

/// How long a target may take to list a page of whom it lets in.
const ANSWER: Duration = Duration::from_secs(30);
const PAGE: usize = 1000;

impl Inner {
    /// Leaves a ticket to another object that asks for the same volume on the same node, if there is one: it files the ticket anew, as its own.
    pub(super) fn hand_over(self: &Arc<Self>, name: &str, volume: &VolumeId, node: &NodeId) -> Heir {
        let ticket = ticket_id(volume, node);
        let node = self.nodes.name_of(node).unwrap_or_default();
        let other = {
            let mut book = self.book();
            let Some(other) = book.sharing(name, volume, &ticket).map(str::to_owned) else {
                let others = book.unanswered(name, volume, &node);
                drop(book);
                let asks = others.iter().any(|other| self.asks_for(other).as_ref() == Some(&ticket));
                return if asks { Heir::Unclear } else { Heir::None };
            };
            book.unfile(name);
            if let Some(entry) = book.get_mut(&other) {
                entry.shown = None;
            }
            other
        };
        tracing::info!(%volume, %ticket, attachment = name, other, "it leaves its ticket to another VolumeAttachment");
        self.poke(&other);
        Heir::Found
    }

    /// The ticket that an object asks for, as far as the watches tell.
    fn asks_for(&self, object: &VolumeAttachment) -> Option<TicketId> {
        let pv = match wish::source(object).ok()? {
            Source::Inline(pv) => *pv,
            Source::Named(pv) => self.pvs.get(pv)?,
        };
        let remembered = node_id(object).and_then(|id| NodeId::new(id).ok());
        let node = remembered.or_else(|| self.nodes.id_of(&object.spec.node_name))?;
        Some(ticket_id(&VolumeId::new(&pv.handle).ok()?, &node))
    }

    /// What an object names of which no ticket is known: it may have one all the same.
    pub(super) async fn named_by(&self, name: &str, object: &VolumeAttachment) -> Result<Named, kube::Error> {
        if !has_finalizer(object) {
            return Ok(Named::Nobody);
        }
        let pv = match wish::source(object) {
            Ok(Source::Inline(pv)) => Some(*pv),
            Ok(Source::Named(pv)) => self.pv(pv).await?,
            Err(_) => None,
        };
        let remembered = node_id(object).and_then(|id| NodeId::new(id).ok());
        let node = remembered.or_else(|| self.nodes.id_of(&object.spec.node_name));
        let volume = pv.and_then(|pv| VolumeId::new(&pv.handle).ok());
        let lacks = if volume.is_none() { "restore its PersistentVolume" } else { "start the driver there" };
        if let Some((volume, node)) = volume.zip(node) {
            tracing::debug!(%volume, %node, attachment = name, "withdrawn by name");
            return Ok(Named::As(volume, node));
        }
        if !is_attached(object) {
            return Ok(Named::Nobody);
        }
        let unproven = |why: String| {
            Named::Unknown(format!(
                "it is attached to {}, and which volume that is does not show any more, so nobody here can prove that the node is out ({why}); {lacks}",
                object.spec.node_name
            ))
        };
        Ok(self.let_in_under(name, object).await.unwrap_or_else(unproven))
    }

    /// Whom targets let in under the name of an object that says it is attached and does not lead to its volume any more. kube-controller-manager's
    /// names follow from volume and node; of others nothing can be said.
    async fn let_in_under(&self, name: &str, object: &VolumeAttachment) -> Result<Named, String> {
        let node = NodeId::new(&object.spec.node_name).map_err(|error| error.to_string())?;
        let digest = name.strip_prefix("csi-").filter(|digest| digest.len() == 64);
        if digest.is_none_or(|digest| !digest.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            return Err("its name does not follow from its volume".to_owned());
        }
        if let Some(target) = self.catalog.engine().unconnected().first() {
            return Err(format!("target {target} is not connected"));
        }
        let targets = self.catalog.targets();
        if targets.is_empty() {
            return Err("no target is connected".to_owned());
        }
        for target in targets {
            let silent =
                |error: String| format!("target {} does not say whom it lets in: {error}", target.id());
            let mut after = None;
            loop {
                let page = tokio::time::timeout(ANSWER, target.exports(after.as_ref(), PAGE)).await;
                let page = page.map_err(|_| silent(format!("no answer within {ANSWER:?}")))?;
                let page = page.map_err(|error| silent(error.to_string()))?;
                let found =
                    page.listings.into_iter().find(|one| ticket_id(&one.volume, &node).as_str() == name);
                if let Some(listing) = found {
                    let id = node_id(object).and_then(|id| NodeId::new(id).ok());
                    let id = id.or_else(|| self.nodes.id_of(&object.spec.node_name));
                    // The driver may call it otherwise; that it is out under a name that nobody has would prove nothing.
                    let id = id.or_else(|| {
                        listing.exports.values().any(|export| export.node == node).then(|| node.clone())
                    });
                    let unknown = || {
                        format!(
                            "it is volume {}, and what the driver calls {node} is not known",
                            listing.volume
                        )
                    };
                    return Ok(Named::As(listing.volume.clone(), id.ok_or_else(unknown)?));
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(Named::Nobody)
    }
}
