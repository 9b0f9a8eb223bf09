//! What holds after any sequence of events, and what `decide` does even with a ledger that no sequence could make.
//!
//! `PROPTEST_CASES=100000 cargo test -p bowline-core --test properties` looks longer. A sequence that breaks something
//! becomes a row in `tests/decide`, named after what went wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod event;
mod invariants;
mod strange;
mod volume;

use bowline_core::*;
use proptest::prelude::*;

use event::{Event, anything, tickets};
use volume::{Volume, start};

fn config(cases: u32) -> ProptestConfig {
    let given = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    let cases = if given { default.cases } else { cases };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..default }
}

fn lived(events: &[Event]) -> Volume {
    let mut volume = Volume::new();
    for event in events {
        volume.happen(event);
    }
    volume
}

proptest! {
    #![proptest_config(config(5000))]

    #[test]
    fn after_any_sequence_of_events_the_guarantees_hold(
        events in prop::collection::vec(anything(), 1..60)
    ) {
        lived(&events);
    }

    #[test]
    fn a_target_that_answers_brings_everything_to_rest(
        events in prop::collection::vec(anything(), 1..40)
    ) {
        lived(&events).comes_to_rest();
    }

    #[test]
    fn a_volume_that_nobody_wants_ends_without_a_hold(
        events in prop::collection::vec(anything(), 1..40)
    ) {
        let mut volume = lived(&events);
        volume.withdraw_all();
        volume.comes_to_rest();
        prop_assert!(volume.ledger.holds().is_empty());
        prop_assert_eq!(volume.ledger.migration(), None);
    }

    #[test]
    fn the_order_in_which_tickets_are_filed_does_not_matter(
        (filed, shuffled) in tickets().prop_flat_map(|filed| (Just(filed.clone()), Just(filed).prop_shuffle()))
    ) {
        let file = |tickets: Vec<Ticket>| {
            let mut ledger = Ledger::default();
            for ticket in tickets {
                ledger.submit(ticket, start()).unwrap();
            }
            decide(&ledger, &Volume::new().seen, start())
        };
        prop_assert_eq!(file(filed), file(shuffled));
    }

    #[test]
    fn even_a_strange_ledger_lets_nobody_in_beside_another(
        (ledger, seen) in strange::case()
    ) {
        strange::check(&ledger, &seen);
    }
}
