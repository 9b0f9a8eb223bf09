//! One actor per busy volume, and the executor that turns decisions into deeds in the right order.
//!
//! [`start`] reads everything back and gives an [`Engine`]; [`Engine::submit`], [`Engine::withdraw`], the `observe_…`
//! methods and [`Engine::watch`] are all there is to it. What is done in which order is [`executor`]'s alone.

mod actor;
mod adopt;
mod changes;
mod clock;
mod engine;
pub mod executor;
mod link;
mod metrics;
mod nodes;
mod settings;
mod start;
mod stored;
mod view;
mod waiters;

pub use adopt::Exports;
pub use changes::Changes;
pub use clock::{Clock, SystemClock};
pub use engine::{Engine, EngineError, Submitted, Waiting, Withdrawn};
pub use executor::{Action, Decide, Executor, Patience, Standing, Turn, Withdrawal, Written};
pub use metrics::Metrics;
pub use nodes::NodeReport;
pub use settings::Settings;
pub use start::{CompareError, Parts, StartError, start};
pub use view::{Status, View};
