//! Tokens that a real API server makes and checks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_cluster::review::Review;
use bowline_testkit::lab::{Access, ApiLab};
use bowline_web::{Gate, Method, Refusal};

const ACCOUNTS: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: bowline }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: bowline-view, namespace: bowline }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: bowline-edit, namespace: bowline }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: bowline-controller, namespace: bowline }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: bowline-edit, namespace: default }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: bowline-tokens }
rules:
  - { apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: bowline-tokens }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: bowline-tokens }
subjects: [{ kind: ServiceAccount, name: bowline-controller, namespace: bowline }]
";

#[derive(Debug, PartialEq)]
enum Told {
    Yes,
    Unknown,
    Forbidden,
    Unchecked,
}

async fn told(gate: &Review, token: &str, method: &Method) -> Told {
    match gate.admit(token, method).await {
        Ok(()) => Told::Yes,
        Err(Refusal::Unknown(_)) => Told::Unknown,
        Err(Refusal::Forbidden(_)) => Told::Forbidden,
        Err(Refusal::Unchecked(_)) => Told::Unchecked,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_gives_what_its_account_may_and_nothing_else_does() {
    let Some(lab) = ApiLab::start() else { return };
    lab.apply_text(ACCOUNTS);
    let token = |namespace: &str, account: &str, audience: &str| {
        let mut words = vec!["-n", namespace, "create", "token", account, "--duration=10m"];
        if !audience.is_empty() {
            words.extend(["--audience", audience]);
        }
        lab.kubectl(&words).trim().to_owned()
    };
    let edit = token("bowline", "bowline-edit", "bowline.storage");
    // Not the last character of the signature: some of its bits mean nothing, and it may stay the same signature.
    let (start, end) = edit.split_at(edit.len() - 20);
    let other = if end.starts_with('A') { 'B' } else { 'A' };
    let forged = format!("{start}{other}{}", &end[1..]);
    let controller = lab.client_as(Access::ServiceAccount("bowline", "bowline-controller")).await;
    let gate = Review::new(controller, "bowline");
    let (get, post) = (Method::GET, Method::POST);
    for (what, token, looking, changing) in [
        ("edit", edit.clone(), Told::Yes, Told::Yes),
        ("view", token("bowline", "bowline-view", "bowline.storage"), Told::Yes, Told::Forbidden),
        ("for the API server", token("bowline", "bowline-edit", ""), Told::Unknown, Told::Unknown),
        ("for others", token("bowline", "bowline-edit", "vault"), Told::Unknown, Told::Unknown),
        (
            "another's",
            token("bowline", "bowline-controller", "bowline.storage"),
            Told::Forbidden,
            Told::Forbidden,
        ),
        (
            "of another namespace",
            token("default", "bowline-edit", "bowline.storage"),
            Told::Forbidden,
            Told::Forbidden,
        ),
        ("signed by nobody", forged, Told::Unknown, Told::Unknown),
        ("nonsense", "nonsense".to_owned(), Told::Unknown, Told::Unknown),
        ("none", String::new(), Told::Unknown, Told::Unknown),
    ] {
        assert_eq!(told(&gate, &token, &get).await, looking, "{what}: looking");
        assert_eq!(told(&gate, &token, &post).await, changing, "{what}: changing");
    }

    // What was known a moment ago needs no API server; what was not known is not let in for want of one.
    let new = token("bowline", "bowline-edit", "bowline.storage");
    lab.stop_api_server();
    assert_eq!(told(&gate, &edit, &post).await, Told::Yes, "an answer counts for a minute");
    assert_eq!(told(&gate, &new, &post).await, Told::Unchecked);
    lab.start_api_server();

    // A controller that may not ask lets nobody in.
    let powerless = lab.client_as(Access::ServiceAccount("default", "bowline-edit")).await;
    assert_eq!(told(&Review::new(powerless, "bowline"), &edit, &get).await, Told::Unchecked);
}
