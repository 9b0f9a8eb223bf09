//! Whose a ticket is when its object goes: another one's that asks for the same, or one that the object names only by what it says.

use bowline_core::{NodeId, TicketId, VolumeId};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use std::sync::Arc;

use super::status::{has_finalizer, node_id};
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

    /// The volume and node that an object without a known ticket names: it may have one all the same.
    pub(super) async fn named_by(
        &self,
        object: &VolumeAttachment,
    ) -> Result<Option<(VolumeId, NodeId)>, kube::Error> {
        if !has_finalizer(object) {
            return Ok(None);
        }
        let pv = match wish::source(object) {
            Ok(Source::Inline(pv)) => Some(*pv),
            Ok(Source::Named(pv)) => self.pv(pv).await?,
            Err(_) => None,
        };
        let remembered = node_id(object).and_then(|id| NodeId::new(id).ok());
        let node = remembered.or_else(|| self.nodes.id_of(&object.spec.node_name));
        let volume = pv.and_then(|pv| VolumeId::new(&pv.handle).ok());
        Ok(volume.zip(node).inspect(|(volume, node)| {
            let ticket = ticket_id(volume, node);
            tracing::debug!(%volume, %node, %ticket, "withdrawn by name");
        }))
    }
}
