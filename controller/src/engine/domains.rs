//! Which failure domain each host of a play is in: by a variable of the host, or by a label of its node at the scheduler.
//!
//! Invariant: what is not known is one domain with everything in it, never none.

use std::{collections::HashMap, sync::Arc};

use super::{convert, recorder::Recorder, run::EngineError};
use crate::{
    drain::{Labelled, Scheduler},
    event::{Level, What},
    interpreter::HostContext,
    playbook::Play,
};

/// The domain of hosts whose labels nobody told.
const UNKNOWN: &str = "unknown";

pub(super) enum Domains<'a> {
    Variables(&'a HashMap<String, Arc<HostContext>>),
    /// Those without the label are not in here.
    Labels(Labelled),
}

impl Domains<'_> {
    /// The domain of a host by the play's variable or label; none where it has none.
    pub(super) fn of(&self, name: &str, host: &str) -> Option<String> {
        match self {
            Self::Variables(contexts) => convert::failure_domain(name, contexts.get(host)?),
            Self::Labels(labels) => labels.hosts.get(host).cloned(),
        }
    }

    /// Nodes of the scheduler that are no hosts here, with the domain of each.
    pub(super) fn others(&self) -> impl Iterator<Item = (&String, &String)> {
        let others = match self {
            Self::Variables(_) => None,
            Self::Labels(labels) => Some(&labels.others),
        };
        others.into_iter().flatten()
    }
}

/// The domains of these hosts; a scheduler that does not tell is asked for a while.
pub(super) async fn domains<'a>(
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
