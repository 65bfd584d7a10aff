//! Dry runs of evictions: what the server would say, without any effect.
//!
//! Owns what a dry run and a forecast say; nothing here changes anything.

use std::{collections::BTreeSet, sync::PoisonError, time::Duration};

use futures::{StreamExt as _, stream};
use tokio::time::{Instant, sleep};

use super::super::{DrainError, Target};
use super::{
    AT_ONCE, KubernetesDrainer, MigManager, OVERLOAD,
    eviction::{self, Evicted},
    objects::Pod,
    operands::{self, MigManager as Layout},
    pods::{self, named},
    standing::outage,
    what_is_left,
};

/// How often one eviction is tried out on a server that has too much to do.
const REHEARSALS: u32 = 4;
/// How long a trial of an eviction counts.
const TRIED: Duration = Duration::from_secs(60);

/// What came of trying out evictions, ready to show.
#[derive(Default)]
pub(super) struct Trial {
    /// Pods that the server would never let go.
    pub(super) never: Vec<String>,
    /// Pods of which it could not say that now.
    pub(super) unknown: Vec<String>,
}

impl KubernetesDrainer {
    /// Which of these pods the server would never let go, as its dry run says; nothing where a person overrules.
    pub(super) async fn tried_out(&self, pods: &[Pod]) -> Result<Trial, DrainError> {
        let known = |pod: &&Pod| {
            let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
            tried.get(&pod.metadata.uid).is_some_and(|at| at.elapsed() < TRIED)
        };
        if self.options.forced {
            return Ok(Trial::default());
        }
        let asked: Vec<_> = pods.iter().filter(|pod| !known(pod)).map(|pod| self.rehearse(pod, 1)).collect();
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        let mut trial = Trial::default();
        while let Some(answer) = answers.next().await {
            match answer? {
                (pod, Evicted::Never(why)) => trial.never.push(format!("{}: {why}", named(pod))),
                // Why not as one that will go: the others would be evicted, and this one may never go.
                (pod, answer) if !answer.is_answer() => trial.unknown.extend(what_is_left(pod, &answer)),
                (pod, _) => {
                    let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
                    tried.retain(|_, at| at.elapsed() < TRIED);
                    tried.insert(pod.metadata.uid.clone(), Instant::now());
                }
            }
        }
        trial.never.sort();
        trial.unknown.sort();
        Ok(trial)
    }

    /// Whether this pod would go now. A server that has too much to do is asked again a few times.
    async fn rehearse<'a>(&self, pod: &'a Pod, mut tries: u32) -> Result<(&'a Pod, Evicted), DrainError> {
        if let Some(said) = self.asked_later(pod).filter(|said| !said.is_answer()) {
            return Ok((pod, said));
        }
        loop {
            let reply = self.cluster.send(eviction::eviction(pod, self.options.grace_period, true)).await?;
            tries -= 1;
            match eviction::read(&reply) {
                Evicted::Overload { again } if tries > 0 => sleep(again.unwrap_or(OVERLOAD)).await,
                answer => {
                    if !answer.is_answer() {
                        self.ask_later(pod, &answer);
                    }
                    return Ok((pod, answer));
                }
            }
        }
    }

    /// What would keep a drain from passing now.
    pub(super) async fn try_out(&self, target: &Target) -> Result<Vec<String>, DrainError> {
        let look = self.look(target).await?;
        let mut said = Vec::new();
        said.extend(outage(&look.node));
        if let (Layout::Owns(config), true, MigManager::Refuse) =
            (operands::mig_manager(&look.node), self.options.lays_out_mig, &self.options.mig_manager)
        {
            said.push(format!("mig-manager holds its MIG to nvidia.com/mig.config={config}"));
        }
        said.extend(look.refused);
        said.extend(look.evict.iter().filter_map(pods::held_by_finalizers));
        said.extend(self.come_back(target, &look.evict).await);
        let asked: Vec<_> = look.evict.iter().map(|pod| self.rehearse(pod, REHEARSALS)).collect();
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        let mut blocked = Vec::new();
        // Why not all of them first: each of a server that is silent takes its whole time.
        while let Some(answer) = answers.next().await {
            let (pod, answer) = answer?;
            if !matches!(answer, Evicted::Asked) {
                blocked.extend(what_is_left(pod, &answer));
            }
        }
        blocked.sort();
        said.extend(blocked);
        Ok(said)
    }

    /// Pods that are made for this very node by name, whatever its cordon says.
    async fn come_back(&self, target: &Target, pods: &[Pod]) -> Vec<String> {
        let mut owners: BTreeSet<(&str, &str, &str)> = BTreeSet::new();
        owners.extend(pods.iter().filter_map(pods::template_of));
        let mut said = Vec::new();
        for (namespace, kind, name) in owners {
            // Why no error: the right to read it is not asked for, and it is a forecast.
            if let Ok(Some(set)) = self.cluster.owner(namespace, kind, name).await
                && set.spec.template.spec.node_name == target.node
            {
                said.push(format!(
                    "pods of {namespace}/{name} come back to it at once: `nodeName: {}` in its template goes past every cordon",
                    target.node
                ));
            }
        }
        said
    }
}
