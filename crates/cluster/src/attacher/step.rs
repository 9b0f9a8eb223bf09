//! One look at one VolumeAttachment: what it asks for, what is done about it, and what it is told.

use bowline_controller::{Volume, csi};
use bowline_core::{NodeId, Ticket, TicketFacts, Verdict, VolumeId};
use bowline_csi::code::{ControllerPublishError, ControllerUnpublishError, Reason};
use bowline_engine::{Patience, Submitted};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams};
use serde_json::Value;
use std::sync::Arc;

use super::book::{Filed, Need, Standing};
use super::status::{
    attached, detached, digest, is_attached, is_going, mark, node_id, not_attached, not_detached, says, uid,
    unmark,
};
use super::whose::{Heir, Named};
use super::wish::{self, Source};
use super::{Inner, standing};
use crate::pv::Pv;

/// What is to be done after a look.
pub(super) enum Next {
    /// Nothing, until something changes.
    Rest,
    /// Look again at once.
    Now,
    /// Look again after a pause.
    Later,
}

/// What there is to tell about a VolumeAttachment that has not got what it asks for.
struct Refusal {
    /// What kind of reason it is: another sentence of the same kind is no news, unless it is a verdict.
    kind: &'static str,
    sentence: String,
    need: Option<Need>,
    /// Whether it is known not to be attached, whatever the object says.
    known: bool,
    /// Whether it stays refused until somebody does something.
    is_final: bool,
    next: Next,
}

/// What a look came to.
struct Wanted {
    request: bowline_csi::controller::ControllerPublish,
    id: NodeId,
}

const OBJECT: &str = "volumeattachment";
/// How long a proof is waited for at a time.
const PROOF: std::time::Duration = std::time::Duration::from_secs(60);

impl Inner {
    pub(super) async fn step(self: &Arc<Self>, name: &str) -> Result<Next, kube::Error> {
        let (object, filed) = {
            let mut book = self.book();
            let Some(entry) = book.get_mut(name) else { return Ok(Next::Rest) };
            (entry.object(), entry.filed.clone())
        };
        let Some(object) = object else {
            return match filed {
                Some(filed) => self.owner_gone(name, &filed).await,
                None => Ok(Next::Rest),
            };
        };
        if let Some(old) =
            filed.as_ref().filter(|filed| filed.uid.as_deref().is_some_and(|one| one != uid(&object)))
        {
            // Another object of the same name: what the earlier one had ends first, so that nothing is inherited.
            return self.owner_gone(name, old).await;
        }
        if is_going(&object) {
            self.detach(name, &object, filed).await
        } else {
            self.attach(name, &object).await
        }
    }

    /// The ticket's object does not show any more. When a look has proven that it is gone, so is the ticket.
    async fn owner_gone(self: &Arc<Self>, name: &str, filed: &Filed) -> Result<Next, kube::Error> {
        let live = self.api.get_opt(name).await?;
        if let Some(live) = live {
            let same = filed.uid.as_deref() == Some(uid(&live));
            let news = self.book().see(name, live);
            if same {
                return Ok(if news { Next::Now } else { Next::Later });
            }
        }
        let Filed { volume, ticket, node, generation, .. } = filed;
        match self.hand_over(name, volume, node) {
            Heir::Found => return Ok(Next::Now),
            Heir::Unclear => return Ok(Next::Later),
            Heir::None => {}
        }
        tracing::warn!(%volume, %node, attachment = name, "the VolumeAttachment is gone; its ticket is withdrawn");
        let facts = TicketFacts { generation: *generation, owner_gone: true, copied: false };
        // A volume that is not known any more has no tickets; the withdrawal tells.
        let _ = self.catalog.engine().observe_ticket(volume, ticket.clone(), facts);
        match self.catalog.detach(volume, csi::withdrawal(volume, node), self.patience).await {
            Ok(()) => {
                self.book().unfile(name);
                self.stands(name, None);
                self.told(name, None);
                Ok(Next::Now)
            }
            Err(error) => {
                tracing::warn!(%volume, %node, %error, "not proven out yet");
                Ok(Next::Later)
            }
        }
    }

    async fn attach(
        self: &Arc<Self>,
        name: &str,
        object: &Arc<VolumeAttachment>,
    ) -> Result<Next, kube::Error> {
        if self.is_as_told(name, object) {
            return Ok(Next::Rest);
        }
        // Before it is looked for: what comes while somebody looks is heard of, too.
        self.book().needs(name, needs(object));
        let wanted = match self.wanted(name, object).await? {
            Ok(wanted) => wanted,
            Err(refusal) => return self.refuse(name, object, refusal).await,
        };
        let owner = wish::owner(name, uid(object));
        let (volume, ticket) = match csi::ticket(&self.catalog, &wanted.request, owner).await {
            Ok(both) => both,
            Err(error) => return self.refuse(name, object, refused(&error, object)).await,
        };
        if let Some(old) = self.filed(name).filter(|old| old.ticket != ticket.id) {
            // Its PersistentVolume is another one by now. What it had ends first.
            let withdrawal = csi::withdrawal(&old.volume, &old.node);
            match self.hand_over(name, &old.volume, &old.node) {
                Heir::Found => {}
                Heir::Unclear => return Ok(Next::Later),
                Heir::None => {
                    if let Err(error) = self.catalog.detach(&old.volume, withdrawal, self.patience).await {
                        return self.refuse(name, object, unfinished(&error)).await;
                    }
                }
            }
            self.book().unfile(name);
        }
        // Before it is filed: whoever looks later must know that it may be in the ledger.
        let filed = Filed {
            uid: Some(uid(object).to_owned()),
            volume: volume.id.clone(),
            node: wanted.id.clone(),
            ticket: ticket.id.clone(),
            generation: ticket.generation,
        };
        let overtaken = {
            let mut book = self.book();
            book.file(name, filed);
            let Some(entry) = book.get_mut(name) else { return Ok(Next::Rest) };
            Arc::clone(&entry.overtaken)
        };
        let grant = async {
            tokio::select! {
                submitted = self.catalog.attach(&volume.id, ticket.clone(), Patience::Wait, self.patience) => Some(submitted),
                () = overtaken.notified() => None,
            }
        };
        // At the same time: the finalizer has to be there before "attached" is told, not before the ledger is written.
        let (marked, submitted) = tokio::join!(self.mark(name, object, &wanted.id), grant);
        let object = marked?;
        match submitted {
            Some(submitted) => self.answer(name, &object, &volume, &ticket, submitted).await,
            None => Ok(Next::Now),
        }
    }

    /// Writes into the object what became of its ticket.
    async fn answer(
        &self,
        name: &str,
        object: &Arc<VolumeAttachment>,
        volume: &Volume,
        ticket: &Ticket,
        submitted: Result<Submitted, ControllerPublishError>,
    ) -> Result<Next, kube::Error> {
        let (verdict, need, next) = match submitted {
            Ok(Submitted::Satisfied { verdict, context }) => {
                self.stands(name, Some(standing(&verdict)));
                let context = csi::publish_context(volume, context);
                if let Some(patch) = attached(object, &context) {
                    self.patch(name, "attached", true, patch).await?;
                }
                self.told(name, None);
                let mut book = self.book();
                book.needs(name, Vec::new());
                if let Some(entry) = book.get_mut(name) {
                    entry.shown = Some(digest(&context));
                }
                return Ok(Next::Rest);
            }
            Ok(Submitted::Waiting(verdict) | Submitted::Refused(verdict)) => (verdict, None, Next::Rest),
            Ok(Submitted::StillWorking { verdict: Some(verdict), .. }) => (verdict, None, Next::Later),
            Ok(Submitted::StillWorking { verdict: None, trouble }) => {
                let sentence = trouble.unwrap_or_else(|| format!("{} is still being worked on", ticket.id));
                let (kind, need, next) = ("StillWorking", None, Next::Later);
                let refusal = Refusal { kind, sentence, need, known: false, is_final: false, next };
                return self.refuse(name, object, refusal).await;
            }
            Err(error) => match self.verdict(&volume.id, ticket, &error).await {
                Some(verdict) => (verdict, Some(Need::Node(object.spec.node_name.clone())), Next::Rest),
                None => return self.refuse(name, object, refused(&error, object)).await,
            },
        };
        self.stands(name, Some(standing(&verdict)));
        if verdict.is_satisfied() {
            // Not durable yet, or on a node that cannot be asked for now: nothing that an object would have to be told. The engine has told all
            // that it will, so of such a node it has to be heard when it can be.
            self.book().needs(name, need.into_iter().collect());
            return Ok(next);
        }
        // One that reports, and where only the driver is missing, counts as one that does not report; people are told what it lacks.
        let node = &object.spec.node_name;
        let lacks_driver = need.is_some() && self.nodes.not_ready(node).is_none();
        let (kind, sentence) = match &verdict {
            Verdict::NodeNotReady { .. } if lacks_driver => (verdict.reason(), no_driver(node)),
            _ => (verdict.reason(), verdict.sentence(ticket)),
        };
        // Of a node that is lost, "attached" is taken back by deleting the object, and by nothing else: kube-controller-manager takes an
        // object that says "not attached" for detached already, asks for the next node, and was not seen to delete this one. And of one of which nobody
        // knows yet whether its target lets it in, nothing is taken back either.
        let kept = matches!(
            verdict,
            Verdict::NodeOutOfService { .. } | Verdict::NodeGone { .. } | Verdict::TargetNotCompared { .. }
        );
        // Nor is it taken back where the node might still reach the volume: it is not detached.
        let may_reach = is_attached(object) && !kept && self.may_reach(&volume.id, &ticket.node).await;
        let known = !kept && !may_reach;
        // When the hold ends, the verdict may stay as it is: then nothing is heard.
        let next = if may_reach { Next::Later } else { next };
        self.refuse(name, object, Refusal { kind, sentence, need, known, is_final: true, next }).await
    }

    /// Whether a node might still reach the volume, as far as is known.
    async fn may_reach(&self, volume: &VolumeId, node: &NodeId) -> bool {
        match self.catalog.view(volume).await {
            Ok(view) => view.lost || view.ledger.holds().contains_key(node),
            Err(_) => true,
        }
    }

    /// A node that cannot be asked for any more may have the volume all the same, or have lost it: the ledger knows.
    async fn verdict(
        &self,
        volume: &VolumeId,
        ticket: &Ticket,
        error: &ControllerPublishError,
    ) -> Option<Verdict> {
        if !matches!(error, ControllerPublishError::UnknownNode(_)) {
            return None;
        }
        let view = self.catalog.view(volume).await.ok()?;
        view.verdicts.get(&ticket.id).cloned()
    }

    /// What the object asks for, or why that cannot be said.
    async fn wanted(
        &self,
        name: &str,
        object: &VolumeAttachment,
    ) -> Result<Result<Wanted, Refusal>, kube::Error> {
        let refusal = |kind, sentence, need| Refusal {
            kind,
            sentence,
            need: Some(need),
            known: false,
            is_final: true,
            next: Next::Rest,
        };
        let pv = match wish::source(object) {
            Ok(Source::Inline(pv)) => *pv,
            Ok(Source::Named(pv)) => match self.pv(pv).await? {
                Some(found) => found,
                None => {
                    let sentence = format!(
                        "PersistentVolume {pv} is not there, or is not of this driver. It goes on when it is made."
                    );
                    return Ok(Err(refusal("UnknownVolume", sentence, Need::Pv(pv.to_owned()))));
                }
            },
            Err(error) => return Ok(Err(malformed(&error))),
        };
        let node = &object.spec.node_name;
        // The ledger knows best, then the object, then the node.
        let filed = self.filed(name).map(|filed| filed.node);
        let remembered = filed.or_else(|| node_id(object).and_then(|id| NodeId::new(id).ok()));
        let Some(id) = remembered.or_else(|| self.nodes.id_of(node)) else {
            return Ok(Err(refusal("UnknownNode", no_driver(node), Need::Node(node.clone()))));
        };
        Ok(match wish::request(&pv, id.as_str()) {
            Ok(request) => Ok(Wanted { request, id }),
            Err(error) => Err(malformed(&error)),
        })
    }

    /// The PersistentVolume of that name. One that the watch does not show is looked for.
    pub(super) async fn pv(&self, name: &str) -> Result<Option<Pv>, kube::Error> {
        if let Some(known) = self.pvs.get(name) {
            return Ok(Some(known));
        }
        Ok(self.pv_api.get_opt(name).await?.as_ref().and_then(Pv::of))
    }

    /// Finalizer and node id, unless they are there.
    async fn mark(
        &self,
        name: &str,
        object: &Arc<VolumeAttachment>,
        id: &NodeId,
    ) -> Result<Arc<VolumeAttachment>, kube::Error> {
        match mark(object, id.as_str()) {
            Some(patch) => self.patch(name, "mark", false, patch).await.map(Arc::new),
            None => Ok(Arc::clone(object)),
        }
    }

    async fn detach(
        self: &Arc<Self>,
        name: &str,
        object: &Arc<VolumeAttachment>,
        filed: Option<Filed>,
    ) -> Result<Next, kube::Error> {
        let whom = match filed {
            Some(filed) => Some((filed.volume, filed.node)),
            None => match self.named_by(name, object).await? {
                Named::As(volume, node) => Some((volume, node)),
                Named::Nobody => None,
                Named::Unknown(sentence) => {
                    if let Some(patch) = not_detached(object, &sentence, jiff::Timestamp::now()) {
                        self.patch(name, "error", true, patch).await?;
                    }
                    self.told(name, Some("Unknown"));
                    return Ok(Next::Later);
                }
            },
        };
        self.stands(name, None);
        let heir = whom.as_ref().map_or(Heir::None, |(volume, node)| self.hand_over(name, volume, node));
        if matches!(heir, Heir::Unclear) {
            return Ok(Next::Later);
        }
        if let Some((volume, node)) = whom.filter(|_| matches!(heir, Heir::None)) {
            // Once it has said what it waits for, there is nothing to do but to wait for the proof.
            let told = object.status.as_ref().is_some_and(|status| status.detach_error.is_some());
            let wait = if told { PROOF } else { self.patience };
            let began = tokio::time::Instant::now();
            if let Err(error) = self.catalog.detach(&volume, csi::withdrawal(&volume, &node), wait).await {
                let kind = error.name();
                let patch = not_detached(object, &error.to_string(), jiff::Timestamp::now());
                if let Some(patch) = patch.filter(|_| !told || self.is_news(name, kind)) {
                    self.patch(name, "error", true, patch).await?;
                }
                self.told(name, Some(kind));
                return Ok(if began.elapsed() >= wait { Next::Now } else { Next::Later });
            }
        }
        if let Some(patch) = detached(object) {
            self.patch(name, "detached", true, patch).await?;
        }
        if let Some(patch) = unmark(object) {
            self.unmark(name, patch).await?;
        }
        self.book().unfile(name);
        self.told(name, None);
        Ok(Next::Rest)
    }

    /// Tells why it has not got what it asks for, if that is news.
    async fn refuse(
        &self,
        name: &str,
        object: &VolumeAttachment,
        refusal: Refusal,
    ) -> Result<Next, kube::Error> {
        let Refusal { kind, sentence, need, known, is_final, next } = refusal;
        {
            let mut book = self.book();
            book.needs(name, need.into_iter().collect());
            if let Some(entry) = book.get_mut(name) {
                entry.refused = is_final;
            }
        }
        let patch = not_attached(object, &sentence, known, jiff::Timestamp::now());
        let told = object
            .status
            .as_ref()
            .is_some_and(|status| status.attach_error.is_some() && !(status.attached && known));
        // A verdict is told in its very words: whoever asks `bowline why` reads the same.
        if let Some(patch) = patch.filter(|_| !told || known || self.is_news(name, kind)) {
            self.patch(name, "error", true, patch).await?;
        }
        self.told(name, Some(kind));
        Ok(next)
    }

    /// Whether the object says what it was told when its ticket was satisfied, and nothing was heard since.
    fn is_as_told(&self, name: &str, object: &VolumeAttachment) -> bool {
        let mut book = self.book();
        let shown = book.get_mut(name).filter(|entry| entry.filed.is_some()).and_then(|entry| entry.shown);
        shown.is_some_and(|shown| says(object, shown))
    }

    fn filed(&self, name: &str) -> Option<Filed> {
        self.book().get_mut(name).and_then(|entry| entry.filed.clone())
    }

    fn is_news(&self, name: &str, kind: &'static str) -> bool {
        self.book().get_mut(name).is_none_or(|entry| entry.told != Some(kind))
    }

    fn told(&self, name: &str, kind: Option<&'static str>) {
        if let Some(entry) = self.book().get_mut(name) {
            entry.told = kind;
        }
    }

    fn stands(&self, name: &str, standing: Option<Standing>) {
        if let Some(entry) = self.book().get_mut(name) {
            entry.answered(standing);
        }
    }

    /// Lets the object go. That it has gone already is as good.
    async fn unmark(&self, name: &str, patch: Value) -> Result<(), kube::Error> {
        let _waiting = self.catalog.engine().waiting();
        let _permit = self.requests.acquire().await.ok();
        self.writes.count(OBJECT, "unmark");
        match self.api.patch(name, &PatchParams::default(), &Patch::Strategic(&patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn patch(
        &self,
        name: &str,
        what: &'static str,
        status: bool,
        patch: Value,
    ) -> Result<VolumeAttachment, kube::Error> {
        let _waiting = self.catalog.engine().waiting();
        // The semaphore is never closed; without a permit, too, the request is right.
        let _permit = self.requests.acquire().await.ok();
        self.writes.count(OBJECT, what);
        let params = PatchParams::default();
        let written = if status {
            self.api.patch_status(name, &params, &Patch::Merge(&patch)).await
        } else {
            self.api.patch(name, &params, &Patch::Strategic(&patch)).await
        };
        match written {
            Ok(object) => {
                self.book().see_answer(name, object.clone());
                Ok(object)
            }
            Err(error) => {
                // Gone, or another one of that name: the next look shall see that, however late the watch is.
                if let kube::Error::Api(status) = &error
                    && matches!(status.code, 404 | 409 | 422)
                {
                    match self.api.get_opt(name).await {
                        Ok(Some(live)) => drop(self.book().see(name, live)),
                        Ok(None) => self.book().unsee(name),
                        Err(_) => {}
                    }
                }
                Err(error)
            }
        }
    }
}

/// What may be missing that it asks for.
fn needs(object: &VolumeAttachment) -> Vec<Need> {
    let pv = object.spec.source.persistent_volume_name.clone().map(Need::Pv);
    pv.into_iter().chain([Need::Node(object.spec.node_name.clone())]).collect()
}

fn malformed(error: &wish::WishError) -> Refusal {
    let (kind, sentence) = ("Malformed", error.to_string());
    Refusal { kind, sentence, need: None, known: false, is_final: true, next: Next::Rest }
}

fn refused(error: &ControllerPublishError, object: &VolumeAttachment) -> Refusal {
    let need = match error {
        ControllerPublishError::UnknownNode(_) => Some(Need::Node(object.spec.node_name.clone())),
        _ => object.spec.source.persistent_volume_name.clone().map(Need::Pv),
    };
    // A volume may be made, or made known, without anything else changing.
    let next = if matches!(error, ControllerPublishError::UnknownNode(_)) { Next::Rest } else { Next::Later };
    let mut sentence = match error {
        // Its name is remembered, or was there from the beginning, but nobody adds nodes by hand here.
        ControllerPublishError::UnknownNode(_) => no_driver(&object.spec.node_name),
        _ => error.to_string(),
    };
    if matches!(error, ControllerPublishError::UnknownVolume(_)) && is_attached(object) {
        sentence.push_str("; it was attached before, and is not adopted: `bowline adopt --dry-run` says why");
    }
    Refusal { kind: error.name(), sentence, need, known: false, is_final: error.is_final(), next }
}

fn no_driver(node: &str) -> String {
    format!(
        "node {node} does not run this driver yet: its CSINode does not list it. It goes on when the driver has registered there."
    )
}

fn unfinished(error: &ControllerUnpublishError) -> Refusal {
    let (kind, sentence) = (error.name(), error.to_string());
    Refusal { kind, sentence, need: None, known: false, is_final: false, next: Next::Later }
}
