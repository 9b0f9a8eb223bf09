//! The PersistentVolumes of this driver: what of them is needed, and nothing more, so that ten thousand of them are little.

use bowline_api::keys::{ANNOTATIONS, DRIVER, EARLIER_ANNOTATIONS};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::packed::Packed;

/// A PersistentVolume of this driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pv {
    /// Its name; empty for a volume that is written into its VolumeAttachment.
    pub name: String,
    /// The volume's id.
    pub handle: String,
    /// The filesystem; empty if it does not say.
    pub fs_type: String,
    /// What the driver said of the volume when it was made.
    pub attributes: BTreeMap<String, String>,
    /// Whether it is attached for reading only.
    pub read_only: bool,
    /// `ReadWriteOnce` and the like.
    pub access_modes: Vec<String>,
    /// Whether it is a raw device.
    pub block: bool,
    /// How many bytes it says to have, as it says so.
    pub capacity: Option<String>,
    /// Namespace, name and uid of the claim it is bound to.
    pub claim: Option<(String, String, String)>,
    /// The annotations that mirror a ledger, ours and those of a former driver.
    pub annotations: BTreeMap<String, String>,
}

impl Pv {
    /// Of an object; `None` if it is another driver's.
    pub fn of(object: &PersistentVolume) -> Option<Self> {
        let mut pv = Self::of_spec(object.spec.as_ref()?)?;
        pv.name = object.metadata.name.clone().unwrap_or_default();
        let ours = |key: &str| key.starts_with(ANNOTATIONS) || key.starts_with(EARLIER_ANNOTATIONS);
        let annotations = object.metadata.annotations.iter().flatten();
        pv.annotations =
            annotations.filter(|(key, _)| ours(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        Some(pv)
    }

    /// Of a volume that is written into its VolumeAttachment; `None` if it is another driver's.
    pub fn of_spec(spec: &PersistentVolumeSpec) -> Option<Self> {
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == DRIVER)?;
        let claim = spec.claim_ref.clone().map(|claim| {
            let or_empty = Option::unwrap_or_default;
            (or_empty(claim.namespace), or_empty(claim.name), or_empty(claim.uid))
        });
        Some(Self {
            name: String::new(),
            handle: csi.volume_handle.clone(),
            fs_type: csi.fs_type.clone().unwrap_or_default(),
            attributes: csi.volume_attributes.clone().unwrap_or_default(),
            read_only: csi.read_only.unwrap_or_default(),
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            block: spec.volume_mode.as_deref() == Some("Block"),
            capacity: spec.capacity.as_ref().and_then(|all| all.get("storage")).map(|size| size.0.clone()),
            claim,
            annotations: BTreeMap::new(),
        })
    }
}

struct Kept {
    handle: String,
    pv: Packed<Pv>,
}

/// All of them, by name and by volume. What is not here may exist all the same.
#[derive(Default)]
pub(crate) struct Pvs {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_name: HashMap<String, Kept>,
    /// Nearly always one.
    by_handle: HashMap<String, Vec<String>>,
}

impl Pvs {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, pv: Pv) {
        let packed = Packed::new(&pv);
        let mut known = self.lock();
        known.forget(&pv.name);
        let Some(packed) = packed else { return };
        known.by_handle.entry(pv.handle.clone()).or_default().push(pv.name.clone());
        known.by_name.insert(pv.name, Kept { handle: pv.handle, pv: packed });
    }

    pub(crate) fn remove(&self, name: &str) {
        self.lock().forget(name);
    }

    pub(crate) fn get(&self, name: &str) -> Option<Pv> {
        self.lock().by_name.get(name)?.pv.open()
    }

    /// Those of one volume; there may be several, where somebody has made them by hand.
    pub(crate) fn of_volume(&self, handle: &str) -> Vec<Pv> {
        let known = self.lock();
        let names = known.by_handle.get(handle).into_iter().flatten();
        names.filter_map(|name| known.by_name.get(name)?.pv.open()).collect()
    }
}

impl Known {
    fn forget(&mut self, name: &str) {
        let Some(old) = self.by_name.remove(name) else { return };
        if let Some(names) = self.by_handle.get_mut(&old.handle) {
            names.retain(|one| one != name);
            if names.is_empty() {
                self.by_handle.remove(&old.handle);
            }
        }
    }
}
