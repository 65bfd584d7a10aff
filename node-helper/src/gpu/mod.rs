//! The GPUs of a node: facts, plans, changes, and whether they are in use.
//!
//! A pure core (`state`, `desired`, `plan`, `after`, and `mig` of the protocol) decides. `apply` carries out the plan through the `machine`
//! trait, implemented by `host` with the NVML process of `worker`. This module must not know SSH or runs; of permits it
//! knows the allowed class only.

mod after;
mod apply;
mod blockers;
mod boot_commands;
pub mod bus;
pub(crate) mod clients;
mod desired;
mod drain;
mod drained;
mod facts;
mod group;
mod holders;
pub(crate) mod host;
mod idle;
mod kept;
mod machine;
pub(crate) mod mps;
mod observe;
mod persistenced;
mod plan;
mod reboot;
mod state;
mod suspend;
mod values;
mod wording;
pub(crate) mod worker;

pub use drain::{Draining, Drains};
pub use group::{Audited, Exposed, Gpus, InUse, Settings};
pub use holders::holders;
pub use idle::sentences as idle_sentences;
pub use kept::{AtBoot, Kept};
pub use observe::resets;
pub use plan::FORGETS;
pub use reboot::Taker;
pub use suspend::{Held, Left};
pub use worker::{NoHealth, NvmlError};

#[cfg(test)]
pub mod sim;
#[cfg(test)]
mod tests;
