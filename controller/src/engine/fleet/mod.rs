//! The dispatcher of a play: the rollout's decisions, barriers, what is recorded, failure domains.

pub(super) mod approval;
mod barriers;
pub(super) mod clock;
pub(super) mod context;
pub(super) mod dispatcher;
pub(super) mod domains;
pub(super) mod ending;
mod latches;
mod latecomers;
pub(super) mod neighbours;
mod node_tasks;
pub(super) mod recorder;
pub(super) mod start;
mod waiting;
