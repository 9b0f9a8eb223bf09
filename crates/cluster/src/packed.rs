//! Objects at rest. Ten thousand of them are kept and one at a time is looked at, and what Kubernetes' types take unpacked is mostly room for
//! fields that are not there: a VolumeAttachment takes six times its own JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;

pub(crate) struct Packed<T> {
    json: Box<[u8]>,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> Packed<T> {
    /// `None` if it cannot be written down: then it is as if it had not been seen, and whoever needs it looks for it.
    pub(crate) fn new(object: &T) -> Option<Self> {
        let json = serde_json::to_vec(object).ok()?;
        Some(Self { json: json.into(), of: PhantomData })
    }

    /// As it was.
    pub(crate) fn open(&self) -> Option<T> {
        serde_json::from_slice(&self.json).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::storage::v1::VolumeAttachment;

    #[test]
    fn an_object_comes_back_as_it_was_and_takes_a_fraction_meanwhile() {
        let object: VolumeAttachment = serde_json::from_value(serde_json::json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": "csi-1", "uid": "u", "resourceVersion": "7", "finalizers": ["bowline.storage/attacher"],
                "annotations": {"bowline.storage/node-id": "a"}, "deletionTimestamp": "2026-01-01T10:00:00Z"},
            "spec": {"attacher": "bowline.storage", "nodeName": "a", "source": {"persistentVolumeName": "pv-1"}},
            "status": {"attached": true, "attachmentMetadata": {"bowline.storage/epoch": "3"},
                "attachError": {"message": "why", "time": "2026-01-01T10:00:00Z"}}
        }))
        .unwrap();
        let packed = Packed::new(&object).unwrap();
        assert_eq!(packed.open(), Some(object));
        assert!(packed.json.len() * 4 < size_of::<VolumeAttachment>(), "{}", packed.json.len());
    }
}
