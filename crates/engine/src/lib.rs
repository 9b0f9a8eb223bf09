//! One actor per busy volume, and the executor that turns decisions into deeds in the right order.

pub mod executor;

pub use executor::{Action, Decide, Executor, Patience, Standing, Turn, Withdrawal, Written};
