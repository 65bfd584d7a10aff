//! MIG layouts that another program makes on a node: they are compared with what is declared, and left as they are.

use gpufleet_protocol::{Change, NodeOp, OpRequest, OpStatus};
use tokio::time::{Instant, sleep};

use crate::{
    engine::node::{
        custody::{Custody, proof::PROOF},
        early_end::EarlyEnd,
    },
    interpreter::{Action, Fed},
};

impl Custody {
    /// Who else lays out the node's MIG, so that a task must leave it as it is; the inner error is the refusal.
    pub(crate) async fn layout_of_others(&self) -> Result<Option<String>, Fed> {
        let Some(scheduler) = &self.node.settings.scheduler else { return Ok(None) };
        let target = scheduler.target(&self.node.host.name);
        let until = Instant::now() + PROOF;
        loop {
            match scheduler.drainer.lays_out(&target).await {
                Ok(by) => return Ok(by),
                Err(unknown) if Instant::now() + scheduler.poll >= until => {
                    return Err(Fed::held(unknown.to_string()));
                }
                Err(_) => sleep(scheduler.poll).await,
            }
        }
    }

    /// Checks that a layout that another program made is as declared, and changes nothing if it is not.
    pub(crate) async fn only_looked_at(
        &mut self,
        action: &Action,
        op: &NodeOp,
        timeout_s: u64,
        by: &str,
    ) -> Result<Fed, EarlyEnd> {
        let link = self.node.link().await?;
        let request = OpRequest { permit: None, ..self.node.request_for(action, op, timeout_s) };
        let outcome = match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) => outcome,
            Err(error) => return self.node.broken_off(error).await,
        };
        if !matches!(outcome.status, OpStatus::NeedsPermit { .. }) {
            return Ok(Fed::Outcome(Box::new(outcome)));
        }
        let differs: Vec<String> = outcome.changes.iter().map(Change::what).take(4).collect();
        let reason = format!(
            "{by} laid it out, and the play declares another layout ({}): declare the same in both",
            differs.join(", ")
        );
        Ok(Fed::held(reason))
    }
}
