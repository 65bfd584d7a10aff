//! The fleet's side of a play: waves, the budgets of nodes out of service, windows, drains, thresholds, permits.
//!
//! A pure core: [`Rollout::step`] takes the time and what happened, and answers what to do. It sees neither YAML nor
//! variables nor sockets nor a clock, so that a hundred thousand nodes can be simulated in a test, and so that the
//! journal of its inputs is all that a new controller needs.
//!
//! Invariants (each one a property test in `tests`):
//! * at no claim more nodes out than the budget and the limit of each failure domain allow, whoever took them out;
//! * nobody is refused because of outages that only surveys report before they stood for the policy's patience;
//! * no permit without a proof of idleness right before it, and without a drain where nodes are drained;
//! * outside the window no claim, and inside only one that can finish;
//! * past a threshold, or after an interrupt, nothing new starts, and who is still being drained is given back;
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
