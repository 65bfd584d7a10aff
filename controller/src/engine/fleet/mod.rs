//! The dispatcher of a play: the rollout's decisions, barriers, what is recorded, failure domains.

pub(super) mod approval;
mod barriers;
pub(super) mod context;
pub(super) mod dispatcher;
pub(super) mod domains;
pub(super) mod ending;
pub(super) mod neighbours;
pub(super) mod recorder;
pub(super) mod start;
mod waiting;
