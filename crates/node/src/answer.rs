//! Why work on this node was not done, and which reason of which call that is.

use crate::devices::DevicesError;
use crate::state::StateError;
use bowline_csi::code::{
    NodeExpandError, PublishError, StageError, StatsError, UnpublishError, UnstageError,
};
use bowline_csi::{InvalidField, Problem};
use bowline_host::command::CommandError;
use bowline_host::device::DeviceError;
use bowline_host::mount::MountError;
use bowline_host::mountinfo::MountInfoError;
use bowline_host::path::PlaceError;

/// Why it was not done, whatever the call was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    /// It cannot be used so.
    #[error("{0}")]
    Unsupported(String),
    /// There is no such thing here.
    #[error("{0}")]
    Unknown(String),
    /// It is there in another way.
    #[error("{0}")]
    Different(String),
    /// Something has to happen first.
    #[error("{0}")]
    NotReady(String),
    #[error("{0}")]
    Size(String),
    #[error("{0}")]
    Busy(String),
    /// It may still land, or will do when it is asked for again.
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    TimedOut(String),
    /// It failed, and nothing of it can still land.
    #[error("{0}")]
    Broken(String),
}

impl Fault {
    /// Whether the caller may forget that it asked.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Unreachable(_) | Self::TimedOut(_) => false,
            Self::Invalid(_)
            | Self::Unsupported(_)
            | Self::Unknown(_)
            | Self::Different(_)
            | Self::NotReady(_)
            | Self::Size(_)
            | Self::Broken(_) => true,
        }
    }

    /// A path of a request that cannot be used. Missing directories are the caller's to make.
    pub(crate) fn place(field: &'static str, error: &PlaceError) -> Self {
        let invalid = |problem| {
            Self::Invalid(InvalidField { field: field.to_owned(), problem: Problem::Form(problem) })
        };
        match error {
            PlaceError::Outside { .. } => invalid("lies outside the directories that this driver works in"),
            PlaceError::Symlink { .. } => invalid("has a symbolic link in it"),
            PlaceError::Kind { .. } => Self::Different(error.to_string()),
            PlaceError::NoParent { .. } => Self::NotReady(error.to_string()),
            PlaceError::NotEmpty { .. } | PlaceError::MountPoint { .. } => Self::Broken(error.to_string()),
            PlaceError::Io { .. } => Self::Unreachable(error.to_string()),
        }
    }

    pub(crate) fn mount(field: &'static str, error: &MountError) -> Self {
        let said = error.to_string();
        match error {
            MountError::Place(error) => Self::place(field, error),
            MountError::Occupied { .. } | MountError::Differs { .. } => Self::Different(said),
            MountError::Writable { .. } => Self::Unsupported(said),
            MountError::Table(_) | MountError::Device(_) | MountError::Kernel { .. } => {
                Self::Unreachable(said)
            }
        }
    }

    /// A program may have been stopped in the middle of its work, which is looked at when it is asked for again.
    pub(crate) fn command(error: &CommandError) -> Self {
        let said = error.to_string();
        match error {
            CommandError::Missing { .. } | CommandError::Failed { .. } => Self::Broken(said),
            CommandError::Start { .. }
            | CommandError::Killed { .. }
            | CommandError::TimedOut { .. }
            | CommandError::Stuck { .. } => Self::Unreachable(said),
        }
    }
}

impl From<DevicesError> for Fault {
    fn from(error: DevicesError) -> Self {
        let said = error.to_string();
        match error {
            DevicesError::UnknownVolume(_) => Self::Unknown(said),
            DevicesError::NotGranted(_) | DevicesError::InUse(_) => Self::NotReady(said),
            DevicesError::Orphaned(_) | DevicesError::Unreachable(_) => Self::Unreachable(said),
        }
    }
}

impl From<StateError> for Fault {
    fn from(error: StateError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<DeviceError> for Fault {
    fn from(error: DeviceError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<MountInfoError> for Fault {
    fn from(error: MountInfoError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// One row per reason; what a call's table has no word for is `Broken`.
macro_rules! answers {
    ($($error:ident { $($fault:ident => $reason:ident,)* })*) => {
        $(
            impl From<Fault> for $error {
                fn from(fault: Fault) -> Self {
                    match fault {
                        Fault::Invalid(field) => Self::Invalid(field),
                        Fault::Busy(said) => Self::Busy(said),
                        Fault::Unreachable(said) => Self::Unreachable(said),
                        Fault::TimedOut(said) => Self::TimedOut(said),
                        Fault::Broken(said) => Self::Broken(said),
                        $(Fault::$fault(said) => Self::$reason(said),)*
                    }
                }
            }
        )*
    };
}

answers! {
    StageError {
        Unsupported => Unsupported,
        Unknown => UnknownVolume,
        Different => DifferentMode,
        NotReady => NotReady,
        Size => Broken,
    }
    UnstageError {
        Unsupported => Broken,
        Unknown => Broken,
        Different => Broken,
        NotReady => InUse,
        Size => Broken,
    }
    PublishError {
        Unsupported => Unsupported,
        Unknown => UnknownVolume,
        Different => DifferentMode,
        NotReady => NotStaged,
        Size => Broken,
    }
    UnpublishError {
        Unsupported => Broken,
        Unknown => UnknownVolume,
        Different => Broken,
        NotReady => Broken,
        Size => Broken,
    }
    StatsError {
        Unsupported => Broken,
        Unknown => UnknownVolume,
        Different => Broken,
        NotReady => Unreachable,
        Size => Broken,
    }
    NodeExpandError {
        Unsupported => Unsupported,
        Unknown => UnknownVolume,
        Different => Broken,
        NotReady => InUse,
        Size => Size,
    }
}
