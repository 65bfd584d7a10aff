//! A node's part in a run that an earlier process began: what is known, what got lost, and what must not happen twice.

use std::time::Duration;

use gpufleet_protocol::{
    Disruption, FailureKind, OpOutcome, OpStatus, Reply, Request,
    message::Spooled,
    tasks::{self, Class},
};
use tokio::time::Instant;

use crate::{
    engine::{
        host::{PendingReboot, Resumed},
        node::{
            conversation::{
                boot::{Awaited, Standing},
                loss,
            },
            custody::reboot::SETTLE,
            cut::Cut,
            driver::NodeTask,
        },
        ports::link::Link,
    },
    event::{NodeState, What},
    interpreter::{Action, Fed, RunAs, Work},
    playbook::OnInterrupt,
};

impl NodeTask {
    /// Goes on where the earlier process was.
    pub(crate) async fn take_up(&mut self, resumed: Resumed) -> Result<(), Cut> {
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
            return Err(Cut::Held(format!(
                "what the journal says of it is of other tasks than it comes to now, at {task}: nobody can tell what it has done; look at it, \
                 and run the playbook anew"
            )));
        }
        self.left.latch =
            latches.into_iter().next_back().filter(|(_, gave)| gave.is_none()).map(|(key, _)| key);
        self.left.reboot = reboot;
        self.left.boot_id = boot_id;
        // Why assumed: what was done under the permit may be what got lost.
        self.slot.out_of_service |= self.slot.adopted;
        self.acted = self.slot.out_of_service;
        self.unproven = unproven;
        self.state(if self.acted { NodeState::Acting } else { NodeState::Applying }, None).await;
        for report in unreported {
            // Why not through `report`: the replay has counted them.
            self.emit(What::TaskFinished { host: self.slot.name.clone(), report }).await;
        }
        self.left.reported = already;
        if raised.is_some() {
            self.raise(raised).await;
        }
        self.carry_on(&mut cursor).await
    }

    pub(crate) async fn connected(&self, link: &dyn Link, ms: u64) {
        let host = self.slot.name.clone();
        self.emit(What::Connected { host, pushed: link.pushed(), ms, boot_id: link.boot_id() }).await;
    }

    /// A reboot that this run did not ask for loses what it has done, and nobody knows what else.
    pub(crate) fn same_boot(&mut self, link: &dyn Link) -> Result<(), Cut> {
        let now = link.boot_id();
        match (&self.left.boot_id, &now) {
            (Some(before), Some(after)) if before != after && self.left.reboot.is_none() => {
                Err(loss::unexpected_reboot(before, after))
            }
            _ => {
                if self.left.reboot.is_none() {
                    self.left.boot_id = now;
                }
                Ok(())
            }
        }
    }

    /// Keeps in the journal what the cursor is told.
    pub(crate) async fn remember(&self, op_id: String, fed: &Fed, secret: bool) {
        let host = self.slot.name.clone();
        self.emit(What::Fed { host, play: self.play, op_id, fed: Some(Box::new(fed.clone())), secret }).await;
    }

    /// The answer to an operation that an earlier process of this run asked for and did not live to hear. A command
    /// that was cut off is never run twice unless its task says so.
    pub(crate) async fn spooled(&mut self, action: &Action) -> Result<Option<Fed>, Cut> {
        if !matches!(action.work, Work::Node { .. }) {
            return Ok(None);
        }
        let op_id = action.id.to_string();
        let link = match &action.delegate {
            Some(host) => {
                let r#become = action.run_as != RunAs::Login;
                let link = self.delegates.link(&*self.connector, host, r#become, self.purpose).await;
                link.map_err(|why| Cut::Held(format!("delegated to {host}: {why}")))?
            }
            None => self.link().await?,
        };
        let spooled = match link.request(Request::Spooled { op_id }).await {
            Ok(Reply::Spooled(spooled)) => spooled,
            Ok(Reply::Error { message }) => return Err(Cut::Failed(message)),
            Ok(_) => return Err(Cut::Failed("the helper does not know what it has done".to_owned())),
            Err(error) => return Err(self.lost(error).await),
        };
        let is_command = tasks::find(action.kind).is_some_and(|kind| kind.class == Class::Command);
        // Why the same: an operation that its helper broke off because the controller was gone has no result either.
        let spooled = match spooled {
            Spooled::Finished(outcome) if was_cancelled(&outcome) => Spooled::Started,
            // Why: the end of its controller may be what it failed at, and planning again finds out.
            Spooled::Finished(outcome)
                if !is_command && !matches!(outcome.status, OpStatus::Ok | OpStatus::Changed) =>
            {
                Spooled::Started
            }
            other => other,
        };
        match spooled {
            // Why: it is done in order, so nothing that follows can have begun.
            Spooled::Nothing => self.left.ask_spool = false,
            // Why: a declared state is planned again, so that half of it is found and mended.
            Spooled::Started if !is_command => self.left.ask_spool = false,
            Spooled::Started => {
                self.left.ask_spool = false;
                let what = format!(
                    "interrupted in task `{}` ({}:{}): it began, and how far it got is not known",
                    action.task, action.file, action.line
                );
                return Ok(match action.on_interrupt {
                    OnInterrupt::Rerun => None,
                    OnInterrupt::Fail => Some(Fed::Refused { reason: what }),
                    OnInterrupt::Hold => {
                        let drained = match &self.slot.drain {
                            Some(_) => {
                                "; the node stays drained: see how far it got, run the playbook on the node \
                                 again, then give it back to its scheduler by hand"
                            }
                            None => "",
                        };
                        Some(Fed::Held {
                            reason: format!(
                                "{what}; it is not run twice unless it says `on_interrupt: rerun`{drained}"
                            ),
                        })
                    }
                });
            }
            Spooled::Finished(outcome) => return Ok(Some(Fed::Outcome(outcome))),
        }
        Ok(None)
    }

    /// Takes up a reboot that was asked for: proven by another boot id, waited for while the node is away, and asked
    /// for once more when the node is still in its old boot.
    pub(crate) async fn see_reboot_through(&mut self, limit: Duration) -> Result<Fed, Cut> {
        let Some(PendingReboot { boot_id: before, deadline, proven }) = self.left.reboot.clone() else {
            return Ok(Fed::Rebooted);
        };
        if proven {
            self.left.reboot = None;
            if let Some(had) = self.slot.facts.take() {
                self.all_back(&had).await?;
            }
            return Ok(Fed::Rebooted);
        }
        self.ways.expects(&self.slot.name);
        self.state(NodeState::Rebooting, Some("taken up".to_owned())).await;
        let left = deadline.map_or(limit, |deadline| {
            Duration::try_from(deadline.duration_since(jiff::Timestamp::now())).unwrap_or(Duration::ZERO)
        });
        // Why at least a minute: the deadline may have passed while nobody looked, and the node be back all the same.
        let left = left.max(Duration::from_secs(60));
        let since = Instant::now();
        let awaited = Awaited { before, since, limit: left, gone: false, settles: since + SETTLE };
        match self.until_up(&awaited, Instant::now() + left).await {
            Err(Standing::Old(Some(system))) if !system.shutdown_scheduled => {
                self.left.reboot = None;
                self.left.boot_id = Some(awaited.before);
                let why = "the node had not gone down";
                if let Err(held) = self.permitted(Disruption::Reboot, why).await? {
                    return Ok(held);
                }
                self.reboot(limit, vec![why.to_owned()]).await?;
            }
            waited => {
                self.arrive(awaited, waited).await?;
            }
        }
        Ok(Fed::Rebooted)
    }
}

fn was_cancelled(outcome: &OpOutcome) -> bool {
    matches!(outcome.status, OpStatus::Failed { kind: FailureKind::Cancelled, .. })
}
