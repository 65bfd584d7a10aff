//! Which failure domain each host of a play is in: by a variable of the host, or by a label of its node at the scheduler.
//!
//! Invariant: what is not known is one domain with everything in it, never none.

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::ports::scheduler::{Labelled, Scheduler},
    engine::{error::EngineError, fleet::recorder::Recorder},
    event::{Level, PlayStarted, What},
    interpreter::HostContext,
    playbook::Play,
    template::{self, Scope},
};

/// The domain of hosts whose labels are not known.
const UNKNOWN: &str = "unknown";

pub(crate) enum Domains<'a> {
    Variables(&'a HashMap<String, Arc<HostContext>>),
    /// Those without the label are not in here.
    Labels(Labelled),
}

impl Domains<'_> {
    /// The domain of a host by the play's variable or label; none where it has none.
    pub(crate) fn of(&self, name: &str, host: &str) -> Option<String> {
        match self {
            Self::Variables(contexts) => failure_domain(name, contexts.get(host)?),
            Self::Labels(labels) => labels.hosts.get(host).cloned(),
        }
    }

    /// Nodes of the scheduler that are no hosts here, with the domain of each.
    pub(crate) fn others(&self) -> impl Iterator<Item = (&String, &String)> {
        let others = match self {
            Self::Variables(_) => None,
            Self::Labels(labels) => Some(&labels.others),
        };
        others.into_iter().flatten()
    }
}

/// The failure domain of a host: the value of the variable that the policy names; none where it is empty or not set.
pub(crate) fn failure_domain(variable: &str, context: &HostContext) -> Option<String> {
    let layers = [&context.extra, &context.vars, &context.magic].map(Arc::clone);
    let scope = Scope::new(layers.to_vec());
    let value = template::resolve(scope.get(variable)?, &scope).ok()?;
    let text = value.to_text();
    (value != template::Value::Null && !text.is_empty()).then_some(text)
}

/// What a linear play would wait for without end, if it may disturb: the nodes that are out wait for the others of their batch
/// at the next task, and of these some wait for a place in their domain.
pub(crate) fn waits_for_itself(shape: &PlayStarted) -> Option<String> {
    let policy = shape.policy.as_ref()?;
    let most = policy.max_per_domain?;
    shape.waves.iter().find_map(|wave| {
        let of_wave = |hosts: &[String]| hosts.iter().filter(|host| wave.hosts.contains(host)).count();
        let (domain, hosts) = policy
            .domains
            .iter()
            .map(|domain| (domain, of_wave(&domain.hosts)))
            .find(|(_, hosts)| *hosts > most)?;
        Some(format!(
            "a linear play with {hosts} nodes of `{}` in the batch `{}` and `max_unavailable_per_domain` {most} would wait for itself: the \
             nodes that are out wait for the others at the next task, and these wait for their domain\nhelp: leave out `strategy`, so that \
             each node goes through alone (host_pinned), or make the batches smaller",
            domain.name, wave.label
        ))
    })
}

/// The domains of these hosts; a scheduler that does not tell is asked for a while.
pub(crate) async fn domains<'a>(
    play: &Play,
    hosts: &[String],
    contexts: &'a HashMap<String, Arc<HostContext>>,
    scheduler: Option<&Scheduler>,
    recorder: &mut Recorder,
) -> Result<Domains<'a>, EngineError> {
    let label = play.policy.failure_domain.as_deref().filter(|_| play.policy.failure_domain_is_label);
    let (Some(label), Some(scheduler)) = (label, scheduler) else { return Ok(Domains::Variables(contexts)) };
    Ok(Domains::Labels(match scheduler.labels(hosts, label).await {
        Ok(labels) => labels,
        Err(unknown) => {
            let text = format!(
                "the label `{label}` of the nodes is unknown, so that all are one failure domain: {unknown}"
            );
            recorder.emit(What::Notice { level: Level::Warning, text })?;
            let hosts = hosts.iter().map(|host| (host.clone(), UNKNOWN.to_owned())).collect();
            Labelled { hosts, ..Labelled::default() }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{DomainShape, PolicyShape, WaveShape};
    use crate::index::PlayIndex;

    #[test]
    fn a_batch_with_more_of_a_domain_than_may_be_out_waits_for_itself() {
        let names = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let domain = |name: &str, hosts| DomainShape { name: name.to_owned(), hosts: names(hosts) };
        let wave = |hosts| WaveShape { label: "2".to_owned(), hosts: names(hosts), aside: false };
        let policy = |most| PolicyShape {
            max_per_domain: Some(most),
            domains: vec![domain("rack1", "a b"), domain("rack2", "c d")],
            ..PolicyShape::default()
        };
        let shape = |most, waves| PlayStarted {
            play: PlayIndex(0),
            name: String::new(),
            hosts: names("a b c d"),
            waves,
            max_unavailable: 2,
            policy: Some(policy(most)),
            work: None,
        };
        let text = waits_for_itself(&shape(1, vec![wave("a c"), wave("b d c")])).unwrap();
        assert!(text.starts_with("a linear play with 2 nodes of `rack2` in the batch `2` and"), "{text}");
        assert_eq!(waits_for_itself(&shape(1, vec![wave("a c"), wave("b d")])), None);
        assert_eq!(waits_for_itself(&shape(2, vec![wave("a b c d")])), None);
    }
}
