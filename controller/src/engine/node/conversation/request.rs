//! A task's operation as a node is asked for it: on the node itself, or on another one that does it in its place.

use gpufleet_protocol::{NodeOp, OpOutcome, OpRequest, message::LOGIN_USER};

use crate::{
    engine::node::conversation::Conversation,
    interpreter::{Action, BlobNeed, RunAs},
};

impl Conversation {
    /// The user for one operation, given whom the helper runs as.
    pub(crate) fn run_as(&self, wanted: &RunAs) -> Option<String> {
        match wanted {
            // Why only where the helper is root: elsewhere it is the login user already.
            RunAs::Login => self.settings.purpose.r#become.then(|| LOGIN_USER.to_owned()),
            RunAs::Root => None,
            RunAs::User(user) => Some(user.clone()),
        }
    }

    /// The request for an operation of this task on the node itself, which may take this long, in seconds.
    pub(crate) fn request_for(&self, action: &Action, op: &NodeOp, timeout_s: u64) -> OpRequest {
        OpRequest {
            op: op.clone(),
            mode: action.mode,
            permit: self.permit.permit.clone(),
            run_as: self.run_as(&action.run_as),
            timeout_s,
            op_id: action.id.to_string(),
            secret: action.no_log,
            environment: action.environment.clone(),
        }
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
            .settings
            .run
            .delegates
            .link(&*self.settings.run.connector, host, r#become, self.settings.purpose)
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
                self.settings.run.delegates.forget(host, r#become, self.settings.purpose.login).await;
                Err(format!("delegated to {host}: {error}"))
            }
        }
    }
}
