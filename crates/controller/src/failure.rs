//! Why something was not done, before it is known which call asks: one reason and one sentence.

use bowline_csi::code::{
    ControllerExpandError, ControllerModifyError, ControllerPublishError, ControllerUnpublishError,
    CreateSnapshotError, CreateVolumeError, DeleteSnapshotError, DeleteVolumeError, GetCapacityError,
    GetSnapshotError, GetVolumeError, ListError,
};
use bowline_store::{RecordError, StoreError};
use bowline_target::ProvisionError;

/// Why something was not done, and the sentence that tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) why: Why,
    pub(crate) sentence: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It can never be done so.
    Unsupported,
    /// What it is to be made from, or is asked about, is not there.
    Unknown,
    /// The name is taken by something else.
    Different,
    /// No such size.
    Size,
    /// No room.
    NoRoom,
    /// Somebody needs it as it is.
    InUse,
    /// Not at one moment.
    NotTogether,
    /// Somebody else is at it.
    Busy,
    /// The store or the target did not answer; it may land.
    Unreachable,
    /// It goes on.
    TimedOut,
    /// For good, and nothing of it is left.
    Broken,
}

impl Failure {
    pub(crate) fn new(why: Why, sentence: impl Into<String>) -> Self {
        Self { why, sentence: sentence.into() }
    }

    /// Whether it may still come to a good end, so that somebody has to look again.
    pub(crate) fn may_land(&self) -> bool {
        match self.why {
            Why::Busy | Why::Unreachable | Why::TimedOut => true,
            Why::Unsupported
            | Why::Unknown
            | Why::Different
            | Why::Size
            | Why::NoRoom
            | Why::InUse
            | Why::NotTogether
            | Why::Broken => false,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::new(Why::Unreachable, error.to_string())
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        Self::new(Why::Unreachable, error.to_string())
    }
}

/// What a target's answer means where nothing more special is known.
impl From<ProvisionError> for Failure {
    fn from(error: ProvisionError) -> Self {
        let why = match &error {
            ProvisionError::NoRoom { .. } => Why::NoRoom,
            ProvisionError::Unknown { .. } => Why::Unknown,
            ProvisionError::InUse { .. } => Why::InUse,
            ProvisionError::Different { .. }
            | ProvisionError::Refused { .. }
            | ProvisionError::Damaged { .. } => Why::Broken,
            ProvisionError::Unreachable { .. } => Why::Unreachable,
        };
        Self::new(why, error.to_string())
    }
}

/// One row per error of the code table: what each reason is called there. Reasons that a call cannot have are told as
/// `Busy`, which makes its caller ask again and forgets nothing.
macro_rules! told {
    ($($error:ident: $unsupported:ident $unknown:ident $different:ident $size:ident $no_room:ident $in_use:ident $together:ident;)*) => {
        $(impl From<Failure> for $error {
            fn from(Failure { why, sentence }: Failure) -> Self {
                match why {
                    Why::Unsupported => Self::$unsupported(sentence),
                    Why::Unknown => Self::$unknown(sentence),
                    Why::Different => Self::$different(sentence),
                    Why::Size => Self::$size(sentence),
                    Why::NoRoom => Self::$no_room(sentence),
                    Why::InUse => Self::$in_use(sentence),
                    Why::NotTogether => Self::$together(sentence),
                    Why::Busy => Self::Busy(sentence),
                    Why::Unreachable => Self::Unreachable(sentence),
                    Why::TimedOut => Self::TimedOut(sentence),
                    Why::Broken => Self::Broken(sentence),
                }
            }
        })*
    };
}

told! {
    //                        Unsupported  Unknown         Different     Size        NoRoom      InUse         NotTogether
    CreateVolumeError:        Unsupported  UnknownSource   Different     Size        NoRoom      Busy          Busy;
    DeleteVolumeError:        Busy         Busy            Busy          Busy        Busy        InUse         Busy;
    ControllerExpandError:    Unsupported  UnknownVolume   Busy          Size        NoRoom      InUse         Busy;
    ControllerModifyError:    Unsupported  UnknownVolume   Busy          Busy        Busy        InUse         Busy;
    ControllerPublishError:   Unsupported  UnknownVolume   DifferentMode Busy        Busy        NotAttachable Busy;
    ControllerUnpublishError: Busy         Busy            Busy          Busy        Busy        Busy          Busy;
    CreateSnapshotError:      Unsupported  UnknownVolume   Different     Unsupported NoRoom      Busy          NotTogether;
    DeleteSnapshotError:      Busy         Busy            Busy          Busy        Busy        InUse         Busy;
    GetVolumeError:           Busy         UnknownVolume   Busy          Busy        Busy        Busy          Busy;
    GetSnapshotError:         Busy         UnknownSnapshot Busy          Busy        Busy        Busy          Busy;
    ListError:                Busy         UnknownToken    Busy          Busy        Busy        Busy          Busy;
    GetCapacityError:         Unsupported  Busy            Busy          Busy        Busy        Busy          Busy;
}
