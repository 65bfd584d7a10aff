//! A node's way to its permit: it asks, is drained, proves that nothing works on it, and is granted or denied.

use std::sync::Arc;

use gpufleet_protocol::{Disruption, NodeOp, message::IdleVerdict, op::Staying};

use crate::{
    engine::node::{
        custody::drain::No,
        cut::Cut,
        driver::{NodeTask, READING},
        message::{FromNode, ToNode},
    },
    event::{NodeState, What},
    interpreter::Fed,
    rollout::Input,
};

impl NodeTask {
    /// Gets a permit of at least this class; the inner error is the refusal, which the cursor takes as the task's end.
    pub(crate) async fn permitted(&mut self, class: Disruption, why: &str) -> Result<Result<(), Fed>, Cut> {
        let name = self.slot.name.clone();
        if self.own_boot.is_some() && self.link().await?.boot_id() == self.own_boot {
            let reason =
                format!("needs {class}, and gpufleet itself runs on this node; run it from another machine");
            return Ok(Err(Fed::Held { reason }));
        }
        if self.slot.serves {
            let reason = format!(
                "needs {class}, and somebody gave it back meanwhile; `gpufleet resume` drains it anew"
            );
            return Ok(Err(Fed::Held { reason }));
        }
        self.reason = if why.is_empty() { class.to_string() } else { why.to_owned() };
        self.state(NodeState::Waiting, Some(why.to_owned())).await;
        let wish = FromNode::WantsPermit { host: self.host, class, why: why.to_owned() };
        let _ = self.out.send(wish).await;
        drop(self.place.take());
        let answer = self.decided(class, why, &name).await;
        self.take_place().await;
        answer
    }

    pub(crate) async fn take_place(&mut self) {
        if self.place.is_none() {
            self.place = Arc::clone(&self.forks).acquire_owned().await.ok();
        }
    }

    async fn decided(&mut self, class: Disruption, why: &str, name: &str) -> Result<Result<(), Fed>, Cut> {
        loop {
            match self.answers.recv().await {
                Some(ToNode::Drain { deadline }) => {
                    self.forget_broken();
                    self.drain(deadline).await?;
                }
                Some(ToNode::ProveIdle) => {
                    self.forget_broken();
                    // Why before the proof: waiting after it would make it stale.
                    self.take_place().await;
                    let proof = self.prove_idle(class).await?;
                    let told = match proof {
                        Ok(()) => Input::Idle { host: self.host },
                        Err(no) if self.overruled(&no).await => Input::Idle { host: self.host },
                        Err(no) => Input::Busy { host: self.host, reason: no.why },
                    };
                    self.proven = Some(tokio::time::Instant::now());
                    self.tell(told).await;
                }
                Some(ToNode::Grant(permit)) => {
                    self.durable(What::PermitGranted { host: name.to_owned(), class: permit.class }).await?;
                    self.permit = Some(permit);
                    self.slot.out_of_service = true;
                    self.state(NodeState::Acting, Some(why.to_owned())).await;
                    return Ok(Ok(()));
                }
                Some(ToNode::Deny(reason)) => {
                    return Ok(Err(Fed::Held { reason: self.denied(reason).await }));
                }
                Some(ToNode::Stop(reason)) => {
                    let reason = self.denied(reason).await;
                    // Why not one that is still out: somebody has to bring it back.
                    return if self.is_out() { Ok(Err(Fed::Held { reason })) } else { Err(Cut::Stopped) };
                }
                Some(
                    ToNode::StopDraining
                    | ToNode::Go
                    | ToNode::End
                    | ToNode::Halt
                    | ToNode::LatchYours
                    | ToNode::LatchValue(_),
                ) => {}
                None => return Err(Cut::Stopped),
            }
        }
    }

    /// Gives back a node that was drained for nothing, and says what became of it.
    async fn denied(&mut self, reason: String) -> String {
        if self.slot.out_of_service || self.slot.drain.is_none() {
            return reason;
        }
        match self.give_back().await {
            Ok(()) => {
                self.tell(Input::Released { host: self.host }).await;
                reason
            }
            Err(stuck) => format!("{reason}; {stuck}"),
        }
    }

    /// Whether nothing works on the node now. Not knowing is being busy.
    pub(crate) async fn prove_idle(&mut self, class: Disruption) -> Result<Result<(), No>, Cut> {
        self.state(NodeState::Draining, Some(format!("checking that nothing works here ({class})"))).await;
        if let Err(no) = self.calm().await {
            return Ok(Err(no));
        }
        // Why: a node that stayed out runs again what had been stopped on it for the act.
        if let Err(no) = self.still_ours(self.slot.out_of_service).await {
            return Ok(Err(no));
        }
        let pods = match self.staying().await {
            Ok(pods) => pods,
            Err(no) => return Ok(Err(no)),
        };
        let outcome = self
            .simple(NodeOp::Idle(Staying { pods, may_hold_gpus: class == Disruption::Reboot }), READING)
            .await?;
        let Some(report) = outcome.idle else {
            let why = "the node cannot tell whether anything works on it";
            return Ok(Err(No::soft(why.to_owned())));
        };
        self.emit(What::IdleChecked { host: self.slot.name.clone(), report: report.clone() }).await;
        Ok(match report.verdict {
            IdleVerdict::Idle => Ok(()),
            IdleVerdict::Busy => Err(No::soft(report.reasons.join("; "))),
            IdleVerdict::Unknown => {
                let why = format!("cannot tell whether it is idle: {}", report.reasons.join("; "));
                Err(No::soft(why))
            }
        })
    }
}
