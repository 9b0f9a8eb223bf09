//! Parameters of a storage class, and those that can be changed later. One that is not known is refused by its name: who
//! misspells one shall not find out later.

use bowline_core::{AccessMode, FsType, MigrationTimeout, TargetId};
use bowline_csi::{Access, Attributes, VolumeCapability};
use bowline_target::{FILE, NVMET, RDS};

use crate::catalog::Change;
use crate::failure::{Failure, Why};
use crate::record::{Settings, Use};

/// Kubernetes' provisioner and snapshotter add keys of their own.
const OF_KUBERNETES: &str = "csi.storage.k8s.io/";

const FS_TYPE: &str = "fsType";
const TARGET: &str = "target";
const KIND: &str = "kind";
const MIGRATABLE: &str = "migratable";
const DELETION_PROTECTION: &str = "deletionProtection";
const DISCARD: &str = "discard";

fn unsupported(sentence: String) -> Failure {
    Failure::new(Why::Unsupported, sentence)
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

/// What a storage class may say.
#[derive(Default)]
pub(crate) struct Class {
    /// The filesystem.
    pub(crate) fs: Option<FsType>,
    /// On which target volumes are made.
    pub(crate) target: Option<TargetId>,
    /// Of which kind that target is.
    pub(crate) kind: Option<&'static str>,
    /// What can be changed later.
    pub(crate) change: Change,
}

pub(crate) fn of_class(parameters: &Attributes) -> Result<Class, Failure> {
    let mut class = Class::default();
    for (key, value) in parameters.iter().filter(|(key, _)| !key.starts_with(OF_KUBERNETES)) {
        if key == FS_TYPE {
            class.fs = Some(filesystem("parameters[fsType]", value)?);
        } else if key == TARGET {
            let target = TargetId::new(value);
            class.target = Some(target.map_err(|error| unsupported(format!("parameters[target]: {error}")))?);
        } else if key == KIND {
            class.kind = Some(kind(value)?);
        } else if !set(&mut class.change, "parameters", key, value)? {
            let known = [FS_TYPE, TARGET, KIND, MIGRATABLE, DELETION_PROTECTION, DISCARD].join(", ");
            return Err(unsupported(format!("parameters[{}] is not known; known are {known}", shown(key))));
        }
    }
    Ok(class)
}

fn kind(value: &str) -> Result<&'static str, Failure> {
    let found = [FILE, NVMET, RDS].into_iter().find(|kind| *kind == value);
    found.ok_or_else(|| {
        unsupported(format!("parameters[{KIND}] is {}; it must be {FILE}, {NVMET} or {RDS}", shown(value)))
    })
}

/// What can be changed later.
pub(crate) fn mutable(parameters: &Attributes) -> Result<Change, Failure> {
    let mut change = Change::default();
    for (key, value) in parameters.iter() {
        if !set(&mut change, "mutable_parameters", key, value)? {
            let known = [MIGRATABLE, DELETION_PROTECTION, DISCARD].join(", ");
            let sentence = format!("mutable_parameters[{}] is not known; known are {known}", shown(key));
            return Err(unsupported(sentence));
        }
    }
    Ok(change)
}

/// A snapshot class has nothing to say.
pub(crate) fn of_snapshots(parameters: &Attributes) -> Result<(), Failure> {
    match parameters.iter().find(|(key, _)| !key.starts_with(OF_KUBERNETES)) {
        Some((key, _)) => {
            Err(unsupported(format!("parameters[{}] is not known; there are none", shown(key))))
        }
        None => Ok(()),
    }
}

/// Tells whether the key is one of these.
fn set(change: &mut Change, field: &str, key: &str, value: &str) -> Result<bool, Failure> {
    match key {
        MIGRATABLE => change.migratable = Some(migratable(field, value)?),
        DELETION_PROTECTION => change.deletion_protection = Some(truth(field, key, value)?),
        DISCARD => change.discard = Some(truth(field, key, value)?),
        _ => return Ok(false),
    }
    Ok(true)
}

fn truth(field: &str, key: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(unsupported(format!("{field}[{key}] is {}; it must be true or false", shown(value)))),
    }
}

fn migratable(field: &str, value: &str) -> Result<Option<MigrationTimeout>, Failure> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = || value.parse().ok().and_then(|seconds| MigrationTimeout::from_seconds(seconds).ok());
    match value {
        "true" => Ok(Some(MigrationTimeout::default())),
        "false" => Ok(None),
        _ => match Some(value).filter(|_| digits).and_then(|_| seconds()) {
            Some(timeout) => Ok(Some(timeout)),
            None => Err(unsupported(format!(
                "{field}[{MIGRATABLE}] is {}; it must be true, false, or 30 to 3600 seconds",
                shown(value)
            ))),
        },
    }
}

fn filesystem(field: &str, name: &str) -> Result<FsType, Failure> {
    name.parse().map_err(|error| unsupported(format!("{field}: {error}")))
}

/// The settings of a new volume: what the class says, and over it what was given for this one.
pub(crate) fn settings(class: &Change, given: &Change) -> Settings {
    Settings {
        migratable: given.migratable.or(class.migratable).flatten(),
        deletion_protection: given.deletion_protection.or(class.deletion_protection).unwrap_or_default(),
        discard: given.discard.or(class.discard).unwrap_or_default(),
    }
}

/// The filesystem of a new volume: its capabilities and its class must agree on one.
pub(crate) fn filesystem_of(
    capabilities: &[VolumeCapability],
    class: Option<FsType>,
) -> Result<Option<FsType>, Failure> {
    let mut fs = class;
    for (index, capability) in capabilities.iter().enumerate() {
        let Access::Mount(mount) = &capability.access else { continue };
        let Some(wanted) = &mount.fs_type else { continue };
        let field = format!("volume_capabilities[{index}].mount.fs_type");
        let wanted = filesystem(&field, wanted.as_str())?;
        if let Some(other) = fs.filter(|other| *other != wanted) {
            return Err(unsupported(format!("{field} is {wanted}, but {other} is asked for elsewhere")));
        }
        fs = Some(wanted);
    }
    Ok(fs)
}

pub(crate) fn use_of(capability: &VolumeCapability) -> Use {
    Use { access: capability.mode, content: capability.content() }
}

/// Whether a volume that was made for one use will do for another: for fewer at once, and for those that only read.
pub(crate) fn will_do(made_for: &Use, wanted: &Use) -> bool {
    made_for.content == wanted.content && modes(made_for.access).contains(&wanted.access)
}

fn modes(made_for: AccessMode) -> &'static [AccessMode] {
    use AccessMode::*;
    match made_for {
        SingleNodeReaderOnly | MultiNodeReaderOnly => &[SingleNodeReaderOnly, MultiNodeReaderOnly],
        SingleNodeWriter | SingleNodeSingleWriter | SingleNodeMultiWriter => &[
            SingleNodeWriter,
            SingleNodeSingleWriter,
            SingleNodeMultiWriter,
            SingleNodeReaderOnly,
            MultiNodeReaderOnly,
        ],
        MultiNodeSingleWriter => &[
            MultiNodeSingleWriter,
            SingleNodeWriter,
            SingleNodeSingleWriter,
            SingleNodeMultiWriter,
            SingleNodeReaderOnly,
            MultiNodeReaderOnly,
        ],
        MultiNodeMultiWriter => &AccessMode::ALL,
    }
}
