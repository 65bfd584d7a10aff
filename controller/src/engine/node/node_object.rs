//! `kubernetes_node`: what the play's scheduler itself keeps of the node.
//!
//! Owns what the scheduler is told of the host, and the task's deadline. Must not know objects. Invariant: the host is asked
//! for its boot first, so that nothing is written to the object of another machine.

use std::time::Duration;

use gpufleet_protocol::{
    FailureKind, NodeOp, OpOutcome, OpStatus, message::Mode, op::FactsRequest, tasks::KubernetesNode,
};
use tokio::time::timeout;

use crate::{
    engine::{
        node::{conversation::READING, driver::NodeDriver, early_end::EarlyEnd},
        ports::scheduler::{GpuOffer, WantedObject},
    },
    interpreter::{Action, Fed},
};

impl NodeDriver {
    /// Compares the scheduler's object of the node, and makes it as declared unless the task only predicts.
    ///
    /// # Errors
    /// The host cannot be reached.
    pub(crate) async fn declare_object(
        &mut self,
        action: &Action,
        declared: &KubernetesNode,
    ) -> Result<Fed, EarlyEnd> {
        let answered = |outcome| Ok(Fed::Outcome(Box::new(outcome)));
        let Some(scheduler) = self.custody.node.settings.scheduler.clone() else {
            let why = "the play does not say which cluster: write `rollout: {drain: kubernetes}`, with its `kubeconfig`";
            return answered(OpOutcome::failed(FailureKind::Invalid, why));
        };
        self.custody.node.link().await?;
        let offer = match declared.asks_for_gpus() {
            true => {
                // Why now: an earlier task may have laid out MIG.
                let request = FactsRequest { gpus: true, ..FactsRequest::default() };
                let outcome = self.custody.node.simple(NodeOp::Facts(request), READING).await?;
                outcome.facts.and_then(|facts| GpuOffer::of(&facts.gpu))
            }
            false => None,
        };
        let wanted = WantedObject {
            declared: declared.clone(),
            mode: action.mode,
            boot_id: self.custody.boot_id(),
            offer,
        };
        let target = scheduler.target(&self.custody.node.host.name);
        let limit_s = action.timeout_s.unwrap_or(self.custody.node.settings.run.task_timeout_s);
        let answer = timeout(Duration::from_secs(limit_s), scheduler.drainer.declare(&target, &wanted)).await;
        let (kind, why) = match answer {
            Ok(Ok(outcome)) => return answered(outcome),
            Ok(Err(error)) => (FailureKind::Io, error.to_string()),
            Err(_) => {
                let at = scheduler.drainer.name();
                (FailureKind::TimedOut, format!("{at} gave no answer within {limit_s} s"))
            }
        };
        answered(match action.mode {
            Mode::Apply => OpOutcome::failed(kind, why),
            // Why not a failure: a reading that gets no answer does not know.
            Mode::Predict => OpOutcome::new(OpStatus::Unknown { reason: why }),
        })
    }
}
