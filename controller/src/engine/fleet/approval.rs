//! What a person agreed to before nodes are disturbed.

use std::collections::HashMap;

use gpufleet_protocol::Disruption;

use crate::engine::ports::confirm::Forecast;

/// What may be disturbed in this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approval {
    /// `--yes`.
    Everything,
    /// What was shown: a node never needs more than what a person saw.
    Shown(HashMap<String, Disruption>),
}

impl Approval {
    pub fn shown(forecast: &Forecast) -> Self {
        Self::Shown(forecast.disturbed.iter().cloned().collect())
    }

    pub fn allows(&self, host: &str, class: Disruption) -> bool {
        match self {
            Self::Everything => true,
            Self::Shown(shown) => shown.get(host).is_some_and(|agreed| class <= *agreed),
        }
    }
}
