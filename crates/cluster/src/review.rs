//! Who may use the API in a cluster: whoever shows a token of one of two service accounts.
//!
//! # Flow
//!
//! A token → TokenReview with the audience `bowline.storage` → the account it is of: `bowline-view` may look, `bowline-edit`
//! may do everything. Who may have such a token is a right in Kubernetes: to create `serviceaccounts/token` of that account.
//!
//! # Guarantees
//!
//! - A token that was made for somebody else, the API server's own included, is not accepted: the audience must be ours.
//! - What the API server did not say yes to is no. That it cannot be asked is no, too, and is told as what it is.
//!
//! # Caveats
//!
//! - An answer counts for a minute, so an account that is deleted is let in for so long.

use async_trait::async_trait;
use bowline_web::{Gate, Method, Refusal};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// For whom the tokens are made.
pub const AUDIENCE: &str = "bowline.storage";

/// The account whose tokens let one look.
pub const VIEW: &str = "bowline-view";

/// The account whose tokens let one do everything.
pub const EDIT: &str = "bowline-edit";

/// How long an answer counts.
const FRESH: Duration = Duration::from_secs(60);

/// Answers that are kept.
const KEPT: usize = 1024;

/// Questions to the API server at once: tokens out of thin air cost it no more than this.
const QUESTIONS: usize = 16;

/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// More than this is no token.
const TOKEN_BYTES: usize = 16 << 10;

/// Whom a token is of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// May look.
    View,
    /// May do everything.
    Edit,
    /// Somebody else.
    Other(String),
    /// The API server does not know it.
    Nobody,
}

/// A gate that asks the API server.
pub struct Review {
    reviews: Api<TokenReview>,
    namespace: String,
    /// By a digest: the tokens themselves are not kept.
    answers: Mutex<HashMap<[u8; 32], (Standing, Instant)>>,
    questions: Semaphore,
}

impl Review {
    /// A gate for the accounts of this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            reviews: Api::all(client),
            namespace: namespace.to_owned(),
            answers: Mutex::default(),
            questions: Semaphore::new(QUESTIONS),
        }
    }

    async fn standing(&self, token: &str) -> Result<Standing, Refusal> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.kept(&digest) {
            return Ok(known);
        }
        // Never closed.
        let _turn = self.questions.acquire().await;
        // Somebody who was before us may have asked the same.
        if let Some(known) = self.kept(&digest) {
            return Ok(known);
        }
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![AUDIENCE.to_owned()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        // Counted from before the question.
        let asked = Instant::now();
        let params = PostParams::default();
        let answer = match tokio::time::timeout(PATIENCE, self.reviews.create(&params, &review)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a token cannot be checked");
                let why = "the token cannot be checked: the API server does not answer the controller's TokenReview";
                return Err(Refusal::Unchecked(why.to_owned()));
            }
            Err(_) => {
                tracing::warn!("the API server takes too long to check a token");
                let why = "the token cannot be checked: the API server takes too long";
                return Err(Refusal::Unchecked(why.to_owned()));
            }
        };
        let standing = read(answer.status.as_ref(), &self.namespace);
        self.keep(digest, standing.clone(), asked);
        Ok(standing)
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<[u8; 32], (Standing, Instant)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self, digest: &[u8; 32]) -> Option<Standing> {
        let answers = self.answers();
        let (standing, asked) = answers.get(digest)?;
        (asked.elapsed() < FRESH).then(|| standing.clone())
    }

    fn keep(&self, digest: [u8; 32], standing: Standing, asked: Instant) {
        let mut answers = self.answers();
        if answers.len() >= KEPT {
            // Whoever sends tokens out of thin air does not drive out those that are known.
            answers.retain(|_, (standing, asked)| asked.elapsed() < FRESH && *standing != Standing::Nobody);
        }
        if answers.len() < KEPT {
            answers.insert(digest, (standing, asked));
        }
    }
}

/// What an answer means.
fn read(status: Option<&TokenReviewStatus>, namespace: &str) -> Standing {
    let Some(status) = status else { return Standing::Nobody };
    // An API server that does not know audiences says yes to a token for itself, and names none.
    let ours = status.audiences.iter().flatten().any(|audience| audience == AUDIENCE);
    let user = status.user.as_ref().and_then(|user| user.username.as_deref()).unwrap_or_default();
    if status.authenticated != Some(true) || !ours || user.is_empty() {
        return Standing::Nobody;
    }
    match user.strip_prefix(&format!("system:serviceaccount:{namespace}:")) {
        Some(VIEW) => Standing::View,
        Some(EDIT) => Standing::Edit,
        _ => Standing::Other(user.to_owned()),
    }
}

#[async_trait]
impl Gate for Review {
    async fn admit(&self, token: &str, method: &Method) -> Result<(), Refusal> {
        let namespace = &self.namespace;
        let unknown = || {
            Refusal::Unknown(format!(
                "show a token of the service account {VIEW} (to look) or {EDIT} (to change) of the namespace \
                 {namespace}, made for the audience {AUDIENCE}, in the header bowline-token or Authorization: Bearer; \
                 kubectl -n {namespace} create token {VIEW} --audience {AUDIENCE} makes one"
            ))
        };
        if token.is_empty() || token.len() > TOKEN_BYTES {
            return Err(unknown());
        }
        match self.standing(token).await? {
            Standing::Edit => Ok(()),
            Standing::View if matches!(*method, Method::GET | Method::HEAD) => Ok(()),
            Standing::View => Err(Refusal::Forbidden(format!(
                "the token is of {VIEW}, which may only look; to change something you need one of {EDIT}: the right to \
                 create serviceaccounts/token of {EDIT} in the namespace {namespace}, which the ClusterRole \
                 bowline-operator has"
            ))),
            Standing::Other(user) => Err(Refusal::Forbidden(format!(
                "the token is of {user}, which has no right here; one of {VIEW} or {EDIT} of the namespace {namespace} has"
            ))),
            Standing::Nobody => Err(unknown()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use k8s_openapi::api::authentication::v1::UserInfo;

    #[test]
    fn only_a_whole_yes_for_our_audience_is_one() {
        let (view, edit) =
            ("system:serviceaccount:bowline:bowline-view", "system:serviceaccount:bowline:bowline-edit");
        for (authenticated, audiences, user, expected) in [
            (Some(true), Some(vec![AUDIENCE]), Some(view), Standing::View),
            (Some(true), Some(vec!["x", AUDIENCE]), Some(edit), Standing::Edit),
            (Some(true), None, Some(edit), Standing::Nobody),
            (Some(true), Some(vec!["https://kubernetes.default.svc"]), Some(edit), Standing::Nobody),
            (Some(true), Some(vec![AUDIENCE]), None, Standing::Nobody),
            (Some(false), Some(vec![AUDIENCE]), Some(edit), Standing::Nobody),
            (None, Some(vec![AUDIENCE]), Some(edit), Standing::Nobody),
        ] {
            let status = TokenReviewStatus {
                authenticated,
                audiences: audiences.map(|some| some.into_iter().map(str::to_owned).collect()),
                user: user.map(|user| UserInfo { username: Some(user.to_owned()), ..UserInfo::default() }),
                error: None,
            };
            assert_eq!(read(Some(&status), "bowline"), expected, "{status:?}");
        }
        assert_eq!(read(None, "bowline"), Standing::Nobody);
        for user in [
            "system:serviceaccount:other:bowline-edit",
            "system:serviceaccount:bowline:bowline-editor",
            "bowline-edit",
            "system:admin",
        ] {
            let status = TokenReviewStatus {
                authenticated: Some(true),
                audiences: Some(vec![AUDIENCE.to_owned()]),
                user: Some(UserInfo { username: Some(user.to_owned()), ..UserInfo::default() }),
                error: None,
            };
            assert_eq!(read(Some(&status), "bowline"), Standing::Other(user.to_owned()));
        }
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded_and_those_that_are_known_stay() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let review = Review::new(Client::try_from(config).unwrap(), "bowline");
        let digest = |number: u64| -> [u8; 32] { Sha256::digest(number.to_be_bytes()).into() };
        review.keep(digest(0), Standing::Edit, Instant::now());
        let long_ago = Instant::now().checked_sub(FRESH).unwrap();
        review.keep(digest(1), Standing::Edit, long_ago);
        assert_eq!(review.kept(&digest(1)), None, "a minute is over");
        for number in 2..5000 {
            review.keep(digest(number), Standing::Nobody, Instant::now());
        }
        assert!(review.answers().len() <= KEPT);
        assert_eq!(review.kept(&digest(0)), Some(Standing::Edit));
        // Nobody answers there, so nobody is let in.
        let refused = review.admit("token", &Method::GET).await.unwrap_err();
        assert!(matches!(refused, Refusal::Unchecked(_)), "{refused:?}");
        for token in [String::new(), "x".repeat(TOKEN_BYTES + 1)] {
            assert!(matches!(review.admit(&token, &Method::GET).await, Err(Refusal::Unknown(_))));
        }
    }
}
