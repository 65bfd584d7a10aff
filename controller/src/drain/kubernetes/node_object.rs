//! Making labels and taints of a node as declared, and reading them back.
//!
//! Owns the order in which the server is asked; what differs is judged in [`declared`]. Invariants: nothing is written to an
//! object that is not proven to be the host's; what was written is read again before it counts.

use gpufleet_protocol::{FailureKind, OpOutcome, OpStatus, message::Mode};

use super::super::{DrainError, Target, WantedObject};
use super::{
    KubernetesDrainer, RACES,
    cluster::Got,
    declared::{self, Plan, came_back},
    objects::Node,
    standing,
};

impl KubernetesDrainer {
    pub(super) async fn declare_object(
        &self,
        target: &Target,
        wanted: &WantedObject,
    ) -> Result<OpOutcome, DrainError> {
        for _ in 0..RACES {
            let node = self.read(target).await?;
            if let Some(why) = self.unproven(target, &node, wanted) {
                return Ok(untold(wanted.mode, FailureKind::Refused, why));
            }
            let Plan { changes, patch } = match declared::plan(&node, &wanted.declared) {
                Ok(plan) => plan,
                Err(why) => return Ok(OpOutcome::failed(FailureKind::Invalid, why)),
            };
            if changes.is_empty() {
                return Ok(judged(&node, wanted, OpOutcome::new(OpStatus::Ok)));
            }
            let mut outcome = OpOutcome::new(OpStatus::Changed);
            outcome.changes = changes;
            if wanted.mode == Mode::Predict {
                return Ok(judged(&node, wanted, outcome));
            }
            self.proof().await?;
            let patched = self.cluster.patch_node(&target.node, patch).await;
            let after = match self.read(target).await {
                Ok(after) => after,
                Err(unread) => return Err(patched.err().unwrap_or(unread)),
            };
            let left = declared::plan(&after, &wanted.declared).map(|plan| plan.changes);
            match (patched, left) {
                // Why also after an error: its answer may have been lost behind the change.
                (Ok(Got::Here(_)) | Err(_), Ok(left)) if left.is_empty() => {
                    return Ok(judged(&after, wanted, outcome));
                }
                (Err(error), _) => return Err(error),
                (Ok(Got::Here(_)), Ok(left)) => {
                    let why = came_back(&left, &target.node);
                    outcome.status = OpStatus::Failed { kind: FailureKind::Unconverged, message: why };
                    return Ok(outcome);
                }
                (Ok(Got::Here(_)), Err(why)) => {
                    outcome.status = OpStatus::Failed { kind: FailureKind::Unconverged, message: why };
                    return Ok(outcome);
                }
                (Ok(Got::Missing | Got::Raced), _) => {}
            }
        }
        Err(self.restless(target))
    }

    /// Why the cluster's node is not proven to be the host.
    fn unproven(&self, target: &Target, node: &Node, wanted: &WantedObject) -> Option<String> {
        match &wanted.boot_id {
            Some(boot) => standing::stranger(target, node, boot),
            None => Some(format!(
                "{} did not tell its boot, so that nothing proves that it is the cluster's node {}",
                target.host, target.node
            )),
        }
    }
}

/// The outcome with what the node offers to pods.
fn judged(node: &Node, wanted: &WantedObject, mut outcome: OpOutcome) -> OpOutcome {
    match declared::misses(node, &wanted.declared, wanted.offer.as_ref()) {
        Ok(None) => {}
        Ok(Some(why)) => {
            outcome.status = OpStatus::Failed { kind: FailureKind::Unconverged, message: why };
        }
        Err(why) => outcome.status = OpStatus::Unknown { reason: why },
    }
    outcome
}

/// Nothing was changed, and nothing can be told: a run fails on that, a reading does not know.
fn untold(mode: Mode, kind: FailureKind, why: String) -> OpOutcome {
    match mode {
        Mode::Apply => OpOutcome::failed(kind, why),
        Mode::Predict => OpOutcome::new(OpStatus::Unknown { reason: why }),
    }
}
