//! Takes up a node in a run that an earlier process began: what is known, what was lost, what must not happen twice.

use gpufleet_protocol::{
    FailureKind, OpOutcome, OpStatus, Reply, Request,
    message::Spooled,
    tasks::{self, Class},
};

use crate::{
    engine::{
        host::Resumed,
        node::{driver::NodeDriver, early_end::EarlyEnd},
        ports::link::LinkError,
    },
    event::{NodeState, What},
    interpreter::{Action, Fed, RunAs, Work},
    journal::Replayed,
    playbook::OnInterrupt,
};

impl NodeDriver {
    /// Goes on where the earlier process was.
    pub(crate) async fn take_up(&mut self, resumed: Resumed) -> Result<(), EarlyEnd> {
        let Resumed {
            mut cursor,
            unreported,
            already,
            reboot,
            boot_id,
            unproven,
            raised,
            latches,
            astray,
            ..
        } = resumed;
        if let Some(task) = astray {
            return Err(EarlyEnd::Held(format!(
                "what the journal says of it is of other tasks than it comes to now, at {task}: nobody can tell what it has done; look at it, \
                 and run the playbook anew"
            )));
        }
        self.left.latch =
            latches.into_iter().next_back().filter(|(_, gave)| gave.is_none()).map(|(key, _)| key);
        self.custody.node.reboot = reboot;
        self.custody.node.boot_id = boot_id;
        // Why assumed: the record of what was done under the permit may be what was lost.
        self.custody.node.host.custody.out_of_service |= self.custody.node.host.custody.adopted;
        self.custody.node.permit.acted = self.custody.node.host.custody.out_of_service;
        self.custody.node.permit.unproven = unproven;
        self.custody
            .node
            .dispatcher
            .state(if self.custody.node.permit.acted { NodeState::Acting } else { NodeState::Applying }, None)
            .await;
        for report in unreported {
            // Why not through `report`: the replay has counted them.
            self.custody
                .node
                .dispatcher
                .emit(What::TaskFinished { host: self.custody.node.host.name.clone(), report })
                .await;
        }
        self.left.reported = already;
        if raised.is_some() {
            self.custody.node.dispatcher.raise(raised).await;
        }
        self.carry_on(&mut cursor).await
    }

    /// Keeps in the journal what the cursor is told.
    pub(crate) async fn remember(&self, op_id: String, fed: &Fed, secret: bool) {
        let host = self.custody.node.host.name.clone();
        self.custody
            .node
            .dispatcher
            .emit(Replayed::Fed {
                host,
                play: self.custody.node.settings.play,
                op_id,
                fed: Some(Box::new(fed.clone())),
                secret,
            })
            .await;
    }

    /// The connection that the spool was asked on is gone: that of this node, or of the host that its task is delegated to.
    async fn spool_lost(&mut self, action: &Action, error: LinkError) -> EarlyEnd {
        let Some(host) = &action.terms.delegate else { return self.custody.node.lost(error).await };
        let settings = &self.custody.node.settings;
        let r#become = action.run_as != RunAs::Login;
        settings.run.delegates.forget(host, r#become, settings.purpose.login).await;
        EarlyEnd::Held(format!("delegated to {host}: {error}"))
    }

    /// The answer to an operation that an earlier process of this run asked for and did not receive. A command that was cut
    /// off is never run twice unless its task says so.
    pub(crate) async fn spooled(&mut self, action: &Action) -> Result<Option<Fed>, EarlyEnd> {
        if !matches!(action.work, Work::Node { .. }) {
            return Ok(None);
        }
        let op_id = action.id.to_string();
        let link = match &action.terms.delegate {
            Some(host) => {
                let r#become = action.run_as != RunAs::Login;
                let link = self
                    .custody
                    .node
                    .settings
                    .run
                    .delegates
                    .link(
                        &*self.custody.node.settings.run.connector,
                        host,
                        r#become,
                        self.custody.node.settings.purpose,
                    )
                    .await;
                link.map_err(|why| EarlyEnd::Held(format!("delegated to {host}: {why}")))?
            }
            None => self.custody.node.link().await?,
        };
        let spooled = match link.request(Request::Spooled { op_id }).await {
            Ok(Reply::Spooled(spooled)) => spooled,
            Ok(Reply::Error { message }) => return Err(EarlyEnd::Failed(message)),
            Ok(_) => return Err(EarlyEnd::Failed("the helper does not know what it has done".to_owned())),
            Err(error) => return Err(self.spool_lost(action, error).await),
        };
        let is_command = tasks::find(action.kind).is_some_and(|kind| kind.class == Class::Command);
        // Why: an operation that the helper broke off because the controller was gone has no result.
        let spooled = match spooled {
            Spooled::Finished(outcome) if was_cancelled(&outcome) => Spooled::Started,
            // Why: it may have failed because its controller ended; planning it again finds out.
            Spooled::Finished(outcome)
                if !is_command && !matches!(outcome.status, OpStatus::Ok | OpStatus::Changed) =>
            {
                Spooled::Started
            }
            other => other,
        };
        match spooled {
            // Why: operations are done in order, so no later one can have begun.
            Spooled::Nothing => self.left.ask_spool = false,
            // Why: a declared state is planned again, which completes one that was half made.
            Spooled::Started if !is_command => self.left.ask_spool = false,
            Spooled::Started => {
                self.left.ask_spool = false;
                let what = format!(
                    "interrupted in task `{}` ({}:{}): it began, and how far it got is not known",
                    action.task, action.position.file, action.position.line
                );
                return Ok(match action.terms.on_interrupt {
                    OnInterrupt::Rerun => None,
                    OnInterrupt::Fail => Some(Fed::Refused { reason: what }),
                    OnInterrupt::Hold => {
                        let drained = match &self.custody.node.host.custody.drain {
                            Some(_) => {
                                "; the node stays drained: see how far it got, run the playbook on the node \
                                 again, then give it back to its scheduler by hand"
                            }
                            None => "",
                        };
                        Some(Fed::held(format!(
                            "{what}; it is not run twice unless it says `on_interrupt: rerun`{drained}"
                        )))
                    }
                });
            }
            Spooled::Finished(outcome) => return Ok(Some(Fed::Outcome(outcome))),
        }
        Ok(None)
    }
}

fn was_cancelled(outcome: &OpOutcome) -> bool {
    matches!(outcome.status, OpStatus::Failed { kind: FailureKind::Cancelled, .. })
}
