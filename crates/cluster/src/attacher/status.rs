//! What is written into a VolumeAttachment, and when nothing needs to be.

use bowline_api::keys::{ATTACHER_FINALIZER as FINALIZER, NODE_ID};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentStatus, VolumeError};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

pub(crate) fn uid(object: &VolumeAttachment) -> &str {
    object.metadata.uid.as_deref().unwrap_or_default()
}

pub(crate) fn is_going(object: &VolumeAttachment) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

pub(crate) fn has_finalizer(object: &VolumeAttachment) -> bool {
    object.metadata.finalizers.iter().flatten().any(|one| one == FINALIZER)
}

pub(crate) fn node_id(object: &VolumeAttachment) -> Option<&str> {
    object.metadata.annotations.as_ref()?.get(NODE_ID).map(String::as_str).filter(|id| !id.is_empty())
}

pub(crate) fn is_attached(object: &VolumeAttachment) -> bool {
    object.status.as_ref().is_some_and(|status| status.attached)
}

/// Two contexts with the same digest are taken for the same.
pub(crate) fn digest(context: &BTreeMap<String, String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    context.hash(&mut hasher);
    hasher.finish()
}

/// Whether it says that it is attached with this context, and nothing is missing.
pub(crate) fn says(object: &VolumeAttachment, context: u64) -> bool {
    let Some(status) = &object.status else { return false };
    let clean = status.attach_error.is_none() && status.detach_error.is_none();
    let marked = has_finalizer(object) && node_id(object).is_some();
    let told = status.attachment_metadata.as_ref().map(digest);
    status.attached && clean && marked && told.unwrap_or_else(|| digest(&BTreeMap::new())) == context
}

/// A patch of the object itself (strategic merge: finalizers are a set there, so others' are left alone).
pub(crate) fn mark(object: &VolumeAttachment, id: &str) -> Option<Value> {
    if has_finalizer(object) && node_id(object) == Some(id) {
        return None;
    }
    // The uid is a precondition: a later object of the same name is refused.
    Some(json!({"metadata": {"uid": uid(object), "finalizers": [FINALIZER], "annotations": {NODE_ID: id}}}))
}

/// A patch of the object itself: it may go.
pub(crate) fn unmark(object: &VolumeAttachment) -> Option<Value> {
    let patch = json!({"metadata": {"uid": uid(object), "$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
    has_finalizer(object).then_some(patch)
}

/// A patch of the status: attached, with this context, and no error.
pub(crate) fn attached(object: &VolumeAttachment, context: &BTreeMap<String, String>) -> Option<Value> {
    let status = object.status.clone().unwrap_or_default();
    let known = status.attachment_metadata.clone().unwrap_or_default();
    let clean = status.attach_error.is_none() && status.detach_error.is_none();
    if status.attached && clean && known == *context {
        return None;
    }
    let new = json!({"attached": true, "attachmentMetadata": replaced(&known, context), "attachError": null, "detachError": null});
    Some(of_status(object, &new))
}

/// A patch of the status: detached, and no error. Needed only where others keep the object from going.
pub(crate) fn detached(object: &VolumeAttachment) -> Option<Value> {
    let others = object.metadata.finalizers.iter().flatten().any(|one| one != FINALIZER);
    let VolumeAttachmentStatus { attached, attach_error, detach_error, attachment_metadata } =
        object.status.clone().unwrap_or_default();
    let clean = !attached && attach_error.is_none() && detach_error.is_none();
    if !others || (clean && attachment_metadata.unwrap_or_default().is_empty()) {
        return None;
    }
    let new =
        json!({"attached": false, "attachmentMetadata": null, "attachError": null, "detachError": null});
    Some(of_status(object, &new))
}

/// A patch of the status: not attached, and why. Where that is not known for sure (`known` is false), what `attached` says stays, whatever it says by now.
pub(crate) fn not_attached(
    object: &VolumeAttachment,
    why: &str,
    known: bool,
    now: jiff::Timestamp,
) -> Option<Value> {
    let status = object.status.clone().unwrap_or_default();
    let attached = status.attached && !known;
    if status.attached == attached && message(status.attach_error.as_ref()) == Some(why) {
        return None;
    }
    let mut new = json!({"attachError": error(why, now)});
    if known {
        new["attached"] = false.into();
        new["attachmentMetadata"] = Value::Null;
    }
    Some(of_status(object, &new))
}

/// A patch of the status: it is still there, and why. What `attached` says stays, since nothing is proven; it is not named, because this object may be
/// older than what it says by now.
pub(crate) fn not_detached(object: &VolumeAttachment, why: &str, now: jiff::Timestamp) -> Option<Value> {
    let status = object.status.clone().unwrap_or_default();
    if message(status.detach_error.as_ref()) == Some(why) {
        return None;
    }
    Some(of_status(object, &json!({"detachError": error(why, now)})))
}

fn of_status(object: &VolumeAttachment, status: &Value) -> Value {
    json!({"metadata": {"uid": uid(object)}, "status": status})
}

fn message(error: Option<&VolumeError>) -> Option<&str> {
    error?.message.as_deref()
}

fn error(why: &str, now: jiff::Timestamp) -> Value {
    json!({"time": format!("{now:.0}"), "message": why})
}

/// A merge patch keeps keys that it does not name, so those that are to go are named.
fn replaced(known: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Map<String, Value> {
    let gone = known.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let kept = new.iter().map(|(key, value)| (key.clone(), Value::String(value.clone())));
    gone.chain(kept).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;

    fn object(value: &Value) -> VolumeAttachment {
        let mut whole = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a", "uid": "u"},
            "spec": {"attacher": "bowline.storage", "nodeName": "n", "source": {"persistentVolumeName": "p"}}});
        for (key, part) in value.as_object().unwrap() {
            for (inner, one) in part.as_object().unwrap() {
                whole[key][inner] = one.clone();
            }
        }
        serde_json::from_value(whole).unwrap()
    }

    fn context(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn what_is_there_already_is_not_written_again() {
        let marked = object(&json!({"metadata": {"finalizers": [FINALIZER], "annotations": {NODE_ID: "n"}}}));
        assert_eq!(mark(&marked, "n"), None);
        assert!(mark(&marked, "other").is_some());
        assert!(mark(&object(&json!({})), "n").is_some());
        assert_eq!(unmark(&object(&json!({}))), None);
        let there = object(&json!({"status": {"attached": true, "attachmentMetadata": {"epoch": "1"}}}));
        assert_eq!(attached(&there, &context(&[("epoch", "1")])), None);
        let now = jiff::Timestamp::UNIX_EPOCH;
        let told = object(&json!({"status": {"attached": false, "attachError": {"message": "why"}}}));
        assert_eq!(not_attached(&told, "why", true, now), None);
        assert!(not_attached(&told, "because", true, now).is_some());
        let status = |known| not_attached(&there, "why", known, now).unwrap()["status"].clone();
        assert_eq!(
            (status(true)["attached"].clone(), status(false)["attached"].clone()),
            (json!(false), Value::Null),
            "what it says by now stays"
        );
        let told = object(&json!({"status": {"attached": true, "detachError": {"message": "why"}}}));
        assert_eq!(not_detached(&told, "why", now), None);
        assert_eq!(
            not_detached(&told, "x", now).unwrap()["status"]["attached"],
            Value::Null,
            "nothing is proven"
        );
    }

    #[test]
    fn an_old_context_goes_and_errors_are_cleared() {
        let there = object(
            &json!({"status": {"attached": true, "attachmentMetadata": {"epoch": "1", "old": "x"}, "attachError": {"message": "e"}}}),
        );
        let patch = attached(&there, &context(&[("epoch", "2")])).unwrap();
        assert_eq!(patch["status"]["attachmentMetadata"], json!({"epoch": "2", "old": null}));
        assert_eq!(patch["status"]["attachError"], Value::Null);
        assert_eq!(patch["metadata"]["uid"], "u");
    }

    #[test]
    fn the_last_write_of_a_detach_is_the_only_one() {
        let alone = object(&json!({"metadata": {"finalizers": [FINALIZER]}, "status": {"attached": true}}));
        assert_eq!(detached(&alone), None, "the object goes with its finalizer");
        let kept =
            object(&json!({"metadata": {"finalizers": [FINALIZER, "x/y"]}, "status": {"attached": true}}));
        assert_eq!(detached(&kept).unwrap()["status"]["attached"], false);
        assert_eq!(
            unmark(&kept).unwrap()["metadata"]["$deleteFromPrimitiveList/finalizers"],
            json!([FINALIZER])
        );
    }
}
