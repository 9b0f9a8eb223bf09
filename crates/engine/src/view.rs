use bowline_core::{Ledger, NodeId, Outcome, State, TicketId, Timestamp, Verdict, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is known of one volume at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The volume as it stood when it was last read; unset until then.
    pub view: Option<Arc<View>>,
    /// Why the store cannot be read or written, while that lasts.
    pub trouble: Option<String>,
}

/// One volume as it stands: what `bowline why` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Which volume.
    pub volume: VolumeId,
    /// Its state, for people.
    pub state: State,
    /// Its ledger.
    pub ledger: Ledger,
    /// The verdict on every ticket.
    pub verdicts: BTreeMap<TicketId, Verdict>,
    /// The latest answer of the target about each node that is being let in or shut out.
    pub answers: BTreeMap<NodeId, Outcome>,
    /// When it will be decided again although nothing was heard.
    pub wake: Option<Timestamp>,
    /// Whether its ledger was lost and the target has not said yet whom it lets in: somebody may be in of whom nothing is shown here.
    pub lost: bool,
}
