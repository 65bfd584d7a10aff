//! A task's operation as a node is asked for it: on the node itself, or on another one that does it in its place.

use gpufleet_protocol::{
    NodeOp, OpOutcome, OpRequest,
    message::{LOGIN_USER, Mode},
};

use crate::{
    engine::node::{cut::Cut, driver::NodeTask},
    interpreter::{Action, BlobNeed, Fed, RunAs},
};

impl NodeTask {
    /// The user for one operation, given whom the helper runs as.
    pub(crate) fn run_as(&self, wanted: &RunAs) -> Option<String> {
        match wanted {
            // Why only where the helper is root: elsewhere it is the login user already.
            RunAs::Login => self.purpose.r#become.then(|| LOGIN_USER.to_owned()),
            RunAs::Root => None,
            RunAs::User(user) => Some(user.clone()),
        }
    }

    /// The request for an operation of this task on the node itself, which may take this long, in seconds.
    pub(crate) fn request_for(&self, action: &Action, op: &NodeOp, timeout_s: u64) -> OpRequest {
        OpRequest {
            op: op.clone(),
            mode: action.mode,
            permit: self.permit.clone(),
            run_as: self.run_as(&action.run_as),
            timeout_s,
            op_id: action.id.to_string(),
            secret: action.no_log,
            environment: action.environment.clone(),
        }
    }

    /// Has the node do it; what a reading runs is run once, however often the reading goes through the play.
    pub(crate) async fn operate(
        &mut self,
        action: &Action,
        op: &NodeOp,
        blobs: &[BlobNeed],
    ) -> Result<Fed, Cut> {
        let timeout_s = action.timeout_s.unwrap_or(self.task_timeout_s);
        let runs = action.mode == Mode::Apply && !self.verb.writes() && matches!(op, NodeOp::Exec(_));
        if !runs {
            return self.operate_now(action, op, blobs, timeout_s).await;
        }
        let id = action.id.to_string();
        if let Some(outcome) = self.ran.get(&id) {
            return Ok(Fed::Outcome(Box::new(outcome.clone())));
        }
        let fed = self.operate_now(action, op, blobs, timeout_s).await?;
        if let Fed::Outcome(outcome) = &fed {
            let mut outcome = OpOutcome::clone(outcome);
            outcome.weight.room = None;
            self.ran.insert(id, outcome);
        }
        Ok(fed)
    }

    /// Asks another host, which is not disturbed by it: it gives no permit. The error is why there is no answer.
    pub(crate) async fn on_another(
        &self,
        action: &Action,
        host: &str,
        op: &NodeOp,
        blobs: &[BlobNeed],
        timeout_s: u64,
    ) -> Result<OpOutcome, String> {
        let r#become = action.run_as != RunAs::Login;
        let link = self
            .delegates
            .link(&*self.connector, host, r#become, self.purpose)
            .await
            .map_err(|why| format!("delegated to {host}: {why}"))?;
        let run_as = match &action.run_as {
            RunAs::User(user) => Some(user.clone()),
            RunAs::Login | RunAs::Root => None,
        };
        let request = OpRequest { permit: None, run_as, ..self.request_for(action, op, timeout_s) };
        match link.call(request, blobs.to_vec(), Box::new(|_| {})).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => {
                self.delegates.forget(host, r#become, self.purpose.login).await;
                Err(format!("delegated to {host}: {error}"))
            }
        }
    }
}
