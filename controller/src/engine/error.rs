//! Why a run broke off.

use crate::{
    journal::WriteError,
    rollout::{BudgetError, RolloutError, WindowError},
};

/// Why a run broke off without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Journal(#[from] WriteError),
    #[error("play `{play}`: {cause}")]
    Budget { play: String, cause: BudgetError },
    #[error("play `{play}`: {why}")]
    WaitsForItself { play: String, why: String },
    #[error("the rollout was told something impossible: {0}")]
    Rollout(#[from] RolloutError),
    #[error("the journal's window cannot be read: {0}")]
    Window(#[from] WindowError),
    #[error("{0}")]
    Internal(String),
}
