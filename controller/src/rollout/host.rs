//! Where a node stands in its play.

use gpufleet_protocol::Disruption;

use super::{End, RolloutError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Pending,
    Running {
        /// Its scheduler may still have it drained for us: it keeps its place.
        holds: bool,
    },
    /// Wants a permit and waits for room in the budget.
    Queued {
        class: Disruption,
    },
    /// Takes a place in the budget while its scheduler lets go of it.
    Draining {
        class: Disruption,
    },
    /// Takes a place in the budget while its idleness is being proven; it may be out already, for a lower class.
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
    /// What a node is after a refusal that leaves it drained.
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

    /// What a new controller finds it as, which knows only that its task is gone.
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
