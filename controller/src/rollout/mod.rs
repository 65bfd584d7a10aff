//! The fleet's side of a play: waves, the budget of nodes out of service, thresholds, permits.
//!
//! A pure core: [`Rollout::step`] takes what happened and answers what to do. It sees neither YAML nor variables nor
//! sockets nor a clock, so that a hundred thousand nodes can be simulated in a test.
//!
//! Invariants (each one a property test in `tests`):
//! * never more nodes out than the budget allows, whoever took them out;
//! * no permit without a proof of idleness right before it;
//! * past a threshold, or after an interrupt, nothing new starts;
//! * every node that was started ends, and every request for a permit is answered.

mod budget;
mod core;
#[cfg(test)]
mod tests;
mod waves;
mod window;

pub use budget::{Amount, BudgetError};
pub use core::{Action, Denial, End, Input, Rollout, RolloutError, StopReason, Thresholds};
pub use waves::{Batch, Wave, WaveHost, plan_waves};
pub use window::{Opening, Window, WindowError};
