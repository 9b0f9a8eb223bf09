//! A cluster without machines, with the real controller in it: `bowline controller` and `bowline target` as processes of their own, a real
//! API server on a real etcd.

use anyhow::{Context, Result, ensure};
use bowline_csi::wire;
use bowline_csi::wire::controller_client::ControllerClient;
use bowline_testkit::driver::{RWO, channel};
use bowline_testkit::lab::{Access, ApiLab, NAMESPACE, Process, rendered};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bare::AT_ONCE;
use super::board::{Board, Seen};

const TARGET: &str = "file-a";
const LONG: Duration = Duration::from_secs(60);
/// How many volumes are made at once.
const MAKERS: usize = 16;

pub(crate) struct Site {
    pub(crate) lab: ApiLab,
    pub(crate) client: Client,
    pub(crate) board: Arc<Board>,
    binary: PathBuf,
    /// With the rights that the chart gives to the controller.
    kubeconfig: PathBuf,
    controller: Option<Process>,
    _agent: Option<Process>,
    /// The ids of the volumes that there are.
    pub(crate) volumes: Vec<String>,
}

/// A VolumeAttachment as kube-controller-manager makes it.
pub(crate) fn attachment(name: &str, pv: &str, attacher: &str) -> Result<VolumeAttachment> {
    Ok(serde_json::from_value(
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
        "spec": {"attacher": attacher, "nodeName": "a", "source": {"persistentVolumeName": pv}}}),
    )?)
}

/// The name of the PersistentVolume and of the VolumeAttachment of a volume.
pub(crate) fn name(n: usize) -> String {
    format!("volume-{n}")
}

/// Looks until there is something to see.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        ensure!(begun.elapsed() < LONG, "waited {LONG:?} for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Makes a kind known, and waits until it is served.
pub(crate) async fn define(client: &Client, definition: &CustomResourceDefinition) -> Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    api.create(&PostParams::default(), definition).await?;
    let name = definition.metadata.name.clone().context("a definition has a name")?;
    until("a kind to be served", async || {
        let conditions = api.get(&name).await.ok()?.status?.conditions?;
        conditions.iter().any(|one| one.type_ == "Established" && one.status == "True").then_some(())
    })
    .await?;
    // Established a moment before it is served.
    let plural = &definition.spec.names.plural;
    let path = format!("/apis/{}/{}/{plural}", definition.spec.group, definition.spec.versions[0].name);
    until("a kind to be listed", async || {
        let request = tonic::codegen::http::Request::get(&path).body(vec![]).ok()?;
        client.request_text(request).await.ok()
    })
    .await?;
    Ok(())
}

impl Site {
    /// One node, one target, a controller that leads; `None` says that the lab cannot run here.
    pub(crate) async fn start(binary: PathBuf) -> Result<Option<Self>> {
        let Some(lab) = tokio::task::block_in_place(ApiLab::start) else { return Ok(None) };
        let client = lab.client().await;
        for definition in bowline_api::definitions() {
            define(&client, &definition).await?;
        }
        let board = Board::start(client.clone()).await?;
        lab.apply_text(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}"));
        for file in ["accounts.yaml", "rbac-controller.yaml"] {
            lab.apply_text(&rendered(file, &[]));
        }
        let kubeconfig = lab.kubeconfig_for(Access::ServiceAccount(NAMESPACE, "bowline-controller"));
        let mut site =
            Self { lab, client, board, binary, kubeconfig, controller: None, _agent: None, volumes: vec![] };
        site.add_node().await?;
        site.start_controller();
        site.add_target().await?;
        Ok(Some(site))
    }

    async fn create<K>(&self, object: Value) -> Result<K>
    where
        K: Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Serialize
            + Debug,
    {
        let object = serde_json::from_value(object)?;
        Ok(Api::<K>::all(self.client.clone()).create(&PostParams::default(), &object).await?)
    }

    async fn add_node(&self) -> Result<()> {
        self.create::<Node>(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})).await?;
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Bench", "message": "",
            "lastHeartbeatTime": "2026-01-01T10:00:00Z", "lastTransitionTime": "2026-01-01T10:00:00Z"}]}});
        let nodes = Api::<Node>::all(self.client.clone());
        nodes.patch_status("a", &PatchParams::default(), &Patch::Strategic(&ready)).await?;
        self.create::<CSINode>(
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "a"},
            "spec": {"drivers": [{"name": bowline_api::DRIVER, "nodeID": "a"}]}}),
        )
        .await?;
        Ok(())
    }

    /// As the chart starts it, and with the rights that it has there.
    pub(crate) fn start_controller(&mut self) {
        let directory = self.lab.directory();
        let arguments = [
            "controller".to_owned(),
            format!("--namespace={NAMESPACE}"),
            "--pod-name=bench".to_owned(),
            format!("--csi=unix://{}", self.socket().display()),
            format!("--tls={}", directory.join("controller-tls").display()),
        ];
        let kubeconfig = self.kubeconfig.display().to_string();
        let process =
            self.lab.program("bowline-controller", &self.binary, &arguments, &[("KUBECONFIG", &kubeconfig)]);
        self.controller = Some(process);
    }

    /// The end that it is asked for; the lease is given back.
    pub(crate) fn stop_controller(&mut self) -> Result<()> {
        let controller = self.controller.take().context("a controller runs")?;
        let status = tokio::task::block_in_place(|| controller.stop());
        ensure!(
            status.success(),
            "the controller ended with {status}:\n{}",
            self.lab.log("bowline-controller")
        );
        Ok(())
    }

    /// Memory of the controller: now and at most, in MB.
    pub(crate) fn memory(&self) -> Result<(f64, f64)> {
        let pid = self.controller.as_ref().context("a controller runs")?.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| -> Result<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes = line.with_context(|| format!("no {name}"))?.trim().trim_end_matches(" kB");
            Ok(kilobytes.parse::<f64>()? / 1024.0)
        };
        Ok((field("VmRSS:")?, field("VmHWM:")?))
    }

    fn socket(&self) -> PathBuf {
        self.lab.directory().join("csi.sock")
    }

    async fn add_target(&mut self) -> Result<()> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), NAMESPACE);
        let secret = until("the certificates of agents", async || {
            secrets.get_opt("bowline-agent-tls").await.ok().flatten()
        })
        .await?;
        let directory = self.lab.directory().to_owned();
        let tls = directory.join("agent-tls");
        std::fs::create_dir_all(&tls)?;
        for (file, bytes) in secret.data.unwrap_or_default() {
            std::fs::write(tls.join(file), bytes.0)?;
        }
        let address = format!("127.0.0.1:{}", ApiLab::free_port());
        let arguments = [
            "target".to_owned(),
            format!("--id={TARGET}"),
            format!("--directory={}", directory.join("volumes").display()),
            format!("--listen={address}"),
            format!("--tls={}", tls.display()),
            "--host-name=a".to_owned(),
            "--http=off".to_owned(),
        ];
        self._agent = Some(self.lab.program("bowline-target", &self.binary, &arguments, &[]));
        self.create::<bowline_api::Target>(
            json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Target", "metadata": {"name": TARGET},
            "spec": {"kind": "file", "address": address, "topology": {"topology.bowline.storage/host": "a"}}}),
        )
        .await?;
        let targets = Api::<bowline_api::Target>::all(self.client.clone());
        until("the target to answer", async || {
            let status = targets.get(TARGET).await.ok()?.status?;
            status.conditions.iter().any(|one| json!(one)["status"] == "True").then_some(())
        })
        .await
        .with_context(|| self.lab.log("bowline-controller") + &self.lab.log("bowline-target"))
    }

    /// Makes volumes through CSI, and PersistentVolumes as csi-provisioner does, until there are so many.
    pub(crate) async fn provision(&mut self, count: usize) -> Result<()> {
        let (begun, first) = (Instant::now(), self.volumes.len());
        let controller = ControllerClient::new(channel(&self.socket()));
        let made = stream::iter(first..count).map(|n| {
            let (mut controller, site) = (controller.clone(), &*self);
            async move {
                let request = wire::CreateVolumeRequest {
                    name: name(n),
                    capacity_range: Some(wire::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
                    volume_capabilities: vec![RWO.capability()],
                    ..Default::default()
                };
                let made = controller.create_volume(request).await?.into_inner();
                let volume = made.volume.context("an answer has a volume")?;
                site.create::<PersistentVolume>(pv(n, &volume)).await?;
                anyhow::Ok((n, volume.volume_id))
            }
        });
        let mut made: Vec<(usize, String)> = made.buffer_unordered(MAKERS).try_collect().await?;
        made.sort();
        self.volumes.extend(made.into_iter().map(|(_, id)| id));
        super::say(&format!("{count} volumes made ({:.0} s)", begun.elapsed().as_secs_f64()));
        Ok(())
    }

    pub(crate) fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.client.clone())
    }

    async fn ask(&self, n: usize) -> Result<()> {
        let object = attachment(&name(n), &name(n), bowline_api::DRIVER)?;
        self.attachments().create(&PostParams::default(), &object).await?;
        Ok(())
    }

    async fn give_back(&self, n: usize) -> Result<()> {
        self.attachments().delete(&name(n), &DeleteParams::default()).await?;
        Ok(())
    }

    /// From when it is there to when it is seen attached.
    pub(crate) async fn time_attach(&self, n: usize) -> Result<Duration> {
        let seen = self.board.expect([name(n)], Seen::Attached);
        self.ask(n).await?;
        let begin = Instant::now();
        Ok(seen.come().await?.saturating_duration_since(begin))
    }

    /// From when it is deleted to when it is seen gone.
    pub(crate) async fn time_detach(&self, n: usize) -> Result<Duration> {
        let seen = self.board.expect([name(n)], Seen::Gone);
        self.give_back(n).await?;
        let begin = Instant::now();
        Ok(seen.come().await?.saturating_duration_since(begin))
    }

    /// From the first creation to the last that is seen attached.
    pub(crate) async fn time_attaches(&self, which: std::ops::Range<usize>) -> Result<Duration> {
        let seen = self.board.expect(which.clone().map(name), Seen::Attached);
        let begin = Instant::now();
        let all = stream::iter(which).map(|n| self.ask(n));
        all.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        Ok(seen.come().await?.saturating_duration_since(begin))
    }

    /// From the first deletion to the last that is seen gone.
    pub(crate) async fn time_detaches(&self, which: std::ops::Range<usize>) -> Result<Duration> {
        let seen = self.board.expect(which.clone().map(name), Seen::Gone);
        let begin = Instant::now();
        let all = stream::iter(which).map(|n| self.give_back(n));
        all.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        Ok(seen.come().await?.saturating_duration_since(begin))
    }

    /// From the start of a process to the first VolumeAttachment that is seen attached; it waits there already.
    pub(crate) async fn time_restart(&mut self, n: usize) -> Result<Duration> {
        self.stop_controller()?;
        let seen = self.board.expect([name(n)], Seen::Attached);
        self.ask(n).await?;
        let begin = Instant::now();
        self.start_controller();
        Ok(seen.come().await?.saturating_duration_since(begin))
    }

    /// Reads everything that a controller has to know, once, and makes objects of it.
    pub(crate) async fn time_list(&self) -> Result<Duration> {
        let begin = Instant::now();
        list::<bowline_api::Volume>(&self.client).await?;
        list::<bowline_api::VolumeAttachment>(&self.client).await?;
        list::<PersistentVolume>(&self.client).await?;
        list::<VolumeAttachment>(&self.client).await?;
        Ok(begin.elapsed())
    }

    /// How many requests the API server has answered, by verb and kind, whoever asked.
    pub(crate) async fn requests(&self) -> Result<BTreeMap<String, f64>> {
        let request = tonic::codegen::http::Request::get("/metrics").body(vec![])?;
        let text = self.client.request_text(request).await?;
        let mut counts = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let field = |name: &str| {
                let begin = line.split_once(&format!("{name}=\""))?.1;
                Some(begin.split_once('"')?.0.to_owned())
            };
            let part = |name: &str| field(name).unwrap_or_default();
            let key = [part("verb"), part("resource"), part("group"), part("subresource")];
            if let Some(count) = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()) {
                *counts.entry(key.join(" ").trim_end().to_owned()).or_default() += count;
            }
        }
        Ok(counts)
    }
}

async fn list<K>(client: &Client) -> Result<()>
where
    K: Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let api = Api::<K>::all(client.clone());
    let mut params = ListParams::default().limit(500);
    loop {
        let page = api.list(&params).await?;
        let next = page.metadata.continue_.clone().filter(|token| !token.is_empty());
        std::hint::black_box(page.items);
        match next {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

fn pv(n: usize, volume: &wire::Volume) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name(n)},
        "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "default", "name": format!("claim-{n}"), "uid": format!("11111111-2222-3333-4444-{n:012}")},
            "csi": {"driver": bowline_api::DRIVER, "volumeHandle": volume.volume_id, "fsType": "ext4",
                "volumeAttributes": volume.volume_context}}})
}
