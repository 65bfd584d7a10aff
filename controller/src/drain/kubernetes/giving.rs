//! Giving a node back, or leaving it: what is waited for, and what is taken off.
//!
//! Owns the one deadline of that wait. Invariant: a node that is not ours keeps its cordon, and loses our marks alone.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::super::{DrainError, Marker, Ownership, Target};
use super::{
    KubernetesDrainer, MigManager, RACES,
    cluster::Got,
    line,
    objects::Node,
    operands::{self, MigManager as Layout},
    pods::daemon,
    standing::{self, silence, standing},
};

/// How long what a node offers must stay the same if it is not known what that should be.
///
/// Why: the device plugin registers one kind of instance after the other.
const SETTLE: Duration = Duration::from_secs(5);

/// How far giving a node back is.
enum Back {
    Done(Ownership),
    Waits(String),
}

impl KubernetesDrainer {
    pub(super) async fn give_back(
        &self,
        target: &Target,
        marker: &Marker,
        rebooted_after: Option<Timestamp>,
    ) -> Result<Ownership, DrainError> {
        let begun = Instant::now();
        let mut settled = None;
        let answer = loop {
            let waits = match self.step_back(target, marker, rebooted_after, &mut settled).await {
                Ok(Back::Done(ownership)) => break Ok(ownership),
                Ok(Back::Waits(why)) => Ok(why),
                // Why at once: who has the lock now decides, and no waiting changes that.
                Err(error) if matches!(self.has_lost_lock().await, Ok(Some(_))) => break Err(error),
                Err(error) => Err(error),
            };
            let why = waits.as_ref().map_or_else(ToString::to_string, Clone::clone);
            self.waiting().insert(target.node.clone(), why);
            let left = self.options.ready_timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break Err(match waits {
                    Ok(why) => DrainError::StaysOut {
                        node: target.node.clone(),
                        out: "cordoned",
                        why: format!(
                            "{why}, {} s long (`kubectl describe node {}`)",
                            self.options.ready_timeout.as_secs(),
                            target.node
                        ),
                        next: "correct that, then resume the run".to_owned(),
                    },
                    Err(error) => error,
                });
            }
            sleep(self.options.poll.min(left)).await;
        };
        self.waiting().remove(&target.node);
        answer
    }

    async fn step_back(
        &self,
        target: &Target,
        marker: &Marker,
        rebooted_after: Option<Timestamp>,
        settled: &mut Option<(BTreeMap<String, u64>, Instant)>,
    ) -> Result<Back, DrainError> {
        let node = self.read(target).await?;
        let own = marker.to_string();
        let restore = operands::restore(&node, &own);
        let record = operands::paused(&node).filter(|record| record.by == own);
        let raced = || Back::Waits("it changed at the same moment".to_owned());
        let verdict = match standing(&node, marker) {
            Ownership::Ours => None,
            other => Some(other),
        };
        match &verdict {
            None => self.proof().await?,
            // Why left as it is: the run that has the lock acts on the nodes now, and takes such marks over.
            Some(verdict) if self.has_lost_lock().await?.is_some() => return Ok(Back::Done(verdict.clone())),
            Some(_) => {}
        }
        if !self.take_notices_back(target, marker).await? {
            return Ok(raced());
        }
        if let Some(verdict) = verdict {
            return Ok(match self.abandon(target, &node, marker).await? {
                true => Back::Done(verdict),
                false => raced(),
            });
        }
        if !restore.is_empty() {
            let mut patch = vec![standing::same(&node), standing::owned(marker)];
            patch.extend(restore);
            self.cluster.patch_node(&target.node, patch).await?;
            return Ok(Back::Waits("what the GPU operator runs there starts again".to_owned()));
        }
        if let Some(why) = self.not_yet(target, &node, rebooted_after, record.as_ref(), settled).await? {
            return Ok(Back::Waits(why));
        }
        Ok(match self.cluster.patch_node(&target.node, standing::uncordon(&node, marker)).await? {
            Got::Here(_) => Back::Done(Ownership::NotDrained),
            Got::Missing | Got::Raced => raced(),
        })
    }

    /// Brings back what this drain stopped on a node that is not ours, and takes our marks off; the cordon is left as it is.
    /// Whether no one else wrote in between.
    async fn abandon(&self, target: &Target, node: &Node, marker: &Marker) -> Result<bool, DrainError> {
        let patch = standing::abandon(node, marker);
        if patch.is_empty() {
            return Ok(true);
        }
        Ok(!matches!(self.cluster.patch_node(&target.node, patch).await?, Got::Raced))
    }

    pub(super) async fn let_go_of(&self, target: &Target, marker: &Marker) -> Result<(), DrainError> {
        for _ in 0..RACES {
            let node = self.read(target).await?;
            if matches!(standing(&node, marker), Ownership::Ours) {
                return Ok(());
            }
            if let Some(why) = self.has_lost_lock().await? {
                let nothing = standing::abandon(&node, marker).is_empty();
                return if nothing { Ok(()) } else { Err(DrainError::Lock { why }) };
            }
            if self.take_notices_back(target, marker).await? && self.abandon(target, &node, marker).await? {
                return Ok(());
            }
        }
        Err(self.restless(target))
    }

    /// Why a node that is ours must not be given back yet.
    async fn not_yet(
        &self,
        target: &Target,
        node: &Node,
        rebooted_after: Option<Timestamp>,
        record: Option<&operands::Paused>,
        settled: &mut Option<(BTreeMap<String, u64>, Instant)>,
    ) -> Result<Option<String>, DrainError> {
        if let Some(silence) = silence(node) {
            return Ok(Some(format!("it is {silence}")));
        }
        if let Layout::Works(state) = operands::mig_manager(node) {
            return Ok(Some(format!("mig-manager lays out its MIG now ({state})")));
        }
        let before = standing::before(node);
        if let Some(stranger) = self.stranger(target, node) {
            return Ok(Some(stranger));
        }
        // Why not where the host's own boot is known: then the kubelet has told that one.
        if let Some(after) = rebooted_after
            && !self.boots().contains_key(&target.node)
            && !has_booted(node, &before.boot_id, after)
        {
            return Ok(Some(format!(
                "its kubelet has not registered since its reboot at {after} (bootID {})",
                node.status.node_info.boot_id
            )));
        }
        if let Some(record) = record.filter(|record| !record.daemons.is_empty()) {
            let pods = self.cluster.pods_on(&node.metadata.name).await?;
            for name in &record.daemons {
                let Some((namespace, set)) = name.split_once('/') else { continue };
                let runs = pods.iter().any(|pod| {
                    daemon(pod).is_some_and(|key| key.0 == namespace && key.1 == set)
                        && pod.is_ready()
                        && pod.metadata.deletion_timestamp.is_none()
                });
                if runs {
                    continue;
                }
                if let Some(set) = self.cluster.daemon(namespace, set).await? {
                    let wanted = &set.spec.template.spec.node_selector;
                    // Why: someone may have removed its label since.
                    if wanted.iter().all(|(key, value)| node.metadata.labels.get(key) == Some(value)) {
                        return Ok(Some(format!("the pod of {name} is not ready there")));
                    }
                }
            }
        }
        let now = operands::advertised(node);
        let offer = self.offers().get(&node.metadata.name).cloned();
        // Why only there: elsewhere nothing was laid out unless the node told of it.
        let by_manager =
            self.options.lays_out_mig && matches!(self.options.mig_manager, MigManager::Label(_));
        let offers = !before.gpus.is_empty() || before.stopped;
        let missing = match &offer {
            _ if !offers => None,
            Some(offer) => operands::wrong(offer, &now, &node.metadata.labels),
            None if before.gpus.is_empty() => now.is_empty().then(|| {
                "it advertises no GPUs, and what offers them there was stopped already when this drain began".to_owned()
            }),
            None if by_manager => now.is_empty().then(|| operands::missing(&before.gpus, &now)).flatten(),
            None => operands::missing(&before.gpus, &now),
        };
        if missing.is_some() {
            return Ok(missing);
        }
        let unknown = by_manager || before.gpus.is_empty() || offer.is_some_and(|offer| offer.more);
        if offers && unknown {
            match settled {
                Some((same, since)) if *same == now && since.elapsed() >= SETTLE => {}
                Some((same, _)) if *same == now => {
                    return Ok(Some("what it advertises changed just now".to_owned()));
                }
                _ => {
                    *settled = Some((now, Instant::now()));
                    return Ok(Some("what it advertises changed just now".to_owned()));
                }
            }
        }
        Ok(None)
    }

    pub(super) async fn leave_word(
        &self,
        target: &Target,
        marker: &Marker,
        why: &str,
    ) -> Result<(), DrainError> {
        for _ in 0..RACES {
            let node = self.read(target).await?;
            if !matches!(standing(&node, marker), Ownership::Ours) {
                return Ok(());
            }
            if let Some(why) = self.has_lost_lock().await? {
                let nothing = operands::restore(&node, &marker.to_string()).is_empty();
                return if nothing { Ok(()) } else { Err(DrainError::Lock { why }) };
            }
            let mut patch = vec![standing::same(&node), standing::owned(marker)];
            patch.push(standing::annotate(standing::WHY, &line(why)));
            // Why here: a node that stays out must not stay without its metrics for that, nor with a forgotten pause.
            patch.extend(operands::restore(&node, &marker.to_string()));
            if matches!(self.cluster.patch_node(&target.node, patch).await?, Got::Here(_)) {
                return Ok(());
            }
        }
        Err(self.restless(target))
    }

    /// An error that leaves a node as it is, with what is stopped there.
    pub(super) fn with_what_is_stopped(
        &self,
        error: DrainError,
        target: &Target,
        marker: &Marker,
    ) -> DrainError {
        let known = self.stopped().get(&target.node).cloned();
        let left = match known {
            Some(record) if record.by == marker.to_string() => {
                operands::how_to_restore(&target.node, &record)
            }
            None if self.options.pauses_operands => Some(operands::how_to_look(&target.node)),
            Some(_) | None => None,
        };
        match left {
            Some(next) => DrainError::Paused { error: Box::new(error), next },
            None => error,
        }
    }
}

/// Whether a node's kubelet was heard in another boot than before.
fn has_booted(node: &Node, before: &str, after: Timestamp) -> bool {
    let now = &node.status.node_info.boot_id;
    if !before.is_empty() && !now.is_empty() {
        return now != before;
    }
    // Why only then: a heartbeat from the seconds before the machine went down looks the same.
    node.ready().and_then(|ready| ready.last_transition_time).is_some_and(|time| time > after)
}
