//! The rollout of a play: waves, budgets of nodes out of service, windows, drains, thresholds, permits.
//!
//! A pure core: [`Rollout::step`] takes the time and an input, and returns actions. It uses neither YAML nor
//! variables nor sockets nor a clock, so that a test can simulate a hundred thousand nodes, and a new controller
//! needs no more than the journal of its inputs.
//!
//! Invariants (each one a property test in `tests`):
//! * at no claim are more nodes out than the budget and the limit of each failure domain allow, for any reason;
//! * no host is denied because of outages that only surveys report, unless they lasted for the policy's patience;
//! * no permit without a proof of idleness right before it, and without a drain if nodes are drained;
//! * no claim outside the window, and inside only one that can finish;
//! * past a threshold, or after an interrupt, nothing new starts, and nodes that are being drained are given back;
//! * no wave before every canary is done and the soak is over;
//! * every node that was started ends, and every request for a permit is answered;
//! * the same inputs give the same state.

mod admission;
mod budget;
mod core;
mod host;
mod places;
mod policy;
mod progress;
mod queue;
mod silence;
mod survey;
#[cfg(test)]
mod tests;
mod waves;
mod words;

pub use budget::{Amount, BudgetError};
pub use core::{Lost, Rollout, SoFar};
pub use gpufleet_language::window::{Opening, Window, WindowError};
pub use policy::{Domains, Needs, Policy, Thresholds};
pub use silence::{Cycles, Evidence, Silence, Voices, WayWord, Witness};
pub use waves::{Batch, Wave, WaveHost, plan_waves};
pub use words::{Action, Denial, End, Input, RolloutError, StopReason};
