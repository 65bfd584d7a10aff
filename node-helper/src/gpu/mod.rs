//! The GPUs of the node.

use std::path::PathBuf;

use gpufleet_protocol::{
    Disruption, OpOutcome, OpStatus,
    facts::{GpuSystem, GpuSystemState},
    message::{IdleReport, Mode},
    op::GpuGroup,
};

use crate::{deadline::Deadline, state::Record};

/// What the GPU side needs of the session.
#[derive(Clone, Debug)]
pub struct Settings {
    pub state_dir: PathBuf,
    pub record: Record,
}

/// The GPUs, for one session.
#[derive(Debug)]
pub struct Gpus {
    _settings: Settings,
}

impl Gpus {
    pub fn new(settings: Settings) -> Self {
        Self { _settings: settings }
    }

    pub fn run(
        &mut self,
        group: &GpuGroup,
        _mode: Mode,
        _allowed: Disruption,
        _deadline: &Deadline,
        _progress: &dyn Fn(String),
    ) -> OpOutcome {
        let reason = "this helper was built without GPU support".to_owned();
        let mut outcome = OpOutcome::new(OpStatus::NotApplicable { reason });
        outcome.members = group.members.iter().map(|_| OpOutcome::new(outcome.status.clone())).collect();
        outcome
    }

    pub fn forget_predictions(&mut self) {}

    pub fn assume_activation(&mut self, _class: Disruption) {}

    pub fn facts(&mut self, _deadline: &Deadline) -> GpuSystem {
        GpuSystem { state: GpuSystemState::NotRead, ..GpuSystem::default() }
    }

    pub fn idle(&mut self, _deadline: &Deadline) -> IdleReport {
        IdleReport::default()
    }
}
