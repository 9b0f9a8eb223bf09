//! On which targets of a `bowline up` nothing new is made: a file in the data directory.

use anyhow::{Context, Result};
use async_trait::async_trait;
use bowline_controller::Catalog;
use bowline_core::TargetId;
use bowline_host::file::write_whole;
use bowline_web::Drains;
use std::collections::BTreeSet;
use std::path::PathBuf;
use tokio::sync::Mutex;

/// The file in the data directory.
pub const FILE: &str = "draining.json";

/// What is written there, and who has to know.
pub struct DrainFile {
    path: PathBuf,
    catalog: Catalog,
    /// What is in the file; locked while it is changed.
    draining: Mutex<BTreeSet<TargetId>>,
}

impl DrainFile {
    /// Reads it, and tells the catalog.
    pub fn open(path: PathBuf, catalog: Catalog) -> Result<Self> {
        let draining: BTreeSet<TargetId> = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| {
                format!("{} is no list of targets; mend it, or remove it", path.display())
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        for target in &draining {
            catalog.drain_target(target, true);
        }
        Ok(Self { path, catalog, draining: Mutex::new(draining) })
    }
}

#[async_trait]
impl Drains for DrainFile {
    async fn drain(&self, target: &TargetId, is_draining: bool) -> Result<(), String> {
        let mut draining = self.draining.lock().await;
        let mut wanted = draining.clone();
        if is_draining {
            wanted.insert(target.clone())
        } else {
            wanted.remove(target)
        };
        let told =
            |error: &dyn std::fmt::Display| format!("{} cannot be written: {error}", self.path.display());
        let text = serde_json::to_vec_pretty(&wanted).map_err(|error| told(&error))?;
        write_whole(&self.path, &self.path.with_extension("draft"), &text).map_err(|error| told(&error))?;
        self.catalog.drain_target(target, is_draining);
        *draining = wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_store::MemoryStore;
    use bowline_testkit::SimTarget;
    use std::sync::Arc;

    async fn catalog() -> Catalog {
        let parts = bowline_controller::Parts {
            store: Arc::new(MemoryStore::default()),
            targets: vec![Arc::new(SimTarget::new("near")), Arc::new(SimTarget::new("far"))],
            nodes: vec![],
            reports: vec![],
            clock: Arc::new(bowline_engine::SystemClock),
            settings: bowline_engine::Settings::default(),
            registry: Arc::default(),
        };
        Catalog::open(parts).await.unwrap()
    }

    fn drained(catalog: &Catalog) -> Vec<String> {
        let known = catalog.known_targets().into_iter().filter(|one| one.is_draining);
        known.map(|one| one.id.to_string()).collect()
    }

    #[tokio::test]
    async fn what_is_drained_is_drained_after_a_restart_and_never_guessed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(FILE);
        let far = TargetId::new("far").unwrap();
        let first = catalog().await;
        let drains = DrainFile::open(path.clone(), first.clone()).unwrap();
        assert_eq!(drained(&first), [""; 0]);
        drains.drain(&far, true).await.unwrap();
        assert_eq!(drained(&first), ["far"]);
        let second = catalog().await;
        let drains = DrainFile::open(path.clone(), second.clone()).unwrap();
        assert_eq!(drained(&second), ["far"]);
        drains.drain(&far, false).await.unwrap();
        assert_eq!(drained(&second), [""; 0]);
        let third = catalog().await;
        DrainFile::open(path.clone(), third.clone()).unwrap();
        assert_eq!(drained(&third), [""; 0]);
        std::fs::write(&path, "far").unwrap();
        let error = DrainFile::open(path.clone(), third).err().unwrap();
        assert!(format!("{error:#}").contains("draining.json is no list of targets"), "{error:#}");
        // What cannot be remembered is not done.
        std::fs::remove_file(&path).unwrap();
        let fourth = catalog().await;
        let drains = DrainFile::open(place.path().join("nowhere").join(FILE), fourth.clone()).unwrap();
        assert!(drains.drain(&far, true).await.is_err());
        assert_eq!(drained(&fourth), [""; 0]);
    }
}
