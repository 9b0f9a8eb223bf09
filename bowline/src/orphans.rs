//! Volumes on targets that no record knows of: whether they are looked for, what becomes of them, and where it is recorded when they were first seen.

use async_trait::async_trait;
use bowline_controller::{Catalog, FirstSeen, OrphanRecord, OrphanRules};
use bowline_core::{TargetId, VolumeId};
use bowline_host::file::write_whole;
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ConfigError;
use crate::span::Span;

/// How often it is looked at most, and how many are deleted then.
const EVERY: Duration = Duration::from_secs(600);
const AT_MOST: usize = 10;
/// Seven days.
const GRACE: Span = Span(7 * 24 * 3600);

/// What can be told about orphans, also as `BOWLINE_…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct OrphanArgs {
    /// Volumes on targets that no record knows of: `off`, nobody looks for them (if not given); `report`, they are told; `delete`, they are deleted
    /// when they were seen for --orphan-grace. Never snapshots, and never what another installation has made.
    #[arg(
        long,
        env = "BOWLINE_ORPHANS",
        value_enum,
        value_name = "off|report|delete",
        hide_possible_values = true
    )]
    pub orphans: Option<OrphanMode>,

    /// How long a volume must have been seen that no record knows of (7d if not given); more than 0s where they are deleted.
    #[arg(long, env = "BOWLINE_ORPHAN_GRACE", value_name = "TIME")]
    pub orphan_grace: Option<Span>,
}

/// What becomes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OrphanMode {
    /// Nobody looks for them.
    #[default]
    Off,
    /// They are told.
    Report,
    /// They are told, and deleted after a time.
    Delete,
}

impl std::str::FromStr for OrphanMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("{text:?} is not known here; write off, report or delete"))
    }
}

impl OrphanArgs {
    /// What was typed comes before what is in a file.
    pub(crate) fn or(self, file: Self) -> Self {
        Self { orphans: self.orphans.or(file.orphans), orphan_grace: self.orphan_grace.or(file.orphan_grace) }
    }

    /// Whether both go together. At first sight, a record that is only late looks like one that was lost.
    pub fn check(&self) -> Result<(), ConfigError> {
        match (self.orphans, self.orphan_grace) {
            (Some(OrphanMode::Delete), Some(Span(0))) => Err(ConfigError::Place {
                path: PathBuf::from("--orphan-grace"),
                error: "0s would delete volumes as soon as they are seen; with --orphans delete give a time, or nothing for 7d"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn rules(self) -> Option<OrphanRules> {
        let delete = match self.orphans.unwrap_or_default() {
            OrphanMode::Off => return None,
            OrphanMode::Report => false,
            OrphanMode::Delete => true,
        };
        Some(OrphanRules { delete, grace: self.orphan_grace.unwrap_or(GRACE).duration(), at_most: AT_MOST })
    }

    /// Looks for them again and again, if that is wanted.
    pub(crate) async fn look_after(self, catalog: Catalog, record: Arc<dyn OrphanRecord>) {
        let Some(rules) = self.rules() else { return };
        // Twice in the time that one must have been seen, at least.
        let every = EVERY.min(rules.grace / 2).max(Duration::from_secs(1));
        loop {
            match catalog.look_for_orphans(record.as_ref(), rules).await {
                Ok(found) => {
                    for one in found.iter().filter(|one| one.ripe && !one.deleted && !rules.delete) {
                        tracing::warn!(target = %one.target, volume = %one.volume, since = %one.first_seen, "an orphan would be deleted");
                    }
                }
                Err(error) => tracing::warn!(%error, "orphans could not be looked for"),
            }
            tokio::time::sleep(every).await;
        }
    }
}

/// A file in the data directory: times by target and volume.
pub(crate) struct OrphanFile(pub(crate) PathBuf);

type Written = BTreeMap<TargetId, BTreeMap<VolumeId, bowline_core::Timestamp>>;

#[async_trait]
impl OrphanRecord for OrphanFile {
    async fn read(&self) -> Result<FirstSeen, String> {
        let told = |error: &dyn std::fmt::Display| format!("{} cannot be read: {error}", self.0.display());
        let text = match std::fs::read(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(FirstSeen::new()),
            Err(error) => return Err(told(&error)),
        };
        let written: Written = serde_json::from_slice(&text).map_err(|error| told(&error))?;
        let of = |(target, volumes): (TargetId, BTreeMap<VolumeId, _>)| {
            volumes.into_iter().map(move |(volume, seen)| ((target.clone(), volume), seen))
        };
        Ok(written.into_iter().flat_map(of).collect())
    }

    async fn claimed(&self, _: &VolumeId) -> Result<Option<String>, String> {
        // Nobody outside of this process knows of volumes.
        Ok(None)
    }

    async fn write(&self, first_seen: &FirstSeen) -> Result<(), String> {
        let mut written = Written::new();
        for ((target, volume), seen) in first_seen {
            written.entry(target.clone()).or_default().insert(volume.clone(), *seen);
        }
        let told = |error: &dyn std::fmt::Display| format!("{} cannot be written: {error}", self.0.display());
        let text = serde_json::to_vec_pretty(&written).map_err(|error| told(&error))?;
        write_whole(&self.0, &self.0.with_extension("draft"), &text).map_err(|error| told(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn when_orphans_were_first_seen_is_kept_and_never_guessed() {
        let place = tempfile::tempdir().unwrap();
        let file = OrphanFile(place.path().join("orphans.json"));
        assert_eq!(file.read().await, Ok(FirstSeen::new()));
        let one = (TargetId::new("box").unwrap(), VolumeId::new("pvc-1").unwrap());
        let seen = FirstSeen::from([(one, "2026-01-01T00:00:00Z".parse().unwrap())]);
        file.write(&seen).await.unwrap();
        assert_eq!(file.read().await, Ok(seen));
        std::fs::write(&file.0, "{").unwrap();
        let error = file.read().await.unwrap_err();
        assert!(error.contains("orphans.json cannot be read"), "{error}");
    }

    #[test]
    fn nobody_looks_unless_told_to_and_nothing_is_deleted_unless_told_to() {
        let args = |orphans| OrphanArgs { orphans, orphan_grace: None };
        assert_eq!(args(None).rules(), None);
        assert_eq!(args(Some(OrphanMode::Off)).rules(), None);
        let report = args(Some(OrphanMode::Report)).rules().unwrap();
        assert_eq!((report.delete, report.grace), (false, Duration::from_secs(7 * 24 * 3600)));
        assert!(args(Some(OrphanMode::Delete)).rules().unwrap().delete);
    }

    #[test]
    fn nothing_was_ever_meant_to_be_deleted_at_first_sight() {
        for (mode, grace, fine) in [
            (Some(OrphanMode::Delete), Some(0), false),
            (Some(OrphanMode::Delete), Some(1), true),
            (Some(OrphanMode::Delete), None, true),
            (Some(OrphanMode::Report), Some(0), true),
            (None, Some(0), true),
        ] {
            let checked = OrphanArgs { orphans: mode, orphan_grace: grace.map(Span) }.check();
            assert_eq!(checked.is_ok(), fine, "{mode:?} {grace:?}");
            if let Err(error) = checked {
                assert!(
                    error.to_string().starts_with("--orphan-grace cannot be used: 0s would delete"),
                    "{error}"
                );
            }
        }
    }
}
