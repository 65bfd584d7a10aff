//! Asking a person: before nodes are disturbed, at a `pause`, and before each task of a run that steps.

use futures::future::BoxFuture;
use gpufleet_protocol::Disruption;

use crate::index::PlayIndex;
use crate::report::fold_names;

/// What a run would disturb, read from the nodes right before it asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Hosts and the most that each is sure to need; those that need nothing disruptive are left out.
    pub disturbed: Vec<(String, Disruption)>,
    /// Hosts of the play.
    pub hosts: usize,
}

impl Forecast {
    /// `reboot: gpu[001-003]; gpu-reset: gpu004`, the worst first.
    pub fn summary(&self) -> String {
        let of_class = |class: Disruption| {
            let hosts = self.disturbed.iter().filter(|(_, needed)| *needed == class).map(|(host, _)| host);
            let folded = fold_names(hosts);
            (!folded.is_empty()).then(|| format!("{class}: {folded}"))
        };
        let classes = [Disruption::Reboot, Disruption::GpuReset, Disruption::Clients];
        classes.into_iter().filter_map(of_class).collect::<Vec<_>>().join("; ")
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A person said no.
    Declined,
    /// The run was told to stop while a person thought.
    Interrupted,
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
    /// Shows a text and waits for a line, or for `seconds` where they are given; `None` where there is nobody.
    fn ask<'a>(&'a self, question: &'a Prompt) -> BoxFuture<'a, Option<String>> {
        let _ = question;
        Box::pin(std::future::ready(None))
    }
    /// Shows a text to the person, if there is one.
    fn tell(&self, text: &str) {
        let _ = text;
    }
}

/// What a `pause` task asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    pub text: String,
    /// Whether what is typed is shown.
    pub echo: bool,
}

/// Stands where nobody is.
#[cfg(test)]
pub(crate) struct Nobody;

#[cfg(test)]
impl Confirm for Nobody {
    fn confirm<'a>(&'a self, _: &'a Forecast) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(std::future::ready(Err(Refusal::NobodyToAsk)))
    }

    fn is_blanket(&self) -> bool {
        false
    }
}

/// Says which tasks run, one by one (`--step`).
pub trait Stepper: Send + Sync {
    /// Whether this task of this play runs; the same answer for every node that asks.
    fn runs<'a>(&'a self, play: PlayIndex, task: &'a str, title: &'a str) -> BoxFuture<'a, bool>;
}
