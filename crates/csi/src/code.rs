//! Why a call was not done, and the one table that says which gRPC code each reason has.
//!
//! The kubelet and the sidecars read more into a code than its name says. `Canceled`, `DeadlineExceeded`,
//! `Unavailable`, `ResourceExhausted` and `Aborted` mean "it may still happen": the caller asks again, and keeps
//! treating the volume as possibly in use. **Every other code is final**: the caller may forget that it ever asked.
//! So a reason with a final code may be given only when nothing of the call can still land; `Broken` (`Internal`)
//! too. [`Reason::is_final`] tells which is which.

use crate::field::InvalidField;
use tonic::{Code, Status};

/// Texts beyond this are cut: they travel in a header, which peers bound.
const MESSAGE_BYTES: usize = 2048;

/// What every error of this table can tell.
pub trait Reason: std::error::Error + Into<Status> {
    /// The gRPC code that the caller gets.
    fn code(&self) -> Code;

    /// Its name, for callers that are told more than a gRPC code.
    fn name(&self) -> &'static str;

    /// Whether the caller may forget that it asked. If so, nothing of the call may be left behind.
    fn is_final(&self) -> bool {
        is_final(self.code())
    }
}

/// What a code is called in metrics and logs: as grpc-go spells it, which is what the sidecars' metrics say.
pub fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

fn is_final(code: Code) -> bool {
    !matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    )
}

fn status(code: Code, mut message: String) -> Status {
    if message.len() > MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES - '…'.len_utf8()));
        message.push('…');
    }
    Status::new(code, message)
}

/// Declares errors as rows `Reason => Code`. Those that every call shares are written once, below.
macro_rules! table {
    ($($(#[$doc:meta])* $name:ident { $($(#[$row:meta])* $reason:ident => $code:ident,)* })*) => {
        $(
            $(#[$doc])*
            ///
            /// Each reason carries the sentence that the caller is told.
            #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
            pub enum $name {
                /// A field of the request cannot be accepted.
                #[error(transparent)]
                Invalid(#[from] InvalidField),
                $($(#[$row])* #[error("{0}")] $reason(String),)*
                /// Another call is busy with the same thing, or this one is still under way: ask again.
                #[error("{0}")]
                Busy(String),
                /// What is needed for it does not answer: ask again.
                #[error("{0}")]
                Unreachable(String),
                /// Not done in time; it goes on, and asking again joins it.
                #[error("{0}")]
                TimedOut(String),
                /// It failed for good, and nothing of it can still land.
                #[error("{0}")]
                Broken(String),
            }

            impl Reason for $name {
                fn code(&self) -> Code {
                    match self {
                        Self::Invalid(_) => Code::InvalidArgument,
                        $(Self::$reason(_) => Code::$code,)*
                        Self::Busy(_) => Code::Aborted,
                        Self::Unreachable(_) => Code::Unavailable,
                        Self::TimedOut(_) => Code::DeadlineExceeded,
                        Self::Broken(_) => Code::Internal,
                    }
                }

                fn name(&self) -> &'static str {
                    match self {
                        Self::Invalid(_) => "Invalid",
                        $(Self::$reason(_) => stringify!($reason),)*
                        Self::Busy(_) => "Busy",
                        Self::Unreachable(_) => "Unreachable",
                        Self::TimedOut(_) => "TimedOut",
                        Self::Broken(_) => "Broken",
                    }
                }
            }

            impl From<$name> for Status {
                fn from(error: $name) -> Self {
                    status(error.code(), error.to_string())
                }
            }
        )*

        /// The name of every reason in this table; those that several calls share are there several times.
        pub const REASONS: &[&str] = &[
            "Invalid", "Busy", "Unreachable", "TimedOut", "Broken", $($(stringify!($reason),)*)*
        ];

        #[cfg(test)]
        fn rows() -> Vec<(&'static str, &'static str, Status, bool)> {
            let mut rows = vec![];
            let invalid = || crate::field::At::field("name").is(crate::field::Problem::Missing);
            $(
                for (reason, error) in [
                    ("Invalid", $name::Invalid(invalid())),
                    $((stringify!($reason), $name::$reason(stringify!($reason).to_owned())),)*
                    ("Busy", $name::Busy("Busy".to_owned())),
                    ("Unreachable", $name::Unreachable("Unreachable".to_owned())),
                    ("TimedOut", $name::TimedOut("TimedOut".to_owned())),
                    ("Broken", $name::Broken("Broken".to_owned())),
                ] {
                    let is_final = error.is_final();
                    assert_eq!(error.name(), reason);
                    rows.push((stringify!($name), reason, error.into(), is_final));
                }
            )*
            rows
        }
    };
}

table! {
    /// Why an `Identity` call was not done.
    IdentityError {}

    /// Why `CreateVolume` was not done.
    CreateVolumeError {
        /// The driver does not know such a parameter, capability or value.
        Unsupported => InvalidArgument,
        /// The snapshot or volume to copy is not there.
        UnknownSource => NotFound,
        /// The name is taken by a volume that is not like this.
        Different => AlreadyExists,
        /// No volume can have such a size.
        Size => OutOfRange,
        /// There is no room, or none where it has to be reachable.
        NoRoom => ResourceExhausted,
    }

    /// Why `DeleteVolume` was not done. A volume that is not there is deleted.
    DeleteVolumeError {
        /// It is attached, protected or needed by something else.
        InUse => FailedPrecondition,
    }

    /// Why `ControllerPublishVolume` was not done.
    ControllerPublishError {
        /// The driver cannot let it be used so.
        Unsupported => InvalidArgument,
        /// There is no such volume.
        UnknownVolume => NotFound,
        /// There is no such node.
        UnknownNode => NotFound,
        /// The same node has it in another mode.
        DifferentMode => AlreadyExists,
        /// Another node holds it.
        HeldElsewhere => FailedPrecondition,
        /// The volume is being deleted, is faulted, or cannot be attached for another reason that waiting does not cure.
        NotAttachable => FailedPrecondition,
        /// The node has as many volumes as it can have.
        NodeFull => ResourceExhausted,
    }

    /// Why `ControllerUnpublishVolume` was not done. A node that is not let in, or a volume that is not there, is done.
    ControllerUnpublishError {}

    /// Why `ValidateVolumeCapabilities` was not answered.
    ValidateCapabilitiesError {
        /// There is no such volume.
        UnknownVolume => NotFound,
    }

    /// Why `ListVolumes`, `ListSnapshots` or `ControllerListVolumeHealth` was not answered.
    ListError {
        /// The token is none of ours, or too old: begin the list again.
        UnknownToken => Aborted,
    }

    /// Why `GetCapacity` was not answered.
    GetCapacityError {
        /// The driver does not know such a parameter or capability.
        Unsupported => InvalidArgument,
    }

    /// Why `ControllerGetVolume` or `ControllerGetVolumeHealth` was not answered.
    GetVolumeError {
        /// There is no such volume.
        UnknownVolume => NotFound,
    }

    /// Why `ControllerExpandVolume` was not done.
    ControllerExpandError {
        /// The driver cannot let it be used so.
        Unsupported => InvalidArgument,
        /// There is no such volume.
        UnknownVolume => NotFound,
        /// The volume cannot grow as it is used now.
        InUse => FailedPrecondition,
        /// No volume can have such a size, or it would have to shrink.
        Size => OutOfRange,
        /// There is no room.
        NoRoom => ResourceExhausted,
    }

    /// Why `ControllerModifyVolume` was not done.
    ControllerModifyError {
        /// The driver does not know such a parameter or value.
        Unsupported => InvalidArgument,
        /// There is no such volume.
        UnknownVolume => NotFound,
        /// The volume cannot be changed so as it is used now.
        InUse => FailedPrecondition,
    }

    /// Why `CreateSnapshot` or `CreateVolumeGroupSnapshot` was not done.
    CreateSnapshotError {
        /// The driver does not know such a parameter or value.
        Unsupported => InvalidArgument,
        /// There is no such volume.
        UnknownVolume => NotFound,
        /// The name is taken by a snapshot of something else.
        Different => AlreadyExists,
        /// The volumes cannot be taken together.
        NotTogether => FailedPrecondition,
        /// There is no room, or none where it has to be reachable.
        NoRoom => ResourceExhausted,
    }

    /// Why `DeleteSnapshot` or `DeleteVolumeGroupSnapshot` was not done. A snapshot that is not there is deleted.
    DeleteSnapshotError {
        /// The snapshots named are not those of the group.
        Mismatch => InvalidArgument,
        /// Something still needs it, or it belongs to a group that has to go first.
        InUse => FailedPrecondition,
    }

    /// Why `GetSnapshot` or `GetVolumeGroupSnapshot` was not answered.
    GetSnapshotError {
        /// The snapshots named are not those of the group.
        Mismatch => InvalidArgument,
        /// There is no such snapshot or group.
        UnknownSnapshot => NotFound,
    }

    /// Why `NodeStageVolume` was not done.
    StageError {
        /// The driver cannot let it be used so.
        Unsupported => InvalidArgument,
        /// There is no such volume.
        UnknownVolume => NotFound,
        /// It is staged there already, in another way.
        DifferentMode => AlreadyExists,
        /// This node is not let in, or still has an older mount of it.
        NotReady => FailedPrecondition,
    }

    /// Why `NodeUnstageVolume` was not done. What is not staged is unstaged.
    UnstageError {
        /// A workload still sees it.
        InUse => FailedPrecondition,
    }

    /// Why `NodePublishVolume` was not done.
    PublishError {
        /// The driver cannot let it be used so.
        Unsupported => InvalidArgument,
        /// There is no such volume.
        UnknownVolume => NotFound,
        /// Something else is at the path, or the volume in another way.
        DifferentMode => AlreadyExists,
        /// It is not staged, or a workload that wants to be alone has it.
        NotStaged => FailedPrecondition,
    }

    /// Why `NodeUnpublishVolume` was not done.
    UnpublishError {
        /// There is no such volume.
        UnknownVolume => NotFound,
    }

    /// Why `NodeGetVolumeStats`, `NodeGetVolumeHealth` or `NodeGetStorageHealth` was not answered.
    StatsError {
        /// There is no such volume, or not at that path.
        UnknownVolume => NotFound,
    }

    /// Why `NodeExpandVolume` was not done.
    NodeExpandError {
        /// The driver cannot let it be used so.
        Unsupported => InvalidArgument,
        /// There is no such volume, or not at that path.
        UnknownVolume => NotFound,
        /// It cannot grow as it is used now.
        InUse => FailedPrecondition,
        /// It cannot have such a size.
        Size => OutOfRange,
    }

    /// Why `NodeGetInfo` was not answered.
    NodeInfoError {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fmt::Write as _;

    /// What callers understand. `Unauthenticated`, `PermissionDenied`, `Unknown`, `DataLoss` and `Ok` say nothing to
    /// them, `Unimplemented` is for whole calls, and `Cancelled` is the caller's own.
    const LEGAL: [Code; 9] = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::AlreadyExists,
        Code::FailedPrecondition,
        Code::OutOfRange,
        Code::Aborted,
        Code::Unavailable,
        Code::DeadlineExceeded,
        Code::ResourceExhausted,
    ];

    #[test]
    fn every_reason_has_its_code_and_tells_its_sentence() {
        let mut table = String::new();
        for (error, reason, status, is_final) in rows() {
            let finality = if is_final { "final" } else { "ask again" };
            let code = format!("{:?}", status.code());
            writeln!(table, "{error:<26} {reason:<15} {code:<18} {finality}").unwrap();
            let sentence = if reason == "Invalid" { "name is required" } else { reason };
            assert_eq!(status.message(), sentence, "{error}::{reason}");
            let is_broken = reason == "Broken" && status.code() == Code::Internal;
            assert!(LEGAL.contains(&status.code()) || is_broken, "{error}::{reason} is {:?}", status.code());
            let may_land = matches!(reason, "Busy" | "Unreachable" | "TimedOut");
            assert!(!(may_land && is_final), "{error}::{reason} would be forgotten while it may still land");
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn a_reason_means_the_same_code_everywhere() {
        let mut codes: BTreeMap<&str, Code> = BTreeMap::new();
        for (error, reason, status, _) in rows() {
            let code = *codes.entry(reason).or_insert(status.code());
            assert_eq!(code, status.code(), "{error}::{reason}");
        }
    }

    #[test]
    fn a_sentence_without_end_is_cut_between_characters() {
        let status = Status::from(DeleteVolumeError::Busy("ä".repeat(5000)));
        assert!(status.message().len() <= MESSAGE_BYTES && status.message().ends_with("ä…"));
    }
}
