//! The state of a node in its play.

use gpufleet_protocol::Disruption;

use super::{End, RolloutError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Pending,
    Running {
        /// Whether its scheduler may still hold a drain of this run, so that it keeps its place.
        holds: bool,
    },
    /// Wants a permit and waits for room in the budget.
    Queued {
        class: Disruption,
    },
    /// Has a place in the budget while it is being drained.
    Draining {
        class: Disruption,
    },
    /// Has a place in the budget while its idleness is being proven; it may be out already, for a lower class.
    Proving {
        class: Disruption,
        was_out: bool,
    },
    Out,
    Ended {
        end: End,
        still_out: bool,
    },
}

impl Host {
    pub(super) const RUNNING: Self = Self::Running { holds: false };
    /// The state after a denial that leaves the node drained.
    pub(super) const HOLDING: Self = Self::Running { holds: true };

    const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running { .. } => "running",
            Self::Queued { .. } => "waiting for the budget",
            Self::Draining { .. } => "being drained",
            Self::Proving { .. } => "being checked for work",
            Self::Out => "out of service",
            Self::Ended { .. } => "finished",
        }
    }

    pub(super) const fn is_in_flight(self) -> bool {
        !matches!(self, Self::Pending | Self::Ended { .. })
    }

    /// Returns the state from which a new controller continues, which knows only that the node's task is gone.
    pub(super) const fn resumed(self, drains: bool) -> Self {
        match self {
            Self::Queued { .. } => Self::RUNNING,
            Self::Draining { .. } => Self::HOLDING,
            Self::Proving { was_out: true, .. } => Self::Out,
            Self::Proving { was_out: false, .. } => Self::Running { holds: drains },
            other => other,
        }
    }
}

pub(super) const fn impossible(host: usize, state: Host, input: &'static str) -> RolloutError {
    RolloutError::Impossible { host, state: state.name(), input }
}
