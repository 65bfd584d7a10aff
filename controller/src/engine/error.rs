//! Why a run broke off.

use crate::{
    index::PlayIndex,
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
    /// A fault of the program: the engine was asked for a play that the run does not have.
    #[error("no play {play}")]
    NoSuchPlay { play: PlayIndex },
    /// The same: the rollout asked who else is out where nobody drains.
    #[error("a survey without a scheduler")]
    NoScheduler,
    /// The same: a node did not take what it was told.
    #[error("{host} has not taken its last {answers} answers")]
    AnswersNotTaken { host: String, answers: usize },
    /// The same: what drives a node ended without a result.
    #[error("a node's task panicked: {cause}")]
    NodePanicked { cause: tokio::task::JoinError },
}
