//! Tickets that stand in a spec: filed as long as they stand there.
//!
//! **Guarantees.** One that cannot be filed does not hold up the others. A ticket is withdrawn only when the object itself, read just
//! now, does not have it; and nobody else's ticket is ever replaced by one in a spec.

use bowline_api::{AttachmentTicket, VolumeAttachment};
use bowline_core::{Owner, TicketId, Timestamp, VolumeId};
use bowline_engine::{Patience, View, Withdrawal};
use kube::{Api, ResourceExt};
use std::time::Duration;

use super::{Context, WishFailure, field, refused};

/// Before the owner of a ticket that stands in a spec.
const OWNER: &str = "spec.attachmentTickets of VolumeAttachment ";

fn owner(object: &str) -> Owner {
    Owner::ObjectGone { object: format!("{OWNER}{object}") }
}

/// Whether it has a ticket in its spec, or in its ledger one that came from there.
pub(super) fn are_asked(object: &VolumeAttachment) -> bool {
    let mine = format!("{OWNER}{}", object.name_any());
    let mut filed = object.status.iter().flat_map(|status| status.tickets.values());
    !object.spec.attachment_tickets.is_empty() || filed.any(|one| one.owner.object == mine)
}

/// Files what stands there and withdraws what does not any more.
pub(super) async fn follow(object: &VolumeAttachment, context: &Context) -> Result<(), WishFailure> {
    let name = object.name_any();
    let id = VolumeId::new(&name).map_err(|error| field("metadata.name", error))?;
    let view = match context.catalog.view(&id).await {
        Ok(view) => view,
        // Nothing is known of it yet: what it asks for is filed when it is.
        Err(_) if object.spec.attachment_tickets.is_empty() => return Ok(()),
        Err(error) => return Err(refused(error)),
    };
    let mut failures = vec![];
    for (key, wish) in &object.spec.attachment_tickets {
        if let Err(failure) = file(context, (&id, &view), key, wish).await {
            failures.push(failure.to_string());
        }
    }
    if let Err(failure) = withdraw(object, context, (&id, &view)).await {
        failures.push(failure.to_string());
    }
    if failures.is_empty() { Ok(()) } else { Err(refused(failures.join("; "))) }
}

async fn file(
    context: &Context,
    (id, view): (&VolumeId, &View),
    key: &str,
    wish: &AttachmentTicket,
) -> Result<(), WishFailure> {
    let mine = owner(id.as_str());
    let ticket = wish.ticket(key, mine.clone(), Timestamp::now()).map_err(refused)?;
    let known = view.ledger.tickets().get(&ticket.id);
    if known.is_some_and(|known| known.owner != mine) {
        let error = "somebody else has filed a ticket of that id; choose another";
        return Err(field(&format!("spec.attachmentTickets[{key}].id"), error));
    }
    // It waits as long as it stands there: what becomes of it is told by its verdict.
    let filed = context.catalog.attach(id, ticket, Patience::Wait, Duration::ZERO).await;
    filed.map(drop).map_err(|error| field(&format!("spec.attachmentTickets[{key}]"), error))
}

async fn withdraw(
    object: &VolumeAttachment,
    context: &Context,
    (id, view): (&VolumeId, &View),
) -> Result<(), WishFailure> {
    let mine = owner(id.as_str());
    let filed = view.ledger.tickets().values().filter(|one| one.owner == mine).map(|one| &one.id);
    let stands = |object: &VolumeAttachment, ticket: &TicketId| {
        object.spec.attachment_tickets.contains_key(ticket.as_str())
    };
    let gone: Vec<&TicketId> = filed.filter(|ticket| !stands(object, ticket)).collect();
    if gone.is_empty() {
        return Ok(());
    }
    // What was watched may be old: only the object itself proves that a wish was taken back.
    let api: Api<VolumeAttachment> = Api::all(context.client.clone());
    let now = api.get_opt(id.as_str()).await.map_err(Box::new)?;
    for ticket in gone {
        if now.as_ref().is_some_and(|object| stands(object, ticket)) {
            continue;
        }
        let withdrawal = Withdrawal { ticket: Some(ticket.clone()), ..Withdrawal::default() };
        if let Err(error) = context.catalog.detach(id, withdrawal, Duration::ZERO).await {
            let view = context.catalog.view(id).await.map_err(refused)?;
            if view.ledger.tickets().contains_key(ticket) {
                return Err(refused(error));
            }
            // It is withdrawn, and the node is on its way out.
            tracing::info!(volume = %id, %error, "a wish was taken back");
        }
    }
    Ok(())
}
