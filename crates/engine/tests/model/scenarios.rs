//! The worlds that are explored, as a table: what happens, in which order at the least, and how much may go wrong.

use bowline_core::Timestamp;

use crate::script::*;
use crate::world::Faults;

const SINCE: Timestamp = Timestamp::UNIX_EPOCH;

/// Every scenario; `deep` widens the bounds.
pub(crate) fn all(deep: bool) -> Vec<Scenario> {
    let more = u8::from(deep);
    let faults = |crashes, losses, copies| Faults { crashes, losses: losses + more, copies };
    let one = Scenario {
        name: "",
        about: "",
        volume: volume(),
        up: 1,
        controllers: 1,
        before: 0,
        lines: Vec::new(),
        faults: faults(1, 1, 1),
    };
    vec![Scenario {
        name: "move",
        about: "a workload moves from a to b: both tickets are filed, the one of a is withdrawn",
        before: 1,
        lines: vec![submit(csi("a")), submit(csi("b")), withdraw("a")],
        ..one.clone()
    }]
}
