//! Carries out plays: joins the two pure cores, the interpreter of each node and the rollout of the fleet, with the
//! nodes themselves.
//!
//! One task a node ([`node`]) drives that node's cursor and talks to it; one dispatcher ([`play`]) owns the rollout,
//! the journal and what people see. They exchange messages and share no locks, so that everything that happens is
//! one ordered stream of events. The engine knows neither YAML nor SSH nor the terminal.

mod approval;
mod arriving;
mod begun;
mod between;
pub(crate) mod convert;
mod cut;
mod domains;
mod drain;
mod elsewhere;
mod ending;
mod fetch;
mod gate;
mod hooks;
mod job;
mod kept;
mod learned;
mod link;
mod loss;
mod meeting;
mod message;
mod neighbours;
mod node;
mod past;
mod pause;
mod peers;
mod permits;
mod play;
mod power;
mod reboot;
mod recorder;
mod rehearsal;
mod request;
mod resume;
mod run;
mod seen;
mod silence;
mod slot;
mod start;
#[cfg(test)]
mod tests;
mod together;
mod turn;
mod verdict;
mod waiting;
mod ways;

pub use approval::{Approval, Confirm, Forecast, Prompt, Refusal, Stepper};
pub use elsewhere::Delegates;
pub use ending::{RunResult, Stop, finished};
pub use kept::Kept;
pub use learned::{Learned, work_of};
pub use link::{ConnectFailure, Connector, Link, LinkError, Progress, Purpose, Way};
pub use past::Past;
pub use recorder::{Recorder, Sink};
pub use run::{Engine, EngineError, Options, Overrules};
