//! Reading all objects of a kind, a page at a time.

use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// So many at once.
pub(crate) const PAGE: u32 = 500;

/// Shows every object there is. The pages are of one moment: the API server forgets a list rather than to mix two.
pub(crate) async fn for_each<K>(api: Api<K>, mut visit: impl FnMut(K)) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        let next = page.metadata.continue_.clone().filter(|token| !token.is_empty());
        page.items.into_iter().for_each(&mut visit);
        match next {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
