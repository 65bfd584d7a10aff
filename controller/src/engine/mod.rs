//! Carries out plays: joins the two pure cores, the interpreter of each node and the rollout of the fleet, with the
//! nodes themselves.
//!
//! One task a node ([`node`]) drives that node's cursor and talks to it; one dispatcher ([`fleet`]) owns the rollout,
//! the journal and what people see. They exchange messages and share no locks, so that everything that happens is
//! one ordered stream of events. [`replay`] reads what earlier runs left, [`run`] takes one play after the other, and
//! [`ports`] are the traits by which all of them reach the world. Imports go one way, which a test holds. The engine
//! knows neither YAML nor SSH nor the terminal.

mod error;
mod fleet;
mod host;
mod node;
mod ports;
mod replay;
mod run;
#[cfg(test)]
mod tests;
mod verdict;

pub use error::EngineError;
pub use fleet::{
    approval::Approval,
    ending::{RunResult, Stop, finished},
    recorder::Recorder,
};
pub use node::{conversation::delegates::Delegates, results_budget::ResultsBudget, settings::Overrules};
pub(crate) use ports::scheduler::is_word;
pub use ports::{
    confirm::{Confirm, Forecast, Prompt, Refusal, Stepper},
    keep_signer::{KeepSigner, KeptMachine},
    link::{ConnectFailure, Connector, Link, LinkError, Progress, Purpose, Way},
    runner::{Call, Output, RunError, Runner},
    scheduler::{
        Activity, Cordon, DrainError, Drainer, EarlierRuns, Effect, GpuOffer, Labelled, LeftBehind, Marker,
        NoticePlan, Outage, Ownership, RebootOrder, Scheduler, Target, VainReboot, WantedObject,
    },
    sink::Sink,
};
pub use replay::{
    durations::{DurationHistory, work_of},
    history::RunHistory,
};
pub use run::{
    engine::Engine,
    options::{Options, PlayInputs, RolloutOptions, TaskOptions},
};
