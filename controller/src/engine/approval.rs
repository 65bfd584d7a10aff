//! What a person agreed to before nodes are disturbed.

use std::collections::HashMap;

use futures::future::BoxFuture;
use gpufleet_protocol::Disruption;

/// What a run would disturb, read from the nodes right before it asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Hosts and the most that each is sure to need; those that need nothing disruptive are left out.
    pub disturbed: Vec<(String, Disruption)>,
    /// Hosts of the play.
    pub hosts: usize,
}

impl Forecast {
    /// Hosts that need exactly this class.
    pub fn of_class(&self, class: Disruption) -> Vec<&str> {
        self.disturbed.iter().filter(|(_, needed)| *needed == class).map(|(host, _)| host.as_str()).collect()
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A person said no.
    Declined,
    /// There is nobody to ask, and `--yes` was not given.
    NobodyToAsk,
}

/// Asks a person.
pub trait Confirm: Send + Sync {
    /// # Errors
    /// [`Refusal`]: nothing may be disturbed, and the run ends untouched.
    fn confirm<'a>(&'a self, forecast: &'a Forecast) -> BoxFuture<'a, Result<(), Refusal>>;
    /// Whether everything was agreed to beforehand (`--yes`).
    fn is_blanket(&self) -> bool;
}

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
