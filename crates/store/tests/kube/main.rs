//! The store in Kubernetes against a real API server: the contract, and what can happen there only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a failed test")]

mod lab;
mod records;
mod rules;
mod trouble;

/// The rows of the contract that hold for it. Those about odd names, any bytes and a history of so many changes cannot:
/// `rules.rs` and `trouble.rs` have what holds instead.
mod contract {
    use super::lab::fixture;
    bowline_store::contract!(@rows fixture;
        what_was_put_is_read
        what_was_never_put_is_absent
        expectations_are_kept
        a_conflict_writes_nothing
        revisions_only_rise
        a_record_made_again_is_another_one
        pages_cover_everything_in_order
        a_limit_of_zero_counts_as_one
        a_listing_is_stable_while_others_write
        a_watch_shows_every_change_in_order
        a_watch_from_a_page_misses_nothing
        a_watch_from_the_future_is_compacted
        concurrent_increments_lose_none
        of_concurrent_creators_one_wins
        a_dropped_put_happens_wholly_or_not_at_all
    );
}
