//! Volumes that no record knows of: when they were first seen is in the status of the Target that they are on, where people see it, too; and whoever
//! counts on one all the same keeps it.

use async_trait::async_trait;
use bowline_api::{OrphanStatus, Target, TargetStatus};
use bowline_controller::{FirstSeen, OrphanRecord};
use bowline_core::{TargetId, Timestamp, VolumeId};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use std::sync::Arc;

use crate::attacher::PersistentVolumes;
use crate::claims;

/// The status of all Targets.
pub struct OrphanStatuses {
    /// The API server.
    pub client: Client,
    /// The PersistentVolumes, watched.
    pub pvs: Arc<PersistentVolumes>,
}

/// What the status of a target says; what cannot be understood is an error, and never taken for "just seen".
fn said(target: &Target) -> Result<FirstSeen, String> {
    let wrong =
        |error: &dyn std::fmt::Display| format!("status.orphans of Target {}: {error}", target.name_any());
    let id = TargetId::new(target.name_any()).map_err(|error| wrong(&error))?;
    let orphans = target.status.iter().flat_map(|status| &status.orphans);
    orphans
        .map(|one| {
            let volume = VolumeId::new(&one.volume).map_err(|error| wrong(&error))?;
            let seen = one.first_seen.parse().map_err(|error| wrong(&error))?;
            Ok(((id.clone(), volume), seen))
        })
        .collect()
}

/// The oldest of them, as many as an object can name. The others get their turn when some of these are gone.
fn fitting<'a>(orphans: impl Iterator<Item = (Timestamp, &'a VolumeId)>) -> Vec<OrphanStatus> {
    let mut orphans: Vec<_> = orphans.collect();
    orphans.sort();
    let told = |(seen, volume): (Timestamp, &VolumeId)| OrphanStatus {
        volume: volume.to_string(),
        first_seen: seen.to_string(),
    };
    orphans.into_iter().take(TargetStatus::MOST_ORPHANS).map(told).collect()
}

#[async_trait]
impl OrphanRecord for OrphanStatuses {
    async fn read(&self) -> Result<FirstSeen, String> {
        let api: Api<Target> = Api::all(self.client.clone());
        let targets = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let all = targets.iter().map(said).collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().flatten().collect())
    }

    async fn claimed(&self, volume: &VolumeId) -> Result<Option<String>, String> {
        match claims::known(&self.pvs.known, volume) {
            Some(who) => Ok(Some(who)),
            None => claims::live(&self.client, volume).await.map_err(|error| error.to_string()),
        }
    }

    async fn write(&self, first_seen: &FirstSeen) -> Result<(), String> {
        let api: Api<Target> = Api::all(self.client.clone());
        for target in api.list(&ListParams::default()).await.map_err(|error| error.to_string())? {
            let name = target.name_any();
            let here = first_seen.iter().filter(|((id, _), _)| id.as_str() == name);
            let orphans = fitting(here.map(|((_, volume), seen)| (*seen, volume)));
            if target.status.as_ref().is_some_and(|status| status.orphans == orphans)
                || (target.status.is_none() && orphans.is_empty())
            {
                continue;
            }
            let patch = serde_json::json!({ "status": { "orphans": orphans } });
            match api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                // Gone meanwhile.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                written => drop(written.map_err(|error| error.to_string())?),
            }
        }
        Ok(())
    }
}
