//! The API writes that an attach and a detach cannot do without, made by a bare client, and nothing else: no ledger is kept and nobody
//! is let in.
//!
//! The same kinds of objects and the same bytes. The object in the place of the ledger is of a kind of its own with the ledger's
//! schema, which no controller watches; the VolumeAttachments are those of another attacher.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::{Api, Client, CustomResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::board::{Board, Seen};

/// How many are worked on at once; as many as Bowline's attacher has requests under way.
pub(crate) const AT_ONCE: usize = 64;
const GROUP: &str = "bench.bowline.storage";
const FINALIZER: &str = "external-attacher/bench-bowline-storage";

/// A client that only writes.
pub(crate) struct Bare {
    attachments: Api<VolumeAttachment>,
    ledgers: Api<DynamicObject>,
    board: Arc<Board>,
    /// The objects in the places of ledgers, as they were written last.
    written: Mutex<BTreeMap<usize, DynamicObject>>,
    metadata: Value,
    /// What a ledger says of a volume that is attached.
    holding: Value,
    /// And of one that is not.
    free: Value,
}

pub(crate) fn name(n: usize) -> String {
    format!("bare-{n}")
}

impl Bare {
    /// With objects for `count` volumes that look like the ledgers of one that is attached and then is not, and like its VolumeAttachment.
    pub(crate) async fn new(
        client: &Client,
        board: &Arc<Board>,
        count: usize,
        [holding, free]: [&Value; 2],
        attached: &VolumeAttachment,
    ) -> Result<Self> {
        let kind = GroupVersionKind::gvk(GROUP, "v1beta1", "BareAttachment");
        let resource = ApiResource::from_gvk_with_plural(&kind, "bareattachments");
        define(client).await?;
        let ledgers: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let metadata = attached.status.as_ref().and_then(|status| status.attachment_metadata.clone());
        let bare = Self {
            attachments: Api::all(client.clone()),
            ledgers,
            board: Arc::clone(board),
            written: Mutex::default(),
            metadata: json!(metadata.context("the model is attached")?),
            holding: holding["status"].clone(),
            free: free["status"].clone(),
        };
        let made = stream::iter(0..count).map(|n| {
            let (bare, resource) = (&bare, &resource);
            async move {
                let mut object = DynamicObject::new(&name(n), resource);
                object.types =
                    Some(TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() });
                object.data = json!({ "spec": { "volume": name(n) } });
                object.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
                let mut made = bare.ledgers.create(&PostParams::default(), &object).await?;
                made.data["status"] = free["status"].clone();
                made.metadata.managed_fields = None;
                anyhow::Ok((n, made))
            }
        });
        let made: Vec<_> = made.buffer_unordered(AT_ONCE).try_collect().await?;
        bare.written.lock().unwrap_or_else(PoisonError::into_inner).extend(made);
        Ok(bare)
    }

    /// The compare-and-swap of a ledger, with all that changes in it.
    async fn write(&self, n: usize, status: &Value) -> Result<()> {
        let mut object = self
            .written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&n)
            .context("nobody else is at it")?;
        let epoch = object.data["status"]["epoch"].as_u64().unwrap_or_default() + 1;
        object.data["status"] = status.clone();
        object.data["status"]["epoch"] = epoch.into();
        let mut object = self.ledgers.replace_status(&name(n), &PostParams::default(), &object).await?;
        object.metadata.managed_fields = None;
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(n, object);
        Ok(())
    }

    async fn create(&self, n: usize) -> Result<()> {
        let object = super::site::attachment(&name(n), &name(n), "bench.bare")?;
        self.attachments.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    async fn attach(&self, n: usize) -> Result<()> {
        let marked = json!({"metadata": {"finalizers": [FINALIZER],
            "annotations": {"csi.alpha.kubernetes.io/node-id": "a"}}});
        let name = name(n);
        let mark = async {
            let params = PatchParams::default();
            anyhow::Ok(self.attachments.patch(&name, &params, &Patch::Strategic(&marked)).await?)
        };
        let (written, marked) = futures::join!(self.write(n, &self.holding), mark);
        written?;
        let uid = marked?.metadata.uid;
        let status = json!({"metadata": {"uid": uid}, "status": {"attached": true, "attachmentMetadata": self.metadata}});
        self.attachments.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        Ok(())
    }

    async fn detach(&self, n: usize) -> Result<()> {
        self.write(n, &self.free).await?;
        let free = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
        self.attachments.patch(&name(n), &PatchParams::default(), &Patch::Strategic(&free)).await?;
        Ok(())
    }

    async fn delete(&self, n: usize) -> Result<()> {
        self.attachments.delete(&name(n), &DeleteParams::default()).await?;
        Ok(())
    }

    /// From when it is there to when it is seen attached.
    pub(crate) async fn time_attach(&self, n: usize) -> Result<Duration> {
        let seen = self.board.expect([name(n)], Seen::Attached);
        self.create(n).await?;
        let begin = Instant::now();
        self.attach(n).await?;
        Ok(seen.come().await?.saturating_duration_since(begin))
    }

    /// From when it is deleted to when it is seen gone.
    pub(crate) async fn time_detach(&self, n: usize) -> Result<Duration> {
        let seen = self.board.expect([name(n)], Seen::Gone);
        self.delete(n).await?;
        let begin = Instant::now();
        self.detach(n).await?;
        Ok(seen.come().await?.saturating_duration_since(begin))
    }

    /// From the first creation to the last that is seen attached.
    pub(crate) async fn time_attaches(&self, count: usize) -> Result<Duration> {
        let seen = self.board.expect((0..count).map(name), Seen::Attached);
        let begin = Instant::now();
        let all = stream::iter(0..count).map(|n| async move {
            self.create(n).await?;
            self.attach(n).await
        });
        all.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        Ok(seen.come().await?.saturating_duration_since(begin))
    }

    /// From the first deletion to the last that is seen gone.
    pub(crate) async fn time_detaches(&self, count: usize) -> Result<Duration> {
        let seen = self.board.expect((0..count).map(name), Seen::Gone);
        let begin = Instant::now();
        let all = stream::iter(0..count).map(|n| async move {
            self.delete(n).await?;
            self.detach(n).await
        });
        all.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        Ok(seen.come().await?.saturating_duration_since(begin))
    }
}

/// The kind of Bowline's own VolumeAttachment under another name.
async fn define(client: &Client) -> Result<()> {
    let mut text = serde_json::to_value(bowline_api::VolumeAttachment::crd())?;
    text["metadata"]["name"] = format!("bareattachments.{GROUP}").into();
    text["spec"]["group"] = GROUP.into();
    text["spec"]["names"] = json!({"kind": "BareAttachment", "listKind": "BareAttachmentList",
        "plural": "bareattachments", "singular": "bareattachment"});
    super::site::define(client, &serde_json::from_value::<CustomResourceDefinition>(text)?).await
}
