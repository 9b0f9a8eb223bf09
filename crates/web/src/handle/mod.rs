//! One function per route.

#![allow(unused_qualifications, reason = "what utoipa makes of the parameters has them")]

pub(crate) mod adoption;
pub(crate) mod machine;
pub(crate) mod nodes;
pub(crate) mod snapshots;
pub(crate) mod targets;
pub(crate) mod tickets;
pub(crate) mod volumes;
pub(crate) mod watch;

use serde::Deserialize;
use utoipa::IntoParams;

use crate::problem::Problem;

/// Entries of a page if it does not say, and at most.
const PAGE: usize = 100;
const LONGEST_PAGE: usize = 1000;

/// Which part of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Go on after this: `next` of the page before.
    after: Option<String>,
    /// How many entries at most: 100 if not given, 1000 at most.
    limit: Option<usize>,
    /// Only of this volume, by name or id; where the list has more than one kind of volume.
    volume: Option<String>,
}

impl PageQuery {
    fn limit(&self) -> Result<usize, Problem> {
        match self.limit {
            None => Ok(PAGE),
            Some(limit) if (1..=LONGEST_PAGE).contains(&limit) => Ok(limit),
            Some(limit) => {
                Err(Problem::invalid("limit", format!("is {limit}; 1 to {LONGEST_PAGE} are allowed")))
            }
        }
    }
}

/// How long to wait for something that is removed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// How many seconds to wait for it; the work goes on beyond.
    wait_seconds: Option<u32>,
}
