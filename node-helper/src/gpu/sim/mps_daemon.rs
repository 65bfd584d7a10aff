//! An MPS daemon of a simulated node.

use crate::gpu::state::Unit;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimMps {
    pub unit: Unit,
    pub text: Option<String>,
    pub running: Option<u32>,
    pub stale: bool,
    pub servers: usize,
}

impl SimMps {
    /// One that runs as it was declared last.
    pub fn started(enabled: bool) -> Self {
        Self { unit: Unit { exists: true, active: true, enabled }, running: Some(100), ..Self::default() }
    }

    pub fn run(&mut self, active: bool) {
        self.unit.active = active;
        let text = self.text.as_deref().unwrap_or_default();
        let share = text
            .split_once("set_default_active_thread_percentage ")
            .map_or(100, |(_, rest)| rest.split(' ').next().unwrap().parse().unwrap());
        (self.running, self.servers) = (active.then_some(share), 0);
    }
}
