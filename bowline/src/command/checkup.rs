//! `bowline doctor` in a cluster: what the API server shows of Bowline, beside what the controller itself says.

use bowline_api::{Target, TargetStatus, Truth};
use bowline_web::wire::{Doctor, Finding};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::api::ListParams;
use kube::{Api, Client as Cluster, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::client::Client;
use crate::failure::Failure;

/// Our kinds, as the API server lists them.
const KINDS: [&str; 5] = ["snapshotgroups", "snapshots", "targets", "volumeattachments", "volumes"];

/// The label with the version of what runs.
const VERSION: &str = "app.kubernetes.io/version";

/// What was seen: whether it is well, and the words for people.
type Seen = Result<String, String>;

/// Looks at everything that can be seen from outside.
pub(super) async fn look(client: &Client, report: &Doctor) -> Result<Vec<Finding>, Failure> {
    let Some(cluster) = client.cluster().await else { return Ok(vec![]) };
    let (cluster, at) = cluster?;
    let namespace = &at.namespace;
    let deployment = get::<Deployment>(&cluster, namespace, "deployments", "bowline-controller").await;
    let daemons = get::<DaemonSet>(&cluster, namespace, "daemonsets", "bowline-node").await;
    let lease = get::<Lease>(&cluster, namespace, "leases", "bowline-controller").await;
    let (exports, exports_matter) = exports(&cluster).await;
    let versions = [version(deployment.as_ref().ok()), version(daemons.as_ref().ok())];
    Ok(vec![
        found("Bowline's kinds", "every record", kinds(&cluster).await, true),
        found("the controller", "everything", deployment.and_then(|it| controllers(&it)), true),
        found("a leader", "everything", lease.and_then(|lease| leader(&lease)), true),
        found(
            "the node plugin on every node",
            "using volumes there",
            daemons.and_then(|it| plugins(&it)),
            false,
        ),
        found("what storage agents show to nodes", "volumes on other machines", exports, exports_matter),
        found("one version", "understanding each other", one_version(&versions, &report.version), false),
    ])
}

fn found(what: &str, needed_for: &str, seen: Seen, required: bool) -> Finding {
    let (present, detail) = match seen {
        Ok(how) => (true, how),
        Err(why) => (false, why),
    };
    // What one may not see is not missing.
    let required = required && !detail.starts_with(NO_RIGHT);
    Finding { what: what.to_owned(), needed_for: needed_for.to_owned(), present, detail, required }
}

const NO_RIGHT: &str = "you have no right";

async fn get<K>(cluster: &Cluster, namespace: &str, plural: &str, name: &str) -> Result<K, String>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    K::DynamicType: Default,
{
    Api::<K>::namespaced(cluster.clone(), namespace).get(name).await.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 403 => {
            format!(
                "{NO_RIGHT} to get {plural} of {name} in {namespace}; the ClusterRole bowline-viewer has it"
            )
        }
        kube::Error::Api(status) => status.message,
        error => error.to_string(),
    })
}

async fn kinds(cluster: &Cluster) -> Seen {
    let listed = cluster.list_api_group_resources("bowline.storage/v1beta1").await;
    let listed: APIResourceList = listed.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => "none is known; apply deploy/crds".to_owned(),
        kube::Error::Api(status) => status.message,
        error => error.to_string(),
    })?;
    let known: BTreeSet<&str> = listed.resources.iter().map(|kind| kind.name.as_str()).collect();
    let missing: Vec<&str> = KINDS.into_iter().filter(|kind| !known.contains(kind)).collect();
    if missing.is_empty() {
        Ok(format!("{} of bowline.storage/v1beta1", KINDS.len()))
    } else {
        Err(format!("not known: {}; apply deploy/crds", missing.join(", ")))
    }
}

fn controllers(deployment: &Deployment) -> Seen {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    let words = format!("{ready} of {wanted} are ready");
    if ready > 0 { Ok(words) } else { Err(words) }
}

fn leader(lease: &Lease) -> Seen {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
    if holder.is_empty() { Err("nobody leads".to_owned()) } else { Ok(holder) }
}

fn plugins(daemons: &DaemonSet) -> Seen {
    let (wanted, ready) = daemons
        .status
        .as_ref()
        .map_or((0, 0), |status| (status.desired_number_scheduled, status.number_ready));
    let words = format!("it is ready on {ready} of {wanted}");
    if ready >= wanted { Ok(words) } else { Err(words) }
}

/// What storage agents do not show to nodes, as their Targets say it; and whether that is known to be something.
async fn exports(cluster: &Cluster) -> (Seen, bool) {
    match Api::<Target>::all(cluster.clone()).list(&ListParams::default()).await {
        Ok(targets) => shown(&targets.items),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            (Err(format!("{NO_RIGHT} to list targets; the ClusterRole bowline-viewer has it")), false)
        }
        Err(kube::Error::Api(status)) => (Err(status.message), false),
        Err(error) => (Err(error.to_string()), false),
    }
}

fn shown(targets: &[Target]) -> (Seen, bool) {
    let (mut missing, mut unknown) = (vec![], vec![]);
    for target in targets {
        let conditions = target.status.iter().flat_map(|status| &status.conditions);
        let said = conditions.into_iter().find(|one| one.kind == TargetStatus::EXPORTS_SHOWN);
        match said.map(|said| (said.status, &said.message)) {
            Some((Truth::True, _)) => {}
            Some((Truth::False, why)) => missing.push(format!("{}: {why}", target.name_any())),
            Some((Truth::Unknown, _)) | None => unknown.push(target.name_any()),
        }
    }
    if !missing.is_empty() {
        return (Err(missing.join(" ")), true);
    }
    if !unknown.is_empty() {
        let names = unknown.join(", ");
        return (Err(format!("not known of {names}; kubectl describe bvt says why")), false);
    }
    (Ok(format!("everything, on {0} of {0}", targets.len())), true)
}

fn version<K: ResourceExt>(object: Option<&K>) -> Option<String> {
    object.and_then(|object| object.labels().get(VERSION).cloned())
}

fn one_version(installed: &[Option<String>], running: &str) -> Seen {
    let ours = env!("CARGO_PKG_VERSION");
    let mut others: BTreeSet<&str> = installed.iter().flatten().map(String::as_str).collect();
    others.extend(Some(running).filter(|running| !running.is_empty()));
    others.remove(ours);
    if others.is_empty() {
        return Ok(ours.to_owned());
    }
    let others: Vec<&str> = others.into_iter().collect();
    Err(format!("this is {ours}, and in the cluster there is {}", others.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_agents_do_not_show_is_named_and_what_they_do_not_say_is_no_fault() {
        let target = |name: &str, said: Option<(&str, &str)>| -> Target {
            let conditions = said.map_or(
                json!([]),
                |(status, message)| json!([{ "type": "ExportsShown", "status": status, "message": message }]),
            );
            let spec = json!({ "kind": "nvmet", "address": "10.0.0.5:9460" });
            let object = json!({ "apiVersion": "bowline.storage/v1beta1", "kind": "Target",
                "metadata": { "name": name }, "spec": spec, "status": { "conditions": conditions } });
            serde_json::from_value(object).unwrap()
        };
        let good = target("a", Some(("True", "It is.")));
        let unknown = target("b", Some(("Unknown", "It could not be asked.")));
        let missing = target("c", Some(("False", "1 volume is missing on its nodes: v (no).")));
        let never = target("d", None);
        assert_eq!(shown(&[]), (Ok("everything, on 0 of 0".to_owned()), true));
        assert_eq!(shown(std::slice::from_ref(&good)), (Ok("everything, on 1 of 1".to_owned()), true));
        let told = "not known of b, d; kubectl describe bvt says why".to_owned();
        assert_eq!(shown(&[good, unknown.clone(), never]), (Err(told), false));
        let told = "c: 1 volume is missing on its nodes: v (no).".to_owned();
        assert_eq!(shown(&[unknown, missing]), (Err(told), true));
    }

    #[test]
    fn what_is_seen_is_judged_like_this() {
        let deployment = |ready| {
            serde_json::from_value(json!({ "metadata": {}, "spec": { "replicas": 2, "selector": {},
                "template": {} }, "status": { "readyReplicas": ready } }))
            .unwrap()
        };
        assert_eq!(controllers(&deployment(1)), Ok("1 of 2 are ready".to_owned()));
        assert_eq!(controllers(&deployment(0)), Err("0 of 2 are ready".to_owned()));
        let lease =
            |holder| serde_json::from_value(json!({ "metadata": {}, "spec": { "holderIdentity": holder } }));
        assert_eq!(leader(&lease("a").unwrap()), Ok("a".to_owned()));
        assert_eq!(leader(&lease("").unwrap()), Err("nobody leads".to_owned()));
        let daemons = |ready| {
            serde_json::from_value(json!({ "metadata": {}, "status": { "desiredNumberScheduled": 3,
                "numberReady": ready, "currentNumberScheduled": 3, "numberMisscheduled": 0 } }))
            .unwrap()
        };
        assert_eq!(plugins(&daemons(3)), Ok("it is ready on 3 of 3".to_owned()));
        assert_eq!(plugins(&daemons(2)), Err("it is ready on 2 of 3".to_owned()));
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(one_version(&[Some(ours.to_owned()), None], ours), Ok(ours.to_owned()));
        let told = one_version(&[Some("0.0.1".to_owned()), None], "0.0.2").unwrap_err();
        assert!(told.ends_with("there is 0.0.1 and 0.0.2"), "{told}");
        let hidden = found("a", "b", Err(format!("{NO_RIGHT} to get it")), true);
        assert!(!hidden.required && !hidden.present, "what one may not see is not missing");
    }
}
